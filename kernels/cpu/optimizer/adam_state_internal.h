/* Shared by the files of Adam on packed state: constants, and the scalar form of the definitions at
 * the head of adam_state.c. The CUDA backend gives the same bits; it uses the constants, the two
 * words of struct adami_rounding and the check from here. Valid as C. The parts outside of #ifndef
 * __cplusplus are also valid as C++. */
#ifndef SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_STATE_INTERNAL_H
#define SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_STATE_INTERNAL_H

#include "base/rng.h"
#include "kernels/cpu/optimizer/adam_internal.h"

/* The multipliers of the integer mix (found by Wellons, 2018, in a search for mixes of small
 * bias). */
#define ADAMI_MIX_FIRST  0x7feb352du
#define ADAMI_MIX_SECOND 0x846ca68bu

/* 8-bit codes. The mantissa has three bits, which begin at bit 20 of an fp32. The base is the value
 * of code 0 before the base is subtracted: 2^-16 for m (seven bits of code beside the sign) and
 * 2^-32 for v (eight bits). */
#define ADAMI_CODE_SHIFT  20
#define ADAMI_CODE_M_BASE 0x37800000u
#define ADAMI_CODE_V_BASE 0x2f800000u
#define ADAMI_CODE_M_TOP  0x7fu
#define ADAMI_CODE_V_TOP  0xffu
#define ADAMI_CODE_SIGN   0x80u
/* The scale of a block whose largest magnitude is 1, as fp32: 1 / (value of the top code). */
#define ADAMI_CODE_M_SCALE 0x3f88891au /* 1 / (15/16 - 2^-16) */
#define ADAMI_CODE_V_SCALE 0x3f888889u /* 1 / (15/16) */
/* 2^-126: a block whose largest magnitude is below it gets scale 0 and codes 0. */
#define ADAMI_CODE_LARGEST_MIN 0x00800000u

/* The random bits of a call depend on these two words and on the number of the element. */
struct adami_rounding {
    /* first is added before the mix; second is exclusive-ored in its middle */
    uint32_t first, second;
    uint32_t elem; /* lower 32 bits of the number of the tile's element 0 */
};
typedef struct adami_rounding adami_rounding;

#ifndef __cplusplus

/* The rounding for the elements whose number has the same upper 32 bits as first_elem. */
static inline adami_rounding adami_rounding_at(uint64_t rounding_key, uint64_t first_elem)
{
    uint32_t words[4];
    rng_block(rounding_key, 0x61646d2d726e6421u, first_elem >> 32, words);
    return (adami_rounding){words[0], words[1], (uint32_t)first_elem};
}

/* The address in stream `idx` of a tile at which element `elem` begins; elem is a multiple of
 * TILE_CODE_BLOCK_ELEMS. */
static inline void *adami_stream_at(const update_args *args, uint32_t idx, uint64_t elem)
{
    void *const streams[] = {args->master, args->m, args->v};
    return (char *)streams[idx] + tile_format_bytes(tile_stream_format(args->streams, idx), elem);
}

/* The address of the code of element i, and that of the scale of its block. */
static inline uint8_t *adami_codes_at(void *stream, uint64_t i)
{
    return (uint8_t *)stream + i / TILE_CODE_BLOCK_ELEMS * TILE_CODE_BLOCK_BYTES +
           i % TILE_CODE_BLOCK_ELEMS;
}

static inline float *adami_scale_at(void *stream, uint64_t i)
{
    uint8_t *codes = adami_codes_at(stream, i - i % TILE_CODE_BLOCK_ELEMS);
    return (float *)(codes + TILE_CODE_BLOCK_ELEMS) + i % TILE_CODE_BLOCK_ELEMS / TILE_SCALE_ELEMS;
}

/* The part of a call for elements [begin, begin + count); begin is a multiple of
 * TILE_CODE_BLOCK_ELEMS. */
