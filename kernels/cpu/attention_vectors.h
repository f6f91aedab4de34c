/* The vectors of attention_rows.c and attention_dots.c: those of vectors.h with more operations.
 * The base set is the portable vectors of GCC. First come the parts in which the sets differ, then
 * those that are the same for all:
 *
 *   vec_fma(a, b, c)     rounded twice in the base set, which may have no fused operation
 *   vec_max, vec_min     the larger (or smaller) of a and b; b if either is NaN */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_VECTORS_H
#define SLUICE_KERNELS_CPU_ATTENTION_VECTORS_H

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/vectors.h"

/* Lanes of a where mask is all ones, of b where it is 0. */
static inline vec vec_select(vecu mask, vec a, vec b)
{
    return (vec)(((vecu)a & mask) | ((vecu)b & ~mask));
}

#if defined(__AVX512F__)

static inline vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

static inline vec vec_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}

#elif defined(__AVX2__)

static inline vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

static inline vec vec_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}

#else

static inline vec vec_fma(vec a, vec b, vec c)
{
    return a * b + c;
}

static inline vec vec_max(vec a, vec b)
{
    return vec_select((vecu)(a > b), a, b);
}

static inline vec vec_min(vec a, vec b)
{
    return vec_select((vecu)(a < b), a, b);
}

static inline vec vec_where_nan(vec value, vec where_nan, vec otherwise)
{
    return vec_select((vecu)(value != value), where_nan, otherwise);
}

static inline vec_halves vec_fp16_even(vec a)
{
    return (vec_halves){fp16_from_fp32(a[0]), fp16_from_fp32(a[1]), fp16_from_fp32(a[2]),
                        fp16_from_fp32(a[3])};
}

static inline vec vec_widen_fp16(vec_halves halves)
{
    return (vec){fp32_from_fp16(halves[0]), fp32_from_fp16(halves[1]), fp32_from_fp16(halves[2]),
                 fp32_from_fp16(halves[3])};
}

#endif

/* ---- the same for all sets ---- */

/* Lanes below `count` come from a, the others from b. */
static inline vec vec_first(vec a, uint64_t count, vec b)
{
    static const uint32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vecu number = (vecu)vec_load(numbers), limit = (vecu){0} + (uint32_t)count;
    return vec_select((vecu)(number < limit), a, b);
}

/* The vector of columns [col, col + VEC_ELEMS) with b in those outside of `range`. */
static inline vec vec_within(vec a, attention_range range, uint64_t col, vec b)
{
    if (range.begin <= col && col + VEC_ELEMS <= range.end)
        return a;
    uint64_t begin = range.begin > col ? range.begin - col : 0;
    uint64_t end = range.end > col ? range.end - col : 0;
    return vec_first(b, begin < VEC_ELEMS ? begin : VEC_ELEMS,
                     vec_first(a, end < VEC_ELEMS ? end : VEC_ELEMS, b));
}

/* The bits of a, shifted left by 23: an integer in the low 8 bits becomes an exponent. */
static inline vec vec_exponent(vec a)
{
    return (vec)((vecu)a << 23);
}

static inline void vec_store_bf16(void *target, vec a)
{
    vecu bits = (vecu)vec_bf16_even(a) >> 16;
    vec_halves halves = __builtin_convertvector(bits, vec_halves);
    memcpy(target, &halves, sizeof halves);
}

static inline vec vec_round_fp16(vec a)
{
    return vec_widen_fp16(vec_fp16_even(a));
}

static inline void vec_store_fp16(void *target, vec a)
{
    vec_halves halves = vec_fp16_even(a);
    memcpy(target, &halves, sizeof halves);
}

