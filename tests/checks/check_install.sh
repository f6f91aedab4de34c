#!/bin/sh
# Installs the build to a scratch prefix and uses it as a stranger would: check_install.sh BUILD CC
#
# A small program is built with a C compiler and the flags of pkg-config alone, once with the parts of
# the library that it needs and once with the whole library, and must print the version that the installed binary prints and
# pkg-config reports. The binary itself needs neither a C++ library nor CUDA's. Where sluice.pc names SentencePiece,
# which is C++, it needs that library and C++'s, and those two alone are allowed then.
set -eu
. "$(dirname "$0")/lib.sh"
build=$(cd "${1:?use: check_install.sh BUILD CC}" && pwd)
compiler=${2:-cc}
make_scratch check_install

# The build's own script, with an archive that is not built.
mkdir "$scratch/unbuilt"
sed "s|$build/src/libsluice.a|$scratch/unbuilt/libsluice.a|g" "$build/cmake_install.cmake" \
    >"$scratch/unbuilt/cmake_install.cmake"
call cmake --install "$scratch/unbuilt" --prefix "$scratch/empty"
[ $status -ne 0 ] || fail "cmake --install without a build"
tr -s '\n ' '  ' <"$scratch/err" | grep -qF "cmake --build $build --target installable" ||
    fail "cmake --install without a build does not say how to build"
[ ! -e "$scratch/empty" ] || fail "cmake --install without a build installed something"

call cmake --install "$build" --prefix "$scratch/prefix"
[ $status -eq 0 ] || stop "cmake --install"
pc_file=$(find "$scratch/prefix" -name sluice.pc)
[ -n "$pc_file" ] || stop "no sluice.pc was installed"
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
    [ "$said" = "$version $version" ] || stop "pkg-config says $version"
done
if [ -x "$scratch/prefix/bin/sluice" ]; then
    said=$("$scratch/prefix/bin/sluice" --version)
    echo "binary: $said"
    [ "$said" = "sluice $version" ] || stop "pkg-config says $version"
    # Presets come with it, under any prefix: the one that is planned stands in no other place.
    sed 's/"smollm2-135m"/"installed-135m"/' "$scratch/prefix/share/sluice/models.json" >"$scratch/models.json"
    mv "$scratch/models.json" "$scratch/prefix/share/sluice/models.json"
    call "$scratch/prefix/bin/sluice" plan "$scratch/prefix/share/sluice/jobs/quickstart.json" \
        --set 'model={"preset": "installed-135m", "seq_length": 128}'
    exits 3 "a preset of the installed models.json, which does not fit"
    needed=$(readelf -d "$scratch/prefix/bin/sluice" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    echo "needed: $(echo "$needed" | tr "\n" " ")"
    refused='stdc\+\+|sentencepiece|cu|nv|nccl'
    if grep -q '^Requires:.* sentencepiece' "$pc_file"; then
        refused='cu|nv|nccl|sentencepiece_train'
        for library in libsentencepiece libstdc++; do
            printf '%s\n' "$needed" | grep -qF "$library.so" ||
                stop "sluice.pc names SentencePiece, and the binary is not linked to $library"
        done
    fi
    if printf '%s\n' "$needed" | grep -E "^lib($refused)"; then
        stop "the binary is linked to a library that it does not need"
    fi
fi
# Runs the example with a job of its own: to the end of the run; again, when nothing is left to do; and with
# budgets that are too small. Its losses must have the same bits as those of the command.
example=$(find "$scratch/prefix" -name example.c)
[ -n "$example" ] || stop "the example was not installed"
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
call "$scratch/example" "$scratch/ours.json" 3 2
exits 0 "the example"
[ "$(grep -c '^step .* gradient norm' "$scratch/out")" = 6 ] || stop "the example did not make 6 steps"
call "$scratch/example" "$scratch/ours.json" 3 2 "$scratch/model"
says out 'at step 6 of 6' "the example, which goes on from its last commit"
for name in config.json model.safetensors; do
    [ -s "$scratch/model/$name" ] || fail "the example exported no $name"
done
sed "s|$scratch/ours|$scratch/more|" "$scratch/ours.json" >"$scratch/more.json"
call "$scratch/example" "$scratch/more.json" 3 2 "$scratch/model"
exits 2 "the example with a directory that is full"
says err "$scratch/model is not an empty directory" "the example with a directory that is full"
[ ! -e "$scratch/more" ] || fail "the example trained before it refused the directory"
call "$scratch/example" "$scratch/small.json"
exits 3 "a job that does not fit"
says err host "a job that does not fit"
[ ! -e "$scratch/small" ] || fail "a job that does not fit left something"
if [ -x "$scratch/prefix/bin/sluice" ]; then
    call "$scratch/prefix/bin/sluice" train "$scratch/theirs.json" --quiet
    exits 0 "the same job by the command"
    for run in ours theirs; do
        losses "$scratch/$run" >"$scratch/$run.bits"
    done
    [ "$(wc -l <"$scratch/ours.bits")" = 6 ] || fail "no losses"
    cmp "$scratch/ours.bits" "$scratch/theirs.bits" || fail "the example's losses are not the command's"
fi
for name in jobs/quickstart models clusters; do
    [ -s "$scratch/prefix/share/sluice/$name.json" ] || fail "$name.json was not installed"
done
finish programs
