/* The loops of the exchange: rounding to the wire, and sums in rank order.
 *
 * One body (sum_body.h) compiled per instruction set; the bits are the same for all: integer
 * arithmetic for conversions (as src/base/dtype.h), one IEEE addition per element and rank. Pure;
 * any thread; nothing is allocated. `wire` is the type in which a contribution travels; `values`
 * then have that type. */
#ifndef SLUICE_COMM_SUM_H
#define SLUICE_COMM_SUM_H

#include <stddef.h>

#include "base/cpu.h"
#include "base/dtype.h"

enum { SUM_BLOCK_ELEMS = 4096 }; /* what a caller hands to one call stays in the first cache */

/* source [count] fp32, rounded to nearest even, to target [count] of `wire`. No overlap. */
typedef void sum_pack_function(const float *source, void *target, enum dtype wire, size_t count);

/* total [count] fp32 = values [count] of `wire` (is_first), or total + values. */
typedef void sum_add_function(float *total, const void *values, enum dtype wire, size_t count,
                              int is_first);

/* As sum_add of sum_pack of fp32 values: a rank's own contribution is rounded as if it had
 * travelled. */
typedef void sum_add_own_function(float *total, const float *values, enum dtype wire, size_t count,
                                  int is_first);

struct sum_loops {
    const char *name; /* "base", "avx2", "avx512" */
    sum_pack_function *pack;
    sum_add_function *add;
    sum_add_own_function *add_own;
};
typedef struct sum_loops sum_loops;

/* The loops for a CPU that has `isa`. */
const sum_loops *sum_loops_of(enum cpu_isa isa);

#endif
