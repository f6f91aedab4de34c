/* Emission: a program's ops in serial order, the order of a machine that never looks ahead.
 *
 * The layout gives homes their offsets, the same in every program of a set. The builder takes ops,
 * operands and transients, and adds the dependencies that follow from the bytes they touch. The
 * rest emits: a program is made of stages, updates and saves; a stage of passes; and passes,
 * updates and saves of transfers, tile work and collectives.
 *
 * Failures stick in builder.error, so that emitting code reads straight. One thread; heap
 * memory. */
#ifndef SLUICE_PLAN_EMIT_INTERNAL_H
#define SLUICE_PLAN_EMIT_INTERNAL_H

#include "plan/plan_internal.h"

/* ---- layout.c ------------------------------------------------------------------------------- */

/* The home buffers, which every builder copies. */
struct plani_layout {
    buffer *buffers;
    uint64_t *residues;
    uint64_t count, capacity;
    uint32_t *grad_uses; /* [unit_count] */
    bool defers_first, is_cut;
    uint64_t end_bytes[TIER_COUNT]; /* end of the last home in each arena */
};
typedef struct plani_layout plani_layout;

/* Lays out the homes and fills set->homes. No budget is checked here. */
int plani_layout_make(const plan_job *job, plan_set *set, plani_layout *layout) MUST_CHECK;
void plani_layout_fini(plani_layout *layout);
/* Bytes of device memory for all ranks' sums of the norm's largest part, in whole blocks. */
uint64_t plani_norm_part_bytes(const plan_job *job, const plan_set *set);

/* ---- pool.c --------------------------------------------------------------------------------- */

/* Memory for many short lists that live as long as one program is built. A list that grows moves
 * and leaves its old place unused. Freed all at once. */
struct plani_pool {
    char *chunk; /* the newest one; the first bytes of each point to the one before it */
    uint64_t used_bytes, chunk_bytes;
};
/* Makes room in a full list for one more element; 0 or -ENOMEM. New elements are not set. */
int plani_pool_grow(struct plani_pool *pool, void **list, uint32_t *capacity,
                    size_t elem_bytes) MUST_CHECK;
void plani_pool_fini(struct plani_pool *pool);

/* ---- builder.c ------------------------------------------------------------------------------ */

enum { PLANI_ANY = 0xffff }; /* a residue: block alignment is enough */

/* The lowest place from `offset` on with the residue. */
static inline uint64_t plani_align_offset(uint64_t offset, uint64_t residue)
{
    if (residue == PLANI_ANY)
        return size_round_up(offset, TILE_BLOCK_BYTES);
    uint64_t placed = offset / TILE_PERIOD_BYTES * TILE_PERIOD_BYTES + residue;
    return placed >= offset ? placed : placed + TILE_PERIOD_BYTES;
}

struct plani_access {
    uint32_t op_idx;
    bool writes;
    uint64_t begin, end; /* bytes within the buffer */
};

struct plani_buffer {
    buffer base;
    uint64_t residue;            /* of the offset modulo TILE_PERIOD_BYTES, or PLANI_ANY */
    struct plani_access *recent; /* accesses that a later one may depend on, by size class, begin */
    uint32_t recent_count, recent_capacity, recent_gap;
    uint32_t recent_hint;    /* where the last search ended: the next one mostly ends near it */
    uint64_t recent_classes; /* bit c: accesses of 2^c bytes and more, below 2^(c+1), were seen */
    uint32_t *users;         /* ops that use a transient, in serial order, each once */
    uint32_t user_count, user_capacity;
};

/* Facts of an op for walks over all ops of a program. They are kept apart from the ops, which are
 * so much larger that such a walk would wait for memory. */
struct plani_brief {
    uint32_t dependent; /* the last op that got an edge from it, 0: none */
    uint8_t kind, lane; /* as in op */
    bool if_commits;
    /* It keeps its place among the others of the compute lane. All other ops start in any order
     * that their dependencies allow: those of other lanes, those that only committing runs have,
     * and, with several ranks, closing and updating, since computing goes on while gradients are
     * reduced that are added or closed later. */
    bool is_chained;
};

