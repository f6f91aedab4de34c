/* HEAD_NORM: norms of q and of k, in place on the projections q k v. q has one weight, k another.
 * The width of the weight decides:
 *   D               each head has a norm over its D elements, and all share the weight
 *   all columns     one norm goes over all heads; or, with by_heads, each head has its own weight
 * It keeps a copy of q and k as they were. Allocates nothing. */
#include "model/model_internal.h"

/* Heads of q, or of k, that have a norm each; 1: all have one together. */
static uint64_t norms_of(const modeli_layer *layer, bool is_k)
{
    const model_spec *spec = &layer->net->spec;
    if (layer->row->weights[0].width != MODELI_HEAD && !layer->row->by_heads)
        return 1;
    return is_k ? spec->num_kv_heads : spec->num_heads;
}

/* fp32 numbers in each row of a statistic. */
static uint64_t norm_count(const modeli_layer *layer)
{
    return norms_of(layer, false) + norms_of(layer, true);
}

static bool is_layer_norm(const modeli_layer *layer)
{
    return layer->net->products->family->norm == NORM_LAYER;
}

static uint64_t columns_of(const modeli_layer *layer, bool is_k)
{
    return modeli_width_of(layer->net, is_k ? MODELI_KEYS : MODELI_QUERIES);
}

/* [0] 1 / standard deviation [N, norms] fp32, then for LayerNorm the means; [1] q and k before the
 * norm [N,(H+G)D]. In each all rows of q come first. */
static uint64_t kept_bytes(const modeli_layer *layer, uint32_t idx)
{
    uint64_t rows = modeli_rows(layer->net);
    if (idx == 0)
        return (is_layer_norm(layer) ? 2 : 1) * rows * norm_count(layer) * sizeof(float);
    return rows * (columns_of(layer, false) + columns_of(layer, true)) *
           dtype_bytes(layer->net->type);
}

/* The arguments for q's heads or k's; `data` are the projections, or their gradient. */
static head_norm_args args_of(const modeli_run *run, const modeli_layer *layer, bool is_k,
                              void *data)
{
    const model *self = run->self;
    modeli_params params = modeli_params_of(run, layer);
    uint64_t rows = modeli_rows(self), elem_bytes = dtype_bytes(self->type);
    uint64_t q_columns = is_k ? columns_of(layer, false) : 0; /* before k's */
    float *rstd = modeli_at_spot(run, layer->kept[0]);
    rstd += is_k ? rows * norms_of(layer, false) : 0;
    bool is_layer = is_layer_norm(layer);
    void *before = modeli_at_spot(run, layer->kept[1]);
    return (head_norm_args){
        .type = self->type,
        .rows = rows,
        .heads = norms_of(layer, is_k),
        .head_dim = columns_of(layer, is_k) / norms_of(layer, is_k),
        .stride = layer->in,
        .epsilon = (float)self->spec.norm_epsilon,
        .is_layer = is_layer,
        .weight_per_head = layer->row->by_heads,
        .adds_one = self->products->family->adds_one,
        .weight = modeli_layer_param(run, layer, is_k ? params.second : params.weight),
        .data = modeli_at(data, q_columns * elem_bytes),
        .before = modeli_at(before, rows * q_columns * elem_bytes),
        .mean = is_layer ? rstd + rows * norm_count(layer) : NULL,
        .rstd = rstd,
        .weight_grad = modeli_layer_grad(run, layer, is_k ? params.second : params.weight),
        .scratch = run->call->temp,
    };
}

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    for (int is_k = 0; is_k < 2; is_k++) {
        head_norm_args args = args_of(run, layer, is_k, modeli_value_at(run, layer->reads[0]));
        TRY(run->self->ops->head_norm_forward(run->self->context, run->stream, &args));
    }
    return 0;
}

static int backward(const modeli_run *run, const modeli_layer *layer)
{
    for (int is_k = 0; is_k < 2; is_k++) {
        head_norm_args args = args_of(run, layer, is_k, modeli_at_spot(run, layer->output_grad));
        TRY(run->self->ops->head_norm_backward(run->self->context, run->stream, &args));
    }
    return 0;
}

/* Scratch for the norms of q; those of k need no more. */
static void scratch(const modeli_layer *layer, const modeli_part *part, uint64_t bytes[2])
{
    const model *self = layer->net;
    uint64_t norms = layer->row->by_heads ? 1 : norms_of(layer, false);
    (void)part;
    bytes[1] = self->ops->head_norm_grad_scratch_bytes(self->context, modeli_rows(self), norms,
                                                       columns_of(layer, false) / norms);
}

/* Forward: the old value, the new value, and a copy of the old one. Backward: that copy, the old
 * gradient and the new one. */
static uint64_t columns(const modeli_layer *layer, bool backward)
{
    (void)backward;
    return 3 * (columns_of(layer, false) + columns_of(layer, true));
}

static void costs(const modeli_layer *layer, const modeli_costing *of)
{
    enum model_row_kind kind =
        of->turn == MODELI_TURN_BACKWARD ? MODEL_ROWS_NORM_GRAD : MODEL_ROWS_NORM;
    modeli_cost_columns(layer->net, kind, 3 * columns_of(layer, false), of->costs);
    modeli_cost_columns(layer->net, kind, 3 * columns_of(layer, true), of->costs);
}

const modeli_kind modeli_head_norm = {
    .is_norm = true,
    .gradient = MODELI_GRAD_IN_PLACE,
    .kept_bytes = kept_bytes,
    .forward = forward,
    .backward = backward,
    .scratch = scratch,
    .columns = columns,
    .costs = costs,
};
