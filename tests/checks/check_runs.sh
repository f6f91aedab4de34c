#!/bin/sh
# What runs leave on drives: who may read it, and which links are followed: check_runs.sh SLUICE
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
    train run.keep=1 run.commit_every=1 'data.train=["text.jsonl"]'
    call "$sluice" report run
    exits 0 "report"
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

finish "commands on runs"
