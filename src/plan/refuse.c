/* The refusal: what of which tier a job needs that does not fit.
 *
 * A tile size fits if and only if the budgets cover what the serial order of its programs needs. Needs
 * are found step by step (homes first, which cost nothing to lay out, then program by program) and only
 * as far as the question asks: the search stops where a nearer candidate is known. At the end: jobs that no
 * budget helps. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/compile.h"

uint64_t plani_budget_for(const plan_job *job, int arena, uint64_t bytes)
{
    if (arena != TIER_NVME)
        return bytes;
    if (job->nvme_stripe_bytes) /* a slab has at least one */
        bytes = size_round_up(size_max(bytes, 1), job->nvme_stripe_bytes);
    return bytes + job->nvme_overhead_bytes;
}

uint64_t plani_room_in(const plan_job *job, int arena, uint64_t budget_bytes)
{
    if (arena != TIER_NVME)
        return budget_bytes;
    uint64_t step = size_max(job->nvme_stripe_bytes, 1);
    return (budget_bytes - size_min(budget_bytes, job->nvme_overhead_bytes)) / step * step;
}

bool plani_homes_fit(const plan_job *job, const plani_layout *layout)
{
    for (int a = 0; a < TIER_COUNT; a++)
        if (plani_budget_for(job, a, layout->end_bytes[a]) > job->budget_bytes[a])
            return false;
    return true;
}

/* Of activations: what rests, and what waits between the passes of cut stages, for all micro-batches at once. */
static void add_waiting(const plan_job *job, uint64_t bytes[TIER_COUNT])
{
    uint64_t slots = job->order == ORDER_BATCH_MAJOR ? 1 : job->micro_batch_count;
    uint64_t parked = plani_parked_bytes(job), near = size_min(job->parked_near, slots);
    for (uint32_t s = 0; s < job->stage_count && !job->only_eval; s++) {
        uint32_t unit = plani_stage_unit(job, s);
        if (!plani_goes_back(job, s))
            continue;
        if (job->stages[s].has_input && s + 1 < job->stage_count)
            bytes[job->homes[STATE_ACTIVATIONS][unit]] += slots * job->boundary_bytes;
        if (job->homes[STATE_INNER_ACTIVATIONS][unit] < TIER_COUNT)
            bytes[job->homes[STATE_INNER_ACTIVATIONS][unit]] += slots * job->stages[s].saved_bytes;
    }
    if (parked == 0)
        return;
    bytes[TIER_DEVICE] += near * parked;
    bytes[plani_parked_home(job)] += (slots - near) * parked;
}

void plani_count_homes(const plan_job *job, uint64_t bytes[TIER_COUNT])
{
    memset(bytes, 0, TIER_COUNT * sizeof *bytes);
    bytes[TIER_NVME] = job->nvme_overhead_bytes;
    add_waiting(job, bytes);
    for (uint32_t u = 0; u < job->unit_count; u++) {
        uint64_t optimizer =
            tile_state_bytes(job->state_streams, plan_rest_elems(job, STATE_OPTIMIZER, u));
        uint64_t high = plani_high_bytes(job, u);
        bytes[job->homes[STATE_PARAMS][u]] +=
            plan_rest_elems(job, STATE_PARAMS, u) * job->param_bytes;
        if (!plan_learns(job, u) && !plani_rests_for_good(job, u) && job->needs_save_places)
            bytes[TIER_NVME] += plan_rest_elems(job, STATE_OPTIMIZER, u) * job->param_bytes;
        if (job->needs_save_places && high && plani_high_arena(job, u) != TIER_NVME)
            bytes[TIER_NVME] += high;
        if (job->only_eval || !plan_learns(job, u))
            continue;
        bytes[job->homes[STATE_OPTIMIZER][u]] += optimizer;
        if (high && !plani_params_are_high(job, u))
            bytes[plani_high_arena(job, u)] += high;
        if (job->needs_save_places && job->homes[STATE_OPTIMIZER][u] != TIER_NVME)
            bytes[TIER_NVME] += optimizer;
        if (plani_commits(job))
            bytes[TIER_NVME] += optimizer + high;
        if (job->update != UPDATE_IN_BACKWARD)
            bytes[job->homes[STATE_GRADS][u]] +=
                plan_rest_elems(job, STATE_GRADS, u) * job->grad_bytes;
    }
}

