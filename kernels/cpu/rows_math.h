/* The arithmetic of the row ops on blocks of fp32: conversion in and out, sums, exp and sigmoid.
 *
 * Rows are processed in blocks of ROWS_BLOCK elements, which stay in the first-level cache. A block
 * of a 16-bit type is widened into a buffer on the stack; an fp32 block is used in place. So each
 * op is written once. `#pragma omp simd` says that element i depends on element i alone, so ops in
 * place are vectorized too, although input and output may be the same memory.
 *
 * Multiply-adds are fused only where the code calls `fused`, and the order of a sum does not depend
 * on the vector width, so every instruction set gives the same bits. Only rows_variant.c includes
 * this file. Its functions are pure, may run on any thread, and allocate nothing. */
#ifndef SLUICE_KERNELS_CPU_ROWS_MATH_H
#define SLUICE_KERNELS_CPU_ROWS_MATH_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

enum {
    /* elements: 2 KiB of fp32; five such buffers leave room in a cache of 32 KiB */
    ROWS_BLOCK = 512,
    ROWS_LANES = 32, /* accumulators of a sum; element i goes to lane i % 32 */
    /* distance from the address that a pass reads to the one that it prefetches */
    ROWS_AHEAD_BYTES = 4096,
    ROWS_TEAM_ELEMS = 16384, /* below this, waking other threads costs more than the work */
};

#if defined(__AVX512F__)
enum { ROWS_VECTOR_FLOATS = 16 };
#elif defined(__AVX2__)
enum { ROWS_VECTOR_FLOATS = 8 };
#else
enum { ROWS_VECTOR_FLOATS = 4 };
#endif
typedef float rows_vector
    __attribute__((vector_size(ROWS_VECTOR_FLOATS * 4), aligned(4), may_alias));

/* a * b + c, rounded once. AVX2 with FMA, AVX-512 and NEON have an instruction for it. If the
 * compiler may not use one, it calls libm, which is slow but gives the same bits. */
static inline float fused(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

/* Prefetches the lines that lie ROWS_AHEAD_BYTES after [at, at + bytes), because the prefetcher of
 * the processor stops at each 4 KiB page. Past the end of an operand this does nothing. */
static inline void fetch_ahead(const void *at, size_t bytes)
{
    uintptr_t line = (uintptr_t)at + ROWS_AHEAD_BYTES;
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const void *)(line + i));
}

static inline size_t block_elems(uint64_t count, uint64_t at)
{
    return count - at < ROWS_BLOCK ? (size_t)(count - at) : (size_t)ROWS_BLOCK;
}

static inline int team(int threads, uint64_t elems)
{
    return elems < ROWS_TEAM_ELEMS ? 1 : threads;
}

/* ---- 16-bit types: the bits of base/dtype.h without branches; NaN becomes quiet ---- */

static inline float widen_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t rest = (uint32_t)(half & 0x7fffu) << 13;
    uint32_t finite = fp32_bits(fp32_from_bits(rest) * 0x1p112f); /* exact, subnormals too */
    uint32_t special = rest == 0x0f800000u ? 0x7f800000u : rest | 0x7fc00000u;
    return fp32_from_bits(sign | (rest >= 0x0f800000u ? special : finite));
}

static inline uint16_t narrow_fp16(float value)
{
    uint32_t bits = fp32_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    uint32_t normal = (rounded >> 13) - (112u << 10);
    uint32_t subnormal = fp32_bits(fp32_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
    result = magnitude >= 0x477ff000u ? 0x7c00u : result; /* 65520 and above */
    result = magnitude > 0x7f800000u ? nan : result;
    return (uint16_t)(sign | result);
}

#if defined(__AVX512F__)
static inline __m256i narrow_fp16_512(__m512 value)
{
    return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline __m256i narrow_bf16_512(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value), one = _mm512_set1_epi32(1);
    __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    __m512i rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    rounded = _mm512_mask_add_epi32(rounded, is_odd, rounded, one);
    rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
#elif defined(__AVX2__)
static inline __m256i narrow_fp16_256(__m256 first, __m256 second)
{
    return _mm256_set_m128i(_mm256_cvtps_ph(second, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(first, _MM_FROUND_TO_NEAREST_INT));
}

static inline __m256i narrow_bf16_256(__m256 first, __m256 second)
{
    __m256 values[2] = {first, second};
    __m256i upper[2];
    bool has_nan = _mm256_movemask_ps(_mm256_cmp_ps(first, second, _CMP_UNORD_Q)) != 0;
    for (int k = 0; k < 2; k++) {
        __m256i bits = _mm256_castps_si256(values[k]);
        __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        if (__builtin_expect(has_nan, 0)) {
            __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
            __m256 is_nan = _mm256_cmp_ps(values[k], values[k], _CMP_UNORD_Q);
            rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan));
        }
        upper[k] = _mm256_srli_epi32(rounded, 16);
    }
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(upper[0], upper[1]), 0xd8);
}
#endif

