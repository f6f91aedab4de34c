/* An arena: the memory of one tier, reserved once at its exact size and then divided by the plan.
 *
 *   [ home: params u0 ][ home: grads u0 ] ... [ transients, reused by the programs .............. ]
 *   0                                                                               budget_bytes
 *
 * An arena is anonymous memory of the budget, rounded up to 4 KiB, on huge pages (by madvise, never
 * hugetlbfs). It is bound to NUMA nodes through libnuma and touched in parallel at creation. A
 * forked process reads zeros there. On the CPU backend the device arena is such an arena too. An
 * arena never grows. One thread creates and destroys it; the program says who uses which bytes. */
#ifndef SLUICE_TIERS_ARENA_H
#define SLUICE_TIERS_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/core_set.h"
#include "base/error.h"

enum arena_spread {
    ARENA_ANYWHERE,  /* no binding: the kernel chooses, normally the node of the touching thread */
    ARENA_BIND,      /* these nodes only: first the nearest to the touching thread, then the next */
    ARENA_INTERLEAVE /* over these nodes in turn, a (huge) page at a time */
};

/* Where memory lies and which cores touch it first. topology_place decides it. */
struct arena_nodes {
    enum arena_spread spread;
    node_set nodes;       /* by the kernel's numbers; empty for ARENA_ANYWHERE */
    core_set touch_cores; /* the touching threads run here; empty: anywhere */
};
typedef struct arena_nodes arena_nodes;

struct arena_config {
    const char *name;         /* "device", "host": for messages */
    uint64_t size_bytes;      /* > 0; the mapped size is rounded up to 4 KiB */
    int touch_threads;        /* threads that touch the memory, > 0 */
    const arena_nodes *nodes; /* NULL: no binding */
};
typedef struct arena_config arena_config;

struct arena {
    unsigned char *base; /* aligned to 2 MiB if the size allows */
    uint64_t size_bytes;
    uint64_t huge_bytes; /* bytes on huge pages after the touch, by smaps */
    node_set nodes;      /* the nodes it is bound to or interleaved over; empty: none */
    char name[16];
};
typedef struct arena arena;

/* Maps, binds and touches the memory, which takes seconds for many GiB (1 s per GiB on some
 * machines). The calling thread takes part in touching, so it runs on touch_cores meanwhile.
 * -ENOMEM if the system cannot give the memory; the text says how much is available. -EINVAL for a
 * node that does not exist. If a container forbids the binding, the arena works unbound and a
 * warning is logged. If huge pages are not available, one warning says what that costs and how to
 * allow them. */
int arena_init(arena *out, const arena_config *config) MUST_CHECK;
void arena_fini(arena *self);

/* For memory that outlives its run. Gives the whole pages of [begin, end) back to the system: they
 * stay mapped, and read as zeros. */
void arena_empty(arena *self, uint64_t begin, uint64_t end);
/* A process that is forked from now on has a copy. No I/O may have the memory registered. */
void arena_copy_on_fork(arena *self);

/* Resident bytes of this process now and at most (VmRSS, VmHWM of /proc/self/status), and the total
 * of its mappings (VmSize). Each pointer may be NULL. Allocates nothing. */
int arena_process_memory(uint64_t *resident_bytes, uint64_t *resident_bytes_max,
                         uint64_t *mapped_bytes) MUST_CHECK;

/* Bytes that this process can still take without swapping or the OOM killer: MemAvailable, limited
 * by what each memory control group above the process (v1 or v2) has left. This is an estimate of
 * the present moment. Allocates nothing. */
int arena_available_memory(uint64_t *available_bytes) MUST_CHECK;

#endif
