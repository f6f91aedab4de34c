/* Arenas: anonymous memory of exact size on huge pages, bound to NUMA nodes, touched once. See
 * arena.h. Runs at start, on one thread and its short-lived helpers; nothing comes from the
 * heap. */
#include "tiers/arena.h"

#include <assert.h>
#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "base/log.h"
#include "base/progress.h"
#include "base/size.h"
#include "base/thread.h"
#include "tiers/tiers_internal.h"

enum { ARENA_PAGE_BYTES = 4096, ARENA_TOUCH_THREADS_MAX = 256 };

#define ARENA_HUGE_BYTES (2 * MIB)
/* No warning for smaller arenas: there a few small pages at the end exceed 10% and cost nothing. */
#define ARENA_WARN_BYTES (64 * MIB)

/* Refuses sizes that the machine or the control group cannot give, before the OOM killer acts
 * later. */
static int check_available(const arena_config *config, const arena_nodes *wanted,
                           uint64_t size_bytes)
{
    uint64_t available_bytes;
    char needed[SIZE_TEXT_BYTES], available[SIZE_TEXT_BYTES], nodes[CORE_SET_TEXT_BYTES];
    TRY(arena_available_memory(&available_bytes));
    if (size_bytes > available_bytes)
        return err_set(-ENOMEM,
                       "the %s arena needs %s of memory, but only %s are available (machine and "
                       "control group); lower tiers.%s.budget",
                       config->name, size_format(size_bytes, needed),
                       size_format(available_bytes, available), config->name);
    /* interleaving takes from other nodes what these do not have */
    if (wanted->spread != ARENA_BIND)
        return 0;
    available_bytes = 0;
    for (int n = core_set_next(&wanted->nodes, 0); n >= 0;
         n = core_set_next(&wanted->nodes, n + 1)) {
        uint64_t node_bytes = tieri_node_available_bytes(n);
        available_bytes =
            node_bytes > UINT64_MAX - available_bytes ? UINT64_MAX : available_bytes + node_bytes;
    }
    if (size_bytes > available_bytes)
        return err_set(-ENOMEM,
                       "the %s arena needs %s on NUMA node%s %s, where only %s are left; lower "
                       "tiers.%s.budget or give it more nodes",
                       config->name, size_format(size_bytes, needed),
                       core_set_count(&wanted->nodes) == 1 ? "" : "s",
                       core_set_format(&wanted->nodes, nodes),
                       size_format(available_bytes, available), config->name);
    return 0;
}

static int check_nodes(const arena_config *config, const arena_nodes *wanted)
{
    bool has_numa = numa_available() >= 0;
    bool is_empty = core_set_next(&wanted->nodes, 0) < 0;
    if (is_empty != (wanted->spread == ARENA_ANYWHERE))
        return err_set(-EINVAL, "arena %s: nodes are for memory that is bound or interleaved",
                       config->name);
    for (int n = core_set_next(&wanted->nodes, 0); n >= 0;
         n = core_set_next(&wanted->nodes, n + 1)) {
        if (!has_numa && n > 0)
            return err_set(-EINVAL, "arena %s: NUMA node %d: this kernel has no NUMA support",
                           config->name, n);
        if (has_numa &&
            (n > numa_max_node() || !numa_bitmask_isbitset(numa_all_nodes_ptr, (unsigned)n)))
            return err_set(-EINVAL,
                           "arena %s: NUMA node %d does not exist or is not allowed to this "
                           "process (highest node: %d)",
                           config->name, n, numa_max_node());
    }
    return 0;
}

static int check_config(const arena_config *config, uint64_t *size_bytes)
{
    if (config->size_bytes == 0 || config->touch_threads <= 0)
        return err_set(-EINVAL, "arena %s: size and thread count must be above 0", config->name);
    TRY(size_add(config->size_bytes, ARENA_PAGE_BYTES - 1, size_bytes));
    *size_bytes -= *size_bytes % ARENA_PAGE_BYTES;
    if (*size_bytes > (UINT64_MAX >> 2))
        return err_set(-ENOMEM, "arena %s: %llu bytes are more than any machine has", config->name,
                       (unsigned long long)*size_bytes);
    return 0;
}

