/* Questions about a job that all files of src/plan ask. The steps from a job to a plan have a
 * folder each:
 *
 *   emit/      homes get their offsets, and a program its ops in serial order
 *   simulate/  buffers get their places, and ops their times
 *   search/    points are tried, and one wins
 */
#ifndef SLUICE_PLAN_INTERNAL_H
#define SLUICE_PLAN_INTERNAL_H

#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/plan.h"

/* Tells the job's watch that work goes on; `what` NULL: on the same as before. Long loops call it
 * once in so many ops. */
enum { PLANI_OPS_OF_A_NOTE = 1 << 14 };
static inline void plani_note_work(const plan_job *job, const char *what, uint64_t op_count)
{
    plan_watch *watch = job->watch;
    if (!watch)
        return;
    watch->what = what ? what : watch->what;
    watch->op_count += op_count;
    watch->on_progress(watch->user, watch);
}

static inline uint32_t plani_world(const plan_job *job)
{
    return job->world ? job->world : 1;
}

/* Elements of a rank's shard of the unit. */
static inline uint64_t plani_shard_elems(const plan_job *job, uint32_t unit)
{
    return shard_elems(job->unit_elems[unit], plani_world(job));
}

/* Elements of all shards of the unit, end to end. */
static inline uint64_t plani_whole_elems(const plan_job *job, uint32_t unit)
{
    return shard_whole_elems(job->unit_elems[unit], plani_world(job));
}

/* Elements of the unit's params that its passes use on the device. */
static inline uint64_t plani_used_elems(const plan_job *job, uint32_t unit)
{
    return plan_is_owned(job, unit) ? plani_shard_elems(job, unit) : plani_whole_elems(job, unit);
}

/* True if a rank's params are only a shard of those that passes use, which are gathered. */
static inline bool plani_is_gathered(const plan_job *job, uint32_t unit)
{
    return plan_is_sharded(job, STATE_PARAMS, unit) && !plan_is_owned(job, unit);
}

/* True if the stage has a backward: it, or a stage before it, learns. */
static inline bool plani_goes_back(const plan_job *job, uint32_t stage)
{
    return job->stages[stage].pass_count[PHASE_BACKWARD] > 0;
}

/* True if state has two places on the slab. */
static inline bool plani_commits(const plan_job *job)
{
    return job->commits && job->needs_save_places && !job->only_eval;
}

/* Size of a table of lent gradients, 0 where no unit lends any: each is updated as soon as its only
 * backward pass is done. */
static inline uint64_t plani_lent_bytes(const plan_job *job)
{
    bool lends = job->update == UPDATE_IN_BACKWARD && job->micro_batch_count == 1 &&
                 job->world < 2 && !job->only_eval && job->machine.device_is_cpu;
    return lends ? size_round_up(job->lent_bytes, TILE_BLOCK_BYTES / 2) : 0;
}

/* The unit whose placement the activations of a stage follow. */
static inline uint32_t plani_stage_unit(const plan_job *job, uint32_t stage)
{
    return job->stages[stage].passes[PHASE_FORWARD][0].units[0];
}

/* The number of passes of a stage in parts whose units its backward uses once more, the last one
 * first: those of a block's recomputation, or the head's forward, which is the first half of its
 * backward passes. 0: the stage is whole, or uses nothing again. */
static inline uint32_t plani_turning_passes(const plan_job *job, uint32_t stage)
{
    const struct stage *item = &job->stages[stage];
    uint32_t backs = item->pass_count[PHASE_BACKWARD];
    if (!item->is_cut || backs == 0)
        return 0;
    return stage + 1 == job->stage_count ? backs / 2 : item->pass_count[PHASE_RECOMPUTE];
}
/* The phase of these passes. */
static inline enum phase plani_turning_phase(const plan_job *job, uint32_t stage)
{
    return stage + 1 == job->stage_count ? PHASE_BACKWARD : PHASE_RECOMPUTE;
}

/* How much of the stage's inner activations stays from forward to backward. */
static inline enum kept plani_kept(const plan_job *job, uint32_t stage)
{
    return kept_at_home(job->homes[STATE_INNER_ACTIVATIONS][plani_stage_unit(job, stage)]);
}
static inline bool plani_keeps_saved(const plan_job *job, uint32_t stage)
{
    return job->stages[stage].saved_bytes > 0 && !job->only_eval && plani_goes_back(job, stage) &&
           plani_kept(job, stage) != KEPT_NONE;
}

