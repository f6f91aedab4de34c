/* The vectors of the optimizers' loops (adam_body.h, adam_state_body.h), for the instruction set
 * that the flags of the compiler name: AVX-512 (F, BW, DQ, VL, with FMA and F16C), AVX2 (with FMA
 * and F16C), or NEON.
 *
 * vectors.h has the vectors and what other loops share. The first part of this file is what the
 * sets differ in, the second part is the same for all:
 *
 *   vec_sqrt                            correctly rounded
 *   vec_fp64_fma(a, b, c)               a * b + c of fp64, rounded once
 *   vec_low_fp64, vec_high_fp64         half of the elements as fp64
 *   pack_bf16(low, high)                the upper halves of the elements of both, in order
 *   join_halves(low, high)              both, in order
 *   vecu_stream                         a non-temporal store, to an address that is a multiple of a
 *                                       vector's bytes; not called if VEC_STREAMS is 0
 * Only for the packed state, which NEON has no loop for:
 *   vecu_max, vecu_min, vecu_largest    unsigned; vecu_largest is the largest element
 *   vecu_store_bytes                    2 * VEC_ELEMS numbers of 16 bits as bytes, at most 255
 *   vec_any_nan(a, b)                   true if an element of either is NaN
 *   vec_part, vec_join                  split two vectors into even and odd elements; join them
 *
 * bf16 is rounded with integer operations: AVX-512's vcvtneps2bf16 flushes subnormals, and NEON's
 * needs an extension.
 *
 * NEON, a part of every aarch64 processor, gives the same bits: its division, square root and fused
 * multiply-add follow IEEE and keep subnormals (the process leaves FPCR unchanged: nearest even, no
 * flush to zero). FCVT, which follows IEEE too, narrows and widens fp16; it keeps the upper bits of
 * a NaN, like the reference. Why not SVE: memory is the limit of a pass, and four lanes a cycle of
 * NEON are more than a core can load. Vectors whose length is only known at run time would need a
 * body of their own. NEON has no non-temporal stores here: cores of this kind notice lines that are
 * written as a whole and do not read them first, and STNP is a hint that they may ignore. */
#ifndef SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_VECTORS_H
#define SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_VECTORS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/optimizer/adam_internal.h"
#include "kernels/cpu/vectors.h"

enum { VEC_STREAMS = VEC_ELEMS > 4 }; /* NEON has none; see above */

typedef double vec_fp64 __attribute__((vector_size(4 * VEC_ELEMS)));
/* numbers of 16 bits that fill a vector, and as many bytes */
typedef uint16_t vec_words __attribute__((vector_size(4 * VEC_ELEMS)));
typedef int16_t vec_signed_words __attribute__((vector_size(4 * VEC_ELEMS)));
typedef uint8_t vec_bytes __attribute__((vector_size(2 * VEC_ELEMS)));

#if defined(__AVX512F__)

static inline vec vec_sqrt(vec a)
{
    return _mm512_sqrt_ps(a);
}

static inline vec_fp64 vec_fp64_fma(vec_fp64 a, vec_fp64 b, vec_fp64 c)
{
    return _mm512_fmadd_pd(a, b, c);
}

static inline vec_fp64 vec_low_fp64(vec value)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(value));
}

static inline vec_fp64 vec_high_fp64(vec value)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1));
}

/* The pack instruction works within lanes of 128 bits; the permutation then puts the quarters in
 * order. */
static inline vecu pack_bf16(vec low, vec high)
{
    __m512i packed = _mm512_packus_epi32((__m512i)((vecu)low >> 16), (__m512i)((vecu)high >> 16));
    return (vecu)_mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed);
}

static inline vecu join_halves(vec_halves low, vec_halves high)
{
    return (vecu)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)low), (__m256i)high, 1);
}

static inline void vecu_stream(void *target, vecu value)
{
    _mm512_stream_si512((__m512i *)target, (__m512i)value);
}

static inline vecu vecu_max(vecu a, vecu b)
{
    return (vecu)_mm512_max_epu32((__m512i)a, (__m512i)b);
}

static inline vecu vecu_min(vecu a, vecu b)
{
    return (vecu)_mm512_min_epu32((__m512i)a, (__m512i)b);
}

static inline uint32_t vecu_largest(vecu value)
{
    return _mm512_reduce_max_epu32((__m512i)value);
}

static inline void vecu_store_bytes(uint8_t *target, vecu words)
{
    _mm256_storeu_si256((__m256i *)target, _mm512_cvtusepi16_epi8((__m512i)words));
}

static inline bool vec_any_nan(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
}

static inline void vec_part(vec low, vec high, vec *even, vec *odd)
{
    __m512i number = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(low, number, high);
    *odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(number, _mm512_set1_epi32(1)), high);
}

static inline void vec_join(vec even, vec odd, vec *low, vec *high)
{
    __m512i number = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *low = _mm512_permutex2var_ps(even, number, odd);
    *high = _mm512_permutex2var_ps(even, _mm512_add_epi32(number, _mm512_set1_epi32(8)), odd);
}

#elif defined(__AVX2__)

static inline vec vec_sqrt(vec a)
{
    return _mm256_sqrt_ps(a);
}

static inline vec_fp64 vec_fp64_fma(vec_fp64 a, vec_fp64 b, vec_fp64 c)
{
    return _mm256_fmadd_pd(a, b, c);
}

static inline vec_fp64 vec_low_fp64(vec value)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(value));
}

