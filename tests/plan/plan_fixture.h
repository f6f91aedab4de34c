/* Random jobs for the compiler's tests: models of a few stages, cut into parts or not, under every
 * placement, order and update. A function of the seed alone. */
#ifndef SLUICE_TESTS_PLAN_FIXTURE_H
#define SLUICE_TESTS_PLAN_FIXTURE_H

#include <string.h>

#include "base/rng.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/plan.h"

enum { FIXTURE_STAGES_MAX = 8, FIXTURE_PARTS_MAX = 3, FIXTURE_UNITS_MAX = 40 };

struct random_job {
    plan_job job;
    uint64_t elems[FIXTURE_UNITS_MAX];
    struct stage stages[FIXTURE_STAGES_MAX];
    struct pass passes[FIXTURE_STAGES_MAX * 4 * (FIXTURE_PARTS_MAX + 1)];
    uint32_t pass_count;
    uint8_t homes[STATE_KIND_COUNT][FIXTURE_UNITS_MAX];
    uint8_t stays_gathered[FIXTURE_UNITS_MAX];
    uint8_t is_frozen[FIXTURE_UNITS_MAX];
    uint64_t seed, counter;
};
typedef struct random_job random_job;

/* The n-th of the 7 homes of inner activations, all but TIER_AUTO. */
static inline uint8_t fixture_inner_home(uint64_t n)
{
    return (uint8_t)(n < TIER_AUTO ? n : n + 1);
}

static inline uint64_t draw(random_job *r, uint64_t bound)
{
    return rng_below(r->seed, 77, r->counter++, bound);
}

static inline struct pass *fixture_pass(random_job *r, struct stage *stage, enum phase phase,
                                        uint32_t unit)
{
    struct pass *fresh = &r->passes[r->pass_count++];
    if (stage->pass_count[phase]++ == 0)
        stage->passes[phase] = fresh;
    fresh->units[0] = unit;
    fresh->unit_count = 1;
    fresh->flops = 1e6 * (double)draw(r, 2000);
    fresh->dram_bytes = 1 << 20;
    return fresh;
}

static inline uint32_t fixture_unit(random_job *r, uint64_t blocks_max)
{
    r->elems[r->job.unit_count] = SHARD_ELEMS_STEP * (1 + draw(r, blocks_max));
    return r->job.unit_count++;
}

/* The access of pass `idx` to a buffer that several passes make: the first one writes it, the
 * others update it. */
static inline uint8_t fixture_made(uint32_t idx)
{
    return idx == 0 ? ACCESS_WRITE : ACCESS_UPDATE;
}

static inline void fixture_embed(random_job *r, struct stage *stage, uint32_t parts)
{
    stage->is_cut = parts > 1;
    uint32_t first = r->job.unit_count;
    for (uint32_t i = 0; i < parts; i++) {
        struct pass *pass = fixture_pass(r, stage, PHASE_FORWARD, fixture_unit(r, 90));
        pass->reads_params[0] = true;
        pass->output = fixture_made(i);
    }
    for (uint32_t i = 0; i < parts; i++) {
        struct pass *pass = fixture_pass(r, stage, PHASE_BACKWARD, first + i);
        pass->adds_grads[0] = true;
        pass->output_grad = ACCESS_READ;
    }
}

static inline void fixture_block(random_job *r, struct stage *stage, uint32_t parts)
{
    stage->is_cut = parts > 1;
    stage->saved_bytes = 4096 * (1 + draw(r, 80));
    stage->selective_bytes = parts > 1 ? stage->saved_bytes : stage->saved_bytes / 16 * 9 - 100;
    uint32_t first = r->job.unit_count;
    for (uint32_t i = 0; i < parts; i++) {
        struct pass *pass = fixture_pass(r, stage, PHASE_FORWARD, fixture_unit(r, 60));
        pass->reads_params[0] = true;
        pass->input = i == 0 || draw(r, 2) ? ACCESS_READ : 0;
        pass->saved = parts > 1 ? fixture_made(i) : 0;
        pass->output = i + 1 == parts ? ACCESS_WRITE : 0;
    }
    for (uint32_t i = 0; parts > 1 && i + 1 < parts; i++) {
        struct pass *pass = fixture_pass(r, stage, PHASE_RECOMPUTE, first + i);
        pass->reads_params[0] = true;
        pass->input = ACCESS_READ;
        pass->saved = fixture_made(i);
    }
    for (uint32_t i = 0; i < parts; i++) {
        struct pass *pass = fixture_pass(r, stage, PHASE_BACKWARD, first + parts - 1 - i);
        pass->reads_params[0] = pass->adds_grads[0] = true;
        pass->input = i + 1 == parts || draw(r, 2) ? ACCESS_READ : 0;
        pass->saved = parts > 1 ? ACCESS_UPDATE : 0;
        pass->output_grad = i == 0 || draw(r, 2) ? ACCESS_READ : 0;
        pass->input_grad = fixture_made(i);
    }
    if (parts == 1) {
        stage->recompute_flops = stage->passes[PHASE_BACKWARD]->flops / 3;
        stage->recompute_dram_bytes = 1 << 18;
        stage->selective_dram_bytes = 1 << 15;
    }
}

