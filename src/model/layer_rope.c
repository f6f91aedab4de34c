/* ROPE: rotary positions, in place on the projections q k v: the heads of q and, directly after
 * them, those of k are turned. The backward turns the gradient back. Allocates nothing. */
#include "model/model_internal.h"

static bool has_positions(const model *self, uint64_t block)
{
    uint64_t interval = self->spec.nope_interval;
    return interval == 0 || (block + 1) % interval != 0;
}

static int turn_heads(const modeli_run *run, const modeli_layer *layer, void *data, bool inverse)
{
    const model *self = run->self;
    if (!has_positions(self, run->call->layer))
        return 0;
    uint64_t first = self->cache_positions ? run->call->position : 0;
    rope_args args = {
        .type = self->type,
        .batch = self->micro_batch,
        .tokens = modeli_call_tokens(self, run->call),
        .heads = self->spec.num_heads + self->spec.num_kv_heads,
        .head_dim = self->spec.head_dim,
        .stride = layer->in,
        .data = data,
        .table = (const float *)run->call->constants + first * self->spec.head_dim,
        .inverse = inverse,
        .begins = run->call->begins,
    };
    return self->ops->rope(self->context, run->stream, &args);
}

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    return turn_heads(run, layer, modeli_value_at(run, layer->reads[0]), false);
}

static int backward(const modeli_run *run, const modeli_layer *layer)
{
    return turn_heads(run, layer, modeli_at_spot(run, layer->output_grad), true);
}

/* A backward counts twice as much, as that of attention, with which it runs. */
static uint64_t columns(const modeli_layer *layer, bool backward)
{
    const model_spec *spec = &layer->net->spec;
    return (backward ? 4 : 2) * (spec->num_heads + spec->num_kv_heads) * spec->head_dim;
}

static void costs(const modeli_layer *layer, const modeli_costing *of)
{
    if (has_positions(layer->net, of->stage - 1))
        modeli_cost_columns(layer->net, MODEL_ROWS_PLAIN, columns(layer, false), of->costs);
}

const modeli_kind modeli_rope = {
    .gradient = MODELI_GRAD_IN_PLACE,
    .forward = forward,
    .backward = backward,
    .columns = columns,
    .costs = costs,
};

int model_fill_constants(model *self, void *stream, void *constants)
{
    const model_spec *spec = &self->spec;
    if (!modeli_has_rope(self->spec.family))
        return 0;
    rope_table_args args = {
        .table = constants,
        .tokens = modeli_positions(self),
        .head_dim = spec->head_dim,
        .theta = spec->rope_theta,
        .scaling = spec->rope_scaling,
        .factor = spec->rope_factor,
        .low_freq_factor = spec->rope_low_freq_factor,
        .high_freq_factor = spec->rope_high_freq_factor,
        .original_positions = (double)spec->rope_original_positions,
    };
    return self->ops->rope_table(self->context, stream, &args);
}
