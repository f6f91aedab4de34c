/* Gradient closing, norms, optimizers and working copies of the reference backend. Adam (Loshchilov
 * and Hutter, "Decoupled weight decay regularization", algorithm 2), Lion (Chen et al. 2023) and
 * Adagrad (Duchi et al. 2011) are the textbook forms in double: the backends are compared with them
 * within a tolerance. kernels/cpu/optimizer has the bit-exact definitions.
 *
 * Adam on packed state is the same step on the widened values. The formats of base/tile.h are
 * computed in real numbers, after the definitions in kernels/cpu/optimizer/adam_state.c: a code is
 * found by searching for the values on both sides. The random bits are the same as in the other
 * backends. Results differ only where the rounding to fp32 decides: rarely, and then a code differs
 * by one. */
#include <math.h>

#include "base/tile.h"
#include "kernels/cpu/optimizer/adam_state_internal.h"
#include "kernels/reference/reference_internal.h"

int refi_grad_close(kernel_context *context, void *stream, const grad_close_args *args)
{
    for (uint64_t block = 0; block < args->count / SHARD_ELEMS_STEP; block++) {
        double sum = 0.0;
        for (uint64_t i = 0; i < SHARD_ELEMS_STEP; i++) {
            uint64_t at = block * SHARD_ELEMS_STEP + i;
            if (args->grads != args->accumulator)
                refi_store(args->grad_type, args->grads, at, (double)args->accumulator[at]);
            double rounded = refi_load(args->grad_type, args->grads, at);
            sum += rounded * rounded;
        }
        args->block_sums[block] = sum;
    }
    return 0;
}

/* The sum in a binary tree: the left subtree holds the largest power of two below `count`
 * leaves. */
static double tree_sum(const double *sums, uint64_t count)
{
    if (count <= 1)
        return count ? sums[0] : 0.0;
    uint64_t left = 1;
    while (2 * left < count)
        left *= 2;
    return tree_sum(sums, left) + tree_sum(sums + left, count - left);
}

int refi_norm_reduce(kernel_context *context, void *stream, const double *sums, uint64_t count,
                     double *total)
{
    *total = tree_sum(sums, count);
    return 0;
}

static void store_working_copy(void *params, enum dtype type, uint64_t i, float master)
{
    if (type == DTYPE_BF16)
        ((uint16_t *)params)[i] = bf16_working_copy(master);
    else
        refi_store(type, params, i, (double)master);
}

int refi_working_copy(kernel_context *context, void *stream, const float *master, void *params,
                      enum dtype param_type, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        store_working_copy(params, param_type, i, master[i]);
    return 0;
}

/* ---- updates ---- */

/* The value of a code at scale 1: base * ((1 + (code & 7) / 8) 2^(code >> 3) - 1). */
static double code_value(bool is_signed, uint32_t code)
{
    return ldexp(ldexp(1.0 + (code & 7) / 8.0, (int)(code >> 3)) - 1.0, is_signed ? -16 : -32);
}

static double load_moment(void *stream, enum tile_format format, bool is_signed, uint64_t i)
{
    if (format != TILE_INT8)
        return refi_load(format == TILE_FP32 ? DTYPE_FP32 : DTYPE_BF16, stream, i);
    uint32_t code = *adami_codes_at(stream, i);
    double scale = (double)*adami_scale_at(stream, i);
    if (!is_signed)
        return code_value(false, code) * scale;
    return code_value(true, code & 127) * (code & 128 ? -scale : scale);
}

/* The code of a magnitude that is given in units of the scale. */
static uint32_t find_code(bool is_signed, double magnitude, uint32_t random16)
{
    uint32_t code = 0, top = is_signed ? 127 : 255;
    while (code < top && code_value(is_signed, code + 1) <= magnitude)
        code++;
    if (code == top)
        return top;
    double below = code_value(is_signed, code), above = code_value(is_signed, code + 1);
    double part = floor((magnitude - below) / (above - below) * 65536.0 + 0.5);
    return code + (part + random16 >= 65536.0);
}

static void store_codes(void *stream, bool is_signed, uint64_t block, uint64_t count,
                        const double *values, const adami_rounding *rounding)
{
    double largest = 0;
    for (uint64_t n = 0; n < count; n++)
        if (fabs(values[n]) > largest || isnan(values[n]))
            largest = fabs(values[n]);
    float scale = (float)(largest / code_value(is_signed, is_signed ? 127 : 255));
    if (!isfinite(scale))
        scale = NAN;
    else if (largest < 0x1p-126)
        scale = 0;
    *adami_scale_at(stream, block) = scale;
    for (uint64_t n = 0; n < count; n++) {
        uint8_t *code = adami_codes_at(stream, block + n);
        *code = 0;
        if (!(scale > 0))
            continue;
        uint32_t random = adami_random_bits(rounding, block + n);
        *code = (uint8_t)find_code(is_signed, fabs(values[n]) / (double)scale,
                                   is_signed ? random & 0xffff : random >> 16);
        if (is_signed && signbit(values[n]))
            *code |= 128;
        else if (!is_signed && *code == 0 && values[n] != 0)
            *code = 1;
    }
}