/* A norm of its own, and the output matrix: the embedding's parts where `tied`, else its own. */
static inline void fixture_head(random_job *r, struct stage *stage, uint32_t parts, bool tied)
{
    stage->is_cut = parts > 1;
    stage->saved_bytes = stage->selective_bytes = parts > 1 ? 4096 * (1 + draw(r, 20)) : 0;
    uint32_t norm = fixture_unit(r, 1), matrix = tied ? 0 : r->job.unit_count;
    for (uint32_t i = 0; !tied && i < parts; i++)
        fixture_unit(r, 90);
    for (int phase = PHASE_FORWARD; phase <= PHASE_BACKWARD;
         phase += PHASE_BACKWARD - PHASE_FORWARD) {
        bool trains = phase == PHASE_BACKWARD;
        for (uint32_t i = 0; i < parts; i++) {
            struct pass *pass = fixture_pass(r, stage, (enum phase)phase, norm);
            pass->unit_count = 2;
            pass->units[1] = matrix + i;
            pass->reads_params[0] = i == 0;
            pass->reads_params[1] = true;
            pass->adds_grads[0] = trains && i + 1 == parts;
            pass->adds_grads[1] = trains;
            pass->input = i == 0 || i + 1 == parts ? ACCESS_READ : 0;
            pass->saved = parts > 1 ? fixture_made(i) : 0;
            pass->losses = fixture_made(i);
            pass->input_grad = trains ? fixture_made(i) : 0;
        }
    }
}

static inline void fixture_model(random_job *r)
{
    plan_job *job = &r->job;
    job->stage_count = 3 + (uint32_t)draw(r, FIXTURE_STAGES_MAX - 2);
    bool tied = draw(r, 2), cuts = draw(r, 3) == 0;
    uint32_t vocabulary_parts = cuts ? 1 + (uint32_t)draw(r, FIXTURE_PARTS_MAX) : 1;
    for (uint32_t s = 0; s < job->stage_count; s++) {
        struct stage *stage = &r->stages[s];
        if (s == 0)
            fixture_embed(r, stage, vocabulary_parts);
        else if (s + 1 < job->stage_count)
            fixture_block(r, stage, cuts ? 1 + (uint32_t)draw(r, FIXTURE_PARTS_MAX) : 1);
        else
            fixture_head(r, stage, vocabulary_parts, tied);
    }
    for (uint32_t u = 0; u < job->unit_count; u++)
        for (int k = 0; k < STATE_KIND_COUNT; k++)
            r->homes[k][u] =
                (uint8_t)draw(r, k == STATE_INNER_ACTIVATIONS ? TIER_COUNT + 1 : TIER_COUNT);
    for (uint32_t u = 0; u < job->unit_count; u += 3) /* every third one that keeps keeps less */
        if (r->homes[STATE_INNER_ACTIVATIONS][u] < TIER_COUNT)
            r->homes[STATE_INNER_ACTIVATIONS][u] += TIER_SELECTIVE;
    for (int k = 0; k < STATE_KIND_COUNT; k++)
        job->homes[k] = r->homes[k];
    job->unit_elems = r->elems;
    job->stages = r->stages;
}

static inline void fixture_random_job(random_job *r, uint64_t seed)
{
    memset(r, 0, sizeof *r);
    r->seed = seed;
    fixture_model(r);
    plan_job *job = &r->job;
    job->micro_batch_count = 1 + (uint32_t)draw(r, 4);
    job->boundary_bytes = 4096 * (1 + draw(r, 64));
    job->workspace_bytes = 4096 * draw(r, 300);
    job->constants_bytes = 4096 * draw(r, 2);
    job->tokens_bytes = 4096;
    job->losses_bytes = 4096 * job->micro_batch_count;
    job->param_bytes = draw(r, 2) ? 2 : 4;
    job->grad_bytes = draw(r, 2) ? 2 : 4;
    job->state_streams = draw(r, 2) ? 3 : 2;
    job->update = (enum update)draw(r, 4);
    job->order = (enum order)draw(r, 2);
    job->tile_elems = draw(r, 3) ? TILE_ELEMS_STEP << draw(r, 3) : 0;
    job->lookahead_ops = draw(r, 3) ? 0 : 1 + draw(r, 50);
    job->needs_save_places = draw(r, 2);
    job->only_eval = draw(r, 8) == 0;
    for (int a = 0; a < TIER_COUNT; a++)
        job->budget_bytes[a] = draw(r, 3) ? 64 * MIB : 4096 * draw(r, 2000);
    job->budget_bytes[TIER_NVME] = 512 * MIB;
    if (r->seed % 3 == 0)
        plan_machine_default_gpu(&job->machine, 2, 8, 0);
    else
        plan_machine_default_cpu(&job->machine, 2, true);
}

