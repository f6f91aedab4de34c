#!/bin/sh
# One rank is asked to stop: check_ranks_stop.sh SLUICE
#
# SIGUSR1 goes to one of three ranks alone. All ranks commit the same step and end with status 75, and the
# same command resumes with the next step. Skipped (77) without mpirun, or where this build has no MPI.
set -u
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?use: check_ranks_stop.sh SLUICE}") || exit 2
allow_mpi
cpu_only
OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_hwloc_base_binding_policy
make_scratch check_ranks_stop

# The job has more steps than any machine makes during this check.
write_text "$scratch/train.txt" 200
cat >"$scratch/job.json" <<JOB
{"model": {"family": "llama", "num_layers": 1, "hidden_size": 64, "num_heads": 2, "seq_length": 16},
 "data": {"train": ["$scratch/train.txt"]},
 "run": {"dir": "$scratch/run", "steps": 1000000, "commit_every": 7},
 "device": {"backend": "cpu", "threads": 1},
 "tiers": {"device": {"budget": "64MiB"}, "host": {"budget": "64MiB"},
           "nvme": [{"path": "$scratch/drive", "budget": "1GiB"}]},
 "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
 "train_micro_batch_size_per_gpu": 1}
JOB

# steps: prints the number of lines of metrics so far.
steps()
{
    losses "$scratch/run" | wc -l
}

# stop_one RANK LEAST: starts all ranks, and asks RANK to stop after more than LEAST steps.
stop_one()
{
    rm -f "$scratch"/pid.* "$scratch"/code.*
    timeout 50 mpirun -n 3 sh -c '
        rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
        "$0" train "$1/job.json" </dev/null &
        echo $! >"$1/pid.$rank"
        wait $!
        echo $? >"$1/code.$rank"' "$sluice" "$scratch" >"$scratch/out" 2>"$scratch/err" &
    launcher=$!
    while [ "$(steps)" -le "$2" ] && kill -0 $launcher 2>/dev/null; do
        sleep 0.05
    done
    kill -USR1 "$(cat "$scratch/pid.$1")" 2>/dev/null || fail "rank $1 is not there"
    wait $launcher
    for rank in 0 1 2; do
        code=$(cat "$scratch/code.$rank" 2>/dev/null)
        [ "$code" = 75 ] || fail "rank $1 was asked to stop, rank $rank ended with ${code:-nothing}"
    done
    ! mpi_is_absent || skip "this build has no MPI"
    "$sluice" inspect "$scratch/run" --json >"$scratch/inspect" 2>>"$scratch/err" || fail "inspect"
    grep -qE "\"step\": ?$(steps)[,}]?" "$scratch/inspect" || fail "not committed at step $(steps)"
    count=$((count + 1))
}

stop_one 2 3
first=$(steps)
stop_one 0 "$first"
stop_one 1 "$(steps)"
# The steps before and after each stop must follow one another without a gap.
grep loss_bits "$scratch/run/metrics.jsonl" | sed 's/.*"step":\([0-9]*\).*/\1/' >"$scratch/steps"
seq 1 "$(steps)" | cmp -s - "$scratch/steps" || fail "steps do not follow each other"

echo "stopped at $first and twice more until $(steps)"
finish stops
