#!/bin/sh
# What runs leave on drives: who may read it, which links are followed, and how runs are listed and removed:
# check_runs.sh SLUICE
set -u
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?use: check_runs.sh SLUICE}") || exit 2
make_scratch check_runs
cd "$scratch" || exit 2
cpu_only
write_text text.txt 60
write_job job.json 2 nvme drive

# train KEY=VALUE...: trains the job with these overrides; it must succeed.
train()
{
    set_options "$@"
    # shellcheck disable=SC2086 # values without blanks, split on purpose
    call "$sluice" train job.json --quiet $sets
    exits 0 "train $*"
}

# modes FILE DIRECTORY PATH...: all that lies there has these modes.
modes()
{
    files=$1
    directories=$2
    shift 2
    find "$@" -type f ! -perm "$files" -printf '%m %p\n' -o -type d ! -perm "$directories" -printf '%m %p\n' >found
    [ ! -s found ] || fail "not $files and $directories: $(head -n 5 found | tr '\n' ';')"
    [ "$(find "$@" -type f | grep -c '')" -ge "${least:-1}" ] || fail "too few files in $*"
}

# Files that a run makes: prepared tokens, a kept commit, slabs, state, metrics, plan, trace, report.
for mask in 000 022 077; do
    umask $mask
    printf '{"text": "a line of JSON that becomes tokens %d"}\n' 1 2 3 4 5 6 7 8 9 >text.jsonl
    train run.keep=1 run.commit_every=1 run.tensorboard=true 'data.train=["text.jsonl"]'
    call "$sluice" report run
    exits 0 "report"
    [ "$(find run/tensorboard -name "events*" | grep -c "")" -eq 1 ] || fail "the run made no event file"
    for name in job.json plan.json metrics.jsonl trace.json report.html state/lock state/manifest-0 \
        keep/step-000000001/job.json; do
        [ -f "run/$name" ] || fail "the run has no $name"
    done
    [ "$(find run/data -name '*.tokens' | grep -c '')" -gt 0 ] || fail "the run made no tokens"
    [ "$(find drive -name '*.slab' | grep -c '')" -ge 3 ] || fail "fewer slabs than a run and two kept commits have"
    modes 600 700 run drive
    call "$sluice" export run exported
    exits 0 "export"
    [ "$(stat -c %a exported/model.safetensors)" = "$(printf %o $((0666 & ~0$mask)))" ] ||
        fail "an export is not as the umask says: $(stat -c %a exported/model.safetensors)"
    rm -rf run drive exported
done
umask 022

# The job's wish. A run that goes on leaves what exists as it is, whatever it wishes.
train run.mode=0640 run.steps=1
modes 640 750 run drive
chmod -R g=u,o= run drive
train run.steps=2 run.mode=0600
[ "$(stat -c %a run/metrics.jsonl run/plan.json run/state | tr '\n' ' ')" = "660 660 770 " ] ||
    fail "resuming changed modes: $(stat -c '%a %n' run/* | tr '\n' ' ')"
