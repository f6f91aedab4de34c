/* The loops of Adam on packed state over vectors; included by the files of the instruction sets after
 * adam_body.h and adam_state_avx2.h or adam_state_avx512.h, which define, beside what adam_body.h lists,
 *
 *   vecu                               VEC_ELEMS numbers of 32 bits: vecu_add, vecu_mul, ...
 *   vecu_load, vecu_store              the same bytes; no alignment needed
 *   vecu_load_bytes, vecu_store_bytes  2 * VEC_ELEMS bytes to and from as many numbers of 16 bits
 *   vecu_select(mask, a, b)            bits of a where mask is 1, else of b
 *   vecu_largest                       the largest of the numbers, unsigned
 *   vec_part, vec_join                 two vectors to their elements of even and of odd number; back
 *   vec_any_nan(a, b)                  whether an element of either is NaN
 *
 * A step takes 2 * VEC_ELEMS elements, those of even and those of odd number in one vector each: widening
 * 16-bit streams and packing them again then takes shifts and masks alone, where order would take
 * shuffles, which one port has to do. fp32 streams pay for it with two shuffles each way.
 *
 * Formats are arguments that are constants at each call, so that the compiler makes one loop for each
 * combination; the gradient's type and the L2 term are branches that always go one way. Codes need the
 * block's largest magnitude first: new values wait in two arrays on the stack (2 KiB, in the cache) until
 * the block's end. */
#ifndef SLUICE_KERNELS_CPU_ADAM_STATE_BODY_H
#define SLUICE_KERNELS_CPU_ADAM_STATE_BODY_H

#include <assert.h>

#include "kernels/cpu/adam_body.h"
#include "kernels/cpu/adam_state_internal.h"

enum { STATE_STEP = 2 * VEC_ELEMS }; /* elements */

static_assert(TILE_SCALE_ELEMS % STATE_STEP == 0, "blocks are whole steps");

/* STATE_STEP elements by the parity of their number. */
struct vec_pair {
    vec even, odd;
};
typedef struct vec_pair vec_pair;

/* Where codes wait for their block's scale. */
struct vec_waiting {
    float values[TILE_SCALE_ELEMS]; /* for each step the even ones, then the odd ones */
    vecu largest;                   /* bits of magnitudes */
};
typedef struct vec_waiting vec_waiting;

/* ---- loads and stores ---- */

ADAM_INLINE vec_pair pair_of_words(vecu words)
{
    vec_pair pair = {vecu_as_fp32(vecu_left(words, 16)),
                     vecu_as_fp32(vecu_and(words, vecu_set(0xffff0000u)))};
    return pair;
}

/* The lower 16 bits of `even`, which has no others, and the upper 16 bits of `odd`. */
ADAM_INLINE vecu words_of(vecu even, vecu odd)
{
    return vecu_select(vecu_set(0xffff0000u), odd, even);
}

ADAM_INLINE vec_pair pair_load_fp32(const float *source)
{
    vec_pair pair;
    vec_part(vec_load(source), vec_load(source + VEC_ELEMS), &pair.even, &pair.odd);
    return pair;
}

ADAM_INLINE void pair_store_fp32(float *target, vec_pair pair)
{
    vec low, high;
    vec_join(pair.even, pair.odd, &low, &high);
    vec_store(target, low);
    vec_store(target + VEC_ELEMS, high);
}

ADAM_INLINE vec_pair pair_load_as(const void *source, enum dtype type, uint64_t i)
{
    if (type == DTYPE_BF16)
        return pair_of_words(vecu_load((const uint16_t *)source + i));
    if (type == DTYPE_FP32)
        return pair_load_fp32((const float *)source + i);
    const uint16_t *halves = (const uint16_t *)source + i;
    vec_pair pair;
    vec_part(vec_load_fp16(halves), vec_load_fp16(halves + VEC_ELEMS), &pair.even, &pair.odd);
    return pair;
}

