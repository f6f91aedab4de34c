/* Automatic placement: where the search begins, how it goes on, and what wins. See place.h. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "plan/place_internal.h"

static const double place_gain = 0.0002; /* of a step; a move that gains less is none */

enum {
    /* As much of the device as is parked of so many micro-batches, for what passes: of 8 layers of gpt-1t with
     * 32 micro-batches, 3 made a step 8240 s, 5 7309 s and 6 6883 s long; the link waits where there is less. */
    PASSING_SLOTS = 6,
    FILL_KINDS = 5,
    REFUSAL_WORK = 1000000, /* to find which variant of a refused placement needs least */
    LAST_RESORT_WORK =
        4 * PLANI_PLACE_WORK, /* in all: then whole kinds are not compiled any more */
    FINALISTS_WORK = 800000,  /* more than one placement is compiled whole while that costs less */
};

double plan_mean_step_ns(const plan_job *job, const plan_set *set)
{
    double with_ns = (double)set->programs[PROGRAM_STEADY].predicted_ns;
    double without_ns = (double)set->uncommitted_ns;
    if (!job->commits)
        return with_ns;
    if (set->commit == PLAN_COMMIT_APART)
        with_ns += (double)set->programs[PROGRAM_SAVE].predicted_ns;
    return without_ns + (with_ns - without_ns) / (double)size_max(job->commit_every, 1);
}

/* ---- starts ---------------------------------------------------------------------------------- */

/* Whole kinds, nearest first. */
static const uint8_t whole_kinds[][STATE_KIND_COUNT] = {
    /* params, grads, optimizer, activations, inner activations */
    {ARENA_DEVICE, ARENA_DEVICE, ARENA_DEVICE, ARENA_DEVICE, ARENA_COUNT},
    {ARENA_DEVICE, ARENA_DEVICE, ARENA_HOST, ARENA_DEVICE, ARENA_COUNT},
    {ARENA_DEVICE, ARENA_HOST, ARENA_HOST, ARENA_DEVICE, ARENA_COUNT},
    {ARENA_HOST, ARENA_HOST, ARENA_HOST, ARENA_DEVICE, ARENA_COUNT},
    {ARENA_HOST, ARENA_HOST, ARENA_HOST, ARENA_HOST, ARENA_COUNT},
    {ARENA_DEVICE, ARENA_HOST, ARENA_NVME, ARENA_DEVICE, ARENA_COUNT},
    {ARENA_HOST, ARENA_HOST, ARENA_NVME, ARENA_DEVICE, ARENA_COUNT},
    {ARENA_HOST, ARENA_HOST, ARENA_NVME, ARENA_HOST, ARENA_COUNT},
    {ARENA_NVME, ARENA_HOST, ARENA_NVME, ARENA_HOST, ARENA_COUNT},
    {ARENA_NVME, ARENA_NVME, ARENA_NVME, ARENA_HOST, ARENA_COUNT},
    {ARENA_NVME, ARENA_NVME, ARENA_NVME, ARENA_NVME, ARENA_COUNT},
};

enum { WHOLE_KINDS = sizeof whole_kinds / sizeof whole_kinds[0] };

static void point_of_kinds(const plani_placer *self, const uint8_t tiers[STATE_KIND_COUNT],
                           struct plani_point *point)
{
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (int tier = 0; tier < PLANI_TIERS; tier++)
            point->until[kind][tier] = tier >= tiers[kind] ? self->counts[kind] : 0;
}

static bool has_far_optimizer(const plani_placer *self)
{
    for (uint32_t u = 0; u < self->job.unit_count; u++)
        if (plan_learns(&self->job, u) && self->homes[STATE_OPTIMIZER][u] != ARENA_DEVICE)
            return true;
    return false;
}

/* The usual update of the placement: what is updated far from the device is so behind the next forward. */
static void usual_update(plani_placer *self, struct plani_point *point)
{
    if (!self->asked->chooses_update)
        return;
    plani_point_apply(self, point);
    point->update =
        has_far_optimizer(self) ? PLAN_UPDATE_IN_NEXT_FORWARD : PLAN_UPDATE_AFTER_BACKWARD;
}

/* Of the job as applied, with nothing parked near: for how many micro-batches the device has room beside its homes,
 * less a few for what passes through it. */
