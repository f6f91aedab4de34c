/* A transformer block of both families, forward and backward:
 *
 *   middle = x + proj(attention(rope(qkv(norm1(x)))))     rope(head_norm(qkv)) if heads have norms
 *   y      = middle + down(activation(up(norm2(middle))))
 *
 * The sequence of ops depends only on shapes. Activations live in `saved` (modeli_block_layout) and
 * in the caller's boundary buffers. Until a boundary buffer gets its own value it is scratch:
 * call->output (forward) and run->grad (backward) first hold the attention branch's projection.
 * run->grad is call->input_grad, or a place in temp if nobody wants the gradient of the input. The
 * rest of `temp` is the library's scratch. Nothing is computed for a unit whose grads are NULL.
 * Allocates nothing. */
#include "model/block_internal.h"

/* One product of a linear layer. */
static int multiply(const modeli_block_run *run, enum modeli_layer layer, enum modeli_product which,
                    const void *a, const void *b, const void *bias, void *c)
{
    const model *self = run->self;
    return self->ops->matmul(self->products->layers[layer].matmul[which], run->stream, a, b, bias,
                             c, run->call->temp);
}

/* target = source W^T + b, plus the output of the adapters. */
static int linear(const modeli_block_run *run, enum modeli_layer layer, const void *source,
                  void *target)
{
    modeli_pair weights = modeli_layer_whole(run->shape, layer);
    TRY(multiply(run, layer, MODELI_FORWARD, source, modeli_block_param(run, weights.weight),
                 modeli_block_param(run, weights.bias), target));
    if (layer != MODELI_LAYER_DOWN) /* down's inner activations are made in compute_saved */
        TRY(modeli_lora_inner(run, layer, source));
    return modeli_lora_outer(run, layer, target);
}

/* Parameter gradients of a linear layer: dW += dY^T X (or = if it is fresh); db += column sums of
 * dY. */
static int linear_weight_grad(const modeli_block_run *run, enum modeli_layer layer,
                              const void *output_grad, const void *source)
{
    const model *self = run->self;
    modeli_pair weights = modeli_layer_whole(run->shape, layer);
    enum modeli_product gradient = run->call->fresh[0] ? MODELI_FIRST : MODELI_WEIGHT;
    TRY(modeli_lora_weight_grads(run, layer, output_grad, source));
    if (run->call->grads[0] == NULL)
        return 0;
    TRY(multiply(run, layer, gradient, output_grad, source, NULL,
                 modeli_block_grad(run, weights.weight)));
    if (weights.bias == MODELI_ABSENT)
        return 0;
    return self->ops->bias_backward(self->context, run->stream, self->type, run->shape->rows,
                                    self->products->layers[layer].out, output_grad,
                                    modeli_block_grad(run, weights.bias), run->call->temp);
}

/* dX = dY W. */
static int linear_input_grad(const modeli_block_run *run, enum modeli_layer layer,
                             const void *output_grad, void *input_grad)
{
    uint64_t weight = modeli_layer_whole(run->shape, layer).weight;
    TRY(multiply(run, layer, MODELI_INPUT, output_grad, modeli_block_param(run, weight), NULL,
                 input_grad));
    return modeli_lora_input_grads(run, layer, input_grad);
}

/* Fills `saved` from the input. Overwrites `projected` [N,C]. */
static int compute_saved(const modeli_block_run *run, void *projected)
{
    const modeli_shape *shape = run->shape;
    void *normed1 = modeli_block_saved(run, run->at.normed1);
    void *normed2 = modeli_block_saved(run, run->at.normed2);
    void *attended = modeli_block_saved(run, run->at.attention);

    TRY(modeli_block_norm1(run, shape->norm1));
    TRY(linear(run, MODELI_LAYER_QKV, normed1, modeli_block_saved(run, run->at.qkv)));
    TRY(modeli_block_attend(run, shape->q_norm, shape->k_norm));
    TRY(linear(run, MODELI_LAYER_PROJ, attended, projected));
    TRY(modeli_block_norm2(run, shape->norm2, projected));
    TRY(linear(run, MODELI_LAYER_UP, normed2, modeli_block_saved(run, run->at.ffn_input)));
    TRY(modeli_block_activate(run));
    return modeli_lora_inner(run, MODELI_LAYER_DOWN, modeli_block_saved(run, run->at.ffn_output));
}

int modeli_block_forward(model *self, void *stream, const model_call *call)
{
    modeli_block_run run = modeli_block_start(self, stream, call);
    TRY(compute_saved(&run, call->output));
    TRY(linear(&run, MODELI_LAYER_DOWN, modeli_block_saved(&run, run.at.ffn_output), call->output));
    return modeli_block_add_middle(&run);
}

/* The ffn branch. Leaves the gradient of `middle` in run->grad. */
static int ffn_backward(const modeli_block_run *run)
{
    const modeli_shape *shape = run->shape;
    const void *output_grad = run->call->output_grad;
    void *ffn_input = modeli_block_saved(run, run->at.ffn_input);
    void *ffn_output = modeli_block_saved(run, run->at.ffn_output);
    void *normed2 = modeli_block_saved(run, run->at.normed2);

    TRY(linear_weight_grad(run, MODELI_LAYER_DOWN, output_grad, ffn_output));
    TRY(linear_input_grad(run, MODELI_LAYER_DOWN, output_grad, ffn_output));
    TRY(modeli_block_activate_grad(run));
    TRY(linear_weight_grad(run, MODELI_LAYER_UP, ffn_input, normed2));
    TRY(linear_input_grad(run, MODELI_LAYER_UP, ffn_input, run->grad));
    return modeli_block_norm2_grad(run, shape->norm2);
}

/* The attention branch: turns the gradient of `middle` in run->grad into that of the input. Stops
 * when nothing further back learns. */
static int attention_backward(const modeli_block_run *run)
{
    const modeli_shape *shape = run->shape;
    void *qkv_grad = modeli_block_saved(run, run->at.qkv_grad);
    void *attended = modeli_block_saved(run, run->at.attention);
    void *attended_grad = modeli_block_saved(run, run->at.attention_grad);
    void *normed1 = modeli_block_saved(run, run->at.normed1), *middle_grad = run->grad;

    TRY(linear_weight_grad(run, MODELI_LAYER_PROJ, middle_grad, attended));
    TRY(linear_input_grad(run, MODELI_LAYER_PROJ, middle_grad, attended_grad));
    TRY(modeli_block_attend_grad(run));
    TRY(modeli_block_head_norm_grad(run, shape->q_norm, shape->k_norm));
    TRY(linear_weight_grad(run, MODELI_LAYER_QKV, qkv_grad, normed1));
    if (run->call->input_grad == NULL && run->call->grads[shape->norm_unit] == NULL)
        return 0;
    TRY(linear_input_grad(run, MODELI_LAYER_QKV, qkv_grad, normed1));
    return modeli_block_norm1_grad(run, shape->norm1);
}

int modeli_block_backward(model *self, void *stream, const model_call *call, bool saved_is_valid)
{
    modeli_block_run run = modeli_block_start(self, stream, call);
    if (run.grad == NULL)
        run.grad = modeli_at(call->temp, modeli_unwanted_grad(self, STAGE_BLOCK));
    if (!saved_is_valid)
        TRY(compute_saved(&run, run.grad));
    TRY(ffn_backward(&run));
    return attention_backward(&run);
}
