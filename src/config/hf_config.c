/* Makes a job's model block from DIR/config.json of a Hugging Face checkpoint (model.hf). Every key
 * there that changes the arithmetic is understood, or refused by its name. Absent keys mean what
 * transformers assumes for them. See config_internal.h. job_read calls it; it reads that file.
 * hf_config_families.c says which families have which keys, and hf_config_keys.c reads them;
 * hf_config_rope.c reads the rotary positions, hf_config_window.c the windows of attention.
 * hf_config_write.c is the way back. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "base/text.h"
#include "config/config_internal.h"
#include "config/hf_config_internal.h"

enum { SEQ_LENGTH_DEFAULT = 1024 };

/* ---- the model block ---- */

/* Blocks without rotary positions: each `interval`-th, as the list must also say. */
static int put_nope(hfi_config *self, uint64_t layers)
{
    uint64_t interval;
    const json_t *list = hfi_get(self, "no_rope_layers");
    TRY(hfi_uint(self, "no_rope_layer_interval", 4, &interval));
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

/* A number of the block that is written already. */
static uint64_t number_of(const hfi_config *self, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(self->block, key));
}

/* Experts of a family whose first blocks may have none. */
static int put_late_experts(hfi_config *self, const hfi_family *of)
{
    const json_t *given = hfi_get(self, "first_k_dense_replace");
    const char *method = json_string_value(hfi_get(self, "topk_method"));
    json_int_t dense = given ? json_integer_value(given) : (json_int_t)of->dense_blocks;
    uint64_t layers = number_of(self, "num_layers"), shared, groups, chosen;
    if (given && (!json_is_integer(given) || dense < 0))
        return hfi_error(self, "first_k_dense_replace", "it is no whole number from 0 on");
    dense = (json_int_t)size_min((uint64_t)dense, layers);
    if (dense > 0)
        TRY(hfi_put(self, "first_k_dense_replace", json_integer(dense)));
    if ((uint64_t)dense == layers)
        return 0;
    for (const hfi_key *row = NULL; (row = hfi_next_late_key(of, row));)
        TRY(hfi_read_key(self, row));
    TRY(hfi_uint(self, "n_shared_experts", of->shared_experts, &shared));
    TRY(hfi_put(self, "shared_ffn_size",
                json_integer((json_int_t)(shared * number_of(self, "expert_ffn_size")))));
    if (of->has_softmax && method && strcmp(method, "greedy") != 0 &&
        strcmp(method, "group_limited_greedy") != 0)
        return hfi_error(self, "topk_method",
                         "\"%.64s\" is not built; greedy and group_limited_greedy are", method);
    if (!of->has_softmax)
        TRY(hfi_put(self, "scoring_func", json_string("sigmoid")));
    if (of->has_softmax && (!method || strcmp(method, "greedy") == 0))
        return 0; /* the groups have no meaning then */
    TRY(hfi_uint(self, "n_group", of->groups, &groups));
    TRY(hfi_uint(self, "topk_group", of->groups_chosen, &chosen));
    if (groups == 1)
        return 0;
    TRY(hfi_put(self, "n_group", json_integer((json_int_t)groups)));
    return hfi_put(self, "topk_group", json_integer((json_int_t)chosen));
}

static int put_latents(hfi_config *self, const hfi_family *of)
{
    uint64_t heads = number_of(self, "num_heads"), other;
    bool is_interleaved = true;
    hfi_key q_latent = {NULL, HFI_COUNT, "q_latent_size", "q_lora_rank", 1536};
    hfi_key kv_heads = {NULL, HFI_COUNT, "num_kv_heads", "num_key_value_heads", (double)heads};
    if (!json_is_null(json_object_get(self->doc, "q_lora_rank")))
        TRY(hfi_read_key(self, &q_latent));
    TRY(hfi_uint(self, "qk_nope_head_dim", 128, &other));
    TRY(hfi_put(self, "head_dim",
                json_integer((json_int_t)(other + number_of(self, "rope_head_dim")))));
    if (strcmp(of->name, "deepseek_v3") == 0)
        TRY(hfi_bool(self, "rope_interleave", true, &is_interleaved));
    if (!is_interleaved)
        TRY(hfi_put(self, "rope_halves", json_true()));
    return hfi_read_key(self, &kv_heads);
}

