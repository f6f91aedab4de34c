/* Requests, which are cut into transfers and put together again, and the watch over their time. See
 * io.h for the contract and io_internal.h for the layers below. Owner thread only, except io_sync.
 * io_create (io_open.c) allocates everything.
 *
 *   request   QUEUED --issue_one--> ISSUED (all transfers out) --finish--> DONE --io_poll--> caller
 *   transfer  free --issue_one--> backend --finish--> free | retry --> backend
 *
 * The head of each direction's queue is the only request that may be partly issued. */
#include "tiers/io.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/size.h"
#include "tiers/io_internal.h"
#include "tiers/sim.h"

/* After so many tries in a row that move nothing, EAGAIN counts as an error. */
enum { IO_RETRIES_MAX = 4096 };

enum { WATCH_TEXT_BYTES = 160, WATCH_DOUBLINGS_MAX = 40 };

/* A process that a signal has stopped finds all limits passed, with completions about to arrive. So
 * a late transfer is given up only if it is still out after this part of the limit, and after a
 * second at the most. */
enum { WATCH_GRACE_PART = 16 };

#define WATCH_GRACE_NS_MAX 1000000000u

static_assert(IO_READ == 0 && IO_WRITE == 1, "directions index the statistics");

static void list_push(tieri_request_list *list, io_request *request)
{
    request->next = NULL;
    if (list->last)
        list->last->next = request;
    else
        list->first = request;
    list->last = request;
}

static io_request *list_pop(tieri_request_list *list)
{
    io_request *request = list->first;
    list->first = request->next;
    if (!list->first)
        list->last = NULL;
    request->next = NULL;
    return request;
}

static void list_remove(tieri_request_list *list, io_request *request)
{
    io_request *before = NULL;
    for (io_request *at = list->first; at != request; at = at->next)
        before = at;
    if (before)
        before->next = request->next;
    else
        list->first = request->next;
    if (list->last == request)
        list->last = before;
    request->next = NULL;
}

static void event_signal(io *self)
{
    if (self->signalled)
        return;
    (void)eventfd_write(self->event_fd, 1);
    self->signalled = true;
}

void tieri_event_drain(io *self)
{
    eventfd_t count;
    (void)eventfd_read(self->event_fd, &count);
    self->signalled = false;
}

/* Sleeps until io_poll has work. */
static void event_wait(const io *self)
{
    struct pollfd waiter = {.fd = self->epoll_fd, .events = POLLIN};
    while (poll(&waiter, 1, -1) < 0 && errno == EINTR)
        ;
}

/* True if another request goes first and is not completely with the backend yet. */
static bool is_behind(const io_request *request)
{
    const io_request *other = request->behind;
    return other && other->result >= 0 && other->issued_bytes < other->size_bytes;
}

/* True if transfers are watched for their time. */
static bool watches_time(const io *self)
{
    return self->stuck_ns || self->stop_ns;
}

/* ---- transfers ---- */

static void hand_over(io *self, tieri_transfer *item)
{
    self->out_count++;
    self->stats.transfers[item->direction]++;
    item->ask_bytes = item->left_bytes;
    if (watches_time(self) && item->retry_count == 0) {
        item->issued_ns = clock_ns();
        item->late_ns = 0;
        item->report_count = 0;
    }
    if (!self->faults.active || tieri_faults_before(&self->faults, item))
        self->backend->submit(self->state, item);
}

void io_forget(io *self, const io_request *request)
{
    for (io_request *at = self->queue[!request->direction].first; at; at = at->next)
        if (at->behind == request)
            at->behind = NULL;
}

/* Issues the next transfer of the direction's first request. False if there is none, or no free
 * transfer. */
static bool issue_one(io *self, enum io_direction direction)
{
    io_request *request = self->queue[direction].first;
    if (!request || !self->unused[direction].first || is_behind(request))
        return false;
    tieri_transfer *item = tieri_list_pop(&self->unused[direction]);
    slab_piece piece;
    slab_map(self->target, request->offset + request->issued_bytes,
             request->size_bytes - request->issued_bytes, &piece);
    item->request = request;
    item->data = (unsigned char *)request->data + request->issued_bytes;
    item->drive_idx = piece.drive_idx;
    item->file_offset = piece.file_offset;
    item->left_bytes =
        self->backend->span(self->state, item->data, size_min(piece.size_bytes, self->block_bytes));
    item->retry_count = 0;
    item->begin_ns = clock_ns();
    if (request->issued_bytes == 0)
        request->start_ns = item->begin_ns;
    assert(item->left_bytes > 0);
    request->issued_bytes += item->left_bytes;
    assert(request->issued_bytes <= request->size_bytes);
    request->in_flight++;
    if (request->issued_bytes == request->size_bytes)
        list_pop(&self->queue[direction]);
    hand_over(self, item);
    return true;
}

