/* The description of a matrix product, for all backends: the stored shapes of its operands, its
 * text for messages, and whether it is possible. Any thread. */
#ifndef SLUICE_KERNELS_MATMUL_DESC_H
#define SLUICE_KERNELS_MATMUL_DESC_H

#include <stdio.h>

#include "base/size.h"
#include "kernels/ops.h"

enum { MATMUL_TEXT_BYTES = 160 };

/* Rows and columns of the operands as they are stored. */
static inline uint64_t matmul_a_rows(const matmul_desc *desc)
{
    return desc->a_transposed ? desc->k : desc->m;
}

static inline uint64_t matmul_a_columns(const matmul_desc *desc)
{
    return desc->a_transposed ? desc->m : desc->k;
}

static inline uint64_t matmul_b_rows(const matmul_desc *desc)
{
    return desc->b_transposed ? desc->n : desc->k;
}

static inline uint64_t matmul_b_columns(const matmul_desc *desc)
{
    return desc->b_transposed ? desc->k : desc->n;
}

/* "matrix product m=... of bf16 into fp32" */
static inline const char *matmul_text(const matmul_desc *desc, char text[MATMUL_TEXT_BYTES])
{
    snprintf(text, MATMUL_TEXT_BYTES, "matrix product m=%llu n=%llu k=%llu%s%s of %s into %s%s%s",
             (unsigned long long)desc->m, (unsigned long long)desc->n, (unsigned long long)desc->k,
             desc->a_transposed ? " A^T" : "", desc->b_transposed ? " B^T" : "",
             dtype_name(desc->ab_type), dtype_name(desc->c_type), desc->has_bias ? " + bias" : "",
             desc->accumulate ? " accumulated" : "");
    return text;
}

/* ERR_BACKEND for impossible shapes and types, or the error of a size that overflows. */
static inline MUST_CHECK int matmul_check(const matmul_desc *desc)
{
    char text[MATMUL_TEXT_BYTES];
    uint64_t a_columns = matmul_a_columns(desc), b_columns = matmul_b_columns(desc);
    if (desc->m == 0 || desc->n == 0 || desc->k == 0)
        return err_set(ERR_BACKEND, "%s is empty", matmul_text(desc, text));
    if (desc->a_stride < a_columns || desc->b_stride < b_columns || desc->c_stride < desc->n)
        return err_set(ERR_BACKEND,
                       "%s: strides %llu, %llu, %llu of A, B, C are shorter than their rows of "
                       "%llu, %llu, %llu",
                       matmul_text(desc, text), (unsigned long long)desc->a_stride,
                       (unsigned long long)desc->b_stride, (unsigned long long)desc->c_stride,
                       (unsigned long long)a_columns, (unsigned long long)b_columns,
                       (unsigned long long)desc->n);
    if (desc->c_type != DTYPE_FP32 && (desc->c_type != desc->ab_type || desc->accumulate))
        return err_set(ERR_BACKEND, "%s: C is fp32, or of the operands' type and not accumulated",
                       matmul_text(desc, text));
    uint64_t rows_max = size_max(desc->m, size_max(desc->n, desc->k)), elems, bytes;
    uint64_t stride_max = size_max(desc->a_stride, size_max(desc->b_stride, desc->c_stride));
    TRY(size_mul(rows_max, stride_max, &elems));
    return size_mul(elems, 8, &bytes); /* so all offsets in bytes fit signed 64 bits */
}

#endif
