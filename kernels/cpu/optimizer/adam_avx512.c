/* The loops of the optimizers for AVX-512 (F, BW, DQ, VL, with FMA and F16C). A vector has sixteen
 * elements. bf16 is rounded with integer operations, because vcvtneps2bf16 flushes subnormals. */
#include <immintrin.h>

#include "kernels/cpu/optimizer/adam_internal.h"

typedef __m512 vec;

/* A vector narrowed to fp16. */
typedef __m256i vec_halves;

enum { VEC_ELEMS = 16, GROUP_VECS = 4, VEC_STREAMS = 1 };

/* Lanes 0..7 and 8..15. */
struct vec_sums {
    __m512d low, high;
};
typedef struct vec_sums vec_sums;

static inline vec vec_set(float value)
{
    return _mm512_set1_ps(value);
}

static inline vec vec_load(const float *source)
{
    return _mm512_loadu_ps(source);
}

static inline void vec_store(float *target, vec value)
{
    _mm512_storeu_ps(target, value);
}

static inline vec widen_bf16(__m256i halves)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

static inline vec vec_load_bf16(const uint16_t *source)
{
    return widen_bf16(_mm256_loadu_si256((const __m256i *)source));
}

static inline vec vec_load_fp16(const uint16_t *source)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)source));
}

/* The upper halves of `rounded`, or of `value` made quiet if that is NaN; the lower halves are
 * 0. */
static inline vec upper_bf16(vec value, __m512i rounded)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    __m512i quiet = _mm512_set1_epi32(0x00400000);
    rounded = _mm512_mask_or_epi32(rounded, is_nan, _mm512_castps_si512(value), quiet);
    return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32((int)0xffff0000)));
}

static inline vec vec_bf16_away(vec value)
{
    __m512i bits = _mm512_castps_si512(value);
    return upper_bf16(value, _mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)));
}

static inline vec vec_bf16_even(vec value)
{
    __m512i bits = _mm512_castps_si512(value);
    __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    rounded = _mm512_mask_add_epi32(rounded, is_odd, rounded, _mm512_set1_epi32(1));
    return upper_bf16(value, rounded);
}

/* The upper halves, in order. The pack instruction works within lanes of 128 bits; the permutation
 * then puts the quarters in order. */
static inline __m512i pack_bf16(vec low, vec high)
{
    __m512i packed = _mm512_packus_epi32(_mm512_srli_epi32(_mm512_castps_si512(low), 16),
                                         _mm512_srli_epi32(_mm512_castps_si512(high), 16));
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed);
}

static inline void vec_store_bf16(uint16_t *target, vec low, vec high)
{
    _mm512_storeu_si512(target, pack_bf16(low, high));
}

static inline void vec_stream_bf16(uint16_t *target, vec low, vec high)
{
    _mm512_stream_si512((__m512i *)target, pack_bf16(low, high));
}

static inline vec_halves vec_fp16_even(vec value)
{
    return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vec vec_widen_fp16(vec_halves halves)
{
    return _mm512_cvtph_ps(halves);
}

static inline void vec_store_halves(uint16_t *target, vec_halves low, vec_halves high)
{
    _mm256_storeu_si256((__m256i *)target, low);
    _mm256_storeu_si256((__m256i *)(target + VEC_ELEMS), high);
}

static inline void vec_stream(float *target, vec value)
{
    _mm512_stream_ps(target, value);
}

static inline void vec_stream_halves(uint16_t *target, vec_halves low, vec_halves high)
{
    __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    _mm512_stream_si512((__m512i *)target, both);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

static inline vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}

static inline vec vec_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}

static inline vec vec_sqrt(vec a)
{
    return _mm512_sqrt_ps(a);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_one_nan(vec value)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    vec quiet = _mm512_castsi512_ps(_mm512_set1_epi32(ADAMI_QUIET_NAN_BITS));
    return _mm512_mask_mov_ps(value, is_nan, quiet);
}

static inline vec vec_step_against(vec direction, vec rate)
{
    vec sign = _mm512_set1_ps(-0.0f);
    vec turned = _mm512_xor_ps(rate, _mm512_andnot_ps(direction, sign)); /* -rate where positive */
    __mmask16 is_moving = _mm512_cmp_ps_mask(direction, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    __mmask16 is_nan = _mm512_cmp_ps_mask(direction, direction, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(_mm512_maskz_mov_ps(is_moving, turned), is_nan, direction);
}

/* A square of an fp32 is exact in fp64, so fused and separate rounding give the same. */
static inline void vec_sums_add(vec_sums *sums, const vec values[1])
{
    __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(values[0]));
    __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(values[0], 1));
    sums->low = _mm512_fmadd_pd(low, low, sums->low);
    sums->high = _mm512_fmadd_pd(high, high, sums->high);
}

static inline void vec_sums_store(const vec_sums *sums, double lanes[ADAMI_SUM_LANES])
{
    _mm512_storeu_pd(lanes, sums->low);
    _mm512_storeu_pd(lanes + 8, sums->high);
}

#include "kernels/cpu/optimizer/adam_body.h"
#include "kernels/cpu/optimizer/adam_siblings_body.h"
#include "kernels/cpu/optimizer/adam_state_avx512.h"
#include "kernels/cpu/optimizer/adam_state_body.h"

const struct adam_variant adami_avx512 = {
    .name = "avx512",
    .update = vector_update,
    .update_packed = vector_update_packed,
    .lion = vector_lion,
    .adagrad = vector_adagrad,
    .copy = vector_copy,
    .close = vector_close,
};
