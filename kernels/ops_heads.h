/* The arguments of the ops on heads before and after attention: sinks, and the heads of multi-head
 * latent attention. Part of kernels/ops.h, whose rules and dimensions hold here too; include that
 * file. */
#ifndef SLUICE_KERNELS_OPS_HEADS_H
#define SLUICE_KERNELS_OPS_HEADS_H

#include <stdint.h>

#include "base/dtype.h"

/* Attention sinks (gpt-oss): each query head h has a learned logit s, which is one more term of the
 * denominator of its softmax, exp(s), and has no value. They need nothing of attention_forward and
 * attention_backward, which run as without sinks:
 *
 *   forward    attention_forward, then attention_sinks: with L = log(exp(lse) + exp(s)),
 *              output *= exp(lse - L), then lse = L
 *   backward   attention_backward with that output and lse. Its probabilities exp(score - L) and
 *              its delta = rowsum(output_grad * output) are then those with sinks.
 *              attention_sinks_backward: sinks_grad[h] -= sum of exp(s - L) * delta over all rows
 *
 * The output is rounded once more than without sinks. The sum over rows has a fixed order and does
 * not depend on the threads. */
struct attention_sinks_args {
    enum dtype type;
    uint64_t batch, tokens, heads, value_dim; /* value_dim: E, above 0 */
    const void *sinks;                        /* [H] type */
    void *output;                             /* [B,T,H,E] type; the backward op only reads it */
    float *lse;                               /* [B,H,T]; the backward op only reads it */
    const void *output_grad;                  /* backward: [B,T,H,E] type */
    float *sinks_grad;                        /* backward: [H] fp32, += */
};
typedef struct attention_sinks_args attention_sinks_args;

/* The heads of multi-head latent attention (DeepSeek). A head of q and of k has `own` elements and
 * then `shared` ones. Those of k are the same in all heads, and come from one place in each row.
 *
 *   q        [N, H, own + shared]
 *   kv       [N, H, own + value]     of each head k's own elements, then v
 *   common   [N, shared]             rows lie common_stride elements apart
 *   packed   [N, H * (2 * (own + shared) + value)]   q | k | v, as attention_desc wants them
 *
 * heads_join writes `packed` from the others. heads_split is its backward: it writes the others
 * from the gradient in `packed`. There, `common` is the sum over the heads, in their order, in
 * fp32, rounded once. */
struct heads_join_args {
    enum dtype type;
    uint64_t rows, heads;
    uint64_t own, shared, value; /* own and shared may be 0; shared <= 256 */
    void *q, *kv, *common, *packed;
    uint64_t common_stride;
};
typedef struct heads_join_args heads_join_args;

#endif