/* A transient, and the op that uses it first. */
struct plani_first_use {
    uint32_t buffer_idx, op_idx;
};

struct plani_edge {
    uint32_t from, to; /* `to` depends on `from` */
};

/* A byte range of a buffer. */
struct plani_range {
    uint32_t buffer_idx;
    uint64_t offset_bytes, size_bytes;
};
typedef struct plani_range plani_range;

/* One program under construction: ops in serial order. A search builds thousands of programs of
 * about one length, so that a builder keeps its arrays from one program to the next. A new one is
 * all zeros. */
struct plani_builder {
    const plan_job *job;
    const plan_set *set; /* homes, tile size */
    uint32_t held_stages;
    bool if_applied; /* ops that are appended run only where the step's update is applied */
    bool if_commits; /* ops that are appended run only where the step commits */
    /* Transfers that are appended are skipped if this byte is 0, but for an expected share of the
     * runs. Its size is 0 if they are not. */
    plani_range hit;
    double hit_share;
    /* The first of the buffers that are carried into the program, or out of it, in the order of
     * plan_set.carried. PROGRAM_NONE: there are none. */
    uint32_t carried_in, carried_out;
    uint32_t commit_op; /* the program's OP_COMMIT, PROGRAM_NONE before it */
    uint64_t op_count, buffer_count, home_count, edge_count;
    uint64_t first_use_count;  /* transients that are used */
    uint64_t use_count;        /* the users of all of them */
    struct plani_graph *graph; /* of the finished ops, made when it is first needed; or NULL */
    struct plani_pool lists;   /* `recent` and `users` of all buffers */
    /* matrix_work.c: the tiles of a unit with matrices whose update has begun, in order. */
    struct plani_begun_tile *begun_tiles;
    uint32_t begun_count, begun_capacity;
    uint32_t directions;             /* the buffer of their directions */
    int error;                       /* first failure; later calls do nothing */
    uint64_t home_bytes[TIER_COUNT]; /* of each arena in homes */
    uint64_t op_bytes[TIER_COUNT];   /* the same and what the newest op uses */
    uint64_t room_bytes[TIER_COUNT]; /* most that op_bytes may be */

    /* Kept for the next program; what stands above is cleared. Elements from the count on are not
     * set. */
    op *ops;                    /* operands beyond operand_count are not set */
    struct plani_brief *briefs; /* by op */
    struct plani_buffer *buffers;
    struct plani_edge *edges;
    struct plani_first_use *first_uses; /* by op, then by buffer */
    uint64_t op_capacity, brief_capacity, buffer_capacity, edge_capacity, first_use_capacity;
};
typedef struct plani_builder plani_builder;

/* True if the two complete in their serial order even without a dependency. */
static inline bool plani_in_one_order(const plani_builder *b, uint32_t one, uint32_t two)
{
    return b->briefs[one].is_chained && b->briefs[two].is_chained;
}

/* Begins a program of the layout's homes; what was there of the last one is lost. On failure it is
 * empty. */
int plani_builder_begin(plani_builder *b, const plan_job *job, const plan_set *set,
                        const plani_layout *layout, uint32_t held_stages) MUST_CHECK;
/* From now on an op that uses more than an arena has room for, homes included, is the failure
 * ERR_NO_FIT: the rest of the program need not be known. */
void plani_builder_limit(plani_builder *b, const uint64_t room_bytes[TIER_COUNT]);
/* Frees the program, and keeps the arrays for the next one. */
void plani_builder_end(plani_builder *b);
/* Frees the program and the arrays. */
void plani_builder_fini(plani_builder *b);
void plani_graph_destroy(struct plani_graph *graph); /* urgency.c; NULL is nothing */
uint32_t plani_transient(plani_builder *b, enum tier arena, uint64_t size_bytes, uint64_t residue,
                         enum state_kind kind, uint32_t unit);
