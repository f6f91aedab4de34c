/* Runs compiled programs of several ranks, in lock step, on numbers instead of tensors.
 *
 * The arenas of each rank are cells, one for every 4096 bytes. All cells of 4096 elements (a block)
 * of a state hold one number, so moving, gathering and summing are exact. Each working copy that an
 * op reads is compared with its expected value:
 *
 *   - for a unit that learns: the initial value after as many updates as steps came before, each
 *     update with the sum of all ranks' gradients of its own step;
 *   - for a frozen unit: the initial value.
 *
 * With a split master the state holds the difference between working copy and master, so an update
 * that finds a wrong working copy makes a wrong master. */
#ifndef SLUICE_TESTS_PLAN_RANKS_RUN_H
#define SLUICE_TESTS_PLAN_RANKS_RUN_H

#include "base/shard.h"
#include "plan/search/search_internal.h"
#include "tests/plan/plan_fixture.h"
#include "tests/unit.h"

enum { RUN_RANKS_MAX = 5, RUN_STEPS_MAX = 6 };

struct ranks_run {
    const random_job *r;
    const plan_set *set;
    uint32_t world, step, version; /* of the params that ops must find */
    uint64_t *cells[RUN_RANKS_MAX][TIER_COUNT];
    uint64_t *sums[RUN_RANKS_MAX], *gathered[RUN_RANKS_MAX];
    uint64_t *masters[RUN_STEPS_MAX + 1][FIXTURE_UNITS_MAX]; /* by version: of the whole unit */
    uint64_t *grads[RUN_STEPS_MAX + 1][FIXTURE_UNITS_MAX];   /* of the step, all ranks' */
    uint64_t params_read, added, closed, norms, norm_parts;
};
typedef struct ranks_run ranks_run;

static inline uint64_t run_mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ (b * UINT64_C(0x9e3779b97f4a7c15))) + UINT64_C(0x2545f4914f6cdd1d);
    x = (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ (x >> 32);
}

static inline uint64_t run_blocks(const ranks_run *run, uint32_t unit)
{
    return shard_whole_elems(run->r->elems[unit], run->world) / SHARD_ELEMS_STEP;
}

static inline uint64_t run_own_blocks(const ranks_run *run, uint32_t unit)
{
    return shard_elems(run->r->elems[unit], run->world) / SHARD_ELEMS_STEP;
}

/* The number that one backward op of a rank adds to a block of a gradient. */
static inline uint64_t run_added(uint32_t step, uint32_t rank, uint32_t unit, uint64_t block,
                                 uint64_t stage, uint64_t pass, uint64_t mb)
{
    uint64_t at = run_mix(run_mix(stage * 1000 + pass, mb), run_mix(unit, block));
    return run_mix(at, (uint64_t)step * 100 + rank);
}

static inline void run_expect_grads(ranks_run *run, uint32_t t)
{
    const plan_job *job = &run->r->job;
    for (uint32_t s = 0; s < job->stage_count; s++)
        for (uint32_t p = 0; p < job->stages[s].pass_count[PHASE_BACKWARD]; p++) {
            const struct pass *pass = &job->stages[s].passes[PHASE_BACKWARD][p];
            for (uint32_t i = 0; i < pass->unit_count; i++)
                for (uint64_t k = 0; pass->adds_grads[i] && k < run_blocks(run, pass->units[i]);
                     k++)
                    for (uint32_t mb = 0; mb < job->micro_batch_count; mb++)
                        for (uint32_t rank = 0; rank < run->world; rank++)
                            run->grads[t][pass->units[i]][k] +=
                                run_added(t, rank, pass->units[i], k, s, p, mb);
        }
}

static inline void run_begin(ranks_run *run, const random_job *r, const plan_set *set)
{
    memset(run, 0, sizeof *run);
    run->r = r;
    run->set = set;
    run->world = r->job.world;
    uint64_t blocks = set->norm_block_begin[r->job.unit_count];
    for (uint32_t rank = 0; rank < run->world; rank++) {
        for (int a = 0; a < TIER_COUNT; a++) {
            uint64_t peak = 0;
            for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
                peak = size_max(peak, set->programs[k].peak_bytes[a]);
            run->cells[rank][a] = calloc(peak / TILE_BLOCK_BYTES + 1, sizeof(uint64_t));
        }
        run->sums[rank] = calloc(blocks, sizeof(uint64_t));
        uint64_t gathered_bytes =
            run->world == 1
                ? blocks * sizeof(double)
                : set->programs[PROGRAM_FIRST].buffers[set->homes.norm_gathered].size_bytes;
        run->gathered[rank] = calloc(gathered_bytes, 1);
    }
    for (uint32_t t = 0; t <= RUN_STEPS_MAX; t++) {
        for (uint32_t u = 0; u < r->job.unit_count; u++) {
            run->masters[t][u] = calloc(run_blocks(run, u), sizeof(uint64_t));
            run->grads[t][u] = calloc(run_blocks(run, u), sizeof(uint64_t));
        }
        if (t > 0)
            run_expect_grads(run, t);
        for (uint32_t u = 0; u < r->job.unit_count; u++)
            for (uint64_t k = 0; k < run_blocks(run, u); k++)
                run->masters[t][u][k] =
                    t == 0 ? run_mix(u + 1, k)
                    : !plan_learns(&r->job, u)
                        ? run->masters[0][u][k]
                        : run_mix(run->masters[t - 1][u][k], run->grads[t][u][k]);
    }
}

