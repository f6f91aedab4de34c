/* The update of a unit with matrices (Muon), as ops. One rank, state on nvme:
 *
 *   read T0, T1 ..            the state of all tiles, and their gradients
 *   direction T0, T1 ..       -> D [unit] fp32, beside the work
 *   orthogonalize D           matrix by matrix, in place
 *   update T0, D .. T1, D ..  and the results go home, as those of any tile
 *
 * With a sharded state D begins as the own shard, which is brought to the device, gathered there,
 * and brought back. All ranks have the same program, so an update names the whole D, and the run
 * finds the tile's part in it.
 *
 * The tiles stay where the work runs from their direction to their update, so that each is read
 * once. Where that is the host, a unit's whole state passes through it at once. */
#include <assert.h>
#include <errno.h>

#include "base/mem.h"
#include "plan/emit/emit_internal.h"

/* A tile between the two halves of its update. */
struct plani_begun_tile {
    struct plani_tile tile;
    struct plani_tile_inputs inputs;
};

/* One core's products of fp32, flops in a second: a guess for a machine with a GPU, where the
 * update's cores were not measured. */
static const double core_flops_per_second = 50e9;

static uint32_t direction_buffer(plani_builder *b, uint32_t unit, enum tier arena, uint64_t elems)
{
    return plani_transient(b, arena, elems * sizeof(float), PLANI_ANY, STATE_KIND_COUNT, unit);
}

static void keep_tile(plani_builder *b, const struct plani_begun_tile *tile)
{
    if (b->begun_count == b->begun_capacity) {
        uint32_t wanted = b->begun_capacity ? 2 * b->begun_capacity : 16;
        void *bigger = mem_resize(b->begun_tiles, wanted, sizeof *b->begun_tiles, "plan tiles");
        if (!bigger) {
            b->error = -ENOMEM;
            return;
        }
        b->begun_tiles = bigger;
        b->begun_capacity = wanted;
    }
    b->begun_tiles[b->begun_count++] = *tile;
}

static void emit_direction(plani_builder *b, const struct plani_begun_tile *begun)
{
    const struct plani_tile *t = &begun->tile;
    plani_range target = plani_elems_of(b->directions, t->begin, t->count, sizeof(float));
    uint32_t idx = plani_tile_op(b, OP_DIRECTION, LANE_UPDATE, t);
    plani_use(b, idx, begun->inputs.state, ROLE_STATE, ACCESS_READ);
    plani_use(b, idx, begun->inputs.grads, ROLE_SOURCE, ACCESS_READ);
    plani_use(b, idx, target, ROLE_TARGET, ACCESS_WRITE);
    plani_depend(b, idx, t->after);
    if (b->error < 0)
        return;
    op_demand *demand = &b->ops[idx].demand;
    demand->dram_bytes = t->count * (2 * sizeof(float) + b->job->grad_bytes);
    demand->core_seconds = (double)t->count * plani_arithmetic(b, 1);
    plani_keep_cores(b, idx);
}

/* Gathers the directions of all ranks' shards. Returns the buffer of the whole unit, in the
 * arena. */
static uint32_t gather_directions(plani_builder *b, uint32_t unit, enum tier arena)
{
    uint64_t own = plani_shard_elems(b->job, unit), all = plani_whole_elems(b->job, unit);
    bool is_far = arena != TIER_DEVICE;
    uint32_t shard = is_far ? direction_buffer(b, unit, TIER_DEVICE, own) : b->directions;
    if (is_far)
        plani_transfer(b, plani_whole(b, b->directions), plani_whole(b, shard), STATE_KIND_COUNT,
                       unit, PROGRAM_NONE, PROGRAM_NONE);
    uint32_t whole = direction_buffer(b, unit, TIER_DEVICE, all);
    plani_all_gather(b, plani_elems_of(shard, 0, own, sizeof(float)),
                     plani_elems_of(whole, 0, all, sizeof(float)), STATE_OPTIMIZER, unit);
    if (!is_far)
        return whole;
    uint32_t back = direction_buffer(b, unit, arena, all);
    plani_transfer(b, plani_whole(b, whole), plani_whole(b, back), STATE_KIND_COUNT, unit,
                   PROGRAM_NONE, PROGRAM_NONE);
    return back;
}

static void emit_orthogonalize(plani_builder *b, uint32_t unit, enum tier arena, uint32_t whole)
{
    const plan_job *job = b->job;
    uint32_t scratch =
        plani_transient(b, arena, job->matrix_scratch_bytes, PLANI_ANY, STATE_KIND_COUNT, unit);
    uint32_t idx = plani_op(b, OP_ORTHOGONALIZE, LANE_UPDATE);
    plani_use(b, idx, plani_whole(b, whole), ROLE_TARGET, ACCESS_UPDATE);
    plani_use(b, idx, plani_whole(b, scratch), ROLE_WORKSPACE, ACCESS_WRITE);
    if (b->error < 0)
        return;
    op *item = &b->ops[idx];
    item->unit = unit;
    double rate = core_flops_per_second;
    if (job->machine.device_is_cpu)
        rate = job->machine.device_flops_per_second / job->machine.core_count;
    item->demand.core_seconds = job->matrix_flops[unit] / rate;
}

/* All tiles have begun: orthogonalizes their directions, and finishes them. */
static void finish_unit(plani_builder *b, uint32_t unit, enum tier arena)
{
    bool is_sharded = plan_is_sharded(b->job, STATE_OPTIMIZER, unit);
    uint32_t whole = is_sharded ? gather_directions(b, unit, arena) : b->directions;
    emit_orthogonalize(b, unit, arena, whole);
    for (uint32_t i = 0; i < b->begun_count && b->error >= 0; i++) {
        const struct plani_begun_tile *begun = &b->begun_tiles[i];
        plani_tile_finish(b, &begun->tile, &begun->inputs, plani_whole(b, whole));
    }
}

void plani_matrix_work(plani_builder *b, const struct plani_tile *t)
{
    uint64_t elems = plan_rest_elems(b->job, STATE_OPTIMIZER, t->unit);
    if (t->tile == 0) {
        b->begun_count = 0;
        b->directions = direction_buffer(b, t->unit, t->where, elems);
    }
    struct plani_begun_tile begun = {.tile = *t, .inputs = plani_tile_inputs(b, t)};
    emit_direction(b, &begun);
    if (b->error >= 0)
        keep_tile(b, &begun);
    if (b->error >= 0 && t->begin + t->count == elems)
        finish_unit(b, t->unit, t->where);
}
