/* Writes the files beside an export's weights. config.json is that of the checkpoint that the run
 * began with, in the export's dtype, or a new one for the run's model. generation_config.json and
 * the tokenizer's files are copied unchanged. See hf_internal.h. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "format/hf_checkpoint.h"
#include "hf/hf_internal.h"
#include "state/run_dir.h"
#include "text/tokenizer.h"

static const char *const torch_names[DTYPE_COUNT] = {
    [DTYPE_FP32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_FP16] = "float16"};

static const char config_name[] = "config.json";

/* ---- a new one ---- */

/* Returns the fewest digits with which every number of the document reads back as the same
 * value. */
static int digits_of(const json_t *item)
{
    const char *key;
    json_t *value;
    size_t idx;
    int most = 1;
    if (json_is_real(item)) {
        char text[40];
        while (most < 17) {
            snprintf(text, sizeof text, "%.*g", most, json_real_value(item));
            if (strtod(text, NULL) == json_real_value(item))
                break;
            most++;
        }
    }
    json_object_foreach((json_t *)(uintptr_t)item, key, value)
    {
        int digits = digits_of(value);
        most = digits > most ? digits : most;
    }
    json_array_foreach(item, idx, value)
    {
        int digits = digits_of(value);
        most = digits > most ? digits : most;
    }
    return most;
}

static int write_json(const char *path, const json_t *doc)
{
    char *text = json_dumps(doc, JSON_INDENT(2) | JSON_REAL_PRECISION((unsigned)digits_of(doc)));
    if (!text)
        return err_set(-ENOMEM, "no memory to write %s", path);
    size_t length = strlen(text);
    text[length] = '\n'; /* replaces the final zero byte */
    int rc = file_write(path, FILE_SHARED, text, length + 1);
    free(text);
    return rc;
}

/* Adds the keys of `more` to those of the object and releases it; NULL: there is no memory. */
static int add_keys(json_t *config, json_t *more)
{
    int rc = more && json_object_update(config, more) == 0 ? 0 : -ENOMEM;
    json_decref(more);
    return rc;
}

/* Fills in the keys of config.json that are common to all families. Without the last two the
 * defaults would be those of another vocabulary. */
static int fill_common(json_t *config, const struct job_model *from, const char *class_name,
                       const char *type_name)
{
    return add_keys(
        config, json_pack("{s:[s], s:s, s:I, s:b, s:f, s:b, s:n, s:n}", "architectures", class_name,
                          "model_type", type_name, "vocab_size", (json_int_t)from->vocab_size,
                          "tie_word_embeddings", (int)from->tie_embeddings, "initializer_range",
                          from->init_std, "use_cache", 1, "bos_token_id", "eos_token_id"));
}

/* True for the types whose heads may have rotary positions in part. */
static bool has_share(const char *type)
{
    return strncmp(type, "phi", 3) == 0 || strcmp(type, "stablelm") == 0 ||
           strncmp(type, "glm", 3) == 0;
}

