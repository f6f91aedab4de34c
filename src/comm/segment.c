/* The segments that ranks of a host share. See segment.h. */
#include "comm/segment.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

static_assert(sizeof(segment_page) <= SEGMENT_PAGE_BYTES,
              "the counters fit the page before the data");
static_assert(sizeof(_Atomic uint32_t) == 4, "a futex is four bytes");

static int map_file(uint64_t data_bytes, segment *self)
{
    void *base = mmap(NULL, SEGMENT_PAGE_BYTES + data_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                      self->fd, 0);
    if (base == MAP_FAILED)
        return err_errno(errno, "cannot map %" PRIu64 " bytes of shared memory", data_bytes);
    self->page = base;
    self->data = (unsigned char *)base + SEGMENT_PAGE_BYTES;
    self->data_bytes = data_bytes;
    return 0;
}

static int fill_new(uint64_t data_bytes, uint64_t token, segment *self)
{
    int code;
    do /* a signal interrupts it */
        code = posix_fallocate(self->fd, 0, (off_t)(SEGMENT_PAGE_BYTES + data_bytes));
    while (code == EINTR);
    if (code != 0)
        return err_errno(
            code,
            "cannot reserve %" PRIu64 " bytes of shared memory for the ranks of this "
            "host (memory or /dev/shm is full: lower debug.comm.staging_bytes, or give it more)",
            data_bytes);
    TRY(map_file(data_bytes, self));
    self->page->token = token;
    return 0;
}

int segment_create(uint64_t data_bytes, uint64_t token, const char *name, segment *self)
{
    *self = (segment){.fd = -1};
    if (name != NULL)
        self->fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    else
        self->fd = memfd_create("sluice-ranks", MFD_CLOEXEC);
    if (self->fd < 0)
        return err_errno(errno, "cannot make shared memory for the ranks of this host (%s)",
                         name != NULL ? "shm_open" : "memfd_create");
    int rc = fill_new(data_bytes, token, self);
    if (rc < 0) {
        segment_fini(self);
        if (name != NULL)
            (void)shm_unlink(name);
    }
    return rc;
}

int segment_open(uint64_t data_bytes, uint64_t token, int64_t pid, int fd, const char *name,
                 segment *self)
{
    char path[64];
    *self = (segment){.fd = -1};
    (void)snprintf(path, sizeof path, "/proc/%" PRId64 "/fd/%d", pid, fd);
    if (name != NULL)
        self->fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    else
        self->fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (self->fd < 0)
        return err_errno(errno, "cannot open the shared memory %s of process %" PRId64,
                         name != NULL ? name : path, pid);
    int rc = 0;
    struct stat status;
    if (fstat(self->fd, &status) != 0 || !S_ISREG(status.st_mode) ||
        (uint64_t)status.st_size != SEGMENT_PAGE_BYTES + data_bytes)
        rc = err_errno(ENXIO, "%s is not the shared memory of a rank", name != NULL ? name : path);
    if (rc == 0)
        rc = map_file(data_bytes, self);
    if (rc == 0 && self->page->token != token)
        rc = err_errno(ENXIO, "%s is the shared memory of another job", name != NULL ? name : path);
    if (rc < 0) {
        segment_fini(self);
        return rc;
    }
    close(self->fd); /* the mapping stays */
    self->fd = -1;
    return 0;
}

void segment_fini(segment *self)
{
    if (self->page != NULL)
        (void)munmap(self->page, SEGMENT_PAGE_BYTES + self->data_bytes);
    if (self->fd > 0)
        close(self->fd);
    *self = (segment){.fd = -1};
}

void segment_raise(segment_word *word, uint32_t value)
{
    assert(segment_is_reached(value, atomic_load(&word->value))); /* it only rises */
    /* Both this store and the waiter's entry are sequentially consistent: either the waiter sees
     * the new value, or this thread sees the waiter. */
    atomic_store(&word->value, value);
    if (atomic_load(&word->waiters) != 0)
        (void)syscall(SYS_futex, &word->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static bool spin(segment_word *word, uint32_t goal, uint64_t spin_ns)
{
    uint64_t end_ns = clock_ns() + spin_ns;
    do {
        for (int i = 0; i < 16; i++) {
            if (segment_is_reached(atomic_load_explicit(&word->value, memory_order_acquire), goal))
                return true;
#ifdef __x86_64__
            __builtin_ia32_pause();
#endif
        }
    } while (clock_ns() < end_ns);
    return false;
}

bool segment_wait(segment_word *word, uint32_t goal, uint64_t spin_ns, uint64_t sleep_ns)
{
    if (segment_is_reached(atomic_load_explicit(&word->value, memory_order_acquire), goal))
        return true;
    if (spin_ns > 0 && spin(word, goal, spin_ns))
        return true;
    uint64_t now_ns = clock_ns(), end_ns = now_ns + sleep_ns;
    bool is_reached = false;
    atomic_fetch_add(&word->waiters, 1);
    for (; now_ns < end_ns; now_ns = clock_ns()) {
        uint32_t value = atomic_load(&word->value);
        is_reached = segment_is_reached(value, goal);
        if (is_reached)
            break;
        uint64_t left_ns = end_ns - now_ns;
        struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u),
                                .tv_nsec = (long)(left_ns % 1000000000u)};
        (void)syscall(SYS_futex, &word->value, FUTEX_WAIT, value, &left, NULL, 0);
    }
    atomic_fetch_sub(&word->waiters, 1);
    return is_reached ||
           segment_is_reached(atomic_load_explicit(&word->value, memory_order_acquire), goal);
}
