#!/bin/sh
# perf/run.sh makes a table and keeps its lines. It names benchmarks that are missing and refuses wrong figures.
# This check asserts no speed, only that each line has a figure with its limit.
#
#   check_perf.sh SOURCE_DIR BUILD_DIR
set -u
usage='use: check_perf.sh SOURCE_DIR BUILD_DIR'
. "$(dirname "$0")/lib.sh"
source=$(realpath "${1:?$usage}")
build=$(realpath "${2:?$usage}")
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
finish commands
