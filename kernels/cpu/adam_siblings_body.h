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
    const uint64_t param_bytes = dtype_bytes(param_type);
    const bool is_streamed = may_stream(params, param_bytes, grads, master, begin, args->count);
    for (uint64_t i = begin; i < end; i += GROUP_ELEMS) {
        fetch_ahead(master, 4, i);
        fetch_ahead(m_stream, 4, i);
        fetch_ahead(grads, dtype_bytes(grad_type), i);
        if (!is_streamed)
            fetch_ahead(params, param_bytes, i);
        vec weight[GROUP_VECS], m[GROUP_VECS], grad[GROUP_VECS];
        load_group(master, DTYPE_FP32, i, weight);
        load_group(m_stream, DTYPE_FP32, i, m);
        load_group(grads, grad_type, i, grad);
        for (int k = 0; k < GROUP_VECS; k++) {
            vec g = vec_mul(grad[k], grad_scale);
            vec direction = vec_fma(beta1, m[k], vec_mul(one_minus_beta1, g));
            m[k] = vec_one_nan(vec_fma(beta2, m[k], vec_mul(one_minus_beta2, g)));
            weight[k] = vec_one_nan(vec_fma(weight[k], decay, vec_step_against(direction, rate)));
        }
        store_floats(m_stream, i, m, false);
        store_floats(master, i, weight, false);
        store_working_copy(params, param_type, i, weight, is_streamed);
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
    uint64_t whole_end = groups_end(begin, end);
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
                              enum dtype param_type)
{
    const vec grad_scale = vec_set(scalars->grad_scale), l2 = vec_set(scalars->l2);
    const vec epsilon = vec_set(scalars->epsilon), minus_rate = vec_set(scalars->minus_rate);
    float *master = args->master, *v_stream = args->v;
    const void *grads = args->grads;
    void *params = args->params;
    const bool has_l2 = scalars->l2 != 0;
    const uint64_t param_bytes = dtype_bytes(param_type);
    const bool is_streamed = may_stream(params, param_bytes, grads, master, begin, args->count);
    for (uint64_t i = begin; i < end; i += GROUP_ELEMS) {
        fetch_ahead(master, 4, i);
        fetch_ahead(v_stream, 4, i);
        fetch_ahead(grads, dtype_bytes(grad_type), i);
        if (!is_streamed)
            fetch_ahead(params, param_bytes, i);
        vec weight[GROUP_VECS], v[GROUP_VECS], grad[GROUP_VECS];
        load_group(master, DTYPE_FP32, i, weight);
        load_group(v_stream, DTYPE_FP32, i, v);
        load_group(grads, grad_type, i, grad);
        for (int k = 0; k < GROUP_VECS; k++) {
            vec g = vec_mul(grad[k], grad_scale);
            if (has_l2)
                g = vec_fma(l2, weight[k], g);
            v[k] = vec_fma(g, g, v[k]);
            vec denominator = vec_add(vec_sqrt(v[k]), epsilon);
            weight[k] = vec_one_nan(vec_fma(minus_rate, vec_div(g, denominator), weight[k]));
            v[k] = vec_one_nan(v[k]);
        }
        store_floats(v_stream, i, v, false);
        store_floats(master, i, weight, false);
        store_working_copy(params, param_type, i, weight, is_streamed);
    }
}

ADAM_INLINE void adagrad_params(const adagrad_args *args, const adami_adagrad_scalars *scalars,
                                uint64_t begin, uint64_t end, enum dtype grad_type)
{
    if (args->param_type == DTYPE_FP32)
        adagrad_loop(args, scalars, begin, end, grad_type, DTYPE_FP32);
    else if (args->param_type == DTYPE_BF16)
        adagrad_loop(args, scalars, begin, end, grad_type, DTYPE_BF16);
    else
        adagrad_loop(args, scalars, begin, end, grad_type, DTYPE_FP16);
}

static void vector_adagrad(const adagrad_args *args, const adami_adagrad_scalars *scalars,
                           uint64_t begin, uint64_t end)
{
    uint64_t whole_end = groups_end(begin, end);
    if (args->grad_type == DTYPE_FP32)
        adagrad_params(args, scalars, begin, whole_end, DTYPE_FP32);
    else if (args->grad_type == DTYPE_BF16)
        adagrad_params(args, scalars, begin, whole_end, DTYPE_BF16);
    else
        adagrad_params(args, scalars, begin, whole_end, DTYPE_FP16);
    adami_reference.adagrad(args, scalars, whole_end, end);
}

#endif
