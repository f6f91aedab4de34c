#!/bin/sh
# Runs a fuzzer of the preset `fuzz`, or makes its corpus small.
#
#   tests/fuzz/run.sh WHAT [SECONDS]     WHAT: manifest, job, tokens, files, lines, tokenizer, safetensors; default 1200 s
#   tests/fuzz/run.sh --merge WHAT       tests/fuzz/corpus/WHAT becomes: its inputs that have a name, and
#                                        the least of all others (named by their hash) that covers the same
#
# New inputs go to build/fuzz/corpus/WHAT, findings to build/fuzz/found/WHAT-*. A finding that is fixed
# belongs in tests/fuzz/found/WHAT/, under a name that says what it was. Options after SECONDS are
# libFuzzer's. FUZZ_BUILD names another build directory.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${FUZZ_BUILD:-$root/build/fuzz}
merge=no
if [ "${1:-}" = --merge ]; then
    merge=yes
    shift
fi
what=${1:?use: run.sh [--merge] WHAT [SECONDS] [OPTION...]}
seconds=${2:-1200}
[ $# -lt 2 ] || shift
shift
fuzzer=$build/sluice-fuzz-$what
[ -x "$fuzzer" ] || {
    echo "run.sh: no $fuzzer; build it: cmake --preset fuzz && cmake --build --preset fuzz" >&2
    exit 2
}
stored=$root/tests/fuzz/corpus/$what
found=$root/tests/fuzz/found/$what
new=$build/corpus/$what
mkdir -p "$new" "$build/found"

# A small quarantine: fresh pages for the larger blocks would cost more than all else.
export ASAN_OPTIONS="${ASAN_OPTIONS:-quarantine_size_mb=16}"

case $what in
manifest) set -- -max_len=4096 "$@" ;;
job) set -- -max_len=8192 "$@" ;;
tokens | files | lines | tokenizer | safetensors) set -- -max_len=4096 "$@" ;;
esac
for dict in "$build/$what.dict" "$root/tests/fuzz/$what.dict"; do
    [ ! -f "$dict" ] || set -- "-dict=$dict" "$@"
done
inputs=
[ ! -d "$found" ] || inputs=$found
if [ "$merge" = yes ]; then
    small=$build/merged-$what
    rm -rf "$small"
    mkdir "$small"
    for input in "$stored"/*; do
        expr "${input##*/}" : '[0-9a-f]\{40\}$' >/dev/null || cp "$input" "$small"
    done
    "$fuzzer" -set_cover_merge=1 -use_counters=0 -timeout=10 -rss_limit_mb=2048 "$@" "$small" "$stored" "$new"
    rm -rf "$stored"
    mv "$small" "$stored"
    exit 0
fi
# shellcheck disable=SC2086 # none or one directory
exec "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$build/found/$what-" "$@" "$new" "$stored" $inputs
