#!/bin/sh
# Lets runs fail in every mode of a step: check_bad_runs.sh SLUICE DENY_URING
#
# The reasons: drives that are full, read-only, missing or changed; budgets that are too small; wrong
# parts and cores; io_uring that is denied; tokens outside the vocabulary; loss scales; two processes in
# one run directory; stops and kills. Each run must end with its exit status and one sentence, and lose
# nothing. If file systems may be mounted, the script mounts small ones in a namespace of its own.
# shellcheck disable=SC2015 # fail is meant for both
set -u
usage='use: check_bad_runs.sh SLUICE DENY_URING'
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?$usage}") || exit 2
deny=$(program "${2:?$usage}") || exit 2
if [ -z "${CHECK_BAD_RUNS_MOUNTS:-}" ]; then
    CHECK_BAD_RUNS_MOUNTS=no
    unshare -m true 2>/dev/null && CHECK_BAD_RUNS_MOUNTS=yes
    export CHECK_BAD_RUNS_MOUNTS
    [ $CHECK_BAD_RUNS_MOUNTS = no ] || exec unshare -m "$0" "$sluice" "$deny"
fi
make_scratch check_bad_runs
background=
# shellcheck disable=SC2317 # reached by the trap
undo()
{
    [ -z "$background" ] || kill -KILL "$background" 2>/dev/null
    cd / && umount "$scratch/small" 2>/dev/null
}
cd "$scratch" || exit 2
cpu_only

write_job job.json 4 nvme drive '"gradient_accumulation_steps": 2,'
write_text text.txt 60

# train KEY=VALUE...: the job with these overrides; its status in `status`.
train()
{
    set_options "$@"
    # shellcheck disable=SC2086 # values without blanks, split on purpose
    call ${launcher:-} "$sluice" train job.json --quiet $sets
}

# good KEY=VALUE...: a run that succeeds and prints nothing.
good()
{
    train "$@"
    exits 0 "train $*"
}

# refused STATUS TEXT KEY=VALUE...: exit STATUS and one line of error with TEXT in it.
refused()
{
    want=$1
    text=$2
    shift 2
    train "$@"
    exits "$want" "train $*"
    one_error "train $*" "$text"
}

# no_state: a run that was refused at its start left no state, also not on the drive.
no_state()
{
    [ -z "$(find run drive ! -type d ! -name lock 2>/dev/null)" ] || fail "$1: files were left"
    rm -rf run drive
}

fp16='fp16={"enabled":true,"initial_scale_power":8}'

# ---- budgets per mode: the figures that a refusal names are enough, and less is not

# fits KEY=VALUE...
fits()
{
    refused 3 "does not fit" "$@" tiers.device.budget=64KiB tiers.host.budget=64KiB
    no_state "$*"
    figures=$(sed -n 's/.*; fits with \([^;]*\).*/\1/p' err)
    echo "$figures" | grep -q 'tiers.device.budget=[0-9]* *tiers.host.budget=[0-9]*' ||
        fail "$*: no figures in the refusal"
    # shellcheck disable=SC2086 # two settings
    good "$@" $figures
    rm -rf run drive
    for figure in $figures; do
        key=${figure%%=*}
        # shellcheck disable=SC2086
        refused 3 "$key=" "$@" $figures "$key=$((${figure##*=} - 65536))"
        no_state "$*"
    done
}

fits schedule.order=batch_major
fits "$fp16" schedule.order=batch_major tiers.place.inner_activations=nvme
fits "$fp16" model.max_part_bytes=16384
fits model.max_part_bytes=32768 schedule.order=batch_major
fits schedule.update=in_backward gradient_clipping=0 tiers.place.inner_activations=host
fits schedule.update=delayed_one_step "$fp16"
fits 'optimizer={"type":"Lion"}' bf16.enabled=true data_types.grad_accum_dtype=fp32

