#!/bin/sh
# check_packs.sh NVCC SOURCE OUT: whether nvcc keeps the packs of the norms' kernels whole. It has split
# stores of 16 bytes into seven of 2 and 4 where it could not follow an index, and no result shows
# that. Compiles rows_norm.cu to PTX in OUT; kernels for aligned rows of 16-bit elements (last template
# argument true) must not access single elements, or pairs of them, in global memory.
set -eu
nvcc=$1 source=$2 out=$3
"$nvcc" -std=c++17 -I"$source" -I"$source/src" -arch=sm_80 -ptx -o "$out/rows_norm.ptx" \
    "$source/kernels/cuda/rows/rows_norm.cu"
awk '
    /\.entry/ {
        name = $0
        is_aligned = name ~ /I10cudai_(bf|fp)16.*Lb1EEv/
        kernels += is_aligned
    }
    is_aligned && /(ld|st)\.global(\.v2)?\.[busf]16/ {
        accesses[name]++
        bad = 1
    }
    END {
        for (name in accesses)
            print accesses[name] " accesses of single elements:" name
        if (kernels < 30) {
            print "only " kernels " kernels for aligned rows were found"
            bad = 1
        }
        exit bad
    }' "$out/rows_norm.ptx"
rm "$out/rows_norm.ptx"
