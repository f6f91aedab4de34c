/* Words of many quads of a dropout (kernels/dropout_mask.h) at once, for the loops of the CPU. */
#ifndef SLUICE_KERNELS_CPU_DROPOUT_LANES_H
#define SLUICE_KERNELS_CPU_DROPOUT_LANES_H

#include "kernels/dropout_mask.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

/* Words past the end of what is asked for, which a call may write. */
enum { DROPOUT_WORDS_BEYOND = 28 };

/* Writes the words of the quads quad, quad + step, ..., `count` of them, to words[4 * count]. */
static inline void dropout_fill(dropout_place place, uint64_t quad, uint64_t step, uint64_t count,
                                uint32_t *words)
{
#if defined(__AVX512F__)
    /* A lane of 64 bits holds a word of the counter of one quad. Its upper half is of no meaning
     * after the first round: products take only the lower half. */
    const __m512i low = _mm512_set1_epi64(0xffffffff), first = _mm512_set1_epi64(0xD2511F53);
    const __m512i second = _mm512_set1_epi64(0xCD9E8D57);
    const __m512i tops[2] = {_mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0),
                             _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4)};
    const __m512i distance = _mm512_set1_epi64((long long)(8 * step));
    __m512i next = _mm512_set1_epi64((long long)quad);
    for (uint64_t i = 1; i < 8; i++)
        next = _mm512_mask_add_epi64(next, (__mmask8)(0xff << i), next,
                                     _mm512_set1_epi64((long long)step));
    for (uint64_t i = 0; i < count; i += 8, next = _mm512_add_epi64(next, distance)) {
        uint32_t key0 = (uint32_t)place.seed, key1 = (uint32_t)(place.seed >> 32);
        __m512i c0 = next, c2 = _mm512_set1_epi64(place.sequence);
        __m512i c1 = _mm512_or_si512(_mm512_set1_epi64(UINT32_C(0x80000000) | place.site << 8),
                                     _mm512_srli_epi64(next, 32));
        __m512i c3 = _mm512_set1_epi64(place.step);
        for (int round = 0; round < 10; round++) {
            __m512i product0 = _mm512_mul_epu32(c0, first);
            __m512i product1 = _mm512_mul_epu32(c2, second);
            c0 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(product1, 32), c1),
                                  _mm512_set1_epi64(key0));
            c2 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(product0, 32), c3),
                                  _mm512_set1_epi64(key1));
            c1 = product1;
            c3 = product0;
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        __m512i a = _mm512_or_si512(_mm512_and_si512(c0, low), _mm512_slli_epi64(c1, 32));
        __m512i b = _mm512_or_si512(_mm512_and_si512(c2, low), _mm512_slli_epi64(c3, 32));
        __m512i even = _mm512_unpacklo_epi64(a, b), odd = _mm512_unpackhi_epi64(a, b);
        for (int half = 0; half < 2; half++)
            _mm512_storeu_si512(words + 4 * i + 16 * (uint64_t)half,
                                _mm512_permutex2var_epi64(even, tops[half], odd));
    }
#else
#pragma omp simd
    for (uint64_t i = 0; i < count; i++)
        dropout_words(place, quad + i * step, words + 4 * i);
#endif
}

#endif