/* True if the model has what its type in config.json cannot say. */
static bool is_beyond(const struct job_model *from, const char *type)
{
    bool is_qwen = strcmp(type, "qwen2") == 0 || strcmp(type, "qwen3") == 0;
    bool is_granite = strcmp(type, "granite") == 0, is_gemma = strncmp(type, "gemma", 5) == 0;
    bool is_old_gemma = strcmp(type, "gemma") == 0; /* whose "gelu" means the tanh form */
    bool is_cohere = strcmp(type, "cohere") == 0;
    bool has_plain_heads =
        from->head_dim == 0 || from->head_dim * from->num_heads == from->hidden_size;
    bool has_factors = (from->attention_multiplier != 0 && (!is_gemma || is_old_gemma)) ||
                       from->residual_multiplier != 0 || from->logits_scaling != 0;
    bool is_scaled =
        is_gemma && fabs(from->embedding_multiplier / sqrt((double)from->hidden_size) - 1) < 1e-9;
    bool is_other = strcmp(from->family, "llama") != 0;
    bool has_bias = from->qkv_bias || from->out_bias || from->mlp_bias;
    return (is_qwen && (from->mlp_bias || from->nope_interval != 0)) ||
           (strcmp(type, "mistral") == 0 && has_bias) || hfi_is_other_attention(from, type) ||
           hfi_is_other_mixture(from, type) ||
           (!is_other && strcmp(type, "qwen2") != 0 && from->qkv_bias != from->out_bias) ||
           (has_factors && !is_granite && !is_cohere) ||
           (is_cohere && (from->attention_multiplier != 0 || from->qkv_bias != from->out_bias)) ||
           (strcmp(type, "gpt_neox") == 0 && from->embedding_dropout != from->hidden_dropout) ||
           (from->embedding_multiplier != 0 && !is_granite && !is_scaled) ||
           (is_gemma && !is_scaled) ||
           (is_old_gemma && from->activation == ACTIVATION_NAMED_GELU) ||
           (strcmp(type, "phi3") == 0 && from->rope.scaling != ROPE_PLAIN &&
            (from->rope.scaling != ROPE_LONGROPE || !has_plain_heads)) ||
           (from->partial_rotary_factor != 1 && !has_share(type) &&
            strcmp(type, "gpt_neox") != 0) ||
           (from->nope_interval != 0 && strcmp(type, "smollm3") != 0 &&
            strcmp(type, "exaone4") != 0);
}

static int refuse_combination(void)
{
    return err_set(ERR_CONFIG,
                   "no family of Hugging Face has this combination of model.qk_norm, biases, "
                   "activation, multipliers, experts, windows and positions: the run cannot be "
                   "exported");
}

/* Without a gate; `own` is the family's. */
static const char *plain_activation(const struct job_model *from, const char *own)
{
    static const char *const names[] = {NULL, "gelu", "gelu_new", "relu"};
    return from->activation == ACTIVATION_OF_FAMILY ? own : names[from->activation];
}

static int fill_gpt2(json_t *config, const struct job_model *from)
{
    uint64_t positions = from->position_count ? from->position_count : from->seq_length;
    if (is_beyond(from, "gpt2"))
        return refuse_combination();
    TRY(fill_common(config, from, "GPT2LMHeadModel", "gpt2"));
    return add_keys(
        config,
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:f}", "n_layer",
                  (json_int_t)from->num_layers, "n_embd", (json_int_t)from->hidden_size, "n_head",
                  (json_int_t)from->num_heads, "n_inner", (json_int_t)from->ffn_size, "n_positions",
                  (json_int_t)positions, "activation_function", plain_activation(from, "gelu_new"),
                  "layer_norm_epsilon", from->norm_epsilon, "attn_pdrop", from->attention_dropout,
                  "embd_pdrop", from->embedding_dropout, "resid_pdrop", from->hidden_dropout));
}

static int fill_bert(json_t *config, const struct job_model *from)
{
    uint64_t positions = from->position_count ? from->position_count : from->seq_length;
    if (is_beyond(from, "bert"))
        return refuse_combination();
    TRY(fill_common(config, from, "BertForMaskedLM", "bert"));
    return add_keys(
        config,
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:n}", "num_hidden_layers",
                  (json_int_t)from->num_layers, "hidden_size", (json_int_t)from->hidden_size,
                  "num_attention_heads", (json_int_t)from->num_heads, "intermediate_size",
                  (json_int_t)from->ffn_size, "max_position_embeddings", (json_int_t)positions,
                  "type_vocab_size", (json_int_t)(from->type_count ? from->type_count : 2),
                  "hidden_act", plain_activation(from, "gelu"), "layer_norm_eps",
                  from->norm_epsilon, "hidden_dropout_prob", from->hidden_dropout,
                  "attention_probs_dropout_prob", from->attention_dropout, "pad_token_id"));
}

