/* A head norm of one wide head is a norm of rows that lie apart: the arguments of the one op as
 * those of the other. For backends whose op for short heads keeps a head in registers or on the
 * stack. Pure. */
#ifndef SLUICE_KERNELS_HEAD_NORM_WIDE_H
#define SLUICE_KERNELS_HEAD_NORM_WIDE_H

#include "kernels/ops.h"

/* The widest of several heads, and the widest head that the ops for short heads take. */
enum { HEAD_NORM_WIDTH_MAX = 256 };

static inline bool head_norm_is_wide(uint64_t heads, uint64_t head_dim)
{
    return heads == 1 && head_dim > HEAD_NORM_WIDTH_MAX;
}

static inline norm_args head_norm_wide_forward(const head_norm_args *args)
{
    return (norm_args){.kind = args->is_layer ? NORM_LAYER : NORM_RMS,
                       .type = args->type,
                       .rows = args->rows,
                       .channels = args->head_dim,
                       .stride = args->stride,
                       .epsilon = args->epsilon,
                       .input = args->data,
                       .sum = args->before,
                       .weight = args->weight,
                       .adds_one = args->adds_one,
                       .output = args->data,
                       .mean = args->mean,
                       .rstd = args->rstd};
}

static inline norm_grad_args head_norm_wide_backward(const head_norm_args *args)
{
    return (norm_grad_args){.kind = args->is_layer ? NORM_LAYER : NORM_RMS,
                            .type = args->type,
                            .rows = args->rows,
                            .channels = args->head_dim,
                            .stride = args->stride,
                            .input = args->before,
                            .weight = args->weight,
                            .adds_one = args->adds_one,
                            .mean = args->mean,
                            .rstd = args->rstd,
                            .output_grad = args->data,
                            .input_grad = args->data,
                            .weight_grad = args->weight_grad,
                            .scratch = args->scratch};
}

#endif
