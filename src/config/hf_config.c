/* Makes a job's model block from DIR/config.json of a Hugging Face checkpoint (model.hf). Every key
 * there that changes the arithmetic is understood, or refused by its name. Absent keys mean what
 * transformers assumes for them. See config_internal.h. job_read calls it; it reads that file.
 * hf_config_keys.c reads single keys, hf_config_rope.c the rotary positions. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "config/config_internal.h"
#include "config/hf_config_internal.h"

enum { SEQ_LENGTH_DEFAULT = 1024 };

/* ---- the families ---- */

static int fill_gpt2(hfi_config *self)
{
    static const char *const gelu[] = {"gelu_new", "gelu_fast", "gelu_pytorch_tanh", NULL};
    uint64_t channels, layers, heads, ffn;
    TRY(hfi_put(self, "family", json_string("gpt2")));
    TRY(hfi_take_uint(self, "num_layers", "n_layer", "num_hidden_layers", HFI_REQUIRED, &layers));
    TRY(hfi_take_uint(self, "hidden_size", "n_embd", "hidden_size", HFI_REQUIRED, &channels));
    TRY(hfi_take_uint(self, "num_heads", "n_head", "num_attention_heads", HFI_REQUIRED, &heads));
    TRY(hfi_put(self, "num_kv_heads", json_integer((json_int_t)heads)));
    TRY(hfi_take_uint(self, "ffn_size", "n_inner", NULL, channels <= UINT32_MAX ? 4 * channels : 0,
                      &ffn));
    TRY(hfi_take_uint(self, "position_count", "n_positions", "max_position_embeddings", 1024,
                      &self->positions));
    TRY(hfi_one_of(self, "activation_function", "gelu_new", gelu,
                   "the gpt2 family computes GELU in its tanh form"));
    TRY(hfi_refuse(self, "scale_attn_by_inverse_layer_idx", false,
                   "scores are not divided by the "
                   "number of their layer"));
    TRY(hfi_refuse(self, "scale_attn_weights", true,
                   "scores are always divided by the square root "
                   "of the head's width"));
    TRY(hfi_refuse(self, "add_cross_attention", false, "there is no encoder to attend to"));
    /* reorder_and_upcast_attn asks for fp32 scores. Scores are always fp32 here. */
    hfi_say_dropout(self);
    TRY(hfi_put_real(self, "norm_epsilon", "layer_norm_epsilon", 1e-5));
    return hfi_put_bool(self, "tie_embeddings", "tie_word_embeddings", true);
}

/* The differences between the families that share Llama's block. */
struct variant {
    const char *name;
    uint64_t kv_heads; /* if config.json does not say; 0: as many as heads */
    uint64_t head_dim; /* if config.json does not say; 0: hidden_size / heads */
    uint64_t positions;
    bool qkv_bias, qk_norm;
    bool has_attention_bias, has_mlp_bias; /* keys that this family has */
};

static const struct variant variants[] = {
    {.name = "llama", .positions = 2048, .has_attention_bias = true, .has_mlp_bias = true},
    {.name = "mistral", .kv_heads = 8, .positions = 131072},
    {.name = "qwen2", .kv_heads = 32, .positions = 32768, .qkv_bias = true},
    {.name = "qwen3",
     .kv_heads = 32,
     .head_dim = 128,
     .positions = 32768,
     .qk_norm = true,
     .has_attention_bias = true},
};

/* Sets *has to true if a layer attends within a window: the layers from `first` on, or those that
 * layer_types names. */
static int has_window_layer(const hfi_config *self, uint64_t layers, uint64_t first, bool *has)
{
    const json_t *types = hfi_get(self, "layer_types");
    *has = types ? false : first < layers;
    if (!types)
        return 0;
    if (!json_is_array(types))
        return hfi_error(self, "layer_types", "it is no list");
    size_t idx;
    json_t *item;
    json_array_foreach(types, idx, item)
    {
        const char *type = json_string_value(item);
        if (type && strcmp(type, "sliding_attention") == 0)
            *has = true;
        else if (!type || strcmp(type, "full_attention") != 0)
            return hfi_error(self, "layer_types",
                             "entry %zu is neither \"full_attention\" nor \"sliding_attention\"",
                             idx);
    }
    return 0;
}