static int fill_opt(json_t *config, const struct job_model *from)
{
    uint64_t positions = from->position_count ? from->position_count : from->seq_length;
    if (is_beyond(from, "opt") || from->norm_epsilon != 1e-5) /* no key says it */
        return refuse_combination();
    TRY(fill_common(config, from, "OPTForCausalLM", "opt"));
    return add_keys(
        config,
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:b, s:f, s:f, s:f, s:n}",
                  "num_hidden_layers", (json_int_t)from->num_layers, "hidden_size",
                  (json_int_t)from->hidden_size, "word_embed_proj_dim",
                  (json_int_t)from->hidden_size, "num_attention_heads", (json_int_t)from->num_heads,
                  "ffn_dim", (json_int_t)from->ffn_size, "max_position_embeddings",
                  (json_int_t)positions, "activation_function", plain_activation(from, "relu"),
                  "do_layer_norm_before", 1, "dropout", from->hidden_dropout, "attention_dropout",
                  from->attention_dropout, "layerdrop", 0.0, "pad_token_id"));
}

static json_t *list_of(const double *numbers, uint32_t count)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(list, json_real(numbers[i]));
    return list;
}

/* Adds rope_scaling and the longest sequence, from which some types compute. Phi-3's block has only
 * the type and the lists, because its older code refuses more. gpt-oss stretches positions unless
 * config.json says that they are plain. OLMo 3 does not stretch those of layers with a window. */
static int add_rope(json_t *config, const struct job_model *from, const char *type)
{
    bool is_phi3 = strcmp(type, "phi3") == 0, is_olmo3 = strcmp(type, "olmo3") == 0;
    bool has_block = is_olmo3 || strcmp(type, "gpt_oss") == 0;
    const rope_form *rope = &from->rope;
    const struct {
        const char *key;
        double value; /* 0: not given */
    } numbers[] = {
        {"low_freq_factor", rope->low_freq_factor},
        {"high_freq_factor", rope->high_freq_factor},
        {"attention_factor", rope->attention_factor},
        {"beta_fast", rope->beta_fast},
        {"beta_slow", rope->beta_slow},
        {"mscale", rope->mscale},
        {"mscale_all_dim", rope->mscale_all_dim},
    };
    bool is_plain = rope->scaling == ROPE_PLAIN, is_dynamic = rope->scaling == ROPE_DYNAMIC;
    double longest = rope->factor * (double)rope->original_positions;
    uint64_t positions = is_dynamic ? rope->original_positions : from->seq_length;
    json_t *block = is_plain && !has_block ? json_null() : json_object();
    if (!is_plain || has_block)
        json_object_set_new(block, is_phi3 ? "type" : "rope_type",
                            json_string(rope_scaling_name(rope->scaling)));
    if (is_phi3 && !is_plain && longest == floor(longest))
        positions = (uint64_t)longest; /* the ratio of the two numbers is the factor */
    else if (!is_plain)
        json_object_set_new(block, "factor", json_real(rope->factor));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].value != 0)
            json_object_set_new(block, numbers[i].key, json_real(numbers[i].value));
    if (rope->scaling == ROPE_YARN && !rope->truncates)
        json_object_set_new(block, "truncate", json_false());
    if (rope->scaling == ROPE_LONGROPE) {
        json_object_set_new(block, "short_factor", list_of(rope->short_factors, rope->pair_count));
        json_object_set_new(block, "long_factor", list_of(rope->long_factors, rope->pair_count));
    }
    if (rope->original_positions != 0 && !is_dynamic)
        json_object_set_new(is_phi3 ? config : block, "original_max_position_embeddings",
                            json_integer((json_int_t)rope->original_positions));
    if (is_olmo3) { /* the kinds of layers have a block each */
        double own = from->window_rope_theta != 0 ? from->window_rope_theta : from->rope_theta;
        json_object_set_new(block, "rope_theta", json_real(from->rope_theta));
        return add_keys(config, json_pack("{s:{s:o, s:{s:s, s:f}}, s:I}", "rope_parameters",
                                          "full_attention", block, "sliding_attention", "rope_type",
                                          rope_scaling_name(ROPE_PLAIN), "rope_theta", own,
                                          "max_position_embeddings", (json_int_t)positions));
    }
    return add_keys(config,
                    json_pack("{s:f, s:o, s:I}", "rope_theta", from->rope_theta, "rope_scaling",
                              block, "max_position_embeddings", (json_int_t)positions));
}

