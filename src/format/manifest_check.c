/* The rules that a record must keep (manifest.h). manifest_write checks them, so that no commit
 * makes a record that a resume would refuse. manifest_read checks them, so that no other code meets
 * an offset that overflows or a unit that is not there.
 *
 * Pure, except for the scratch memory of manifesti_is_apart; any thread. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/mem.h"
#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "format/manifest_internal.h"

/* Far larger than any run, and so small that no sum of a few sizes below overflows. */
#define ELEMS_MAX      ((uint64_t)1 << 56)
#define SLAB_BYTES_MAX ((uint64_t)INT64_MAX)

bool manifesti_wrong(manifesti_reason *reason, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(reason->text, sizeof reason->text, format, args);
    va_end(args);
    return false;
}

static bool slabs_are_possible(const manifest_slabs *self, const char *what,
                               manifesti_reason *reason)
{
    if (self->drive_count > DRIVES_MAX)
        return manifesti_wrong(reason, "it names %" PRIu32 " %s, and no run has more than %d",
                               self->drive_count, what, DRIVES_MAX);
    for (uint32_t d = 0; d < self->drive_count; d++) {
        size_t length = strnlen(self->drives[d], MANIFEST_TEXT_BYTES);
        if (length == 0 || length == MANIFEST_TEXT_BYTES)
            return manifesti_wrong(reason, "of its %s number %" PRIu32 " has a path that is %s",
                                   what, d, length ? "too long" : "empty");
    }
    return true;
}

/* True if `text` ends within its bytes, and all bytes after its end are 0. */
static bool is_padded_text(const char text[MANIFEST_HOST_BYTES])
{
    for (size_t i = strnlen(text, MANIFEST_HOST_BYTES); i < MANIFEST_HOST_BYTES; i++)
        if (text[i] != '\0')
            return false;
    return text[MANIFEST_HOST_BYTES - 1] == '\0';
}

static bool ranks_are_possible(const manifest_slabs *self, const char *what,
                               manifesti_reason *reason)
{
    if (self->rank_count > MANIFEST_RANKS_MAX)
        return manifesti_wrong(reason, "%s of %" PRIu32 " ranks are not possible, at most of %d",
                               what, self->rank_count, MANIFEST_RANKS_MAX);
    for (uint32_t r = 0; r < self->rank_count; r++) {
        const manifest_rank *rank = &self->ranks[r];
        if (!is_padded_text(rank->host))
            return manifesti_wrong(reason, "the host of rank %" PRIu32 " of its %s is not whole", r,
                                   what);
        if (rank->local_rank >= self->rank_count)
            return manifesti_wrong(reason,
                                   "rank %" PRIu32 " of its %s cannot be local rank %" PRIu32
                                   " of %" PRIu32 " ranks",
                                   r, what, rank->local_rank, self->rank_count);
    }
    return true;
}

static bool world_is_possible(const manifest *self, manifesti_reason *reason)
{
    enum { STAGE_MAX = 3 };
    uint32_t world = manifesti_ranks(self->world_size);
    if (world != manifesti_ranks(self->slabs.rank_count))
        return manifesti_wrong(reason,
                               "a world of %" PRIu32 " ranks cannot have the slabs of %" PRIu32,
                               world, manifesti_ranks(self->slabs.rank_count));
    if (self->zero_stage > STAGE_MAX)
        return manifesti_wrong(reason, "there is no ZeRO stage %" PRIu32, self->zero_stage);
    if (self->is_replicated && self->zero_stage != 0)
        return manifesti_wrong(reason,
                               "with ZeRO stage %" PRIu32 " not every rank has the whole state",
                               self->zero_stage);
    return true;
}

