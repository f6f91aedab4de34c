/* GATE: the activation between the ffn's matrices: a plain one, or a gated one of two halves, gate
 * and up. The gradient takes the place of the input. Allocates nothing. */
#include "model/model_internal.h"

/* gpt-oss: the factor in the gate's sigmoid. */
static const float clamped_alpha = 1.702f;

int modeli_check_gate(model_spec *spec)
{
    enum { LIMIT = 7 };
    const modeli_family *family = modeli_family_of(spec->family);
    double *limit = &spec->swiglu_limit;
    if (family->activation != ACTIVATION_SWIGLU_CLAMPED)
        return *limit == 0 ? 0
                           : err_set(ERR_CONFIG,
                                     "model.swiglu_limit is %g, but the gate of the %s family has "
                                     "no limit: leave it out",
                                     *limit, model_family_name(spec->family));
    if (spec->activation != ACTIVATION_OF_FAMILY)
        return err_set(ERR_CONFIG, "model.activation is %s, but the %s family has only its own",
                       activation_name(spec->activation), model_family_name(spec->family));
    *limit = *limit == 0 ? LIMIT : *limit;
    if (!(*limit > 0 && *limit <= 1e30))
        return err_set(ERR_CONFIG, "model.swiglu_limit is %g, but must lie between 0 and 1e30",
                       *limit);
    return 0;
}

/* The activation of the family, or the one that the spec names, in the same form. */
static enum activation_kind activation_of(const model *self)
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
    return activation_is_gated(activation_of(layer->net)) ? layer->in / 2 : layer->in;
}

activation_args modeli_activation_args(const model *self, uint64_t rows, uint64_t features,
                                       const void *input)
{
    return (activation_args){
        .kind = activation_of(self),
        .type = self->type,
        .rows = rows,
        .features = features,
        .alpha = clamped_alpha,
        .limit = (float)self->spec.swiglu_limit,
        .input = input,
    };
}

static activation_args args_of(const modeli_run *run, const modeli_layer *layer)
{
    return modeli_activation_args(run->self, modeli_rows(run->self), layer->out,
                                  modeli_value_at(run, layer->reads[0]));
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
