/* The AVX2 part of the operations that adam_state_body.h needs in addition to the vectors of
 * adam_avx2.c, which includes this file. */
#ifndef SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_STATE_AVX2_H
#define SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_STATE_AVX2_H

#include <immintrin.h>

typedef __m256i vecu;

static inline vecu vecu_set(uint32_t value)
{
    return _mm256_set1_epi32((int)value);
}

static inline vecu vecu_even_numbers(void)
{
    return _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
}

static inline vecu vecu_load(const void *source)
{
    return _mm256_loadu_si256((const __m256i *)source);
}

static inline void vecu_store(void *target, vecu value)
{
    _mm256_storeu_si256((__m256i *)target, value);
}

static inline void vecu_stream(void *target, vecu value)
{
    _mm256_stream_si256((__m256i *)target, value);
}

static inline vecu vecu_load_bytes(const uint8_t *source)
{
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)source));
}

static inline void vecu_store_bytes(uint8_t *target, vecu halves)
{
    __m128i low = _mm256_castsi256_si128(halves), high = _mm256_extracti128_si256(halves, 1);
    _mm_storeu_si128((__m128i *)target, _mm_packus_epi16(low, high));
}

static inline vecu vecu_of(__m256 value)
{
    return _mm256_castps_si256(value);
}

static inline __m256 vecu_as_fp32(vecu bits)
{
    return _mm256_castsi256_ps(bits);
}

static inline vecu vecu_add(vecu a, vecu b)
{
    return _mm256_add_epi32(a, b);
}

static inline vecu vecu_mul(vecu a, vecu b)
{
    return _mm256_mullo_epi32(a, b);
}

static inline vecu vecu_and(vecu a, vecu b)
{
    return _mm256_and_si256(a, b);
}

static inline vecu vecu_or(vecu a, vecu b)
{
    return _mm256_or_si256(a, b);
}

static inline vecu vecu_xor(vecu a, vecu b)
{
    return _mm256_xor_si256(a, b);
}

static inline vecu vecu_xor3(vecu a, vecu b, vecu c)
{
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}

static inline vecu vecu_select(vecu mask, vecu a, vecu b)
{
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}

static inline vecu vecu_flip(vecu mask, vecu a, vecu b)
{
    return _mm256_xor_si256(_mm256_and_si256(mask, a), b);
}

static inline vecu vecu_left(vecu value, int bits)
{
    return _mm256_slli_epi32(value, bits);
}

static inline vecu vecu_right(vecu value, int bits)
{
    return _mm256_srli_epi32(value, bits);
}

/* For each half of 16 bits: 0xffff if its sign is set, else 0. */
static inline vecu vecu_sign_halves(vecu value)
{
    return _mm256_srai_epi16(value, 15);
}

static inline vecu vecu_add_halves(vecu a, vecu b)
{
    return _mm256_add_epi16(a, b);
}

static inline vecu vecu_max(vecu a, vecu b)
{
    return _mm256_max_epu32(a, b);
}

static inline vecu vecu_min(vecu a, vecu b)
{
    return _mm256_min_epu32(a, b);
}

static inline uint32_t vecu_largest(vecu value)
{
    __m128i most = _mm_max_epu32(_mm256_castsi256_si128(value), _mm256_extracti128_si256(value, 1));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(most);
}

static inline bool vec_any_nan(__m256 a, __m256 b)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0;
}

/* Splits the elements of `low` and then `high` into elements 0, 2, ... and 1, 3, ...; vec_join
 * joins them again. */
static inline void vec_part(__m256 low, __m256 high, __m256 *even, __m256 *odd)
{
    __m256d first = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0x88));
    __m256d second = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0xdd));
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(first, 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(second, 0xd8));
}

static inline void vec_join(__m256 even, __m256 odd, __m256 *low, __m256 *high)
{
    __m256 first = _mm256_unpacklo_ps(even, odd), second = _mm256_unpackhi_ps(even, odd);
    *low = _mm256_permute2f128_ps(first, second, 0x20);
    *high = _mm256_permute2f128_ps(first, second, 0x31);
}

#endif
