/* Stored formats against bitsandbytes and PyTorch (reference/stored.json, which its README
 * describes): codes, scales and expanded values to the bit, by the reference backend and by the
 * CPU's row ops with 1 and with 3 threads; what they refuse; and quantizing in pieces. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>

#include "base/mem.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/kernels/stored_draw.h"
#include "tests/unit.h"

enum { BACKENDS = 3 };

static json_t *document;
static kernel_context contexts[BACKENDS];

/* The ops of backend b, and its context: the reference, or the CPU's kernels with one of two
 * numbers of threads. */
static const kernel_ops *backend(int b, kernel_context **context)
{
    static const kernel_ops cpu = {.stored_expand = cpui_stored_expand,
                                   .stored_quantize = cpui_stored_quantize,
                                   .stored_double = cpui_stored_double};
    *context = b == 0 ? NULL : &contexts[b];
    return b == 0 ? &kernels_reference : &cpu;
}

static void expect(const json_t *want, const char *key, const void *got, uint64_t bytes, int b)
{
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, digest_of(got, bytes));
    if (strcmp(text, json_string_value(json_object_get(want, key))) != 0)
        fail_msg("%s %s %s, %d x %d, backend %d: other bits",
                 json_string_value(json_object_get(want, "format")),
                 json_string_value(json_object_get(want, "kind")), key,
                 (int)json_integer_value(json_object_get(want, "rows")),
                 (int)json_integer_value(json_object_get(want, "columns")), b);
}

static void check_case(const json_t *want, int b)
{
    kernel_context *context;
    const kernel_ops *ops = backend(b, &context);
    uint64_t rows = (uint64_t)json_integer_value(json_object_get(want, "rows"));
    uint64_t columns = (uint64_t)json_integer_value(json_object_get(want, "columns"));
    enum stored_format format = format_named(json_string_value(json_object_get(want, "format")));
    struct stored_matrix m = {.format = format, .rows = rows, .columns = columns};
    draw_matrix(&m, (uint64_t)json_integer_value(json_object_get(document, "seed")),
                (uint64_t)json_integer_value(json_object_get(want, "stream")),
                json_string_value(json_object_get(want, "kind")));
    quantize_matrix(&m, ops, context, DTYPE_FP32, m.source);
    expect(want, "codes", m.codes, m.layout.code_bytes, b);
    expect(want, "scales", m.scales, m.layout.scale_bytes, b);
    for (int type = 0; type < DTYPE_COUNT; type++) {
        stored_expand_args args = {.format = format,
                                   .rows = rows,
                                   .columns = columns,
                                   .codes = m.codes,
                                   .scales = m.scales,
                                   .type = (enum dtype)type,
                                   .target = m.values};
        assert_int_equal(ops->stored_expand(context, NULL, &args), 0);
        expect(want, dtype_name((enum dtype)type), m.values,
               rows * columns * dtype_bytes((enum dtype)type), b);
    }
    free_matrix(&m);
}

static void as_bitsandbytes(void **state)
{
    const json_t *cases = json_object_get(document, "cases");
    assert_true(json_array_size(cases) > 300);
    for (size_t i = 0; i < json_array_size(cases); i++)
        for (int b = 0; b < BACKENDS; b++)
            check_case(json_array_get(cases, i), b);
}