bool plani_homes_may_fit(const plan_job *job)
{
    uint64_t bytes[TIER_COUNT];
    plani_count_homes(job, bytes);
    for (int a = 0; a < TIER_COUNT; a++)
        if (bytes[a] > job->budget_bytes[a])
            return false;
    return true;
}

/* Bytes beyond the budgets, all arenas together. */
static double excess(const plan_job *job, const uint64_t need[TIER_COUNT])
{
    double bytes = 0;
    for (int a = 0; a < TIER_COUNT; a++)
        if (need[a] > job->budget_bytes[a])
            bytes += (double)(need[a] - job->budget_bytes[a]);
    return bytes;
}

/* Programs so long that serial orders of all tile sizes take minutes are not looked at where the homes alone
 * are too much: what those need is named, at least. */
enum { LONG_PROGRAM = 1 << 14 }; /* units, and stages times micro-batches */

static bool is_long(const plan_job *job)
{
    return job->unit_count + (uint64_t)job->stage_count * job->micro_batch_count > LONG_PROGRAM;
}

/* Ops: a refusal that took so many names the nearest tile size found so far. */
static const uint64_t nearest_work = 8000000;

/* The steady step needs the most in nearly every job. */
static const enum program_kind need_order[PROGRAM_KIND_COUNT] = {
    PROGRAM_STEADY, PROGRAM_FIRST, PROGRAM_EVAL, PROGRAM_INIT,
    PROGRAM_LOAD,   PROGRAM_FLUSH, PROGRAM_SAVE,
};

static bool is_known(const struct plani_candidate *c)
{
    return c->has_homes && c->kinds_done == PROGRAM_KIND_COUNT;
}

/* Finds what the serial order needs, per arena, until all is known or the excess reaches `most`. First
 * fit does not look at the end of an arena, so budgets of exactly these bytes give the same places: the
 * job fits at this tile size if and only if its budgets cover them. */
static int learn_needs(const plan_job *job, struct plani_candidate *c, double most, uint64_t *work)
{
    static const uint64_t unlimited[TIER_COUNT] = {UINT64_MAX / 2, UINT64_MAX / 2, UINT64_MAX / 2};
    if (c->has_homes && (is_known(c) || excess(job, c->need) >= most))
        return 0;
    plan_set set;
    plani_layout layout;
    TRY(plani_set_begin(job, c->tile_elems, &set, &layout));
    for (int a = 0; a < TIER_COUNT && !c->has_homes; a++)
        c->need[a] = plani_budget_for(job, a, layout.end_bytes[a]);
    if (!c->has_homes)
        c->reached_bytes = layout.end_bytes[TIER_NVME];
    c->has_homes = true;
    c->second_bytes = set.second_bytes;
    int rc = 0;
    while (rc == 0 && !is_known(c) && excess(job, c->need) < most) {
        struct plani_order asked = {
            .kind = need_order[c->kinds_done++], .serial = true, .work = work};
        program serial;
        rc = plani_compile_one(job, &set, &layout, &asked, unlimited, &serial);
        for (int a = 0; a < TIER_COUNT && rc == 0; a++)
            c->need[a] = size_max(c->need[a], plani_budget_for(job, a, serial.peak_bytes[a]));
        if (rc == 0)
            c->reached_bytes = size_max(c->reached_bytes, serial.peak_bytes[TIER_NVME]);
        program_fini(&serial);
    }
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return rc;
}

int plani_check_needs(const plan_job *job, struct plani_candidate *c, uint64_t *work)
{
    TRY(learn_needs(job, c, 1, work));
    return excess(job, c->need) > 0 ? err_set(ERR_NO_FIT, "does not fit") : 0;
}

static const char *const budget_keys[TIER_COUNT] = {"tiers.device.budget", "tiers.host.budget",
                                                    "tiers.nvme[].budget"};

/* The candidate that comes nearest to the budgets, its needs known. What is known of one so far bounds
 * its excess from below, so the least is looked at first, and none that a finished one undercuts. After
 * nearest_work ops the nearest that is known, or one of which enough is known that it does not fit. */
