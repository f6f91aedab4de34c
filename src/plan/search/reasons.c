/* The reasons of a placement, in sentences. Each is about a group of units, of one kind and on one
 * tier, and is found by simulation: the same step with the group one tier nearer, with the budgets
 * as they are (does it fit? is it shorter?) and, where it does not fit, with as much more budget as
 * it takes (what does the distance cost?). */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "plan/search/search_internal.h"

enum { WHY_BYTES = 320, LARGER_BYTES = 16 << 20 };

static const double worth_saying = 0.005; /* of a step: less is no difference */

struct group {
    int kind, tier, nearer; /* enum tier: homes */
    uint64_t bytes;
    bool is_open; /* chosen, not given */
    uint32_t unit_count;
};

static const char *resting_place(int tier)
{
    return tier == TIER_RECOMPUTE ? "recomputed" : tier_name(tier_of_home((unsigned)tier));
}

static bool is_member(const plani_search *self, const struct group *g, uint32_t unit)
{
    bool is_open = self->asked->wanted[g->kind][unit] == TIER_AUTO;
    return self->bytes[g->kind][unit] > 0 && self->homes[g->kind][unit] == g->tier &&
           is_open == g->is_open;
}

/* Lists the units of the group that have such a state, as in "0-3, 5". Units between them that have
 * none do not break a range. */
static void list_units(const plani_search *self, const struct group *g, char *text, size_t capacity)
{
    size_t used = 0;
    uint32_t shown = 0, ranges = 0;
    text[0] = '\0';
    for (uint32_t u = 0; u < self->job.unit_count;) {
        if (!is_member(self, g, u)) {
            u++;
            continue;
        }
        uint32_t first = u, last = u;
        for (; u < self->job.unit_count && (is_member(self, g, u) || self->bytes[g->kind][u] == 0);
             u++)
            if (is_member(self, g, u)) {
                last = u;
                shown++;
            }
        char range[48];
        if (first == last)
            snprintf(range, sizeof range, "%s%" PRIu32, ranges ? ", " : "", first);
        else
            snprintf(range, sizeof range, "%s%" PRIu32 "-%" PRIu32, ranges ? ", " : "", first,
                     last);
        if (ranges++ == 4) {
            snprintf(text + used, capacity - used, " and %" PRIu32 " more",
                     g->unit_count - (shown - (last - first + 1)));
            return;
        }
        used += (size_t)snprintf(text + used, capacity - used, "%s", range);
    }
}

/* The step of self->job as it is now, at the winner's point; INFINITY: does not fit. */
static int step_ns(plani_search *self, const uint64_t *budgets, double *ns)
{
    plan_job job = self->job;
    memcpy(job.budget_bytes, budgets, sizeof job.budget_bytes);
    int rc = plani_try(&job, &self->winner, 0, ns, self->work);
    return rc == ERR_NO_FIT ? 0 : rc;
}

/* The step with the group moved to another tier, and back. */
static int moved_ns(plani_search *self, const struct plan_place_found *found, const struct group *g,
                    const uint64_t *budgets, double *ns)
{
    uint8_t *homes = self->homes[g->kind];
    for (uint32_t u = 0; u < self->job.unit_count; u++)
        if (is_member(self, g, u))
            homes[u] = (uint8_t)(0x80 | g->nearer);
    for (uint32_t u = 0; u < self->job.unit_count; u++)
        if (homes[u] & 0x80)
            homes[u] &= 0x7f;
    int rc = step_ns(self, budgets, ns);
    memcpy(homes, found->homes[g->kind], self->job.unit_count);
    return rc;
}

static bool reads_or_writes(const plani_search *self, const struct group *g, const op *item)
{
    return item->state_kind == (uint32_t)g->kind && item->unit < self->job.unit_count &&
           is_member(self, g, item->unit);
}

/* Seconds that the group's transfers ask, in the steady step, of the resource that leads to its
 * tier; for recomputed inner activations: the transfers of those that wait between passes. */
