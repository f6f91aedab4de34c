/* The places of optimizer state on the slab. Each extent has two places; an extent of frozen params
 * needs only one.
 *
 *   program      names a tile by its address in the nvme arena (logical_offset), which is fixed
 *   this table   says where its bytes are:   offset[0]  or  offset[1]
 *
 *   commit n durable     committed = newest = p
 *   next write           goes to 1 - p; newest = 1 - p      the commit's bytes are not touched
 *   further writes       go to 1 - p again, in place        (commit_every > 1)
 *   commit n + 1         names 1 - p; once durable, committed = 1 - p
 *
 * So a commit copies nothing. State homed in memory is saved to the slab by the same rule. In a run
 * with one place per extent (run.commit_every 0) both offsets are equal. The same holds for params
 * that do not learn, which are written once, before the first commit.
 *
 * There is no lock. The owner is the executor's thread: the nvme lane finds an entry when its op is
 * submitted, and uses that entry only until the op is complete. The commit's op runs on a thread of
 * its own:
 *   - Programs order it against every write of state (program_check proves that). So it may read
 *     the offsets and what writes change (newest, sum, has_sum).
 *   - Writes look at `committed`, so place_table_commit is called while no write is submitted: by
 *     that op, or after its run.
 *   - Reads of state may run beside it, because both only read.
 * Only creation allocates. */
#ifndef SLUICE_SWAP_PLACE_TABLE_H
#define SLUICE_SWAP_PLACE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum { PLACE_NONE = 2 };

/* One extent: one tile (base/tile.h) of one unit's optimizer state, or a run of elements of a
 * frozen unit's params. */
struct place_entry {
    uint32_t unit, tile;
    uint32_t streams;                /* the tile's streams code (base/tile.h); 0: params */
    uint64_t elem_begin, elem_count; /* within the unit */
    uint64_t logical_offset;         /* in the nvme arena of the programs */
    uint64_t size_bytes;             /* padding included */
    uint64_t offset[2];              /* in the slab's address space */
    uint64_t sum[2];                 /* checksum_sum of what was last written there */
    uint8_t has_sum[2];
    uint8_t newest; /* the place written last, which reads use; PLACE_NONE: nothing was written */
    uint8_t committed; /* the place that the last durable commit names, or PLACE_NONE */
    uint8_t is_unread; /* another process has written it, and this one has not read it yet */
};
typedef struct place_entry place_entry;

typedef struct place_table place_table;

/* Copies the entries and sorts them by logical_offset. -EINVAL, naming units and tiles, if two
 * entries overlap, logically or on the slab, if the two places of one entry overlap without being
 * equal, or if an entry is no range or names a place that does not exist; -ENOMEM. */
int place_table_create(const place_entry *entries, uint64_t count, place_table **out) MUST_CHECK;
void place_table_destroy(place_table *self); /* NULL is allowed */

uint64_t place_table_count(const place_table *self);
place_entry *place_table_at(place_table *self,
                            uint64_t idx); /* in order of logical_offset; idx < count */

/* Finds the extent with exactly this logical range. NULL: there is none. */
place_entry *place_table_find(place_table *self, uint64_t logical_offset, uint64_t size_bytes);

/* The place of the extent's next write: the one that no durable commit names. */
static inline uint8_t place_to_write(const place_entry *self)
{
    if (self->newest == PLACE_NONE)
        return 0;
    bool has_two = self->offset[0] != self->offset[1];
    return has_two && self->newest == self->committed ? (uint8_t)(1 - self->newest) : self->newest;
}

/* Says that a write to place `which` (from place_to_write) begins: its old sum no longer holds. The
 * place becomes `newest` only with place_written. So after a failed write reads still use the
 * earlier place, unless the write rewrote that very place. */
void place_begin_write(place_entry *self, uint8_t which);

/* Says that the write is complete; `sum` is that of its bytes. */
void place_written(place_entry *self, uint8_t which, uint64_t sum);

/* Says that a commit of the newest places is durable. */
void place_table_commit(place_table *self);

#endif