/* The sum of the elements, in a fixed order of pairs. */
static inline float vec_sum(vec a)
{
    float values[VEC_ELEMS];
    vec_store(values, a);
    for (int width = VEC_ELEMS / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            values[i] += values[i + width];
    return values[0];
}

static inline float vec_largest(vec a)
{
    float values[VEC_ELEMS];
    vec_store(values, a);
    for (int width = VEC_ELEMS / 2; width > 0; width /= 2)
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
static inline vec vec_exp(vec x)
{
    x = vec_max(vec_set(-EXP_CLAMP), x);
    x = vec_min(vec_set(EXP_CLAMP), x);
    vec shifted = vec_fma(x, vec_set(EXP_LOG2E), vec_set(EXP_SHIFT));
    vec n = shifted - vec_set(EXP_SHIFT);
    vec r = vec_fma(n, vec_set(-EXP_LN2_HI), x);
    r = vec_fma(n, vec_set(-EXP_LN2_LO), r);
    vec q = vec_set(0x1.6a23dp-10f);
    q = vec_fma(q, r, vec_set(0x1.123a2p-7f));
    q = vec_fma(q, r, vec_set(0x1.5558f2p-5f));
    q = vec_fma(q, r, vec_set(0x1.555492p-3f));
    q = vec_fma(q, r, vec_set(0x1.fffffcp-2f));
    vec power = vec_fma(r * r, q, r) + vec_set(1.0f);
    return power * vec_exponent(shifted);
}

/* e^x of one number, by the same steps. */
static inline float one_exp(float x)
{
    float values[VEC_ELEMS];
    vec_store(values, vec_exp(vec_set(x)));
    return values[0];
}

/* tanh x, with an absolute error of some 1e-7. */
static inline vec vec_tanh(vec x)
{
    vec one = vec_set(1.0f);
    return one - vec_set(2.0f) / (vec_exp(x + x) + one);
}

/* Caps the scores that a block's rows see: scale * score becomes soft_cap * tanh(scale * score /
 * soft_cap). With prob_grads, which may be NULL, the distance of a gradient from delta[r] is
 * multiplied by the derivative of that, so that what follows needs to know nothing of the cap. */
static inline void cap_scores(const score_block *block, float *prob_grads, const float *delta)
{
    if (block->soft_cap == 0.0f)
        return;
    vec inner = vec_set(block->scale / block->soft_cap), one = vec_set(1.0f);
    vec outer = vec_set(block->soft_cap / block->scale);
    for (uint64_t row = 0; row < block->rows; row++) {
        attention_range seen = block_columns(block, row);
        for (uint64_t col = seen.begin / VEC_ELEMS * VEC_ELEMS; col < seen.end; col += VEC_ELEMS) {
            float *scores = block->scores + row * block->stride + col;
            vec t = vec_tanh(vec_load(scores) * inner);
            vec_store(scores, t * outer);
            if (prob_grads) {
                float *grads = prob_grads + row * block->stride + col;
                vec base = vec_set(delta[row]);
                vec_store(grads, vec_fma(vec_load(grads) - base, one - t * t, base));
            }
        }
    }
}

/* p, of row `row` and columns [col, col + VEC_ELEMS), times what is kept. */
static inline vec keep_elems(const score_block *block, uint64_t row, uint64_t col, vec p)
{
    return block->kept ? p * vec_load(block->kept + row * block->stride + col) : p;
}

/* The gradients of what is kept, in place. */
static inline void drop_grads(const score_block *block, float *prob_grads)
{
    for (uint64_t row = 0; block->kept && row < block->rows; row++) {
        attention_range seen = block_columns(block, row);
        uint64_t at = row * block->stride;
        for (uint64_t col = seen.begin / VEC_ELEMS * VEC_ELEMS; col < seen.end; col += VEC_ELEMS)
            vec_store(prob_grads + at + col,
                      vec_load(prob_grads + at + col) * vec_load(block->kept + at + col));
    }
}

/* Scales what was summed before down to the new largest score, and returns that. */
static inline float raise_largest(const softmax_state *state, uint64_t row, float largest)
{
    float before = state->row_max[row];
    if (!(largest > before))
        return before;
    float factor = before == -INFINITY ? 0.0f : one_exp(before - largest);
    float *output = state->output + row * state->output_stride;
    for (uint64_t i = 0; i < state->output_stride; i += VEC_ELEMS)
        vec_store(output + i, vec_load(output + i) * vec_set(factor));
    state->row_sum[row] *= factor;
    state->row_max[row] = largest;
    return largest;
}

#endif