/* The codes of block `at`, and its scale. */
ADAM_INLINE uint8_t *block_codes(void *stream, uint64_t at)
{
    return (uint8_t *)stream + at / TILE_CODE_BLOCK_ELEMS * TILE_CODE_BLOCK_BYTES +
           at % TILE_CODE_BLOCK_ELEMS;
}

ADAM_INLINE float *block_scale(void *stream, uint64_t at)
{
    char *scales =
        (char *)stream + at / TILE_CODE_BLOCK_ELEMS * TILE_CODE_BLOCK_BYTES + TILE_CODE_BLOCK_ELEMS;
    return (float *)scales + at % TILE_CODE_BLOCK_ELEMS / TILE_SCALE_ELEMS;
}

ADAM_INLINE vec decode_vector(vecu code, vec scale, uint32_t base)
{
    vec shifted = vecu_as_fp32(vecu_add(vecu_left(code, ADAMI_CODE_SHIFT), vecu_set(base)));
    return vec_mul(vec_add(shifted, vecu_as_fp32(vecu_set(base ^ 0x80000000u))), scale);
}

ADAM_INLINE vec decode_signed(vecu code, vec scale)
{
    vecu sign = vecu_left(vecu_and(code, vecu_set(ADAMI_CODE_SIGN)), 24);
    vec magnitude =
        decode_vector(vecu_and(code, vecu_set(ADAMI_CODE_M_TOP)), scale, ADAMI_CODE_M_BASE);
    return vecu_as_fp32(vecu_xor(vecu_of(magnitude), sign));
}

/* Elements i, ... of a moment, in the block at `block`. */
ADAM_INLINE vec_pair load_moment(void *stream, enum tile_format format, bool is_signed,
                                 uint64_t block, uint64_t i, vec scale)
{
    if (format == TILE_FP32)
        return pair_load_fp32((const float *)stream + i);
    if (format == TILE_BF16)
        return pair_of_words(vecu_load((const uint16_t *)stream + i));
    vecu codes = vecu_load_bytes(block_codes(stream, block) + (i - block));
    vecu even = vecu_and(codes, vecu_set(0xffff)), odd = vecu_right(codes, 16);
    vec_pair pair;
    pair.even =
        is_signed ? decode_signed(even, scale) : decode_vector(even, scale, ADAMI_CODE_V_BASE);
    pair.odd = is_signed ? decode_signed(odd, scale) : decode_vector(odd, scale, ADAMI_CODE_V_BASE);
    return pair;
}

/* random: of even and odd elements, in the lower 16 bits, with nothing above them. */
ADAM_INLINE void store_moment(void *stream, enum tile_format format, uint64_t block, uint64_t i,
                              vec_pair pair, vecu even_random, vecu odd_random,
                              vec_waiting *waiting)
{
    if (format == TILE_FP32) {
        pair_store_fp32((float *)stream + i, pair);
    } else if (format == TILE_BF16) {
        vecu even = vecu_right(vecu_add(vecu_of(pair.even), even_random), 16);
        vecu odd = vecu_add(vecu_of(pair.odd), odd_random);
        vecu_store((uint16_t *)stream + i, words_of(even, odd));
    } else {
        vecu magnitude = vecu_set(0x7fffffffu);
        vecu largest = vecu_max(vecu_and(vecu_of(pair.even), magnitude),
                                vecu_and(vecu_of(pair.odd), magnitude));
        waiting->largest = vecu_max(waiting->largest, largest);
        vec_store(waiting->values + (i - block), pair.even);
        vec_store(waiting->values + (i - block) + VEC_ELEMS, pair.odd);
    }
}

