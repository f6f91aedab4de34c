/* Lists the tiles that a recut reads and those that it writes, in the order of (unit, params or
 * state, element), and checks them: the old ones against the model (manifest_read has checked them
 * among themselves), the new ones also among themselves. See recut.c. The only I/O is to look which
 * files exist. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "state/recut_internal.h"

static int compare_tiles(const void *left, const void *right)
{
    const recut_tile *a = left, *b = right;
    if (a->unit != b->unit)
        return a->unit < b->unit ? -1 : 1;
    if (a->is_of_state != b->is_of_state)
        return a->is_of_state < b->is_of_state ? -1 : 1;
    return (a->elem_begin > b->elem_begin) - (a->elem_begin < b->elem_begin);
}

/* Elements of a unit as `world` ranks store it, with padding. */
static uint64_t whole_elems(uint64_t unit_elems, uint32_t world)
{
    return world > 1 ? shard_whole_elems(unit_elems, world) : unit_elems;
}

/* The range of a unit's elements that belongs to this rank, without padding. */
static void own_range(const struct state_recut *work, uint32_t unit, uint64_t *begin, uint64_t *end)
{
    uint64_t elems = work->unit_elems[unit];
    uint32_t world = work->world ? work->world : 1;
    *begin = work->is_sharded ? size_min(shard_begin(elems, world, work->rank), elems) : 0;
    *end = work->is_sharded ? size_min(shard_begin(elems, world, work->rank + 1), elems) : elems;
}

/* One past the last element of the extent that this rank needs; 0 if it needs none. */
static uint64_t needed_end(const struct state_recut *work, const manifest_extent *extent)
{
    uint64_t begin, end;
    if (extent->unit >= work->unit_count)
        return 0; /* check_units reports it */
    own_range(work, extent->unit, &begin, &end);
    end = size_min(end, extent->elem_begin + extent->elem_count);
    begin = size_max(begin, extent->elem_begin);
    return begin < end ? end : 0;
}

/* Chooses this rank's own slab if it exists, else the first that can be seen from here. */
int recut_choose_copy(const struct state_recut *work, uint32_t world, uint32_t *out)
{
    *out = work->rank < world ? work->rank : 0;
    return work->from && work->from[*out] ? 0 : rank_slabs_choose(work->found, *out, out);
}

/* True if the new layout has tiles of the unit's params (is_of_state 0) or state (1). */
static bool has_fresh(const struct state_recut *work, uint32_t unit, uint8_t is_of_state)
{
    bool is_frozen = work->is_frozen && work->is_frozen[unit];
    return is_of_state ? !is_frozen : is_frozen || tile_master_is_split(work->state_streams);
}

/* True if the old extent is read to make the unit's params (is_of_state 0) or state (1) of the new
 * layout. That is so if the extent has the same kind, or if the commit has none of that kind and it
 * is made from the other. */
static bool is_read_for(const struct state_recut *work, uint64_t idx, uint8_t is_of_state)
{
    const manifest *found = work->found;
    uint32_t unit = found->extents[idx].unit;
    bool is_half = manifest_is_low(found, idx) || manifest_is_high(found, idx);
    bool is_state = found->extents[idx].param_bytes == 0;
    return unit < work->unit_count && has_fresh(work, unit, is_of_state) &&
           (!is_half || is_state == (is_of_state != 0));
}

/* Lists the old tiles in the order in which they are read. */
int recut_list_old(recut *self)
{
    const manifest *found = self->work->found;
    recut_side *old = &self->old;
    uint64_t count = 0;
    for (uint64_t i = 0; i < found->extent_count; i++)
        for (uint8_t k = 0; k < 2; k++)
            count += is_read_for(self->work, i, k) && needed_end(self->work, &found->extents[i]);
    old->tiles = mem_alloc(count, sizeof *old->tiles, "recut");
    if (!old->tiles)
        return -ENOMEM;
    for (uint64_t i = 0; i < 2 * found->extent_count; i++) {
        const manifest_extent *from = &found->extents[i / 2];
        uint64_t use_end = needed_end(self->work, from);
        if (use_end > 0 && is_read_for(self->work, i / 2, i % 2))
            old->tiles[old->tile_count++] =
                (recut_tile){.unit = from->unit,
                             .tile = from->tile,
                             .is_of_state = i % 2,
                             .rank = rank_slabs_rank_of(found, from, self->copy_rank),
                             .elem_begin = from->elem_begin,
                             .elem_count = from->elem_count,
                             .use_end = use_end,
                             .offset = from->offset_bytes,
                             .size_bytes = from->size_bytes,
                             .param_bytes = from->param_bytes,
                             .streams = manifest_streams_of(found, from),
                             .checksum = from->checksum};
    }
    if (old->tile_count > 0)
        qsort(old->tiles, old->tile_count, sizeof *old->tiles, compare_tiles);
    return 0;
}

