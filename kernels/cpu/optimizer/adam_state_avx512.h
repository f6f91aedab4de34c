/* The AVX-512 part of the operations that adam_state_body.h needs in addition to the vectors of
 * adam_avx512.c, which includes this file. */
#ifndef SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_STATE_AVX512_H
#define SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_STATE_AVX512_H

#include <immintrin.h>

typedef __m512i vecu;

static inline vecu vecu_set(uint32_t value)
{
    return _mm512_set1_epi32((int)value);
}

static inline vecu vecu_even_numbers(void)
{
    return _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}

static inline vecu vecu_load(const void *source)
{
    return _mm512_loadu_si512(source);
}

static inline void vecu_store(void *target, vecu value)
{
    _mm512_storeu_si512(target, value);
}

static inline void vecu_stream(void *target, vecu value)
{
    _mm512_stream_si512((__m512i *)target, value);
}

static inline vecu vecu_load_bytes(const uint8_t *source)
{
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)source));
}

static inline void vecu_store_bytes(uint8_t *target, vecu halves)
{
    _mm256_storeu_si256((__m256i *)target, _mm512_cvtusepi16_epi8(halves));
}

static inline vecu vecu_of(__m512 value)
{
    return _mm512_castps_si512(value);
}

static inline __m512 vecu_as_fp32(vecu bits)
{
    return _mm512_castsi512_ps(bits);
}

static inline vecu vecu_add(vecu a, vecu b)
{
    return _mm512_add_epi32(a, b);
}

static inline vecu vecu_mul(vecu a, vecu b)
{
    return _mm512_mullo_epi32(a, b);
}

static inline vecu vecu_and(vecu a, vecu b)
{
    return _mm512_and_si512(a, b);
}

static inline vecu vecu_or(vecu a, vecu b)
{
    return _mm512_or_si512(a, b);
}

static inline vecu vecu_xor(vecu a, vecu b)
{
    return _mm512_xor_si512(a, b);
}

static inline vecu vecu_xor3(vecu a, vecu b, vecu c)
{
    return _mm512_ternarylogic_epi32(a, b, c, 0x96);
}

static inline vecu vecu_select(vecu mask, vecu a, vecu b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

static inline vecu vecu_flip(vecu mask, vecu a, vecu b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0x6a);
}

static inline vecu vecu_left(vecu value, int bits)
{
    return _mm512_slli_epi32(value, (unsigned)bits);
}

static inline vecu vecu_right(vecu value, int bits)
{
    return _mm512_srli_epi32(value, (unsigned)bits);
}

/* For each half of 16 bits: 0xffff if its sign is set, else 0. */
static inline vecu vecu_sign_halves(vecu value)
{
    return _mm512_srai_epi16(value, 15);
}

static inline vecu vecu_add_halves(vecu a, vecu b)
{
    return _mm512_add_epi16(a, b);
}

static inline vecu vecu_max(vecu a, vecu b)
{
    return _mm512_max_epu32(a, b);
}

static inline vecu vecu_min(vecu a, vecu b)
{
    return _mm512_min_epu32(a, b);
}

static inline uint32_t vecu_largest(vecu value)
{
    return _mm512_reduce_max_epu32(value);
}

static inline bool vec_any_nan(__m512 a, __m512 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
}

/* Splits the elements of `low` and then `high` into elements 0, 2, ... and 1, 3, ...; vec_join
 * joins them again. */
static inline void vec_part(__m512 low, __m512 high, __m512 *even, __m512 *odd)
{
    __m512i number = vecu_even_numbers();
    *even = _mm512_permutex2var_ps(low, number, high);
    *odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(number, _mm512_set1_epi32(1)), high);
}

static inline void vec_join(__m512 even, __m512 odd, __m512 *low, __m512 *high)
{
    __m512i number = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *low = _mm512_permutex2var_ps(even, number, odd);
    *high = _mm512_permutex2var_ps(even, _mm512_add_epi32(number, _mm512_set1_epi32(8)), odd);
}

#endif
