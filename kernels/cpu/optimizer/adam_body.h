/* The loops of the optimizers on fp32 state, over the vectors of adam_vectors.h. adam_variant.c
 * includes it.
 *
 * Element types are arguments that are constants at each call, so the compiler makes one loop for
 * each combination. All loads of an element come before its stores: `params` may lie on `grads` if
 * their elements have the same width, and on the master if it is fp32.
 *
 * These loops run at the limit of memory. Loops with one vector a turn and ordinary stores took 1.3
 * to 1.8 times as long (two cores of a Xeon with AMX, 8 Mi elements, fp32 gradient and copy, ns a
 * parameter on 1 and 2 cores: AVX-512 1.55 and 0.75, AVX2 1.34 and 0.60; these loops 1.03 and 0.43
 * with either). The gains with AVX-512 came from
 *   - whole groups: the lines of one stream are loaded together, then those of the next stream
 *     (1.55 to 1.40 on one core, 0.75 to 0.64 on two);
 *   - non-temporal stores of the working copy, which is written and not read: its lines need not
 *     be read first (to 1.07 and 0.49). A store must fill a whole line at once, which also needs
 *     groups;
 *   - prefetches AHEAD_ELEMS before a line is needed, because the prefetcher of the processor stops
 *     at each 4 KiB page of each stream (to 1.03 and 0.43). 512 is in the middle of a flat optimum,
 *     256 to 1024, for a pass that reads three or four streams. Closing a gradient reads one
 *     stream; with 2048 it took 0.80 to 0.92 of the time (1 thread 24.4 to 27.3 GB/s, in place 23.2
 *     to 28.5; 2 threads 50 to 56). */
#ifndef SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_BODY_H
#define SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_BODY_H

#include <assert.h>

#include "kernels/cpu/optimizer/adam_vectors.h"

#define ADAM_INLINE static inline __attribute__((always_inline))

enum {
    GROUP_VECS = 4, /* vectors of one turn of a loop; even */
    GROUP_ELEMS = GROUP_VECS * VEC_ELEMS,
    AHEAD_ELEMS = 512,
    /* for a pass that reads one stream: the same number of lines in flight */
    ALONE_AHEAD_ELEMS = 2048,
    LINE_BYTES = 64,
    /* Calls on fewer elements store through the caches, where the next reader finds the data. */
    STREAM_ELEMS_MIN = 65536,
};

/* The scalars, each broadcast to a vector. */
struct vec_scalars {
    vec grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, l2, decay, correction2, epsilon,
        minus_step;
};

ADAM_INLINE struct vec_scalars broadcast_scalars(const adami_scalars *s)
{
    struct vec_scalars out = {
        .grad_scale = vec_set(s->grad_scale),
        .beta1 = vec_set(s->beta1),
        .one_minus_beta1 = vec_set(s->one_minus_beta1),
        .beta2 = vec_set(s->beta2),
        .one_minus_beta2 = vec_set(s->one_minus_beta2),
        .l2 = vec_set(s->l2),
        .decay = vec_set(s->decay),
        .correction2 = vec_set(s->correction2),
        .epsilon = vec_set(s->epsilon),
        .minus_step = vec_set(s->minus_step),
    };
    return out;
}

ADAM_INLINE vec load_as(const void *source, enum dtype type, uint64_t i)
{
    if (type == DTYPE_FP32)
        return vec_load((const float *)source + i);
    const uint16_t *halves = source;
    return type == DTYPE_BF16 ? vec_load_bf16(halves + i) : vec_load_fp16(halves + i);
}

ADAM_INLINE void store_vector(void *target, vecu value, bool is_streamed)
{
    if (is_streamed)
        vecu_stream(target, value);
    else
        vecu_store(target, value);
}

/* Stores a group at target[i] as fp16. Afterwards `values` has the stored numbers, widened. */
ADAM_INLINE void store_fp16(uint16_t *target, uint64_t i, vec values[GROUP_VECS], bool is_streamed)
{
    for (int k = 0; k < GROUP_VECS; k += 2) {
        uint16_t *at = target + i + (uint64_t)k * VEC_ELEMS;
        vec_halves low = vec_fp16_even(values[k]), high = vec_fp16_even(values[k + 1]);
        store_vector(at, join_halves(low, high), is_streamed);
        values[k] = vec_widen_fp16(low);
        values[k + 1] = vec_widen_fp16(high);
    }
}

