/* The loops of Adam on packed state, over the vectors of adam_vectors.h. adam_variant.c includes
 * it.
 *
 * A step takes 2 * VEC_ELEMS elements, with the even and the odd elements in one vector each. Then
 * widening 16-bit streams and packing them again only needs shifts and masks; elements in order
 * would need shuffles, which run on a single port. In exchange, fp32 streams need two shuffles in
 * each direction.
 *
 * Formats are arguments that are constants at each call, so the compiler makes one loop for each
 * combination. The type of the gradient and the L2 term are branches that always go the same way.
 * Codes need the largest magnitude of the block first, so new values wait in two arrays on the
 * stack (2 KiB, in the cache) until the end of the block. */
#ifndef SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_STATE_BODY_H
#define SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_STATE_BODY_H

#include "kernels/cpu/optimizer/adam_body.h"
#include "kernels/cpu/optimizer/adam_state_internal.h"

enum { STATE_STEP = 2 * VEC_ELEMS }; /* elements */

static_assert(TILE_SCALE_ELEMS % STATE_STEP == 0, "blocks are whole steps");

/* STATE_STEP elements, divided by the parity of their number. */
struct vec_pair {
    vec even, odd;
};
typedef struct vec_pair vec_pair;

/* New values of a block, which wait until the scale of the block is known. */
struct vec_waiting {
    float values[TILE_SCALE_ELEMS]; /* for each step first the even elements, then the odd ones */
    vecu largest;                   /* the largest magnitudes so far, as bits */
};
typedef struct vec_waiting vec_waiting;

/* ---- loads and stores ---- */

ADAM_INLINE vec_pair pair_of_words(vecu words)
{
    vec_pair pair = {(vec)(words << 16), (vec)(words & 0xffff0000u)};
    return pair;
}

