/* Random jobs of real shapes for the planner's tests: Gpt2- and llama-like models of some sizes on
 * machines of very different balance, with every placement, order, update and number of ranks. The
 * work and traffic of passes follow from the shapes. A job is a function of the seed alone.
 * (plan_fixture.h draws stranger models, of tiny units.) */
#ifndef SLUICE_TESTS_PLAN_FAMILY_H
#define SLUICE_TESTS_PLAN_FAMILY_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/plan.h"

enum { JOB_UNITS_MAX = 40 };

struct family_job {
    plan_job job;
    uint64_t elems[JOB_UNITS_MAX];
    struct stage stages[JOB_UNITS_MAX];
    struct pass passes[JOB_UNITS_MAX][2];
    uint8_t homes[STATE_KIND_COUNT][JOB_UNITS_MAX];
    uint8_t stays_gathered[JOB_UNITS_MAX];
    uint64_t hidden, tokens, vocabulary; /* tokens of a micro-batch */
    bool tied;
    uint64_t seed, counter;
};
typedef struct family_job family_job;

static inline uint64_t job_draw(family_job *f, uint64_t bound)
{
    return rng_below(f->seed, 91, f->counter++, bound);
}

/* Between the two, evenly by logarithm. */
static inline double job_draw_log(family_job *f, double least, double most)
{
    return least * pow(most / least, (double)job_draw(f, 1001) / 1000.0);
}

static inline void job_stage(family_job *f, uint32_t s, bool is_llama)
{
    bool is_embed = s == 0, is_head = s + 1 == f->job.stage_count;
    uint64_t c = f->hidden;
    uint64_t block = is_llama ? 12 * c * c + 2 * c : (12 * c + 13) * c;
    uint64_t table = f->vocabulary * c;
    uint64_t elems = is_embed ? table : is_head ? (f->tied ? 2 * c : table + c) : block;
    double tokens = (double)f->tokens;
    /* Products, and attention over sequences of 1024; the embedding's rows are copied. */
    double products = is_head ? 2.0 * (double)table * tokens : 2.0 * (double)block * tokens;
    double forward = is_embed ? 0 : products + (is_head ? 0 : 4.0 * 1024 * (double)c * tokens);
    uint64_t row_bytes = f->tokens * c * 4;
    struct pass *there = &f->passes[s][0], *back = &f->passes[s][1];
    f->elems[s] = size_round_up(elems, SHARD_ELEMS_STEP);
    bool both = is_head && f->tied;
    *there = (struct pass){.units = {s, 0},
                           .unit_count = both ? 2 : 1,
                           .reads_params = {true, both},
                           .input = is_embed ? 0 : ACCESS_READ,
                           .output = is_head ? 0 : ACCESS_WRITE,
                           .losses = is_head ? ACCESS_WRITE : 0,
                           .flops = forward,
                           .dram_bytes = (is_embed ? 0 : 2 * elems) + 6 * row_bytes};
    *back = *there;
    back->reads_params[0] = !is_embed;
    back->adds_grads[0] = true;
    back->adds_grads[1] = both;
    back->output = 0;
    back->output_grad = is_head ? 0 : ACCESS_READ;
    back->input_grad = is_embed ? 0 : ACCESS_WRITE;
    back->flops = 3 * forward;
    back->dram_bytes = 3 * there->dram_bytes;
    f->stages[s] = (struct stage){.passes = {there, NULL, back}, .pass_count = {1, 0, 1}};
    if (is_embed || is_head)
        return;
    f->stages[s].saved_bytes = size_round_up(row_bytes * 7, TILE_BLOCK_BYTES);
    f->stages[s].selective_bytes = size_round_up(row_bytes * 4, TILE_BLOCK_BYTES);
    f->stages[s].recompute_flops = forward;
    f->stages[s].recompute_dram_bytes = there->dram_bytes;
    f->stages[s].selective_dram_bytes = 6 * row_bytes;
}

/* Each kind as a whole on one tier, or cut into two runs of units on two, or unit by unit. */
static inline void job_homes(family_job *f)
{
    for (int k = 0; k < STATE_KIND_COUNT; k++) {
        uint64_t tiers = k == STATE_INNER_ACTIVATIONS ? TIER_COUNT + 1 : TIER_COUNT;
        uint64_t first = job_draw(f, tiers), second = job_draw(f, tiers);
        uint64_t way = job_draw(f, 4), cut = job_draw(f, f->job.unit_count);
        if (k == STATE_INNER_ACTIVATIONS && job_draw(f, 2))
            first = second = TIER_COUNT;
        for (uint32_t u = 0; u < f->job.unit_count; u++)
            f->homes[k][u] = (uint8_t)(way == 0               ? job_draw(f, tiers)
                                       : way == 1 && u >= cut ? second
                                                              : first);
        f->job.homes[k] = f->homes[k];
    }
}

