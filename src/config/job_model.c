/* The model block: presets, and what follows from the family. See config_internal.h. Called by
 * job_read; reads preset files. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/size.h"
#include "config/config_internal.h"

enum { PLACE_COUNT = 4 };

/* Where presets are looked for, first to last; an empty text is no place. */
struct preset_places {
    char dirs[PLACE_COUNT][JOB_PATH_BYTES];
};

static void list_places(struct preset_places *places, const char *job_path)
{
    memset(places, 0, sizeof *places);
    const char *environment = getenv("SLUICE_CONFIG_DIR");
    if (environment && environment[0] != '\0')
        snprintf(places->dirs[0], JOB_PATH_BYTES, "%s/models", environment);
    snprintf(places->dirs[1], JOB_PATH_BYTES, "%s/models", SLUICE_SOURCE_CONFIG_DIR);
    snprintf(places->dirs[2], JOB_PATH_BYTES, "%s/models", SLUICE_DATA_DIR);
    const char *slash = strrchr(job_path, '/');
    if (slash)
        snprintf(places->dirs[3], JOB_PATH_BYTES, "%.*s", (int)(slash - job_path), job_path);
    else
        snprintf(places->dirs[3], JOB_PATH_BYTES, ".");
}

/* Finds the preset of a directory that is nearest to the name. The job's own directory holds jobs, so
 * it is not searched for names. */
static void nearest_preset(const struct preset_places *places, const char *name,
                           char best[JOB_NAME_BYTES])
{
    static const char ending[] = ".json";
    uint32_t best_distance = UINT32_MAX;
    best[0] = '\0';
    for (int i = 0; i < PLACE_COUNT - 1; i++) {
        DIR *dir = places->dirs[i][0] != '\0' ? opendir(places->dirs[i]) : NULL;
        if (!dir)
            continue;
        const struct dirent *entry;
        while ((entry = readdir(dir))) {
            size_t length = strlen(entry->d_name);
            if (length < sizeof ending || length - (sizeof ending - 1) >= JOB_NAME_BYTES ||
                strcmp(entry->d_name + length - (sizeof ending - 1), ending) != 0)
                continue;
            char other[JOB_NAME_BYTES];
            snprintf(other, sizeof other, "%.*s", (int)(length - (sizeof ending - 1)),
                     entry->d_name);
            uint32_t distance = configi_distance(name, other);
            /* Order of directory entries must not change the message. */
            if (distance < best_distance ||
                (distance == best_distance && strcmp(other, best) < 0)) {
                best_distance = distance;
                memcpy(best, other, sizeof other);
            }
        }
        closedir(dir);
    }
}

static int find_preset(const configi_reader *reader, const char *name, const char *job_path,
                       char found[JOB_PATH_BYTES])
{
    struct preset_places *places = mem_alloc(1, sizeof *places, "preset places");
    if (!places)
        return -ENOMEM;
    list_places(places, job_path);
    int rc = -ENOENT;
    for (int i = 0; i < PLACE_COUNT && rc < 0; i++) {
        int length = snprintf(found, JOB_PATH_BYTES, "%s/%s.json", places->dirs[i], name);
        bool is_place = places->dirs[i][0] != '\0' && length < JOB_PATH_BYTES;
        if (is_place && access(found, R_OK) == 0)
            rc = 0;
    }
    if (rc < 0) {
        char best[JOB_NAME_BYTES];
        nearest_preset(places, name, best);
        rc = configi_error(reader, "model.preset",
                           "there is no preset \"%s\"%s%s%s; presets are files NAME.json in "
                           "$SLUICE_CONFIG_DIR/models, %.200s, %.200s or beside the job file",
                           name, best[0] ? "; the nearest is \"" : "", best, best[0] ? "\"" : "",
                           places->dirs[1], places->dirs[2]);
    }
    mem_free(places);
    return rc;
}

static bool is_preset_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = strlen(name);
    return length > 0 && length < JOB_NAME_BYTES && name[0] != '.' &&
           strspn(name, allowed) == length;
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
    if (!is_preset_name(json_string_value(name)))
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
    bool is_bytes = strcmp(format, "auto") == 0 || strcmp(format, "text") == 0;
    if (is_bytes && !configi_get(reader, path))
        model->vocab_size = BYTE_VALUES;
    else
        TRY(required(reader, path, &model->vocab_size));
    /* Under auto the files may turn out to be token ids; text is held against the vocabulary then. */
    if (strcmp(format, "text") == 0 && model->vocab_size < BYTE_VALUES)
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