static int nearest(const plan_job *job, struct plani_candidate *list, uint32_t count,
                   struct plani_candidate **found, uint64_t *work)
{
    uint64_t begun = *work;
    *found = NULL;
    double least = INFINITY;
    if (is_long(job)) {
        TRY(learn_needs(job, &list[0], 1, work));
        *found = &list[0];
        if (list[0].kinds_done == 0)
            return 0;
        *found = NULL;
    }
    for (;;) {
        struct plani_candidate *next = NULL;
        for (uint32_t i = 0; i < count; i++) {
            double bound = excess(job, list[i].need);
            if (&list[i] != *found && bound < least && (!next || bound < excess(job, next->need)))
                next = &list[i];
        }
        bool is_enough = *work - begun > nearest_work;
        if (!next || (is_enough && *found))
            return 0;
        TRY(learn_needs(job, next, is_enough ? 1 : least, work));
        if (is_enough && excess(job, next->need) > 0) {
            *found = next;
            return 0;
        }
        if (is_known(next) && excess(job, next->need) < least) {
            least = excess(job, next->need);
            *found = next;
        }
    }
}

/* ERR_NO_FIT with, for every tier that is too small, what is needed and what is allowed. */
int plani_refuse(const plan_job *job, struct plani_candidate *list, uint32_t count, uint64_t *work)
{
    if (job->no_advice)
        return err_set(ERR_NO_FIT, "does not fit");
    struct plani_candidate *closest;
    TRY(nearest(job, list, count, &closest, work));
    const uint64_t *need = closest->need;
    const char *least = is_known(closest) ? "" : "at least ";
    char text[640] = "", fits[256] = "", once[192] = "";
    size_t used = 0, fits_used = 0;
    for (int a = 0; a < TIER_COUNT; a++) {
        if (need[a] <= job->budget_bytes[a])
            continue;
        char needed[SIZE_TEXT_BYTES], allowed[SIZE_TEXT_BYTES];
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "%sneeds %s%" PRIu64 " bytes (%s) of %s, has %" PRIu64 " (%s)",
                                 used ? "; " : "", least, need[a], size_format(need[a], needed),
                                 tier_name((enum tier)a), job->budget_bytes[a],
                                 size_format(job->budget_bytes[a], allowed));
        uint64_t sharers = a == TIER_NVME ? size_max(job->nvme_sharers, 1) : 1;
        fits_used += (size_t)snprintf(fits + fits_used, sizeof fits - fits_used, "%s%s=%" PRIu64,
                                      fits_used ? " " : "", budget_keys[a], need[a] * sharers);
    }
    if (used == 0)
        return err_set(ERR_INTERNAL, "the plan found no schedule although the serial order fits");
    bool lacks_nvme = need[TIER_NVME] > job->budget_bytes[TIER_NVME];
    char less[SIZE_TEXT_BYTES];
    uint64_t once_bytes = closest->reached_bytes - closest->second_bytes;
    uint64_t saved_bytes = need[TIER_NVME] - plani_budget_for(job, TIER_NVME, once_bytes);
    if (lacks_nvme && saved_bytes > 0)
        snprintf(once, sizeof once,
                 "; run.commit_every=0 needs %" PRIu64
                 " bytes (%s) of nvme less, but resumes only after a clean stop",
                 saved_bytes, size_format(saved_bytes, less));
    bool lacks_device = need[TIER_DEVICE] > job->budget_bytes[TIER_DEVICE];
    bool adds = job->device_advice && lacks_device;
    const char *more = adds ? job->device_advice : "", *and_so = adds ? "; " : "";
    if (job->nvme_advice && lacks_nvme)
        return err_set(ERR_NO_FIT, "does not fit: %s; %s%s%s%s", text, job->nvme_advice, once,
                       and_so, more);
    return err_set(ERR_NO_FIT, "does not fit: %s; %s %s%s%s%s", text,
                   is_known(closest) ? "fits with" : "set them to no less than:", fits, once,
                   and_so, more);
}

int plani_excess_of(const plan_job *job, struct plani_candidate *list, uint32_t count,
                    double *bytes, uint64_t *work)
{
    struct plani_candidate *closest;
    TRY(nearest(job, list, count, &closest, work));
    *bytes = excess(job, closest->need);
    return 0;
}

int plani_check_job(const plan_job *job)
{
    bool learns = job->only_eval;
    for (uint32_t u = 0; u < job->unit_count; u++)
        learns = learns || plan_learns(job, u);
    if (job->micro_batch_count == 0)
        return err_set(ERR_CONFIG, "gradient_accumulation_steps is 0: a step has at least one "
                                   "micro-batch");
    if (!learns)
        return err_set(ERR_CONFIG, "all %" PRIu32 " units are frozen: nothing of the model learns",
                       job->unit_count);
    if (tile_master_is_split(job->state_streams) && job->param_bytes != 2)
        return err_set(ERR_CONFIG,
                       "a split master needs params of 2 bytes, and these have %" PRIu32,
                       job->param_bytes);
    return 0;
}
