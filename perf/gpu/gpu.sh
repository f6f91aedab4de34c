#!/usr/bin/env bash
# Builds, checks and measures Sluice on one GPU, and prints one table, in under nine minutes.
#
#   perf/gpu/gpu.sh [--bin DIR|FILE] [--data DIR] [--logs DIR] [--no-checks] [--quick]
#   perf/gpu/gpu.sh [--bin DIR|FILE] [--logs DIR] --checks|--sanitize TOOL
#   perf/gpu/gpu.sh --gather FILE
#
#   --gather FILE   builds, and packs sluice, the GPU tests, their list and the shared libraries that they need
#                   into FILE (tar.gz), for another machine; runs nothing
#   --bin DIR|FILE  uses such a FILE, or a folder with its contents; otherwise programs are built here
#   --data DIR      a folder on the drive to measure (default: runs/gpu); all jobs need 45 GB
#   --logs DIR      keeps there what each test printed, and its exit status
#   --no-checks     skips the tests with label gpu
#   --checks        runs only these tests
#   --sanitize TOOL runs them under compute-sanitizer (memcheck, racecheck, ...), and measures nothing. It
#                   skips the large tests, the one that breaks the GPU and the one that kills a rank.
#   --quick         tiny sizes, to try the script itself
#
# The tests run first, since the speed of wrong results is worth nothing. They run with CUDA graphs and without
# (test_gpu_lanes, test_gpu_train), also under compute-sanitizer. Then bench_gpu.py measures the limits
# and trains the jobs of perf/gpu/jobs.txt one after the other. Then, if python3 has torch, PyTorch trains the same 1B
# model in device memory (perf/gpu/pytorch_gpu.py). Compare speeds only within one run on one machine. A job that
# does not end in time is left out; the measuring needs python3, and this repository beside gathered programs.
#
# If the loader finds no cuBLASLt, cuDNN or NCCL, those of python3's packages are used. They are too large to
# be packed (NCCL alone is 196 MB compressed). Gathered programs need a C library at least as new as on the
# machine where they were built. SLUICE_GPU_ARCHITECTURES=90a-real builds for one kind of GPU only, which is
# faster and smaller.
# Paths are relative to the repository's root. Exit status 1: something failed; 77: no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin='' gather='' data=runs/gpu logs='' checks=yes quick='' sanitize='' sanitizer=()
usage() {
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --bin | --gather | --data | --logs | --sanitize) [ $# -gt 1 ] || usage ;;&
    --bin) bin=$2; shift ;;
    --gather) gather=$2; shift ;;
    --data) data=$2; shift ;;
    --logs) logs=$2; shift ;;
    --no-checks) checks=no ;;
    --checks) checks=only ;;
    --sanitize) sanitize=$2; shift ;;
    --quick) quick=--quick ;;
    *) usage ;;
    esac
    shift
done
begin=$SECONDS
total_seconds=530  # limit of the whole script: nine minutes
pytorch_seconds=50 # PyTorch's part of total_seconds
test_seconds=180   # limit for one line of gpu_tests.txt
export OMP_WAIT_POLICY=passive SLUICE_TEST_BACKEND=cuda # as CTest sets them

work=''
trap '[ -z "$work" ] || rm -rf "$work"' EXIT
if [ -n "$gather" ]; then
    work=$(mktemp -d)
else
    mkdir -p "$data"
    work=$(mktemp -d "$(cd "$data" && pwd)/work.XXXXXX")
fi
mkdir -p "${logs:=$work}"
logs=$(cd "$logs" && pwd)

