/* Requests, which are cut into transfers and put together again. See io.h for the contract and
 * io_internal.h for the layers below. Owner thread only, except io_sync.
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
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/size.h"
#include "tiers/io_internal.h"
#include "tiers/sim.h"

/* After so many tries in a row that move nothing, EAGAIN counts as an error. */
enum { IO_RETRIES_MAX = 4096 };

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

static io_request *list_pop(tieri_request_list *list)
{
    io_request *request = list->first;
    list_remove(list, request);
    return request;
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

/* ---- transfers ---- */

static void hand_over(io *self, tieri_transfer *item)
{
    self->out_count++;
    self->stats.transfers[item->direction]++;
    item->ask_bytes = item->left_bytes;
    if (tieri_watches(self) && item->retry_count == 0) {
        item->issued_ns = clock_ns();
        item->late_ns = 0;
    }
    if (!self->faults.active || tieri_faults_before(&self->faults, item))
        self->backend->submit(self->state, item);
}

/* The request is complete: others no longer wait for it, and its memory may be reused. */
static void forget(io *self, const io_request *request)
{
    for (io_request *at = self->queue[!request->direction].first; at; at = at->next)
        if (at->behind == request)
            at->behind = NULL;
}

static bool has_work(const io *self, enum io_direction direction)
{
    const io_request *request = self->queue[direction].first;
    return request && !request->is_held && !is_behind(request);
}

/* Issues the next transfer of the direction's first request. False if there is none, or no free
 * transfer. A direction may take more than its share while the other has nothing to issue: a drive
 * that only writes, or only reads, then has as many in flight as one that does both. Measured on a
 * virtio drive in GB/s: with 8 MiB in flight read 5.1, write 4.4; with 16 MiB read 5.7, write 5.1;
 * with 8 MiB each way: 6.9. */
static bool issue_one(io *self, enum io_direction direction)
{
    if (!has_work(self, direction) || !self->unused.first ||
        (self->busy_count[direction] >= self->share_count && has_work(self, !direction)))
        return false;
    io_request *request = self->queue[direction].first;
    tieri_transfer *item = tieri_list_pop(&self->unused);
    self->busy_count[direction]++;
    item->direction = direction;
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
    err_keep(&self->first_error, code);
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
    tieri_list_push(&self->unused, item);
    assert(self->busy_count[item->direction] > 0);
    self->busy_count[item->direction]--;
    request->in_flight--;
    if (request->in_flight == 0 &&
        (request->result < 0 || request->issued_bytes == request->size_bytes)) {
        request->end_ns = clock_ns();
        forget(self, request);
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

/* Lets completions signal event_fd, or not. Something that came meanwhile is signalled here. */
static void set_listening(io *self, bool listens)
{
    if (self->backend->listen && self->backend->listen(self->state, listens))
        event_signal(self);
}

/* Moves everything as far as possible without blocking. If nothing moves, it drains event_fd and
 * looks at everything once more: what comes after the drain makes event_fd readable again. Nobody
 * waits for a completion meanwhile, so none is signalled. */
static int progress(io *self)
{
    if (self->broken)
        return err_set(ERR_POISONED, "the queue of reads and writes broke before: %s",
                       self->first_error.code ? self->first_error.text : err_name(self->broken));
    int rc = 0;
    set_listening(self, false);
    uint32_t count = progress_once(self, &rc);
    if (rc >= 0 && count == 0) {
        tieri_event_drain(self);
        progress_once(self, &rc);
    }
    set_listening(self, true);
    if (rc >= 0)
        self->broken = rc = tieri_watch(self);
    err_keep(&self->first_error, rc);
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

void io_release(io *self, io_request *request)
{
    assert(request->is_held);
    request->is_held = false;
    event_signal(self);
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
    stats->block_bytes = self->block_bytes;
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
