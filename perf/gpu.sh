#!/usr/bin/env bash
# Builds, checks and measures Sluice on one GPU, and prints one table, in under nine minutes.
#
#   perf/gpu.sh [--bin DIR] [--data DIR] [--no-checks] [--quick]
#
#   --bin DIR     programs that were built elsewhere: bench_gpu, sluice, test_gpu_* and gpu_tests.txt in one
#                 folder (gathered by perf/gpu.sh --gather DIR); else they are built here
#   --gather DIR  builds, and copies those programs and the job files to DIR, stripped; runs nothing
#   --data DIR    a folder on the drive to measure (default: runs/gpu); 45 GB free for all jobs
#   --no-checks   leaves the tests with label gpu out
#   --quick       tiny sizes: to try the script itself
#
# The tests come first: speed of wrong results is worth nothing. Then bench_gpu measures the ceilings and
# trains the jobs of perf/gpu one after the other in one process; then, where python3 has torch, PyTorch
# trains the same 1B model in device memory (perf/pytorch_gpu.py). Speeds are worth comparing within
# one run on one machine. Exit 77: no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
bin= gather= data=runs/gpu checks=yes quick=
while [ $# -gt 0 ]; do
    case $1 in
    --bin) bin=$2; shift ;;
    --gather) gather=$2; shift ;;
    --data) data=$2; shift ;;
    --no-checks) checks=no ;;
    --quick) quick=--quick ;;
    *)
        sed -n '2,18s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    esac
    shift
done
begin=$SECONDS

if [ -z "$bin" ]; then
    build=build/gpu
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_CUDA=ON \
        ${SLUICE_GPU_ARCHITECTURES:+-DCMAKE_CUDA_ARCHITECTURES=$SLUICE_GPU_ARCHITECTURES} >/dev/null
    cmake --build "$build" --target gpu_programs bench_gpu sluice >"$build/build.log" ||
        { tail -n 30 "$build/build.log"; exit 1; }
    bin=$build/bin
    mkdir -p "$bin"
    cp "$build/tests/gpu_tests.txt" "$build/perf/bench_gpu" "$build/src/cli/sluice" "$bin/"
    while read -r program _; do
        [ -e "$bin/$program" ] && [ "$bin/$program" -nt "$build/tests/$program" ] ||
            cp "$build/tests/$program" "$bin/"
    done <"$bin/gpu_tests.txt"
    echo "built in $((SECONDS - begin)) s"
fi
if [ -n "$gather" ]; then
    mkdir -p "$gather"
    cp "$bin"/* "$gather/"
    find "$gather" -type f -perm -u+x -exec strip {} +
    du -sh "$gather"
    exit 0
fi

mkdir -p "$data"
work=$(mktemp -d "$data/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
bin=$(cd "$bin" && pwd)

# --- checks: every line of gpu_tests.txt is a program and its arguments ---
if [ "$checks" = yes ]; then
    passed=0 failed=0 skipped=0
    check_begin=$SECONDS
    while read -r program arguments; do
        status=0
        # shellcheck disable=SC2086 # the arguments are words on purpose
        (cd "$work" && timeout 120 "$bin/$program" $arguments) >"$work/log" 2>&1 </dev/null ||
            status=$?
        case $status in
        0) passed=$((passed + 1)) ;;
        77) skipped=$((skipped + 1)) ;;
        *)
            failed=$((failed + 1))
            echo "FAILED ($status): $program $arguments"
            tail -n 15 "$work/log"
            ;;
        esac
    done <"$bin/gpu_tests.txt"
    echo "gpu tests: $passed passed, $failed failed, $skipped skipped, $((SECONDS - check_begin)) s"
    [ "$failed" -eq 0 ] || exit 1
fi

# --- measure ---
available=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
host=$((available - 8 < 106 ? available - 8 : 106))
[ "$host" -gt 0 ] || { echo "gpu.sh: only $available GiB of memory are available" >&2; exit 1; }
jobs=(perf/gpu/llama-1b-resident.json perf/gpu/llama-8b-12-layers-resident.json
    perf/gpu/llama-8b-optimizer-on-host.json perf/gpu/llama-7b-all-on-host.json
    perf/gpu/llama-7b-half-on-nvme.json)
if [ -n "$quick" ]; then
    jobs=(perf/gpu/quick.json)
    host=1
fi
status=0
"$bin/bench_gpu" $quick --host "${host}GiB" --data "$work" "${jobs[@]}" || status=$?
[ "$status" -eq 0 ] || exit "$status"
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    python3 perf/pytorch_gpu.py $quick
else
    echo "pytorch: python3 has no torch with a GPU here; left out"
fi
echo "all of it: $((SECONDS - begin)) s"
