/* The io_uring backend: one ring with its descriptor, files and buffers registered if the kernel
 * allows it, and one io_uring_enter per flush (except for neighbours). Owner thread only, which is
 * the one that opens it unless io_config.changes_thread; allocates at open.
 *
 * The ring is set up as the authors of io_uring advise it for one thread that submits and waits
 * (mode_flags, the best first; a kernel or a liburing that lacks one gets the next). The kernel
 * then does not interrupt the thread for a completion. It marks the ring instead, and works off all
 * completions in the next io_uring_enter, which uring_reap makes when it finds the mark. The
 * eventfd is signalled only while the owner may sleep (uring_listen).
 *
 * Neighbours. The kernel merges transfers of one io_uring_enter that lie side by side on a drive.
 * Merged transfers come back together and go out together, so the drive is idle in between, and
 * blocks of 256 KiB become 4 MiB in flight. Measured on a virtio drive, in GB/s:
 *
 *                  handed over together         each on its own
 *                  read   write  mixed          read   write  mixed
 *   8 x 256 KiB    2.08   2.19   2.22           2.64   2.88   2.58
 *   4 x 1 MiB      2.10   2.26   2.19           2.57   2.61   2.66
 *
 * So transfers of at least URING_ALONE_BYTES are not handed over together with their neighbours.
 *
 * IOPOLL is an option: with it there are no interrupts, so the owner looks for completions without
 * sleeping. The set-up succeeds everywhere, but then each read fails unless the driver has queues
 * for polling; io_open.c proves it by a read. SQPOLL is not used: it would take a core as well. */
#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "tiers/io_internal.h"
#include "tiers/tiers_internal.h"

/* merged blocks of 64 KiB are as fast as single ones of fio */
#define URING_ALONE_BYTES     (256 * KIB)
#define URING_IOVEC_MAX_BYTES GIB /* the kernel refuses a longer one with EFAULT */

enum {
    URING_BUFFERS_MAX = 16384, /* the kernel's limit, and within sqe->buf_index */
};

/* A registered region and the index of its first buffer. */
struct uring_region {
    uintptr_t begin;
    uint64_t size_bytes;
    uint32_t first_buffer;
};
typedef struct uring_region uring_region;

struct uring_state {
    struct io_uring ring;
    const slab *target;
    uint32_t in_kernel_count; /* transfers that the kernel has */
    uring_region *regions;    /* [region_count]; no region if buffers are not registered */
    uint32_t region_count;
    bool files_registered;
    bool polls; /* nothing signals a completion: the owner must not sleep while any is out */
    int failed; /* io_uring_enter failed while completions were fetched: a negative errno */
    /* The end in its file of the latest transfer that waits for a flush, by drive and direction; 0:
     * none. */
    uint64_t waiting_end[DRIVES_MAX][TIERI_DIRECTIONS];
};
typedef struct uring_state uring_state;

static const uring_region *find_region(const uring_state *self, uintptr_t address)
{
    for (uint32_t i = 0; i < self->region_count; i++)
        if (address - self->regions[i].begin < self->regions[i].size_bytes)
            return &self->regions[i];
    return NULL;
}

/* The bytes up to the end of the registered buffer that holds `data`. */
static uint64_t uring_span(void *state, const void *data, uint64_t size_bytes)
{
    const uring_region *region = find_region(state, (uintptr_t)data);
    if (!region)
        return size_bytes;
    uint64_t inside = (uintptr_t)data - region->begin;
    uint64_t to_cut = URING_IOVEC_MAX_BYTES - inside % URING_IOVEC_MAX_BYTES;
    return size_min(size_bytes, size_min(to_cut, region->size_bytes - inside));
}

/* Hands over the waiting transfers; those that the kernel does not take go on waiting. */
static int hand_over(uring_state *self)
{
    int rc = io_uring_submit(&self->ring);
    if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY)
        return rc;
    if (rc > 0)
        self->in_kernel_count += (uint32_t)rc;
    if (io_uring_sq_ready(&self->ring) == 0)
        memset(self->waiting_end, 0, sizeof self->waiting_end);
    return 0;
}

