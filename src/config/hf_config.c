/* Makes a job's model block from DIR/config.json of a Hugging Face checkpoint (model.hf). Every key
 * there that changes the arithmetic is understood, or refused by its name. Absent keys mean what
 * transformers assumes for them. See config_internal.h. job_read calls it; it reads that file.
 * hf_config_keys.c reads single keys, hf_config_rope.c the rotary positions, hf_config_window.c the
 * windows of attention, and hf_config_learned.c the families with learned positions. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "config/config_internal.h"
#include "config/hf_config_internal.h"

enum { SEQ_LENGTH_DEFAULT = 1024 };

/* ---- the families ---- */

/* The differences between the families that are relatives of Llama. */
struct variant {
    const char *name;   /* model_type */
    const char *family; /* model.family; find_variant fills in what is left out */
    uint64_t kv_heads;  /* if config.json does not say; 0: as many as heads */
    uint64_t head_dim;  /* if config.json does not say; 0: hidden_size / heads */
    uint64_t positions;
    const char *epsilon_key;
    double epsilon; /* if config.json does not say */
    hfi_rope rope;
    const char *activation, *ours; /* the same in its words and in those of model.activation */
    bool qkv_bias, qk_norm, ties, is_plain; /* is_plain: the feed-forward part has no gate */
    bool has_attention_bias, has_mlp_bias;  /* keys that this family has */
    bool has_multipliers, has_nope;
    const char *hidden_dropout, *embedding_dropout;                /* its keys for them */
    enum { ALWAYS_THE_SAME, IS_PARALLEL, IS_SEQUENTIAL } residual; /* if config.json does not say */
    bool has_scaled_rows; /* the embedding's rows are multiplied by the root of hidden_size */
    /* Gemma 2 and 3: scores have a factor of their own; the defaults of their soft cap and of that
     * of logits */
    bool has_query_scalar;
    double attention_cap, logits_cap;
    bool has_window_rope; /* blocks with a window have other rotary positions */
    struct hfi_windows windows;
};