ADAM_INLINE vec_pair load_master(const adam_packed_args *args, bool is_split, uint64_t i)
{
    if (!is_split)
        return pair_load_fp32((const float *)args->master + i);
    vecu low = vecu_load((const uint16_t *)args->master + i);
    vecu copy = vecu_load((const uint16_t *)args->params + i);
    vecu even_low = vecu_right_signed(vecu_left(low, 16), 16);
    vecu odd_low = vecu_right_signed(low, 16);
    vec_pair pair = {
        vecu_as_fp32(vecu_add(vecu_left(copy, 16), even_low)),
        vecu_as_fp32(vecu_add(vecu_and(copy, vecu_set(0xffff0000u)), odd_low)),
    };
    return pair;
}

/* A NaN in `pair` is ADAMI_QUIET_NAN_BITS, which the working copy's rounding leaves a NaN. */
ADAM_INLINE void store_master(const adam_packed_args *args, bool is_split, enum dtype param_type,
                              uint64_t i, vec_pair pair)
{
    if (is_split)
        vecu_store((uint16_t *)args->master + i,
                   words_of(vecu_and(vecu_of(pair.even), vecu_set(0xffff)),
                            vecu_left(vecu_of(pair.odd), 16)));
    else
        pair_store_fp32((float *)args->master + i, pair);
    if (param_type == DTYPE_BF16) {
        vecu half = vecu_set(0x8000);
        vecu even = vecu_right(vecu_add(vecu_of(pair.even), half), 16);
        vecu_store((uint16_t *)args->params + i, words_of(even, vecu_add(vecu_of(pair.odd), half)));
    } else if (param_type == DTYPE_FP32) {
        pair_store_fp32((float *)args->params + i, pair);
    } else {
        vec low, high;
        vec_join(pair.even, pair.odd, &low, &high);
        vec_store_halves((uint16_t *)args->params + i, vec_fp16_even(low), vec_fp16_even(high));
    }
}

/* ---- random bits and codes ---- */

/* x: number of the element plus the rounding's first word. */
ADAM_INLINE vecu mix_vector(vecu x, vecu second)
{
    x = vecu_mul(vecu_xor(x, vecu_right(x, 16)), vecu_set(ADAMI_MIX_FIRST));
    x = vecu_mul(vecu_xor3(x, vecu_right(x, 15), second), vecu_set(ADAMI_MIX_SECOND));
    return vecu_xor(x, vecu_right(x, 16));
}

ADAM_INLINE vecu encode_vector(vec value, vec inverse, bool is_signed, vecu random)
{
    uint32_t base = is_signed ? ADAMI_CODE_M_BASE : ADAMI_CODE_V_BASE;
    vecu bits = vecu_of(value), magnitude = vecu_and(bits, vecu_set(0x7fffffffu));
    vec scaled = vec_fma(vecu_as_fp32(magnitude), inverse, vecu_as_fp32(vecu_set(base)));
    vecu rounded = vecu_add(vecu_of(scaled), vecu_or(vecu_left(random, 4), vecu_set(8)));
    vecu code = vecu_sub(vecu_right(rounded, ADAMI_CODE_SHIFT), vecu_set(base >> ADAMI_CODE_SHIFT));
    if (is_signed) {
        vecu sign = vecu_and(vecu_right(bits, 24), vecu_set(ADAMI_CODE_SIGN));
        return vecu_or(vecu_min(code, vecu_set(ADAMI_CODE_M_TOP)), sign);
    }
    vecu least = vecu_min(magnitude, vecu_set(1));
    return vecu_min(vecu_max(code, least), vecu_set(ADAMI_CODE_V_TOP));
}

