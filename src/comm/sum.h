/* The loops of the exchange: rounding to the wire type, and sums in rank order.
 *
 * One body (sum.c) is compiled per instruction set. All of them give the same bits: conversions use
 * integer arithmetic (as src/base/dtype.h), and each element and rank takes one IEEE addition.
 * Pure; any thread; nothing is allocated. `wire` is the type in which a contribution travels. */
#ifndef SLUICE_COMM_SUM_H
#define SLUICE_COMM_SUM_H

#include <stddef.h>

#include "base/cpu.h"
#include "base/dtype.h"

enum { SUM_BLOCK_ELEMS = 4096 }; /* a block of one call stays in the first-level cache */

struct sum_loops {
    /* Rounds source [count] fp32 to nearest even into target [count] of `wire`. No overlap. */
    void (*pack)(const float *source, void *target, enum dtype wire, size_t count);
    /* total [count] fp32 = values [count] of `wire` if is_first, otherwise total + values. */
    void (*add)(float *total, const void *values, enum dtype wire, size_t count, int is_first);
    /* The same as pack followed by add: a rank's own contribution is rounded as if it had
     * travelled. */
    void (*add_own)(float *total, const float *values, enum dtype wire, size_t count, int is_first);
};
typedef struct sum_loops sum_loops;

/* The loops for a CPU that has `isa`. */
const sum_loops *sum_loops_of(enum cpu_isa isa);

#endif
