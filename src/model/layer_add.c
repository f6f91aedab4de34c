/* ADD: the sum of a residual stream and its branch, rounded once. Both inputs have the gradient of
 * the output, so a backward has nothing to compute. A sum directly before a norm is part of that
 * norm's layer instead (rows.c). Allocates nothing. */
#include "model/model_internal.h"

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    const model *self = run->self;
    return self->ops->add(self->context, run->stream, self->type, modeli_rows(self) * layer->in,
                          modeli_value_at(run, layer->reads[0]),
                          modeli_value_at(run, layer->reads[1]),
                          modeli_value_at(run, layer->writes));
}

const modeli_kind modeli_add = {
    .gradient = MODELI_GRAD_PASSES,
    .forward = forward,
    .row_kinds = {MODEL_ROWS_PLAIN},
};
