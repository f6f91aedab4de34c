/* A vector of LANES floats for attention_rows.c: AVX-512, AVX2 with FMA and F16C, or the
 * portable vectors of GCC. The compiler flags of the including file decide. Loads and stores need
 * no alignment and may alias any type. */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_LANES_H
#define SLUICE_KERNELS_CPU_ATTENTION_LANES_H

#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)

enum { LANES = 16 };
typedef __m512 lanes;

static inline lanes lanes_set(float value)
{
    return _mm512_set1_ps(value);
}

static inline lanes lanes_load(const void *source)
{
    return _mm512_loadu_ps(source);
}

static inline void lanes_store(void *target, lanes a)
{
    _mm512_storeu_ps(target, a);
}

static inline lanes lanes_load_bf16(const void *source)
{
    __m256i halves = _mm256_loadu_si256(source);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

static inline lanes lanes_load_fp16(const void *source)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(source));
}

/* a*b + c, rounded once. */
static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* The larger (or smaller) of a and b; b if either is NaN. */
static inline lanes lanes_max(lanes a, lanes b)
{
    return _mm512_max_ps(a, b);
}

static inline lanes lanes_min(lanes a, lanes b)
{
    return _mm512_min_ps(a, b);
}

/* Lanes below `count` come from a, the others from b. */
static inline lanes lanes_first(lanes a, uint64_t count, lanes b)
{
    return _mm512_mask_blend_ps((__mmask16)((1u << count) - 1u), b, a);
}

/* The bits of a, shifted left by 23: an integer in the low 8 bits becomes an exponent. */
static inline lanes lanes_exponent(lanes a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23));
}

/* Rounds to bf16, ties to even, in the upper half of each lane; the lower half is 0. NaN becomes
 * quiet. */
static inline lanes lanes_round_bf16(lanes a)
{
    __m512i bits = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_mask_blend_epi32(nan, up, quiet),
                                                _mm512_set1_epi32((int)0xffff0000)));
}

static inline void lanes_store_bf16(void *target, lanes a)
{
    __m512i bits = _mm512_castps_si512(lanes_round_bf16(a));
    _mm256_storeu_si256(target, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

/* Rounds to fp16, ties to even; a result above 65504 becomes infinity. */
static inline lanes lanes_round_fp16(lanes a)
{
    return _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void lanes_store_fp16(void *target, lanes a)
{
    _mm256_storeu_si256(target, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

enum { LANES = 8 };
typedef __m256 lanes;

static inline lanes lanes_set(float value)
{
    return _mm256_set1_ps(value);
}

static inline lanes lanes_load(const void *source)
{
    return _mm256_loadu_ps(source);
}

static inline void lanes_store(void *target, lanes a)
{
    _mm256_storeu_ps(target, a);
}

static inline lanes lanes_load_bf16(const void *source)
{
    __m256i halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(source));
    return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
}

static inline lanes lanes_load_fp16(const void *source)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(source));
}

static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline lanes lanes_max(lanes a, lanes b)
{
    return _mm256_max_ps(a, b);
}

static inline lanes lanes_min(lanes a, lanes b)
{
    return _mm256_min_ps(a, b);
}

static inline lanes lanes_first(lanes a, uint64_t count, lanes b)
{
    __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i keep = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), index);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(keep));
}

static inline lanes lanes_exponent(lanes a)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23));
}

static inline lanes lanes_round_bf16(lanes a)
{
    __m256i bits = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_blendv_epi8(up, quiet, nan), _mm256_set1_epi32((int)0xffff0000)));
}

static inline void lanes_store_bf16(void *target, lanes a)
{
    __m256i halves = _mm256_srli_epi32(_mm256_castps_si256(lanes_round_bf16(a)), 16);
    __m256i packed = _mm256_packus_epi32(halves, halves);
    packed = _mm256_permute4x64_epi64(packed, 0x08);
    _mm_storeu_si128(target, _mm256_castsi256_si128(packed));
}

