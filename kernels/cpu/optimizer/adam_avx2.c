/* The loops of the optimizers for AVX2 with FMA and F16C. A vector has eight elements. */
#include <immintrin.h>

#include "kernels/cpu/optimizer/adam_internal.h"

typedef __m256 vec;

/* A vector narrowed to fp16. */
typedef __m128i vec_halves;

enum { VEC_ELEMS = 8, GROUP_VECS = 4, VEC_STREAMS = 1 };

/* Four lanes each, in order. */
struct vec_sums {
    __m256d quarters[4];
};
typedef struct vec_sums vec_sums;

static inline vec vec_set(float value)
{
    return _mm256_set1_ps(value);
}

static inline vec vec_load(const float *source)
{
    return _mm256_loadu_ps(source);
}

static inline void vec_store(float *target, vec value)
{
    _mm256_storeu_ps(target, value);
}

static inline vec widen_bf16(__m128i halves)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

static inline vec vec_load_bf16(const uint16_t *source)
{
    return widen_bf16(_mm_loadu_si128((const __m128i *)source));
}

static inline vec vec_load_fp16(const uint16_t *source)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)source));
}

static inline vec select_nan(vec value, vec where_nan, vec otherwise)
{
    return _mm256_blendv_ps(otherwise, where_nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
}

/* The upper halves of `rounded`, or of `value` made quiet if that is NaN; the lower halves are
 * 0. */
static inline vec upper_bf16(vec value, __m256i rounded)
{
    __m256i quieted = _mm256_or_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x00400000));
    vec chosen = select_nan(value, _mm256_castsi256_ps(quieted), _mm256_castsi256_ps(rounded));
    return _mm256_and_ps(chosen, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
}

static inline vec vec_bf16_away(vec value)
{
    __m256i bits = _mm256_castps_si256(value);
    return upper_bf16(value, _mm256_add_epi32(bits, _mm256_set1_epi32(0x8000)));
}

static inline vec vec_bf16_even(vec value)
{
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    return upper_bf16(value, rounded);
}

/* The upper halves, in order. The pack instruction works within lanes of 128 bits; the permutation
 * then puts the quarters in order. */
static inline __m256i pack_bf16(vec low, vec high)
{
    __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(low), 16),
                                         _mm256_srli_epi32(_mm256_castps_si256(high), 16));
    return _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
}

static inline void vec_store_bf16(uint16_t *target, vec low, vec high)
{
    _mm256_storeu_si256((__m256i *)target, pack_bf16(low, high));
}

static inline void vec_stream_bf16(uint16_t *target, vec low, vec high)
{
    _mm256_stream_si256((__m256i *)target, pack_bf16(low, high));
}

static inline vec_halves vec_fp16_even(vec value)
{
    return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
}

static inline vec vec_widen_fp16(vec_halves halves)
{
    return _mm256_cvtph_ps(halves);
}

static inline void vec_store_halves(uint16_t *target, vec_halves low, vec_halves high)
{
    _mm_storeu_si128((__m128i *)target, low);
    _mm_storeu_si128((__m128i *)(target + VEC_ELEMS), high);
}

static inline void vec_stream(float *target, vec value)
{
    _mm256_stream_ps(target, value);
}

static inline void vec_stream_halves(uint16_t *target, vec_halves low, vec_halves high)
{
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    _mm256_stream_si256((__m256i *)target, both);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

static inline vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}

static inline vec vec_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}

static inline vec vec_sqrt(vec a)
{
    return _mm256_sqrt_ps(a);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vec vec_one_nan(vec value)
{
    vec quiet = _mm256_castsi256_ps(_mm256_set1_epi32(ADAMI_QUIET_NAN_BITS));
    return select_nan(value, quiet, value);
}

static inline vec vec_step_against(vec direction, vec rate)
{
    vec sign = _mm256_set1_ps(-0.0f);
    vec turned = _mm256_xor_ps(rate, _mm256_andnot_ps(direction, sign)); /* -rate where positive */
    vec is_zero = _mm256_cmp_ps(direction, _mm256_setzero_ps(), _CMP_EQ_OQ);
    return select_nan(direction, direction, _mm256_andnot_ps(is_zero, turned));
}

/* A square of an fp32 is exact in fp64, so fused and separate rounding give the same. */
static inline void vec_sums_add(vec_sums *sums, const vec values[2])
{
    for (int part = 0; part < 2; part++) {
        __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(values[part]));
        __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(values[part], 1));
        sums->quarters[2 * part] = _mm256_fmadd_pd(low, low, sums->quarters[2 * part]);
        sums->quarters[2 * part + 1] = _mm256_fmadd_pd(high, high, sums->quarters[2 * part + 1]);
    }
}

static inline void vec_sums_store(const vec_sums *sums, double lanes[ADAMI_SUM_LANES])
{
    for (int quarter = 0; quarter < 4; quarter++)
        _mm256_storeu_pd(lanes + 4 * quarter, sums->quarters[quarter]);
}

#include "kernels/cpu/optimizer/adam_body.h"
#include "kernels/cpu/optimizer/adam_siblings_body.h"
#include "kernels/cpu/optimizer/adam_state_avx2.h"
#include "kernels/cpu/optimizer/adam_state_body.h"

const struct adam_variant adami_avx2 = {
    .name = "avx2",
    .update = vector_update,
    .update_packed = vector_update_packed,
    .lion = vector_lion,
    .adagrad = vector_adagrad,
    .copy = vector_copy,
    .close = vector_close,
};
