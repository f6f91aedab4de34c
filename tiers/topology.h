/* The machine as data, and who works where on it: nodes, cores, distances, devices, drives.
 *
 *   topology_read -> topology -> topology_place (pure) -> core_plan -> arena_init (arena_config.nodes)
 *                       ^             ^                       |
 *          or written by hand     core_request (job)          +--> thread_bind, thread_bind_team
 *
 * How the engine uses it, at start, before any thread of ours is made or bound (a second engine of the
 * process is given the same cores again, whatever its thread was bound to since):
 *
 *     topology machine;
 *     TRY(topology_read(&machine));
 *     TRY(topology_add_drive(&machine, drive_path));            for each drive, in order
 *     machine.device_node = topology_pci_node("0000:3b:00.0");  a GPU alone
 *     core_request asked = {
 *         .compute = {"device", job->device.cores, job->device.threads},
 *         .update = {"update", job->update.cores, job->update.threads},
 *         .io = {"io", job->io.cores, job->io.threads},
 *         .device_is_cpu = true,
 *     };
 *     core_plan cores;
 *     TRY(topology_place(&machine, &asked, &cores));            thread counts are known from here
 *     ...the plan is compiled, so the sizes of the arenas are known...
 *     topology_place_memory(&machine, host_bytes, device_bytes, &cores);
 *     log_info("%s", topology_describe(&machine, text)); log_info("%s", core_plan_describe(&cores, text));
 *     for (uint32_t i = 0; i < cores.note_count; i++)
 *         log_warn("%s", cores.notes[i]);
 *
 *     arena_config.nodes = &cores.host (or &cores.device)       instead of numa_node
 *     arena_config.touch_threads = cores.compute.thread_count
 *     kernel_context_config.thread_count = cores.compute.thread_count
 *     on the worker that computes, once, in start_thread:
 *         thread_bind_team(&cores.compute.cores, cores.compute.thread_count)
 *     where !cores.update_is_compute, before an update and after it on the same worker, or once on a
 *     worker of its own: the same with cores.update
 *     on the copy thread, in start_thread: thread_bind(&cores.io.cores)
 *     on the scheduler thread, before io_create, since the threads of its pool inherit it:
 *         thread_bind(&cores.io.cores); io_config.pool_threads = cores.io.thread_count where above 0
 *     Parallel regions on the scheduler thread (initial weights) are then on io's cores: all of the home
 *     nodes, but where io.cores says less.
 *
 * Everything here is by value and allocates nothing of ours; any thread. */
#ifndef SLUICE_TIERS_TOPOLOGY_H
#define SLUICE_TIERS_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/core_set.h"
#include "base/error.h"
#include "tiers/arena.h"

enum {
    TOPOLOGY_NODES_MAX = 64, /* of machines with more, the first 64 are used */
    TOPOLOGY_DRIVES_MAX = 16,
    TOPOLOGY_TEXT_BYTES = 1024,
    CORE_PLAN_NOTES_MAX = 8,
    CORE_PLAN_NOTE_BYTES = 256,
};

struct topology_node {
    int id;                   /* the kernel's number; numbers may have holes (0 and 8) */
    uint64_t memory_bytes;    /* 0: a node of cores alone */
    uint64_t available_bytes; /* free and clean page cache; as memory_bytes where not known */
    bool memory_is_allowed;   /* to this process (cpuset.mems) */
    core_set cores;           /* online ones, allowed or not; empty: memory alone (CXL, HBM) */
    uint8_t distance[TOPOLOGY_NODES_MAX]; /* to each node, by index; 10 is local; 0: not known */
};
typedef struct topology_node topology_node;

struct topology {
    topology_node nodes[TOPOLOGY_NODES_MAX]; /* by ascending id */
    uint32_t node_count;                     /* at least 1 */
    core_set allowed;                        /* online cores that this process may use; not empty */
    uint16_t physical[CORE_SET_MAX]; /* the lowest core number of the same physical core (SMT) */
    uint32_t
        quota_cores; /* CPU time that control groups allow, in cores, rounded up; 0: no limit */
    bool memory_is_set_by_user; /* the process was started with a memory policy (numactl) */
    int device_node;            /* id of the GPU's node; -1: none, or not known */
    int drive_nodes[TOPOLOGY_DRIVES_MAX]; /* id of each drive's node; -1: not known */
    uint32_t drive_count;
};
typedef struct topology topology;

