/* GATE: the activation between the ffn's matrices: a plain one, or a gated one of two halves, gate
 * and up. The gradient takes the place of the input. Allocates nothing. */
#include "model/model_internal.h"

/* That of the family, or the one that the spec names, in the same form. */
enum activation_kind modeli_activation_of(const model *self)
{
    static const enum activation_kind named[2][ACTIVATION_NAME_COUNT] = {
        {0, ACTIVATION_GELU_ERF, ACTIVATION_GELU, ACTIVATION_RELU, 0},
        {0, ACTIVATION_GEGLU_ERF, ACTIVATION_GEGLU, 0, ACTIVATION_SWIGLU},
    };
    enum activation_kind own = self->products->family->activation;
    enum activation asked = self->spec.activation;
    return asked == ACTIVATION_OF_FAMILY ? own : named[activation_is_gated(own)][asked];
}

static uint64_t out_columns(const modeli_layer *layer)
{
    return activation_is_gated(modeli_activation_of(layer->net)) ? layer->in / 2 : layer->in;
}

static activation_args args_of(const modeli_run *run, const modeli_layer *layer)
{
    return (activation_args){
        .kind = modeli_activation_of(run->self),
        .type = run->self->type,
        .rows = modeli_rows(run->self),
        .features = layer->out,
        .input = modeli_value_at(run, layer->reads[0]),
    };
}

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    activation_args args = args_of(run, layer);
    args.output = modeli_value_at(run, layer->writes);
    return run->self->ops->activation_forward(run->self->context, run->stream, &args);
}

static int backward(const modeli_run *run, const modeli_layer *layer)
{
    activation_args args = args_of(run, layer);
    args.output_grad = modeli_at_spot(run, layer->output_grad);
    args.input_grad = modeli_at_spot(run, layer->input_grad);
    return run->self->ops->activation_backward(run->self->context, run->stream, &args);
}

static void costs(const modeli_layer *layer, const modeli_costing *of)
{
    static const enum model_row_kind kinds[2][2] = {
        {MODEL_ROWS_GELU, MODEL_ROWS_SWIGLU},
        {MODEL_ROWS_GELU_GRAD, MODEL_ROWS_SWIGLU_GRAD},
    };
    bool backward = of->turn == MODELI_TURN_BACKWARD, has_halves = layer->in != layer->out;
    modeli_cost_columns(layer->net, kinds[backward][has_halves], modeli_columns(layer, backward),
                        of->costs);
}

const modeli_kind modeli_gate = {
    .keeps_input = true,
    .gradient = MODELI_GRAD_REPLACES,
    .out = out_columns,
    .forward = forward,
    .backward = backward,
    .costs = costs,
};
