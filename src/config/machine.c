/* Reads and writes machine.json by the rows of machine_rows.c. See machine.h. */
#include "config/machine.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/size.h"
#include "config/config_internal.h"
#include "config/machine_internal.h"

static int read_block(const configi_reader *reader, const char *path, const json_t *value,
                      const machinei_block *block, char *target);

/* ---- reading ---- */

static int wrong_type(const configi_reader *reader, const char *path, const json_t *value,
                      const char *wanted)
{
    char shown[CONFIGI_VALUE_BYTES];
    return configi_error(reader, path, "%s is not %s", configi_show(value, shown), wanted);
}

static int unknown_key(const configi_reader *reader, const char *parent, const char *key,
                       const machinei_block *block)
{
    char path[CONFIGI_PATH_BYTES], shown[CONFIGI_VALUE_BYTES];
    struct nearest nearest = {0};
    for (uint32_t i = 0; i < block->count; i++)
        nearest_offer(&nearest, key, block->rows[i].key);
    configi_join(path, parent, key);
    snprintf(shown, sizeof shown, "%.64s", path + (parent[0] ? strlen(parent) + 1 : 0));
    return configi_error(reader, path, "unknown key \"%s\"; the nearest known key is \"%s\"", shown,
                         nearest.name);
}

static int read_text(const configi_reader *reader, const char *path, const json_t *value,
                     const machinei_row *row, char *target)
{
    if (!json_is_string(value))
        return wrong_type(reader, path, value, "a string");
    size_t length = json_string_length(value);
    if (length >= row->room || strlen(json_string_value(value)) != length)
        return configi_error(reader, path, "a text of %zu bytes; at most %zu are possible", length,
                             row->room - 1);
    memcpy(target, json_string_value(value), length); /* the rest is 0 */
    return 0;
}

static int check_range(const configi_reader *reader, const char *path, const json_t *value,
                       const machinei_row *row, double number)
{
    char shown[CONFIGI_VALUE_BYTES];
    if (number >= 0 && number <= row->most)
        return 0;
    return configi_error(reader, path, "%s is out of range: 0 (not known) to %.9g",
                         configi_show(value, shown), row->most);
}

/* Reads whole numbers; sizes may also be text. */
static int read_whole(const configi_reader *reader, const char *path, const json_t *value,
                      const machinei_row *row, char *target)
{
    bool is_bytes = row->type == MACHINEI_BYTES;
    uint64_t number = 0;
    if (is_bytes && json_is_string(value)) {
        if (size_parse(json_string_value(value), &number) < 0)
            return wrong_type(reader, path, value, "a size such as \"32GiB\"");
    } else if (json_is_integer(value)) {
        TRY(check_range(reader, path, value, row, (double)json_integer_value(value)));
        number = (uint64_t)json_integer_value(value);
    } else if (json_is_real(value) && json_real_value(value) == floor(json_real_value(value))) {
        TRY(check_range(reader, path, value, row, json_real_value(value)));
        number = (uint64_t)json_real_value(value);
    } else {
        return wrong_type(reader, path, value,
                          is_bytes ? "a whole number of bytes, or a size such as \"32GiB\""
                                   : "a whole number");
    }
    TRY(check_range(reader, path, value, row, (double)number));
    if (row->type == MACHINEI_COUNT) {
        uint32_t count = (uint32_t)number;
        memcpy(target, &count, sizeof count);
    } else {
        memcpy(target, &number, sizeof number);
    }
    return 0;
}

static int read_real(const configi_reader *reader, const char *path, const json_t *value,
                     const machinei_row *row, char *target)
{
    if (!json_is_number(value))
        return wrong_type(reader, path, value, "a number");
    double number = json_number_value(value);
    TRY(check_range(reader, path, value, row, number));
    memcpy(target, &number, sizeof number);
    return 0;
}

static int read_choice(const configi_reader *reader, const char *path, const json_t *value,
                       const machinei_row *row, char *target)
{
    int idx =
        json_is_string(value) ? configi_list_find(row->choices, json_string_value(value)) : -1;
    if (idx < 0)
        return wrong_type(reader, path, value, row->choices);
    memcpy(target, &idx, sizeof idx);
    return 0;
}