/* Stores a group of values that bf16 can represent at target[i]. */
ADAM_INLINE void store_bf16(uint16_t *target, uint64_t i, const vec values[GROUP_VECS],
                            bool is_streamed)
{
    for (int k = 0; k < GROUP_VECS; k += 2) {
        uint16_t *at = target + i + (uint64_t)k * VEC_ELEMS;
        store_vector(at, pack_bf16(values[k], values[k + 1]), is_streamed);
    }
}

ADAM_INLINE void store_floats(float *target, uint64_t i, const vec values[GROUP_VECS],
                              bool is_streamed)
{
    for (int k = 0; k < GROUP_VECS; k++)
        store_vector(target + i + (uint64_t)k * VEC_ELEMS, (vecu)values[k], is_streamed);
}

ADAM_INLINE void store_working_copy(void *params, enum dtype type, uint64_t i,
                                    const vec master[GROUP_VECS], bool is_streamed)
{
    if (type == DTYPE_FP32) {
        store_floats(params, i, master, is_streamed);
        return;
    }
    vec copy[GROUP_VECS];
    for (int k = 0; k < GROUP_VECS; k++)
        copy[k] = type == DTYPE_BF16 ? vec_bf16_away(master[k]) : master[k];
    if (type == DTYPE_BF16)
        store_bf16(params, i, copy, is_streamed);
    else
        store_fp16(params, i, copy, is_streamed);
}

ADAM_INLINE void load_group(const void *source, enum dtype type, uint64_t i, vec out[GROUP_VECS])
{
    for (int k = 0; k < GROUP_VECS; k++)
        out[k] = load_as(source, type, i + (uint64_t)k * VEC_ELEMS);
}

/* Prefetches the lines of the group that comes `ahead` elements after element i; past the end of
 * the stream this does nothing. */
ADAM_INLINE void fetch_far(const void *stream, uint64_t elem_bytes, uint64_t i, uint64_t ahead)
{
    uintptr_t at = (uintptr_t)stream + (i + ahead) * elem_bytes;
    for (uint64_t line = 0; line < GROUP_ELEMS * elem_bytes; line += LINE_BYTES)
        __builtin_prefetch((const void *)(at + line));
}

ADAM_INLINE void fetch_ahead(const void *stream, uint64_t elem_bytes, uint64_t i)
{
    fetch_far(stream, elem_bytes, i, AHEAD_ELEMS);
}

/* True if `target` is written with non-temporal stores: it is large, it is not one of the streams
 * that are read, and the first element of a group is aligned to a vector. */
static inline bool may_stream(const void *target, uint64_t elem_bytes, const void *read,
                              const void *read_too, uint64_t begin, uint64_t count)
{
    return VEC_STREAMS && count >= STREAM_ELEMS_MIN && target != read && target != read_too &&
           ((uintptr_t)target + begin * elem_bytes) % (4 * VEC_ELEMS) == 0;
}

enum vector_rule { RULE_ADAM, RULE_LION, RULE_ADAGRAD, RULE_COPY };

/* Updates the weight and the state of one vector of elements; RULE_ADAM has two streams of state,
 * the others have one. The state may be left with any NaN. */
ADAM_INLINE void update_vector(enum vector_rule rule, const struct vec_scalars *s, bool has_l2,
                               vec *weight, vec *first, vec *second, vec grad)
{
    vec g = grad * s->grad_scale;
    if (rule == RULE_LION) {
        vec direction = vec_fma(s->beta1, *first, s->one_minus_beta1 * g);
        *first = vec_fma(s->beta2, *first, s->one_minus_beta2 * g);
        *weight = vec_fma(*weight, s->decay, vec_step_against(direction, s->minus_step));
        return;
    }
    if (has_l2)
        g = vec_fma(s->l2, *weight, g);
    if (rule == RULE_ADAGRAD) {
        *first = vec_fma(g, g, *first);
        vec denominator = vec_sqrt(*first) + s->epsilon;
        *weight = vec_fma(s->minus_step, g / denominator, *weight);
        return;
    }
    *first = vec_fma(s->beta1, *first, s->one_minus_beta1 * g);
    *second = vec_fma(s->beta2, *second, s->one_minus_beta2 * g * g);
    vec denominator = vec_fma(vec_sqrt(*second), s->correction2, s->epsilon);
    *weight = vec_fma(s->minus_step, *first / denominator, *weight * s->decay);
}

