/* The search for a placement: trials, moves from the best point, and the winner. See plan_place in
 * plan.h.
 *
 *   1  the first points (starts.c)
 *   2  moves from the best point, in steps that get smaller, until none gains
 *   3  the best few points are compiled whole (settle.c); the shortest mean step wins
 *   4  all of it in the other order of micro-batches, where the order is open
 *
 * Where none of these compiles, what fits at all is compiled in its place, in this order: the
 * placement that needs least of the near tiers (fit.c); whole kinds, nearest first. Where nothing
 * fits, the refusal is that of the placement which comes nearest to the budgets. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "plan/search_internal.h"

/* A score is the time of a step and these shares of it: where all inner activations are kept, and
 * where all other states are on drives. */
static const double kept_cost = 0.0003, far_cost = 0.0003;
/* A point that loses by this much in trials may yet win when it is compiled whole. */
static const double near_loser = 1.005;

enum {
    REFUSAL_WORK = 1000000, /* to find which variant of a refused placement needs least */
    LAST_RESORT_WORK =
        4 * PLANI_SEARCH_WORK, /* in all: then whole kinds are not compiled any more */
    FINALISTS_WORK = 800000,   /* more than one placement is compiled whole while that costs less */
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

/* ---- trials of placements ------------------------------------------------------------------- */

bool plani_search_may_go_on(const plani_search *self)
{
    return self->work.ops < PLANI_SEARCH_WORK && self->trials < PLANI_TRIALS_MOST &&
           self->seen_count < PLANI_SEEN_MOST;
}

/* A hash of homes, modes and held stages; never 0. */
static uint64_t hash_of(const plani_search *self, const struct plani_point *point)
{
    const uint32_t modes[] = {point->held, point->update, point->parked_near,
                              point->parked_on_host};
    uint64_t hash = PLANI_HASH_BEGIN;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        hash = plani_hash(hash, self->homes[kind], self->job.unit_count);
    hash = plani_hash(hash, modes, sizeof modes);
    return hash ? hash : 1;
}

/* True if the point was seen, or if there is no room to note it. Points whose homes alone do not
 * fit cost no work and are no trials, so their number ends the search as well. */
static bool note_seen(plani_search *self, uint64_t hash)
{
    uint64_t at = hash & (PLANI_SEEN - 1);
    while (self->seen[at] != 0 && self->seen[at] != hash)
        at = (at + 1) & (PLANI_SEEN - 1);
    if (self->seen[at] == hash || self->seen_count == PLANI_SEEN_MOST)
        return true;
    self->seen[at] = hash;
    self->seen_count++;
    return false;
}

/* The factor by which a score exceeds the time: it makes use of memory that is there, and brings a
 * unit nearer where that costs nothing and spares drives. */
static double factor_of(const plani_search *self, const struct plani_point *point)
{
    double count = self->counts[STATE_INNER_ACTIVATIONS], far = 0, all = 1;
    double kept = point->until[STATE_INNER_ACTIVATIONS][TIER_NVME];
    for (int kind = 0; kind < STATE_INNER_ACTIVATIONS; kind++)
        for (uint32_t i = 0; i < self->counts[kind]; i++) {
            double bytes = (double)self->bytes[kind][self->units[kind][i]];
            far += i >= point->until[kind][TIER_HOST] ? bytes : 0;
            all += bytes;
        }
    return 1 + kept_cost * kept / fmax(count, 1) + far_cost * far / all;
}

/* Puts the point among the best; one placement is there once, with its best number of held
 * stages. */
static void note_score(plani_search *self, const struct plani_point *point, double score)
{
    struct plani_scored *best = self->best;
    int at = 0;
    while (at < PLANI_FINALISTS && best[at].score <= score) {
        if (isfinite(best[at].score) && plani_point_is_same_placement(&best[at].point, point))
            return;
        at++;
    }
    if (at == PLANI_FINALISTS)
        return;
    int end = at; /* the same with other held stages goes, or the last */
    while (end < PLANI_FINALISTS - 1 &&
           !(isfinite(best[end].score) && plani_point_is_same_placement(&best[end].point, point)))
        end++;
    for (int i = end; i > at; i--)
        best[i] = best[i - 1];
    best[at] = (struct plani_scored){*point, score};
    assert(at == 0 || best[at - 1].score <= score);
}

/* Tries the placement with tiles of self->level; while no placement has fitted, with finer ones
 * until it does or there are none. *level: of the last tiles that were tried. */
static int try_levels(plani_search *self, struct plani_point point, uint64_t limit_ns,
                      struct plani_trial *trial, uint32_t *level)
{
    const plan_job *job = &self->job;
    uint32_t level_max = self->has_fit ? self->level + 1 : UINT32_MAX;
    const uint64_t begun = self->work.ops;
    uint64_t before = 0;
    if (!plani_homes_may_fit(job))
        return ERR_NO_FIT;
    point.commit = plani_decisive_commit(job);
    for (*level = self->level;; ++*level) {
        point.tile_elems = plani_trial_tile(job, *level);
        int rc = ERR_NO_FIT;
        if (point.tile_elems != before)
            rc = plani_try(job, &point, limit_ns, trial, &self->work);
        before = point.tile_elems;
        uint64_t ops = self->work.ops - begun;
        if (rc == ERR_NO_FIT && *level < level_max && ops <= PLANI_SEARCH_WORK &&
            !plani_is_last_level(job, *level))
            continue;
        self->trials += ops > 0;
        return rc;
    }
}

int plani_search_try(plani_search *self, struct plani_point point, double *score)
{
    struct plani_trial trial;
    uint32_t level;
    uint64_t limit_ns = 0;
    *score = INFINITY;
    self->last_fits = false;
    if (!plani_point_is_legal(self, &point))
        return 0;
    plani_note_work(&self->job, "trying placements", 0);
    plani_point_apply(self, &point);
    if (note_seen(self, hash_of(self, &point)))
        return 0;
    double factor = factor_of(self, &point);
    if (self->has_fit)
        limit_ns = (uint64_t)(near_loser * self->best[0].score / factor);
    int rc = try_levels(self, point, limit_ns, &trial, &level);
    if (rc == ERR_NO_FIT)
        return 0;
    TRY(rc);
    self->last_fits = true;
    if (!self->has_fit)
        self->level = level;
    self->has_fit = true;
    if (trial.ns == UINT64_MAX)
        return 0;
    *score = (double)trial.ns * factor;
    note_score(self, &point, *score);
    return 0;
}

/* ---- moves ---------------------------------------------------------------------------------- */

/* Tries the point; *gained where it is worth leaving the best point so far for it. */
static int try_move(plani_search *self, const struct plani_point *point, bool *gained)
{
    double before = self->best[0].score, score;
    if (!plani_search_may_go_on(self))
        return 0;
    TRY(plani_search_try(self, *point, &score));
    *gained = *gained || plani_is_worth(PLANI_CHANGE_HOMES, score, before);
    return 0;
}

/* Other numbers of micro-batches whose parked activations stay on the device. */
static int move_parked(plani_search *self, bool *gained)
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
static int move_modes(plani_search *self, bool *gained)
{
    uint8_t updates[PLANI_UPDATES_MAX];
    uint32_t count = self->job.only_eval ? 0 : plani_open_updates(self, updates);
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
        next.update = (enum update)updates[i];
        TRY(try_move(self, &next, gained));
    }
    return 0;
}

