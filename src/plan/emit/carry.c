/* Tiles that a step carries to the next one: the first of the update, in host memory.
 *
 *   backward of step t     read tile 0, tile 1, ...      closed gradients of the same tiles
 *                             |                             |  (they never go home)
 *   carried region      [state 0][gradient 0][state 1][gradient 1] ...
 *                             |
 *   forward of step t+1    update tile 0, tile 1, ... at once, then write the state home
 *
 * A step with update in_next_forward begins with updates, and computing waits for the first ones.
 * Reading does not depend on the norm, so it moves before it, over the seam between the programs.
 *
 * The region follows the host's homes and lies at the same offsets in every program of the set:
 *
 *   first   fills it
 *   steady  uses it first, and fills it later
 *   flush   uses it
 *   save    does not touch it, where commits are one step older: then it may run before the update.
 *           Else it runs after a flush
 *   init, load, eval and such a save run while nothing is carried: to them it is ordinary memory
 *
 * Its bytes are no home. Within a step other transients use them where their uses end before the
 * first op that fills the region (reserve.c). Nothing writes an optimizer tile at home between its
 * read and its update, so what was read is what the update would read (program_check). If a step's
 * update is skipped, the next program is another first one, which fills the region anew. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "plan/emit/emit_internal.h"

/* Adds a piece at the end of the region, if that does not go beyond `most`. */
static bool add_piece(plan_set *set, plan_carried piece, uint64_t residue, uint64_t *end,
                      uint64_t most)
{
    piece.offset_bytes = plani_align_offset(*end, residue);
    piece.size_bytes = size_round_up(piece.size_bytes, TILE_BLOCK_BYTES);
    if (piece.offset_bytes + piece.size_bytes > most)
        return false;
    *end = piece.offset_bytes + piece.size_bytes;
    set->carried[set->carried_count++] = piece;
    return true;
}

/* Adds the pieces of one tile that would otherwise come from nvme: all of them or none. False: they
 * do not fit. */
static bool add_tile(const plan_job *job, plan_set *set, const plani_layout *layout, uint32_t unit,
                     uint64_t tile, uint64_t most)
{
    uint64_t elems = plan_rest_elems(job, STATE_OPTIMIZER, unit);
    uint64_t count = tile_elems_at(elems, set->tile_elems, tile), end = set->carried_end;
    uint32_t before = set->carried_count, copies = set->homes.copies[unit];
    uint32_t streams = plan_streams(job, unit);
    uint64_t state_bytes = tile_bytes(count, streams);
    uint64_t copied = copies == PROGRAM_NONE ? 0 : layout->buffers[copies].size_bytes;
    bool has_copy = tile * tile_pitch(set->tile_elems, streams) + state_bytes <= copied;
    plan_carried piece = {.unit = unit, .tile = (uint32_t)tile};
    bool fits = true;
    if (job->homes[STATE_OPTIMIZER][unit] == TIER_NVME && !has_copy) {
        piece.kind = STATE_OPTIMIZER;
        piece.size_bytes = state_bytes;
        fits = add_piece(set, piece, TILE_RESIDUE_STATE, &end, most);
    }
    if (fits && job->homes[STATE_GRADS][unit] == TIER_NVME) {
        piece.kind = STATE_GRADS;
        piece.size_bytes = count * job->grad_bytes;
        fits = add_piece(set, piece, TILE_RESIDUE_GRADS, &end, most);
    }
    if (fits)
        set->carried_end = end;
    else
        set->carried_count = before;
    return fits;
}

/* True if the unit's update takes something from nvme and runs on the host. */
static bool may_carry_unit(const plan_job *job, uint32_t unit)
{
    return plan_learns(job, unit) && job->homes[STATE_OPTIMIZER][unit] != TIER_DEVICE &&
           (job->homes[STATE_OPTIMIZER][unit] == TIER_NVME ||
            job->homes[STATE_GRADS][unit] == TIER_NVME);
}

bool plani_may_carry(const plan_job *job)
{
    bool may = false;
    for (uint32_t u = 0; u < job->unit_count && !may; u++)
        may = may_carry_unit(job, u);
    return may && job->update == UPDATE_IN_NEXT_FORWARD && !job->only_eval;
}

