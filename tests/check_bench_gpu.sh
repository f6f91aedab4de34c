#!/bin/sh
# check_bench_gpu.sh BENCH_GPU JOB: the benchmark on a tiny job gives its ceilings and one row with a
# number in each column that the job uses; a job that cannot fit is named and left out.
set -eu
bench=$1 job=$2
dir=$(mktemp -d "${TMPDIR:-/tmp}/sluice_bench_gpu.XXXXXX")
trap 'rm -rf "$dir"' EXIT
sed 's/"num_layers": 2/"num_layers": 4096/' "$job" >"$dir/large.json"
"$bench" --quick --host 64MiB --data "$dir" --seconds 600 "$job" "$dir/large.json" >"$dir/out" || {
    cat "$dir/out"
    exit 1
}
cat "$dir/out"
has() {
    grep -Eq "$1" "$dir/out" || { echo "no line matches $1"; exit 1; }
}
has '^ceilings +h2d [0-9.]+ GB/s, d2h [0-9.]+, both at once'
has '^quick +[0-9]+ +[0-9.]+ +[0-9.]+% +[0-9.]+% +[0-9.]+ \([0-9]+%\) +[0-9.]+ \([0-9]+%\) +- +- +[0-9.]+$'
has '^large +left out: .*does not fit'
test -z "$(ls "$dir" | grep -vE '^(out|large.json|run|slabs)$')" || { ls "$dir"; exit 1; }