/* Appends an op and returns its index; unit, stage and the like are PROGRAM_NONE until set. */
uint32_t plani_op(plani_builder *b, enum op_kind kind, enum lane_kind lane);
/* Adds the operand and the data dependencies on earlier ops that touch the same bytes. */
void plani_use_bytes(plani_builder *b, uint32_t op_idx, uint32_t buffer_idx, uint64_t offset_bytes,
                     uint64_t size_bytes, enum operand_role role, enum operand_access access);
static inline void plani_use(plani_builder *b, uint32_t op_idx, plani_range range,
                             enum operand_role role, enum operand_access access)
{
    plani_use_bytes(b, op_idx, range.buffer_idx, range.offset_bytes, range.size_bytes, role,
                    access);
}
void plani_depend(plani_builder *b, uint32_t op_idx, uint32_t on_op_idx);
/* Adds an edge unchanged. Like ops and buffers, edges are counted in 32 bits: ERR_CONFIG beyond. */
int plani_add_edge(plani_builder *b, uint32_t from, uint32_t to) MUST_CHECK;
static inline plani_range plani_whole(const plani_builder *b, uint32_t buffer_idx)
{
    return (plani_range){buffer_idx, 0, b->error < 0 ? 0 : b->buffers[buffer_idx].base.size_bytes};
}

/* The bytes of elements [begin, begin + count) in a buffer of `elem_bytes` each. */
static inline plani_range plani_elems_of(uint32_t buffer_idx, uint64_t begin, uint64_t count,
                                         uint64_t elem_bytes)
{
    return (plani_range){buffer_idx, begin * elem_bytes, count * elem_bytes};
}

/* False for PROGRAM_NONE, and after a failure. */
static inline bool plani_is_on_device(const plani_builder *b, uint32_t buffer_idx)
{
    return b->error >= 0 && buffer_idx != PROGRAM_NONE &&
           b->buffers[buffer_idx].base.arena == TIER_DEVICE;
}

/* Bytes that an op moves in the memory of the device. */
static inline void plani_add_device_bytes(const plan_job *job, op_demand *demand, uint64_t bytes)
{
    if (job->machine.device_is_cpu)
        demand->dram_bytes += bytes;
    else
        demand->device_bytes += bytes;
}

/* ---- programs.c ----------------------------------------------------------------------------- */

void plani_emit_program(plani_builder *b, enum program_kind kind);

/* ---- stage_passes.c ------------------------------------------------------------------------- */

/* Device buffers that outlive the emission of one stage, and what has happened to each unit.
 * Indices of buffers; PROGRAM_NONE where there is none now. */
struct plani_step {
    uint32_t *params;      /* [unit_count] kept on the device for the backward */
    uint32_t *grads;       /* [unit_count] open fp32 accumulators of whole units on the device */
    uint32_t *inputs;      /* [stage_count * micro_batches] boundary before the stage */
    uint32_t *input_grads; /* [stage_count * micro_batches] */
    uint32_t *saved;       /* [stage_count * micro_batches] inner activations */
    uint32_t *uses_left;   /* [unit_count] backward passes that still add to the gradient */
    uint32_t *updated;     /* [unit_count] 1: the pending update is applied */
    uint32_t *begun;       /* [unit_count] 1: sums of this step are there, open or at rest */
    uint32_t lent_count;   /* backwards so far that lend their gradients */
    bool updates_first;    /* a unit's pending update comes before its first use */
    bool updates_late;     /* a unit's pending update comes after its last use */
    bool commits_behind;   /* a save follows each pending update, and OP_COMMIT the last one */
    uint32_t updated_count;
};

void plani_stage_forward(plani_builder *b, struct plani_step *st, uint32_t stage, uint32_t mb_begin,
                         uint32_t mb_end, bool trains);