/* Reads this machine from /sys/devices/system, /proc and the control groups. Kernels without NUMA are
 * one node 0. device_node is -1 and there are no drives: the caller adds what it uses. Reads some
 * hundreds of small files on large machines. The system's error where not even the affinity mask can
 * be read; where anything else cannot, what is missing is taken as absent. */
int topology_read(topology *out) MUST_CHECK;

/* The node of a PCI device ("0000:3b:00.0", as CUDA's cudaDeviceGetPCIBusId gives it). -1: not known,
 * as on machines with one node and in most virtual ones. */
int topology_pci_node(const char *address);

/* Appends the drive that holds `path`. -E2BIG above TOPOLOGY_DRIVES_MAX. */
int topology_add_drive(topology *self, const char *path) MUST_CHECK;

/* The machine in one line for the log. Returns `text`. */
char *topology_describe(const topology *self, char text[TOPOLOGY_TEXT_BYTES]);

/* What a job says about one group of threads. */
struct core_ask {
    const char
        *key; /* of the job's block, for messages: "device" means device.cores, device.threads */
    const char *cores; /* a core set; NULL or "": automatic */
    uint64_t threads;  /* 0: automatic. Of io: pool threads per drive */
};
typedef struct core_ask core_ask;

struct core_request {
    core_ask compute, update, io;
    bool device_is_cpu; /* else a GPU on machine->device_node */
    /* Ranks of this machine, by local rank; local_world 0 acts as 1. Those that may run on the same cores
     * (a launcher that binds gives each its own) divide them: see rule 7. */
    uint32_t local_rank, local_world;
    bool shares_cores; /* false: the affinity mask is this rank's own */
    const int *
        device_nodes; /* [local_world] ids of the nodes of all these ranks' GPUs, -1: not known; NULL:
                                taken to lie on the nodes in the order of the ranks, as many on each */
};
typedef struct core_request core_request;

struct core_group {
    core_set cores;        /* not empty; each thread of the group may run on all of them */
    uint32_t thread_count; /* > 0; of io: pool threads in all, 0 without drives */
};
typedef struct core_group core_group;

/* What of the machine is one rank's: rule 7. */
struct core_share {
    uint32_t rank, world; /* by local rank; world at least 1 */
    bool is_dealt;        /* the ranks share a mask, of which `cores` is this one's part */
    core_set cores;       /* all that it may use, but for sets that the job names */
    uint32_t
        home_ranks[TOPOLOGY_NODES_MAX]; /* by index of the node: whose home it is; 0: not known */
};
typedef struct core_share core_share;

struct core_plan {
    core_share share;
    core_group compute; /* the OpenMP team of the device; with a GPU the thread that launches */
    core_group update;  /* the OpenMP team of the optimizer on the CPU */
    core_group io; /* the scheduler (executor) thread, copies, and the threads of the I/O pool */
    bool update_is_compute; /* same cores and count: one worker and team serves both */
    arena_nodes host, device;
    node_set home; /* where the memory should be, by id: the nodes of the GPU or of the cores */
    uint32_t
        reserved; /* physical cores left to I/O: allowed, of a home node, in no automatic group */
    char notes[CORE_PLAN_NOTES_MAX][CORE_PLAN_NOTE_BYTES]; /* sentences, each worth a warning */
    uint32_t note_count;
    uint32_t
        core_note_count; /* the first of them, about cores; topology_place_memory adds the others */
};
typedef struct core_plan core_plan;

