/* The document that is read: messages about its values, and access to the values by the path of
 * their key. See config_internal.h. Allocates nothing of its own. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "config/config_internal.h"

bool configi_join(char path[CONFIGI_PATH_BYTES], const char *parent, const char *key)
{
    int length = snprintf(path, CONFIGI_PATH_BYTES, "%s%s%s", parent, parent[0] ? "." : "", key);
    return length < CONFIGI_PATH_BYTES;
}

bool configi_is_set(const configi_reader *reader, const char *path)
{
    for (uint32_t i = reader->set_count; i-- > 0;) {
        size_t length = strlen(reader->set_paths[i]);
        if (strncmp(reader->set_paths[i], path, length) == 0 &&
            (path[length] == '\0' || path[length] == '.'))
            return true;
    }
    return false;
}

bool configi_is_same(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    if (!json_is_object(a) || !json_is_object(b))
        return json_equal(a, b);
    if (json_object_size(a) != json_object_size(b))
        return false;
    json_object_foreach((json_t *)a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (!other || !configi_is_same(value, other))
            return false;
    }
    return true;
}

int configi_error(const configi_reader *reader, const char *path, const char *format, ...)
{
    char text[ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return err_set(ERR_CONFIG, "%s: %s: %s", configi_is_set(reader, path) ? "--set" : reader->file,
                   path, text);
}

bool configi_is_absent(const configi_key *row, const json_t *value)
{
    if (!value || json_is_null(value))
        return true;
    bool is_text = row && configi_key_is_own(row) &&
                   (row->type == CONFIGI_STRING || row->type == CONFIGI_STRINGS ||
                    row->type == CONFIGI_SOURCES);
    return !is_text && json_is_string(value) && strcmp(json_string_value(value), "auto") == 0;
}

const json_t *configi_written(const configi_reader *reader, const char *path)
{
    const json_t *node = reader->doc;
    for (const char *at = path; node; at++) {
        char key[CONFIGI_PATH_BYTES];
        size_t length = strcspn(at, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, at);
        if (json_is_array(node))
            node = json_array_get(node, (size_t)strtoul(key, NULL, 10));
        else
            node = json_object_get(node, key); /* NULL if it is not an object */
        at += length;
        if (*at == '\0')
            break;
    }
    return node;
}

const json_t *configi_get(const configi_reader *reader, const char *path)
{
    const json_t *node = configi_written(reader, path);
    return configi_is_absent(configi_key_find(path), node) ? NULL : node;
}

bool configi_bool(const configi_reader *reader, const char *path)
{
    const json_t *value = configi_get(reader, path);
    if (value)
        return json_is_true(value);
    const configi_key *row = configi_key_find(path);
    assert(row && row->type == CONFIGI_BOOL);
    return row->fallback && strcmp(row->fallback, "true") == 0;
}

uint64_t configi_uint(const configi_reader *reader, const char *path)
{
    const json_t *value = configi_get(reader, path);
    if (json_is_integer(value))
        return (uint64_t)json_integer_value(value);
    if (json_is_real(value))
        return (uint64_t)json_real_value(value);
    uint64_t number = 0;
    if (json_is_string(value)) { /* a SIZE that passed its check */
        int rc = size_parse(json_string_value(value), &number);
        return rc < 0 ? 0 : number;
    }
    const configi_key *row = configi_key_find(path);
    assert(row &&
           (row->type == CONFIGI_INT || row->type == CONFIGI_SIZE || row->type == CONFIGI_STEPS));
    return row->fallback ? strtoull(row->fallback, NULL, 10) : 0;
}

double configi_whole(const configi_reader *reader, const char *path)
{
    const json_t *value = configi_get(reader, path);
    return value ? json_number_value(value) : (double)configi_uint(reader, path);
}

double configi_double(const configi_reader *reader, const char *path)
{
    const json_t *value = configi_get(reader, path);
    if (value)
        return json_number_value(value);
    const configi_key *row = configi_key_find(path);
    assert(row && row->type == CONFIGI_FLOAT);
    return row->fallback ? strtod(row->fallback, NULL) : 0.0;
}

const char *configi_text(const configi_reader *reader, const char *path)
{
    const json_t *value = configi_get(reader, path);
    if (value)
        return json_string_value(value);
    const configi_key *row = configi_key_find(path);
    assert(row);
    return row->fallback ? row->fallback : "";
}

int configi_choice_idx(const configi_reader *reader, const char *path)
{
    const configi_key *row = configi_key_find(path);
    assert(row && row->allowed);
    return configi_list_find(row->allowed, configi_text(reader, path));
}

int configi_enumerator(const configi_reader *reader, const char *path)
{
    const configi_key *row = configi_key_find(path);
    int idx = configi_choice_idx(reader, path);
    return row->values && idx >= 0 ? row->values[idx] : idx;
}

const char *configi_choice(const configi_reader *reader, const char *path)
{
    static _Thread_local char entry[JOB_NAME_BYTES];
    int idx = configi_choice_idx(reader, path);
    if (idx < 0 || !configi_list_entry(configi_key_find(path)->allowed, idx, entry, sizeof entry))
        entry[0] = '\0';
    return entry;
}

int configi_copy_text(const configi_reader *reader, const char *path, char *target,
                      size_t target_bytes)
{
    const char *text = configi_text(reader, path);
    size_t length = strlen(text);
    if (length >= target_bytes)
        return configi_error(reader, path, "%zu bytes long; at most %zu", length, target_bytes - 1);
    memcpy(target, text, length + 1);
    return 0;
}
