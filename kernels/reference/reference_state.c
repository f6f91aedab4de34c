/* Adam on packed state in the reference backend: the textbook step in double on the widened values.
 * The formats of base/tile.h are computed in real numbers, after the definitions in
 * kernels/cpu/optimizer/adam_state.c: a code is found by searching for the values on both sides.
 * The random bits are the same as in the other backends. Results differ only where the rounding to
 * fp32 decides: rarely, and then a code differs by one. */
#include <math.h>

#include "base/tile.h"
#include "kernels/cpu/optimizer/adam_state_internal.h"
#include "kernels/reference/reference_internal.h"

/* The value of a code at scale 1: base * ((1 + (code & 7) / 8) 2^(code >> 3) - 1). */
static double code_value(bool is_signed, uint32_t code)
{
    return ldexp(ldexp(1.0 + (code & 7) / 8.0, (int)(code >> 3)) - 1.0, is_signed ? -16 : -32);
}

static uint8_t *codes_at(void *stream, uint64_t i)
{
    return (uint8_t *)stream + i / TILE_CODE_BLOCK_ELEMS * TILE_CODE_BLOCK_BYTES +
           i % TILE_CODE_BLOCK_ELEMS;
}

static float *scale_at(void *stream, uint64_t i)
{
    uint8_t *codes = codes_at(stream, i - i % TILE_CODE_BLOCK_ELEMS);
    return (float *)(codes + TILE_CODE_BLOCK_ELEMS) + i % TILE_CODE_BLOCK_ELEMS / TILE_SCALE_ELEMS;
}

static double load_moment(void *stream, enum tile_format format, bool is_signed, uint64_t i)
{
    if (format != TILE_INT8)
        return refi_load(format == TILE_FP32 ? DTYPE_FP32 : DTYPE_BF16, stream, i);
    uint32_t code = *codes_at(stream, i);
    double scale = (double)*scale_at(stream, i);
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
    *scale_at(stream, block) = scale;
    for (uint64_t n = 0; n < count; n++) {
        uint8_t *code = codes_at(stream, block + n);
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

/* Updates one block of up to TILE_SCALE_ELEMS elements. */
static void update_block(const adam_packed_args *args, const adami_rounding *rounding,
                         uint64_t block, uint64_t count)
{
    const adam_scalars *s = args->scalars;
    enum tile_format m_format = tile_stream_format(args->streams, 1);
    enum tile_format v_format = tile_stream_format(args->streams, 2);
    bool is_split = tile_master_is_split(args->streams);
    double decay = (double)s->weight_decay, new_m[TILE_SCALE_ELEMS], new_v[TILE_SCALE_ELEMS];
    for (uint64_t n = 0; n < count; n++) {
        uint64_t i = block + n;
        uint16_t *low = args->master, *copy = args->params;
        double w =
            is_split ? (double)master_join(copy[i], low[i]) : (double)((float *)args->master)[i];
        double g = refi_load(args->grad_type, args->grads, i) * (double)s->grad_scale;
        if (!s->decoupled)
            g += decay * w;
        double m = (double)s->beta1 * load_moment(args->m, m_format, true, i) +
                   (1.0 - (double)s->beta1) * g;
        double v = (double)s->beta2 * load_moment(args->v, v_format, false, i) +
                   (1.0 - (double)s->beta2) * g * g;
        double step = m / (double)s->bias_correction1 /
                      (sqrt(v) / (double)s->bias_correction2_sqrt + (double)s->epsilon);
        if (s->decoupled)
            step += decay * w;
        float master = (float)(w - (double)s->learning_rate * step);
        uint32_t random = adami_random_bits(rounding, i);
        new_m[n] = m;
        new_v[n] = v;
        store_moment(args->m, m_format, i, m, random & 0xffff);
        store_moment(args->v, v_format, i, v, random >> 16);
        if (is_split)
            low[i] = isnan(master) ? 0 : master_low16(master);
        else
            ((float *)args->master)[i] = master;
        if (args->param_type == DTYPE_BF16)
            copy[i] = bf16_working_copy(master);
        else
            refi_store(args->param_type, args->params, i, (double)master);
    }
    if (m_format == TILE_INT8)
        store_codes(args->m, true, block, count, new_m, rounding);
    if (v_format == TILE_INT8)
        store_codes(args->v, false, block, count, new_v, rounding);
}

int refi_adam_packed(kernel_context *context, void *stream, const adam_packed_args *args)
{
    (void)context;
    (void)stream;
    TRY(adami_packed_check(args));
    for (uint64_t block = 0; block < args->count; block += TILE_SCALE_ELEMS) {
        adami_rounding rounding = adami_rounding_at(args->rounding_key, args->first_elem + block);
        rounding.elem -= (uint32_t)block; /* of element 0 */
        update_block(args, &rounding, block, size_min(TILE_SCALE_ELEMS, args->count - block));
    }
    return 0;
}
