#!/usr/bin/env bash
# What out of core costs where computing dominates: the quickstart's model with 16 micro-batches a step,
# everything in memory against everything on nvme, alternating in one run on one machine.
#
#   perf/out_of_core.sh [SLUICE [TEXT]]     after ./quickstart.sh, which makes the text
#
# So many that computing binds and the simulator foretells 0.976 of the speed in memory (sluice plan with the measured
# machine.json of the CPU of perf/README.md; 0.965 with 8): a step moves 0.3 GB however many they are.
# ACCUMULATION=8 sets another number.
#
# Both recompute inner activations: the small memory could not keep them, and what keeping them gains is
# another question.
# Prints the median tokens/s of either side over RUNS runs (the first steps of each left out), the
# spread, and the ratio of the medians. Speeds on a shared machine are worth comparing within one run
# only.
set -euo pipefail
cd "$(dirname "$0")/.."
sluice=${1:-build/release/src/cli/sluice}
text=${2:-runs/quickstart/text/train.txt}
runs=${RUNS:-7}
steps=${STEPS:-6}
accumulation=${ACCUMULATION:-16}
for file in "$sluice" "$text"; do
    [ -r "$file" ] || { echo "out_of_core.sh: there is no $file: ./quickstart.sh makes it" >&2; exit 2; }
done
mkdir -p runs
work=$(mktemp -d runs/out-of-core.XXXXXX)
trap 'rm -rf "$work"' EXIT

# one_run NAME SETTINGS...: appends the run's tokens/s (median over its steps but the first two) to NAME
one_run()
{
    local name=$1
    shift
    "$sluice" train configs/jobs/quickstart.json --fresh --quiet \
        --set "run.dir=$work/run" --set "tiers.nvme.0.path=$work/drive" --set "data.train=$text" \
        --set "run.steps=$steps" --set run.eval_every=0 --set "gradient_accumulation_steps=$accumulation" \
        --set data.valid=[] --set tiers.place.inner_activations=recompute "$@" 2>"$work/log" || { cat "$work/log"; exit 1; }
    sed -n 's/.*"step":\([0-9]*\),.*"tokens_per_second":\([0-9.]*\).*/\1 \2/p' \
        "$work/run/metrics.jsonl" | awk '$1 > 2 {print $2}' | sort -n |
        awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}' >>"$work/$name.txt"
    rm -rf "$work/run" "$work/drive"
}

for _ in $(seq "$runs"); do
    one_run memory --set tiers.device.budget=1GiB --set tiers.host.budget=1GiB \
        --set tiers.place.params=device --set tiers.place.grads=device \
        --set tiers.place.optimizer=device --set tiers.place.activations=device
    one_run nvme --set tiers.device.budget=64MiB --set tiers.host.budget=96MiB \
        --set tiers.place.params=nvme --set tiers.place.grads=nvme \
        --set tiers.place.optimizer=nvme --set tiers.place.activations=nvme
done

summary()
{
    sort -n "$work/$1.txt" | awk -v name="$1" '
        {v[NR] = $1}
        END {printf "%-8s median %9.1f tokens/s   lowest %9.1f   highest %9.1f   of %d runs\n",
             name, v[int((NR + 1) / 2)], v[1], v[NR], NR}'
}
summary memory
summary nvme
median() { sort -n "$work/$1.txt" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
awk -v a="$(median nvme)" -v b="$(median memory)" \
    'BEGIN {printf "ratio of medians, nvme / memory: %.3f\n", a / b}'
