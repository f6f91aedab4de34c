/* Ops for the state that outlives the process: params of frozen units, loads, saves, the commit.
 *
 * A frozen unit has no optimizer state. Its params are made on the host and go to their place on
 * the slab (plan_frozen_place) and home; a later process brings them home from there.
 *
 * The high half of a split master is the working copy. Nothing makes it anew, so it is brought
 * back as state is (plan_high_place), and saved where its home is memory. */
#include <assert.h>

#include "base/tile.h"
#include "plan/emit/emit_internal.h"

/* One tile of a frozen unit's new params: to its place on the slab, and to `t->params_home`. */
static void init_frozen_tile(plani_builder *b, const struct plani_tile *t, uint32_t place)
{
    plani_range at_home = plani_tile_params(b, t, t->params_home), made = at_home;
    uint64_t values_bytes = tile_bytes(t->count, 1); /* fp32, before they are rounded */
    uint32_t values =
        plani_transient(b, t->where, values_bytes, TILE_RESIDUE_STATE, STATE_KIND_COUNT, t->unit);
    if (b->error >= 0 && b->buffers[at_home.buffer_idx].base.arena != t->where)
        made = plani_tile_transient(b, t, t->where, at_home.size_bytes, STATE_PARAMS);
    uint32_t idx = plani_tile_op(b, OP_INIT, LANE_UPDATE, t);
    if (b->error < 0)
        return;
    plani_use(b, idx, (plani_range){values, 0, values_bytes}, ROLE_STATE, ACCESS_WRITE);
    plani_use(b, idx, made, ROLE_TARGET, ACCESS_WRITE);
    plani_work_demand(b, idx, t);
    if (place != PROGRAM_NONE && place != t->params_home)
        plani_tile_transfer(b, t, made, plani_tile_params(b, t, place), STATE_PARAMS);
    if (made.buffer_idx != t->params_home)
        plani_tile_transfer(b, t, made, at_home, STATE_PARAMS);
}

void plani_frozen_work(plani_builder *b, uint32_t unit, enum plani_tile_work work)
{
    uint64_t elems = plan_rest_elems(b->job, STATE_OPTIMIZER, unit);
    uint32_t place = plan_frozen_place(b->job, &b->set->homes, unit);
    bool is_home = place == b->set->homes.params[unit];
    if (work == PLANI_WORK_UPDATE ||
        (work == PLANI_WORK_LOAD && (place == PROGRAM_NONE || is_home)))
        return;
    struct plani_new_params made = plani_begin_params(b, unit, PROGRAM_NONE);
    for (uint64_t k = 0; k < plani_tiles_of(b, elems) && b->error >= 0; k++) {
        struct plani_tile t = plani_tile_at(b, unit, elems, k);
        t.where = TIER_HOST;
        t.params_home = made.tiles_to;
        t.work = work;
        if (work == PLANI_WORK_INIT)
            init_frozen_tile(b, &t, place);
        else
            plani_tile_transfer(b, &t, plani_tile_params(b, &t, place),
                                plani_tile_params(b, &t, t.params_home), STATE_PARAMS);
    }
    plani_finish_params(b, &made);
}

/* Brings the high halves of a tile home and to where the tile's params go. */
static void load_high(plani_builder *b, const struct plani_tile *t, uint32_t place)
{
    uint32_t from = place;
    if (t->high != PROGRAM_NONE && t->high != place) {
        plani_tile_transfer(b, t, plani_tile_params(b, t, place), plani_tile_params(b, t, t->high),
                            STATE_PARAMS);
        from = t->high;
    }
    if (t->params_home != from && t->params_home != t->high)
        plani_tile_transfer(b, t, plani_tile_params(b, t, from),
                            plani_tile_params(b, t, t->params_home), STATE_PARAMS);
}

void plani_load_split(plani_builder *b, uint32_t unit)
{
    const plan_homes *homes = &b->set->homes;
    uint64_t elems = plan_rest_elems(b->job, STATE_OPTIMIZER, unit);
    uint32_t place = plan_high_place(homes, unit);
    bool loads_state = homes->saves[unit] != PROGRAM_NONE && homes->optimizer[unit] != PROGRAM_NONE;
    if (place == PROGRAM_NONE || b->buffers[place].base.arena != TIER_NVME)
        return;
    struct plani_new_params made = plani_begin_params(b, unit, PROGRAM_NONE);
    for (uint64_t k = 0; k < plani_tiles_of(b, elems) && b->error >= 0; k++) {
        struct plani_tile t = plani_tile_at(b, unit, elems, k);
        t.params_home = made.tiles_to;
        t.high = made.high;
        t.work = PLANI_WORK_LOAD;
        if (loads_state)
            plani_tile_transfer(b, &t, plani_tile_state(b, &t, homes->saves[unit]),
                                plani_tile_state(b, &t, homes->optimizer[unit]), STATE_OPTIMIZER);
        load_high(b, &t, place);
    }
    plani_finish_params(b, &made);
}

bool plani_is_durable_write(const plani_builder *b, const op *item)
{
    if (item->kind != OP_WRITE)
        return false;
    const operand *target = op_operand(item, ROLE_TARGET);
    return item->state_kind == STATE_OPTIMIZER ||
           (target && b->buffers[target->buffer_idx].base.is_committed);
}

void plani_save_unit(plani_builder *b, uint32_t unit)
{
    const plan_homes *homes = &b->set->homes;
    uint32_t home = homes->optimizer[unit], save = homes->saves[unit];
    bool saves_state = save != PROGRAM_NONE && home != PROGRAM_NONE; /* a frozen unit has no home */
    bool saves_high = homes->highs[unit] != PROGRAM_NONE && homes->high_saves[unit] != PROGRAM_NONE;
    if (!saves_state && !saves_high)
        return;
    uint64_t elems = plan_rest_elems(b->job, STATE_OPTIMIZER, unit);
    for (uint64_t k = 0; k < plani_tiles_of(b, elems) && b->error >= 0; k++) {
        struct plani_tile t = plani_tile_at(b, unit, elems, k);
        if (saves_state)
            plani_tile_transfer(b, &t, plani_tile_state(b, &t, home), plani_tile_state(b, &t, save),
                                STATE_OPTIMIZER);
        if (saves_high)
            plani_tile_transfer(b, &t, plani_tile_params(b, &t, homes->highs[unit]),
                                plani_tile_params(b, &t, homes->high_saves[unit]), STATE_PARAMS);
    }
}

void plani_commit(plani_builder *b)
{
    assert(b->error < 0 || b->commit_op == PROGRAM_NONE);
    uint64_t before = b->op_count;
    uint32_t idx = plani_op(b, OP_COMMIT, LANE_COMMIT);
    if (b->error < 0)
        return;
    b->ops[idx].demand.wait_seconds = b->job->machine.sync_seconds;
    for (uint64_t i = 0; i < before; i++)
        if (plani_is_durable_write(b, &b->ops[i]))
            plani_depend(b, idx, (uint32_t)i);
    b->commit_op = idx;
}
