/* Creation and end of the queue: checks the config, opens a backend and proves it, allocates the
 * memory. See io.h. Owner thread only. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "tiers/io_internal.h"
#include "tiers/tiers_internal.h"

enum {
    IO_DEPTH_DEFAULT = 16,  /* reads saturate at 4 x 1 MiB or 8 x 256 KiB; the rest is reserve */
    IO_THREADS_DEFAULT = 4, /* per drive */
    IO_THREADS_MAX = 64,
    IO_CAPACITY_DEFAULT = 4096,
    URING_ADVICE_BYTES = 512,
    /* a polled transfer, where the system does not say what a drive takes in one piece */
    POLLED_UNKNOWN_BYTES = 128 << 10,
};

#define IO_BLOCK_DEFAULT_BYTES MIB
#define IO_BLOCK_MAX_BYTES     GIB /* the length of a transfer must fit the kernel's 31 bits */

static_assert(IO_THREADS_DEFAULT * DRIVES_MAX <= IO_THREADS_MAX, "the default is allowed");
static_assert((uint64_t)IO_QUEUE_DEPTH_MAX * DRIVES_MAX * TIERI_DIRECTIONS <= 32768,
              "the most entries that an io_uring has");

static int check_config(const io_config *config)
{
    if (!config->target || config->target->drive_count == 0)
        return err_set(-EINVAL, "io: no open slab");
    if (config->block_bytes % TIERI_ALIGN_BYTES || config->block_bytes > IO_BLOCK_MAX_BYTES)
        return err_set(-EINVAL, "io: a block of %llu bytes is not a multiple of 4 KiB up to 1 GiB",
                       (unsigned long long)config->block_bytes);
    if (config->queue_depth > IO_QUEUE_DEPTH_MAX || config->pool_threads > IO_THREADS_MAX)
        return err_set(-EINVAL, "io: queue depth %u (at most %d), %u threads (at most %d)",
                       config->queue_depth, IO_QUEUE_DEPTH_MAX, config->pool_threads,
                       IO_THREADS_MAX);
    for (uint32_t i = 0; i < config->region_count; i++)
        if ((uintptr_t)config->regions[i].base % TIERI_ALIGN_BYTES ||
            config->regions[i].size_bytes % TIERI_ALIGN_BYTES || config->regions[i].size_bytes == 0)
            return err_set(-EINVAL, "io: region %u is not aligned to 4 KiB", i);
    return 0;
}

/* Reads one page through the backend; -ETIMEDOUT after stop_ns. */
static int probe_read(io *self, const char *path)
{
    tieri_transfer *item = &self->probe;
    uint64_t begin_ns = clock_ns();
    self->backend->submit(self->state, item);
    for (;;) {
        TRY(self->backend->flush(self->state));
        if (self->backend->reap(self->state)) {
            tieri_watch_end(self, item->drive_idx);
            return 0;
        }
        tieri_watch_first_read(self, item->drive_idx, begin_ns);
        if (self->stop_ns && clock_ns() - begin_ns >= self->stop_ns)
            return err_set(
                -ETIMEDOUT,
                "the first read of %s has been in flight for %.3g s (debug.io.stop_seconds): "
                "the drive or its file system does not answer; the last commit is "
                "intact: check the drive and run the same command again",
                path, (double)self->stop_ns * 1e-9);
        struct pollfd waiter = {.fd = self->event_fd, .events = POLLIN};
        (void)poll(&waiter, 1, 10);
    }
}

