#!/bin/sh
# Checks that the planner gives the limits that the ZeRO papers state: which models fit on described machines.
#
#   check_published_limits.sh SLUICE SOURCE_DIR
#
# Exit 0: all as published; 1: a line for each limit that differs; 2: wrong use.
set -u
usage='use: check_published_limits.sh SLUICE SOURCE_DIR'
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?$usage}") || exit 2
jobs=${2:?$usage}/configs/jobs/limits
make_scratch check_published_limits

# expects STATUS WORD ARGUMENTS: `sluice plan ARGUMENTS` must exit with STATUS and print WORD.
expects()
{
    want=$1
    word=$2
    shift 2
    call "$sluice" plan "$@"
    exits "$want" "plan $*"
    grep -qF -- "$word" "$scratch/out" "$scratch/err" || fail "plan $*: no '$word'"
}

# ZeRO-Offload: 13B on one V100 with host memory; 20B replicated does not fit, with its states in host memory or not.
expects 0 "predicted" "$jobs/host-memory.json" --machine dgx2-16xv100 --ranks 1
expects 3 "of device" "$jobs/host-memory.json" --machine dgx2-16xv100 --ranks 1 \
    --set model.preset=zero-offload-20b
expects 3 "of device" "$jobs/host-memory.json" --machine dgx2-16xv100 --ranks 1 \
    --set model.preset=zero-offload-20b --set tiers.place.optimizer=device \
    --set tiers.place.grads=device

# ZeRO-Infinity: 1T on one DGX-2 with NVMe, gradients of 16 and of 32 bits; not with host memory alone.
expects 0 "predicted" "$jobs/nvme.json" --machine dgx2-16xv100
expects 0 "predicted" "$jobs/nvme.json" --machine dgx2-16xv100 \
    --set data_types.grad_accum_dtype=fp32
expects 3 "does not fit" "$jobs/nvme.json" --machine dgx2-16xv100 --set 'tiers.nvme=[]'

# 32T fit on 32 of them.
expects 0 "predicted" "$jobs/nvme.json" --machine dgx2-16xv100-32 --set model.preset=gpt-32t
finish plans
