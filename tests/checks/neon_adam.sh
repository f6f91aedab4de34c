#!/usr/bin/env bash
# The optimizers' kernels for aarch64: compiled by a cross compiler and tested to the bit under QEMU's
# emulation of the processor.
#
#   neon_adam.sh SOURCE_DIR
#
# Exit 77 where the compiler or the emulator is missing (Debian: gcc-aarch64-linux-gnu
# libc6-dev-arm64-cross qemu-user-static). On an aarch64 machine the suite runs the same tests itself.
set -eu
. "$(dirname "$0")/lib.sh"
source_dir=$1
compiler=${AARCH64_CC:-aarch64-linux-gnu-gcc}
emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
command -v "$compiler" >/dev/null || skip "there is no $compiler"
[ -n "$emulator" ] || skip "there is no qemu-aarch64-static or qemu-aarch64"
make_scratch sluice-neon "${TMPDIR:-/tmp}"
cd "$source_dir"
sources="kernels/cpu/optimizer/*.c
         kernels/reference/*.c src/base/cpu.c src/base/dtype.c src/base/error.c
         src/base/mem.c src/base/rng.c src/base/size.c src/base/stored.c src/base/text.c src/base/utf8.c"
objects=
# shellcheck disable=SC2086 # the names are words on purpose
for file in $sources tests/kernels/test_kernels_adam.c tests/kernels/test_kernels_lion.c; do
    object=$scratch/$(basename "$file" .c).o
    "$compiler" -std=gnu17 -O2 -fopenmp -D_GNU_SOURCE -Wall -Wextra -Wno-unused-parameter -Wshadow -Werror -ffp-contract=off \
        -fno-math-errno -fno-trapping-math -DVARIANT_TABLE=adami_neon '-DVARIANT_NAME="neon"' -Itests/cross -I. -Isrc -c -o "$object" "$file"
    case $file in tests/*) ;; *) objects="$objects $object" ;; esac
done
for test in test_kernels_adam test_kernels_lion; do
    # shellcheck disable=SC2086
    "$compiler" -static -fopenmp -o "$scratch/$test" "$scratch/$test.o" $objects -lm 2>"$scratch/log" ||
        { cat "$scratch/log"; exit 1; }
    SLUICE_ISA=neon "$emulator" "$scratch/$test"
done
