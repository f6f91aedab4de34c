/* An arena: a tier's memory, reserved once at its exact size, then carved by the plan.
 *
 *   [ home: params u0 ][ home: grads u0 ] ... [ transients, reused by the compiled programs ............ ]
 *   0                                                                                     budget_bytes
 *
 * Anonymous memory of exactly the budget rounded up to 4 KiB (huge pages by madvise, never hugetlbfs),
 * bound to NUMA nodes through libnuma, touched in parallel once at creation. On the CPU backend the
 * device arena is an arena like this of exactly the device budget. Nothing grows afterwards.
 * Created and destroyed by one thread; the memory is shared as the program says. */
#ifndef SLUICE_TIERS_ARENA_H
#define SLUICE_TIERS_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/core_set.h"
#include "base/error.h"

enum arena_spread {
    ARENA_ANYWHERE,  /* no binding: the kernel's choice, normally the node of the touching thread */
    ARENA_BIND,      /* these nodes alone: nearest to the touching thread first, then the next */
    ARENA_INTERLEAVE /* over these nodes in turn, a (huge) page at a time */
};

/* Where memory lies and who touches it first. topology_place decides it. */
struct arena_nodes {
    enum arena_spread spread;
    node_set nodes;       /* by the kernel's numbers; empty for ARENA_ANYWHERE */
    core_set touch_cores; /* the touching threads run here; empty: anywhere */
};
typedef struct arena_nodes arena_nodes;

struct arena_config {
    const char *name;         /* "device", "host": for messages */
    uint64_t size_bytes;      /* > 0; mapped size is rounded up to 4 KiB */
    int numa_node;            /* bind to this node; -1: no binding; -2: interleave over all nodes */
    int touch_threads;        /* threads that touch the memory, > 0 */
    const arena_nodes *nodes; /* NULL: as numa_node says; else it is not read */
};
typedef struct arena_config arena_config;

struct arena {
    unsigned char *base; /* aligned to 2 MiB where size allows */
    uint64_t size_bytes;
    uint64_t huge_bytes; /* backed by huge pages after the touch (from smaps) */
    int numa_node;       /* node it was bound to, or -1 */
    node_set nodes;      /* nodes it was bound to or interleaved over; empty: none */
    char name[16];
};
typedef struct arena arena;

/* Maps, binds, touches. Takes seconds for many GiB (on some machines 1 s per GiB). The calling thread
 * takes part in touching, so it runs on touch_cores meanwhile.
 * -ENOMEM where the system cannot give the memory (says how much is available), -EINVAL for a bad
 * node. Where a container forbids the binding the arena works unbound, with a warning. Where huge pages
 * cannot be had, warns once with what it costs and how to allow them. */
int arena_init(arena *out, const arena_config *config) MUST_CHECK;
void arena_fini(arena *self);

/* Resident bytes of this process now and at most (VmRSS, VmHWM of /proc/self/status), and the total
 * of its mappings (VmSize); any may be NULL. Allocates nothing. */
int arena_process_memory(uint64_t *resident_bytes, uint64_t *resident_bytes_max,
                         uint64_t *mapped_bytes) MUST_CHECK;

/* Bytes that this process can still take without swapping or the OOM killer: MemAvailable, capped by
 * what each memory control group above it (v1 or v2) has left. An estimate of this moment. Allocates
 * nothing. */
int arena_available_memory(uint64_t *available_bytes) MUST_CHECK;

#endif