static uint32_t parked_room(const plani_placer *self)
{
    const plan_job *job = &self->job;
    uint64_t homes[ARENA_COUNT], budget = job->budget_bytes[ARENA_DEVICE];
    plani_count_homes(job, homes);
    uint64_t free_bytes = budget > homes[ARENA_DEVICE] ? budget - homes[ARENA_DEVICE] : 0;
    uint64_t slots = free_bytes / plani_parked_bytes(job);
    slots = slots > PASSING_SLOTS ? slots - PASSING_SLOTS : 0;
    return (uint32_t)size_min(slots, job->micro_batch_count);
}

/* What is parked between passes stays on the device as far as that fits, the rest in host memory. */
static int try_start(plani_placer *self, struct plani_point *point)
{
    double score; /* not looked at: what fits and is slower will not be faster with less near */
    uint32_t all = self->job.micro_batch_count;
    usual_update(self, point);
    point->parked_near = 0;
    point->parked_on_host = true;
    plani_point_apply(self, point);
    bool parks =
        plani_parked_bytes(&self->job) > 0 && plani_parked_home(&self->job) != ARENA_DEVICE;
    uint32_t room = parks ? parked_room(self) : 0;
    const uint32_t nears[] = {all, room, room / 2, 0};
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
    double left[ARENA_COUNT], passing[ARENA_COUNT];
};

static int find_room(plani_placer *self, struct room *room)
{
    static const uint64_t unlimited[ARENA_COUNT] = {UINT64_MAX / 2, UINT64_MAX / 2, UINT64_MAX / 2};
    struct plani_point far = {.update = self->job.update};
    plan_set set;
    plani_layout layout;
    program serial;
    plani_point_far(self, &far);
    usual_update(self, &far);
    plani_point_apply(self, &far);
    TRY(plani_set_begin(&self->job, plani_trial_tile(&self->job, self->level), &set, &layout));
    struct plani_order asked = {.kind = self->job.only_eval ? PROGRAM_EVAL : PROGRAM_STEADY,
                                .serial = true,
                                .work = &self->work};
    int rc = plani_compile_one(&self->job, &set, &layout, &asked, unlimited, &serial);
    for (int a = 0; a < ARENA_COUNT && rc == 0; a++) {
        uint64_t peak = size_max(serial.peak_bytes[a], layout.end_bytes[a]);
        room->passing[a] = (double)(peak - layout.end_bytes[a]);
        room->left[a] = (double)self->job.budget_bytes[a] - (double)layout.end_bytes[a];
    }
    for (int kind = 0; kind < STATE_KIND_COUNT && rc == 0; kind++)
        for (uint32_t i = 0; i < self->counts[kind]; i++) {
            uint32_t unit = self->units[kind][i];
            if (self->homes[kind][unit] < ARENA_COUNT)
                room->left[self->homes[kind][unit]] += (double)self->bytes[kind][unit];
        }
    program_fini(&serial);
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return rc;
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
                fill_tier(self, &point, ARENA_DEVICE, device_fills[d],
                          room.left[ARENA_DEVICE] - shares[s] * room.passing[ARENA_DEVICE]);
                fill_tier(self, &point, ARENA_HOST, host_fills[h],
                          room.left[ARENA_HOST] - shares[s] * room.passing[ARENA_HOST]);
                for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
                    if (kind != STATE_INNER_ACTIVATIONS)
                        point.until[kind][ARENA_NVME] = self->counts[kind];
                TRY(try_start(self, &point));
            }
    return 0;
}

/* Bytes of homes beyond the budgets, by arena. */
static int home_excess(plani_placer *self, double bytes[ARENA_COUNT])
{
    plan_set set;
    plani_layout layout;
    TRY(plani_set_begin(&self->job, plani_trial_tile(&self->job, self->level), &set, &layout));
    for (int a = 0; a < ARENA_COUNT; a++)
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
    double bytes = 0, budget = 0, excess[ARENA_COUNT];
    bool needs_grads = !self->asked->chooses_update || !self->asked->allows_in_backward;
    for (int a = 0; a < ARENA_COUNT; a++)
        if (a != ARENA_NVME || self->asked->has_drives)
            budget += (double)self->job.budget_bytes[a];
    for (uint32_t u = 0; u < self->job.unit_count; u++)
        bytes += (double)self->bytes[STATE_PARAMS][u] + (double)self->bytes[STATE_OPTIMIZER][u] +
                 (needs_grads && self->job.update != PLAN_UPDATE_IN_BACKWARD
                      ? (double)self->bytes[STATE_GRADS][u]
                      : 0);
    plani_point_far(self, &far);
    plani_point_apply(self, &far);
    TRY(home_excess(self, excess));
    self->is_hopeless = bytes > budget || excess[ARENA_DEVICE] > 0 ||
                        (self->asked->has_drives && excess[ARENA_HOST] > 0);
    return 0;
}

