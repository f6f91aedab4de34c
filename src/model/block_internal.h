/* What block.c (whole blocks), block_parts.c (blocks in parts) and block_steps.c share: the steps
 * of a block between its linear layers, which need no weights but those of the norms. */
#ifndef SLUICE_MODEL_BLOCK_INTERNAL_H
#define SLUICE_MODEL_BLOCK_INTERNAL_H

#include "model/model_internal.h"

/* One call with everything that its steps need. */
struct modeli_block_run {
    model *self;
    void *stream;
    const model_call *call;
    const modeli_shape *shape;
    modeli_block_layout at;
    void *grad; /* backward: call->input_grad, or where nobody wants that, as large, in temp */
};
typedef struct modeli_block_run modeli_block_run;

modeli_block_run modeli_block_start(model *self, void *stream, const model_call *call);

/* A norm's tensors, and the gradients, which are NULL where they do not learn. */
static inline const void *modeli_block_norm_param(const modeli_block_run *run,
                                                  uint64_t offset_elems)
{
    return modeli_param(run->self, run->call->params[run->shape->norm_unit], offset_elems);
}

static inline float *modeli_block_norm_grad(const modeli_block_run *run, uint64_t offset_elems)
{
    return modeli_grad(run->call->grads[run->shape->norm_unit], offset_elems);
}

static inline const void *modeli_block_param(const modeli_block_run *run, uint64_t offset_elems)
{
    return modeli_param(run->self, run->call->params[0], offset_elems);
}

static inline float *modeli_block_grad(const modeli_block_run *run, uint64_t offset_elems)
{
    return modeli_grad(run->call->grads[0], offset_elems);
}

static inline void *modeli_block_saved(const modeli_block_run *run, uint64_t offset_bytes)
{
    return modeli_at(run->call->saved, offset_bytes);
}

/* normed1 from the input. */
int modeli_block_norm1(const modeli_block_run *run, modeli_pair weights) MUST_CHECK;
/* run->grad, which holds the gradient of middle, += that through normed1_grad [N,C] in the place
 * of normed1. */
int modeli_block_norm1_grad(const modeli_block_run *run, modeli_pair weights) MUST_CHECK;

/* middle = input + projected, normed2. */
int modeli_block_norm2(const modeli_block_run *run, modeli_pair weights,
                       const void *projected) MUST_CHECK;
/* The gradient of middle from that of normed2, both in run->grad, and call->output_grad. */
int modeli_block_norm2_grad(const modeli_block_run *run, modeli_pair weights) MUST_CHECK;

/* Norms of heads (weights: q's and k's, MODELI_ABSENT without them) and rope on qkv, and
 * attention. The gradient: from attention_grad to qkv_grad, back to before the rotation. */
int modeli_block_attend(const modeli_block_run *run, uint64_t q_norm, uint64_t k_norm) MUST_CHECK;
int modeli_block_attend_grad(const modeli_block_run *run) MUST_CHECK;
/* Back through the norms of heads: from qkv_grad to qkv_grad. */
int modeli_block_head_norm_grad(const modeli_block_run *run, uint64_t q_norm,
                                uint64_t k_norm) MUST_CHECK;

/* ffn_output from ffn_input. The gradient: from that of ffn_output to that of ffn_input, each in
 * the place of its value. */
int modeli_block_activate(const modeli_block_run *run) MUST_CHECK;
int modeli_block_activate_grad(const modeli_block_run *run) MUST_CHECK;

/* call->output += middle, rounded once. */
int modeli_block_add_middle(const modeli_block_run *run) MUST_CHECK;

/* lora.c: a layer's adapters. inner: from the layer's input; outer: added to its output. */
int modeli_lora_inner(const modeli_block_run *run, enum modeli_layer layer,
                      const void *source) MUST_CHECK;
int modeli_lora_outer(const modeli_block_run *run, enum modeli_layer layer,
                      void *target) MUST_CHECK;
/* Gradients of their weights; then, with nothing in between that uses temp beyond the library's
 * scratch, what is added to the gradient of the layer's input. */
int modeli_lora_weight_grads(const modeli_block_run *run, enum modeli_layer layer,
                             const void *output_grad, const void *source) MUST_CHECK;
int modeli_lora_input_grads(const modeli_block_run *run, enum modeli_layer layer,
                            void *input_grad) MUST_CHECK;

#endif
