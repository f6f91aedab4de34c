#!/bin/sh
# Runs a fuzzer of the preset `fuzz`, or changes its inputs: the folder WHAT of the archive tests/fuzz/inputs.tar.
#
#   tests/fuzz/run.sh WHAT [SECONDS]         searches; default 1200 s. WHAT: manifest, job, tokens, files, lines,
#                                            tokenizer, safetensors
#   tests/fuzz/run.sh --merge WHAT           keeps of WHAT/corpus/ the inputs that have a name, and the fewest of all
#                                            others (named by their hash) that cover the same
#   tests/fuzz/run.sh --add WHAT FILE NAME   stores FILE as WHAT/found/NAME: a finding that is fixed, under a name
#                                            that says what it was
#   tests/fuzz/run.sh --unpack WHAT          writes the inputs to build/fuzz/stored/WHAT
#
# New inputs go to build/fuzz/corpus/WHAT, findings to build/fuzz/found/WHAT-*. Options after SECONDS are
# libFuzzer's. FUZZ_BUILD names another build directory.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${FUZZ_BUILD:-$root/build/fuzz}
mode=search
case ${1:-} in
--merge | --add | --unpack)
    mode=${1#--}
    shift
    ;;
esac
what=${1:?use: run.sh [--merge | --unpack | --add] WHAT [SECONDS [OPTION...] | FILE NAME]}
shift
archive=$root/tests/fuzz/inputs.tar
stored=$build/stored/$what

unpack()
{
    rm -rf "$stored"
    mkdir -p "$stored/corpus" "$stored/found"
    tar -xf "$archive" -C "$build/stored" "$what"
}

# The same inputs make the same bytes, so that git sees no change where there is none.
pack()
{
    all=$(mktemp -d)
    tar -xf "$archive" -C "$all"
    rm -rf "${all:?}/$what"
    mkdir "$all/$what"
    cp -r "$stored/corpus" "$stored/found" "$all/$what"
    (cd "$all" && find -- * -type f | LC_ALL=C sort | tar --create --file="$archive" --format=ustar \
        --blocking-factor=1 --owner=0 --group=0 --numeric-owner --mode=644 --mtime=@0 --files-from=-)
    rm -r "$all"
}

unpack
case $mode in
unpack)
    echo "$stored"
    exit 0
    ;;
add)
    cp "${1:?use: run.sh --add WHAT FILE NAME}" "$stored/found/${2:?use: run.sh --add WHAT FILE NAME}"
    pack
    exit 0
    ;;
esac

fuzzer=$build/sluice-fuzz-$what
[ -x "$fuzzer" ] || {
    echo "run.sh: no $fuzzer; build it: cmake --preset fuzz && cmake --build --preset fuzz" >&2
    exit 2
}
seconds=${1:-1200}
[ $# -lt 1 ] || shift
new=$build/corpus/$what
mkdir -p "$new" "$build/found"

# A small quarantine: fresh pages for the larger blocks would cost more than all else.
export ASAN_OPTIONS="${ASAN_OPTIONS:-quarantine_size_mb=16}"

case $what in
job) set -- -max_len=8192 "$@" ;;
*) set -- -max_len=4096 "$@" ;;
esac
dict=$build/$what.dict # of `job`, built
if [ "$what" != job ]; then
    awk -v what="$what" '/^==> .* <==$/ { is_in = $2 == what; next } is_in' "$root/tests/fuzz/dictionaries.txt" >"$dict"
fi
set -- "-dict=$dict" "$@"
if [ "$mode" = merge ]; then
    mv "$stored/corpus" "$stored/before"
    mkdir "$stored/corpus"
    for input in "$stored/before"/*; do
        expr "${input##*/}" : '[0-9a-f]\{40\}$' >/dev/null || cp "$input" "$stored/corpus"
    done
    "$fuzzer" -set_cover_merge=1 -use_counters=0 -timeout=10 -rss_limit_mb=2048 "$@" "$stored/corpus" \
        "$stored/before" "$new"
    pack
    exit 0
fi
exec "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$build/found/$what-" "$@" "$new" "$stored/corpus" "$stored/found"
