/* The steps of a block between its linear layers; see block_internal.h. Allocates nothing. */
#include "model/block_internal.h"

modeli_block_run modeli_block_start(model *self, void *stream, const model_call *call)
{
    modeli_block_run run = {.self = self, .stream = stream, .call = call};
    run.shape = &self->products->shape;
    modeli_block_layout_of(self, &run.at);
    run.grad = call->input_grad;
    return run;
}

/* A norm's tensors, and their gradients, which are NULL if they do not learn. */
static const void *norm_param(const modeli_block_run *run, uint64_t offset_elems)
{
    return modeli_param(run->self, run->call->params[run->shape->norm_unit], offset_elems);
}

static float *norm_weight_grad(const modeli_block_run *run, uint64_t offset_elems)
{
    return modeli_grad(run->call->grads[run->shape->norm_unit], offset_elems);
}

/* The fp32 means of a norm, or NULL for RMSNorm, which has none. */
static float *mean_of(const modeli_block_run *run, uint64_t offset_bytes)
{
    return run->shape->norm == NORM_LAYER ? modeli_block_saved(run, offset_bytes) : NULL;
}

/* ---- norms ---- */

static norm_args norm(const modeli_block_run *run, modeli_pair weights)
{
    norm_args args = {
        .kind = run->shape->norm,
        .type = run->self->type,
        .rows = run->shape->rows,
        .channels = run->self->spec.hidden_size,
        .epsilon = (float)run->self->spec.norm_epsilon,
        .input = run->call->input,
        .weight = norm_param(run, weights.weight),
        .bias = norm_param(run, weights.bias),
    };
    return args;
}

static norm_grad_args norm_grad(const modeli_block_run *run, modeli_pair weights)
{
    norm_grad_args args = {
        .kind = run->shape->norm,
        .type = run->self->type,
        .rows = run->shape->rows,
        .channels = run->self->spec.hidden_size,
        .weight = norm_param(run, weights.weight),
        .input_grad = run->grad,
        .weight_grad = norm_weight_grad(run, weights.weight),
        .bias_grad = norm_weight_grad(run, weights.bias),
        .scratch = run->call->temp,
    };
    return args;
}

int modeli_block_norm1(const modeli_block_run *run, modeli_pair weights)
{
    norm_args args = norm(run, weights);
    args.output = modeli_block_saved(run, run->at.normed1);
    args.mean = mean_of(run, run->at.mean1);
    args.rstd = modeli_block_saved(run, run->at.rstd1);
    return run->self->ops->norm_forward(run->self->context, run->stream, &args);
}

int modeli_block_norm1_grad(const modeli_block_run *run, modeli_pair weights)
{
    norm_grad_args args = norm_grad(run, weights);
    args.input = run->call->input;
    args.mean = mean_of(run, run->at.mean1);
    args.rstd = modeli_block_saved(run, run->at.rstd1);
    args.output_grad = modeli_block_saved(run, run->at.normed1);
    args.residual_grad = run->grad;
    return run->self->ops->norm_backward(run->self->context, run->stream, &args);
}

int modeli_block_norm2(const modeli_block_run *run, modeli_pair weights, const void *projected)
{
    norm_args args = norm(run, weights);
    args.residual = projected;
    args.sum = modeli_block_saved(run, run->at.middle);
    args.output = modeli_block_saved(run, run->at.normed2);
    args.mean = mean_of(run, run->at.mean2);
    args.rstd = modeli_block_saved(run, run->at.rstd2);
    return run->self->ops->norm_forward(run->self->context, run->stream, &args);
}

int modeli_block_norm2_grad(const modeli_block_run *run, modeli_pair weights)
{
    norm_grad_args args = norm_grad(run, weights);
    args.input = modeli_block_saved(run, run->at.middle);
    args.mean = mean_of(run, run->at.mean2);
    args.rstd = modeli_block_saved(run, run->at.rstd2);
    args.output_grad = run->grad;
    args.residual_grad = run->call->output_grad;
    return run->self->ops->norm_backward(run->self->context, run->stream, &args);
}

/* ---- attention ---- */

static int rope(const modeli_block_run *run, void *qkv, bool inverse)
{
    const model *self = run->self;
    if (!run->shape->has_rope)
        return 0;
    uint64_t first = self->cache_positions ? run->call->position : 0;
    rope_args args = {
        .type = self->type,
        .batch = self->micro_batch,
        .tokens = modeli_call_tokens(self, run->call),
        .heads = self->spec.num_heads + self->spec.num_kv_heads, /* q, and directly after it k */
        .head_dim = run->shape->head_dim,
        .stride = run->shape->qkv_columns,
        .data = qkv,
        .table = (const float *)run->call->constants + first * run->shape->head_dim,
        .inverse = inverse,
    };
    return self->ops->rope(self->context, run->stream, &args);
}

/* The address of k or v within a buffer that begins with q. */
static void *head_of(const modeli_block_run *run, void *qkv, uint64_t heads_before)
{
    uint64_t columns = heads_before * run->shape->head_dim;
    return modeli_at(qkv, columns * dtype_bytes(run->self->type));
}

/* The norms of q's heads, or of k's, which follow directly. In the gradient, `data` is the gradient
 * of qkv. */
