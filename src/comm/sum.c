/* The loops of sum.h. CMake compiles this file once for every CPU and, on x86-64, once more per
 * instruction set, with SUM_LOOPS, the symbol of the table. The loops have no branches, so that the
 * compiler can vectorize them. */
#include "comm/sum.h"

#include <string.h>

/* The tables: for every CPU, and those of x86-64. */
extern const sum_loops sumi_base, sumi_avx2, sumi_avx512;

#ifndef SUM_LOOPS
#define SUM_LOOPS sumi_base

const sum_loops *sum_loops_of(enum cpu_isa isa)
{
#ifdef __x86_64__
    if (isa >= CPU_AVX512)
        return &sumi_avx512;
    if (isa >= CPU_AVX2)
        return &sumi_avx2;
#endif
    (void)isa;
    return &sumi_base;
}
#endif

static inline uint16_t to_bf16(float value)
{
    uint32_t bits = fp32_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* fp16_from_fp32 of base/dtype.c without branches: it computes all cases and selects one. */
static inline uint16_t to_fp16(float value)
{
    uint32_t bits = fp32_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t tiny = fp32_bits(fp32_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t half = ((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
    half = magnitude < 0x38800000u ? tiny : half;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : half;
    return (uint16_t)(sign | half);
}

static inline float from_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7fffu;
    uint32_t bits = (magnitude << 13) + (112u << 23);
    uint32_t tiny = fp32_bits((float)(int32_t)magnitude * 0x1p-24f); /* exact */
    bits = magnitude < 0x400u ? tiny : bits;
    bits = magnitude >= 0x7c00u ? 0x7f800000u | (magnitude << 13) : bits;
    return fp32_from_bits(sign | bits);
}

static void pack(const float *restrict source, void *restrict target, enum dtype wire, size_t count)
{
    uint16_t *restrict halves = target;
    if (wire == DTYPE_FP32)
        memcpy(target, source, count * sizeof *source);
    else if (wire == DTYPE_BF16)
        for (size_t i = 0; i < count; i++)
            halves[i] = to_bf16(source[i]);
    else
        for (size_t i = 0; i < count; i++)
            halves[i] = to_fp16(source[i]);
}

static void widen(float *restrict total, const uint16_t *restrict halves, enum dtype wire,
                  size_t count)
{
    if (wire == DTYPE_BF16)
        for (size_t i = 0; i < count; i++)
            total[i] = fp32_from_bf16(halves[i]);
    else
        for (size_t i = 0; i < count; i++)
            total[i] = from_fp16(halves[i]);
}

static void add(float *restrict total, const void *restrict values, enum dtype wire, size_t count,
                int is_first)
{
    const float *restrict floats = values;
    const uint16_t *restrict halves = values;
    if (is_first && wire == DTYPE_FP32)
        memcpy(total, values, count * sizeof *total);
    else if (is_first)
        widen(total, halves, wire, count);
    else if (wire == DTYPE_FP32)
        for (size_t i = 0; i < count; i++)
            total[i] += floats[i];
    else if (wire == DTYPE_BF16)
        for (size_t i = 0; i < count; i++)
            total[i] += fp32_from_bf16(halves[i]);
    else
        for (size_t i = 0; i < count; i++)
            total[i] += from_fp16(halves[i]);
}

static void add_own(float *restrict total, const float *restrict values, enum dtype wire,
                    size_t count, int is_first)
{
    if (wire == DTYPE_FP32) {
        add(total, values, wire, count, is_first);
    } else if (wire == DTYPE_BF16) {
        if (is_first)
            for (size_t i = 0; i < count; i++)
                total[i] = fp32_from_bf16(to_bf16(values[i]));
        else
            for (size_t i = 0; i < count; i++)
                total[i] += fp32_from_bf16(to_bf16(values[i]));
    } else {
        if (is_first)
            for (size_t i = 0; i < count; i++)
                total[i] = from_fp16(to_fp16(values[i]));
        else
            for (size_t i = 0; i < count; i++)
                total[i] += from_fp16(to_fp16(values[i]));
    }
}

const sum_loops SUM_LOOPS = {.pack = pack, .add = add, .add_own = add_own};