/* Passes of a model of which some units do not learn (plan.h): no gradients of theirs, no backward
 * of stages before the first that learns, and no input_grad of that one. `stages` and their passes
 * are the caller's. */
static inline void fixture_cut_passes(struct stage *stages, uint32_t stage_count,
                                      const uint8_t *is_frozen)
{
    bool learns = false;
    for (uint32_t s = 0; s < stage_count; s++) {
        struct stage *stage = &stages[s];
        bool learned = learns, is_head = s + 1 == stage_count;
        for (uint32_t p = 0; p < stage->pass_count[PHASE_BACKWARD]; p++) {
            struct pass *pass = &stage->passes[PHASE_BACKWARD][p];
            for (uint32_t i = 0; i < pass->unit_count; i++) {
                pass->adds_grads[i] = pass->adds_grads[i] && !is_frozen[pass->units[i]];
                learns = learns || pass->adds_grads[i];
            }
        }
        for (uint32_t p = 0; p < stage->pass_count[PHASE_BACKWARD] && !learned; p++)
            (&stage->passes[PHASE_BACKWARD][p])->input_grad = 0;
        if (!learns && !is_head)
            stage->pass_count[PHASE_RECOMPUTE] = stage->pass_count[PHASE_BACKWARD] = 0;
    }
}

/* Freezes units of the job: the first ones, the last ones, or any; one at least, and not all. */
static inline void fixture_freeze(random_job *r)
{
    uint32_t units = r->job.unit_count, way = (uint32_t)draw(r, 3), frozen = 0;
    uint32_t cut = 1 + (uint32_t)draw(r, units - 1);
    for (uint32_t u = 0; u < units; u++) {
        r->is_frozen[u] = way == 0 ? u < cut : way == 1 ? u >= cut : draw(r, 2);
        frozen += r->is_frozen[u];
    }
    if (frozen == 0 || frozen == units)
        r->is_frozen[cut] = frozen == 0;
    r->job.is_frozen = r->is_frozen;
    fixture_cut_passes(r->stages, r->job.stage_count, r->is_frozen);
}

/* Splits the masters of the job, with moments of any format. */
static inline void fixture_split(random_job *r)
{
    static const enum tile_format moments[] = {TILE_FP32, TILE_BF16, TILE_INT8};
    enum tile_format first = moments[draw(r, 3)], second = moments[draw(r, 3)];
    bool are_params = draw(r, 3) == 0;
    r->job.state_streams =
        tile_streams_code(3, are_params ? TILE_PARAMS : TILE_LOW16, first, second);
    r->job.param_bytes = are_params ? 4 : 2;
}

/* The job of the seed on several ranks. Its budgets are larger than those of the job on one
 * rank. */
static inline void fixture_ranks(random_job *r, uint64_t seed, uint32_t world, uint32_t zero_stage)
{
    fixture_random_job(r, seed);
    plan_job *job = &r->job;
    job->only_eval = false;
    job->commits = draw(r, 2);
    job->commit_every = draw(r, 2) ? 1 : 50;
    job->world = world;
    job->zero_stage = zero_stage;
    job->wire_bytes = draw(r, 2) ? 4 : 2;
    job->reduce_scratch_bytes = (uint32_t)draw(r, 3) * 2;
    for (uint32_t u = 0; u < job->unit_count; u++)
        r->stays_gathered[u] = draw(r, 4) == 0;
    job->stays_gathered = draw(r, 2) ? r->stays_gathered : NULL;
    job->limits_reuse = draw(r, 2);
    job->reuse_elems_max = draw(r, 2) ? 0 : draw(r, 2000000);
    job->live_elems_max = draw(r, 2) ? 0 : draw(r, 2000000);
    job->ahead_elems_max = draw(r, 2) ? 0 : draw(r, 1000000);
    job->machine.comm_is_copies = draw(r, 2);
    job->budget_bytes[TIER_DEVICE] *= 2;
    job->budget_bytes[TIER_HOST] *= 2;
    job->budget_bytes[TIER_NVME] *= 4;
}

/* A job of the seed that commits, with room for it. */
static inline void fixture_committing_job(random_job *r, uint64_t seed)
{
    fixture_random_job(r, seed);
    r->job.needs_save_places = r->job.commits = true;
    r->job.commit_every = seed % 7 == 0 ? 50 : 1;
    r->job.only_eval = false;
    for (int a = 0; a < TIER_COUNT; a++)
        r->job.budget_bytes[a] = r->seed % 4 == 0 ? r->job.budget_bytes[a] : 64 * MIB;
    r->job.budget_bytes[TIER_NVME] = 1024 * MIB;
    if (seed % 5 == 0) /* a drive that saves cannot hide behind a step */
        r->job.machine.drive_write_bytes_per_second = 50e6;
}

/* The same budget on every tier. */
static inline void fixture_set_budgets(random_job *r, uint64_t bytes)
{
    for (int a = 0; a < TIER_COUNT; a++)
        r->job.budget_bytes[a] = bytes;
}

#endif
