/* What the files of the probe share. See probe.h. */
#ifndef SLUICE_PROBE_PROBE_INTERNAL_H
#define SLUICE_PROBE_PROBE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/ops.h"
#include "probe/probe.h"
#include "tiers/arena.h"
#include "tiers/device.h"
#include "tiers/drive_bench.h"
#include "tiers/io.h"
#include "tiers/slab.h"
#include "tiers/topology.h"

enum {
    PROBEI_ROUNDS_MAX = 31,
    PROBEI_TEXT_BYTES = 160,
    PROBEI_STEPS_MAX = DRIVES_MAX + 8,
    PROBEI_SPREAD_PERCENT = 10, /* half the distance of a figure's quartiles */
};

/* How much is measured, and how large. */
enum probei_extent { PROBEI_TINY, PROBEI_QUICK, PROBEI_FULL, PROBEI_EXTENT_COUNT };

typedef struct probei probei;

/* Where a step's thread runs, as the threads of a run do. */
enum probei_where {
    PROBEI_HERE,    /* the caller's thread */
    PROBEI_COMPUTE, /* with the team that computes products */
    PROBEI_UPDATE,  /* with the team of the optimizer */
    PROBEI_IO       /* as the executor: on I/O's cores, scheduled soon after it wakes */
};

struct probei_step {
    char name[PROBEI_TEXT_BYTES];
    enum probei_where where;
    int (*run)(probei *self, uint32_t arg);
    uint32_t arg;
    double seconds; /* planned */
};

struct probei {
    const struct probe_options *options;
    machine *out;
    enum probei_extent extent;
    topology place;
    core_plan cores;
    const kernel_ops *ops;   /* of the device that computes */
    kernel_context *context; /* its instance; of a CPU with as many threads as compute has */
    kernel_context *update;  /* the CPU's kernels with the optimizer's threads */
    kernel_context *single;  /* and with one */
    device *gpu;             /* NULL: the CPU computes */
    device_stream *streams[2];
    arena memory;            /* of the host, shared by all measurements */
    unsigned char *operands; /* memory of the device: what kernels work on; a CPU: memory.base */
    uint64_t operand_bytes;
    /* Time. */
    struct probei_step steps[PROBEI_STEPS_MAX];
    uint32_t step_count, step_idx;
    uint64_t start_ns, step_start_ns;
    double limit_seconds;                                /* of all */
    double step_seconds;                                 /* what the present step may take */
    double later_seconds;                                /* and those behind it */
    double used_at_start, stolen_at_start, own_at_start; /* CPU time, seconds */
    /* Figures that swung too far: how many, the worst one's spread and name. */
    uint32_t disturbed_count;
    double disturbed_spread;
    char disturbed_name[PROBEI_TEXT_BYTES];
};

/* --- rounds.c: samples and their medians --- */

struct probei_figure {
    double values[PROBEI_ROUNDS_MAX];
    uint32_t count;
    double median, low, high; /* low and high: quartiles */
};
typedef struct probei_figure probei_figure;

struct probei_work {
    uint32_t count; /* variants, which take turns */
    double seconds; /* no further round begins that would end later; at least one is made */
    bool warms_up;  /* a round before the first that does not count */
    /* What swings by more than PROBEI_SPREAD_PERCENT is measured again, for up to half as long, and
     * what then still does so is noted with its name as disturbed. `loose`: a bit for each variant
     * that may swing. */
    bool is_checked;
    uint64_t loose;
    int (*run)(void *user, uint32_t variant, double *value) MUST_CHECK;
    /* What the variant is, for the live line; may be NULL. */
    void (*name)(void *user, uint32_t variant, char text[PROBEI_TEXT_BYTES]);
    void *user;
};
typedef struct probei_work probei_work;

/* Adds to figures[work->count], which begin as zeros or go on. ERR_STOPPED, or what `run`
 * returned. */
int probei_rounds(probei *self, const probei_work *work, probei_figure *figures) MUST_CHECK;
void probei_figure_add(probei_figure *self, double value);
void probei_figure_close(probei_figure *self);
double probei_figure_spread(const probei_figure *self); /* half the quartiles' distance / median */

/* --- probe.c --- */

/* Shows what is measured now; ERR_STOPPED after a request. `what` may be "". */
int probei_check(probei *self, const char *what) MUST_CHECK;
double probei_step_left(const probei *self); /* seconds of the present step */

/* A finding: label, value (in `unit`), spread of its figure (NULL: none), and a note ("" for
 * none). */
__attribute__((format(printf, 6, 7))) void probei_found(probei *self, const char *label,
                                                        double value, const char *unit,
                                                        const probei_figure *figure,
                                                        const char *format, ...);
__attribute__((format(printf, 2, 3))) void probei_say(probei *self, const char *format, ...);

/* Fills host memory [size_bytes] with numbers from 0.25 to 1, as fp32 and as bf16. */
void probei_fill(const probei *self, unsigned char *target, uint64_t size_bytes);

/* Repeats `once` for at least a few milliseconds; *seconds of one. */
int probei_time(probei *self, int (*once)(void *user), void *user, double *seconds) MUST_CHECK;

/* Binds the calling thread as one of a run. */
int probei_bind(probei *self, enum probei_where where) MUST_CHECK;

/* --- load.c: work that goes on beside what is measured --- */

