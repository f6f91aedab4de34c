/* The model block: presets, and what follows from the family. See config_internal.h. Called by
 * job_read; reads presets. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "base/text.h"
#include "config/config_internal.h"

/* Reads a preset and checks it as a model block. The caller owns *preset, also on failure. */
static int read_preset(const configi_reader *reader, const char *name, const char *job_path,
                       json_t **preset)
{
    char file[FILE_PATH_BYTES], advice[CONFIGI_ADVICE_BYTES];
    int rc = configi_read_named("models", name, job_path, file, preset, advice);
    if (rc == -ENOENT)
        return configi_error(reader, "model.preset", "there is no preset \"%s\"; %s", name, advice);
    TRY(rc);
    const configi_reader found = {.file = file};
    TRY(configi_check(&found, "model", *preset));
    if (json_object_get(*preset, "preset"))
        return configi_error(&found, "model.preset", "a preset cannot name a preset");
    if (!json_is_string(json_object_get(*preset, "family")))
        return configi_error(&found, "model.family", "a preset must give it");
    return 0;
}

/* Adds the keys of the preset that the job's block does not have, or has as null. Lists the keys
 * that the block has with another value. */
static int merge_preset(const configi_reader *reader, json_t *model, json_t *preset,
                        char overriding[ERR_TEXT_BYTES])
{
    const char *key;
    json_t *value;
    json_object_foreach(preset, key, value)
    {
        char path[CONFIGI_PATH_BYTES], own[CONFIGI_VALUE_BYTES], other[CONFIGI_VALUE_BYTES];
        configi_join(path, "model", key);
        const json_t *given = configi_get(reader, path);
        if (strcmp(key, "description") == 0)
            continue;
        if (!given) {
            TRY(configi_put(reader->file, model, key, json_incref(value)));
        } else if (!configi_is_same(given, value)) {
            text_add(overriding, ERR_TEXT_BYTES, "%s%s %s instead of %s", overriding[0] ? ", " : "",
                     path, configi_show(given, own), configi_show(value, other));
        }
    }
    return 0;
}

int configi_mark_expanded(const configi_reader *reader)
{
    return configi_put_path(reader, "debug.model_expanded", json_true());
}

int configi_expand_preset(const configi_reader *reader, const char *job_path)
{
    const json_t *name = configi_get(reader, "model.preset");
    if (!json_is_string(name) || json_string_length(name) == 0 || configi_get(reader, "model.hf"))
        return 0; /* not text, or beside model.hf: later checks report it */
    if (configi_bool(reader, "debug.model_expanded") && !configi_is_set(reader, "model.preset"))
        return 0;
    char shown[CONFIGI_VALUE_BYTES], overriding[ERR_TEXT_BYTES] = "";
    if (!configi_is_name(json_string_value(name)))
        return configi_error(reader, "model.preset",
                             "%s is not the name of a preset: at most %d letters, digits and ._-",
                             configi_show(name, shown), JOB_NAME_BYTES - 1);
    json_t *preset;
    int rc = read_preset(reader, json_string_value(name), job_path, &preset);
    if (rc == 0)
        rc = merge_preset(reader, json_object_get(reader->doc, "model"), preset, overriding);
    json_decref(preset);
    TRY(rc);
    if (overriding[0] != '\0')
        log_info("%s: model.preset %s is overridden by the job's own keys: %s", reader->file,
                 configi_show(name, shown), overriding);
    return configi_mark_expanded(reader);
}

/* Traits of families: defaults, and options, which are keys that other families refuse. */
enum {
    TABLE = 1 << 0,    /* of positions; the others have rotary positions */
    WIDE_FFN = 1 << 1, /* ffn_size is four times hidden_size by default, not 8/3 */
    TIED = 1 << 2,
    BRANCH_DROPOUT = 1 << 3,
    ROW_DROPOUT = 1 << 4, /* of the embedding's rows */
    BIASED = 1 << 5,      /* qkv_bias is true by default */
    QKV_BIAS = 1 << 6,
    OUT_BIAS = 1 << 7,
    MLP_BIAS = 1 << 8,
    QK_NORM = 1 << 9,
    MULTIPLIER = 1 << 10,
    PARALLEL = 1 << 11,
    EXPERTS = 1 << 12, /* a mixture of experts */
    SHARED = 1 << 13,  /* with an expert for all tokens */
    DENSE = 1 << 14,   /* whose first blocks may be no mixture */
    LIMIT = 1 << 15,   /* swiglu_limit */
    SINKS = 1 << 16,
    LATENTS = 1 << 17,
};

