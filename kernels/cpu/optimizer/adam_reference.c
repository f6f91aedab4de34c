/* Adam, Lion and Adagrad in plain C, one element after another: the definitions of adam.c as code.
 * The vector variants also call it for the last elements of a range, which do not fill a group of
 * vectors. Any thread may run it; it allocates nothing. It is compiled without contraction, so only
 * fmaf is fused. */
#include <math.h>

#include "kernels/cpu/optimizer/adam_internal.h"

static float load_element(const void *source, enum dtype type, uint64_t i)
{
    if (type == DTYPE_FP32)
        return ((const float *)source)[i];
    uint16_t half;
    memcpy(&half, (const char *)source + 2 * i, sizeof half);
    return type == DTYPE_BF16 ? fp32_from_bf16(half) : fp32_from_fp16(half);
}

static void store_working_copy(void *params, enum dtype type, uint64_t i, float master)
{
    if (type == DTYPE_FP32) {
        ((float *)params)[i] = master;
        return;
    }
    ((uint16_t *)params)[i] =
        type == DTYPE_BF16 ? bf16_working_copy(master) : fp16_from_fp32(master);
}

static float one_nan(float value)
{
    return value == value ? value : fp32_from_bits(ADAMI_QUIET_NAN_BITS);
}

static void reference_update(const adami_work *work, uint64_t begin, uint64_t end)
{
    const adami_scalars *s = &work->scalars.adam;
    float *m_stream = work->state[0], *v_stream = work->state[1];
    for (uint64_t i = begin; i < end; i++) {
        float weight = work->master[i];
        float grad = load_element(work->grads, work->grad_type, i) * s->grad_scale;
        if (s->l2 != 0)
            grad = fmaf(s->l2, weight, grad);
        float m = fmaf(s->beta1, m_stream[i], s->one_minus_beta1 * grad);
        float v = fmaf(s->beta2, v_stream[i], (s->one_minus_beta2 * grad) * grad);
        float denominator = fmaf(sqrtf(v), s->correction2, s->epsilon);
        weight = one_nan(fmaf(s->minus_step, m / denominator, weight * s->decay));
        m_stream[i] = one_nan(m);
        v_stream[i] = one_nan(v);
        work->master[i] = weight;
        store_working_copy(work->params, work->param_type, i, weight);
    }
}

/* -rate * sign(direction): +0 for zero of either sign, NaN for NaN. */
static float step_against(float direction, float rate)
{
    if (direction > 0)
        return -rate;
    if (direction < 0)
        return rate;
    return direction == 0 ? 0.0f : direction;
}

static void reference_lion(const adami_work *work, uint64_t begin, uint64_t end)
{
    const adami_lion_scalars *s = &work->scalars.lion;
    float *m_stream = work->state[0];
    for (uint64_t i = begin; i < end; i++) {
        float weight = work->master[i], m = m_stream[i];
        float grad = load_element(work->grads, work->grad_type, i) * s->grad_scale;
        float direction = fmaf(s->beta1, m, s->one_minus_beta1 * grad);
        m = fmaf(s->beta2, m, s->one_minus_beta2 * grad);
        weight = one_nan(fmaf(weight, s->decay, step_against(direction, s->learning_rate)));
        m_stream[i] = one_nan(m);
        work->master[i] = weight;
        store_working_copy(work->params, work->param_type, i, weight);
    }
}

static void reference_adagrad(const adami_work *work, uint64_t begin, uint64_t end)
{
    const adami_adagrad_scalars *s = &work->scalars.adagrad;
    float *v_stream = work->state[0];
    for (uint64_t i = begin; i < end; i++) {
        float weight = work->master[i];
        float grad = load_element(work->grads, work->grad_type, i) * s->grad_scale;
        if (s->l2 != 0)
            grad = fmaf(s->l2, weight, grad);
        float v = fmaf(grad, grad, v_stream[i]);
        float denominator = sqrtf(v) + s->epsilon;
        weight = one_nan(fmaf(s->minus_rate, grad / denominator, weight));
        v_stream[i] = one_nan(v);
        work->master[i] = weight;
        store_working_copy(work->params, work->param_type, i, weight);
    }
}

static void reference_copy(const adami_work *work, uint64_t begin, uint64_t end)
{
    for (uint64_t i = begin; i < end; i++)
        store_working_copy(work->params, work->param_type, i, work->master[i]);
}

static void reference_close(const grad_close_args *args, uint64_t block_idx,
                            double lanes[ADAMI_SUM_LANES])
{
    uint64_t begin = block_idx * ADAMI_BLOCK_ELEMS;
    for (int lane = 0; lane < ADAMI_SUM_LANES; lane++)
        lanes[lane] = 0;
    for (uint64_t i = begin; i < begin + ADAMI_BLOCK_ELEMS; i++) {
        float rounded = args->accumulator[i];
        if (args->grad_type == DTYPE_FP32) {
            ((float *)args->grads)[i] = rounded;
        } else {
            bool is_bf16 = args->grad_type == DTYPE_BF16;
            uint16_t half = is_bf16 ? bf16_from_fp32(rounded) : fp16_from_fp32(rounded);
            ((uint16_t *)args->grads)[i] = half;
            rounded = is_bf16 ? fp32_from_bf16(half) : fp32_from_fp16(half);
        }
        lanes[i % ADAMI_SUM_LANES] += (double)rounded * (double)rounded;
    }
}

const struct adam_variant adami_reference = {
    .name = "reference",
    .update = reference_update,
    .lion = reference_lion,
    .adagrad = reference_adagrad,
    .copy = reference_copy,
    .close = reference_close,
};