/* The number of heads of keys and values, and the width of a head. */
static int put_heads(hfi_config *self, const hfi_family *of)
{
    uint64_t channels = number_of(self, "hidden_size"), heads = number_of(self, "num_heads");
    bool is_null = json_is_null(json_object_get(self->doc, "num_key_value_heads"));
    uint64_t usual_kv = of->kv_heads && !is_null ? of->kv_heads : heads;
    uint64_t usual_dim = of->head_dim ? of->head_dim : size_max(channels / heads, 1);
    hfi_key kv_heads = {NULL, HFI_COUNT, "num_kv_heads", "num_key_value_heads", (double)usual_kv};
    hfi_key head_dim = {NULL, HFI_COUNT, "head_dim", "head_dim", (double)usual_dim};
    if (of->has_latents)
        return put_latents(self, of);
    TRY(hfi_read_key(self, &kv_heads));
    TRY(hfi_read_key(self, &head_dim));
    if (of->has_plain_heads && number_of(self, "head_dim") != usual_dim)
        return hfi_error(self, "head_dim",
                         "%" PRIu64 " is not built: heads of this family are hidden_size / "
                         "num_attention_heads wide",
                         number_of(self, "head_dim"));
    if (number_of(self, "head_dim") == usual_dim && of->head_dim == 0 && channels % heads != 0)
        return hfi_error(self, "num_attention_heads",
                         "%" PRIu64 " does not divide hidden_size %" PRIu64, heads, channels);
    return 0;
}

/* The family has rotary positions. */
static int fill_rotary(hfi_config *self, const hfi_family *of)
{
    uint64_t channels = number_of(self, "hidden_size"), layers = number_of(self, "num_layers");
    TRY(put_heads(self, of));
    TRY(hfi_uint(self, "max_position_embeddings", of->positions, &self->positions));
    if (of->has_nope)
        TRY(put_nope(self, layers));
    TRY(hfi_put_window(self, &of->windows, layers));
    if (of->window_theta != 0)
        TRY(hfi_put_window_rope(self, of));
    if (of->has_scaled_rows)
        TRY(hfi_put(self, "embedding_multiplier", json_real(sqrt((double)channels))));
    return hfi_put_rope(self, of);
}

int hfi_fill_block(hfi_config *self)
{
    const hfi_key vocab = {NULL, HFI_COUNT, "vocab_size", "vocab_size", 0};
    const char *name = json_string_value(hfi_get(self, "model_type"));
    if (!name)
        return hfi_error(self, "model_type", "missing; it names the family of the checkpoint");
    if (strcmp(name, "gemma3") == 0)
        return hfi_error(self, "model_type",
                         "\"gemma3\" reads images too, which is not built; its text model alone, "
                         "\"gemma3_text\", is");
    const hfi_family *of = hfi_find_family(name);
    char known[ERR_TEXT_BYTES / 2] = "";
    for (uint32_t i = 0; !of && hfi_family_at(i); i++)
        text_add(known, sizeof known, "%s%s", i ? ", " : "", hfi_family_at(i)->name);
    if (!of)
        return hfi_error(self, "model_type", "\"%.64s\" is not one of %s", name, known);
    TRY(hfi_read_key(self, &vocab));
    TRY(hfi_put(self, "family", json_string(of->family)));
    for (const hfi_key *row = NULL; (row = hfi_next_key(of, row));)
        TRY(hfi_read_key(self, row));
    if (of->has_late_experts)
        TRY(put_late_experts(self, of));
    self->positions = number_of(self, "position_count"); /* of families with a table */
    return of->has_table ? 0 : fill_rotary(self, of);
}

