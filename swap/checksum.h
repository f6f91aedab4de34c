/* Sums of what programs write to the nvme tier, so that a read that brings other bytes back is seen at once.
 *
 *   write op: forget what overlaps ─ sum ─ write ─ done: put      read op: done: verify what lies within
 *
 * An extent is the range of the slab's address space that one write op fills. A table knows all of the
 * given programs, and reserves for them when it is made; nothing is allocated afterwards. Of each it has
 * the sum of what was written last in the life of this process, or nothing; an extent overwritten in part
 * by another since is not verified. So the extents that have sums never overlap, and a read verifies all
 * of them that lie within it: the params of a unit, read whole, are checked tile by tile as they were
 * written. The table serves params, grads and activations; optimizer state, which outlives the process,
 * has its sums in the table of places (swap/place_table.h) where there is one.
 *
 * The sum is XXH3-64 of the bytes. Of a tile of optimizer state (base/tile.h) the manifest has that of the
 * streams' elements, one stream after the other, without the padding (tiers/FORMAT.md).
 * One thread owns a table; two threads may use it at once where their ranges are disjoint. */
#ifndef SLUICE_SWAP_CHECKSUM_H
#define SLUICE_SWAP_CHECKSUM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "swap/program.h"

struct checksum_extent {
    uint64_t offset; /* in the slab's address space */
    uint64_t size_bytes;
    uint64_t sum; /* of all of them */
};
typedef struct checksum_extent checksum_extent;

typedef struct checksum_table checksum_table;

/* XXH3-64 of `size_bytes` bytes; where `streams`, a streams code (base/tile.h), and elem_count are not 0, of a
 * tile of so many elements without its padding, as told above. What is no tile of that size is summed whole.
 * Any thread. */
uint64_t checksum_sum(const void *data, uint64_t size_bytes, uint64_t elem_count, uint32_t streams);

/* What checksum_sum says of a tile of elem_count elements whose first stream holds `master`, fp32, and whose
 * others are zeros, without a copy of them. Any thread. */
uint64_t checksum_sum_fresh(const float *master, uint64_t elem_count, uint32_t streams);

/* A table for these programs, without sums. The programs are not kept. -ENOMEM. */
int checksum_create(const program *const *programs, uint32_t program_count,
                    checksum_table **out) MUST_CHECK;
void checksum_destroy(checksum_table *self); /* NULL is allowed */
/* Room for these ranges too: for who writes to the slab past the lanes and has sums of it. Before any sum is put
 * (-EINVAL). Sums in `extents` are not taken. -ENOMEM: the table is as before. */
int checksum_add(checksum_table *self, const checksum_extent *extents, uint64_t count) MUST_CHECK;

/* Extents that the table has room for, and those of which it has a sum. */
uint64_t checksum_capacity(const checksum_table *self);
uint64_t checksum_count(const checksum_table *self);

/* Forgets the sums of all that overlaps the range: for who writes to the slab past the lanes. */
void checksum_forget(checksum_table *self, uint64_t offset, uint64_t size_bytes);

/* Stores a sum, after forgetting what overlaps. -ENOENT, with all overlapping sums forgotten, where this is
 * no extent of the programs. */
int checksum_put(checksum_table *self, const checksum_extent *extent) MUST_CHECK;

/* Compares `data`, read from the range, with the sums of all extents within it. ERR_CORRUPT: *expected is
 * the first extent that differs and *found the sum of its bytes; the text is the caller's to make. */
int checksum_verify(const checksum_table *self, uint64_t offset, uint64_t size_bytes,
                    const void *data, checksum_extent *expected, uint64_t *found) MUST_CHECK;

#endif
