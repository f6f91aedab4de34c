/* HEAD_NORM: RMSNorm over the D elements of each head of q and of k, in place on the projections
 * q k v. All heads of q share one weight, those of k another. It keeps what it replaces. Allocates
 * nothing. */
#include "model/model_internal.h"

/* [0] 1 / standard deviation [N,H+G] fp32; [1] q and k before the norm [N,(H+G)D]. In both all rows
 * of q's heads come first. */
static uint64_t kept_bytes(const modeli_layer *layer, uint32_t idx)
{
    const model *self = layer->net;
    uint64_t heads = self->spec.num_heads + self->spec.num_kv_heads;
    uint64_t head_bytes = self->spec.head_dim * dtype_bytes(self->type);
    return modeli_rows(self) * heads * (idx == 0 ? sizeof(float) : head_bytes);
}

/* The arguments for q's heads or k's; `data` are the projections, or their gradient. */
static head_norm_args args_of(const modeli_run *run, const modeli_layer *layer, bool is_k,
                              void *data)
{
    const model *self = run->self;
    modeli_params params = modeli_params_of(run, layer);
    uint64_t heads = self->spec.num_heads, rows = modeli_rows(self);
    uint64_t head_bytes = self->spec.head_dim * dtype_bytes(self->type);
    uint64_t before = is_k ? rows * heads : 0;
    float *rstd = modeli_at_spot(run, layer->kept[0]);
    return (head_norm_args){
        .type = self->type,
        .rows = rows,
        .heads = is_k ? self->spec.num_kv_heads : heads,
        .head_dim = self->spec.head_dim,
        .stride = layer->in,
        .epsilon = (float)self->spec.norm_epsilon,
        .weight = modeli_layer_param(run, layer, is_k ? params.second : params.weight),
        .data = modeli_at(data, is_k ? heads * head_bytes : 0),
        .before = modeli_at(modeli_at_spot(run, layer->kept[1]), before * head_bytes),
        .rstd = rstd + before,
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

/* Scratch for the norms of q's heads; those of k's need no more. */
static void scratch(const modeli_layer *layer, const modeli_part *part, uint64_t bytes[2])
{
    const model *self = layer->net;
    (void)part;
    bytes[1] = self->ops->head_norm_grad_scratch_bytes(self->context, modeli_rows(self),
                                                       self->spec.num_heads, self->spec.head_dim);
}

/* Forward: the old value, the new value, and a copy of the old one. Backward: that copy, the old
 * gradient and the new one. */
static uint64_t columns(const modeli_layer *layer, bool backward)
{
    const model_spec *spec = &layer->net->spec;
    (void)backward;
    return 3 * (spec->num_heads + spec->num_kv_heads) * spec->head_dim;
}

static void costs(const modeli_layer *layer, const modeli_costing *of)
{
    const model_spec *spec = &layer->net->spec;
    enum model_row_kind kind =
        of->turn == MODELI_TURN_BACKWARD ? MODEL_ROWS_NORM_GRAD : MODEL_ROWS_NORM;
    modeli_cost_columns(layer->net, kind, 3 * spec->num_heads * spec->head_dim, of->costs);
    modeli_cost_columns(layer->net, kind, 3 * spec->num_kv_heads * spec->head_dim, of->costs);
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
