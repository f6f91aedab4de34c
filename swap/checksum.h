/* Checksums of what programs write to the nvme tier, so that a read that returns other bytes is
 * detected at once.
 *
 *   write op: forget what overlaps ─ sum ─ write ─ done: put
 *   read op:  read ─ done: verify the extents within its range
 *
 * An extent is the range of the slab's address space that one write op fills. A table knows the
 * extents of the given programs and allocates for them at creation only. For each extent it has the
 * sum of what this process wrote last, or nothing. An extent that another one has overwritten in
 * part since is not verified. So extents with sums never overlap, and a read verifies all of them
 * that lie within it: the params of a unit, read whole, are checked tile by tile as they were
 * written. The table serves params, grads and activations. Optimizer state outlives the process;
 * its sums are in the table of places (swap/place_table.h), if there is one.
 *
 * The sum is XXH3-64 of the bytes. For a tile of optimizer state (base/tile.h) the manifest has the
 * sum of the streams' elements, one stream after the other, without the padding (tiers/FORMAT.md).
 * One thread owns a table; two threads may use it at once if their ranges are disjoint. */
#ifndef SLUICE_SWAP_CHECKSUM_H
#define SLUICE_SWAP_CHECKSUM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "swap/program.h"

struct checksum_extent {
    uint64_t offset; /* in the slab's address space */
    uint64_t size_bytes;
    uint64_t sum; /* of all its bytes */
};
typedef struct checksum_extent checksum_extent;

typedef struct checksum_table checksum_table;

/* XXH3-64 of `size_bytes` bytes. If elem_count and `streams` (a streams code, base/tile.h) are not
 * 0: that of a tile of elem_count elements without its padding, as described above. Bytes that are
 * no tile of that size are summed whole. Any thread. */
uint64_t checksum_sum(const void *data, uint64_t size_bytes, uint64_t elem_count, uint32_t streams);

/* checksum_sum of a tile of elem_count elements whose first stream holds `master`, fp32, and whose
 * other streams are zeros, without building the tile. Any thread. */
uint64_t checksum_sum_fresh(const float *master, uint64_t elem_count, uint32_t streams);

/* Makes a table for these programs, without sums. It does not keep the programs. -ENOMEM. */
int checksum_create(const program *const *programs, uint32_t program_count,
                    checksum_table **out) MUST_CHECK;
void checksum_destroy(checksum_table *self); /* NULL is allowed */
/* Adds room for these ranges, for a caller that writes to the slab without the lanes and has its
 * sums. -EINVAL if the table holds a sum already. Does not take the sums in `extents`. -ENOMEM: the
 * table is unchanged. */
int checksum_add(checksum_table *self, const checksum_extent *extents, uint64_t count) MUST_CHECK;

/* The number of extents that have a sum. */
uint64_t checksum_count(const checksum_table *self);

/* Forgets the sums of all extents that overlap the range, for a caller that writes without the
 * lanes. */
void checksum_forget(checksum_table *self, uint64_t offset, uint64_t size_bytes);

/* Forgets the sums of all extents that overlap this one, then stores its sum. -ENOENT, after the
 * forgetting, if this is no extent of the programs. */
int checksum_put(checksum_table *self, const checksum_extent *extent) MUST_CHECK;

/* Compares `data`, read from the range, with the sums of all extents within it. ERR_CORRUPT without
 * a text: *expected is the first extent that differs and *found the sum of its bytes. */
int checksum_verify(const checksum_table *self, uint64_t offset, uint64_t size_bytes,
                    const void *data, checksum_extent *expected, uint64_t *found) MUST_CHECK;

#endif
