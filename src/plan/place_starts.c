/* Where the search for a placement begins: whole kinds on the nearest tiers that take them, then tiers filled kind by
 * kind in several orders. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "plan/place_internal.h"

enum { FILL_KINDS = 5 };

/* Whole kinds, nearest first. */
static const uint8_t whole_kinds[][STATE_KIND_COUNT] = {
    /* params, grads, optimizer, activations, inner activations */
    {TIER_DEVICE, TIER_DEVICE, TIER_DEVICE, TIER_DEVICE, TIER_COUNT},
    {TIER_DEVICE, TIER_DEVICE, TIER_HOST, TIER_DEVICE, TIER_COUNT},
    {TIER_DEVICE, TIER_HOST, TIER_HOST, TIER_DEVICE, TIER_COUNT},
    {TIER_HOST, TIER_HOST, TIER_HOST, TIER_DEVICE, TIER_COUNT},
    {TIER_HOST, TIER_HOST, TIER_HOST, TIER_HOST, TIER_COUNT},
    {TIER_DEVICE, TIER_HOST, TIER_NVME, TIER_DEVICE, TIER_COUNT},
    {TIER_HOST, TIER_HOST, TIER_NVME, TIER_DEVICE, TIER_COUNT},
    {TIER_HOST, TIER_HOST, TIER_NVME, TIER_HOST, TIER_COUNT},
    {TIER_NVME, TIER_HOST, TIER_NVME, TIER_HOST, TIER_COUNT},
    {TIER_NVME, TIER_NVME, TIER_NVME, TIER_HOST, TIER_COUNT},
    {TIER_NVME, TIER_NVME, TIER_NVME, TIER_NVME, TIER_COUNT},
};

static_assert(sizeof whole_kinds / sizeof whole_kinds[0] == PLANI_WHOLE_KINDS,
              "as many as are named");

void plani_point_of_kinds(const plani_placer *self, uint32_t idx, struct plani_point *point)
{
    const uint8_t *tiers = whole_kinds[idx];
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (int tier = 0; tier < PLANI_TIERS; tier++)
            point->until[kind][tier] = tier >= tiers[kind] ? self->counts[kind] : 0;
}

static bool has_far_optimizer(const plani_placer *self)
{
    for (uint32_t u = 0; u < self->job.unit_count; u++)
        if (plan_learns(&self->job, u) && self->homes[STATE_OPTIMIZER][u] != TIER_DEVICE)
            return true;
    return false;
}

/* The usual update of the placement: what is updated far from the device is so behind the next forward. */
void plani_usual_update(plani_placer *self, struct plani_point *point)
{
    if (!self->asked->chooses_update)
        return;
    plani_point_apply(self, point);
    point->update = has_far_optimizer(self) ? UPDATE_IN_NEXT_FORWARD : UPDATE_AFTER_BACKWARD;
}

/* Of the step of the job as applied, at the tiles of trials: bytes of homes, and what the serial order, one op at a
 * time, needs beside them. */
static int learn_needs(plani_placer *self, uint64_t homes[TIER_COUNT], uint64_t passing[TIER_COUNT])
{
    static const uint64_t unlimited[TIER_COUNT] = {UINT64_MAX / 2, UINT64_MAX / 2, UINT64_MAX / 2};
    plan_set set;
    plani_layout layout;
    program serial;
    TRY(plani_set_begin(&self->job, plani_trial_tile(&self->job, self->level), &set, &layout));
    struct plani_order asked = {.kind = self->job.only_eval ? PROGRAM_EVAL : PROGRAM_STEADY,
                                .serial = true,
                                .work = &self->work};
    int rc = plani_compile_one(&self->job, &set, &layout, &asked, unlimited, &serial);
    for (int a = 0; a < TIER_COUNT && rc == 0; a++) {
        homes[a] = layout.end_bytes[a];
        passing[a] = size_max(serial.peak_bytes[a], homes[a]) - homes[a];
    }
    program_fini(&serial);
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return rc;
}

/* What passes through the device where nothing is parked there. Of the first placement that asks: it hardly depends
 * on where states rest. */
