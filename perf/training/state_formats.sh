#!/usr/bin/env bash
# The effect of smaller optimizer state on the loss: the quickstart's model on its text, with state.master and
# state.moments in each format, over several seeds.
#
#   perf/training/state_formats.sh [FORMAT...]       after ./quickstart.sh, which makes the text; all formats: 7 minutes
#
# A format is MASTER/MOMENTS: fp32/fp32, split/fp32, fp32/bf16, split/bf16, fp32/8bit, split/8bit.
# For each format it prints:
#   - the held-out loss after STEPS (300) steps, as the mean over SEEDS ("1 2 3")
#   - the mean difference to fp32/fp32 at the same seed, with the largest difference in each direction
#   - bytes of state per parameter, including the working copy
#   - bytes that the drives read and write in a steady step
#   - tokens/s (medians; on a shared machine, compare these only within one call)
# Losses do not depend on time or placement.
#
# SLUICE, TEXT (a directory with train.txt and valid.txt), STEPS and SEEDS may be set. With CSV=FILE runs are
# added to the file, runs that it already has are not repeated, and the table shows all its runs.
set -euo pipefail
cd "$(dirname "$0")/../.."
sluice=${SLUICE:-build/release/src/cli/sluice}
text=${TEXT:-runs/quickstart/text}
steps=${STEPS:-300}
seeds=${SEEDS:-1 2 3}
[ $# -gt 0 ] || set -- fp32/fp32 split/fp32 fp32/bf16 split/bf16 fp32/8bit split/8bit
wrong() {
    echo "state_formats.sh: $1" >&2
    exit 2
}
[ -x "$sluice" ] || wrong "$sluice is not built: cmake --preset release && cmake --build --preset release"
for file in "$text/train.txt" "$text/valid.txt"; do
    [ -r "$file" ] || wrong "$file is not there: ./quickstart.sh makes it, or name a folder by TEXT"
done
for format in "$@"; do
    case $format in
    fp32/fp32 | split/fp32 | fp32/bf16 | split/bf16 | fp32/8bit | split/8bit) ;;
    *) wrong "no format $format: MASTER is fp32 or split, MOMENTS fp32, bf16 or 8bit" ;;
    esac
done
mkdir -p runs
work=$(mktemp -d runs/state-formats.XXXXXX)
trap 'rm -rf "$work"' EXIT
csv=${CSV:-$work/runs.csv}
[ -s "$csv" ] || echo "format,seed,steps,loss,state_bytes_a_parameter,drive_bytes_a_step,tokens_a_second" >"$csv"

median()
{
    sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}

# one_run FORMAT SEED: a line of the table of runs
one_run()
{
    local set=(--set "run.dir=$work/run" --set "tiers.nvme.0.path=$work/drive" --set "data.train=$text/train.txt"
        --set "data.valid=$text/valid.txt" --set "run.steps=$steps" --set "run.seed=$2" --set "data.seed=$2"
        --set "scheduler.params.total_num_steps=$steps" --set run.eval_every=0 --set run.eval_batches=120
        --set "state.master=${1%/*}" --set "state.moments=${1#*/}")
    "$sluice" train configs/jobs/quickstart.json --fresh --quiet "${set[@]}" 2>"$work/log" ||
        { cat "$work/log" >&2; exit 1; }
    local loss bytes rate state
    loss=$(sed -n 's/.*"event":"eval".*"valid_loss":\([0-9.]*\).*/\1/p' "$work/run/metrics.jsonl" | tail -n 1)
    # Of the steady steps: without the first, and those that commit write more.
    bytes=$(sed -n 's/^{"step":[0-9]*,.*"read":{"bytes":\([0-9]*\).*"write":{"bytes":\([0-9]*\).*/\1 \2/p' \
        "$work/run/metrics.jsonl" | awk 'NR > 1 {printf "%.0f\n", $1 + $2}' | median)
    rate=$(sed -n 's/.*"tokens_per_second":\([0-9.]*\).*/\1/p' "$work/run/metrics.jsonl" | tail -n +3 | median)
    case ${1%/*} in split) state=2 ;; *) state=4 ;; esac
    state=$(awk -v master="$state" -v moments="${1#*/}" 'BEGIN {
        each["fp32"] = 4; each["bf16"] = 2; each["8bit"] = 1 + 4 / 256
        print 2 + master + 2 * each[moments] }')
    echo "$1,$2,$steps,$loss,$state,$bytes,$rate" >>"$csv"
    rm -rf "$work/run" "$work/drive"
}

for seed in $seeds; do
    for format in "$@"; do
        grep -q "^$format,$seed,$steps," "$csv" || one_run "$format" "$seed"
    done
done

awk -F, -v steps="$steps" '
    NR > 1 && $3 == steps {
        if (!($1 in count)) order[++formats] = $1
        count[$1]++; sum[$1] += $4; loss[$1, $2] = $4; seeds[$2] = 1
        state[$1] = $5; bytes[$1] = $6; rate[$1] += $7
    }
    END {
        base = "fp32/fp32"
        printf "%-12s %5s %14s %26s %11s %12s %10s\n", "state", "seeds", "held-out loss", "less fp32/fp32 (range)",
            "B/parameter", "MB a step", "tokens/s"
        for (i = 1; i <= formats; i++) {
            f = order[i]; n = 0; total = 0; low = 1e9; high = -1e9
            for (s in seeds)
                if ((f, s) in loss && (base, s) in loss) {
                    d = loss[f, s] - loss[base, s]; n++; total += d
                    if (d < low) low = d
                    if (d > high) high = d
                }
            difference = n == 0 || f == base ? "-" : sprintf("%+.4f (%+.4f to %+.4f)", total / n, low, high)
            printf "%-12s %5d %14.4f %26s %11.2f %12.1f %10.0f\n", f, count[f], sum[f] / count[f], difference,
                state[f], bytes[f] / 1e6, rate[f] / count[f]
        }
    }' "$csv"
