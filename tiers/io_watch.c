/* The watch over drives that do not answer. Owner thread only; allocates nothing.
 *
 *   nothing out --issue--> look_ns = now + first limit --timer--> look: report, or give up
 *        ^                                                   |    look_ns = next limit
 *        '----------------- timer, and nothing out ----------'
 *
 * It wakes the owner when a held completion is due, reports drives that do not answer, and gives a
 * transfer up after a while. The owner sleeps in poll(2) without a limit, so the timer is part of
 * the descriptor that it sleeps on. While transfers come and go the timer is not touched: it fires
 * once within the first limit and then looks at what is in flight.
 *
 * A drive that hangs holds many transfers, so the reports are about drives:
 *
 *   answers --its oldest transfer exceeds stuck_ns: warning--> silent --2, 4, 8, ... x: warning--,
 *      ^                                                       |  ^-----------------------------'
 *      '-- no transfer exceeds stuck_ns any more: one line ----' */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "tiers/io_internal.h"

enum { WATCH_TEXT_BYTES = 160, WATCH_DOUBLINGS_MAX = 40 };

/* A process that a signal has stopped finds all limits passed, with completions about to arrive. So
 * a late transfer is given up only if it is still out after this part of the limit, and after a
 * second at the most. */
enum { WATCH_GRACE_PART = 16 };

#define WATCH_GRACE_NS_MAX 1000000000u

/* The transfers of one drive that are in flight. */
struct outstanding {
    const tieri_transfer *oldest;      /* NULL: there are none */
    uint32_t counts[TIERI_DIRECTIONS]; /* those that wait at least half as long as the oldest */
};
typedef struct outstanding outstanding;

static uint64_t grace_ns(const io *self)
{
    return size_min(self->stop_ns / WATCH_GRACE_PART, WATCH_GRACE_NS_MAX);
}

/* Writes " (read of unit 3, tile 2)", or nothing if the work has no name. */
static const char *name_work(const tieri_transfer *item, char text[WATCH_TEXT_BYTES + 4])
{
    char work[WATCH_TEXT_BYTES] = "";
    if (item->request->describe)
        item->request->describe(item->request, work, sizeof work);
    snprintf(text, WATCH_TEXT_BYTES + 4, *work ? " (%s)" : "%s", work);
    return text;
}

static const char *name_direction(enum io_direction direction)
{
    return direction == IO_READ ? "read" : "write";
}

/* ---- silent drives ---- */

/* How long a drive may be silent before the next warning about it. */
static uint64_t silence_limit_ns(const io *self, const tieri_silence *silence)
{
    uint64_t limit_ns = self->stuck_ns;
    for (uint32_t i = 0; i < silence->report_count && limit_ns < UINT64_MAX / 4; i++)
        limit_ns *= 2;
    return limit_ns;
}

/* True if a warning about the drive is due, whose oldest transfer began at begin_ns. Then the next
 * one is due after twice the time. */
static bool is_due(io *self, uint32_t drive_idx, uint64_t begin_ns, uint64_t now_ns)
{
    tieri_silence *silence = &self->silences[drive_idx];
    uint64_t silent_ns = now_ns - (silence->since_ns ? silence->since_ns : begin_ns);
    if (silent_ns < silence_limit_ns(self, silence))
        return false;
    if (silence->since_ns == 0) {
        silence->since_ns = begin_ns;
        self->silent_count++;
    }
    while (silence->report_count < WATCH_DOUBLINGS_MAX &&
           silence_limit_ns(self, silence) <= silent_ns)
        silence->report_count++;
    self->stats.stuck_count++;
    return true;
}

/* Writes how long the run will wait. */
static const char *name_end(const io *self, char text[64])
{
    if (self->stop_ns)
        snprintf(text, 64, "waits for it up to %.3g s", (double)self->stop_ns * 1e-9);
    else
        snprintf(text, 64, "waits for it");
    return text;
}

static void report(const io *self, uint32_t drive_idx, const outstanding *out, uint64_t now_ns)
{
    char work[WATCH_TEXT_BYTES + 4], end[64];
    const tieri_transfer *item = out->oldest;
    log_warn(
        "the drive or file system of %s does not answer: %u reads and %u writes wait for up to "
        "%.3g s; the oldest is a %s of %llu bytes at offset %llu%s; the run %s",
        self->target->files[drive_idx].path, out->counts[IO_READ], out->counts[IO_WRITE],
        (double)(now_ns - item->issued_ns) * 1e-9, name_direction(item->direction),
        (unsigned long long)item->left_bytes, (unsigned long long)item->file_offset,
        name_work(item, work), name_end(self, end));
}

void tieri_watch_end(io *self, uint32_t drive_idx)
{
    tieri_silence *silence = &self->silences[drive_idx];
    if (silence->since_ns == 0)
        return;
    /* At the level of the warnings, so that all readers of them see their end. */
    log_warn("the drive of %s answers again, after %.3g s", self->target->files[drive_idx].path,
             (double)(clock_ns() - silence->since_ns) * 1e-9);
    *silence = (tieri_silence){0};
    self->silent_count--;
}

