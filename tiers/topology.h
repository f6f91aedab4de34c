/* The machine as data, and which threads and memory go where: nodes, cores, distances, drives.
 *
 *   topology_read -> topology -> topology_place (pure) -> core_plan -> arena_init (its nodes)
 *                       ^             ^                       |
 *          or written by hand     core_request (job)          +--> thread_bind, thread_bind_team
 *
 * The engine's order of calls at start, before it makes or binds any thread:
 *   1. topology_read, topology_add_drive for each drive in order, and device_node for a GPU.
 *   2. topology_place. Thread counts are known from here, so the plan can be compiled.
 *   3. topology_place_memory, once the sizes of the arenas are known; then log the plan's notes.
 *   4. arena_config.nodes = &plan.host or &plan.device, with compute.thread_count touch threads.
 *   5. The compute worker calls thread_bind_team with plan.compute once. Unless update_is_compute,
 *      the worker of updates does so with plan.update. The copy thread binds to plan.io.cores.
 *   6. The scheduler thread binds to plan.io.cores before io_create, since the pool's threads
 *      inherit the binding; io_config.pool_threads = plan.io.thread_count if above 0.
 *
 * All data is passed by value and nothing is allocated; any thread. */
#ifndef SLUICE_TIERS_TOPOLOGY_H
#define SLUICE_TIERS_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/core_set.h"
#include "base/error.h"
#include "base/words.h"
#include "tiers/arena.h"

enum {
    TOPOLOGY_NODES_MAX = 64, /* of a larger machine the first 64 are used */
    TOPOLOGY_TEXT_BYTES = 1024,
    CORE_PLAN_NOTES_MAX = 8,
    CORE_PLAN_NOTE_BYTES = 256,
};

struct topology_node {
    int id;                   /* the kernel's number; there may be gaps (0 and 8) */
    uint64_t memory_bytes;    /* 0: a node with cores only */
    uint64_t available_bytes; /* free and clean page cache; memory_bytes if unknown */
    bool memory_is_allowed;   /* to this process (cpuset.mems) */
    core_set cores;           /* online, allowed or not; empty: memory only (CXL, HBM) */
    uint8_t distance[TOPOLOGY_NODES_MAX]; /* to each node, by index; 10: local; 0: unknown */
};
typedef struct topology_node topology_node;

struct topology {
    topology_node nodes[TOPOLOGY_NODES_MAX]; /* by ascending id */
    uint32_t node_count;                     /* at least 1 */
    core_set allowed;                        /* online cores that this process may use; not empty */
    uint16_t physical[CORE_SET_MAX]; /* the lowest core number of the same physical core (SMT) */
    uint32_t quota_cores;        /* CPU time of control groups, in cores, rounded up; 0: no limit */
    bool memory_is_set_by_user;  /* the process was started with a memory policy (numactl) */
    int device_node;             /* id of the GPU's node; -1: none, or unknown */
    int drive_nodes[DRIVES_MAX]; /* id of each drive's node; -1: unknown */
    uint32_t drive_count;
};
typedef struct topology topology;

/* Reads this machine from /sys/devices/system, /proc and the control groups: some hundreds of small
 * files on large machines. A kernel without NUMA has one node 0. device_node is -1 and there are no
 * drives; the caller adds what it uses. Fails with the system's error only if the affinity mask
 * cannot be read; anything else that cannot be read counts as absent. */
int topology_read(topology *out) MUST_CHECK;

/* The node of a PCI device ("0000:3b:00.0", as cudaDeviceGetPCIBusId returns it). -1: unknown, as
 * on machines with one node and on most virtual machines. */
int topology_pci_node(const char *address);

/* Appends the drive that holds `path`. -E2BIG if there are DRIVES_MAX already. */
int topology_add_drive(topology *self, const char *path) MUST_CHECK;

/* Describes the machine in one line for the log. Returns `text`. */
char *topology_describe(const topology *self, char text[TOPOLOGY_TEXT_BYTES]);

/* A job's request for one group of threads. */
struct core_ask {
    const char *key;   /* the job's block, for messages: "device" for device.cores */
    const char *cores; /* a core set; NULL or "": automatic */
    uint64_t threads;  /* 0: automatic. For io: pool threads per drive */
};
typedef struct core_ask core_ask;

