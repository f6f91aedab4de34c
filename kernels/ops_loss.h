/* The arguments of the ops of the loss: softmax cross-entropy. Part of kernels/ops.h, whose rules
 * hold here too; include that file. */
#ifndef SLUICE_KERNELS_OPS_LOSS_H
#define SLUICE_KERNELS_OPS_LOSS_H

#include <stdint.h>

#include "base/dtype.h"

/* Softmax cross-entropy of one chunk of rows. The softmax is of z = logit, or with a soft cap of
 * soft_cap * tanh(logit / soft_cap), and the gradient is that of the logits. */
struct cross_entropy_args {
    enum dtype type;
    uint64_t rows, vocab;
    /* Elements from row to row of logits and of logits_grad; 0: V. The op may read the gap after a
     * row, also after the last row, but never writes it. */
    uint64_t stride;
    const float *logits;    /* [rows, V] fp32 */
    const int32_t *targets; /* [rows]; -1: the row is ignored, with loss 0 and gradient 0 */
    float *losses;          /* [rows] fp32 nats */
    /* [rows, V] type, (softmax - onehot) * grad_scale * the slope of z; NULL: compute the loss
     * only. It may be at the address of logits if type is fp32. */
    void *logits_grad;
    float grad_scale;
    float soft_cap; /* 0: none */
};
typedef struct cross_entropy_args cross_entropy_args;

/* Softmax cross-entropy over a vocabulary that comes in parts of columns, for an output matrix that
 * is cut by rows. The caller calls
 *   1. softmax_part for every part, in order;
 *   2. softmax_losses once;
 *   3. cross_entropy_part for every part.
 *
 * A row has three statistics: its largest z so far (the logit, capped as above), the sum of exp(z -
 * largest) so far, and the z of its target (0 until the target's part has come). For an ignored row
 * they have no meaning. Results agree with cross_entropy within fp32's rounding; other parts may
 * give other bits.
 *
 * Infinities and NaN are propagated: a row whose z contains +infinity or NaN, or only -infinity,
 * has a NaN loss. The caller makes sure that targets are below the vocabulary size, since a part
 * cannot check it. */
struct softmax_part_args {
    enum dtype type;        /* of logits_grad */
    uint64_t rows, columns; /* columns: those of this part */
    uint64_t column_begin;  /* the first column of this part, in the vocabulary */
    uint64_t stride;        /* elements from row to row of logits and of logits_grad; 0: columns */
    bool is_first;          /* the first part initializes the statistics */
    const float *logits;    /* [rows, columns] fp32 */
    const int32_t *targets; /* [rows]; -1: the row is ignored, with loss 0 and gradient 0 */
    /* [rows] fp32 each; softmax_part reads and writes them, the other two ops read them */
    float *largest, *sum, *target_logit;
    float *losses; /* [rows] fp32 nats; softmax_losses writes it */
    /* [rows, columns] type; cross_entropy_part writes it; may be logits if type is fp32 */
    void *logits_grad;
    float grad_scale; /* read by cross_entropy_part */
    float soft_cap;   /* as in cross_entropy_args, equal in all calls */
};
typedef struct softmax_part_args softmax_part_args;

static inline uint64_t cross_entropy_stride(const cross_entropy_args *args)
{
    return args->stride ? args->stride : args->vocab;
}

static inline uint64_t softmax_part_stride(const softmax_part_args *args)
{
    return args->stride ? args->stride : args->columns;
}

#endif
