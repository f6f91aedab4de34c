/* DROPOUT: of what a branch adds to the residual stream, in place (dropout.c). Without a counter,
 * as in evaluation, it does nothing. Allocates nothing. */
#include <assert.h>

#include "model/model_internal.h"

static int drop(const modeli_run *run, const modeli_layer *layer, const void *source, void *target)
{
    return modeli_drop(run->self, run->stream, run->call, run->self->spec.hidden_dropout,
                       modeli_block_site(run->call, layer->site), layer->in, source, target);
}

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    void *value = modeli_value_at(run, layer->writes);
    assert(layer->reads[0] == layer->writes);
    return run->call->dropout_counter == NULL ? 0 : drop(run, layer, value, value);
}

static int backward(const modeli_run *run, const modeli_layer *layer)
{
    return drop(run, layer, modeli_at_spot(run, layer->output_grad),
                modeli_at_spot(run, layer->input_grad));
}

static uint64_t columns(const modeli_layer *layer, bool backward)
{
    (void)backward;
    return 2 * layer->in;
}

const modeli_kind modeli_dropout = {
    .gradient = MODELI_GRAD_OWN,
    .forward = forward,
    .backward = backward,
    .columns = columns,
    .row_kinds = {MODEL_ROWS_DROPOUT, MODEL_ROWS_DROPOUT},
};
