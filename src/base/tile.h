/* The layout of one tile of optimizer state, the same on disk and in memory.
 *
 *   stream  Adam              Lion              Adagrad            stored as
 *   0       master            master            master             fp32; split: 2 or 0 bytes
 *   1       m, first moment   m, first moment   v, sum of squares  fp32; Adam's m also bf16, 8-bit
 *   2       v, second moment                                       fp32, bf16 or 8-bit
 *
 * Muon has Lion's streams in units that hold only matrices of blocks, and Adam's in all others.
 *
 * Each stream has n elements, begins at tile_stream_offset, and is padded. One number, the streams
 * code (tile_streams_code), says how many streams a tile has and how each stores its elements. If
 * all streams are fp32, the code is their count.
 *
 * Each stream begins TILE_SKEW_BYTES beyond a multiple of TILE_PERIOD_BYTES after the one before.
 * Adam walks all streams at once, and streams at equal power-of-two distances fall into the same
 * cache sets, which costs up to three times the time (8 KiB of skew cures it, one 4 KiB page does
 * not). Gradient and 16-bit parameter buffers take the remaining residues modulo TILE_PERIOD_BYTES.
 * Pure; any thread. */
#ifndef SLUICE_BASE_TILE_H
#define SLUICE_BASE_TILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/size.h"

enum {
    TILE_PERIOD_BYTES = 65536,
    TILE_SKEW_BYTES = 16384,
    TILE_BLOCK_BYTES = 4096,     /* two extents never share a block of this size */
    TILE_RESIDUE_STATE = 0,      /* address modulo TILE_PERIOD_BYTES of a tile (its master) */
    TILE_RESIDUE_GRADS = 49152,  /* of a gradient buffer: 3 * TILE_SKEW_BYTES */
    TILE_RESIDUE_PARAMS = 57344, /* of a working-copy buffer: midway to the next stream */
    /* all tiles of a unit but its last are multiples: residues stay equal */
    TILE_ELEMS_STEP = 32768,
    TILE_STREAMS_MAX = 3,    /* Adam has 3; Lion and Adagrad have 2 */
    TILE_MATRIX_STREAMS = 2, /* the streams code of units of which Muon updates all: fp32 */
    SHARD_ELEMS_STEP = 4096, /* shards, units and norm blocks end on multiples of this */

    /* TILE_INT8: a block of 4096 codes of one byte, then the block's 16 fp32 scales. */
    TILE_SCALE_ELEMS = 256, /* elements that share a scale */
    TILE_CODE_BLOCK_ELEMS = SHARD_ELEMS_STEP,
    TILE_CODE_BLOCK_BYTES = TILE_CODE_BLOCK_ELEMS + 4 * (TILE_CODE_BLOCK_ELEMS / TILE_SCALE_ELEMS),
};

/* How one stream stores its elements. The values are stored in manifests. */
enum tile_format {
    TILE_FP32 = 0,
    TILE_BF16 = 1,
    /* the low half of an fp32 master whose high half is the bf16 working copy: master_low16 and
     * master_join in base/dtype.h */
    TILE_LOW16 = 2,
    TILE_INT8 = 3, /* block-wise 8-bit codes with scales */
    /* only for a master, which has no bytes here: it is the fp32 working copy */
    TILE_PARAMS = 4,
    TILE_FORMAT_COUNT,
};

/* "fp32", "bf16", "low16", "int8", "params". */
static inline const char *tile_format_name(enum tile_format format)
{
    static const char *const names[] = {"fp32", "bf16", "low16", "int8", "params"};
    return (unsigned)format < TILE_FORMAT_COUNT ? names[format] : "unknown";
}

/* The streams code of a tile: bits 0 to 7 hold the count of streams, and the 8 bits from 8 + 8 i on
 * hold the format of stream i. Formats of absent streams are 0. */
static inline uint32_t tile_streams_code(uint32_t count, enum tile_format first,
                                         enum tile_format second, enum tile_format third)
{
    return count | (uint32_t)first << 8 | (uint32_t)second << 16 | (uint32_t)third << 24;
}

static inline uint32_t tile_stream_count(uint32_t streams)
{
    return streams & 0xff;
}

static inline enum tile_format tile_stream_format(uint32_t streams, uint32_t idx)
{
    return (enum tile_format)(streams >> (8 + 8 * idx) & 0xff);
}

/* True if any stream is not fp32. */
static inline bool tile_has_formats(uint32_t streams)
{
    return streams > 0xff;
}

/* True if stream `idx` of `count` can have this format; which of them an optimizer has, its kernels
 * know. */
