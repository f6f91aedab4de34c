/* --set key.path=value, and DeepSpeed's older names. See config_internal.h. Called by job_read. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "config/config_internal.h"

/* DeepSpeed's oldest form, "zero_optimization": true, is stage 1; false is stage 0. */
static int expand_zero_switch(const configi_reader *reader)
{
    const json_t *zero = json_object_get(reader->doc, "zero_optimization");
    if (!json_is_boolean(zero))
        return 0;
    return configi_put(reader->file, reader->doc, "zero_optimization",
                       json_pack("{s:i}", "stage", json_is_true(zero) ? 1 : 0));
}

int configi_rename_aliases(const configi_reader *reader)
{
    TRY(expand_zero_switch(reader));
    for (size_t i = 0; i < configi_alias_count; i++) {
        /* Both names of a pair lie in the same block, at most one deep. */
        const char *dot = strchr(configi_aliases[i].path, '.');
        const char *key = dot ? dot + 1 : configi_aliases[i].path;
        const char *name = dot ? configi_aliases[i].name + (key - configi_aliases[i].path)
                               : configi_aliases[i].name;
        json_t *block = reader->doc;
        if (dot) {
            char block_key[JOB_NAME_BYTES];
            snprintf(block_key, sizeof block_key, "%.*s", (int)(dot - configi_aliases[i].path),
                     configi_aliases[i].path);
            block = json_object_get(reader->doc, block_key);
        }
        json_t *value = json_object_get(block, key);
        if (!value)
            continue;
        if (json_object_get(block, name))
            return configi_error(reader, configi_aliases[i].path,
                                 "given beside %s, which is the same; give one of them",
                                 configi_aliases[i].name);
        TRY(configi_put(reader->file, block, name, json_incref(value)));
        json_object_del(block, key);
    }
    return 0;
}

/* Rewrites a path with the table's names. Returns false if it is too long. */
static bool canonical_path(const char *given, size_t length, char path[CONFIGI_PATH_BYTES])
{
    for (size_t i = 0; i < configi_alias_count; i++) {
        size_t alias_length = strlen(configi_aliases[i].path);
        if (length < alias_length || strncmp(configi_aliases[i].path, given, alias_length) != 0)
            continue;
        if (length == alias_length || given[alias_length] == '.')
            return snprintf(path, CONFIGI_PATH_BYTES, "%s%.*s", configi_aliases[i].name,
                            (int)(length - alias_length),
                            given + alias_length) < CONFIGI_PATH_BYTES;
    }
    if (length >= CONFIGI_PATH_BYTES)
        return false;
    memcpy(path, given, length);
    path[length] = '\0';
    return true;
}

/* Reports the first key of the path that the table does not have, if there is one. */
static int check_set_path(const configi_reader *reader, const char *path)
{
    char parent[CONFIGI_PATH_BYTES] = "";
    for (const char *at = path;; at++) {
        char key[CONFIGI_PATH_BYTES], child[CONFIGI_PATH_BYTES];
        size_t length = strcspn(at, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, at);
        bool is_key = length > 0 && strcmp(key, "*") != 0 && configi_join(child, parent, key);
        if (!is_key || !configi_is_known(child))
            return configi_unknown(reader, parent, key);
        memcpy(parent, child, sizeof parent);
        at += length;
        if (*at == '\0')
            return 0;
    }
}

/* Parses the value as JSON. It is the text itself if it is not JSON, or if the key takes text. */
static int parse_value(const configi_reader *reader, const char *path, const char *text,
                       json_t **value)
{
    *value = NULL;
    const configi_key *row = configi_key_find(path);
    bool wants_text = row && (row->type == CONFIGI_STRING || row->type == CONFIGI_ENUM ||
                              row->type == CONFIGI_STRINGS || row->type == CONFIGI_CORES ||
                              row->type == CONFIGI_SOURCES);
    const char *first = text + strspn(text, " \t\r\n");
    bool looks_json = *first == '{' || *first == '[' || *first == '"';
    int rc = 0;
    if (looks_json || !wants_text)
        rc = configi_parse("--set", text, strlen(text), true, value);
    if (*value)
        return 0;
    if (rc < 0 && looks_json) {
        err_record record;
        err_save(&record, rc);
        return err_set(ERR_CONFIG, "--set: %s: the value is not JSON (%s)", path, record.text);
    }
    if (wants_text && strcmp(text, "null") == 0)
        *value = json_null();
    else
        *value = json_string(text); /* NULL if it is not UTF-8 */
    if (!*value)
        return configi_error(reader, path, "the value is not UTF-8 text");
    return 0;
}

