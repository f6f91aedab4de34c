/* Whether a job fits at all: the placement that needs least of the near tiers, found without simulating a step.
 *
 *   all that is open far away            device and host hold what passes through them
 *   what the far tier has no room for    nearer, as much as there is room beside what passes
 *
 * A placement fits if and only if the budgets cover what the serial order of its programs needs (refuse.c), so
 * nothing else is built. Homes alone, which cost little, answer most questions. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "plan/place_internal.h"

enum {
    FIT_ROUNDS = 4, /* homes near take room from what passes: each leaves more of it */
    FIT_LEVELS = 2, /* the coarsest tiles, then some 16 times finer */
    UPDATES_MAX = 3,
    FIT_WORK = 300000, /* ops: of long programs not every update and tile size is looked at */
};

/* The optimizer last: of what rests in memory the drives still hold the places of its saves. */
static const uint8_t moved_first[] = {STATE_GRADS, STATE_PARAMS, STATE_ACTIVATIONS,
                                      STATE_OPTIMIZER};

/* Of one tile size and update. */
struct fit {
    struct plani_point far;
    struct plani_candidate candidate;
    double lack[TIER_COUNT]; /* bytes that the far placement needs beyond the budget */
    double reserve
        [TIER_COUNT]; /* bytes of a tier that homes brought nearer leave free beyond what passes */
};

/* Homes of the job as it is; need of them alone. */
static int learn_homes(const plan_job *job, uint64_t tile_elems, uint64_t need[TIER_COUNT])
{
    plan_set set;
    plani_layout layout;
    TRY(plani_set_begin(job, tile_elems, &set, &layout));
    for (int a = 0; a < TIER_COUNT; a++)
        need[a] = plani_budget_for(job, a, layout.end_bytes[a]);
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return 0;
}

/* What the homes nearer than `tier` leave free of their tiers, all together. */
static double room_below(const plan_job *job, const uint64_t need[TIER_COUNT], int tier)
{
    double room = 0;
    for (int a = TIER_DEVICE; a < tier; a++)
        room += fmax((double)job->budget_bytes[a] - (double)need[a], 0);
    return room;
}

/* False: however homes are brought nearer, those of some tier do not fit. */
static bool may_fit(const plan_job *job, const uint64_t need[TIER_COUNT])
{
    for (int a = 0; a < TIER_COUNT; a++)
        if ((double)need[a] - (double)job->budget_bytes[a] > room_below(job, need, a))
            return false;
    return true;
}

/* Needs of all programs into the candidate; ERR_NO_FIT where no placement nearer could help: bytes of the
 * device, and, where all that is open rests on drives, of the host. */
static int learn_all(plani_placer *self, struct plani_candidate *c)
{
    plan_job asked = self->job;
    asked.budget_bytes[TIER_NVME] = UINT64_MAX / 2;
    if (!self->asked->has_drives)
        asked.budget_bytes[TIER_HOST] = UINT64_MAX / 2;
    return plani_check_needs(&asked, c, &self->work);
}

static bool is_covered(const plan_job *job, const uint64_t need[TIER_COUNT])
{
    for (int a = 0; a < TIER_COUNT; a++)
        if (need[a] > job->budget_bytes[a])
            return false;
    return true;
}

/* Whether a home of the unit that leaves the drives leaves them free: what is frozen, and what is half of a
 * split master, stays there as well. */
static bool frees(const plan_job *job, int kind, int tier, uint32_t unit)
{
    return kind != STATE_PARAMS || tier != TIER_NVME || !job->needs_save_places ||
           (!plani_may_rest_for_good(job, unit) && !plani_params_are_high(job, unit));
}

/* Brings units of the kind from `tier` to the nearer `to`, until `lack` is covered or `room` is used up. */
static void bring(const plani_placer *self, struct plani_point *point, int kind, int tier, int to,
                  double *lack, double *room)
{
    uint32_t *until = point->until[kind];
    uint32_t at = until[tier - 1], end = until[tier];
    for (; at<end && * lack> 0; at++) {
        uint32_t unit = self->units[kind][at];
        double bytes = (double)self->bytes[kind][unit];
        if (bytes > *room)
            break;
        *room -= bytes;
        *lack -= frees(&self->job, kind, tier, unit) ? bytes : 0;
    }
    for (int t = to; t < tier; t++)
        until[t] = at > until[t] ? at : until[t];
}

