/* See format_json.h. */
#include "format/format_json.h"

#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "base/foreign_json.h"
#include "base/mem.h"
#include "base/utf8.h"

const char *format_show(const char *text, char out[FORMAT_SHOWN_BYTES])
{
    size_t used = 0, most = FORMAT_SHOWN_BYTES - sizeof "...";
    while (text[used] && used < most) {
        out[used] = text[used];
        used++;
    }
    if (text[used]) { /* do not cut within a character */
        while (used > 0 && utf8_is_inner(text[used]))
            used--;
        memcpy(out + used, "...", 3);
        used += 3;
    }
    out[used] = '\0';
    return out;
}

/* Counts depth and number of values without taking memory. The content of strings does not
 * count. */
static int check_limits(const char *path, const char *text, uint64_t text_bytes,
                        const format_json_limits *limits)
{
    uint64_t values = 0;
    uint32_t depth = 0;
    bool is_text = false;
    for (uint64_t i = 0; i < text_bytes; i++) {
        char byte = text[i];
        if (is_text) {
            i += byte == '\\';
            is_text = byte != '"';
            continue;
        }
        is_text = byte == '"';
        if (byte == '{' || byte == '[')
            depth++;
        else if ((byte == '}' || byte == ']') && depth > 0)
            depth--;
        values += byte == '{' || byte == '[' || byte == ',';
        if (depth > limits->depth_max)
            return err_set(ERR_INPUT,
                           "%s: its JSON is nested more than %" PRIu32 " deep at byte %" PRIu64,
                           path, limits->depth_max, i);
        if (values > limits->values_max)
            return err_set(ERR_INPUT, "%s: its JSON has more than %" PRIu64 " values", path,
                           limits->values_max);
    }
    return 0;
}

int format_json_parse(const char *path, const char *text, uint64_t text_bytes,
                      const format_json_limits *limits, json_t **out)
{
    *out = NULL;
    if (text_bytes > limits->bytes_max)
        return err_set(ERR_INPUT,
                       "%s: %" PRIu64 " bytes of JSON are more than the %" PRIu64
                       " that are possible",
                       path, text_bytes, limits->bytes_max);
    TRY(check_limits(path, text, text_bytes, limits));
    json_error_t error;
    json_t *doc = foreign_json_parse(text, text_bytes, JSON_REJECT_DUPLICATES, &error);
    char shown[FORMAT_SHOWN_BYTES];
    if (!doc)
        return err_set(ERR_INPUT, "%s: no JSON, or not as it is allowed here: %s, at byte %d", path,
                       format_show(error.text, shown), error.position);
    if (!json_is_object(doc)) {
        json_decref(doc);
        return err_set(ERR_INPUT, "%s: its JSON is no object", path);
    }
    *out = doc;
    return 0;
}

int format_json_read(const char *path, const format_json_limits *limits, json_t **out)
{
    char *text;
    uint64_t text_bytes;
    *out = NULL;
    TRY(file_read(path, limits->bytes_max, &text, &text_bytes));
    int rc = format_json_parse(path, text, text_bytes, limits, out);
    mem_free(text);
    return rc;
}
