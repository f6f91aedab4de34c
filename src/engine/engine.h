/* The engine of one process: a setup with its memory, slabs and lanes. Everything is reserved at
 * engine_create and only used afterwards.
 *
 *   arenas (device, host) ─► slab ─► io ─► lanes (read, write | compute | copies | update | collectives | commit)
 *                                                                                  ─► executor
 *
 * The owner is the thread that made the engine: it runs programs and sets the scalars between them.
 * While a program runs, the lanes' workers read the scalars; they write only grad_norm and what a
 * comment names. */
#ifndef SLUICE_ENGINE_ENGINE_H
#define SLUICE_ENGINE_ENGINE_H

#include <sched.h>

#include "base/trace.h"
#include "report/metrics.h"
#include "setup/setup.h"
#include "swap/executor.h"
#include "swap/lane_io.h"
#include "swap/lane_stream.h"
#include "swap/paranoid.h"
#include "swap/place_table.h"
#include "tiers/arena.h"
#include "tiers/io.h"
#include "tiers/sim.h"

/* Scalars of a step. The loop's thread writes them between programs. */
struct engine_step {
    uint64_t step;         /* optimizer step being computed, from 1 */
    uint64_t applied;      /* optimizer steps begun so far: the t of Adam's bias correction */
    uint64_t seed;         /* of the run: stochastic rounding of state that is not fp32 */
    adam_scalars scalars;  /* of the pending update, or else of this step's; every optimizer's */
    bool skip;             /* the update of these scalars is skipped: overflow */
    double loss_scale;     /* of this step's gradients; 1 except for fp16 */
    uint64_t target_count; /* of all ranks' windows: the loss is the mean over these targets */
    double grad_norm;      /* written by the program: of this step, without the loss scale */
};

/* Host memory for runs that follow each other in one process, such as a benchmark's: touching and
 * pinning 100 GB takes minutes. It is made for the GPU that device.backend "auto" takes, where
 * there is one. A run that gets it takes its host tier from it, and fails with ERR_NO_FIT where it
 * needs more. Create and destroy on the thread that runs. */
struct engine_memory {
    arena host;
    device *gpu; /* NULL: none */
    bool is_pinned;
};
typedef struct engine_memory engine_memory;
int engine_memory_create(uint64_t host_bytes, engine_memory **out) MUST_CHECK;
void engine_memory_destroy(engine_memory *self); /* after the last run; NULL is allowed */

/* Elements [begin, begin + count) of a unit's padded flat vector as a new run begins with them,
 * into master. May change all of master's memory. Called by PROGRAM_INIT on the thread of the
 * op. */
typedef int engine_first_elems(void *user, uint32_t unit, uint64_t begin, uint64_t count,
                               float *master);
/* What OP_COMMIT does; on the commit lane's worker. */
typedef int engine_commit(void *user, const program *prog, const op *item);

enum { ENGINE_LOGITS_NONE = -2 };

struct engine {
    struct setup *setup; /* borrowed */
    struct engine_step step;
    arena arenas[2]; /* device, host; of a GPU's memory only base and size are set */
    slab *disk;      /* NULL: all is in memory */
    bool disk_is_open;
    io *transport; /* NULL without a slab */
    enum io_backend io_kind;
    checksum_table *sums; /* of params, grads and activations that the programs write to the slab */
    place_table *places;  /* of the optimizer state on the slab */
    executor *runner;
    trace ring; /* of the ops that ran */
    metrics_lane totals[LANE_COUNT];
    bool is_committing; /* the loop sets it: the program at hand makes its commit */

    /* For evaluation and generation. >= 0: the head's forward writes logits of this row instead of
     * losses; ENGINE_LOGITS_NONE: it writes nothing. */
    int64_t logits_row;
    bool is_single;           /* the program is run for one token, with setup->single */
    uint64_t position, count; /* with a cache: of the call, as in model_call */
    float *logits;            /* [V]; pinned for a GPU */