# --- programs ---
if [ -z "$bin" ]; then
    build=build/gpu
    mkdir -p "$build"
    { ./test.sh --deps && cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_CUDA=ON \
        ${SLUICE_GPU_ARCHITECTURES:+"-DCMAKE_CUDA_ARCHITECTURES=$SLUICE_GPU_ARCHITECTURES"} &&
        cmake --build "$build" --target gpu_programs sluice; } >"$build/build.log" 2>&1 ||
        { tail -n 30 "$build/build.log" >&2; exit 1; }
    bin=$work/bin
    mkdir "$bin"
    cp "$build/tests/gpu_tests.txt" "$bin/"
    ln "$build/src/cli/sluice" "$bin/" 2>/dev/null || cp "$build/src/cli/sluice" "$bin/"
    cut -d' ' -f1 "$bin/gpu_tests.txt" | sort -u | while read -r program; do
        ln "$build/tests/$program" "$bin/" 2>/dev/null || cp "$build/tests/$program" "$bin/"
    done
    echo "built in $((SECONDS - begin)) s"
elif [ -f "$bin" ]; then
    mkdir "$work/bin"
    tar -C "$work/bin" -xzf "$bin"
    bin=$work/bin
fi
bin=$(cd "$bin" && pwd)

# The target has its own C library and compiler libraries; every other shared library is packed.
if [ -n "$gather" ]; then
    packed=$work/packed
    mkdir -p "$packed/lib"
    cp "$bin"/* "$packed/"
    find "$packed" -maxdepth 1 -type f -perm -u+x -exec ldd {} + |
        awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
        grep -Ev '/(lib(c|m|pthread|dl|rt|gcc_s|stdc\+\+)|ld-linux[^/]*)\.so' |
        xargs -r cp -L -t "$packed/lib"
    find "$packed" -maxdepth 1 -type f -perm -u+x -exec strip {} +
    tar -C "$packed" -czf "$gather" .
    echo "$gather: $(du -h "$gather" | cut -f1), unpacked $(du -sh "$packed" | cut -f1)"
    exit 0
fi

# --- shared libraries ---
# Prints the folders with libraries that the loader does not find: the toolkit's, or those of python3's
# packages. Only our programs get them, since python3 finds its own.
nvidia_folders() {
    python3 - <<'END' 2>/dev/null || true
import ctypes, glob, os, sys

def is_known(name):
    for version in ("13", "12", "9", "2"):
        try:
            ctypes.CDLL(f"{name}.{version}")
            return True
        except OSError:
            pass
    return False

folders = []
for name in ("libcublasLt.so", "libcudnn.so", "libnvrtc.so", "libnccl.so"):
    places = ["/usr/local/cuda/lib64"]
    places += [f for path in sys.path for f in sorted(glob.glob(f"{path}/nvidia/*/lib"), reverse=True)]
    holding = [place for place in places if glob.glob(f"{place}/{name}.*")]
    if holding and not is_known(name):
        folders.append(holding[0])
print(":".join(dict.fromkeys(folders)))
END
}
libraries=$bin/lib:$(nvidia_folders):${LD_LIBRARY_PATH:-}
libraries=$(printf %s "$libraries" | sed 's/::*/:/g; s/:$//')
ours() { LD_LIBRARY_PATH=$libraries "$@"; }
if ours ldd "$bin/sluice" | grep 'not found'; then
    echo "gpu.sh: sluice lacks these shared libraries here: pack them with --gather" >&2
    exit 1
fi

# --- checks: every line of gpu_tests.txt is a program and its arguments ---
# check NUMBER PROGRAM ARGUMENT...: leaves its output in $logs/log.NUMBER and the exit status in
# $logs/status.NUMBER.
check() {
    local number=$1 status=0
    shift
    mkdir -p "$work/$number"
    (cd "$work/$number" && ours timeout "$test_seconds" "${sanitizer[@]}" "$bin/$1" "${@:2}") \
        >"$logs/log.$number" 2>&1 </dev/null || status=$?
    rm -rf "${work:?}/$number"
    echo "$status" >"$logs/status.$number"
}

