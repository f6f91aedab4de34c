#!/bin/sh
# Checks the programs of perf. It asserts no speed.
#
#   check_perf.sh table SOURCE_DIR BUILD_DIR   perf/run.sh makes a table and keeps its lines; each line has a figure
#                                              with its limit. It names benchmarks that are missing and refuses
#                                              wrong figures.
#   check_perf.sh gpu BENCH_GPU JOB            the benchmark on a tiny job prints its ceilings, and one row with a
#                                              number in each column that the job uses. It names a job that does
#                                              not fit, and skips it.
set -u
usage='use: check_perf.sh table SOURCE_DIR BUILD_DIR, or check_perf.sh gpu BENCH_GPU JOB'
. "$(dirname "$0")/lib.sh"

check_table()
{
    source=$(realpath "$1")
    build=$(realpath "$2")
    make_scratch check_perf
    call "$source/perf/run.sh" --quick --bin "$build" --drive "$scratch" --out "$scratch/kept" data
    exits 0 "run.sh data"
    [ $status -eq 0 ] || cat "$scratch"/kept/*.log
    lines=$(awk -F, '$1 == "data" && $3 > 0 && $5 > 0 && $6 > 0 && NF == 7' "$scratch/kept/all.csv" | wc -l)
    [ "$lines" -eq 4 ] || { cat "$scratch/kept/all.csv"; fail "$lines lines of data with value, limit and ratio, not 4"; }
    [ "$(grep -c '^  data .* [0-9.]*  +-' "$scratch/kept/table.txt")" -eq 4 ] || fail "the table has not these 4 lines"
    find "$scratch" -name 'bench_data*' -o -name 'perf.*' | grep -q . && fail "something is left behind"

    mkdir -p "$scratch/empty/perf"
    call "$source/perf/run.sh" --bin "$scratch/empty" --drive "$scratch" --out "$scratch/none" data
    exits 0 "run.sh without the program"
    cat "$scratch/out" "$scratch/err" | grep -q '^data: absent: .*bench_data is not built' || fail "absence is not named"

    call "$source/perf/run.sh" nothing
    exits 2 "a wrong figure"
    cat "$scratch/out" "$scratch/err" | grep -q 'no figure nothing' || fail "a wrong figure is not named"
}

check_gpu()
{
    bench=$(program "$1") || exit 2
    job=$(realpath "$2")
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
}

case ${1:?$usage} in
table) check_table "${2:?$usage}" "${3:?$usage}" ;;
gpu) check_gpu "${2:?$usage}" "${3:?$usage}" ;;
*) echo "$usage" >&2; exit 2 ;;
esac
finish commands