static inline void run_end(ranks_run *run)
{
    for (uint32_t rank = 0; rank < run->world; rank++) {
        for (int a = 0; a < TIER_COUNT; a++)
            free(run->cells[rank][a]);
        free(run->sums[rank]);
        free(run->gathered[rank]);
    }
    for (uint32_t t = 0; t <= RUN_STEPS_MAX; t++)
        for (uint32_t u = 0; u < run->r->job.unit_count; u++) {
            free(run->masters[t][u]);
            free(run->grads[t][u]);
        }
}

/* The cells of an operand in the rank's memory. */
static inline uint64_t *run_cells(ranks_run *run, const program *prog, uint32_t rank,
                                  const operand *part)
{
    const buffer *item = &prog->buffers[part->buffer_idx];
    return run->cells[rank][item->arena] +
           (item->offset_bytes + part->offset_bytes) / TILE_BLOCK_BYTES;
}

/* Block `k` of an operand of `elem_bytes` an element; all its cells agree. */
static inline uint64_t run_get(const uint64_t *cells, uint64_t k, uint64_t elem_bytes)
{
    for (uint64_t i = 1; i < elem_bytes; i++)
        assert_true(cells[k * elem_bytes + i] == cells[k * elem_bytes]);
    return cells[k * elem_bytes];
}

static inline void run_put(uint64_t *cells, uint64_t k, uint64_t elem_bytes, uint64_t value)
{
    for (uint64_t i = 0; i < elem_bytes; i++)
        cells[k * elem_bytes + i] = value;
}

static inline uint64_t run_copy_of(uint64_t master)
{
    return run_mix(master, 16);
}

static inline void run_check_params(ranks_run *run, const program *prog, uint32_t rank,
                                    const operand *part)
{
    uint32_t unit = prog->buffers[part->buffer_idx].unit;
    uint64_t bytes = run->r->job.param_bytes;
    const uint64_t *cells = run_cells(run, prog, rank, part);
    assert_int_equal(part->size_bytes, run_blocks(run, unit) * SHARD_ELEMS_STEP * bytes);
    for (uint64_t k = 0; k < run_blocks(run, unit); k++)
        assert_true(run_get(cells, k, bytes) == run_copy_of(run->masters[run->version][unit][k]));
    run->params_read++;
}

static inline void run_compute(ranks_run *run, const program *prog, uint32_t rank, const op *item)
{
    for (uint32_t j = 0; j < item->operand_count; j++) {
        const operand *part = &item->operands[j];
        if (part->role == ROLE_PARAMS0 || part->role == ROLE_PARAMS1)
            run_check_params(run, prog, rank, part);
        if (part->role != ROLE_GRADS0 && part->role != ROLE_GRADS1)
            continue;
        uint32_t unit = prog->buffers[part->buffer_idx].unit;
        bool zeroes = item->fresh_grads & (part->role == ROLE_GRADS0 ? 1 : 2);
        uint64_t *cells = run_cells(run, prog, rank, part);
        assert_int_equal(part->size_bytes, run_blocks(run, unit) * SHARD_ELEMS_STEP * 4);
        for (uint64_t k = 0; k < run_blocks(run, unit); k++)
            run_put(cells, k, 4,
                    (zeroes ? 0 : run_get(cells, k, 4)) + run_added(run->step, rank, unit, k,
                                                                    item->stage, item->pass,
                                                                    item->micro_batch));
    }
}

/* A tile of what was reduced, and of the sum that rests. */
static inline void run_grad_add(ranks_run *run, const program *prog, uint32_t rank, const op *item)
{
    const uint64_t *from = run_cells(run, prog, rank, op_operand(item, ROLE_SOURCE));
    uint64_t *to = run_cells(run, prog, rank, op_operand(item, ROLE_TARGET));
    for (uint64_t k = 0; k < item->elem_count / SHARD_ELEMS_STEP; k++)
        run_put(to, k, 4, run_get(to, k, 4) + run_get(from, k, 4));
    run->added++;
}

