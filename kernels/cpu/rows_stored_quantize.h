/* Quantizing to stored formats (kernels/ops_stored.h). Part of rows_variant.c. rows_stored.h comes
 * first: it has the values of the codes. */

/* The elements of one scale are divided by `value` or multiplied by it. */
struct stored_factor {
    float value;
    bool divides;
    bool gives_zeros; /* all codes are 0 */
};

/* borders[i] lies between the values i and i + 1. */
static void make_borders(const float *values, int count, float *borders)
{
    for (int i = 0; i + 1 < count; i++)
        borders[i] = (values[i] + values[i + 1]) / 2.0f;
}

/* For each i / 65535 * 2 - 1 the place of the nearest dynamic value. */
static void fill_dynamic_places(uint8_t places[65536])
{
    float values[256], borders[256];
    unsigned place = 0;
    fill_dynamic(values);
    make_borders(values, 256, borders);
    for (unsigned i = 0; i < 65536; i++) {
        float s = (float)i / 65535.0f * 2.0f - 1.0f;
        while (place < 255 && borders[place] < s)
            place++;
        places[i] = (uint8_t)place;
    }
}

static inline float scaled(float x, struct stored_factor factor, float most)
{
    float s = factor.divides ? x / factor.value : x * factor.value;
    s = s > -most ? s : -most; /* NaN becomes -most */
    return s > most ? most : s;
}

/* Codes of one byte for each of n half bytes: the number of borders below each element, as
 * `order` names it. */
static void half_byte_codes(enum stored_code code, const float *x, size_t n,
                            struct stored_factor factor, uint8_t *codes)
{
    static const uint8_t order[16] = {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3};
    float values[16], borders[15];
    for (int i = 0; i < 16; i++)
        values[i] = code == STORED_CODE_NF4 ? stored_nf4[i] : stored_fp4[order[i]];
    make_borders(values, 16, borders);
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float s = scaled(x[i], factor, 1.0f);
        int place = 0;
#pragma GCC unroll 15
        for (int k = 0; k < 15; k++)
            place += borders[k] < s;
        codes[i] = (uint8_t)place;
    }
    for (size_t i = 0; code == STORED_CODE_FP4 && i < n; i++)
        codes[i] = order[codes[i]];
}

/* |x| <= 448, to nearest even. */
static inline uint8_t e4m3_code(float x)
{
    uint32_t bits = fp32_bits(x), size = bits & 0x7fffffffu;
    uint32_t normal = ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - (120u << 3);
    uint32_t subnormal = fp32_bits(fp32_from_bits(size) + 0x1p14f) - 0x46800000u;
    return (uint8_t)((size < 0x3c800000u ? subnormal : normal) | (bits >> 24 & 0x80u));
}

/* |x| <= 6, to nearest even: the borders that belong to the value above count with >=. */
static inline uint8_t e2m1_code(float x)
{
    float size = fabsf(x);
    int code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) +
               (size >= 3.5f) + (size > 5.0f);
    return (uint8_t)((unsigned)code | (fp32_bits(x) >> 28 & 8u));
}

/* codes[0..n) of elements with one scale, a byte each; n <= ROWS_BLOCK. */
static void make_codes(enum stored_code code, const float *x, size_t n, struct stored_factor factor,
                       const uint8_t *dynamic_places, uint8_t *codes)
{
    if (factor.gives_zeros) {
        memset(codes, 0, n);
    } else if (code == STORED_CODE_DYNAMIC) {
        for (size_t i = 0; i < n; i++)
            codes[i] = dynamic_places[(
                int)(((scaled(x[i], factor, 1.0f) + 1.0f) * 0.5f) * 65535.0f + 0.5f)];
    } else if (code == STORED_CODE_INT8) {
#pragma omp simd
        for (size_t i = 0; i < n; i++) /* the sum's low bits hold the rounded number */
            codes[i] = (uint8_t)fp32_bits(scaled(x[i], factor, 127.0f) + ROUNDING_SHIFT);
    } else if (code == STORED_CODE_E4M3) {
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            codes[i] = e4m3_code(scaled(x[i], factor, 448.0f));
    } else if (code == STORED_CODE_E2M1) {
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            codes[i] = e2m1_code(scaled(x[i], factor, 6.0f));
    } else {
        half_byte_codes(code, x, n, factor, codes);
    }
}

/* Stores the scale of elements with that largest magnitude. is_short: in a group that is not
 * full. */
