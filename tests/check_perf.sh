#!/bin/sh
# perf/run.sh makes a table and keeps its lines; what is not there is named; wrong figures are refused. No speed is
# asserted: only that each line has a figure with its limit.
#
#   check_perf.sh SOURCE_DIR BUILD_DIR
set -u
[ $# -eq 2 ] || { echo "usage: check_perf.sh SOURCE_DIR BUILD_DIR" >&2; exit 2; }
source=$1 build=$2
out=$(mktemp -d "$PWD/check-perf.XXXXXX") || exit 2
trap 'rm -rf "$out"' EXIT
failed=0
fail()
{
    echo "FAILED: $1"
    failed=1
}

"$source/perf/run.sh" --quick --bin "$build" --drive "$out" --out "$out/kept" data >"$out/said" 2>&1 ||
    { cat "$out/said" "$out"/kept/*.log; fail "run.sh data"; }
lines=$(awk -F, '$1 == "data" && $3 > 0 && $5 > 0 && $6 > 0 && NF == 7' "$out/kept/all.csv" | wc -l)
[ "$lines" -eq 4 ] || { cat "$out/kept/all.csv"; fail "$lines lines of data with value, limit and ratio, not 4"; }
[ "$(grep -c '^  data .* [0-9.]*  +-' "$out/kept/table.txt")" -eq 4 ] || fail "the table has not these 4 lines"
find "$out" -name 'bench_data*' -o -name 'perf.*' | grep -q . && fail "something is left behind"

mkdir -p "$out/empty/perf"
"$source/perf/run.sh" --bin "$out/empty" --drive "$out" --out "$out/none" data >"$out/said" 2>&1 ||
    fail "run.sh without the program"
grep -q '^data: absent: .*bench_data is not built' "$out/said" || { cat "$out/said"; fail "absence is not named"; }

"$source/perf/run.sh" nothing >"$out/said" 2>&1
[ $? -eq 2 ] && grep -q 'no figure nothing' "$out/said" || fail "a wrong figure is not refused with 2"
exit "$failed"