static void uring_submit(void *state, tieri_transfer *item)
{
    uring_state *self = state;
    uint64_t *waiting_end = &self->waiting_end[item->drive_idx][item->direction];
    if (*waiting_end && *waiting_end == item->file_offset && item->ask_bytes >= URING_ALONE_BYTES)
        (void)hand_over(self); /* if that fails, uring_flush fails too */
    *waiting_end = item->file_offset + item->ask_bytes;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&self->ring);
    assert(sqe); /* the ring has room for all transfers there are */
    int fd =
        self->files_registered ? (int)item->drive_idx : self->target->files[item->drive_idx].fd;
    unsigned size = (unsigned)item->ask_bytes;
    const uring_region *region = find_region(self, (uintptr_t)item->data);
    if (region) {
        uint64_t inside = (uintptr_t)item->data - region->begin;
        int buffer = (int)(region->first_buffer + inside / URING_IOVEC_MAX_BYTES);
        if (item->direction == IO_READ)
            io_uring_prep_read_fixed(sqe, fd, item->data, size, item->file_offset, buffer);
        else
            io_uring_prep_write_fixed(sqe, fd, item->data, size, item->file_offset, buffer);
    } else if (item->direction == IO_READ) {
        io_uring_prep_read(sqe, fd, item->data, size, item->file_offset);
    } else {
        io_uring_prep_write(sqe, fd, item->data, size, item->file_offset);
    }
    if (self->files_registered)
        sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(sqe, item);
}

/* True if the kernel has completions that it will only store in io_uring_enter. */
static bool is_marked(const uring_state *self)
{
#ifdef IORING_SQ_TASKRUN
    return IO_URING_READ_ONCE(*self->ring.sq.kflags) & IORING_SQ_TASKRUN;
#else
    (void)self;
    return false;
#endif
}

static int uring_flush(void *state)
{
    uring_state *self = state;
    int rc = self->failed;
    if (rc == 0 && io_uring_sq_ready(&self->ring) > 0)
        rc = hand_over(self);
    if (rc < 0)
        return err_errno(-rc, "io_uring_enter");
    return io_uring_sq_ready(&self->ring) > 0 || (self->polls && self->in_kernel_count > 0);
}

static tieri_transfer *uring_reap(void *state)
{
    uring_state *self = state;
    struct io_uring_cqe *cqe;
    if (self->in_kernel_count == 0)
        return NULL;
    int rc = io_uring_peek_cqe(&self->ring, &cqe); /* enters only if it is marked, or to poll */
    if (rc < 0) {
        self->failed = rc == -EAGAIN || rc == -EINTR || rc == -EBUSY ? 0 : rc;
        return NULL;
    }
    tieri_transfer *item = io_uring_cqe_get_data(cqe);
    item->result = cqe->res;
    assert(self->in_kernel_count > 0);
    self->in_kernel_count--;
    io_uring_cqe_seen(&self->ring, cqe);
    return item;
}

static bool uring_listen(void *state, bool listens)
{
    uring_state *self = state;
    if (io_uring_cq_eventfd_toggle(&self->ring, listens) < 0 || !listens)
        return false;
    /* The flag must be visible to the kernel before the look: a completion is either signalled or
     * seen here. */
    atomic_thread_fence(memory_order_seq_cst);
    return io_uring_cq_ready(&self->ring) > 0 || is_marked(self);
}

/* Waits until the kernel has no transfer of ours. Reads and writes of a drive end by themselves,
 * and one that has reached the drive cannot be recalled, so they are not cancelled. If the ring no
 * longer answers, completions still arrive in the memory that it shares. So they are looked for as
 * long as for a drive that hangs, and then given up: false. */