static struct stored_factor make_scale(enum stored_code code, bool is_short, float most,
                                       void *scales, uint64_t idx)
{
    struct stored_factor factor = {.divides = true};
    float scale = most, floored = most < 1e-38f ? 1e-38f : most;
    if (code == STORED_CODE_E2M1) {
        unsigned exponent = fp32_bits(most) >> 23, e8m0 = exponent > 2 ? exponent - 2 : 0;
        ((uint8_t *)scales)[idx] = (uint8_t)e8m0;
        factor.value = fp32_from_bits(stored_e8m0_bits(e8m0));
        return factor;
    }
    if (code == STORED_CODE_E4M3) {
        factor.value = scale = most / 448.0f;
        factor.gives_zeros = scale == 0.0f;
    } else if (code == STORED_CODE_INT8) {
        factor = (struct stored_factor){.value = 1.0f / most * 127.0f};
        factor.gives_zeros = isinf(factor.value);
    } else if (code == STORED_CODE_DYNAMIC) {
        factor = (struct stored_factor){.value = 1.0f / most};
    } else if (is_short) {
        factor.value = scale = floored;
    } else {
        factor = (struct stored_factor){.value = 1.0f / floored};
    }
    ((float *)scales)[idx] = scale;
    return factor;
}

/* The largest magnitude, as bits, which are in the order of magnitudes; NaN is the largest. */
static uint32_t most_bits(const float *x, size_t n, uint32_t most)
{
#pragma omp simd reduction(max : most)
    for (size_t i = 0; i < n; i++) {
        uint32_t size = fp32_bits(x[i]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    return most;
}

/* Elements [at, at + n) of the matrix: n <= ROWS_BLOCK, and `at` is even where two share a byte. */
static void quantize_block(const stored_quantize_args *args, enum stored_code code, uint64_t at,
                           size_t n, struct stored_factor factor, const uint8_t *dynamic_places)
{
    uint8_t bytes[ROWS_BLOCK + 1];
    float buffer[ROWS_BLOCK], zero = 0.0f;
    const float *x = load_block(args->type, args->source, at, n, buffer);
    if (!stored_code_is_half_byte(code)) {
        make_codes(code, x, n, factor, dynamic_places, (uint8_t *)args->codes + at);
        return;
    }
    uint8_t *codes = (uint8_t *)args->codes + at / 2;
    make_codes(code, x, n, factor, NULL, bytes);
    if (n % 2)
        make_codes(code, &zero, 1, factor, NULL, bytes + n);
    for (size_t i = 0; i < (n + 1) / 2; i++)
        codes[i] = (uint8_t)(code == STORED_CODE_E2M1 ? bytes[2 * i] | bytes[2 * i + 1] << 4
                                                      : bytes[2 * i] << 4 | bytes[2 * i + 1]);
}

/* The elements of scale idx. Returns whether all are finite; writes nothing if not. */
static bool quantize_group(const stored_quantize_args *args, const stored_layout *layout,
                           uint64_t idx, const uint8_t *dynamic_places)
{
    uint64_t first = idx / layout->line_runs * layout->lines_per_scale;
    uint64_t begin = idx % layout->line_runs * layout->run_elems;
    uint64_t end = first + layout->lines_per_scale, stop = begin + layout->run_elems;
    uint32_t most = 0;
    float buffer[ROWS_BLOCK];
    end = end < layout->lines ? end : layout->lines;
    stop = stop < layout->line_elems ? stop : layout->line_elems;
    for (uint64_t line = first; line < end; line++)
        for (uint64_t i = begin; i < stop; i += ROWS_BLOCK) {
            size_t n = block_elems(stop, i);
            uint64_t at = line * layout->line_elems + i;
            most = most_bits(load_block(args->type, args->source, at, n, buffer), n, most);
        }
    if (most >= 0x7f800000u)
        return false;
    struct stored_factor factor = make_scale(layout->code, stop - begin < layout->run_elems,
                                             fp32_from_bits(most), args->scales, idx);
    for (uint64_t line = first; line < end; line++)
        for (uint64_t i = begin; i < stop; i += ROWS_BLOCK)
            quantize_block(args, layout->code, line * layout->line_elems + i, block_elems(stop, i),
                           factor, dynamic_places);
    return true;
}

/* Threads share out the scales. Returns whether all elements are finite. */
static bool stored_quantize(int threads, const stored_quantize_args *args)
{
    const stored_layout layout = stored_layout_of(args->format, args->rows, args->columns);
    uint8_t dynamic_places[65536];
    bool is_finite = true;
    if (layout.code == STORED_CODE_DYNAMIC)
        fill_dynamic_places(dynamic_places);
#pragma omp parallel for schedule(static) reduction(&& : is_finite)                                \
    num_threads(team(threads, args->rows * args->columns))
    for (uint64_t idx = 0; idx < layout.scale_count; idx++)
        is_finite = quantize_group(args, &layout, idx, dynamic_places) && is_finite;
    return is_finite;
}