/* ---- into the job ---- */

static bool is_dropout(const char *key)
{
    const char *end = strrchr(key, '_');
    return end && strcmp(end, "_dropout") == 0;
}

/* A dropout, or a loss of routers, changes training, not the model: the job's own value counts. */
static bool is_of_training(const char *key)
{
    return is_dropout(key) || strcmp(key, "router_aux_loss_coef") == 0;
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
        configi_join(path, "model", key);
        if (is_dropout(key) && !configi_get(reader, path))
            text_add(text, sizeof text, "%s%s %g", text[0] ? ", " : "", key,
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
    if (configi_is_same(own, value) || is_of_training(key))
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
    static const char keys[] =
        "activation|out_bias|mlp_bias|parallel_residual|attention_sinks|kv_latent_size|"
        "q_latent_size|rope_head_dim|value_head_dim|rope_halves|nope_interval|"
        "embedding_multiplier|attention_multiplier|residual_multiplier|logits_scaling|"
        "attention_soft_cap|logits_soft_cap|window|window_pattern|window_rope_theta|"
        "norm_topk_prob|num_experts|num_experts_per_tok|expert_ffn_size|shared_ffn_size|"
        "routed_scaling_factor|scoring_func|n_group|topk_group|first_k_dense_replace|swiglu_limit";
    char key[JOB_NAME_BYTES];
    for (int i = 0; configi_list_entry(keys, i, key, sizeof key); i++) {
        char path[CONFIGI_PATH_BYTES], given[CONFIGI_VALUE_BYTES];
        configi_join(path, "model", key);
        const json_t *own = configi_get(reader, path);
        const char *word = json_is_string(own) ? json_string_value(own) : "";
        bool is_default = json_is_false(own) || strcmp(word, "default") == 0 ||
                          (strcmp(key, "scoring_func") == 0 && strcmp(word, "softmax") == 0);
        if (own && !is_default && !json_object_get(self->block, key))
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
                             "a model is a preset or a checkpoint: leave this or model.hf out");
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
    return hfi_fill_block(self);
}

/* True if a name looks like that of a model on the hub, such as meta-llama/Llama-3.2-1B or gpt2,
 * and no such directory exists. */
static bool is_hub_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/";
    const char *slash = strchr(name, '/');
    bool has_form = (!slash || (slash > name && slash[1] != '\0' && !strchr(slash + 1, '/'))) &&
                    name[0] != '.' && strspn(name, allowed) == strlen(name) && strlen(name) < 128;
    return has_form && access(name, F_OK) != 0;
}

/* ---- a checkpoint that is gone ---- */

/* True if the key names a directory that has no such file. */
static bool lacks(const configi_reader *reader, const char *key, const char *name)
{
    const json_t *dir = configi_get(reader, key);
    char file[FILE_PATH_BYTES];
    if (!json_is_string(dir) || json_string_length(dir) == 0)
        return false;
    int length = snprintf(file, sizeof file, "%s/%s", json_string_value(dir), name);
    return length < (int)sizeof file && access(file, F_OK) != 0 &&
           (errno == ENOENT || errno == ENOTDIR);
}

/* True if both give the same directory, or none. `import` records it as an absolute path. */
static bool agree(const configi_reader *reader, const configi_reader *record, const char *path)
{
    const json_t *own = configi_get(reader, path), *recorded = configi_get(record, path);
    char here[FILE_PATH_BYTES], made[FILE_PATH_BYTES];
    if (!own || !recorded || configi_is_same(own, recorded))
        return !own == !recorded;
    return json_is_string(own) && json_is_string(recorded) && getcwd(here, sizeof here) &&
           file_join(made, sizeof made, here, json_string_value(own)) == 0 &&
           strcmp(made, json_string_value(recorded)) == 0;
}

