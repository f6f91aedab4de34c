#!/bin/sh
# Strangers connect to the ranks while they start: check_ranks_strangers.sh SLUICE STRANGERS [STARTS]
#
# STRANGERS connects to every port on which a rank listens, without end, and sends nothing, random bytes or the
# beginning of a handshake. Rank 1 comes late to rank 0, whose port is open for milliseconds otherwise. Each start
# of two ranks must either train, or end with one sentence within comm.timeout_seconds. On one host the ranks of Open
# MPI use shared memory alone and listen nowhere, so there all must train; with MPI's TCP transport (what ranks of
# several hosts use) either is right. STARTS: of each kind (default 1). Skipped (77) without mpirun, or where this
# build has no MPI.
set -u
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?use: check_ranks_strangers.sh SLUICE STRANGERS [STARTS]}") || exit 2
strangers=$(program "${2:?use: check_ranks_strangers.sh SLUICE STRANGERS [STARTS]}") || exit 2
starts=${3:-1}
allow_mpi
cpu_only
OMPI_MCA_hwloc_base_binding_policy=none
SLUICE_FAILPOINTS=join.hub=sleep:300ms
export OMPI_MCA_hwloc_base_binding_policy SLUICE_FAILPOINTS
make_scratch check_ranks_strangers

# A copy: the strangers know the ranks by their program, and other ranks of this machine are not theirs.
cp "$sluice" "$scratch/ranks" || exit 2
write_text "$scratch/text.txt" 200
write_job "$scratch/job.json" 1 host drive
cd "$scratch" || exit 2

# start_among_strangers SECONDS: starts two ranks with that timeout. The number of connections is added to `met`.
met=0
start_among_strangers()
{
    rm -rf run drive
    "$strangers" "$scratch/ranks" 60 4000 >"$scratch/strangers" &
    stream=$!
    until_true 20 has_line ready "$scratch/strangers" || fail "the strangers do not begin"
    # far more than the ranks may take: a hang ends here, with status 124
    call timeout -k 1 $(($1 + 25)) mpirun -n 2 "$scratch/ranks" train job.json --set "comm.timeout_seconds=$1"
    kill $stream 2>/dev/null
    wait $stream
    met=$((met + $(tail -n 1 "$scratch/strangers")))
}

# has_trained: the step of the last start is there.
has_trained()
{
    [ "$status" -eq 0 ] && [ "$(losses run | wc -l)" -eq 1 ]
}

# are_gone: no rank is there any more.
are_gone()
{
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/exe" 2>/dev/null)" != "$scratch/ranks" ] || return 1
    done
}

for turn in $(seq "$starts"); do
    start_among_strangers 30
    ! mpi_is_absent || skip "this build has no MPI"
    has_trained || fail "start $turn on one host: status $status"
    until_true 5 are_gone || fail "start $turn on one host: a rank is left"
done
near=$met
[ "$near" -ge "$starts" ] || fail "only $near strangers met the ranks of $starts starts"

# What the user says of MPI's transports holds: TCP is among these.
OMPI_MCA_btl=self,vader,tcp
export OMPI_MCA_btl
trained=0
for turn in $(seq "$starts"); do
    start_among_strangers 2
    if has_trained; then
        trained=$((trained + 1))
    else
        exits 1 "start $turn with TCP"
        one_error "start $turn with TCP" "within 2.0 s"
    fi
    until_true 5 are_gone || fail "start $turn with TCP: a rank is left"
done

echo "by shared memory $near strangers met the ranks; by TCP $((met - near)), and $trained of $starts starts trained"
finish starts