/* [family]; 0: llama's form without options. */
static const unsigned traits[MODEL_FAMILY_COUNT] = {
    [MODEL_GPT2] = BIASED | TABLE | WIDE_FFN | TIED | BRANCH_DROPOUT | ROW_DROPOUT,
    [MODEL_LLAMA] = QKV_BIAS | OUT_BIAS | MLP_BIAS | QK_NORM | MULTIPLIER | SINKS,
    [MODEL_STARCODER2] = BRANCH_DROPOUT | ROW_DROPOUT,
    [MODEL_PHI] = WIDE_FFN | BRANCH_DROPOUT | ROW_DROPOUT,
    [MODEL_PHI3] = BRANCH_DROPOUT,
    [MODEL_GLM] = BIASED | QKV_BIAS,
    [MODEL_GLM4] = BIASED | QKV_BIAS,
    [MODEL_GPT_NEOX] = WIDE_FFN | BRANCH_DROPOUT | ROW_DROPOUT | PARALLEL,
    [MODEL_OPT] = TABLE | WIDE_FFN | TIED | BRANCH_DROPOUT,
    [MODEL_BERT] = TABLE | WIDE_FFN | TIED | BRANCH_DROPOUT | BIASED,
    [MODEL_COHERE] = TIED | QKV_BIAS | OUT_BIAS | QK_NORM,
    [MODEL_GEMMA2] = QK_NORM,
    [MODEL_MIXTRAL] = EXPERTS,
    [MODEL_QWEN2_MOE] = QKV_BIAS | EXPERTS | SHARED,
    [MODEL_QWEN3_MOE] = QKV_BIAS | OUT_BIAS | QK_NORM | EXPERTS,
    [MODEL_OLMOE] = QKV_BIAS | OUT_BIAS | EXPERTS,
    [MODEL_GPT_OSS] = QKV_BIAS | OUT_BIAS | EXPERTS | LIMIT,
    [MODEL_DEEPSEEK] = QKV_BIAS | OUT_BIAS | MLP_BIAS | LATENTS | EXPERTS | SHARED | DENSE,
    [MODEL_GLM4_MOE] = QKV_BIAS | QK_NORM | EXPERTS | SHARED | DENSE,
    [MODEL_STABLELM] = BRANCH_DROPOUT | QKV_BIAS | PARALLEL,
};

static int check_required(const configi_reader *reader, const char *path)
{
    if (configi_get(reader, path))
        return 0;
    return configi_error(reader, path, "missing; give it, or a model.preset or model.hf that does");
}

static uint64_t default_ffn_size(bool is_wide, uint64_t hidden_size)
{
    enum { LLAMA_MULTIPLE = 256 }; /* as Llama's own code rounds */
    if (is_wide)
        return 4 * hidden_size;
    return size_round_up(size_div_up(8 * hidden_size, 3), LLAMA_MULTIPLE);
}

static int fill_vocabulary(const configi_reader *reader, model_spec *model)
{
    enum { BYTE_VALUES = 256 };
    static const char path[] = "model.vocab_size";
    /* A named format of token ids means that no text is cut into bytes. */
    const char *format = configi_choice(reader, "data.format");
    bool is_text =
        strcmp(format, "auto") == 0 || strcmp(format, "text") == 0 || strcmp(format, "jsonl") == 0;
    bool is_bytes = is_text && strcmp(configi_text(reader, "data.tokenizer"), "bytes") == 0;
    if (is_bytes && !configi_get(reader, path))
        model->vocab_size = BYTE_VALUES;
    else
        TRY(check_required(reader, path));
    /* With "auto" the files may turn out to be token ids. If they are text, the text is compared
     * with the vocabulary later. */
    if (is_bytes && strcmp(format, "auto") != 0 && model->vocab_size < BYTE_VALUES)
        return configi_error(reader, path,
                             "%" PRIu64 " is too small: data.tokenizer \"bytes\" has %d tokens",
                             model->vocab_size, (int)BYTE_VALUES);
    return 0;
}