static bool uring_drain(uring_state *self, bool hung)
{
    uint64_t begin_ns = clock_ns();
    while (self->in_kernel_count > 0) {
        struct io_uring_cqe *cqe = NULL;
        if (hung)
            (void)io_uring_peek_cqe(&self->ring, &cqe); /* takes what is marked, without waiting */
        unsigned count = io_uring_cq_ready(&self->ring);
        assert(count <= self->in_kernel_count);
        self->in_kernel_count -= count;
        io_uring_cq_advance(&self->ring, count);
        if (self->in_kernel_count == 0)
            break;
        int rc = hung ? -ETIME : io_uring_wait_cqe(&self->ring, &cqe);
        if (rc == 0 || rc == -EINTR)
            continue;
        if (clock_ns() - begin_ns >= (uint64_t)TIERI_CLOSE_WAIT_MS * 1000000) {
            log_warn("%s%s%s: %u reads and writes are left to the kernel",
                     hung ? "the drive does not answer" : "io_uring no longer answers (",
                     hung ? "" : strerror(-rc), hung ? "" : ")", self->in_kernel_count);
            return false;
        }
        const struct timespec one_ms = {.tv_nsec = 1000000};
        (void)nanosleep(&one_ms, NULL);
    }
    return true;
}

static bool uring_close(void *state, bool hung)
{
    uring_state *self = state;
    bool drained = uring_drain(self, hung);
    /* The kernel releases a ring some time after it was closed. Unregistering first makes the
     * slab's space and the arenas' pages free when this returns, so that others can delete or unmap
     * them. With work in flight that would wait for it. */
    if (self->region_count && drained)
        (void)io_uring_unregister_buffers(&self->ring);
    if (self->files_registered && drained)
        (void)io_uring_unregister_files(&self->ring);
    io_uring_queue_exit(&self->ring);
    mem_free(self->regions);
    mem_free(self);
    return drained;
}

/* ---- limits, and advice when they are reached ---- */

enum { LIMIT_TEXT_BYTES = 48 };

/* Writes this process's limit: a size for memory, a count for files; or "any amount". */
static const char *format_limit(int resource, char text[LIMIT_TEXT_BYTES])
{
    struct rlimit limit;
    char size[SIZE_TEXT_BYTES];
    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        snprintf(text, LIMIT_TEXT_BYTES, "any amount");
    else if (resource == RLIMIT_NOFILE)
        snprintf(text, LIMIT_TEXT_BYTES, "%llu", (unsigned long long)limit.rlim_cur);
    else
        snprintf(text, LIMIT_TEXT_BYTES, "%s", size_format(limit.rlim_cur, size));
    return text;
}

/* True if this kernel is older than the given version. */
static bool is_older(const struct utsname *system, unsigned major, unsigned minor)
{
    unsigned has_major = 0, has_minor = 0;
    if (sscanf(system->release, "%u.%u", &has_major, &has_minor) != 2)
        return false;
    return has_major < major || (has_major == major && has_minor < minor);
}

/* Kernels before 5.12 count the ring's memory as locked memory of the user, later ones as memory of
 * the control group. */
static void advise_memory(const struct utsname *system, uint32_t transfer_count, char *text,
                          size_t capacity)
{
    char needed[SIZE_TEXT_BYTES], locked[LIMIT_TEXT_BYTES], space[LIMIT_TEXT_BYTES];
    ssize_t bytes = is_older(system, 5, 12) ? io_uring_mlock_size(transfer_count, 0) : 0;
    if (bytes > 0)
        snprintf(text, capacity,
                 "Linux %s counts the %s of a ring for %u transfers as locked memory, of which all "
                 "processes of this user together may have %s: raise that limit (ulimit -l)",
                 system->release, size_format((uint64_t)bytes, needed), transfer_count,
                 format_limit(RLIMIT_MEMLOCK, locked));
    else
        snprintf(text, capacity,
                 "Linux %s has no memory for a ring for %u transfers: raise the limit of the "
                 "control group or container, or of the address space (ulimit -v; now %s)",
                 system->release, transfer_count, format_limit(RLIMIT_AS, space));
}

