/* Bytes of a text as they come, up to a given text at which it ends. What may be the beginning of
 * that text is held back until more is known. Pure but for the callback. */
#ifndef SLUICE_INFER_STOP_TEXT_H
#define SLUICE_INFER_STOP_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum { STOP_TEXT_MAX = 256 };

struct stop_text {
    const char *stop; /* borrowed; NULL or "": none, and nothing is held back */
    size_t stop_bytes;
    char held[STOP_TEXT_MAX];
    size_t held_bytes;
    bool is_met;
    int (*show)(void *user, const char *bytes, size_t count); /* negative ends it */
    void *user;
};
typedef struct stop_text stop_text;

/* ERR_USAGE for a stop of more than STOP_TEXT_MAX bytes. */
int stop_text_init(stop_text *self, const char *stop,
                   int (*show)(void *user, const char *bytes, size_t count), void *user) MUST_CHECK;
/* Shows what of the text can be shown; is_met says whether it has ended, and nothing is shown any
 * more. */
int stop_text_add(stop_text *self, const char *bytes, size_t count) MUST_CHECK;
/* Shows what is held back: the text has ended without it. */
int stop_text_end(stop_text *self) MUST_CHECK;

#endif
