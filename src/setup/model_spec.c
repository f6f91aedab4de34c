/* From the job's words to the numbers that other rooms take: the model, what of it learns, and how
 * optimizer state is stored (base/tile.h). And the matching lines of a run's identity. Pure. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "base/rng.h"
#include "base/shard.h"
#include "base/text.h"
#include "base/tile.h"
#include "setup/setup_internal.h"

/* Appends text. Like snprintf, it leaves out text without room but counts it in *used. */
__attribute__((format(printf, 4, 5))) static void append(char *text, size_t capacity, int *used,
                                                         const char *format, ...)
{
    va_list args;
    size_t at = (size_t)*used < capacity ? (size_t)*used : capacity;
    va_start(args, format);
    int length = vsnprintf(text + at, capacity - at, format, args);
    va_end(args);
    *used += length > 0 ? length : 0;
}

/* ---- the model ---- */

int setup_refuse_module(const struct job *asked, const char *task)
{
    if (!asked->model.module)
        return 0;
    return err_set(ERR_USAGE,
                   "%s: the passes of model.module, %s, are computed by a program: use the Python "
                   "package (sluice.torch), or sluice_module_* of the C library",
                   task, asked->model.module->name);
}

static enum model_family family_of(const struct job_model *from)
{
    int family = 0;
    while (strcmp(model_family_name((enum model_family)family), from->family) != 0) {
        family++;
        assert(family < MODEL_FAMILY_COUNT);
    }
    return (enum model_family)family;
}

model_spec setup_model_spec(const struct job_model *from)
{
    model_spec spec = {
        .family = family_of(from),
        .num_layers = from->num_layers,
        .hidden_size = from->hidden_size,
        .num_heads = from->num_heads,
        .num_kv_heads = from->num_kv_heads,
        .ffn_size = from->ffn_size,
        .vocab_size = from->vocab_size,
        .seq_length = from->seq_length,
        .head_dim = from->head_dim,
        .q_latent_size = from->q_latent_size,
        .kv_latent_size = from->kv_latent_size,
        .rope_head_dim = from->rope_head_dim,
        .value_head_dim = from->value_head_dim,
        .rope_halves = from->rope_halves,
        .attention_sinks = from->attention_sinks,
        .qkv_bias = from->qkv_bias,
        .out_bias = from->out_bias,
        .mlp_bias = from->mlp_bias,
        .qk_norm = from->qk_norm,
        .parallel_residual = from->parallel_residual,
        .activation = from->activation,
        .embedding_multiplier = from->embedding_multiplier,
        .attention_multiplier = from->attention_multiplier,
        .residual_multiplier = from->residual_multiplier,
        .logits_scaling = from->logits_scaling,
        .hidden_dropout = from->hidden_dropout,
        .embedding_dropout = from->embedding_dropout,
        .attention_dropout = from->attention_dropout,
        .attention_soft_cap = from->attention_soft_cap,
        .logits_soft_cap = from->logits_soft_cap,
        .window = from->window,
        .window_rope_theta = from->window_rope_theta,
        .nope_interval = from->nope_interval,
        .position_count = from->position_count,
        .type_count = from->type_count,
        .partial_rotary_factor = from->partial_rotary_factor,
        .rope = from->rope,
        .tie_embeddings = from->tie_embeddings,
        .rope_theta = from->rope_theta,
        .norm_epsilon = from->norm_epsilon,
        .init_std = from->init_std,
        .expert_count = from->num_experts,
        .experts_per_token = from->num_experts_per_tok,
        .expert_ffn_size = from->expert_ffn_size,
        .shared_ffn_size = from->shared_ffn_size,
        .experts_per_unit = from->experts_per_unit,
        .expert_ranks = from->expert_parallel_size, /* setup corrects it where it is "auto" */
        .normalizes_experts = from->norm_topk_prob,
        .routed_scaling = from->routed_scaling_factor,
        .sigmoid_scores = from->scoring_func == JOB_SIGMOID,
        .expert_groups = from->n_group,
        .groups_per_token = from->topk_group,
        .dense_blocks = from->first_k_dense_replace,
        .swiglu_limit = from->swiglu_limit,
        .balance_coef = from->router_aux_loss_coef,
        .router_z_coef = from->router_z_loss_coef,
        .max_part_bytes = from->max_part_bytes,
    };
    static_assert((int)JOB_PATTERN_BYTES <= (int)MODEL_PATTERN_BYTES, "it fits");
    strcpy(spec.window_pattern, from->window_pattern);
    return spec;
}

