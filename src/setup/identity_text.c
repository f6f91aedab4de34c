/* Writes the identity of a run: everything that its bits depend on besides its data, such as model,
 * dtypes, micro-batch and kernels. Each is a line "key=value", with the name of the job's key if it
 * has one, so that a refusal can say what differs (identity.c). Pure. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "base/size.h"
#include "base/tile.h"
#include "setup/setup_internal.h"

enum {
    /* Raise it whenever the same job on the same machine gives other bits than before. Runs of
     * another version are then refused. */
    NUMERICS_VERSION = 7,
};

struct lines {
    char *text;
    size_t capacity;
    size_t bytes; /* of all that was appended, with what found no room */
};

__attribute__((format(printf, 2, 3))) static void append(struct lines *out, const char *format, ...)
{
    va_list args;
    size_t at = size_min(out->bytes, out->capacity);
    va_start(args, format);
    int length = vsnprintf(out->text + at, out->capacity - at, format, args);
    va_end(args);
    out->bytes += length > 0 ? (size_t)length : 0;
}

/* ---- the model ---- */

/* Writes the lines of a model of a family. */
static void append_family(const model_spec *s, struct lines *out)
{
    append(out,
           "model.family=%s\nmodel.num_layers=%" PRIu64 "\nmodel.hidden_size=%" PRIu64
           "\nmodel.num_heads=%" PRIu64 "\nmodel.num_kv_heads=%" PRIu64 "\nmodel.ffn_size=%" PRIu64
           "\nmodel.vocab_size=%" PRIu64 "\nmodel.seq_length=%" PRIu64
           "\nmodel.tie_embeddings=%s\nmodel.rope_theta=%.17g\nmodel.norm_epsilon=%.17g"
           "\nmodel.init_std=%.17g\nmodel.max_part_bytes=%" PRIu64 "\n",
           model_family_name(s->family), (uint64_t)s->num_layers, (uint64_t)s->hidden_size,
           (uint64_t)s->num_heads, (uint64_t)s->num_kv_heads, (uint64_t)s->ffn_size,
           (uint64_t)s->vocab_size, (uint64_t)s->seq_length, s->tie_embeddings ? "true" : "false",
           s->rope_theta, s->norm_epsilon, s->init_std, (uint64_t)s->max_part_bytes);
}

/* Lists of numbers have a line with their hash. */
static void append_rope(const rope_form *rope, struct lines *out)
{
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"factor", rope->factor},
        {"low_freq_factor", rope->low_freq_factor},
        {"high_freq_factor", rope->high_freq_factor},
        {"original_max_position_embeddings", (double)rope->original_positions},
        {"attention_factor", rope->attention_factor},
        {"beta_fast", rope->beta_fast},
        {"beta_slow", rope->beta_slow},
        {"mscale", rope->mscale},
        {"mscale_all_dim", rope->mscale_all_dim},
    };
    if (rope->scaling == ROPE_PLAIN)
        return;
    append(out, "model.rope_scaling.type=%s\n", rope_scaling_name(rope->scaling));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].value != 0)
            append(out, "model.rope_scaling.%s=%.17g\n", numbers[i].key, numbers[i].value);
    if (rope->scaling == ROPE_YARN && !rope->truncates)
        append(out, "model.rope_scaling.truncate=false\n");
    if (rope->scaling == ROPE_LONGROPE)
        append(out,
               "model.rope_scaling.short_factor=%016" PRIx64
               "\nmodel.rope_scaling.long_factor=%016" PRIx64 "\n",
               XXH3_64bits(rope->short_factors, rope->pair_count * sizeof(double)),
               XXH3_64bits(rope->long_factors, rope->pair_count * sizeof(double)));
}

/* The rules, or a sum over them where they are many: an identity has a limited length. */
static void append_stored_rules(const model_spec *spec, struct lines *out)
{
    enum { WRITTEN_MAX = 32 };
    uint64_t count = spec->stored.rule_count, sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        const char *name = spec->stored.rules[i].name;
        const char *format = stored_format_name(spec->stored.rules[i].format);
        sum = XXH3_64bits_withSeed(name, strlen(name), sum);
        sum = XXH3_64bits_withSeed(format, strlen(format), sum);
        if (count <= WRITTEN_MAX)
            append(out, "%s%s:%s%s", i == 0 ? "state.rules=" : ",", name, format,
                   i + 1 == count ? "\n" : "");
    }
    if (count > WRITTEN_MAX)
        append(out, "state.rules=%" PRIu64 " rules, sum %016" PRIx64 "\n", count, sum);
}