/* Tells which of the things that can forbid io_uring did. */
static void advise_permission(char *text, size_t capacity)
{
    static const char switch_path[] = "/proc/sys/kernel/io_uring_disabled";
    char value[16] = "", group[16] = "";
    bool is_there = tieri_read_small_file(switch_path, value, sizeof value) > 0;
    if (value[0] == '2')
        snprintf(text, capacity,
                 "the sysctl kernel.io_uring_disabled is 2, which forbids it to all processes: an "
                 "administrator can set it to 0");
    else if (value[0] == '1' &&
             tieri_read_small_file("/proc/sys/kernel/io_uring_group", group, sizeof group) > 0)
        snprintf(
            text, capacity,
            "the sysctl kernel.io_uring_disabled is 1, which allows it to CAP_SYS_ADMIN and to "
            "the group kernel.io_uring_group (%d) only: join that group, or set it to 0",
            atoi(group));
    else
        snprintf(text, capacity,
                 "the kernel's own switch %s, so it is forbidden by a seccomp profile or security "
                 "module, as in most containers: allow io_uring_setup, io_uring_enter and "
                 "io_uring_register there (Docker: --security-opt seccomp=PROFILE)",
                 is_there ? "allows it (kernel.io_uring_disabled=0)" : "does not forbid it");
}

void tieri_uring_advise(int code, uint32_t transfer_count, char *text, size_t capacity)
{
    struct utsname system = {.release = "(unknown)"};
    char limit[LIMIT_TEXT_BYTES];
    (void)uname(&system);
    switch (-code) {
    case EMFILE:
        snprintf(text, capacity,
                 "this process has all of the %s open files that it may have: raise that limit "
                 "(ulimit -n)",
                 format_limit(RLIMIT_NOFILE, limit));
        return;
    case ENFILE:
        snprintf(text, capacity,
                 "all processes together have as many open files as this machine allows: raise the "
                 "sysctl fs.file-max");
        return;
    case ENOMEM:
        advise_memory(&system, transfer_count, text, capacity);
        return;
    case EPERM:
    case EACCES:
        advise_permission(text, capacity);
        return;
    case ENOSYS:
    case EINVAL:
        snprintf(text, capacity,
                 "Linux %s %s; reads and writes by io_uring need Linux 5.6 or later, built with "
                 "CONFIG_IO_URING",
                 system.release,
                 is_older(&system, 5, 6) ? "is too old"
                                         : "was built without it, or a container hides it");
        return;
    default:
        snprintf(text, capacity, "io.backend=pool chooses the threads without this warning");
    }
}

/* ---- opening ---- */

/* Cuts the regions into buffers of at most 1 GiB and registers them. Without a message if memory
 * may not be locked: transfers then go on unregistered. */
static int register_buffers(uring_state *self, const tieri_backend_config *config)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < config->region_count; i++)
        count += size_div_up(config->regions[i].size_bytes, URING_IOVEC_MAX_BYTES);
    if (count > URING_BUFFERS_MAX)
        return -E2BIG;
    struct iovec *buffers = mem_alloc(count, sizeof *buffers, "io_uring buffers");
    self->regions = mem_alloc(config->region_count, sizeof *self->regions, "io_uring regions");
    if (!buffers || !self->regions) {
        mem_free(buffers);
        return -ENOMEM;
    }
    uint32_t used = 0;
    for (uint32_t i = 0; i < config->region_count; i++) {
        const io_region *region = &config->regions[i];
        self->regions[i] = (uring_region){.begin = (uintptr_t)region->base,
                                          .size_bytes = region->size_bytes,
                                          .first_buffer = used};
        for (uint64_t at = 0; at < region->size_bytes; at += URING_IOVEC_MAX_BYTES)
            buffers[used++] =
                (struct iovec){.iov_base = (unsigned char *)region->base + at,
                               .iov_len = size_min(URING_IOVEC_MAX_BYTES, region->size_bytes - at)};
    }
    assert(used == count);
    int rc = io_uring_register_buffers(&self->ring, buffers, used);
    mem_free(buffers);
    if (rc == 0)
        self->region_count = config->region_count;
    return rc;
}