static inline vec_fp64 vec_high_fp64(vec value)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(value, 1));
}

/* As for AVX-512. */
static inline vecu pack_bf16(vec low, vec high)
{
    __m256i packed = _mm256_packus_epi32((__m256i)((vecu)low >> 16), (__m256i)((vecu)high >> 16));
    return (vecu)_mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
}

static inline vecu join_halves(vec_halves low, vec_halves high)
{
    return (vecu)_mm256_inserti128_si256(_mm256_castsi128_si256((__m128i)low), (__m128i)high, 1);
}

static inline void vecu_stream(void *target, vecu value)
{
    _mm256_stream_si256((__m256i *)target, (__m256i)value);
}

static inline vecu vecu_max(vecu a, vecu b)
{
    return (vecu)_mm256_max_epu32((__m256i)a, (__m256i)b);
}

static inline vecu vecu_min(vecu a, vecu b)
{
    return (vecu)_mm256_min_epu32((__m256i)a, (__m256i)b);
}

static inline uint32_t vecu_largest(vecu value)
{
    __m256i all = (__m256i)value;
    __m128i most = _mm_max_epu32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(most);
}

static inline void vecu_store_bytes(uint8_t *target, vecu words)
{
    __m256i all = (__m256i)words;
    __m128i low = _mm256_castsi256_si128(all), high = _mm256_extracti128_si256(all, 1);
    _mm_storeu_si128((__m128i *)target, _mm_packus_epi16(low, high));
}

static inline bool vec_any_nan(vec a, vec b)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0;
}

static inline void vec_part(vec low, vec high, vec *even, vec *odd)
{
    __m256d first = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0x88));
    __m256d second = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0xdd));
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(first, 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(second, 0xd8));
}

static inline void vec_join(vec even, vec odd, vec *low, vec *high)
{
    __m256 first = _mm256_unpacklo_ps(even, odd), second = _mm256_unpackhi_ps(even, odd);
    *low = _mm256_permute2f128_ps(first, second, 0x20);
    *high = _mm256_permute2f128_ps(first, second, 0x31);
}

#else
#include <arm_neon.h>

static inline vec vec_sqrt(vec a)
{
    return vsqrtq_f32(a);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return vfmaq_f32(c, a, b);
}

static inline vec_fp64 vec_fp64_fma(vec_fp64 a, vec_fp64 b, vec_fp64 c)
{
    return vfmaq_f64(c, a, b);
}

static inline vec vec_where_nan(vec value, vec where_nan, vec otherwise)
{
    return vbslq_f32(vceqq_f32(value, value), otherwise, where_nan);
}

static inline vec_halves vec_fp16_even(vec value)
{
    return vreinterpret_u16_f16(vcvt_f16_f32(value));
}

static inline vec vec_widen_fp16(vec_halves halves)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(halves));
}

static inline vec_fp64 vec_low_fp64(vec value)
{
    return vcvt_f64_f32(vget_low_f32(value));
}

static inline vec_fp64 vec_high_fp64(vec value)
{
    return vcvt_high_f64_f32(value);
}

static inline vecu pack_bf16(vec low, vec high)
{
    return (vecu)vuzp2q_u16((vec_words)low, (vec_words)high);
}

static inline vecu join_halves(vec_halves low, vec_halves high)
{
    return (vecu)vcombine_u16(low, high);
}

static inline void vecu_stream(void *target, vecu value)
{
    memcpy(target, &value, sizeof value);
}
#endif

/* ---- the same for all sets ---- */

/* Every NaN becomes ADAMI_QUIET_NAN_BITS. */
static inline vec vec_one_nan(vec value)
{
    return vec_where_nan(value, (vec)vecu_set(ADAMI_QUIET_NAN_BITS), value);
}

/* Rounded to bf16, still as fp32: ties away from zero, like bf16_working_copy. */
static inline vec vec_bf16_away(vec value)
{
    return upper_bf16(value, (vecu)value + 0x8000u);
}

/* minus_rate where direction > 0, -minus_rate where it is < 0, +0 where it is 0, else NaN. */
static inline vec vec_step_against(vec direction, vec minus_rate)
{
    vecu turned = (vecu)minus_rate ^ ((vecu)direction & 0x80000000u);
    vecu is_moving = (vecu)(direction != 0.0f);
    return vec_where_nan(direction, direction, (vec)(turned & is_moving));
}

/* 0, 2, 4, ... */
static inline vecu vecu_even_numbers(void)
{
    static const uint32_t numbers[16] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    return vecu_load(numbers);
}

/* The partial sums of a block, as for adam_variant.close: ADAMI_SUM_LANES lanes, in order. */
struct vec_sums {
    vec_fp64 parts[2 * ADAMI_SUM_LANES / VEC_ELEMS];
};
typedef struct vec_sums vec_sums;

/* A square of an fp32 is exact in fp64: a fused addition gives the bits of two operations, and the
 * loop is 10 to 20% faster with it. */
static inline void vec_sums_add(vec_sums *sums, const vec values[ADAMI_SUM_LANES / VEC_ELEMS])
{
    for (int i = 0; i < ADAMI_SUM_LANES / VEC_ELEMS; i++) {
        vec_fp64 low = vec_low_fp64(values[i]), high = vec_high_fp64(values[i]);
        sums->parts[2 * i] = vec_fp64_fma(low, low, sums->parts[2 * i]);
        sums->parts[2 * i + 1] = vec_fp64_fma(high, high, sums->parts[2 * i + 1]);
    }
}

#endif