static double lane_seconds(const plani_search *self, const struct plan_place_found *found,
                           const struct group *g, int tier, const char **lane)
{
    const program *steady = &found->set.programs[PROGRAM_STEADY];
    double sums[RESOURCE_COUNT] = {0};
    for (uint64_t i = 0; i < steady->op_count; i++) {
        double seconds[RESOURCE_COUNT];
        const op *item = &steady->ops[i];
        if (!reads_or_writes(self, g, item) || item->if_commits)
            continue;
        plan_demand_seconds(&self->job.machine, &item->demand, seconds);
        for (int r = 0; r < RESOURCE_COUNT; r++)
            sums[r] += seconds[r];
    }
    enum plan_resource way = tier_of_home((unsigned)tier) == TIER_NVME  ? RESOURCE_DRIVE
                             : sums[RESOURCE_H2D] >= sums[RESOURCE_D2H] ? RESOURCE_H2D
                                                                        : RESOURCE_D2H;
    *lane = plan_resource_name(way);
    return sums[way];
}

static void format_seconds(double seconds, char text[32])
{
    if (seconds >= 0.1)
        snprintf(text, 32, "%.2f s", seconds);
    else
        snprintf(text, 32, "%.3g ms", seconds * 1e3);
}

/* The text after "units 0-30 on nvme: 14.20 GiB ", for a group that might be nearer. */
static int explain(plani_search *self, struct plan_place_found *found, const struct group *g,
                   double base_ns, char text[WHY_BYTES])
{
    const uint64_t *budgets = self->job.budget_bytes;
    uint64_t larger[TIER_COUNT];
    char seconds[32], cost[32], budget[SIZE_TEXT_BYTES], fits[96];
    const char *whole = g->tier == TIER_SELECTIVE ? "all of them " : "";
    int nearer = tier_of_home((unsigned)g->nearer);
    const char *lane;
    double near_ns, free_ns;
    memcpy(larger, budgets, sizeof larger);
    for (uint32_t u = 0; u < self->job.unit_count; u++)
        if (is_member(self, g, u)) {
            uint64_t bytes = plani_bytes_at_home(self, g->kind, u, (unsigned)g->nearer);
            larger[nearer] += bytes + bytes / 16;
        }
    larger[nearer] += LARGER_BYTES;
    TRY(moved_ns(self, found, g, budgets, &near_ns));
    bool can_move = isfinite(near_ns);
    free_ns = near_ns;
    if (!can_move)
        TRY(moved_ns(self, found, g, larger, &free_ns));
    if (can_move)
        snprintf(fits, sizeof fits, "%swould fit the %s budget", whole, resting_place(nearer));
    else
        snprintf(fits, sizeof fits, "%sdo not fit the %s budget of %s", whole,
                 resting_place(nearer), size_format(budgets[nearer], budget));
    double used = lane_seconds(self, found, g, g->tier, &lane), lost = (base_ns - free_ns) * 1e-9;
    format_seconds(used, seconds);
    format_seconds(fabs(lost), cost);
    bool matters = fabs(lost) > worth_saying * base_ns * 1e-9 && isfinite(lost);
    if (!isfinite(lost))
        snprintf(text, WHY_BYTES, "%s", fits);
    else if (g->tier == TIER_COUNT && !matters)
        snprintf(text, WHY_BYTES, "%s; keeping them there would gain nothing", fits);
    else if (g->tier == TIER_COUNT)
        snprintf(text, WHY_BYTES,
                 lost > 0 ? "%s; recomputing them makes a step %s longer"
                          : "%s; kept there they would make a step %s longer",
                 fits, cost);
    else if (can_move && matters && lost < 0)
        snprintf(text, WHY_BYTES, "%s, where a step would take %s more", fits, cost);
    else if (matters && lost > 0 && used == 0)
        snprintf(text, WHY_BYTES, "%s; that makes a step %s longer", fits, cost);
    else if (matters && lost > 0)
        snprintf(text, WHY_BYTES, "%s; %s of %s a step, which make it %s longer", fits, seconds,
                 lane, cost);
    else if (used == 0)
        snprintf(text, WHY_BYTES, "%s; that costs a step nothing", fits);
    else
        snprintf(text, WHY_BYTES, "%s; %s of %s a step, hidden behind other work", fits, seconds,
                 lane);
    return 0;
}

/* The next tier up that the group might have rested on; its own: there is none. */
static int tier_above(const struct group *g)
{
    if (g->tier == TIER_COUNT)
        return TIER_HOST;
    if (g->tier == TIER_SELECTIVE)
        return TIER_DEVICE;
    return g->tier > TIER_DEVICE ? g->tier - 1 : g->tier;
}