/* A 16-bit source gives what its widened values give. */
static void sources_of_16_bits(void **state)
{
    for (int format = STORED_INT8; format < STORED_FORMAT_COUNT; format++)
        for (int b = 0; b < BACKENDS; b++)
            for (int type = DTYPE_BF16; type <= DTYPE_FP16; type++) {
                kernel_context *context;
                const kernel_ops *ops = backend(b, &context);
                struct stored_matrix wide = {.format = (enum stored_format)format,
                                             .rows = 9,
                                             .columns = 160},
                                     narrow = wide;
                uint16_t half[9 * 160];
                draw_matrix(&wide, 1, 2, "plain");
                draw_matrix(&narrow, 1, 2, "plain");
                dtype_convert(wide.source, DTYPE_FP32, half, (enum dtype)type, 9 * 160);
                dtype_convert(half, (enum dtype)type, wide.source, DTYPE_FP32, 9 * 160);
                quantize_matrix(&wide, ops, context, DTYPE_FP32, wide.source);
                quantize_matrix(&narrow, ops, context, (enum dtype)type, half);
                assert_memory_equal(wide.codes, narrow.codes, wide.layout.code_bytes);
                assert_memory_equal(wide.scales, narrow.scales, wide.layout.scale_bytes);
                free_matrix(&wide);
                free_matrix(&narrow);
            }
}

/* Matrices so large that their values are stored past the caches, at targets that are and are not
 * aligned for it, with runs that end within a vector. */
static void large_matrices(void **state)
{
    static const struct {
        enum stored_format format;
        uint64_t rows, columns, offset;
    } large[] = {
        {STORED_NF4, 1030, 2081, 0},        {STORED_NF4, 1030, 2081, 1},
        {STORED_NF4_DOUBLE, 1024, 2080, 0}, {STORED_FP4, 1024, 2112, 3},
        {STORED_MXFP4, 1024, 2080, 0},      {STORED_INT8, 1030, 2081, 0},
        {STORED_INT8, 1030, 2081, 1},       {STORED_INT8_ROWS, 1030, 2081, 1},
        {STORED_FP8_ROWS, 1030, 2081, 0},   {STORED_FP8_BLOCKS, 1030, 2081, 3},
    };
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        struct stored_matrix m = {
            .format = large[i].format, .rows = large[i].rows, .columns = large[i].columns};
        uint64_t count = m.rows * m.columns;
        kernel_context *context;
        const kernel_ops *ops = backend(1, &context);
        draw_matrix(&m, 1, 2, "plain");
        quantize_matrix(&m, ops, context, DTYPE_FP32, m.source);
        char *room = mem_alloc(count + 64, sizeof(float), "test");
        assert_non_null(room);
        char *aligned = room + (64 - (uintptr_t)room % 64) % 64;
        for (int type = 0; type < DTYPE_COUNT; type++)
            for (int b = 0; b < BACKENDS; b++) {
                uint64_t width = dtype_bytes((enum dtype)type);
                char *target = b == 0 ? m.values : aligned + large[i].offset * width;
                stored_expand_args args = {.format = m.format,
                                           .rows = m.rows,
                                           .columns = m.columns,
                                           .codes = m.codes,
                                           .scales = m.scales,
                                           .type = (enum dtype)type,
                                           .target = target};
                ops = backend(b, &context);
                assert_int_equal(ops->stored_expand(context, NULL, &args), 0);
                assert_memory_equal(target, m.values, count * width);
            }
        mem_free(room);
        free_matrix(&m);
    }
}

static void not_finite_is_refused(void **state)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int format = STORED_INT8; format < STORED_FORMAT_COUNT; format++)
        for (int b = 0; b < BACKENDS; b++)
            for (size_t i = 0; i < 4; i++) {
                kernel_context *context;
                const kernel_ops *ops = backend(b, &context);
                struct stored_matrix m = {
                    .format = (enum stored_format)format, .rows = 130, .columns = 160};
                draw_matrix(&m, 1, 2, "plain");
                m.source[i * 6000 + 100] = bad[i];
                stored_quantize_args args = {.format = stored_single(m.format),
                                             .rows = m.rows,
                                             .columns = m.columns,
                                             .type = DTYPE_FP32,
                                             .source = m.source,
                                             .codes = m.codes,
                                             .scales = m.single_scales};
                assert_error(ops->stored_quantize(context, NULL, &args), ERR_INPUT,
                             "is NaN or infinite");
                free_matrix(&m);
            }
}