static inline lanes lanes_round_fp16(lanes a)
{
    return _mm256_cvtph_ps(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

static inline void lanes_store_fp16(void *target, lanes a)
{
    _mm_storeu_si128(target, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

#else

enum { LANES = 4 };
typedef float lanes __attribute__((vector_size(16)));
typedef uint32_t lane_bits __attribute__((vector_size(16)));

static inline lanes lanes_set(float value)
{
    return (lanes){value, value, value, value};
}

static inline lanes lanes_load(const void *source)
{
    lanes a;
    memcpy(&a, source, sizeof a);
    return a;
}

static inline void lanes_store(void *target, lanes a)
{
    memcpy(target, &a, sizeof a);
}

static inline lanes lanes_load_bf16(const void *source)
{
    uint16_t halves[LANES];
    memcpy(halves, source, sizeof halves);
    return (lanes)((lane_bits){halves[0], halves[1], halves[2], halves[3]} << 16);
}

static inline lanes lanes_load_fp16(const void *source)
{
    uint16_t halves[LANES];
    memcpy(halves, source, sizeof halves);
    return (lanes){fp32_from_fp16(halves[0]), fp32_from_fp16(halves[1]), fp32_from_fp16(halves[2]),
                   fp32_from_fp16(halves[3])};
}

/* Two roundings: the base instruction set may have no fused operation. */
static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return a * b + c;
}

static inline lanes lanes_select(lane_bits mask, lanes a, lanes b)
{
    return (lanes)(((lane_bits)a & mask) | ((lane_bits)b & ~mask));
}

static inline lanes lanes_max(lanes a, lanes b)
{
    return lanes_select((lane_bits)(a > b), a, b);
}

static inline lanes lanes_min(lanes a, lanes b)
{
    return lanes_select((lane_bits)(a < b), a, b);
}

static inline lanes lanes_first(lanes a, uint64_t count, lanes b)
{
    lane_bits limit = {(uint32_t)count, (uint32_t)count, (uint32_t)count, (uint32_t)count};
    return lanes_select((lane_bits)((lane_bits){0, 1, 2, 3} < limit), a, b);
}

static inline lanes lanes_exponent(lanes a)
{
    return (lanes)((lane_bits)a << 23);
}

static inline lanes lanes_round_bf16(lanes a)
{
    lane_bits bits = (lane_bits)a;
    lane_bits up = bits + 0x7fffu + ((bits >> 16) & 1u);
    lane_bits nan = (lane_bits)(a != a);
    return (lanes)(((up & ~nan) | ((bits | 0x400000u) & nan)) & 0xffff0000u);
}

static inline void lanes_store_bf16(void *target, lanes a)
{
    lane_bits bits = (lane_bits)lanes_round_bf16(a) >> 16;
    uint16_t halves[LANES] = {(uint16_t)bits[0], (uint16_t)bits[1], (uint16_t)bits[2],
                              (uint16_t)bits[3]};
    memcpy(target, halves, sizeof halves);
}

static inline void lanes_store_fp16(void *target, lanes a)
{
    uint16_t halves[LANES] = {fp16_from_fp32(a[0]), fp16_from_fp32(a[1]), fp16_from_fp32(a[2]),
                              fp16_from_fp32(a[3])};
    memcpy(target, halves, sizeof halves);
}

static inline lanes lanes_round_fp16(lanes a)
{
    uint16_t halves[LANES];
    lanes_store_fp16(halves, a);
    return lanes_load_fp16(halves);
}

#endif

/* The sum of the lanes, in a fixed order of pairs. */
static inline float lanes_sum(lanes a)
{
    float values[LANES];
    lanes_store(values, a);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            values[i] += values[i + width];
    return values[0];
}

static inline float lanes_largest(lanes a)
{
    float values[LANES];
    lanes_store(values, a);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            values[i] = values[i] > values[i + width] ? values[i] : values[i + width];
    return values[0];
}

#endif
