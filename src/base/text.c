/* Short texts. See text.h. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void text_add(char *text, size_t capacity, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, capacity - used, format, args);
    va_end(args);
}

/* ---- misspelt names ---- */

static unsigned char lower(char byte)
{
    return (unsigned char)(byte >= 'A' && byte <= 'Z' ? byte - 'A' + 'a' : byte);
}

/* Counts the edits (insert, delete, replace, swap of neighbours) between two names, in any case.
 * UINT32_MAX if a name is longer than 96 bytes. */
static uint32_t count_edits(const char *a, const char *b)
{
    enum { LENGTH_MAX = 96 };
    size_t a_length = strlen(a), b_length = strlen(b);
    if (a_length > LENGTH_MAX || b_length > LENGTH_MAX)
        return UINT32_MAX;
    /* Three rows of the distance table between prefixes of a and b. */
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

void nearest_offer(struct nearest *self, const char *wanted, const char *name)
{
    uint32_t distance = count_edits(wanted, name);
    if (self->name[0] != '\0' && distance >= self->distance)
        return;
    self->distance = distance;
    snprintf(self->name, sizeof self->name, "%s", name);
}

bool nearest_is_near(const struct nearest *self, const char *wanted)
{
    enum { LETTERS_PER_SLIP = 3 };
    return self->name[0] != '\0' && (uint64_t)self->distance * LETTERS_PER_SLIP <= strlen(wanted);
}