/* Reads the header of each slab file through the backend. Only a real read proves that it works. */
static int probe_backend(io *self)
{
    for (uint32_t drive = 0; drive < self->target->drive_count; drive++) {
        const char *path = self->target->files[drive].path;
        self->probe = (tieri_transfer){.data = self->probe_page,
                                       .left_bytes = TIERI_ALIGN_BYTES,
                                       .ask_bytes = TIERI_ALIGN_BYTES,
                                       .drive_idx = drive,
                                       .direction = IO_READ};
        memset(self->probe_page, 0, TIERI_ALIGN_BYTES);
        TRY(probe_read(self, path));
        tieri_event_drain(self);
        int64_t result = self->probe.result;
        if (result < 0)
            return err_errno((int)-result, "first read of %s", path);
        if (result != TIERI_ALIGN_BYTES || memcmp(self->probe_page, "SLUICESB", 8) != 0)
            return err_set(-EIO, "first read of %s: its header did not arrive (%lld bytes)", path,
                           (long long)result);
    }
    return 0;
}

static int open_kind(const tieri_backend_config *config, enum io_backend kind, io_stats *stats,
                     void **state)
{
    switch (kind) {
    case IO_URING:
        return tieri_uring_open(config, stats, state);
    case IO_SIM:
        return tieri_sim_open(config, stats, state);
    default:
        return tieri_pool_open(config, stats, state);
    }
}

/* The page of the last queue whose first read did not return: the drive may still write to it. */
static _Atomic(void *) page_left_behind;

static int open_backend(io *self, const tieri_backend_config *config, enum io_backend kind)
{
    TRY(open_kind(config, kind, &self->stats, &self->state));
    self->backend = kind == IO_URING ? &tieri_uring_backend
                    : kind == IO_SIM ? &tieri_sim_backend
                                     : &tieri_pool_backend;
    int rc = kind == IO_SIM ? 0 : probe_backend(self); /* the simulated drive needs no proof */
    if (rc < 0) {
        if (!self->backend->close(self->state, rc == -ETIMEDOUT)) {
            atomic_store(&page_left_behind, self->page_block);
            self->page_block = NULL;
        }
        self->backend = NULL;
        return rc;
    }
    self->stats.backend = kind;
    return 0;
}

/* The largest transfer that may be polled; 0: none. Linux (6.2, and 6.1 since 2023) does not divide
 * a request that is polled: where it would have to, it tries again for ever. */
static uint64_t polled_limit(const slab *target)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < target->drive_count; i++) {
        struct stat status;
        bool is_known = fstat(target->files[i].fd, &status) == 0;
        uint64_t most =
            is_known ? tieri_largest_request("/sys/dev/block", status.st_dev) : UINT64_MAX;
        least = size_min(least, most == UINT64_MAX ? POLLED_UNKNOWN_BYTES : most);
    }
    return least;
}

/* With polling first, if it was asked for. */
static int open_polled_or_not(io *self, tieri_backend_config *config)
{
    uint64_t most = config->polls ? polled_limit(self->target) : 0;
    if (config->polls && most == 0) {
        log_warn("io.polled_completions: a drive divides requests at fixed boundaries, and Linux "
                 "does not divide requests that are polled, so completions come by interrupts");
        config->polls = false;
    }
    int rc = open_backend(self, config, IO_URING);
    if (rc >= 0 && config->polls)
        self->block_bytes = size_min(self->block_bytes, most);
    if (rc >= 0 || rc == -ETIMEDOUT || !config->polls)
        return rc;
    log_warn("io.polled_completions: the drive cannot be polled (%s), so its completions "
             "come by interrupts; NVMe drives can be polled if the kernel's nvme module was loaded "
             "with poll_queues above 0",
             err_text());
    config->polls = false;
    return open_backend(self, config, IO_URING);
}

