/* Judges ranks that wait for others: whether that is a failure, and whose. And records failures.
 * All with comm.mutex held. See control_internal.h. */
#include "comm/control_internal.h"

#include <errno.h>
#include <stdio.h>
#include <sys/eventfd.h>

enum { ALL_WAIT_BEATS = 3 }; /* heartbeats without progress that prove that all wait */

int64_t commi_beat_interval_ns(const commi_control *self)
{
    int64_t second_ns = 1000000000, tenth_ns = commi_timeout_ns(self->owner) / 10;
    return tenth_ns < second_ns ? tenth_ns : second_ns;
}

/* ---- failures ---- */

void commi_control_record(commi_control *self, int code, const char *text, bool is_own)
{
    bool is_first = self->owner->failure.code == 0;
    if (!is_first && !(self->is_own && !is_own))
        return;
    self->owner->failure.code = code;
    snprintf(self->owner->failure.text, sizeof self->owner->failure.text, "%s", text);
    self->is_own = is_own;
    if (is_first) {
        self->failed_ns = commi_now_ns();
        atomic_store_explicit(&self->owner->is_aborted, true, memory_order_release);
        (void)eventfd_write(self->abort_fd, 1);
    }
    commi_control_wake(self);
}

/* Returns the label that a rank sent last. Only the hub has the labels of all ranks. */
static const char *label_of(const commi_control *self, uint32_t rank)
{
    return rank == self->owner->rank ? self->label
                                     : self->links[commi_is_hub(self) ? rank : 0].label;
}

void commi_record_about(commi_control *self, uint32_t rank, int code, const char *event)
{
    const comm_rank *other = &self->owner->ranks[rank];
    const char *label = label_of(self, rank);
    char text[ERR_TEXT_BYTES];
    snprintf(text, sizeof text, "rank %u on host %s (process %lld) %s%s%s", rank, other->host,
             (long long)other->pid, event, label[0] ? "; last seen at " : "", label);
    commi_control_record(self, code, text, false);
}

/* ---- who hangs ---- */

/* When any rank last made progress. */
static int64_t last_progress_ns(const commi_control *self)
{
    int64_t last_ns = self->progress_ns;
    for (uint32_t r = 1; r < self->owner->world; r++)
        if (self->links[r].progress_ns > last_ns)
            last_ns = self->links[r].progress_ns;
    return last_ns;
}

unsigned commi_own_waits(const commi_control *self)
{
    unsigned waits = atomic_load(&self->owner->waits) ? COMMI_WAITS_BULK : 0;
    if (self->is_calling)
        waits |= COMMI_WAITS_CALL;
    if (self->is_calling && commi_is_meeting(self->call.kind))
        waits |= COMMI_WAITS_MEETING;
    return waits;
}

static unsigned waits_of(const commi_control *self, uint32_t rank)
{
    return rank == 0 ? commi_own_waits(self) : self->links[rank].waits;
}

/* Finds the rank that has made no progress for longest, among those that wait for nobody.
 * COMMI_RANK_ANY: all ranks wait. */
static uint32_t find_idle(commi_control *self)
{
    uint32_t idle = COMMI_RANK_ANY;
    int64_t idle_ns = INT64_MAX;
    for (uint32_t r = 0; r < self->owner->world; r++) {
        int64_t since_ns = r == 0 ? self->progress_ns : self->links[r].progress_ns;
        if (waits_of(self, r) || since_ns >= idle_ns)
            continue;
        idle = r;
        idle_ns = since_ns;
    }
    return idle;
}

/* Records that `rank` has not come to `what`; if that rank waits itself, it records a rank that
 * does not. */
static void record_missing(commi_control *self, uint32_t rank, const char *what)
{
    char event[2 * COMM_LABEL_BYTES + 64];
    double seconds = (double)commi_timeout_ns(self->owner) * 1e-9;
    bool is_first = self->owner->failure.code == 0;
    uint32_t idle = rank == COMMI_RANK_ANY || waits_of(self, rank) ? find_idle(self) : rank;
    if (idle != COMMI_RANK_ANY)
        rank = idle;
    if (rank == COMMI_RANK_ANY) {
        snprintf(event, sizeof event,
                 "no rank has got on for %.1f s, and all wait for others in %s: a network or a GPU "
                 "may stand still",
                 seconds, what);
        commi_control_record(self, -ETIMEDOUT, event, false);
        return;
    }
    snprintf(event, sizeof event, "has not come to %s, where others have waited for %.1f s", what,
             seconds);
    commi_record_about(self, rank, -ETIMEDOUT, event);
    if (is_first && rank == 0)
        self->reporter = 1; /* rank 0 hangs and cannot print */
}

