/* Log lines about a valid job: the keys that do nothing here, with the reason, and the keys whose
 * value is left open. See config_internal.h. Called by job_read. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "config/config_internal.h"

/* Appends a key to a list, with the remark in brackets. Returns false if there is no room. */
static bool append_key(char keys[ERR_TEXT_BYTES], const char *key, const char *remark)
{
    size_t used = strlen(keys), room = ERR_TEXT_BYTES - used;
    int length = snprintf(keys + used, room, "%s%s%s%s%s", used ? ", " : "", key,
                          remark ? " (" : "", remark ? remark : "", remark ? ")" : "");
    if ((size_t)length >= room) {
        keys[used] = '\0';
        return false;
    }
    return true;
}

/* Returns why a key does nothing in this job, or NULL if it does something. */
static const char *idle_reason(const configi_reader *reader, const configi_key *row)
{
    enum { STAGE_WEIGHTS = 3 };
    static const char of_stage_3[] = "it is about the parameters that zero_optimization.stage 3 "
                                     "partitions";
    static const char prefix[] = "zero_optimization.stage3_";
    if (row->alone && reader->world <= 1)
        return row->alone;
    if (row->effect == CONFIGI_NO_EFFECT)
        return row->help;
    if (row->alone && strncmp(row->path, prefix, sizeof prefix - 1) == 0 &&
        configi_uint(reader, "zero_optimization.stage") != STAGE_WEIGHTS)
        return of_stage_3;
    return NULL;
}

/* The same for a key that the file gives, also as "auto": it then has no effect with any value.
 * NULL if the file does not give it. */
static const char *written_idle_reason(const configi_reader *reader, const configi_key *row)
{
    bool is_given = row->type != CONFIGI_SWITCH &&
                    (configi_get(reader, row->path) || configi_is_auto(reader, row->path));
    return is_given ? idle_reason(reader, row) : NULL;
}

/* Logs the keys that share this row's reason, in one line or as many as they need. */
static void log_reason(const configi_reader *reader, uint32_t idx, const char *reason)
{
    const configi_key *other;
    char keys[ERR_TEXT_BYTES] = "";
    for (uint32_t i = idx; (other = configi_key_at(i)); i++) {
        const char *others = written_idle_reason(reader, other);
        if (!others || strcmp(others, reason) != 0 || append_key(keys, other->path, NULL))
            continue;
        log_info("%s: no effect here: %s (%s)", reader->file, keys, reason);
        keys[0] = '\0';
        append_key(keys, other->path, NULL);
    }
    log_info("%s: no effect here: %s (%s)", reader->file, keys, reason);
}

void configi_log_no_effect(const configi_reader *reader)
{
    const configi_key *row, *other;
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
        const char *reason = written_idle_reason(reader, row), *others;
        if (!reason)
            continue;
        bool is_named = false;
        for (uint32_t before = 0; before < idx && !is_named; before++) {
            other = configi_key_at(before);
            others = written_idle_reason(reader, other);
            is_named = others && strcmp(others, reason) == 0;
        }
        if (!is_named)
            log_reason(reader, idx, reason);
    }
}

/* Writes the value that holds for a key that is "auto". */
static void show_value(const configi_key *row, const job *self, char text[JOB_CHANGE_BYTES])
{
    if (row->type == CONFIGI_FLOATS || row->member_bytes == 0)
        snprintf(text, JOB_CHANGE_BYTES, "%s", row->fallback ? row->fallback : "not given");
    else
        configi_show_member(row, self, 0, text);
    if (!row->fallback && strcmp(text, "0") == 0) /* how members say that there is no limit */
        snprintf(text, JOB_CHANGE_BYTES, "not given");
}

void configi_log_auto(const configi_reader *reader, const job *self)
{
    static const char line[] = "%s: \"auto\" is filled in by no trainer here, so that the default "
                               "holds, or what follows from other keys: %s";
    char keys[ERR_TEXT_BYTES] = "", value[JOB_CHANGE_BYTES];
    const configi_key *row;
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
        if (idle_reason(reader, row) || configi_key_is_own(row) ||
            !configi_is_auto(reader, row->path))
            continue;
        show_value(row, self, value);
        if (append_key(keys, row->path, value))
            continue;
        log_info(line, reader->file, keys);
        keys[0] = '\0';
        append_key(keys, row->path, value);
    }
    if (keys[0] != '\0')
        log_info(line, reader->file, keys);
}
