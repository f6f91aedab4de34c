/* machine.json gives the speeds and sizes of a machine, or of a cluster of equal hosts. `sluice
 * probe` measures a machine and writes its file. Files of well-known clusters are written by hand
 * and lie in configs/clusters.json.
 *
 *   host     one of `host_count` equal hosts; its `ranks_per_host` ranks share memory, cores, links
 *            and drives
 *   device   what one rank computes on: a GPU, or the rank's part of the host's cores
 *   link     between host memory and the device, each direction, of one rank
 *   drive    an NVMe drive (or `count` equal ones) of each host
 *   comm     between ranks
 *
 * Rates are bytes, flops or elements per second; times are seconds. 0 means "not known": the plan
 * then takes its default (plan_machine_default_*) and says that it did. Unknown keys are refused,
 * as in job files.
 *
 * Plain data. machine_read and machine_write block on the file. */
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
    MACHINE_PRODUCTS_MAX = 72,
    MACHINE_IO_POINTS_MAX = 96
};

/* A matrix product [m,k] x [k,n], measured on all the threads of a rank. */
struct machine_product {
    enum dtype type;   /* of the operands; also of the result unless it accumulates */
    bool accumulates;  /* added to an fp32 result, as for the gradient of a weight */
    bool b_transposed; /* the second operand is stored [n,k], as weights are in the forward */
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

/* A point of a drive's curve: direct I/O in blocks of this size, with this number of requests in
 * flight. */
struct machine_io_point {
    enum machine_io_kind kind;
    uint64_t block_bytes, queue_depth;
    /* mixed: both directions together, with as many bytes read as written */
    double bytes_per_second;
};
typedef struct machine_io_point machine_io_point;

struct machine_drive {
    char name[MACHINE_NAME_BYTES];
    char path[MACHINE_PATH_BYTES]; /* measured: the directory; described: "" */
    uint32_t count;          /* the number of equal drives that this one stands for; 0 acts as 1 */
    uint64_t capacity_bytes; /* of one of them */
    double read, write, mixed; /* of one of them, at the settings below */
    /* Writes mixed half and half with reads, while Adam runs on the CPU; 0: unknown. */
    double write_with_update;
    uint64_t block_bytes, queue_depth; /* the smallest values that reach 95% of the best rate */
    double sync_seconds;               /* fdatasync of what was just written */
    /* how much may be written in its life, as its maker states; 0: unknown */
    double endurance_bytes;
    uint32_t point_count;
    machine_io_point points[MACHINE_IO_POINTS_MAX];
};
typedef struct machine_drive machine_drive;

struct machine {
    char name[MACHINE_NAME_BYTES];        /* "DGX-2, 32 nodes"; measured: the host's name */
    char measured_at[MACHINE_NAME_BYTES]; /* ISO 8601; "": the machine is described, not measured */
    char measured_by[MACHINE_NAME_BYTES]; /* "sluice 0.1.0" */
    /* The machine had other work while it was measured, so plans made from it may be wrong.
     * disturbed_by: "bf16 forward +-38%", "other processes used 1.20 of a core". */
    bool disturbed;
    char disturbed_by[MACHINE_NAME_BYTES];
    uint32_t host_count, ranks_per_host; /* 0 acts as 1 */
    struct {
        char cpu[MACHINE_NAME_BYTES];
        uint32_t core_count;         /* of a host: the cores that may be used */
        uint32_t node_count;         /* NUMA nodes */
        uint64_t memory_bytes;       /* of a host */
        double dram_read, dram_copy; /* copy: bytes read and written together */
        double dram_update; /* bytes read and written by an Adam pass over memory on all cores */
        double update_core_seconds; /* per element: Adam on one core, its tile in cache */
        double update_elems;        /* per second: Adam over host memory, all cores */
        /* How much computing is slowed down, in seconds of one core per byte that is moved
         * meanwhile. It is more than the CPU time of the transfer if a team waits for its slowest
         * thread, or if memory and caches are shared. */
        double io_core_seconds;   /* direct I/O; if a GPU computes, its CPU time */
        double copy_core_seconds; /* copies by one thread; 0 if a GPU computes */
        /* checksums of what the drives read and write, by one thread; if a GPU computes, its CPU
         * time. I/O beside them is io_core_seconds. */
        double sum_core_seconds;
    } host;
    struct {
        bool is_gpu;
        char name[MACHINE_NAME_BYTES];
        uint64_t memory_bytes;     /* of a GPU; 0 for a CPU */
        double compute_capability; /* of a GPU, such as 8.6; 0: unknown */
        /* Dense 16-bit products: the maker's figure for a GPU, the best measured rate for a CPU. */
        double peak_flops;
        double flops_16bit, flops_fp32;               /* that large products reach */
        double memory_rate;                           /* bytes/s, of a GPU's memory */
        double attention_forward, attention_backward; /* flops per second of those kernels */
        /* bytes/s, read and written together, of norms, activations and similar kernels */
        double row_rate;
        /* bytes/s, codes read and values written together, of expanding nf4_double to bf16 */
        double expand_rate;
        double op_seconds; /* fixed cost of an op or a launch */
        /* CPU: the number of threads that its kernels were measured with; 0: one for each of the
         * rank's cores. */
        uint32_t thread_count;
        uint32_t product_count;
        machine_product products[MACHINE_PRODUCTS_MAX];
    } device;
    machine_link h2d, d2h;
    /* Bytes/s in one direction, all ranks of a host together; 0: no such limit is known. */
    double link_all_ranks;
    uint32_t drive_count;
    machine_drive drives[DRIVES_MAX];
    double drives_read, drives_write; /* all drives of a host at once; 0: their sum */
    struct {
        /* bytes/s that a rank sends while it receives at the same rate, within a host */
        double inside;
        double between; /* the same between hosts */
        double seconds; /* fixed cost of a collective */
        bool is_copies; /* within a host, cores copy through shared memory */
    } comm;
};
typedef struct machine machine;

/* Reads and checks machine.json. `path` is a file. A name without a slash and without ".json"
 * stands for a member of configs/clusters.json. It is looked for like a model preset: in
 * $SLUICE_CONFIG_DIR, the source tree, the installation. Comments, trailing commas and duplicate
 * keys are treated as in job files. Sizes in bytes may be texts such as "32GiB", and any object
 * may have a key "description" for people. Returns ERR_INPUT if the file cannot be read, and
 * ERR_CONFIG with file, key, value and rule for anything that does not belong there. On failure
 * *out is all 0. */
int machine_read(const char *path, machine *out) MUST_CHECK;
/* Does the same for text[text_bytes]. Messages call it `name`. */
int machine_read_text(const char *name, const char *text, size_t text_bytes,
                      machine *out) MUST_CHECK;

/* Writes the file with file_write. Returns -errno, or -EINVAL for a machine that could not be
 * read again. Text that machine_read has read is written back bit for bit. */
int machine_write(const machine *self, const char *path) MUST_CHECK;

/* Sets what identifies the host of this process: name and host.cpu. The third part,
 * host.core_count, needs the machine's topology: probe_name_host (src/probe/probe.h) sets all
 * three. */
void machine_name_host(machine *target);

/* True if `self` was measured on the host `here` (filled by probe_name_host). If not, `why` is a
 * clause that says what differs. */
bool machine_is_here(const machine *self, const machine *here, char *why, size_t why_bytes);

#endif
