#!/bin/sh
# Checks the programs of perf. It asserts no speed.
#
#   check_perf.sh table SOURCE_DIR BUILD_DIR   perf/run.sh makes a table and keeps its lines; each line has a figure
#                                              with its limit. It names benchmarks that are missing and refuses
#                                              wrong figures.
#   check_perf.sh gpu SOURCE_DIR SLUICE        perf/gpu/bench_gpu.py on a tiny job prints the limits of a machine
#                                              file, and one row with a number in each column that the job uses. It
#                                              names a job that does not fit, and skips it.
set -u
usage='use: check_perf.sh table SOURCE_DIR BUILD_DIR, or check_perf.sh gpu SOURCE_DIR SLUICE'
. "$(dirname "$0")/lib.sh"

check_table()
{
    source=$(realpath "$1")
    build=$(realpath "$2")
    make_scratch check_perf
    call "$source/perf/run.sh" --quick --bin "$build" --drive "$scratch" --out "$scratch/kept" data commit tokenizer
    exits 0 "run.sh data commit tokenizer"
    [ $status -eq 0 ] || cat "$scratch"/kept/*.log
    lines=$(awk -F, 'NR > 1 && $3 > 0 && $5 > 0 && $6 > 0 && NF == 7' "$scratch/kept/all.csv" | wc -l)
    [ "$lines" -eq 8 ] || { cat "$scratch/kept/all.csv"; fail "$lines lines with value, limit and ratio, not 8"; }
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
    bench=$(realpath "$1")/perf/gpu/bench_gpu.py
    job=$(realpath "$1")/perf/gpu/quick.json
    sluice=$(program "$2") || exit 2
    make_scratch sluice_bench_gpu "${TMPDIR:-/tmp}"
    cat >"$scratch/machine.json" <<END
{"name": "described", "host": {"core_count": 2, "memory_bytes": "8GiB"},
 "device": {"is_gpu": true, "memory_bytes": "8GiB", "flops_16bit": 1e12, "memory_rate": 1e10},
 "h2d": {"pinned": 1e9, "pinned_both": 1e9}, "d2h": {"pinned": 1e9, "pinned_both": 1e9},
 "drives": [{"name": "any", "capacity_bytes": "64GiB", "read": 1e9, "write": 1e9}]}
END
    sed 's/"num_layers": 2/"num_layers": 4096/' "$job" >"$scratch/large.json"
    call python3 "$bench" --sluice "$sluice" --machine "$scratch/machine.json" --host 64MiB --data "$scratch" \
        --seconds 600 "$job" "$scratch/large.json"
    exits 0 bench_gpu.py
    cat "$scratch/out"
    has()
    {
        grep -Eq "$1" "$scratch/out" || fail "no line matches $1"
    }
    has '^limits +h2d [0-9.]+ GB/s, d2h [0-9.]+, both at once'
    has '^quick +[0-9]+ +[0-9.]+ +[0-9.]+% +[0-9.]+% +[0-9.]+ \([0-9]+%\) +[0-9.]+ \([0-9]+%\) +- +- +[0-9.]+$'
    has '^large +left out: .*does not fit'
    left=$(ls "$scratch" | grep -vE '^(out|err|large.json|machine.json)$')
    [ -z "$left" ] || fail "left behind: $left"
}

case ${1:?$usage} in
table) check_table "${2:?$usage}" "${3:?$usage}" ;;
gpu) check_gpu "${2:?$usage}" "${3:?$usage}" ;;
*) echo "$usage" >&2; exit 2 ;;
esac
finish commands
