/* True if a job with open homes fits at all: the placement that needs least of the near tiers,
 * found without simulating a step.
 *
 *   all that is open far away            device and host hold what passes through them
 *   what the far tier has no room for    nearer, as much as there is room beside what passes
 *
 * A placement fits if and only if the budgets cover what the serial order of its programs needs
 * (needs.c), so nothing else is built. Homes alone, which cost little, answer most questions. */
#include <math.h>
#include <string.h>

#include "plan/search/search_internal.h"

enum {
    FIT_ROUNDS = 4, /* homes near take room from what passes: each round leaves more of it */
    FIT_TILES = 2,  /* the coarsest tiles, then some that are 16 times finer */
    LEAST_ROUNDS = 8,
};

/* The optimizer last: the drives still hold the places where state that rests in memory is
 * saved. */
static const uint8_t moved_first[] = {STATE_GRADS, STATE_PARAMS, STATE_ACTIVATIONS,
                                      STATE_OPTIMIZER};

/* The question for one tile size and update. */
struct fit {
    struct plani_point far;
    struct plani_candidate candidate;
    double lack[TIER_COUNT];    /* bytes that the far placement needs beyond the budget */
    double reserve[TIER_COUNT]; /* bytes that homes brought nearer leave free beyond what passes */
};

/* False: however homes are brought nearer, those of some tier do not fit. */
static bool may_fit(const plan_job *job, const uint64_t need[TIER_COUNT])
{
    for (int a = 0; a < TIER_COUNT; a++)
        if ((double)need[a] - (double)job->budget_bytes[a] > plani_room_nearer(job, need, a))
            return false;
    return true;
}

/* Learns the needs of all programs. Returns ERR_NO_FIT if no nearer placement could help: the
 * device has too few bytes, or the host has too few and all that is open already rests on
 * drives. */
static int learn_all(plani_search *self, struct plani_candidate *c)
{
    plan_job asked = self->job;
    asked.budget_bytes[TIER_NVME] = UINT64_MAX / 2;
    if (!self->asked->has_drives)
        asked.budget_bytes[TIER_HOST] = UINT64_MAX / 2;
    return plani_check_needs(&asked, c, self->work);
}

/* True if a home of the unit that leaves the drives leaves them free. Frozen params, and params
 * that are half of a split master, stay there as well. */
static bool frees(const plan_job *job, int kind, int tier, uint32_t unit)
{
    return kind != STATE_PARAMS || tier != TIER_NVME || !job->needs_save_places ||
           (!plani_may_rest_for_good(job, unit) && !plani_params_are_high(job, unit));
}

/* Brings units of the kind from `tier` to the nearer `to`, until `lack` is covered or `room` is
 * used up. */
static void bring(const plani_search *self, struct plani_point *point, int kind, int tier, int to,
                  double *lack, double *room)
{
    uint32_t *until = point->until[kind];
    uint32_t at = until[tier - 1], end = until[tier];
    while (at<end && * lack> 0) {
        uint32_t unit = self->units[kind][at];
        double bytes = (double)self->bytes[kind][unit];
        if (bytes > *room)
            break;
        *room -= bytes;
        *lack -= frees(&self->job, kind, tier, unit) ? bytes : 0;
        at++;
    }
    for (int t = to; t < tier; t++)
        until[t] = at > until[t] ? at : until[t];
}

/* The far placement with as much brought nearer as its tiers lack; false: there is no room for
 * that. */
static bool bring_nearer(const plani_search *self, const struct fit *fit, struct plani_point *point)
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

static void set_lack(const plani_search *self, struct fit *fit, const uint64_t need[TIER_COUNT])
{
    for (int a = 0; a < TIER_COUNT; a++)
        fit->lack[a] = fmax((double)need[a] - (double)self->job.budget_bytes[a], 0);
}

/* False: even if nothing passed through memory, too few homes could be brought nearer. */
static bool homes_fit_nearer(const plani_search *self, const struct fit *fit,
                             const uint64_t need[TIER_COUNT])
{
    struct fit homes = *fit;
    struct plani_point point;
    memcpy(homes.candidate.need, need, sizeof homes.candidate.need);
    set_lack(self, &homes, need);
    return bring_nearer(self, &homes, &point);
}

