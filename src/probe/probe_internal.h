/* Declarations that the files of the probe share. See probe.h. */
#ifndef SLUICE_PROBE_INTERNAL_H
#define SLUICE_PROBE_INTERNAL_H

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
    /* limit of a figure's spread: half the distance between its quartiles */
    PROBEI_SPREAD_PERCENT = 10,
};

/* The extent of the measurements: sizes and times. */
enum probei_extent { PROBEI_TINY, PROBEI_QUICK, PROBEI_FULL, PROBEI_EXTENT_COUNT };

typedef struct probei probei;

/* The thread on which a step runs. Steps run on threads that are bound as a run binds its own. */
enum probei_where {
    PROBEI_HERE,    /* the caller's thread */
    PROBEI_COMPUTE, /* bound as the team that computes products */
    PROBEI_UPDATE,  /* bound as the optimizer's team */
    /* as the executor: bound to the cores of I/O, and scheduled soon after it wakes */
    PROBEI_IO
};

struct probei_step {
    char name[PROBEI_TEXT_BYTES];
    enum probei_where where;
    int (*run)(probei *self);
    uint32_t drive_idx; /* for probei_drive */
    double seconds;     /* planned time */
};

struct probei {
    const struct probe_options *options;
    machine *out;
    enum probei_extent extent;
    topology place;
    core_plan cores;
    const kernel_ops *ops;   /* kernels of the device that computes */
    kernel_context *context; /* the context of that device; on a CPU it has the compute threads */
    kernel_context *update;  /* CPU kernels with the optimizer's threads */
    kernel_context *single;  /* CPU kernels with one thread */
    device *gpu;             /* NULL if the CPU computes */
    device_stream *streams[2];
    arena memory; /* host memory that all measurements share */
    /* device memory that holds the kernels' operands; on a CPU: memory.base */
    unsigned char *operands;
    uint64_t operand_bytes;
    /* Time. */
    struct probei_step steps[PROBEI_STEPS_MAX];
    uint32_t step_count, step_idx;
    uint64_t start_ns, step_start_ns;
    double step_seconds;                                 /* for the current step */
    double later_seconds;                                /* for the steps after it */
    double used_at_start, stolen_at_start, own_at_start; /* CPU time, seconds */
    /* Figures whose spread stayed too large: their number, and the spread and name of the worst. */
    uint32_t disturbed_count;
    double disturbed_spread;
    char disturbed_name[PROBEI_TEXT_BYTES];
};

/* --- samples and their medians --- */

struct probei_figure {
    double values[PROBEI_ROUNDS_MAX];
    uint32_t count;
    double median, low, high; /* low and high: the quartiles */
};
typedef struct probei_figure probei_figure;

struct probei_work {
    uint32_t count; /* number of variants, which take turns */
    /* No round begins if it would end later than this; at least one round is made. */
    double seconds;
    bool warms_up; /* run one round first that does not count */
    /* If is_checked: a figure whose spread is above PROBEI_SPREAD_PERCENT is measured again, for up
     * to half as long as `seconds`. If its spread stays above, it is recorded by name as disturbed.
     * `loose` has a bit for each variant that is not checked. */
    bool is_checked;
    uint64_t loose;
    int (*run)(void *user, uint32_t variant, double *value) MUST_CHECK;
    /* The variants' names, for the progress line: a list, or a function that writes a name. Both
     * may be NULL. */
    const char *const *names;
    void (*name)(void *user, uint32_t variant, char text[PROBEI_TEXT_BYTES]);
    void *user;
};
typedef struct probei_work probei_work;

/* Runs rounds and adds their values to figures[work->count]. The figures must be zeros, or hold the
 * samples of an earlier call. Returns ERR_STOPPED or the error of `run`. */
int probei_rounds(probei *self, const probei_work *work, probei_figure *figures) MUST_CHECK;
void probei_figure_add(probei_figure *self, double value);
void probei_figure_close(probei_figure *self);
double probei_figure_spread(const probei_figure *self); /* half the quartiles' distance / median */

/* --- steps, output and helpers --- */

/* Reports progress with the name of the current measurement; `what` may be "". Returns ERR_STOPPED
 * if the user asked to stop. */
int probei_check(probei *self, const char *what) MUST_CHECK;
double probei_step_left(const probei *self); /* seconds left for the current step */

/* Prints a finding: its label, its value in `unit`, the spread of its figure (NULL: none), and a
 * note (printf format; "" for none). */
__attribute__((format(printf, 6, 7))) void probei_found(probei *self, const char *label,
                                                        double value, const char *unit,
                                                        const probei_figure *figure,
                                                        const char *format, ...);
__attribute__((format(printf, 2, 3))) void probei_say(probei *self, const char *format, ...);

/* Fills host memory [size_bytes] with numbers from 0.25 to 1 that are valid as fp32 and as bf16. */
void probei_fill(const probei *self, unsigned char *target, uint64_t size_bytes);

/* Repeats `once` for at least a few milliseconds; *seconds is the time of one call. */
int probei_time(probei *self, int (*once)(void *user), void *user, double *seconds) MUST_CHECK;

/* Binds the calling thread to cores as a run would. */
int probei_bind(probei *self, enum probei_where where) MUST_CHECK;

/* --- work that goes on beside a measurement --- */

struct probei_load {
    probei *owner;
    enum probei_where where;
    /* does one piece of work and adds its size to *amount */
    int (*once)(void *user, uint64_t *amount) MUST_CHECK;
    void *user;
    /* Private: */
    pthread_t thread;
    atomic_bool stop, runs;
    uint64_t amount, start_ns, end_ns;
    int result;
    err_record error;
};
typedef struct probei_load probei_load;

