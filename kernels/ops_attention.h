/* The arguments of attention: over whole sequences, and over the positions of a cache. Part of
 * kernels/ops.h, whose rules and dimensions hold here too; include that file. */
#ifndef SLUICE_KERNELS_OPS_ATTENTION_H
#define SLUICE_KERNELS_OPS_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

/* Attention over packed projections. Query head h reads key/value head h / (H/G).
 *   row r = b*T + t of q, k and v   begins at element r*qkv_stride
 *   head h of q                     begins at element h*D of the row
 *   head g of k, of v               begins at element g*D, at element g*E of the row
 *   row of the output               H*E elements, contiguous
 *
 * Members that are zero mean plain causal attention: a query sees all keys up to its own position.
 * kernels/attention_range.h is the rule that follows from `window`, `is_bidirectional` and the
 * documents of a call. Keys outside of it cost nothing, except within the blocks at its ends. */
struct attention_desc {
    uint64_t batch, tokens, heads, kv_heads, head_dim; /* H % G == 0, D <= 256 */
    uint64_t value_dim;  /* E <= 256, of heads of v and of the output; 0: D */
    uint64_t qkv_stride; /* elements */
    enum dtype type;
    float scale; /* factor of the scores; 1/sqrt(D) in the published models */
    /* > 0: a scaled score s becomes soft_cap * tanh(s / soft_cap) before the softmax */
    float soft_cap;
    /* > 0: a query sees at most this many positions, of which it is the last; not bidirectional */
    uint64_t window;
    bool is_bidirectional; /* a query sees the keys after it too */
    /* In [0, 1): the share of the probabilities that calls with a mask (attention_set_dropout)
     * drop. The others are multiplied by 1 / (1 - dropout). lse and the sums of the softmax count
     * all. */
    float dropout;
};
typedef struct attention_desc attention_desc;

/* The masks of a call with dropout, one for each of its sequences, as in dropout_args. The element
 * of a mask is the position of head, query and key (dropout_row_quad in kernels/dropout_mask.h), so
 * that no cut into blocks matters. */
struct attention_dropout {
    uint64_t seed;
    uint32_t site;
    const uint32_t *counter; /* [2] in device memory */
};
typedef struct attention_dropout attention_dropout;

/* Attention of the new positions of one sequence over all positions up to their own. The keys and
 * values of earlier positions are kept in a cache:
 *
 *   keys   [G, capacity, D]         hold positions [0, begin); the op appends the new k and v
 *   values [G, capacity, E]
 *   row r of q                      is position begin + r and attends to positions [0, begin + r],
 *                                   with a window only to the last `window` of them
 *
 * q, k, v and output are laid out as in attention_desc, for one sequence. Scores, probabilities and
 * sums are fp32 or better for every type, so results differ from attention_forward's by the
 * rounding of the probabilities. The result of a row depends on its own q and on the positions that
 * it attends to, not on the number of rows in the call. */
struct attention_cached_args {
    enum dtype type;
    uint64_t rows, begin, capacity; /* begin + rows <= capacity */
    uint64_t heads, kv_heads, head_dim, value_dim, qkv_stride;
    float scale, soft_cap; /* these and value_dim as in attention_desc */
    uint64_t window;       /* as in attention_desc */
    const void *sinks;     /* [H] type, as in attention_sinks_args; NULL: none */
    const void *q, *k, *v; /* rows of qkv_stride elements */
    /* type; `values` is aligned to whole elements only, if G * capacity * D elements are no
     * multiple of the usual alignment */
    void *keys, *values;
    void *output; /* [rows, H*E] type */
};
typedef struct attention_cached_args attention_cached_args;

#endif