/* The fp16 conversions of the hardware give the same bits as the two functions above for every
 * pattern: NaN becomes quiet and its payload is cut or extended, and subnormals are kept for any
 * MXCSR. These functions convert whole vectors from the beginning of half[0..n) or x[0..n), and
 * return the number of elements that they converted. */
static inline size_t widen_fp16_vectors(const uint16_t *half, float *x, size_t n)
{
    size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(x + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(half + i))));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(half + i))));
#else
#endif
    return i;
}

static inline size_t narrow_fp16_vectors(const float *x, uint16_t *half, size_t n)
{
    size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(half + i), narrow_fp16_512(_mm512_loadu_ps(x + i)));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(half + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#else
#endif
    return i;
}

static inline uint16_t narrow_bf16(float value)
{
    uint32_t bits = fp32_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* narrow_bf16 on vectors; otherwise like narrow_fp16_vectors. Compilers generate twice as many
 * instructions for the plain loop, and rounding was then more than half of the time of a norm. */
static inline size_t narrow_bf16_vectors(const float *x, uint16_t *half, size_t n)
{
    size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(half + i), narrow_bf16_512(_mm512_loadu_ps(x + i)));
#elif defined(__AVX2__)
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(half + i),
                            narrow_bf16_256(_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i + 8)));
#else
#endif
    return i;
}

/* Elements [at, at + n) of `source` as fp32: in place, or widened into buffer [ROWS_BLOCK]. */
static inline const float *load_block(enum dtype type, const void *source, uint64_t at, size_t n,
                                      float *buffer)
{
    if (type == DTYPE_FP32)
        return (const float *)source + at;
    const uint16_t *half = (const uint16_t *)source + at;
    if (type == DTYPE_BF16) {
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            buffer[i] = fp32_from_bf16(half[i]);
    } else {
        size_t done = widen_fp16_vectors(half, buffer, n);
#pragma omp simd
        for (size_t i = done; i < n; i++)
            buffer[i] = widen_fp16(half[i]);
    }
    return buffer;
}

/* The address where a result block is computed: in `target` itself, or in `buffer` for
 * store_block. */
static inline float *store_place(enum dtype type, void *target, uint64_t at, float *buffer)
{
    return type == DTYPE_FP32 ? (float *)target + at : buffer;
}

/* Completes a block that was computed at store_place: rounds to nearest even for a 16-bit type. */
static inline void store_block(enum dtype type, void *target, uint64_t at, size_t n,
                               const float *buffer)
{
    if (type == DTYPE_FP32)
        return;
    uint16_t *half = (uint16_t *)target + at;
    if (type == DTYPE_BF16) {
        size_t done = narrow_bf16_vectors(buffer, half, n);
#pragma omp simd
        for (size_t i = done; i < n; i++)
            half[i] = narrow_bf16(buffer[i]);
    } else {
        size_t done = narrow_fp16_vectors(buffer, half, n);
#pragma omp simd
        for (size_t i = done; i < n; i++)
            half[i] = narrow_fp16(buffer[i]);
    }
}

/* Stores one element, rounded to `type`. */
static inline void store_one(enum dtype type, void *target, uint64_t at, float value)
{
    if (type == DTYPE_FP32)
        ((float *)target)[at] = value;
    else
        ((uint16_t *)target)[at] = type == DTYPE_BF16 ? narrow_bf16(value) : narrow_fp16(value);
}

/* ---- sums: 32 lanes, fp32 within a block and double across blocks ---- */

struct row_sum {
    double lane[ROWS_LANES];
};

/* Adds x[0..n) to the sum; n <= ROWS_BLOCK. */
static inline void row_sum_add(struct row_sum *sum, const float *x, size_t n)
{
    enum { VECTORS = ROWS_LANES / ROWS_VECTOR_FLOATS };
    rows_vector acc[VECTORS];
    float lane[ROWS_LANES];
    size_t i = 0;
    for (int k = 0; k < VECTORS; k++)
        acc[k] = (rows_vector){0};
    for (; i + ROWS_LANES <= n; i += ROWS_LANES)
        for (int k = 0; k < VECTORS; k++)
            acc[k] += *(const rows_vector *)(x + i + (size_t)k * ROWS_VECTOR_FLOATS);
    memcpy(lane, acc, sizeof lane);
    for (size_t k = 0; i + k < n; k++)
        lane[k] += x[i + k];
#pragma omp simd
    for (int k = 0; k < ROWS_LANES; k++)
        sum->lane[k] += (double)lane[k];
}