/* returns after the thread has started its work */
int probei_load_begin(probei_load *self) MUST_CHECK;
/* Stops the load. *rate is the amount per second; `rate` may be NULL. Returns the load's own error,
 * if it had one. */
int probei_load_end(probei_load *self, double *rate) MUST_CHECK;

/* --- the measurements --- */

int probei_ranks(probei *self) MUST_CHECK;
int probei_memory(probei *self) MUST_CHECK;
int probei_products(probei *self) MUST_CHECK;
int probei_kernels(probei *self) MUST_CHECK;
int probei_link(probei *self) MUST_CHECK;
int probei_drive(probei *self) MUST_CHECK;
int probei_all_drives(probei *self) MUST_CHECK;

/* Choose the device, open the GPU if there is one, and close it. probei_products and probei_kernels
 * compute on that device. */
int probei_open_device(probei *self) MUST_CHECK;
void probei_close_device(probei *self);
/* Checks the requested backend before anything is measured. It does not ask whether there is a GPU,
 * because a process cannot fork safely after CUDA has started. */
int probei_try_backend(const probei *self) MUST_CHECK;
/* Watch how much CPU time other processes used during the probe, and report it at the end. */
void probei_begin_watch(probei *self);
void probei_end_watch(probei *self);
/* CPU time of RUSAGE_SELF or RUSAGE_CHILDREN in seconds. */
double probei_cpu_seconds(int who);
/* Fills the operands with the numbers of probei_fill. */
int probei_fill_operands(probei *self) MUST_CHECK;
/* Returns the number of physical cores that this process may use, within the quota of its control
 * groups; at least 1. */
uint32_t probei_count_cores(const topology *place);
/* Fills the names, cores, memory and time of measurement in *out. */
void probei_describe_host(probei *self);

/* Checks that the drive can be used. Fills the name, path and free space of
 * out->drives[drive_idx]. */
int probei_drive_try(probei *self, uint32_t drive_idx) MUST_CHECK;

/* An Adam pass over one tile. The tiles lie in memory [begin, end) of the arena; each call takes
 * the next one. The `user` of probei_adam_once is a probei_adam. */
struct probei_adam {
    kernel_context *context;
    unsigned char *base; /* aligned to TILE_PERIOD_BYTES */
    uint64_t tile_elems, tile_count, next;
};
typedef struct probei_adam probei_adam;
void probei_adam_place(const probei *self, kernel_context *context, uint64_t begin, uint64_t end,
                       probei_adam *out);
int probei_adam_once(void *user, uint64_t *elems) MUST_CHECK;

/* A copy between host memory and the device, made in the same way as in a run. The `user` of
 * probei_copy_once is a probei_copies. */
struct probei_copies {
    probei *owner;
    bool to_device, to_host; /* if both are set, one copy each way, together */
    unsigned char *host;     /* [bytes] for each direction */
    uint64_t bytes;          /* of one copy */
    uint64_t place_count, next;
};
typedef struct probei_copies probei_copies;
/* Uses the arena from `begin` on. */
void probei_copies_place(probei *self, uint64_t begin, probei_copies *out);
int probei_copy_once(void *user, uint64_t *bytes) MUST_CHECK;

/* A CPU's products as a load: one forward product of bf16 over memory [begin, end) of the arena.
 * Each call takes the next operands. The `user` of probei_product_once is a probei_product; it
 * counts products. */
struct probei_product {
    probei *owner;
    kernel_matmul *product; /* NULL if a GPU computes or memory is too small: there is no load */
    unsigned char *zones[3], *scratch;
    uint64_t bytes[3], turns[3], next;
};
typedef struct probei_product probei_product;
int probei_product_open(probei *self, uint64_t begin, uint64_t end, probei_product *out) MUST_CHECK;
int probei_product_once(void *user, uint64_t *count) MUST_CHECK;
/* *rate: products per second when nothing runs beside them. */
int probei_product_alone(probei_product *self, double seconds, double *rate) MUST_CHECK;
void probei_product_close(probei_product *self);
/* Returns the core-seconds that products lose per byte moved beside them. `alone` and `beside` are
 * the products' rates without and with the other work; `rate` is the other work in bytes/s. Never
 * below 0. */
double probei_lost_cores(const probei *self, const probei_figure *alone,
                         const probei_figure *beside, double rate);

/* --- the sizes of a drive's measurements --- */

enum { PROBEI_IO_KINDS = 3 };

struct probei_drive_extent {
    uint64_t file_bytes;   /* upper limit; also at most half of the free space */
    uint64_t memory_bytes; /* bytes at the arena's start, for the requests in flight */
    double pass_seconds;
    uint64_t blocks[4]; /* a 0 ends the list */
    uint32_t depths[6];
};
typedef struct probei_drive_extent probei_drive_extent;

extern const probei_drive_extent probei_drive_extents[PROBEI_EXTENT_COUNT];
extern const char *const probei_kind_names[PROBEI_IO_KINDS]; /* "read", "write", "mixed" */

/* Opens a drive_bench (tiers/drive_bench.h) over host memory [memory_bytes] and writes its file
 * once. */
int probei_bench_open(probei *self, const char *path, uint64_t file_bytes, unsigned char *memory,
                      uint64_t memory_bytes, drive_bench *out) MUST_CHECK;
drive_pass probei_pass(enum machine_io_kind kind, uint64_t block_bytes, uint32_t depth,
                       double seconds);

#endif
