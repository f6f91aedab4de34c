/* The watch over time: wakes the owner when a held completion is due, and names transfers that do not come
 * back. The owner sleeps in poll(2) without a limit, so the timer is part of the descriptor that it sleeps
 * on. Owner thread only; allocates nothing.
 *
 *   nothing out --issue--> look_ns = now + stuck_ns --timer--> report, look_ns = next limit of what is out
 *        ^------------------------- timer, and nothing out ------------------'
 *
 * While transfers come and go the timer is not touched: it fires once in stuck_ns, and then looks at what
 * is out. */
#include <stdio.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "tiers/io_internal.h"

enum { WATCH_TEXT_BYTES = 160, WATCH_DOUBLINGS_MAX = 40 };

/* How long the transfer may be out before the next warning about it. */
static uint64_t limit_of(const io *self, const tieri_transfer *item)
{
    uint64_t limit_ns = self->stuck_ns;
    for (uint32_t i = 0; i < item->report_count && limit_ns < UINT64_MAX / 4; i++)
        limit_ns *= 2;
    return limit_ns;
}

static void report(io *self, const tieri_transfer *item, uint64_t out_ns)
{
    char work[WATCH_TEXT_BYTES] = "";
    if (item->request->describe)
        item->request->describe(item->request, work, sizeof work);
    self->stats.stuck_count++;
    log_warn(
        "a %s of %llu bytes at offset %llu of %s has been in flight for %.3g s%s%s%s: the drive "
        "or its file system does not answer; the run waits for it",
        item->direction == IO_READ ? "read" : "write", (unsigned long long)item->left_bytes,
        (unsigned long long)item->file_offset, self->target->files[item->drive_idx].path,
        (double)out_ns * 1e-9, *work ? " (" : "", work, *work ? ")" : "");
}

/* Reports what is over its limit; returns when the next one will be. */
static uint64_t look(io *self, uint64_t now_ns)
{
    uint64_t next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < self->transfer_count; i++) {
        tieri_transfer *item = &self->transfers[i];
        if (!item->request)
            continue;
        uint64_t out_ns = now_ns - item->issued_ns;
        if (out_ns >= limit_of(self, item)) {
            report(self, item, out_ns);
            while (item->report_count < WATCH_DOUBLINGS_MAX && limit_of(self, item) <= out_ns)
                item->report_count++;
        }
        next_ns = size_min(next_ns, item->issued_ns + limit_of(self, item));
    }
    return next_ns;
}

/* Makes the descriptor readable at `at_ns`, or earlier where it is set so already. */
static void set_timer(io *self, uint64_t at_ns)
{
    if (at_ns == UINT64_MAX || (self->timer_at_ns && self->timer_at_ns <= at_ns))
        return;
    at_ns = size_max(at_ns, 1); /* 0 would stop the timer; what is past fires at once */
    const struct itimerspec when = {.it_value = {.tv_sec = (time_t)(at_ns / 1000000000u),
                                                 .tv_nsec = (long)(at_ns % 1000000000u)}};
    if (timerfd_settime(self->timer_fd, TFD_TIMER_ABSTIME, &when, NULL) == 0)
        self->timer_at_ns = at_ns;
}

void tieri_watch(io *self)
{
    bool held = self->faults.held.first != NULL;
    if (!held && !self->stuck_ns && !self->timer_at_ns) /* a timer that fired is to be drained */
        return;
    uint64_t now_ns = clock_ns(), next_ns = tieri_faults_next_ns(&self->faults), expirations;
    if (self->timer_at_ns && self->timer_at_ns <= now_ns &&
        read(self->timer_fd, &expirations, sizeof expirations) > 0)
        self->timer_at_ns = 0;
    if (self->stuck_ns) {
        if (self->look_ns && now_ns >= self->look_ns)
            self->look_ns = self->out_count ? look(self, now_ns) : 0;
        else if (!self->look_ns && self->out_count)
            self->look_ns = now_ns + self->stuck_ns;
        if (self->look_ns)
            next_ns = size_min(next_ns, self->look_ns);
    }
    set_timer(self, next_ns);
}
