/* Shows the bytes of a text as they come, up to a given text at which it ends. Bytes that may be
 * the beginning of that text are held back until more is known. Pure, except for the callback. */
#ifndef SLUICE_INFER_STOP_TEXT_H
#define SLUICE_INFER_STOP_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum { STOP_TEXT_MAX = 256 };

struct stop_text {
    const char *stop; /* borrowed; NULL or "": no such text, and nothing is held back */
    size_t stop_bytes;
    char held[STOP_TEXT_MAX];
    size_t held_bytes;
    bool is_met;
    int (*show)(void *user, const char *bytes, size_t count); /* negative ends it */
    void *user;
};
typedef struct stop_text stop_text;

/* ERR_USAGE if `stop` has more than STOP_TEXT_MAX bytes. */
int stop_text_init(stop_text *self, const char *stop,
                   int (*show)(void *user, const char *bytes, size_t count), void *user) MUST_CHECK;
/* Shows as much of the text as can be shown. Sets is_met when the text has ended; then nothing more
 * is shown. */
int stop_text_add(stop_text *self, const char *bytes, size_t count) MUST_CHECK;
/* Shows what is held back: the text has ended without `stop`. */
int stop_text_end(stop_text *self) MUST_CHECK;

#endif
