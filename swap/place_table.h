/* The two places of each extent of optimizer state on the slab, and the one of each extent of frozen params.
 *
 *   program      names a tile by its address in the nvme arena (logical_offset), always the same
 *   this table   says where its bytes are:   offset[0]  or  offset[1]
 *
 *   commit n durable     committed = newest = p
 *   next write           goes to 1 - p; newest = 1 - p          the commit's bytes are not touched
 *   further writes       go to 1 - p again, in place            (commit_every > 1)
 *   commit n + 1         names 1 - p; once durable, committed = 1 - p
 *
 * So a commit copies nothing. State homed in memory is saved to the slab by the same rule. Where a run has
 * one place per extent (run.commit_every 0) both offsets are equal; so they are of params that do not learn,
 * which are written once, before the first commit.
 *
 * No lock. The owner is the executor's thread: the io lanes look an entry up when its op is submitted, and
 * touch that entry, no other, until the op is complete. The commit's op runs on a thread of its own; programs
 * order it against every write of state (program_check proves it), so it may meanwhile read all that writes
 * change (newest, sum, has_sum) and offsets. `committed` is what writes look at: place_table_commit is called
 * by that op, or after its run, while no write is submitted. Reads of state may run beside a commit: both
 * only read. Allocates at creation only. */
#ifndef SLUICE_SWAP_PLACE_TABLE_H
#define SLUICE_SWAP_PLACE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum { PLACE_NONE = 2 };

/* One extent: one tile (base/tile.h) of one unit's optimizer state, or as many elements of a frozen unit's
 * params. */
struct place_entry {
    uint32_t unit, tile;
    uint32_t streams;                /* the tile's streams code (base/tile.h); 0: params */
    uint64_t elem_begin, elem_count; /* within the unit */
    uint64_t logical_offset;         /* in the nvme arena of the programs */
    uint64_t size_bytes;             /* padding included */
    uint64_t offset[2];              /* in the slab's address space */
    uint64_t sum[2];                 /* checksum_sum of what was last written there */
    uint8_t has_sum[2];
    uint8_t newest; /* the place written last, which reads are of; PLACE_NONE: nothing is there */
    uint8_t committed; /* the place that the last durable commit names, or PLACE_NONE */
    uint8_t is_unread; /* another process has written it, and this one has not read it yet */
};
typedef struct place_entry place_entry;

typedef struct place_table place_table;

/* Copies the entries and sorts them by logical_offset. -EINVAL, naming units and tiles, where two overlap,
 * logically or on the slab (the two places of one entry are the same or apart), and for an entry that is
 * no range or names a place that does not exist; -ENOMEM. */
int place_table_create(const place_entry *entries, uint64_t count, place_table **out) MUST_CHECK;
void place_table_destroy(place_table *self); /* NULL is allowed */

uint64_t place_table_count(const place_table *self);
place_entry *place_table_at(place_table *self, uint64_t idx); /* by logical_offset; idx < count */

/* The extent with exactly this logical range, or NULL. */
place_entry *place_table_find(place_table *self, uint64_t logical_offset, uint64_t size_bytes);

/* Where the next write of the extent goes: the place that no durable commit names. */
static inline uint8_t place_to_write(const place_entry *self)
{
    if (self->newest == PLACE_NONE)
        return 0;
    bool has_two = self->offset[0] != self->offset[1];
    return has_two && self->newest == self->committed ? (uint8_t)(1 - self->newest) : self->newest;
}

/* A write to place `which` (place_to_write's) begins: its old sum holds no more. It is not `newest` before
 * place_written, so a write that fails leaves the place before it as what reads are of, but where it was
 * in place. */
void place_begin_write(place_entry *self, uint8_t which);

/* The write is complete, of bytes with this sum. */
void place_written(place_entry *self, uint8_t which, uint64_t sum);

/* The newest places are those of a durable commit. */
void place_table_commit(place_table *self);

#endif
