/* The loops of attention_rows.h. cpu.cmake compiles this file once for each instruction set, with
 * VARIANT_TABLE (the name of the table) and VARIANT_NAME (its text) defined. */
#include <math.h>

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/attention_vectors.h"
#include "kernels/cpu/dropout_lanes.h"

/* Stores the vector of columns [col, col + VEC_ELEMS) of a row in the type of the block. */
static inline void store_elems(const score_block *block, void *row, uint64_t col, vec values)
{
    if (block->store_type == DTYPE_BF16)
        vec_store_bf16((uint16_t *)row + col, values);
    else if (block->round_type == DTYPE_BF16)
        vec_store((float *)row + col, vec_bf16_even(values));
    else if (block->round_type == DTYPE_FP16)
        vec_store((float *)row + col, vec_round_fp16(values));
    else
        vec_store((float *)row + col, values);
}

/* Sets columns [begin, end) to zero; begin is a multiple of VEC_ELEMS. */
static inline void clear_columns(const score_block *block, void *row, uint64_t begin, uint64_t end)
{
    size_t elem_bytes = dtype_bytes(block->store_type);
    if (begin < end)
        memset((char *)row + begin * elem_bytes, 0, (end - begin) * elem_bytes);
}

static inline uint64_t elems_at(uint64_t valid, uint64_t col)
{
    return valid - col < VEC_ELEMS ? valid - col : VEC_ELEMS;
}

/* The largest of row[seen] * scale; -infinity if there are none. */
static float row_largest(const float *row, attention_range seen, float scale)
{
    vec factor = vec_set(scale), lowest = vec_set(-INFINITY), largest = lowest;
    for (uint64_t col = seen.begin / VEC_ELEMS * VEC_ELEMS; col < seen.end; col += VEC_ELEMS)
        largest = vec_max(vec_within(vec_load(row + col) * factor, seen, col, lowest), largest);
    return vec_largest(largest);
}

static void softmax(const score_block *block, const softmax_state *state)
{
    vec scale = vec_set(block->scale), zero = vec_set(0.0f);
    cap_scores(block, NULL, NULL);
    for (uint64_t row = 0; row < block->rows; row++) {
        float *scores = block->scores + row * block->stride;
        attention_range seen = block_columns(block, row);
        uint64_t first = seen.begin / VEC_ELEMS * VEC_ELEMS, col = first;
        float largest = raise_largest(state, row, row_largest(scores, seen, block->scale));
        vec offset = vec_set(-largest), sum = zero;
        for (; col < seen.end; col += VEC_ELEMS) {
            vec p = vec_exp(vec_fma(vec_load(scores + col), scale, offset));
            p = vec_within(p, seen, col, zero);
            sum = sum + p;
            store_elems(block, scores, col, keep_elems(block, row, col, p));
        }
        clear_columns(block, scores, 0, first);
        clear_columns(block, scores, col, block->cols);
        state->row_sum[row] += vec_sum(sum);
    }
}

static void softmax_grad(const score_block *block, float *prob_grads, const float *lse,
                         const float *delta)
{
    vec scale = vec_set(block->scale), zero = vec_set(0.0f);
    drop_grads(block, prob_grads);
    cap_scores(block, prob_grads, delta);
    for (uint64_t row = 0; row < block->rows; row++) {
        float *scores = block->scores + row * block->stride;
        float *grads = prob_grads + row * block->stride;
        attention_range seen = block_columns(block, row);
        uint64_t first = seen.begin / VEC_ELEMS * VEC_ELEMS, col = first;
        vec offset = vec_set(-lse[row]), row_delta = vec_set(delta[row]);
        for (; col < seen.end; col += VEC_ELEMS) {
            vec p = vec_exp(vec_fma(vec_load(scores + col), scale, offset));
            vec grad = p * (vec_load(grads + col) - row_delta) * scale;
            p = keep_elems(block, row, col, p);
            store_elems(block, scores, col, vec_within(p, seen, col, zero));
            store_elems(block, grads, col, vec_within(grad, seen, col, zero));
        }
        clear_columns(block, scores, 0, first);
        clear_columns(block, scores, col, block->cols);
        clear_columns(block, grads, 0, first);
        clear_columns(block, grads, col, block->cols);
    }
}