/* Reads an array of objects. `top` is the beginning of the struct that holds the array. */
static int read_objects(const configi_reader *reader, const char *path, const json_t *value,
                        const machinei_row *row, char *top)
{
    if (!json_is_array(value))
        return wrong_type(reader, path, value, "a list of objects");
    size_t count = json_array_size(value);
    if ((double)count > row->most)
        return configi_error(reader, path, "%zu entries; at most %.0f are possible", count,
                             row->most);
    for (size_t i = 0; i < count; i++) {
        char below[CONFIGI_PATH_BYTES], idx[24];
        snprintf(idx, sizeof idx, "%zu", i);
        configi_join(below, path, idx);
        TRY(read_block(reader, below, json_array_get(value, i), row->below,
                       top + row->offset + i * row->room));
    }
    uint32_t number = (uint32_t)count;
    memcpy(top + row->count_offset, &number, sizeof number);
    return 0;
}

static int read_row(const configi_reader *reader, const char *path, const json_t *value,
                    const machinei_row *row, char *top)
{
    char *target = top + row->offset;
    switch (row->type) {
    case MACHINEI_TEXT:
        return read_text(reader, path, value, row, target);
    case MACHINEI_FLAG: {
        bool flag = json_is_true(value);
        if (!json_is_boolean(value))
            return wrong_type(reader, path, value, "true or false");
        memcpy(target, &flag, sizeof flag);
        return 0;
    }
    case MACHINEI_COUNT:
    case MACHINEI_BYTES:
    case MACHINEI_LENGTH:
        return read_whole(reader, path, value, row, target);
    case MACHINEI_REAL:
        return read_real(reader, path, value, row, target);
    case MACHINEI_CHOICE:
        return read_choice(reader, path, value, row, target);
    case MACHINEI_OBJECT:
        return read_block(reader, path, value, row->below, target);
    case MACHINEI_OBJECTS:
        return read_objects(reader, path, value, row, top);
    }
    return err_set(ERR_INTERNAL, "machine.json: %s has no type", path);
}

static int read_block(const configi_reader *reader, const char *path, const json_t *value,
                      const machinei_block *block, char *target)
{
    if (!json_is_object(value))
        return wrong_type(reader, path, value, "an object, { ... }");
    const char *key;
    json_t *below;
    json_object_foreach((json_t *)(uintptr_t)value, key, below)
    {
        char below_path[CONFIGI_PATH_BYTES];
        uint32_t i = 0;
        while (i < block->count && strcmp(block->rows[i].key, key) != 0)
            i++;
        if (strcmp(key, "description") == 0) /* it is for people, and allowed in any object */
            continue;
        if (i == block->count)
            return unknown_key(reader, path, key, block);
        configi_join(below_path, path, key);
        TRY(read_row(reader, below_path, below, &block->rows[i], target));
    }
    return 0;
}

/* Takes the reference to `doc`. */
static int read_document(const char *name, json_t *doc, machine *out)
{
    const configi_reader reader = {.file = name};
    int rc = json_is_object(doc)
                 ? read_block(&reader, "", doc, &machinei_top, (char *)out)
                 : err_set(ERR_CONFIG, "%s: a machine must be an object, { ... }", name);
    json_decref(doc);
    if (rc < 0)
        memset(out, 0, sizeof *out);
    return rc;
}

int machine_read_text(const char *name, const char *text, size_t text_bytes, machine *out)
{
    json_t *doc;
    memset(out, 0, sizeof *out);
    char *copy = mem_alloc(text_bytes + 1, 1, "machine file");
    if (!copy)
        return -ENOMEM;
    if (text_bytes > 0)
        memcpy(copy, text, text_bytes);
    int rc = configi_parse(name, copy, text_bytes, true, &doc);
    mem_free(copy);
    return rc < 0 ? rc : read_document(name, doc, out);
}