static void store_moment(void *stream, enum tile_format format, uint64_t i, double value,
                         uint32_t random16)
{
    if (format == TILE_FP32)
        ((float *)stream)[i] = (float)value;
    else if (format == TILE_BF16)
        ((uint16_t *)stream)[i] =
            isnan(value) ? 0x7fc0 : (uint16_t)((fp32_bits((float)value) + random16) >> 16);
}

/* The new values of an element, in double. */
struct element {
    double w, m, v;
};

/* The rules of enum update_rule in the textbook's form. g is multiplied by grad_scale already. */
static void update_element(const update_args *args, double g, struct element *at)
{
    const update_scalars *s = args->scalars;
    double lr = (double)s->learning_rate, decay = (double)s->weight_decay;
    double beta1 = (double)s->beta1, beta2 = (double)s->beta2;
    if (args->rule == UPDATE_LION) {
        double c = beta1 * at->m + (1.0 - beta1) * g;
        double sign = c > 0 ? 1.0 : c < 0 ? -1.0 : c; /* sign(0) is 0; NaN stays NaN */
        at->m = beta2 * at->m + (1.0 - beta2) * g;
        at->w = at->w * (1.0 - lr * decay) - lr * sign;
        return;
    }
    if (args->rule == UPDATE_ADAGRAD) {
        g += decay * at->w;
        at->v += g * g;
        at->w -= lr * g / (sqrt(at->v) + (double)s->epsilon);
        return;
    }
    if (!s->decoupled)
        g += decay * at->w;
    at->m = beta1 * at->m + (1.0 - beta1) * g;
    at->v = beta2 * at->v + (1.0 - beta2) * g * g;
    double step = at->m / (double)s->bias_correction1 /
                  (sqrt(at->v) / (double)s->bias_correction2_sqrt + (double)s->epsilon);
    if (s->decoupled)
        step += decay * at->w;
    at->w -= lr * step;
}

/* Updates one block of up to TILE_SCALE_ELEMS elements. */
static void update_block(const update_args *args, const adami_rounding *rounding, uint64_t block,
                         uint64_t count)
{
    enum tile_format m_format = tile_stream_format(args->streams, 1);
    enum tile_format v_format = tile_stream_format(args->streams, 2);
    bool is_split = tile_master_is_split(args->streams);
    double new_m[TILE_SCALE_ELEMS], new_v[TILE_SCALE_ELEMS];
    for (uint64_t n = 0; n < count; n++) {
        uint64_t i = block + n;
        uint16_t *low = args->master, *copy = args->params;
        double g = refi_load(args->grad_type, args->grads, i) * (double)args->scalars->grad_scale;
        struct element at = {
            .w = is_split ? (double)master_join(copy[i], low[i])
                          : (double)((float *)args->master)[i],
            .m = args->m ? load_moment(args->m, m_format, true, i) : 0,
            .v = args->v ? load_moment(args->v, v_format, false, i) : 0,
        };
        update_element(args, g, &at);
        float master = (float)at.w;
        uint32_t random = adami_random_bits(rounding, i);
        new_m[n] = at.m;
        new_v[n] = at.v;
        if (args->m)
            store_moment(args->m, m_format, i, at.m, random & 0xffff);
        if (args->v)
            store_moment(args->v, v_format, i, at.v, random >> 16);
        if (is_split)
            low[i] = isnan(master) ? 0 : master_low16(master);
        else
            ((float *)args->master)[i] = master;
        store_working_copy(args->params, args->param_type, i, master);
    }
    if (m_format == TILE_INT8)
        store_codes(args->m, true, block, count, new_m, rounding);
    if (v_format == TILE_INT8)
        store_codes(args->v, false, block, count, new_v, rounding);
}

int refi_update(kernel_context *context, void *stream, const update_args *args)
{
    if (tile_has_formats(args->streams))
        TRY(adami_packed_check(args));
    for (uint64_t block = 0; block < args->count; block += TILE_SCALE_ELEMS) {
        adami_rounding rounding = adami_rounding_at(args->rounding_key, args->first_elem + block);
        rounding.elem -= (uint32_t)block; /* of element 0 */
        update_block(args, &rounding, block, size_min(TILE_SCALE_ELEMS, args->count - block));
    }
    return 0;
}