static void fill_kept(const score_block *block, const attention_drop *drop, float *kept)
{
    enum { ROOM = ATTENTION_KEYS_MAX + ATTENTION_LANES_MAX + DROPOUT_WORDS_BEYOND };
    uint32_t words[ROOM];
    for (uint64_t row = 0; row < block->rows; row++) {
        attention_range seen = block_columns(block, row);
        uint64_t begin = seen.begin / ATTENTION_LANES_MAX * ATTENTION_LANES_MAX;
        uint64_t end = (seen.end + ATTENTION_LANES_MAX - 1) / ATTENTION_LANES_MAX;
        uint64_t count = seen.begin < seen.end ? end * ATTENTION_LANES_MAX - begin : 0;
        uint64_t quad = drop->first_quad + (block->first_row + row) * drop->row_quads +
                        (block->first_key + begin) / 4;
        float *factors = kept + row * block->stride + begin;
        uint32_t threshold = drop->threshold;
        float scale = drop->scale;
        dropout_fill(drop->place, quad, 1, count / 4, words);
#pragma omp simd
        for (uint64_t i = 0; i < count; i++)
            factors[i] = words[i] < threshold ? 0.0f : scale;
    }
}

static void store(const float *source, float factor, void *target, enum dtype type, uint64_t count)
{
    uint64_t i = 0;
    if (type == DTYPE_FP32) {
        float *values = target;
        for (; i < count; i++)
            values[i] = source[i] * factor;
        return;
    }
    uint16_t *halves = target;
    if (type == DTYPE_BF16)
        for (; i + VEC_ELEMS <= count; i += VEC_ELEMS)
            vec_store_bf16(halves + i, vec_load(source + i) * vec_set(factor));
    else
        for (; i + VEC_ELEMS <= count; i += VEC_ELEMS)
            vec_store_fp16(halves + i, vec_load(source + i) * vec_set(factor));
    for (; i < count; i++)
        halves[i] = type == DTYPE_BF16 ? bf16_from_fp32(source[i] * factor)
                                       : fp16_from_fp32(source[i] * factor);
}

static void widen(const void *source, enum dtype type, float *target, uint64_t count)
{
    const uint16_t *halves = source;
    uint64_t i = 0;
    for (; i + VEC_ELEMS <= count; i += VEC_ELEMS)
        vec_store(target + i,
                  type == DTYPE_BF16 ? vec_load_bf16(halves + i) : vec_load_fp16(halves + i));
    for (; i < count; i++)
        target[i] = type == DTYPE_BF16 ? fp32_from_bf16(halves[i]) : fp32_from_fp16(halves[i]);
}

static inline float load_one(const void *source, enum dtype type, uint64_t i)
{
    if (type == DTYPE_FP32)
        return ((const float *)source)[i];
    uint16_t half = ((const uint16_t *)source)[i];
    return type == DTYPE_BF16 ? fp32_from_bf16(half) : fp32_from_fp16(half);
}

static float dot(const void *a, const void *b, enum dtype type, uint64_t count)
{
    vec sum = vec_set(0.0f);
    uint64_t i = 0;
    if (type == DTYPE_BF16)
        for (; i + VEC_ELEMS <= count; i += VEC_ELEMS)
            sum = vec_fma(vec_load_bf16((const uint16_t *)a + i),
                          vec_load_bf16((const uint16_t *)b + i), sum);
    else if (type == DTYPE_FP16)
        for (; i + VEC_ELEMS <= count; i += VEC_ELEMS)
            sum = vec_fma(vec_load_fp16((const uint16_t *)a + i),
                          vec_load_fp16((const uint16_t *)b + i), sum);
    else if (type == DTYPE_FP32)
        for (; i + VEC_ELEMS <= count; i += VEC_ELEMS)
            sum = vec_fma(vec_load((const float *)a + i), vec_load((const float *)b + i), sum);
    float total = vec_sum(sum);
    for (; i < count; i++)
        total += load_one(a, type, i) * load_one(b, type, i);
    return total;
}

static void exponential(const float *source, float *target, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        target[i] = one_exp(source[i]);
}

enum {
    CACHED_KEYS = 64, /* keys of a block: their scores stay in the first-level cache */
    CACHED_LANES = ATTENTION_HEAD_DIM_MAX / VEC_ELEMS,
};

static inline vec load_elems(const void *source, enum dtype type, uint64_t i)
{
    if (type == DTYPE_FP32)
        return vec_load((const float *)source + i);
    const uint16_t *halves = (const uint16_t *)source + i;
    return type == DTYPE_BF16 ? vec_load_bf16(halves) : vec_load_fp16(halves);
}

