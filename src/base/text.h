/* Short texts, such as names and lists in messages, and the known name that somebody who wrote
 * another one probably meant. Any thread. */
#ifndef SLUICE_BASE_TEXT_H
#define SLUICE_BASE_TEXT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline bool text_ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* Adds to the end of text[capacity], which ends with a zero, and cuts what does not fit. */
__attribute__((format(printf, 3, 4))) void text_add(char *text, size_t capacity, const char *format,
                                                    ...);

/* The nearest of several names to a wanted one. If several names are equally near, the first one
 * counts. Begins as {0}. */
struct nearest {
    char name[64]; /* "": none was offered */
    uint32_t distance;
};
void nearest_offer(struct nearest *self, const char *wanted, const char *name);

/* True if `wanted` may be a misspelling of the nearest name: at most one edit in three letters. */
bool nearest_is_near(const struct nearest *self, const char *wanted);

#endif
