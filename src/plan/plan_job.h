/* A job: everything that a plan is made from. Numbers alone; what kernels and drives do with them
 * is not known here.
 *
 * Words. A unit is the parameters that are fetched and released together. A stage is one step of
 * the forward order; its passes run for each micro-batch while the params of their units are on
 * the device. A home is the tier where a state of a unit rests between uses.
 *
 * Frozen units (plan_job.is_frozen) have params alone, which no op changes, and no pass adds to
 * their gradients. A stage such that neither it nor one before it learns has no passes of
 * RECOMPUTE and BACKWARD, and keeps nothing for them. The first stage that has such passes makes
 * no input_grad that others would read. The head always has its BACKWARD.
 *
 * Ranks. All ranks make the same plan from the same job. ZeRO's stage decides how a state is
 * divided among ranks:
 *
 *                optimizer   grads    params     collectives of a step
 *     stage 0    whole       whole    whole      gradients: reduce-scatter, all-gather
 *     stage 1    shard       whole    whole      gradients: reduce-scatter; new params: all-gather
 *     stage 2    shard       shard    whole      the same
 *     stage 3    shard       shard    shard      the same; params once more for the backward
 *
 * A shard is the rank's part of a unit's padded vector (base/shard.h). Whatever the stage,
 * gradients are reduced by the same reduce-scatter over the same shards, closed (rounded, squared)
 * shard by shard, and the norm is the same sum: stages agree to the bit. Stage 1 keeps a whole
 * gradient, as ZeRO does, but uses only this rank's shard of it.
 *
 * Fp32 sums that rest before they are closed are those of the own shard, in all stages: batch-major
 * reduces each micro-batch's gradient and adds it to them. A tied embedding that is cut is reduced
 * twice, by the head and by the embedding. Layer-major reduces once for all micro-batches. With
 * several ranks and micro-batches the orders therefore round differently.
 *
 * Owned units (is_owned). Each rank owns whole experts, which are its shard, and rows of
 * activations travel instead of params and gradients. The accumulator of such a unit has as many
 * shards as there are ranks: shard r holds the own experts' gradients from the rows of rank r. They
 * are added in the order of ranks, as a reduce-scatter in fp32 adds them, so that the bits are
 * those of ZeRO.
 *
 * Split masters (tile_master_is_split of state_streams). The update of a tile reads and writes
 * the working copy, which is part of the state: it has places on the slab as the tiles have, is
 * saved where they are saved, and is brought back, not made anew. It rests in the params' home
 * if the params are cut over the ranks in the same way as the optimizer state. Otherwise (stages
 * 1 and 2 of several ranks, and stays_gathered) each rank's shard of it is a home of its own
 * beside the tiles, and saves no memory.
 *
 * Units with matrices (matrix_flops). Muon's update needs whole matrices, so it has three steps:
 * each tile's direction, the matrices of the unit's directions orthogonalized, and each tile's
 * update. All tiles of the unit are there at once, and with a sharded state the directions of all
 * ranks are gathered; each rank orthogonalizes what overlaps its own shard. */
#ifndef SLUICE_PLAN_PLAN_JOB_H
#define SLUICE_PLAN_PLAN_JOB_H

#include "base/size.h"
#include "base/stage.h"
#include "swap/program.h"

/* The machine as the simulator knows it: rates of one rank with all its drives. */
struct plan_machine {
    /* Reads of r and writes of w bytes a second share the drives: r/R + w/W <= both_ways, each
     * alone at most 1. Above 1 where a drive does more in both directions than by turns; 0 acts as
     * 1. */
    double drive_read_bytes_per_second, drive_write_bytes_per_second, drive_both_ways;
    /* Share of these rates that the drives keep while other ops use all of the memory's rate; 0
     * acts as 1. */
    double drive_kept;
    double h2d_bytes_per_second, d2h_bytes_per_second;
    double dram_bytes_per_second;
    double device_flops_per_second;
    double device_bytes_per_second; /* of a GPU's own memory; unused where device_is_cpu */
    double expand_bytes_per_second; /* of packed params, read and written; 0: memory's rate */
    double core_count;
    bool device_is_cpu; /* products run on the cores, copies to the device use DRAM */
    /* With device_is_cpu: updates have cores or threads of their own, and run beside passes. */
    bool updates_beside;
    /* Bytes that a rank can send to the others while it receives as much. */
    double comm_bytes_per_second;
    double comm_seconds; /* fixed cost of a collective, beside op_seconds */
    /* Ranks of one host share memory: collectives use DRAM and cores as well. */
    bool comm_is_copies;
    /* The other ranks are only pretended: what collectives would bring is not written. */
    bool comm_takes_no_memory;
    double update_core_seconds; /* of one core, per element of an update; 0: a default */
    double io_core_seconds;     /* of one core, per byte of direct I/O, without checksums */
    /* Checksums of bytes that the drives read, and of bytes that they write: seconds of one core
     * per byte; 0: none, or not known. */
    double read_sum_core_seconds, write_sum_core_seconds;
    /* Seconds of one core per byte that a thread copies, where device_is_cpu; 0: those of the
     * copy. */
    double copy_core_seconds;
    double op_seconds;   /* fixed cost of any op */
    double sync_seconds; /* of a commit: fdatasync of the slabs, the manifest and its fsync */
    bool is_measured;    /* false: stated defaults */
};
typedef struct plan_machine plan_machine;