/* Brings units of the kind nearer in place of as many bytes of another kind. */
static int trade(plani_search *self, int kind, int tier, uint32_t step, bool *gained)
{
    for (int other = 0; other < STATE_KIND_COUNT; other++) {
        struct plani_point next = self->best[0].point;
        uint32_t first = next.until[kind][tier];
        if (other == kind || self->counts[other] == 0 ||
            !plani_point_shift(self, &next, kind, tier, step))
            continue;
        uint64_t bytes = 0;
        for (uint32_t i = first; i < next.until[kind][tier]; i++)
            bytes += self->bytes[kind][self->units[kind][i]];
        uint32_t end = next.until[other][tier], begin = end;
        uint32_t nearer = tier > 0 ? next.until[other][tier - 1] : 0;
        for (uint64_t given = 0; begin > nearer && given < bytes;)
            given += self->bytes[other][self->units[other][--begin]];
        if (begin == end ||
            !plani_point_shift(self, &next, other, tier, (int64_t)begin - (int64_t)end))
            continue;
        TRY(try_move(self, &next, gained));
    }
    return 0;
}

/* Moves each boundary by the `part`-th part of its kind's units, both ways; and trades. */
static int move_kinds(plani_search *self, uint32_t part, bool *gained)
{
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (int tier = 0; tier < TIER_COUNT; tier++) {
            uint32_t step = self->counts[kind] / part;
            if (self->counts[kind] == 0 || (step == 0 && part > 2 * self->counts[kind]))
                continue;
            step = step ? step : 1;
            for (int sign = 1; sign >= -1; sign -= 2) {
                struct plani_point next = self->best[0].point;
                if (plani_point_shift(self, &next, kind, tier, sign * (int64_t)step))
                    TRY(try_move(self, &next, gained));
            }
            if (tier != TIER_NVME)
                TRY(trade(self, kind, tier, step, gained));
        }
    return 0;
}

