/* Adapters that a run begins with: adapter_config.json of PEFT becomes keys of train.lora. See
 * config_internal.h. Pure, except for reading the file. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "config/config_internal.h"

static const char from_path[] = "train.lora.from", targets_path[] = "train.lora.targets";

struct adapter_config {
    char file[FILE_PATH_BYTES + 32];
    json_t *doc;
    configi_reader found; /* names the file in messages */
};

/* True for null, false and an empty list or object, which all ask for nothing. */
static bool asks_nothing(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* Refuses what makes of the same two matrices another sum than y = W x + alpha / rank B (A x). */
static int check_kind(const struct adapter_config *self)
{
    static const char *const others[] = {"use_rslora",          "use_dora",
                                         "lora_bias",           "modules_to_save",
                                         "rank_pattern",        "alpha_pattern",
                                         "layers_to_transform", "layer_replication",
                                         "exclude_modules",     "trainable_token_indices",
                                         "use_qalora",          "alora_invocation_tokens",
                                         "kasa_config",         "monteclora_config",
                                         "use_bdlora",          "arrow_config"};
    /* Others change the base too, so that adapters alone are not the model. */
    static const char *const starts[] = {"gaussian", "eva", "orthogonal"};
    const char *type = json_string_value(json_object_get(self->doc, "peft_type"));
    const char *bias = json_string_value(json_object_get(self->doc, "bias"));
    const char *start = json_string_value(json_object_get(self->doc, "init_lora_weights"));
    if (!type || strcmp(type, "LORA") != 0)
        return configi_error(&self->found, "peft_type", "\"%.32s\" is not read; LORA is",
                             type ? type : "");
    if (bias && strcmp(bias, "none") != 0)
        return configi_error(&self->found, "bias",
                             "\"%.32s\" is not read; adapters without biases are", bias);
    bool keeps_base = !start;
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        keeps_base = keeps_base || strcmp(start, starts[i]) == 0;
    if (!keeps_base)
        return configi_error(
            &self->found, "init_lora_weights",
            "\"%.32s\" may change the base too; save the adapters as plain LoRA (PEFT's "
            "path_initial_model_for_weight_conversion)",
            start);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (!asks_nothing(json_object_get(self->doc, others[i])))
            return configi_error(
                &self->found, others[i],
                "it is set, and only LoRA with one rank and one alpha for all layers is "
                "read; merge these adapters into the checkpoint with PEFT instead");
    return 0;
}

/* Puts a number that the job does not give; if the job gives another one, refuses it. Takes the
 * reference to `value`. */
static int put_number(const configi_reader *reader, const struct adapter_config *self,
                      const char *path, const char *key, json_t *value)
{
    char own[CONFIGI_VALUE_BYTES], found[CONFIGI_VALUE_BYTES];
    const json_t *given = configi_get(reader, path);
    int rc = !value ? configi_error(&self->found, key, "missing; it is a number")
                    : configi_check_value(&self->found, configi_key_find(path), key, value);
    if (rc == 0 && !given)
        return configi_put_path(reader, path, value);
    if (rc == 0 && !configi_is_same(given, value))
        rc = configi_error(reader, path, "%s, but %s has %s %s; leave the key out",
                           configi_show(given, own), self->file, key, configi_show(value, found));
    json_decref(value);
    return rc;
}

static bool has_text(const json_t *list, const char *text)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *item = json_string_value(json_array_get(list, i));
        if (item && strcmp(item, text) == 0) /* an item of another type is reported later */
            return true;
    }
    return json_is_string(list) && strcmp(json_string_value(list), text) == 0;
}

/* The target of train.lora.targets for a name of target_parameters. PEFT takes all parameters whose
 * full name has this end. So "down_proj" means the matrix of all experts alone,
 * and "down_proj.weight" the linear layers of that name. */
static json_t *target_of_parameter(const char *name)
{
    return strchr(name, '.') ? json_string(name) : json_sprintf("experts.%s", name);
}

