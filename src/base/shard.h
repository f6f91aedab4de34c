/* The parts of ranks: how a unit's flat vector is cut (ZeRO: arXiv 1910.02054), and the parcels of
 * an all-to-all.
 *
 *   unit    [0 ........................................ unit_elems) [zeros)
 *   shards  [rank 0       )[rank 1       )[rank 2       )[rank 3         )   shard_elems each
 *
 * Every unit is cut over all ranks, so that all links and drives work on each unit. Shards are
 * equal and end on multiples of SHARD_ELEMS_STEP. The last shards may reach beyond the unit; that
 * padding is zeros. No product reads the padding, every sum adds it, commits hold it, and a move to
 * another layout drops it. With one rank the shard is the unit. Pure. */
#ifndef SLUICE_BASE_SHARD_H
#define SLUICE_BASE_SHARD_H

#include <stdint.h>

#include "base/size.h"
#include "base/tile.h"

/* Elements of each rank's shard. `unit_elems` must be a multiple of SHARD_ELEMS_STEP. */
static inline uint64_t shard_elems(uint64_t unit_elems, uint32_t world)
{
    return size_round_up(size_div_up(unit_elems, world), SHARD_ELEMS_STEP);
}

/* Elements of all shards end to end: the size of a gathered unit, padding included. */
static inline uint64_t shard_whole_elems(uint64_t unit_elems, uint32_t world)
{
    return world * shard_elems(unit_elems, world);
}

/* First element of the rank's shard within the unit (or its padding). */
static inline uint64_t shard_begin(uint64_t unit_elems, uint32_t world, uint32_t rank)
{
    return rank * shard_elems(unit_elems, world);
}

/* How many of the elements [begin, begin + count) of the padded vector belong to the unit
 * itself. */
static inline uint64_t shard_real_elems(uint64_t unit_elems, uint64_t begin, uint64_t count)
{
    return begin >= unit_elems ? 0 : size_min(count, unit_elems - begin);
}

/* A rank's part of a buffer, as an all-to-all moves it (comm/comm.h). Tables of parcels, by rank,
 * lie in host memory, also if the buffers are a GPU's. */
enum { PARCEL_ALIGN_BYTES = 256 };

struct rank_parcel {
    uint64_t begin_bytes, size_bytes; /* from the start of the buffer */
};
typedef struct rank_parcel rank_parcel;

#endif
