/* Matrices for the tests of stored formats, on CPUs and GPUs: drawn as
 * tests/reference/make_stored.py draws them, and quantized by a backend. Memory is the host's. */
#ifndef SLUICE_TESTS_STORED_DRAW_H
#define SLUICE_TESTS_STORED_DRAW_H

#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/ops.h"
#include "tests/unit.h"

struct stored_matrix {
    enum stored_format format;
    uint64_t rows, columns;
    stored_layout layout;
    float *source;        /* [rows, columns] */
    void *codes, *scales; /* as the layout says */
    float *single_scales; /* the scales before double quantization; else `scales` */
    void *values;         /* room for [rows, columns] of any dtype */
};

static inline enum stored_format format_named(const char *name)
{
    int format = 0;
    while (strcmp(stored_format_name((enum stored_format)format), name) != 0)
        assert_true(++format < STORED_FORMAT_COUNT);
    return (enum stored_format)format;
}

/* The sum of the bytes, each times an odd number that its place gives. */
static inline uint64_t digest_of(const void *data, uint64_t bytes)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < bytes; i++)
        sum += (((const uint8_t *)data)[i] + UINT64_C(1)) *
               ((2 * i + 1) * UINT64_C(0x9E3779B97F4A7C15));
    return sum;
}

static inline void draw_matrix(struct stored_matrix *m, uint64_t seed, uint64_t stream,
                               const char *kind)
{
    uint64_t count = m->rows * m->columns;
    m->layout = stored_layout_of(m->format, m->rows, m->columns);
    bool is_double = m->layout.scale == STORED_SCALE_DOUBLE;
    m->source = mem_alloc(count, sizeof(float), "test");
    m->values = mem_alloc(count, sizeof(float), "test");
    m->codes = mem_alloc(m->layout.code_bytes, 1, "test");
    m->scales = mem_alloc(m->layout.scale_bytes, 1, "test");
    m->single_scales =
        is_double ? mem_alloc(m->layout.scale_count, sizeof(float), "test") : m->scales;
    assert_true(m->source && m->values && m->codes && m->scales && m->single_scales);
    rng_normals(seed, stream, 0, count, m->source);
    if (strcmp(kind, "plain") == 0)
        return;
    for (uint64_t i = 0; i < count; i++) {
        float x = m->source[i];
        if (strcmp(kind, "zeros") == 0)
            x = i % 3 != 0 || i < 2 * count / 3 ? 0.0f : x;
        else if (strcmp(kind, "tiny") == 0)
            x *= ldexpf(0x1p-130f, (int)(i % 24));
        else if (strcmp(kind, "outlier") == 0)
            x = i == count / 2 ? 1e6f : x;
        else if (strcmp(kind, "steps") == 0)
            x = rintf(x * 4.0f) / 8.0f;
        else if (strcmp(kind, "huge") == 0)
            x = x * 0x1p112f;
        m->source[i] = x;
    }
}

/* `source` has that type and the matrix's shape. */
static inline void quantize_matrix(struct stored_matrix *m, const kernel_ops *ops,
                                   kernel_context *context, enum dtype type, const void *source)
{
    stored_quantize_args args = {.format = stored_single(m->format),
                                 .rows = m->rows,
                                 .columns = m->columns,
                                 .type = type,
                                 .source = source,
                                 .codes = m->codes,
                                 .scales = m->single_scales};
    assert_int_equal(ops->stored_quantize(context, NULL, &args), 0);
    if (m->layout.scale == STORED_SCALE_DOUBLE)
        assert_int_equal(
            ops->stored_double(context, NULL, m->single_scales, m->layout.scale_count, m->scales),
            0);
}

static inline void free_matrix(struct stored_matrix *m)
{
    if (m->single_scales != m->scales)
        mem_free(m->single_scales);
    mem_free(m->source);
    mem_free(m->values);
    mem_free(m->codes);
    mem_free(m->scales);
}

#endif
