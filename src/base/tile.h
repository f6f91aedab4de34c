/* The layout of one tile of optimizer state, the same on disk and in memory.
 *
 *                                  Adam              Lion              Adagrad           all [n] fp32
 *   offset 0                       master            master            master            (+ padding)
 *   offset 1 * tile_stream_stride  m, first moment   m, first moment   v, sum of squares
 *   offset 2 * tile_stream_stride  v, second moment
 *
 * The streams are skewed against each other by TILE_SKEW_BYTES beyond a multiple of TILE_PERIOD_BYTES:
 * Adam walks all of them at once, and streams at equal power-of-two distances fall into the same cache
 * sets, which costs up to three times (8 KiB of skew cures it, one 4 KiB page does not). Gradient and
 * 16-bit parameter buffers take the remaining residues modulo TILE_PERIOD_BYTES. Pure; any thread. */
#ifndef SLUICE_BASE_TILE_H
#define SLUICE_BASE_TILE_H

#include <stdint.h>

#include "base/size.h"

enum {
    TILE_PERIOD_BYTES = 65536,
    TILE_SKEW_BYTES = 16384,
    TILE_BLOCK_BYTES = 4096,          /* what two extents never share */
    TILE_RESIDUE_STATE = 0,           /* address modulo TILE_PERIOD_BYTES of a tile (its master) */
    TILE_RESIDUE_GRADS = 49152,       /* of a gradient buffer: 3 * TILE_SKEW_BYTES */
    TILE_RESIDUE_PARAMS = 57344,      /* of a working-copy buffer: midway to the next stream */
    TILE_ELEMS_STEP = 32768,          /* tiles but a unit's last are multiples: residues survive */
    TILE_STREAMS_MAX = 3,             /* of Adam; Lion and Adagrad have 2 */
    SHARD_ELEMS_STEP = 4096,          /* shards, units and norm blocks end on multiples of this */
};

/* Bytes from the start of one stream to the next in a tile of `elems` elements. */
static inline uint64_t tile_stream_stride(uint64_t elems)
{
    return size_round_up(4 * elems, TILE_PERIOD_BYTES) + TILE_SKEW_BYTES;
}

/* Bytes of a whole tile of `streams` streams of `elems` elements, a multiple of TILE_BLOCK_BYTES. */
static inline uint64_t tile_bytes(uint64_t elems, uint32_t streams)
{
    return (streams - 1) * tile_stream_stride(elems) + size_round_up(4 * elems, TILE_BLOCK_BYTES);
}

/* Bytes between the starts of two full tiles of `tile_elems` that lie one after the other: keeps the
 * residue TILE_RESIDUE_STATE. */
static inline uint64_t tile_pitch(uint64_t tile_elems, uint32_t streams)
{
    return size_round_up(tile_bytes(tile_elems, streams), TILE_PERIOD_BYTES);
}

static inline uint64_t tile_count(uint64_t unit_elems, uint64_t tile_elems)
{
    return size_div_up(unit_elems, tile_elems);
}

/* Elements of tile `tile_idx` of a unit. */
static inline uint64_t tile_elems_at(uint64_t unit_elems, uint64_t tile_elems, uint64_t tile_idx)
{
    return size_min(tile_elems, unit_elems - tile_idx * tile_elems);
}

/* Bytes of all tiles of a unit at tile_pitch, its last tile cut to its own length. */
static inline uint64_t tile_unit_bytes(uint64_t unit_elems, uint64_t tile_elems, uint32_t streams)
{
    uint64_t count = tile_count(unit_elems, tile_elems);
    uint64_t last_elems = tile_elems_at(unit_elems, tile_elems, count - 1);
    return (count - 1) * tile_pitch(tile_elems, streams) + tile_bytes(last_elems, streams);
}

#endif
