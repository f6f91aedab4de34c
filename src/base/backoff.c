/* See backoff.h. */
#include "base/backoff.h"

#include <sched.h>
#include <time.h>

#include "base/log.h"
#include "base/size.h"

void backoff_pause(backoff *self)
{
    uint64_t now_ns = clock_ns();
    if (self->begin_ns == 0)
        self->begin_ns = now_ns;
    uint64_t waited_ns = now_ns - self->begin_ns;
    if (waited_ns < BACKOFF_SPIN_NS) {
        (void)sched_yield();
        return;
    }
    struct timespec pause = {.tv_nsec = (long)size_min(waited_ns / 8, BACKOFF_SLEEP_NS_MAX)};
    (void)nanosleep(&pause, NULL);
}
