/* Element types and their conversions, the same bits on every machine. Pure; any thread.
 *
 * bf16 conversions are integer arithmetic everywhere: the hardware instruction (vcvtneps2bf16)
 * flushes subnormals, which would make results depend on the CPU. */
#ifndef SLUICE_BASE_DTYPE_H
#define SLUICE_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype {
    DTYPE_FP32, /* IEEE binary32 */
    DTYPE_BF16, /* upper half of binary32 */
    DTYPE_FP16, /* IEEE binary16 */
    DTYPE_COUNT
};

/* Bytes of one element. */
static inline size_t dtype_bytes(enum dtype type)
{
    return type == DTYPE_FP32 ? 4 : 2;
}

const char *dtype_name(enum dtype type); /* "fp32", "bf16", "fp16" */

static inline uint32_t fp32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float fp32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float fp32_from_bf16(uint16_t half)
{
    return fp32_from_bits((uint32_t)half << 16);
}

/* Round to nearest, ties to even; NaN stays NaN (quieted). For activations and gradients. */
static inline uint16_t bf16_from_fp32(float value)
{
    uint32_t bits = fp32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Round half away from zero, (u + 0x8000) >> 16: the working copy of a master weight. With it the
 * low 16 bits of the master restore the master exactly. NaN stays NaN. */
static inline uint16_t bf16_working_copy(float master)
{
    uint32_t bits = fp32_bits(master);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x8000u) >> 16);
}

/* The low 16 bits of a master, which bf16_working_copy drops. The master must not be NaN. */
static inline uint16_t master_low16(float master)
{
    return (uint16_t)fp32_bits(master);
}

/* All 32 bits of the master from a working copy and the low bits. If the low bits are 0x8000 or
 * more, the working copy was rounded up in magnitude, so they count as negative. */
static inline float master_join(uint16_t working_copy, uint16_t low)
{
    return fp32_from_bits(((uint32_t)working_copy << 16) + (uint32_t)(int32_t)(int16_t)low);
}

float fp32_from_fp16(uint16_t half);
/* nearest even; overflow gives infinity; subnormals are kept */
uint16_t fp16_from_fp32(float value);

/* Converts count elements; source and target may not overlap unless they are equal in type and
 * address. Rounding is to nearest even. */
void dtype_convert(const void *source, enum dtype source_type, void *target, enum dtype target_type,
                   size_t count);

#endif
