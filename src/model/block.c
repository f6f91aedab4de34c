/* A transformer block, both families, forward and backward:
 *
 *   middle = x + proj(attention(rope(qkv(norm1(x)))))
 *   y      = middle + down(activation(up(norm2(middle))))
 *
 * The sequence of ops depends on shapes alone. Activations live in `saved` (modeli_block_layout) and in
 * the caller's boundary buffers, which serve as scratch until their own value is due: call->output
 * (forward) and call->input_grad (backward) first hold the attention branch's projection. `temp` is
 * the library's scratch. Allocates nothing. */
#include "model/model_internal.h"

/* One call with everything that its steps need. */
struct block_run {
    model *self;
    void *stream;
    const model_call *call;
    const modeli_shape *shape;
    modeli_block_layout at;
};
typedef struct block_run block_run;

static block_run start(model *self, void *stream, const model_call *call)
{
    block_run run = {.self = self, .stream = stream, .call = call};
    run.shape = &self->products->shape;
    modeli_block_layout_of(self, &run.at);
    return run;
}

static const void *param(const block_run *run, uint64_t offset_elems)
{
    return modeli_param(run->self, run->call->params[0], offset_elems);
}

static float *grad(const block_run *run, uint64_t offset_elems)
{
    return modeli_grad(run->call->grads[0], offset_elems);
}

static void *saved(const block_run *run, uint64_t offset_bytes)
{
    return modeli_at(run->call->saved, offset_bytes);
}

/* The fp32 means of a norm: NULL for RMSNorm, which has none. */
static float *mean_of(const block_run *run, uint64_t offset_bytes)
{
    return run->shape->norm == NORM_LAYER ? saved(run, offset_bytes) : NULL;
}

/* target = source W^T + b. */
static int linear(const block_run *run, enum modeli_product which, modeli_pair weights,
                  const void *source, void *target)
{
    const model *self = run->self;
    return self->ops->matmul(self->products->matmul[which], run->stream, source,
                             param(run, weights.weight), param(run, weights.bias), target,
                             run->call->temp);
}

/* Parameter gradients of a linear layer: dW += dY^T X, db += column sums of dY. */
static int linear_weight_grad(const block_run *run, enum modeli_product which, modeli_pair weights,
                              const void *output_grad, uint64_t out, const void *source)
{
    const model *self = run->self;
    TRY(self->ops->matmul(self->products->matmul[which], run->stream, output_grad, source, NULL,
                          grad(run, weights.weight), run->call->temp));
    if (weights.bias == MODELI_ABSENT)
        return 0;
    return self->ops->bias_backward(self->context, run->stream, self->type, run->shape->rows, out,
                                    output_grad, grad(run, weights.bias), run->call->temp);
}

/* dX = dY W. */
static int linear_input_grad(const block_run *run, enum modeli_product which, modeli_pair weights,
                             const void *output_grad, void *input_grad)
{
    const model *self = run->self;
    return self->ops->matmul(self->products->matmul[which], run->stream, output_grad,
                             param(run, weights.weight), NULL, input_grad, run->call->temp);
}

static int rope(const block_run *run, void *qkv, bool inverse)
{
    const model *self = run->self;
    if (!run->shape->has_rope)
        return 0;
    rope_args args = {
        .type = self->type,
        .batch = self->micro_batch,
        .tokens = self->tokens,
        .heads = self->spec.num_heads + self->spec.num_kv_heads, /* q, and k right behind it */
        .head_dim = run->shape->head_dim,
        .stride = run->shape->qkv_columns,
        .data = qkv,
        .table = run->call->constants,
        .inverse = inverse,
    };
    return self->ops->rope(self->context, run->stream, &args);
}

static int norm(const block_run *run, modeli_pair weights, const void *input, const void *residual,
                void *sum, void *output, float *mean, float *rstd)
{
    const model *self = run->self;
    norm_args args = {
        .kind = run->shape->norm,
        .type = self->type,
        .rows = run->shape->rows,
        .channels = self->spec.hidden_size,
        .epsilon = (float)self->spec.norm_epsilon,
        .input = input,
        .residual = residual,
        .sum = sum,
        .weight = param(run, weights.weight),
        .bias = param(run, weights.bias),
        .output = output,
        .mean = mean,
        .rstd = rstd,
    };
    return self->ops->norm_forward(self->context, run->stream, &args);
}

/* input_grad = gradient through the norm + residual_grad; input_grad may be residual_grad. */
static int norm_grad(const block_run *run, modeli_pair weights, const void *input,
                     const float *mean, const float *rstd, const void *output_grad,
                     const void *residual_grad, void *input_grad)
{
    const model *self = run->self;
    norm_grad_args args = {
        .kind = run->shape->norm,
        .type = self->type,
        .rows = run->shape->rows,
        .channels = self->spec.hidden_size,
        .input = input,
        .weight = param(run, weights.weight),
        .mean = mean,
        .rstd = rstd,
        .output_grad = output_grad,
        .residual_grad = residual_grad,
        .input_grad = input_grad,
        .weight_grad = grad(run, weights.weight),
        .bias_grad = grad(run, weights.bias),
        .scratch = run->call->temp,
    };
    return self->ops->norm_backward(self->context, run->stream, &args);
}

static activation_args activation(const block_run *run)
{
    activation_args args = {
        .kind = run->shape->activation,
        .type = run->self->type,
        .rows = run->shape->rows,
        .features = run->self->spec.ffn_size,
        .input = saved(run, run->at.ffn_input),
    };
    return args;
}

