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

/* target = source W^T + b, plus the output of the adapters. */
static int linear(const modeli_block_run *run, enum modeli_product which, modeli_pair weights,
                  const void *source, void *target)
{
    const model *self = run->self;
    enum modeli_layer layer = (enum modeli_layer)(which - MODELI_QKV);
    TRY(self->ops->matmul(self->products->matmul[which], run->stream, source,
                          modeli_block_param(run, weights.weight),
                          modeli_block_param(run, weights.bias), target, run->call->temp));
    if (layer != MODELI_LAYER_DOWN) /* down's inner activations are made in compute_saved */
        TRY(modeli_lora_inner(run, layer, source));
    return modeli_lora_outer(run, layer, target);
}

/* Parameter gradients of a linear layer: dW += dY^T X (or = if it is fresh); db += column sums of
 * dY. */
static int linear_weight_grad(const modeli_block_run *run, enum modeli_product which,
                              modeli_pair weights, const void *output_grad, uint64_t out,
                              const void *source)
{
    const model *self = run->self;
    enum modeli_layer layer = (enum modeli_layer)(which - MODELI_QKV_WEIGHT);
    TRY(modeli_lora_weight_grads(run, layer, output_grad, source));
    if (run->call->grads[0] == NULL)
        return 0;
    if (run->call->fresh[0])
        which += MODELI_QKV_FIRST - MODELI_QKV_WEIGHT;
    TRY(self->ops->matmul(self->products->matmul[which], run->stream, output_grad, source, NULL,
                          modeli_block_grad(run, weights.weight), run->call->temp));
    if (weights.bias == MODELI_ABSENT)
        return 0;
    return self->ops->bias_backward(self->context, run->stream, self->type, run->shape->rows, out,
                                    output_grad, modeli_block_grad(run, weights.bias),
                                    run->call->temp);
}

/* dX = dY W. */
static int linear_input_grad(const modeli_block_run *run, enum modeli_product which,
                             modeli_pair weights, const void *output_grad, void *input_grad)
{
    const model *self = run->self;
    TRY(self->ops->matmul(self->products->matmul[which], run->stream, output_grad,
                          modeli_block_param(run, weights.weight), NULL, input_grad,
                          run->call->temp));
    return modeli_lora_input_grads(run, (enum modeli_layer)(which - MODELI_QKV_INPUT), input_grad);
}

/* Fills `saved` from the input. Overwrites `projected` [N,C]. */
static int compute_saved(const modeli_block_run *run, void *projected)
{
    const modeli_shape *shape = run->shape;
    void *normed1 = modeli_block_saved(run, run->at.normed1);
    void *normed2 = modeli_block_saved(run, run->at.normed2);
    void *attended = modeli_block_saved(run, run->at.attention);

    TRY(modeli_block_norm1(run, shape->norm1));
    TRY(linear(run, MODELI_QKV, shape->qkv, normed1, modeli_block_saved(run, run->at.qkv)));
    TRY(modeli_block_attend(run, shape->q_norm, shape->k_norm));
    TRY(linear(run, MODELI_PROJ, shape->proj, attended, projected));
    TRY(modeli_block_norm2(run, shape->norm2, projected));
    TRY(linear(run, MODELI_UP, shape->up, normed2, modeli_block_saved(run, run->at.ffn_input)));
    TRY(modeli_block_activate(run));
    return modeli_lora_inner(run, MODELI_LAYER_DOWN, modeli_block_saved(run, run->at.ffn_output));
}

int modeli_block_forward(model *self, void *stream, const model_call *call)
{
    modeli_block_run run = modeli_block_start(self, stream, call);
    TRY(compute_saved(&run, call->output));
    TRY(linear(&run, MODELI_DOWN, run.shape->down, modeli_block_saved(&run, run.at.ffn_output),
               call->output));
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

    TRY(linear_weight_grad(run, MODELI_DOWN_WEIGHT, shape->down, output_grad,
                           run->self->spec.hidden_size, ffn_output));
    TRY(linear_input_grad(run, MODELI_DOWN_INPUT, shape->down, output_grad, ffn_output));
    TRY(modeli_block_activate_grad(run));
    TRY(linear_weight_grad(run, MODELI_UP_WEIGHT, shape->up, ffn_input, shape->ffn_columns,
                           normed2));
    TRY(linear_input_grad(run, MODELI_UP_INPUT, shape->up, ffn_input, run->grad));
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

    TRY(linear_weight_grad(run, MODELI_PROJ_WEIGHT, shape->proj, middle_grad,
                           run->self->spec.hidden_size, attended));
    TRY(linear_input_grad(run, MODELI_PROJ_INPUT, shape->proj, middle_grad, attended_grad));
    TRY(modeli_block_attend_grad(run));
    TRY(modeli_block_head_norm_grad(run, shape->q_norm, shape->k_norm));
    TRY(linear_weight_grad(run, MODELI_QKV_WEIGHT, shape->qkv, qkv_grad, shape->qkv_columns,
                           normed1));
    if (run->call->input_grad == NULL && run->call->grads[shape->norm_unit] == NULL)
        return 0;
    TRY(linear_input_grad(run, MODELI_QKV_INPUT, shape->qkv, qkv_grad, normed1));
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
