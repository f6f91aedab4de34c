/* What the files of src/plan share: the builder, which holds a program while it is made.
 *
 *   layout.c    homes and their offsets          emit.c      transfers, updates, fetches
 *   steps.c     the seven programs as ops        builder.c   ops, operands, data dependencies
 *   passes.c    one pass of one stage         collect.c   collectives
 *   durable.c   what outlives the process
 *   reserve.c   places of buffers              order.c     which op goes first
 *   schedule.c  simulation                    finish.c    from a simulation to a program
 *   share.c     rates of ops that run together
 *   space.c     one arena's memory in time    caps.c      caps on gathered params
 *   bound.c     lower bounds of a program's time
 *   compile.c   the search over tile size, lookahead and held stages
 *   refuse.c    what a job needs that does not fit */
#ifndef SLUICE_PLAN_INTERNAL_H
#define SLUICE_PLAN_INTERNAL_H

#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/plan.h"

struct plani_access {
    uint32_t op_idx;
    bool writes;
    uint64_t begin, end; /* bytes within the buffer */
};

struct plani_buffer {
    buffer base;
    uint64_t residue; /* of the offset modulo TILE_PERIOD_BYTES; PLANI_ANY: 4 KiB alignment only */
    struct plani_access *recent; /* accesses that a later one may depend on, by size class, begin */
    uint32_t recent_count, recent_capacity;
    uint64_t recent_classes; /* bit c: accesses of 2^c bytes and more, below 2^(c+1), were seen */
    uint32_t *users;         /* ops that use a transient, in serial order, each once */
    uint32_t user_count, user_capacity;
};

enum {
    PLANI_ANY = 0xffff,
    /* Programs that move all state through memory, and saves within a step, could fill the whole host
     * budget; this many ops ahead keep every drive and link busy. */
    PLANI_LOOKAHEAD_OF_SAVES = 64,
};

/* The lowest place from `offset` on with the residue (or, for PLANI_ANY, the block alignment). */
static inline uint64_t plani_align_offset(uint64_t offset, uint64_t residue)
{
    if (residue == PLANI_ANY)
        return size_round_up(offset, TILE_BLOCK_BYTES);
    uint64_t placed = offset / TILE_PERIOD_BYTES * TILE_PERIOD_BYTES + residue;
    return placed >= offset ? placed : placed + TILE_PERIOD_BYTES;
}

static inline uint32_t plani_world(const plan_job *job)
{
    return job->world ? job->world : 1;
}

/* Elements of a rank's shard of the unit, and of all shards end to end. */
static inline uint64_t plani_shard_elems(const plan_job *job, uint32_t unit)
{
    return shard_elems(job->unit_elems[unit], plani_world(job));
}

static inline uint64_t plani_whole_elems(const plan_job *job, uint32_t unit)
{
    return shard_whole_elems(job->unit_elems[unit], plani_world(job));
}

/* Whether the op keeps its place among the others of the compute lane. All ops of other lanes, and these
 * of the compute lane, may start in any order that their dependencies allow: what only runs have that
 * commit, and, of several ranks, closing and updating, as computing goes on while gradients are
 * reduced that then are closed. Kind, lane and conditions are set by then. */
static inline bool plani_is_chained(const plan_job *job, const op *item)
{
    bool follows_reduce = item->kind == OP_GRAD_CLOSE || item->kind == OP_UPDATE;
    return item->lane == LANE_COMPUTE && !item->if_commits &&
           !(plani_world(job) > 1 && follows_reduce);
}

/* Whether the two complete in their serial order, dependencies aside. */
static inline bool plani_in_one_order(const plan_job *job, const op *one, const op *two)
{
    return plani_is_chained(job, one) && plani_is_chained(job, two);
}

struct plani_edge {
    uint32_t from, to; /* `to` depends on `from` */
};

/* One program under construction: ops in serial order. */
struct plani_builder {
    const plan_job *job;
    const plan_set *set; /* homes, tile size */
    uint32_t held_stages;
    bool if_applied;    /* ops that are appended run only where the step's update is applied */
    bool if_commits;    /* ops that are appended run only where the step commits */
    uint32_t commit_op; /* the program's OP_COMMIT, PROGRAM_NONE before it */
    op *ops;
    uint64_t op_count, op_capacity;
    uint32_t *dependents; /* by op: the last op that got an edge from it, 0: none */
    uint64_t dependent_capacity;
    struct plani_buffer *buffers;
    uint64_t buffer_count, buffer_capacity, home_count;
    struct plani_edge *edges;
    uint64_t edge_count, edge_capacity;
    struct plani_graph *graph; /* of the finished ops, made by the first plani_schedule; or NULL */
    int error;                 /* first failure; later calls do nothing */
};
typedef struct plani_builder plani_builder;