/* Adds a value of the record that the job does not give. */
static int add_value(const configi_reader *reader, const configi_reader *record, const char *path)
{
    json_t *value = (json_t *)(uintptr_t)configi_get(record, path);
    if (!value || configi_get(reader, path))
        return 0;
    return configi_put_path(reader, path, json_incref(value));
}

/* Adds the keys of a block of the record that the job does not give. */
static int add_missing(const configi_reader *reader, const configi_reader *record,
                       const char *block)
{
    const char *key;
    json_t *value, *from = (json_t *)(uintptr_t)configi_get(record, block);
    json_object_foreach(from, key, value)
    {
        char path[CONFIGI_PATH_BYTES];
        if (configi_join(path, block, key))
            TRY(add_value(reader, record, path));
    }
    return 0;
}

/* The record does not tell the checkpoint's keys from those that its own job gave: a job that left
 * some of these out gets them as well. */
static int recall(const configi_reader *reader, const configi_reader *record)
{
    static const char by_checkpoint[] = "debug.params_of_checkpoint";
    static const char *const of_adapters[] = {"train.lora.rank", "train.lora.alpha",
                                              "train.lora.targets", "train.lora.dropout"};
    const char *missing = lacks(reader, "model.hf", "config.json") ? "model.hf" : "train.lora.from";
    if (!configi_bool(record, "debug.model_expanded") || !agree(reader, record, "model.hf") ||
        !agree(reader, record, "train.lora.from"))
        return 0;
    log_info("%s: the checkpoint of %s is not there: what it and the run's job said of the model "
             "is taken from %s",
             reader->file, missing, record->file);
    TRY(add_missing(reader, record, "model"));
    if (configi_get(reader, "train.lora.from"))
        for (size_t i = 0; i < sizeof of_adapters / sizeof of_adapters[0]; i++)
            TRY(add_value(reader, record, of_adapters[i]));
    bool is_given = configi_get(reader, "state.params") || configi_get(reader, "state.rules") ||
                    configi_bool(reader, "load_in_4bit") || configi_bool(reader, "load_in_8bit");
    if (!is_given && configi_bool(record, by_checkpoint)) {
        TRY(add_value(reader, record, "state.params"));
        TRY(add_value(reader, record, "state.rules"));
        TRY(configi_put_path(reader, by_checkpoint, json_true()));
    }
    return configi_mark_expanded(reader);
}

int configi_recall_hf(const configi_reader *reader)
{
    const json_t *dir = configi_get(reader, "run.dir");
    char file[FILE_PATH_BYTES];
    if (!json_is_string(dir) || configi_bool(reader, "debug.model_expanded") ||
        !(lacks(reader, "model.hf", "config.json") ||
          lacks(reader, "train.lora.from", "adapter_config.json")))
        return 0;
    /* A run that has begun without a commit has only manifest-1 (manifest.h), and begins again. */
    int length = snprintf(file, sizeof file, "%s/state/manifest-0", json_string_value(dir));
    if (length >= (int)sizeof file || access(file, F_OK) != 0)
        return 0;
    snprintf(file, sizeof file, "%s/job.json", json_string_value(dir));
    json_t *doc;
    if (access(file, F_OK) != 0)
        return 0;
    if (configi_read_json(file, &doc) < 0) {
        log_warn("the checkpoint is not there, nor can the run's record of it be read: %s",
                 err_text());
        return 0;
    }
    const configi_reader record = {.file = file, .doc = doc};
    int rc = recall(reader, &record);
    json_decref(doc);
    return rc;
}

/* ---- the checkpoint ---- */

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
    const json_t *quantization = rc == 0 ? hfi_get(&self, "quantization_config") : NULL;
    if (quantization)
        rc = configi_take_checkpoint_formats(reader, self.file, quantization);
    json_decref(self.block);
    json_decref(self.doc);
    return rc;
}