/* Elements [i, i + VEC_ELEMS) of an array of `count` elements; those past the end are 0. */
static inline vec load_some(const void *source, enum dtype type, uint64_t i, uint64_t count)
{
    if (i + VEC_ELEMS <= count)
        return load_elems(source, type, i);
    float values[VEC_ELEMS] = {0};
    for (uint64_t j = i; j < count; j++)
        values[j - i] = load_one(source, type, j);
    return vec_load(values);
}

/* Replaces the scores of a block by probabilities without the denominator. If the largest score
 * grows, the sums so far are scaled down. */
static void weigh_block(float *scores, uint64_t count, float *largest, float *sum, vec *output,
                        uint64_t vectors)
{
    float top = row_largest(scores, (attention_range){0, count}, 1.0f);
    if (top > *largest) {
        float factor = *largest == -INFINITY ? 0.0f : one_exp(*largest - top);
        for (uint64_t i = 0; i < vectors; i++)
            output[i] = output[i] * vec_set(factor);
        *sum *= factor;
        *largest = top;
    }
    vec offset = vec_set(-*largest), total = vec_set(0.0f);
    for (uint64_t i = 0; i < count; i += VEC_ELEMS) {
        vec p = vec_exp(vec_load(scores + i) + offset);
        p = vec_first(p, elems_at(count, i), vec_set(0.0f));
        vec_store(scores + i, p);
        total = total + p;
    }
    *sum += vec_sum(total);
}

static inline void attend_typed(const cached_row *row, enum dtype type)
{
    uint64_t dim = row->head_dim, vectors = (dim + VEC_ELEMS - 1) / VEC_ELEMS;
    uint64_t value_dim = row->value_dim;
    uint64_t value_vectors = (value_dim + VEC_ELEMS - 1) / VEC_ELEMS;
    uint64_t key_bytes = dim * dtype_bytes(type), value_bytes = value_dim * dtype_bytes(type);
    vec query[CACHED_LANES], output[CACHED_LANES];
    float scores[CACHED_KEYS + VEC_ELEMS], largest = row->sink;
    float sum = largest == -INFINITY ? 0.0f : 1.0f;
    for (uint64_t i = 0; i < vectors; i++)
        query[i] = load_some(row->query, type, i * VEC_ELEMS, dim) * vec_set(row->scale);
    for (uint64_t i = 0; i < value_vectors; i++)
        output[i] = vec_set(0.0f);
    for (uint64_t begin = 0; begin < row->count; begin += CACHED_KEYS) {
        uint64_t left = row->count - begin, count = left < CACHED_KEYS ? left : CACHED_KEYS;
        const char *keys = (const char *)row->keys + begin * key_bytes;
        const char *values = (const char *)row->values + begin * value_bytes;
        for (uint64_t j = 0; j < count; j++) {
            vec score = vec_set(0.0f);
            for (uint64_t i = 0; i < vectors; i++)
                score = vec_fma(query[i], load_some(keys + j * key_bytes, type, i * VEC_ELEMS, dim),
                                score);
            scores[j] = vec_sum(score);
        }
        if (row->soft_cap > 0.0f)
            for (uint64_t j = 0; j < count; j += VEC_ELEMS)
                vec_store(scores + j,
                          vec_set(row->soft_cap) *
                              vec_tanh(vec_load(scores + j) * vec_set(1.0f / row->soft_cap)));
        weigh_block(scores, count, &largest, &sum, output, value_vectors);
        for (uint64_t j = 0; j < count; j++) {
            vec p = vec_set(scores[j]);
            for (uint64_t i = 0; i < value_vectors; i++)
                output[i] =
                    vec_fma(p, load_some(values + j * value_bytes, type, i * VEC_ELEMS, value_dim),
                            output[i]);
        }
    }
    float result[ATTENTION_HEAD_DIM_MAX + VEC_ELEMS];
    for (uint64_t i = 0; i < value_vectors; i++)
        vec_store(result + i * VEC_ELEMS, output[i]);
    store(result, 1.0f / sum, row->output, type, value_dim);
}

static void attend(const cached_row *row)
{
    if (row->type == DTYPE_BF16)
        attend_typed(row, DTYPE_BF16);
    else if (row->type == DTYPE_FP16)
        attend_typed(row, DTYPE_FP16);
    else
        attend_typed(row, DTYPE_FP32);
}

const attention_rows VARIANT_TABLE = {
    .name = VARIANT_NAME,
    .attend = attend,
    .softmax = softmax,
    .softmax_grad = softmax_grad,
    .drop = fill_kept,
    .store = store,
    .widen = widen,
    .dot = dot,
    .exponential = exponential,
};
