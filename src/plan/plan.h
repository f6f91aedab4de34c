/* From numbers to programs: where every state rests, and every op of a step with its address.
 *
 *   plan_job (units, stages, homes, budgets, machine)
 *     -> layout    homes get their offsets, the same in every program
 *     -> ops       the step in serial order: the order of a machine that never looks ahead
 *     -> schedule  an event-driven simulation walks the lanes in time, reserves memory in serial order
 *                  as early as the budgets allow, and gives each buffer its offset
 *     -> program   ops sorted by their simulated start, with dependencies and predictions
 *
 * Pure: numbers in, programs out; no device, no file, no clock. Deterministic: equal jobs give equal
 * programs on every machine and rank.
 *
 * Ranks. All ranks compile the same program from the same inputs. ZeRO's stages are where states rest:
 *
 *                optimizer   grads    params     collectives of a step
 *     stage 0    whole       whole    whole      gradients: reduce-scatter, all-gather
 *     stage 1    shard       whole    whole      gradients: reduce-scatter; new params: all-gather
 *     stage 2    shard       shard    whole      the same
 *     stage 3    shard       shard    shard      the same; params again for the backward, but for held stages
 *
 * A shard is the rank's part of a unit's padded vector (base/shard.h), whole the padded vector. Whatever the
 * stage, gradients are reduced by the same reduce-scatter over the same shards, closed (rounded, squared)
 * shard by shard, and the norm is the same sum: stages agree to the bit. Each gradient is reduced once a
 * step, whatever the order: accumulators that rest are whole. Stage 1 keeps a whole gradient, as ZeRO has
 * it, of which this rank's shard, at its start, is all that is used.
 *
 * Split masters (tile_master_is_split of state_streams). The update of a tile reads and writes the working
 * copy, and the working copy is part of the state: it has places on the slab as the tiles have, is saved
 * where they are saved, and is brought back, not made anew. Where the params are cut over the ranks as the
 * optimizer state is, the params' home has it; of stages 1 and 2 of several ranks, and with stays_gathered,
 * each rank's shard of it is a home of its own beside the tiles, and nothing is saved by it.
 *
 * Fit. Reservation in serial order cannot deadlock, since the earliest unfinished op always has its
 * memory. What the serial order itself needs is the least that any lookahead needs, so it is the
 * figure of a refusal: plan_compile fails with ERR_NO_FIT naming tier, needed and allowed bytes, and
 * the same job with exactly the needed bytes compiles. */
#ifndef SLUICE_PLAN_PLAN_H
#define SLUICE_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/words.h"
#include "swap/program.h"

/* What the simulator knows of the machine. Rates of one rank with all its drives. */
struct plan_machine {
    double drive_read_bytes_per_second, drive_write_bytes_per_second; /* shared: r/R + w/W <= 1 */
    double h2d_bytes_per_second, d2h_bytes_per_second;
    double dram_bytes_per_second;
    double device_flops_per_second;
    double device_bytes_per_second; /* of a GPU's own memory; unused where device_is_cpu */
    double core_count;
    bool device_is_cpu; /* products run on the cores, copies to the device use DRAM */
    double
        comm_bytes_per_second; /* that a rank can send to the others, while it receives as much */
    double comm_seconds;       /* fixed cost of a collective, beside op_seconds */
    bool
        comm_is_copies; /* ranks of one host in shared memory: collectives use DRAM and cores as well */
    bool
        comm_takes_no_memory; /* likewise, but what they bring is written nowhere: of ranks that are
                                  not there */
    double update_core_seconds; /* of one core, per element of an update; 0: a default */
    double io_core_seconds;     /* of one core, per byte of direct I/O */
    double copy_core_seconds; /* of one core, per byte that a thread copies where device_is_cpu; 0:
                                   as long as the copy takes */
    double op_seconds;        /* fixed cost of any op */
    double sync_seconds;      /* of a commit: fdatasync of the slabs, the manifest and its fsync */
    bool is_measured;         /* false: stated defaults */
};
typedef struct plan_machine plan_machine;

/* What ops share. An op asks for seconds of the whole resource; a step takes at least what its ops ask of
 * any one. */
enum plan_resource {
    RESOURCE_DRIVE, /* all of a rank's, reads and writes together */
    RESOURCE_H2D,   /* host -> device */
    RESOURCE_D2H,   /* device -> host */
    RESOURCE_DRAM,
    RESOURCE_CORES,  /* the update and I/O; computing where device_is_cpu */
    RESOURCE_DEVICE, /* computing on a GPU */
    RESOURCE_COMM,   /* what a rank sends */
    RESOURCE_COUNT
};
const char *plan_resource_name(enum plan_resource resource); /* "drive", "h2d", ... */
void plan_demand_seconds(const plan_machine *machine, const op_demand *demand,
                         double seconds[RESOURCE_COUNT]);