static const struct variant variants[] = {
    {.name = "llama", .positions = 2048, .has_attention_bias = true, .has_mlp_bias = true},
    {.name = "mistral",
     .kv_heads = 8,
     .positions = 131072,
     .windows = {HFI_WINDOWS_EVERYWHERE, 4096, 0}},
    {.name = "qwen2",
     .kv_heads = 32,
     .positions = 32768,
     .qkv_bias = true,
     .windows = {HFI_WINDOWS_FROM_ONE_ON, 4096, 28}},
    {.name = "qwen3",
     .kv_heads = 32,
     .head_dim = 128,
     .positions = 32768,
     .qk_norm = true,
     .has_attention_bias = true,
     .windows = {HFI_WINDOWS_FROM_ONE_ON, 4096, 28}},
    {.name = "granite",
     .positions = 2048,
     .has_attention_bias = true,
     .has_mlp_bias = true,
     .has_multipliers = true},
    {.name = "smollm3",
     .kv_heads = 4,
     .positions = 32768,
     .rope.theta = 2000000,
     .ties = true,
     .has_attention_bias = true,
     .has_mlp_bias = true,
     .has_nope = true,
     .windows = {HFI_WINDOWS_WITHOUT_ROPE, 0, 0}},
    {.name = "olmo2", .family = "olmo2", .positions = 2048, .epsilon = 1e-5},
    {.name = "phi3",
     .family = "phi3",
     .positions = 4096,
     .epsilon = 1e-5,
     .rope = {.share = 1, .original = 4096},
     .hidden_dropout = "resid_pdrop", /* transformers reads embd_pdrop, but does not use it */
     .windows = {HFI_WINDOWS_EVERYWHERE, 0, 0}},
    {.name = "gemma",
     .family = "gemma",
     .kv_heads = 16,
     .head_dim = 256,
     .positions = 8192,
     .ties = true,
     .activation = "gelu_pytorch_tanh",
     .ours = "gelu_tanh",
     .has_scaled_rows = true},
    {.name = "starcoder2",
     .family = "starcoder2",
     .kv_heads = 2,
     .positions = 4096,
     .epsilon_key = "norm_epsilon",
     .epsilon = 1e-5,
     .ties = true,
     .activation = "gelu_pytorch_tanh",
     .ours = "gelu_tanh",
     .is_plain = true,
     .hidden_dropout = "residual_dropout",
     .embedding_dropout = "embedding_dropout",
     .windows = {HFI_WINDOWS_EVERYWHERE, 0, 0}},
    {.name = "gpt_neox",
     .family = "gpt_neox",
     .positions = 2048,
     .epsilon_key = "layer_norm_eps",
     .epsilon = 1e-5,
     .rope = {.share = 0.25, .theta_key = "rotary_emb_base", .share_key = "rotary_pct"},
     .activation = "gelu",
     .ours = "gelu",
     .is_plain = true,
     .hidden_dropout = "hidden_dropout",
     .embedding_dropout = "hidden_dropout",
     .residual = IS_PARALLEL},
    {.name = "cohere",
     .family = "cohere",
     .positions = 8192,
     .epsilon_key = "layer_norm_eps",
     .epsilon = 1e-5,
     .rope.theta = 500000,
     .ties = true,
     .has_attention_bias = true},
    {.name = "stablelm",
     .family = "stablelm",
     .kv_heads = 32,
     .positions = 4096,
     .epsilon_key = "layer_norm_eps",
     .epsilon = 1e-5,
     .rope.share = 0.25,
     .hidden_dropout = "hidden_dropout",
     .residual = IS_SEQUENTIAL},
    {.name = "glm",
     .family = "glm",
     .kv_heads = 2,
     .head_dim = 128,
     .positions = 131072,
     .epsilon = 1.5625e-7,
     .rope.share = 0.5,
     .qkv_bias = true,
     .has_attention_bias = true},
    {.name = "glm4",
     .family = "glm4",
     .kv_heads = 2,
     .head_dim = 128,
     .positions = 131072,
     .epsilon = 1.5625e-7,
     .rope.share = 0.5,
     .qkv_bias = true,
     .has_attention_bias = true},
    {.name = "gemma2",
     .family = "gemma2",
     .kv_heads = 4,
     .head_dim = 256,
     .positions = 8192,
     .ties = true,
     .activation = "gelu_pytorch_tanh",
     .ours = "gelu_tanh",
     .has_scaled_rows = true,
     .has_query_scalar = true,
     .attention_cap = 50,
     .logits_cap = 30,
     .windows = {HFI_WINDOWS_BUT_EVERY, 4096, 2}},
    {.name = "gemma3_text",
     .family = "gemma2",
     .kv_heads = 4,
     .head_dim = 256,
     .positions = 131072,
     .rope.theta = 1000000,
     .qk_norm = true,
     .ties = true,
     .activation = "gelu_pytorch_tanh",
     .ours = "gelu_tanh",
     .has_scaled_rows = true,
     .has_query_scalar = true,
     .has_window_rope = true,
     .windows = {HFI_WINDOWS_BUT_EVERY, 4096, 6}},
};

/* Finds the variant of a name, and completes it by the defaults above. NULL: there is none. */
static const struct variant *find_variant(const char *name, struct variant *out)
{
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        *out = variants[i];
        out->family = out->family ? out->family : "llama";
        out->epsilon_key = out->epsilon_key ? out->epsilon_key : "rms_norm_eps";
        out->epsilon = out->epsilon != 0 ? out->epsilon : 1e-6;
        out->rope.theta = out->rope.theta != 0 ? out->rope.theta : 10000;
        out->activation = out->activation ? out->activation : "silu";
        out->ours = out->ours ? out->ours : "silu";
        if (strcmp(name, out->name) == 0)
            return out;
    }
    return NULL;
}

/* Biases of attention and of the feed-forward part. */
static int put_biases(hfi_config *self, const struct variant *of)
{
    bool attention = false, mlp = false;
    bool is_glm = of->qkv_bias && of->has_attention_bias; /* the key is only about q, k and v */
    if (of->has_attention_bias)
        TRY(hfi_bool(self, "attention_bias", is_glm, &attention));
    if (is_glm)
        return hfi_put(self, "qkv_bias", json_boolean(attention));
    if (of->has_mlp_bias)
        TRY(hfi_bool(self, "mlp_bias", false, &mlp));
    if (strcmp(of->family, "starcoder2") == 0)
        return hfi_refuse(self, "use_bias", true, "models without these biases are not built");
    if (strcmp(of->family, "gpt_neox") == 0)
        return hfi_refuse(self, "attention_bias", true,
                          "models without these biases are not built");
    if (strcmp(of->family, "stablelm") == 0)
        TRY(hfi_put_bool(self, "qkv_bias", "use_qkv_bias", false));
    if (strcmp(of->family, "llama") != 0 && !of->has_attention_bias)
        return hfi_refuse(self, "attention_bias", false, "this family has no biases of attention");
    TRY(hfi_put(self, "qkv_bias", json_boolean(of->qkv_bias || attention)));
    if (attention)
        TRY(hfi_put(self, "out_bias", json_true()));
    return mlp ? hfi_put(self, "mlp_bias", json_true()) : 0;
}

