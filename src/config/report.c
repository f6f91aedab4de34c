/* What the log says about a job that is right: the keys that do nothing here, with the reason, and those
 * whose value is left open. See config_internal.h. Called by job_read. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "config/config_internal.h"

/* Appends a key to a list, with what is said of it in brackets; false where it has no room. */
static bool append_key(char keys[ERR_TEXT_BYTES], const char *key, const char *remark)
{
    size_t used = strlen(keys);
    if (used + strlen(key) + (remark ? strlen(remark) + 3 : 0) + 3 > ERR_TEXT_BYTES)
        return false;
    snprintf(keys + used, ERR_TEXT_BYTES - used, "%s%s%s%s%s", used ? ", " : "", key,
             remark ? " (" : "", remark ? remark : "", remark ? ")" : "");
    return true;
}

static bool is_auto(const json_t *value)
{
    return json_is_string(value) && strcmp(json_string_value(value), "auto") == 0;
}

/* Also where the value is left to a trainer: the key has no effect with any. */
static bool is_idle(const configi_reader *reader, const option *row)
{
    return row->effect == OPTION_NO_EFFECT && row->type != OPTION_SWITCH &&
           (configi_get(reader, row->path) || is_auto(configi_written(reader, row->path)));
}

/* One line, or as many as the keys need, of the keys that share this row's reason. */
static void log_reason(const configi_reader *reader, uint32_t idx)
{
    const option *row = option_at(idx), *other;
    char keys[ERR_TEXT_BYTES] = "";
    for (uint32_t i = idx; (other = option_at(i)); i++) {
        if (strcmp(other->help, row->help) != 0 || !is_idle(reader, other) ||
            append_key(keys, other->path, NULL))
            continue;
        log_info("%s: no effect here: %s (%s)", reader->file, keys, row->help);
        keys[0] = '\0';
        append_key(keys, other->path, NULL);
    }
    log_info("%s: no effect here: %s (%s)", reader->file, keys, row->help);
}

void configi_log_no_effect(const configi_reader *reader)
{
    const option *row, *other;
    for (uint32_t idx = 0; (row = option_at(idx)); idx++) {
        if (!is_idle(reader, row))
            continue;
        bool is_named = false;
        for (uint32_t before = 0; before < idx && !is_named; before++) {
            other = option_at(before);
            is_named = strcmp(other->help, row->help) == 0 && is_idle(reader, other);
        }
        if (!is_named)
            log_reason(reader, idx);
    }
}

void configi_log_auto(const configi_reader *reader)
{
    static const char line[] = "%s: \"auto\" is filled in by no trainer here, so that the default "
                               "holds, or what follows from other keys: %s";
    char keys[ERR_TEXT_BYTES] = "";
    const option *row;
    for (uint32_t idx = 0; (row = option_at(idx)); idx++) {
        if (row->effect != OPTION_USED || configi_is_own(row) ||
            !is_auto(configi_written(reader, row->path)) ||
            append_key(keys, row->path, row->fallback))
            continue;
        log_info(line, reader->file, keys);
        keys[0] = '\0';
        append_key(keys, row->path, row->fallback);
    }
    if (keys[0] != '\0')
        log_info(line, reader->file, keys);
}