/* Addresses of k and v within a buffer that begins with q. */
static void *part(const block_run *run, void *qkv, uint64_t heads_before)
{
    uint64_t columns = heads_before * run->shape->head_dim;
    return modeli_at(qkv, columns * dtype_bytes(run->self->type));
}

/* Fills `saved` from the input. `projected` [N,C] is overwritten. */
static int compute_saved(const block_run *run, void *projected)
{
    model *self = run->self;
    const modeli_shape *shape = run->shape;
    uint64_t heads = self->spec.num_heads, kv_heads = self->spec.num_kv_heads;
    void *qkv = saved(run, run->at.qkv), *attended = saved(run, run->at.attention);
    void *normed1 = saved(run, run->at.normed1), *normed2 = saved(run, run->at.normed2);

    TRY(norm(run, shape->norm1, run->call->input, NULL, NULL, normed1, mean_of(run, run->at.mean1),
             saved(run, run->at.rstd1)));
    TRY(linear(run, MODELI_QKV, shape->qkv, normed1, qkv));
    TRY(rope(run, qkv, false));
    TRY(self->ops->attention_forward(self->products->attention, run->stream, qkv,
                                     part(run, qkv, heads), part(run, qkv, heads + kv_heads),
                                     attended, saved(run, run->at.lse), run->call->temp));
    TRY(linear(run, MODELI_PROJ, shape->proj, attended, projected));
    TRY(norm(run, shape->norm2, run->call->input, projected, saved(run, run->at.middle), normed2,
             mean_of(run, run->at.mean2), saved(run, run->at.rstd2)));
    TRY(linear(run, MODELI_UP, shape->up, normed2, saved(run, run->at.ffn_input)));
    activation_args args = activation(run);
    args.output = saved(run, run->at.ffn_output);
    return self->ops->activation_forward(self->context, run->stream, &args);
}

int modeli_block_forward(model *self, void *stream, const model_call *call)
{
    block_run run = start(self, stream, call);
    TRY(compute_saved(&run, call->output));
    TRY(linear(&run, MODELI_DOWN, run.shape->down, saved(&run, run.at.ffn_output), call->output));
    uint64_t count = run.shape->rows * self->spec.hidden_size;
    return self->ops->add(self->context, stream, self->type, count, saved(&run, run.at.middle),
                          call->output, call->output);
}

/* The ffn branch: leaves the gradient of `middle` in call->input_grad. */
static int ffn_backward(const block_run *run)
{
    model *self = run->self;
    const modeli_shape *shape = run->shape;
    const void *output_grad = run->call->output_grad;
    void *ffn_input = saved(run, run->at.ffn_input), *ffn_output = saved(run, run->at.ffn_output);
    void *normed2 = saved(run, run->at.normed2), *input_grad = run->call->input_grad;

    TRY(linear_weight_grad(run, MODELI_DOWN_WEIGHT, shape->down, output_grad,
                           self->spec.hidden_size, ffn_output));
    TRY(linear_input_grad(run, MODELI_DOWN_INPUT, shape->down, output_grad, ffn_output));
    activation_args args = activation(run);
    args.output_grad = ffn_output;
    args.input_grad = ffn_input;
    TRY(self->ops->activation_backward(self->context, run->stream, &args));
    TRY(linear_weight_grad(run, MODELI_UP_WEIGHT, shape->up, ffn_input, shape->ffn_columns,
                           normed2));
    TRY(linear_input_grad(run, MODELI_UP_INPUT, shape->up, ffn_input, input_grad));
    return norm_grad(run, shape->norm2, saved(run, run->at.middle), mean_of(run, run->at.mean2),
                     saved(run, run->at.rstd2), input_grad, output_grad, input_grad);
}

/* The attention branch: from the gradient of `middle` to that of the input, both in call->input_grad. */
static int attention_backward(const block_run *run)
{
    model *self = run->self;
    const modeli_shape *shape = run->shape;
    uint64_t heads = self->spec.num_heads, kv_heads = self->spec.num_kv_heads;
    void *qkv = saved(run, run->at.qkv), *qkv_grad = saved(run, run->at.qkv_grad);
    void *attended = saved(run, run->at.attention), *normed1 = saved(run, run->at.normed1);
    void *attended_grad = saved(run, run->at.attention_grad), *input_grad = run->call->input_grad;

    TRY(linear_weight_grad(run, MODELI_PROJ_WEIGHT, shape->proj, input_grad, self->spec.hidden_size,
                           attended));
    TRY(linear_input_grad(run, MODELI_PROJ_INPUT, shape->proj, input_grad, attended_grad));
    TRY(self->ops->attention_backward(self->products->attention, run->stream, qkv,
                                      part(run, qkv, heads), part(run, qkv, heads + kv_heads),
                                      attended, saved(run, run->at.lse), attended_grad, qkv_grad,
                                      part(run, qkv_grad, heads),
                                      part(run, qkv_grad, heads + kv_heads), run->call->temp));
    TRY(rope(run, qkv_grad, true));
    TRY(linear_weight_grad(run, MODELI_QKV_WEIGHT, shape->qkv, qkv_grad, shape->qkv_columns,
                           normed1));
    TRY(linear_input_grad(run, MODELI_QKV_INPUT, shape->qkv, qkv_grad, normed1));
    return norm_grad(run, shape->norm1, run->call->input, mean_of(run, run->at.mean1),
                     saved(run, run->at.rstd1), normed1, input_grad, input_grad);
}

int modeli_block_backward(model *self, void *stream, const model_call *call, bool saved_is_valid)
{
    block_run run = start(self, stream, call);
    if (!saved_is_valid)
        TRY(compute_saved(&run, call->input_grad));
    TRY(ffn_backward(&run));
    return attention_backward(&run);
}
