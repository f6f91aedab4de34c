/* ROPE: rotary positions, in place on the projections q k v: the heads of q and, directly after
 * them, those of k are turned, or the first elements of each, or (latent attention) the last ones.
 * The backward turns the gradient back. Allocates nothing. */
#include "model/model_internal.h"

uint64_t modeli_rotated(const model_spec *spec)
{
    double share = spec->partial_rotary_factor;
    if (spec->rope_head_dim != 0)
        return spec->rope_head_dim;
    return share == 0 ? spec->head_dim : (uint64_t)((double)spec->head_dim * share);
}

static bool has_positions(const model *self, uint64_t block)
{
    uint64_t interval = self->spec.nope_interval;
    return interval == 0 || (block + 1) % interval != 0;
}

/* Elements of a table. Blocks with a window have the second one, if spec.window_rope_theta is
 * given. */
static uint64_t table_elems(const model *self)
{
    return modeli_positions(self) * modeli_rotated(&self->spec);
}

static bool has_second_table(const model *self, uint64_t block)
{
    return self->spec.window_rope_theta != 0 && modeli_is_windowed(self, block);
}

static int turn_heads(const modeli_run *run, const modeli_layer *layer, void *data, bool inverse)
{
    const model *self = run->self;
    if (!has_positions(self, run->call->layer))
        return 0;
    uint64_t first = self->cache_positions ? run->call->position : 0;
    uint64_t rotated = modeli_rotated(&self->spec);
    uint64_t before = self->spec.rope_head_dim ? self->spec.head_dim - rotated : 0;
    uint64_t table = has_second_table(self, run->call->layer) ? table_elems(self) : 0;
    rope_args args = {
        .type = self->type,
        .batch = self->micro_batch,
        .tokens = modeli_call_tokens(self, run->call),
        .heads = self->spec.num_heads + self->spec.num_kv_heads,
        .head_dim = self->spec.head_dim,
        .stride = layer->in,
        .rotated = rotated,
        .interleaved = self->products->family->interleaved && !self->spec.rope_halves,
        .data = modeli_at(data, before * dtype_bytes(self->type)),
        .table = (const float *)run->call->constants + table + first * rotated,
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
    return (backward ? 4 : 2) * (spec->num_heads + spec->num_kv_heads) * modeli_rotated(spec);
}

static void costs(const modeli_layer *layer, const modeli_costing *of)
{
    if (has_positions(layer->net, model_block_of(layer->net, of->stage)))
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
    const rope_form *form = &spec->rope;
    if (self->constants_bytes == 0)
        return 0;
    rope_table_args args = {
        .table = constants,
        .tokens = modeli_positions(self),
        .head_dim = modeli_rotated(spec),
        .theta = spec->rope_theta,
        .scaling = form->scaling,
        .factor = form->factor,
        .low_freq_factor = form->low_freq_factor,
        .high_freq_factor = form->high_freq_factor,
        .original_positions = (double)form->original_positions,
        .length = spec->seq_length,
        .beta_fast = form->beta_fast,
        .beta_slow = form->beta_slow,
        .keeps_fraction = !form->truncates,
        .attention_factor = form->attention_factor,
        .mscale = form->mscale,
        .mscale_all_dim = form->mscale_all_dim,
        .short_factors = form->short_factors,
        .long_factors = form->long_factors,
    };
    TRY(self->ops->rope_table(self->context, stream, &args));
    if (spec->window_rope_theta == 0)
        return 0;
    args.table += table_elems(self);
    args.theta = spec->window_rope_theta;
    args.scaling = ROPE_PLAIN;
    return self->ops->rope_table(self->context, stream, &args);
}