/* Checks that rope_scaling has the numbers of its type and no others. */
static int check_rope_scaling(const configi_reader *reader, const rope_form *rope)
{
    enum {
        LINEAR = 1 << ROPE_LINEAR,
        LLAMA3 = 1 << ROPE_LLAMA3,
        DYNAMIC = 1 << ROPE_DYNAMIC,
        YARN = 1 << ROPE_YARN,
        LONGROPE = 1 << ROPE_LONGROPE,
        LONGER = LLAMA3 | DYNAMIC | YARN | LONGROPE,
    };
    static const struct {
        const char *key;
        int needed, optional; /* bits of types */
    } rows[] = {
        {"factor", LINEAR | LONGER, 0},
        {"low_freq_factor", LLAMA3, 0},
        {"high_freq_factor", LLAMA3, 0},
        {"original_max_position_embeddings", LONGER, 0},
        {"attention_factor", 0, YARN | LONGROPE},
        {"beta_fast", 0, YARN},
        {"beta_slow", 0, YARN},
        {"mscale", 0, YARN},
        {"mscale_all_dim", 0, YARN},
        {"truncate", 0, YARN},
        {"short_factor", LONGROPE, 0},
        {"long_factor", LONGROPE, 0},
    };
    const char *type = configi_choice(reader, "model.rope_scaling.type");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char path[CONFIGI_PATH_BYTES];
        configi_join(path, "model.rope_scaling", rows[i].key);
        bool is_given = configi_get(reader, path) != NULL;
        int bit = 1 << rope->scaling;
        if (!is_given && (rows[i].needed & bit))
            return configi_error(reader, path, "missing; the type \"%s\" needs it", type);
        if (is_given && !((rows[i].needed | rows[i].optional) & bit))
            return configi_error(reader, path, "the type \"%s\" has no such number", type);
    }
    if (rope->scaling == ROPE_LLAMA3 && rope->high_freq_factor <= rope->low_freq_factor)
        return configi_error(reader, "model.rope_scaling.high_freq_factor",
                             "%g is not above low_freq_factor, %g", rope->high_freq_factor,
                             rope->low_freq_factor);
    return 0;
}

/* Fills the lists of the type longrope. model_create checks their length. */
static int fill_pairs(const configi_reader *reader, rope_form *rope)
{
    static const char *const paths[] = {"model.rope_scaling.short_factor",
                                        "model.rope_scaling.long_factor"};
    double *const targets[] = {rope->short_factors, rope->long_factors};
    for (int i = 0; i < 2; i++) {
        const json_t *list = configi_get(reader, paths[i]);
        size_t count = json_array_size(list);
        if (count > ROPE_PAIRS_MAX || (i > 0 && count != rope->pair_count))
            return configi_error(reader, paths[i],
                                 "%zu numbers; both lists have as many, and at most %d", count,
                                 (int)ROPE_PAIRS_MAX);
        rope->pair_count = (uint32_t)count;
        for (size_t k = 0; k < count; k++)
            targets[i][k] = json_number_value(json_array_get(list, k));
    }
    return 0;
}