/* What runs for each micro-batch while the params of the pass's units are on the device. */
struct plan_pass {
    uint32_t units[2];
    uint32_t unit_count;
    bool reads_params[2], adds_grads[2];
    uint64_t zeroed_bytes
        [2]; /* of the unit's accumulator, where this pass is the first that adds to it */
    uint8_t input, output, output_grad, input_grad, saved,
        losses;   /* enum operand_access; 0: unused.
                                   WRITE: nothing of what was there is needed */
    double flops; /* of one micro-batch */
    double
        seconds; /* the same on the device alone, memory included, where the machine's kernels were
                       measured: counts in place of flops; 0: not known */
    uint64_t dram_bytes;
};
typedef struct plan_pass plan_pass;

/* The stage's own unit is the first of its first pass; homes of its activations go by that unit. The
 * last stage is the head: its BACKWARD does forward, loss and backward, its FORWARD the losses alone.
 *
 * Units that do not learn (plan_job.is_frozen): no pass adds to their gradients (adds_grads false). A stage
 * such that neither it nor one before it has a unit that learns has no passes of RECOMPUTE and BACKWARD: it
 * keeps nothing for them. The first stage that has some makes no input_grad (0 in its passes but for
 * what they hand each other), as nobody reads one. The head always has its BACKWARD. */
struct plan_stage {
    const plan_pass *passes[PHASE_COUNT];
    uint32_t pass_count[PHASE_COUNT]; /* forward, and the head's backward: at least 1 */
    bool has_input, has_output;       /* a boundary activation before and after */
    bool is_cut; /* `saved` goes from pass to pass; else only its one backward pass uses it, which
                    makes it itself unless it is kept */
    uint64_t saved_bytes;     /* of one micro-batch; 0: there is nothing to keep */
    double recompute_flops;   /* uncut: what the backward pass need not do where `saved` is kept */
    double recompute_seconds; /* of them, where known */
    uint64_t recompute_dram_bytes;
};
typedef struct plan_stage plan_stage;

struct plan_job {
    uint32_t unit_count, stage_count;
    const uint64_t *unit_elems; /* [unit_count] multiples of SHARD_ELEMS_STEP */
    const plan_stage *stages;   /* [stage_count] in forward order; the last is the head */
    const uint8_t
        *is_frozen; /* [unit_count] 1: it has params alone, which no op changes; NULL: none */
    const uint8_t *homes[STATE_KIND_COUNT]; /* [unit_count] enum tier each; activations: of the
                                               boundary before the stage whose own unit it is; inner
                                               activations: of that stage, TIER_COUNT: not kept */
    uint32_t world;                         /* ranks; 0 acts as 1 */
    uint32_t zero_stage;                    /* without effect where there is one rank */
    const uint8_t
        *stays_gathered; /* [unit_count] 1: with stage 3 the unit's params are whole on each rank,
                                      as in stage 2 (stage3_param_persistence_threshold); NULL: none */
    uint32_t
        wire_bytes; /* of a gradient's element on its way to other ranks: 4 or 2; 0 acts as 4 */
    uint32_t
        reduce_scratch_bytes; /* per element of a whole unit, device memory that a reduce-scatter
                                      is given as ROLE_WORKSPACE; 0: none */
    uint64_t
        norm_part_bytes; /* of all ranks' sums for the norm, gathered at once: at most this, but a
                                  unit's always; 0: 16 MiB. Changes no bit of any run */
    /* Caps on gathered params, in elements; 0: none. None keeps back what the oldest op needs. */
    uint64_t live_elems_max;  /* on the device at once (stage3_max_live_parameters) */
    uint64_t ahead_elems_max; /* gathered and not yet in use (stage3_prefetch_bucket_size) */
    bool
        limits_reuse; /* with stage 3: params stay from forward to backward only where at most ... */
    uint64_t reuse_elems_max; /* ... so many elements of other units are used in between
                                 (stage3_max_reuse_distance); 0: none stays */
    uint32_t micro_batch_count;
    /* Of so many micro-batches inner activations of cut stages that are not kept stay on the device from
     * pass to pass; those of the others go where the activations behind the first stage rest, or to the host
     * where these rest on nvme and parked_on_host says so. Without effect where micro-batches pass one by
     * one. */
    uint32_t parked_near;
    bool parked_on_host;
    uint64_t boundary_bytes; /* of one micro-batch */
    uint64_t workspace_bytes, constants_bytes;
    uint64_t
        cache_bytes; /* device memory that forward ops read and write, and that stays as it is from
                             program to program: keys and values; 0: none */
    uint64_t tokens_bytes, losses_bytes; /* of a whole step */
    uint32_t param_bytes, grad_bytes;    /* per element: 2 or 4 */
    uint32_t state_streams;              /* of a tile: its streams code (base/tile.h) */
    enum update update;
    enum order order;
    uint64_t tile_elems; /* 0: chosen by simulated time */
    uint64_t
        tile_elems_max; /* chosen ones are at most this, rounded up to TILE_ELEMS_STEP; 0: any */
    uint64_t lookahead_ops; /* how far ahead of the oldest unfinished op memory is reserved;
                                     0: as far as memory allows */
    bool
        needs_save_places; /* give optimizer state homed in memory a place on the slab; PROGRAM_SAVE
                               then ends in OP_COMMIT */
    bool
        commits; /* with needs_save_places: state has two places each on the slab, and steady steps can
                     commit behind their other work (plan_commit) */
    uint64_t
        commit_every; /* steps from commit to commit, 0 as 1. Where state is homed in memory and
                              most steps do not commit, tile and held stages are chosen for those */
    bool no_advice;   /* a refusal need not say what is needed: ERR_NO_FIT comes sooner */
    bool
        only_eval; /* compile just EVAL and LOAD (generation, evaluation); without needs_save_places there
                         is no optimizer state to load from, and who runs EVAL fills the params' homes */
    uint64_t budget_bytes[TIER_COUNT];
    uint32_t
        nvme_sharers; /* ranks that divide the drives' budgets: a refusal names what all of them need;
                              0 acts as 1 */
    const char *nvme_advice;   /* of a refusal where nvme is too small; NULL: raise the budgets */
    const char *device_advice; /* of a refusal where the device is too small: appended; or NULL */
    uint64_t
        nvme_overhead_bytes; /* of the nvme budget: headers, and of several drives a stripe for each but
                                     one, however the budget is divided among them */
    uint64_t nvme_stripe_bytes; /* the slab is a whole number of them; 0: of bytes */
    plan_machine machine;
};
typedef struct plan_job plan_job;