static int try_starts(plani_placer *self)
{
    struct plani_point point = {.update = self->job.update};
    TRY(look_for_hope(self));
    if (self->is_hopeless)
        return 0;
    for (int i = 0; i < WHOLE_KINDS; i++) {
        bool had_fit = self->has_fit;
        point_of_kinds(self, whole_kinds[i], &point);
        TRY(try_start(self, &point));
        if ((!had_fit && self->has_fit) || !plani_placer_may_go_on(self))
            break;
    }
    plani_point_near(self, &point, true);
    TRY(try_start(self, &point));
    return try_fills(self);
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Takes the point where it is better than the best so far by what counts. */
static int try_move(plani_placer *self, const struct plani_point *point, bool *gained)
{
    double before = self->best[0].score, score;
    if (!plani_placer_may_go_on(self))
        return 0;
    TRY(plani_point_try(self, point, &score));
    *gained = *gained || score < (1 - place_gain) * before;
    return 0;
}

/* The updates that give the same bits; returns how many. */
static uint32_t list_updates(const plani_placer *self, uint8_t updates[3])
{
    uint32_t count = 0;
    updates[count++] = PLAN_UPDATE_AFTER_BACKWARD;
    updates[count++] = PLAN_UPDATE_IN_NEXT_FORWARD;
    if (self->asked->allows_in_backward)
        updates[count++] = PLAN_UPDATE_IN_BACKWARD;
    return self->asked->chooses_update ? count : 0;
}

/* Other numbers of micro-batches whose parked activations stay on the device. */
static int move_parked(plani_placer *self, bool *gained)
{
    const struct plani_point point = self->best[0].point;
    uint32_t all = self->job.micro_batch_count, near = point.parked_near;
    const uint32_t others[] = {all, near + (all - near) / 2, near / 2, 0};
    plani_point_apply(self, &point);
    if (plani_parked_bytes(&self->job) == 0)
        return 0;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        struct plani_point next = self->best[0].point;
        next.parked_near = others[i];
        TRY(try_move(self, &next, gained));
    }
    struct plani_point other = self->best[0].point;
    other.parked_on_host = !other.parked_on_host;
    return try_move(self, &other, gained);
}

/* Other updates and numbers of held stages for the best placement. */
static int move_modes(plani_placer *self, bool *gained)
{
    uint8_t updates[3];
    uint32_t count = self->job.only_eval ? 0 : list_updates(self, updates);
    struct plani_point point = self->best[0].point;
    for (uint32_t twice = 0; twice < 2; twice++) {
        uint32_t held = point.held;
        struct plani_point next = point;
        next.held = twice ? 2 * held + !held : held / 2;
        TRY(try_move(self, &next, gained));
    }
    TRY(move_parked(self, gained));
    for (uint32_t i = 0; i < count; i++) {
        struct plani_point next = self->best[0].point;
        next.update = updates[i];
        TRY(try_move(self, &next, gained));
    }
    return 0;
}

/* Moves a boundary by `step` units, and those that would cross it. Of kinds that are not recomputed the last
 * boundary stays. */
static bool shift(const plani_placer *self, struct plani_point *point, int kind, int tier,
                  int64_t step)
{
    uint32_t *until = point->until[kind], count = self->counts[kind];
    int64_t moved = (int64_t)until[tier] + step;
    if (tier == ARENA_NVME && kind != STATE_INNER_ACTIVATIONS)
        return false;
    moved = moved < 0 ? 0 : moved > count ? count : moved;
    if (moved == until[tier])
        return false;
    until[tier] = (uint32_t)moved;
    for (int t = 0; t < PLANI_TIERS; t++) {
        if (t < tier && until[t] > moved)
            until[t] = (uint32_t)moved;
        if (t > tier && until[t] < moved)
            until[t] = (uint32_t)moved;
    }
    if (!self->asked->has_drives) /* what leaves the host goes nowhere */
        until[ARENA_HOST] = until[ARENA_NVME] =
            kind == STATE_INNER_ACTIVATIONS ? until[ARENA_HOST] : count;
    return true;
}