/* In files of Gemma "gelu" means the tanh form, as transformers reads it; older ones have the true
 * name in another key. */
static int put_activation(hfi_config *self, const struct variant *of)
{
    bool is_gemma = strcmp(of->name, "gemma") == 0;
    bool has_other_key =
        of->has_query_scalar || (is_gemma && hfi_get(self, "hidden_activation") != NULL);
    const char *act = json_string_value(hfi_get(self, "hidden_act"));
    if (is_gemma && !has_other_key && act && strcmp(act, "gelu") == 0)
        return 0;
    return hfi_put_activation(self, has_other_key ? "hidden_activation" : "hidden_act",
                              of->activation, of->ours, !of->is_plain);
}

static int put_multipliers(hfi_config *self)
{
    static const char *const keys[] = {"attention_multiplier", "embedding_multiplier",
                                       "residual_multiplier", "logits_scaling"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        double value;
        TRY(hfi_real(self, self->doc, "", keys[i], 1, &value));
        if (i == 0 || value != 1)
            TRY(hfi_put(self, keys[i], json_real(value)));
    }
    return 0;
}

/* Writes a soft cap. Its key may be null, for none; `fallback` counts if it is absent. */
static int put_soft_cap(hfi_config *self, const char *key, const char *from, double fallback)
{
    const json_t *found = json_object_get(self->doc, from);
    if (json_is_null(found) || (!found && fallback == 0))
        return 0;
    return hfi_put_real(self, key, from, fallback);
}

/* Gemma 2 and 3: the factor of scores, and soft caps. */
static int put_scores(hfi_config *self, const struct variant *of)
{
    static const char cap[] = "attn_logit_softcapping";
    double scalar;
    if (!of->has_query_scalar)
        return 0;
    TRY(hfi_real(self, self->doc, "", "query_pre_attn_scalar", 256, &scalar));
    TRY(hfi_put(self, "attention_multiplier", json_real(1 / sqrt(scalar))));
    TRY(put_soft_cap(self, "logits_soft_cap", "final_logit_softcapping", of->logits_cap));
    if (of->attention_cap == 0 && hfi_get(self, cap))
        return hfi_error(self, cap, "this family has no soft cap of scores");
    return put_soft_cap(self, "attention_soft_cap", cap, of->attention_cap);
}

/* Blocks without rotary positions: each `interval`-th, as the list must also say. */
static int put_nope(hfi_config *self, uint64_t layers)
{
    uint64_t interval;
    const json_t *list = hfi_get(self, "no_rope_layers");
    TRY(hfi_uint(self, "no_rope_layer_interval", NULL, 4, &interval));
    if (list && json_array_size(list) != layers)
        return hfi_error(self, "no_rope_layers", "it is no list of num_hidden_layers numbers");
    for (uint64_t i = 0; list && i < layers; i++)
        if (json_integer_value(json_array_get(list, i)) == 0) {
            interval = i + 1; /* the first one without */
            break;
        } else if (i + 1 == layers) {
            interval = 0;
        }
    for (uint64_t i = 0; list && i < layers; i++) {
        bool has = interval == 0 || (i + 1) % interval != 0;
        if ((json_integer_value(json_array_get(list, i)) != 0) != has)
            return hfi_error(self, "no_rope_layers",
                             "only blocks at equal intervals without rotary positions are built");
    }
    if (interval == 1)
        return hfi_error(self, "no_rope_layers", "no block has rotary positions");
    return interval == 0 ? 0 : hfi_put(self, "nope_interval", json_integer((json_int_t)interval));
}