/* Refuses keys of other families. */
static int check_options(const configi_reader *reader, unsigned has, const model_spec *model)
{
    const struct {
        const char *path;
        bool is_given, is_there;
    } options[] = {
        {"model.out_bias", model->out_bias, has & OUT_BIAS},
        {"model.mlp_bias", model->mlp_bias, has & MLP_BIAS},
        {"model.residual_multiplier", model->residual_multiplier != 0, has & MULTIPLIER},
        {"model.qk_norm", model->qk_norm, has & QK_NORM},
        {"model.parallel_residual", model->parallel_residual, has & PARALLEL},
        {"model.attention_sinks", model->attention_sinks, has & SINKS},
        {"model.kv_latent_size", model->kv_latent_size != 0, has & LATENTS},
        {"model.q_latent_size", model->q_latent_size != 0, has & LATENTS},
        {"model.rope_head_dim", model->rope_head_dim != 0, has & LATENTS},
        {"model.value_head_dim", model->value_head_dim != 0, has & LATENTS},
        {"model.rope_halves", model->rope_halves, has & LATENTS},
        {"model.qkv_bias", configi_get(reader, "model.qkv_bias") != NULL,
         has & (QKV_BIAS | BIASED)},
        {"model.rope_scaling", model->rope.scaling != ROPE_PLAIN, !(has & TABLE)},
        {"model.partial_rotary_factor", model->partial_rotary_factor != 1,
         !(has & (TABLE | LATENTS))},
        {"model.nope_interval", model->nope_interval != 0, !(has & TABLE)},
        {"model.type_count", model->type_count != 0, model->family == MODEL_BERT},
        {"model.position_count", model->position_count != 0, has & TABLE},
        {"model.num_experts", model->expert_count != 0, has & EXPERTS},
        {"model.num_experts_per_tok", model->experts_per_token != 0, has & EXPERTS},
        {"model.expert_ffn_size", model->expert_ffn_size != 0, has & EXPERTS},
        {"model.experts_per_unit", model->experts_per_unit != 0, has & EXPERTS},
        {"model.expert_parallel_size", model->expert_ranks != 1, has & EXPERTS},
        {"model.norm_topk_prob", model->normalizes_experts, has & EXPERTS},
        {"model.routed_scaling_factor", model->routed_scaling != 0, has & EXPERTS},
        {"model.router_aux_loss_coef", model->balance_coef != 0, has & EXPERTS},
        {"model.router_z_loss_coef", model->router_z_coef != 0, has & EXPERTS},
        {"model.shared_ffn_size", model->shared_ffn_size != 0, has & SHARED},
        {"model.swiglu_limit", model->swiglu_limit != 0, has & LIMIT},
        {"model.scoring_func", model->sigmoid_scores, has & DENSE},
        {"model.n_group", model->expert_groups != 0, has & DENSE},
        {"model.topk_group", model->groups_per_token != 0, has & DENSE},
        {"model.first_k_dense_replace", model->dense_blocks != 0, has & DENSE},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (options[i].is_given && !options[i].is_there)
            return configi_error(reader, options[i].path,
                                 "the %s family has no such option: leave it out",
                                 model_family_name(model->family));
    return 0;
}

/* Fills what a mixture of experts leaves open, and checks that it has its numbers. */
static int fill_experts(const configi_reader *reader, unsigned has, model_spec *model)
{
    bool has_only_dense =
        (has & DENSE) && model->expert_count == 0 && model->dense_blocks >= model->num_layers;
    if (!(has & EXPERTS) || has_only_dense)
        return 0;
    if (!configi_get(reader, "model.norm_topk_prob"))
        model->normalizes_experts = model->family == MODEL_MIXTRAL || (has & LIMIT);
    TRY(check_required(reader, "model.num_experts"));
    TRY(check_required(reader, "model.num_experts_per_tok"));
    return has & SHARED ? check_required(reader, "model.shared_ffn_size") : 0;
}

/* Checks keys that only some families have, and fills those that the family leaves open. */
static int fill_variant(const configi_reader *reader, unsigned has, model_spec *model)
{
    static const char bias[] = "model.qkv_bias";
    TRY(fill_experts(reader, has, model));
    TRY(check_rope_scaling(reader, &model->rope));
    TRY(fill_pairs(reader, &model->rope));
    TRY(check_options(reader, has, model));
    if (configi_is_auto(reader, "model.expert_parallel_size"))
        model->expert_ranks = 0;
    if (model->family == MODEL_BERT && !model->tie_embeddings)
        return configi_error(reader, "model.tie_embeddings",
                             "the output matrix of the bert family is the embedding: leave it out");
    if (!configi_get(reader, bias))
        model->qkv_bias = has & BIASED;
    if ((has & BIASED) && !(has & QKV_BIAS) && !model->qkv_bias)
        return configi_error(reader, bias, "the %s family always has these biases: leave it out",
                             model_family_name(model->family));
    if (model->position_count != 0 && model->position_count < model->seq_length)
        return configi_error(reader, "model.position_count",
                             "%" PRIu64 " is below model.seq_length, %" PRIu64
                             ": each position of a sequence needs its row",
                             model->position_count, model->seq_length);
    return 0;
}

/* Refuses dropouts of other families. train.dropout replaces those of this family. */
static int fill_dropout(const configi_reader *reader, unsigned has, model_spec *model)
{
    const json_t *instead = configi_get(reader, "train.dropout");
    const char *other =
        model->hidden_dropout != 0 && !(has & BRANCH_DROPOUT)   ? "model.hidden_dropout"
        : model->embedding_dropout != 0 && !(has & ROW_DROPOUT) ? "model.embedding_dropout"
                                                                : NULL;
    if (other)
        return configi_error(reader, other, "the %s family has no such dropout: leave it out",
                             model_family_name(model->family));
    if (instead) {
        model->hidden_dropout = has & BRANCH_DROPOUT ? json_number_value(instead) : 0;
        model->embedding_dropout = has & ROW_DROPOUT ? json_number_value(instead) : 0;
        model->attention_dropout = json_number_value(instead);
    }
    return 0;
}

/* Factors are used in fp32, in which neither they nor their inverses may be 0 or infinite. */
static int check_factors(const configi_reader *reader, const model_spec *model)
{
    const struct {
        const char *path;
        double value; /* 0: not given */
    } factors[] = {
        {"model.embedding_multiplier", model->embedding_multiplier},
        {"model.attention_multiplier", model->attention_multiplier},
        {"model.residual_multiplier", model->residual_multiplier},
        {"model.logits_scaling", model->logits_scaling},
        {"model.attention_soft_cap", model->attention_soft_cap},
        {"model.logits_soft_cap", model->logits_soft_cap},
    };
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        double value = factors[i].value;
        if (value != 0 && !(value >= 1e-30 && value <= 1e30))
            return configi_error(reader, factors[i].path,
                                 "%g must lie between 1e-30 and 1e30, for it is used in fp32",
                                 value);
    }
    return 0;
}