/* Lists of numbers have a line with their hash. */
static void append_rope(const rope_form *rope, char *text, size_t capacity, int *used)
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
    append(text, capacity, used, "model.rope_scaling.type=%s\n", rope_scaling_name(rope->scaling));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].value != 0)
            append(text, capacity, used, "model.rope_scaling.%s=%.17g\n", numbers[i].key,
                   numbers[i].value);
    if (rope->scaling == ROPE_YARN && !rope->truncates)
        append(text, capacity, used, "model.rope_scaling.truncate=false\n");
    if (rope->scaling == ROPE_LONGROPE)
        append(text, capacity, used,
               "model.rope_scaling.short_factor=%016" PRIx64
               "\nmodel.rope_scaling.long_factor=%016" PRIx64 "\n",
               XXH3_64bits(rope->short_factors, rope->pair_count * sizeof(double)),
               XXH3_64bits(rope->long_factors, rope->pair_count * sizeof(double)));
}

/* The rules, or a sum over them where they are many: an identity has a limited length. */
static void append_stored_rules(const model_spec *spec, char *text, size_t capacity, int *used)
{
    enum { WRITTEN_MAX = 32 };
    uint64_t count = spec->stored_rule_count, sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        const char *name = spec->stored_rules[i].name;
        const char *format = stored_format_name(spec->stored_rules[i].format);
        sum = XXH3_64bits_withSeed(name, strlen(name), sum);
        sum = XXH3_64bits_withSeed(format, strlen(format), sum);
        if (count <= WRITTEN_MAX)
            append(text, capacity, used, "%s%s:%s%s", i == 0 ? "state.rules=" : ",", name, format,
                   i + 1 == count ? "\n" : "");
    }
    if (count > WRITTEN_MAX)
        append(text, capacity, used, "state.rules=%" PRIu64 " rules, sum %016" PRIx64 "\n", count,
               sum);
}

int setupi_variant_identity(const model_spec *spec, char *text, size_t capacity)
{
    int used = 0;
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
        append(text, capacity, &used, "model.head_dim=%" PRIu64 "\n", spec->head_dim);
    if (spec->value_head_dim != 0 && spec->value_head_dim != spec->head_dim)
        append(text, capacity, &used, "model.value_head_dim=%" PRIu64 "\n", spec->value_head_dim);
    if (spec->position_count == 0 && spec->qkv_bias)
        append(text, capacity, &used, "model.qkv_bias=true\n");
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].value != 0)
            append(text, capacity, &used, "model.%s=%.17g\n", numbers[i].key, numbers[i].value);
    if (spec->window != 0 || spec->window_rope_theta != 0)
        append(text, capacity, &used, "model.window_pattern=%s\n", spec->window_pattern);
    if (spec->activation != ACTIVATION_OF_FAMILY)
        append(text, capacity, &used, "model.activation=%s\n", activation_name(spec->activation));
    if (spec->qk_norm)
        append(text, capacity, &used, "model.qk_norm=true\n");
    if (spec->stored != STORED_WORKING)
        append(text, capacity, &used, "state.params=%s\n", stored_format_name(spec->stored));
    append_stored_rules(spec, text, capacity, &used);
    if (spec->position_count != 0)
        append(text, capacity, &used, "model.position_count=%" PRIu64 "\n", spec->position_count);
    if (spec->partial_rotary_factor != 0 && spec->partial_rotary_factor != 1)
        append(text, capacity, &used, "model.partial_rotary_factor=%.17g\n",
               spec->partial_rotary_factor);
    append_rope(&spec->rope, text, capacity, &used);
    return used;
}

/* ---- what learns ---- */

/* As PEFT's target_modules: `asked` matches a module's whole name or its last part. So "c_proj"
 * matches both modules of that name in gpt2. As the name of a parameter, "down_proj.weight" matches
 * linear layers but no matrix of all experts. */
