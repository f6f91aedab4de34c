/* Multi-head latent attention (DeepSeek-V2, 2024), between its linear layers, norms and attention:
 *
 *   TAKE   c -> l               the first columns of c: the latent of keys and values
 *   JOIN   q kv c -> qkv        the heads of q, k and v side by side, as attention wants them. The
 *                               last columns of c are the rotary part of k, which all heads have
 *
 * Allocates nothing. */
#include "model/model_internal.h"

/* ---- TAKE ---- */

static uint64_t take_out(const modeli_layer *layer)
{
    return modeli_width_of(layer->net, MODELI_KV_LATENT);
}

static int take_forward(const modeli_run *run, const modeli_layer *layer)
{
    return modeli_scale_columns(run->self, run->stream, modeli_rows(run->self), layer->out, 1,
                                false, modeli_value_at(run, layer->reads[0]), layer->in,
                                modeli_value_at(run, layer->writes), layer->out);
}

static int take_backward(const modeli_run *run, const modeli_layer *layer)
{
    return modeli_scale_columns(run->self, run->stream, modeli_rows(run->self), layer->out, 1,
                                false, modeli_at_spot(run, layer->output_grad), layer->out,
                                modeli_at_spot(run, layer->input_grads[0]), layer->in);
}

static uint64_t take_columns(const modeli_layer *layer, bool backward)
{
    (void)backward;
    return 2 * layer->out;
}

const modeli_kind modeli_take = {
    .gradient = MODELI_GRAD_COLUMNS,
    .out = take_out,
    .forward = take_forward,
    .backward = take_backward,
    .columns = take_columns,
    .row_kinds = {MODEL_ROWS_PLAIN, MODEL_ROWS_PLAIN},
};

/* ---- JOIN ---- */

static uint64_t join_out(const modeli_layer *layer)
{
    return 2 * modeli_width_of(layer->net, MODELI_QUERIES) +
           modeli_width_of(layer->net, MODELI_OUTPUTS);
}

/* The arguments for values, or for their gradients; c of the first row is at `c`. */
static heads_join_args join_args(const modeli_layer *layer, void *q, void *kv, void *c,
                                 void *packed)
{
    const model *self = layer->net;
    const model_spec *spec = &self->spec;
    return (heads_join_args){
        .type = self->type,
        .rows = modeli_rows(self),
        .heads = spec->num_heads,
        .own = spec->head_dim - spec->rope_head_dim,
        .shared = spec->rope_head_dim,
        .value = spec->value_head_dim,
        .q = q,
        .kv = kv,
        .common = modeli_at(c, spec->kv_latent_size * dtype_bytes(self->type)),
        .packed = packed,
        .common_stride = modeli_width_of(self, MODELI_KV_LATENT_ROPE),
    };
}

static int join_forward(const modeli_run *run, const modeli_layer *layer)
{
    heads_join_args args = join_args(
        layer, modeli_value_at(run, layer->reads[0]), modeli_value_at(run, layer->reads[1]),
        modeli_value_at(run, layer->reads[2]), modeli_value_at(run, layer->writes));
    return run->self->ops->heads_join(run->self->context, run->stream, &args);
}

static int join_backward(const modeli_run *run, const modeli_layer *layer)
{
    const modeli_spot *grads = layer->input_grads;
    heads_join_args args =
        join_args(layer, modeli_at_spot(run, grads[0]), modeli_at_spot(run, grads[1]),
                  modeli_at_spot(run, grads[2]), modeli_at_spot(run, layer->output_grad));
    return run->self->ops->heads_split(run->self->context, run->stream, &args);
}

static uint64_t join_columns(const modeli_layer *layer, bool backward)
{
    const model *self = layer->net;
    (void)backward;
    return layer->out + modeli_width_of(self, MODELI_QUERIES) +
           modeli_width_of(self, MODELI_KEYS_VALUES) + self->spec.rope_head_dim;
}

const modeli_kind modeli_join = {
    .gradient = MODELI_GRAD_COLUMNS,
    .out = join_out,
    .forward = join_forward,
    .backward = join_backward,
    .columns = join_columns,
    .row_kinds = {MODEL_ROWS_PLAIN, MODEL_ROWS_PLAIN},
};

/* ---- the spec ---- */

/* The key of latent attention that a spec gives although its family has none; NULL if there is
 * none. */
static const char *given_latent(const model_spec *spec, uint64_t head_dim)
{
    return spec->kv_latent_size != 0                                       ? "kv_latent_size"
           : spec->q_latent_size != 0                                      ? "q_latent_size"
           : spec->rope_head_dim != 0                                      ? "rope_head_dim"
           : spec->rope_halves                                             ? "rope_halves"
           : spec->value_head_dim != 0 && spec->value_head_dim != head_dim ? "value_head_dim"
                                                                           : NULL;
}

int modeli_check_latents(const model_spec *spec)
{
    uint64_t head_dim = spec->head_dim ? spec->head_dim : spec->hidden_size / spec->num_heads;
    uint64_t rope = spec->rope_head_dim,
             widest = size_max(spec->q_latent_size, spec->kv_latent_size);
    if (!modeli_has_latents(spec->family)) {
        const char *given = given_latent(spec, head_dim);
        return given == NULL
                   ? 0
                   : err_set(ERR_CONFIG,
                             "model.%s is given, but the %s family has none: leave it out", given,
                             model_family_name(spec->family));
    }
    if (spec->kv_latent_size == 0 || widest > INT32_MAX)
        return err_set(ERR_CONFIG,
                       "model.kv_latent_size is %llu, but must lie between 1 and %d, and so must "
                       "model.q_latent_size %llu, if it is not 0",
                       (unsigned long long)spec->kv_latent_size, INT32_MAX,
                       (unsigned long long)spec->q_latent_size);
    if (rope == 0 || rope > head_dim || rope % 2 != 0)
        return err_set(ERR_CONFIG,
                       "model.rope_head_dim is %llu, but must be even, above 0, and at most "
                       "model.head_dim, %llu",
                       (unsigned long long)rope, (unsigned long long)head_dim);
    if (spec->num_kv_heads != spec->num_heads)
        return err_set(ERR_CONFIG,
                       "model.num_kv_heads is %llu, but the %s family has no grouped heads: leave "
                       "it out or set it to model.num_heads %llu",
                       (unsigned long long)spec->num_kv_heads, model_family_name(spec->family),
                       (unsigned long long)spec->num_heads);
    return 0;
}
