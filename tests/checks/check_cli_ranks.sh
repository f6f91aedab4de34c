#!/bin/sh
# sluice under mpirun: check_cli_ranks.sh SLUICE REPOSITORY
#
# An error in a command or its job is printed once, whatever the number of ranks, and all ranks end with the
# same status. Help is printed once. Commands for a single process are refused. The scripts of configs/cluster
# are checked too: their syntax, and that Open MPI 4 accepts the options of its script. Skipped (77) without
# mpirun, or if this build has no MPI. Training is tested by tests/ranks/test_ranks_stages.c.
set -u
usage='use: check_cli_ranks.sh SLUICE REPOSITORY'
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?$usage}") || exit 2
repository=$(realpath "${2:?$usage}")
allow_mpi
make_scratch check_cli_ranks

mpi()
{
    ranks=$1
    shift
    timeout 50 mpirun -n "$ranks" "$sluice" "$@" >"$scratch/out" 2>"$scratch/err"
    status=$?
    count=$((count + 1))
}

mpi 2 plan x.json </dev/null
[ $status -ne 2 ] || ! mpi_is_absent || skip "this build has no MPI"

# refused RANKS TEXT ARGS...: it exits with 2 and prints one line of error that holds TEXT.
refused()
{
    ranks=$1
    text=$2
    shift 2
    mpi "$ranks" "$@" </dev/null
    exits 2 "$ranks ranks, sluice $*"
    says err "$text" "$ranks ranks, sluice $*"
    lines=$(grep -c '^sluice: ' "$scratch/err")
    [ "$lines" -eq 1 ] || fail "$ranks ranks, sluice $*: $lines lines of sluice, expected one"
}

write_job "$scratch/job.json" 2 host drive '"train_batch_size": 4,'
for command in plan generate verify inspect; do
    refused 3 "sluice $command is one process, and the launcher has started 3" $command "$scratch/job.json"
done
refused 3 "$scratch/none.json" train "$scratch/none.json"
refused 3 'nearest is --fresh' train "$scratch/job.json" --fersh
refused 4 "raise train_batch_size to 4 or start 3 ranks" train "$scratch/job.json" \
    --set train_batch_size=3 --set train_micro_batch_size_per_gpu=1
refused 2 'unknown key "stages"' train "$scratch/job.json" --set zero_optimization.stages=3
refused 2 '{rank}, {local_rank}, {host}' train "$scratch/job.json" \
    --set 'tiers.nvme=[{"path":"/x/{gpu}"}]'

mpi 3 train --help </dev/null
exits 0 "help on 3 ranks"
[ "$(grep -c '^options:' "$scratch/out")" -eq 1 ] || fail "help was not shown once"
echo '{"model": 3}' >"$scratch/wrong.json"
mpi 2 train - <"$scratch/wrong.json"
[ $status -eq 2 ] && [ "$(grep -c '^sluice: error: standard input: model: ' "$scratch/err")" -eq 1 ] ||
    fail "a job on standard input: not one line of error"

for script in "$repository"/configs/cluster/*.sh "$repository"/configs/cluster/*.sbatch; do
    call bash -n "$script"
    exits 0 "the syntax of $script"
done
call "$sluice" plan "$repository/configs/cluster/zero3-nvme.json" --ranks 8 --ranks-per-host 4 --json
case $status in
0 | 3) ;; # 3: this machine has less memory
*) fail "the example does not plan" ;;
esac

# The script itself, for one rank with one core of this machine, in place of a cluster.
if mpirun --version | grep -q '(Open MPI) 4'; then
    echo "localhost slots=1" >"$scratch/hostfile"
    call env PATH="$(dirname "$sluice"):$PATH" RANKS=1 CORES=1 HOSTFILE="$scratch/hostfile" NETWORK=lo \
        "$repository/configs/cluster/mpirun-openmpi4.sh" "$scratch/none.json"
    exits 2 mpirun-openmpi4.sh
    says err "sluice: error: " mpirun-openmpi4.sh
fi

finish checks