/* Bytes of that, of one micro-batch. */
static inline uint64_t plani_kept_bytes(const struct stage *stage, enum kept kept)
{
    return kept == KEPT_NONE ? 0 : kept == KEPT_ALL ? stage->saved_bytes : stage->selective_bytes;
}

/* True if a home of the unit's params on nvme is, or would be, their place on the slab for good. */
static inline bool plani_may_rest_for_good(const plan_job *job, uint32_t unit)
{
    return !plan_learns(job, unit) &&
           plan_is_sharded(job, STATE_PARAMS, unit) == plan_is_sharded(job, STATE_OPTIMIZER, unit);
}

static inline bool plani_rests_for_good(const plan_job *job, uint32_t unit)
{
    return plani_may_rest_for_good(job, unit) && job->homes[STATE_PARAMS][unit] == TIER_NVME;
}

/* True if the unit's master is split: half of it are the params, which are part of the state. */
static inline bool plani_is_split(const plan_job *job, uint32_t unit)
{
    return tile_master_is_split(job->state_streams) && plan_learns(job, unit);
}

/* True if the high halves of a split master are the params that rest. Otherwise a rank has the
 * whole params but a shard of the state, and the high halves of that shard are a home of their own
 * beside the state. */
static inline bool plani_params_are_high(const plan_job *job, uint32_t unit)
{
    return plani_is_split(job, unit) &&
           plan_is_sharded(job, STATE_PARAMS, unit) == plan_is_sharded(job, STATE_OPTIMIZER, unit);
}

/* The arena of the home of the high halves of a split master. */
static inline enum tier plani_high_arena(const plan_job *job, uint32_t unit)
{
    enum state_kind kind = plani_params_are_high(job, unit) ? STATE_PARAMS : STATE_OPTIMIZER;
    return (enum tier)job->homes[kind][unit];
}

/* Bytes of the high halves of a rank's tiles of the unit; 0: its master is not split. */
static inline uint64_t plani_high_bytes(const plan_job *job, uint32_t unit)
{
    return plani_is_split(job, unit)
               ? plan_rest_elems(job, STATE_OPTIMIZER, unit) * job->param_bytes
               : 0;
}

/* ---- layout.c ------------------------------------------------------------------------------- */

/* Counts in uses[unit_count] how many runs of backward passes add to each unit's gradient in a
 * step, where each stage runs `rounds` times and the first one `first_rounds` times. Returns true
 * where the first stage adds to a gradient that others add to. Where micro-batches come one by
 * one, its backward then waits for the end of the others', so that all sums are taken in one order
 * whatever the order of the step. */
bool plani_count_grad_uses(const plan_job *job, uint32_t rounds, uint32_t first_rounds,
                           uint32_t *uses);
bool plani_has_cut_stage(const plan_job *job);
/* The most bytes of one micro-batch that wait between passes of cut stages; 0: nothing waits. */
uint64_t plani_parked_bytes(const plan_job *job);
/* Where they wait, but for the micro-batches that stay on the device. The job has a second
 * stage. */
enum tier plani_parked_home(const plan_job *job);

/* ---- hits.c --------------------------------------------------------------------------------- */

/* True if ranks gather params of units of the stage that may not be hit. All ranks then decide
 * together which ones are hit. */
bool plani_unites_hits(const plan_job *job, const struct stage *stage);
/* True if the job has a pass that may do without its params, and may fetch only what is hit. */
bool plani_may_miss(const plan_job *job);
/* The probability that such a unit is hit, if all choices of a token are equally likely: 1 - miss ^
 * (tokens that decide it together). The same on all machines. */
double plani_hit_share(const plan_job *job, const struct stage *stage, const struct pass *pass);
/* The way to fetch with which a search begins: what is hit, if that is expected to be less than
 * nearly all. */
bool plani_prefers_hit(const plan_job *job);

/* ---- needs.c -------------------------------------------------------------------------------- */

/* ERR_CONFIG for jobs that no plan can be made of: no micro-batch, nothing that learns. */
int plani_check_job(const plan_job *job) MUST_CHECK;

#endif
