/* Sizes: overflow-checked arithmetic, rounding, and text such as "16GiB". Pure; any thread. */
#ifndef SLUICE_BASE_SIZE_H
#define SLUICE_BASE_SIZE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* *out = a * b or a + b. If that does not fit: -EOVERFLOW with the error set, and *out = 0. */
int size_mul(uint64_t a, uint64_t b, uint64_t *out) MUST_CHECK;
int size_add(uint64_t a, uint64_t b, uint64_t *out) MUST_CHECK;

/* The smallest multiple of `step` (> 0) that is at least `value`. The caller knows that it fits. */
static inline uint64_t size_round_up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

static inline uint64_t size_div_up(uint64_t value, uint64_t step)
{
    return value / step + (value % step != 0);
}

static inline uint64_t size_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t size_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Reads a byte count: a number with an optional unit B, K/KB/KiB, M/MB/MiB, G/GB/GiB, T/TB/TiB, any
 * case. KB is 1000 bytes, KiB and the bare letter K are 1024. Fractions are allowed ("1.5GiB") and
 * rounded down to a byte. -EINVAL for anything else, -EOVERFLOW above 2^63. */
int size_parse(const char *text, uint64_t *bytes) MUST_CHECK;

enum { SIZE_TEXT_BYTES = 32 };

/* Writes a byte count for people: "512 B", "1.50 GiB". Returns `text`. */
char *size_format(uint64_t bytes, char text[SIZE_TEXT_BYTES]);

#endif
