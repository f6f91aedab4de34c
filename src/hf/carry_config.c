/* Copies the config.json of the checkpoint that a run began with, with another dtype. All else
 * stays as its author wrote it. See hf_internal.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "format/format_json.h"
#include "hf/hf_internal.h"

static const format_json_limits config_limits = {
    .bytes_max = 16 << 20, .values_max = 1 << 20, .depth_max = 32};

/* The state of a scan over the text of an object, which finds the object's own keys. */
struct config_scan {
    const char *text; /* valid JSON */
    size_t at;
    uint32_t depth;
};

/* Returns the position after the string that begins at `at`. */
static size_t string_end(const char *text, size_t at)
{
    for (at++; text[at] != '"'; at++)
        at += text[at] == '\\';
    return at + 1;
}

/* Finds the next key of the object itself, without its quotes; false at the end. Then `at` is the
 * position of its value. */
static bool next_key(struct config_scan *self, const char **key, size_t *key_bytes)
{
    const char *text = self->text;
    while (text[self->at]) {
        char byte = text[self->at];
        if (byte == '{' || byte == '[')
            self->depth++;
        self->depth -= byte == '}' || byte == ']';
        if (byte != '"') {
            self->at++;
            continue;
        }
        size_t begin = self->at, end = string_end(text, begin);
        self->at = end + strspn(text + end, " \t\r\n");
        if (self->depth != 1 || text[self->at] != ':')
            continue;
        self->at++;
        self->at += strspn(text + self->at, " \t\r\n");
        *key = text + begin + 1;
        *key_bytes = end - begin - 2;
        return true;
    }
    return false;
}

/* Copies the object's text with the new dtype, under either of its two names. Everything else stays
 * the same. */
static int put_type(const char *text, const char *type, FILE *out)
{
    struct config_scan scan = {.text = text};
    const char *key;
    size_t key_bytes, done = 0;
    bool is_there = false;
    while (next_key(&scan, &key, &key_bytes)) {
        bool is_type = (key_bytes == 5 && memcmp(key, "dtype", 5) == 0) ||
                       (key_bytes == 11 && memcmp(key, "torch_dtype", 11) == 0);
        if (!is_type)
            continue;
        fwrite(text + done, 1, scan.at - done, out);
        fprintf(out, "\"%s\"", type);
        done = text[scan.at] == '"' ? string_end(text, scan.at)
                                    : scan.at + strcspn(text + scan.at, ",} \t\r\n");
        scan.at = done;
        is_there = true;
    }
    if (!is_there) { /* after the first brace; other keys follow, since the object is not empty */
        done = strcspn(text, "{") + 1;
        fprintf(out, "%.*s\n  \"torch_dtype\": \"%s\",", (int)done, text, type);
    }
    fputs(text + done, out);
    return ferror(out) ? -ENOMEM : 0;
}

int hfi_carry_config(const char *source, const char *target, const char *type)
{
    char *text, *changed = NULL;
    uint64_t text_bytes;
    size_t changed_bytes = 0;
    json_t *doc = NULL;
    TRY(file_read(source, config_limits.bytes_max, &text, &text_bytes));
    int rc = format_json_parse(source, text, text_bytes, &config_limits, &doc);
    if (rc == 0 && json_object_size(doc) == 0)
        rc = err_set(ERR_INPUT, "%s: it is an empty object", source);
    for (int i = 0; rc == 0 && i < 2; i++) {
        const json_t *is = json_object_get(doc, i == 0 ? "dtype" : "torch_dtype");
        if (is && !json_is_string(is) && !json_is_null(is))
            rc = err_set(ERR_INPUT, "%s: its dtype is no text", source);
    }
    json_decref(doc);
    if (rc == 0) {
        FILE *out = open_memstream(&changed, &changed_bytes);
        rc = out ? put_type(text, type, out) : -ENOMEM;
        if (out && fclose(out) != 0)
            rc = -ENOMEM;
    }
    mem_free(text);
    if (rc == 0)
        rc = file_write(target, FILE_SHARED, changed, changed_bytes);
    free(changed);
    return rc == -ENOMEM ? err_set(rc, "no memory for %s", target) : rc;
}