/* Finds self->window, the width of the window that attention is limited to; 0: none. */
static int find_window(hfi_config *self, const struct variant *of, uint64_t layers)
{
    enum { WINDOW = 4096, WINDOW_FROM_LAYER = 28 }; /* if config.json does not say */
    bool is_mistral = strcmp(of->name, "mistral") == 0, has = is_mistral, uses = is_mistral;
    uint64_t first = 0;
    if (strcmp(of->name, "llama") == 0)
        return 0; /* this family has none, whatever the file says */
    if (!is_mistral) {
        TRY(hfi_bool(self, "use_sliding_window", false, &uses));
        if (!uses)
            return 0;
        const json_t *written = json_object_get(self->doc, "max_window_layers");
        if (!written || !json_is_integer(written) || json_integer_value(written) != 0)
            TRY(hfi_uint(self, "max_window_layers", NULL, WINDOW_FROM_LAYER, &first));
        TRY(has_window_layer(self, layers, first, &has));
    }
    if (!has || json_is_null(json_object_get(self->doc, "sliding_window")))
        return 0;
    return hfi_uint(self, "sliding_window", NULL, WINDOW, &self->window);
}

static int refuse_of_llama(hfi_config *self, const struct variant *of)
{
    static const char *const silu[] = {"silu", "swish", NULL};
    TRY(hfi_one_of(self, "hidden_act", "silu", silu, "the llama family computes SwiGLU"));
    if (of->has_attention_bias)
        TRY(hfi_refuse(self, "attention_bias", false,
                       "biases of all four projections of attention are not built"));
    if (of->has_mlp_bias)
        TRY(hfi_refuse(self, "mlp_bias", false, "biases of the feed-forward part are not built"));
    hfi_say_dropout(self);
    return 0;
}

static int fill_llama(hfi_config *self, const struct variant *of)
{
    uint64_t channels, layers, heads, kv_heads, ffn, head_dim;
    TRY(hfi_put(self, "family", json_string("llama")));
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
    TRY(find_window(self, of, layers));
    TRY(refuse_of_llama(self, of));
    TRY(hfi_put(self, "qkv_bias", json_boolean(of->qkv_bias)));
    TRY(hfi_put(self, "qk_norm", json_boolean(of->qk_norm)));
    TRY(hfi_put_real(self, "norm_epsilon", "rms_norm_eps", 1e-6));
    TRY(hfi_put_bool(self, "tie_embeddings", "tie_word_embeddings", false));
    return hfi_put_rope(self);
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
        return fill_gpt2(self);
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        if (strcmp(name, variants[i].name) == 0)
            return fill_llama(self, &variants[i]);
    return hfi_error(self, "model_type",
                     "\"%.64s\" is not one of gpt2, llama, mistral, qwen2, qwen3", name);
}

/* ---- into the job ---- */

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
    if (configi_is_same(own, value))
        return 0;
    return configi_error(reader, path, "%s contradicts %s, which says %s: leave the key out",
                         configi_show(own, given), self->file, configi_show(value, says));
}

/* The checkpoint's model must be able to process the job's sequence length. */
static int merge_seq_length(const configi_reader *reader, const hfi_config *self)
{
    static const char path[] = "model.seq_length";
    uint64_t most = self->window ? size_min(self->window, self->positions) : self->positions;
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
    if (self->window && self->window < self->positions)
        return configi_error(reader, path,
                             "%s is above the sliding window of %" PRIu64 " tokens in %s: windows "
                             "within a sequence are not built; set it to %" PRIu64 " or less",
                             configi_show(own, shown), self->window, self->file, most);
    return configi_error(
        reader, path, "%s is above the %" PRIu64 " positions of %s; set it to %" PRIu64 " or less",
        configi_show(own, shown), self->positions, self->file, most);
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
    return 0;
}

static int merge_block(const configi_reader *reader, const hfi_config *self)
{
    const char *key;
    json_t *value;
    TRY(refuse_additions(reader, self));
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
