/* NORM: LayerNorm or RMSNorm over the channels of each row. If the norm's input is the sum of a
 * residual branch, its kernel makes that sum as well. Allocates nothing. */
#include "model/model_internal.h"

/* [0] the means [N] fp32, which RMSNorm has none of; [1] 1 / standard deviation [N] fp32. */
static uint64_t kept_bytes(const modeli_layer *layer, uint32_t idx)
{
    return idx == 0 && layer->net->products->family->norm == NORM_RMS
               ? 0
               : modeli_rows(layer->net) * sizeof(float);
}

static float *mean_of(const modeli_run *run, const modeli_layer *layer)
{
    return run->self->products->family->norm == NORM_RMS ? NULL
                                                         : modeli_at_spot(run, layer->kept[0]);
}

norm_args modeli_norm_args(const modeli_layer *layer, const model_call *call, modeli_params params)
{
    const void *unit = call->params[layer->unit];
    return (norm_args){
        .kind = layer->net->products->family->norm,
        .type = layer->net->type,
        .rows = modeli_rows(layer->net),
        .channels = layer->in,
        .epsilon =
            layer->row->epsilon > 0 ? layer->row->epsilon : (float)layer->net->spec.norm_epsilon,
        .adds_one = layer->net->products->family->adds_one,
        .weight = modeli_param(layer->net, unit, params.weight),
        .bias = modeli_param(layer->net, unit, params.bias),
    };
}

norm_grad_args modeli_norm_grad_args(const modeli_layer *layer, const model_call *call,
                                     modeli_params params)
{
    float *grads = call->grads[layer->unit];
    return (norm_grad_args){
        .kind = layer->net->products->family->norm,
        .type = layer->net->type,
        .rows = modeli_rows(layer->net),
        .channels = layer->in,
        .adds_one = layer->net->products->family->adds_one,
        .weight = modeli_param(layer->net, call->params[layer->unit], params.weight),
        .weight_grad = modeli_grad(grads, params.weight),
        .bias_grad = modeli_grad(grads, params.bias),
        .scratch = call->temp,
    };
}

/* True if the sum is there, and only the norm is computed again. */
static bool has_sum(const modeli_layer *layer, enum modeli_turn turn, enum kept kept)
{
    return layer->sum_is_kept && turn == MODELI_TURN_RECOMPUTE && kept == KEPT_SELECTIVE;
}

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    norm_args args = modeli_norm_args(layer, run->call, modeli_params_of(run, layer));
    if (has_sum(layer, run->turn, run->kept)) {
        args.input = modeli_value_at(run, layer->sum);
    } else {
        args.input = modeli_value_at(run, layer->reads[0]);
        args.residual = modeli_value_at(run, layer->reads[1]);
        args.sum = modeli_value_at(run, layer->sum);
    }
    args.output = modeli_value_at(run, layer->writes);
    args.mean = mean_of(run, layer);
    args.rstd = modeli_at_spot(run, layer->kept[1]);
    return run->self->ops->norm_forward(run->self->context, run->stream, &args);
}

static int backward(const modeli_run *run, const modeli_layer *layer)
{
    norm_grad_args args = modeli_norm_grad_args(layer, run->call, modeli_params_of(run, layer));
    args.input = modeli_value_at(run, layer->sum ? layer->sum : layer->reads[0]);
    args.mean = mean_of(run, layer);
    args.rstd = modeli_at_spot(run, layer->kept[1]);
    args.output_grad = modeli_at_spot(run, layer->output_grad);
    args.residual_grad = modeli_at_spot(run, layer->residual_grad);
    args.input_grad = modeli_at_spot(run, layer->input_grad);
    return run->self->ops->norm_backward(run->self->context, run->stream, &args);
}

static void scratch(const modeli_layer *layer, const modeli_part *part, uint64_t bytes[2])
{
    const model *self = layer->net;
    (void)part;
    bytes[1] = self->ops->norm_grad_scratch_bytes(self->context, modeli_rows(self), layer->in);
}

static void costs(const modeli_layer *layer, const modeli_costing *of)
{
    bool backward = of->turn == MODELI_TURN_BACKWARD;
    bool only_norm = has_sum(layer, of->turn, of->kept);
    modeli_cost_columns(layer->net, backward ? MODEL_ROWS_NORM_GRAD : MODEL_ROWS_NORM,
                        only_norm ? 2 * layer->in : modeli_columns(layer, backward), of->costs);
}

const modeli_kind modeli_norm = {
    .is_norm = true,
    .keeps_input = true,
    .gradient = MODELI_GRAD_ADDS,
    .kept_bytes = kept_bytes,
    .forward = forward,
    .backward = backward,
    .scratch = scratch,
    .costs = costs,
};