/* Recomputes first where a cut stage's inner activations were not kept. Closes the gradients that
 * are complete. */
void plani_stage_backward(plani_builder *b, struct plani_step *st, uint32_t stage,
                          uint32_t mb_begin, uint32_t mb_end);

/* ---- pass_ops.c ------------------------------------------------------------------------------ */

/* A run of one pass over micro-batches [mb_begin, mb_end). */
struct plani_pass_run {
    uint32_t s, pass_idx, mb_begin, mb_end;
    enum phase phase;
    const struct stage *stage;
    const struct pass *pass;
    uint32_t unit; /* whose placement the stage's activations follow */
    bool trains;
    plani_range hit; /* the unit's hit, without which the pass needs no params; or of 0 bytes */
    uint32_t params[2], grads[2];
    bool fresh[2];
    plani_range lent; /* the table of its first unit's gradients if it lends them; or of 0 bytes */
};

/* The buffers of a micro-batch's activations; PROGRAM_NONE where the pass does not use one. */
struct plani_pass_buffers {
    uint32_t input, saved, output, output_grad, input_grad;
    uint8_t saved_access;
};

/* The ops of the run for one micro-batch. */
void plani_pass_ops(plani_builder *b, const struct plani_pass_run *run, uint32_t mb,
                    const struct plani_pass_buffers *with);
/* The hits that the pass finds out, or 0 bytes. */
plani_range plani_told_hits(const plani_builder *b, const struct plani_pass_run *run);
static inline uint32_t plani_device_scratch(plani_builder *b, uint64_t bytes, enum state_kind kind,
                                            uint32_t unit)
{
    return plani_transient(b, TIER_DEVICE, bytes, PLANI_ANY, kind, unit);
}

/* ---- tile_work.c ---------------------------------------------------------------------------- */

/* Brings bytes from one arena to another, by way of the host between device and nvme. */
void plani_transfer(plani_builder *b, plani_range source, plani_range target, enum state_kind kind,
                    uint32_t unit, uint32_t tile, uint32_t micro_batch);

enum plani_tile_work { PLANI_WORK_UPDATE, PLANI_WORK_INIT, PLANI_WORK_LOAD };

/* Work on one tile of one unit. */
struct plani_tile {
    uint32_t unit, tile;
    uint64_t begin, count;  /* elements */
    enum tier where;        /* where the work runs */
    uint32_t params_home;   /* where the new working copy goes */
    uint32_t device_params; /* where it is also wanted, or PROGRAM_NONE */
    uint32_t high;          /* the buffer with the high half of a split master, or PROGRAM_NONE */
    enum plani_tile_work work;
    uint32_t after;     /* an op that the work waits for, or PROGRAM_NONE */
    plani_range closed; /* the tile's gradient where it never rests; else of 0 bytes */
    plani_range lent;   /* the table of its gradient's addresses if that is lent; else of 0 bytes */
};

/* The inputs of a tile's update, in the arena where its work runs. */
struct plani_tile_inputs {
    plani_range state, grads;
};

/* Where the tiles' new params go, and how the ranks' params come together after them. */
struct plani_new_params {
    uint32_t unit;
    /* Where tiles take them: the home, or a shard on the device to be gathered. */
    uint32_t tiles_to;
    uint32_t tiles_also_to; /* PROGRAM_NONE, or on the device */
    uint32_t high;          /* where tiles take the high half of a split master, or PROGRAM_NONE */
    uint32_t shard;         /* gathered into `whole` after the last tile, or PROGRAM_NONE */
    uint32_t whole, home;
};

/* A tile of `elems` elements: those of the unit's optimizer state, of its shard, or all of it. */
struct plani_tile plani_tile_at(const plani_builder *b, uint32_t unit, uint64_t elems,
                                uint64_t tile);
uint64_t plani_tiles_of(const plani_builder *b, uint64_t elems);
/* The tile's place in a buffer of the unit's optimizer state; its share of a buffer of params. */
plani_range plani_tile_state(const plani_builder *b, const struct plani_tile *t,
                             uint32_t buffer_idx);