int configi_fill_model(const configi_reader *reader, job *target)
{
    model_spec *model = &target->model;
    if (!configi_get(reader, "model"))
        return configi_error(reader, "model",
                             "missing; write \"model\": {\"preset\": \"gpt2-124m\"}, or a family "
                             "and its dimensions");
    if (configi_get(reader, "model.module"))
        return configi_fill_module(reader, target);
    if (!configi_get(reader, "model.family"))
        return configi_error(reader, "model.family",
                             "missing; give model.preset or model.hf, or a family such as gpt2 or "
                             "llama and the dimensions");
    const unsigned has = traits[model->family];
    TRY(check_required(reader, "model.num_layers"));
    TRY(check_required(reader, "model.hidden_size"));
    TRY(check_required(reader, "model.num_heads"));
    TRY(check_required(reader, "model.seq_length"));
    if (has & LATENTS) {
        TRY(check_required(reader, "model.kv_latent_size"));
        TRY(check_required(reader, "model.rope_head_dim"));
        TRY(check_required(reader, "model.head_dim"));
    }
    TRY(fill_vocabulary(reader, model));
    if (model->num_kv_heads == 0)
        model->num_kv_heads = model->num_heads;
    if (model->ffn_size == 0)
        model->ffn_size = default_ffn_size(has & WIDE_FFN, model->hidden_size);
    if (!configi_get(reader, "model.tie_embeddings"))
        model->tie_embeddings = has & TIED;
    TRY(configi_check_fp32(reader, "model.init_std", model->init_std));
    TRY(check_factors(reader, model));
    TRY(fill_dropout(reader, has, model));
    if (model->window_pattern[0] != '\0' && model->window == 0 && model->window_rope_theta == 0)
        return configi_error(reader, "model.window_pattern",
                             "there is no window: give model.window");
    return fill_variant(reader, has, model);
}