/* The block's scale and codes from the values that wait. x: as for mix_vector, of the first step. */
ADAM_INLINE void store_codes(void *stream, bool is_signed, uint64_t block,
                             const vec_waiting *waiting, vecu x, vecu second)
{
    uint8_t *codes = block_codes(stream, block);
    float scale = adami_block_scale(vecu_largest(waiting->largest),
                                    is_signed ? ADAMI_CODE_M_SCALE : ADAMI_CODE_V_SCALE);
    *block_scale(stream, block) = scale;
    if (!(scale > 0)) {
        memset(codes, 0, TILE_SCALE_ELEMS);
        return;
    }
    vec inverse = vec_set(1.0f / scale);
    for (int n = 0; n < TILE_SCALE_ELEMS; n += STATE_STEP) {
        vecu even_random = mix_vector(x, second);
        vecu odd_random = mix_vector(vecu_add(x, vecu_set(1)), second);
        if (is_signed) {
            even_random = vecu_and(even_random, vecu_set(0xffff));
            odd_random = vecu_and(odd_random, vecu_set(0xffff));
        } else {
            even_random = vecu_right(even_random, 16);
            odd_random = vecu_right(odd_random, 16);
        }
        vec even = vec_load(waiting->values + n), odd = vec_load(waiting->values + n + VEC_ELEMS);
        vecu even_code = encode_vector(even, inverse, is_signed, even_random);
        vecu odd_code = encode_vector(odd, inverse, is_signed, odd_random);
        vecu_store_bytes(codes + n, vecu_or(even_code, vecu_left(odd_code, 16)));
        x = vecu_add(x, vecu_set(STATE_STEP));
    }
}

/* ---- a block ---- */

/* m, v and the weight of one vector. */
ADAM_INLINE vec update_vector(const struct vec_scalars *s, bool has_l2, vec weight, vec grad,
                              vec *m, vec *v)
{
    grad = vec_mul(grad, s->grad_scale);
    if (has_l2)
        grad = vec_fma(s->l2, weight, grad);
    *m = vec_fma(s->beta1, *m, vec_mul(s->one_minus_beta1, grad));
    *v = vec_fma(s->beta2, *v, vec_mul(vec_mul(s->one_minus_beta2, grad), grad));
    vec denominator = vec_fma(vec_sqrt(*v), s->correction2, s->epsilon);
    return vec_fma(s->minus_step, vec_div(*m, denominator), vec_mul(weight, s->decay));
}

ADAM_INLINE void pair_one_nan(vec_pair *pair)
{
    pair->even = vec_one_nan(pair->even);
    pair->odd = vec_one_nan(pair->odd);
}

struct state_formats {
    bool is_split;
    enum dtype param_type;
    enum tile_format m, v;
};

/* TILE_SCALE_ELEMS elements from `block` on. */
ADAM_INLINE void packed_block(const adam_packed_args *args, const struct vec_scalars *s,
                              const adami_rounding *rounding, bool has_l2, uint64_t block,
                              const struct state_formats format)
{
    vec_waiting new_m, new_v;
    vec m_scale = s->decay, v_scale = s->decay; /* of codes alone */
    new_m.largest = new_v.largest = vecu_set(0);
    if (format.m == TILE_INT8)
        m_scale = vec_set(*block_scale(args->m, block));
    if (format.v == TILE_INT8)
        v_scale = vec_set(*block_scale(args->v, block));
    const vecu second = vecu_set(rounding->second);
    const vecu start =
        vecu_add(vecu_set(rounding->elem + rounding->first + (uint32_t)block), vecu_even_numbers());
    vecu x = start;
    for (uint64_t i = block; i < block + TILE_SCALE_ELEMS; i += STATE_STEP) {
        vec_pair weight = load_master(args, format.is_split, i);
        vec_pair grad = pair_load_as(args->grads, args->grad_type, i);
        vec_pair m = load_moment(args->m, format.m, true, block, i, m_scale);
        vec_pair v = load_moment(args->v, format.v, false, block, i, v_scale);
        weight.even = update_vector(s, has_l2, weight.even, grad.even, &m.even, &v.even);
        weight.odd = update_vector(s, has_l2, weight.odd, grad.odd, &m.odd, &v.odd);
        /* A NaN in m or v makes one of the weight. */
        if (__builtin_expect(vec_any_nan(weight.even, weight.odd), 0)) {
            pair_one_nan(&weight);
            pair_one_nan(&m);
            pair_one_nan(&v);
        }
        vecu even = vecu_set(0), odd = vecu_set(0);
        if (format.m == TILE_BF16 || format.v == TILE_BF16) {
            even = mix_vector(x, second);
            odd = mix_vector(vecu_add(x, vecu_set(1)), second);
            x = vecu_add(x, vecu_set(STATE_STEP));
        }
        store_moment(args->m, format.m, block, i, m, vecu_and(even, vecu_set(0xffff)),
                     vecu_and(odd, vecu_set(0xffff)), &new_m);
        store_moment(args->v, format.v, block, i, v, vecu_right(even, 16), vecu_right(odd, 16),
                     &new_v);
        store_master(args, format.is_split, format.param_type, i, weight);
    }
    if (format.m == TILE_INT8)
        store_codes(args->m, true, block, &new_m, start, second);
    if (format.v == TILE_INT8)
        store_codes(args->v, false, block, &new_v, start, second);
}