/* Buffer indices of the homes, equal in all programs of the set. PROGRAM_NONE where there is none. */
struct plan_homes {
    uint32_t *params, *grads, *optimizer;
    uint32_t
        *saves; /* [unit_count] where the optimizer's state is saved to; of a frozen unit the place
                        of its params on the slab, where that is not their home (plan_frozen_place) */
    uint32_t
        *twins; /* [unit_count] with plan_job.commits: the second place of the unit's state on the
                        slab, as large as the first (optimizer or saves); no op names it (swap/place_table.h) */
    /* [unit_count] of a split master (base/tile.h): the buffer with its high halves, that of the params or
     * a home of its own; the place on the slab that they are saved to where that is in memory; and the
     * second place of either. */
    uint32_t *highs, *high_saves, *high_twins;
    /* [unit_count] on the host: the unit's first tiles of optimizer state, whose home is nvme and which steps
     * update here and write there, but do not read (plan_set.copy_bytes). */
    uint32_t *copies;
    uint32_t *accumulators; /* [unit_count] fp32, where one rests between micro-batches or stages */
    uint32_t
        *activations;   /* [stage_count * micro_batch_count], input of the stage; batch-major: the
                               micro-batches of a stage share one */
    uint32_t *saved;    /* likewise: inner activations that are kept */
    uint32_t *deferred; /* [micro_batch_count] gradients of the first stage's output, which wait
                               for the end of a batch-major step where the embedding is tied */
    uint32_t workspace, constants, cache, tokens_host, tokens_device, losses_host, losses_device,
        norm_sums;
    /* Of several ranks, and of one part of the norm (plan_set.norm_part_begin): all ranks' norm_sums of
     * its units by rank, and the same sums by block of these units, padded: a unit's first at world
     * times its norm_block_begin within the part. Of several parts every other one is gathered to the
     * second half of norm_gathered, while the one before is put in order. */
    uint32_t norm_gathered, norm_ordered;
};
typedef struct plan_homes plan_homes;

/* How a steady step commits, where it is run so. State homed in memory is saved on the way (if_commits);
 * the program's other writes of state wait for OP_COMMIT, or it for them. */
enum plan_commit {
    PLAN_COMMIT_APART, /* it does not: PROGRAM_SAVE alone commits */
    PLAN_COMMIT_FIRST, /* the state that it finds: saves and OP_COMMIT come first, each update waits for
                           the save of its own tile */
    PLAN_COMMIT_BEHIND, /* the state after the pending update that it applies: each tile is saved behind
                           its update, OP_COMMIT comes behind the last one, with the backward to hide it */
};