int plani_carry_make(const plan_job *job, uint64_t bytes, const plani_layout *layout, plan_set *set)
{
    uint64_t capacity = 0;
    set->carried_begin = set->carried_end =
        size_round_up(layout->end_bytes[TIER_HOST], TILE_BLOCK_BYTES);
    if (bytes == 0 || !plani_may_carry(job))
        return 0;
    for (uint32_t u = 0; u < job->unit_count; u++)
        if (may_carry_unit(job, u))
            capacity += 2 * tile_count(plan_rest_elems(job, STATE_OPTIMIZER, u), set->tile_elems);
    set->carried = mem_alloc(capacity, sizeof *set->carried, "plan carried");
    if (!set->carried)
        return -ENOMEM;
    for (uint32_t u = 0; u < job->unit_count; u++) {
        uint64_t elems = plan_rest_elems(job, STATE_OPTIMIZER, u);
        for (uint64_t k = 0; may_carry_unit(job, u) && k < tile_count(elems, set->tile_elems); k++)
            if (!add_tile(job, set, layout, u, k, set->carried_begin + bytes))
                return 0;
    }
    return 0;
}

/* ---- in a program --------------------------------------------------------------------------- */

/* Makes a buffer for each piece, and returns the first one. */
static uint32_t make_buffers(plani_builder *b, uint8_t carried)
{
    uint32_t first = PROGRAM_NONE;
    for (uint32_t i = 0; i < b->set->carried_count && b->error >= 0; i++) {
        const plan_carried *piece = &b->set->carried[i];
        uint64_t residue = piece->kind == STATE_GRADS ? TILE_RESIDUE_GRADS : TILE_RESIDUE_STATE;
        uint32_t idx = plani_transient(b, TIER_HOST, piece->size_bytes, residue,
                                       (enum state_kind)piece->kind, piece->unit);
        if (b->error < 0)
            return PROGRAM_NONE;
        buffer *made = &b->buffers[idx].base;
        made->carried = carried;
        made->tile = piece->tile;
        made->offset_bytes = piece->offset_bytes;
        first = i == 0 ? idx : first;
    }
    return first;
}

void plani_carry_begin(plani_builder *b, enum program_kind kind)
{
    b->carried_in = b->carried_out = PROGRAM_NONE;
    if (kind == PROGRAM_STEADY || kind == PROGRAM_FLUSH)
        b->carried_in = make_buffers(b, CARRIED_IN);
    if (kind == PROGRAM_STEADY || kind == PROGRAM_FIRST)
        b->carried_out = make_buffers(b, CARRIED_OUT);
    if (kind == PROGRAM_SAVE && b->set->commit == PLAN_COMMIT_FIRST)
        make_buffers(b, CARRIED_THROUGH);
}

/* The order of the list: by unit, tile and kind. */
static bool is_before(const plan_carried *item, uint32_t unit, uint32_t tile, enum state_kind kind)
{
    if (item->unit != unit)
        return item->unit < unit;
    if (item->tile != tile)
        return item->tile < tile;
    return item->kind == STATE_OPTIMIZER && kind == STATE_GRADS;
}

plani_range plani_carried(const plani_builder *b, uint32_t first, const struct plani_tile *t,
                          enum state_kind kind, uint64_t size_bytes)
{
    uint32_t low = 0, high = b->set->carried_count;
    if (b->error < 0 || first == PROGRAM_NONE)
        return (plani_range){0};
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (is_before(&b->set->carried[middle], t->unit, t->tile, kind))
            low = middle + 1;
        else
            high = middle;
    }
    const plan_carried *found = &b->set->carried[low];
    if (low == b->set->carried_count || found->unit != t->unit || found->tile != t->tile ||
        found->kind != kind)
        return (plani_range){0};
    return (plani_range){first + low, 0, size_bytes};
}

void plani_carry_state(plani_builder *b)
{
    if (b->error < 0 || b->carried_out == PROGRAM_NONE)
        return;
    for (uint32_t i = 0; i < b->set->carried_count && b->error >= 0; i++) {
        const plan_carried *piece = &b->set->carried[i];
        if (piece->kind != STATE_OPTIMIZER)
            continue;
        uint64_t elems = plan_rest_elems(b->job, STATE_OPTIMIZER, piece->unit);
        struct plani_tile t = plani_tile_at(b, piece->unit, elems, piece->tile);
        plani_range at_home = plani_tile_state(b, &t, b->set->homes.optimizer[piece->unit]);
        plani_range target = {b->carried_out + i, 0, at_home.size_bytes};
        plani_tile_transfer(b, &t, at_home, target, STATE_OPTIMIZER);
    }
}