static inline void job_machine(family_job *f)
{
    plan_machine *m = &f->job.machine;
    if (job_draw(f, 3) == 0) {
        plan_machine_default_cpu(m, 8 + (uint32_t)job_draw(f, 56), true);
    } else {
        plan_machine_default_gpu(m, 8 + (uint32_t)job_draw(f, 56), 7 + (int)job_draw(f, 3), 0);
        m->device_flops_per_second = job_draw_log(f, 5e12, 600e12);
        m->h2d_bytes_per_second = m->d2h_bytes_per_second = job_draw_log(f, 6e9, 60e9);
    }
    m->drive_read_bytes_per_second = job_draw_log(f, 0.5e9, 50e9);
    m->drive_write_bytes_per_second = m->drive_read_bytes_per_second * job_draw_log(f, 0.3, 1.0);
    m->comm_bytes_per_second = job_draw_log(f, 2e9, 100e9);
    m->comm_is_copies = m->device_is_cpu && job_draw(f, 2);
    m->op_seconds = job_draw_log(f, 1e-6, 30e-6);
}

static inline void job_ranks(family_job *f)
{
    plan_job *job = &f->job;
    job->world = UINT32_C(1) << job_draw(f, 5);
    job->zero_stage = (uint32_t)job_draw(f, 4);
    job->wire_bytes = job_draw(f, 2) ? 4 : 2;
    job->reduce_scratch_bytes = 2 * (uint32_t)job_draw(f, 3);
    for (uint32_t u = 0; u < job->unit_count; u++)
        f->stays_gathered[u] = f->elems[u] < 100000;
    job->stays_gathered = f->stays_gathered;
}

/* The stages of the model, from hidden, tokens, vocabulary and tied. */
static inline void family_stages(family_job *f, uint32_t stage_count, bool is_llama)
{
    plan_job *job = &f->job;
    job->stage_count = job->unit_count = stage_count;
    for (uint32_t s = 0; s < stage_count; s++)
        job_stage(f, s, is_llama);
    if (f->tied) {
        f->passes[stage_count - 1][0].units[1] = 0;
        f->passes[stage_count - 1][1].units[1] = 0;
    }
    job->unit_elems = f->elems;
    job->stages = f->stages;
}

/* Bytes that follow from the tokens of the job's micro-batches. */
static inline void family_sizes(family_job *f)
{
    plan_job *job = &f->job;
    job->boundary_bytes = f->tokens * f->hidden * 4;
    job->workspace_bytes = f->tokens * f->hidden * 40;
    job->constants_bytes = 4096;
    job->tokens_bytes = size_round_up(f->tokens * 4 * job->micro_batch_count, TILE_BLOCK_BYTES);
    job->losses_bytes = job->tokens_bytes;
}

/* Budgets are left at 0. */
static inline void family_random_job(family_job *f, uint64_t seed)
{
    memset(f, 0, sizeof *f);
    f->seed = seed;
    plan_job *job = &f->job;
    bool is_llama = job_draw(f, 2);
    f->tied = !is_llama || job_draw(f, 4) == 0;
    f->hidden = 256 * (1 + job_draw(f, 8));
    f->vocabulary = job_draw(f, 2) ? 8192 : 50304;
    f->tokens = UINT64_C(512) << job_draw(f, 6);
    family_stages(f, 4 + (uint32_t)job_draw(f, 21), is_llama);
    job_homes(f);
    job_ranks(f);
    job_machine(f);
    job->micro_batch_count = 1 + (uint32_t)job_draw(f, 4);
    family_sizes(f);
    job->param_bytes = job_draw(f, 4) ? 2 : 4;
    job->grad_bytes = job_draw(f, 2) ? 2 : 4;
    job->state_streams = job_draw(f, 4) ? 3 : 2;
    job->update = (enum update)job_draw(f, 4);
    job->order = job_draw(f, 3) ? ORDER_LAYER_MAJOR : ORDER_BATCH_MAJOR;
    job->needs_save_places = job_draw(f, 2);
    job->commits = job_draw(f, 2);
    job->commit_every = job_draw(f, 2) ? 1 : 50;
    job->tile_elems = job_draw(f, 4) ? 0 : (TILE_ELEMS_STEP * 64) << job_draw(f, 4);
}

/* Reads from the last refusal how many bytes of the tier the job needs; 0: it names none. */
static inline uint64_t family_need(int arena)
{
    static const char *const keys[TIER_COUNT] = {
        "tiers.device.budget=", "tiers.host.budget=", "tiers.nvme[].budget="};
    const char *at = strstr(err_text(), keys[arena]);
    return at ? strtoull(at + strlen(keys[arena]), NULL, 10) : 0;
}

#endif
