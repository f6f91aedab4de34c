/* How long the kernels of a pass take on a machine that was measured.
 *
 * A matrix product takes
 *
 *   (per flop * flops + per byte * bytes of its operands + fixed) * correction
 *
 * The three terms are fitted to the machine's measured points: least squares of relative errors,
 * none below 0. Forward products, gradients of inputs and gradients of weights have a fit each. The
 * correction is the factor by which the points near this shape took longer than the fit. So at a
 * measured point the result is the measured time, and far from all points it is the fit.
 *
 * The times of row-wise kernels follow by fixed ratios from the one kernel mix that machines are
 * measured with. Attention is priced by its flops. Pure; no memory. */
#ifndef SLUICE_SETUP_PASS_COSTS_H
#define SLUICE_SETUP_PASS_COSTS_H

#include <stdbool.h>

#include "config/machine.h"
#include "model/costs.h"

enum { COSTS_TERMS = 3 };

enum cost_kind {
    COST_FORWARD, /* the second operand is transposed, as weights are stored */
    COST_INPUT,   /* no operand is transposed, nothing is added */
    COST_WEIGHT,  /* the result is added to fp32 gradients */
    COST_KIND_COUNT
};

struct cost_fit {
    double terms[COSTS_TERMS]; /* seconds per flop, per byte, per product */
    uint32_t count;            /* of points */
    struct cost_point {
        double at[3];      /* log of m, n, k */
        double correction; /* log of measured / fitted */
    } points[MACHINE_PRODUCTS_MAX];
};
typedef struct cost_fit cost_fit;

struct costs {
    /* the machine has measured points of this dtype */
    bool is_known;
    /* on a GPU all row-wise kernels are bound by memory */
    bool is_gpu;
    /* a kind without points has the fit of another kind */
    cost_fit fits[COST_KIND_COUNT];
    double attention_forward, attention_backward; /* flops per second */
    double row_rate; /* bytes per second of row-wise kernels; 0: unknown, they cost nothing */
};
typedef struct costs costs;

/* Makes *out from the machine's measurements with operands of `type`. */
void costs_learn(const machine *from, enum dtype type, costs *out);

/* Seconds of one product, and of a list of kernels. 0 if is_known is false. */
double costs_of_product(const costs *self, const model_cost_product *item);
double costs_of_kernels(const costs *self, const model_costs *kernels);

#endif