/* drive_both_ways, at least 1. Pure. */
double plan_drive_both_ways(const plan_machine *machine);
/* drive_kept, above 0 and at most 1. Pure. */
double plan_drive_kept(const plan_machine *machine);

/* Rough figures for a machine that was not measured, named as defaults wherever they are
 * printed. */
void plan_machine_default_cpu(plan_machine *machine, uint32_t core_count, bool bf16_products);
/* The same with a GPU of compute capability `major`.0 and the memory bandwidth that its driver
 * states (0: not known). The cores are those of the update. */
void plan_machine_default_gpu(plan_machine *machine, uint32_t core_count, int major,
                              double memory_bytes_per_second);

/* Told what a long plan is doing. The caller sets the first two members, the planner the others.
 * on_progress is called often, on the thread that plans, and must be cheap. */
struct plan_watch {
    void (*on_progress)(void *user, const struct plan_watch *watch);
    void *user;
    const char *what;    /* "trying plans"; NULL: nothing yet */
    uint64_t step_count; /* programs built, most of them steps that were tried */
    uint64_t op_count;   /* ops built and simulated */
};
typedef struct plan_watch plan_watch;

/* Borrows all its arrays. */
struct plan_job {
    /* ---- the model -------------------------------------------------------------------------- */
    uint32_t unit_count, stage_count;
    const uint64_t *unit_elems; /* [unit_count] multiples of SHARD_ELEMS_STEP */
    const struct stage *stages; /* [stage_count] in forward order; the last is the head */
    const uint8_t *is_frozen;   /* [unit_count] 1: it does not learn; NULL: all units learn */

    /* ---- the placement ---------------------------------------------------------------------- */
    /* [unit_count] enum tier each. Activations: of the boundary before the stage that owns the
     * unit. Inner activations: of that stage; TIER_COUNT: they are not kept but recomputed;
     * TIER_SELECTIVE, ...: only stage.selective_bytes are kept. */
    const uint8_t *homes[STATE_KIND_COUNT];
    enum update update;
    enum order order;
    /* Inner activations of cut stages that are not kept wait between passes. Those of so many
     * micro-batches wait on the device. The others go where the activations after the first stage
     * rest, or to the host where that is nvme and parked_on_host. Without effect where
     * micro-batches pass one by one. */
    uint32_t parked_near;
    bool parked_on_host;

    /* ---- ranks ------------------------------------------------------------------------------ */
    uint32_t world;      /* ranks; 0 acts as 1 */
    uint32_t zero_stage; /* without effect where there is one rank */
    /* [unit_count] 1: with stage 3 the unit's params are whole on each rank, as in stage 2
     * (stage3_param_persistence_threshold). NULL: no unit. */
    const uint8_t *stays_gathered;
    /* [unit_count] 1: a unit of experts of which each rank owns a shard for good (expert
     * parallelism). In every stage from 1 on its params rest and are used as shards: they are not
     * gathered, and its gradients are not reduced. NULL: no unit. */
    const uint8_t *is_owned;
    /* Bytes of a gradient's element on its way to other ranks: 4 or 2; 0 acts as 4. */
    uint32_t wire_bytes;
    /* Device memory that a reduce-scatter gets as ROLE_WORKSPACE: so many bytes for each element of
     * a whole unit, but of at most so many elements of each rank's shard (0: of all). */
    uint32_t reduce_scratch_bytes;
    uint64_t reduce_piece_elems;
    /* All ranks' sums for the norm are gathered in parts of at most so many bytes, but of a unit
     * at least; 0: 16 MiB. Changes no bit of any run. */
    uint64_t norm_part_bytes;
    /* Caps on gathered params, in elements; 0: no cap. The oldest op always gets what it needs. */
    uint64_t live_elems_max;  /* on the device at once (stage3_max_live_parameters) */
    uint64_t ahead_elems_max; /* gathered and not yet in use (stage3_prefetch_bucket_size) */
    /* With limits_reuse and stage 3, params stay from forward to backward only where at most so
     * many elements of other units are used in between (stage3_max_reuse_distance); 0: none
     * stays. */
    bool limits_reuse;
    uint64_t reuse_elems_max;

