/* Block-wise causal attention in bf16 by AMX tiles: the whole pass between packed q, k, v and the
 * output, or their gradients, with no product library in between. attention.c takes it where it can
 * run; oneDNN's products stay the portable way.
 *
 * Scores are held transposed, keys by queries, so that a vector lane is a query: largest score, sum
 * and correction are vectors, without sums across lanes, and probabilities fall into the layout
 * that the next product takes. Keys and values of a head are packed into tiles once for all of its
 * query blocks. Sums are fp32; probabilities and their gradients are rounded to bf16 before a
 * product, as in attention_rows.h. Every sum has a fixed order that depends on T, D and the group
 * alone: threads do not touch a bit. Nothing allocates. */
#ifndef SLUICE_KERNELS_ATTENTION_AMX_H
#define SLUICE_KERNELS_ATTENTION_AMX_H

#include "kernels/cpu/attention_rows.h"

/* Operands of a pass; see attention_forward and attention_backward in kernels/ops.h. */
struct attention_amx_pass {
    const attention_desc *desc; /* bf16 */
    const attention_rows *rows;
    int thread_count;
    const void *q, *k, *v;
    void *output; /* read by the backward pass */
    float *lse;   /* alike */
    const void *output_grad;
    void *q_grad, *k_grad, *v_grad;
    void *scratch; /* thread_count * cpui_attention_amx_bytes, aligned to 64 bytes */
};
typedef struct attention_amx_pass attention_amx_pass;

/* True where the compiler knew AMX, so that this build has code for it. */
bool cpui_amx_is_built(void);

/* True for what the passes below take: bf16 and a positive scale. */
bool cpui_attention_amx_takes(const attention_desc *desc);

/* Scratch of one thread. 0 without AMX in the build. */
size_t cpui_attention_amx_forward_bytes(const attention_desc *desc);
size_t cpui_attention_amx_backward_bytes(const attention_desc *desc);

/* Only where both questions above are answered with true. */
void cpui_attention_amx_forward(const attention_amx_pass *pass);
void cpui_attention_amx_backward(const attention_amx_pass *pass);

#endif