/* Brings homes nearer in rounds; each leaves free what the one before it lacked. */
static int fit_nearer(plani_search *self, struct fit *fit, struct plani_point *point,
                      uint64_t need[TIER_COUNT])
{
    set_lack(self, fit, need);
    for (int round = 0; round < FIT_ROUNDS && !plani_is_covered(&self->job, need); round++) {
        struct plani_candidate next = {.tile_elems = fit->candidate.tile_elems};
        if (!bring_nearer(self, fit, point))
            break;
        plani_point_apply(self, point);
        int rc = learn_all(self, &next);
        memcpy(need, next.need, sizeof next.need);
        if (rc != ERR_NO_FIT)
            TRY(rc);
        for (int a = 0; a < TIER_COUNT; a++)
            fit->reserve[a] += fmax((double)need[a] - (double)self->job.budget_bytes[a], 0);
    }
    return 0;
}

/* One tile size and update. 0: *point fits and need[] is its need; 1: it does not. */
static int fit_tile(plani_search *self, struct fit *fit, struct plani_point *point,
                    uint64_t need[TIER_COUNT])
{
    struct plani_candidate *c = &fit->candidate;
    const plan_job *job = &self->job;
    uint64_t second_bytes;
    *point = fit->far;
    plani_point_apply(self, point);
    TRY(plani_home_ends(job, c->tile_elems, need, &second_bytes));
    for (int a = 0; a < TIER_COUNT; a++)
        need[a] = plani_budget_for(job, a, need[a]);
    if (!may_fit(job, need))
        return 1;
    if (self->asked->only_homes)
        return 0;
    if (!homes_fit_nearer(self, fit, need))
        return 1;
    int rc = learn_all(self, c);
    memcpy(need, c->need, sizeof c->need);
    if (rc == ERR_NO_FIT || !may_fit(job, need))
        return 1;
    TRY(rc);
    TRY(fit_nearer(self, fit, point, need));
    if (plani_is_covered(job, need))
        return 0;
    memcpy(need, c->need, sizeof c->need);
    return 1;
}

static const uint32_t fit_tiles[FIT_TILES] = {0, 4}; /* of plani_list_candidates */

int plani_find_fit(plani_search *self, uint64_t work_end, struct plani_point *point,
                   uint64_t need[TIER_COUNT])
{
    uint8_t updates[PLANI_UPDATES];
    uint32_t count = plani_open_updates(self, updates);
    for (uint32_t i = 0; i < count; i++)
        for (int l = 0; l < FIT_TILES; l++) {
            struct plani_candidate list[PLANI_CANDIDATES_MAX];
            uint32_t listed = plani_list_candidates(&self->job, list);
            if ((self->work->ops > work_end && (i > 0 || l > 0)) || (l > 0 && listed == 1))
                continue;
            struct fit fit = {.far = {.order = self->job.order, .update = (enum update)updates[i]}};
            fit.candidate = list[size_min(fit_tiles[l], listed - 1)];
            plani_point_far(self, &fit.far);
            int fits = fit_tile(self, &fit, point, need);
            if (fits <= 0)
                return fits;
        }
    return 1;
}

/* ---- one tier alone ------------------------------------------------------------------------- */

int plani_find_least(plani_search *self, int tier, uint64_t work_end, uint64_t *bytes)
{
    uint64_t *budget = &self->job.budget_bytes[tier], given = *budget, low = given;
    int rc = 0;
    *bytes = UINT64_MAX;
    *budget = UINT64_MAX / 2;
    for (int round = 0; round < LEAST_ROUNDS && self->work->ops < work_end; round++) {
        struct plani_point point;
        uint64_t need[TIER_COUNT];
        rc = plani_find_fit(self, work_end, &point, need);
        if (rc < 0 || (rc == 1 && round == 0))
            break;
        if (rc == 0)
            *bytes = need[tier];
        else
            low = *budget;
        if (*bytes <= low)
            break;
        *budget = low + (*bytes - low) / 2;
    }
    *budget = given;
    return rc < 0 ? rc : 0;
}
