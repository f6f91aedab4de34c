/* The loops of the optimizers for aarch64 with NEON, a part of every such processor. A vector has
 * four elements.
 *
 * The bits are those of the reference. NEON's division, square root and fused multiply-add follow
 * IEEE and keep subnormals (the process leaves FPCR unchanged: nearest even, no flush to zero).
 * FCVT, which follows IEEE too, narrows and widens fp16; it keeps the upper bits of a NaN, like the
 * reference. bf16 is rounded with integer operations, so no BF16 extension is needed.
 *
 * Why not SVE: memory is the limit of a pass, and four lanes a cycle of NEON are more than a core
 * can load. Vectors whose length is only known at run time would need a body of their own. There
 * are no non-temporal stores: cores of this kind notice lines that are written as a whole and do
 * not read them first, and STNP is a hint that they may ignore. */
#include <arm_neon.h>

#include "kernels/cpu/optimizer/adam_internal.h"

typedef float32x4_t vec;

/* A vector narrowed to fp16. */
typedef uint16x4_t vec_halves;

enum { VEC_ELEMS = 4, GROUP_VECS = 4, VEC_STREAMS = 0 };

/* Two lanes each, in order. */
struct vec_sums {
    float64x2_t pairs[8];
};
typedef struct vec_sums vec_sums;

static inline vec vec_set(float value)
{
    return vdupq_n_f32(value);
}

static inline vec vec_load(const float *source)
{
    return vld1q_f32(source);
}

static inline void vec_store(float *target, vec value)
{
    vst1q_f32(target, value);
}

static inline vec vec_widen_fp16(vec_halves halves)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(halves));
}

static inline vec vec_load_bf16(const uint16_t *source)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(source), 16));
}

static inline vec vec_load_fp16(const uint16_t *source)
{
    return vec_widen_fp16(vld1_u16(source));
}

/* All ones for a number, zero for NaN. */
static inline uint32x4_t is_number(vec value)
{
    return vceqq_f32(value, value);
}

/* The upper halves of `rounded`, or of `value` made quiet if that is NaN; the lower halves are
 * 0. */
static inline vec upper_bf16(vec value, uint32x4_t rounded)
{
    uint32x4_t quieted = vorrq_u32(vreinterpretq_u32_f32(value), vdupq_n_u32(0x00400000));
    uint32x4_t chosen = vbslq_u32(is_number(value), rounded, quieted);
    return vreinterpretq_f32_u32(vandq_u32(chosen, vdupq_n_u32(0xffff0000)));
}

static inline vec vec_bf16_away(vec value)
{
    uint32x4_t bits = vreinterpretq_u32_f32(value);
    return upper_bf16(value, vaddq_u32(bits, vdupq_n_u32(0x8000)));
}

static inline vec vec_bf16_even(vec value)
{
    uint32x4_t bits = vreinterpretq_u32_f32(value);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    return upper_bf16(value, vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd));
}

static inline void vec_store_bf16(uint16_t *target, vec low, vec high)
{
    vst1q_u16(target, vuzp2q_u16(vreinterpretq_u16_f32(low), vreinterpretq_u16_f32(high)));
}

static inline void vec_stream_bf16(uint16_t *target, vec low, vec high)
{
    vec_store_bf16(target, low, high);
}

static inline vec_halves vec_fp16_even(vec value)
{
    return vreinterpret_u16_f16(vcvt_f16_f32(value));
}

static inline void vec_store_halves(uint16_t *target, vec_halves low, vec_halves high)
{
    vst1q_u16(target, vcombine_u16(low, high));
}

static inline void vec_stream(float *target, vec value)
{
    vec_store(target, value);
}

static inline void vec_stream_halves(uint16_t *target, vec_halves low, vec_halves high)
{
    vec_store_halves(target, low, high);
}

static inline vec vec_mul(vec a, vec b)
{
    return vmulq_f32(a, b);
}

static inline vec vec_add(vec a, vec b)
{
    return vaddq_f32(a, b);
}

static inline vec vec_div(vec a, vec b)
{
    return vdivq_f32(a, b);
}

static inline vec vec_sqrt(vec a)
{
    return vsqrtq_f32(a);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return vfmaq_f32(c, a, b);
}

static inline vec vec_one_nan(vec value)
{
    vec quiet = vreinterpretq_f32_u32(vdupq_n_u32(ADAMI_QUIET_NAN_BITS));
    return vbslq_f32(is_number(value), value, quiet);
}

static inline vec vec_step_against(vec direction, vec rate)
{
    uint32x4_t sign = vdupq_n_u32(0x80000000);
    uint32x4_t flip = vbicq_u32(sign, vreinterpretq_u32_f32(direction)); /* where positive */
    uint32x4_t turned = veorq_u32(vreinterpretq_u32_f32(rate), flip);
    uint32x4_t moved = vbicq_u32(turned, vceqzq_f32(direction));
    return vbslq_f32(is_number(direction), vreinterpretq_f32_u32(moved), direction);
}

/* A square of an fp32 is exact in fp64, so fused and separate rounding give the same. */
static inline void vec_sums_add(vec_sums *sums, const vec values[4])
{
    for (int part = 0; part < 4; part++) {
        float64x2_t low = vcvt_f64_f32(vget_low_f32(values[part]));
        float64x2_t high = vcvt_high_f64_f32(values[part]);
        sums->pairs[2 * part] = vfmaq_f64(sums->pairs[2 * part], low, low);
        sums->pairs[2 * part + 1] = vfmaq_f64(sums->pairs[2 * part + 1], high, high);
    }
}

static inline void vec_sums_store(const vec_sums *sums, double lanes[ADAMI_SUM_LANES])
{
    for (int pair = 0; pair < 8; pair++)
        vst1q_f64(lanes + 2 * pair, sums->pairs[pair]);
}

#include "kernels/cpu/optimizer/adam_body.h"
#include "kernels/cpu/optimizer/adam_siblings_body.h"

const struct adam_variant adami_neon = {
    .name = "neon",
    .update = vector_update,
    .lion = vector_lion,
    .adagrad = vector_adagrad,
    .copy = vector_copy,
    .close = vector_close,
};