static int say(plani_search *self, struct plan_place_found *found, struct group *g, double base_ns)
{
    char units[96], size[SIZE_TEXT_BYTES], why[WHY_BYTES];
    if (found->reason_count == PLAN_REASONS_MAX)
        return 0;
    list_units(self, g, units, sizeof units);
    g->nearer = tier_above(g);
    if (!g->is_open)
        snprintf(why, sizeof why, "by tiers.place");
    else if (g->nearer == g->tier)
        snprintf(why, sizeof why, "fit");
    else
        TRY(explain(self, found, g, base_ns, why));
    char *text = found->reasons[found->reason_count++];
    int length =
        snprintf(text, PLAN_REASON_BYTES, "%s of unit%s %s %s%s%s: %s %s",
                 state_kind_name((enum state_kind)g->kind), g->unit_count > 1 ? "s" : "", units,
                 g->tier == TIER_RECOMPUTE ? "" : "on ", resting_place(g->tier),
                 g->tier >= TIER_SELECTIVE ? ", selective" : "", size_format(g->bytes, size), why);
    if (length >= PLAN_REASON_BYTES)
        memcpy(text + PLAN_REASON_BYTES - 4, "...", 4);
    return 0;
}

/* Says where inner activations wait between the passes of cut stages, and why not all on the
 * device. */
static int say_parked(plani_search *self, struct plan_place_found *found, double base_ns)
{
    const plan_job *job = &self->job;
    uint32_t all = job->micro_batch_count, near = job->parked_near;
    uint64_t bytes = plani_parked_bytes(job), endless[TIER_COUNT];
    int home = bytes ? (int)plani_parked_home(job) : TIER_DEVICE;
    const struct group recomputed = {
        .kind = STATE_INNER_ACTIVATIONS, .tier = TIER_COUNT, .is_open = true};
    char size[SIZE_TEXT_BYTES], budget[SIZE_TEXT_BYTES], seconds[32], cost[32];
    const char *lane;
    double free_ns;
    if (bytes == 0)
        return 0;
    if (home == TIER_DEVICE)
        near = all;
    if (near > 0 && found->reason_count < PLAN_REASONS_MAX)
        snprintf(found->reasons[found->reason_count++], PLAN_REASON_BYTES,
                 "inner activations of %" PRIu32 " of %" PRIu32
                 " micro-batches between a block's parts on device: %s fit",
                 near, all, size_format(near * bytes, size));
    if (near == all || found->reason_count == PLAN_REASONS_MAX)
        return 0;
    memcpy(endless, job->budget_bytes, sizeof endless);
    endless[TIER_DEVICE] = UINT64_MAX / 2;
    self->job.parked_near = all;
    int rc = step_ns(self, endless, &free_ns);
    self->job.parked_near = near;
    TRY(rc);
    format_seconds(lane_seconds(self, found, &recomputed, home, &lane), seconds);
    format_seconds(fmax(base_ns - free_ns, 0) * 1e-9, cost);
    snprintf(found->reasons[found->reason_count++], PLAN_REASON_BYTES,
             "inner activations of %" PRIu32 " of %" PRIu32
             " micro-batches between a block's parts on %s: %s beside the activations, as the "
             "device budget is %s; %s of %s a step, which make it %s longer",
             all - near, all, resting_place(home), size_format((all - near) * bytes, size),
             size_format(job->budget_bytes[TIER_DEVICE], budget), seconds, lane, cost);
    return 0;
}

int plani_give_reasons(plani_search *self, struct plan_place_found *found)
{
    double base_ns;
    found->reason_count = 0;
    plani_note_work(&self->job, "looking for reasons", 0);
    TRY(step_ns(self, self->job.budget_bytes, &base_ns));
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (int tier = 0; tier < TIER_WORD_COUNT; tier++)
            for (int is_open = 1; is_open >= 0; is_open--) {
                struct group g = {.kind = kind, .tier = tier, .is_open = is_open};
                bool has_home = !self->job.only_eval || kind == STATE_PARAMS;
                for (uint32_t u = 0; u < self->job.unit_count && has_home; u++)
                    if (is_member(self, &g, u)) {
                        g.bytes += plani_bytes_at_home(self, kind, u, (unsigned)tier);
                        g.unit_count++;
                    }
                if (g.unit_count > 0)
                    TRY(say(self, found, &g, base_ns));
            }
    if (!self->job.only_eval)
        TRY(say_parked(self, found, base_ns));
    return 0;
}