/* The sum of the lanes in a fixed tree. Destroys *sum. */
static inline double row_sum_fold(struct row_sum *sum)
{
    for (int width = ROWS_LANES / 2; width > 0; width /= 2)
        for (int k = 0; k < width; k++)
            sum->lane[k] += sum->lane[k + width];
    return sum->lane[0];
}

/* ---- elementary functions ---- */

/* 1.5 * 2^23. If a number of magnitude below 2^22 is added to it, the sum is rounded to an integer,
 * which its low bits hold. This needs no conversion, which would be undefined for NaN. */
#define ROUNDING_SHIFT 0x1.8p23f

/* e^x for x <= 89, within 1 ulp (tests measure it). The result is 0 if e^x is below 2^-126 (x <
 * -87.3) and infinity from 2^127.5 on (x > 88.3), so no subnormal number is produced. NaN stays
 * NaN; e^0 is exactly 1.
 *
 * x = n ln2 + r with |r| <= ln2/2, and e^r = 1 + r + r^2 P(r). P interpolates (e^r - 1 - r) /
 * r^2 at the five Chebyshev nodes of that range (relative error of e^r 9.8e-9, a sixth of an
 * ulp). n comes from adding ROUNDING_SHIFT + 127: the low bits of the sum are n + 127. Shifted
 * left by 23 they are the bits of 2^n, and the bits above them are lost; n = -127 gives 0, n =
 * 128 infinity. */
static inline float exp_below(float x)
{
    const float log2e = 0x1.715476p+0f, ln2_high = 0x1.62e43p-1f, ln2_low = -0x1.05c61p-29f;
    const float shift = ROUNDING_SHIFT + 127.0f;
    const float lowest = -0x1.5d589ep+6f; /* the last x with e^x >= 2^-126 */
    x = x < lowest ? -88.0f : x;
    float shifted = fused(x, log2e, shift), n = shifted - shift;
    float r = fused(n, -ln2_low, fused(n, -ln2_high, x));
    float p = 0x1.6d10fcp-10f;
    p = fused(p, r, 0x1.120b62p-7f);
    p = fused(p, r, 0x1.55551ap-5f);
    p = fused(p, r, 0x1.5554dep-3f);
    p = fused(p, r, 0.5f);
    p = fused(fused(p, r, 1.0f), r, 1.0f);
    return p * fp32_from_bits(fp32_bits(shifted) << 23);
}

/* e^x for every x. */
static inline float exp_one(float x)
{
    return exp_below(x > 89.0f ? 89.0f : x);
}

/* tanh(x), within 3 ulp. With e = e^-2|x| - 1, tanh|x| is -e / (2 + e). As in exp_below, e^-2|x| is
 * 2^n e^r; the polynomial gives e^r - 1 without cancellation. e is -1 from |x| = 40 on. */
static inline float tanh_one(float x)
{
    const float log2e = 0x1.715476p+0f, ln2_high = 0x1.62e43p-1f, ln2_low = -0x1.05c61p-29f;
    const float shift = ROUNDING_SHIFT + 127.0f;
    float twice = x < 0.0f ? 2.0f * x : -2.0f * x;
    twice = twice < -80.0f ? -80.0f : twice;
    float shifted = fused(twice, log2e, shift), n = shifted - shift;
    float r = fused(n, -ln2_low, fused(n, -ln2_high, twice));
    float p = 0x1.6d10fcp-10f;
    p = fused(p, r, 0x1.120b62p-7f);
    p = fused(p, r, 0x1.55551ap-5f);
    p = fused(p, r, 0x1.5554dep-3f);
    p = fused(p, r, 0.5f);
    float power = fp32_from_bits(fp32_bits(shifted) << 23);
    float e = fused(power, fused(p * r, r, r), power - 1.0f);
    float size = -e / (2.0f + e);
    return x < 0.0f ? -size : size;
}

/* factor / (1 + e^-x). The factor (1 + tanh u) / 2 of GELU is sigmoid(2u): unlike the form with
 * tanh, it has no cancellation in its left tail. */
static inline float sigmoid_times(float factor, float x)
{
    return factor / (1.0f + exp_one(-x));
}

#endif
