/* A gpt2-like model of any size with a tied head, as the planner's tests of large models take it:
 * numbers of the shapes alone. Homes, budgets, machine and update are the caller's. */
#ifndef SLUICE_TESTS_PLAN_LARGE_H
#define SLUICE_TESTS_PLAN_LARGE_H

#include <assert.h>

#include "base/shard.h"
#include "base/size.h"
#include "plan/plan.h"

enum { LARGE_UNITS_MAX = 130, LARGE_TOKENS = 1024 };

/* Forward and backward of one stage: the embedding, a block, or the head, which ties the
 * embedding. */
static inline void large_stage(plan_job *job, uint32_t u, uint64_t hidden, uint64_t *all_elems,
                               struct stage *stage, struct pass passes[2])
{
    bool head = u + 1 == job->unit_count, block = u > 0 && !head;
    uint64_t elems = u == 0 ? (50257 + LARGE_TOKENS) * hidden
                     : head ? 2 * hidden
                            : (12 * hidden + 13) * hidden;
    double products = u == 0 ? 0 : (double)(head ? all_elems[0] : elems);
    all_elems[u] = size_round_up(elems, SHARD_ELEMS_STEP);
    struct pass *forward = &passes[0], *backward = &passes[1];
    *forward = (struct pass){.units = {u, 0},
                             .unit_count = head ? 2 : 1,
                             .reads_params = {true, head},
                             .input = u > 0 ? ACCESS_READ : 0,
                             .output = head ? 0 : ACCESS_WRITE,
                             .losses = head ? ACCESS_WRITE : 0,
                             .flops = 2.0 * LARGE_TOKENS * products,
                             .dram_bytes = 2 * elems};
    *backward = *forward;
    backward->reads_params[0] = u > 0;
    backward->adds_grads[0] = true;
    backward->adds_grads[1] = head;
    backward->output = 0;
    backward->output_grad = head ? 0 : ACCESS_READ;
    backward->input_grad = u > 0 ? ACCESS_WRITE : 0;
    backward->flops = (block ? 8.0 : 6.0) * LARGE_TOKENS * products;
    backward->dram_bytes = 6 * elems;
    *stage = (struct stage){.passes = {forward, NULL, backward},
                            .pass_count = {1, 0, 1},
                            .saved_bytes = block ? LARGE_TOKENS * hidden * 34 : 0,
                            .selective_bytes = block ? LARGE_TOKENS * hidden * 20 : 0,
                            .recompute_flops = block ? 2.0 * LARGE_TOKENS * products : 0,
                            .recompute_dram_bytes = block ? 2 * elems : 0,
                            .selective_dram_bytes = block ? LARGE_TOKENS * hidden * 24 : 0};
}

/* Arrays of LARGE_UNITS_MAX, the caller's; they outlive the job. */
static inline void large_job_make(plan_job *job, uint64_t *elems, struct stage *stages,
                                  struct pass (*passes)[2], uint32_t layers, uint64_t hidden)
{
    job->unit_count = job->stage_count = layers + 2;
    assert(job->unit_count <= LARGE_UNITS_MAX);
    for (uint32_t u = 0; u < job->unit_count; u++)
        large_stage(job, u, hidden, elems, &stages[u], passes[u]);
    job->unit_elems = elems;
    job->stages = stages;
    job->micro_batch_count = 2;
    job->boundary_bytes = LARGE_TOKENS * hidden * 2;
    job->workspace_bytes = LARGE_TOKENS * hidden * 64;
    job->constants_bytes = 4096;
    job->tokens_bytes = 16384;
    job->losses_bytes = 8192;
    job->param_bytes = job->grad_bytes = 2;
    job->state_streams = 3;
    job->needs_save_places = true;
}

#endif
