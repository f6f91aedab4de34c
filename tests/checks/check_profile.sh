#!/bin/sh
# sluice profile as a user runs it: exit statuses, tables, JSON, one rank of many, and that nothing is left behind.
#
#   check_profile.sh SLUICE SOURCE
set -u
usage='use: check_profile.sh SLUICE SOURCE'
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?$usage}") || exit 2
root=$(realpath "${2:?$usage}")
make_scratch check_profile

cat >"$scratch/job.json" <<JOB
{
  "model": {"family": "gpt2", "num_layers": 4, "hidden_size": 64, "num_heads": 2,
            "vocab_size": 512, "seq_length": 32},
  "run": {"dir": "$scratch/runs/one", "steps": 1000},
  "tiers": {"device": {"budget": "64MiB"}, "host": {"budget": "64MiB"},
            "nvme": [{"path": "$scratch/drives/{rank}", "budget": "256MiB"}],
            "place": {"optimizer": "nvme"}},
  "device": {"backend": "cpu", "threads": 1},
  "train_micro_batch_size_per_gpu": 1,
  "gradient_accumulation_steps": 2,
  "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
  "zero_optimization": {"stage": 3}
}
JOB

# run STATUS TEXT ARGS...: TEXT must be on standard output, or on standard error if STATUS is not 0.
run()
{
    want=$1
    text=$2
    shift 2
    call "$sluice" profile "$@"
    exits "$want" "profile $*"
    stream=err
    [ "$want" -ne 0 ] || stream=out
    says $stream "$text" "profile $*"
    clean "profile $*"
}

# The directory must hold only our own three files.
clean()
{
    left=$(ls -A "$scratch" | grep -v -x -e job.json -e out -e err)
    [ -z "$left" ] || fail "$1: left behind: $left"
}

# The lines of tables have at most 90 columns; log lines may be longer.
narrow()
{
    widest=$(awk '{ if (length($0) > most) most = length($0) } END { print most + 0 }' "$scratch/out")
    [ "$widest" -le 90 ] || fail "$1: a line of $widest columns"
}

job=$scratch/job.json
run 0 "binding      measured" "$job" --steps 3 --quiet
narrow tables
run 0 "random ones" "$job" --steps 3 --quiet --no-advice
if grep -q "simulated with" "$scratch/out"; then fail "--no-advice: advice"; fi
run 0 "step 1/" "$job" --steps 3 --no-advice
run 0 "scaled down  2 of 4 blocks" "$job" --steps 3 --quiet --as-rank 17 --of 512 --scale-down 2 \
    --transfers-only --comm-speed 1
narrow "tables of a rank"
run 0 "means nothing" "$job" --steps 3 --quiet --as-rank 0 --of 2 --no-advice

run 0 '"calibrated_step_seconds"' "$job" --steps 3 --json
for key in step_seconds predicted_step_seconds lanes busy_seconds predicted_busy_seconds stall_seconds \
    bytes_per_second binding predicted_binding resource units peak_bytes budget_bytes advice \
    resident_bytes_max settings_tried; do
    grep -q "\"$key\"" "$scratch/out" || fail "--json: no key $key"
done
[ "$(head -c 1 "$scratch/out")" = "{" ] || fail "--json: something before the object"
run 0 '"of": 512' "$job" --steps 3 --json --as-rank 17 --of 512 --no-advice
if python3 -c 1 2>/dev/null; then
    python3 -m json.tool "$scratch/out" >/dev/null || fail "--json: no JSON"
fi

run 2 "needs --of N" "$job" --as-rank 3
run 2 "needs --as-rank R" "$job" --of 3
run 2 "none of --of 3 ranks" "$job" --as-rank 3 --of 3
run 2 "needs --as-rank R --of N" "$job" --scale-down 2
run 2 "needs --as-rank R --of N" "$job" --transfers-only
run 2 "does not divide the model's 4 blocks" "$job" --as-rank 0 --of 2 --scale-down 3
run 2 "cannot" "$scratch/none.json"
run 3 "does not fit" "$job" --set tiers.device.budget=64KiB

# start: starts a long profile in the background, and waits for its first step.
start()
{
    count=$((count + 1))
    "$sluice" profile "$job" --steps 1000 --no-advice --set gradient_accumulation_steps=16 \
        >"$scratch/out" 2>"$scratch/err" </dev/null &
    child=$!
    until_true 20 has_line "^step 2/" "$scratch/out"
}

# After a stop its status is 75, and no file is left.
start
kill -TERM $child
wait $child
status=$?
exits 75 "after SIGTERM"
clean "after SIGTERM"

# If it is killed, the states on the drives vanish with the process. Only a small directory stays.
start
kill -KILL $child
wait $child 2>/dev/null
left=$(find "$scratch" -name "*.slab")
[ -z "$left" ] || fail "after SIGKILL: left behind: $left"
rm -rf "$scratch"/sluice-profile-* "$scratch/drives"
clean "after SIGKILL"

# The job that is shipped for one rank of a trillion-parameter model fits itself, whole.
call "$sluice" plan "$root/configs/jobs/infinity-1t-rank.json" --ranks 512 --ranks-per-host 1 \
    --set tiers.nvme.0.budget=42GiB
if [ "$status" -ne 0 ] && ! grep -q "free space" "$scratch/err"; then
    fail "plan of infinity-1t-rank.json: exit $status: $(cat "$scratch/err")"
fi
clean "plan"

finish commands
