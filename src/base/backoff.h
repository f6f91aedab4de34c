/* Waiting for what wakes nobody, such as an answer of a GPU's driver: the caller asks again and
 * again, with a pause between two questions.
 *
 *   backoff wait = {0};
 *   while (!is_done())
 *       backoff_pause(&wait);
 *
 * For BACKOFF_SPIN_NS a pause only lets other threads run, because the shortest sleep takes some 60
 * us. From then on a pause is a sleep of an eighth of the time that was waited so far, and of a
 * millisecond at most. So a wait ends late by an eighth of itself, or by some 60 us if that is
 * more, and a long one takes little of a core. Owned by the thread that waits. */
#ifndef SLUICE_BASE_BACKOFF_H
#define SLUICE_BASE_BACKOFF_H

#include <stdint.h>

enum {
    BACKOFF_SPIN_NS = 200000,
    BACKOFF_SLEEP_NS_MAX = 1000000,
};

struct backoff {
    uint64_t begin_ns; /* of the first pause; 0: none yet */
};
typedef struct backoff backoff;

void backoff_pause(backoff *self);

#endif