plani_range plani_tile_params(const plani_builder *b, const struct plani_tile *t,
                              uint32_t buffer_idx);
/* A transient for the tile's share of params, gradients or optimizer state. */
plani_range plani_tile_transient(plani_builder *b, const struct plani_tile *t, enum tier arena,
                                 uint64_t size_bytes, enum state_kind kind);
/* plani_op for work on the tile. */
uint32_t plani_tile_op(plani_builder *b, enum op_kind kind, enum lane_kind lane,
                       const struct plani_tile *t);
/* Transfers the tile's share of a state. */
void plani_tile_transfer(plani_builder *b, const struct plani_tile *t, plani_range source,
                         plani_range target, enum state_kind kind);
/* Seconds of one core for an element's arithmetic that takes as long as `updates` fp32 updates of
 * Adam with their tile in the cache: a faster core is faster at both. */
double plani_arithmetic(const plani_builder *b, double updates);
/* Sets what the tile's work asks of the machine. */
void plani_work_demand(plani_builder *b, uint32_t idx, const struct plani_tile *t);
/* An op of the worker that computes, too: nothing is computed while it waits for memory, so it has
 * all cores for as long as its bytes take. Call it last. */
void plani_keep_cores(plani_builder *b, uint32_t idx);
/* Before and after the work on all tiles of a unit; `wanted`: a device buffer, or PROGRAM_NONE. */
struct plani_new_params plani_begin_params(plani_builder *b, uint32_t unit, uint32_t wanted);
void plani_finish_params(plani_builder *b, const struct plani_new_params *made);

/* Brings the tile's operands to where its work runs, does it, and takes the results home. The
 * update of a unit with matrices waits for the unit's last tile, so all tiles must follow, in
 * order. */
void plani_tile_work(plani_builder *b, const struct plani_tile *t);
/* The two halves of an update: brings what the tile's update reads; updates, and takes the results
 * home. `direction`: those of the whole unit, or of 0 bytes. */
struct plani_tile_inputs plani_tile_inputs(plani_builder *b, const struct plani_tile *t);
void plani_tile_finish(plani_builder *b, const struct plani_tile *t,
                       const struct plani_tile_inputs *inputs, plani_range direction);
/* Moves `elems` elements of `elem_bytes` each, tile by tile. */
void plani_move_elems(plani_builder *b, uint32_t unit, uint64_t elems, uint32_t source,
                      uint32_t target, uint64_t elem_bytes, enum state_kind kind);
/* Updates (or initializes, or loads) all tiles of a unit. With device_params not PROGRAM_NONE the
 * new working copy is also brought there. `after` is an op that the updates wait for, or
 * PROGRAM_NONE. */
void plani_unit_work(plani_builder *b, uint32_t unit, enum plani_tile_work work,
                     uint32_t device_params, uint32_t after);
/* Reads the state that has a copy on the host (plan_set.copy_bytes). */
void plani_fill_copies(plani_builder *b);
/* Brings a unit's params, whole, into device memory. Returns the buffer that holds them: the home
 * where that is whole and on the device, else a transient. plani_device_params returns the buffer
 * without a transfer. */
uint32_t plani_fetch_params(plani_builder *b, uint32_t unit);
uint32_t plani_device_params(plani_builder *b, uint32_t unit);

/* ---- matrix_work.c -------------------------------------------------------------------------- */

/* The update of one tile of a unit with matrices; the last tile's call finishes the unit. */
void plani_matrix_work(plani_builder *b, const struct plani_tile *t);

/* ---- grads.c -------------------------------------------------------------------------------- */

/* Reduces the unit's gradient over the ranks, closes it tile by tile, and takes it home or
 * (in_backward) to the optimizer. `has_sum`: contributions to it rest already. */