/* The far placement with as much brought nearer as its tiers lack; false: there is no room for that. */
static bool bring_nearer(const plani_placer *self, const struct fit *fit, struct plani_point *point)
{
    double room[TIER_COUNT];
    bool saves = self->job.needs_save_places;
    *point = fit->far;
    for (int a = 0; a < TIER_COUNT; a++)
        room[a] =
            (double)self->job.budget_bytes[a] - (double)fit->candidate.need[a] - fit->reserve[a];
    for (int tier = TIER_NVME; tier > TIER_DEVICE; tier--) {
        double lack = fit->lack[tier];
        for (int to = tier - 1; to >= TIER_DEVICE && lack > 0; to--)
            for (size_t i = 0; i < sizeof moved_first && room[to] > 0; i++)
                if (moved_first[i] != STATE_OPTIMIZER || tier != TIER_NVME || !saves)
                    bring(self, point, moved_first[i], tier, to, &lack, &room[to]);
        if (lack > 0)
            return false;
    }
    return true;
}

/* One tile size: 0: *point fits and need[] is of it; 1: it does not. */
static int fit_tile(plani_placer *self, struct fit *fit, struct plani_point *point,
                    uint64_t need[TIER_COUNT])
{
    struct plani_candidate *c = &fit->candidate;
    *point = fit->far;
    plani_point_apply(self, point);
    TRY(learn_homes(&self->job, c->tile_elems, need));
    if (!may_fit(&self->job, need))
        return 1;
    if (self->asked->only_homes)
        return 0;
    int rc = learn_all(self, c);
    memcpy(need, c->need, sizeof c->need);
    if (rc == ERR_NO_FIT || !may_fit(&self->job, need))
        return 1;
    TRY(rc);
    for (int a = 0; a < TIER_COUNT; a++)
        fit->lack[a] = fmax((double)need[a] - (double)self->job.budget_bytes[a], 0);
    for (int round = 0; round < FIT_ROUNDS && !is_covered(&self->job, need); round++) {
        struct plani_candidate next = {.tile_elems = c->tile_elems};
        if (!bring_nearer(self, fit, point))
            break;
        plani_point_apply(self, point);
        rc = learn_all(self, &next);
        memcpy(need, next.need, sizeof next.need);
        if (rc != ERR_NO_FIT)
            TRY(rc);
        for (int a = 0; a < TIER_COUNT; a++)
            fit->reserve[a] += fmax((double)need[a] - (double)self->job.budget_bytes[a], 0);
    }
    if (is_covered(&self->job, need))
        return 0;
    memcpy(need, c->need, sizeof c->need);
    return 1;
}

static uint32_t list_updates(const plani_placer *self, uint8_t updates[UPDATES_MAX])
{
    uint32_t count = 0;
    if (!self->asked->chooses_update || self->job.only_eval) {
        updates[count++] = (uint8_t)self->asked->job->update;
        return count;
    }
    updates[count++] = UPDATE_IN_NEXT_FORWARD;
    updates[count++] = UPDATE_AFTER_BACKWARD;
    if (self->asked->allows_in_backward)
        updates[count++] = UPDATE_IN_BACKWARD;
    return count;
}

static const uint32_t fit_levels[FIT_LEVELS] = {1, 3}; /* of plani_trial_tile */

int plani_find_fit(plani_placer *self, struct plani_point *point, uint64_t need[TIER_COUNT])
{
    uint8_t updates[UPDATES_MAX];
    uint32_t count = list_updates(self, updates);
    for (uint32_t i = 0; i < count; i++)
        for (int l = 0; l < FIT_LEVELS; l++) {
            if (self->work > FIT_WORK && (i > 0 || l > 0))
                continue;
            struct fit fit = {.far.update = updates[i]};
            fit.candidate.tile_elems = plani_trial_tile(&self->job, fit_levels[l]);
            if (l > 0 && fit.candidate.tile_elems == plani_trial_tile(&self->job, fit_levels[0]))
                continue;
            plani_point_far(self, &fit.far);
            int fits = fit_tile(self, &fit, point, need);
            if (fits <= 0)
                return fits;
        }
    return 1;
}

int plani_refuse_fit(const plani_placer *self, const uint64_t need[TIER_COUNT])
{
    const plan_job *job = &self->job;
    char text[512] = "", needed[SIZE_TEXT_BYTES], has[SIZE_TEXT_BYTES];
    size_t used = 0;
    for (int a = 0; a < TIER_COUNT; a++) {
        if (need[a] <= job->budget_bytes[a])
            continue;
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%sneeds at least %s of %s, has %s",
                             used ? "; " : "", size_format(need[a], needed),
                             tier_name((enum tier)a), size_format(job->budget_bytes[a], has));
        double room = room_below(job, need, a);
        if (a > TIER_DEVICE && room > 0)
            used +=
                (size_t)snprintf(text + used, sizeof text - used, " (of nearer tiers %s are free)",
                                 size_format((uint64_t)room, has));
    }
    return err_set(ERR_NO_FIT, "does not fit: %s",
                   used ? text : "of what its far tier lacks too little has room nearer");
}