/* Hugging Face's names of a family that is Llama's relative. */
struct relative {
    const char *family, *class_name, *type_name;
};

static const struct relative *find_relative(const struct job_model *from)
{
    static const struct relative relatives[] = {
        {"starcoder2", "Starcoder2ForCausalLM", "starcoder2"},
        {"phi", "PhiForCausalLM", "phi"},
        {"phi3", "Phi3ForCausalLM", "phi3"},
        {"gemma", "GemmaForCausalLM", "gemma"},
        {"exaone4", "Exaone4ForCausalLM", "exaone4"},
        {"gpt_neox", "GPTNeoXForCausalLM", "gpt_neox"},
        {"cohere", "CohereForCausalLM", "cohere"},
        {"stablelm", "StableLmForCausalLM", "stablelm"},
        {"glm", "GlmForCausalLM", "glm"},
        {"glm4", "Glm4ForCausalLM", "glm4"},
        {"glm4_moe", "Glm4MoeForCausalLM", "glm4_moe"},
        {"mixtral", "MixtralForCausalLM", "mixtral"},
        {"qwen2_moe", "Qwen2MoeForCausalLM", "qwen2_moe"},
        {"qwen3_moe", "Qwen3MoeForCausalLM", "qwen3_moe"},
        {"olmoe", "OlmoeForCausalLM", "olmoe"},
        {"gpt_oss", "GptOssForCausalLM", "gpt_oss"},
    };
    static const struct relative gemmas[] = {{"gemma2", "Gemma2ForCausalLM", "gemma2"},
                                             {"gemma2", "Gemma3ForCausalLM", "gemma3_text"}};
    static const struct relative olmos[] = {{"olmo2", "Olmo2ForCausalLM", "olmo2"},
                                            {"olmo2", "Olmo3ForCausalLM", "olmo3"}};
    static const struct relative llamas[] = {
        {"llama", "LlamaForCausalLM", "llama"},     {"llama", "Qwen2ForCausalLM", "qwen2"},
        {"llama", "Qwen3ForCausalLM", "qwen3"},     {"llama", "GraniteForCausalLM", "granite"},
        {"llama", "SmolLM3ForCausalLM", "smollm3"}, {"llama", "MistralForCausalLM", "mistral"}};
    static const struct relative deepseeks[] = {
        {"deepseek", "DeepseekV3ForCausalLM", "deepseek_v3"},
        {"deepseek", "DeepseekV2ForCausalLM", "deepseek_v2"},
    };
    bool is_granite = from->embedding_multiplier != 0 || from->attention_multiplier != 0 ||
                      from->residual_multiplier != 0 || from->logits_scaling != 0;
    for (size_t i = 0; i < sizeof relatives / sizeof relatives[0]; i++)
        if (strcmp(from->family, relatives[i].family) == 0)
            return &relatives[i];
    if (strcmp(from->family, deepseeks[0].family) == 0)
        return &deepseeks[from->num_experts > 0 ? from->scoring_func == JOB_SOFTMAX
                                                : from->mlp_bias];
    if (strcmp(from->family, gemmas[0].family) == 0)
        return &gemmas[from->qk_norm];
    if (strcmp(from->family, olmos[0].family) == 0)
        return &olmos[from->window != 0 || from->window_rope_theta != 0];
    return &llamas[from->qk_norm                       ? 2
                   : is_granite                        ? 3
                   : from->nope_interval != 0          ? 4
                   : from->qkv_bias && !from->out_bias ? 1
                   : from->window != 0                 ? 5
                                                       : 0];
}

static double or_one(double factor)
{
    return factor != 0 ? factor : 1;
}