/* Decides cores and thread counts, and binds memory as if it fitted (topology_place_memory knows the
 * sizes). Pure: the same inputs give the same plan. The rules:
 *
 *  1. One thread per physical core. A product or an Adam pass on one physical core is bound by its
 *     vector units or by DRAM, which its hyperthreads share; these stay free for I/O and for the rest
 *     of the machine. More threads only where asked for.
 *  2. Home. CPU backend: the nodes of the computing cores. GPU: its node, whatever the cores say, since
 *     every byte crosses its link; where its node is not known, all nodes with allowed cores.
 *  3. CPU backend: compute takes all allowed physical cores. With fewer threads (device.threads, or
 *     a control group's quota of CPU time), the fewest nodes that have as many cores, that of most
 *     drives first, then the one with most available memory; the threads may use all of their cores,
 *     because picking particular ones on a machine shared with others would collide with whoever else
 *     picks the same. Update shares cores and threads of compute: the program never runs both at once.
 *  4. GPU: update takes the allowed physical cores of its node; where it has none, of the nearest node
 *     that has; where update.threads is more, of the nearest nodes that together have enough.
 *     Compute is the one thread that launches.
 *  5. From 8 physical cores on, one is left to the scheduler, the copies and the I/O (the lowest of the
 *     first drive's home node, else of the lowest home node: interrupts go to low numbers by default).
 *     A parallel region ends with its slowest thread, so where the others take a share s of one core,
 *     it runs up to s longer, while leaving a core costs 1/n. Beside full disk load Adam was seen to lose
 *     5-10% on two cores, and copies come to that, so s is some 1/8. An estimate: no machine of 8 cores
 *     and more was there to measure; device.threads has the last word. No core is left where the count
 *     was given: by device.threads (CPU), update.threads (GPU), a quota, or the cores themselves.
 *     DeepSpeed leaves 20% (cpuadam_cores_perc 0.8), since its cores also run Python and libaio.
 *  6. I/O may run on all allowed cores of the home (or nearest) nodes, hyperthreads and the core left
 *     included: the kernel puts it where it is idle, and on 2 cores it shares them (see
 *     thread_ask_short_slice). Pool threads sleep in the kernel: 4 per drive, 64 at most. Cores named in
 *     io.cores are left out of automatic groups of 8 or more physical cores, if half of them stay.
 *
 *  7. Several ranks that share a mask: the allowed cores are dealt out in blocks of whole physical cores, ranks
 *     to NUMA nodes first (rank i of n to node i * nodes / n where n is a multiple of the nodes, unless the
 *     nodes are so unequal that more than a quarter of the cores would be left; a GPU's rank to its GPU's
 *     node), so that each has as many, and at least one, which several then share. What cannot be dealt
 *     evenly is left to the kernel. All other rules then hold for the rank's own cores. Core sets that
 *     the job names are taken as they are: every rank may use all of compute's, with so many threads that
 *     all ranks together have one per physical core; io's are dealt to nobody, where there are 8 physical cores and
 *     more, and half of them, and one for each rank, stay.
 *     A quota is divided among the ranks of the machine, also of those with masks of their own. Memory is
 *     bound accordingly, and what a node has available is divided among the ranks whose home it is (of
 *     masks of their own as many as fit), what others may fall back on among all.
 *
 * Thread counts follow from the allowed cores, the quota and the request alone, never from free memory
 * or budgets: compute's count is part of a run's numeric fingerprint. The update is elementwise: its
 * count changes no bit.
 * ERR_CONFIG with one sentence that names key, value and allowed cores, for a core set that is malformed,
 * empty, or has cores that do not exist or are not allowed, and for more than 65536 threads. More
 * threads than cores is a note. */
int topology_place(const topology *machine, const core_request *asked, core_plan *out) MUST_CHECK;

/* Sets plan->host and plan->device, and the notes about memory, for arenas of these sizes (device_bytes
 * 0 with a GPU: its memory is not ours to bind). May be called again with other sizes. A machine
 * with one usable node: no binding. Home nodes that hold everything: one is bound, several are
 * interleaved (in huge pages), so that each draws on the bandwidth of all. Where they cannot hold
 * it, the nearest further nodes join, with a note: interleaved where all have cores and room for
 * equal shares, else filled in order of distance from the cores that touch first, so that slow
 * memory (CXL) gets only what is left. A sixteenth of what a node has available stays free. What
 * does not fit the machine is left to arena_init to refuse. */
void topology_place_memory(const topology *machine, uint64_t host_bytes, uint64_t device_bytes,
                           core_plan *plan);

/* The plan in one line for the log. Returns `text`. */
char *core_plan_describe(const core_plan *self, char text[TOPOLOGY_TEXT_BYTES]);

#endif
