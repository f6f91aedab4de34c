#!/usr/bin/env bash
# From a fresh clone to a trained model in a few minutes, on the CPU (also where there is a GPU: the job
# says so), with the model's states on disk.
#
#   ./quickstart.sh [--set key.path=value ...]
#
# Installs what is missing, builds, makes a text of English prose, trains the model of
# configs/jobs/quickstart.json with parameters, optimizer state and activation checkpoints on NVMe,
# and prints what that cost beside what it learned. Options go to `sluice train` as they are.
# Everything it writes lies under build/ and runs/quickstart/.
set -eu
cd "$(dirname "$0")"

run=runs/quickstart
text=$run/text
bin=build/release/src/cli
text_bytes_min=4000000
began=$(date +%s)

say()
{
    printf '\n== %s (%ss)\n' "$1" "$(($(date +%s) - began))"
}

die()
{
    echo "quickstart.sh: $1" >&2
    exit 1
}

# The Authorized Version, a verse a line (bible -f), without its references. Held out are whole books that no
# other book repeats: a story, a prophet and two letters, 3% of the text.
bible_text()
{
    bible -f "gen1:1-rev22:21" </dev/null 2>/dev/null | awk -v train="$text/train.txt" \
        -v valid="$text/valid.txt" '
        {
            book = $1
            sub(/[0-9]+:[0-9]+$/, "", book)
            sub(/^[^ ]+ /, "")
            print > ((book ~ /^(Ruth|Dan|Heb|Jas)$/) ? valid : train)
        }'
}

# English prose that a Debian system has anyway: manuals of Perl, licences, changelogs. Every
# thirtieth file is held out.
fallback_text()
{
    find /usr/share/common-licenses /usr/share/perl /usr/share/doc -xdev -type f \
        \( -name '*.pod' -o -name '*.txt' -o -path '*/common-licenses/*' -o -name 'README*' \) \
        ! -name '*.gz' -size +3k 2>/dev/null | LC_ALL=C sort |
        awk -v train="$text/train.txt" -v valid="$text/valid.txt" '
        {
            target = (NR % 30 == 0) ? valid : train
            while ((getline line < $0) > 0)
                if (line !~ /[^\t -~]/)
                    print line > target
            close($0)
        }'
}

make_text()
{
    mkdir -p "$text"
    : >"$text/train.txt"
    : >"$text/valid.txt"
    if command -v bible >/dev/null 2>&1; then
        bible_text
        echo "text: the Authorized Version of the Bible (package bible-kjv-text)"
    else
        echo "the package bible-kjv could not be installed: looking for other English prose"
        fallback_text
        echo "text: manuals and licences found on this machine"
    fi
    [ "$(cat "$text"/*.txt | wc -c)" -ge "$text_bytes_min" ] || die \
        "found less than $text_bytes_min bytes of text: install bible-kjv and bible-kjv-text"
    [ -s "$text/valid.txt" ] || die "no text to hold out"
    wc -c "$text/train.txt" "$text/valid.txt"
}

say "installing what is missing"
./test.sh --deps
command -v bible >/dev/null 2>&1 || ./test.sh --deps bible-kjv bible-kjv-text || true

say "building"
if command -v ccache >/dev/null 2>&1; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache \
        CMAKE_CUDA_COMPILER_LAUNCHER=ccache
fi
cmake --preset release >/dev/null
cmake --build --preset release -j "$(nproc)" --target installable

say "making the text"
make_text
bigram=$(perf/training/bigram.sh "$text/train.txt" "$text/valid.txt")
echo "a bigram model of bytes, fitted on train.txt: $bigram nats per byte on valid.txt"

say "training on the CPU"
rm -rf "$run/state" "$run/nvme" "$run/keep" # of the quickstart before: this one begins anew
mkdir -p "$run/nvme"
"$bin/sluice" train configs/jobs/quickstart.json --fresh "$@" | tee "$run/train.log"
[ "${PIPESTATUS[0]}" -eq 0 ] || die "training failed; its messages are above"
loss=$(sed -n 's/^held-out loss *\([0-9.]*\) nats.*/\1/p' "$run/train.log" | tail -n 1)
[ -n "$loss" ] || die "training printed no held-out loss"

say "a sample, from the prompt \"And the LORD said unto \""
"$bin/sluice" generate "$run" --prompt "And the LORD said unto " --tokens 300 --seed 1

say "result"
printf 'held-out loss     %s nats per byte\n' "$loss"
printf 'bigram model      %s nats per byte\n' "$bigram"
printf 'the run           %s (metrics.jsonl, plan.json, trace.json)\n' "$run"
if page=$("$bin/sluice" report "$run" 2>/dev/null); then
    printf 'a page about it   %s\n' "$page"
fi
printf 'to install        cmake --install build/release --prefix ~/.local\n'
printf 'ten minutes more  README.md, section "Ten minutes": fine-tune this model, plan a larger one\n'
awk -v a="$loss" -v b="$bigram" 'BEGIN { exit !(a < b) }' ||
    die "the model is not better than the bigram model"