static uint32_t longest_kind(const plani_search *self)
{
    uint32_t most = 0;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        most = self->counts[kind] > most ? self->counts[kind] : most;
    return most;
}

static int improve(plani_search *self)
{
    uint32_t most = longest_kind(self);
    bool gained = true;
    while (gained && plani_search_may_go_on(self)) {
        gained = false;
        TRY(move_modes(self, &gained));
    }
    for (uint32_t part = 1; part <= 2 * most; part *= 2) {
        gained = true;
        while (gained && plani_search_may_go_on(self)) {
            gained = false;
            TRY(move_kinds(self, part, &gained));
            TRY(move_modes(self, &gained));
        }
    }
    return 0;
}

/* ---- the winner ----------------------------------------------------------------------------- */

static int compile_point(plani_search *self, const struct plani_point *point, plan_set *set)
{
    plani_point_apply(self, point);
    self->compiles++;
    return plani_compile(&self->job, set, &self->work);
}

/* Compiles the best few whole; 1: none fits. */
static int compile_best(plani_search *self, plan_set *set, struct plani_point *taken)
{
    bool has_one = false;
    uint64_t work = 0;
    for (int i = 0; i < PLANI_FINALISTS && isfinite(self->best[i].score); i++) {
        plan_set next;
        if (has_one && work * (uint64_t)(i + 1) / (uint64_t)i > FINALISTS_WORK)
            break;
        int rc = compile_point(self, &self->best[i].point, &next);
        if (rc == ERR_NO_FIT)
            continue;
        TRY(rc);
        work += next.work_ops;
        if (has_one && !plani_is_worth(PLANI_CHANGE_HOMES, plan_mean_step_ns(&self->job, &next),
                                       plan_mean_step_ns(&self->job, set))) {
            plan_set_fini(&next);
            continue;
        }
        if (has_one)
            plan_set_fini(set);
        *set = next;
        *taken = self->best[i].point;
        has_one = true;
    }
    return has_one ? 0 : 1;
}

/* Compiles the placement that needs least of the near tiers; 1: that does not fit either. */
static int compile_any(plani_search *self, plan_set *set, struct plani_point *taken)
{
    uint64_t need[TIER_COUNT];
    int rc = plani_find_fit(self, taken, need);
    if (rc == 0)
        rc = compile_point(self, taken, set);
    return rc == ERR_NO_FIT ? 1 : rc;
}

