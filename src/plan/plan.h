/* From a job to programs: where every state rests, and every op of a step with its address.
 *
 *   plan_job (units, stages, budgets, machine)      plan_job.h
 *     -> place     homes are chosen, where they are open
 *     -> layout    homes get their offsets, the same in every program
 *     -> emit      the step in serial order: the order of a machine that never looks ahead
 *     -> reserve   each buffer gets its offset, as early in serial order as the budgets allow
 *     -> schedule  an event-driven simulation walks the lanes in time
 *     -> program   ops sorted by their simulated start, with dependencies and predictions
 *
 * Pure: numbers in, programs out; no device, no file, no clock. Deterministic: equal jobs give
 * equal programs on every machine and rank. Work is counted in ops, never in time.
 *
 * Fit. Reservation in serial order cannot deadlock, since the earliest unfinished op always has
 * its memory. No lookahead needs less than the serial order itself, so a refusal names that
 * figure: ERR_NO_FIT says for each tier that is too small how many bytes are needed and allowed,
 * and the same job with exactly the needed bytes compiles. */
#ifndef SLUICE_PLAN_PLAN_H
#define SLUICE_PLAN_PLAN_H

#include "base/error.h"
#include "plan/plan_job.h"

/* Resources that ops share. An op asks for seconds of the whole resource; a step takes at least
 * what its ops ask of any one of them. */
enum plan_resource {
    RESOURCE_DRIVE, /* all of a rank's drives, reads and writes together */
    RESOURCE_H2D,   /* host -> device */
    RESOURCE_D2H,   /* device -> host */
    RESOURCE_DRAM,
    RESOURCE_CORES,  /* the update and I/O; computing where device_is_cpu */
    RESOURCE_DEVICE, /* computing on a GPU */
    RESOURCE_COMM,   /* what a rank sends */
    RESOURCE_COUNT
};
const char *plan_resource_name(enum plan_resource resource); /* "drive", "h2d", ... */
/* op_demand.share, or 1. */
static inline double plan_share(const op_demand *demand)
{
    return demand->share > 0 ? demand->share : 1;
}
/* Seconds of each whole resource, as a mean over runs in which the op is skipped or not. */
void plan_demand_seconds(const plan_machine *machine, const op_demand *demand,
                         double seconds[RESOURCE_COUNT]);

/* ---- compiled programs ---------------------------------------------------------------------- */

/* Buffer indices of the homes, equal in all programs of the set. PROGRAM_NONE where there is
 * none. */
struct plan_homes {
    uint32_t *params, *grads, *optimizer; /* [unit_count] */
    /* [unit_count] where the optimizer's state is saved to. For a frozen unit: the place of its
     * params on the slab, where that is not their home (plan_frozen_place). */
    uint32_t *saves;
    /* [unit_count] with plan_job.commits: the second place of the unit's state on the slab, as
     * large as the first (optimizer or saves). No op names it (swap/place_table.h). */
    uint32_t *twins;
    /* [unit_count] for a split master (base/tile.h): the buffer with its high halves, which is
     * that of the params or a home of its own; the place on the slab that they are saved to, where
     * that home is in memory; and the second place of either. */
    uint32_t *highs, *high_saves, *high_twins;
    /* [unit_count] on the host: the first tiles of optimizer state whose home is nvme. Steps
     * update them here and write them there, but do not read them (plan_set.copy_bytes). */
    uint32_t *copies;
    /* [unit_count] fp32 sums of the own shard, where they rest between micro-batches or stages. */
    uint32_t *accumulators;
    /* [stage_count * micro_batch_count] input of the stage, and inner activations that are kept.
     * Batch-major: the micro-batches of a stage share one. */
    uint32_t *activations, *saved;
    /* [micro_batch_count] gradients of the first stage's output. They wait for the end of a
     * batch-major step where the embedding is tied. */
    uint32_t *deferred;
    uint32_t hits; /* on the host: a byte per unit (ROLE_HITS) */
    uint32_t lent; /* on the device: two tables of plan_job.lent_bytes (ROLE_LENT) */
    uint32_t workspace, constants, cache, tokens_host, tokens_device, losses_host, losses_device,
        norm_sums;
    /* With several ranks, for one part of the norm (plan_set.norm_part_begin): all ranks'
     * norm_sums of its units by rank; and the same sums by block of these units, padded. A unit's
     * first block is at world times its norm_block_begin within the part. With several parts every
     * other one is gathered to the second half of norm_gathered, while the one before is put in
     * order. */
    uint32_t norm_gathered, norm_ordered;
};
typedef struct plan_homes plan_homes;

