#!/usr/bin/env bash
# The cost of durability when computing dominates: the quickstart's model with 8 micro-batches per step and
# every state on nvme.
#
#   perf/drives/durability.sh [SLUICE [TEXT]]     after ./quickstart.sh, which makes the text
#
# Three figures, measured on one machine:
#   commit           one run with run.commit_every 2: the median difference between a step with a commit and
#                    its neighbours without one; the busy time of the commit's lane, the time that computing
#                    waited for it, and the additional bytes of the write lane
#   full copy        cp and sync of the run's slabs as they are after it: the time of a checkpoint by copying
#   verified reads   runs with io.verify_reads true and false, in turns
# On a shared machine, compare only speeds of the same run.
set -euo pipefail
cd "$(dirname "$0")/../.."
sluice=${1:-build/release/src/cli/sluice}
text=${2:-runs/quickstart/text/train.txt}
pairs=${PAIRS:-24}   # pairs of steps with and without a commit
runs=${RUNS:-5}      # runs of each kind, for verified reads
[ -x "$sluice" ] || { echo "durability.sh: $sluice is not built" >&2; exit 2; }
[ -r "$text" ] || { echo "durability.sh: $text is not there: ./quickstart.sh makes it" >&2; exit 2; }
mkdir -p runs
work=$(mktemp -d runs/durability.XXXXXX)
trap 'rm -rf "$work"' EXIT

# train SETTINGS...: makes a new run in $work/run
train()
{
    rm -rf "$work/run" "$work/drive"
    "$sluice" train configs/jobs/quickstart.json --quiet \
        --set "run.dir=$work/run" --set "tiers.nvme.0.path=$work/drive" --set "data.train=$text" \
        --set run.eval_every=0 --set gradient_accumulation_steps=8 --set data.valid=[] \
        --set tiers.device.budget=64MiB --set tiers.host.budget=96MiB \
        --set tiers.place.params=nvme --set tiers.place.grads=nvme \
        --set tiers.place.optimizer=nvme --set tiers.place.activations=nvme \
        --set tiers.place.inner_activations=recompute "$@" 2>"$work/log" || { cat "$work/log"; exit 1; }
}

median()
{
    sort -g | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'
}

# lines: prints for each step its number, seconds, commit busy, commit stall, bytes written
lines()
{
    sed -n 's/.*"step":\([0-9]*\),.*"seconds":\([0-9.e-]*\),.*"write":{"bytes":\([0-9]*\),.*"commit":{"bytes":[0-9]*,"busy_seconds":\([0-9.e-]*\),"stall_seconds":\([0-9.e-]*\)}.*/\1 \2 \4 \5 \3/p' \
        "$work/run/metrics.jsonl"
}

echo "commit: $((2 * pairs)) steps, every second one with a commit"
train --set run.commit_every=2 --set "run.steps=$((2 * pairs + 3))"
lines | awk '$1 > 3' >"$work/steps.txt"
awk '$3 > 0 {with++} $3 == 0 {without++} END {if (!with || !without) exit 1}' "$work/steps.txt" ||
    { echo "no steps with and without a commit: the metrics have another form"; exit 1; }
plain=$(awk '$3 == 0 {print $2}' "$work/steps.txt" | median)
# The median difference between a step with a commit and the mean of its neighbours without one.
added=$(awk '{s[NR] = $2; c[NR] = $3} END {for (i = 2; i < NR; i++) if (c[i] > 0 && c[i - 1] == 0 && c[i + 1] == 0)
    print s[i] - (s[i - 1] + s[i + 1]) / 2}' "$work/steps.txt" | median)
busy=$(awk '$3 > 0 {print $3}' "$work/steps.txt" | median)
stall=$(awk '$3 > 0 {print $4}' "$work/steps.txt" | median)
extra=$(awk '$3 > 0 {a = $5} $3 == 0 {b = $5} END {printf "%d", a - b}' "$work/steps.txt")
slab_bytes=$(find "$work/drive" -name '*.slab' -printf '%s\n' | awk '{s += $1} END {printf "%d", s}')
sync
begin=$(date +%s.%N)
cp -r "$work/drive" "$work/copy"
sync
end=$(date +%s.%N)
rm -rf "$work/copy"
awk -v p="$plain" -v a="$added" -v b="$busy" -v s="$stall" -v e="$extra" -v n="$slab_bytes" -v c0="$begin" -v c1="$end" 'BEGIN {
    printf "  a step without a commit                %8.3f s\n", p
    printf "  a commit adds                          %8.4f s  %+.2f%% of the step\n", a, 100 * a / p
    printf "  its lane is busy                       %8.4f s  computing waits for it %.4f s\n", b, s
    printf "  bytes that it copies                   %8d\n", e
    c = c1 - c0
    printf "full copy of the slabs, %d MB           %8.3f s  %.0f%% of the step\n", n / 1e6, c, 100 * c / p }'

echo "verified reads: $runs runs each of 8 steps"
for _ in $(seq "$runs"); do
    for verified in true false; do
        train --set "io.verify_reads=$verified" --set run.commit_every=1 --set run.steps=8
        lines | awk '$1 > 2 {print $2}' | median >>"$work/$verified.txt"
    done
done
awk -v t="$(median <"$work/true.txt")" -v f="$(median <"$work/false.txt")" 'BEGIN {
    printf "  a step, reads verified                 %8.3f s\n", t
    printf "  a step, not verified                   %8.3f s\n", f
    printf "  verifying adds                         %+8.2f%%\n", 100 * (t / f - 1) }'