static inline bool tile_format_is_possible(uint32_t idx, uint32_t count, enum tile_format format)
{
    if (idx >= count)
        return format == TILE_FP32; /* it is absent */
    return format < TILE_FORMAT_COUNT && (format != TILE_PARAMS || idx == 0);
}

/* True if tile_streams_code could have made this code (read from a file) with at least two
 * streams. */
static inline bool tile_streams_is_valid(uint32_t streams)
{
    uint32_t count = tile_stream_count(streams);
    if (count < 2 || count > TILE_STREAMS_MAX)
        return false;
    for (uint32_t i = 0; i < TILE_STREAMS_MAX; i++)
        if (!tile_format_is_possible(i, count, tile_stream_format(streams, i)))
            return false;
    return true;
}

/* True if stream 0 holds only the low halves of masters, or nothing of them. The working copy is
 * then part of the state: it is the high halves, or the masters themselves. Other comments speak of
 * halves in both cases; in the second one the low halves have no bytes. */
static inline bool tile_master_is_split(uint32_t streams)
{
    enum tile_format master = tile_stream_format(streams, 0);
    return master == TILE_LOW16 || master == TILE_PARAMS;
}

/* Bytes of an element of the working copy beside a split master. */
static inline uint32_t tile_high_bytes(uint32_t streams)
{
    return tile_stream_format(streams, 0) == TILE_PARAMS ? 4 : 2;
}

/* The streams code as kernels take it: a master that is the working copy is one of fp32. */
static inline uint32_t tile_kernel_streams(uint32_t streams)
{
    return tile_stream_format(streams, 0) == TILE_PARAMS ? streams - ((uint32_t)TILE_PARAMS << 8)
                                                         : streams;
}

/* Bytes of `elems` elements of a stream, without padding; for TILE_INT8 a whole number of code
 * blocks. */
static inline uint64_t tile_format_bytes(enum tile_format format, uint64_t elems)
{
    switch (format) {
    case TILE_BF16:
    case TILE_LOW16:
        return 2 * elems;
    case TILE_PARAMS:
        return 0;
    case TILE_INT8:
        return size_div_up(elems, TILE_CODE_BLOCK_ELEMS) * TILE_CODE_BLOCK_BYTES;
    default:
        return 4 * elems;
    }
}

/* Bytes that `elems` elements of all streams of a tile take, without padding. */
static inline uint64_t tile_state_bytes(uint32_t streams, uint64_t elems)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < tile_stream_count(streams); i++)
        bytes += tile_format_bytes(tile_stream_format(streams, i), elems);
    return bytes;
}

/* Bytes that `elems` elements of stream `idx` take, without padding. */
static inline uint64_t tile_stream_bytes(uint32_t streams, uint64_t elems, uint32_t idx)
{
    return tile_format_bytes(tile_stream_format(streams, idx), elems);
}

/* Bytes from the start of an fp32 stream of `elems` elements to the next stream. */
static inline uint64_t tile_stream_stride(uint64_t elems)
{
    return size_round_up(4 * elems, TILE_PERIOD_BYTES) + TILE_SKEW_BYTES;
}

/* Bytes from the start of a tile of `elems` elements to its stream `idx`. */
static inline uint64_t tile_stream_offset(uint32_t streams, uint64_t elems, uint32_t idx)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < idx; i++)
        offset += size_round_up(tile_format_bytes(tile_stream_format(streams, i), elems),
                                TILE_PERIOD_BYTES) +
                  TILE_SKEW_BYTES;
    return offset;
}

/* Bytes of a whole tile of `elems` elements, a multiple of TILE_BLOCK_BYTES. */
static inline uint64_t tile_bytes(uint64_t elems, uint32_t streams)
{
    uint32_t last = tile_stream_count(streams) - 1;
    return tile_stream_offset(streams, elems, last) +
           size_round_up(tile_format_bytes(tile_stream_format(streams, last), elems),
                         TILE_BLOCK_BYTES);
}

/* Bytes between the starts of two adjacent full tiles of `tile_elems`. Each tile keeps the residue
 * TILE_RESIDUE_STATE. */
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

/* Bytes of all tiles of a unit at tile_pitch; its last tile has its own length. */
static inline uint64_t tile_unit_bytes(uint64_t unit_elems, uint64_t tile_elems, uint32_t streams)
{
    uint64_t count = tile_count(unit_elems, tile_elems);
    uint64_t last_elems = tile_elems_at(unit_elems, tile_elems, count - 1);
    return (count - 1) * tile_pitch(tile_elems, streams) + tile_bytes(last_elems, streams);
}

#endif
