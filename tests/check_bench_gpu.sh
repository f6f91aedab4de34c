#!/bin/sh
# check_bench_gpu.sh BENCH_GPU JOB: the benchmark on a tiny job gives its ceilings and one row with a
# number in each column that the job uses; a job that cannot fit is named and left out.
set -u
usage='use: check_bench_gpu.sh BENCH_GPU JOB'
. "$(dirname "$0")/lib.sh"
bench=$(program "${1:?$usage}") || exit 2
job=$(realpath "${2:?$usage}")
make_scratch sluice_bench_gpu "${TMPDIR:-/tmp}"
sed 's/"num_layers": 2/"num_layers": 4096/' "$job" >"$scratch/large.json"
call "$bench" --quick --host 64MiB --data "$scratch" --seconds 600 "$job" "$scratch/large.json"
exits 0 bench_gpu
cat "$scratch/out"
has()
{
    grep -Eq "$1" "$scratch/out" || fail "no line matches $1"
}
has '^ceilings +h2d [0-9.]+ GB/s, d2h [0-9.]+, both at once'
has '^quick +[0-9]+ +[0-9.]+ +[0-9.]+% +[0-9.]+% +[0-9.]+ \([0-9]+%\) +[0-9.]+ \([0-9]+%\) +- +- +[0-9.]+$'
has '^large +left out: .*does not fit'
left=$(ls "$scratch" | grep -vE '^(out|err|large.json|run|slabs)$')
[ -z "$left" ] || fail "left behind: $left"
finish commands