/* Writes the keys of single families. */
static int put_own(hfi_config *self, const struct variant *of)
{
    double scale;
    if (of->residual != ALWAYS_THE_SAME)
        TRY(hfi_put_bool(self, "parallel_residual", "use_parallel_residual",
                         of->residual == IS_PARALLEL));
    if (strcmp(of->name, "stablelm") == 0)
        TRY(hfi_refuse(self, "qk_layernorm", false, "this family has no norms of heads here"));
    if (strcmp(of->name, "cohere") != 0)
        return 0;
    TRY(hfi_put_bool(self, "qk_norm", "use_qk_norm", false));
    TRY(hfi_real(self, self->doc, "", "logit_scale", 0.0625, &scale));
    return hfi_put(self, "logits_scaling", json_real(1 / scale));
}

static int fill_llama(hfi_config *self, const struct variant *of)
{
    uint64_t channels, layers, heads, kv_heads, ffn, head_dim;
    TRY(hfi_put(self, "family", json_string(of->family)));
    TRY(hfi_take_uint(self, "num_layers", "num_hidden_layers", NULL, HFI_REQUIRED, &layers));
    TRY(hfi_take_uint(self, "hidden_size", "hidden_size", NULL, HFI_REQUIRED, &channels));
    TRY(hfi_take_uint(self, "num_heads", "num_attention_heads", NULL, HFI_REQUIRED, &heads));
    bool is_null = json_is_null(json_object_get(self->doc, "num_key_value_heads"));
    uint64_t kv_default = of->kv_heads && !is_null ? of->kv_heads : heads;
    TRY(hfi_take_uint(self, "num_kv_heads", "num_key_value_heads", NULL, kv_default, &kv_heads));
    uint64_t dim_default = of->head_dim ? of->head_dim : size_max(channels / heads, 1);
    TRY(hfi_take_uint(self, "head_dim", "head_dim", NULL, dim_default, &head_dim));
    TRY(hfi_take_uint(self, "ffn_size", "intermediate_size", NULL, HFI_REQUIRED, &ffn));
    TRY(hfi_uint(self, "max_position_embeddings", NULL, of->positions, &self->positions));
    if (head_dim == dim_default && of->head_dim == 0 && channels % heads != 0)
        return hfi_error(self, "num_attention_heads",
                         "%" PRIu64 " does not divide hidden_size %" PRIu64, heads, channels);
    TRY(put_activation(self, of));
    TRY(hfi_refuse(self, "use_bidirectional_attention", false, "attention is always causal"));
    TRY(hfi_put_dropout(self, "attention_dropout", "attention_dropout", 0));
    if (of->hidden_dropout)
        TRY(hfi_put_dropout(self, "hidden_dropout", of->hidden_dropout, 0));
    if (of->embedding_dropout)
        TRY(hfi_put_dropout(self, "embedding_dropout", of->embedding_dropout, 0));
    TRY(put_biases(self, of));
    if (strcmp(of->family, "llama") == 0 || of->qk_norm)
        TRY(hfi_put(self, "qk_norm", json_boolean(of->qk_norm)));
    TRY(put_own(self, of));
    if (of->has_multipliers)
        TRY(put_multipliers(self));
    if (of->has_nope)
        TRY(put_nope(self, layers));
    TRY(put_scores(self, of));
    TRY(hfi_put_window(self, &of->windows, layers));
    self->has_window_rope = of->has_window_rope;
    if (of->has_window_rope)
        TRY(hfi_put_window_rope(self));
    if (of->has_scaled_rows)
        TRY(hfi_put(self, "embedding_multiplier", json_real(sqrt((double)channels))));
    TRY(hfi_put_real(self, "norm_epsilon", of->epsilon_key, of->epsilon));
    TRY(hfi_put_bool(self, "tie_embeddings", "tie_word_embeddings", of->ties));
    return hfi_put_rope(self, &of->rope);
}