/* Lists the new tiles in the order in which they are written. */
int recut_list_fresh(recut *self)
{
    const struct state_recut *work = self->work;
    recut_side *fresh = &self->fresh;
    fresh->tile_count = place_table_count(work->places);
    fresh->tiles = mem_alloc(fresh->tile_count, sizeof *fresh->tiles, "recut");
    if (!fresh->tiles)
        return -ENOMEM;
    for (uint64_t i = 0; i < fresh->tile_count; i++) {
        place_entry *entry = place_table_at(work->places, i);
        if (entry->unit >= work->unit_count)
            return err_set(ERR_INTERNAL, "the new layout has a unit %u, and the model %u units",
                           entry->unit, work->unit_count);
        uint64_t begin = work->is_sharded
                             ? shard_begin(work->unit_elems[entry->unit], self->world, work->rank)
                             : 0;
        bool is_frozen = work->is_frozen && work->is_frozen[entry->unit];
        bool is_high = tile_master_is_split(work->state_streams) && entry->streams == 0;
        bool is_of_state = !is_frozen && !is_high;
        fresh->tiles[i] =
            (recut_tile){.param_bytes = is_of_state ? 0 : (uint32_t)dtype_bytes(work->param_type),
                         .streams = entry->streams,
                         .is_of_state = is_of_state,
                         .unit = entry->unit,
                         .tile = entry->tile,
                         .elem_begin = begin + entry->elem_begin,
                         .elem_count = entry->elem_count,
                         .offset = entry->offset[0],
                         .size_bytes = entry->size_bytes,
                         .entry = entry};
        self->total_bytes += entry->size_bytes;
    }
    if (fresh->tile_count > 0)
        qsort(fresh->tiles, fresh->tile_count, sizeof *fresh->tiles, compare_tiles);
    return 0;
}

/* Checks that the old tiles cover all of this rank's elements. */
static int check_covered(const recut *self)
{
    const struct state_recut *work = self->work;
    const recut_side *old = &self->old;
    uint64_t at = 0;
    for (uint64_t i = 0; i < 2 * (uint64_t)work->unit_count; i++) {
        uint64_t reached, end;
        uint32_t unit = (uint32_t)(i / 2);
        own_range(work, unit, &reached, &end);
        for (; at < old->tile_count && old->tiles[at].unit == unit &&
               old->tiles[at].is_of_state == i % 2;
             at++)
            reached = old->tiles[at].use_end;
        if (reached < end && has_fresh(work, unit, i % 2))
            return err_set(ERR_CORRUPT,
                           "the commit of step %" PRIu64
                           " has no extents of unit %u from element %" PRIu64
                           " on, of which the model has %" PRIu64,
                           work->found->point.step, unit, reached, work->unit_elems[unit]);
    }
    return 0;
}

/* Checks that the new tiles of each unit follow each other, from the unit's or the shard's first
 * element, and that each lies on the slab with the size of its elements. */
static int check_fresh(const recut *self)
{
    const struct state_recut *work = self->work;
    const recut_side *fresh = &self->fresh;
    uint64_t total_bytes = work->to->total_bytes;
    for (uint64_t i = 0; i < fresh->tile_count; i++) {
        const recut_tile *tile = &fresh->tiles[i], *before = tile - 1;
        bool is_first =
            i == 0 || before->unit != tile->unit || before->is_of_state != tile->is_of_state;
        uint64_t begin = is_first ? 0 : before->elem_begin + before->elem_count;
        if (is_first && work->is_sharded)
            begin = shard_begin(work->unit_elems[tile->unit], self->world, work->rank);
        uint64_t size_bytes = tile->param_bytes ? tile->elem_count * tile->param_bytes
                                                : tile_bytes(tile->elem_count, tile->streams);
        if (tile->elem_begin != begin || tile->size_bytes != size_bytes ||
            tile->offset % TILE_BLOCK_BYTES || tile->offset > total_bytes ||
            tile->size_bytes > total_bytes - tile->offset)
            return err_set(ERR_INTERNAL,
                           "%s: unit %u, tile %u cannot have %" PRIu64 " elements from %" PRIu64
                           " in %" PRIu64 " bytes at byte %" PRIu64 " of a slab of %" PRIu64,
                           fresh->name, tile->unit, tile->tile, tile->elem_count, tile->elem_begin,
                           tile->size_bytes, tile->offset, total_bytes);
    }
    return 0;
}