/* Writes the lines of keys that most models leave at their defaults. */
static void append_variant(const model_spec *spec, struct lines *out)
{
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"embedding_multiplier", spec->embedding_multiplier},
        {"attention_multiplier", spec->attention_multiplier},
        {"residual_multiplier", spec->residual_multiplier},
        {"logits_scaling", spec->logits_scaling},
        {"attention_soft_cap", spec->attention_soft_cap},
        {"logits_soft_cap", spec->logits_soft_cap},
        {"window", (double)spec->window},
        {"window_rope_theta", spec->window_rope_theta},
        {"nope_interval", (double)spec->nope_interval},
        {"out_bias", spec->out_bias},
        {"mlp_bias", spec->mlp_bias},
        {"hidden_dropout", spec->hidden_dropout},
        {"embedding_dropout", spec->embedding_dropout},
        {"attention_dropout", spec->attention_dropout},
        {"type_count", (double)spec->type_count},
        {"parallel_residual", spec->parallel_residual},
        {"num_experts", (double)spec->expert_count},
        {"num_experts_per_tok", (double)spec->experts_per_token},
        {"expert_ffn_size", (double)spec->expert_ffn_size},
        {"shared_ffn_size", (double)spec->shared_ffn_size},
        {"experts_per_unit", (double)spec->experts_per_unit},
        {"expert_parallel_size", spec->expert_ranks > 1 ? (double)spec->expert_ranks : 0},
        {"norm_topk_prob", spec->normalizes_experts},
        {"routed_scaling_factor", spec->routed_scaling},
        {"scoring_func", spec->sigmoid_scores},
        {"n_group", (double)spec->expert_groups},
        {"topk_group", (double)spec->groups_per_token},
        {"first_k_dense_replace", (double)spec->dense_blocks},
        {"swiglu_limit", spec->swiglu_limit},
        {"router_aux_loss_coef", spec->balance_coef},
        {"router_z_loss_coef", spec->router_z_coef},
        {"q_latent_size", (double)spec->q_latent_size},
        {"kv_latent_size", (double)spec->kv_latent_size},
        {"rope_head_dim", (double)spec->rope_head_dim},
        {"rope_halves", spec->rope_halves},
        {"attention_sinks", spec->attention_sinks},
    };
    if (spec->head_dim * spec->num_heads != spec->hidden_size)
        append(out, "model.head_dim=%" PRIu64 "\n", spec->head_dim);
    if (spec->value_head_dim != 0 && spec->value_head_dim != spec->head_dim)
        append(out, "model.value_head_dim=%" PRIu64 "\n", spec->value_head_dim);
    if (spec->position_count == 0 && spec->qkv_bias)
        append(out, "model.qkv_bias=true\n");
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].value != 0)
            append(out, "model.%s=%.17g\n", numbers[i].key, numbers[i].value);
    if (spec->window != 0 || spec->window_rope_theta != 0)
        append(out, "model.window_pattern=%s\n", spec->window_pattern);
    if (spec->activation != ACTIVATION_OF_FAMILY)
        append(out, "model.activation=%s\n", activation_name(spec->activation));
    if (spec->qk_norm)
        append(out, "model.qk_norm=true\n");
    if (spec->stored.format != STORED_WORKING)
        append(out, "state.params=%s\n", stored_format_name(spec->stored.format));
    append_stored_rules(spec, out);
    if (spec->position_count != 0)
        append(out, "model.position_count=%" PRIu64 "\n", spec->position_count);
    if (spec->partial_rotary_factor != 0 && spec->partial_rotary_factor != 1)
        append(out, "model.partial_rotary_factor=%.17g\n", spec->partial_rotary_factor);
    append_rope(&spec->rope, out);
}

/* The lines of a module: its name, and a hash of its units and their tensors. */
static void append_module(const module_spec *spec, struct lines *out)
{
    uint64_t sum = 0;
    for (uint32_t u = 0; u < spec->unit_count; u++) {
        const module_unit *unit = &spec->units[u];
        const uint32_t words[] = {unit->tensor_count, unit->is_frozen, unit->has_matrices};
        sum = XXH3_64bits_withSeed(unit->name, strlen(unit->name), sum);
        sum = XXH3_64bits_withSeed(words, sizeof words, sum);
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            const module_tensor *tensor = &unit->tensors[i];
            sum = XXH3_64bits_withSeed(tensor->name, strlen(tensor->name), sum);
            sum = XXH3_64bits_withSeed(tensor->shape,
                                       tensor->dimension_count * sizeof *tensor->shape, sum);
        }
    }
    append(out, "model.module.name=%s\nmodel.module.units=%" PRIu32 "\n%s%016" PRIx64 "\n",
           spec->name, spec->unit_count, SETUPI_TENSORS_KEY, sum);
}