/* Fills the model block from config.json. */
static int fill_block(hfi_config *self)
{
    uint64_t vocab;
    const json_t *type = hfi_get(self, "model_type");
    const char *name = json_string_value(type);
    if (!name)
        return hfi_error(self, "model_type", "missing; it names the family of the checkpoint");
    if (hfi_get(self, "quantization_config"))
        return hfi_error(self, "quantization_config",
                         "weights that are quantized are not read; take the checkpoint in fp32, "
                         "bf16 or fp16");
    TRY(hfi_take_uint(self, "vocab_size", "vocab_size", NULL, HFI_REQUIRED, &vocab));
    if (strcmp(name, "gpt2") == 0)
        return hfi_fill_gpt2(self);
    if (strcmp(name, "bert") == 0)
        return hfi_fill_bert(self);
    if (strcmp(name, "opt") == 0)
        return hfi_fill_opt(self);
    if (strcmp(name, "gemma3") == 0)
        return hfi_error(self, "model_type",
                         "\"gemma3\" reads images too, which is not built; its text model alone, "
                         "\"gemma3_text\", is");
    struct variant of;
    if (find_variant(name, &of))
        return fill_llama(self, &of);
    char known[ERR_TEXT_BYTES / 2] = "gpt2, bert, opt";
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, ", %s", variants[i].name);
    }
    return hfi_error(self, "model_type", "\"%.64s\" is not one of %s", name, known);
}

/* ---- into the job ---- */

/* A dropout changes training, not the model: the job's own value counts. */
static bool is_dropout(const char *key)
{
    const char *end = strrchr(key, '_');
    return end && strcmp(end, "_dropout") == 0;
}

/* Logs one line about the dropouts of config.json, unless the job sets them. */
static void say_dropout(const configi_reader *reader, const hfi_config *self)
{
    const char *key;
    json_t *value;
    char text[CONFIGI_VALUE_BYTES] = "";
    json_object_foreach(self->block, key, value)
    {
        char path[CONFIGI_PATH_BYTES];
        size_t used = strlen(text);
        configi_join(path, "model", key);
        if (is_dropout(key) && !configi_get(reader, path))
            snprintf(text + used, sizeof text - used, "%s%s %g", used ? ", " : "", key,
                     json_number_value(value));
    }
    if (text[0] != '\0' && !configi_get(reader, "train.dropout"))
        log_info("%s: training has dropout, as it says: %s; train.dropout 0 turns it off",
                 self->file, text);
}

/* If both the job and config.json give a key, the values must be the same. */
static int merge_key(const configi_reader *reader, const hfi_config *self, const char *key,
                     json_t *value)
{
    char path[CONFIGI_PATH_BYTES], given[CONFIGI_VALUE_BYTES], says[CONFIGI_VALUE_BYTES];
    configi_join(path, "model", key);
    const json_t *own = configi_get(reader, path);
    if (!own)
        return configi_put(reader->file, json_object_get(reader->doc, "model"), key,
                           json_incref(value));
    if (configi_is_same(own, value) || is_dropout(key))
        return 0;
    return configi_error(reader, path, "%s contradicts %s, which says %s: leave the key out",
                         configi_show(own, given), self->file, configi_show(value, says));
}

/* The checkpoint's model must be able to process the job's sequence length. */
static int merge_seq_length(const configi_reader *reader, const hfi_config *self)
{
    static const char path[] = "model.seq_length";
    uint64_t most = self->positions;
    const json_t *own = configi_get(reader, path);
    if (!own) {
        uint64_t length = size_min(most, SEQ_LENGTH_DEFAULT);
        log_info("%s: %s is %" PRIu64 " because the job does not give it; %s allows up to %" PRIu64,
                 reader->file, path, length, self->file, most);
        return configi_put(reader->file, json_object_get(reader->doc, "model"), "seq_length",
                           json_integer((json_int_t)length));
    }
    if (!json_is_number(own) || !(json_number_value(own) > (double)most))
        return 0; /* not a number: the check of the document reports it */
    char shown[CONFIGI_VALUE_BYTES];
    return configi_error(
        reader, path, "%s is above the %" PRIu64 " positions of %s; set it to %" PRIu64 " or less",
        configi_show(own, shown), self->positions, self->file, most);
}

/* Refuses the keys that change the arithmetic, and that only config.json may give: the checkpoint
 * was trained without them. */