static inline update_args adami_packed_part(const update_args *args, uint64_t begin, uint64_t count)
{
    update_args part = *args;
    part.count = count;
    part.first_elem += begin;
    part.master = adami_stream_at(args, 0, begin);
    part.m = adami_stream_at(args, 1, begin);
    part.v = adami_stream_at(args, 2, begin);
    part.grads = (const char *)args->grads + begin * dtype_bytes(args->grad_type);
    part.params = (char *)args->params + begin * dtype_bytes(args->param_type);
    return part;
}

/* The number of elements of a call before the upper half of the element number changes. It is the
 * whole call, except in a unit of more than 2^32 elements. */
static inline uint64_t adami_packed_run(const update_args *args)
{
    uint64_t left = ((uint64_t)1 << 32) - (uint32_t)args->first_elem;
    return size_min(args->count, left);
}

/* Returns ERR_INTERNAL if there is no kernel for args. */
static inline MUST_CHECK int adami_packed_check(const update_args *args)
{
    uint32_t streams = args->streams;
    bool is_known = args->rule == UPDATE_ADAM && tile_streams_is_valid(streams) &&
                    tile_stream_count(streams) == 3 &&
                    tile_stream_format(streams, 0) != TILE_BF16 &&
                    tile_stream_format(streams, 0) != TILE_INT8 &&
                    tile_stream_format(streams, 1) != TILE_LOW16 &&
                    tile_stream_format(streams, 2) != TILE_LOW16;
    if (!is_known)
        return err_set(ERR_INTERNAL,
                       "no optimizer has a kernel for the tile streams 0x%08x by rule %d", streams,
                       (int)args->rule);
    if (tile_master_is_split(streams) && args->param_type != DTYPE_BF16)
        return err_set(ERR_INTERNAL, "a split master needs a bf16 working copy, not %s",
                       dtype_name(args->param_type));
    if (args->first_elem % TILE_CODE_BLOCK_ELEMS != 0)
        return err_set(ERR_INTERNAL,
                       "a tile of packed state begins at element %llu, which is not a "
                       "multiple of %d",
                       (unsigned long long)args->first_elem, TILE_CODE_BLOCK_ELEMS);
    return 0;
}

/* The 32 random bits of an element: the lower half is for m, the upper half for v. */
static inline uint32_t adami_random_bits(const adami_rounding *rounding, uint64_t i)
{
    uint32_t x = rounding->elem + (uint32_t)i + rounding->first;
    x = (x ^ x >> 16) * ADAMI_MIX_FIRST;
    x = (x ^ x >> 15 ^ rounding->second) * ADAMI_MIX_SECOND;
    return x ^ x >> 16;
}

/* `value` is not NaN, or has the bits ADAMI_QUIET_NAN_BITS. */
static inline uint16_t adami_round_bf16(float value, uint32_t random16)
{
    return (uint16_t)((fp32_bits(value) + random16) >> 16);
}

/* The scale of a block, computed from the bits of its largest magnitude. top_scale is
 * ADAMI_CODE_M_SCALE or ADAMI_CODE_V_SCALE. */
static inline float adami_block_scale(uint32_t largest_bits, uint32_t top_scale)
{
    if (largest_bits < ADAMI_CODE_LARGEST_MIN)
        return 0;
    float scale = fp32_from_bits(largest_bits) * fp32_from_bits(top_scale);
    return fp32_bits(scale) < 0x7f800000u ? scale : fp32_from_bits(ADAMI_QUIET_NAN_BITS);
}

/* The code of a magnitude without its sign, in a block whose scale is neither 0 nor NaN; inverse is
 * 1 / scale. */
static inline uint32_t adami_encode(float magnitude, float inverse, uint32_t base,
                                    uint32_t random16)
{
    uint32_t bits = fp32_bits(fmaf(magnitude, inverse, fp32_from_bits(base)));
    return ((bits + (random16 << 4 | 8)) >> ADAMI_CODE_SHIFT) - (base >> ADAMI_CODE_SHIFT);
}

static inline float adami_decode(uint32_t code, float scale, uint32_t base)
{
    return (fp32_from_bits((code << ADAMI_CODE_SHIFT) + base) - fp32_from_bits(base)) * scale;
}

#endif
#endif