static void warn_of_buffers(const tieri_backend_config *config, int code)
{
    char needed[SIZE_TEXT_BYTES], limit[LIMIT_TEXT_BYTES], advice[160] = "";
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < config->region_count; i++)
        bytes += config->regions[i].size_bytes;
    if (code == -ENOMEM)
        snprintf(
            advice, sizeof advice,
            "; they lock %s, and this process may lock %s: raise the limit (ulimit -l) or give "
            "it CAP_IPC_LOCK",
            size_format(bytes, needed), format_limit(RLIMIT_MEMLOCK, limit));
    log_info("io_uring without registered buffers (%s): a little more CPU time per transfer%s",
             strerror(-code), advice);
}

static void register_memory(uring_state *self, const tieri_backend_config *config, io_stats *stats)
{
#ifdef IORING_SETUP_SINGLE_ISSUER /* liburing 2.3 and later */
    if (!config->changes_thread)  /* saves this thread a look-up in each call, if it works */
        (void)io_uring_register_ring_fd(&self->ring);
#endif
    int fds[DRIVES_MAX];
    for (uint32_t i = 0; i < self->target->drive_count; i++)
        fds[i] = self->target->files[i].fd;
    int rc = io_uring_register_files(&self->ring, fds, self->target->drive_count);
    self->files_registered = stats->files_registered = rc == 0;
    if (rc < 0)
        log_info("io_uring without registered files (%s): a little more CPU time per transfer",
                 strerror(-rc));
    rc = register_buffers(self, config);
    stats->buffers_registered = rc == 0;
    if (rc < 0)
        warn_of_buffers(config, rc);
}

/* The ways to set up a ring, the best first; 0 always works. Kernels: 6.1, 6.0, 5.19, all. */
static const unsigned mode_flags[] = {
#if defined IORING_SETUP_DEFER_TASKRUN && defined IORING_SETUP_TASKRUN_FLAG
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
#endif
#if defined IORING_SETUP_SINGLE_ISSUER && defined IORING_SETUP_TASKRUN_FLAG
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
#endif
#if defined IORING_SETUP_COOP_TASKRUN && defined IORING_SETUP_TASKRUN_FLAG
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
#endif
    0,
};

enum { MODE_COUNT = sizeof mode_flags / sizeof mode_flags[0] };

/* Makes the ring in the best way that the kernel knows; EINVAL is its answer to a flag that it does
 * not know. */
static int open_ring(uring_state *self, const tieri_backend_config *config)
{
    if (config->refusal)
        return -config->refusal;
    if (config->polls && !config->is_plain_ring)
        return io_uring_queue_init(config->transfer_count, &self->ring, IORING_SETUP_IOPOLL);
    int rc = -EINVAL;
    for (size_t i = config->changes_thread ? MODE_COUNT - 1
                                           : size_min(config->skipped_modes, MODE_COUNT - 1);
         i < MODE_COUNT && rc == -EINVAL; i++)
        rc = io_uring_queue_init(config->transfer_count, &self->ring, mode_flags[i]);
    return rc;
}

int tieri_uring_open(const tieri_backend_config *config, io_stats *stats, void **state)
{
    *state = NULL;
    stats->files_registered = stats->buffers_registered = stats->polls = false;
    uring_state *self = mem_alloc(1, sizeof *self, "io_uring");
    if (!self)
        return -ENOMEM;
    self->target = config->target;
    int rc = open_ring(self, config);
    if (rc < 0) {
        mem_free(self);
        return err_set(rc, "io_uring_setup: %s", strerror(-rc)); /* the caller adds the advice */
    }
    self->polls = config->polls;
    rc = io_uring_register_eventfd(&self->ring, config->event_fd);
    if (rc < 0) {
        (void)uring_close(self, false);
        return err_errno(-rc, "io_uring: registering an eventfd");
    }
    if (config->register_memory)
        register_memory(self, config, stats);
    stats->polls = self->polls;
    *state = self;
    return 0;
}

const tieri_backend tieri_uring_backend = {
    .span = uring_span,
    .submit = uring_submit,
    .flush = uring_flush,
    .reap = uring_reap,
    .listen = uring_listen,
    .close = uring_close,
};
