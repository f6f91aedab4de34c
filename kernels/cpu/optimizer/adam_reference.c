/* Adam, Lion and Adagrad in plain C, one element after another: the definitions of adam.c and
 * adam_state.c as code. The vector variants also call it for the last elements of a range, which do
 * not fill a group of vectors, or a block of TILE_SCALE_ELEMS. Any thread may run it; it allocates
 * nothing. It is compiled without contraction, so only fmaf is fused. */
#include <math.h>

#include "kernels/cpu/optimizer/adam_state_internal.h"

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

/* Updates an element's m and v and returns the new weight. */
static float adam_step(const adami_scalars *s, float weight, float grad, float *m, float *v)
{
    grad *= s->grad_scale;
    if (s->l2 != 0)
        grad = fmaf(s->l2, weight, grad);
    float new_m = fmaf(s->beta1, *m, s->one_minus_beta1 * grad);
    float new_v = fmaf(s->beta2, *v, (s->one_minus_beta2 * grad) * grad);
    float denominator = fmaf(sqrtf(new_v), s->correction2, s->epsilon);
    *m = one_nan(new_m);
    *v = one_nan(new_v);
    return one_nan(fmaf(s->minus_step, new_m / denominator, weight * s->decay));
}

static void reference_adam(const adami_work *work, uint64_t begin, uint64_t end)
{
    for (uint64_t i = begin; i < end; i++) {
        float grad = load_element(work->grads, work->grad_type, i);
        float weight = adam_step(&work->scalars, work->master[i], grad, &work->state[0][i],
                                 &work->state[1][i]);
        work->master[i] = weight;
        store_working_copy(work->params, work->param_type, i, weight);
    }
}

/* minus_rate * sign(direction): +0 for zero of either sign, NaN for NaN. */
static float step_against(float direction, float minus_rate)
{
    if (direction > 0)
        return minus_rate;
    if (direction < 0)
        return -minus_rate;
    return direction == 0 ? 0.0f : direction;
}

static void reference_lion(const adami_work *work, uint64_t begin, uint64_t end)
{
    const adami_scalars *s = &work->scalars;
    float *m_stream = work->state[0];
    for (uint64_t i = begin; i < end; i++) {
        float weight = work->master[i], m = m_stream[i];
        float grad = load_element(work->grads, work->grad_type, i) * s->grad_scale;
        float direction = fmaf(s->beta1, m, s->one_minus_beta1 * grad);
        m = fmaf(s->beta2, m, s->one_minus_beta2 * grad);
        weight = one_nan(fmaf(weight, s->decay, step_against(direction, s->minus_step)));
        m_stream[i] = one_nan(m);
        work->master[i] = weight;
        store_working_copy(work->params, work->param_type, i, weight);
    }
}

