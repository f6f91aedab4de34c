/* The loops of Adam over vectors: one body, included by adam_avx2.c and adam_avx512.c after they
 * have defined, for their instruction set,
 *
 *   vec, VEC_ELEMS                     a vector of fp32 and its elements
 *   vec_set, vec_load, vec_store       fp32; no alignment needed
 *   vec_load_bf16, vec_load_fp16       widening
 *   vec_store_bf16_away                working copy: ties away from zero, as bf16_working_copy
 *   vec_store_fp16                     nearest even
 *   vec_mul, vec_add, vec_div, vec_sqrt   correctly rounded
 *   vec_step_against(d, r)             -r where d > 0, r where d < 0, +0 where d is 0, else NaN
 *   vec_fma(a, b, c)                   a * b + c, rounded once
 *   vec_one_nan                        every NaN becomes ADAMI_QUIET_NAN_BITS
 *   vec_round_bf16, vec_round_fp16     store to nearest even and return what was stored, widened
 *   vec_sums, vec_sums_add, vec_sums_store   16 fp64 lanes, as struct adam_variant's close says
 *
 * Element types and the L2 term are arguments that are constants at each call, so that the compiler
 * makes one loop without branches for each combination. All loads of a step come before its stores:
 * `params` may lie on `grads` where their elements have one width. */
#ifndef SLUICE_KERNELS_CPU_ADAM_BODY_H
#define SLUICE_KERNELS_CPU_ADAM_BODY_H

#include "kernels/cpu/adam_internal.h"

#define ADAM_INLINE static inline __attribute__((always_inline))

/* The scalars, one vector each. */
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

ADAM_INLINE void store_working_copy(void *params, enum dtype type, uint64_t i, vec master)
{
    if (type == DTYPE_FP32)
        vec_store((float *)params + i, master);
    else if (type == DTYPE_BF16)
        vec_store_bf16_away((uint16_t *)params + i, master);
    else
        vec_store_fp16((uint16_t *)params + i, master);
}

/* Elements [begin, end); end - begin is a multiple of VEC_ELEMS. */
ADAM_INLINE void update_loop(const adam_args *args, const adami_scalars *scalars, uint64_t begin,
                             uint64_t end, enum dtype grad_type, enum dtype param_type, bool has_l2)
{
    const struct vec_scalars s = broadcast_scalars(scalars);
    float *master = args->master, *m_stream = args->m, *v_stream = args->v;
    const void *grads = args->grads;
    void *params = args->params;
    for (uint64_t i = begin; i < end; i += VEC_ELEMS) {
        vec weight = vec_load(master + i);
        vec grad = vec_mul(load_as(grads, grad_type, i), s.grad_scale);
        if (has_l2)
            grad = vec_fma(s.l2, weight, grad);
        vec m = vec_fma(s.beta1, vec_load(m_stream + i), vec_mul(s.one_minus_beta1, grad));
        vec v = vec_fma(s.beta2, vec_load(v_stream + i),
                        vec_mul(vec_mul(s.one_minus_beta2, grad), grad));
        vec denominator = vec_fma(vec_sqrt(v), s.correction2, s.epsilon);
        weight =
            vec_one_nan(vec_fma(s.minus_step, vec_div(m, denominator), vec_mul(weight, s.decay)));
        vec_store(m_stream + i, vec_one_nan(m));
        vec_store(v_stream + i, vec_one_nan(v));
        vec_store(master + i, weight);
        store_working_copy(params, param_type, i, weight);
    }
}

ADAM_INLINE void update_params(const adam_args *args, const adami_scalars *scalars, uint64_t begin,
                               uint64_t end, enum dtype grad_type, enum dtype param_type)
{
    if (scalars->l2 != 0)
        update_loop(args, scalars, begin, end, grad_type, param_type, true);
    else
        update_loop(args, scalars, begin, end, grad_type, param_type, false);
}

ADAM_INLINE void update_grads(const adam_args *args, const adami_scalars *scalars, uint64_t begin,
                              uint64_t end, enum dtype grad_type)
{
    if (args->param_type == DTYPE_FP32)
        update_params(args, scalars, begin, end, grad_type, DTYPE_FP32);
    else if (args->param_type == DTYPE_BF16)
        update_params(args, scalars, begin, end, grad_type, DTYPE_BF16);
    else
        update_params(args, scalars, begin, end, grad_type, DTYPE_FP16);
}

static void vector_update(const adam_args *args, const adami_scalars *scalars, uint64_t begin,
                          uint64_t end)
{
    uint64_t whole_end = begin + (end - begin) / VEC_ELEMS * VEC_ELEMS;
    if (args->grad_type == DTYPE_FP32)
        update_grads(args, scalars, begin, whole_end, DTYPE_FP32);
    else if (args->grad_type == DTYPE_BF16)
        update_grads(args, scalars, begin, whole_end, DTYPE_BF16);
    else
        update_grads(args, scalars, begin, whole_end, DTYPE_FP16);
    adami_reference.update(args, scalars, whole_end, end);
}

ADAM_INLINE void copy_loop(const float *master, void *params, enum dtype param_type, uint64_t begin,
                           uint64_t end)
{
    for (uint64_t i = begin; i < end; i += VEC_ELEMS)
        store_working_copy(params, param_type, i, vec_load(master + i));
}

static void vector_copy(const float *master, void *params, enum dtype param_type, uint64_t begin,
                        uint64_t end)
{
    uint64_t whole_end = begin + (end - begin) / VEC_ELEMS * VEC_ELEMS;
    if (param_type == DTYPE_FP32)
        copy_loop(master, params, DTYPE_FP32, begin, whole_end);
    else if (param_type == DTYPE_BF16)
        copy_loop(master, params, DTYPE_BF16, begin, whole_end);
    else
        copy_loop(master, params, DTYPE_FP16, begin, whole_end);
    adami_reference.copy(master, params, param_type, whole_end, end);
}

/* Stores one vector of the closed gradient and returns its values as stored. In place (fp32 grads
 * on the accumulator) the store writes what is there. */
ADAM_INLINE vec close_vector(void *grads, enum dtype type, uint64_t i, vec value)
{
    if (type == DTYPE_BF16)
        return vec_round_bf16((uint16_t *)grads + i, value);
    if (type == DTYPE_FP16)
        return vec_round_fp16((uint16_t *)grads + i, value);
    vec_store((float *)grads + i, value);
    return value;
}

ADAM_INLINE void close_loop(const grad_close_args *args, enum dtype grad_type, uint64_t begin,
                            double lanes[ADAMI_SUM_LANES])
{
    vec_sums sums = {0};
    for (uint64_t i = begin; i < begin + ADAMI_BLOCK_ELEMS; i += ADAMI_SUM_LANES) {
        vec values[ADAMI_SUM_LANES / VEC_ELEMS];
        for (int part = 0; part < ADAMI_SUM_LANES / VEC_ELEMS; part++) {
            uint64_t at = i + (uint64_t)part * VEC_ELEMS;
            values[part] =
                close_vector(args->grads, grad_type, at, vec_load(args->accumulator + at));
        }
        vec_sums_add(&sums, values);
    }
    vec_sums_store(&sums, lanes);
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

#endif
