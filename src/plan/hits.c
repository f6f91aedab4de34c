/* Units of experts that a step may not need: how likely it needs them, and whether only those are
 * fetched that it needs (schedule.experts).
 *
 * A token chooses k of E experts. If all choices are equally likely, it chooses none of the n
 * experts of a unit with probability miss = C(E - n, k) / C(E, k), which is 1 - k/E for one expert.
 * N tokens pass a stage together, and choose independently of each other: the unit is hit with
 * probability 1 - miss ^ N. Real routers choose less evenly, so fewer units are hit. Where ranks
 * gather params (ZeRO stage 3) or own experts, a unit is hit if a token of any rank chose it: N
 * counts the tokens of all ranks, which unite their hits (OP_UNITE_HITS). Pure. */
#include "plan/plan_internal.h"

bool plani_unites_hits(const plan_job *job, const struct stage *stage)
{
    if (plani_world(job) == 1)
        return false;
    for (uint32_t p = 0; p < stage->pass_count[PHASE_FORWARD]; p++) {
        const struct pass *pass = &stage->passes[PHASE_FORWARD][p];
        for (uint32_t i = 0; i < pass->unit_count && pass->miss > 0; i++)
            if (plan_is_sharded(job, STATE_PARAMS, pass->units[i]))
                return true;
    }
    return false;
}

double plani_hit_share(const plan_job *job, const struct stage *stage, const struct pass *pass)
{
    uint64_t together = job->order == ORDER_BATCH_MAJOR ? 1 : job->micro_batch_count;
    uint64_t ranks = plani_unites_hits(job, stage) ? plani_world(job) : 1;
    double missed = 1, factor = pass->miss;
    for (uint64_t left = ranks * together * job->call_tokens; left > 0; left /= 2) {
        missed *= left % 2 ? factor : 1;
        factor *= factor;
    }
    return 1 - missed;
}

void plan_expect_hits(const plan_job *job, struct plan_hits *out)
{
    double rounds = job->order == ORDER_BATCH_MAJOR ? job->micro_batch_count : 1;
    *out = (struct plan_hits){0};
    for (uint32_t s = 0; s < job->stage_count; s++)
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            for (uint32_t p = 0; p < job->stages[s].pass_count[phase]; p++) {
                const struct stage *stage = &job->stages[s];
                const struct pass *pass = &stage->passes[phase][p];
                if (!(pass->miss > 0))
                    continue;
                out->passes += rounds;
                out->hit += rounds * plani_hit_share(job, stage, pass);
            }
}

bool plani_may_miss(const plan_job *job)
{
    struct plan_hits expected;
    plan_expect_hits(job, &expected);
    return expected.passes > 0 && job->experts != FETCH_ALL;
}

bool plani_prefers_hit(const plan_job *job)
{
    struct plan_hits expected;
    plan_expect_hits(job, &expected);
    return plani_may_miss(job) &&
           (job->experts == FETCH_HIT || expected.hit < 0.95 * expected.passes);
}