/* ---- what learns, and its state ---- */

static void append_only(const model_learn *learn, struct lines *out)
{
    static const char *const names[] = {"embed", "head", "norms"};
    const bool named[] = {learn->embed, learn->head, learn->norms};
    const char *between = "";
    append(out, "train.only=");
    for (int i = 0; i < 3; i++)
        if (named[i]) {
            append(out, "%s%s", between, names[i]);
            between = ",";
        }
    for (uint32_t i = 0; i < learn->range_count; i++) {
        append(out, "%sblocks.%" PRIu64 "-%" PRIu64, between, learn->blocks[i].first,
               learn->blocks[i].last);
        between = ",";
    }
    append(out, "\n");
}

/* Writes the lines that say what learns; none if everything learns. */
static void append_learning(const model *net, struct lines *out)
{
    const model_lora *lora = &net->spec.lora;
    const char *name, *between = "";
    if (net->spec.learn.is_given)
        append_only(&net->spec.learn, out);
    if (lora->rank == 0)
        return;
    append(out,
           "train.lora.rank=%" PRIu64 "\ntrain.lora.alpha=%.17g\ntrain.lora.targets=", lora->rank,
           lora->alpha);
    for (uint32_t i = 0; (name = model_lora_target(net->spec.family, i)) != NULL; i++)
        if (lora->targets >> i & 1) {
            append(out, "%s%s", between, name);
            between = ",";
        }
    append(out, "\n");
    if (lora->dropout > 0)
        append(out, "train.lora.dropout=%.17g\n", lora->dropout);
}

/* Writes the lines of formats of the optimizer's state; none if all of it is fp32. */
static void append_state(const struct job *asked, struct lines *out)
{
    static const char *const moments[] = {[TILE_FP32] = "",
                                          [TILE_BF16] = "state.moments=bf16\n",
                                          [TILE_INT8] = "state.moments=8bit\n"};
    append(out, "%s%s", asked->state.master == TILE_LOW16 ? "state.master=split\n" : "",
           moments[asked->state.moments]);
}

/* ---- the whole ---- */

int setupi_make_identity(struct setup *self)
{
    static const char *const optimizers[] = {
        [JOB_ADAM] = "Adam", [JOB_LION] = "Lion", [JOB_ADAGRAD] = "Adagrad", [JOB_MUON] = "Muon"};
    const module_spec *module = self->net->module;
    const char *choices =
        self->ops->product_choices ? self->ops->product_choices(self->context) : "";
    struct lines lines = {self->identity, sizeof self->identity, 0}, *out = &lines;
    if (module)
        append_module(module, out);
    else
        append_family(&self->net->spec, out);
    /* Kernels and threads of a module are those of its program. */
    append(out,
           "train_micro_batch_size_per_gpu=%" PRIu64 "\noptimizer.type=%s\ndtype=%s"
           "\ndata_types.grad_accum_dtype=%s\nlogits_chunk=%" PRIu64
           "\nbackend=%s\nkernels=%s\nthreads=%d\nnumerics=%d\n",
           (uint64_t)self->net->micro_batch, optimizers[self->job->optimizer.type],
           dtype_name(self->net->type), dtype_name(self->job->grad_dtype),
           (uint64_t)self->net->chunk_rows, self->ops->name,
           module ? "of a program" : self->ops->describe(self->context),
           module || self->gpu ? 0 : self->thread_count, /* the update's threads change no bit */
           NUMERICS_VERSION);
    if (choices[0])
        append(out, "%s%s\n", SETUPI_PRODUCTS_KEY, choices);
    if (!module)
        append_variant(&self->net->spec, out);
    append_state(self->job, out);
    if (out->bytes >= out->capacity)
        return err_set(ERR_INTERNAL, "the description of the run has %zu bytes, more than %zu",
                       out->bytes, out->capacity - 1);
    append_learning(self->net, out);
    /* a long list of what learns is cut */
    self->fingerprint = XXH3_64bits(self->identity, size_min(out->bytes, out->capacity - 1));
    return 0;
}