/* Adds the names of target_modules or target_parameters to the list. */
static int add_targets(const struct adapter_config *self, const char *key, json_t *names)
{
    bool are_parameters = strcmp(key, "target_parameters") == 0;
    const json_t *list = json_object_get(self->doc, key);
    if (asks_nothing(list))
        return 0;
    if (!json_is_array(list))
        return configi_error(
            &self->found, key,
            "a pattern is not read; write the names of its layers there, such as q_proj");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!name)
            return configi_error(&self->found, key, "entry %zu is not a string", i);
        json_t *target = are_parameters ? target_of_parameter(name) : json_string(name);
        if (json_array_append_new(names, target) < 0)
            return err_set(-ENOMEM, "no memory to read %s", self->file);
    }
    return 0;
}

/* Takes the reference to `names`. */
static int put_targets(const configi_reader *reader, const struct adapter_config *self,
                       json_t *names)
{
    char own[CONFIGI_VALUE_BYTES], found[CONFIGI_VALUE_BYTES];
    const json_t *given = configi_get(reader, targets_path);
    if (!given)
        return configi_put_path(reader, targets_path, names);
    bool is_same = json_is_string(given) ? json_array_size(names) == 1
                                         : json_array_size(given) == json_array_size(names);
    for (size_t i = 0; i < json_array_size(names) && is_same; i++)
        is_same = has_text(given, json_string_value(json_array_get(names, i)));
    int rc = 0;
    if (!is_same)
        rc = configi_error(reader, targets_path, "%s, but %s has adapters of %s; leave the key out",
                           configi_show(given, own), self->file, configi_show(names, found));
    json_decref(names);
    return rc;
}

static int take(const configi_reader *reader, struct adapter_config *self)
{
    TRY(configi_read_json(self->file, &self->doc));
    if (!json_is_object(self->doc))
        return err_set(ERR_CONFIG, "%s: it is not an object, { ... }", self->file);
    TRY(check_kind(self));
    TRY(put_number(reader, self, "train.lora.rank", "r",
                   json_incref(json_object_get(self->doc, "r"))));
    TRY(put_number(reader, self, "train.lora.alpha", "lora_alpha",
                   json_incref(json_object_get(self->doc, "lora_alpha"))));
    json_t *dropout = json_object_get(self->doc, "lora_dropout");
    if (dropout && !json_is_null(dropout) && !configi_get(reader, "train.lora.dropout"))
        TRY(put_number(reader, self, "train.lora.dropout", "lora_dropout", json_incref(dropout)));
    json_t *names = json_array();
    int rc = names ? add_targets(self, "target_modules", names)
                   : err_set(-ENOMEM, "no memory to read %s", self->file);
    if (rc == 0)
        rc = add_targets(self, "target_parameters", names);
    if (rc == 0 && json_array_size(names) == 0)
        rc = configi_error(&self->found, "target_modules", "it names no layer");
    if (rc < 0) {
        json_decref(names);
        return rc;
    }
    return put_targets(reader, self, names);
}

int configi_take_adapters(const configi_reader *reader)
{
    const json_t *dir = configi_get(reader, from_path);
    if (!json_is_string(dir) || json_string_length(dir) == 0 ||
        configi_bool(reader, "debug.model_expanded"))
        return 0; /* no path: the check of the document reports it. Expanded: a run's own job */
    const json_t *base = configi_get(reader, "model.hf");
    if (!json_is_string(base) || json_string_length(base) == 0)
        return configi_error(reader, from_path,
                             "adapters belong to a checkpoint; name it in model.hf");
    struct adapter_config self = {.doc = NULL};
    if (json_string_length(dir) >= FILE_PATH_BYTES)
        return configi_error(reader, from_path, "a path of %zu bytes; at most %d are possible",
                             json_string_length(dir), FILE_PATH_BYTES - 1);
    snprintf(self.file, sizeof self.file, "%s/adapter_config.json", json_string_value(dir));
    self.found.file = self.file;
    int rc = take(reader, &self);
    json_decref(self.doc);
    return rc;
}