static uint32_t issue_all(io *self)
{
    uint32_t count = 0;
    for (tieri_transfer *item; (item = tieri_list_pop(&self->again)); count++)
        hand_over(self, item);
    /* One transfer of each direction in turn: neither keeps the other out of the kernel's queue. */
    for (bool more = true; more;) {
        bool read_issued = issue_one(self, IO_READ);
        bool write_issued = issue_one(self, IO_WRITE);
        count += (uint32_t)read_issued + (uint32_t)write_issued;
        more = read_issued || write_issued;
    }
    return count;
}

int io_request_error(const io *self, const io_request *request)
{
    if (request->result == 0)
        return 0;
    const char *path = self->target->files[request->failed_drive_idx].path;
    const char *verb = request->direction == IO_READ ? "read" : "write";
    unsigned long long size = request->failed_bytes, offset = request->failed_offset;
    if (request->failed_result < 0)
        err_errno((int)-request->failed_result, "%s of %llu bytes at offset %llu of %s", verb, size,
                  offset, path);
    else if (request->direction == IO_READ)
        err_set(request->result,
                "read of %llu bytes at offset %llu of %s: end of file; the slab has been cut off",
                size, offset, path);
    else
        err_set(request->result,
                "write of %llu bytes at offset %llu of %s: the kernel wrote nothing", size, offset,
                path);
    return request->result;
}

/* Fails the request: its first error decides its result, and the rest of it is not issued. */
static void fail_request(io *self, const tieri_transfer *item, int code)
{
    io_request *request = item->request;
    if (request->result < 0)
        return;
    request->result = code;
    request->failed_drive_idx = item->drive_idx;
    request->failed_offset = item->file_offset;
    request->failed_bytes = item->left_bytes;
    request->failed_result = item->result;
    if (self->queue[item->direction].first == request)
        list_pop(&self->queue[item->direction]); /* the rest of it stays unissued */
    io_request_error(self, request);
    if (self->first_error.code == 0)
        err_save(&self->first_error, code);
}

/* The bytes that are usable: from there the transfer can continue. */
static uint64_t usable_progress(const io *self, const tieri_transfer *item)
{
    if (item->result <= 0)
        return 0;
    const slab_file *file = &self->target->files[item->drive_idx];
    uint64_t progress = (uint64_t)item->result;
    assert(progress <= item->ask_bytes);
    if (file->direct && progress < item->left_bytes)
        progress -= progress % file->align_bytes; /* direct I/O cannot continue within a block */
    return progress;
}

static io_latency *latency_of(const io *self, uint32_t drive_idx, enum io_direction direction)
{
    return &self->latencies[drive_idx * TIERI_DIRECTIONS + (uint32_t)direction];
}

static void finish(io *self, tieri_transfer *item)
{
    io_request *request = item->request;
    assert(self->out_count > 0);
    assert(request->in_flight > 0);
    self->out_count--;
    if (item->result > 0)
        progress_note();
    bool retry = item->result == -EINTR || item->result == -EAGAIN;
    uint64_t progress = usable_progress(self, item);
    self->stats.bytes[item->direction] += progress;
    request->done_bytes += progress;
    item->retry_count = progress ? 0 : item->retry_count + 1;
    if (progress < item->left_bytes) {
        self->stats.retry_count += retry;
        self->stats.short_count += progress > 0;
        bool goes_on = progress > 0 || (retry && item->retry_count < IO_RETRIES_MAX);
        if (goes_on && request->result == 0) {
            item->data += progress;
            item->file_offset += progress;
            item->left_bytes -= progress;
            tieri_list_push(&self->again, item);
            return;
        }
        if (!goes_on)
            fail_request(self, item, item->result < 0 ? (int)item->result : -EIO);
    } else {
        io_latency_add(latency_of(self, item->drive_idx, item->direction),
                       clock_ns() - item->begin_ns);
    }
    assert(request->done_bytes <= request->issued_bytes);
    item->request = NULL;
    tieri_list_push(&self->unused[item->direction], item);
    request->in_flight--;
    if (request->in_flight == 0 &&
        (request->result < 0 || request->issued_bytes == request->size_bytes)) {
        request->end_ns = clock_ns();
        io_forget(self, request);
        list_push(&self->done, request);
    }
}

