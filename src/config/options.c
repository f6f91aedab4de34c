/* The options table: looking rows up, and listing them. See options.h. The rows are in options_own.c,
 * options_deepspeed.c, options_zero.c and options_blocks.c. Constant data;
 * options_json allocates its result. */
#include "config/options.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "config/config_internal.h"

uint32_t option_count(void)
{
    return configi_own_row_count + configi_deepspeed_row_count + configi_zero_row_count +
           configi_block_row_count;
}

const option *option_at(uint32_t idx)
{
    if (idx < configi_own_row_count)
        return &configi_own_rows[idx];
    idx -= configi_own_row_count;
    if (idx < configi_deepspeed_row_count)
        return &configi_deepspeed_rows[idx];
    idx -= configi_deepspeed_row_count;
    if (idx < configi_zero_row_count)
        return &configi_zero_rows[idx];
    idx -= configi_zero_row_count;
    return idx < configi_block_row_count ? &configi_block_rows[idx] : NULL;
}

bool configi_is_own(const option *row)
{
    return row >= configi_own_rows && row < configi_own_rows + configi_own_row_count;
}

static bool is_index(const char *text, size_t length)
{
    enum { DIGITS_MAX = 9 };
    if (length == 0 || length > DIGITS_MAX)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
    }
    return true;
}

enum configi_relation configi_relate(const char *row_path, const char *path)
{
    if (path[0] == '\0')
        return CONFIGI_ABOVE;
    while (true) {
        size_t row_length = strcspn(row_path, "."), length = strcspn(path, ".");
        bool same = row_length == length && memcmp(row_path, path, length) == 0;
        if (row_length == 1 && row_path[0] == '*')
            same = same || is_index(path, length);
        if (!same)
            return CONFIGI_APART;
        row_path += row_length;
        path += length;
        if (*path == '\0')
            return *row_path == '\0' ? CONFIGI_EQUAL : CONFIGI_ABOVE;
        if (*row_path == '\0')
            return CONFIGI_BELOW;
        row_path++;
        path++;
    }
}

const option *option_find(const char *path)
{
    const option *row;
    for (uint32_t idx = 0; (row = option_at(idx)); idx++) {
        if (configi_relate(row->path, path) == CONFIGI_EQUAL)
            return row;
    }
    return NULL;
}

/* What may follow below a row's own path. */
static bool row_allows_below(const option *row, const char *below)
{
    if (row->type == OPTION_ANY || row->type == OPTION_SWITCH)
        return true;
    bool is_list = row->type == OPTION_FLOATS || row->type == OPTION_STRINGS ||
                   row->type == OPTION_STEPS || row->type == OPTION_SOURCES;
    return is_list && is_index(below, strlen(below));
}

bool configi_is_known(const char *path)
{
    const option *row;
    for (uint32_t idx = 0; (row = option_at(idx)); idx++) {
        switch (configi_relate(row->path, path)) {
        case CONFIGI_EQUAL:
        case CONFIGI_ABOVE:
            return true;
        case CONFIGI_BELOW: {
            const char *below = path;
            for (const char *dot = strchr(row->path, '.'); dot; dot = strchr(dot + 1, '.'))
                below = strchr(below, '.') + 1;
            if (row_allows_below(row, strchr(below, '.') + 1))
                return true;
            break;
        }
        case CONFIGI_APART:
            break;
        }
    }
    return false;
}

bool configi_in_range(const option *row, double value)
{
    if (!row->range)
        return true;
    const char *text = row->range;
    char *end;
    double low = -INFINITY, high = INFINITY;
    if (text[1] != ',')
        low = strtod(text + 1, &end);
    const char *comma = strchr(text, ',');
    assert(comma);
    if (comma[1] != ']' && comma[1] != ')')
        high = strtod(comma + 1, &end);
    bool above = text[0] == '[' ? value >= low : value > low;
    bool below = text[strlen(text) - 1] == ']' ? value <= high : value < high;
    return above && below;
}

bool configi_list_entry(const char *list, int idx, char *entry, size_t entry_bytes)
{
    for (; list && idx > 0; idx--) {
        list = strchr(list, '|');
        list = list ? list + 1 : NULL;
    }
    if (!list)
        return false;
    snprintf(entry, entry_bytes, "%.*s", (int)strcspn(list, "|"), list);
    return true;
}

int configi_list_find(const char *list, const char *text)
{
    char entry[JOB_NAME_BYTES];
    for (int idx = 0; configi_list_entry(list, idx, entry, sizeof entry); idx++) {
        if (strcasecmp(entry, text) == 0)
            return idx;
    }
    return -1;
}

static unsigned char lower(char byte)
{
    return (unsigned char)(byte >= 'A' && byte <= 'Z' ? byte - 'A' + 'a' : byte);
}