/* True if nothing has been heard of another rank for some heartbeats. */
static bool is_silent(const commi_control *self, uint32_t rank, int64_t now_ns)
{
    return now_ns - self->links[rank].seen_ns > 3 * commi_beat_interval_ns(self);
}

/* Finds a rank that has not come to the hub's call: the lowest silent one, otherwise the lowest. 0:
 * all have come. */
static uint32_t find_missing(commi_control *self)
{
    int64_t now_ns = commi_now_ns();
    uint32_t lowest = 0;
    for (uint32_t r = 1; r < self->owner->world; r++) {
        if (atomic_load(&self->links[r].has_come))
            continue;
        if (is_silent(self, r, now_ns))
            return r;
        lowest = lowest ? lowest : r;
    }
    return lowest;
}

void commi_judge(commi_control *self, uint32_t rank, uint64_t number, const char *what)
{
    if (commi_now_ns() - last_progress_ns(self) <= commi_timeout_ns(self->owner))
        return; /* one rank works; the waiting rank will ask again */
    if (number == COMMI_NUMBER_BULK) {
        record_missing(self, rank, what);
        return;
    }
    if (self->is_calling) {
        uint32_t missing = find_missing(self);
        if (missing != 0) {
            record_missing(self, missing, self->call.what);
            return;
        }
    }
    if (self->call.number < number)
        record_missing(self, 0, what);
}

/* Records that `rank` has come to a meeting, and why that is a failure. */
static void record_meeting(commi_control *self, uint32_t rank, const char *label, const char *event)
{
    const comm_rank *other = &self->owner->ranks[rank];
    char text[ERR_TEXT_BYTES];
    snprintf(text, sizeof text, "rank %u on host %s (process %lld) has come to %s, and %s", rank,
             other->host, (long long)other->pid, label, event);
    commi_control_record(self, -ECONNRESET, text, !commi_is_hub(self));
}

/* True if a rank has said since the last progress what it waits for, and was heard of just now. One
 * that has become silent, in a debugger or on a machine that stands still, is judged by the timeout
 * alone. */
static bool is_heard(const commi_control *self, uint32_t rank, int64_t now_ns)
{
    int64_t since_ns = last_progress_ns(self) + 2 * commi_beat_interval_ns(self);
    return rank == 0 || (self->links[rank].seen_ns > since_ns && !is_silent(self, rank, now_ns));
}

void commi_check_meeting(commi_control *self, int64_t now_ns)
{
    uint32_t come = COMMI_RANK_ANY, left = COMMI_RANK_ANY;
    char event[2 * COMM_LABEL_BYTES];
    for (uint32_t r = 0; r < self->owner->world; r++) {
        unsigned waits = waits_of(self, r);
        if (waits == 0 || !is_heard(self, r, now_ns))
            return;
        if (waits & COMMI_WAITS_MEETING)
            come = r;
        else if (waits & COMMI_WAITS_BULK)
            left = r;
    }
    if (come == COMMI_RANK_ANY || left == COMMI_RANK_ANY ||
        now_ns - last_progress_ns(self) <= ALL_WAIT_BEATS * commi_beat_interval_ns(self))
        return;
    const char *label = label_of(self, come);
    snprintf(event, sizeof event, "rank %u waits for it in %s%s", left, label_of(self, left),
             commi_meeting_advice(label));
    record_meeting(self, come, label, event);
}

void commi_check_own_end(commi_control *self, int64_t now_ns)
{
    int64_t exit_ns = atomic_load(&self->owner->exit_ns);
    char event[COMM_LABEL_BYTES];
    if (self->failed_end[0] == '\0' || !commi_own_waits(self) ||
        now_ns - self->progress_ns <= exit_ns)
        return;
    snprintf(event, sizeof event, "the others go on %.1f s later", (double)exit_ns * 1e-9);
    record_meeting(self, self->owner->rank, self->failed_end, event);
}