/* Hands a transfer that the faults held back to the backend. */
static void unpark(io *self, tieri_transfer *item)
{
    item->parked = false;
    item->fault = IO_FAULT_NONE;
    self->backend->submit(self->state, item);
}

static uint32_t collect(io *self)
{
    uint32_t count = 0;
    for (tieri_transfer *item; (item = self->backend->reap(self->state)); count++)
        if (!self->faults.active || !tieri_faults_after(&self->faults, item))
            finish(self, item);
    if (self->faults.active)
        for (tieri_transfer *item; (item = tieri_faults_release(&self->faults)); count++) {
            if (item->parked)
                unpark(self, item);
            else
                finish(self, item);
        }
    return count;
}

/* ---- the watch over time ----
 *
 *   nothing out --issue--> look_ns = now + first limit --timer--> look: report, or give up
 *        ^                                                   |    look_ns = next limit
 *        '----------------- timer, and nothing out ----------'
 *
 * It wakes the owner when a held completion is due, names transfers that do not come back, and
 * gives them up after a while. The owner sleeps in poll(2) without a limit, so the timer is part of
 * the descriptor that it sleeps on. While transfers come and go the timer is not touched: it fires
 * once within the first limit and then looks at what is in flight. */

static uint64_t grace_ns(const io *self)
{
    return size_min(self->stop_ns / WATCH_GRACE_PART, WATCH_GRACE_NS_MAX);
}

/* How long the transfer may be in flight before the next warning about it. */
static uint64_t stuck_limit_ns(const io *self, const tieri_transfer *item)
{
    uint64_t limit_ns = self->stuck_ns;
    for (uint32_t i = 0; i < item->report_count && limit_ns < UINT64_MAX / 4; i++)
        limit_ns *= 2;
    return limit_ns;
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

static void report_stuck(io *self, const tieri_transfer *item, uint64_t out_ns)
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
             (double)out_ns * 1e-9, name_work(item, work), end);
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
        name_work(item, work), (double)out_ns * 1e-9, (double)self->stop_ns * 1e-9);
}

/* When to look first at a transfer that was issued at `since_ns`. */
static uint64_t first_look_ns(const io *self, uint64_t since_ns)
{
    uint64_t stuck_ns = self->stuck_ns ? self->stuck_ns : UINT64_MAX;
    uint64_t limit_ns = size_min(stuck_ns, self->stop_ns ? self->stop_ns : UINT64_MAX);
    return limit_ns < UINT64_MAX - since_ns ? since_ns + limit_ns : UINT64_MAX;
}

/* Reports a transfer that has passed its limit, or gives it up. *next_ns becomes no later than its
 * next limit. */
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
    if (out_ns >= stuck_limit_ns(self, item)) {
        report_stuck(self, item, out_ns);
        while (item->report_count < WATCH_DOUBLINGS_MAX && stuck_limit_ns(self, item) <= out_ns)
            item->report_count++;
    }
    *next_ns = size_min(*next_ns, item->issued_ns + stuck_limit_ns(self, item));
    return 0;
}

static int look_at_all(io *self, uint64_t now_ns, uint64_t *next_ns)
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