static head_norm_args head_norm(const modeli_block_run *run, bool is_k, uint64_t weight, void *data)
{
    const model *self = run->self;
    uint64_t heads = self->spec.num_heads, rows = run->shape->rows;
    /* in `kept` and `rstd` all rows of q's heads come first */
    uint64_t before = is_k ? rows * heads : 0;
    float *rstd = modeli_block_saved(run, run->at.qk_rstd);
    void *kept = modeli_block_saved(run, run->at.qk_before);
    return (head_norm_args){
        .type = self->type,
        .rows = rows,
        .heads = is_k ? self->spec.num_kv_heads : heads,
        .head_dim = run->shape->head_dim,
        .stride = run->shape->qkv_columns,
        .epsilon = (float)self->spec.norm_epsilon,
        .weight = norm_param(run, weight),
        .data = head_of(run, data, is_k ? heads : 0),
        .before = head_of(run, kept, before),
        .rstd = rstd + before,
    };
}

/* Attention over the positions in the cache; puts the call's own keys and values after them. */
static int attend_cached(const modeli_block_run *run, void *qkv)
{
    const model *self = run->self;
    uint64_t heads = self->spec.num_heads, kv_heads = self->spec.num_kv_heads;
    uint64_t half_bytes =
        kv_heads * self->cache_positions * run->shape->head_dim * dtype_bytes(self->type);
    void *keys = modeli_at(run->call->cache, 2 * run->call->layer * half_bytes);
    attention_cached_args args = {
        .type = self->type,
        .rows = run->call->count,
        .begin = run->call->position,
        .capacity = self->cache_positions,
        .heads = heads,
        .kv_heads = kv_heads,
        .head_dim = run->shape->head_dim,
        .qkv_stride = run->shape->qkv_columns,
        .scale = modeli_score_scale(self),
        .q = qkv,
        .k = head_of(run, qkv, heads),
        .v = head_of(run, qkv, heads + kv_heads),
        .keys = keys,
        .values = modeli_at(keys, half_bytes),
        .output = modeli_block_saved(run, run->at.attention),
    };
    return self->ops->attention_cached(self->context, run->stream, &args);
}

int modeli_block_attend(const modeli_block_run *run, uint64_t q_norm, uint64_t k_norm)
{
    const model *self = run->self;
    uint64_t heads = self->spec.num_heads, kv_heads = self->spec.num_kv_heads;
    void *qkv = modeli_block_saved(run, run->at.qkv);
    for (int i = 0; i < 2 && q_norm != MODELI_ABSENT; i++) {
        head_norm_args args = head_norm(run, i == 1, i == 1 ? k_norm : q_norm, qkv);
        TRY(self->ops->head_norm_forward(self->context, run->stream, &args));
    }
    TRY(rope(run, qkv, false));
    if (self->cache_positions > 0)
        return attend_cached(run, qkv);
    return self->ops->attention_forward(
        self->products->attention, run->stream, qkv, head_of(run, qkv, heads),
        head_of(run, qkv, heads + kv_heads), modeli_block_saved(run, run->at.attention),
        modeli_block_saved(run, run->at.lse), run->call->temp);
}

int modeli_block_attend_grad(const modeli_block_run *run)
{
    const model *self = run->self;
    uint64_t heads = self->spec.num_heads, kv_heads = self->spec.num_kv_heads;
    void *qkv = modeli_block_saved(run, run->at.qkv);
    void *qkv_grad = modeli_block_saved(run, run->at.qkv_grad);
    TRY(self->ops->attention_backward(
        self->products->attention, run->stream, qkv, head_of(run, qkv, heads),
        head_of(run, qkv, heads + kv_heads), modeli_block_saved(run, run->at.attention),
        modeli_block_saved(run, run->at.lse), modeli_block_saved(run, run->at.attention_grad),
        qkv_grad, head_of(run, qkv_grad, heads), head_of(run, qkv_grad, heads + kv_heads),
        run->call->temp));
    return rope(run, qkv_grad, true);
}

int modeli_block_head_norm_grad(const modeli_block_run *run, uint64_t q_norm, uint64_t k_norm)
{
    const model *self = run->self;
    void *qkv_grad = modeli_block_saved(run, run->at.qkv_grad);
    for (int i = 0; i < 2 && q_norm != MODELI_ABSENT; i++) {
        uint64_t weight = i == 1 ? k_norm : q_norm;
        head_norm_args args = head_norm(run, i == 1, weight, qkv_grad);
        args.weight_grad = norm_weight_grad(run, weight);
        args.scratch = run->call->temp;
        TRY(self->ops->head_norm_backward(self->context, run->stream, &args));
    }
    return 0;
}

/* ---- activation, and the end ---- */

static activation_args activation(const modeli_block_run *run)
{
    activation_args args = {
        .kind = run->shape->activation,
        .type = run->self->type,
        .rows = run->shape->rows,
        .features = run->self->spec.ffn_size,
        .input = modeli_block_saved(run, run->at.ffn_input),
    };
    return args;
}

int modeli_block_activate(const modeli_block_run *run)
{
    activation_args args = activation(run);
    args.output = modeli_block_saved(run, run->at.ffn_output);
    return run->self->ops->activation_forward(run->self->context, run->stream, &args);
}

int modeli_block_activate_grad(const modeli_block_run *run)
{
    activation_args args = activation(run);
    args.output_grad = modeli_block_saved(run, run->at.ffn_output);
    args.input_grad = modeli_block_saved(run, run->at.ffn_input);
    return run->self->ops->activation_backward(run->self->context, run->stream, &args);
}

int modeli_block_add_middle(const modeli_block_run *run)
{
    const model *self = run->self;
    uint64_t count = run->shape->rows * self->spec.hidden_size;
    return self->ops->add(self->context, run->stream, self->type, count,
                          modeli_block_saved(run, run->at.middle), run->call->output,
                          run->call->output);
}