int machine_read(const char *path, machine *out)
{
    char file[FILE_PATH_BYTES], advice[CONFIGI_ADVICE_BYTES];
    json_t *doc;
    size_t length = strlen(path);
    memset(out, 0, sizeof *out);
    if (strchr(path, '/') || (length >= 5 && strcmp(path + length - 5, ".json") == 0)) {
        if (access(path, R_OK) != 0)
            return err_set(ERR_INPUT, "%s: cannot open the machine file: %s", path,
                           strerror(errno));
        TRY(configi_read_json(path, &doc));
        return read_document(path, doc, out);
    }
    if (!configi_is_name(path))
        return err_set(
            ERR_INPUT,
            "\"%.100s\" is not the name of a machine: at most %d letters, digits and ._-; "
            "the path of a file has a slash or ends in .json",
            path, JOB_NAME_BYTES - 1);
    int rc = configi_read_named("clusters", path, NULL, file, &doc, advice);
    if (rc == -ENOENT)
        return err_set(ERR_INPUT, "there is no machine \"%s\"; %s", path, advice);
    return rc < 0 ? rc : read_document(file, doc, out);
}

/* ---- writing ---- */

static json_t *block_json(const machinei_block *block, const char *source);

static json_t *objects_json(const machinei_row *row, const char *top)
{
    uint32_t count;
    memcpy(&count, top + row->count_offset, sizeof count);
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < count; i++) {
        if (json_array_append_new(list, block_json(row->below, top + row->offset + i * row->room)) <
            0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* Returns NULL if there is no memory, or if JSON cannot hold the value: not finite, or not
 * UTF-8. */
static json_t *row_json(const machinei_row *row, const char *top)
{
    const char *source = top + row->offset;
    char entry[JOB_NAME_BYTES];
    double number;
    uint64_t whole = 0;
    uint32_t count;
    int idx;
    switch (row->type) {
    case MACHINEI_TEXT:
        return json_stringn(source, strnlen(source, row->room));
    case MACHINEI_FLAG:
        return json_boolean(*(const bool *)source);
    case MACHINEI_COUNT:
        memcpy(&count, source, sizeof count);
        return json_integer(count);
    case MACHINEI_BYTES:
    case MACHINEI_LENGTH:
        memcpy(&whole, source, sizeof whole);
        return whole <= INT64_MAX ? json_integer((json_int_t)whole) : NULL;
    case MACHINEI_REAL:
        memcpy(&number, source, sizeof number);
        return json_real(number);
    case MACHINEI_CHOICE:
        memcpy(&idx, source, sizeof idx);
        return idx >= 0 && configi_list_entry(row->choices, idx, entry, sizeof entry)
                   ? json_string(entry)
                   : NULL;
    case MACHINEI_OBJECT:
        return block_json(row->below, source);
    case MACHINEI_OBJECTS:
        return objects_json(row, top);
    }
    return NULL;
}

static json_t *block_json(const machinei_block *block, const char *source)
{
    json_t *object = json_object();
    for (uint32_t i = 0; object && i < block->count; i++) {
        const machinei_row *row = &block->rows[i];
        json_t *value = row_json(row, source);
        if (!value)
            err_set(-EINVAL, "\"%s\" of a machine cannot be written as JSON", row->key);
        if (!value || json_object_set_new(object, row->key, value) < 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

/* Checks that the text can be read again: counts fit their arrays, numbers lie in their ranges. */
static int check_written(const char *path, const char *text)
{
    machine *again = mem_alloc(1, sizeof *again, "machine");
    if (!again)
        return -ENOMEM;
    int rc = machine_read_text(path, text, strlen(text), again);
    mem_free(again);
    return rc < 0 ? err_prefix(-EINVAL, "not written") : 0;
}

int machine_write(const machine *self, const char *path)
{
    char *text;
    if (self->drive_count > DRIVES_MAX || self->device.product_count > MACHINE_PRODUCTS_MAX)
        return err_set(-EINVAL, "a machine of %u drives and %u products; at most %d and %d",
                       self->drive_count, self->device.product_count, DRIVES_MAX,
                       MACHINE_PRODUCTS_MAX);
    for (uint32_t d = 0; d < self->drive_count; d++)
        if (self->drives[d].point_count > MACHINE_IO_POINTS_MAX)
            return err_set(-EINVAL, "drive %u has %u points; at most %d", d,
                           self->drives[d].point_count, MACHINE_IO_POINTS_MAX);
    json_t *doc = block_json(&machinei_top, (const char *)self);
    if (!doc)
        return -EINVAL;
    int rc = configi_dump(doc, &text);
    json_decref(doc);
    TRY(rc);
    rc = check_written(path, text);
    if (rc == 0)
        rc = file_write(path, text, strlen(text));
    mem_free(text);
    return rc;
}
