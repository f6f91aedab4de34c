/* Brings a document into the form of the table of keys: removes remarks and unknown keys that
 * DeepSpeed ignores, and rewrites values that DeepSpeed reads in another form. See
 * config_internal.h. Called by job_read, before the document is checked; writes to the log. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "config/config_internal.h"

/* Appends an entry to a list of a log line. Entries without room are left out behind "...". */
static void append(char list[ERR_TEXT_BYTES], const char *entry)
{
    size_t used = strlen(list);
    bool is_full = used >= 3 && strcmp(list + used - 3, "...") == 0;
    if (is_full)
        return;
    bool fits = used + strlen(entry) + sizeof ", , ..." <= ERR_TEXT_BYTES;
    snprintf(list + used, ERR_TEXT_BYTES - used, "%s%s", used > 0 ? ", " : "",
             fits ? entry : "...");
}

/* ---- remarks ---- */

/* True for a key that is a remark for people: it begins with _, /, # or $, or says that it is one.
 * No key of the table is one. */
static bool is_remark(const char *key)
{
    static const char words[] = "comment|comments|note|notes|remark|remarks";
    return (key[0] != '\0' && strchr("_/#$", key[0])) || configi_list_find(words, key) >= 0;
}

static void drop_remarks(json_t *block, const char *path, char dropped[ERR_TEXT_BYTES])
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(block, next, key, value)
    {
        char child[CONFIGI_PATH_BYTES];
        configi_join(child, path, key);
        if (is_remark(key)) {
            append(dropped, child);
            json_object_del(block, key);
        } else if (json_is_object(value)) {
            drop_remarks(value, child, dropped);
        }
    }
}

/* ---- unknown keys ---- */

/* True if a key was probably meant to be a block of Sluice's own, and no key of DeepSpeed is
 * nearer. */
static bool is_own_misspelt(const char *key)
{
    struct nearest own = {0}, deepspeed = {0};
    const configi_key *row;
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
        char name[CONFIGI_PATH_BYTES];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(row->path, "."), row->path);
        nearest_offer(configi_key_is_own(row) ? &own : &deepspeed, key, name);
    }
    return own.distance <= deepspeed.distance && nearest_is_near(&own, key);
}

/* Removes unknown keys from a block ("": the document). */
static int drop_unknown(const configi_reader *reader, const char *block)
{
    json_t *object = block[0] ? json_object_get(reader->doc, block) : reader->doc;
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(object, next, key, value)
    {
        char path[CONFIGI_PATH_BYTES], advice[CONFIGI_ADVICE_BYTES];
        if (configi_join(path, block, key) && !strchr(key, '.') && configi_is_known(path))
            continue;
        if (key[0] == '\0' || strchr(key, '.') || (!block[0] && is_own_misspelt(key)))
            return configi_unknown(reader, block, key);
        configi_advise(block, key, advice);
        log_warn("%s: %s: an unknown key, which is ignored as in DeepSpeed; %s", reader->file, path,
                 advice);
        json_object_del(object, key);
    }
    return 0;
}

/* ---- values ---- */

/* The value of a key of DeepSpeed in the form of the table, or NULL if it has it already or has no
 * such form: 0, 1 and words for true and false, and numbers in quotes. */
static json_t *usual_form(const configi_key *row, const json_t *value)
{
    static const char switches[] = "false|true|0|1|no|yes|off|on"; /* false, true, false, ... */
    const char *text = json_string_value(value);
    if (row->type == CONFIGI_BOOL && json_is_number(value)) {
        double number = json_number_value(value);
        return number == 0 || number == 1 ? json_boolean(number == 1) : NULL;
    }
    if (!text)
        return NULL;
    if (row->type == CONFIGI_BOOL) {
        int idx = configi_list_find(switches, text);
        return idx >= 0 ? json_boolean(idx % 2 == 1) : NULL;
    }
    char *end;
    if ((row->type != CONFIGI_INT && row->type != CONFIGI_FLOAT) || text[0] == '\0' ||
        !strchr("+-.0123456789", text[0]))
        return NULL;
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    if (*end == '\0' && errno == 0)
        return row->type == CONFIGI_INT ? json_integer(whole) : json_real((double)whole);
    double number = strtod(text, &end);
    return *end == '\0' ? json_real(number) : NULL; /* NULL also if it is not finite */
}

static int take_forms(const configi_reader *reader)
{
    const configi_key *row;
    char list[ERR_TEXT_BYTES] = "";
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
        const json_t *value = configi_written(reader, row->path);
        json_t *usual = !value || configi_key_is_own(row) ? NULL : usual_form(row, value);
        if (!usual)
            continue;
        char was[CONFIGI_VALUE_BYTES], is[CONFIGI_VALUE_BYTES];
        char entry[2 * CONFIGI_VALUE_BYTES + CONFIGI_PATH_BYTES];
        snprintf(entry, sizeof entry, "%s %s as %s", row->path, configi_show(value, was),
                 configi_show(usual, is));
        append(list, entry);
        TRY(configi_put_path(reader, row->path, usual));
    }
    if (list[0] != '\0')
        log_info("%s: read as DeepSpeed reads it: %s", reader->file, list);
    return 0;
}

int configi_take_spellings(const configi_reader *reader)
{
    /* Where DeepSpeed ignores unknown keys, except in blocks whose keys decide what is trained. */
    static const char *const lenient[] = {"", "activation_checkpointing", "checkpoint",
                                          "flops_profiler"};
    char dropped[ERR_TEXT_BYTES] = "";
    drop_remarks(reader->doc, "", dropped);
    if (dropped[0] != '\0')
        log_info("%s: taken for remarks: %s", reader->file, dropped);
    for (size_t i = 0; i < sizeof lenient / sizeof lenient[0]; i++)
        TRY(drop_unknown(reader, lenient[i]));
    return take_forms(reader);
}
