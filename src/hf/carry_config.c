/* Copies the config.json of the checkpoint that a run began with, with another dtype and another
 * quantization_config, or none. All else stays as its author wrote it. See hf_internal.h. */
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

/* Returns the position after the value that begins at `at`. */
static size_t value_end(const char *text, size_t at)
{
    uint32_t depth = 0;
    if (text[at] != '{' && text[at] != '[')
        return text[at] == '"' ? string_end(text, at) : at + strcspn(text + at, ",} \t\r\n");
    do {
        depth += text[at] == '{' || text[at] == '[';
        depth -= text[at] == '}' || text[at] == ']';
        at = text[at] == '"' ? string_end(text, at) : at + 1;
    } while (depth > 0);
    return at;
}

static bool is_key(const char *key, size_t key_bytes, const char *name)
{
    return key_bytes == strlen(name) && memcmp(key, name, key_bytes) == 0;
}

/* Copies the text from `*done` to the key, without the comma before the key if no other key
 * follows. Sets *done to where the text goes on after the key's value, which ends at `end`. */
static void leave_out(const char *text, size_t key_at, size_t end, size_t *done, FILE *out)
{
    size_t until = key_at;
    end += strspn(text + end, " \t\r\n");
    if (text[end] == ',') {
        end += 1 + strspn(text + end + 1, " \t\r\n");
    } else {
        while (until > *done && text[until] != ',')
            until--;
    }
    fwrite(text + *done, 1, until - *done, out);
    *done = end;
}

/* The values that replace the original's: the dtype, under either of its two names, and
 * quantization_config (NULL: none). */
struct config_change {
    const char *type, *quantization;
    bool has_type, has_quantization; /* the original */
};

/* Copies the object's text with the change. Everything else stays the same. */
static int put_config(const char *text, const struct config_change *change, FILE *out)
{
    struct config_scan scan = {.text = text};
    const char *key;
    size_t key_bytes, done = strcspn(text, "{") + 1; /* other keys follow: it is not empty */
    fwrite(text, 1, done, out);
    if (!change->has_type)
        fprintf(out, "\n  \"torch_dtype\": \"%s\",", change->type);
    if (change->quantization && !change->has_quantization)
        fprintf(out, "\n  \"quantization_config\": %s,", change->quantization);
    while (next_key(&scan, &key, &key_bytes)) {
        bool is_type = is_key(key, key_bytes, "dtype") || is_key(key, key_bytes, "torch_dtype");
        size_t end = value_end(text, scan.at);
        if (!is_type && !is_key(key, key_bytes, "quantization_config"))
            continue;
        if (!is_type && !change->quantization) {
            leave_out(text, (size_t)(key - text) - 1, end, &done, out);
        } else {
            fwrite(text + done, 1, scan.at - done, out);
            fprintf(out, is_type ? "\"%s\"" : "%s", is_type ? change->type : change->quantization);
            done = end;
        }
        scan.at = end;
    }
    fputs(text + done, out);
    return ferror(out) ? -ENOMEM : 0;
}

int hfi_carry_config(const char *source, const char *target, const char *type,
                     const char *quantization)
{
    struct config_change change = {.type = type, .quantization = quantization};
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
        change.has_type = change.has_type || is;
    }
    change.has_quantization = rc == 0 && json_object_get(doc, "quantization_config");
    json_decref(doc);
    if (rc == 0) {
        FILE *out = open_memstream(&changed, &changed_bytes);
        rc = out ? put_config(text, &change, out) : -ENOMEM;
        if (out && fclose(out) != 0)
            rc = -ENOMEM;
    }
    mem_free(text);
    if (rc == 0)
        rc = file_write(target, FILE_SHARED, changed, changed_bytes);
    free(changed);
    return rc == -ENOMEM ? err_set(rc, "no memory for %s", target) : rc;
}