/* How a steady step commits, if it commits. State homed in memory is saved on the way
 * (if_commits). The program's other writes of state wait for OP_COMMIT, or OP_COMMIT waits for
 * them. */
enum plan_commit {
    PLAN_COMMIT_APART, /* it does not: PROGRAM_SAVE alone commits */
    /* The state that it finds: saves and OP_COMMIT come first, and each update waits for the save
     * of its own tile. */
    PLAN_COMMIT_FIRST,
    /* The state after the pending update that it applies: each tile is saved after its update, and
     * OP_COMMIT comes after the last one, with the backward to hide it. */
    PLAN_COMMIT_BEHIND,
};

/* A piece that a step carries to the next one: a tile of a unit's optimizer state or gradient, at a
 * place in host memory that is the same in all programs (src/plan/emit/carry.c). */
struct plan_carried {
    uint32_t unit, tile;
    uint32_t kind; /* STATE_OPTIMIZER or STATE_GRADS */
    uint64_t offset_bytes, size_bytes;
};
typedef struct plan_carried plan_carried;

struct plan_set {
    program programs[PROGRAM_KIND_COUNT];
    plan_homes homes;

    /* The choices of the search. */
    uint64_t tile_elems;
    uint32_t held_stages; /* stages nearest the turn whose params stay for the backward */
    /* With units in parts no stage is held. Instead so many last passes of each block's
     * recomputation, and of the head's forward, keep their params for the backward. */
    uint32_t held_passes;
    /* A unit of experts is fetched only if it is hit (struct pass), after its router. */
    bool fetches_hit;
    enum plan_commit commit;
    /* Host memory for copies of optimizer state. A step with update in_next_forward begins with
     * the updates of the first units, for which computing waits, and their state cannot be read
     * before the norm is known, at the end of the step before. PROGRAM_FIRST fills the copies, and
     * updates change them and write them home: between two programs a copy equals its home. */
    uint64_t copy_bytes;
    /* The first tiles of the update, which a step with update in_next_forward closes and reads for
     * the next one, by unit and tile; of each tile the optimizer state comes first. They lie in
     * [carried_begin, carried_end) of the host, which other buffers use within a step. */
    plan_carried *carried; /* [carried_count] */
    uint32_t carried_count;
    uint64_t carried_begin, carried_end;

    /* Sizes. */
    uint64_t second_bytes; /* of nvme: the second places */
    uint64_t home_bytes[STATE_KIND_COUNT][TIER_COUNT];
    /* [unit_count + 1] index of a unit's first norm block; with several ranks of its shard's,
     * among the rank's own blocks. */
    uint64_t *norm_block_begin;
    /* [norm_part_count + 1] first units of the norm's parts. There is one part with one rank, or
     * where all sums are within norm_part_bytes. */
    uint32_t *norm_part_begin;
    uint32_t norm_part_count;

    /* Predicted times of the steady step. Its program's own predicted_ns is that of a run that
     * commits; `uncommitted` is that of one that does not. */
    uint64_t uncommitted_ns;
    uint64_t uncommitted_lane_ns[LANE_COUNT]; /* busy time of its lanes */
    /* With fetches_hit: the mean step if all experts were hit; 0: not known. */
    uint64_t all_hit_ns;
    /* The busiest resource's work, summed over the phases between barriers. Work that may lie in
     * any phase counts for the step as a whole. */
    uint64_t bound_ns, uncommitted_bound_ns;
    /* With dependencies and fixed costs: no order of the same ops is shorter, whatever the memory.
     * At least bound_ns, up to rounding. */
    uint64_t schedule_bound_ns, uncommitted_schedule_bound_ns;

    uint64_t work_ops;      /* ops built and ops simulated on the way to it: what it cost */
    uint32_t scouted_count; /* programs on the way that other threads made (plan_job.threads) */
};
typedef struct plan_set plan_set;

