/* The watch over time: wakes the owner when a held completion is due, names transfers that do not come
 * back, and after a while gives them up. The owner sleeps in poll(2) without a limit, so the timer is part of
 * the descriptor that it sleeps on. Owner thread only; allocates nothing.
 *
 *   nothing out --issue--> look_ns = now + first limit --timer--> look: report, or give up
 *        ^                                                   |      look_ns = next limit of what is out
 *        '------------------ timer, and nothing out ---------'
 *
 * While transfers come and go the timer is not touched: it fires once in the first limit, and then looks at
 * what is out. */
#include <errno.h>
#include <stdio.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "tiers/io_internal.h"

enum { WATCH_TEXT_BYTES = 160, WATCH_DOUBLINGS_MAX = 40 };

/* A process that was stopped by a signal finds all limits passed, with completions about to arrive. So what
 * is late is given up when it is still out this part of the limit later, a second at the most. */
enum { WATCH_GRACE_PART = 16 };

#define WATCH_GRACE_NS_MAX 1000000000u

static uint64_t grace_ns(const io *self)
{
    return size_min(self->stop_ns / WATCH_GRACE_PART, WATCH_GRACE_NS_MAX);
}

/* How long the transfer may be out before the next warning about it. */
static uint64_t limit_of(const io *self, const tieri_transfer *item)
{
    uint64_t limit_ns = self->stuck_ns;
    for (uint32_t i = 0; i < item->report_count && limit_ns < UINT64_MAX / 4; i++)
        limit_ns *= 2;
    return limit_ns;
}

/* " (read of unit 3, tile 2)", or nothing where the work has no name. */
static const char *work_of(const tieri_transfer *item, char text[WATCH_TEXT_BYTES + 4])
{
    char work[WATCH_TEXT_BYTES] = "";
    if (item->request->describe)
        item->request->describe(item->request, work, sizeof work);
    snprintf(text, WATCH_TEXT_BYTES + 4, *work ? " (%s)" : "%s", work);
    return text;
}

static void report(io *self, const tieri_transfer *item, uint64_t out_ns)
{
    char work[WATCH_TEXT_BYTES + 4], end[64] = "the run waits for it";
    if (self->stop_ns)
        snprintf(end, sizeof end, "the run waits for it up to %.3g s",
                 (double)self->stop_ns * 1e-9);
    self->stats.stuck_count++;
    log_warn("a %s of %llu bytes at offset %llu of %s has been in flight for %.3g s%s: the drive "
             "or its file system does not answer; %s",
             item->direction == IO_READ ? "read" : "write", (unsigned long long)item->left_bytes,
             (unsigned long long)item->file_offset, self->target->files[item->drive_idx].path,
             (double)out_ns * 1e-9, work_of(item, work), end);
}

static int give_up(const io *self, const tieri_transfer *item, uint64_t out_ns)
{
    char work[WATCH_TEXT_BYTES + 4];
    return err_set(
        -ETIMEDOUT,
        "the %s of %llu bytes at offset %llu of %s%s has been in flight for %.3g s, longer than "
        "the %.3g s of debug.io.stop_seconds: the drive or its file system does not answer; the "
        "last "
        "commit is intact: check the drive and run the same command again",
        item->direction == IO_READ ? "read" : "write", (unsigned long long)item->left_bytes,
        (unsigned long long)item->file_offset, self->target->files[item->drive_idx].path,
        work_of(item, work), (double)out_ns * 1e-9, (double)self->stop_ns * 1e-9);
}

/* When what came out last at `since_ns` and is not back is to be looked at first. */
static uint64_t first_limit(const io *self, uint64_t since_ns)
{
    uint64_t stuck_ns = self->stuck_ns ? self->stuck_ns : UINT64_MAX;
    uint64_t limit_ns = size_min(stuck_ns, self->stop_ns ? self->stop_ns : UINT64_MAX);
    return limit_ns < UINT64_MAX - since_ns ? since_ns + limit_ns : UINT64_MAX;
}

/* Reports one transfer that is over its limit, or gives it up; *next_ns becomes no later than its next
 * limit. */
static int look_at(io *self, tieri_transfer *item, uint64_t now_ns, uint64_t *next_ns)
{
    uint64_t out_ns = now_ns - item->issued_ns;
    if (self->stop_ns && out_ns >= self->stop_ns) {
        if (item->late_ns == 0)
            item->late_ns = now_ns;
        if (now_ns - item->late_ns >= grace_ns(self) && now_ns > item->late_ns)
            return give_up(self, item, out_ns);
        *next_ns = size_min(*next_ns, item->late_ns + size_max(grace_ns(self), 1));
    } else if (self->stop_ns) {
        *next_ns = size_min(*next_ns, item->issued_ns + self->stop_ns);
    }
    if (!self->stuck_ns)
        return 0;
    if (out_ns >= limit_of(self, item)) {
        report(self, item, out_ns);
        while (item->report_count < WATCH_DOUBLINGS_MAX && limit_of(self, item) <= out_ns)
            item->report_count++;
    }
    *next_ns = size_min(*next_ns, item->issued_ns + limit_of(self, item));
    return 0;
}

static int look(io *self, uint64_t now_ns, uint64_t *next_ns)
{
    *next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < self->transfer_count; i++)
        if (self->transfers[i].request)
            TRY(look_at(self, &self->transfers[i], now_ns, next_ns));
    return 0;
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

int tieri_watch(io *self)
{
    bool held = self->faults.held.first != NULL, watches = tieri_watches(self);
    if (!held && !watches && !self->timer_at_ns) /* a timer that fired is to be drained */
        return 0;
    uint64_t now_ns = clock_ns(), next_ns = tieri_faults_next_ns(&self->faults), expirations;
    if (self->timer_at_ns && self->timer_at_ns <= now_ns &&
        read(self->timer_fd, &expirations, sizeof expirations) > 0)
        self->timer_at_ns = 0;
    if (watches) {
        if (self->look_ns && now_ns >= self->look_ns) {
            self->look_ns = 0;
            if (self->out_count)
                TRY(look(self, now_ns, &self->look_ns));
        } else if (!self->look_ns && self->out_count) {
            self->look_ns = first_limit(self, now_ns);
        }
        if (self->look_ns)
            next_ns = size_min(next_ns, self->look_ns);
    }
    set_timer(self, next_ns);
    return 0;
}