static int open_uring(io *self, tieri_backend_config *config)
{
    int rc = open_polled_or_not(self, config);
    if (rc < 0 && rc != -ETIMEDOUT &&
        (self->stats.buffers_registered || self->stats.files_registered)) {
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
        .register_memory = !(config->test && config->test->deny_registration),
        .store = config->store,
        .seed = self->faults.config.seed,
        .polls = config->polls,
        .is_plain_ring = config->test && config->test->polls_plain_ring,
        .changes_thread = config->changes_thread,
        .skipped_modes = config->test ? config->test->skipped_modes : 0,
        .refusal = config->test ? config->test->uring_refusal : 0,
    };
    if (config->backend == IO_SIM)
        return open_backend(self, &backend_config, IO_SIM);
    if (config->backend != IO_POOL) {
        int rc = open_uring(self, &backend_config);
        if (rc >= 0 || rc == -ETIMEDOUT)
            return rc;
        char advice[URING_ADVICE_BYTES];
        tieri_uring_advise(rc, self->transfer_count, advice, sizeof advice);
        if (config->backend == IO_URING)
            return err_set(rc, "%s; %s", err_text(), advice);
        if (!atomic_exchange(&warned, true))
            log_warn(
                "io_uring cannot be used (%s): %u threads call pread and pwrite instead, about as "
                "fast but at 2 to 4 times the CPU time per GB (0.02-0.04 instead of 0.006-0.013 "
                "s at 1 MiB on the machine measured), which computing loses; %s",
                err_text(), backend_config.thread_count, advice);
    }
    return open_backend(self, &backend_config, IO_POOL);
}

static int allocate(io *self, const io_config *config)
{
    uint32_t depth = config->queue_depth ? config->queue_depth : IO_DEPTH_DEFAULT;
    uint32_t per_direction = depth * self->target->drive_count;
    self->transfer_count = TIERI_DIRECTIONS * per_direction;
    self->transfers = mem_alloc(self->transfer_count, sizeof *self->transfers, "io transfers");
    self->region_count = config->region_count + 1;
    self->regions = mem_alloc(self->region_count, sizeof *self->regions, "io regions");
    self->page_block = mem_alloc(2 * TIERI_ALIGN_BYTES, 1, "io probe page");
    self->latencies = mem_alloc((uint64_t)self->target->drive_count * TIERI_DIRECTIONS,
                                sizeof *self->latencies, "io latencies");
    if (!self->transfers || !self->regions || !self->page_block || !self->latencies)
        return -ENOMEM;
    self->share_count = per_direction;
    for (uint32_t i = 0; i < self->transfer_count; i++)
        tieri_list_push(&self->unused, &self->transfers[i]);
    uintptr_t page = size_round_up((uintptr_t)self->page_block, TIERI_ALIGN_BYTES);
    self->probe_page = self->page_block + (page - (uintptr_t)self->page_block);
    for (uint32_t i = 0; i < config->region_count; i++)
        self->regions[i] = config->regions[i];
    self->regions[config->region_count] =
        (io_region){.base = self->probe_page, .size_bytes = TIERI_ALIGN_BYTES};
    return 0;
}

/* The kernel may write to the caller's memory until the backend is closed. */
static void release(io *self)
{
    if (self->backend)
        (void)self->backend->close(self->state, self->broken == -ETIMEDOUT);
    const int fds[] = {self->event_fd, self->timer_fd, self->epoll_fd};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    mem_free(self->transfers);
    mem_free(self->latencies);
    mem_free(self->regions);
    mem_free(self->page_block);
    mem_free(self);
}

/* Makes the caller's descriptor, which is readable when event_fd or timer_fd is readable. */
static int open_descriptors(io *self)
{
    self->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    self->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    self->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (self->event_fd < 0 || self->timer_fd < 0 || self->epoll_fd < 0)
        return err_errno(errno, "io: eventfd, timerfd and epoll");
    const int fds[] = {self->event_fd, self->timer_fd};
    for (int i = 0; i < 2; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};
        if (epoll_ctl(self->epoll_fd, EPOLL_CTL_ADD, fds[i], &event) < 0)
            return err_errno(errno, "io: watching descriptor %d", fds[i]);
    }
    return 0;
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
    if (config->test && config->test->faults) {
        self->faults.config = *config->test->faults;
        self->faults.active = true;
    }
    self->stuck_ns = config->stuck_ns;
    self->stop_ns = config->stop_ns;
    int rc = open_descriptors(self);
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
        release(self); /* the backend waits for the kernel's transfers; requests are not read */
}