# A refusal says which tiers are enough alone.
refused 3 "with the other tiers as they are it fits with" 'tiers={"device":{"budget":"1MiB"},"host":{"budget":"1MiB"}}'
bytes=$(sed -n 's/.*as they are it fits with \([0-9]*\) bytes .* of device$/\1/p' err)
good "tiers={\"device\":{\"budget\":\"${bytes:-0}B\"},\"host\":{\"budget\":\"1MiB\"}}"
rm -rf run drive

# Tokens are made within the host budget, too: `plan` knows it, nothing is left, and a run that has its tokens
# goes on with less.
awk '{ print "{\"text\": \"" $0 "\"}" }' text.txt >records.jsonl
records='data={"train":["records.jsonl"]}'
refused 3 "making tokens of records.jsonl" "$records" tiers.host.budget=8MiB
[ ! -e run ] || fail "tokens that do not fit: the run directory was made"
call "$sluice" plan job.json --set "$records" --set tiers.host.budget=8MiB
exits 3 "plan of tokens that do not fit"
one_error "plan of tokens that do not fit" "making tokens of records.jsonl"
figure=$(sed -n 's/.*; fits with \([^;]*\);.*/\1/p' err)
good "$records" "${figure:-nothing}"
good "$records" tiers.host.budget=8MiB run.steps=5
rm -rf run drive
echo '{"text": 5}' >>records.jsonl
refused 2 "records.jsonl:61: " "$records" tiers.host.budget=12MiB
[ ! -e run/data ] || fail "a record that is no text: its start left run/data"
no_state "a record that is no text"
call "$sluice" plan job.json --set data.train=nowhere.jsonl --set tiers.host.budget=8MiB
exits 0 "plan of records that are not here"

# ---- parts, cores

refused 2 "model.max_part_bytes is 100," model.max_part_bytes=100B
no_state "parts of 100 bytes"
good "model.max_part_bytes=$(sed -n 's/.*set it to \([0-9]*\) or more.*/\1/p' err)"
rm -rf run drive
for key in device.cores update.cores io.cores; do
    refused 2 "$key is \"1000\", but core 1000 does not exist" $key=1000
    grep -q 'this process may use: ' err || fail "$key: the refusal does not say which cores there are"
    no_state "$key"
done
good "device.cores=$(sed -n 's/.*this process may use: \([0-9]*\).*/\1/p' err)"
rm -rf run drive

# ---- updates

good schedule.update=delayed_one_step
[ "$(grep -c 'warning: .*delayed_one_step is approximate' err)" -eq 1 ] ||
    fail "delayed_one_step: not one warning"
[ "$(grep -c '' err)" -eq 1 ] || fail "delayed_one_step: more than a warning"
rm -rf run drive

# ---- loss scales

diverging='fp16={"enabled":true,"initial_scale_power":1,"min_loss_scale":1,"hysteresis":1}'
refused 1 "(fp16.min_loss_scale)" "$diverging" optimizer.params.lr=1e9 run.steps=20
grep -q 'lower learning rate' err || fail "the smallest loss scale: no way out is named"
committed=$(sed -n 's/.*the state after step \([0-9]*\) is committed.*/\1/p' err)
[ "$(losses run | wc -l)" -eq "${committed:-0}" ] || fail "the smallest loss scale: metrics and commit differ"
call "$sluice" generate run --prompt 'line' --tokens 4 --quiet
[ $status -eq 0 ] || { [ $status -eq 1 ] && grep -q 'the logit of token .* the model is broken' err; } ||
    fail "neither text nor what is wrong with it from a run that was committed when it diverged"
rm -rf run drive

# ---- token files

# u16 NAME TOKEN...: 4000 ids that are counted up to 199, and then these, as octal escapes.
counted=
i=0
while [ $i -lt 200 ]; do
    counted="$counted\\$((i / 64))$((i / 8 % 8))$((i % 8))\\000"
    i=$((i + 1))
done
# shellcheck disable=SC2059 # escapes
u16()
{
    name=$1
    shift
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        printf "$counted"
    done >"$name"
    for escape in "$@"; do
        printf "$escape" >>"$name"
    done
}

