/* How long the kernels of a pass take on a machine that was measured.
 *
 * A matrix product takes
 *
 *   (per flop * flops + per byte * bytes of its operands + fixed) * correction
 *
 * The three terms are fitted to the machine's points (least squares of relative errors, none below
 * 0), apart for forward products, gradients of inputs and gradients of weights. The correction is
 * what the points near this shape took beyond the fit: at a point the measured time comes back, far
 * from all points the fit.
 *
 * Row-wise kernels are derived from the one that machines are measured with by fixed ratios;
 * attention by its flops. Pure; no memory. */
#ifndef SLUICE_SETUP_PASS_COSTS_H
#define SLUICE_SETUP_PASS_COSTS_H

#include <stdbool.h>

#include "config/machine.h"
#include "model/model.h"

enum { COSTS_TERMS = 3 };

enum cost_kind {
    COST_FORWARD, /* the second operand transposed, as weights are stored */
    COST_INPUT,   /* neither */
    COST_WEIGHT,  /* added to fp32 */
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
    bool is_known;                                /* there are points of the type */
    bool is_gpu;                                  /* row-wise kernels are bound by memory */
    cost_fit fits[COST_KIND_COUNT];               /* of a kind without points: another's */
    double attention_forward, attention_backward; /* flops per second */
    double row_rate; /* bytes per second; 0: unknown, they cost nothing */
};
typedef struct costs costs;

/* What the machine says of operands of `type`. */
void costs_learn(const machine *from, enum dtype type, costs *out);

/* Seconds of one product, of a list of kernels. 0 where is_known is false. */
double costs_of_product(const costs *self, const model_cost_product *item);
double costs_of_kernels(const costs *self, const model_costs *kernels);

#endif