/* Slabs to remove and slabs in use never share a file. */
static bool leftover_is_foreign(const manifest *self, manifesti_reason *reason)
{
    if (self->leftover.drive_count == 0 ||
        memcmp(self->leftover.uuid, self->slabs.uuid, sizeof self->slabs.uuid) != 0)
        return true;
    for (uint32_t i = 0; i < self->leftover.drive_count; i++)
        for (uint32_t k = 0; k < self->slabs.drive_count; k++)
            if (strcmp(self->leftover.drives[i], self->slabs.drives[k]) == 0)
                return manifesti_wrong(
                    reason, "it names its own slab on drive %" PRIu32 " as one to be removed", k);
    return true;
}

static bool identity_is_possible(const manifest *self, manifesti_reason *reason)
{
    size_t length = strnlen(self->identity, MANIFEST_TEXT_BYTES);
    if (length == MANIFEST_TEXT_BYTES)
        return manifesti_wrong(reason, "its identity text does not end");
    if (length == 0)
        return manifesti_wrong(reason, "its identity text is empty");
    uint64_t fingerprint = XXH3_64bits(self->identity, length);
    if (fingerprint != self->fingerprint)
        return manifesti_wrong(reason,
                               "its fingerprint is %016" PRIx64 " and that of its identity text "
                               "%016" PRIx64,
                               self->fingerprint, fingerprint);
    return true;
}

/* Checks what loss_scaler_load (setup/loss_scale.h) requires. */
static bool scaler_is_possible(const manifest *self, manifesti_reason *reason)
{
    if (isfinite(self->point.loss_scale) && self->point.loss_scale > 0.0 &&
        self->point.scale_iteration <= INT64_MAX && self->point.scale_last_overflow >= -1 &&
        self->point.scale_last_overflow < (int64_t)self->point.scale_iteration &&
        self->point.scale_hysteresis_left >= 1)
        return true;
    return manifesti_wrong(reason,
                           "it has a loss scale of %g after %" PRIu64 " steps, the last overflow "
                           "at %" PRId64 " and a hysteresis of %" PRIu64,
                           self->point.loss_scale, self->point.scale_iteration,
                           self->point.scale_last_overflow, self->point.scale_hysteresis_left);
}

/* Until the slabs are made their size is not known: both numbers are 0. */
static bool space_is_possible(const manifest *self, manifesti_reason *reason)
{
    uint64_t total_bytes = self->total_bytes, stripe_bytes = self->stripe_bytes;
    bool is_unknown = total_bytes == 0 && stripe_bytes == 0;
    if (is_unknown && self->state == MANIFEST_COMMITTED)
        return manifesti_wrong(reason, "it is a commit, and its slabs have no size");
    if (!is_unknown && (stripe_bytes == 0 || stripe_bytes % MIB != 0 || total_bytes == 0 ||
                        total_bytes % stripe_bytes != 0 || total_bytes > SLAB_BYTES_MAX))
        return manifesti_wrong(
            reason, "slabs of %" PRIu64 " bytes in stripes of %" PRIu64 " are not possible",
            total_bytes, stripe_bytes);
    if (self->state == MANIFEST_COMMITTED &&
        (self->slabs.drive_count == 0 || self->extent_count == 0))
        return manifesti_wrong(reason,
                               "it is a commit of %" PRIu64 " extents on %" PRIu32 " drives",
                               self->extent_count, self->slabs.drive_count);
    return true;
}

static bool size_is_possible(const manifest *self, const manifest_extent *extent)
{
    uint64_t width = extent->param_bytes;
    if (width)
        return extent->size_bytes == extent->elem_count * width &&
               extent->size_bytes % TILE_BLOCK_BYTES == 0;
    return extent->size_bytes == tile_bytes(extent->elem_count, manifest_streams_of(self, extent));
}

/* A walk over the list of extents: the state after the extent before, and the start of its
 * shard. */
struct shard_walk {
    const manifest *record;
    uint32_t shard_count;          /* of each unit */
    const manifest_extent *before; /* NULL: none yet */
    uint64_t begin_elems;          /* of the shard of `before`, within its unit */
    uint64_t shard_elems; /* of each shard of its unit; known from the end of rank 0's shard on */
    uint32_t param_bytes; /* of frozen params; 0: none so far */
};
typedef struct shard_walk shard_walk;

