/* The steps of a block between its linear layers, shared by whole blocks and blocks in parts. They
 * need no weights except those of the norms. */
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
    /* Backward: call->input_grad, or, if nobody wants that, a buffer of the same size in temp. */
    void *grad;
};
typedef struct modeli_block_run modeli_block_run;

modeli_block_run modeli_block_start(model *self, void *stream, const model_call *call);

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

/* Computes normed1 from the input. */
int modeli_block_norm1(const modeli_block_run *run, modeli_pair weights) MUST_CHECK;
/* run->grad holds the gradient of middle. Adds to it the gradient through norm 1; the gradient of
 * its output [N,C] is in the place of normed1. */
int modeli_block_norm1_grad(const modeli_block_run *run, modeli_pair weights) MUST_CHECK;

/* Computes middle = input + projected, and normed2. */
int modeli_block_norm2(const modeli_block_run *run, modeli_pair weights,
                       const void *projected) MUST_CHECK;
/* Computes the gradient of middle in run->grad, from that of normed2 (also in run->grad) and
 * call->output_grad. */
int modeli_block_norm2_grad(const modeli_block_run *run, modeli_pair weights) MUST_CHECK;

/* Applies the norms of heads (q_norm, k_norm: offsets of their weights, MODELI_ABSENT without them)
 * and rope to qkv, then attention. */
int modeli_block_attend(const modeli_block_run *run, uint64_t q_norm, uint64_t k_norm) MUST_CHECK;
/* The gradient: from attention_grad to qkv_grad, back to before the rotation. */
int modeli_block_attend_grad(const modeli_block_run *run) MUST_CHECK;
/* Back through the norms of heads, in place on qkv_grad. */
int modeli_block_head_norm_grad(const modeli_block_run *run, uint64_t q_norm,
                                uint64_t k_norm) MUST_CHECK;

/* Computes ffn_output from ffn_input. The gradient: from that of ffn_output to that of ffn_input,
 * each in the place of its value. */
int modeli_block_activate(const modeli_block_run *run) MUST_CHECK;
int modeli_block_activate_grad(const modeli_block_run *run) MUST_CHECK;

/* call->output += middle, rounded once. */
int modeli_block_add_middle(const modeli_block_run *run) MUST_CHECK;

/* The adapters of a layer (lora.c). inner: computes u from the layer's input. outer: adds to the
 * layer's output. */
int modeli_lora_inner(const modeli_block_run *run, enum modeli_layer layer,
                      const void *source) MUST_CHECK;
int modeli_lora_outer(const modeli_block_run *run, enum modeli_layer layer,
                      void *target) MUST_CHECK;
/* Two steps: the gradients of the adapters' weights; then the adapters' share, added to the
 * gradient of the layer's input. Between the two calls nothing may use temp beyond the library's
 * scratch. */
int modeli_lora_weight_grads(const modeli_block_run *run, enum modeli_layer layer,
                             const void *output_grad, const void *source) MUST_CHECK;
int modeli_lora_input_grads(const modeli_block_run *run, enum modeli_layer layer,
                            void *input_grad) MUST_CHECK;

#endif
