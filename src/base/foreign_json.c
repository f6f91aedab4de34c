/* See foreign_json.h. */
#include "base/foreign_json.h"

#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

/* Replaces the last two digits of each integer of more than 18 digits by "e2". The text keeps its
 * length, so that positions in messages stay right. The change of the value is far below the
 * precision of a double. */
static void write_reals(char *text, size_t text_bytes)
{
    enum { EXACT_DIGITS = 18 };
    bool is_string = false;
    for (size_t i = 0; i < text_bytes; i++) {
        if (text[i] == '"')
            is_string = !is_string;
        else if (is_string && text[i] == '\\')
            i++;
        if (is_string || !strchr("-0123456789", text[i]) || text[i] == '\0')
            continue;
        size_t begin = i + (text[i] == '-'), end = begin;
        while (end < text_bytes && text[end] >= '0' && text[end] <= '9')
            end++;
        size_t number_end = end; /* beyond a fraction and an exponent */
        while (number_end < text_bytes && text[number_end] != '\0' &&
               strchr("+-.eE0123456789", text[number_end]))
            number_end++;
        if (end - begin > EXACT_DIGITS && number_end == end)
            memcpy(text + end - 2, "e2", 2);
        i = (number_end > i ? number_end : i + 1) - 1;
    }
}

json_t *foreign_json_parse(const char *text, size_t text_bytes, size_t flags, json_error_t *error)
{
    json_t *doc = json_loadb(text, text_bytes, flags, error);
    if (doc || json_error_code(error) != json_error_numeric_overflow)
        return doc;
    char *copy = mem_alloc(text_bytes, 1, "JSON text");
    if (!copy)
        return NULL;
    memcpy(copy, text, text_bytes);
    write_reals(copy, text_bytes);
    doc = json_loadb(copy, text_bytes, flags, error);
    mem_free(copy);
    return doc;
}
