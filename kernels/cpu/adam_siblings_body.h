/* The loops of Lion and Adagrad over the vectors that adam_body.h lists; included after it by the
 * files of the instruction sets. The rules are Adam's: types are constants at each call, all loads of
 * a step come before its stores, and the last elements of a range go to the reference. */
#ifndef SLUICE_KERNELS_CPU_ADAM_SIBLINGS_BODY_H
#define SLUICE_KERNELS_CPU_ADAM_SIBLINGS_BODY_H

#include "kernels/cpu/adam_body.h"

/* ---- Lion ---- */

/* Elements [begin, end); end - begin is a multiple of VEC_ELEMS. */
ADAM_INLINE void lion_loop(const lion_args *args, const adami_lion_scalars *scalars, uint64_t begin,
                           uint64_t end, enum dtype grad_type, enum dtype param_type)
{
    const vec grad_scale = vec_set(scalars->grad_scale), decay = vec_set(scalars->decay);
    const vec beta1 = vec_set(scalars->beta1), beta2 = vec_set(scalars->beta2);
    const vec one_minus_beta1 = vec_set(scalars->one_minus_beta1);
    const vec one_minus_beta2 = vec_set(scalars->one_minus_beta2);
    const vec rate = vec_set(scalars->learning_rate);
    float *master = args->master, *m_stream = args->m;
    const void *grads = args->grads;
    void *params = args->params;
    for (uint64_t i = begin; i < end; i += VEC_ELEMS) {
        vec weight = vec_load(master + i), m = vec_load(m_stream + i);
        vec grad = vec_mul(load_as(grads, grad_type, i), grad_scale);
        vec direction = vec_fma(beta1, m, vec_mul(one_minus_beta1, grad));
        m = vec_fma(beta2, m, vec_mul(one_minus_beta2, grad));
        weight = vec_one_nan(vec_fma(weight, decay, vec_step_against(direction, rate)));
        vec_store(m_stream + i, vec_one_nan(m));
        vec_store(master + i, weight);
        store_working_copy(params, param_type, i, weight);
    }
}

ADAM_INLINE void lion_params(const lion_args *args, const adami_lion_scalars *scalars,
                             uint64_t begin, uint64_t end, enum dtype grad_type)
{
    if (args->param_type == DTYPE_FP32)
        lion_loop(args, scalars, begin, end, grad_type, DTYPE_FP32);
    else if (args->param_type == DTYPE_BF16)
        lion_loop(args, scalars, begin, end, grad_type, DTYPE_BF16);
    else
        lion_loop(args, scalars, begin, end, grad_type, DTYPE_FP16);
}

static void vector_lion(const lion_args *args, const adami_lion_scalars *scalars, uint64_t begin,
                        uint64_t end)
{
    uint64_t whole_end = begin + (end - begin) / VEC_ELEMS * VEC_ELEMS;
    if (args->grad_type == DTYPE_FP32)
        lion_params(args, scalars, begin, whole_end, DTYPE_FP32);
    else if (args->grad_type == DTYPE_BF16)
        lion_params(args, scalars, begin, whole_end, DTYPE_BF16);
    else
        lion_params(args, scalars, begin, whole_end, DTYPE_FP16);
    adami_reference.lion(args, scalars, whole_end, end);
}

/* ---- Adagrad ---- */

ADAM_INLINE void adagrad_loop(const adagrad_args *args, const adami_adagrad_scalars *scalars,
                              uint64_t begin, uint64_t end, enum dtype grad_type,
                              enum dtype param_type, bool has_l2)
{
    const vec grad_scale = vec_set(scalars->grad_scale), l2 = vec_set(scalars->l2);
    const vec epsilon = vec_set(scalars->epsilon), minus_rate = vec_set(scalars->minus_rate);
    float *master = args->master, *v_stream = args->v;
    const void *grads = args->grads;
    void *params = args->params;
    for (uint64_t i = begin; i < end; i += VEC_ELEMS) {
        vec weight = vec_load(master + i);
        vec grad = vec_mul(load_as(grads, grad_type, i), grad_scale);
        if (has_l2)
            grad = vec_fma(l2, weight, grad);
        vec v = vec_fma(grad, grad, vec_load(v_stream + i));
        vec denominator = vec_add(vec_sqrt(v), epsilon);
        weight = vec_one_nan(vec_fma(minus_rate, vec_div(grad, denominator), weight));
        vec_store(v_stream + i, vec_one_nan(v));
        vec_store(master + i, weight);
        store_working_copy(params, param_type, i, weight);
    }
}

ADAM_INLINE void adagrad_l2(const adagrad_args *args, const adami_adagrad_scalars *scalars,
                            uint64_t begin, uint64_t end, enum dtype grad_type,
                            enum dtype param_type)
{
    if (scalars->l2 != 0)
        adagrad_loop(args, scalars, begin, end, grad_type, param_type, true);
    else
        adagrad_loop(args, scalars, begin, end, grad_type, param_type, false);
}

ADAM_INLINE void adagrad_params(const adagrad_args *args, const adami_adagrad_scalars *scalars,
                                uint64_t begin, uint64_t end, enum dtype grad_type)
{
    if (args->param_type == DTYPE_FP32)
        adagrad_l2(args, scalars, begin, end, grad_type, DTYPE_FP32);
    else if (args->param_type == DTYPE_BF16)
        adagrad_l2(args, scalars, begin, end, grad_type, DTYPE_BF16);
    else
        adagrad_l2(args, scalars, begin, end, grad_type, DTYPE_FP16);
}

static void vector_adagrad(const adagrad_args *args, const adami_adagrad_scalars *scalars,
                           uint64_t begin, uint64_t end)
{
    uint64_t whole_end = begin + (end - begin) / VEC_ELEMS * VEC_ELEMS;
    if (args->grad_type == DTYPE_FP32)
        adagrad_params(args, scalars, begin, whole_end, DTYPE_FP32);
    else if (args->grad_type == DTYPE_BF16)
        adagrad_params(args, scalars, begin, whole_end, DTYPE_BF16);
    else
        adagrad_params(args, scalars, begin, whole_end, DTYPE_FP16);
    adami_reference.adagrad(args, scalars, whole_end, end);
}

#endif