/* Adds the keys of single types. */
static int fill_own_keys(json_t *config, const struct job_model *from, const char *type)
{
    bool is_qwen2 = strcmp(type, "qwen2") == 0, is_glm = strncmp(type, "glm", 3) == 0;
    if (from->num_experts > 0 || from->first_k_dense_replace > 0)
        return add_keys(config, hfi_mixture_keys(from, type));
    if (strcmp(type, "starcoder2") == 0)
        return add_keys(config,
                        json_pack("{s:f, s:b, s:f, s:f}", "norm_epsilon", from->norm_epsilon,
                                  "use_bias", 1, "residual_dropout", from->hidden_dropout,
                                  "embedding_dropout", from->embedding_dropout));
    if (strcmp(type, "phi") == 0)
        return add_keys(config,
                        json_pack("{s:f, s:b, s:f, s:f}", "layer_norm_eps", from->norm_epsilon,
                                  "qk_layernorm", 0, "resid_pdrop", from->hidden_dropout,
                                  "embd_pdrop", from->embedding_dropout));
    if (strcmp(type, "phi3") == 0) /* no id of padding that the vocabulary may lack */
        return add_keys(
            config, json_pack("{s:f, s:n}", "resid_pdrop", from->hidden_dropout, "pad_token_id"));
    if (strcmp(type, "smollm3") == 0)
        TRY(add_keys(config,
                     json_pack("{s:I, s:n, s:n}", "no_rope_layer_interval",
                               (json_int_t)from->nope_interval, "no_rope_layers", "pad_token_id")));
    if (strcmp(type, "granite") == 0) {
        uint64_t head_dim = from->head_dim ? from->head_dim : from->hidden_size / from->num_heads;
        double scores = 1 / sqrt((double)head_dim);
        TRY(add_keys(
            config, json_pack("{s:f, s:f, s:f, s:f}", "embedding_multiplier",
                              or_one(from->embedding_multiplier), "attention_multiplier",
                              from->attention_multiplier != 0 ? from->attention_multiplier : scores,
                              "residual_multiplier", or_one(from->residual_multiplier),
                              "logits_scaling", or_one(from->logits_scaling))));
    }
    if (strcmp(type, "gpt_neox") == 0)
        return add_keys(config,
                        json_pack("{s:f, s:f, s:f, s:b, s:b, s:f}", "layer_norm_eps",
                                  from->norm_epsilon, "rotary_emb_base", from->rope_theta,
                                  "rotary_pct", from->partial_rotary_factor,
                                  "use_parallel_residual", (int)from->parallel_residual,
                                  "attention_bias", 1, "hidden_dropout", from->hidden_dropout));
    if (strcmp(type, "stablelm") == 0)
        return add_keys(config,
                        json_pack("{s:f, s:b, s:b, s:b, s:f}", "layer_norm_eps", from->norm_epsilon,
                                  "use_qkv_bias", (int)from->qkv_bias, "use_parallel_residual",
                                  (int)from->parallel_residual, "qk_layernorm", 0, "hidden_dropout",
                                  from->hidden_dropout));
    if (strcmp(type, "cohere") == 0)
        TRY(add_keys(config, json_pack("{s:f, s:b, s:f, s:n}", "layer_norm_eps", from->norm_epsilon,
                                       "use_qk_norm", (int)from->qk_norm, "logit_scale",
                                       1 / or_one(from->logits_scaling), "pad_token_id")));
    if (strncmp(type, "gemma", 5) == 0 || strncmp(type, "olmo", 4) == 0 || is_glm)
        TRY(add_keys(config, json_pack("{s:n}", "pad_token_id")));
    if (!is_qwen2 && strcmp(type, "mistral") != 0)
        TRY(add_keys(config, json_pack("{s:b}", "attention_bias",
                                       (int)(is_glm ? from->qkv_bias : from->out_bias))));
    if (strcmp(type, "llama") == 0 || strcmp(type, "granite") == 0 || strcmp(type, "smollm3") == 0)
        TRY(add_keys(config, json_pack("{s:b}", "mlp_bias", (int)from->mlp_bias)));
    return 0;
}