static void reference_adagrad(const adami_work *work, uint64_t begin, uint64_t end)
{
    const adami_scalars *s = &work->scalars;
    float *v_stream = work->state[0];
    for (uint64_t i = begin; i < end; i++) {
        float weight = work->master[i];
        float grad = load_element(work->grads, work->grad_type, i) * s->grad_scale;
        if (s->l2 != 0)
            grad = fmaf(s->l2, weight, grad);
        float v = fmaf(grad, grad, v_stream[i]);
        float denominator = sqrtf(v) + s->epsilon;
        weight = one_nan(fmaf(s->minus_step, grad / denominator, weight));
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
            if (args->grads != args->accumulator)
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

/* ---- packed state ---- */

static float load_moment(void *stream, enum tile_format format, bool is_signed, uint64_t i)
{
    if (format == TILE_FP32)
        return ((float *)stream)[i];
    if (format == TILE_BF16)
        return fp32_from_bf16(((uint16_t *)stream)[i]);
    uint32_t code = *adami_codes_at(stream, i);
    float scale = *adami_scale_at(stream, i);
    if (!is_signed)
        return adami_decode(code, scale, ADAMI_CODE_V_BASE);
    float magnitude = adami_decode(code & ADAMI_CODE_M_TOP, scale, ADAMI_CODE_M_BASE);
    return code & ADAMI_CODE_SIGN ? -magnitude : magnitude;
}

/* Stores the codes and the scale of `count` new values, for the block that begins at element i. */
static void store_codes(void *stream, bool is_signed, uint64_t i, const float *values,
                        uint64_t count, const adami_rounding *rounding)
{
    uint32_t top = is_signed ? ADAMI_CODE_M_TOP : ADAMI_CODE_V_TOP;
    uint32_t base = is_signed ? ADAMI_CODE_M_BASE : ADAMI_CODE_V_BASE, largest = 0;
    for (uint64_t n = 0; n < count; n++) {
        uint32_t magnitude = fp32_bits(values[n]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    float scale = adami_block_scale(largest, is_signed ? ADAMI_CODE_M_SCALE : ADAMI_CODE_V_SCALE);
    uint8_t *codes = adami_codes_at(stream, i);
    *adami_scale_at(stream, i) = scale;
    if (!(scale > 0)) {
        memset(codes, 0, count);
        return;
    }
    float inverse = 1.0f / scale;
    for (uint64_t n = 0; n < count; n++) {
        uint32_t bits = fp32_bits(values[n]), magnitude = bits & 0x7fffffffu;
        uint32_t random = adami_random_bits(rounding, i + n);
        random = is_signed ? random & 0xffff : random >> 16;
        uint32_t code = adami_encode(fp32_from_bits(magnitude), inverse, base, random);
        code = code > top ? top : code;
        if (is_signed)
            code |= bits >> 24 & ADAMI_CODE_SIGN;
        else if (code == 0 && magnitude != 0)
            code = 1;
        codes[n] = (uint8_t)code;
    }
}

static void store_moment(void *stream, enum tile_format format, uint64_t i, float value,
                         uint32_t random16)
{
    if (format == TILE_FP32)
        ((float *)stream)[i] = value;
    else if (format == TILE_BF16)
        ((uint16_t *)stream)[i] = adami_round_bf16(value, random16);
}

static float load_master(const update_args *args, uint64_t i)
{
    if (tile_master_is_split(args->streams))
        return master_join(((uint16_t *)args->params)[i], ((uint16_t *)args->master)[i]);
    return ((float *)args->master)[i];
}

static void store_master(const update_args *args, uint64_t i, float master)
{
    if (tile_master_is_split(args->streams))
        ((uint16_t *)args->master)[i] = master_low16(master);
    else
        ((float *)args->master)[i] = master;
    store_working_copy(args->params, args->param_type, i, master);
}

static void reference_update_packed(const adami_work *work, uint64_t begin, uint64_t end)
{
    const update_args *args = work->packed;
    const adami_scalars *s = &work->scalars;
    const adami_rounding *rounding = work->rounding;
    enum tile_format m_format = tile_stream_format(args->streams, 1);
    enum tile_format v_format = tile_stream_format(args->streams, 2);
    float new_m[TILE_SCALE_ELEMS], new_v[TILE_SCALE_ELEMS];
    for (uint64_t block = begin; block < end; block += TILE_SCALE_ELEMS) {
        uint64_t count = size_min(TILE_SCALE_ELEMS, end - block);
        for (uint64_t n = 0; n < count; n++) {
            uint64_t i = block + n;
            float grad = load_element(args->grads, args->grad_type, i);
            new_m[n] = load_moment(args->m, m_format, true, i);
            new_v[n] = load_moment(args->v, v_format, false, i);
            float weight = adam_step(s, load_master(args, i), grad, &new_m[n], &new_v[n]);
            uint32_t random = adami_random_bits(rounding, i);
            store_moment(args->m, m_format, i, new_m[n], random & 0xffff);
            store_moment(args->v, v_format, i, new_v[n], random >> 16);
            store_master(args, i, weight);
        }
        if (m_format == TILE_INT8)
            store_codes(args->m, true, block, new_m, count, rounding);
        if (v_format == TILE_INT8)
            store_codes(args->v, false, block, new_v, count, rounding);
    }
}

const struct adam_variant adami_reference = {
    .name = "reference",
    .update = {[UPDATE_ADAM] = reference_adam,
               [UPDATE_LION] = reference_lion,
               [UPDATE_ADAGRAD] = reference_adagrad},
    .update_packed = reference_update_packed,
    .copy = reference_copy,
    .close = reference_close,
};