/* ---- choice of the loop ---- */

ADAM_INLINE void packed_blocks(const adam_packed_args *args, const adami_scalars *scalars,
                               const adami_rounding *rounding, uint64_t begin, uint64_t end,
                               const struct state_formats format)
{
    const struct vec_scalars s = broadcast_scalars(scalars);
    const bool has_l2 = scalars->l2 != 0;
    for (uint64_t block = begin; block < end; block += TILE_SCALE_ELEMS)
        packed_block(args, &s, rounding, has_l2, block, format);
}

ADAM_INLINE void packed_master(const adam_packed_args *args, const adami_scalars *scalars,
                               const adami_rounding *rounding, uint64_t begin, uint64_t end,
                               enum tile_format m, enum tile_format v)
{
    const struct state_formats split = {true, DTYPE_BF16, m, v}, fp32 = {false, DTYPE_FP32, m, v};
    const struct state_formats bf16 = {false, DTYPE_BF16, m, v}, fp16 = {false, DTYPE_FP16, m, v};
    if (tile_master_is_split(args->streams))
        packed_blocks(args, scalars, rounding, begin, end, split);
    else if (args->param_type == DTYPE_FP32)
        packed_blocks(args, scalars, rounding, begin, end, fp32);
    else if (args->param_type == DTYPE_BF16)
        packed_blocks(args, scalars, rounding, begin, end, bf16);
    else
        packed_blocks(args, scalars, rounding, begin, end, fp16);
}

ADAM_INLINE void packed_second(const adam_packed_args *args, const adami_scalars *scalars,
                               const adami_rounding *rounding, uint64_t begin, uint64_t end,
                               enum tile_format m)
{
    enum tile_format v = tile_stream_format(args->streams, 2);
    if (v == TILE_FP32)
        packed_master(args, scalars, rounding, begin, end, m, TILE_FP32);
    else if (v == TILE_BF16)
        packed_master(args, scalars, rounding, begin, end, m, TILE_BF16);
    else
        packed_master(args, scalars, rounding, begin, end, m, TILE_INT8);
}

static void vector_update_packed(const adam_packed_args *args, const adami_scalars *scalars,
                                 const adami_rounding *rounding, uint64_t begin, uint64_t end)
{
    uint64_t whole_end = begin + (end - begin) / TILE_SCALE_ELEMS * TILE_SCALE_ELEMS;
    enum tile_format m = tile_stream_format(args->streams, 1);
    if (m == TILE_FP32)
        packed_second(args, scalars, rounding, begin, whole_end, TILE_FP32);
    else if (m == TILE_BF16)
        packed_second(args, scalars, rounding, begin, whole_end, TILE_BF16);
    else
        packed_second(args, scalars, rounding, begin, whole_end, TILE_INT8);
    adami_update_packed(args, scalars, rounding, whole_end, end);
}

#endif