/* Updates elements [begin, end); end - begin is a multiple of GROUP_ELEMS. */
ADAM_INLINE void update_loop(enum vector_rule rule, const adami_work *work, uint64_t begin,
                             uint64_t end, enum dtype grad_type, enum dtype param_type)
{
    const struct vec_scalars s = broadcast_scalars(&work->scalars);
    float *master = work->master, *first_stream = work->state[0], *second_stream = work->state[1];
    const void *grads = work->grads;
    void *params = work->params;
    const bool has_l2 = work->scalars.l2 != 0;
    const uint64_t param_bytes = dtype_bytes(param_type);
    const bool is_streamed = may_stream(params, param_bytes, grads, master, begin, work->count);
    for (uint64_t i = begin; i < end; i += GROUP_ELEMS) {
        fetch_ahead(master, 4, i);
        fetch_ahead(first_stream, 4, i);
        if (rule == RULE_ADAM)
            fetch_ahead(second_stream, 4, i);
        fetch_ahead(grads, dtype_bytes(grad_type), i);
        if (!is_streamed)
            fetch_ahead(params, param_bytes, i);
        vec weight[GROUP_VECS], first[GROUP_VECS], second[GROUP_VECS] = {{0}}, grad[GROUP_VECS];
        load_group(master, DTYPE_FP32, i, weight);
        load_group(first_stream, DTYPE_FP32, i, first);
        if (rule == RULE_ADAM)
            load_group(second_stream, DTYPE_FP32, i, second);
        load_group(grads, grad_type, i, grad);
        for (int k = 0; k < GROUP_VECS; k++) {
            update_vector(rule, &s, has_l2, &weight[k], &first[k], &second[k], grad[k]);
            weight[k] = vec_one_nan(weight[k]);
            first[k] = vec_one_nan(first[k]);
            second[k] = vec_one_nan(second[k]);
        }
        store_floats(first_stream, i, first, false);
        if (rule == RULE_ADAM)
            store_floats(second_stream, i, second, false);
        store_floats(master, i, weight, false);
        store_working_copy(params, param_type, i, weight, is_streamed);
    }
}

ADAM_INLINE void copy_loop(const adami_work *work, uint64_t begin, uint64_t end,
                           enum dtype param_type)
{
    const float *master = work->master;
    void *params = work->params;
    const bool is_streamed =
        may_stream(params, dtype_bytes(param_type), master, master, begin, work->count);
    for (uint64_t i = begin; i < end; i += GROUP_ELEMS) {
        vec values[GROUP_VECS];
        fetch_ahead(master, 4, i);
        load_group(master, DTYPE_FP32, i, values);
        store_working_copy(params, param_type, i, values, is_streamed);
    }
}

/* Stores one group of the closed gradient. Afterwards `values` has the stored numbers, widened. */
ADAM_INLINE void close_group(void *grads, enum dtype type, uint64_t i, vec values[GROUP_VECS],
                             bool is_streamed)
{
    if (type == DTYPE_FP32) {
        store_floats(grads, i, values, is_streamed);
    } else if (type == DTYPE_FP16) {
        store_fp16(grads, i, values, is_streamed);
    } else {
        for (int k = 0; k < GROUP_VECS; k++)
            values[k] = vec_bf16_even(values[k]);
        store_bf16(grads, i, values, is_streamed);
    }
}

