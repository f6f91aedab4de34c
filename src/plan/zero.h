/* Formulas that the field computes by hand: ZeRO's for memory and volume, and from how many tokens
 * a step on a transfer hides behind computing. `sluice plan --table zero` prints the papers'
 * tables from them. The planner counts every buffer and agrees with them up to padding
 * (tests/plan/test_plan_zero.c).
 *
 *   stage   optimizer   grads   params    bytes of a rank                  sent, elements
 *     0       whole     whole    whole    (2 + 2 + K) P                    2P
 *     1       1 / N     whole    whole    (2 + 2) P + K P / N              2P
 *     2       1 / N     1 / N    whole    2 P + (2 + K) P / N              2P
 *     3       1 / N     1 / N    1 / N    (2 + 2 + K) P / N                3P
 *
 * P parameters, N ranks, K bytes of optimizer state per parameter.
 *
 * Sources: Rajbhandari et al., "ZeRO", 2019, sections 3 and 5, tables 1 and 2; "ZeRO-Infinity",
 * 2021, section 4. Pure. Counts are real numbers: no padding, no rounding. */
#ifndef SLUICE_PLAN_ZERO_H
#define SLUICE_PLAN_ZERO_H

#include <stdint.h>

enum { ZERO_STAGE_COUNT = 4 };

/* Bytes of each parameter's states. */
struct zero_states {
    double params, grads, optimizer;
};
typedef struct zero_states zero_states;

/* 16-bit params and gradients; Adam's fp32 master, first and second moment: 2, 2, 12. */
zero_states zero_mixed_adam(void);

/* Bytes of model states on each of `ranks` ranks. `stage` 0 to 3, ranks from 1. */
double zero_rank_bytes(const zero_states *each, uint32_t stage, double param_count, uint32_t ranks);

/* The most parameters whose states lie in `rank_bytes` on each of `ranks` ranks. */
double zero_params_max(const zero_states *each, uint32_t stage, double rank_bytes, uint32_t ranks);

/* Elements that each of many ranks sends in a step, per parameter: one reduce-scatter and one
 * all-gather, with stage 3 two all-gathers. With N ranks it is (N - 1) / N of that. */
double zero_sent_elems(uint32_t stage);

/* T*: tokens of a step at which a resource that was needed for `fixed_seconds`, whatever the
 * tokens, and for `growing_seconds` in proportion to them is needed as long as computing takes,
 * which took `computing_seconds` in this step of `tokens` tokens. 0: at any number; INFINITY: at
 * none. With the traffic that ZeRO-Infinity counts, 8 bytes of a link for each parameter's params
 * and gradients and 32 for its optimizer state, and 8 flops of computing a token, this is peak /
 * bandwidth and 4 peak / bandwidth. */
double zero_hidden_tokens(double fixed_seconds, double growing_seconds, double computing_seconds,
                          double tokens);

#endif