static inline void run_close(ranks_run *run, const program *prog, uint32_t rank, const op *item)
{
    const uint64_t *from = run_cells(run, prog, rank, op_operand(item, ROLE_GRADS0));
    uint64_t *to = run_cells(run, prog, rank, op_operand(item, ROLE_TARGET));
    const operand *sums = op_operand(item, ROLE_NORM_SUMS);
    for (uint64_t k = 0; k < item->elem_count / SHARD_ELEMS_STEP; k++) {
        uint64_t value = run_get(from, k, 4);
        run_put(to, k, run->r->job.grad_bytes, value);
        run->sums[rank][sums->offset_bytes / sizeof(double) + k] = run_mix(value, 2);
        run->closed++;
    }
}

static inline uint64_t run_master_bytes(const plan_job *job)
{
    return tile_master_is_split(job->state_streams) ? 2 : 4;
}

static inline void run_tile(ranks_run *run, const program *prog, uint32_t rank, const op *item)
{
    const plan_job *job = &run->r->job;
    uint64_t *state = run_cells(run, prog, rank, op_operand(item, ROLE_STATE));
    const operand *source = op_operand(item, ROLE_SOURCE);
    uint64_t *copy = run_cells(run, prog, rank, op_operand(item, ROLE_TARGET));
    bool is_sharded = plan_is_sharded(job, STATE_OPTIMIZER, item->unit);
    uint64_t first = (is_sharded ? rank * run_own_blocks(run, item->unit) : 0) +
                     item->elem_begin / SHARD_ELEMS_STEP;
    uint64_t width = run_master_bytes(job);
    bool is_split = width == 2 && plan_learns(job, item->unit);
    width = plan_learns(job, item->unit) ? width : 4;
    for (uint64_t k = 0; k < item->elem_count / SHARD_ELEMS_STEP; k++) {
        uint64_t value = item->kind == OP_INIT ? run->masters[0][item->unit][first + k]
                                               : run_get(state, k, width);
        if (is_split && item->kind != OP_INIT)
            value ^= run_get(copy, k, job->param_bytes);
        if (item->kind == OP_UPDATE)
            value = run_mix(value, run_get(run_cells(run, prog, rank, source), k, job->grad_bytes));
        if (item->kind != OP_WORKING_COPY)
            run_put(state, k, width, is_split ? value ^ run_copy_of(value) : value);
        run_put(copy, k, job->param_bytes, run_copy_of(value));
    }
}

static inline void run_gather(ranks_run *run, const program *prog, const op *item)
{
    const operand *source = op_operand(item, ROLE_SOURCE), *target = op_operand(item, ROLE_TARGET);
    uint64_t own = source->size_bytes / TILE_BLOCK_BYTES;
    assert_int_equal(target->size_bytes, run->world * source->size_bytes);
    assert_int_equal(item->demand.comm_bytes, (run->world - 1) * source->size_bytes);
    bool is_norm = source->buffer_idx == run->set->homes.norm_sums;
    uint64_t sums = source->size_bytes / sizeof(double);
    for (uint32_t to = 0; to < run->world; to++)
        for (uint32_t from = 0; from < run->world; from++)
            if (is_norm)
                memcpy(run->gathered[to] + target->offset_bytes / 8 + from * sums,
                       run->sums[from] + source->offset_bytes / 8, sums * 8);
            else
                memmove(run_cells(run, prog, to, target) + from * own,
                        run_cells(run, prog, from, source), own * sizeof(uint64_t));
}

static inline void run_reduce(ranks_run *run, const program *prog, const op *item)
{
    const operand *source = op_operand(item, ROLE_SOURCE), *target = op_operand(item, ROLE_TARGET);
    uint64_t own = target->size_bytes / TILE_BLOCK_BYTES;
    assert_int_equal(source->size_bytes, run->world * target->size_bytes);
    for (uint32_t to = 0; to < run->world; to++)
        for (uint64_t i = 0; i < own; i++) {
            uint64_t sum = 0;
            for (uint32_t from = 0; from < run->world; from++)
                sum += run_cells(run, prog, from, source)[to * own + i];
            run_cells(run, prog, to, target)[i] = sum;
        }
}

