#!/bin/sh
# Trains the jobs of DeepSpeed's ZeRO tutorial for two steps on two ranks: check_tutorial_jobs.sh SLUICE REPOSITORY
#
# The model's depth is cut, and for time its sequence to 256 tokens. Each file must end with status 0 and a finite loss
# for each step, and the log must name the keys of its zero_optimization block that have no effect. Skipped (77) without
# mpirun, or if this build has no MPI. Needs some 7 GiB of memory and 6 GiB of disk.
set -u
usage='use: check_tutorial_jobs.sh SLUICE REPOSITORY'
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?$usage}") || exit 2
repository=$(realpath "${2:?$usage}")
allow_mpi
make_scratch check_tutorial_jobs
cd "$scratch" || exit 2
cpu_only
cat "$repository/README.md" "$repository/LICENSE" "$repository/CONTRIBUTING.md" >text.txt

# trains FILE LAYERS KEY...: two steps of FILE; the log must say of each KEY that it has no effect.
trains()
{
    file=$1
    layers=$2
    shift 2
    rm -rf run slabs
    call timeout 280 mpirun --bind-to none -n 2 "$sluice" train "$repository/configs/jobs/$file" \
        --set "model.num_layers=$layers" --set model.seq_length=256 --set data.train=text.txt \
        --set run.dir=run --set run.steps=2 --set run.commit_every=0 \
        --set tiers.device.budget=2560MiB --set tiers.host.budget=768MiB --set 'tiers.nvme=[{"path": "slabs"}]'
    [ $status -ne 2 ] || ! mpi_is_absent || skip "this build has no MPI"
    exits 0 "$file"
    sed -n 's/.*"loss": *\([-0-9.e+a-zA-Z]*\).*/\1/p' run/metrics.jsonl >losses
    awk '!($1 + 0 > 1 && $1 + 0 < 100) { bad = 1 } END { exit bad || NR != 2 }' losses ||
        fail "$file: losses $(tr '\n' ' ' <losses)"
    for key in "$@"; do
        says err "$key" "$file"
    done
}

trains zero1-1.5b-8gpu.json 2 reduce_bucket_size
trains zero2-10b-32gpu.json 1 reduce_bucket_size allgather_bucket_size contiguous_gradients overlap_comm reduce_scatter
finish jobs
