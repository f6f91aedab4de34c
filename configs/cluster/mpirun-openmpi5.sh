#!/bin/sh
# Open MPI 5: 2 ranks on each of 2 hosts, one per NUMA node. mpirun-openmpi5.sh JOB. See README.md.
set -eu
job=${1:?use: mpirun-openmpi5.sh JOB}
folder=$(dirname "$0")
cores=${CORES:-16} # of each rank: those of a NUMA node

# Ranks and cores by rule. By hand instead: --map-by "rankfile:file=$folder/rankfile" for the two lines.
exec mpirun -n "${RANKS:-4}" \
    --hostfile "${HOSTFILE:-$folder/hostfile}" \
    --map-by "ppr:1:numa:pe=$cores" \
    --bind-to core \
    --display bindings \
    --mca btl_tcp_if_include "${NETWORK:-eth0}" \
    --prtemca prte_if_include "${NETWORK:-eth0}" \
    ${LD_LIBRARY_PATH:+-x LD_LIBRARY_PATH} \
    sluice train "$job"