/* Whole groups at a time give the codes and scales of one call. */
static void pieces(void **state)
{
    enum { ROWS = 260, COLUMNS = 192, PIECE = 128 };
    for (int format = STORED_INT8; format < STORED_FORMAT_COUNT; format++) {
        kernel_context *context;
        const kernel_ops *ops = backend(1, &context);
        struct stored_matrix m = {.format = (enum stored_format)format,
                                  .rows = ROWS,
                                  .columns = COLUMNS},
                             cut = m;
        draw_matrix(&m, 1, 2, "plain");
        draw_matrix(&cut, 1, 2, "plain");
        if (stored_single(m.format) != m.format) {
            free_matrix(&m);
            free_matrix(&cut);
            continue;
        }
        quantize_matrix(&m, ops, context, DTYPE_FP32, m.source);
        uint8_t *codes = cut.codes, *scales = cut.scales;
        for (uint64_t row = 0; row < ROWS; row += PIECE) {
            uint64_t rows = ROWS - row < PIECE ? ROWS - row : PIECE;
            stored_layout layout = stored_layout_of(m.format, rows, COLUMNS);
            stored_quantize_args args = {.format = m.format,
                                         .rows = rows,
                                         .columns = COLUMNS,
                                         .type = DTYPE_FP32,
                                         .source = m.source + row * COLUMNS,
                                         .codes = codes,
                                         .scales = scales};
            assert_int_equal(ops->stored_quantize(context, NULL, &args), 0);
            codes += layout.code_bytes;
            scales += layout.scale_bytes;
        }
        assert_memory_equal(m.codes, cut.codes, m.layout.code_bytes);
        assert_memory_equal(m.scales, cut.scales, m.layout.scale_bytes);
        free_matrix(&m);
        free_matrix(&cut);
    }
}

/* Every code with every kind of scale: the CPU has the reference's bits. */
static void all_codes(void **state)
{
    static const float factors[] = {1.0f, -0.0f, 3e38f, 0x1p-149f, 0x1.8p-130f, 0.7f, 65504.0f};
    enum { COUNT = 512 };
    for (int format = STORED_INT8; format < STORED_FORMAT_COUNT; format++)
        for (size_t f = 0; f < 7 + 255; f++) {
            struct stored_matrix m = {
                .format = (enum stored_format)format, .rows = 1, .columns = COUNT};
            draw_matrix(&m, 1, 2, "plain");
            bool is_fp32 = m.layout.scale != STORED_SCALE_E8M0;
            if (m.layout.scale == STORED_SCALE_DOUBLE || is_fp32 != (f < 7)) {
                free_matrix(&m);
                continue;
            }
            for (uint64_t i = 0; i < m.layout.code_bytes; i++) /* e4m3 without NaN */
                ((uint8_t *)m.codes)[i] =
                    (uint8_t)(m.layout.code == STORED_CODE_E4M3 && (i & 127) == 127 ? 0 : i);
            for (uint64_t i = 0; i < m.layout.scale_count; i++)
                if (is_fp32)
                    ((float *)m.scales)[i] = factors[f];
                else
                    ((uint8_t *)m.scales)[i] = (uint8_t)(f - 7);
            for (int type = 0; type < DTYPE_COUNT; type++) {
                uint64_t digests[BACKENDS];
                for (int b = 0; b < BACKENDS; b++) {
                    kernel_context *context;
                    const kernel_ops *ops = backend(b, &context);
                    stored_expand_args args = {m.format,         1,       COUNT, m.codes, m.scales,
                                               (enum dtype)type, m.values};
                    assert_int_equal(ops->stored_expand(context, NULL, &args), 0);
                    digests[b] = digest_of(m.values, COUNT * dtype_bytes((enum dtype)type));
                }
                assert_true(digests[0] == digests[1] && digests[0] == digests[2]);
            }
            free_matrix(&m);
        }
}

