/* The reference backend's stored formats: kernels/ops_stored.h written out, element by element. The
 * arithmetic is fp32 and not double, because its bits are the definition. */
#include <math.h>

#include "kernels/reference/reference_internal.h"
#include "kernels/stored_codes.h"

static const float nf4[16] = STORED_NF4_VALUES, fp4[16] = STORED_FP4_VALUES;
static const float e2m1[16] = STORED_E2M1_VALUES, dynamic[128] = STORED_DYNAMIC_VALUES;

/* ---- expanding ---- */

static float e4m3_value(unsigned code)
{
    int exponent = code >> 3 & 15, fraction = code & 7;
    float size =
        exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
    size = (code & 0x7f) == 0x7f ? NAN : size;
    return code & 0x80 ? -size : size;
}

static float code_value(enum stored_code code, const uint8_t *codes, uint64_t at)
{
    unsigned byte = codes[stored_code_is_half_byte(code) ? at / 2 : at];
    unsigned first = byte >> 4, second = byte & 15;
    switch (code) {
    case STORED_CODE_DYNAMIC:
        return stored_dynamic(dynamic, byte);
    case STORED_CODE_INT8:
        return (float)(int8_t)byte;
    case STORED_CODE_E4M3:
        return e4m3_value(byte);
    case STORED_CODE_NF4:
        return nf4[at % 2 ? second : first];
    case STORED_CODE_FP4:
        return fp4[at % 2 ? second : first];
    case STORED_CODE_E2M1:
        break;
    }
    return e2m1[at % 2 ? first : second];
}

static float scale_value(const stored_layout *layout, const void *scales, uint64_t idx)
{
    if (layout->scale == STORED_SCALE_FP32)
        return ((const float *)scales)[idx];
    if (layout->scale == STORED_SCALE_E8M0)
        return fp32_from_bits(stored_e8m0_bits(((const uint8_t *)scales)[idx]));
    struct stored_double parts = stored_double_of(scales, layout->scale_count);
    float product =
        stored_dynamic(dynamic, parts.codes[idx]) * parts.absmax[idx / STORED_DOUBLE_GROUP];
    return product + *parts.offset;
}

static void store(enum dtype type, void *target, uint64_t at, float value)
{
    dtype_convert(&value, DTYPE_FP32, (char *)target + at * dtype_bytes(type), type, 1);
}

int refi_stored_expand(kernel_context *context, void *stream, const stored_expand_args *args)
{
    stored_layout layout = stored_layout_of(args->format, args->rows, args->columns);
    for (uint64_t line = 0; line < layout.lines; line++)
        for (uint64_t i = 0; i < layout.line_elems; i++) {
            uint64_t at = line * layout.line_elems + i;
            uint64_t idx = line / layout.lines_per_scale * layout.line_runs + i / layout.run_elems;
            float scale = scale_value(&layout, args->scales, idx);
            float value = code_value(layout.code, args->codes, at) * scale;
            if (layout.code == STORED_CODE_INT8)
                value = value * (float)(1.0 / 127.0);
            store(args->type, args->target, at, value);
        }
    return 0;
}

/* ---- quantizing ---- */

/* The place of s among ascending values: the number of borders below it. */
static unsigned nearest(const float *values, unsigned count, float s)
{
    unsigned place = 0;
    while (place + 1 < count && (values[place] + values[place + 1]) / 2.0f < s)
        place++;
    return place;
}

static float limited(float s, float most)
{
    return s > most ? most : s > -most ? s : -most;
}

/* fp4's codes by value, -0 after 0. */
static unsigned half_byte_code(enum stored_code code, float s)
{
    static const uint8_t order[16] = {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3};
    float sorted[16];
    if (code == STORED_CODE_NF4)
        return nearest(nf4, 16, s);
    for (int i = 0; i < 16; i++)
        sorted[i] = fp4[order[i]];
    return order[nearest(sorted, 16, s)];
}

static unsigned dynamic_code(float s)
{
    float values[256];
    for (unsigned i = 0; i < 256; i++)
        values[i] = stored_dynamic(dynamic, i);
    int i = (int)(((limited(s, 1.0f) + 1.0f) * 0.5f) * 65535.0f + 0.5f);
    return nearest(values, 256, (float)i / 65535.0f * 2.0f - 1.0f);
}

/* To the nearest of 1 << fraction_bits values of each power of two from `least` on, and to
 * multiples of least / (1 << fraction_bits) below; ties to even. |x| is at most the format's
 * largest. */
static unsigned small_float_code(float x, int fraction_bits, int least_exponent, unsigned sign)
{
    int exponent = least_exponent, above;
    float size = fabsf(x);
    frexpf(size, &above); /* size < 2^above */
    if (size != 0.0f && above - 1 > least_exponent)
        exponent = above - 1;
    unsigned step = (unsigned)rintf(ldexpf(size, fraction_bits - exponent));
    /* a normal number's step counts from 1 << fraction_bits; a carry is the next exponent */
    unsigned code = step + ((unsigned)(exponent - least_exponent) << fraction_bits);
    return signbit(x) ? code | sign : code;
}

/* Stores the scale of elements with that largest magnitude. *factor: what to multiply by, or, for
 * `divides`, to divide by. */