rm -rf run drive
mkdir -m 755 run drive
train run.steps=1
[ "$(stat -c %a run drive | tr '\n' ' ')" = "755 755 " ] || fail "a directory of the user has another mode"
modes 600 700 run/* drive/*
rm -rf run drive
call "$sluice" train job.json --set run.mode=0777
exits 2 "a mode that is no choice"
one_error "a mode that is no choice" "run.mode"

# Directories may be links; the files in them may not.
mkdir real-run real-drive
ln -s real-run run
ln -s real-drive drive
train run.steps=1
[ -f real-run/metrics.jsonl ] && [ -d real-drive/sluice-* ] || fail "links to directories were not followed"
echo secret >victim
mv real-run/metrics.jsonl kept
ln -s ../victim real-run/metrics.jsonl
call "$sluice" train job.json --quiet
[ "$status" -eq 1 ] || fail "metrics.jsonl is a link: exit $status"
one_error "metrics.jsonl is a link" "metrics.jsonl is a symbolic link"
rm real-run/metrics.jsonl
mv kept real-run/metrics.jsonl
for name in plan.json trace.json report.html; do
    ln -s ../victim "real-run/$name.partial"
done
train
call "$sluice" report run
[ "$(cat victim)" = secret ] || fail "a write followed a link"
[ -f real-run/plan.json ] && [ ! -L real-run/plan.json.partial ] || fail "a link is left at a partial file"
rm -rf run drive real-run real-drive

# Side files of a checkpoint. A cache of the hub is made of links.
train run.steps=1
call "$sluice" export run hub/models--x/blobs
exits 0 "export"
mkdir -p hub/models--x/snapshots/c0ffee
for file in hub/models--x/blobs/*; do
    ln -s "../../blobs/${file##*/}" hub/models--x/snapshots/c0ffee/
done
printf '{"bos_token_id": 1, "max": 1000000000000000019884624838656}' >hub/models--x/blobs/generation_config.json
ln -s ../../blobs/generation_config.json hub/models--x/snapshots/c0ffee/
call "$sluice" import hub/models--x/snapshots/c0ffee imported --quiet
exits 0 "import from a cache of the hub"
[ -f imported/hf/generation_config.json ] && [ ! -L imported/hf/generation_config.json ] ||
    fail "a side file of the cache was not copied"
modes 600 700 imported
cp -rL hub/models--x/snapshots/c0ffee plain

# side NAME CONTENT TEXT: the file NAME with this content is refused by import and train, before anything is made.
side()
{
    printf "$2" >"plain/$1"
    refused_side "$1" "$3"
    rm "plain/$1"
}
refused_side()
{
    call "$sluice" import plain other --quiet
    exits 2 "import with $1"
    one_error "import with $1" "plain/$1"
    one_error "import with $1" "$2"
    [ ! -e other ] || fail "import with $1: something was made"
    rm -rf other
}
side tokenizer_config.json '{"a": ' 'no JSON object'
side special_tokens_map.json '[1]' 'no JSON object'
side merges.txt 'a\377b' 'no text in UTF-8: byte 1'
side tokenizer.model '\n\377\377' 'no model of SentencePiece'
ln -s ../victim plain/vocab.json
refused_side vocab.json "is a symbolic link to $scratch/victim, outside of its checkpoint"
rm plain/vocab.json
ln -s config.json plain/added_tokens.json
call "$sluice" import plain other --quiet
exits 0 "a link within the checkpoint"

rm -rf run drive imported hub plain other exported

# list and remove. Two runs on two drives, with a kept commit; a third whose directory is deleted.
two='tiers.nvme=[{"path":"drive","budget":"64MiB"},{"path":"second","budget":"64MiB"}]'
for name in runs/a runs/deep/b runs/gone; do
    train run.dir=$name run.keep=1 run.commit_every=1 run.tensorboard=true "$two"
done
rm -rf runs/gone
call "$sluice" list
exits 0 "list"
for text in runs/a runs/deep/b "committed" "slabs that no run here names" "their run is not there, or not mounted: $scratch/runs/gone"; do
    says out "$text" "list"
