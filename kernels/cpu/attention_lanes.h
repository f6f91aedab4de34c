/* A vector of LANES floats for attention_rows.c: AVX-512, AVX2 with FMA and F16C, or the portable
 * vectors of GCC. The compiler flags of the including file decide. C's operators work on them lane
 * by lane. Loads and stores need no alignment and may alias any type. The first part of this file
 * is what the sets differ in, the second part is the same for all:
 *
 *   lanes_fma(a, b, c)            a*b + c, rounded once; twice in the base set, which may have no
 *                                 fused operation
 *   lanes_max, lanes_min          the larger (or smaller) of a and b; b if either is NaN
 *   lanes_where_nan(v, a, b)      a where v is NaN, else b
 *   lanes_to_fp16, lanes_of_fp16  narrows to fp16, ties to even, a result above 65504 becomes
 *                                 infinity; widens */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_LANES_H
#define SLUICE_KERNELS_CPU_ATTENTION_LANES_H

#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t lane_bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t lane_halves __attribute__((vector_size(2 * LANES)));

/* Lanes of a where mask is all ones, of b where it is 0. */
static inline lanes lanes_select(lane_bits mask, lanes a, lanes b)
{
    return (lanes)(((lane_bits)a & mask) | ((lane_bits)b & ~mask));
}

#if defined(__AVX512F__)
#include <immintrin.h>

static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline lanes lanes_max(lanes a, lanes b)
{
    return _mm512_max_ps(a, b);
}

static inline lanes lanes_min(lanes a, lanes b)
{
    return _mm512_min_ps(a, b);
}

static inline lanes lanes_where_nan(lanes value, lanes where_nan, lanes otherwise)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_blend_ps(is_nan, otherwise, where_nan);
}

static inline lane_halves lanes_to_fp16(lanes a)
{
    return (lane_halves)_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline lanes lanes_of_fp16(lane_halves halves)
{
    return _mm512_cvtph_ps((__m256i)halves);
}

#elif defined(__AVX2__)
#include <immintrin.h>

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

static inline lanes lanes_where_nan(lanes value, lanes where_nan, lanes otherwise)
{
    return _mm256_blendv_ps(otherwise, where_nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
}

static inline lane_halves lanes_to_fp16(lanes a)
{
    return (lane_halves)_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
}

static inline lanes lanes_of_fp16(lane_halves halves)
{
    return _mm256_cvtph_ps((__m128i)halves);
}

#else

static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return a * b + c;
}

static inline lanes lanes_max(lanes a, lanes b)
{
    return lanes_select((lane_bits)(a > b), a, b);
}

static inline lanes lanes_min(lanes a, lanes b)
{
    return lanes_select((lane_bits)(a < b), a, b);
}

static inline lanes lanes_where_nan(lanes value, lanes where_nan, lanes otherwise)
{
    return lanes_select((lane_bits)(value != value), where_nan, otherwise);
}

static inline lane_halves lanes_to_fp16(lanes a)
{
    return (lane_halves){fp16_from_fp32(a[0]), fp16_from_fp32(a[1]), fp16_from_fp32(a[2]),
                         fp16_from_fp32(a[3])};
}

static inline lanes lanes_of_fp16(lane_halves halves)
{
    return (lanes){fp32_from_fp16(halves[0]), fp32_from_fp16(halves[1]), fp32_from_fp16(halves[2]),
                   fp32_from_fp16(halves[3])};
}

#endif

/* ---- the same for all sets ---- */

static inline lanes lanes_set(float value)
{
    return (lanes)((lane_bits){0} + fp32_bits(value));
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
    lane_halves halves;
    memcpy(&halves, source, sizeof halves);
    return (lanes)(__builtin_convertvector(halves, lane_bits) << 16);
}

static inline lanes lanes_load_fp16(const void *source)
{
    lane_halves halves;
    memcpy(&halves, source, sizeof halves);
    return lanes_of_fp16(halves);
}

/* Lanes below `count` come from a, the others from b. */
static inline lanes lanes_first(lanes a, uint64_t count, lanes b)
{
    static const uint32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    lane_bits number = (lane_bits)lanes_load(numbers), limit = (lane_bits){0} + (uint32_t)count;
    return lanes_select((lane_bits)(number < limit), a, b);
}

/* The bits of a, shifted left by 23: an integer in the low 8 bits becomes an exponent. */
static inline lanes lanes_exponent(lanes a)
{
    return (lanes)((lane_bits)a << 23);
}

/* Rounds to bf16, ties to even, in the upper half of each lane; the lower half is 0. NaN becomes
 * quiet. */
static inline lanes lanes_round_bf16(lanes a)
{
    lane_bits bits = (lane_bits)a, up = bits + 0x7fffu + (bits >> 16 & 1u);
    lanes rounded = lanes_where_nan(a, (lanes)(bits | 0x400000u), (lanes)up);
    return (lanes)((lane_bits)rounded & 0xffff0000u);
}

static inline void lanes_store_bf16(void *target, lanes a)
{
    lane_bits bits = (lane_bits)lanes_round_bf16(a) >> 16;
    lane_halves halves = __builtin_convertvector(bits, lane_halves);
    memcpy(target, &halves, sizeof halves);
}

static inline lanes lanes_round_fp16(lanes a)
{
    return lanes_of_fp16(lanes_to_fp16(a));
}

static inline void lanes_store_fp16(void *target, lanes a)
{
    lane_halves halves = lanes_to_fp16(a);
    memcpy(target, &halves, sizeof halves);
}

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

/* ---- the exponential ---- */

#define EXP_SHIFT  12583039.0f
#define EXP_LOG2E  0x1.715476p+0f
#define EXP_LN2_HI 0x1.62e4p-1f /* 15 bits: n * EXP_LN2_HI is exact */
#define EXP_LN2_LO 0x1.7f7d1cp-20f
#define EXP_CLAMP  88.0f

/* e^x within 2 units in the last place; x is clamped to [-EXP_CLAMP, EXP_CLAMP]. x = n ln 2 + r
 * with |r| <= ln 2 / 2, and e^r = 1 + r + r^2 q(r). q has degree 4 and is fitted by Remez exchange
 * to a relative error of 3.1e-9 (0.05 units in the last place). 2^n is built in the exponent bits:
 * adding EXP_SHIFT = 1.5 * 2^23 + 127 rounds to an integer and leaves n + 127 in the low bits. */
static inline lanes exp_lanes(lanes x)
{
    x = lanes_max(lanes_set(-EXP_CLAMP), x);
    x = lanes_min(lanes_set(EXP_CLAMP), x);
    lanes shifted = lanes_fma(x, lanes_set(EXP_LOG2E), lanes_set(EXP_SHIFT));
    lanes n = shifted - lanes_set(EXP_SHIFT);
    lanes r = lanes_fma(n, lanes_set(-EXP_LN2_HI), x);
    r = lanes_fma(n, lanes_set(-EXP_LN2_LO), r);
    lanes q = lanes_set(0x1.6a23dp-10f);
    q = lanes_fma(q, r, lanes_set(0x1.123a2p-7f));
    q = lanes_fma(q, r, lanes_set(0x1.5558f2p-5f));
    q = lanes_fma(q, r, lanes_set(0x1.555492p-3f));
    q = lanes_fma(q, r, lanes_set(0x1.fffffcp-2f));
    lanes power = lanes_fma(r * r, q, r) + lanes_set(1.0f);
    return power * lanes_exponent(shifted);
}

/* e^x of one number, by the same steps. */
static inline float one_exp(float x)
{
    float values[LANES];
    lanes_store(values, exp_lanes(lanes_set(x)));
    return values[0];
}

#endif