static int refuse_other_arithmetic(const configi_reader *reader, const hfi_config *self)
{
    static const char *const keys[] = {
        "activation",
        "out_bias",
        "mlp_bias",
        "parallel_residual",
        "nope_interval",
        "embedding_multiplier",
        "attention_multiplier",
        "residual_multiplier",
        "logits_scaling",
        "attention_soft_cap",
        "logits_soft_cap",
        "window",
        "window_pattern",
        "window_rope_theta",
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char path[CONFIGI_PATH_BYTES], given[CONFIGI_VALUE_BYTES];
        configi_join(path, "model", keys[i]);
        const json_t *own = configi_get(reader, path);
        bool is_default = json_is_false(own) ||
                          (json_is_string(own) && strcmp(json_string_value(own), "default") == 0);
        if (own && !is_default && !json_object_get(self->block, keys[i]))
            return configi_error(reader, path, "%s is not what %s says: leave the key out",
                                 configi_show(own, given), self->file);
    }
    return 0;
}

/* Refuses keys that config.json does not give. A plain model block may add rope_scaling, this
 * one may not. */
static int refuse_additions(const configi_reader *reader, const hfi_config *self)
{
    static const char scaling[] = "model.rope_scaling";
    static const char preset[] = "model.preset";
    if (configi_get(reader, preset))
        return configi_error(reader, preset,
                             "a model is a preset or a checkpoint: leave this or "
                             "model.hf out");
    const json_t *type = configi_get(reader, "model.rope_scaling.type");
    bool is_plain = json_is_string(type) && strcmp(json_string_value(type), "default") == 0;
    if (configi_get(reader, scaling) && !is_plain && !json_object_get(self->block, "rope_scaling"))
        return configi_error(reader, scaling, "%s has no rope_scaling: leave the key out",
                             self->file);
    return refuse_other_arithmetic(reader, self);
}

static int merge_block(const configi_reader *reader, const hfi_config *self)
{
    const char *key;
    json_t *value;
    TRY(refuse_additions(reader, self));
    say_dropout(reader, self);
    json_object_foreach(self->block, key, value) TRY(merge_key(reader, self, key, value));
    TRY(merge_seq_length(reader, self));
    return configi_mark_expanded(reader);
}

static int read_config(hfi_config *self)
{
    TRY(configi_read_json(self->file, &self->doc));
    if (!json_is_object(self->doc))
        return err_set(ERR_CONFIG, "%s: it is no object, { ... }", self->file);
    self->block = json_object();
    if (!self->block)
        return err_set(-ENOMEM, "no memory to read %s", self->file);
    return fill_block(self);
}

/* True if a name looks like that of a model on the hub, such as meta-llama/Llama-3.2-1B, and no
 * such directory exists. */
static bool is_hub_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/";
    const char *slash = strchr(name, '/');
    bool has_form = slash && slash > name && slash[1] != '\0' && !strchr(slash + 1, '/') &&
                    name[0] != '.' && strspn(name, allowed) == strlen(name) && strlen(name) < 128;
    return has_form && access(name, F_OK) != 0;
}

int configi_expand_hf(const configi_reader *reader)
{
    const json_t *dir = configi_get(reader, "model.hf");
    if (!json_is_string(dir) || json_string_length(dir) == 0 ||
        configi_bool(reader, "debug.model_expanded"))
        return 0; /* not a path: the check of the document reports it */
    hfi_config self = {0};
    int length = snprintf(self.file, sizeof self.file, "%s/config.json", json_string_value(dir));
    if (length < 0 || (size_t)length >= sizeof self.file)
        return configi_error(reader, "model.hf", "a path of %zu bytes; at most %zu are possible",
                             json_string_length(dir), sizeof self.file - sizeof "/config.json");
    if (is_hub_name(json_string_value(dir)))
        return configi_error(reader, "model.hf",
                             "there is no directory %s; if it is a model of the Hugging Face hub, "
                             "download it first: hf download %s --local-dir DIR (older: "
                             "huggingface-cli download), and name DIR",
                             json_string_value(dir), json_string_value(dir));
    if (access(self.file, R_OK) != 0)
        return configi_error(reader, "model.hf", "%s: %s; it must be the directory of a checkpoint",
                             self.file, strerror(errno));
    int rc = read_config(&self);
    if (rc == 0) { /* the ranges are those of the job's own keys */
        const configi_reader found = {.file = self.file};
        rc = configi_check(&found, "model", self.block);
    }
    if (rc == 0)
        rc = merge_block(reader, &self);
    json_decref(self.block);
    json_decref(self.doc);
    return rc;
}
