/* Shuffles of AVX-512 registers that the packing of operands shares. The including file is compiled
 * with AVX-512. */
#ifndef SLUICE_KERNELS_CPU_TRANSPOSE_H
#define SLUICE_KERNELS_CPU_TRANSPOSE_H

#include <immintrin.h>

/* 16 by 16 elements of 32 bits, transposed in place. */
static inline __attribute__((always_inline)) void transpose(__m512i r[16])
{
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i a = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
        __m512i b = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
        __m512i c = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
        __m512i d = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
        t[j] = _mm512_shuffle_i32x4(a, b, 0x88);
        t[8 + j] = _mm512_shuffle_i32x4(a, b, 0xdd);
        t[4 + j] = _mm512_shuffle_i32x4(c, d, 0x88);
        t[12 + j] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        r[i] = t[i];
}

/* Puts the 32 elements of 16 bits of two registers side by side as pairs: those of columns [0,16)
 * into *low, the others into *high. */
static inline __attribute__((always_inline)) void interleave(__m512i even, __m512i odd,
                                                             __m512i *low, __m512i *high)
{
    const __m512i pick_low =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i pick_high = _mm512_add_epi16(pick_low, _mm512_set1_epi16(16));
    *low = _mm512_permutex2var_epi16(even, pick_low, odd);
    *high = _mm512_permutex2var_epi16(even, pick_high, odd);
}

#endif