    /* ---- sizes ------------------------------------------------------------------------------ */
    uint32_t micro_batch_count;
    /* Each micro-batch goes back to the first stage before the next one begins, also where that
     * stage's units are used again later; and EVAL has one micro-batch. For modules, whose passes
     * are computed elsewhere, in batch-major or with one micro-batch. */
    bool in_order;
    uint64_t boundary_bytes; /* of one micro-batch */
    /* Sizes of the workspace and of the constants. The expanded params of a pass
     * (pass.expanded_bytes) lie at the end of the workspace. */
    uint64_t workspace_bytes, constants_bytes;
    /* Device memory that forward ops read and write, and that stays as it is from program to
     * program: keys and values. 0: none. */
    uint64_t cache_bytes;
    uint64_t tokens_bytes, losses_bytes; /* of a whole step */
    /* Sums that the losses of routers need, of one micro-batch. They lie behind the losses of the
     * step, for one micro-batch after the other (plan_totals_begin). 0: there are none. */
    uint64_t totals_bytes;
    uint32_t param_bytes, grad_bytes; /* per element: 2 or 4 */
    /* Size of a table of lent gradients (LENT GRADIENTS in swap/program.h): updates in the backward
     * then read each unit's gradients, of param_bytes, where its only pass lends them. 0: no pass
     * lends any. */
    uint64_t lent_bytes;
    uint32_t state_streams; /* of a tile: its streams code (base/tile.h) */
    /* [unit_count] the streams code of each unit's tiles: Muon's matrices have one stream less than
     * its vectors. NULL: state_streams for all. */
    const uint32_t *unit_streams;
    /* [unit_count] work of one rank to orthogonalize the unit's matrices; 0: it has none. NULL: no
     * unit has any. Their update runs on the host where the device is a GPU. */
    const double *matrix_flops;
    uint64_t matrix_scratch_bytes; /* for the largest matrix */

    /* ---- experts ---------------------------------------------------------------------------- */
    /* Whether units that are not hit (struct pass) are fetched all the same. */
    enum fetch experts;
    uint64_t call_tokens; /* that choose experts in one call: as a rule those of a micro-batch */

    /* ---- the schedule ----------------------------------------------------------------------- */
    uint64_t tile_elems;     /* 0: chosen by simulated time */
    uint64_t tile_elems_max; /* of chosen ones, rounded up to TILE_ELEMS_STEP; 0: any */
    /* How far ahead of the oldest unfinished op memory is reserved; 0: as far as memory allows. */
    uint64_t lookahead_ops;

    /* ---- what outlives the process ---------------------------------------------------------- */
    /* State homed in memory gets a place on the slab; PROGRAM_SAVE then ends in OP_COMMIT. */
    bool needs_save_places;
    /* With needs_save_places: state has two places each on the slab, and steady steps can commit
     * while their other work goes on (plan_commit). */
    bool commits;
    /* Steps from commit to commit, 0 as 1. Where state is homed in memory and most steps do not
     * commit, tile size and held stages are chosen for those. */
    uint64_t commit_every;
    /* Compile only EVAL and LOAD, for generation and evaluation. Without needs_save_places there
     * is no optimizer state to load from, and the caller that runs EVAL fills the params' homes. */
    bool only_eval;

    /* ---- the machine ------------------------------------------------------------------------ */
    plan_machine machine;
    uint64_t budget_bytes[TIER_COUNT];
    /* Bytes of the nvme budget that hold no state: headers and, with several drives, a stripe for
     * each but one, however the budget is divided among them. */
    uint64_t nvme_overhead_bytes;
    uint64_t nvme_stripe_bytes; /* the slab is a whole number of stripes; 0: of bytes */
    /* Ranks that divide the drives' budgets, 0 as 1: a refusal names what all of them need. */
    uint32_t nvme_sharers;

    /* ---- refusals --------------------------------------------------------------------------- */
    bool no_advice;            /* a refusal need not say what is needed: ERR_NO_FIT comes sooner */
    const char *nvme_advice;   /* where nvme is too small; NULL: raise the budgets */
    const char *device_advice; /* appended where the device is too small; or NULL */

    plan_watch *watch; /* or NULL; changes no plan */
    uint32_t threads;  /* that may plan, the caller's among them, 0 as 1; changes no plan */
};
typedef struct plan_job plan_job;

/* Elements of a unit's state of this kind that rest on this rank: its shard or the whole padded
 * unit. */
uint64_t plan_rest_elems(const plan_job *job, enum state_kind kind, uint32_t unit);
/* True if they are the shard alone; false where there is one rank. */
bool plan_is_sharded(const plan_job *job, enum state_kind kind, uint32_t unit);
/* True if each rank owns its shard of the unit. */
static inline bool plan_is_owned(const plan_job *self, uint32_t unit)
{
    return self->is_owned && self->is_owned[unit] && self->world > 1;
}
/* True if the unit's update orthogonalizes matrices. */
static inline bool plan_has_matrices(const plan_job *self, uint32_t unit)
{
    return self->matrix_flops && self->matrix_flops[unit] > 0;
}
/* The streams code of the unit's tiles. */
static inline uint32_t plan_streams(const plan_job *self, uint32_t unit)
{
    return self->unit_streams ? self->unit_streams[unit] : self->state_streams;
}
/* Where the totals of a micro-batch begin in the buffer of losses. */
static inline uint64_t plan_totals_begin(const plan_job *self, uint32_t micro_batch)
{
    return size_round_up(self->losses_bytes, 256) + micro_batch * self->totals_bytes;
}

/* True if the unit learns: it is not frozen. */
static inline bool plan_learns(const plan_job *self, uint32_t unit)
{
    return !self->is_frozen || !self->is_frozen[unit];
}

#endif
