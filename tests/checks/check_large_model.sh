#!/usr/bin/env bash
# The slow check, on the CPU: GPT-2 1.5B (48 x 1600, 16 heads, vocabulary 50257), sequence 1024, bf16, all
# states on nvme, 2 GiB of device and 2 GiB of host memory. Three steps must run; the process's peak resident
# memory stays under 4.75 GiB; no page of the slab is in the page cache; each lane moved exactly the
# bytes that the program says.
#
#   check_large_model.sh SLUICE JOB     needs 46 GiB of disk under the present directory, 5 GiB of
#                                       memory and python3; exit 77 if they are missing
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
command -v python3 >/dev/null || skip "needs python3, which reads plan.json and metrics.jsonl"
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
python3 - "$scratch/run" <<'CHECK' || stop "lane bytes are not the program's"
import json, sys
plan = json.load(open(sys.argv[1] + "/plan.json"))["lanes"]
lines = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
lines = [line for line in lines if line["step"] in (2, 3) and "event" not in line]
assert [line["step"] for line in lines] == [2, 3], "steps 2 and 3 are not in metrics.jsonl"
for line in lines:
    lanes, seconds = line["lanes"], line["seconds"]
    for lane in ("read", "write", "h2d", "d2h"):
        moved, planned = lanes[lane]["bytes"], plan[lane]["bytes"]
        assert moved == planned, "step %d, lane %s moved %d bytes, the program says %d" % (line["step"], lane, moved, planned)
    compute, update = lanes["compute"]["busy_seconds"], lanes["update"]["busy_seconds"]
    print("step %d: %.1f s, compute ops %.1f s (%.2f of the step), update ops %.1f s" %
          (line["step"], seconds, compute, compute / seconds, update))
print("lane bytes of steps 2 and 3 equal the program's")
CHECK
