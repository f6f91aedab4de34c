/* The launcher of our own matrix product (matmul_plain.cu): any shape, stride, type and alignment
 * that kernels/ops.h allows, with no scratch, at a small share of what the tensor cores do. Valid
 * as C and as C++. */
#ifndef SLUICE_KERNELS_CUDA_MATMUL_PLAIN_H
#define SLUICE_KERNELS_CUDA_MATMUL_PLAIN_H

#include "kernels/ops.h"

/* Enqueues the product on a cudaStream_t; `bias` is read iff desc->has_bias. The description has been
 * checked. Each element is one fp32 fma chain over k in ascending order, then + bias, then + C,
 * then rounded once to C's type: the bits depend on the operands alone. Operands need the alignment
 * of their elements. Returns the cudaError_t of the launch. */
int cudai_matmul_plain_launch(const matmul_desc *desc, void *stream, const void *a, const void *b,
                              const void *bias, void *c);

#endif