uint32_t configi_distance(const char *a, const char *b)
{
    enum { LENGTH_MAX = 96 };
    size_t a_length = strlen(a), b_length = strlen(b);
    if (a_length > LENGTH_MAX || b_length > LENGTH_MAX)
        return UINT32_MAX;
    /* Three rows of the table of distances between beginnings of a and b. */
    uint32_t rows[3][LENGTH_MAX + 1];
    for (uint32_t j = 0; j <= b_length; j++)
        rows[0][j] = j;
    for (uint32_t i = 1; i <= a_length; i++) {
        uint32_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        row[0] = i;
        for (uint32_t j = 1; j <= b_length; j++) {
            bool same = lower(a[i - 1]) == lower(b[j - 1]);
            uint32_t best = above[j - 1] + (same ? 0 : 1);
            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                           lower(a[i - 2]) == lower(b[j - 1]);
            if (swapped && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[a_length % 3][b_length];
}

static const char *type_name(enum option_type type)
{
    static const char *const names[] = {
        [OPTION_BOOL] = "bool",       [OPTION_INT] = "int",         [OPTION_FLOAT] = "float",
        [OPTION_SIZE] = "size",       [OPTION_STRING] = "string",   [OPTION_ENUM] = "enum",
        [OPTION_TIER] = "tier",       [OPTION_UNITS] = "units",     [OPTION_CORES] = "cores",
        [OPTION_FLOATS] = "floats",   [OPTION_STRINGS] = "strings", [OPTION_BLOCKS] = "objects",
        [OPTION_SWITCH] = "object",   [OPTION_ANY] = "any",         [OPTION_STEPS] = "ints",
        [OPTION_SOURCES] = "sources",
    };
    return names[type];
}

static const char *effect_name(enum option_effect effect)
{
    static const char *const names[] = {
        [OPTION_USED] = "used",
        [OPTION_NO_EFFECT] = "no effect",
        [OPTION_REFUSED] = "refused",
    };
    return names[effect];
}

void options_print(FILE *stream)
{
    const option *row;
    fputs("Keys of the job file. DeepSpeed's keys keep their names, meanings, units and defaults.\n"
          "A list's elements are counted from 0: tiers.nvme.0.path.\n",
          stream);
    size_t block_length = SIZE_MAX;
    const char *block = "";
    for (uint32_t idx = 0; (row = option_at(idx)); idx++) {
        size_t length = strcspn(row->path, ".");
        if (length != block_length || strncmp(block, row->path, length) != 0)
            fputc('\n', stream);
        block = row->path;
        block_length = length;
        fprintf(stream, "%s  %s", row->path, type_name(row->type));
        if (row->choices)
            fprintf(stream, " %s", row->choices);
        if (row->range)
            fprintf(stream, " in %s", row->range);
        if (row->unit)
            fprintf(stream, " %s", row->unit);
        if (row->fallback)
            fprintf(stream, ", default %s", row->fallback);
        if (row->effect != OPTION_USED)
            fprintf(stream, " (%s)", effect_name(row->effect));
        fprintf(stream, "\n    %s\n", row->help);
        if (row->alone)
            fprintf(stream, "    On one rank it has no effect: %s\n", row->alone);
        if (row->later)
            fprintf(stream, "    Not built yet: %s\n", row->later);
    }
}

static int set_text(json_t *object, const char *key, const char *text)
{
    json_t *value = text ? json_string(text) : json_null();
    return json_object_set_new(object, key, value); /* refuses a NULL value */
}

/* A row as an object; NULL where there is no memory. */
static json_t *row_json(const option *row)
{
    json_t *object = json_object();
    if (!object)
        return NULL;
    int rc = set_text(object, "path", row->path);
    rc |= set_text(object, "type", type_name(row->type));
    rc |= set_text(object, "effect", effect_name(row->effect));
    bool is_text = row->type == OPTION_STRING || row->type == OPTION_ENUM ||
                   row->type == OPTION_TIER || row->type == OPTION_STRINGS ||
                   row->type == OPTION_CORES || row->type == OPTION_SOURCES;
    json_t *fallback = NULL;
    if (row->fallback && !is_text)
        fallback = json_loads(row->fallback, JSON_DECODE_ANY, NULL);
    if (fallback)
        rc |= json_object_set_new(object, "default", fallback);
    else
        rc |= set_text(object, "default", row->fallback);
    rc |= set_text(object, "range", row->range);
    rc |= set_text(object, "choices", row->choices);
    rc |= set_text(object, "not_built_yet", row->later);
    rc |= set_text(object, "unit", row->unit);
    rc |= set_text(object, "help", row->help);
    rc |= set_text(object, "one_rank", row->alone);
    if (rc == 0)
        return object;
    json_decref(object);
    return NULL;
}

char *options_json(void)
{
    char *text = NULL;
    json_t *list = json_array();
    int rc = list ? 0 : -1;
    const option *row;
    for (uint32_t idx = 0; rc == 0 && (row = option_at(idx)); idx++)
        rc = json_array_append_new(list, row_json(row)); /* refuses NULL */
    if (rc == 0)
        rc = configi_dump(list, &text);
    else
        err_set(-ENOMEM, "no memory to list the options");
    json_decref(list);
    return text;
}
