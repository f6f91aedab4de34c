#!/bin/sh
# Installs the build to a scratch prefix and uses it as a stranger would: check_install.sh BUILD CC
#
# A small program is built with a C compiler and the flags of pkg-config alone, once with what it needs of
# the library and once with all of it, and must print the version that the installed binary prints and
# pkg-config reports. The binary itself needs neither a C++ library nor CUDA's. Where sluice.pc names SentencePiece,
# which is C++, it needs that library and C++'s, and those two alone are allowed then.
set -eu
build=$(cd "${1:?use: check_install.sh BUILD CC}" && pwd)
compiler=${2:-cc}
scratch=$(mktemp -d "$PWD/check_install.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build" --prefix "$scratch/prefix" >"$scratch/install.log" || {
    cat "$scratch/install.log"
    exit 1
}
pc_file=$(find "$scratch/prefix" -name sluice.pc)
[ -n "$pc_file" ] || { echo "no sluice.pc was installed"; exit 1; }
PKG_CONFIG_PATH=$(dirname "$pc_file")
export PKG_CONFIG_PATH

cat >"$scratch/hello.c" <<'PROGRAM'
#include <stdio.h>
#include <sluice.h>

int main(void)
{
    printf("%s %d.%d.%d\n", sluice_version(), SLUICE_VERSION_MAJOR, SLUICE_VERSION_MINOR,
           SLUICE_VERSION_PATCH);
    return 0;
}
PROGRAM
# shellcheck disable=SC2046 # the flags are words on purpose
"$compiler" -o "$scratch/hello" "$scratch/hello.c" $(pkg-config --cflags --libs sluice)
# shellcheck disable=SC2046
"$compiler" -o "$scratch/hello_all" "$scratch/hello.c" -Wl,--whole-archive \
    "$(pkg-config --variable=libdir sluice)/libsluice.a" -Wl,--no-whole-archive \
    $(pkg-config --cflags --libs sluice)

version=$(pkg-config --modversion sluice)
for program in hello hello_all; do
    said=$("$scratch/$program")
    echo "library: $said"
    [ "$said" = "$version $version" ] || { echo "pkg-config says $version"; exit 1; }
done
if [ -x "$scratch/prefix/bin/sluice" ]; then
    said=$("$scratch/prefix/bin/sluice" --version)
    echo "binary: $said"
    [ "$said" = "sluice $version" ] || { echo "pkg-config says $version"; exit 1; }
    needed=$(readelf -d "$scratch/prefix/bin/sluice" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    echo "needed: $(echo "$needed" | tr "\n" " ")"
    refused='stdc\+\+|sentencepiece|cu|nv|nccl'
    if grep -q '^Requires:.* sentencepiece' "$pc_file"; then
        refused='cu|nv|nccl|sentencepiece_train'
        for library in libsentencepiece libstdc++; do
            printf '%s\n' "$needed" | grep -qF "$library.so" || {
                echo "sluice.pc names SentencePiece, and the binary is not linked to $library"
                exit 1
            }
        done
    fi
    if printf '%s\n' "$needed" | grep -E "^lib($refused)"; then
        echo "the binary is linked to a library that it does not need"
        exit 1
    fi
fi
# The example, with a job of its own: to the run's end; again, where there is nothing left to do; and with
# budgets that are too small. Its losses are those of the command, bit for bit.
example=$(find "$scratch/prefix" -name example.c)
[ -n "$example" ] || { echo "the example was not installed"; exit 1; }
# shellcheck disable=SC2046
"$compiler" -Wall -Wextra -Werror -o "$scratch/example" "$example" $(pkg-config --cflags --libs sluice)
seq 1 4000 >"$scratch/train.txt"
seq 7001 7900 >"$scratch/valid.txt"
write_job() # name, host budget
{
    cat >"$scratch/$1.json" <<JOB
{ "model": {"family": "gpt2", "num_layers": 2, "hidden_size": 64, "num_heads": 2, "seq_length": 64},
  "data": {"train": ["$scratch/train.txt"], "valid": ["$scratch/valid.txt"]},
  "run": {"dir": "$scratch/$1", "steps": 6, "eval_batches": 2, "commit_every": 2},
  "device": {"backend": "cpu", "threads": 1},
  "tiers": {"device": {"budget": "32MiB"}, "host": {"budget": "$2"},
            "place": {"optimizer": "host", "grads": "host"}},
  "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}} }
JOB
}
write_job ours 32MiB
write_job theirs 32MiB
write_job small 64KiB
"$scratch/example" "$scratch/ours.json" 3 2 >"$scratch/example.log" || {
    echo "the example failed"
    exit 1
}
[ "$(grep -c '^step .* gradient norm' "$scratch/example.log")" = 6 ] || {
    cat "$scratch/example.log"
    echo "the example did not make 6 steps"
    exit 1
}
"$scratch/example" "$scratch/ours.json" 3 2 "$scratch/model" | grep -q 'at step 6 of 6' || {
    echo "the example did not go on from its last commit"
    exit 1
}
for name in config.json model.safetensors; do
    [ -s "$scratch/model/$name" ] || { echo "the example exported no $name"; exit 1; }
done
status=0
"$scratch/example" "$scratch/small.json" >/dev/null 2>"$scratch/small.log" || status=$?
{ [ "$status" = 3 ] && grep -q 'host' "$scratch/small.log" && [ ! -e "$scratch/small" ]; } || {
    cat "$scratch/small.log"
    echo "a job that does not fit ended with $status, not 3, or left something"
    exit 1
}
if [ -x "$scratch/prefix/bin/sluice" ]; then
    "$scratch/prefix/bin/sluice" train "$scratch/theirs.json" --quiet
    for run in ours theirs; do
        sed -n 's/.*"loss_bits": *"\([0-9a-f]*\)".*/\1/p' "$scratch/$run/metrics.jsonl" >"$scratch/$run.bits"
    done
    [ "$(wc -l <"$scratch/ours.bits")" = 6 ] || { echo "no losses"; exit 1; }
    cmp "$scratch/ours.bits" "$scratch/theirs.bits"
fi
[ -s "$scratch/prefix/share/sluice/jobs/quickstart.json" ] || {
    echo "the job files were not installed"
    exit 1
}
for name in models/gpt-1t clusters/8xh100; do
    [ -s "$scratch/prefix/share/sluice/$name.json" ] || { echo "$name.json was not installed"; exit 1; }
done