void tieri_watch_first_read(io *self, uint32_t drive_idx, uint64_t begin_ns)
{
    uint64_t now_ns = clock_ns();
    char end[64];
    if (self->stuck_ns && is_due(self, drive_idx, begin_ns, now_ns))
        log_warn("the drive or file system of %s does not answer: its first read waits for %.3g s; "
                 "the start %s",
                 self->target->files[drive_idx].path, (double)(now_ns - begin_ns) * 1e-9,
                 name_end(self, end));
}

/* Finds the oldest transfer of each drive, then counts those that wait with it. */
static void list_outstanding(const io *self, uint64_t now_ns, outstanding out[DRIVES_MAX])
{
    memset(out, 0, DRIVES_MAX * sizeof *out);
    for (uint32_t i = 0; i < self->transfer_count; i++) {
        const tieri_transfer *item = &self->transfers[i];
        outstanding *drive = &out[item->drive_idx];
        if (item->request && (!drive->oldest || item->issued_ns < drive->oldest->issued_ns))
            drive->oldest = item;
    }
    for (uint32_t i = 0; i < self->transfer_count; i++) {
        const tieri_transfer *item = &self->transfers[i];
        outstanding *drive = &out[item->drive_idx];
        if (item->request && now_ns - item->issued_ns >= (now_ns - drive->oldest->issued_ns) / 2)
            drive->counts[item->direction]++;
    }
}

/* Reports the drives that have passed a limit. *next_ns becomes no later than the next limit. */
static void look_at_drives(io *self, uint64_t now_ns, uint64_t *next_ns)
{
    outstanding out[DRIVES_MAX];
    list_outstanding(self, now_ns, out);
    for (uint32_t d = 0; d < self->target->drive_count; d++) {
        if (!out[d].oldest)
            continue;
        uint64_t begin_ns = out[d].oldest->issued_ns;
        const tieri_silence *silence = &self->silences[d];
        if (is_due(self, d, begin_ns, now_ns))
            report(self, d, &out[d], now_ns);
        if (silence->since_ns)
            begin_ns = silence->since_ns;
        *next_ns = size_min(*next_ns, begin_ns + silence_limit_ns(self, silence));
    }
}

/* Tells which silent drives have no transfer any more that is older than the limit. */
static void look_at_silent(io *self, uint64_t now_ns)
{
    outstanding out[DRIVES_MAX];
    list_outstanding(self, now_ns, out);
    for (uint32_t d = 0; d < self->target->drive_count; d++)
        if (!out[d].oldest || now_ns - out[d].oldest->issued_ns < self->stuck_ns)
            tieri_watch_end(self, d);
}

/* ---- transfers that are given up ---- */

static int give_up(const io *self, const tieri_transfer *item, uint64_t out_ns)
{
    char work[WATCH_TEXT_BYTES + 4];
    return err_set(
        -ETIMEDOUT,
        "the %s of %llu bytes at offset %llu of %s%s has been in flight for %.3g s, longer than "
        "the %.3g s of debug.io.stop_seconds: the drive or its file system does not answer; the "
        "last commit is intact: check the drive and run the same command again",
        name_direction(item->direction), (unsigned long long)item->left_bytes,
        (unsigned long long)item->file_offset, self->target->files[item->drive_idx].path,
        name_work(item, work), (double)out_ns * 1e-9, (double)self->stop_ns * 1e-9);
}

/* Gives the transfer up if it has passed the last limit. *next_ns becomes no later than the time of
 * its next look. */
static int look_at(const io *self, tieri_transfer *item, uint64_t now_ns, uint64_t *next_ns)
{
    uint64_t out_ns = now_ns - item->issued_ns;
    if (out_ns < self->stop_ns) {
        *next_ns = size_min(*next_ns, item->issued_ns + self->stop_ns);
        return 0;
    }
    if (item->late_ns == 0)
        item->late_ns = now_ns;
    if (now_ns - item->late_ns >= grace_ns(self) && now_ns > item->late_ns)
        return give_up(self, item, out_ns);
    *next_ns = size_min(*next_ns, item->late_ns + size_max(grace_ns(self), 1));
    return 0;
}

/* ---- the looks ---- */

/* When to look first at a transfer that was issued at `since_ns`. */
static uint64_t first_look_ns(const io *self, uint64_t since_ns)
{
    uint64_t stuck_ns = self->stuck_ns ? self->stuck_ns : UINT64_MAX;
    uint64_t limit_ns = size_min(stuck_ns, self->stop_ns ? self->stop_ns : UINT64_MAX);
    return limit_ns < UINT64_MAX - since_ns ? since_ns + limit_ns : UINT64_MAX;
}

static int look_at_all(io *self, uint64_t now_ns, uint64_t *next_ns)
{
    *next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < self->transfer_count && self->stop_ns; i++)
        if (self->transfers[i].request)
            TRY(look_at(self, &self->transfers[i], now_ns, next_ns));
    if (self->stuck_ns)
        look_at_drives(self, now_ns, next_ns);
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
    if (self->silent_count > 0)
        look_at_silent(self, now_ns);
    if (watches) {
        if (self->look_ns && now_ns >= self->look_ns) {
            self->look_ns = 0;
            if (self->out_count)
                TRY(look_at_all(self, now_ns, &self->look_ns));
        } else if (!self->look_ns && self->out_count) {
            self->look_ns = first_look_ns(self, now_ns);
        }
        if (self->look_ns)
            next_ns = size_min(next_ns, self->look_ns);
    }
    set_timer(self, next_ns);
    return 0;
}