u16 good.u16
u16 outside.u16 '\054\001' '\001\000'
good data.format=u16 'data.train=["good.u16"]' 'data.valid=["good.u16"]'
rm -rf run drive
for kind in train valid; do
    refused 2 "outside.u16" data.format=u16 'data.train=["good.u16"]' 'data.valid=["good.u16"]' \
        "data.$kind=[\"outside.u16\"]"
    grep -q '300' err && grep -q 'model.vocab_size is 256' err ||
        fail "data.$kind: the refusal names neither the token nor the vocabulary"
    no_state "data.$kind"
done

# ---- io_uring denied

"$deny" ENOSYS true
if [ $? -ne 77 ]; then
    good io.backend=pool "$fp16" schedule.order=batch_major
    losses run >pool.bits
    rm -rf run drive
    for error in ENOSYS EPERM; do
        launcher="$deny $error"
        refused 1 "io_uring_setup" io.backend=uring "$fp16" schedule.order=batch_major
        no_state "io_uring denied"
        good io.backend=auto "$fp16" schedule.order=batch_major
        [ "$(grep -c 'warning: io_uring' err)" -eq 1 ] || fail "$error: not one warning"
        losses run | cmp -s - pool.bits || fail "$error: other losses than the pool's"
        launcher=
        rm -rf run drive
    done
fi

# ---- stops, kills, two processes

# running: waits until the run in the background has made some steps.
running()
{
    until_true 20 has_steps || fail "the run in the background makes no steps"
}
has_steps()
{
    [ "$(losses run | wc -l)" -ge 2 ]
}

# start KEY=VALUE...: a long run in the background.
start()
{
    set_options "$@"
    # shellcheck disable=SC2086
    "$sluice" train job.json --quiet --set run.steps=100000 $sets >out 2>background.err </dev/null &
    background=$!
    running
}

start "$fp16" schedule.order=batch_major
for again in "run.steps=4" "run.fresh=true"; do
    refused 2 "in use by another process" $again
done
call "$sluice" generate run --prompt x
[ $status -eq 2 ] && grep -q 'in use by another process' err || fail "text was drawn from a run in use"
kill -TERM $background
wait $background
[ $? -eq 75 ] || fail "a run that is asked to stop does not exit with 75"
background=
cp background.err err
grep -q 'stopping when this step is done' err || fail "a stop says nothing"
stopped=$(losses run | wc -l)
losses run >stopped.bits
# The run resumes with other places, another order and the thread pool. Its losses have the same bits.
good "$fp16" "run.steps=$((stopped + 3))" io.backend=pool schedule.update=after_backward
losses run >resumed.bits
rm -rf run drive
good "$fp16" "run.steps=$((stopped + 3))"
losses run | cmp -s - resumed.bits || fail "a run stopped by SIGTERM and resumed has other losses"