/* StableLM's config.json has no key for it. */
static int refuse_head_dim(const struct job_model *from)
{
    return err_set(ERR_CONFIG,
                   "model.head_dim is %llu, but heads of StableLM in Hugging Face's files are "
                   "model.hidden_size %llu / model.num_heads %llu: the run cannot be exported",
                   (unsigned long long)from->head_dim, (unsigned long long)from->hidden_size,
                   (unsigned long long)from->num_heads);
}

static int fill_llama(json_t *config, const struct job_model *from)
{
    const struct relative *as = find_relative(from);
    bool is_gemma = strncmp(as->type_name, "gemma", 5) == 0;
    bool has_tanh =
        is_gemma || strcmp(as->type_name, "starcoder2") == 0 || strcmp(as->type_name, "phi") == 0;
    static const char *const acts[] = {"", "gelu", "gelu_pytorch_tanh", "relu", "silu"};
    const char *act = from->activation != ACTIVATION_OF_FAMILY ? acts[from->activation]
                      : has_tanh                               ? "gelu_pytorch_tanh"
                      : strcmp(as->type_name, "gpt_neox") == 0 ? "gelu"
                                                               : "silu";
    uint64_t head_dim = from->head_dim ? from->head_dim : from->hidden_size / from->num_heads;
    if (strcmp(as->type_name, "stablelm") == 0 && head_dim * from->num_heads != from->hidden_size)
        return refuse_head_dim(from);
    if (is_beyond(from, as->type_name))
        return refuse_combination();
    TRY(fill_common(config, from, as->class_name, as->type_name));
    TRY(add_keys(config, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:f}", "num_hidden_layers",
                                   (json_int_t)from->num_layers, "hidden_size",
                                   (json_int_t)from->hidden_size, "num_attention_heads",
                                   (json_int_t)from->num_heads, "num_key_value_heads",
                                   (json_int_t)from->num_kv_heads, "head_dim", (json_int_t)head_dim,
                                   "intermediate_size", (json_int_t)from->ffn_size, "hidden_act",
                                   act, "rms_norm_eps", from->norm_epsilon)));
    TRY(add_rope(config, from, as->type_name));
    if (has_share(as->type_name))
        TRY(add_keys(config,
                     json_pack("{s:f}", "partial_rotary_factor", from->partial_rotary_factor)));
    TRY(fill_own_keys(config, from, as->type_name));
    TRY(add_keys(config, hfi_attention_keys(from, as->type_name)));
    if (strcmp(from->family, "gemma2") == 0) /* in its files this is another key */
        TRY(add_keys(config, json_pack("{s:s}", "hidden_activation", act)));
    return add_keys(config, json_pack("{s:f}", "attention_dropout", from->attention_dropout));
}

/* ---- all files ---- */

/* `target`: NULL: nothing is written. `quantization`: a block, or NULL. */
static int make_config(const struct job_model *from, enum dtype type, json_t *quantization,
                       const char *target)
{
    json_t *config = json_object();
    int rc = !config                             ? -ENOMEM
             : strcmp(from->family, "gpt2") == 0 ? fill_gpt2(config, from)
             : strcmp(from->family, "bert") == 0 ? fill_bert(config, from)
             : strcmp(from->family, "opt") == 0  ? fill_opt(config, from)
                                                 : fill_llama(config, from);
    if (rc == 0)
        rc = add_keys(config, json_pack("{s:s}", "torch_dtype", torch_names[type]));
    if (rc == 0 && quantization)
        rc = add_keys(config, json_pack("{s:O}", "quantization_config", quantization));
    if (rc == 0 && target)
        rc = write_json(target, config);
    json_decref(config);
    return rc == -ENOMEM ? err_set(rc, "no memory for config.json") : rc;
}

/* Finds the run's own config.json. Returns false if there is none. */
static bool find_config(const char *side_dir, char source[PATH_MAX])
{
    return side_dir[0] && file_join(source, PATH_MAX, side_dir, config_name) == 0 &&
           access(source, F_OK) == 0;
}