/* A byte range of a buffer. */
struct plani_range {
    uint32_t buffer_idx;
    uint64_t offset_bytes, size_bytes;
};
typedef struct plani_range plani_range;

/* layout.c: fills set->homes and the home buffers, which every builder copies. need[arena] gets the
 * end of the last home in each arena. No budget is checked here. */
struct plani_layout {
    buffer *buffers;
    uint64_t *residues;
    uint64_t count, capacity;
    uint32_t *grad_uses; /* [unit_count] */
    bool defers_first, is_cut;
    uint64_t end_bytes[TIER_COUNT];
};
typedef struct plani_layout plani_layout;
/* Of device memory: all ranks' sums of the norm's largest part, in whole blocks. */
uint64_t plani_norm_part_bytes(const plan_job *job, const plan_set *set);
int plani_layout_make(const plan_job *job, plan_set *set, plani_layout *layout) MUST_CHECK;
void plani_layout_fini(plani_layout *layout);
/* How many runs of backward passes add to each unit's gradient in a step, where each stage runs `rounds`
 * times and the first one `first_rounds` times. True where the first stage adds to a gradient that
 * others add to: where micro-batches come one by one its backward then waits for the end of the others',
 * so that all sums are taken in one order whatever the order of the step. */
bool plani_count_grad_uses(const plan_job *job, uint32_t rounds, uint32_t first_rounds,
                           uint32_t *uses);
bool plani_has_cut_stage(const plan_job *job);
/* Of one micro-batch, the most that waits between passes of cut stages; 0: nothing does. */
uint64_t plani_parked_bytes(const plan_job *job);
/* Where it waits, but of the micro-batches that stay on the device; there is a second stage. */
enum tier plani_parked_home(const plan_job *job);

/* Whether a home on nvme of the unit's params is, or would be, their place on the slab for good. */
static inline bool plani_may_rest_for_good(const plan_job *job, uint32_t unit)
{
    return !plan_learns(job, unit) &&
           plan_is_sharded(job, STATE_PARAMS, unit) == plan_is_sharded(job, STATE_OPTIMIZER, unit);
}

static inline bool plani_rests_for_good(const plan_job *job, uint32_t unit)
{
    return plani_may_rest_for_good(job, unit) && job->homes[STATE_PARAMS][unit] == TIER_NVME;
}

/* Whether the unit's master is split: half of it are the params, which are part of the state. */
static inline bool plani_is_split(const plan_job *job, uint32_t unit)
{
    return tile_master_is_split(job->state_streams) && plan_learns(job, unit);
}

/* Whether the high halves of a split master are the params that rest; else (a rank has the whole params, but
 * a shard of the state) they are a home of their own, of the rank's shard, where its optimizer state rests. */
static inline bool plani_params_are_high(const plan_job *job, uint32_t unit)
{
    return plani_is_split(job, unit) &&
           plan_is_sharded(job, STATE_PARAMS, unit) == plan_is_sharded(job, STATE_OPTIMIZER, unit);
}

/* The arena of the home of the high halves of a split master. */
static inline enum tier plani_high_arena(const plan_job *job, uint32_t unit)
{
    enum state_kind kind = plani_params_are_high(job, unit) ? STATE_PARAMS : STATE_OPTIMIZER;
    return (enum tier)job->homes[kind][unit];
}

/* Bytes of the high halves of a rank's tiles of the unit; 0: its master is not split. */
static inline uint64_t plani_high_bytes(const plan_job *job, uint32_t unit)
{
    return plani_is_split(job, unit)
               ? plan_rest_elems(job, STATE_OPTIMIZER, unit) * job->param_bytes
               : 0;
}

/* ERR_CONFIG for what no plan can be made of: no micro-batch, nothing that learns. */
int plani_check_job(const plan_job *job) MUST_CHECK;

/* Whether the stage has a backward: it or one before it learns. */
static inline bool plani_goes_back(const plan_job *job, uint32_t stage)
{
    return job->stages[stage].pass_count[PHASE_BACKWARD] > 0;
}

/* Whether state has two places on the slab. */
static inline bool plani_commits(const plan_job *job)
{
    return job->commits && job->needs_save_places && !job->only_eval;
}

/* The unit whose placement the activations of a stage follow. */
static inline uint32_t plani_stage_unit(const plan_job *job, uint32_t stage)
{
    return job->stages[stage].passes[PHASE_FORWARD][0].units[0];
}

