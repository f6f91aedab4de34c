/* Automatic placement: how the search goes on, and what wins. See place.h. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "plan/place_internal.h"

static const double place_gain = 0.0002; /* of a step; a move that gains less is none */

enum {
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
    updates[count++] = UPDATE_AFTER_BACKWARD;
    updates[count++] = UPDATE_IN_NEXT_FORWARD;
    if (self->asked->allows_in_backward)
        updates[count++] = UPDATE_IN_BACKWARD;
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
    if (tier == TIER_NVME && kind != STATE_INNER_ACTIVATIONS)
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
        until[TIER_HOST] = until[TIER_NVME] =
            kind == STATE_INNER_ACTIVATIONS ? until[TIER_HOST] : count;
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
            if (tier != TIER_NVME)
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
        for (int tier = PLANI_TIERS; tier > TIER_DEVICE; tier--) {
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
    for (uint32_t i = 0; i < PLANI_WHOLE_KINDS; i++) {
        double excess[TIER_COUNT], bytes = 0;
        plani_point_of_kinds(self, i, &point);
        if (!plani_point_is_legal(self, &point))
            continue;
        plani_usual_update(self, &point);
        *taken = point;
        int rc = ERR_NO_FIT;
        if (!self->is_hopeless && self->work <= LAST_RESORT_WORK)
            rc = compile_point(self, &point, &found->set);
        if (rc != ERR_NO_FIT)
            return rc;
        plani_point_apply(self, &point);
        TRY(plani_home_excess(self, excess));
        for (int a = 0; a < TIER_COUNT; a++)
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
    uint64_t need[TIER_COUNT];
    int rc = plani_find_fit(self, taken, need);
    if (rc == 0)
        rc = compile_point(self, taken, &found->set);
    return rc == ERR_NO_FIT ? 1 : rc;
}

static int place(plani_placer *self, struct plan_place_found *found)
{
    struct plani_point taken;
    TRY(plani_try_starts(self));
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
