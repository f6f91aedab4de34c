/* Sums of the extents that programs write to the nvme tier, so that a read that brings other bytes back
 * is seen at once.
 *
 *   write op: forget what overlaps ─ sum ─ write ─ done: put      read op: done: verify what lies within
 *
 * An extent is the range of the slab's address space that one write op fills, or one tile of optimizer
 * state that a read op brings (which an earlier process may have written: a manifest has its sum). A
 * table knows all of the given programs, and reserves for them when it is made; nothing is allocated
 * afterwards. Of each it has the sum of what was written last, or nothing: extents not written in the
 * life of this process (and not put in from a manifest), or overwritten in part by another extent
 * since, are not verified. So the extents that have sums never overlap, and a read verifies all of them
 * that lie within it: the params of a unit, read whole, are checked tile by tile as they were written.
 *
 * The sum is XXH3-64 of the bytes. Of a tile of optimizer state (elem_count > 0; base/tile.h) the padding
 * is left out: it is that of the streams' elements, one stream after the other, as the manifest has it
 * (tiers/FORMAT.md).
 * One thread owns a table; two threads may use it at once where their ranges are disjoint. */
#ifndef SLUICE_SWAP_CHECKSUM_H
#define SLUICE_SWAP_CHECKSUM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "swap/program.h"

struct checksum_extent {
    uint64_t offset;     /* in the slab's address space */
    uint64_t size_bytes; /* of the extent, padding included */
    uint64_t elem_count; /* > 0: a tile of so many elements; 0: bytes */
    uint64_t sum;
};
typedef struct checksum_extent checksum_extent;

typedef struct checksum_table checksum_table;

/* XXH3-64 of `size_bytes` bytes, as told above; an elem_count that does not give a tile of that size acts
 * as 0. Any thread. */
uint64_t checksum_sum(const void *data, uint64_t size_bytes, uint64_t elem_count);

/* What checksum_sum is to be told of the op: its elem_count for a tile of optimizer state, else 0. */
uint64_t checksum_elems(const op *item);

/* Distinct extents of all programs. -ENOMEM (for the counting itself). */
int checksum_count_extents(const program *const *programs, uint32_t program_count,
                           uint64_t *count) MUST_CHECK;

/* A table for these programs, without sums. The programs are not kept. -ENOMEM. */
int checksum_create(const program *const *programs, uint32_t program_count,
                    checksum_table **out) MUST_CHECK;
void checksum_destroy(checksum_table *self); /* NULL is allowed */

/* Extents that the table has room for, and those of which it has a sum. */
uint64_t checksum_capacity(const checksum_table *self);
uint64_t checksum_count(const checksum_table *self);

/* Forgets the sums of all that overlaps the range: for who writes to the slab past the lanes. */
void checksum_forget(checksum_table *self, uint64_t offset, uint64_t size_bytes);

/* Stores a sum, after forgetting what overlaps: the write lane's, or one from a manifest. -ENOENT, with
 * all overlapping sums forgotten, where this is no extent of the programs. */
int checksum_put(checksum_table *self, const checksum_extent *extent) MUST_CHECK;

/* Copies the extents that have sums, by offset, up to `capacity` (checksum_count suffices); how many. */
uint64_t checksum_export(const checksum_table *self, checksum_extent *extents, uint64_t capacity);

/* Compares `data`, read from the range, with the sums of all extents within it. ERR_CORRUPT: *expected is
 * the first extent that differs and *found the sum of its bytes; the text is the caller's to make. */
int checksum_verify(const checksum_table *self, uint64_t offset, uint64_t size_bytes,
                    const void *data, checksum_extent *expected, uint64_t *found) MUST_CHECK;

#endif
