/* Finds rows of the table of keys, and interprets their texts. See keys_internal.h. Pure. */
#include "config/keys_internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const configi_key *configi_key_at(uint32_t idx)
{
    const struct {
        const configi_key *rows;
        uint32_t count;
    } tables[] = {
        {configi_model_keys, configi_model_key_count},
        {configi_own_keys, configi_own_key_count},
        {configi_deepspeed_keys, configi_deepspeed_key_count},
    };
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        if (idx < tables[i].count)
            return &tables[i].rows[idx];
        idx -= tables[i].count;
    }
    return NULL;
}

bool configi_key_is_own(const configi_key *row)
{
    return (row >= configi_model_keys && row < configi_model_keys + configi_model_key_count) ||
           (row >= configi_own_keys && row < configi_own_keys + configi_own_key_count);
}

bool configi_key_is_hidden(const configi_key *row)
{
    return strncmp(row->path, "debug.", sizeof "debug." - 1) == 0;
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

const configi_key *configi_key_find(const char *path)
{
    const configi_key *row;
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
        if (configi_relate(row->path, path) == CONFIGI_EQUAL)
            return row;
    }
    return NULL;
}

/* True if `below` may follow below a row's own path. */
static bool row_allows_below(const configi_key *row, const char *below)
{
    if (row->type == CONFIGI_ANY || row->type == CONFIGI_SWITCH)
        return true;
    bool is_list = row->type == CONFIGI_FLOATS || row->type == CONFIGI_STRINGS ||
                   row->type == CONFIGI_STEPS || row->type == CONFIGI_SOURCES;
    return is_list && is_index(below, strlen(below));
}

bool configi_is_known(const char *path)
{
    const configi_key *row;
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
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

bool configi_in_range(const configi_key *row, double value)
{
    if (!row->allowed)
        return true;
    const char *text = row->allowed;
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
