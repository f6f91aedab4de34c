/* Routers and choices of experts for the tests of the CPU's and the CUDA backend's ops. */
#ifndef SLUICE_TESTS_KERNELS_EXPERTS_DRAW_H
#define SLUICE_TESTS_KERNELS_EXPERTS_DRAW_H

#include "base/rng.h"
#include "kernels/ops.h"

/* Choices of a case: 1, some, or all experts. */
static inline uint64_t choices_of(uint64_t experts, int which)
{
    return which == 0 ? 1 : which == 1 ? (experts + 2) / 3 : experts;
}

/* chosen[rows, choices]: K different experts for each row, ascending. Skewed: the same in all rows,
 * so that one expert has all of them and others have none. */
static inline void fill_chosen(int32_t *chosen, uint64_t seed, uint64_t rows, uint64_t experts,
                               uint64_t choices, bool is_skewed)
{
    for (uint64_t row = 0; row < rows; row++)
        for (uint64_t e = 0, k = 0; k < choices; e++) /* each set of experts is equally likely */
            if (is_skewed || rng_below(seed, 9, row * experts + e, experts - e) < choices - k)
                chosen[row * choices + k++] = (int32_t)e;
}

/* A router without arrays. variant bit 0: sigmoid; bit 1: normalized; bits 3-4: groups, by 1 or 2
 * values; bits 5-6: choices. Half of the variants have both losses. The caller uses bit 2: with a
 * bias. */
static inline router_args router_of(enum dtype type, uint64_t rows, uint64_t experts, int variant)
{
    int group_best = experts % 8 == 0 ? variant >> 3 & 3 : 0;
    bool has_losses = __builtin_popcount((unsigned)variant) % 2 == 1;
    return (router_args){
        .score = variant & 1 ? ROUTER_SIGMOID : ROUTER_SOFTMAX,
        .rows = rows,
        .experts = experts,
        .choices = choices_of(group_best ? experts / 2 : experts, variant >> 5 & 3),
        .groups = group_best ? 4 : 0,
        .groups_chosen = 2,
        .group_best = (uint32_t)group_best,
        .normalizes = variant & 2,
        .scale = 1.75f,
        .type = type,
        .balance_scale = has_losses ? 0.01f : 0.0f,
        .z_scale = has_losses ? 0.02f : 0.0f,
    };
}

#endif