/* Maps exactly size_bytes at a 2 MiB boundary: it maps more and unmaps both ends. */
static int map_exact(const arena_config *config, uint64_t size_bytes, unsigned char **base)
{
    uint64_t extra_bytes = size_bytes >= ARENA_HUGE_BYTES ? ARENA_HUGE_BYTES : 0;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *raw = mmap(NULL, size_bytes + extra_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (raw == MAP_FAILED) {
        char needed[SIZE_TEXT_BYTES];
        return err_errno(errno, "arena %s: mapping %s of memory", config->name,
                         size_format(size_bytes, needed));
    }
    unsigned char *begin = raw;
    if (extra_bytes) {
        uintptr_t address = (uintptr_t)raw;
        uint64_t head_bytes = size_round_up(address, ARENA_HUGE_BYTES) - address;
        begin += head_bytes;
        if (head_bytes)
            munmap(raw, head_bytes);
        if (head_bytes < extra_bytes)
            munmap(begin + size_bytes, extra_bytes - head_bytes);
    }
    *base = begin;
    return 0;
}

/* Binds the memory, before the first touch. If the kernel or a container forbids it, the arena
 * works unbound. */
static void bind_nodes(arena *self, const arena_nodes *wanted)
{
    if (wanted->spread == ARENA_ANYWHERE || numa_available() < 0)
        return;
    if (wanted->spread == ARENA_INTERLEAVE && numa_max_node() == 0)
        return;
    unsigned long mask[CORE_SET_MAX / (8 * sizeof(unsigned long))];
    static_assert(sizeof mask == sizeof wanted->nodes.words, "the kernel's mask has our layout");
    memcpy(mask, wanted->nodes.words, sizeof mask);
    int mode = wanted->spread == ARENA_BIND ? MPOL_BIND : MPOL_INTERLEAVE;
    /* The kernel reads one bit less than maxnode says. */
    if (mbind(self->base, self->size_bytes, mode, mask, CORE_SET_MAX + 1, 0) == 0) {
        self->nodes = wanted->nodes;
    } else if (numa_max_node() > 0) {
        char nodes[CORE_SET_TEXT_BYTES];
        log_warn("the %s arena cannot be bound to NUMA node %s (%s): transfers may cross nodes, "
                 "which is slower; a container needs CAP_SYS_NICE or a seccomp profile with mbind",
                 self->name, core_set_format(&wanted->nodes, nodes), strerror(errno));
    }
}

struct touch_job {
    unsigned char *base;
    uint64_t size_bytes;
    const core_set *cores;      /* empty: anywhere */
    _Atomic uint64_t next_step; /* the next step of 2 MiB */
};
typedef struct touch_job touch_job;

static void *touch_run(void *argument)
{
    touch_job *job = argument;
    /* If binding is not allowed, the pages are touched from farther away. */
    if (core_set_next(job->cores, 0) >= 0 && thread_bind(job->cores) < 0)
        log_debug("touching memory from any core: %s", err_text());
    for (;;) {
        /* Relaxed: the steps share no data, and the join orders the writes. */
        uint64_t step = atomic_fetch_add_explicit(&job->next_step, 1, memory_order_relaxed);
        if (step >= size_div_up(job->size_bytes, ARENA_HUGE_BYTES))
            return NULL;
        uint64_t begin = step * ARENA_HUGE_BYTES;
        uint64_t end = size_min(begin + ARENA_HUGE_BYTES, job->size_bytes);
        for (uint64_t at = begin; at < end; at += ARENA_PAGE_BYTES)
            ((volatile unsigned char *)job->base)[at] = 0;
        progress_note();
    }
}

/* Touches every page once, so that no later first touch costs time or fails. The calling thread
 * takes part. If a thread cannot be started, the others do its part. */
static void touch_all(arena *self, int thread_count, const core_set *cores)
{
    static const core_set anywhere;
    cpu_set_t own;
    bool is_known = sched_getaffinity(0, sizeof own, &own) == 0;
    touch_job job = {
        .base = self->base, .size_bytes = self->size_bytes, .cores = is_known ? cores : &anywhere};
    uint64_t step_count = size_div_up(self->size_bytes, ARENA_HUGE_BYTES);
    uint64_t wanted =
        size_min(size_min((uint64_t)thread_count, ARENA_TOUCH_THREADS_MAX), step_count);
    pthread_t threads[ARENA_TOUCH_THREADS_MAX];
    uint64_t started = 0;
    while (started + 1 < wanted && thread_start(&threads[started], touch_run, &job) == 0)
        started++;
    touch_run(&job);
    if (is_known)
        /* the thread had this mask before, so it is allowed */
        (void)sched_setaffinity(0, sizeof own, &own);
    for (uint64_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

static void warn_small_pages(const arena *self)
{
    static atomic_bool warned;
    if (self->size_bytes < ARENA_WARN_BYTES || self->huge_bytes >= self->size_bytes / 10 * 9)
        return;
    if (atomic_exchange(&warned, true))
        return;
    char huge[SIZE_TEXT_BYTES], all[SIZE_TEXT_BYTES], mode[128];
    if (tieri_read_small_file("/sys/kernel/mm/transparent_hugepage/enabled", mode, sizeof mode) <=
        0)
        snprintf(mode, sizeof mode, "this kernel has none");
    mode[strcspn(mode, "\n")] = 0;
    log_warn(
        "only %s of the %s arena's %s are on huge pages (%s): expect about half the disk speed "
        "(reads of 1.3-1.4 instead of 2.9-3.2 GB/s on the machine measured) and 4 to 10 times "
        "the CPU time per GB; to allow them: echo madvise > "
        "/sys/kernel/mm/transparent_hugepage/enabled, or free fragmented memory",
        size_format(self->huge_bytes, huge), self->name, size_format(self->size_bytes, all), mode);
}

int arena_init(arena *out, const arena_config *config)
{
    memset(out, 0, sizeof *out);
    static const arena_nodes anywhere = {.spread = ARENA_ANYWHERE};
    const arena_nodes *wanted = config->nodes ? config->nodes : &anywhere;
    uint64_t size_bytes;
    TRY(check_config(config, &size_bytes));
    TRY(check_nodes(config, wanted));
    TRY(check_available(config, wanted, size_bytes));

    unsigned char *base = NULL;
    TRY(map_exact(config, size_bytes, &base));
    out->base = base;
    out->size_bytes = size_bytes;
    snprintf(out->name, sizeof out->name, "%s", config->name);
    /* Old or small kernels may refuse these hints: without harm, but for the one about forks. The
     * name also separates the mapping from its neighbours, so that its huge pages can be
     * counted. */
    char label[64];
    snprintf(label, sizeof label, "sluice %s arena", out->name);
#ifdef PR_SET_VMA
    (void)prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, base, size_bytes, label);
#endif
    (void)madvise(base, size_bytes, MADV_HUGEPAGE);
    /* A forked process, such as one that loads data, gets no copy: fork would copy all pages that
     * are registered for I/O at once. It reads zeros there. */
    (void)madvise(base, size_bytes, MADV_WIPEONFORK);
    bind_nodes(out, wanted);
    touch_all(out, config->touch_threads, &wanted->touch_cores);
    out->huge_bytes = tieri_huge_bytes(base, size_bytes);
    warn_small_pages(out);
    return 0;
}

void arena_fini(arena *self)
{
    int rc = self->base ? munmap(self->base, self->size_bytes) : 0;
    assert(rc == 0); /* it was mapped as one piece */
    (void)rc;
    memset(self, 0, sizeof *self);
}

void arena_empty(arena *self, uint64_t begin, uint64_t end)
{
    begin = size_round_up(begin, ARENA_PAGE_BYTES);
    end -= end % ARENA_PAGE_BYTES;
    if (begin < end && madvise(self->base + begin, end - begin, MADV_DONTNEED) != 0)
        log_warn("the %s arena keeps memory that nobody needs (%s): is it locked (mlockall)?",
                 self->name, strerror(errno));
}

void arena_copy_on_fork(arena *self)
{
    if (madvise(self->base, self->size_bytes, MADV_KEEPONFORK) != 0)
        log_warn("the %s arena: forked processes read no values in it (%s)", self->name,
                 strerror(errno));
}