/* Every rank knows every block's sum of this step, of the units of the part that the op takes. */
static inline void run_norm(ranks_run *run, uint32_t rank, const op *item)
{
    const plan_set *set = run->set;
    if (run->world == 1) {
        for (uint32_t u = 0; u < run->r->job.unit_count; u++)
            for (uint64_t k = 0; plan_learns(&run->r->job, u) && k < run_blocks(run, u); k++)
                assert_true(run->sums[0][set->norm_block_begin[u] + k] ==
                            run_mix(run->grads[run->step][u][k], 2));
        run->norm_parts++;
        run->norms++;
        return;
    }
    uint32_t part = item->tile == PROGRAM_NONE ? 0 : item->tile;
    assert_true(part < set->norm_part_count);
    assert_int_equal(item->kind == OP_NORM, part + 1 == set->norm_part_count);
    const uint64_t *begin = set->norm_block_begin;
    uint32_t first = set->norm_part_begin[part], end = set->norm_part_begin[part + 1];
    uint64_t blocks = begin[end] - begin[first];
    const operand *sums = op_operand(item, ROLE_NORM_SUMS);
    assert_int_equal(sums->buffer_idx, set->homes.norm_gathered);
    assert_int_equal(op_operand(item, ROLE_TARGET)->buffer_idx, set->homes.norm_ordered);
    assert_true(op_operand(item, ROLE_TARGET)->size_bytes == run->world * blocks * sizeof(double));
    assert_true(sums->size_bytes == run->world * blocks * sizeof(double));
    for (uint32_t u = first; u < end; u++)
        for (uint64_t k = 0; plan_learns(&run->r->job, u) && k < run_blocks(run, u); k++) {
            uint64_t from = k / run_own_blocks(run, u), own = k % run_own_blocks(run, u);
            uint64_t at = from * blocks + (begin[u] - begin[first]) + own;
            assert_true(run->gathered[rank][sums->offset_bytes / sizeof(double) + at] ==
                        run_mix(run->grads[run->step][u][k], 2));
        }
    run->norm_parts++;
    run->norms += item->kind == OP_NORM;
}

static inline void run_copy(ranks_run *run, const program *prog, uint32_t rank, const op *item)
{
    const operand *source = op_operand(item, ROLE_SOURCE), *target = op_operand(item, ROLE_TARGET);
    memcpy(run_cells(run, prog, rank, target), run_cells(run, prog, rank, source),
           source->size_bytes / TILE_BLOCK_BYTES * sizeof(uint64_t));
}

/* Gives other values to memory that a program may not rely on: all but homes and buffers that are
 * carried in. */
static inline void run_forget_transients(ranks_run *run, const program *prog)
{
    for (int a = TIER_DEVICE; a < TIER_NVME; a++) {
        uint64_t cells = prog->peak_bytes[a] / TILE_BLOCK_BYTES;
        bool *stays = calloc(cells + 1, sizeof *stays);
        assert_non_null(stays);
        for (uint64_t i = 0; i < prog->buffer_count; i++) {
            const buffer *at = &prog->buffers[i];
            if (at->arena == a && (at->is_home || (at->carried & CARRIED_IN)))
                memset(stays + at->offset_bytes / TILE_BLOCK_BYTES, 1,
                       at->size_bytes / TILE_BLOCK_BYTES);
        }
        for (uint32_t rank = 0; rank < run->world; rank++)
            for (uint64_t c = 0; c < cells; c++)
                if (!stays[c])
                    run->cells[rank][a][c] = 0xbad;
        free(stays);
    }
}

/* The program on all ranks, op by op in issue order. `step` and `version`: of the params it must
 * find. */
static inline void run_program(ranks_run *run, enum program_kind kind, uint32_t step,
                               uint32_t version)
{
    const program *prog = &run->set->programs[kind];
    run->step = step;
    run->version = version;
    run_forget_transients(run, prog);
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (item->kind == OP_ALL_GATHER)
            run_gather(run, prog, item);
        if (item->kind == OP_REDUCE_SCATTER)
            run_reduce(run, prog, item);
        for (uint32_t rank = 0; rank < run->world; rank++) {
            if (item->kind <= OP_D2H)
                run_copy(run, prog, rank, item);
            else if (item->kind >= OP_FORWARD && item->kind <= OP_BACKWARD)
                run_compute(run, prog, rank, item);
            else if (item->kind == OP_GRAD_ADD)
                run_grad_add(run, prog, rank, item);
            else if (item->kind == OP_GRAD_CLOSE)
                run_close(run, prog, rank, item);
            else if (item->kind >= OP_UPDATE && item->kind <= OP_WORKING_COPY)
                run_tile(run, prog, rank, item);
            else if (item->kind == OP_NORM || item->kind == OP_NORM_PART)
                run_norm(run, rank, item);
        }
    }
}

