/* Requests, cut into transfers and put together again. See io.h for the contract and io_internal.h for
 * what lies below. Owner thread only; everything is allocated by io_create.
 *
 *   request   QUEUED --issue_one--> ISSUED (all transfers out) --finish--> DONE --io_poll--> caller
 *   transfer  free --issue_one--> backend --finish--> free | retry --> backend
 *
 * The head of each direction's queue is the only request that is partly issued. */
#include "tiers/io.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "tiers/io_internal.h"

enum {
    IO_ALIGN_BYTES = 4096,
    IO_DEPTH_DEFAULT = 16, /* reads saturate at 1 MiB x 4 or 256 KiB x 8; the rest is slack */
    IO_DEPTH_MAX = 1024,
    IO_THREADS_DEFAULT = 4, /* per drive */
    IO_THREADS_MAX = 64,
    IO_CAPACITY_DEFAULT = 4096,
    IO_RETRIES_MAX = 4096, /* tries in a row that move nothing, before EAGAIN counts as an error */
    IO_DIRECTIONS = 2,
};

#define IO_BLOCK_DEFAULT_BYTES MIB
#define IO_BLOCK_MAX_BYTES     GIB /* one transfer's length must fit the kernel's 31 bits */

static_assert(IO_READ == 0 && IO_WRITE == 1, "directions index the statistics");
static_assert(IO_THREADS_DEFAULT * SLAB_DRIVES_MAX <= IO_THREADS_MAX, "the default is allowed");
static_assert((uint64_t)IO_DEPTH_MAX * SLAB_DRIVES_MAX * IO_DIRECTIONS <= 32768,
              "the most entries that an io_uring has");

struct request_list {
    io_request *first, *last;
};
typedef struct request_list request_list;

struct io {
    slab *target;
    const tieri_backend *backend;
    void *state; /* of the backend */
    int event_fd;
    bool signalled; /* event_fd has been written to since it was last drained */
    int broken;     /* the backend's error; 0 while it works */
    uint64_t block_bytes;
    tieri_transfer *transfers; /* [transfer_count] all there are */
    uint32_t transfer_count;
    tieri_list unused[IO_DIRECTIONS];
    tieri_list again;                  /* to be continued or retried */
    request_list queue[IO_DIRECTIONS]; /* not yet wholly issued */
    request_list done;
    uint32_t taken_count, request_capacity;
    uint32_t out_count; /* transfers with the backend or held by the fault simulator */
    io_region *regions; /* [region_count] the caller's, then the probe page */
    uint32_t region_count;
    unsigned char *page_block, *probe_page; /* 4 KiB aligned page within its block */
    tieri_faults faults;
    io_stats stats;
    err_record first_error;
    const io_request *awaited; /* by io_transfer */
    err_record awaited_error;
};

static void list_push(request_list *list, io_request *request)
{
    request->next = NULL;
    if (list->last)
        list->last->next = request;
    else
        list->first = request;
    list->last = request;
}

static io_request *list_pop(request_list *list)
{
    io_request *request = list->first;
    list->first = request->next;
    if (!list->first)
        list->last = NULL;
    request->next = NULL;
    return request;
}

