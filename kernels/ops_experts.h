/* The arguments of the ops of mixtures of experts: the router, and the row ops around the products
 * of the experts. Part of kernels/ops.h, whose rules hold here too; include that file.
 *
 * Dimensions: N rows (tokens), E experts, K choices of a row, C channels (or features) of a row.
 *
 *   forward    router_forward             logits [N,E] -> chosen experts and weights [N,K]
 *              experts_sort               chosen [N,K] -> slots: the N*K choices, sorted by expert
 *              experts_gather             rows of tokens -> rows of slots
 *              (the products of each expert over the rows of its slots, with the ops of ops.h)
 *              experts_combine            rows of slots, times their weights -> sums [N,C]
 *   backward   experts_gather             gradients of tokens -> of slots
 *              experts_weights_backward   -> gradients of the weights, and of the experts' outputs
 *              (the gradients of the products)
 *              experts_combine            gradients of the experts' inputs -> sums, no weights
 *              router_backward            gradients of the weights -> of the logits
 *   losses     router_sums                what the load-balancing loss and the z-loss need
 *
 * Choices. The K experts of a row differ, and are stored in ascending order of their index, not of
 * their scores. Sums over the choices of a row follow that order, beginning with 0, one fp32
 * addition after the other. transformers' loop over experts adds in the same order. (Its other
 * implementations add by score; the difference is rounding.) The order has a second use: experts
 * may be computed in several passes, each with the parameters of some experts, and experts_combine
 * adds each pass to the same fp32 sums. However the experts are cut into passes, and the slots into
 * chunks, the bits are those of a single pass if the calls come in the order of slots. No output of
 * an expert is kept for later.
 *
 * Slots. experts_sort gives every choice a place in a list that is sorted by expert and, within an
 * expert, by row (it is stable). The slots of expert e are [offsets[e], offsets[e+1]). Each
 * expert's slots begin at a multiple of `multiple`; slots that fill up have no choice. So the
 * products of an expert can be cut into blocks of a few sizes that are prepared once.
 * experts_gather fills such rows with zeros, those of gradients too, so that they add nothing to
 * the gradients of parameters. With `multiple` 1 there are none. Nothing is dropped: the list holds
 * every choice, also if one expert is chosen by all rows.
 *
 * A shared expert behind a gate (Qwen2-MoE) is a mixture of one expert: E = K = 1, ROUTER_SIGMOID.
 *
 * Results for a row depend on that row alone. Sums over rows (router_sums) are made for fixed
 * blocks of rows and then over the blocks in order, so that no bit depends on the threads. */
#ifndef SLUICE_KERNELS_OPS_EXPERTS_H
#define SLUICE_KERNELS_OPS_EXPERTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

enum { ROUTER_EXPERTS_MAX = 1024 }; /* E */

/* The score s of each expert, from the logits of a row. */
enum router_score {
    ROUTER_SOFTMAX, /* over all E logits */
    ROUTER_SIGMOID  /* of each logit */
};

/* The experts of a row are chosen by a value. It is the score plus the bias if there is a bias, the
 * score if there are groups, and the logit otherwise. The K largest values are chosen; of equal
 * values, the lower index. With groups, only the experts of the best groups compete. The value of a
 * group is the sum of its `group_best` largest values (1 in DeepSeek-V2, 2 in DeepSeek-V3).
 *
 * The weight of a chosen expert is w = scale * s, or scale * s / (sum of the K scores + 1e-20) if
 * the weights are normalized. A softmax over the K chosen logits (gpt-oss) is ROUTER_SOFTMAX,
 * normalized. The bias has no gradient: it acts on the choice alone.
 *
 * If a logit is NaN or infinite, the K experts still differ and are valid, but which they are, and
 * the gradients of that row, are unspecified and differ between backends.
 *
 * Two losses may be added to that of the model. For one micro-batch, R counts the rows of all its
 * routers, and p is the softmax of a row's logits, for both kinds of scores:
 *   load balancing   E * sum over e of (choices of e / R) * (sum of p[e] / R), as transformers'
 *                    load_balancing_loss_func has it for routers without bias and groups. (With
 *                    them it counts the K largest p instead.) The choices have no gradient.
 *   z-loss           sum of logsumexp(logits)^2 / R
 * transformers computes both over the logits of all layers together. Layer by layer the same is
 * exact: the forward pass of each layer adds to the totals of the micro-batch (router_sums), and
 * the gradient of a layer needs only its own p and the totals of the choices. These are complete
 * before the first backward pass begins. router_backward adds
 *   balance_scale * totals[e]       to the gradient of each p[e]
 *   z_scale * logsumexp(logits)     to the gradient of the row's logsumexp
 * where balance_scale = coefficient * E / R^2 and z_scale = coefficient * 2 / R. If weights_grad
 * carries a factor, such as the loss scale, multiply both by it. */