static int watch(io *self)
{
    bool held = self->faults.held.first != NULL, watches = watches_time(self);
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

/* ---- progress ---- */

/* Collects, issues and flushes. Returns how many transfers moved on; *rc is the state of the
 * backend. */
static uint32_t progress_once(io *self, int *rc)
{
    uint32_t count = collect(self);
    count += issue_all(self);
    *rc = self->backend->flush(self->state);
    if (*rc >= 0 && self->faults.active && tieri_faults_broken(&self->faults))
        *rc = err_set(-EIO, "simulated: after %llu transfers",
                      (unsigned long long)self->faults.number);
    if (*rc < 0)
        self->broken = err_prefix(*rc, "the queue of reads and writes to the nvme tier broke");
    if (*rc > 0)
        event_signal(self); /* there is work left for which no completion will wake the owner */
    return count;
}

/* Moves everything as far as possible without blocking. If nothing moves, it drains event_fd and
 * looks at everything once more: what comes after the drain makes event_fd readable again. */
static int progress(io *self)
{
    if (self->broken)
        return err_set(ERR_POISONED, "the queue of reads and writes broke before: %s",
                       self->first_error.code ? self->first_error.text : err_name(self->broken));
    int rc = 0;
    uint32_t count = progress_once(self, &rc);
    if (rc >= 0 && count == 0) {
        tieri_event_drain(self);
        progress_once(self, &rc);
    }
    if (rc >= 0)
        self->broken = rc = watch(self);
    if (rc < 0 && self->first_error.code == 0)
        err_save(&self->first_error, rc);
    return rc < 0 ? rc : 0;
}

/* ---- the caller's side ---- */

int io_submit(io *self, io_request *request)
{
    uint64_t total_bytes = self->target->total_bytes;
    if (request->direction != IO_READ && request->direction != IO_WRITE)
        return err_set(-EINVAL, "io request: direction %d", (int)request->direction);
    if (request->size_bytes == 0 || request->size_bytes % TIERI_ALIGN_BYTES ||
        request->offset % TIERI_ALIGN_BYTES || (uintptr_t)request->data % TIERI_ALIGN_BYTES ||
        !request->data)
        return err_set(-EINVAL,
                       "io request: offset %llu, %llu bytes, memory %p: all must be multiples of "
                       "4 KiB, and none empty",
                       (unsigned long long)request->offset, (unsigned long long)request->size_bytes,
                       request->data);
    if (request->offset > total_bytes || request->size_bytes > total_bytes - request->offset)
        return err_set(-EINVAL,
                       "io request: %llu bytes at offset %llu go beyond the slab's %llu bytes",
                       (unsigned long long)request->size_bytes, (unsigned long long)request->offset,
                       (unsigned long long)total_bytes);
    if (self->taken_count == self->request_capacity)
        return err_set(-EAGAIN, "io: all %u requests are taken; poll first",
                       self->request_capacity);
    request->result = 0;
    request->start_ns = request->end_ns = 0;
    request->issued_bytes = request->done_bytes = 0;
    request->in_flight = 0;
    request->failed_result = 0;
    /* later nobody would notice that the memory of that request is reused */
    if (!is_behind(request))
        request->behind = NULL;
    self->taken_count++;
    list_push(&self->queue[request->direction], request);
    event_signal(self);
    return 0;
}

uint32_t io_room(const io *self)
{
    assert(self->taken_count <= self->request_capacity);
    return self->request_capacity - self->taken_count;
}

int io_poll(io *self, io_request **done, size_t max)
{
    TRY(progress(self));
    size_t count = 0;
    while (count < max && count < INT32_MAX && self->done.first) {
        done[count++] = list_pop(&self->done);
        self->taken_count--;
    }
    if (self->done.first)
        event_signal(self);
    return (int)count;
}

int io_event_fd(const io *self)
{
    return self->epoll_fd;
}

int io_transfer(io *self, enum io_direction direction, uint64_t offset, void *data,
                uint64_t size_bytes)
{
    io_request request = {
        .direction = direction, .offset = offset, .data = data, .size_bytes = size_bytes};
    TRY(io_submit(self, &request));
    int rc = progress(self);
    while (rc == 0 && request.end_ns == 0) {
        event_wait(self);
        rc = progress(self);
    }
    if (rc < 0)
        return rc; /* poisoned: nobody reads the request again */
    list_remove(&self->done, &request);
    self->taken_count--;
    if (self->done.first)
        event_signal(self);
    return io_request_error(self, &request);
}

const err_record *io_error(const io *self)
{
    return &self->first_error;
}

const slab *io_target(const io *self)
{
    return self->target;
}

/* Reads nothing that the owner changes: target, backend and its store stay as io_create left
 * them. */
int io_sync(io *self)
{
    int rc = failpoint("slab.sync");
    if (rc < 0)
        return err_prefix(rc,
                          "fdatasync of the slab %s: what was written since the last commit may be "
                          "lost",
                          self->target->files[0].path);
    if (self->backend != &tieri_sim_backend)
        return slab_sync(self->target);
    sim_store_sync(tieri_sim_store(self->state));
    return 0;
}

void io_get_stats(const io *self, io_stats *stats)
{
    *stats = self->stats;
}

const io_latency *io_get_latency(const io *self, uint32_t drive_idx, enum io_direction direction)
{
    return drive_idx < self->target->drive_count ? latency_of(self, drive_idx, direction) : NULL;
}

void io_clear_latencies(io *self)
{
    memset(self->latencies, 0,
           (size_t)self->target->drive_count * TIERI_DIRECTIONS * sizeof *self->latencies);
}