static void list_remove(request_list *list, io_request *request)
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
    uint64_t one = 1;
    while (write(self->event_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
    self->signalled = true;
}

static void event_drain(io *self)
{
    uint64_t count;
    while (read(self->event_fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
    self->signalled = false;
}

/* Sleeps until event_fd is readable. */
static void event_wait(const io *self)
{
    struct pollfd waiter = {.fd = self->event_fd, .events = POLLIN};
    while (poll(&waiter, 1, -1) < 0 && errno == EINTR)
        ;
}

/* ---- transfers ---- */

static void hand_over(io *self, tieri_transfer *item)
{
    self->out_count++;
    self->stats.transfers[item->direction]++;
    item->ask_bytes = item->left_bytes;
    if (!self->faults.active || tieri_faults_before(&self->faults, item))
        self->backend->submit(self->state, item);
}

/* The next transfer of the direction's first request; false if there is none or no room for it. */
static bool issue_one(io *self, enum io_direction direction)
{
    io_request *request = self->queue[direction].first;
    if (!request || !self->unused[direction].first)
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
    if (request->issued_bytes == 0)
        request->start_ns = clock_ns();
    request->issued_bytes += item->left_bytes;
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
    /* One of each direction in turn: neither keeps the other out of the kernel's queue. */
    for (bool more = true; more;) {
        bool read_issued = issue_one(self, IO_READ);
        bool write_issued = issue_one(self, IO_WRITE);
        count += (uint32_t)read_issued + (uint32_t)write_issued;
        more = read_issued || write_issued;
    }
    return count;
}

/* The request's first error decides its result; the rest of it is not issued. */
static void fail_request(io *self, const tieri_transfer *item, int code)
{
    io_request *request = item->request;
    if (request->result < 0)
        return;
    request->result = code;
    if (self->queue[item->direction].first == request)
        list_pop(&self->queue[item->direction]); /* it was partly issued */
    const char *path = self->target->files[item->drive_idx].path;
    const char *verb = item->direction == IO_READ ? "read" : "write";
    unsigned long long size = item->left_bytes, offset = item->file_offset;
    if (item->result >= 0 && item->direction == IO_READ)
        err_set(code,
                "read of %llu bytes at offset %llu of %s: end of file; the slab has been cut off",
                size, offset, path);
    else if (item->result >= 0)
        err_set(code, "write of %llu bytes at offset %llu of %s: the kernel wrote nothing", size,
                offset, path);
    else
        err_errno(-code, "%s of %llu bytes at offset %llu of %s", verb, size, offset, path);
    if (self->first_error.code == 0)
        err_save(&self->first_error, code);
    if (request == self->awaited)
        err_save(&self->awaited_error, code);
}

/* A whole part of the transfer is done; what is left can be asked for again. */
static uint64_t usable_progress(const io *self, const tieri_transfer *item)
{
    if (item->result <= 0)
        return 0;
    const slab_file *file = &self->target->files[item->drive_idx];
    uint64_t progress = (uint64_t)item->result;
    assert(progress <= item->ask_bytes);
    if (file->direct && progress < item->left_bytes)
        progress -= progress % file->align_bytes; /* direct I/O cannot go on within a block */
    return progress;
}

static void finish(io *self, tieri_transfer *item)
{
    io_request *request = item->request;
    self->out_count--;
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
    }
    item->request = NULL;
    tieri_list_push(&self->unused[item->direction], item);
    request->in_flight--;
    if (request->in_flight == 0 &&
        (request->result < 0 || request->issued_bytes == request->size_bytes)) {
        request->end_ns = clock_ns();
        list_push(&self->done, request);
    }
}

static uint32_t collect(io *self)
{
    uint32_t count = 0;
    for (tieri_transfer *item; (item = self->backend->reap(self->state)); count++)
        if (!self->faults.active || !tieri_faults_after(&self->faults, item))
            finish(self, item);
    if (self->faults.active)
        for (tieri_transfer *item; (item = tieri_faults_release(&self->faults)); count++)
            finish(self, item);
    return count;
}

/* Collects, issues, flushes. Returns how many transfers moved on; *rc is the backend's state. */
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
    if (*rc > 0 || self->faults.held.first)
        event_signal(self); /* something is to be done that no completion will announce */
    return count;
}

/* As far as it goes without blocking. Where nothing moves, event_fd is drained and everything looked at
 * once more: what comes after the drain makes it readable again. */
static int progress(io *self)
{
    if (self->broken)
        return err_set(ERR_POISONED, "the queue of reads and writes broke before: %s",
                       self->first_error.code ? self->first_error.text : err_name(self->broken));
    int rc = 0;
    uint32_t count = progress_once(self, &rc);
    if (rc >= 0 && count == 0) {
        event_drain(self);
        progress_once(self, &rc);
    }
    if (rc < 0 && self->first_error.code == 0)
        err_save(&self->first_error, rc);
    return rc < 0 ? rc : 0;
}

/* ---- opening ---- */

static int check_config(const io_config *config)
{
    if (!config->target || config->target->drive_count == 0)
        return err_set(-EINVAL, "io: no open slab");
    if (config->block_bytes % IO_ALIGN_BYTES || config->block_bytes > IO_BLOCK_MAX_BYTES)
        return err_set(-EINVAL, "io: a block of %llu bytes is not a multiple of 4 KiB up to 1 GiB",
                       (unsigned long long)config->block_bytes);
    if (config->queue_depth > IO_DEPTH_MAX || config->pool_threads > IO_THREADS_MAX)
        return err_set(-EINVAL, "io: queue depth %u (at most %d), %u threads (at most %d)",
                       config->queue_depth, IO_DEPTH_MAX, config->pool_threads, IO_THREADS_MAX);
    for (uint32_t i = 0; i < config->region_count; i++)
        if ((uintptr_t)config->regions[i].base % IO_ALIGN_BYTES ||
            config->regions[i].size_bytes % IO_ALIGN_BYTES || config->regions[i].size_bytes == 0)
            return err_set(-EINVAL, "io: region %u is not aligned to 4 KiB", i);
    return 0;
}

/* Reads the header of each slab file through the backend: only a real read proves that it works. */
static int probe_backend(io *self)
{
    for (uint32_t drive = 0; drive < self->target->drive_count; drive++) {
        tieri_transfer item = {.data = self->probe_page,
                               .left_bytes = IO_ALIGN_BYTES,
                               .ask_bytes = IO_ALIGN_BYTES,
                               .drive_idx = drive,
                               .direction = IO_READ};
        memset(self->probe_page, 0, IO_ALIGN_BYTES);
        self->backend->submit(self->state, &item);
        tieri_transfer *back = NULL;
        do {
            TRY(self->backend->flush(self->state));
            back = self->backend->reap(self->state);
            if (!back) {
                struct pollfd waiter = {.fd = self->event_fd, .events = POLLIN};
                (void)poll(&waiter, 1, 10);
            }
        } while (!back);
        event_drain(self);
        const char *path = self->target->files[drive].path;
        if (item.result < 0)
            return err_errno((int)-item.result, "first read of %s", path);
        if (item.result != IO_ALIGN_BYTES || memcmp(self->probe_page, "SLUICESB", 8) != 0)
            return err_set(-EIO, "first read of %s: its header did not arrive (%lld bytes)", path,
                           (long long)item.result);
    }
    return 0;
}

static int open_backend(io *self, const tieri_backend_config *config, enum io_backend kind)
{
    int rc = kind == IO_URING ? tieri_uring_open(config, &self->stats, &self->state)
                              : tieri_pool_open(config, &self->stats, &self->state);
    if (rc < 0)
        return rc;
    self->backend = kind == IO_URING ? &tieri_uring_backend : &tieri_pool_backend;
    rc = probe_backend(self);
    if (rc < 0) {
        self->backend->close(self->state);
        self->backend = NULL;
        return rc;
    }
    self->stats.backend = kind;
    return 0;
}

static int open_uring(io *self, tieri_backend_config *config, bool deny)
{
    if (deny)
        return err_set(-EPERM, "io_uring was denied by request");
    int rc = open_backend(self, config, IO_URING);
    if (rc < 0 && (self->stats.buffers_registered || self->stats.files_registered)) {
        log_info("io_uring does not work with registered memory here (%s): going on without",
                 err_text());
        config->register_memory = false;
        rc = open_backend(self, config, IO_URING);
    }
    return rc;
}

static int choose_backend(io *self, const io_config *config)
{
    static atomic_bool warned;
    uint32_t thread_count = config->pool_threads ? config->pool_threads
                                                 : IO_THREADS_DEFAULT * self->target->drive_count;
    tieri_backend_config backend_config = {
        .target = self->target,
        .regions = self->regions,
        .region_count = self->region_count,
        .transfer_count = self->transfer_count,
        .thread_count = thread_count,
        .event_fd = self->event_fd,
        .register_memory = !config->deny_registration,
    };
    if (config->backend != IO_POOL) {
        int rc = open_uring(self, &backend_config, config->deny_uring);
        if (rc >= 0 || config->backend == IO_URING)
            return rc;
        if (!atomic_exchange(&warned, true))
            log_warn(
                "io_uring cannot be used (%s): %u threads call pread and pwrite instead, about as "
                "fast but at 2 to 4 times the CPU time per GB (0.02-0.04 instead of 0.006-0.013 "
                "s at 1 MiB on the machine measured), which computing loses; allow it by sysctl "
                "kernel.io_uring_disabled=0 and in the container's seccomp profile",
                err_text(), backend_config.thread_count);
    }
    return open_backend(self, &backend_config, IO_POOL);
}

static int allocate(io *self, const io_config *config)
{
    uint32_t depth = config->queue_depth ? config->queue_depth : IO_DEPTH_DEFAULT;
    uint32_t per_direction = depth * self->target->drive_count;
    self->transfer_count = IO_DIRECTIONS * per_direction;
    self->transfers = mem_alloc(self->transfer_count, sizeof *self->transfers, "io transfers");
    self->region_count = config->region_count + 1;
    self->regions = mem_alloc(self->region_count, sizeof *self->regions, "io regions");
    self->page_block = mem_alloc(2 * IO_ALIGN_BYTES, 1, "io probe page");
    if (!self->transfers || !self->regions || !self->page_block)
        return -ENOMEM;
    for (uint32_t i = 0; i < self->transfer_count; i++) {
        tieri_transfer *item = &self->transfers[i];
        item->direction = i < per_direction ? IO_READ : IO_WRITE;
        tieri_list_push(&self->unused[item->direction], item);
    }
    uintptr_t page = size_round_up((uintptr_t)self->page_block, IO_ALIGN_BYTES);
    self->probe_page = self->page_block + (page - (uintptr_t)self->page_block);
    for (uint32_t i = 0; i < config->region_count; i++)
        self->regions[i] = config->regions[i];
    self->regions[config->region_count] =
        (io_region){.base = self->probe_page, .size_bytes = IO_ALIGN_BYTES};
    return 0;
}

/* The kernel may write into the caller's memory until the backend is closed. */
static void release(io *self)
{
    if (self->backend)
        self->backend->close(self->state);
    if (self->event_fd >= 0)
        close(self->event_fd);
    mem_free(self->transfers);
    mem_free(self->regions);
    mem_free(self->page_block);
    mem_free(self);
}

int io_create(const io_config *config, io **out)
{
    *out = NULL;
    TRY(check_config(config));
    io *self = mem_alloc(1, sizeof *self, "io");
    if (!self)
        return -ENOMEM;
    self->target = config->target;
    self->block_bytes = config->block_bytes ? config->block_bytes : IO_BLOCK_DEFAULT_BYTES;
    self->request_capacity =
        config->request_capacity ? config->request_capacity : IO_CAPACITY_DEFAULT;
    if (config->faults) {
        self->faults.config = *config->faults;
        self->faults.active = true;
    }
    self->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = self->event_fd >= 0 ? 0 : err_errno(errno, "io: eventfd");
    if (rc == 0)
        rc = allocate(self, config);
    if (rc == 0)
        rc = choose_backend(self, config);
    if (rc < 0) {
        release(self);
        return rc;
    }
    *out = self;
    return 0;
}

void io_destroy(io *self)
{
    if (self)
        release(self); /* the backend waits for what the kernel has; requests are not looked at */
}

/* ---- the caller's side ---- */

int io_submit(io *self, io_request *request)
{
    uint64_t total_bytes = self->target->total_bytes;
    if (request->direction != IO_READ && request->direction != IO_WRITE)
        return err_set(-EINVAL, "io request: direction %d", (int)request->direction);
    if (request->size_bytes == 0 || request->size_bytes % IO_ALIGN_BYTES ||
        request->offset % IO_ALIGN_BYTES || (uintptr_t)request->data % IO_ALIGN_BYTES ||
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
    self->taken_count++;
    list_push(&self->queue[request->direction], request);
    event_signal(self);
    return 0;
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
    return self->event_fd;
}

int io_transfer(io *self, enum io_direction direction, uint64_t offset, void *data,
                uint64_t size_bytes)
{
    io_request request = {
        .direction = direction, .offset = offset, .data = data, .size_bytes = size_bytes};
    TRY(io_submit(self, &request));
    self->awaited = &request;
    int rc = progress(self);
    while (rc == 0 && request.end_ns == 0) {
        event_wait(self);
        rc = progress(self);
    }
    self->awaited = NULL;
    if (rc < 0)
        return rc; /* poisoned: nothing looks at the request again */
    list_remove(&self->done, &request);
    self->taken_count--;
    if (self->done.first)
        event_signal(self);
    return request.result < 0 ? err_restore(&self->awaited_error) : 0;
}

const err_record *io_error(const io *self)
{
    return &self->first_error;
}

void io_get_stats(const io *self, io_stats *stats)
{
    *stats = self->stats;
}