/* ---- a job's life ---------------------------------------------------------------------------- */

/* Draws a job of up to three ranks whose updates wait for a slow drive in the next forward. */
static inline void run_draw_seam(random_job *r, uint64_t seed)
{
    fixture_ranks(r, seed, 1 + seed % 3, (uint32_t)(seed / 3 % 4));
    if (seed % 4 == 0)
        fixture_split(r);
    if (seed % 5 == 0)
        fixture_freeze(r);
    r->job.update = UPDATE_IN_NEXT_FORWARD;
    r->job.machine.drive_read_bytes_per_second = 200e6;
}

/* Room for every draw. */
static inline void run_make_roomy(random_job *r)
{
    for (int a = 0; a < TIER_COUNT; a++)
        r->job.budget_bytes[a] = a == TIER_NVME ? 2048 * MIB : 192 * MIB;
}

static inline void run_compile(const random_job *r, uint64_t seed, plan_set *set)
{
    int rc = plan_compile(&r->job, set);
    if (rc != 0)
        print_error("seed %llu: %s\n", (unsigned long long)seed, err_text());
    assert_int_equal(rc, 0);
}

/* A step ends with updates pending, for the next one or a flush. */
static inline bool run_leaves_update(const plan_job *job)
{
    return job->update == UPDATE_IN_NEXT_FORWARD || job->update == UPDATE_DELAYED_ONE_STEP;
}

static inline void run_keep(const program *prog, uint32_t buffer_idx, bool *stays)
{
    const buffer *at = &prog->buffers[buffer_idx];
    assert_int_equal(at->arena, TIER_NVME);
    memset(stays + at->offset_bytes / TILE_BLOCK_BYTES, 1, at->size_bytes / TILE_BLOCK_BYTES);
}

/* The slab's places of a unit's state, of a split master's high half, and of frozen params. */
static inline void run_keep_unit(const ranks_run *run, uint32_t u, bool *stays)
{
    const plan_job *job = &run->r->job;
    const plan_homes *homes = &run->set->homes;
    const program *prog = &run->set->programs[PROGRAM_LOAD];
    if (!plan_learns(job, u)) {
        run_keep(prog, plan_frozen_place(job, homes, u), stays);
        return;
    }
    bool is_saved = homes->saves[u] != PROGRAM_NONE;
    run_keep(prog, is_saved ? homes->saves[u] : homes->optimizer[u], stays);
    if (homes->highs[u] != PROGRAM_NONE)
        run_keep(prog, plan_high_place(homes, u), stays);
}

/* Memory as a new process finds it: committed places of the slab keep their values, all other cells
 * get other values. */
static inline void run_forget_memory(ranks_run *run)
{
    for (int a = 0; a < TIER_COUNT; a++) {
        uint64_t peak = 0;
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
            peak = size_max(peak, run->set->programs[k].peak_bytes[a]);
        bool *stays = calloc(peak / TILE_BLOCK_BYTES + 1, sizeof *stays);
        assert_non_null(stays);
        for (uint32_t u = 0; a == TIER_NVME && u < run->r->job.unit_count; u++)
            run_keep_unit(run, u, stays);
        for (uint32_t rank = 0; rank < run->world; rank++)
            for (uint64_t c = 0; c < peak / TILE_BLOCK_BYTES; c++)
                if (!stays[c])
                    run->cells[rank][a][c] = 0xdead;
        free(stays);
    }
}

/* Three steps and their updates, evaluations, a new process that goes on where it can, and the
 * fourth step. 1 where the job was loaded again. */
static inline uint64_t run_life(ranks_run *run, const random_job *r, const plan_set *set)
{
    run_begin(run, r, set);
    bool late = r->job.update == UPDATE_DELAYED_ONE_STEP;
    run_program(run, PROGRAM_INIT, 0, 0);
    run_program(run, PROGRAM_EVAL, 0, 0);
    run_program(run, PROGRAM_FIRST, 1, 0);
    run_program(run, PROGRAM_STEADY, 2, late ? 0 : 1);
    run_program(run, PROGRAM_STEADY, 3, late ? 1 : 2);
    run_program(run, PROGRAM_FLUSH, 3, 3);
    run_program(run, PROGRAM_EVAL, 3, 3);
    if (r->job.needs_save_places) {
        run_program(run, PROGRAM_SAVE, 3, 3);
        run_forget_memory(run);
        run_program(run, PROGRAM_LOAD, 3, 3);
        run_program(run, PROGRAM_EVAL, 3, 3);
    }
    run_program(run, PROGRAM_FIRST, 4, 3);
    return r->job.needs_save_places;
}

#endif
