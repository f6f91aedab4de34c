#!/bin/sh
# Two machines without GPUs, one rank on each: two-hosts-cpu.sh HOST1 HOST2 JOB. See README.md.
set -eu
use='use: two-hosts-cpu.sh HOST1 HOST2 JOB'
first=${1:?$use}
second=${2:?$use}
job=${3:?$use}
exec mpirun -n 2 --host "$first:1,$second:1" --map-by node --bind-to none ${LD_LIBRARY_PATH:+-x LD_LIBRARY_PATH} \
    sluice train "$job" --set zero_optimization.stage=3 --set device.backend=cpu