done
# The deleted run leaves its slabs and those of two kept commits on each drive.
call "$sluice" list runs --json
exits 0 "list --json"
[ "$(grep -c '"run":' "$scratch/out")" -eq 2 ] || fail "list: not two runs"
[ "$(grep -c '"path":' "$scratch/out")" -eq 6 ] || fail "list: not six directories of slabs without a run"
call "$sluice" list --drive second
says out "runs/gone" "list --drive"
[ "$(grep -c '^ .*second/sluice-' "$scratch/out")" -eq 3 ] || fail "list --drive: not the three of that drive"
call "$sluice" list none
exits 2 "list of a directory that is not there"
# Slabs of another user, which cannot be looked into, are passed over: nobody can say whose they are.
digits=0123456789abcdef0123456789abcde
mkdir -p "shared/sluice-${digits}0" "shared/sluice-${digits}0.keep" "shared/sluice-${digits}1"
chmod 755 . shared "shared/sluice-${digits}1"
chmod 0 "shared/sluice-${digits}0" "shared/sluice-${digits}0.keep"
as_other=
[ "$(id -u)" -ne 0 ] || as_other="setpriv --reuid=65534 --regid=65534 --clear-groups"
if $as_other "$sluice" --version >out 2>err && $as_other test -r shared; then
    call $as_other "$sluice" list --drive shared
    exits 0 "list of a drive with slabs of another user"
    says out "${digits}1" "list of a drive with slabs of another user"
    [ "$(grep -c 'shared/sluice-' out)" -eq 1 ] || fail "list shows slabs of another user"
else
    echo "not checked, since no other user can be taken here: slabs of another user"