struct plan_set {
    program programs[PROGRAM_KIND_COUNT];
    enum plan_commit commit;
    uint64_t second_bytes; /* of nvme: the second places */
    /* Of host memory: copies of optimizer state that a step with update in_next_forward begins with. Nothing can
     * be read for it before the norm is known, at the end of a step, and computing waits for the first units'
     * params: PROGRAM_FIRST fills the copies, updates change them, and each is written to its home as ever, so that
     * a copy holds what its home does between two programs, whichever. */
    uint64_t copy_bytes;
    plan_homes homes;
    uint64_t tile_elems;
    uint32_t held_stages; /* stages nearest the turn whose params stay for the backward */
    uint64_t
        *norm_block_begin; /* [unit_count + 1] index of a unit's first norm block; of several ranks
                                   of its shard's, among the rank's own */
    uint32_t
        *norm_part_begin; /* [norm_part_count + 1] first units of the norm's parts: one part where
                                   there is one rank, or all its sums are within norm_part_bytes */
    uint32_t norm_part_count;
    uint64_t home_bytes[STATE_KIND_COUNT][TIER_COUNT];
    uint64_t uncommitted_ns; /* predicted: the steady step in a run that does not commit; the steady
                                program's own predicted_ns is that of one that does */
    uint64_t uncommitted_lane_ns[LANE_COUNT]; /* its lanes, busy */
    uint64_t bound_ns; /* the steady step's bound: per phase between barriers, the work of the
                                busiest resource; what may be done in any phase counts in the whole */
    uint64_t uncommitted_bound_ns; /* the same of one that does not commit */
    /* With dependencies and fixed costs: no order of the same ops is shorter, whatever the memory. At
     * least bound_ns, up to rounding. */
    uint64_t schedule_bound_ns, uncommitted_schedule_bound_ns;
    uint64_t work_ops; /* ops built and ops simulated on the way to it: what it cost */
};
typedef struct plan_set plan_set;

/* Elements of a unit's state of this kind that rest on this rank: its shard or the whole padded unit. */
uint64_t plan_rest_elems(const plan_job *job, enum state_kind kind, uint32_t unit);
/* Whether they are the shard alone. False where there is one rank. */
bool plan_is_sharded(const plan_job *job, enum state_kind kind, uint32_t unit);

/* Whether the unit learns. A frozen one has params alone. Those lie on the slab for good, cut over the ranks as
 * optimizer state is, whatever their home: INIT writes them there, tile by tile, no other program does. Where
 * they rest on nvme anyway, and as much of them as of optimizer state, their home is that place: there is one
 * copy, and LOAD has nothing to do. */
static inline bool plan_learns(const plan_job *self, uint32_t unit)
{
    return !self->is_frozen || !self->is_frozen[unit];
}
/* The buffer of a frozen unit's params on the slab, PROGRAM_NONE where nothing is to outlive the process. */
uint32_t plan_frozen_place(const plan_job *job, const plan_homes *homes, uint32_t unit);
/* Of a split master: the buffer on the slab that its high halves have, once committed, or PROGRAM_NONE (not
 * split, or nothing outlives the process; then it may also be one in memory). */
static inline uint32_t plan_high_place(const plan_homes *homes, uint32_t unit)
{
    return homes->high_saves[unit] != PROGRAM_NONE ? homes->high_saves[unit] : homes->highs[unit];
}

/* Compiles all programs and checks them. Time and memory grow about linearly with tiles and stages times
 * micro-batches; chosen tile sizes cut a model into at most about 2^14 tiles, and what batch-major
 * accumulators move in a step into at most about 2^19. Of programs of millions of ops the first tile size
 * that fits is taken, and a refusal may name more than the least that is needed, or say "at least".
 * ERR_NO_FIT (see above); ERR_CONFIG for no micro-batch, for a model of which no unit learns (but only_eval),
 * for more than 4 million stages times micro-batches, and where ops, buffers or dependencies outgrow 32 bits;
 * ERR_INTERNAL if a program fails its own check, which is a bug. On failure *out is empty but for work_ops. */
int plan_compile(const plan_job *job, plan_set *out) MUST_CHECK;
void plan_set_fini(plan_set *set);

/* Rough figures for a machine that was not measured, named as defaults wherever they are printed. */
void plan_machine_default_cpu(plan_machine *machine, uint32_t core_count, bool bf16_products);
/* The same with a GPU of compute capability `major`.0 and the memory bandwidth that its driver states (0:
 * not known); core_count are the cores of the update. */
void plan_machine_default_gpu(plan_machine *machine, uint32_t core_count, int major,
                              double memory_bytes_per_second);

#endif
