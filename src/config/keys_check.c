/* A document against the table of keys: names, types, ranges, refusals. See config_internal.h.
 * Allocates nothing. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/core_set.h"
#include "base/size.h"
#include "config/config_internal.h"

/* Finds the key of a row's path that follows `parent`. False if the row is not below `parent`, or
 * if the next key is an index. */
static bool key_below(const char *row_path, const char *parent, char key[CONFIGI_PATH_BYTES])
{
    if (configi_relate(row_path, parent) != CONFIGI_ABOVE)
        return false;
    if (parent[0] != '\0') {
        row_path = strchr(row_path, '.') + 1;
        for (const char *dot = strchr(parent, '.'); dot; dot = strchr(dot + 1, '.'))
            row_path = strchr(row_path, '.') + 1;
    }
    snprintf(key, CONFIGI_PATH_BYTES, "%.*s", (int)strcspn(row_path, "."), row_path);
    return strcmp(key, "*") != 0;
}

/* Finds the nearest key of a level. */
static struct nearest nearest_key(const char *parent, const char *key)
{
    struct nearest nearest = {0};
    const configi_key *row;
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
        char other[CONFIGI_PATH_BYTES];
        if (!configi_key_is_hidden(row) && key_below(row->path, parent, other))
            nearest_offer(&nearest, key, other);
    }
    return nearest;
}

/* Finds a known path, of a row or of a block, whose last key is this one; "": there is none. */
static void known_elsewhere(const char *key, char path[CONFIGI_PATH_BYTES])
{
    const configi_key *row;
    size_t length = strlen(key);
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
        const char *at = row->path;
        while (true) {
            size_t key_length = strcspn(at, ".");
            if (key_length == length && strncasecmp(at, key, length) == 0) {
                snprintf(path, CONFIGI_PATH_BYTES, "%.*s", (int)(at - row->path + (long)length),
                         row->path);
                return;
            }
            if (at[key_length] == '\0')
                break;
            at += key_length + 1;
        }
    }
    path[0] = '\0';
}

/* Names that other programs have for keys of the table. They are looked for before names that are
 * spelt alike. */