struct core_request {
    core_ask compute, update, io;
    bool device_is_cpu; /* otherwise a GPU on machine->device_node */
    /* The ranks of this machine, by local rank; local_world 0 acts as 1. */
    uint32_t local_rank, local_world;
    /* The ranks have the same affinity mask and divide its cores by rule 7. False: a launcher gave
     * this rank a mask of its own. */
    bool shares_cores;
    /* [local_world] ids of the nodes of these ranks' GPUs, -1: unknown. NULL: the GPUs are assumed
     * to lie on the nodes in rank order, equally many on each. */
    const int *device_nodes;
};
typedef struct core_request core_request;

struct core_group {
    core_set cores;        /* not empty; each thread of the group may use all of them */
    uint32_t thread_count; /* > 0; for io: pool threads in all, 0 without drives */
};
typedef struct core_group core_group;

/* One rank's part of the machine: rule 7. */
struct core_share {
    uint32_t rank, world; /* local; world at least 1 */
    bool is_dealt;        /* the ranks share a mask, and `cores` is this rank's part of it */
    core_set cores;       /* all cores that it may use, apart from sets that the job names */
    /* By index of the node: how many ranks have their home there; 0: unknown. */
    uint32_t home_ranks[TOPOLOGY_NODES_MAX];
};
typedef struct core_share core_share;

struct core_plan {
    core_share share;
    core_group compute;     /* the OpenMP team of the device; with a GPU the thread that launches */
    core_group update;      /* the OpenMP team of the optimizer on the CPU */
    core_group io;          /* the scheduler (executor) thread, copies, the threads of the pool */
    bool update_is_compute; /* same cores and count: one worker serves both */
    arena_nodes host, device;
    node_set home;     /* ids of the nodes where memory should lie: those of the GPU or the cores */
    uint32_t reserved; /* physical cores of the home nodes that are left to I/O */
    char notes[CORE_PLAN_NOTES_MAX][CORE_PLAN_NOTE_BYTES]; /* sentences, each worth a warning */
    uint32_t note_count;
    uint32_t core_note_count; /* notes about cores come first; those about memory follow */
};
typedef struct core_plan core_plan;

/* Decides cores and thread counts, and binds memory as if it fitted (topology_place_memory knows
 * the sizes). Pure: the same inputs give the same plan. The rules in short; topology_place.c and
 * topology_share.c give their reasons:
 *
 *   1. One thread per physical core. More only where asked for.
 *   2. Home of the memory: the nodes of the computing cores; with a GPU, the GPU's node.
 *   3. CPU: compute takes all allowed physical cores; with fewer threads, the fewest nodes that
 *      have enough cores. Updates share cores and threads of compute.
 *   4. GPU: updates take the physical cores of its node, or of the nearest nodes that have enough.
 *      Compute is the one thread that launches.
 *   5. From 8 physical cores on, one is left to the scheduler, copies and I/O, unless a count, a
 *      quota or the cores were given.
 *   6. I/O may run on all allowed cores of the home nodes. The pool has 4 threads per drive, 64 at
 *      most. Cores named in io.cores are left out of automatic groups of 8 or more physical cores,
 *      if half of them stay.
 *   7. Several ranks that share a mask divide the physical cores evenly, node by node.
 *
 * Thread counts follow from the allowed cores, the quota and the request only, never from free
 * memory or budgets: the count of compute is part of a run's numeric identity. ERR_CONFIG names
 * key, value and allowed cores: for a core set that is malformed, empty, or has cores that do not
 * exist or are not allowed, and for more than 65536 threads. More threads than cores is only a
 * note. */
int topology_place(const topology *machine, const core_request *asked, core_plan *out) MUST_CHECK;

/* Sets plan->host, plan->device and the notes about memory for arenas of these sizes (device_bytes
 * is 0 with a GPU, whose memory is not ours to bind). May be called again with other sizes.
 *   - One usable node: no binding.
 *   - Home nodes that hold everything: one is bound, several are interleaved in huge pages.
 *   - Home nodes that are too small: the nearest further nodes join, with a note. All are
 *     interleaved if all have cores and room for equal shares; otherwise they are filled in order
 *     of distance, so that slow memory (CXL) gets only the rest.
 * A sixteenth of what a node has available stays free. arena_init refuses what the machine cannot
 * hold. */
void topology_place_memory(const topology *machine, uint64_t host_bytes, uint64_t device_bytes,
                           core_plan *plan);

/* Describes the plan in one line for the log. Returns `text`. */
char *core_plan_describe(const core_plan *self, char text[TOPOLOGY_TEXT_BYTES]);

#endif