static bool matches(const char *target, const char *asked)
{
    size_t target_bytes = strlen(target), asked_bytes = strlen(asked);
    if (asked_bytes > target_bytes || strcmp(target + target_bytes - asked_bytes, asked) != 0)
        return false;
    return asked_bytes == target_bytes || target[target_bytes - asked_bytes - 1] == '.';
}

static int find_target(const model_spec *spec, const char *asked, uint32_t *targets)
{
    char known[512] = "", parameter[MODEL_NAME_BYTES];
    uint32_t found = 0, there = 0;
    const char *name;
    for (uint32_t i = 0; (name = model_lora_target(spec->family, i)) != NULL; i++) {
        text_add(known, sizeof known, "%s%s", i ? ", " : "", name);
        snprintf(parameter, sizeof parameter, "%s%s", name,
                 model_lora_is_expert(spec->family, i) ? "" : ".weight");
        if (!matches(name, asked) && !matches(parameter, asked))
            continue;
        found |= 1u << i;
        there |= model_lora_is_there(spec, i) ? 1u << i : 0;
    }
    *targets |= there ? there : found; /* the model refuses what it does not have */
    if (found)
        return 0;
    return err_set(
        ERR_CONFIG,
        "train.lora.targets: \"%s\" is not a linear layer of this model family, which has %s",
        asked, known);
}

/* PEFT's own choice if no list is given: q_proj and v_proj, or what takes their place. */
static void default_targets(struct job_train *train, enum model_family family)
{
    static const char *const others[MODEL_FAMILY_COUNT][2] = {
        [MODEL_GPT2] = {"c_attn"},
        [MODEL_PHI3] = {"qkv_proj"},
        [MODEL_BERT] = {"query", "value"},
        [MODEL_GPT_NEOX] = {"query_key_value"},
        [MODEL_DEEPSEEK] = {"kv_a_proj_with_mqa", "kv_b_proj"}, /* PEFT has no choice of its own */
    };
    static const char *const usual[2] = {"q_proj", "v_proj"};
    const char *const *names = others[family][0] ? others[family] : usual;
    for (int i = 0; i < 2 && names[i]; i++)
        strcpy(train->lora_targets[train->lora_target_count++], names[i]);
}

static void fill_stored(const struct job *asked, model_spec *spec)
{
    static_assert((int)JOB_STORED_RULES_MAX == (int)MODEL_STORED_RULES_MAX, "as many rules");
    static_assert((int)JOB_NAME_BYTES == (int)MODEL_STORED_NAME_BYTES, "names as long");
    spec->stored = asked->state.params;
    spec->stored_rule_count = asked->state.rule_count;
    spec->is_stored_so = asked->state.is_of_checkpoint;
    spec->may_keep_absent = asked->state.is_of_checkpoint || asked->state.is_of_block;
    for (uint32_t i = 0; i < asked->state.rule_count; i++) {
        const struct job_stored_rule *rule = &asked->state.rules[i];
        memcpy(spec->stored_rules[i].name, rule->tensors, sizeof rule->tensors);
        spec->stored_rules[i].format = rule->format;
    }
}

int setup_fill_learning(const struct job *asked, model_spec *spec)
{
    struct job_train train = asked->train;
    model_learn *learn = &spec->learn;
    spec->splits_vectors = asked->optimizer.type == JOB_MUON;
    fill_stored(asked, spec);
    *learn = (model_learn){.is_given = train.is_given,
                           .embed = train.embed || train.all,
                           .head = train.head || train.all,
                           .norms = train.norms || train.all};
    static_assert((int)JOB_BLOCKS_MAX < (int)MODEL_RANGES_MAX, "and one for all");
    for (uint32_t i = 0; i < train.range_count; i++)
        learn->blocks[learn->range_count++] =
            (model_range){train.blocks[i].first, train.blocks[i].last};
    if (train.all)
        learn->blocks[learn->range_count++] = (model_range){0, spec->num_layers - 1};
    spec->lora = (model_lora){
        .rank = train.lora_rank, .alpha = train.lora_alpha, .dropout = train.lora_dropout};
    if (train.lora_rank > 0 && train.lora_target_count == 0)
        default_targets(&train, family_of(&asked->model));
    for (uint32_t i = 0; i < train.lora_target_count; i++)
        TRY(find_target(spec, train.lora_targets[i], &spec->lora.targets));
    return 0;
}