/* The lower 16 bits of `low` combined with the upper 16 bits of `high`. */
ADAM_INLINE vecu words_of(vecu low, vecu high)
{
    return (low & 0x0000ffffu) | (high & 0xffff0000u);
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

/* Decodes the even or the odd elements. codes: one number of 16 bits for each element, with the
 * code in its lower eight bits; even elements are the lower halves of the 32-bit lanes. */
ADAM_INLINE vec decode_vector(vecu codes, bool is_odd, bool is_signed, vec scale)
{
    uint32_t top = is_signed ? ADAMI_CODE_M_TOP : ADAMI_CODE_V_TOP;
    uint32_t base = is_signed ? ADAMI_CODE_M_BASE : ADAMI_CODE_V_BASE;
    vecu code = codes << (is_odd ? ADAMI_CODE_SHIFT - 16 : ADAMI_CODE_SHIFT);
    vec shifted = (vec)((code & top << ADAMI_CODE_SHIFT) + base);
    vec value = (shifted - fp32_from_bits(base)) * scale;
    if (!is_signed)
        return value;
    vecu sign = codes << (is_odd ? 8 : 24) & 0x80000000u;
    return (vec)((vecu)value ^ sign);
}

/* Loads the elements of a step of a moment, from i on; the block begins at `block`. */
ADAM_INLINE vec_pair load_moment(void *stream, enum tile_format format, bool is_signed,
                                 uint64_t block, uint64_t i, vec scale)
{
    if (format == TILE_FP32)
        return pair_load_fp32((const float *)stream + i);
    if (format == TILE_BF16)
        return pair_of_words(vecu_load((const uint16_t *)stream + i));
    vec_bytes bytes;
    memcpy(&bytes, adami_codes_at(stream, block) + (i - block), sizeof bytes);
    vecu codes = (vecu) __builtin_convertvector(bytes, vec_words);
    vec_pair pair = {decode_vector(codes, false, is_signed, scale),
                     decode_vector(codes, true, is_signed, scale)};
    return pair;
}

/* Stores the elements of a step of a moment. even_random and odd_random have the random bits in
 * their lower 16 bits and zeros above. */
ADAM_INLINE void store_moment(void *stream, enum tile_format format, uint64_t block, uint64_t i,
                              vec_pair pair, vecu even_random, vecu odd_random,
                              vec_waiting *waiting)
{
    if (format == TILE_FP32) {
        pair_store_fp32((float *)stream + i, pair);
    } else if (format == TILE_BF16) {
        vecu even = ((vecu)pair.even + even_random) >> 16, odd = (vecu)pair.odd + odd_random;
        vecu_store((uint16_t *)stream + i, words_of(even, odd));
    } else {
        vecu largest = vecu_max((vecu)pair.even & 0x7fffffffu, (vecu)pair.odd & 0x7fffffffu);
        waiting->largest = vecu_max(waiting->largest, largest);
        vec_store(waiting->values + (i - block), pair.even);
        vec_store(waiting->values + (i - block) + VEC_ELEMS, pair.odd);
    }
}

ADAM_INLINE vec_pair load_master(const update_args *args, bool is_split, uint64_t i)
{
    if (!is_split)
        return pair_load_fp32((const float *)args->master + i);
    vecu low = vecu_load((const uint16_t *)args->master + i);
    vecu copy = vecu_load((const uint16_t *)args->params + i);
    /* master_join: the upper half is one less if the lower half counts as negative. */
    vec_words sign = (vec_words)((vec_signed_words)low >> 15);
    vecu high = (vecu)((vec_words)copy + sign);
    vec_pair pair = {(vec)words_of(low, high << 16), (vec)words_of(low >> 16, high)};
    return pair;
}

/* Stores the master and its working copy. A NaN in `pair` has the bits ADAMI_QUIET_NAN_BITS, which
 * stay a NaN when the working copy is rounded. */
ADAM_INLINE void store_master(const update_args *args, bool is_split, enum dtype param_type,
                              bool is_streamed, uint64_t i, vec_pair pair)
{
    if (is_split)
        vecu_store((uint16_t *)args->master + i, words_of((vecu)pair.even, (vecu)pair.odd << 16));
    else
        pair_store_fp32((float *)args->master + i, pair);
    if (param_type == DTYPE_BF16) {
        vecu even = ((vecu)pair.even + 0x8000u) >> 16;
        vecu words = words_of(even, (vecu)pair.odd + 0x8000u);
        store_vector((uint16_t *)args->params + i, words, is_streamed);
    } else if (param_type == DTYPE_FP32) {
        pair_store_fp32((float *)args->params + i, pair);
    } else {
        vec low, high;
        vec_join(pair.even, pair.odd, &low, &high);
        vecu_store((uint16_t *)args->params + i,
                   join_halves(vec_fp16_even(low), vec_fp16_even(high)));
    }
}

/* ---- random bits and codes ---- */

/* Mixes the random bits. x: the number of the element plus the first word of the rounding. */
ADAM_INLINE vecu mix_vector(vecu x, vecu second)
{
    x = (x ^ x >> 16) * ADAMI_MIX_FIRST;
    x = (x ^ x >> 15 ^ second) * ADAMI_MIX_SECOND;
    return x ^ x >> 16;
}

/* Codes as numbers of 32 bits. A code of v may be one above the top; it is cut off when it is
 * stored. random has all 32 bits. */
ADAM_INLINE vecu encode_vector(vec value, vec inverse, bool is_signed, vecu random)
{
    uint32_t base = is_signed ? ADAMI_CODE_M_BASE : ADAMI_CODE_V_BASE;
    vecu bits = (vecu)value, magnitude = bits & 0x7fffffffu;
    vec scaled = vec_fma((vec)magnitude, inverse, (vec)vecu_set(base));
    /* r << 4; the other bits hold the 8 and subtract the base, which a code does not contain */
    vecu r = is_signed ? random << 4 : random >> 12;
    vecu added = (r & 0x000ffff0u) | ((8 + (0u - base)) & ~0x000ffff0u);
    vecu code = ((vecu)scaled + added) >> ADAMI_CODE_SHIFT;
    if (!is_signed)
        return vecu_max(code, vecu_min(magnitude, vecu_set(1)));
    code = vecu_min(code, vecu_set(ADAMI_CODE_M_TOP));
    return code | (bits >> 24 & ADAMI_CODE_SIGN);
}

/* Computes and stores the scale of the values that wait. */
ADAM_INLINE float close_scale(void *stream, bool is_signed, uint64_t block,
                              const vec_waiting *waiting)
{
    float scale = adami_block_scale(vecu_largest(waiting->largest),
                                    is_signed ? ADAMI_CODE_M_SCALE : ADAMI_CODE_V_SCALE);
    *adami_scale_at(stream, block) = scale;
    return scale;
}

ADAM_INLINE void store_codes(uint8_t *codes, bool is_signed, int n, const vec_waiting *waiting,
                             vec inverse, vecu even_random, vecu odd_random)
{
    vec even = vec_load(waiting->values + n), odd = vec_load(waiting->values + n + VEC_ELEMS);
    vecu even_code = encode_vector(even, inverse, is_signed, even_random);
    vecu odd_code = encode_vector(odd, inverse, is_signed, odd_random);
    vecu_store_bytes(codes + n, even_code | odd_code << 16);
}

/* Computes and stores the scales of the block and the codes of the values that wait. NULL: that
 * moment has no codes. x: as for mix_vector, for the first step. */
ADAM_INLINE void close_codes(const update_args *args, uint64_t block, const vec_waiting *new_m,
                             const vec_waiting *new_v, vecu x, vecu second)
{
    float m_scale = new_m ? close_scale(args->m, true, block, new_m) : 0;
    float v_scale = new_v ? close_scale(args->v, false, block, new_v) : 0;
    uint8_t *m_codes = new_m ? adami_codes_at(args->m, block) : NULL;
    uint8_t *v_codes = new_v ? adami_codes_at(args->v, block) : NULL;
    vec m_inverse = vec_set(m_scale > 0 ? 1.0f / m_scale : 0);
    vec v_inverse = vec_set(v_scale > 0 ? 1.0f / v_scale : 0);
    for (int n = 0; n < TILE_SCALE_ELEMS; n += STATE_STEP) {
        vecu even = mix_vector(x, second), odd = mix_vector(x + 1u, second);
        if (new_m)
            store_codes(m_codes, true, n, new_m, m_inverse, even, odd);
        if (new_v)
            store_codes(v_codes, false, n, new_v, v_inverse, even, odd);
        x += STATE_STEP;
    }
    if (new_m && !(m_scale > 0))
        memset(m_codes, 0, TILE_SCALE_ELEMS);
    if (new_v && !(v_scale > 0))
        memset(v_codes, 0, TILE_SCALE_ELEMS);
}

/* ---- a block ---- */

/* Prefetches the lines of the step that comes AHEAD_ELEMS after element i; past the end this does
 * nothing. */
ADAM_INLINE void fetch_step(const void *stream, uint64_t elem_bytes, uint64_t i)
{
    uintptr_t at = (uintptr_t)stream + (i + AHEAD_ELEMS) * elem_bytes;
    __builtin_prefetch((const void *)at);
    if (STATE_STEP * elem_bytes > LINE_BYTES)
        __builtin_prefetch((const void *)(at + LINE_BYTES));
}

ADAM_INLINE void fetch_moment(const void *stream, enum tile_format format, uint64_t i)
{
    if (format != TILE_INT8)
        fetch_step(stream, format == TILE_BF16 ? 2 : 4, i);
    else if (i % LINE_BYTES == 0)
        __builtin_prefetch((const char *)stream + i + i / TILE_CODE_BLOCK_ELEMS * 64 + AHEAD_ELEMS);
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

/* Updates TILE_SCALE_ELEMS elements from `block` on. */
ADAM_INLINE void packed_block(const update_args *args, const struct vec_scalars *s,
                              const adami_rounding *rounding, bool has_l2, bool is_streamed,
                              uint64_t block, const struct state_formats format)
{
    vec_waiting new_m, new_v;
    vec m_scale = s->decay, v_scale = s->decay; /* used only for codes */
    new_m.largest = new_v.largest = vecu_set(0);
    if (format.m == TILE_INT8)
        m_scale = vec_set(*adami_scale_at(args->m, block));
    if (format.v == TILE_INT8)
        v_scale = vec_set(*adami_scale_at(args->v, block));
    const vecu second = vecu_set(rounding->second);
    const vecu start = vecu_even_numbers() + (rounding->elem + rounding->first + (uint32_t)block);
    const uint64_t grad_bytes = dtype_bytes(args->grad_type);
    vecu x = start;
    for (uint64_t i = block; i < block + TILE_SCALE_ELEMS; i += STATE_STEP) {
        fetch_step(args->master, format.is_split ? 2 : 4, i);
        fetch_step(args->grads, grad_bytes, i);
        if (!is_streamed)
            fetch_step(args->params, dtype_bytes(format.param_type), i);
        fetch_moment(args->m, format.m, i);
        fetch_moment(args->v, format.v, i);
        vec_pair weight = load_master(args, format.is_split, i);
        vec_pair grad = pair_load_as(args->grads, args->grad_type, i);
        vec_pair m = load_moment(args->m, format.m, true, block, i, m_scale);
        vec_pair v = load_moment(args->v, format.v, false, block, i, v_scale);
        update_vector(RULE_ADAM, s, has_l2, &weight.even, &m.even, &v.even, grad.even);
        update_vector(RULE_ADAM, s, has_l2, &weight.odd, &m.odd, &v.odd, grad.odd);
        /* A NaN in m or v makes the weight NaN, too. */
        if (__builtin_expect(vec_any_nan(weight.even, weight.odd), 0)) {
            pair_one_nan(&weight);
            pair_one_nan(&m);
            pair_one_nan(&v);
        }
        vecu even = vecu_set(0), odd = vecu_set(0);
        if (format.m == TILE_BF16 || format.v == TILE_BF16) {
            even = mix_vector(x, second);
            odd = mix_vector(x + 1u, second);
            x += STATE_STEP;
        }
        store_moment(args->m, format.m, block, i, m, even & 0xffffu, odd & 0xffffu, &new_m);
        store_moment(args->v, format.v, block, i, v, even >> 16, odd >> 16, &new_v);
        store_master(args, format.is_split, format.param_type, is_streamed, i, weight);
    }
    if (format.m == TILE_INT8 || format.v == TILE_INT8)
        close_codes(args, block, format.m == TILE_INT8 ? &new_m : NULL,
                    format.v == TILE_INT8 ? &new_v : NULL, start, second);
}

/* ---- choice of the loop ---- */

ADAM_INLINE void packed_blocks(const update_args *args, const adami_scalars *scalars,
                               const adami_rounding *rounding, uint64_t begin, uint64_t end,
                               const struct state_formats format)
{
    const struct vec_scalars s = broadcast_scalars(scalars);
    const update_args own = *args; /* a copy that, as the compiler can see, no store changes */
    const adami_rounding words = *rounding;
    const bool has_l2 = scalars->l2 != 0;
    const bool is_streamed =
        !format.is_split && format.param_type == DTYPE_BF16 && STATE_STEP * 2 >= LINE_BYTES &&
        may_stream(args->params, 2, args->grads, args->master, begin, args->count);
    for (uint64_t block = begin; block < end; block += TILE_SCALE_ELEMS)
        packed_block(&own, &s, &words, has_l2, is_streamed, block, format);
}

ADAM_INLINE void packed_master(const update_args *args, const adami_scalars *scalars,
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

ADAM_INLINE void packed_second(const update_args *args, const adami_scalars *scalars,
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

static void vector_update_packed(const adami_work *work, uint64_t begin, uint64_t end)
{
    const update_args *args = work->packed;
    const adami_scalars *scalars = &work->scalars;
    const adami_rounding *rounding = work->rounding;
    uint64_t whole_end = begin + (end - begin) / TILE_SCALE_ELEMS * TILE_SCALE_ELEMS;
    enum tile_format m = tile_stream_format(args->streams, 1);
    if (m == TILE_FP32)
        packed_second(args, scalars, rounding, begin, whole_end, TILE_FP32);
    else if (m == TILE_BF16)
        packed_second(args, scalars, rounding, begin, whole_end, TILE_BF16);
    else
        packed_second(args, scalars, rounding, begin, whole_end, TILE_INT8);
    adami_reference.update_packed(work, whole_end, end);
}

#endif