/* Whether the stage's inner activations stay from forward to backward. */
static inline bool plani_keeps_saved(const plan_job *job, uint32_t stage)
{
    return job->stages[stage].saved_bytes > 0 && !job->only_eval && plani_goes_back(job, stage) &&
           job->homes[STATE_INNER_ACTIVATIONS][plani_stage_unit(job, stage)] < TIER_COUNT;
}

/* Bytes that an op moves in the memory of the device. */
static inline void plani_add_device_bytes(const plan_job *job, op_demand *demand, uint64_t bytes)
{
    if (job->machine.device_is_cpu)
        demand->dram_bytes += bytes;
    else
        demand->device_bytes += bytes;
}

/* builder.c */
int plani_builder_init(plani_builder *b, const plan_job *job, const plan_set *set,
                       const plani_layout *layout, uint32_t held_stages) MUST_CHECK;
void plani_builder_fini(plani_builder *b);
uint32_t plani_transient(plani_builder *b, enum tier arena, uint64_t size_bytes, uint64_t residue,
                         enum state_kind kind, uint32_t unit);
/* Appends an op and returns its index; unit, stage and the like are PROGRAM_NONE until set. */
uint32_t plani_op(plani_builder *b, enum op_kind kind, enum lane_kind lane);
/* Adds the operand and the data dependencies on earlier ops that touch the same bytes. */
void plani_use(plani_builder *b, uint32_t op_idx, plani_range range, enum operand_role role,
               enum operand_access access);
void plani_depend(plani_builder *b, uint32_t op_idx, uint32_t on_op_idx);
/* Adds an edge as it is. Like ops and buffers, edges are counted in 32 bits: ERR_CONFIG beyond. */
int plani_add_edge(plani_builder *b, uint32_t from, uint32_t to) MUST_CHECK;
plani_range plani_whole(const plani_builder *b, uint32_t buffer_idx);

/* emit.c: transfers between arenas and the per-tile work of a unit. */
void plani_transfer(plani_builder *b, plani_range source, plani_range target, enum state_kind kind,
                    uint32_t unit, uint32_t tile, uint32_t micro_batch);
enum plani_tile_work { PLANI_WORK_UPDATE, PLANI_WORK_INIT, PLANI_WORK_LOAD };
/* Updates (or initializes, or loads) all tiles of a unit; with device_params not PROGRAM_NONE the new
 * working copy is also brought there. `after` is an op the updates wait for, or PROGRAM_NONE. */
void plani_unit_work(plani_builder *b, uint32_t unit, enum plani_tile_work work,
                     uint32_t device_params, uint32_t after);
/* Reads what has a copy on the host (plan_set.copy_bytes). */
void plani_fill_copies(plani_builder *b);
/* Brings a unit's params, whole, into device memory; returns the buffer that holds them: the home where
 * that is whole and on the device, else a transient. */
uint32_t plani_fetch_params(plani_builder *b, uint32_t unit);
uint32_t plani_device_params(plani_builder *b, uint32_t unit);
/* Reduces the unit's gradient over the ranks, closes it tile by tile and takes it home, or (in_backward)
 * to the optimizer. */
void plani_close_grads(plani_builder *b, uint32_t unit, uint32_t accumulator);
/* Brings an open accumulator [whole unit] fp32 to `target`, tile by tile. */
void plani_move_accumulator(plani_builder *b, uint32_t unit, uint32_t source, uint32_t target);

/* durable.c */
/* INIT or LOAD of a frozen unit: its params to their place on the slab, or from there; and home. */
void plani_frozen_work(plani_builder *b, uint32_t unit, enum plani_tile_work work);
/* LOAD of a unit with a split master: state and working copy from the slab to their homes. */
void plani_load_split(plani_builder *b, uint32_t unit);
/* State homed in memory to its place on the slab; nothing for a unit whose home that is. */
void plani_save_unit(plani_builder *b, uint32_t unit);
/* Whether the op changes what a commit makes durable. */
bool plani_is_durable_write(const plani_builder *b, const op *item);
/* OP_COMMIT, once in a program: behind all writes of state to the slab so far, before all later ones. */
void plani_commit(plani_builder *b);

/* collect.c: collectives of a unit (PROGRAM_NONE: of the norm's sums), appended as ops. */
/* `source`, this rank's shard, of all ranks into `target`. */
void plani_all_gather(plani_builder *b, plani_range source, plani_range target, uint32_t state_kind,
                      uint32_t unit);
/* The sums over all ranks of this rank's shard of an accumulator: a transient [shard] fp32. */
uint32_t plani_reduce_scatter(plani_builder *b, uint32_t unit, uint32_t accumulator);
/* The norm's sums of all ranks, part by part, and the norm itself; returns its op. */
uint32_t plani_norm(plani_builder *b);