# If the slab is missing or belongs to another run, the run is refused. When it is back, the run resumes.
more=run.steps=$((stopped + 5))
mv drive kept
train "$fp16" "$more"
[ $status -eq 2 ] || fail "a slab that is gone is not missed"
grep '^sluice: error: ' err | grep -q 'drive is not mounted or is empty: .*drive/' || fail "a slab that is gone is not named"
[ ! -e drive ] || [ -z "$(find drive -name '*.slab')" ] || fail "a slab was made in place of one that is gone"
rm -rf drive
mkdir drive
cp -r kept/* drive
slab=$(find drive -name '*.slab' | head -n 1)
printf 'x' | dd of="$slab" bs=1 seek=16 conv=notrunc 2>/dev/null
train "$fp16" "$more"
[ $status -ne 0 ] && grep -q "$slab" err || fail "a slab with another header was taken (exit $status)"
rm -rf drive
cp -r kept drive
slab=$(find drive -name '*.slab' | head -n 1)
truncate -s 65536 "$slab"
train "$fp16" "$more"
[ $status -ne 0 ] && grep -q "$slab" err || fail "a slab that was cut off was taken (exit $status)"
rm -rf drive
mv kept drive
good "$fp16" "$more"
rm -rf drive
refused 2 "new or empty" "$fp16" "$more" run.fresh=true
rm -rf run
good "$fp16" "$more" run.fresh=true
rm -rf run drive

# Killed: goes on from its last commit, with the bits of a run that was not; before the first commit it
# begins again; and with one place per extent it is refused.
start schedule.update=in_next_forward run.commit_every=1
kill -KILL $background
wait $background 2>/dev/null
background=
done=$(losses run | wc -l)
good schedule.update=in_next_forward run.commit_every=1 "run.steps=$((done + 3))"
losses run >resumed.bits
rm -rf run drive
good schedule.update=in_next_forward run.commit_every=1 "run.steps=$((done + 3))"
losses run | cmp -s - resumed.bits || fail "a run that was killed and resumed has other losses"
rm -rf run drive
start schedule.update=in_next_forward run.commit_every=100000
kill -KILL $background
wait $background 2>/dev/null
background=
good schedule.update=in_next_forward run.steps=2
[ "$(find drive -name '*.slab' | wc -l)" -eq 1 ] || fail "the slab of a run without a commit is left"
rm -rf run drive
start schedule.update=in_next_forward run.commit_every=0
kill -KILL $background
wait $background 2>/dev/null
background=
refused 2 "another run.dir"
refused 2 "a run of one place per extent, stopped or killed after step" run.fresh=true
call "$sluice" generate run --prompt x
[ $status -eq 2 ] && grep -q 'not stopped cleanly' err || fail "text was drawn from a run that was killed"
rm -rf run drive

# A slab that is cut off while it is in use takes no commit any more.
start run.commit_every=100000 'tiers.place={"params":"host","grads":"host","optimizer":"host"}'
truncate -s 65536 "$(find drive -name '*.slab')"
kill -TERM $background
wait $background
[ $? -eq 1 ] || fail "a commit in a slab that was cut off"
background=
grep -q 'was cut off to .* by others while it was in use' background.err || fail "a slab that was cut off in use is not named"
rm -rf run drive

# ---- a run that goes on with another job

# told TEXT KEY=VALUE...: the run resumes and prints TEXT once. When it runs again, it prints nothing.
told()
{
    text=$1
    shift
    good "$@" run.steps=5
    grep "^sluice: warning: " err | grep -qF "$text" || fail "$*: no '$text'"
    one_line "$*"
    good "$@" run.steps=6
    [ ! -s err ] || fail "$*: said again"
    rm -rf run drive
    cp -r kept.run run
    cp -r kept.drive drive
}

good
rm -rf kept.run kept.drive
cp -r run kept.run
cp -r drive kept.drive
told "the run in run goes on with other settings: data.seed was 1 and is 2" data.seed=2
told "gradient_accumulation_steps was 2 and is 3" gradient_accumulation_steps=3
told "optimizer.params.lr was 0.001 and is 0.01" optimizer.params.lr=0.01
cp text.txt other.txt
told "data.train was text.txt and is other.txt" data.train=other.txt
mv text.txt text.was
cat text.was other.txt >text.txt
told "data.train held " data.seed=1
mv text.was text.txt
good run.steps=6 tiers.host.budget=17MiB schedule.update=after_backward io.backend=pool run.commit_every=2
[ ! -s err ] || fail "what changes no bit is warned of"
good run.steps=3
grep -q 'nothing to train: the run in run is at step 6, and run.steps is 3' err || fail "a run that is past run.steps says nothing"
good run.steps=7 run.seed=9
grep -q 'run.seed is 9, but the weights began with 1' err || fail "another run.seed is not told of"
call "$sluice" inspect run
grep -q 'seed of the weights 1$' out || fail "inspect: another seed than that of the weights"
rm -rf run drive kept.run kept.drive

# A run of another user is told from a directory without one. Root may look everywhere.
if [ "$(id -u)" -ne 0 ]; then
    good run.steps=1
    chmod 000 run
    for command in verify inspect "eval run" "remove --yes"; do
        # shellcheck disable=SC2086 # a command with operands
        call "$sluice" $command run
        exits 2 "$command of a run of another user"
        one_error "$command of a run of another user" "cannot look into "
    done
    chmod 700 run
    rm -rf run drive
fi

# ---- kept commits, and runs that begin with another's state

# begin KEY=VALUE...: "--from run", in a directory of its own.
begin()
{
    launcher=from
    train "$@" run.dir=second
    launcher=
}
from()
{
    program=$1
    shift
    "$program" "$@" --from run
}

good run.commit_every=2 run.keep=2
begin model.num_layers=3
[ $status -eq 2 ] && grep -q 'the run in run was made with other settings: model.num_layers was 2' err ||
    fail "--from: the refusal does not name the run"
begin run.seed=5
exits 0 "--from"
call "$sluice" inspect second
grep -q 'seed of the weights 1$' out || fail "--from: another seed than that of the weights"
good run.dir=run/keep/step-000000002
grep -q 'is a kept commit: the run goes on from it and it is not kept any more' err || fail "a kept commit goes on, and nothing is said"
rm -rf second run/state drive
refused 2 "run holds commits that another run has kept, such as step-00000000" run.keep=2 run.commit_every=2
refused 2 "run holds commits that another run has kept" run.fresh=true
rm -rf run drive

# ---- a model that no file of Hugging Face can describe

good model.family=stablelm model.head_dim=8 model.ffn_size=96 run.steps=1
call "$sluice" export run exported
exits 2 "export of other heads"
one_error "export of other heads" "stablelm model.head_dim"
[ ! -e exported ] || fail "export of other heads: files were left"
rm -rf run drive

# ---- limits and signals that a shell may set

# shellcheck disable=SC3045 # where there is no ulimit -f the run is good
(ulimit -f 4096 2>/dev/null && refused 1 "File too large"; exit $failures) || failures=$?

# ---- a stack or an address space that is too small for libraries: a sentence, and never a signal

# limited OPTION KIB COMMAND...: under that limit of the shell the command is good, or refused with its name.
limited()
{
    rm -rf run drive
    status=0
    # shellcheck disable=SC3045
    (ulimit "$1" "$2" 2>/dev/null && shift 2 && call "$@"; exit "$status") || status=$?
    count=$((count + 1))
    [ "$status" -ne 0 ] || return 0
    exits 2 "ulimit $*"
    one_error "ulimit $*" "(ulimit $1"
}
for kib in 64 256 512; do
    limited -s $kib "$sluice" train job.json --quiet
    exits 2 "a stack of $kib KiB"
done
limited -s 1024 "$sluice" train job.json --quiet
exits 0 "a stack of 1 MiB"
tries=0
for mib in 60 80 90 100 110 120 130 140 150 160 170 180 190 200 220 240 260; do
    # shellcheck disable=SC3045 # below that the program cannot be loaded
    (ulimit -v $((mib * 1024)) 2>/dev/null && "$sluice" --version >/dev/null 2>&1) || continue
    limited -v $((mib * 1024)) "$sluice" train job.json --quiet
    tries=$((tries + 1))
done
[ $tries -gt 3 ] || fail "only $tries limits of the address space were tried"
limited -v 4194304 "$sluice" train job.json --quiet
exits 0 "an address space of 4 GiB"
rm -rf run drive
"$sluice" train job.json <&- >&- 2>&-
status=$?
exits 1 "standard files that are closed"
[ -e run/state/lock ] && [ ! -s run/state/lock ] || fail "lines for people were written to the lock"
call "$sluice" verify run
exits 0 "verify of a run without standard files"
rm -rf run drive
start schedule.update=in_next_forward run.commit_every=1
mv drive away
until_true 10 test -s background.err
kill -TERM $background 2>/dev/null
wait $background
[ $? -eq 1 ] || fail "a slab that is removed from under a run is not missed"
background=
cp background.err err
grep '^sluice: error: ' err | grep -q 'was removed, or its drive unmounted, while it was in use' || fail "a slab that was removed is not named"
mv away drive
good schedule.update=in_next_forward run.steps=2
rm -rf run drive

# A slow sync is reported, and the run waits for it. A sync that fails ends the run, which resumes from the
# commit before it.
SLUICE_FAILPOINTS="commit.synced=sleep:500ms" good run.steps=3 run.commit_every=2 io.stuck_seconds=0.1
grep -q 'the commit behind it has been in flight for .* s: a drive' err || fail "a slow sync is not reported"
losses run >before.bits
SLUICE_FAILPOINTS="slab.sync=fail:EIO@1" train run.steps=6 run.commit_every=2
exits 1 "a sync that failed"
grep '^sluice: error: ' err | grep -q 'fdatasync.*\.slab.*the last good commit is of step 3, the same command' ||
    fail "a sync that failed does not say which commit is the last"
good run.steps=6 run.commit_every=2
losses run | head -n 3 | cmp -s - before.bits || fail "a failed sync lost a commit"
rm -rf run drive

# A manifest for which there is no room stops the run. The commit before it is whole.
good run.steps=3 run.commit_every=1
SLUICE_FAILPOINTS="manifest.half=fail:ENOSPC@2" train run.steps=6 run.commit_every=1
exits 1 "a manifest without room"
grep '^sluice: error: ' err | grep -q 'No space left.*the last good commit is of step 4, the same command' ||
    fail "a manifest without room does not say which commit is the last"
call "$sluice" verify run --quiet
says err 'the commit of step 4 is whole' "verify after a manifest without room"
good run.steps=6 run.commit_every=1
rm -rf run drive

# ---- drives that are full or read-only

if [ "$CHECK_BAD_RUNS_MOUNTS" = yes ] && mkdir small && mount -t tmpfs -o size=24m none small 2>/dev/null; then
    small='tiers.nvme=[{"path":"small/drive","budget":"64MiB"}]'
    good "$small" "$fp16"
    rm -rf run small/drive
    head -c 20000000 /dev/zero >small/filling
    refused 3 "of nvme, has" "$small" "$fp16"
    no_state "a full drive"
    rm small/filling
    mount -o remount,ro small
    refused 2 "Read-only file system" "$small" "$fp16"
    refused 2 "Read-only file system" run.dir=small/run
    no_state "a read-only drive"
    mount -o remount,rw small
    # A run that was stopped, and whose drive cannot be written any more: refused, and then goes on.
    good "$small" "$fp16"
    losses run >before.bits
    mount -o remount,ro small
    train "$small" "$fp16" run.steps=6
    [ $status -ne 0 ] && grep -q 'file system at .*small.drive is read-only' err || fail "a read-only slab: exit $status"
    losses run | cmp -s - before.bits || fail "a read-only slab: the metrics changed"
    call "$sluice" verify run --quiet
    exits 0 "verify of a read-only slab"
    mount -o remount,rw small
    good "$small" "$fp16" run.steps=6
    rm -rf run small/drive
    # The drive of run.dir is full: a run goes on without room, and tells which lines for people are missing.
    good run.dir=small/run run.steps=3
    head -c 30000000 /dev/zero >small/filling 2>/dev/null
    good run.dir=small/run run.steps=30
    says err 'No space left on device: the run goes on, and job.json or plan.json stay as they were' "a full disk"
    says err 'No space left on device: the run goes on, and its steps have no lines there' "a full disk"
    [ "$(grep -c 'metrics.jsonl lacks [0-9]* lines' err)" -eq 1 ] || fail "a full disk: lost lines are not counted"
    call "$sluice" verify small/run
    says out 'step 30' "a commit on a full disk"
    rm small/filling
    good run.dir=small/run run.steps=31
    ! grep -q 'lacks' err || fail "a disk that has room again: lines are missing"
    umount small
else
    echo "not checked, since nothing can be mounted here: full and read-only drives"
fi
finish runs
