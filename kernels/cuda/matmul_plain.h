/* The launcher of our own matrix product. It takes any shape, stride, type and alignment that
 * kernels/ops.h allows and needs no scratch, but it reaches only a small share of the tensor cores'
 * rate. Valid as C and as C++. */
#ifndef SLUICE_KERNELS_CUDA_MATMUL_PLAIN_H
#define SLUICE_KERNELS_CUDA_MATMUL_PLAIN_H

#include "kernels/ops.h"

/* Enqueues the product on a cudaStream_t. The caller has checked the description. `bias` is read
 * only if desc->has_bias. Each element is one fp32 fma chain over k in ascending order, then +
 * bias, then + C, then rounded once to C's type, so its bits depend only on the operands. Operands
 * must be aligned to their elements. Returns the cudaError_t of the launch. */
int cudai_matmul_plain_launch(const matmul_desc *desc, void *stream, const void *a, const void *b,
                              const void *bias, void *c);

#endif