ADAM_INLINE void close_loop(const grad_close_args *args, enum dtype grad_type, uint64_t begin,
                            double lanes[ADAMI_SUM_LANES])
{
    static_assert(GROUP_ELEMS % ADAMI_SUM_LANES == 0 && ADAMI_BLOCK_ELEMS % GROUP_ELEMS == 0,
                  "groups hold whole sets of lanes, blocks whole groups");
    const float *accumulator = args->accumulator;
    void *grads = args->grads;
    /* In place (fp32 grads on the accumulator) the values are already stored. */
    const bool is_stored = grads != accumulator;
    const bool is_streamed =
        may_stream(grads, dtype_bytes(grad_type), accumulator, accumulator, begin, args->count);
    vec_sums sums = {0};
    for (uint64_t i = begin; i < begin + ADAMI_BLOCK_ELEMS; i += GROUP_ELEMS) {
        vec values[GROUP_VECS];
        fetch_far(accumulator, 4, i, ALONE_AHEAD_ELEMS);
        load_group(accumulator, DTYPE_FP32, i, values);
        if (grad_type != DTYPE_FP32 || is_stored)
            close_group(grads, grad_type, i, values, is_streamed);
        for (int k = 0; k < GROUP_VECS; k += ADAMI_SUM_LANES / VEC_ELEMS)
            vec_sums_add(&sums, values + k);
    }
    memcpy(lanes, sums.parts, sizeof sums.parts);
}

static void vector_close(const grad_close_args *args, uint64_t block_idx,
                         double lanes[ADAMI_SUM_LANES])
{
    uint64_t begin = block_idx * ADAMI_BLOCK_ELEMS;
    if (args->grad_type == DTYPE_FP32)
        close_loop(args, DTYPE_FP32, begin, lanes);
    else if (args->grad_type == DTYPE_BF16)
        close_loop(args, DTYPE_BF16, begin, lanes);
    else
        close_loop(args, DTYPE_FP16, begin, lanes);
}

/* ---- choice of the loop ---- */

/* All arguments except begin and end are constants at each call. */
ADAM_INLINE void loop_of(enum vector_rule rule, const adami_work *work, uint64_t begin,
                         uint64_t end, enum dtype grad_type, enum dtype param_type)
{
    if (rule == RULE_COPY)
        copy_loop(work, begin, end, param_type);
    else
        update_loop(rule, work, begin, end, grad_type, param_type);
}

ADAM_INLINE void loop_of_grads(enum vector_rule rule, const adami_work *work, uint64_t begin,
                               uint64_t end, enum dtype grad_type)
{
    if (work->param_type == DTYPE_FP32)
        loop_of(rule, work, begin, end, grad_type, DTYPE_FP32);
    else if (work->param_type == DTYPE_BF16)
        loop_of(rule, work, begin, end, grad_type, DTYPE_BF16);
    else
        loop_of(rule, work, begin, end, grad_type, DTYPE_FP16);
}

/* Runs the loop for the types of `work` over the whole groups of [begin, end). Returns the end of
 * those groups; the reference computes the rest. */
ADAM_INLINE uint64_t vector_groups(enum vector_rule rule, const adami_work *work, uint64_t begin,
                                   uint64_t end)
{
    uint64_t whole_end = begin + (end - begin) / GROUP_ELEMS * GROUP_ELEMS;
    if (rule == RULE_COPY || work->grad_type == DTYPE_FP32)
        loop_of_grads(rule, work, begin, whole_end, DTYPE_FP32);
    else if (work->grad_type == DTYPE_BF16)
        loop_of_grads(rule, work, begin, whole_end, DTYPE_BF16);
    else
        loop_of_grads(rule, work, begin, whole_end, DTYPE_FP16);
    return whole_end;
}

static void vector_adam(const adami_work *work, uint64_t begin, uint64_t end)
{
    adami_reference.update[UPDATE_ADAM](work, vector_groups(RULE_ADAM, work, begin, end), end);
}

static void vector_lion(const adami_work *work, uint64_t begin, uint64_t end)
{
    adami_reference.update[UPDATE_LION](work, vector_groups(RULE_LION, work, begin, end), end);
}

static void vector_adagrad(const adami_work *work, uint64_t begin, uint64_t end)
{
    adami_reference.update[UPDATE_ADAGRAD](work, vector_groups(RULE_ADAGRAD, work, begin, end),
                                           end);
}

static void vector_copy(const adami_work *work, uint64_t begin, uint64_t end)
{
    adami_reference.copy(work, vector_groups(RULE_COPY, work, begin, end), end);
}

#endif