static int learn_passing(plani_placer *self)
{
    uint64_t homes[TIER_COUNT], passing[TIER_COUNT];
    if (self->passing_bytes > 0)
        return 0;
    TRY(learn_needs(self, homes, passing));
    self->passing_bytes = size_max(passing[TIER_DEVICE], 1);
    return 0;
}

/* Of the job as applied, with nothing parked near: for how many micro-batches the device has room beside its homes
 * and `times` what passes through it. */
static uint32_t parked_room(const plani_placer *self, uint64_t times)
{
    const plan_job *job = &self->job;
    uint64_t homes[TIER_COUNT], budget = job->budget_bytes[TIER_DEVICE];
    plani_count_homes(job, homes);
    uint64_t taken = homes[TIER_DEVICE] + times * self->passing_bytes;
    uint64_t free_bytes = budget > taken ? budget - taken : 0;
    return (uint32_t)size_min(free_bytes / plani_parked_bytes(job), job->micro_batch_count);
}

/* What is parked between passes stays on the device as far as that fits, the rest in host memory. */
static int try_start(plani_placer *self, struct plani_point *point)
{
    double score; /* not looked at: what fits and is slower will not be faster with less near */
    uint32_t all = self->job.micro_batch_count;
    plani_usual_update(self, point);
    point->parked_near = 0;
    point->parked_on_host = true;
    plani_point_apply(self, point);
    bool parks = plani_parked_bytes(&self->job) > 0 && plani_parked_home(&self->job) != TIER_DEVICE;
    if (parks)
        TRY(learn_passing(self));
    /* What passes twice: for the op at hand, and for the copies behind it and ahead of it. */
    uint32_t twice = parks ? parked_room(self, 2) : 0, once = parks ? parked_room(self, 1) : 0;
    const uint32_t nears[] = {all, twice, once, once / 2, 0};
    for (size_t i = 0; i < sizeof nears / sizeof nears[0]; i++) {
        if (i > 0 && nears[i] == nears[i - 1])
            continue;
        point->parked_near = nears[i];
        TRY(plani_point_try(self, point, &score));
        if (self->last_fits || !parks)
            return 0;
    }
    point->parked_on_host = false;
    return plani_point_try(self, point, &score);
}

/* What of each arena is left for homes that are to be placed, and what the serial order needs beside homes. */
struct room {
    double left[TIER_COUNT], passing[TIER_COUNT];
};

static int find_room(plani_placer *self, struct room *room)
{
    struct plani_point far = {.update = self->job.update};
    uint64_t homes[TIER_COUNT], passing[TIER_COUNT];
    plani_point_far(self, &far);
    plani_usual_update(self, &far);
    plani_point_apply(self, &far);
    TRY(learn_needs(self, homes, passing));
    for (int a = 0; a < TIER_COUNT; a++) {
        room->passing[a] = (double)passing[a];
        room->left[a] = (double)self->job.budget_bytes[a] - (double)homes[a];
    }
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (uint32_t i = 0; i < self->counts[kind]; i++) {
            uint32_t unit = self->units[kind][i];
            if (self->homes[kind][unit] < TIER_COUNT)
                room->left[self->homes[kind][unit]] += (double)self->bytes[kind][unit];
        }
    return 0;
}

/* Fills an arena kind by kind, each in order of need; what rests nearer already does so. */
static void fill_tier(const plani_placer *self, struct plani_point *point, int tier,
                      const uint8_t kinds[FILL_KINDS], double left)
{
    for (int i = 0; i < FILL_KINDS && kinds[i] < STATE_KIND_COUNT; i++) {
        uint32_t *until = point->until[kinds[i]];
        const uint32_t *units = self->units[kinds[i]];
        uint32_t end = tier > 0 ? until[tier - 1] : 0;
        for (; end < self->counts[kinds[i]]; end++) {
            double bytes = (double)self->bytes[kinds[i]][units[end]];
            if (bytes > left)
                break;
            left -= bytes;
        }
        for (int t = tier; t < PLANI_TIERS; t++)
            until[t] = t == tier || until[t] < end ? end : until[t];
    }
}

enum {
    P = STATE_PARAMS,
    G = STATE_GRADS,
    O = STATE_OPTIMIZER,
    A = STATE_ACTIVATIONS,
    I = STATE_INNER_ACTIVATIONS,
    NONE = STATE_KIND_COUNT
};