/* Brings units of the kind nearer in place of as many bytes of another kind. */
static int trade(plani_placer *self, int kind, int tier, uint32_t step, bool *gained)
{
    for (int other = 0; other < STATE_KIND_COUNT; other++) {
        struct plani_point next = self->best[0].point;
        uint32_t first = next.until[kind][tier];
        if (other == kind || self->counts[other] == 0 || !shift(self, &next, kind, tier, step))
            continue;
        uint64_t bytes = 0;
        for (uint32_t i = first; i < next.until[kind][tier]; i++)
            bytes += self->bytes[kind][self->units[kind][i]];
        uint32_t end = next.until[other][tier], begin = end;
        uint32_t nearer = tier > 0 ? next.until[other][tier - 1] : 0;
        for (uint64_t given = 0; begin > nearer && given < bytes;)
            given += self->bytes[other][self->units[other][--begin]];
        if (begin == end || !shift(self, &next, other, tier, (int64_t)begin - (int64_t)end))
            continue;
        TRY(try_move(self, &next, gained));
    }
    return 0;
}

static int move_kinds(plani_placer *self, uint32_t part, bool *gained)
{
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (int tier = 0; tier < PLANI_TIERS; tier++) {
            uint32_t step = self->counts[kind] / part;
            if (self->counts[kind] == 0 || (step == 0 && part > 2 * self->counts[kind]))
                continue;
            step = step ? step : 1;
            for (int sign = 1; sign >= -1; sign -= 2) {
                struct plani_point next = self->best[0].point;
                if (shift(self, &next, kind, tier, sign * (int64_t)step))
                    TRY(try_move(self, &next, gained));
            }
            if (tier != ARENA_NVME)
                TRY(trade(self, kind, tier, step, gained));
        }
    return 0;
}

static uint32_t longest_kind(const plani_placer *self)
{
    uint32_t most = 0;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        most = self->counts[kind] > most ? self->counts[kind] : most;
    return most;
}

static int improve(plani_placer *self)
{
    uint32_t most = longest_kind(self);
    bool gained = true;
    while (gained && plani_placer_may_go_on(self)) {
        gained = false;
        TRY(move_modes(self, &gained));
    }
    for (uint32_t part = 1; part <= 2 * most; part *= 2) {
        gained = true;
        while (gained && plani_placer_may_go_on(self)) {
            gained = false;
            TRY(move_kinds(self, part, &gained));
            TRY(move_modes(self, &gained));
        }
    }
    return 0;
}

/* ---- the winner ------------------------------------------------------------------------------ */

static int compile_point(plani_placer *self, const struct plani_point *point, plan_set *set)
{
    plani_point_apply(self, point);
    int rc = plan_compile(&self->job, set);
    self->compiles++;
    self->work += set->work_ops;
    return rc;
}

/* Compiles the best few whole; 1: none fits. */
static int compile_best(plani_placer *self, struct plan_place_found *found,
                        struct plani_point *taken)
{
    bool has_one = false;
    uint64_t work = 0;
    for (int i = 0; i < PLANI_FINALISTS && isfinite(self->best[i].score); i++) {
        plan_set set;
        if (has_one && work * (uint64_t)(i + 1) / (uint64_t)i > FINALISTS_WORK)
            break;
        int rc = compile_point(self, &self->best[i].point, &set);
        if (rc == ERR_NO_FIT)
            continue;
        TRY(rc);
        work += set.work_ops;
        if (has_one && plan_mean_step_ns(&self->job, &set) >=
                           (1 - place_gain) * plan_mean_step_ns(&self->job, &found->set)) {
            plan_set_fini(&set);
            continue;
        }
        if (has_one)
            plan_set_fini(&found->set);
        found->set = set;
        *taken = self->best[i].point;
        has_one = true;
    }
    return has_one ? 0 : 1;
}

/* Of the placement with any update, and inner activations kept or not, the one that needs least; only what must
 * be is tried where a program is long. */
static int find_least(plani_placer *self, struct plani_point *nearest)
{
    uint8_t updates[3];
    uint32_t count = list_updates(self, updates), kept = self->counts[STATE_INNER_ACTIVATIONS];
    const struct plani_point usual = *nearest;
    uint64_t before = self->work;
    double least = INFINITY;
    for (uint32_t i = 0; i < size_max(count, 1); i++)
        for (int tier = PLANI_TIERS; tier > ARENA_DEVICE; tier--) {
            struct plani_point point = usual;
            double bytes;
            point.update = count ? updates[i] : usual.update;
            for (int t = tier; t < PLANI_TIERS && kept; t++)
                point.until[STATE_INNER_ACTIVATIONS][t] = kept;
            if ((tier < PLANI_TIERS && kept == 0) || !plani_point_is_legal(self, &point) ||
                self->work - before > REFUSAL_WORK)
                continue;
            plani_point_apply(self, &point);
            TRY(plani_excess(&self->job, &bytes, &self->work));
            if (bytes < least) {
                least = bytes;
                *nearest = point;
            }
        }
    return 0;
}

