/* Where the optimizer state of a setup's programs, and the params of frozen units, lie on the slab:
 * one place entry for each tile, in the order of the layout, and the entry's index in a
 * manifest. */
#include <errno.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "engine/engine_internal.h"

/* The slab buffer that holds a unit's optimizer state, or to which it is saved. For a frozen unit:
 * the buffer of its params. */
static const buffer *state_place(const struct setup *setup, uint32_t unit)
{
    const plan_homes *homes = &setup->set.homes;
    if (!plan_learns(&setup->plan, unit)) {
        uint32_t place = plan_frozen_place(&setup->plan, homes, unit);
        return place == PROGRAM_NONE ? NULL : &setup->set.programs[PROGRAM_LOAD].buffers[place];
    }
    uint32_t idx = homes->saves[unit] != PROGRAM_NONE ? homes->saves[unit] : homes->optimizer[unit];
    return idx == PROGRAM_NONE ? NULL : &setup->set.programs[PROGRAM_LOAD].buffers[idx];
}

/* The slab buffer of the high halves, if the unit's master is split; else NULL. */
static const buffer *high_place(const struct setup *setup, uint32_t unit)
{
    uint32_t idx = plan_high_place(&setup->set.homes, unit);
    return idx == PROGRAM_NONE ? NULL : &setup->set.programs[PROGRAM_LOAD].buffers[idx];
}

static bool is_on_slab(const buffer *place)
{
    return place && place->arena == TIER_NVME;
}

static uint64_t tiles_of(const struct setup *setup, uint32_t unit)
{
    return tile_count(plan_rest_elems(&setup->plan, STATE_OPTIMIZER, unit), setup->set.tile_elems);
}

static uint64_t count_extents(const struct setup *setup)
{
    uint64_t count = 0;
    for (uint32_t u = 0; u < setup->net->unit_count; u++) {
        count += is_on_slab(state_place(setup, u)) ? tiles_of(setup, u) : 0;
        count += is_on_slab(high_place(setup, u)) ? tiles_of(setup, u) : 0;
    }
    return count;
}

bool engine_is_partitioned(const struct setup *setup)
{
    return plan_is_sharded(&setup->plan, STATE_OPTIMIZER, 0);
}

uint64_t engine_extent_in_manifest(const struct setup *setup, uint32_t rank, uint64_t idx,
                                   const place_entry *entry)
{
    uint64_t tiles = tiles_of(setup, entry->unit);
    bool has_high = is_on_slab(high_place(setup, entry->unit)), is_params = entry->streams == 0;
    bool is_second = has_high && is_on_slab(state_place(setup, entry->unit));
    uint64_t each = is_second ? 2 : 1;
    /* index of the unit's first extent */
    uint64_t first = idx - entry->tile - (is_second && is_params ? tiles : 0);
    if (engine_is_partitioned(setup))
        first = setup->ranks.world * first + rank * tiles * each;
    return first + each * entry->tile + (is_second && !is_params);
}

uint32_t engine_param_width(const struct setup *setup, const place_entry *entry)
{
    return entry->streams ? 0 : setup->plan.param_bytes;
}

/* Lists all tiles of a unit's state (streams > 0) or params (streams 0), at the layout's places. */
static uint64_t list_tiles(const struct setup *setup, uint32_t unit, const buffer *home,
                           uint32_t twin_idx, uint32_t streams, place_entry *entries)
{
    if (!is_on_slab(home))
        return 0;
    uint64_t second = twin_idx == PROGRAM_NONE
                          ? home->offset_bytes
                          : setup->set.programs[PROGRAM_LOAD].buffers[twin_idx].offset_bytes;
    uint64_t elems = plan_rest_elems(&setup->plan, STATE_OPTIMIZER, unit);
    uint64_t tile_elems = setup->set.tile_elems;
    uint64_t count = tile_count(elems, tile_elems), width = setup->plan.param_bytes;
    uint64_t pitch = streams ? tile_pitch(tile_elems, streams) : tile_elems * width;
    for (uint64_t k = 0; k < count; k++) {
        uint64_t held = tile_elems_at(elems, tile_elems, k), within = k * pitch;
        entries[k] = (place_entry){
            .unit = unit,
            .tile = (uint32_t)k,
            .elem_begin = k * tile_elems,
            .elem_count = held,
            .logical_offset = home->offset_bytes + within,
            .size_bytes = streams ? tile_bytes(held, streams) : held * width,
            .streams = streams,
            .offset = {home->offset_bytes + within, second + within},
            .newest = PLACE_NONE,
            .committed = PLACE_NONE,
        };
    }
    return count;
}

static uint64_t list_unit(const struct setup *setup, uint32_t unit, place_entry *entries)
{
    const plan_homes *homes = &setup->set.homes;
    uint32_t streams = plan_learns(&setup->plan, unit) ? plan_streams(&setup->plan, unit) : 0;
    uint64_t count =
        list_tiles(setup, unit, state_place(setup, unit), homes->twins[unit], streams, entries);
    return count + list_tiles(setup, unit, high_place(setup, unit), homes->high_twins[unit], 0,
                              entries + count);
}

/* Takes the newest and committed place of an extent from `found`. Returns false if it is neither of
 * the entry's two places. Programs that only read it (only_eval) accept any place. */
static bool take_extent(const struct setup *setup, place_entry *entry, const manifest_extent *from)
{
    uint32_t rank = engine_is_partitioned(setup) ? setup->ranks.rank : 0;
    if (from->rank != rank || entry->unit != from->unit || entry->tile != from->tile ||
        setup_state_begin(setup, entry->unit) + entry->elem_begin != from->elem_begin ||
        entry->elem_count != from->elem_count || entry->size_bytes != from->size_bytes ||
        from->param_bytes != engine_param_width(setup, entry))
        return false;
    if (setup->plan.only_eval)
        entry->offset[0] = entry->offset[1] = from->offset_bytes;
    uint8_t which = from->offset_bytes == entry->offset[0] ? 0 : 1;
    if (from->offset_bytes != entry->offset[which])
        return false;
    entry->newest = entry->committed = which;
    entry->is_unread = 1;
    entry->sum[which] = from->checksum;
    entry->has_sum[which] = 1;
    return true;
}

/* True if the manifest's extents are those of the same number of ranks, partitioned or not as here,
 * with `count` extents each. */
static bool has_layout_of(const struct setup *setup, const manifest *found, uint64_t count)
{
    uint32_t world = setup->ranks.world;
    bool is_replicated = world > 1 && !engine_is_partitioned(setup);
    return size_max(found->world_size, 1) == world && found->is_replicated == is_replicated &&
           found->extent_count == (is_replicated ? count : world * count);
}

int engine_places_create(const struct setup *setup, const manifest *found, place_table **out)
{
    *out = NULL;
    uint64_t count = count_extents(setup), used = 0;
    place_entry *entries = mem_alloc(count, sizeof *entries, "places");
    if (!entries)
        return -ENOMEM;
    for (uint32_t u = 0; u < setup->net->unit_count; u++)
        used += list_unit(setup, u, entries + used);
    bool same = !found || has_layout_of(setup, found, count);
    for (uint64_t i = 0; found && same && i < count; i++)
        same = take_extent(
            setup, &entries[i],
            &found->extents[engine_extent_in_manifest(setup, setup->ranks.rank, i, &entries[i])]);
    int rc = same ? place_table_create(entries, count, out) : 0;
    mem_free(entries);
    return rc < 0 ? rc : same;
}