/* Checks, after the last tile of the shard of `before`, that it is as long as the unit's other
 * shards. */
static bool end_shard(shard_walk *self, manifesti_reason *reason)
{
    const manifest_extent *last = self->before;
    uint64_t held = last->elem_begin + last->elem_count - self->begin_elems;
    if (last->rank == 0)
        self->shard_elems = held;
    if (held != self->shard_elems)
        return manifesti_wrong(reason,
                               "of unit %" PRIu32 " rank %" PRIu32 " has %" PRIu64
                               " elements and rank 0 %" PRIu64,
                               last->unit, last->rank, held, self->shard_elems);
    if (self->shard_count > 1 && held % SHARD_ELEMS_STEP != 0)
        return manifesti_wrong(
            reason, "unit %" PRIu32 " cannot be cut over ranks in shards of %" PRIu64 " elements",
            last->unit, held);
    return true;
}

/* Checks that a tile is full if another one of its shard follows. */
static bool is_full(const manifest *self, const manifest_extent *extent, manifesti_reason *reason)
{
    if (extent->elem_count == self->tile_elems)
        return true;
    return manifesti_wrong(reason,
                           "unit %" PRIu32 " rank %" PRIu32 " tile %" PRIu32 " has %" PRIu64
                           " elements and is not its shard's last, but a tile has %" PRIu64,
                           extent->unit, extent->rank, extent->tile, extent->elem_count,
                           self->tile_elems);
}

/* Checks frozen params: they have 2 or 4 bytes, the same in all units, and a unit has them for all
 * extents or none. */
static bool is_of_one_kind(shard_walk *self, const manifest_extent *extent, bool same_unit,
                           manifesti_reason *reason)
{
    uint32_t width = extent->param_bytes;
    bool is_known = width == 0 || width == sizeof(uint16_t) || width == sizeof(float);
    bool is_same = width == 0 || self->param_bytes == 0 || width == self->param_bytes;
    if (!is_known || !is_same || (same_unit && width != self->before->param_bytes))
        return manifesti_wrong(reason,
                               "unit %" PRIu32 " rank %" PRIu32 " tile %" PRIu32
                               " cannot have params of %" PRIu32 " bytes",
                               extent->unit, extent->rank, extent->tile, width);
    if (same_unit && manifest_streams_of(self->record, extent) !=
                         manifest_streams_of(self->record, self->before))
        return manifesti_wrong(reason,
                               "unit %" PRIu32 " rank %" PRIu32 " tile %" PRIu32 " has %" PRIu64
                               " bytes, and other streams than the tile before",
                               extent->unit, extent->rank, extent->tile, extent->size_bytes);
    self->param_bytes = size_max(self->param_bytes, width);
    return true;
}

/* Checks that an extent may come next:
 * - Units count from 0 without a gap, and so do the ranks of a unit.
 * - The tiles of a shard count from 0 without a gap. They are full, except for the shard's last. */
static bool follows(shard_walk *self, const manifest_extent *extent, manifesti_reason *reason)
{
    const manifest_extent *before = self->before;
    bool same_shard = before && extent->unit == before->unit && extent->rank == before->rank;
    if (before && !same_shard && !end_shard(self, reason))
        return false;
    bool same_unit = same_shard || (before && before->rank + 1 < self->shard_count);
    uint64_t unit = same_unit ? before->unit : before ? (uint64_t)before->unit + 1 : 0;
    uint32_t rank = same_shard ? before->rank : same_unit ? before->rank + 1 : 0;
    uint64_t tile = same_shard ? (uint64_t)before->tile + 1 : 0;
    uint64_t elem_begin = same_unit ? before->elem_begin + before->elem_count : 0;
    if (extent->unit != unit || extent->rank != rank || extent->tile != tile ||
        extent->elem_begin != elem_begin)
        return manifesti_wrong(reason,
                               "unit %" PRIu32 " rank %" PRIu32 " tile %" PRIu32
                               " from element %" PRIu64 " stands where unit %" PRIu64
                               " rank %" PRIu32 " tile %" PRIu64 " from element %" PRIu64 " is due",
                               extent->unit, extent->rank, extent->tile, extent->elem_begin, unit,
                               rank, tile, elem_begin);
    if (same_shard && !is_full(self->record, before, reason))
        return false;
    if (!is_of_one_kind(self, extent, same_unit, reason))
        return false;
    if (!same_shard)
        self->begin_elems = elem_begin;
    self->before = extent;
    return true;
}