/* Checks that the commit has the model's units, with the same number of elements in each. */
static int check_units(const recut *self)
{
    const struct state_recut *work = self->work;
    const manifest *found = work->found;
    uint64_t *elems = mem_alloc(work->unit_count, sizeof *elems, "recut units");
    if (!elems)
        return -ENOMEM;
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < found->extent_count; i++) {
        if (found->extents[i].unit < work->unit_count)
            elems[found->extents[i].unit] +=
                manifest_is_low(found, i) ? 0 : found->extents[i].elem_count;
        else
            rc = err_set(ERR_CORRUPT,
                         "the commit of step %" PRIu64
                         " has more units than the model: its manifest is of another model",
                         found->point.step);
    }
    for (uint32_t u = 0; rc == 0 && u < work->unit_count; u++) {
        uint64_t expected = whole_elems(work->unit_elems[u], self->old_world);
        if (elems[u] == 0)
            rc = err_set(ERR_CORRUPT,
                         "the commit of step %" PRIu64
                         " has fewer units than the model: its manifest is of another model",
                         found->point.step);
        else if (elems[u] != expected)
            rc = err_set(ERR_CORRUPT,
                         "the commit of step %" PRIu64 " has %" PRIu64
                         " elements of unit %u where the model has %" PRIu64
                         ": its manifest is of another model",
                         found->point.step, elems[u], u, expected);
    }
    mem_free(elems);
    return rc;
}

int recut_check_work(const recut *self)
{
    const struct state_recut *work = self->work;
    char was[SETUP_FORMATS_BYTES], is[SETUP_FORMATS_BYTES];
    if (!tile_streams_is_valid(work->state_streams))
        return err_set(ERR_INTERNAL, "a tile cannot have streams %08x", work->state_streams);
    uint32_t found = work->found->state_streams, count = tile_stream_count(work->state_streams);
    if (tile_stream_count(found) != count)
        return err_set(
            ERR_CORRUPT,
            "the commit of step %" PRIu64
            " has %u values per parameter and the run's optimizer %u: its manifest is of "
            "another optimizer",
            work->found->point.step, tile_stream_count(found), count);
    if (found != work->state_streams && !(setup_is_imported(work->found) && found == count))
        return err_set(ERR_CORRUPT,
                       "the commit of step %" PRIu64 " has state in %s and the run in %s: its "
                       "manifest is of another run",
                       work->found->point.step, setup_formats_text(found, was),
                       setup_formats_text(work->state_streams, is));
    for (uint64_t i = 0; i < self->old.tile_count; i++)
        if (self->old.tiles[i].param_bytes != 0 &&
            self->old.tiles[i].param_bytes != dtype_bytes(work->param_type))
            return err_set(ERR_CORRUPT,
                           "the commit of step %" PRIu64 " has frozen params of %u bytes, and the "
                           "run's are %s: its manifest is of another dtype",
                           work->found->point.step, self->old.tiles[i].param_bytes,
                           dtype_name(work->param_type));
    TRY(check_fresh(self));
    TRY(check_units(self));
    return check_covered(self);
}

int state_recut_check(const struct state_recut *work)
{
    const manifest *found = work->found;
    uint32_t world = rank_slabs_world(found), copy_rank;
    if (found->is_replicated)
        return recut_choose_copy(work, world, &copy_rank);
    for (uint32_t r = 0; r < world; r++) {
        bool is_needed = false;
        for (uint64_t i = 0; !is_needed && i < found->extent_count; i++)
            is_needed = found->extents[i].rank == r && needed_end(work, &found->extents[i]) > 0;
        if (is_needed)
            TRY(rank_slabs_look(found, r));
    }
    return 0;
}
