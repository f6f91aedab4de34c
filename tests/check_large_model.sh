#!/usr/bin/env bash
# The slow check, on the CPU: GPT-2 1.5B (48 x 1600, 16 heads, vocabulary 50257), sequence 1024, bf16, all
# states on nvme, 2 GiB of device and 2 GiB of host memory. Three steps must run; the process's peak resident
# memory stays under 4.75 GiB; no page of the slab is in the page cache; each lane moved exactly the
# bytes that the program says.
#
#   check_large_model.sh SLUICE JOB     needs 46 GiB of disk under the present directory and 5 GiB of
#                                       memory; exit 77 where they are not there
# MICRO_BATCHES=1 for a step of one micro-batch (default 2). KEEP=1 leaves the run for a look.
set -euo pipefail
sluice=$(realpath "$1")
job=$(realpath "$2")
micro_batches=${MICRO_BATCHES:-2}
work=$(mktemp -d "$PWD/large-model.XXXXXX")
[ "${KEEP:-0}" = 1 ] || trap 'rm -rf "$work"' EXIT

free_kib=$(df -Pk "$work" | awk 'NR == 2 {print $4}')
memory_kib=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)
if [ "$free_kib" -lt $((48 << 20)) ] || [ "$memory_kib" -lt $((5 << 20)) ]; then
    echo "skipped: needs 48 GiB of disk (has $((free_kib >> 20))) and 5 GiB of memory (has $((memory_kib >> 20)))"
    exit 77
fi

# Data of the right size; what it says does not matter here.
awk 'BEGIN {srand(7); for (i = 0; i < 40000; i++) print "line", i, "of", int(rand() * 1e6), "words"}' \
    >"$work/text.txt"

"$sluice" train "$job" --fresh --set device.backend=cpu \
    --set "run.dir=$work/run" --set "tiers.nvme.0.path=$work/nvme" \
    --set "data.train=$work/text.txt" --set run.steps=3 --set run.eval_every=0 \
    --set tiers.place.activations=nvme --set "gradient_accumulation_steps=$micro_batches" \
    >"$work/log" 2>&1 &
pid=$!
peak=0
while kill -0 "$pid" 2>/dev/null; do
    now=$(awk '/^VmHWM/ {print $2}' "/proc/$pid/status" 2>/dev/null || true)
    [ -n "$now" ] && [ "$now" -gt "$peak" ] && peak=$now
    sleep 1
done
wait "$pid" || { cat "$work/log"; echo "FAILED: the run ended with an error"; exit 1; }
cat "$work/log"

echo "peak resident memory: $peak KiB"
[ "$peak" -gt 0 ] && [ "$peak" -lt $((4 * 1048576 + 786432)) ] ||
    { echo "FAILED: not under 4.75 GiB"; exit 1; }

slab=$(find "$work/nvme" -name '*.slab' | head -n 1)
[ -n "$slab" ] || { echo "FAILED: no slab"; exit 1; }
if command -v fincore >/dev/null; then
    cached=$(fincore --bytes --noheadings --output RES "$slab" | tr -d ' ')
    echo "of the slab in the page cache: $cached bytes"
    [ "$cached" -le $((1 << 20)) ] || { echo "FAILED: the page cache was used"; exit 1; }
fi

# plan.json: lanes of the steady program; metrics.jsonl: steps 2 and 3 ran it.
steps=0
for step in 2 3; do
    line=$(grep "\"step\":$step," "$work/run/metrics.jsonl")
    for lane in read write h2d d2h; do
        planned=$(sed -n "s/.*\"$lane\": {\"bytes\": \([0-9]*\),.*/\1/p" "$work/run/plan.json")
        moved=$(echo "$line" | sed -n "s/.*\"$lane\":{\"bytes\":\([0-9]*\),.*/\1/p")
        if [ -z "$planned" ] || [ "$planned" != "$moved" ]; then
            echo "FAILED: step $step, lane $lane moved $moved bytes, the program says $planned"
            exit 1
        fi
        steps=$((steps + 1))
    done
    echo "$line" | sed -n 's/.*"seconds":\([0-9.]*\),.*"compute":{[^}]*"busy_seconds":\([0-9.]*\),.*"update":{[^}]*"busy_seconds":\([0-9.]*\).*/\1 \2 \3/p' |
        awk -v s="$step" '{printf "step %d: %.1f s, compute ops %.1f s (%.2f of the step), update ops %.1f s\n", s, $1, $2, $2 / $1, $3}'
done
[ "$steps" -eq 8 ] && echo "lane bytes of steps 2 and 3 equal the program's"