static void make_scale(enum stored_code code, bool is_short, float most, void *scales, uint64_t idx,
                       float *factor, bool *divides)
{
    float scale = most, least = 1e-38f;
    switch (code) {
    case STORED_CODE_NF4:
    case STORED_CODE_FP4:
        *divides = is_short;
        scale = is_short && most < least ? least : most;
        *factor = is_short ? scale : 1.0f / (most < least ? least : most);
        break;
    case STORED_CODE_DYNAMIC:
        *divides = false;
        *factor = 1.0f / most;
        break;
    case STORED_CODE_INT8:
        *divides = false;
        *factor = 1.0f / most * 127.0f;
        break;
    case STORED_CODE_E4M3:
        *factor = scale = most / 448.0f;
        break;
    case STORED_CODE_E2M1: {
        unsigned exponent = fp32_bits(most) >> 23, e8m0 = exponent > 2 ? exponent - 2 : 0;
        ((uint8_t *)scales)[idx] = (uint8_t)e8m0;
        *factor = fp32_from_bits(stored_e8m0_bits(e8m0));
        return;
    }
    }
    ((float *)scales)[idx] = scale;
}

static unsigned code_of(enum stored_code code, float x, float factor, bool divides)
{
    float s = divides ? x / factor : x * factor;
    switch (code) {
    case STORED_CODE_DYNAMIC:
        return dynamic_code(s);
    case STORED_CODE_INT8:
        return isinf(factor) ? 0 : (uint8_t)(int8_t)rintf(limited(s, 127.0f));
    case STORED_CODE_E4M3:
        return factor == 0.0f ? 0 : small_float_code(limited(s, 448.0f), 3, -6, 0x80);
    case STORED_CODE_E2M1:
        return small_float_code(limited(s, 6.0f), 1, 0, 8);
    case STORED_CODE_NF4:
    case STORED_CODE_FP4:
        break;
    }
    return half_byte_code(code, limited(s, 1.0f));
}

static void put_code(enum stored_code code, uint8_t *codes, uint64_t at, unsigned value)
{
    bool is_upper = code == STORED_CODE_E2M1 ? at % 2 == 1 : at % 2 == 0;
    if (!stored_code_is_half_byte(code))
        codes[at] = (uint8_t)value;
    else if (at % 2 == 0)
        codes[at / 2] = (uint8_t)(is_upper ? value << 4 : value);
    else
        codes[at / 2] |= (uint8_t)(is_upper ? value << 4 : value);
}

static float source_value(const stored_quantize_args *args, uint64_t at)
{
    float value;
    dtype_convert((const char *)args->source + at * dtype_bytes(args->type), args->type, &value,
                  DTYPE_FP32, 1);
    return value;
}

/* The elements of one scale: run `run` of the lines that share it. */
static int quantize_group(const stored_quantize_args *args, const stored_layout *layout,
                          uint64_t group, uint64_t run)
{
    uint64_t first = group * layout->lines_per_scale, end = first + layout->lines_per_scale;
    uint64_t begin = run * layout->run_elems, stop = begin + layout->run_elems;
    float most = 0.0f, factor = 1.0f;
    bool divides = true;
    end = end < layout->lines ? end : layout->lines;
    stop = stop < layout->line_elems ? stop : layout->line_elems;
    for (uint64_t line = first; line < end; line++)
        for (uint64_t i = begin; i < stop; i++) {
            float size = fabsf(source_value(args, line * layout->line_elems + i));
            if (!isfinite(size))
                return err_set(ERR_INPUT, "a value to quantize as %s is NaN or infinite",
                               stored_format_name(args->format));
            most = size > most ? size : most;
        }
    make_scale(layout->code, stop - begin < layout->run_elems, most, args->scales,
               group * layout->line_runs + run, &factor, &divides);
    for (uint64_t line = first; line < end; line++)
        for (uint64_t i = begin; i < stop; i++) {
            uint64_t at = line * layout->line_elems + i;
            put_code(layout->code, args->codes, at,
                     code_of(layout->code, source_value(args, at), factor, divides));
        }
    return 0;
}

int refi_stored_quantize(kernel_context *context, void *stream, const stored_quantize_args *args)
{
    stored_layout layout = stored_layout_of(args->format, args->rows, args->columns);
    uint64_t count = args->rows * args->columns;
    for (uint64_t idx = 0; idx < layout.scale_count; idx++)
        TRY(quantize_group(args, &layout, idx / layout.line_runs, idx % layout.line_runs));
    if (stored_code_is_half_byte(layout.code) && count % 2)
        put_code(layout.code, args->codes, count, half_byte_code(layout.code, 0.0f));
    return 0;
}

int refi_stored_double(kernel_context *context, void *stream, const float *scales, uint64_t count,
                       void *target)
{
    struct stored_double parts = stored_double_of(target, count);
    double sum = 0.0;
    for (uint64_t i = 0; i < count; i++)
        sum += (double)scales[i];
    *parts.offset = (float)(sum / (double)count);
    for (uint64_t begin = 0; begin < count; begin += STORED_DOUBLE_GROUP) {
        float rest[STORED_DOUBLE_GROUP];
        uint64_t n = count - begin < STORED_DOUBLE_GROUP ? count - begin : STORED_DOUBLE_GROUP;
        for (uint64_t i = 0; i < n; i++)
            rest[i] = scales[begin + i] - *parts.offset;
        stored_quantize_args args = {.format = STORED_INT8,
                                     .rows = 1,
                                     .columns = n,
                                     .type = DTYPE_FP32,
                                     .source = rest,
                                     .codes = parts.codes + begin,
                                     .scales = parts.absmax + begin / STORED_DOUBLE_GROUP};
        TRY(refi_stored_quantize(context, stream, &args));
    }
    return 0;
}
