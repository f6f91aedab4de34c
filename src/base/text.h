/* Short texts, such as names and lists in messages. Any thread. */
#ifndef SLUICE_BASE_TEXT_H
#define SLUICE_BASE_TEXT_H

#include <stdbool.h>
#include <string.h>

static inline bool text_ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* Adds to the end of text[capacity], which ends with a zero, and cuts what does not fit. */
__attribute__((format(printf, 3, 4))) void text_add(char *text, size_t capacity, const char *format,
                                                    ...);

#endif