static void append_only(const model_learn *learn, char *text, size_t capacity, int *used)
{
    static const char *const names[] = {"embed", "head", "norms"};
    const bool named[] = {learn->embed, learn->head, learn->norms};
    const char *between = "";
    append(text, capacity, used, "train.only=");
    for (int i = 0; i < 3; i++)
        if (named[i]) {
            append(text, capacity, used, "%s%s", between, names[i]);
            between = ",";
        }
    for (uint32_t i = 0; i < learn->range_count; i++) {
        append(text, capacity, used, "%sblocks.%" PRIu64 "-%" PRIu64, between,
               learn->blocks[i].first, learn->blocks[i].last);
        between = ",";
    }
    append(text, capacity, used, "\n");
}

int setupi_name_learning(const model *net, char *text, size_t capacity)
{
    const model_lora *lora = &net->spec.lora;
    const char *name, *between = "";
    int used = 0;
    text[0] = '\0';
    if (net->spec.learn.is_given)
        append_only(&net->spec.learn, text, capacity, &used);
    if (lora->rank == 0)
        return used;
    append(text, capacity, &used,
           "train.lora.rank=%" PRIu64 "\ntrain.lora.alpha=%.17g\ntrain.lora.targets=", lora->rank,
           lora->alpha);
    for (uint32_t i = 0; (name = model_lora_target(net->spec.family, i)) != NULL; i++)
        if (lora->targets >> i & 1) {
            append(text, capacity, &used, "%s%s", between, name);
            between = ",";
        }
    append(text, capacity, &used, "\n");
    if (lora->dropout > 0)
        append(text, capacity, &used, "train.lora.dropout=%.17g\n", lora->dropout);
    return used;
}

/* ---- optimizer state ---- */

/* Upper half of the random key; the lower half is the unit. It differs from the streams of initial
 * weights. */
enum { ROUNDING_STREAM = 0x526f756e };

uint32_t setupi_state_streams(const struct job *asked, bool params_alone)
{
    enum tile_format master = asked->state.master, moments = asked->state.moments;
    if (params_alone)
        master = moments = TILE_FP32;
    else if (master == TILE_LOW16 && asked->type == DTYPE_FP32)
        master = TILE_PARAMS;
    if (asked->optimizer.type != JOB_ADAM && asked->optimizer.type != JOB_MUON)
        return tile_streams_code(2, master, TILE_FP32, TILE_FP32);
    /* Muon: of units with tensors that Adam updates */
    return tile_streams_code(3, master, moments, moments);
}

uint32_t setup_streams_of(const struct job *asked, const model *net, uint32_t unit)
{
    if (asked->optimizer.type == JOB_MUON && model_has_only_matrices(net, unit))
        return TILE_MATRIX_STREAMS;
    return setupi_state_streams(asked, false);
}

int setupi_state_identity(const struct job *asked, char *text, size_t capacity)
{
    static const char *const moments[] = {[TILE_FP32] = "",
                                          [TILE_BF16] = "state.moments=bf16\n",
                                          [TILE_INT8] = "state.moments=8bit\n"};
    return snprintf(text, capacity, "%s%s",
                    asked->state.master == TILE_LOW16 ? "state.master=split\n" : "",
                    moments[asked->state.moments]);
}

const char *setup_formats_text(uint32_t streams, char text[SETUP_FORMATS_BYTES])
{
    text[0] = '\0';
    for (uint32_t i = 0; i < tile_stream_count(streams); i++)
        text_add(text, SETUP_FORMATS_BYTES, "%s%s", i ? ", " : "",
                 tile_format_name(tile_stream_format(streams, i)));
    return text;
}

uint64_t setup_rounding_key(uint64_t seed, uint64_t update, uint32_t unit)
{
    return rng_u64(seed, (uint64_t)ROUNDING_STREAM << 32 | unit, update);
}

uint64_t setup_state_begin(const struct setup *self, uint32_t unit)
{
    return plan_is_sharded(&self->plan, STATE_OPTIMIZER, unit)
               ? shard_begin(self->unit_elems[unit], self->ranks.world, self->ranks.rank)
               : 0;
}