/* The two NaN of e4m3 expand to NaN, wherever in a vector they stand; other codes do not. */
static void nan_of_e4m3(void **state)
{
    enum { COUNT = 300 };
    static const enum stored_format formats[] = {STORED_FP8_ROWS, STORED_FP8_BLOCKS};
    for (size_t f = 0; f < 2; f++) {
        struct stored_matrix m = {.format = formats[f], .rows = 1, .columns = COUNT};
        draw_matrix(&m, 1, 2, "plain");
        for (uint64_t i = 0; i < COUNT; i++)
            ((uint8_t *)m.codes)[i] = (uint8_t)(i % 7 == 3 ? 127 | (i & 1) << 7 : i % 127);
        for (uint64_t i = 0; i < m.layout.scale_count; i++)
            ((float *)m.scales)[i] = 0.5f;
        for (int type = 0; type < DTYPE_COUNT; type++)
            for (int b = 0; b < BACKENDS; b++) {
                kernel_context *context;
                const kernel_ops *ops = backend(b, &context);
                float values[COUNT];
                stored_expand_args args = {m.format,         1,       COUNT, m.codes, m.scales,
                                           (enum dtype)type, m.values};
                assert_int_equal(ops->stored_expand(context, NULL, &args), 0);
                dtype_convert(m.values, (enum dtype)type, values, DTYPE_FP32, COUNT);
                for (uint64_t i = 0; i < COUNT; i++)
                    assert_int_equal(isnan(values[i]) != 0, i % 7 == 3);
            }
        free_matrix(&m);
    }
}

/* The table of base/stored.h by hand. */
static void sizes(void **state)
{
    static const struct {
        enum stored_format format;
        uint64_t rows, columns, code_bytes, scale_bytes;
    } rows[] = {
        {STORED_INT8, 3, 100, 300, 2 * 4},
        {STORED_INT8_ROWS, 3, 100, 300, 3 * 4},
        {STORED_NF4, 3, 43, 65, 3 * 4},
        {STORED_NF4_DOUBLE, 300, 64, 9600, 2 * 4 + 4 + 300},
        {STORED_FP4, 1, 64, 32, 4},
        {STORED_FP4_DOUBLE, 1, 1, 1, 4 + 4 + 1},
        {STORED_FP8_ROWS, 7, 5, 35, 7 * 4},
        {STORED_FP8_BLOCKS, 129, 300, 38700, 2 * 3 * 4},
        {STORED_MXFP4, 3, 96, 144, 9},
        {STORED_MXFP4, UINT64_C(1) << 20, UINT64_C(1) << 20, UINT64_C(1) << 39, UINT64_C(1) << 35},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        stored_layout layout = stored_layout_of(rows[i].format, rows[i].rows, rows[i].columns);
        assert_int_equal(layout.code_bytes, rows[i].code_bytes);
        assert_int_equal(layout.scale_bytes, rows[i].scale_bytes);
    }
    assert_false(stored_fits(STORED_MXFP4, 48));
    assert_true(stored_fits(STORED_MXFP4, 64) && stored_fits(STORED_NF4, 1));
}

int main(void)
{
    enum cpu_isa isa;
    if (isa_of_test(&isa) != 0)
        return 1;
    contexts[1] = rows_context_of(isa, 1);
    contexts[2] = rows_context_of(isa, 3);
    document = json_load_file(FIXTURE_DIR "/stored.json", 0, NULL);
    if (!document) {
        fprintf(stderr, "no " FIXTURE_DIR "/stored.json\n");
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),          cmocka_unit_test(as_bitsandbytes),
        cmocka_unit_test(all_codes),      cmocka_unit_test(sources_of_16_bits),
        cmocka_unit_test(pieces),         cmocka_unit_test(not_finite_is_refused),
        cmocka_unit_test(large_matrices), cmocka_unit_test(nan_of_e4m3),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(document);
    return failed;
}
