/* The model block: presets, and what follows from the family. See config_internal.h. Called by
 * job_read; reads preset files. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "config/config_internal.h"

static int find_preset(const configi_reader *reader, const char *name, const char *job_path,
                       char found[JOB_PATH_BYTES])
{
    char advice[CONFIGI_ADVICE_BYTES];
    int rc = configi_find_named("models", name, job_path, found, advice);
    if (rc == -ENOENT)
        rc = configi_error(reader, "model.preset", "there is no preset \"%s\"; %s", name, advice);
    return rc;
}

/* Reads a preset and checks it as a model block. The caller owns *preset. */
static int read_preset(const char *path, json_t **preset)
{
    char *text;
    size_t text_bytes;
    *preset = NULL;
    TRY(configi_read_file(path, &text, &text_bytes));
    int rc = configi_parse(path, text, text_bytes, false, preset);
    mem_free(text);
    if (rc < 0)
        return rc;
    const configi_reader reader = {.file = path};
    rc = configi_check(&reader, "model", *preset);
    if (rc == 0 && json_object_get(*preset, "preset"))
        rc = configi_error(&reader, "model.preset", "a preset cannot name a preset");
    if (rc == 0 && !json_is_string(json_object_get(*preset, "family")))
        rc = configi_error(&reader, "model.family", "a preset must give it");
    if (rc < 0) {
        json_decref(*preset);
        *preset = NULL;
    }
    return rc;
}

/* Puts the preset's keys where the job's block has none (or null). */
static int merge_preset(const configi_reader *reader, json_t *model, json_t *preset)
{
    const char *key;
    json_t *value;
    json_object_foreach(preset, key, value)
    {
        char path[CONFIGI_PATH_BYTES];
        configi_join(path, "model", key);
        if (strcmp(key, "description") == 0 || configi_get(reader, path))
            continue;
        if (json_object_set(model, key, value) < 0)
            return err_set(-ENOMEM, "no memory to read %s", reader->file);
    }
    return 0;
}

int configi_expand_preset(const configi_reader *reader, const char *job_path)
{
    const json_t *name = configi_get(reader, "model.preset");
    if (!json_is_string(name) || configi_get(reader, "model.family"))
        return 0; /* the check of the document complains about what is no string */
    char shown[CONFIGI_VALUE_BYTES], path[JOB_PATH_BYTES];
    if (!configi_is_name(json_string_value(name)))
        return configi_error(reader, "model.preset",
                             "%s is no name of a preset: at most %d letters, digits and ._-",
                             configi_show(name, shown), JOB_NAME_BYTES - 1);
    TRY(find_preset(reader, json_string_value(name), job_path, path));
    json_t *preset;
    TRY(read_preset(path, &preset));
    int rc = merge_preset(reader, json_object_get(reader->doc, "model"), preset);
    json_decref(preset);
    return rc;
}

/* The key's value; ERR_CONFIG where it is absent. */
static int required(const configi_reader *reader, const char *path, uint64_t *value)
{
    if (!configi_get(reader, path))
        return configi_error(reader, path, "missing; give it, or a model.preset that does");
    *value = configi_uint(reader, path);
    return 0;
}

static uint64_t default_ffn_size(bool is_llama, uint64_t hidden_size)
{
    enum { LLAMA_MULTIPLE = 256 }; /* as Llama's own code rounds */
    if (!is_llama)
        return 4 * hidden_size;
    return size_round_up(size_div_up(8 * hidden_size, 3), LLAMA_MULTIPLE);
}

static int fill_vocabulary(const configi_reader *reader, struct job_model *model)
{
    enum { BYTE_VALUES = 256 };
    static const char path[] = "model.vocab_size";
    /* A format of token ids that is named says that no text is cut into bytes. */
    const char *format = configi_choice(reader, "data.format");
    bool is_text =
        strcmp(format, "auto") == 0 || strcmp(format, "text") == 0 || strcmp(format, "jsonl") == 0;
    bool is_bytes = is_text && strcmp(configi_text(reader, "data.tokenizer"), "bytes") == 0;
    if (is_bytes && !configi_get(reader, path))
        model->vocab_size = BYTE_VALUES;
    else
        TRY(required(reader, path, &model->vocab_size));
    /* Under auto the files may turn out to be token ids; text is held against the vocabulary then. */
    if (is_bytes && strcmp(format, "auto") != 0 && model->vocab_size < BYTE_VALUES)
        return configi_error(reader, path,
                             "%" PRIu64 " is too small: data.tokenizer \"bytes\" has %d tokens",
                             model->vocab_size, (int)BYTE_VALUES);
    return 0;
}

int configi_fill_model(const configi_reader *reader, struct job_model *model)
{
    if (!configi_get(reader, "model"))
        return configi_error(reader, "model",
                             "missing; write \"model\": {\"preset\": \"gpt2-124m\"}, or a family "
                             "and its dimensions");
    if (!configi_get(reader, "model.family"))
        return configi_error(reader, "model.family",
                             "missing; give model.preset, or gpt2 or llama and the dimensions");
    TRY(configi_copy_text(reader, "model.preset", model->preset, sizeof model->preset));
    snprintf(model->family, sizeof model->family, "%s", configi_choice(reader, "model.family"));
    bool is_llama = strcmp(model->family, "llama") == 0;
    TRY(required(reader, "model.num_layers", &model->num_layers));
    TRY(required(reader, "model.hidden_size", &model->hidden_size));
    TRY(required(reader, "model.num_heads", &model->num_heads));
    TRY(required(reader, "model.seq_length", &model->seq_length));
    TRY(fill_vocabulary(reader, model));
    model->num_kv_heads = configi_get(reader, "model.num_kv_heads")
                              ? configi_uint(reader, "model.num_kv_heads")
                              : model->num_heads;
    model->ffn_size = configi_get(reader, "model.ffn_size")
                          ? configi_uint(reader, "model.ffn_size")
                          : default_ffn_size(is_llama, model->hidden_size);
    model->tie_embeddings = configi_get(reader, "model.tie_embeddings")
                                ? configi_bool(reader, "model.tie_embeddings")
                                : !is_llama;
    model->rope_theta = configi_double(reader, "model.rope_theta");
    model->norm_epsilon = configi_double(reader, "model.norm_epsilon");
    model->init_std = configi_double(reader, "model.init_std");
    TRY(configi_check_fp32(reader, "model.init_std", model->init_std));
    model->max_part_bytes = configi_uint(reader, "model.max_part_bytes");
    return 0;
}
