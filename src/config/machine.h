/* machine.json: what a machine, or a cluster of equal hosts, can do. `sluice probe` writes one of
 * the machine that it measured; files of well-known clusters, written by hand, lie in
 * configs/clusters.
 *
 *   host     one of `host_count` equal hosts; its `ranks_per_host` ranks share memory, cores, links
 *            and drives
 *   device   what one rank computes on: a GPU, or the rank's part of the host's cores
 *   link     between host memory and the device, each direction, of one rank
 *   drive    an NVMe drive (or `count` equal ones) of each host
 *   comm     between ranks
 *
 * Rates are bytes, flops or elements per second, times are seconds; 0 is "not known": the plan then
 * takes its default for it (plan_machine_default_*) and says that it did. Unknown keys are refused
 * as in job files.
 *
 * Plain data; machine_read and machine_write block on the file. */
#ifndef SLUICE_CONFIG_MACHINE_H
#define SLUICE_CONFIG_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/words.h"

enum {
    MACHINE_NAME_BYTES = 96,
    MACHINE_PATH_BYTES = 4096,
    MACHINE_PRODUCTS_MAX = 64,
    MACHINE_IO_POINTS_MAX = 96
};

/* A matrix product [m,k] x [k,n] as measured on all the threads of a rank. */
struct machine_product {
    enum dtype type;   /* of the operands, and of the result where it is not added to */
    bool accumulates;  /* added to an fp32 result: the gradient of a weight */
    bool b_transposed; /* its second operand is stored [n,k], as weights are in the forward */
    uint64_t m, n, k;
    double flops_per_second;
};
typedef struct machine_product machine_product;

/* One direction between host memory and device, of one rank while the others are idle. */
struct machine_link {
    double pageable;         /* from or to memory that is not pinned, nothing else running */
    double pinned;           /* nothing else running */
    double pinned_both;      /* while the other direction runs */
    double pinned_with_nvme; /* while the drives are read and written */
};
typedef struct machine_link machine_link;

enum machine_io_kind { MACHINE_IO_READ, MACHINE_IO_WRITE, MACHINE_IO_MIXED };

/* A point of a drive's curve: direct I/O of so many bytes with so many requests in flight. */
struct machine_io_point {
    enum machine_io_kind kind;
    uint64_t block_bytes, queue_depth;
    double bytes_per_second; /* mixed: both ways together, as many bytes read as written */
};
typedef struct machine_io_point machine_io_point;

struct machine_drive {
    char name[MACHINE_NAME_BYTES];
    char path[MACHINE_PATH_BYTES]; /* measured: the directory; described: "" */
    uint32_t count;                /* equal drives that this stands for; 0 acts as 1 */
    uint64_t capacity_bytes;       /* of one of them */
    double read, write, mixed;     /* of one of them, at the settings below */
    /* Writes mixed half and half with reads, while the CPU's Adam runs; 0: unknown. */
    double write_with_update;
    uint64_t block_bytes, queue_depth; /* the smallest that reach 98% of the best */
    double sync_seconds;               /* fdatasync of what was just written */
    double endurance_bytes; /* that may be written in its life, as its maker states; 0: unknown */
    uint32_t point_count;
    machine_io_point points[MACHINE_IO_POINTS_MAX];
};
typedef struct machine_drive machine_drive;

struct machine {
    char name[MACHINE_NAME_BYTES];        /* "DGX-2, 32 nodes"; measured: the host's name */
    char measured_at[MACHINE_NAME_BYTES]; /* ISO 8601; "" where it is described, not measured */
    char measured_by[MACHINE_NAME_BYTES]; /* "sluice 0.1.0" */
    char disturbed[MACHINE_NAME_BYTES];   /* figures that swung, and how far; "": none known */
    uint32_t host_count, ranks_per_host;  /* 0 acts as 1 */
    struct {
        char cpu[MACHINE_NAME_BYTES];
        uint32_t core_count;         /* that may be used, of a host */
        uint32_t node_count;         /* NUMA */
        uint64_t memory_bytes;       /* of a host */
        double dram_read, dram_copy; /* copy: bytes read and written together */
        double dram_update; /* bytes read and written by an Adam pass over memory on all cores */
        double update_core_seconds; /* per element: Adam on one core, its tile in cache */
        double update_elems;        /* per second: Adam over host memory, all cores */
        /* What computing loses, in seconds of one core per byte moved beside it; more than the CPU
         * time of moving where a team waits for its slowest thread, or memory and caches are
         * shared. */
        double io_core_seconds;   /* direct I/O; where a GPU computes its CPU time */
        double copy_core_seconds; /* copies of one thread; where a GPU computes 0 */
    } host;
    struct {
        bool is_gpu;
        char name[MACHINE_NAME_BYTES];
        uint64_t memory_bytes; /* of a GPU; of a CPU 0 */
        /* Dense 16-bit products: the maker's for a GPU, the best measured for a CPU. */
        double peak_flops;
        double flops_16bit, flops_fp32;               /* that large products reach */
        double memory_rate;                           /* bytes/s, of a GPU's memory */
        double attention_forward, attention_backward; /* flops per second of those kernels */
        double row_rate; /* bytes/s of norms, activations and the like: read and written together */
        double op_seconds; /* fixed cost of an op or a launch */
        /* Of a CPU: the threads that its kernels were measured with; 0: one for each of the rank's
         * cores. */
        uint32_t thread_count;
        uint32_t product_count;
        machine_product products[MACHINE_PRODUCTS_MAX];
    } device;
    machine_link h2d, d2h;
    /* Bytes/s in one direction, all ranks of a host together; 0: no such limit. */
    double link_all_ranks;
    uint32_t drive_count;
    machine_drive drives[DRIVES_MAX];
    double drives_read, drives_write; /* all drives of a host at once; 0: their sum */
    struct {
        double inside;  /* bytes/s that a rank sends while it receives as much, within a host */
        double between; /* the same between hosts */
        double seconds; /* fixed cost of a collective */
        bool is_copies; /* within a host through shared memory, by the cores */
    } comm;
};
typedef struct machine machine;

/* Reads and checks machine.json. ERR_INPUT where it cannot be read, ERR_CONFIG with file, key,
 * value and rule for anything that does not belong there. Comments, trailing commas and duplicate
 * keys as in job files; sizes in bytes may be texts such as "32GiB"; a key "description" is for
 * people, anywhere. A name without a slash and without ".json" is that of a file in
 * configs/clusters (as model presets are found: $SLUICE_CONFIG_DIR, the source tree, where it is
 * installed). On failure *out is all 0. */
int machine_read(const char *path, machine *out) MUST_CHECK;
/* The same of text[text_bytes]; messages name it `name`. */
int machine_read_text(const char *name, const char *text, size_t text_bytes,
                      machine *out) MUST_CHECK;

/* Writes it as file_write does. -errno; -EINVAL for what could not be read again. Text that comes
 * back from machine_read is equal to the bit. */
int machine_write(const machine *self, const char *path) MUST_CHECK;

/* What tells hosts apart, of the one that this process is on: name and host.cpu. The third,
 * host.core_count, takes a look at the machine's topology: probe_name_host (src/probe/probe.h)
 * knows all three. */
void machine_name_host(machine *target);

/* Whether `self` was measured on a host that is `here` (filled by probe_name_host); else `why` is a
 * clause that says what differs. */
bool machine_is_here(const machine *self, const machine *here, char *why, size_t why_bytes);

#endif
