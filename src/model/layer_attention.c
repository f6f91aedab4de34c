/* ATTENTION: attention of the projections q k v, which lie side by side in each row; or, for
 * a model with a cache, over the positions in the cache, after which it puts the call's own keys
 * and values. Some blocks may see only a window of positions. If the row has a weight, these are
 * sinks (kernels/ops_heads.h). Allocates nothing after model_prepare. */
#include <assert.h>
#include <math.h>

#include "model/model_internal.h"

static uint64_t out_columns(const modeli_layer *layer)
{
    return modeli_width_of(layer->net, MODELI_OUTPUTS);
}

/* [0] log-sum-exp of the scores [B,H,T] fp32. */
static uint64_t kept_bytes(const modeli_layer *layer, uint32_t idx)
{
    return idx > 0 ? 0 : modeli_rows(layer->net) * layer->net->spec.num_heads * sizeof(float);
}

/* q, k and v of the first row of a buffer. */
struct heads {
    void *q, *k, *v;
};

static struct heads heads_of(const model *self, void *qkv)
{
    uint64_t head_bytes = self->spec.head_dim * dtype_bytes(self->type);
    void *k = modeli_at(qkv, self->spec.num_heads * head_bytes);
    return (struct heads){qkv, k, modeli_at(k, self->spec.num_kv_heads * head_bytes)};
}

/* The factor of the scores: 1 / sqrt(D), if the spec has no other. In latent attention the square
 * of yarn's factor for mscale_all_dim comes to it, since the angles have only the ratio of two such
 * factors. */
static float scale_of(const model *self)
{
    if (self->spec.attention_multiplier != 0)
        return (float)self->spec.attention_multiplier;
    const rope_form *rope = &self->spec.rope;
    double scale = 1.0 / sqrt((double)self->spec.head_dim), all = 1.0;
    if (self->spec.kv_latent_size != 0 && rope->scaling == ROPE_YARN && rope->factor > 1)
        all += 0.1 * rope->mscale_all_dim * log(rope->factor);
    return (float)(scale * all * all);
}

/* 0: there is none, or it is as wide as a sequence. */
static uint64_t window_of(const model *self, uint64_t block)
{
    uint64_t window = self->spec.window;
    return window < modeli_positions(self) && modeli_is_windowed(self, block) ? window : 0;
}

double modeli_scores_of(const model *self, uint64_t block)
{
    uint64_t window = window_of(self, block), tokens = self->tokens;
    double sees = (double)(window > 0 ? size_min(window, tokens) : tokens);
    return (model_is_bidirectional(self->spec.family) ? 2 : 1) * sees * ((double)tokens - sees / 2);
}

/* The offset of the sinks. An attention without them may have no place among the parameters of a
 * part. */
static uint64_t sinks_at(const modeli_run *run, const modeli_layer *layer)
{
    return layer->row->weights[0].name ? modeli_params_of(run, layer).weight : MODELI_ABSENT;
}

uint64_t modeli_cache_bytes(const model *self, bool is_values)
{
    const model_spec *spec = &self->spec;
    return spec->num_kv_heads * self->cache_positions *
           (is_values ? spec->value_head_dim : spec->head_dim) * dtype_bytes(self->type);
}

static int forward_cached(const modeli_run *run, const modeli_layer *layer, struct heads of)
{
    const model *self = run->self;
    assert(!self->products->family->is_bidirectional);
    uint64_t key_bytes = modeli_cache_bytes(self, false);
    uint64_t block_bytes = key_bytes + modeli_cache_bytes(self, true);
    void *keys = modeli_at(run->call->cache, run->call->layer * block_bytes);
    attention_cached_args args = {
        .type = self->type,
        .rows = run->call->count,
        .begin = run->call->position,
        .capacity = self->cache_positions,
        .heads = self->spec.num_heads,
        .kv_heads = self->spec.num_kv_heads,
        .head_dim = self->spec.head_dim,
        .value_dim = self->spec.value_head_dim,
        .qkv_stride = layer->in,
        .scale = scale_of(self),
        .soft_cap = (float)self->spec.attention_soft_cap,
        .window = window_of(self, run->call->layer),
        .sinks = modeli_layer_param(run, layer, sinks_at(run, layer)),
        .q = of.q,
        .k = of.k,
        .v = of.v,
        .keys = keys,
        .values = modeli_at(keys, key_bytes),
        .output = modeli_value_at(run, layer->writes),
    };
    return self->ops->attention_cached(self->context, run->stream, &args);
}

/* The prepared attention of the call's block, with what else depends on the call: documents, and
 * the masks of dropout. */
static kernel_attention *attention_of(const modeli_run *run)
{
    const model *self = run->self;
    const model_call *call = run->call;
    bool has_window = window_of(self, call->layer) != 0;
    kernel_attention *attention = self->products->attention[has_window];
    bool drops = self->spec.attention_dropout > 0 && call->dropout_counter != NULL;
    const attention_dropout masks = {call->dropout_seed, (uint32_t)modeli_block_site(call, 0),
                                     call->dropout_counter};
    self->ops->attention_set_documents(attention, call->begins);
    self->ops->attention_set_dropout(attention, drops ? &masks : NULL);
    return attention;
}

