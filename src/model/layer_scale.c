/* SCALE: a factor of a residual branch, in place. Allocates nothing. */
#include "model/model_internal.h"

int modeli_scale_rows(const model *self, void *stream, uint64_t rows, float factor,
                      const void *source, void *target)
{
    uint64_t columns = self->spec.hidden_size;
    return modeli_scale_columns(self, stream, rows, columns, factor, false, source, columns, target,
                                columns);
}

int modeli_scale_columns(const model *self, void *stream, uint64_t rows, uint64_t columns,
                         float factor, bool accumulates, const void *source, uint64_t source_stride,
                         void *target, uint64_t target_stride)
{
    scale_rows_args args = {
        .type = self->type,
        .rows = rows,
        .columns = columns,
        .scale = factor,
        .accumulates = accumulates,
        .source = source,
        .target = target,
        .source_stride = source_stride,
        .target_stride = target_stride,
    };
    return self->ops->scale_rows(self->context, stream, &args);
}

static int scale(const modeli_run *run, const void *source, void *target)
{
    return modeli_scale_rows(run->self, run->stream, modeli_rows(run->self),
                             (float)run->self->spec.residual_multiplier, source, target);
}

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    return scale(run, modeli_value_at(run, layer->reads[0]), modeli_value_at(run, layer->writes));
}

static int backward(const modeli_run *run, const modeli_layer *layer)
{
    return scale(run, modeli_at_spot(run, layer->output_grad),
                 modeli_at_spot(run, layer->input_grad));
}

const modeli_kind modeli_scale = {
    .gradient = MODELI_GRAD_OWN,
    .forward = forward,
    .backward = backward,
    .row_kinds = {MODEL_ROWS_PLAIN, MODEL_ROWS_PLAIN},
};
