/* Checks matrix products against a loop in double: operands with gaps and offsets, on a GPU of
 * gpu_fixture.h. Elements between the rows of A and B, and before them, are NaN. Elements between
 * the rows of C must not change. The memory of an operand ends with its last element.
 *
 * Tolerance. An fp32 sum of k products in any order errs by at most k units of roundoff times the
 * sum of magnitudes (Higham, Accuracy and Stability, section 3.1); the unit is 2^-23 here, since
 * tensor cores truncate where they add instead of rounding. A 16-bit C is rounded once more. */
#ifndef SLUICE_TESTS_GPU_MATMUL_CHECK_H
#define SLUICE_TESTS_GPU_MATMUL_CHECK_H

#include <math.h>

#include "base/mem.h"
#include "kernels/cuda/cuda_internal.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/unit.h"

/* Elements before the first one of an operand. */
struct product_offsets {
    uint64_t a, b, bias, c;
};
typedef struct product_offsets product_offsets;

struct product_operand {
    float *values; /* what the device memory holds, on the host */
    void *memory;
    void *first; /* in memory */
    uint64_t count, offset;
    enum dtype type;
};
typedef struct product_operand product_operand;

struct product_case {
    gpu_fixture *gpu;
    matmul_desc desc;
    product_operand a, b, bias, c;
};
typedef struct product_case product_case;

static inline product_operand operand_create(gpu_fixture *gpu, uint64_t offset, uint64_t rows,
                                             uint64_t columns, uint64_t stride, enum dtype type,
                                             uint64_t stream, bool has_nan_gaps)
{
    product_operand made = {.offset = offset, .type = type};
    made.count = offset + (rows - 1) * stride + columns;
    made.values = mem_alloc(made.count, sizeof *made.values, "test operand");
    assert_non_null(made.values);
    gpu_random_fill(made.values, made.count, gpu->seed + stream, -1.0f, 1.0f);
    gpu_round(made.values, type, made.count);
    for (uint64_t i = 0; i < made.count && has_nan_gaps; i++)
        if (i < offset || (i - offset) % stride >= columns)
            made.values[i] = NAN;
    made.memory = gpu_alloc_values(gpu, made.values, type, made.count);
    made.first = (char *)made.memory + offset * dtype_bytes(type);
    return made;
}

static inline product_case product_create(gpu_fixture *gpu, const matmul_desc *desc,
                                          product_offsets offsets)
{
    const matmul_desc *d = desc;
    product_case made = {.gpu = gpu, .desc = *desc};
    made.a = operand_create(gpu, offsets.a, d->a_transposed ? d->k : d->m,
                            d->a_transposed ? d->m : d->k, d->a_stride, d->ab_type, 1, true);
    made.b = operand_create(gpu, offsets.b, d->b_transposed ? d->n : d->k,
                            d->b_transposed ? d->k : d->n, d->b_stride, d->ab_type, 2, true);
    made.bias = operand_create(gpu, offsets.bias, 1, d->n, d->n, d->ab_type, 3, true);
    made.c = operand_create(gpu, offsets.c, d->m, d->n, d->c_stride, d->c_type, 4, false);
    return made;
}

static inline void product_destroy(product_case *self)
{
    product_operand *operands[] = {&self->a, &self->b, &self->bias, &self->c};
    for (int i = 0; i < 4; i++) {
        gpu_free(self->gpu, operands[i]->memory);
        mem_free(operands[i]->values);
    }
}

/* C as it was before any product. */
static inline void product_reset(product_case *self)
{
    size_t bytes = self->c.count * dtype_bytes(self->c.type);
    void *narrow = mem_alloc(self->c.count, dtype_bytes(self->c.type), "test narrow");
    assert_non_null(narrow);
    gpu_narrow(self->c.values, narrow, self->c.type, self->c.count);
    gpu_upload(self->gpu, self->c.memory, narrow, bytes);
    mem_free(narrow);
}

/* The bytes of C's memory, offset and gaps included; mem_free them. */
static inline void *product_result(const product_case *self)
{
    void *bytes = mem_alloc(self->c.count, dtype_bytes(self->c.type), "test result");
    assert_non_null(bytes);
    gpu_download(self->gpu, bytes, self->c.memory, self->c.count * dtype_bytes(self->c.type));
    return bytes;
}