struct probei_load {
    probei *owner;
    enum probei_where where;
    int (*once)(void *user, uint64_t *amount) MUST_CHECK; /* adds to *amount what it did */
    void *user;
    /* Private: */
    pthread_t thread;
    atomic_bool stop, runs;
    uint64_t amount, start_ns, end_ns;
    int result;
    err_record error;
};
typedef struct probei_load probei_load;

int probei_load_begin(probei_load *self) MUST_CHECK; /* returns once it runs */
/* *rate: amount per second; may be NULL. What went wrong in it comes back here. */
int probei_load_end(probei_load *self, double *rate) MUST_CHECK;
/* Begins it and ends it after so long, alone. */
int probei_load_for(probei_load *self, double seconds, double *rate) MUST_CHECK;

/* --- the measurements --- */

int probei_ranks(probei *self, uint32_t unused) MUST_CHECK;
int probei_memory(probei *self, uint32_t unused) MUST_CHECK;
int probei_products(probei *self, uint32_t unused) MUST_CHECK;
int probei_kernels(probei *self, uint32_t unused) MUST_CHECK;
int probei_link(probei *self, uint32_t unused) MUST_CHECK;
int probei_drive(probei *self, uint32_t drive_idx) MUST_CHECK;
int probei_all_drives(probei *self, uint32_t unused) MUST_CHECK;

/* Makes and frees what probei_products and probei_kernels compute on, and opens the GPU. */
int probei_open_device(probei *self) MUST_CHECK;
void probei_close_device(probei *self);
/* Before anything is measured; whether there is a GPU is asked later, since CUDA and fork do not
 * mix. */
int probei_try_backend(const probei *self) MUST_CHECK;
/* Says at the end how busy others kept the machine. */
void probei_begin_watch(probei *self);
void probei_end_watch(probei *self);
/* Fills the operands as probei_fill does. */
int probei_fill_operands(probei *self) MUST_CHECK;
/* Physical cores that this process may use, within the quota of its control groups; at least 1. */
uint32_t probei_count_cores(const topology *place);
/* Names, cores, memory, time of the measurement. */
void probei_describe_host(probei *self);

/* Whether the drive can be used at all; fills name, path and free space of
 * out->drives[drive_idx]. */
int probei_drive_try(probei *self, uint32_t drive_idx) MUST_CHECK;

/* An Adam pass of one tile over memory [begin, end) of the arena, the next at each call. user:
 * probei_adam. */
struct probei_adam {
    kernel_context *context;
    unsigned char *base; /* aligned to TILE_PERIOD_BYTES */
    uint64_t tile_elems, tile_count, next;
};
typedef struct probei_adam probei_adam;
void probei_adam_place(const probei *self, kernel_context *context, uint64_t begin, uint64_t end,
                       probei_adam *out);
int probei_adam_once(void *user, uint64_t *elems) MUST_CHECK;

/* One copy between host memory and device, in the way that a run copies. user: probei_copies. */
struct probei_copies {
    probei *owner;
    bool to_device, to_host; /* both: one of each, together */
    unsigned char *host;     /* [bytes] for each direction */
    uint64_t bytes;          /* of a copy */
    uint64_t place_count, next;
};
typedef struct probei_copies probei_copies;
/* Over the arena from `begin` on. */
void probei_copies_place(probei *self, uint64_t begin, probei_copies *out);
int probei_copy_once(void *user, uint64_t *bytes) MUST_CHECK;

/* A CPU's products as a load: one forward product of bf16 over memory [begin, end) of the arena,
 * whose operands move on from call to call. user: probei_product; amount: products. */
struct probei_product {
    probei *owner;
    kernel_matmul *product; /* NULL where a GPU computes, or memory is short: no load */
    unsigned char *zones[3], *scratch;
    uint64_t bytes[3], turns[3], next;
};
typedef struct probei_product probei_product;
int probei_product_open(probei *self, uint64_t begin, uint64_t end, probei_product *out) MUST_CHECK;
int probei_product_once(void *user, uint64_t *count) MUST_CHECK;
void probei_product_close(probei_product *self);
/* Cores that products lose per byte moved beside them at `rate`, of their rate alone and beside it;
 * not below 0. */
double probei_lost_cores(const probei *self, const probei_figure *alone,
                         const probei_figure *beside, double rate);

/* --- drives.c: what is measured of a drive --- */

enum { PROBEI_IO_KINDS = 3 };

struct probei_drive_extent {
    uint64_t file_bytes;   /* at most, and half of what is free */
    uint64_t memory_bytes; /* of the arena's begin: what is in flight */
    double pass_seconds;
    uint64_t blocks[4]; /* 0 ends them */
    uint32_t depths[6];
};
typedef struct probei_drive_extent probei_drive_extent;

extern const probei_drive_extent probei_drive_extents[PROBEI_EXTENT_COUNT];
extern const char *const probei_kind_names[PROBEI_IO_KINDS]; /* "read", "write", "mixed" */

/* A drive_bench (tiers/drive_bench.h) over host memory [memory_bytes], whose file is written
 * once. */
int probei_bench_open(probei *self, const char *path, uint64_t file_bytes, unsigned char *memory,
                      uint64_t memory_bytes, drive_bench *out) MUST_CHECK;
drive_pass probei_pass(enum machine_io_kind kind, uint64_t block_bytes, uint32_t depth,
                       double seconds);

#endif
