/* Block-wise attention in bf16 on AMX tiles. These functions compute the whole pass from
 * packed q, k, v to the output or to their gradients, without a product library. attention.c uses
 * them if they can run; oneDNN's products stay the portable way.
 *
 * Scores are stored transposed, keys by queries, so that a vector lane is a query. The largest
 * score, the sum and the correction are then vectors, no sums across lanes are needed, and the
 * probabilities already have the layout that the next product reads. Keys and values of a head are
 * packed into tiles once for all of its query blocks.
 *
 * Sums are fp32; probabilities and their gradients are rounded to bf16 before a product, as in
 * attention_rows.h. Every sum has a fixed order that depends only on T, D, E and the group, so
 * threads do not change a bit. Nothing allocates. */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_AMX_H
#define SLUICE_KERNELS_CPU_ATTENTION_AMX_H

#include "kernels/cpu/attention_rows.h"

/* The operands of a pass, on tiles or by products; see attention_forward and attention_backward in
 * kernels/ops.h. */
struct attention_pass {
    const attention_desc *desc; /* value_dim is set; for tiles bf16 */
    const int32_t *begins;      /* [B,T] or NULL; see attention_set_documents */
    attention_dropout masks;    /* counter NULL: nothing is dropped */
    const attention_rows *rows;
    int thread_count;
    const void *q, *k, *v;
    void *output; /* the forward pass writes output and lse, the backward pass reads them */
    float *lse;   /* as output */
    const void *output_grad;
    void *q_grad, *k_grad, *v_grad;
    /* thread_count * cpui_attention_amx_forward_bytes or _backward_bytes, aligned to 64 bytes */
    void *scratch;
};
typedef struct attention_pass attention_pass;

/* True if the compiler supported AMX, so that this build has code for it. */
bool cpui_amx_is_built(void);

/* True if the passes below support desc: bf16 and a positive scale. */
bool cpui_attention_amx_takes(const attention_desc *desc);

/* Scratch bytes of one thread, for a desc with value_dim; 0 if the build has no AMX. */
size_t cpui_attention_amx_forward_bytes(const attention_desc *desc);
size_t cpui_attention_amx_backward_bytes(const attention_desc *desc);

/* Call these only if both functions above return true. */
void cpui_attention_amx_forward(const attention_pass *pass);
void cpui_attention_amx_backward(const attention_pass *pass);

#endif