/* One run of a product on the case's operands. */
static inline void product_run(product_case *self, kernel_matmul *product)
{
    size_t scratch_bytes = cudai_matmul_scratch_bytes(product);
    void *scratch = gpu_alloc(self->gpu, scratch_bytes);
    assert_int_equal(cudai_matmul(product, self->gpu->stream, self->a.first, self->b.first,
                                  self->desc.has_bias ? self->bias.first : NULL, self->c.first,
                                  scratch_bytes > 0 ? scratch : NULL),
                     0);
    gpu_sync(self->gpu);
    gpu_free(self->gpu, scratch);
}

static inline void product_run_plain(product_case *self)
{
    int error = cudai_matmul_plain_launch(&self->desc, self->gpu->stream, self->a.first,
                                          self->b.first, self->bias.first, self->c.first);
    assert_ok(cudai_check(error, "the plain product"));
    gpu_sync(self->gpu);
}

static inline double product_limit(const matmul_desc *desc, double sum, double magnitude)
{
    double limit = (double)(desc->k + 3) * 0x1p-23 * magnitude;
    if (desc->c_type != DTYPE_FP32) /* half a unit in the last place of 8 or 11 bits */
        limit += (desc->c_type == DTYPE_BF16 ? 0x1p-8 : 0x1p-11) * (fabs(sum) + limit) + 0x1p-25;
    return limit;
}

/* Fails unless `result` (product_result) is the product of what the case holds, `name` said. */
static inline void product_expect(const product_case *self, const char *name, const void *result)
{
    const matmul_desc *desc = &self->desc;
    const float *a = self->a.values + self->a.offset, *b = self->b.values + self->b.offset;
    const float *before = self->c.values;
    float *got = mem_alloc(self->c.count, sizeof *got, "test got");
    assert_non_null(got);
    gpu_widen(result, desc->c_type, got, self->c.count);
    for (uint64_t at = 0; at < self->c.count; at++) {
        uint64_t in = at - self->c.offset, row = in / desc->c_stride, column = in % desc->c_stride;
        if (at < self->c.offset || column >= desc->n) {
            if (memcmp(&got[at], &before[at], sizeof *got) != 0)
                fail_msg("%s: element %llu outside of C changed", name, (unsigned long long)at);
            continue;
        }
        double sum = desc->accumulate ? before[at] : 0.0, magnitude = fabs(sum);
        if (desc->has_bias) {
            sum += self->bias.values[self->bias.offset + column];
            magnitude += fabs(self->bias.values[self->bias.offset + column]);
        }
        for (uint64_t l = 0; l < desc->k; l++) {
            double term =
                (double)
                    a[desc->a_transposed ? l * desc->a_stride + row : row * desc->a_stride + l] *
                b[desc->b_transposed ? column * desc->b_stride + l : l * desc->b_stride + column];
            sum += term;
            magnitude += fabs(term);
        }
        double limit = product_limit(desc, sum, magnitude);
        if (!(fabs(got[at] - sum) <= limit))
            fail_msg("%s: m=%d n=%d k=%d ta=%d tb=%d bias=%d acc=%d %s -> %s at (%d,%d): %g, "
                     "expected %g within %g",
                     name, (int)desc->m, (int)desc->n, (int)desc->k, desc->a_transposed,
                     desc->b_transposed, desc->has_bias, desc->accumulate,
                     dtype_name(desc->ab_type), dtype_name(desc->c_type), (int)row, (int)column,
                     (double)got[at], sum, limit);
    }
    mem_free(got);
}

enum { PRODUCT_A_T = 1, PRODUCT_B_T = 2, PRODUCT_BIAS = 4, PRODUCT_ADD = 8 };

static inline matmul_desc product_desc(uint64_t m, uint64_t n, uint64_t k, unsigned flags,
                                       uint64_t gap, enum dtype ab_type, enum dtype c_type)
{
    matmul_desc desc = {.m = m, .n = n, .k = k, .ab_type = ab_type, .c_type = c_type};
    desc.a_transposed = flags & PRODUCT_A_T;
    desc.b_transposed = flags & PRODUCT_B_T;
    desc.has_bias = flags & PRODUCT_BIAS;
    desc.accumulate = flags & PRODUCT_ADD;
    desc.a_stride = (desc.a_transposed ? m : k) + gap;
    desc.b_stride = (desc.b_transposed ? k : n) + gap;
    desc.c_stride = n + gap;
    return desc;
}

#endif
