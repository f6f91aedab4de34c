/* The loops of Lion and Adagrad over the vectors that adam_body.h lists, and the choice among all
 * loops on fp32 state. The files of the instruction sets include it after adam_body.h. The rules
 * are the same as for Adam: types are constants at each call, all loads of a step come before its
 * stores, and the reference computes the last elements of a range. */
#ifndef SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_SIBLINGS_BODY_H
#define SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_SIBLINGS_BODY_H

#include "kernels/cpu/optimizer/adam_body.h"

/* ---- Lion ---- */

/* Updates elements [begin, end); end - begin is a multiple of GROUP_ELEMS. */
ADAM_INLINE void lion_loop(const adami_work *work, uint64_t begin, uint64_t end,
                           enum dtype grad_type, enum dtype param_type)
{
    const adami_lion_scalars *scalars = &work->scalars.lion;
    const vec grad_scale = vec_set(scalars->grad_scale), decay = vec_set(scalars->decay);
    const vec beta1 = vec_set(scalars->beta1), beta2 = vec_set(scalars->beta2);
    const vec one_minus_beta1 = vec_set(scalars->one_minus_beta1);
    const vec one_minus_beta2 = vec_set(scalars->one_minus_beta2);
    const vec rate = vec_set(scalars->learning_rate);
    float *master = work->master, *m_stream = work->state[0];
    const void *grads = work->grads;
    void *params = work->params;
    const uint64_t param_bytes = dtype_bytes(param_type);
    const bool is_streamed = may_stream(params, param_bytes, grads, master, begin, work->count);
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

/* ---- Adagrad ---- */

ADAM_INLINE void adagrad_loop(const adami_work *work, uint64_t begin, uint64_t end,
                              enum dtype grad_type, enum dtype param_type)
{
    const adami_adagrad_scalars *scalars = &work->scalars.adagrad;
    const vec grad_scale = vec_set(scalars->grad_scale), l2 = vec_set(scalars->l2);
    const vec epsilon = vec_set(scalars->epsilon), minus_rate = vec_set(scalars->minus_rate);
    float *master = work->master, *v_stream = work->state[0];
    const void *grads = work->grads;
    void *params = work->params;
    const bool has_l2 = scalars->l2 != 0;
    const uint64_t param_bytes = dtype_bytes(param_type);
    const bool is_streamed = may_stream(params, param_bytes, grads, master, begin, work->count);
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

/* ---- choice of the loop ---- */

enum vector_rule { RULE_ADAM, RULE_LION, RULE_ADAGRAD, RULE_COPY };

/* All arguments except begin and end are constants at each call. */
ADAM_INLINE void loop_of(enum vector_rule rule, const adami_work *work, uint64_t begin,
                         uint64_t end, enum dtype grad_type, enum dtype param_type)
{
    if (rule == RULE_ADAM)
        update_loop(work, begin, end, grad_type, param_type);
    else if (rule == RULE_LION)
        lion_loop(work, begin, end, grad_type, param_type);
    else if (rule == RULE_ADAGRAD)
        adagrad_loop(work, begin, end, grad_type, param_type);
    else
        copy_loop(work, begin, end, param_type);
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
 * those groups. */
ADAM_INLINE uint64_t vector_groups(enum vector_rule rule, const adami_work *work, uint64_t begin,
                                   uint64_t end)
{
    uint64_t whole_end = groups_end(begin, end);
    if (rule == RULE_COPY || work->grad_type == DTYPE_FP32)
        loop_of_grads(rule, work, begin, whole_end, DTYPE_FP32);
    else if (work->grad_type == DTYPE_BF16)
        loop_of_grads(rule, work, begin, whole_end, DTYPE_BF16);
    else
        loop_of_grads(rule, work, begin, whole_end, DTYPE_FP16);
    return whole_end;
}

static void vector_update(const adami_work *work, uint64_t begin, uint64_t end)
{
    adami_reference.update(work, vector_groups(RULE_ADAM, work, begin, end), end);
}

static void vector_lion(const adami_work *work, uint64_t begin, uint64_t end)
{
    adami_reference.lion(work, vector_groups(RULE_LION, work, begin, end), end);
}

static void vector_adagrad(const adami_work *work, uint64_t begin, uint64_t end)
{
    adami_reference.adagrad(work, vector_groups(RULE_ADAGRAD, work, begin, end), end);
}

static void vector_copy(const adami_work *work, uint64_t begin, uint64_t end)
{
    adami_reference.copy(work, vector_groups(RULE_COPY, work, begin, end), end);
}

#endif