/* If masters are split, an extent of state follows the params of the same tile, for all tiles of a
 * unit or for none. The walk is over the params. */
static bool is_half_of(const shard_walk *self, const manifest_extent *extent,
                       manifesti_reason *reason)
{
    const manifest_extent *high = self->before;
    if (high && high + 1 == extent && extent->unit == high->unit && extent->rank == high->rank &&
        extent->tile == high->tile && extent->elem_begin == high->elem_begin &&
        extent->elem_count == high->elem_count &&
        high->param_bytes == tile_high_bytes(self->record->state_streams))
        return true;
    return manifesti_wrong(reason,
                           "unit %" PRIu32 " rank %" PRIu32 " tile %" PRIu32
                           " has the rest of split masters, and no params of as many elements "
                           "stand before it",
                           extent->unit, extent->rank, extent->tile);
}

static bool has_halves_alike(const shard_walk *self, uint64_t idx, manifesti_reason *reason)
{
    const manifest *record = self->record;
    const manifest_extent *extent = &record->extents[idx], *before = self->before;
    if (!before || before->unit != extent->unit || !tile_master_is_split(record->state_streams) ||
        manifest_is_high(record, idx) ==
            manifest_is_high(record, (uint64_t)(before - record->extents)))
        return true;
    return manifesti_wrong(reason,
                           "unit %" PRIu32 " has the rest of split masters for some of its tiles "
                           "alone: tile %" PRIu32 " of rank %" PRIu32 " differs",
                           extent->unit, extent->tile, extent->rank);
}

/* Checks, after the last extent, that all shards of its unit are there. */
static bool ends(shard_walk *self, manifesti_reason *reason)
{
    if (!self->before)
        return true;
    if (!end_shard(self, reason))
        return false;
    if (self->before->rank + 1 != self->shard_count)
        return manifesti_wrong(reason,
                               "its last unit, %" PRIu32 ", ends with rank %" PRIu32 " of %" PRIu32,
                               self->before->unit, self->before->rank, self->shard_count);
    return true;
}

static bool extent_is_possible(const manifest *self, const manifest_extent *extent,
                               manifesti_reason *reason)
{
    if (extent->elem_count == 0 || extent->elem_count > self->tile_elems ||
        extent->elem_begin > ELEMS_MAX)
        return manifesti_wrong(reason,
                               "unit %" PRIu32 " rank %" PRIu32 " tile %" PRIu32 " has %" PRIu64
                               " elements from %" PRIu64 ", but a tile has %" PRIu64,
                               extent->unit, extent->rank, extent->tile, extent->elem_count,
                               extent->elem_begin, self->tile_elems);
    if (!size_is_possible(self, extent))
        return manifesti_wrong(reason,
                               "unit %" PRIu32 " rank %" PRIu32 " tile %" PRIu32 " of %" PRIu64
                               " elements in %" PRIu32 " streams cannot have %" PRIu64 " bytes",
                               extent->unit, extent->rank, extent->tile, extent->elem_count,
                               tile_stream_count(self->state_streams), extent->size_bytes);
    uint64_t end_max = self->total_bytes ? self->total_bytes : SLAB_BYTES_MAX;
    if (extent->offset_bytes % TILE_BLOCK_BYTES != 0 || extent->offset_bytes > end_max ||
        extent->size_bytes > end_max - extent->offset_bytes)
        return manifesti_wrong(reason,
                               "unit %" PRIu32 " rank %" PRIu32 " tile %" PRIu32
                               " cannot lie at %" PRIu64 " with %" PRIu64
                               " bytes on a slab of %" PRIu64,
                               extent->unit, extent->rank, extent->tile, extent->offset_bytes,
                               extent->size_bytes, end_max);
    return true;
}

