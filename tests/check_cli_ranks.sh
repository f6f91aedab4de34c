#!/bin/sh
# sluice under mpirun: check_cli_ranks.sh SLUICE REPOSITORY
#
# What is wrong with a command or its job is said once, whatever the number of ranks, and all ranks end with the
# same status; help is shown once; commands of one process are refused. Also the scripts of configs/cluster:
# their syntax, and that Open MPI 4 takes the options of its own. Skipped (77) without mpirun, or where this
# build has no MPI; tests/test_ranks_stages.c trains.
set -u
usage='use: check_cli_ranks.sh SLUICE REPOSITORY'
sluice=$(realpath "${1:?$usage}")
repository=$(realpath "${2:?$usage}")
[ -x "$sluice" ] || { echo "no program $sluice"; exit 2; }
command -v mpirun >/dev/null || { echo "no mpirun: skipped"; exit 77; }
scratch=$(mktemp -d ./check_cli_ranks.XXXXXX) || exit 2
scratch=$(realpath "$scratch")
trap 'rm -rf "$scratch"' EXIT
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe
export PRTE_MCA_rmaps_default_mapping_policy
failures=0
count=0

fail()
{
    echo "FAILED: $1"
    sed 's/^/    /' "$scratch/out" "$scratch/err"
    failures=$((failures + 1))
}

mpi()
{
    ranks=$1
    shift
    timeout 50 mpirun -n "$ranks" "$sluice" "$@" >"$scratch/out" 2>"$scratch/err"
}

mpi 2 plan x.json </dev/null
if [ $? -eq 2 ] && grep -qF "this build has no MPI" "$scratch/err"; then
    echo "this build has no MPI: skipped"
    exit 77
fi

# refused RANKS TEXT ARGS...: status 2, and one line of error that holds TEXT.
refused()
{
    ranks=$1
    text=$2
    shift 2
    count=$((count + 1))
    mpi "$ranks" "$@" </dev/null
    status=$?
    [ "$status" -eq 2 ] || fail "$ranks ranks, sluice $*: exit $status, expected 2"
    grep -qF -- "$text" "$scratch/err" || fail "$ranks ranks, sluice $*: no '$text'"
    lines=$(grep -c '^sluice: ' "$scratch/err")
    [ "$lines" -eq 1 ] || fail "$ranks ranks, sluice $*: $lines lines of sluice, expected one"
}

cat >"$scratch/job.json" <<'JOB'
{"model": {"family": "gpt2", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "seq_length": 32},
 "run": {"dir": "run", "steps": 2}, "data": {"train": "train.txt"}, "train_batch_size": 4}
JOB
for command in plan generate verify inspect; do
    refused 3 "sluice $command is one process, and the launcher has started 3" $command "$scratch/job.json"
done
refused 3 "$scratch/none.json" train "$scratch/none.json"
refused 3 'nearest is --fresh' train "$scratch/job.json" --fersh
refused 4 "raise train_batch_size to 4 or start 3 ranks" train "$scratch/job.json" \
    --set train_batch_size=3
refused 2 'unknown key "stages"' train "$scratch/job.json" --set zero_optimization.stages=3
refused 2 '{rank}, {local_rank}, {host}' train "$scratch/job.json" \
    --set 'tiers.nvme=[{"path":"/x/{gpu}"}]'

count=$((count + 2))
mpi 3 train --help </dev/null
[ $? -eq 0 ] || fail "help on 3 ranks: a status other than 0"
[ "$(grep -c '^options:' "$scratch/out")" -eq 1 ] || fail "help was not shown once"
echo '{"model": 3}' | mpi 2 train -
[ $? -eq 2 ] && [ "$(grep -c '^sluice: error: standard input: model: ' "$scratch/err")" -eq 1 ] ||
    fail "a job on standard input: not one line of error"

for script in "$repository"/configs/cluster/*.sh "$repository"/configs/cluster/*.sbatch; do
    count=$((count + 1))
    bash -n "$script" 2>"$scratch/err" || fail "$script: wrong syntax"
done
count=$((count + 1))
: >"$scratch/out"
"$sluice" plan "$repository/configs/cluster/zero3-nvme.json" --ranks 8 --ranks-per-host 4 --json \
    >"$scratch/out" 2>"$scratch/err"
case $? in
0 | 3) ;; # 3: this machine has less memory
*) fail "the example does not plan" ;;
esac

# The script itself, for one rank with one core of this machine, in place of a cluster.
if mpirun --version | grep -q '(Open MPI) 4'; then
    count=$((count + 1))
    echo "localhost slots=1" >"$scratch/hostfile"
    PATH=$(dirname "$sluice"):$PATH RANKS=1 CORES=1 HOSTFILE=$scratch/hostfile NETWORK=lo \
        "$repository/configs/cluster/mpirun-openmpi4.sh" "$scratch/none.json" \
        >"$scratch/out" 2>"$scratch/err" </dev/null
    [ $? -eq 2 ] && grep -qF "sluice: error: " "$scratch/err" || fail "mpirun-openmpi4.sh did not start sluice"
fi

echo "$count checks, $failures failures"
[ "$failures" -eq 0 ]
