/* Which passes can hold params packed in the order of products, of how many bytes, and what that spares.
 *
 *   several micro-batches    the first packs and leaves it, the others find it
 *   one                      held where the pass multiplies with the params several times (packs_alone)
 *
 * Unless a job asks for it always, a pass whose times are not known, or that would spare less than leaving costs,
 * holds nothing. */
#include "plan/plan_internal.h"

/* Whether the pass finds the inner activations that it would else make first. */
static bool finds_saved(const plan_job *job, uint32_t stage, enum phase phase)
{
    return phase == PHASE_BACKWARD && !job->stages[stage].is_cut && plani_keeps_saved(job, stage);
}

double plani_packed_gain(const plan_job *job, uint32_t stage, enum phase phase,
                         const plan_pass *pass, bool fills)
{
    bool kept = finds_saved(job, stage, phase);
    double each = kept ? pass->kept_packing_seconds : pass->packing_seconds;
    double once = kept ? pass->kept_packing_once_seconds : pass->packing_once_seconds;
    return fills ? each - once : each;
}

/* Few micro-batches may spare less than leaving it costs. */
static bool pays(const plan_job *job, uint32_t stage, enum phase phase, const plan_pass *pass,
                 uint32_t mb_count)
{
    double gain = plani_packed_gain(job, stage, phase, pass, true) +
                  (mb_count - 1) * plani_packed_gain(job, stage, phase, pass, false);
    return job->packs_always || (pass->seconds > 0 && gain > 0);
}

uint64_t plani_packed_bytes(const plan_job *job, uint32_t stage, enum phase phase,
                            const plan_pass *pass, uint32_t mb_count)
{
    bool is_used_again = mb_count > 1 || pass->packs_alone;
    if (!is_used_again || !pays(job, stage, phase, pass, mb_count))
        return 0;
    return finds_saved(job, stage, phase) ? pass->kept_packed_bytes : pass->packed_bytes;
}

/* Puts the size among the largest, once. */
static uint32_t add_level(uint64_t levels[PLANI_PACKED_LEVELS], uint32_t count, uint64_t bytes)
{
    uint32_t at = 0;
    while (at < count && levels[at] > bytes)
        at++;
    if (at == PLANI_PACKED_LEVELS || (at < count && levels[at] == bytes))
        return count;
    if (count < PLANI_PACKED_LEVELS)
        count++;
    for (uint32_t i = count - 1; i > at; i--)
        levels[i] = levels[i - 1];
    levels[at] = bytes;
    return count;
}

uint32_t plani_packed_levels(const plan_job *job, uint64_t bytes[PLANI_PACKED_LEVELS])
{
    uint32_t count = 0, together = job->order == ORDER_BATCH_MAJOR ? 1 : job->micro_batch_count;
    for (uint32_t s = 0; s < job->stage_count; s++)
        for (int phase = 0; phase < PHASE_COUNT; phase++) {
            enum phase which = (enum phase)phase;
            if (job->only_eval ? which != PHASE_FORWARD
                               : which == PHASE_RECOMPUTE && plani_keeps_saved(job, s))
                continue;
            for (uint32_t p = 0; p < job->stages[s].pass_count[phase]; p++) {
                const plan_pass *pass = &job->stages[s].passes[phase][p];
                uint64_t held = plani_packed_bytes(job, s, which, pass, together);
                if (held > 0)
                    count = add_level(bytes, count, held);
            }
        }
    return count;
}