static bool extents_are_possible(const manifest *self, manifesti_reason *reason)
{
    if (!tile_streams_is_valid(self->state_streams))
        return manifesti_wrong(reason, "a tile of streams %08" PRIx32 " is not possible",
                               self->state_streams);
    if (self->tile_elems > ELEMS_MAX)
        return manifesti_wrong(reason, "a tile of %" PRIu64 " elements is not possible",
                               self->tile_elems);
    shard_walk walk = {.record = self};
    walk.shard_count = self->is_replicated ? 1 : manifesti_ranks(self->world_size);
    for (uint64_t i = 0; i < self->extent_count; i++) {
        const manifest_extent *extent = &self->extents[i];
        bool is_next = manifest_is_low(self, i)
                           ? is_half_of(&walk, extent, reason)
                           : has_halves_alike(&walk, i, reason) && follows(&walk, extent, reason);
        if (!is_next || !extent_is_possible(self, extent, reason))
            return false;
    }
    return ends(&walk, reason);
}

bool manifesti_is_possible(const manifest *self, manifesti_reason *reason)
{
    switch (self->state) {
    case MANIFEST_COMMITTED:
    case MANIFEST_RUNNING:
    case MANIFEST_BEGUN:
        break;
    default:
        return manifesti_wrong(reason, "a state of %d is not possible", (int)self->state);
    }
    if (self->generation > INT64_MAX)
        return manifesti_wrong(reason, "generation %" PRIu64 " is not possible", self->generation);
    if (self->point.skipped_count > self->point.step)
        return manifesti_wrong(reason, "it has skipped %" PRIu64 " of %" PRIu64 " steps",
                               self->point.skipped_count, self->point.step);
    if (self->state == MANIFEST_BEGUN && self->point.step != 0)
        return manifesti_wrong(reason,
                               "a run that has not committed cannot have done %" PRIu64 " steps",
                               self->point.step);
    return slabs_are_possible(&self->slabs, "drives", reason) &&
           slabs_are_possible(&self->leftover, "leftover slabs", reason) &&
           ranks_are_possible(&self->slabs, "slabs", reason) &&
           ranks_are_possible(&self->leftover, "leftover slabs", reason) &&
           world_is_possible(self, reason) && leftover_is_foreign(self, reason) &&
           identity_is_possible(self, reason) && scaler_is_possible(self, reason) &&
           space_is_possible(self, reason) && extents_are_possible(self, reason);
}

/* ---- overlaps ---- */

struct range {
    uint64_t begin, end;
    uint64_t rank;
};

static int compare_ranges(const void *left, const void *right)
{
    const struct range *a = left, *b = right;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

int manifesti_is_apart(const manifest *self, manifesti_reason *reason)
{
    struct range *ranges = mem_alloc(self->extent_count, sizeof *ranges, "manifest ranges");
    if (!ranges)
        return -ENOMEM;
    for (uint64_t i = 0; i < self->extent_count; i++) {
        const manifest_extent *extent = &self->extents[i];
        ranges[i] = (struct range){extent->offset_bytes, extent->offset_bytes + extent->size_bytes,
                                   extent->rank};
    }
    qsort(ranges, self->extent_count, sizeof *ranges, compare_ranges);
    bool is_apart = true;
    for (uint64_t i = 1; i < self->extent_count && is_apart; i++)
        if (ranges[i].rank == ranges[i - 1].rank && ranges[i].begin < ranges[i - 1].end)
            is_apart = manifesti_wrong(reason,
                                       "two of its extents overlap on the slab of rank %" PRIu64
                                       ": %" PRIu64 " to %" PRIu64 " and from %" PRIu64,
                                       ranges[i].rank, ranges[i - 1].begin, ranges[i - 1].end,
                                       ranges[i].begin);
    mem_free(ranges);
    return is_apart;
}
