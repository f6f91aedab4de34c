/* The engine of one process: a setup together with its memory, slabs and lanes. engine_create
 * reserves everything; afterwards it is only used.
 *
 *   arenas (device, host) ─► slab ─► io ─► lanes ─► executor
 *   lanes: read, write | compute | copies | update | collectives | commit
 *
 * The owner is the thread that made the engine. It runs programs, and sets the scalars of the step
 * between them. While a program runs, the lanes' workers read these scalars. They write grad_norm,
 * and, if the update waits for the norm, the members that engine_make_scalars sets. */
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

/* The numbers of a group of units, in place of the job's; NaN: the job's. A learning rate also
 * takes the place of the job's scheduler. */
struct engine_group {
    double learning_rate, weight_decay, beta1, beta2, epsilon;
};
typedef struct engine_group engine_group;

/* Scalars of a step. The owner writes them between programs. */
struct engine_step {
    uint64_t step;    /* optimizer step being computed, from 1 */
    uint64_t applied; /* optimizer steps begun so far; t in Adam's bias correction */
    uint64_t seed;    /* the run's seed, for stochastic rounding of state that is not fp32 */
    /* of group 0, whatever the optimizer: of the pending update, or else of this step's */
    update_scalars scalars;
    update_scalars *group_scalars; /* [engine.group_count] the same for each group of units */
    /* The program that computes a module has given up this step. The op that learns of it sets
     * this; the ops that read it, later passes and the norm, come after it. */
    bool is_given_up;
    bool skip;         /* the gradients overflowed, so the update of these scalars is skipped */
    double loss_scale; /* the factor in this step's gradients; 1 except for fp16 */
    /* documents of a window are told apart: the buffer of tokens also has where they begin */
    bool is_separate;
    uint64_t target_count; /* targets in the windows of all ranks; the loss is the mean over them */
    /* written by the program: norm of this step's gradients, without the loss scale */
    double grad_norm;
};

/* Writes elements [begin, begin + count) of a unit's padded flat vector, as a new run begins with
 * them, into master. It may change all of master's memory. PROGRAM_INIT calls it on the thread of
 * the op. */
typedef int engine_first_elems(void *user, uint32_t unit, uint64_t begin, uint64_t count,
                               float *master);
/* The same as codes and scales: model_source.codes in model/pack.h. */
typedef int engine_first_codes(void *user, uint32_t unit, uint32_t tensor, uint64_t matrix,
                               void *codes, void *scales);
/* Carries out OP_COMMIT, on the thread of the commit lane's worker. */
typedef int engine_commit(void *user, const program *prog, const op *item);

enum {
    ENGINE_LOGITS_NONE = -2,
    /* ops in flight on each stream of a GPU: a few small ones ahead, so that the GPU never waits
     * for the host */
    ENGINE_GPU_DEPTH = 8,
};

struct engine {
    struct setup *setup; /* borrowed */
    struct engine_step step;
    arena arenas[2]; /* device, host; for a GPU's memory only base and size are set */
    slab *disk;      /* NULL if nothing is on drives */
    bool disk_is_open;
    io *transport; /* NULL without a slab */
    enum io_backend io_kind;
    /* checksums of params, grads and activations that the programs write to the slab */
    checksum_table *sums;
    place_table *places; /* places of the optimizer state on the slab */
    executor *runner;
    trace ring; /* the ops that ran */
    metrics_lane totals[LANE_COUNT];
    /* Passes so far whose unit of experts might not be hit, and those of them with a hit unit.
     * Micro-batches that pass together count as one. */
    uint64_t expert_passes, expert_passes_hit;
    bool is_committing; /* set by the loop: the current program makes its commit */

    /* For evaluation and generation. If >= 0, the head's forward writes the logits of this row
     * instead of losses. ENGINE_LOGITS_NONE: it writes nothing. */
    int64_t logits_row;
    bool is_single;           /* the program runs for one token, with setup->single */
    uint64_t position, count; /* with a cache: those of model_call for the current call */
    float *logits;            /* [V]; pinned for a GPU */

    /* For the engine's own files. */
    engine_first_elems *first_elems;
    engine_first_codes *first_codes;
    void *first_user;
    struct model_packer *packer; /* while a run begins; NULL: nothing was packed yet */
    engine_commit *run_commit;
    void *commit_user;
    engine_group *groups; /* [group_count]; the owner sets them between programs */
    uint32_t group_count;
    const struct setup_watch *watch; /* or NULL */
    bool is_pinned;                  /* the engine has pinned the host arena for the GPU */
    arena *kept;                     /* [2], of engine_keep_memory; or NULL */
    bool keeps_params;
    void *results[2]; /* memory of engine_result_memory if there is no GPU */
    sim_store *store; /* simulated drives' memory if the engine must free it; else NULL */
    lane *io_lane, *commit_lane;
    /* with several ranks, unless a GPU's stream serves it; else NULL */
    lane *comm_lane;
    lane *core_lane, *copy_lane;    /* NULL with a GPU */
    lane *gpu_lane;                 /* compute and copies of a GPU; NULL if the CPU computes */
    lane *update_lane;              /* NULL: the update runs on the core lane */
    const struct setup_lanes *test; /* the test that wrapped the lanes; or NULL */
    kernel_context *update_context; /* of the CPU's backend; NULL if update_lane is NULL */
    /* unite_hits.c on a GPU: pinned memory for the hits of all ranks; the stream that copies them,
     * or NULL where that is NCCL's. */
    uint8_t *united_hits;
    device_stream *hits_stream;
    rank_parcel *parcels; /* exchange_rows.c: tables of parcels; NULL: no rows travel */
    int32_t *offsets;   /* of slots of experts, for each micro-batch; NULL: there are no experts */
    double *norm_nodes; /* sums of squares of the step's gradients (norm.c); pinned for a GPU */
    paranoid *checked_cores, *checked_updates, *checked_copies, *checked_comm; /* run.paranoid */
    cpu_set_t caller_cores; /* cores of the owner before engine_create; restored at the end */
    bool is_bound;
};

