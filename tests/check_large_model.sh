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
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?use: check_large_model.sh SLUICE JOB}") || exit 2
job=$(realpath "$2")
micro_batches=${MICRO_BATCHES:-2}
make_scratch large-model
[ "${KEEP:-0}" != 1 ] || trap - EXIT

free_kib=$(df -Pk "$scratch" | awk 'NR == 2 {print $4}')
memory_kib=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)
[ "$free_kib" -ge $((48 << 20)) ] && [ "$memory_kib" -ge $((5 << 20)) ] ||
    skip "needs 48 GiB of disk (has $((free_kib >> 20))) and 5 GiB of memory (has $((memory_kib >> 20)))"
write_text "$scratch/text.txt" 20000

"$sluice" train "$job" --fresh --set device.backend=cpu \
    --set "run.dir=$scratch/run" --set "tiers.nvme.0.path=$scratch/nvme" \
    --set "data.train=$scratch/text.txt" --set run.steps=3 --set run.eval_every=0 \
    --set tiers.place.activations=nvme --set "gradient_accumulation_steps=$micro_batches" \
    >"$scratch/log" 2>&1 &
pid=$!
peak=0
while kill -0 "$pid" 2>/dev/null; do
    now=$(awk '/^VmHWM/ {print $2}' "/proc/$pid/status" 2>/dev/null || true)
    [ -n "$now" ] && [ "$now" -gt "$peak" ] && peak=$now
    sleep 1
done
wait "$pid" || { cat "$scratch/log"; stop "the run ended with an error"; }
cat "$scratch/log"

echo "peak resident memory: $peak KiB"
[ "$peak" -gt 0 ] && [ "$peak" -lt $((4 * 1048576 + 786432)) ] || stop "not under 4.75 GiB"

slab=$(find "$scratch/nvme" -name '*.slab' | head -n 1)
[ -n "$slab" ] || stop "no slab"
if command -v fincore >/dev/null; then
    cached=$(fincore --bytes --noheadings --output RES "$slab" | tr -d ' ')
    echo "of the slab in the page cache: $cached bytes"
    [ "$cached" -le $((1 << 20)) ] || stop "the page cache was used"
fi

# plan.json: lanes of the steady program; metrics.jsonl: steps 2 and 3 ran it.
steps=0
for step in 2 3; do
    line=$(grep "\"step\":$step," "$scratch/run/metrics.jsonl")
    for lane in read write h2d d2h; do
        planned=$(sed -n "s/.*\"$lane\": {\"bytes\": \([0-9]*\),.*/\1/p" "$scratch/run/plan.json")
        moved=$(echo "$line" | sed -n "s/.*\"$lane\":{\"bytes\":\([0-9]*\),.*/\1/p")
        [ -n "$planned" ] && [ "$planned" = "$moved" ] ||
            stop "step $step, lane $lane moved $moved bytes, the program says $planned"
        steps=$((steps + 1))
    done
    echo "$line" | sed -n 's/.*"seconds":\([0-9.]*\),.*"compute":{[^}]*"busy_seconds":\([0-9.]*\),.*"update":{[^}]*"busy_seconds":\([0-9.]*\).*/\1 \2 \3/p' |
        awk -v s="$step" '{printf "step %d: %.1f s, compute ops %.1f s (%.2f of the step), update ops %.1f s\n", s, $1, $2, $2 / $1, $3}'
done
[ "$steps" -eq 8 ] && echo "lane bytes of steps 2 and 3 equal the program's"