/* Finds the child of a block or list; *child is NULL if there is none. */
static int get_child(const configi_reader *reader, const char *path, json_t *node, const char *key,
                     json_t **child)
{
    char shown[CONFIGI_VALUE_BYTES];
    *child = NULL;
    if (json_is_object(node)) {
        *child = json_object_get(node, key);
        return 0;
    }
    if (!json_is_array(node))
        return configi_error(reader, path, "%s has no entry \"%s\"", configi_show(node, shown),
                             key);
    char *end;
    size_t idx = strtoul(key, &end, 10);
    if (*end != '\0' || idx > json_array_size(node))
        return configi_error(reader, path, "no entry %s: the list has %zu, and the next is %zu",
                             key, json_array_size(node), json_array_size(node));
    *child = json_array_get(node, idx);
    return 0;
}

/* Takes the reference to `value`, also on failure. */
static int put_child(const configi_reader *reader, json_t *node, const char *key, json_t *value)
{
    if (json_is_object(node))
        return configi_put(reader->file, node, key, value);
    size_t idx = strtoul(key, NULL, 10);
    int rc = idx < json_array_size(node) ? json_array_set_new(node, idx, value)
                                         : json_array_append_new(node, value);
    return rc < 0 ? err_set(-ENOMEM, "no memory to read %s", reader->file) : 0;
}

int configi_put_path(const configi_reader *reader, const char *path, json_t *value)
{
    json_t *node = reader->doc;
    const char *at = path;
    int rc;
    while (true) {
        char key[CONFIGI_PATH_BYTES], here[CONFIGI_PATH_BYTES];
        size_t length = strcspn(at, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, at);
        snprintf(here, sizeof here, "%.*s", (int)(at == path ? 0 : at - path - 1), path);
        json_t *child;
        TRY_GOTO(rc, get_child(reader, here, node, key, &child), fail);
        at += length;
        if (*at == '\0')
            return put_child(reader, node, key, value);
        at++;
        if (configi_is_absent(NULL, child)) { /* missing, null or "auto" */
            bool is_list = at[0] >= '0' && at[0] <= '9';
            child = is_list ? json_array() : json_object();
            TRY_GOTO(rc, put_child(reader, node, key, child), fail);
        }
        node = child;
    }
fail:
    json_decref(value);
    return rc;
}

/* True if a path can be part of a document and of a message. */
static bool is_text(const char *path)
{
    json_t *key = json_string(path); /* NULL if it is not UTF-8 */
    bool is_key = key != NULL;
    json_decref(key);
    for (const char *byte = path; *byte != '\0'; byte++)
        is_key = is_key && (unsigned char)*byte >= ' ' && *byte != 0x7f;
    return is_key;
}

static int apply_one(configi_reader *reader, const char *argument)
{
    const char *equals = strchr(argument, '=');
    char shown[CONFIGI_VALUE_BYTES];
    snprintf(shown, sizeof shown, "%s", argument);
    if (!equals || equals == argument)
        return err_set(ERR_CONFIG, "--set %s: write key.path=value, as in run.steps=100", shown);
    char *path = reader->set_paths[reader->set_count];
    if (!canonical_path(argument, (size_t)(equals - argument), path))
        return err_set(ERR_CONFIG, "--set %.64s...: the key path is too long", shown);
    if (!is_text(path))
        return err_set(ERR_CONFIG,
                       "--set %.64s: the key path is not UTF-8 text without control characters",
                       shown);
    reader->set_count++;
    configi_reader set_reader = *reader;
    set_reader.file = "--set"; /* from here on the argument causes every error */
    TRY(check_set_path(&set_reader, path));
    json_t *value;
    TRY(parse_value(&set_reader, path, equals + 1, &value));
    TRY(configi_put_path(&set_reader, path, value));
    return expand_zero_switch(&set_reader);
}

int configi_apply_set(configi_reader *reader, const char *const *set, uint32_t set_count)
{
    if (set_count == 0)
        return 0;
    reader->set_paths = mem_alloc(set_count, sizeof *reader->set_paths, "--set paths");
    if (!reader->set_paths)
        return -ENOMEM;
    for (uint32_t i = 0; i < set_count; i++)
        TRY(apply_one(reader, set[i]));
    return 0;
}