struct engine_options {
    uint8_t uuid[SLAB_UUID_BYTES];
    bool open_existing;              /* the slab exists: open it; else make it */
    uint64_t slab_bytes;             /* size of an existing slab; 0: as the plan needs */
    uint64_t stripe_bytes;           /* stripe of an existing slab; 0: chosen from the drives */
    const manifest *found;           /* the manifest of the extents that the slab holds, or NULL */
    engine_first_elems *first_elems; /* NULL: the model's own initial weights */
    engine_first_codes *first_codes; /* or NULL */
    void *first_user;
    engine_commit *run_commit; /* NULL: no program commits */
    void *commit_user;
    const struct setup_watch *watch; /* or NULL */
    const struct setup_test *test;   /* or NULL */
};

/* Reserves memory, makes or opens the slab, and starts the lanes. If it fails there is nothing to
 * destroy, and a slab that it made is removed. Errors: -ENOMEM, -ENOSPC, ERR_NO_FIT, ERR_INPUT,
 * ERR_CONFIG. */
int engine_create(struct setup *setup, const struct engine_options *options,
                  struct engine **out) MUST_CHECK;
void engine_destroy(struct engine *self); /* NULL is allowed; the setup is not destroyed */
/* Leaves the arenas in host memory, [0] device and [1] host, to the caller: engine_destroy moves
 * them to `kept`, and arena_fini frees them later. They read as zeros then, but for the units'
 * params if keeps_params. `kept` is zeroed, and stays so for an arena that is not the engine's. */
void engine_keep_memory(struct engine *self, bool keeps_params, arena kept[2]);
/* Runs a program and adds its totals to self->totals. `run` gets its totals; it may be NULL.
 * Blocks. After an error the engine is poisoned: every later run fails. */
int engine_run(struct engine *self, enum program_kind kind, uint64_t step,
               run_totals *run) MUST_CHECK;

/* True if an op of the compute lane does the same at each run of the program, so that a GPU may
 * replay it as a part of a graph. That is so for most passes of a steady step. But the head's
 * gradients, and updates, are scaled by numbers of the step. */
bool engine_may_replay(const struct setup *setup, const program *prog, const op *item);

/* The backend that the job's io.backend names. */
enum io_backend engine_io_backend(const struct job *asked);
/* The address of a home buffer in device or host memory. */
unsigned char *engine_home(const struct engine *self, uint32_t buffer_idx);
/* Allocates zeroed host memory that the device can write results to. The engine owns it. */
int engine_result_memory(struct engine *self, uint64_t size_bytes, void **out) MUST_CHECK;

/* Sets the skip flag from grad_norm. Unless it is set, counts the update in `applied` and makes its
 * scalars, the clip factor included. Call it once a step. */
void engine_make_scalars(struct engine *self);
/* True if a step's gradients wait for a later program to be applied. */
bool engine_leaves_update(const struct setup *setup);

struct chrome_trace_names;
/* Fills in how long the transfers of each drive took so far, for the trace. Paths are borrowed from
 * the setup. */
void engine_trace_drives(const struct engine *engine, struct chrome_trace_names *names);

/* ---- the extents of the programs on the slab (state_places.c) ---- */

/* Makes a table of every extent of the setup's programs. With `found`, the extents have its places
 * and checksums. Returns 1, or 0 if an extent of `found` is at no place of this layout; *out is
 * NULL then. */
int engine_places_create(const struct setup *setup, const manifest *found,
                         place_table **out) MUST_CHECK;
/* True if the optimizer state is divided among the ranks. */
bool engine_is_partitioned(const struct setup *setup);
/* The index in a manifest of the rank's extent `idx` of the layout. A manifest orders extents by
 * unit, rank and tile, with params before state. A layout has all the state of a unit before its
 * params. */
uint64_t engine_extent_in_manifest(const struct setup *setup, uint32_t rank, uint64_t idx,
                                   const place_entry *entry);
/* Bytes of each param, if the extent holds params; 0 if it holds optimizer state. */
uint32_t engine_param_width(const struct setup *setup, const place_entry *entry);

#endif
