/* DROPOUT: of what a branch adds to the residual stream, in place (dropout.c); or in block 0 alone
 * of what its norm makes of the embedding (BERT). Without a counter, as in evaluation, it does
 * nothing. Allocates nothing. */
#include <assert.h>

#include "model/model_internal.h"

static bool drops(const modeli_layer *layer, uint64_t block)
{
    return block == 0 || !layer->row->only_first;
}

static int drop(const modeli_run *run, const modeli_layer *layer, const void *source, void *target)
{
    double probability = drops(layer, run->call->layer) ? run->self->spec.hidden_dropout : 0;
    return modeli_drop(run->self, run->stream, run->call, probability,
                       modeli_block_site(run->call, layer->site), layer->in, source, target);
}

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    void *value = modeli_value_at(run, layer->writes);
    assert(layer->reads[0] == layer->writes);
    bool is_on = run->call->dropout_counter != NULL && drops(layer, run->call->layer);
    return is_on ? drop(run, layer, value, value) : 0;
}

static int backward(const modeli_run *run, const modeli_layer *layer)
{
    return drop(run, layer, modeli_at_spot(run, layer->output_grad),
                modeli_at_spot(run, layer->input_grad));
}

/* The backward copies the gradient where nothing is dropped. */
static void costs(const modeli_layer *layer, const modeli_costing *of)
{
    if (of->turn == MODELI_TURN_BACKWARD || drops(layer, model_block_of(layer->net, of->stage)))
        modeli_cost_columns(layer->net, MODEL_ROWS_DROPOUT, 2 * layer->in, of->costs);
}

const modeli_kind modeli_dropout = {
    .gradient = MODELI_GRAD_OWN,
    .forward = forward,
    .backward = backward,
    .costs = costs,
};
