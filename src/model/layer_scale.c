/* SCALE: a factor of a residual branch, in place. Allocates nothing. */
#include "model/model_internal.h"

static int scale(const modeli_run *run, const modeli_layer *layer, const void *source, void *target)
{
    scale_rows_args args = {
        .type = run->self->type,
        .rows = modeli_rows(run->self),
        .columns = layer->in,
        .scale = (float)run->self->spec.residual_multiplier,
        .source = source,
        .target = target,
        .source_stride = layer->in,
        .target_stride = layer->in,
    };
    return run->self->ops->scale_rows(run->self->context, run->stream, &args);
}

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    return scale(run, layer, modeli_value_at(run, layer->reads[0]),
                 modeli_value_at(run, layer->writes));
}

static int backward(const modeli_run *run, const modeli_layer *layer)
{
    return scale(run, layer, modeli_at_spot(run, layer->output_grad),
                 modeli_at_spot(run, layer->input_grad));
}

static uint64_t columns(const modeli_layer *layer, bool backward)
{
    (void)backward;
    return 2 * layer->in;
}

const modeli_kind modeli_scale = {
    .gradient = MODELI_GRAD_OWN,
    .forward = forward,
    .backward = backward,
    .columns = columns,
    .row_kinds = {MODEL_ROWS_PLAIN, MODEL_ROWS_PLAIN},
};