void plani_close_grads(plani_builder *b, uint32_t unit, uint32_t accumulator, bool has_sum);
/* Leaves one contribution to a gradient that is not complete. With several ranks it is reduced and
 * added to the sum of the own shard; a single rank has the sum in the accumulator. */
void plani_rest_grads(plani_builder *b, uint32_t unit, uint32_t accumulator, bool has_sum);
/* The op takes the squares of the tile's gradient for the norm. */
void plani_use_norm_sums(plani_builder *b, uint32_t idx, const struct plani_tile *t);
/* Updates a unit whose backward has lent its gradients. */
void plani_update_lent(plani_builder *b, uint32_t unit, plani_range lent);
/* One rank: brings the sum [whole unit] fp32 back from where it rests. */
void plani_resume_grads(plani_builder *b, uint32_t unit, uint32_t accumulator);

/* ---- carry.c -------------------------------------------------------------------------------- */

/* True if a step can carry anything to the next one. */
bool plani_may_carry(const plan_job *job);
/* Chooses as many of the first tiles of the update as `bytes` of host memory after the homes hold.
 * -ENOMEM. */
int plani_carry_make(const plan_job *job, uint64_t bytes, const plani_layout *layout,
                     plan_set *set) MUST_CHECK;
/* Makes the carried buffers of a program, before its first op. */
void plani_carry_begin(plani_builder *b, enum program_kind kind);
/* The buffer that carries the tile's share of a state: into the program, where `first` is
 * b->carried_in, or out of it, where that is b->carried_out. Its size is 0 if there is none. */
plani_range plani_carried(const plani_builder *b, uint32_t first, const struct plani_tile *t,
                          enum state_kind kind, uint64_t size_bytes);
/* Reads the optimizer state that the program carries out. */
void plani_carry_state(plani_builder *b);

/* ---- durable.c ------------------------------------------------------------------------------ */

/* INIT or LOAD of a frozen unit: its params to their place on the slab, or from there; and home. */
void plani_frozen_work(plani_builder *b, uint32_t unit, enum plani_tile_work work);
/* LOAD of a unit with a split master: state and working copy from the slab to their homes. */
void plani_load_split(plani_builder *b, uint32_t unit);
/* Takes state homed in memory to its place on the slab; does nothing where that place is the
 * home. */
void plani_save_unit(plani_builder *b, uint32_t unit);
/* True if the op changes what a commit makes durable. */
bool plani_is_durable_write(const plani_builder *b, const op *item);
/* Appends OP_COMMIT, once in a program. It waits for all writes of state to the slab so far, and
 * all later ones wait for it. */
void plani_commit(plani_builder *b);

/* ---- collectives.c -------------------------------------------------------------------------- */

/* Gathers `source`, this rank's shard, of all ranks into `target`. `unit` PROGRAM_NONE: the norm's
 * sums. */
void plani_all_gather(plani_builder *b, plani_range source, plani_range target, uint32_t state_kind,
                      uint32_t unit);
/* Sums this rank's shard of an accumulator over all ranks, [shard] fp32, into the device buffer
 * `sums`, or into a transient where that is PROGRAM_NONE. Returns the buffer. */
uint32_t plani_reduce_scatter(plani_builder *b, uint32_t unit, uint32_t accumulator, uint32_t sums);
/* Makes a unit hit on all ranks if it is hit on one; `hits` are those of the stage's units. */
void plani_unite_hits(plani_builder *b, plani_range hits, uint32_t stage);
/* Rows of a pass of owned experts to the ranks that own these, or their results back. `sent`: bytes
 * for other ranks, if all choices are equally likely. */
void plani_exchange(plani_builder *b, uint32_t stage, uint32_t pass, uint32_t unit,
                    uint32_t micro_batch, enum op_kind kind, uint32_t source, uint32_t target,
                    uint64_t sent);
/* The norm's sums of all ranks, part by part, and the norm itself; returns its op. */
uint32_t plani_norm(plani_builder *b);

#endif