static int refuse_nearest(plani_placer *self, struct plani_point *nearest)
{
    plan_set set;
    if (!self->asked->job->no_advice)
        TRY(find_least(self, nearest));
    plani_point_apply(self, nearest);
    self->job.no_advice = self->asked->job->no_advice;
    int rc = plan_compile(&self->job, &set);
    if (rc == 0) { /* with that update, or what is kept: not one that was tried whole */
        plan_set_fini(&set);
        return 1;
    }
    return rc;
}

/* The last resort: whole kinds, compiled whole. Where none fits either, the refusal is that of the one whose
 * homes come nearest to the budgets, of several the one that needs least memory. */
static int compile_whole_kinds(plani_placer *self, struct plan_place_found *found,
                               struct plani_point *taken)
{
    struct plani_point point = {.update = self->asked->job->update}, nearest = point;
    double least = INFINITY;
    for (int i = 0; i < WHOLE_KINDS; i++) {
        double excess[ARENA_COUNT], bytes = 0;
        point_of_kinds(self, whole_kinds[i], &point);
        if (!plani_point_is_legal(self, &point))
            continue;
        usual_update(self, &point);
        *taken = point;
        int rc = ERR_NO_FIT;
        if (!self->is_hopeless && self->work <= LAST_RESORT_WORK)
            rc = compile_point(self, &point, &found->set);
        if (rc != ERR_NO_FIT)
            return rc;
        plani_point_apply(self, &point);
        TRY(home_excess(self, excess));
        for (int a = 0; a < ARENA_COUNT; a++)
            bytes += excess[a];
        if (bytes <= least) {
            least = bytes;
            nearest = point;
        }
    }
    TRY(refuse_nearest(self, &nearest));
    *taken = nearest; /* found on the way to a refusal: it fits */
    return compile_point(self, taken, &found->set);
}

static void fill_found(plani_placer *self, const struct plani_point *taken,
                       struct plan_place_found *found)
{
    plani_point_apply(self, taken);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        memcpy(found->homes[kind], self->homes[kind], self->job.unit_count);
    found->update = self->job.update;
    found->parked_near = self->job.parked_near;
    found->parked_on_host = self->job.parked_on_host;
}

/* A placement that fits, or the refusal of the last one that was tried. */
static int place_any(plani_placer *self, struct plan_place_found *found)
{
    struct plani_point point;
    int rc = plani_find_fit(self, &point, found->need_bytes);
    TRY(rc);
    fill_found(self, &point, found);
    return rc == 0 ? 0 : plani_refuse_fit(self, found->need_bytes);
}

/* Where no trial fitted: the placement that needs least of the near tiers. 1: that does not fit either. */
static int compile_any(plani_placer *self, struct plan_place_found *found,
                       struct plani_point *taken)
{
    uint64_t need[ARENA_COUNT];
    int rc = plani_find_fit(self, taken, need);
    if (rc == 0)
        rc = compile_point(self, taken, &found->set);
    return rc == ERR_NO_FIT ? 1 : rc;
}

static int place(plani_placer *self, struct plan_place_found *found)
{
    struct plani_point taken;
    TRY(try_starts(self));
    if (self->has_fit)
        TRY(improve(self));
    int rc = compile_best(self, found, &taken);
    if (rc == 1 && !self->is_hopeless)
        rc = compile_any(self, found, &taken);
    if (rc == 1)
        rc = compile_whole_kinds(self, found, &taken);
    TRY(rc);
    fill_found(self, &taken, found);
    rc = plani_give_reasons(self, found);
    if (rc < 0)
        plan_set_fini(&found->set);
    return rc;
}

int plan_place(const struct plan_place_asked *asked, struct plan_place_found *found)
{
    plani_placer self;
    memset(&found->set, 0, sizeof found->set);
    found->reason_count = 0;
    int rc = plani_placer_init(&self, asked);
    if (rc == 0)
        rc = plani_check_job(asked->job);
    if (rc == 0)
        rc = asked->only_fits ? place_any(&self, found) : place(&self, found);
    found->trial_count = self.trials;
    found->compile_count = self.compiles;
    found->work_ops = self.work;
    plani_placer_fini(&self);
    return rc;
}
