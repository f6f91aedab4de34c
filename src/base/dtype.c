/* Element types. See dtype.h. */
#include "base/dtype.h"

#include <assert.h>

const char *dtype_name(enum dtype type)
{
    static const char *const names[DTYPE_COUNT] = {"fp32", "bf16", "fp16"};
    assert((unsigned)type < DTYPE_COUNT);
    return names[type];
}

float fp32_from_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t fraction = half & 0x3ffu;
    if (exponent == 0x1f)
        return fp32_from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0)
        return fp32_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float magnitude = (float)fraction * 0x1p-24f; /* exact: subnormal or zero */
    return fp32_from_bits(sign | fp32_bits(magnitude));
}

uint16_t fp16_from_fp32(float value)
{
    uint32_t bits = fp32_bits(value);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14: subnormal; adding 0.5 rounds at bit 2^-24 */
        float shifted = fp32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (fp32_bits(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

static float load_fp32(const void *source, enum dtype type, size_t i)
{
    if (type == DTYPE_FP32)
        return ((const float *)source)[i];
    uint16_t half = ((const uint16_t *)source)[i];
    return type == DTYPE_BF16 ? fp32_from_bf16(half) : fp32_from_fp16(half);
}

void dtype_convert(const void *source, enum dtype source_type, void *target, enum dtype target_type,
                   size_t count)
{
    if (source_type == target_type) {
        if (source != target)
            memcpy(target, source, count * dtype_bytes(source_type));
        return;
    }
    if (source_type == DTYPE_BF16 && target_type == DTYPE_FP32) { /* by vectors */
        for (size_t i = 0; i < count; i++)
            ((float *)target)[i] = fp32_from_bf16(((const uint16_t *)source)[i]);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        float value = load_fp32(source, source_type, i);
        if (target_type == DTYPE_FP32)
            ((float *)target)[i] = value;
        else
            ((uint16_t *)target)[i] =
                target_type == DTYPE_BF16 ? bf16_from_fp32(value) : fp16_from_fp32(value);
    }
}