fi
chmod 700 . shared/*
rm -rf shared
mkdir empty
call "$sluice" list empty
says out "no runs and no slabs" "list of an empty directory"

# unchanged RUN: nothing of the run has been removed.
unchanged()
{
    call "$sluice" verify "$1" --quiet
    exits 0 "the refused removal of $1 left it whole"
}
call "$sluice" remove runs/a
exits 2 "remove without a terminal"
one_error "remove without a terminal" "--yes"
for wrong in runs none text.txt; do
    call "$sluice" remove $wrong --yes
    exits 2 "remove $wrong"
    one_error "remove $wrong" "no run directory"
done
flock runs/a/state/lock "$sluice" remove runs/a --yes >out 2>err
status=$?
exits 2 "remove of a run that is in use"
one_error "remove of a run that is in use" "in use"
mv second away
call "$sluice" remove runs/a --yes
exits 1 "remove without a drive"
one_error "remove without a drive" "$scratch/second is not mounted or is empty"
mv away second
unchanged runs/a
cp -r runs/a copied
call "$sluice" remove copied --yes
exits 0 "remove of a copy"
[ ! -e copied ] || fail "the copy is still there"
unchanged runs/a
mv runs/a/state real-state
ln -s ../../real-state runs/a/state
call "$sluice" remove runs/a --yes
exits 1 "remove through a link"
rm runs/a/state
mv real-state runs/a/state
unchanged runs/a
unchanged runs/a/keep/step-000000001

# A kept commit alone; links in a run lead nowhere; other files stay; a link to the run goes with it.
SLUICE_FAILPOINTS="remove.manifests=kill@1" "$sluice" remove runs/a/keep/step-000000001 --yes >out 2>err
[ -e runs/a/keep/step-000000001/state/removing ] || fail "the removal of a kept commit was not killed"
call "$sluice" remove runs/a/keep/step-000000001 --yes
exits 0 "remove of a kept commit"
unchanged runs/a
[ ! -e runs/a/keep/step-000000001 ] && [ "$(find drive second -type d -name step-000000001 | grep -c '')" -eq 4 ] ||
    fail "something of the kept commit is left"
mkdir elsewhere
echo mine >elsewhere/config.json
echo mine >elsewhere/x.tokens
ln -s "$scratch/elsewhere" runs/a/hf
ln -s "$scratch/elsewhere" runs/a/data
ln -s "$scratch/victim" runs/a/report.html
echo notes >runs/a/notes.txt
ln -s a runs/link
call "$sluice" remove runs/link --yes
exits 0 "remove of a run with links"
says err "such as notes.txt" "remove of a run with other files"
[ "$(ls runs/a)" = notes.txt ] || fail "more than the user's file is left: $(ls runs/a)"
[ "$(cat elsewhere/config.json elsewhere/x.tokens victim | tr '\n' ' ')" = "mine mine secret " ] || fail "remove followed a link"

# A kill at each step, of the first of two kept commits and of the run after them, leaves a run that list shows and
# remove removes. The path of a drive may be a link.
mv second real-second
ln -s real-second second
for point in remove.begin=kill remove.slabs=kill@1 remove.slabs=kill@3 remove.manifests=kill@1 remove.manifests=kill@3 \
    manifest.none; do
    [ -d runs/deep/b ] || train run.dir=runs/deep/b run.keep=1 run.commit_every=1 "$two"
    [ $point = manifest.none ] || SLUICE_FAILPOINTS="$point" "$sluice" remove runs/deep/b --yes >out 2>err
    call "$sluice" list runs
    says out "runs/deep/b" "list after a kill at $point"
    if [ $point != manifest.none ]; then
        says out "in removal" "list after a kill at $point"
        call "$sluice" train job.json --set run.dir=runs/deep/b
        exits 2 "train after a kill at $point"
        one_error "train after a kill at $point" "is being removed"
    fi
    call "$sluice" remove runs/deep/b --yes
    exits 0 "remove after a kill at $point"
    [ ! -e runs/deep/b ] || fail "after a kill at $point: the run is still there"
done
# Only the slabs of the deleted run are left: one directory on each drive, and one for its kept commits.
[ "$(ls drive second | grep -c sluice-)" -eq 4 ] || fail "slabs are left: $(ls drive second)"

# --force leaves what cannot be seen.
train run.dir=runs/c "$two"
mv second away
call "$sluice" remove runs/c --yes --force
exits 0 "remove --force"
[ ! -e runs/c ] || fail "remove --force: the run is still there"
mv away second
call "$sluice" list --drive second
says out "runs/c" "list of what remove --force left"

# A run goes on when the checkpoint that it began with is gone, by its own record, with the same losses.
llama='model={"family":"llama","num_layers":1,"hidden_size":64,"num_heads":4,"vocab_size":256,"seq_length":32}'
rm -rf run drive
train "$llama" run.steps=1
call "$sluice" export run some/checkpoint
exits 0 "export"
for name in gone kept; do
    set_options 'model={"hf":"some/checkpoint","seq_length":32}' run.dir=runs/$name run.commit_every=1
    for steps in 1 2; do
        # shellcheck disable=SC2086 # values without blanks, split on purpose
        call "$sluice" train job.json $sets --set run.steps=$steps
        exits 0 "a run whose checkpoint is $name, $steps"
        [ $name$steps = kept1 ] || [ ! -e some ] || mv some away
    done
    [ $name = kept ] || says err "said of the model is taken from runs/gone/job.json" "a checkpoint that is gone"
    mv away some
done
losses runs/gone >gone.bits
losses runs/kept | cmp -s - gone.bits || fail "a run without its checkpoint has other losses"

# A matrix of a packed checkpoint that is not packed, and that no list leaves out, is named.
rm -rf run drive
set -- bf16.enabled=true 'train.lora={"rank":2}'
train "$llama" "$@" run.steps=1 state.params=nf4 'state.rules=[{"tensors":"mlp","params":"working"}]'
call "$sluice" export run packed --quantized
exits 0 "export --quantized"
set_options 'model={"hf":"packed","seq_length":32}' run.dir=runs/packed run.steps=1 "$@"
# shellcheck disable=SC2086
call "$sluice" train job.json $sets
grep -q 'is not quantized there' err && fail "a list that leaves matrices out is not read"
rm -rf runs/packed
tr -d '\n' <packed/config.json | sed 's/"llm_int8_skip_modules": *\[[^]]*\]/"llm_int8_skip_modules": []/' >config
mv config packed/config.json
# shellcheck disable=SC2086
call "$sluice" train job.json $sets
exits 0 "a checkpoint with plain matrices"
says err "mlp.gate_proj.weight, and 2 more, is not quantized there" "a checkpoint with plain matrices"

finish "commands on runs"