/* steps.c */
void plani_emit_program(plani_builder *b, enum program_kind kind);

/* share.c: max-min fair rates. */
struct plani_share {
    double demand[RESOURCE_COUNT]; /* seconds of the whole resource that the op needs */
    double alone_seconds;          /* its time when nothing else runs */
    double rate;                   /* out: share of the op done per second */
};
void plani_demand(const plan_machine *machine, const op_demand *demand, struct plani_share *share);
void plani_share_rates(struct plani_share *const *running, uint32_t count);

/* space.c: an arena's memory while a program is scheduled. */
struct plani_piece { /* a stretch and the transient that used it last */
    uint64_t begin, end;
    uint32_t buffer_idx;
    bool live;
};
struct plani_space_class { /* buffers of one size and residue */
    uint64_t size_bytes, residue;
    uint64_t lowest; /* no place for one below; UINT64_MAX: no place at all */
};
struct plani_space {
    struct plani_piece *pieces; /* sorted, disjoint; what lies between them was never used */
    uint64_t count, capacity;
    struct plani_space_class *classes;
    uint32_t class_count, class_capacity, class_recent;
    uint64_t floor_bytes, budget_bytes; /* transients live in [floor, budget) */
};
/* Called for each buffer whose bytes a fresh one takes over; below 0 stops. */
typedef int plani_space_order(void *context, uint32_t held_idx, uint32_t fresh_idx);

void plani_space_init(struct plani_space *space, uint64_t floor_bytes, uint64_t budget_bytes);
void plani_space_fini(struct plani_space *space);
/* The lowest place for such a buffer in *offset; UINT64_MAX where there is none now. */
int plani_space_find(struct plani_space *space, uint64_t size_bytes, uint64_t residue,
                     uint64_t *offset) MUST_CHECK;
/* Gives [begin, end), a place just found, to the buffer. */
int plani_space_take(struct plani_space *space, uint64_t begin, uint64_t end, uint32_t fresh,
                     plani_space_order *order, void *context) MUST_CHECK;
/* Frees the whole of the live buffer that begins there. */
void plani_space_release(struct plani_space *space, uint64_t begin);

/* caps.c: gathered params on the device, while a program is scheduled. Borrows the builder. */
struct plani_caps {
    const plani_builder *b;
    uint8_t *is_ahead; /* [buffer_count] 1: params that nothing uses yet; NULL: there is no cap */
    uint64_t live_most, ahead_most;
    uint64_t live_elems, ahead_elems;
};
int plani_caps_init(struct plani_caps *caps, const plani_builder *b) MUST_CHECK;
void plani_caps_fini(struct plani_caps *caps);
/* Whether the buffer can be had within the caps. Buffers of other kinds always can. */
bool plani_caps_allow(const struct plani_caps *caps, uint32_t buffer_idx);
void plani_caps_take(struct plani_caps *caps, uint32_t buffer_idx);
void plani_caps_start(struct plani_caps *caps, uint32_t op_idx); /* the op starts */
void plani_caps_give(struct plani_caps *caps, uint32_t buffer_idx);
/* How many stages before the turn may hold their params: within limits_reuse, and such that theirs and
 * the head's together are within live_elems_max. */
uint32_t plani_held_most(const plan_job *job);

/* bound.c: lower bounds of the program's time, of the data dependencies alone. `commits`: of a run that
 * does. plan_set.bound_ns and schedule_bound_ns say what they are. -ENOMEM. */
int plani_phases_bound(const plani_builder *b, bool commits, uint64_t *ns) MUST_CHECK;
int plani_schedule_bound(const plani_builder *b, bool commits, uint64_t *ns) MUST_CHECK;

void plani_graph_destroy(struct plani_graph *graph); /* order.c; NULL is nothing */

/* schedule.c: places and simulates the builder's ops. With `whole` it fills *out; without, only what a
 * choice between programs needs: predicted_ns, peaks, budgets. `lookahead_ops` 0 is no limit, 1 needs
 * the least memory. ERR_NO_FIT when memory ran out. The builder can be scheduled again. */
int plani_schedule(plani_builder *b, enum program_kind kind,
                   const uint64_t budget_bytes[TIER_COUNT], uint64_t lookahead_ops, bool whole,
                   program *out) MUST_CHECK;
/* Peaks and budgets alone, with a lookahead of 1: what the serial order needs. ERR_NO_FIT. */
int plani_needs(plani_builder *b, enum program_kind kind, const uint64_t budget_bytes[TIER_COUNT],
                program *out) MUST_CHECK;

#endif
