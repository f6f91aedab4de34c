#!/bin/sh
# Open MPI 4: 2 ranks on each of 2 hosts, one per NUMA node. mpirun-openmpi4.sh JOB. See README.md.
set -eu
job=${1:?use: mpirun-openmpi4.sh JOB}
folder=$(dirname "$0")
cores=${CORES:-16} # of each rank: those of a NUMA node

# Ranks and cores by rule. By hand instead: --rankfile "$folder/rankfile" in place of --map-by and --bind-to.
exec mpirun -n "${RANKS:-4}" \
    --hostfile "${HOSTFILE:-$folder/hostfile}" \
    --map-by "ppr:1:numa:pe=$cores" \
    --bind-to core \
    --report-bindings \
    --mca btl_tcp_if_include "${NETWORK:-eth0}" \
    --mca oob_tcp_if_include "${NETWORK:-eth0}" \
    ${LD_LIBRARY_PATH:+-x LD_LIBRARY_PATH} \
    sluice train "$job"