struct router_args {
    enum router_score score;
    uint64_t rows, experts, choices; /* N, E, K; 1 <= K <= E <= ROUTER_EXPERTS_MAX */
    /* Groups of E / groups neighbours; 0: none. The chosen groups have at least K experts. */
    uint64_t groups, groups_chosen;
    uint32_t group_best; /* 1 or 2, at most E / groups */
    bool normalizes;
    float scale;
    const float *logits; /* [N,E] fp32 */
    const float *bias;   /* forward: [E] fp32; NULL: none */
    int32_t *chosen;     /* [N,K] ascending in each row; forward writes it, backward reads it */
    float *weights;      /* forward: [N,K] fp32 */
    /* backward: */
    enum dtype type;           /* of logits_grad */
    const float *weights_grad; /* [N,K] fp32 */
    const double *totals;      /* as in router_sums_args, read if balance_scale is not 0 */
    float balance_scale, z_scale;
    void *logits_grad; /* [N,E] type, overwritten */
};
typedef struct router_args router_args;

/* Adds the rows of a call to the totals of a micro-batch:
 *   totals[e]       number of rows that chose expert e
 *   totals[E + e]   sum of p[e]
 *   totals[2 * E]   sum of logsumexp(logits)^2 */
struct router_sums_args {
    uint64_t rows, experts, choices;
    const float *logits;   /* [N,E] fp32 */
    const int32_t *chosen; /* [N,K] */
    double *totals;        /* [2 * E + 1] fp64, += */
    void *scratch;         /* router_sums_scratch_bytes */
};
typedef struct router_sums_args router_sums_args;

struct experts_sort_args {
    uint64_t rows, experts, choices;
    uint64_t multiple;     /* each expert's slots begin at a multiple of this; at least 1 */
    const int32_t *chosen; /* [N,K], each in [0, E) */
    int32_t *offsets;      /* [E + 1]: the first slot of each expert; offsets[E]: the end */
    /* [experts_slots_max]: the choice n * K + k of each slot; -1: none, also after offsets[E] */
    int32_t *order;
    int32_t *slots; /* [N,K]: the slot of each choice */
};
typedef struct experts_sort_args experts_sort_args;

/* The most slots that experts_sort may need, a multiple of `multiple`. The number must be below
 * 2^31. */
static inline uint64_t experts_slots_max(uint64_t rows, uint64_t experts, uint64_t choices,
                                         uint64_t multiple)
{
    uint64_t pairs = rows * choices, begun = experts < pairs ? experts : pairs;
    return (pairs + begun * (multiple - 1)) / multiple * multiple;
}

/* One call has the slots [slot_begin, slot_begin + slot_count). Row i of an array of slots is that
 * of slot slot_begin + i.
 *
 *   experts_gather             slot row = row of its token, or zeros
 *   experts_combine            sums[n] += weight * slot row, over the choices of n in these slots.
 *                              Product and sum are rounded to fp32 each. Without weights: += row.
 *   experts_weights_backward   weights_grad of each choice = sum over c of output * output_grad
 *                              (the slot's rows), then output_grad *= weight. With a bias instead
 *                              of outputs, weights_grad += sum over c of bias * output_grad. Rows
 *                              without a choice do not change, and neither does weights_grad of
 *                              choices outside these slots. */
struct experts_rows_args {
    enum dtype type;
    uint64_t rows, choices, channels;
    uint64_t slot_begin, slot_count;
    /* [all slots]: from experts_sort; read by gather and weights_backward. For the latter it may be
     * NULL: slot s is choice s. */
    const int32_t *order;
    const int32_t *slots; /* [N,K]: from experts_sort; read by combine */
    const float *weights; /* [N,K] fp32; combine: NULL for 1 */
    const void *tokens;   /* gather: [N,C] type */
    void *slot_rows;      /* [slot_count, C] type: gather writes it, combine reads it, and
                           * weights_backward has output_grad here */
    const void *output;   /* weights_backward: [slot_count, C] type; NULL: none */
    const void *bias;     /* weights_backward: [C] type, of all slots; NULL: none */
    float *sums;          /* combine: [N,C] fp32, += */
    float *weights_grad;  /* weights_backward: [N,K] fp32 */
};
typedef struct experts_rows_args experts_rows_args;

#endif