static int write_config(const state_view *run, const char *side_dir, const char *dir,
                        enum dtype type, json_t *quantization)
{
    char source[PATH_MAX], target[PATH_MAX];
    TRY(file_join(target, sizeof target, dir, config_name));
    if (!find_config(side_dir, source))
        return make_config(&run->asked->model, type, quantization, target);
    char *text = quantization ? json_dumps(quantization, 0) : NULL;
    int rc =
        quantization && !text ? -ENOMEM : hfi_carry_config(source, target, torch_names[type], text);
    free(text);
    return rc;
}

int hfi_check_config(const state_view *run)
{
    char side_dir[FILE_PATH_BYTES], source[PATH_MAX];
    int there = state_hf_dir(run->path, side_dir);
    TRY(there);
    return there && find_config(side_dir, source)
               ? 0
               : make_config(&run->asked->model, DTYPE_FP32, NULL, NULL);
}

/* Finds the directory of the job's tokenizer; "" if it has no files, or they do not exist. */
static void find_tokenizer(const job *asked, char out[FILE_PATH_BYTES])
{
    static const char file_name[] = "/tokenizer.json";
    struct stat status;
    snprintf(out, FILE_PATH_BYTES, "%s", asked->data.tokenizer);
    size_t length = strlen(out), end = sizeof file_name - 1;
    if (length > end && strcmp(out + length - end, file_name) == 0)
        out[length - end] = '\0';
    if (strcmp(out, "bytes") == 0 || stat(out, &status) != 0 || !S_ISDIR(status.st_mode))
        out[0] = '\0';
}

/* True if the run reads text as bytes. Where the job does not say so, its data may be token files
 * of any tokenizer; only a vocabulary of 256 is certain. */
static bool reads_bytes(const job *asked)
{
    return strcmp(asked->data.tokenizer, "bytes") == 0 &&
           (asked->data.tokenizer_is_given ||
            (!asked->model.hf[0] && asked->model.vocab_size == 256));
}

static int write_bytes_tokenizer(const char *dir)
{
    TRY(hfi_write_json(dir, "tokenizer.json", tokenizer_bytes_document(), JSON_INDENT(1)));
    json_t *config = json_pack("{s:s, s:b}", "tokenizer_class", "PreTrainedTokenizerFast",
                               "clean_up_tokenization_spaces", 0);
    return hfi_write_json(dir, "tokenizer_config.json", config, JSON_INDENT(1));
}

int hfi_write_side_files(const state_view *run, const char *dir, enum dtype type,
                         json_t *quantization, uint64_t *count)
{
    char side_dir[FILE_PATH_BYTES], tokenizer_dir[FILE_PATH_BYTES];
    int there = state_hf_dir(run->path, side_dir);
    TRY(there);
    if (!there)
        side_dir[0] = '\0';
    find_tokenizer(run->asked, tokenizer_dir);
    bool is_other = hf_names_tokenizer(run->asked);
    bool is_bytes = is_other && strcmp(run->asked->data.tokenizer, "bytes") == 0;
    *count = 0;
    for (uint32_t i = 0; hf_side_files[i]; i++) {
        const char *name = hf_side_files[i];
        bool is_tokenizers = strncmp(name, "generation_", 11) != 0;
        int copied = 0;
        if (strcmp(name, config_name) == 0)
            continue;
        if (is_bytes && is_tokenizers)
            continue; /* these files belong to a tokenizer that the run did not use */
        if (tokenizer_dir[0] && is_tokenizers && (!there || is_other))
            copied = hf_copy_side_file(tokenizer_dir, dir, name, FILE_SHARED);
        else if (there)
            copied = hf_copy_side_file(side_dir, dir, name, FILE_SHARED);
        TRY(copied);
        *count += (uint64_t)copied;
    }
    if (reads_bytes(run->asked))
        TRY(write_bytes_tokenizer(dir));
    return write_config(run, side_dir, dir, type, quantization);
}