# run_checks WHAT: runs the small tests together, since they mostly use the host; then, one at a time, the
# large ones and the one that looks at the GPU's free memory.
run_checks() {
    local check_begin=$SECONDS passed=0 failed=0 skipped=0 number=0 status
    local lines=()
    mapfile -t lines < <(grep -Ev '_large|_cudnn' "$bin/gpu_tests.txt" && echo && grep _cudnn "$bin/gpu_tests.txt" &&
        [ ${#sanitizer[@]} -eq 0 ] && grep _large "$bin/gpu_tests.txt")
    local at_once=$((($(nproc) + 1) / 2))
    [ "$at_once" -le 8 ] || at_once=8
    for line in "${lines[@]}"; do
        if [ -z "$line" ]; then # from here on, one at a time
            wait
            at_once=1
            continue
        fi
        case "${sanitizer[*]:+sanitized }$line" in
        "sanitized test_gpu_lanes faults" | "sanitized test_gpu_ranks killed") continue ;;
        esac
        while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do
            wait -n || true
        done
        number=$((number + 1))
        echo "$line" >"$logs/line.$number"
        # shellcheck disable=SC2086 # the words of the line are the program and its arguments
        check "$number" $line &
    done
    wait
    for ((i = 1; i <= number; i++)); do
        status=$(cat "$logs/status.$i")
        case $status in
        0) passed=$((passed + 1)) ;;
        77) skipped=$((skipped + 1)) ;;
        *)
            failed=$((failed + 1))
            echo "FAILED ($status): $(cat "$logs/line.$i")"
            tail -n 15 "$logs/log.$i"
            ;;
        esac
    done
    echo "$1: $passed passed, $failed failed, $skipped skipped, $((SECONDS - check_begin)) s"
    [ "$failed" -eq 0 ] || exit 1
    [ "$passed" -gt 0 ] || { tail -n 1 "$logs/log.1"; exit 77; }
}

if [ -n "$sanitize" ]; then
    test_seconds=500
    export SLUICE_TEST_FEW=1
    sanitizer=(compute-sanitizer --tool "$sanitize" --report-api-errors no --error-exitcode 9
        --target-processes all --require-cuda-init no) # a test without CUDA forks its ranks
    run_checks "gpu tests under $sanitize"
    exit 0
fi
[ "$checks" = no ] || run_checks "gpu tests"
[ "$checks" != only ] || exit 0

# --- measure ---
available=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
host=$((available - 8 < 106 ? available - 8 : 106))
[ -z "$quick" ] || host=1
[ "$host" -gt 0 ] || { echo "gpu.sh: only $available GiB of memory are available" >&2; exit 1; }
mkdir "$work/jobs"
mapfile -t job_files < <(awk -v folder="$work/jobs/" '
    /^==> .* <==$/ { file = folder $2; print file; next }
    file { print >file }' perf/gpu/jobs.txt)
# The first job again, launched kernel by kernel, if time is left: what graphs save.
sed 's/^{$/{ "device": {"graph_bytes": 0},/' "${job_files[0]}" >"$work/jobs/no-graphs.json"
job_files+=("$work/jobs/no-graphs.json")
[ -z "$quick" ] || job_files=(perf/gpu/quick.json)
left=$((total_seconds - pytorch_seconds - (SECONDS - begin)))
status=0
printf '#!/bin/bash\nexec env LD_LIBRARY_PATH=%q %q "$@"\n' "$libraries" "$(realpath "$bin/sluice")" >"$work/sluice"
chmod +x "$work/sluice"
python3 perf/gpu/bench_gpu.py --sluice "$work/sluice" --host "${host}GiB" --data "$work" \
    --seconds "$((left > 120 ? left : 120))" "${job_files[@]}" || status=$?
[ "$status" -ne 77 ] || exit 77
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    timeout 120 python3 perf/gpu/pytorch_gpu.py $quick || echo "pytorch: failed ($?)"
else
    echo "pytorch: python3 has no torch with a GPU here; left out"
fi
echo "all of it: $((SECONDS - begin)) s"
exit "$status"