/* Compiles all programs of a job whose homes and update are given, and checks them. Time and
 * memory grow about linearly with tiles and stages times micro-batches; chosen tile sizes cut a
 * model into at most about 2^14 tiles, and what batch-major accumulators move in a step into at
 * most about 2^19. For programs of millions of ops the first tile size that fits is taken, and a
 * refusal may name more than the least that is needed, or say "at least".
 *
 * ERR_NO_FIT (see above). ERR_CONFIG for no micro-batch, for a model of which no unit learns (but
 * only_eval), for more than 4 million stages times micro-batches, and where ops, buffers or
 * dependencies outgrow 32 bits. ERR_INTERNAL if a program fails its own check, which is a bug. On
 * failure *out is empty but for work_ops. */
int plan_compile(const plan_job *job, plan_set *out) MUST_CHECK;
void plan_set_fini(plan_set *set);

/* Predicted mean of steady steps with and without a commit, as they come in a run. */
double plan_mean_step_ns(const plan_job *job, const plan_set *set);

/* The buffer of a frozen unit's params on the slab, PROGRAM_NONE where nothing is to outlive the
 * process. Those params lie there for good, cut over the ranks as optimizer state is, whatever
 * their home. Only INIT writes them, tile by tile. If they rest on nvme
 * anyway, and as much of them as of optimizer state, their home is that place. There is then one
 * copy, and LOAD does nothing. */
uint32_t plan_frozen_place(const plan_job *job, const plan_homes *homes, uint32_t unit);
/* For a split master: the buffer on the slab that its high halves have once they are committed.
 * PROGRAM_NONE where it is not split. Where nothing outlives the process it may also be a buffer
 * in memory. */
static inline uint32_t plan_high_place(const plan_homes *homes, uint32_t unit)
{
    return homes->high_saves[unit] != PROGRAM_NONE ? homes->high_saves[unit] : homes->highs[unit];
}

/* Passes of a step whose unit of experts may not be hit, and how many of them are expected to be
 * hit (src/plan/hits.c). Both 0: there are none. */
struct plan_hits {
    double passes, hit;
};
void plan_expect_hits(const plan_job *job, struct plan_hits *out);

/* ---- automatic placement -------------------------------------------------------------------- */

struct plan_place_asked {
    /* Its homes do not count. Its update counts where that is not chosen. */
    const plan_job *job;
    /* [unit_count] homes as in plan_job, or TIER_AUTO. */
    const uint8_t *wanted[STATE_KIND_COUNT];
    bool chooses_order;      /* batch-major as well, where the job is layer-major */
    bool chooses_update;     /* among those that give the same bits */
    bool allows_in_backward; /* UPDATE_IN_BACKWARD is one of them */
    bool has_drives;         /* what is to be chosen may be nvme */
    bool only_fits;  /* take the first placement that fits: nothing is simulated or compiled */
    bool only_homes; /* with only_fits: what passes through the tiers is not counted */
};

struct plan_place_found {
    uint8_t *homes[STATE_KIND_COUNT]; /* [unit_count] the caller's, filled */
    enum order order;
    enum update update;
    uint32_t parked_near; /* as in plan_job */
    bool parked_on_host;
    plan_set set; /* compiled; the caller's to free. With only_fits: empty but for home_bytes */
    /* With only_fits: bytes that the serial order of all programs takes. */
    uint64_t need_bytes[TIER_COUNT];
    uint32_t trial_count;   /* simulated steps, or steps whose bound was enough */
    uint32_t compile_count; /* whole compilations */
    uint32_t repeat_count;  /* steps that were asked for again, and not simulated again */
    uint64_t work_ops;      /* ops built and simulated in all */
    uint32_t reason_count;
    char reasons[PLAN_REASONS_MAX][PLAN_REASON_BYTES]; /* why each state rests there */
};

/* Chooses the open homes, the update and the order, and all else that a plan leaves open (tile
 * size, held stages, copies, commit), so that the simulated step is shortest, and compiles the
 * winner.
 *
 * A unit rests nearer than it needs to where that costs nothing: memory that is there is used, and
 * the drives are spared. Inner activations are kept where that gains. Homes of a kind are in the
 * order of need: params, gradients and optimizer that rest near are those of the first units (a
 * step begins with them, and a tied embedding is among them); activations are those of the last
 * ones (nearest the turn).
 *
 * ERR_NO_FIT with plan_compile's advice, for the placement that comes nearest to the budgets, and
 * with the other order where the job fits in that; plan_compile's other errors. On failure
 * found->set is empty. */
int plan_place(const struct plan_place_asked *asked, struct plan_place_found *found) MUST_CHECK;

#endif
