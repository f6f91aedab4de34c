/* The data block: files and sources, the tokenizer, and the order of the samples. See
 * config_internal.h. Called by job_read. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/config_internal.h"

static int add_file(const configi_reader *reader, const char *path, const json_t *item,
                    const char *field, struct job_files *files)
{
    size_t length = json_string_length(item);
    if (files->count == JOB_FILES_MAX)
        return configi_error(reader, path, "more than %d files", JOB_FILES_MAX);
    if (length == 0 || length >= FILE_PATH_BYTES)
        return configi_error(reader, path,
                             "file %" PRIu32 ": a path of %zu bytes; 1 to %d are possible",
                             files->count, length, FILE_PATH_BYTES - 1);
    memcpy(files->path[files->count], json_string_value(item), length + 1);
    snprintf(files->field[files->count], JOB_NAME_BYTES, "%s", field);
    files->source[files->count] = files->source_count - 1;
    files->count++;
    return 0;
}

/* Adds one path, or a list of them. */
static int add_files(const configi_reader *reader, const char *path, const json_t *value,
                     const char *field, struct job_files *files)
{
    size_t idx;
    json_t *item;
    if (!json_is_array(value))
        return add_file(reader, path, value, field, files);
    json_array_foreach(value, idx, item) TRY(add_file(reader, path, item, field, files));
    return 0;
}

/* Adds an object of data.train or data.valid. If it has a weight, it is a source of its own. */
static int add_entry(const configi_reader *reader, const char *path, size_t idx,
                     struct job_files *files)
{
    char entry[CONFIGI_PATH_BYTES], key[CONFIGI_PATH_BYTES], field[JOB_NAME_BYTES];
    snprintf(entry, sizeof entry, "%s.%zu", path, idx);
    configi_join(key, entry, "field");
    TRY(configi_copy_text(reader, key, field, sizeof field));
    configi_join(key, entry, "path");
    const json_t *paths = configi_get(reader, key);
    if (!paths || (json_is_array(paths) && json_array_size(paths) == 0))
        return configi_error(reader, key, "missing; name the file, or a list of files");
    char weight_key[CONFIGI_PATH_BYTES];
    configi_join(weight_key, entry, "weight");
    bool has_weight = configi_key_find(weight_key) && configi_get(reader, weight_key);
    if (has_weight) {
        files->source_count += files->count > 0; /* the first one is there */
        files->weight[files->source_count - 1] = configi_double(reader, weight_key);
    }
    return add_files(reader, key, paths, field, files);
}

static bool has_weight(const json_t *item)
{
    return json_is_object(item) && json_is_number(json_object_get(item, "weight"));
}

static int fill_files(const configi_reader *reader, const char *path, struct job_files *files)
{
    const json_t *value = configi_get(reader, path);
    size_t idx, weighted = 0;
    json_t *item;
    files->source_count = 1;
    files->weight[0] = 1;
    if (!value)
        return 0;
    if (!json_is_array(value))
        return add_files(reader, path, value, "text", files);
    json_array_foreach(value, idx, item) weighted += has_weight(item);
    json_array_foreach(value, idx, item)
    {
        if (weighted > 0 && !has_weight(item))
            return configi_error(
                reader, path,
                "entry %zu has no weight, and another one has: give each entry one, or none", idx);
        TRY(json_is_object(item) ? add_entry(reader, path, idx, files)
                                 : add_file(reader, path, item, "text", files));
    }
    return 0;
}

/* True if the run holds a copy. A run's own job works without the checkpoint: RUN/hf holds the
 * files of it that the run needs. */
static bool has_copy(const configi_reader *reader, const char *name)
{
    char path[FILE_PATH_BYTES + 32];
    if (!configi_get(reader, "debug.model_expanded") || !configi_get(reader, "run.dir"))
        return false;
    snprintf(path, sizeof path, "%s/hf/%s", configi_text(reader, "run.dir"), name);
    return access(path, F_OK) == 0;
}

/* Takes the checkpoint's own tokenizer, if it has one and the job asks for no other. */
static int fill_tokenizer(const configi_reader *reader, job *target)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model"};
    char *tokenizer = target->data.tokenizer;
    target->data.tokenizer_is_given = configi_get(reader, "data.tokenizer") != NULL;
    if (target->data.tokenizer_is_given || target->hf[0] == '\0')
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[FILE_PATH_BYTES + 32];
        snprintf(path, sizeof path, "%s/%s", target->hf, names[i]);
        if (access(path, F_OK) != 0 && !has_copy(reader, names[i]))
            continue;
        /* a directory stands for its tokenizer.json; tokenizer.model is named itself */
        bool is_json = i == 0;
        size_t length = strlen(is_json ? target->hf : path);
        if (length >= FILE_PATH_BYTES)
            return configi_error(reader, "model.hf", "%zu bytes long; at most %d", length,
                                 FILE_PATH_BYTES - 1);
        memcpy(tokenizer, is_json ? target->hf : path, length + 1);
        return 0;
    }
    /* The checkpoint may be gone; the run keeps a copy of its tokenizer. */
    if (access(target->hf, F_OK) != 0)
        memcpy(tokenizer, target->hf, strlen(target->hf) + 1);
    return 0;
}

int configi_fill_data(const configi_reader *reader, job *target)
{
    TRY(fill_files(reader, "data.train", &target->data.train));
    TRY(fill_files(reader, "data.valid", &target->data.valid));
    TRY(fill_tokenizer(reader, target));
    bool has_mask = configi_get(reader, "data.mask_token") != NULL;
    target->data.mask_token = has_mask ? (int64_t)configi_uint(reader, "data.mask_token") : -1;
    return 0;
}
