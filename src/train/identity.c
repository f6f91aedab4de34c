/* What two runs' identities ("key=value" lines: setup.c) differ in. Pure. */
#include <stdio.h>
#include <string.h>

#include "train/train_internal.h"

/* The value of the line that begins with the `key_bytes` of `key`, and its length; NULL: there is none. */
static const char *find_value(const char *identity, const char *key, size_t key_bytes,
                              size_t *value_bytes)
{
    for (const char *line = identity; *line;) {
        size_t length = strcspn(line, "\n");
        if (length >= key_bytes && memcmp(line, key, key_bytes) == 0) {
            *value_bytes = length - key_bytes;
            return line + key_bytes;
        }
        line += length + (line[length] == '\n');
    }
    return NULL;
}

/* Lines of `lines` that `other` has otherwise or, where `only_absent`, not at all. */
static void list_lines(const char *lines, const char *other, bool only_absent, char *text,
                       size_t capacity, size_t *used)
{
    for (const char *line = lines; *line;) {
        size_t length = strcspn(line, "\n");
        const char *equals = memchr(line, '=', length);
        size_t key_bytes = equals ? (size_t)(equals - line) + 1 : length, other_bytes = 0;
        const char *found = find_value(other, line, key_bytes, &other_bytes);
        bool is_same = found && other_bytes == length - key_bytes &&
                       memcmp(found, line + key_bytes, other_bytes) == 0;
        const char *own = line + key_bytes;
        int own_bytes = (int)(length - key_bytes);
        line += length + (line[length] == '\n');
        if (only_absent ? found != NULL : is_same)
            continue;
        if (!found) {
            found = "not given";
            other_bytes = strlen(found);
        }
        int more = snprintf(text + *used, capacity - *used, "%s%.*s was %.*s and is %.*s",
                            *used ? "; " : "", (int)key_bytes - 1, own - key_bytes,
                            only_absent ? own_bytes : (int)other_bytes, only_absent ? own : found,
                            only_absent ? (int)other_bytes : own_bytes, only_absent ? found : own);
        if (more < 0 || (size_t)more >= capacity - *used) {
            snprintf(text + *used, capacity - *used, *used ? "; ..." : "...");
            return;
        }
        *used += (size_t)more;
    }
}

void traini_list_differences(const char *was, const char *is, char *text, size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    list_lines(is, was, false, text, capacity, &used);
    list_lines(was, is, true, text, capacity,
               &used); /* keys that one has where they are not usual */
}