/* Compiles whole kinds, nearest first. 1: none fits, and *taken is the one whose homes come
 * nearest to the budgets; among equally near ones the last, which needs least memory. */
static int compile_whole_kinds(plani_search *self, plan_set *set, struct plani_point *taken)
{
    struct plani_point point = {.order = self->job.order, .update = self->asked->job->update};
    struct plani_point nearest = point;
    double least = INFINITY;
    for (uint32_t i = 0; i < PLANI_WHOLE_KINDS; i++) {
        double excess[TIER_COUNT], bytes = 0;
        plani_point_of_kinds(self, i, &point);
        if (!plani_point_is_legal(self, &point))
            continue;
        plani_point_usual_update(self, &point);
        *taken = point;
        int rc = ERR_NO_FIT;
        if (!self->is_hopeless && self->work.ops <= LAST_RESORT_WORK)
            rc = compile_point(self, &point, set);
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
    *taken = nearest;
    return 1;
}

/* ---- the refusal ---------------------------------------------------------------------------- */

/* Finds the variant of the placement that needs least: with any open update, and with inner
 * activations kept or not. Where a program is long only the first variants are tried. */
static int find_least(plani_search *self, struct plani_point *nearest)
{
    uint8_t updates[PLANI_UPDATES_MAX];
    uint32_t count = plani_open_updates(self, updates);
    uint32_t kept = self->counts[STATE_INNER_ACTIVATIONS];
    const struct plani_point usual = *nearest;
    uint64_t before = self->work.ops;
    double least = INFINITY;
    for (uint32_t i = 0; i < size_max(count, 1); i++)
        for (int tier = TIER_COUNT; tier > TIER_DEVICE; tier--) {
            struct plani_point point = usual;
            double bytes;
            point.update = count ? (enum update)updates[i] : usual.update;
            for (int t = tier; t < TIER_COUNT && kept; t++)
                point.until[STATE_INNER_ACTIVATIONS][t] = kept;
            if ((tier < TIER_COUNT && kept == 0) || !plani_point_is_legal(self, &point) ||
                self->work.ops - before > REFUSAL_WORK)
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

/* Compiles the variant of the point that needs least. It nearly always is a refusal, in the words
 * of plan_compile; but an update or inner activations that no trial had may fit after all. */
static int refuse_or_compile(plani_search *self, plan_set *set, struct plani_point *nearest)
{
    if (!self->asked->job->no_advice)
        TRY(find_least(self, nearest));
    self->job.no_advice = self->asked->job->no_advice;
    return compile_point(self, nearest, set);
}

/* ---- the question and its answer ------------------------------------------------------------ */

static void fill_found(plani_search *self, const struct plani_point *taken,
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
static int place_any(plani_search *self, struct plan_place_found *found)
{
    struct plani_point point;
    int rc = plani_find_fit(self, &point, found->need_bytes);
    TRY(rc);
    fill_found(self, &point, found);
    return rc == 0 ? 0 : plani_refuse_lack(&self->job, found->need_bytes);
}

/* The placement whose step is shortest, compiled. */
static int place_best(plani_search *self, struct plan_place_found *found)
{
    struct plani_point taken;
    TRY(plani_try_starts(self));
    if (self->has_fit)
        TRY(improve(self));
    int rc = compile_best(self, &found->set, &taken);
    if (rc == 1 && !self->is_hopeless)
        rc = compile_any(self, &found->set, &taken);
    if (rc == 1)
        rc = compile_whole_kinds(self, &found->set, &taken);
    if (rc == 1)
        rc = refuse_or_compile(self, &found->set, &taken);
    TRY(rc);
    fill_found(self, &taken, found);
    rc = plani_give_reasons(self, found);
    if (rc < 0)
        plan_set_fini(&found->set);
    return rc;
}

/* The answer in one order of micro-batches. */
static int place_in_order(const struct plan_place_asked *asked, enum order order, bool no_advice,
                          struct plan_place_found *found)
{
    plani_search self;
    plan_job job = *asked->job;
    struct plan_place_asked in_order = *asked;
    job.order = order;
    job.no_advice = no_advice;
    in_order.job = &job;
    memset(&found->set, 0, sizeof found->set);
    found->order = order;
    found->reason_count = 0;
    int rc = plani_search_init(&self, &in_order);
    if (rc == 0)
        rc = plani_check_job(&job);
    if (rc == 0)
        rc = asked->only_fits ? place_any(&self, found) : place_best(&self, found);
    found->trial_count = self.trials;
    found->compile_count = self.compiles;
    found->work_ops = self.work.ops;
    found->repeat_count = self.work.repeat_count;
    plani_search_fini(&self);
    return rc;
}

/* Replaces the answer in `to` by `from`. */
static void take_found(const plan_job *job, struct plan_place_found *to,
                       const struct plan_place_found *from)
{
    uint8_t *homes[STATE_KIND_COUNT];
    memcpy(homes, to->homes, sizeof homes);
    plan_set_fini(&to->set);
    *to = *from;
    memcpy(to->homes, homes, sizeof homes);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        memcpy(to->homes[kind], from->homes[kind], job->unit_count);
}

/* Asks for batch-major as well, where `first_rc` and *found are the answer for layer-major.
 *
 *   the order is open, and batch-major gains or fits alone   *found becomes that answer
 *   the order is given, and the job fits batch-major alone   the refusal says so
 *   else                                                     the first answer stands */
static int try_batch_major(const struct plan_place_asked *asked, int first_rc,
                           struct plan_place_found *found)
{
    const plan_job *job = asked->job;
    err_record refusal;
    struct plan_place_found *other = mem_alloc(1, sizeof *other, "placement");
    uint8_t *homes = mem_alloc((uint64_t)STATE_KIND_COUNT * job->unit_count, 1, "placement");
    int rc = other && homes ? 0 : -ENOMEM;
    err_save(&refusal, first_rc);
    for (int kind = 0; rc == 0 && kind < STATE_KIND_COUNT; kind++)
        other->homes[kind] = homes + (uint64_t)kind * job->unit_count;
    if (rc == 0)
        rc = place_in_order(asked, ORDER_BATCH_MAJOR, !asked->chooses_order, other);
    bool fits = rc == 0;
    bool wins =
        fits && asked->chooses_order &&
        (first_rc < 0 || plani_is_worth(PLANI_CHANGE_ORDER, plan_mean_step_ns(job, &other->set),
                                        plan_mean_step_ns(job, &found->set)));
    if (wins)
        take_found(job, found, other);
    else if (fits)
        plan_set_fini(&other->set);
    mem_free(homes);
    mem_free(other);
    if (wins)
        return 0;
    if (rc < 0 && rc != ERR_NO_FIT && asked->chooses_order) {
        plan_set_fini(&found->set);
        return rc;
    }
    if (first_rc == 0)
        return 0;
    if (fits)
        return err_set(first_rc, "%s; or as it is with schedule.order=batch_major", refusal.text);
    return err_restore(&refusal);
}

int plan_place(const struct plan_place_asked *asked, struct plan_place_found *found)
{
    const plan_job *job = asked->job;
    int rc = place_in_order(asked, job->order, job->no_advice, found);
    bool has_other = job->order == ORDER_LAYER_MAJOR && job->micro_batch_count > 1;
    bool asks = asked->chooses_order ? (rc == 0 && !asked->only_fits) || rc == ERR_NO_FIT
                                     : rc == ERR_NO_FIT && !asked->only_fits && !job->no_advice;
    return has_other && asks ? try_batch_major(asked, rc, found) : rc;
}
