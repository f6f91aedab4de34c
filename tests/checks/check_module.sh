#!/bin/sh
# Runs whose passes a program computes (model.module): check_module.sh SLUICE MODULE_PROGRAM
#
# The commands that look at a run work for them, and those that would compute are refused. Two ranks train the
# same bits at all ZeRO stages and placements, and a run goes on with another number of ranks. Without mpirun,
# or if this build has no MPI, only one rank is checked.
set -u
usage='use: check_module.sh SLUICE MODULE_PROGRAM'
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?$usage}") || exit 2
trains=$(program "${2:?$usage}") || exit 2
cpu_only
make_scratch check_module
cd "$scratch" || exit 2

# train RANKS NAME UNTIL ACCUMULATION KEY=VALUE...: a run in NAME; its output is then NAME.UNTIL.
train()
{
    ranks=$1
    name=$2
    until=$3
    times=$4
    shift 4
    mkdir -p "$name"
    if [ "$ranks" -eq 1 ]; then
        call "$trains" "$name" "$until" "$times" "$@"
    else
        call mpirun -n "$ranks" --bind-to none "$trains" "$name" "$until" "$times" "$@"
    fi
    cp out "$name.$until"
    [ "$status" -ne 0 ] || grep -q '^params ' out || fail "$ranks ranks, $name: no params"
}

# same A B: both files are equal.
same()
{
    cmp -s "$1" "$2" || fail "$1 and $2 differ: $(diff "$1" "$2" | head -n 4 | tr '\n' ' ')"
}

# ---- one rank ----

train 1 one 3 1 tiers.place.optimizer=nvme
exits 0 'one rank'
call "$sluice" verify one/run
exits 0 'verify'
call "$sluice" inspect one/run
exits 0 'inspect'
says out 'block.1' 'inspect'
for command in 'train one/run/job.json' 'profile one/run/job.json' 'export one/run out-of-it' \
    'eval one/run file' 'generate one/run --prompt x'; do
    # shellcheck disable=SC2086 # words of a command
    call "$sluice" $command
    exits 2 "$command"
    one_error "$command" 'computed by a program'
done
call "$sluice" plan one/run/job.json
exits 0 'plan'
says out 'toy' 'plan'
python3 -c 'import json
job = json.load(open("one/run/job.json"))
json.dump(job["model"]["module"], open("module.json", "w"))
job["model"]["module"] = "module.json"
json.dump(job, open("named.json", "w"))' 2>/dev/null && {
    call "$sluice" plan named.json
    exits 0 'plan of a description in a file'
    says out 'toy' 'plan of a description in a file'
}
train 1 one 5 1 gradient_clipping=0.5 # goes on
exits 0 'the run goes on'
call "$sluice" verify one/run
exits 0 'verify after that'

# ---- several ranks ----

command -v mpirun >/dev/null || finish 'commands, no mpirun'
allow_mpi
train 2 two 4 2 zero_optimization.stage=3
[ $status -eq 0 ] || ! grep -q 'has no MPI' err || finish 'commands, no MPI'
exits 0 'two ranks'
train 2 stage2 4 2 zero_optimization.stage=2 tiers.place.optimizer=nvme
train 2 stage1 4 2 zero_optimization.stage=1 tiers.place.params=host schedule.update=after_backward
train 2 stage0 4 2 zero_optimization.stage=0 tiers.place.optimizer=host
train 2 places 4 2 zero_optimization.stage=3 tiers.place.params=nvme tiers.place.grads=nvme \
    tiers.place.optimizer=nvme tiers.device.budget=1MiB
grep -q '^step 4 loss' two.4 || fail 'two ranks: no step 4'
for name in stage2 stage1 stage0 places; do
    same two.4 $name.4
done

# The state of two ranks goes on with one, and that of one with two: what the last step left is there.
train 2 recut 4 1 zero_optimization.stage=3
tail -n 1 recut.4 | cut -d' ' -f1,2 >left
train 1 recut 4 1
exits 0 'one rank after two'
tail -n 1 recut.4 | cut -d' ' -f1,2 >found
same left found
train 1 recut 6 1
tail -n 1 recut.6 | cut -d' ' -f1,2 >left
train 2 recut 6 1 zero_optimization.stage=2
tail -n 1 recut.6 | cut -d' ' -f1,2 >found
same left found
finish 'commands'