static const uint8_t device_fills[][FILL_KINDS] = {
    {A, P, G, O, NONE}, {I, A, P, G, O}, {A, P, G, O, I}, {P, G, A, NONE}, {O, G, P, A, I}, {NONE},
};
static const uint8_t host_fills[][FILL_KINDS] = {
    {A, O, G, P, NONE},
    {A, P, G, O, I},
    {I, A, P, G, O},
    {A, P, O, G, NONE},
};

static int try_fills(plani_placer *self)
{
    static const double shares[] = {1.5, 4, 12}; /* of what the serial order needs is left open */
    struct room room;
    TRY(find_room(self, &room));
    for (size_t h = 0; h < sizeof host_fills / sizeof host_fills[0]; h++)
        for (size_t s = 0; s < sizeof shares / sizeof shares[0]; s++)
            for (size_t d = 0; d < sizeof device_fills / sizeof device_fills[0]; d++) {
                struct plani_point point = {.update = self->job.update};
                if (self->work > PLANI_PLACE_WORK / 2 || self->trials > PLANI_TRIALS_MOST / 2)
                    return 0;
                memset(point.until, 0, sizeof point.until);
                fill_tier(self, &point, TIER_DEVICE, device_fills[d],
                          room.left[TIER_DEVICE] - shares[s] * room.passing[TIER_DEVICE]);
                fill_tier(self, &point, TIER_HOST, host_fills[h],
                          room.left[TIER_HOST] - shares[s] * room.passing[TIER_HOST]);
                for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
                    if (kind != STATE_INNER_ACTIVATIONS)
                        point.until[kind][TIER_NVME] = self->counts[kind];
                TRY(try_start(self, &point));
            }
    return 0;
}

/* Bytes of homes beyond the budgets, by arena. */
int plani_home_excess(plani_placer *self, double bytes[TIER_COUNT])
{
    plan_set set;
    plani_layout layout;
    TRY(plani_set_begin(&self->job, plani_trial_tile(&self->job, self->level), &set, &layout));
    for (int a = 0; a < TIER_COUNT; a++)
        bytes[a] = fmax((double)layout.end_bytes[a] - (double)self->job.budget_bytes[a], 0);
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return 0;
}

/* Finds self->is_hopeless: what must rest somewhere is more than all tiers together have, or what no placement
 * takes off the device or the host is more than these have. */
static int look_for_hope(plani_placer *self)
{
    struct plani_point far = {.update = self->job.update};
    double bytes = 0, budget = 0, excess[TIER_COUNT];
    bool needs_grads = !self->asked->chooses_update || !self->asked->allows_in_backward;
    for (int a = 0; a < TIER_COUNT; a++)
        if (a != TIER_NVME || self->asked->has_drives)
            budget += (double)self->job.budget_bytes[a];
    for (uint32_t u = 0; u < self->job.unit_count; u++)
        bytes += (double)self->bytes[STATE_PARAMS][u] + (double)self->bytes[STATE_OPTIMIZER][u] +
                 (needs_grads && self->job.update != UPDATE_IN_BACKWARD
                      ? (double)self->bytes[STATE_GRADS][u]
                      : 0);
    plani_point_far(self, &far);
    plani_point_apply(self, &far);
    TRY(plani_home_excess(self, excess));
    self->is_hopeless = bytes > budget || excess[TIER_DEVICE] > 0 ||
                        (self->asked->has_drives && excess[TIER_HOST] > 0);
    return 0;
}

int plani_try_starts(plani_placer *self)
{
    struct plani_point point = {.update = self->job.update};
    TRY(look_for_hope(self));
    if (self->is_hopeless)
        return 0;
    for (uint32_t i = 0; i < PLANI_WHOLE_KINDS; i++) {
        bool had_fit = self->has_fit;
        plani_point_of_kinds(self, i, &point);
        TRY(try_start(self, &point));
        if ((!had_fit && self->has_fit) || !plani_placer_may_go_on(self))
            break;
    }
    plani_point_near(self, &point, true);
    TRY(try_start(self, &point));
    return try_fills(self);
}