/* The sinks of a call; .sinks is NULL if there are none. */
static attention_sinks_args sinks_of(const modeli_run *run, const modeli_layer *layer)
{
    const model *self = run->self;
    uint64_t weight = sinks_at(run, layer);
    return (attention_sinks_args){
        .type = self->type,
        .batch = self->micro_batch,
        .tokens = self->tokens,
        .heads = self->spec.num_heads,
        .value_dim = self->spec.value_head_dim,
        .sinks = modeli_layer_param(run, layer, weight),
        .output = modeli_value_at(run, layer->writes),
        .lse = modeli_at_spot(run, layer->kept[0]),
        .output_grad = modeli_at_spot(run, layer->output_grad),
        .sinks_grad = modeli_layer_grad(run, layer, weight),
    };
}

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    const model *self = run->self;
    struct heads of = heads_of(self, modeli_value_at(run, layer->reads[0]));
    if (self->cache_positions > 0)
        return forward_cached(run, layer, of);
    TRY(self->ops->attention_forward(attention_of(run), run->stream, of.q, of.k, of.v,
                                     modeli_value_at(run, layer->writes),
                                     modeli_at_spot(run, layer->kept[0]), run->call->temp));
    attention_sinks_args sinks = sinks_of(run, layer);
    if (sinks.sinks == NULL)
        return 0;
    return self->ops->attention_sinks(self->context, run->stream, &sinks);
}

static int backward(const modeli_run *run, const modeli_layer *layer)
{
    const model *self = run->self;
    struct heads of = heads_of(self, modeli_value_at(run, layer->reads[0]));
    struct heads grads = heads_of(self, modeli_at_spot(run, layer->input_grad));
    attention_sinks_args sinks = sinks_of(run, layer);
    if (sinks.sinks_grad != NULL)
        TRY(self->ops->attention_sinks_backward(self->context, run->stream, &sinks));
    return self->ops->attention_backward(
        attention_of(run), run->stream, of.q, of.k, of.v, modeli_value_at(run, layer->writes),
        modeli_at_spot(run, layer->kept[0]), modeli_at_spot(run, layer->output_grad), grads.q,
        grads.k, grads.v, run->call->temp);
}

/* Makes an attention without a window, one with it, or both, as the blocks need them. */
static int prepare(model *self, modeli_layer *layer)
{
    attention_desc desc = {
        .batch = self->micro_batch,
        .tokens = self->tokens,
        .heads = self->spec.num_heads,
        .kv_heads = self->spec.num_kv_heads,
        .head_dim = self->spec.head_dim,
        .value_dim = self->spec.value_head_dim,
        .qkv_stride = layer->in,
        .type = self->type,
        .scale = scale_of(self),
        .dropout = (float)self->spec.attention_dropout,
        .is_bidirectional = self->products->family->is_bidirectional,
        .soft_cap = (float)self->spec.attention_soft_cap,
    };
    for (uint64_t block = 0; block < self->spec.num_layers; block++) {
        desc.window = window_of(self, block);
        kernel_attention **made = &self->products->attention[desc.window != 0];
        if (*made == NULL)
            TRY(self->ops->attention_create(self->context, &desc, made));
    }
    return 0;
}

static void scratch(const modeli_layer *layer, const modeli_part *part, uint64_t bytes[2])
{
    const kernel_ops *ops = layer->net->ops;
    (void)part;
    for (int i = 0; i < 2; i++) {
        const kernel_attention *attention = layer->net->products->attention[i];
        if (attention == NULL)
            continue;
        bytes[0] = size_max(bytes[0], ops->attention_forward_scratch_bytes(attention));
        bytes[1] = size_max(bytes[1], ops->attention_backward_scratch_bytes(attention));
    }
}

/* Counts modeli_scores_of. Forward: 2 products (Q K^T, P V). Backward: 5 products (scores again,
 * and the gradients of P, V, Q, K). Dropout costs as much as that of twice as many activations as
 * there are scores. */
static void costs(const modeli_layer *layer, const modeli_costing *of)
{
    double scores = modeli_scores_of(layer->net, model_block_of(layer->net, of->stage));
    double flops = 2 * (double)layer->net->micro_batch * scores; /* of one column of a product */
    double keys = (double)modeli_width_of(layer->net, MODELI_QUERIES), values = (double)layer->out;
    bool backward = of->turn == MODELI_TURN_BACKWARD;
    if (backward)
        of->costs->attention_backward_flops += flops * (3 * keys + 2 * values);
    else
        of->costs->attention_forward_flops += flops * (keys + values);
    if (layer->row->weights[0].name != NULL && (!backward || of->work.weights))
        modeli_cost_columns(layer->net, MODEL_ROWS_PLAIN, 2 * layer->out, of->costs);
    if (layer->net->spec.attention_dropout > 0)
        of->costs->row_bytes[MODEL_ROWS_DROPOUT] += 2 * (double)layer->net->micro_batch * scores *
                                                    (double)layer->net->spec.num_heads *
                                                    (double)dtype_bytes(layer->net->type);
    of->costs->call_count++;
}

const modeli_kind modeli_attention = {
    .has_product = true,
    .keeps_input = true,
    .keeps_output = true,
    .gradient = MODELI_GRAD_OWN,
    .out = out_columns,
    .kept_bytes = kept_bytes,
    .forward = forward,
    .backward = backward,
    .prepare = prepare,
    .scratch = scratch,
    .costs = costs,
};