    /* For the engine's own files. */
    engine_first_elems *first_elems;
    void *first_user;
    engine_commit *run_commit;
    void *commit_user;
    const struct setup_watch *watch; /* or NULL */
    bool is_pinned;                  /* the engine has pinned the host arena for the GPU */
    bool borrows_host;               /* the host arena is an engine_memory's */
    void *results[2];                /* of engine_result_memory on the CPU */
    sim_store *store; /* of simulated drives, where it is the engine's to free; else NULL */
    lane *read_lane, *write_lane, *commit_lane;
    lane *comm_lane;                /* of several ranks, unless a GPU's stream serves it */
    lane *core_lane, *copy_lane;    /* NULL with a GPU */
    lane *gpu_lane;                 /* compute and copies of a GPU; NULL: the CPU computes */
    lane *update_lane;              /* NULL: the update runs on the core lane */
    const struct setup_lanes *test; /* whose lanes these are; or NULL */
    kernel_context *update_context; /* of the CPU's backend; NULL as update_lane */
    double *norm_nodes; /* sums of squares of the step's gradients (norm.c); pinned for a GPU */
    paranoid *checked_cores, *checked_updates, *checked_copies, *checked_comm; /* run.paranoid */
    cpu_set_t caller_cores; /* of the thread that made the engine, given back at the end */
    bool is_bound;
};

struct engine_options {
    uint8_t uuid[SLAB_UUID_BYTES];
    bool open_existing;
    uint64_t slab_bytes;             /* of an existing slab; 0: as the plan needs */
    uint64_t stripe_bytes;           /* of an existing slab; 0: as its drives want */
    const manifest *found;           /* whose extents the slab holds, or NULL */
    const engine_memory *memory;     /* host memory to use, or NULL */
    engine_first_elems *first_elems; /* NULL: the model's own initial weights */
    void *first_user;
    engine_commit *run_commit; /* NULL: no program commits */
    void *commit_user;
    const struct setup_watch *watch; /* or NULL */
    const struct setup_test *test;   /* or NULL */
};

/* Reserves memory, makes or opens the slab, starts the lanes. If it fails there is nothing to
 * destroy, and a slab that it made is removed. Errors: -ENOMEM, -ENOSPC, ERR_NO_FIT, ERR_INPUT,
 * ERR_CONFIG. */
int engine_create(struct setup *setup, const struct engine_options *options,
                  struct engine **out) MUST_CHECK;
void engine_destroy(struct engine *self); /* NULL is allowed; the setup stays */
/* Runs a program and adds to self->totals. `run`: its totals, or NULL. After an error the engine is poisoned: every later
 * run fails. Blocks. */
int engine_run(struct engine *self, enum program_kind kind, uint64_t step,
               run_totals *run) MUST_CHECK;

/* Address of a home buffer in device or host memory. */
unsigned char *engine_home(const struct engine *self, uint32_t buffer_idx);
/* Zeroed host memory that the device can write results to; the engine owns it. */
int engine_result_memory(struct engine *self, uint64_t size_bytes, void **out) MUST_CHECK;

/* The clip factor and skip flag from the norm, and the scalars of update number `applied`. Call it
 * once a step. */
void engine_make_scalars(struct engine *self);
/* True if a step's gradients wait for a later program to be applied. */
bool engine_leaves_update(const struct setup *setup);

struct chrome_trace_names;
/* How long the transfers of each drive took so far, for the trace. Paths are the setup's. */
void engine_trace_drives(const struct engine *engine, struct chrome_trace_names *names);

/* ---- the extents of the programs on the slab (state_places.c) ---- */

/* Every extent of the setup's programs, in a table. With `found`: with its places and sums. Returns
 * 1; 0 where an extent of `found` is no place of this layout (then there is no table). */
int engine_places_create(const struct setup *setup, const manifest *found,
                         place_table **out) MUST_CHECK;
/* True if the optimizer state is cut over the ranks. */
bool engine_is_partitioned(const struct setup *setup);
/* Index in a manifest of the rank's extent `idx` of the layout. A manifest has extents by unit,
 * rank, tile, params before state; a layout has all the state of a unit before its params. */
uint64_t engine_extent_in_manifest(const struct setup *setup, uint32_t rank, uint64_t idx,
                                   const place_entry *entry);
/* Bytes of each param of an extent of params; 0: the extent holds optimizer state. */
uint32_t engine_param_width(const struct setup *setup, const place_entry *entry);

#endif