static const struct configi_alias usual_names[] = {
    {"learning_rate", "optimizer.params.lr"},
    {"weight_decay", "optimizer.params.weight_decay"},
    {"beta1", "optimizer.params.betas"},
    {"beta2", "optimizer.params.betas"},
    {"epsilon", "optimizer.params.eps"},
    {"warmup_steps", "scheduler.params.warmup_num_steps"},
    {"lr_scheduler_type", "scheduler.type"},
    {"batch_size", "train_micro_batch_size_per_gpu"},
    {"micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"global_batch_size", "train_batch_size"},
    {"gradient_accumulation", "gradient_accumulation_steps"},
    {"grad_accum_steps", "gradient_accumulation_steps"},
    {"gradient_checkpointing", "tiers.place.inner_activations"},
    {"dtype", "bf16.enabled or fp16.enabled"},
    {"torch_dtype", "bf16.enabled or fp16.enabled"},
    {"mixed_precision", "bf16.enabled or fp16.enabled"},
    {"max_grad_norm", "gradient_clipping"},
    {"grad_clip", "gradient_clipping"},
    {"clip_grad", "gradient_clipping"},
    {"max_steps", "run.steps"},
    {"num_steps", "run.steps"},
    {"train_iters", "run.steps"},
    {"epochs", "run.steps"},
    {"num_train_epochs", "run.steps"},
    {"output_dir", "run.dir"},
    {"save_steps", "run.commit_every"},
    {"n_layer", "model.num_layers"},
    {"num_hidden_layers", "model.num_layers"},
    {"n_embd", "model.hidden_size"},
    {"d_model", "model.hidden_size"},
    {"n_head", "model.num_heads"},
    {"num_attention_heads", "model.num_heads"},
    {"num_key_value_heads", "model.num_kv_heads"},
    {"intermediate_size", "model.ffn_size"},
    {"n_inner", "model.ffn_size"},
    {"max_position_embeddings", "model.seq_length"},
    {"max_seq_length", "model.seq_length"},
    {"context_length", "model.seq_length"},
    {"model_name_or_path", "model.hf"},
    {"cpu", "tiers.host"},
    {"ram", "tiers.host"},
    {"gpu", "tiers.device"},
    {"cuda", "tiers.device"},
    {"disk", "tiers.nvme"},
    {"ssd", "tiers.nvme"},
};

static const char *usual_path(const char *key)
{
    for (size_t i = 0; i < sizeof usual_names / sizeof usual_names[0]; i++)
        if (strcasecmp(usual_names[i].path, key) == 0)
            return usual_names[i].name;
    return NULL;
}

void configi_advise_among(const struct nearest *nearest, const char *parent, const char *key,
                          char advice[CONFIGI_ADVICE_BYTES])
{
    char elsewhere[CONFIGI_PATH_BYTES];
    const char *usual = usual_path(key);
    known_elsewhere(key, elsewhere);
    if (usual)
        snprintf(advice, CONFIGI_ADVICE_BYTES, "here it is called %s", usual);
    else if (!nearest_is_near(nearest, key) && elsewhere[0] != '\0')
        snprintf(advice, CONFIGI_ADVICE_BYTES, "it belongs at %s", elsewhere);
    else if (nearest->name[0] == '\0')
        snprintf(advice, CONFIGI_ADVICE_BYTES, "%s holds no keys", parent);
    else
        snprintf(advice, CONFIGI_ADVICE_BYTES, "the nearest known key is \"%s\"", nearest->name);
}

void configi_advise(const char *parent, const char *key, char advice[CONFIGI_ADVICE_BYTES])
{
    struct nearest nearest = nearest_key(parent, key);
    configi_advise_among(&nearest, parent, key, advice);
}

int configi_unknown(const configi_reader *reader, const char *parent, const char *key)
{
    char path[CONFIGI_PATH_BYTES], advice[CONFIGI_ADVICE_BYTES];
    char shown[CONFIGI_VALUE_BYTES];
    configi_join(path, parent, key);
    snprintf(shown, sizeof shown, "%.64s", path + (parent[0] ? strlen(parent) + 1 : 0));
    if (strchr(key, '.') != NULL && configi_is_known(path))
        return configi_error(reader, path, "\"%s\" is one key; write nested objects instead",
                             shown);
    const configi_key *row = configi_key_find(parent);
    if (row && (row->type == CONFIGI_OBJECTS || row->type == CONFIGI_SOURCES))
        return configi_error(reader, path, "%s is a list: its entries are %s.0, %s.1, ...", parent,
                             parent, parent);
    configi_advise(parent, key, advice);
    return configi_error(reader, path, "unknown key \"%s\"; %s", shown, advice);
}

/* ---- values ---- */

/* A value that is being checked: its row, and its path in the document. */
struct place {
    const configi_reader *reader;
    const configi_key *row;
    const char *path;
};

/* Writes a row's range in words. */
static const char *range_text(const configi_key *row, char text[CONFIGI_VALUE_BYTES])
{
    const char *range = row->allowed;
    size_t length = strlen(range);
    if (range[length - 2] == ',')
        snprintf(text, CONFIGI_VALUE_BYTES, "must be %s %.*s",
                 range[0] == '[' ? "at least" : "above", (int)strcspn(range + 1, ","), range + 1);
    else
        snprintf(text, CONFIGI_VALUE_BYTES, "must be in %s", range);
    return text;
}

static int check_range(const struct place *at, const json_t *value)
{
    char shown[CONFIGI_VALUE_BYTES], range[CONFIGI_VALUE_BYTES];
    const configi_key *row = at->row;
    if (configi_in_range(row, json_number_value(value)))
        return 0;
    bool is_above = row->why && json_number_value(value) > 0;
    bool has_unit = row->unit && row->unit[0] != '\0';
    return configi_error(at->reader, at->path, "%s is out of range: %s%s%s%s%s",
                         configi_show(value, shown), range_text(row, range), has_unit ? " " : "",
                         has_unit ? row->unit : "", is_above ? ". " : "", is_above ? row->why : "");
}

/* Returns advice if a text stands in the place of a number or a switch: leave out the quotes, or
 * write True in small letters. NULL: no advice. */
static const char *meant(const configi_key *row, const char *text)
{
    char *end;
    if (row->type == CONFIGI_BOOL && strcasecmp(text, "true") == 0)
        return "; write true, without quotes and in small letters";
    if (row->type == CONFIGI_BOOL && strcasecmp(text, "false") == 0)
        return "; write false, without quotes and in small letters";
    bool is_number = row->type == CONFIGI_INT || row->type == CONFIGI_FLOAT;
    return is_number && text[0] && isfinite(strtod(text, &end)) && *end == '\0'
               ? "; write the number without quotes"
               : NULL;
}

static int wrong_type(const struct place *at, const json_t *value, const char *expected)
{
    char shown[CONFIGI_VALUE_BYTES];
    const char *fallback = at->row->fallback;
    const char *advice = json_is_string(value) ? meant(at->row, json_string_value(value)) : NULL;
    if (advice)
        return configi_error(at->reader, at->path, "%s is not %s%s", configi_show(value, shown),
                             expected, advice);
    return configi_error(at->reader, at->path, "%s is not %s%s%s", configi_show(value, shown),
                         expected, fallback ? "; the default is " : "", fallback ? fallback : "");
}

/* Words that other programs have for choices of the table. The first that the key offers is
 * meant. */
static const struct configi_alias usual_words[] = {
    {"cpu", "host"},
    {"ram", "host"},
    {"dram", "host"},
    {"host", "cpu"},
    {"ram", "cpu"},
    {"gpu", "device"},
    {"cuda", "device"},
    {"hbm", "device"},
    {"gpu", "cuda"},
    {"device", "none"},
    {"gpu", "none"},
    {"cuda", "none"},
    {"disk", "nvme"},
    {"ssd", "nvme"},
    {"bfloat16", "bf16"},
    {"float16", "fp16"},
    {"half", "fp16"},
    {"float32", "fp32"},
    {"float", "fp32"},
    {"int8", "8bit"},
    {"cosine", "WarmupCosineLR"},
    {"constant_with_warmup", "WarmupLR"},
    {"json", "jsonl"},
    {"io_uring", "uring"},
};

static const char *usual_word(const configi_key *row, const char *text)
{
    for (size_t i = 0; i < sizeof usual_words / sizeof usual_words[0]; i++)
        if (strcasecmp(usual_words[i].path, text) == 0 &&
            configi_list_find(row->allowed, usual_words[i].name) >= 0)
            return usual_words[i].name;
    return NULL;
}

/* Checks a choice that is given as text: the value of an ENUM, or "true" or "false" of a BOOL. */
static int check_choice(const struct place *at, const char *text)
{
    const configi_key *row = at->row;
    if (!row->allowed || configi_list_find(row->allowed, text) >= 0)
        return 0;
    if (configi_list_find(row->later, text) >= 0)
        return configi_error(at->reader, at->path, "\"%s\" is not built yet; supported: %s. %s",
                             text, row->allowed, row->help);
    const char *usual = usual_word(row, text);
    if (usual)
        return configi_error(at->reader, at->path,
                             "\"%.64s\" is called \"%s\" here; the choices are %s", text, usual,
                             row->allowed);
    struct nearest nearest = {0};
    char entry[JOB_NAME_BYTES];
    for (int idx = 0; configi_list_entry(row->allowed, idx, entry, sizeof entry); idx++)
        nearest_offer(&nearest, text, entry);
    return configi_error(at->reader, at->path, "\"%.64s\" is none of %s; the nearest is \"%s\"",
                         text, row->allowed, nearest.name);
}

static int check_bool(const struct place *at, const json_t *value)
{
    const char *text = json_is_true(value) ? "true" : "false";
    if (!json_is_boolean(value))
        return wrong_type(at, value, "true or false");
    return check_choice(at, text);
}

static int check_int(const struct place *at, const json_t *value)
{
    double number = json_number_value(value);
    char shown[CONFIGI_VALUE_BYTES];
    if (!json_is_number(value) || number != floor(number))
        return wrong_type(at, value, "a whole number");
    if (json_is_real(value) && fabs(number) >= 0x1p63)
        return configi_error(at->reader, at->path, "%s is out of range: must be below 2^63",
                             configi_show(value, shown));
    return check_range(at, value);
}

static int check_size(const struct place *at, const json_t *value)
{
    enum { LEAST = 1024 }; /* fewer bytes than that were meant to have a unit */
    uint64_t bytes;
    char shown[CONFIGI_VALUE_BYTES];
    const char *text = json_string_value(value);
    if (text && size_parse(text, &bytes) < 0)
        return configi_error(at->reader, at->path, "%s", err_text());
    if (!text) {
        TRY(check_int(at, value));
        if (json_number_value(value) < 0)
            return configi_error(at->reader, at->path,
                                 "%s is out of range: must be at least 0 bytes",
                                 configi_show(value, shown));
        bytes = (uint64_t)json_number_value(value);
    }
    bool has_unit = text && text[strspn(text, "0123456789. ")] != '\0';
    if (has_unit || bytes == 0 || bytes >= LEAST || !configi_key_is_own(at->row))
        return 0;
    return configi_error(at->reader, at->path,
                         "%s without a unit means bytes, and %" PRIu64
                         " bytes hold nothing; is \"%" PRIu64 "GiB\" meant?",
                         configi_show(value, shown), bytes, bytes);
}

/* Checks a core set, in which no blanks are allowed. Numbers are below CORE_SET_MAX; whether the
 * machine has these cores is checked at the place of use. */
static int check_cores(const struct place *at, const json_t *value)
{
    char shown[CONFIGI_VALUE_BYTES];
    core_set set;
    if (!json_is_string(value))
        return wrong_type(at, value, "a core set, as in \"0-7,16\"");
    const char *text = json_string_value(value);
    if (strlen(text) >= JOB_NAME_BYTES)
        return configi_error(at->reader, at->path, "%zu bytes long; at most %d", strlen(text),
                             JOB_NAME_BYTES - 1);
    if (text[0] == '\0' || strpbrk(text, " \t\r\n\v\f"))
        return configi_error(at->reader, at->path, "%s is no core set: write \"0-7,16\"",
                             configi_show(value, shown));
    if (core_set_parse(text, &set) == 0)
        return 0;
    return configi_error(at->reader, at->path, "%s is no core set: write \"0-7,16\" (%s)",
                         configi_show(value, shown), err_text());
}

/* True if the block, or any block inside it that is not switched off, is enabled. */
static bool has_enabled(const json_t *value)
{
    const json_t *enabled = json_object_get(value, "enabled");
    if (enabled)
        return !json_is_false(enabled);
    const char *key;
    json_t *child;
    json_object_foreach((json_t *)value, key, child)
    {
        if (json_is_object(child) && has_enabled(child))
            return true;
    }
    return false;
}

static int check_switch(const struct place *at, const json_t *value)
{
    if (!json_is_object(value))
        return wrong_type(at, value, "an object");
    if (has_enabled(value))
        return configi_error(at->reader, at->path, "\"enabled\": true is refused: %s",
                             at->row->help);
    return 0;
}

/* ---- lists ---- */

static const char *list_text(const configi_key *row)
{
    static const char *const texts[] = {
        [CONFIGI_FLOATS] = "an array of numbers",
        [CONFIGI_STRINGS] = "a string or an array of strings",
        [CONFIGI_SOURCES] = "a path, or a list of paths and of objects with a path",
        [CONFIGI_STEPS] = "a whole number or an array of whole numbers",
        [CONFIGI_OBJECTS] = "an array of objects",
    };
    return texts[row->type];
}

/* Reports that a value stands where an object belongs. If it was probably meant for one key of that
 * object, the message says how to write it. */
static int no_object(const configi_reader *reader, const char *path, const json_t *value)
{
    static const char *const keys[] = {"enabled", "device", "type", "path"};
    char shown[CONFIGI_VALUE_BYTES], child[CONFIGI_PATH_BYTES];
    configi_show(value, shown);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if ((i == 0 ? json_is_boolean(value) : json_is_string(value)) &&
            configi_join(child, path, keys[i]) && configi_is_known(child))
            return configi_error(reader, path, "%s is not an object; write {\"%s\": %s}", shown,
                                 keys[i], shown);
    return configi_error(reader, path, "%s is not an object", shown);
}

/* Checks an entry that may be an object. Its keys have rows of their own. */
static int check_object_entry(const struct place *at, size_t idx, const json_t *item)
{
    char key[32], path[CONFIGI_PATH_BYTES];
    snprintf(key, sizeof key, "%zu", idx);
    configi_join(path, at->path, key);
    if (json_is_object(item))
        return configi_check(at->reader, path, item);
    if (at->row->type == CONFIGI_OBJECTS)
        return no_object(at->reader, path, item);
    return json_is_string(item) ? 0 : wrong_type(at, item, list_text(at->row));
}

static int check_entry(const struct place *at, size_t idx, const json_t *item)
{
    switch (at->row->type) {
    case CONFIGI_STRINGS:
        return json_is_string(item) ? 0 : wrong_type(at, item, "a string");
    case CONFIGI_FLOATS:
        return json_is_number(item) ? check_range(at, item) : wrong_type(at, item, "a number");
    case CONFIGI_STEPS: /* the row's range is only for a number */
        TRY(check_int(at, item));
        if (json_number_value(item) >= 1)
            return 0;
        return configi_error(at->reader, at->path, "entry %zu is 0: must be at least 1 %s", idx,
                             at->row->unit);
    default:
        return check_object_entry(at, idx, item);
    }
}

static int check_list(const struct place *at, const json_t *value)
{
    enum configi_type type = at->row->type;
    char range[CONFIGI_VALUE_BYTES];
    if (type == CONFIGI_STEPS && json_is_number(value))
        return check_int(at, value);
    if ((type == CONFIGI_STRINGS || type == CONFIGI_SOURCES) && json_is_string(value))
        return 0;
    if (!json_is_array(value))
        return wrong_type(at, value, list_text(at->row));
    size_t count = json_array_size(value);
    if (type == CONFIGI_OBJECTS && !configi_in_range(at->row, (double)count))
        return configi_error(at->reader, at->path, "%zu entries: their number %s", count,
                             range_text(at->row, range));
    for (size_t idx = 0; idx < count; idx++)
        TRY(check_entry(at, idx, json_array_get(value, idx)));
    return 0;
}

/* ---- any key ---- */

int configi_check_value(const configi_reader *reader, const configi_key *row, const char *path,
                        const json_t *value)
{
    const struct place place = {reader, row, path}, *at = &place;
    switch (row->type) {
    case CONFIGI_BOOL:
        return check_bool(at, value);
    case CONFIGI_INT:
        return check_int(at, value);
    case CONFIGI_SIZE:
        return check_size(at, value);
    case CONFIGI_FLOAT:
        return json_is_number(value) ? check_range(at, value) : wrong_type(at, value, "a number");
    case CONFIGI_STRING:
        if (!json_is_string(value))
            return wrong_type(at, value, "a string");
        if (configi_key_is_own(row) && json_string_length(value) == 0)
            return configi_error(at->reader, at->path, "\"\" is empty");
        return 0;
    case CONFIGI_ENUM:
        if (!json_is_string(value))
            return wrong_type(at, value, row->allowed);
        return check_choice(at, json_string_value(value));
    case CONFIGI_CORES:
        return check_cores(at, value);
    case CONFIGI_PATH:
        if (!json_is_boolean(value) && !json_is_string(value))
            return wrong_type(at, value, "true, false or a path");
        if (json_is_string(value) && json_string_length(value) == 0)
            return configi_error(at->reader, at->path, "\"\" is empty");
        return 0;
    case CONFIGI_FLOATS:
    case CONFIGI_STRINGS:
    case CONFIGI_SOURCES:
    case CONFIGI_STEPS:
    case CONFIGI_OBJECTS:
        return check_list(at, value);
    case CONFIGI_SWITCH:
        return check_switch(at, value);
    case CONFIGI_UNITS: /* job_tiers.c reads it */
    case CONFIGI_ANY:
        break;
    }
    return 0;
}

static int check_key(const configi_reader *reader, const char *parent, const char *key,
                     const json_t *value)
{
    char path[CONFIGI_PATH_BYTES];
    bool fits = configi_join(path, parent, key);
    if (!fits || key[0] == '\0' || strchr(key, '.') != NULL || !configi_is_known(path))
        return configi_unknown(reader, parent, key);
    return configi_check(reader, path, value);
}

/* Checks the key "type" first: if it is refused, the keys that belong to it are not reported. */
static int check_object(const configi_reader *reader, const char *path, const json_t *value)
{
    if (!json_is_object(value))
        return no_object(reader, path, value);
    const json_t *type = json_object_get(value, "type");
    if (type)
        TRY(check_key(reader, path, "type", type));
    const char *key;
    json_t *child;
    json_object_foreach((json_t *)value, key, child) TRY(check_key(reader, path, key, child));
    return 0;
}

/* True if a block says that it is switched off. */
static bool is_off(const json_t *value)
{
    return json_is_object(value) &&
           (json_object_size(value) == 0 || json_is_false(json_object_get(value, "enabled")));
}

int configi_check(const configi_reader *reader, const char *path, const json_t *value)
{
    const configi_key *row = configi_key_find(path);
    if (configi_is_absent(row, value))
        return 0;
    if (!row)
        return check_object(reader, path, value);
    if (row->effect == CONFIGI_REFUSED && !is_off(value))
        return configi_error(reader, path, "%s", row->help);
    if (row->effect == CONFIGI_REFUSED)
        return 0;
    return configi_check_value(reader, row, path, value);
}
