/* From a question to its plan: see plan_place and plan_compile in plan.h. The search (ways.c)
 * looks at each order that is open. The point with the lowest score is compiled (compile.c).
 *
 * Where no point compiles, what fits at all is compiled in its place, in this order: the placement
 * that needs least of the near tiers (fit.c); whole kinds, nearest first. Where nothing fits, the
 * refusal is that of the placement which comes nearest to the budgets. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/search/search_internal.h"

enum {
    REFUSAL_WORK = 1000000, /* to find which variant of a refused placement needs least */
    FIT_WORK = 300000,      /* in all: then not every update is looked at to find what fits */
    ALONE_WORK = 100000,    /* to find which tiers are enough alone */
    LAST_RESORT_WORK =
        8 * PLANI_SEARCH_WORK, /* in all: then whole kinds are not compiled any more */
    SLOTS_MOST = 4000000,      /* stages times micro-batches */
};

/* ---- homes are given ------------------------------------------------------------------------ */

static int check_slots(const plan_job *job)
{
    if ((uint64_t)job->stage_count * job->micro_batch_count <= SLOTS_MOST)
        return 0;
    return err_set(ERR_CONFIG,
                   "gradient_accumulation_steps %" PRIu32 " times %" PRIu32
                   " stages is more than %d passes in a step: at most %" PRIu32 " fit",
                   job->micro_batch_count, job->stage_count, SLOTS_MOST,
                   (uint32_t)SLOTS_MOST / job->stage_count);
}

/* Where a program that no trial looked at has no room beside copies or carried tiles, the search
 * goes on with fewer of them. It knows most of its steps by then. False: there are none. */
static bool allow_fewer(plani_search *self, const struct plani_point *point)
{
    if (point->carried_parts == 0 && point->copy_parts == 0)
        return false;
    assert(self->failed_count < PLANI_FAILED_MAX);
    plani_point_apply(self, point);
    self->failed[self->failed_count++] = plani_crowd_of(self, point);
    return true;
}

/* Compiles the best point. Only the steady step was looked at so far: a tile size with which
 * another program has no room, which is rare, is marked. */
static int compile_closed(plani_search *self, plan_set *out, struct plani_point *taken)
{
    uint64_t tiles[PLANI_TILES_MAX];
    uint32_t count = plani_list_tiles(&self->job, tiles);
    const struct plani_scored *best = plani_search_best(self);
    if (!best)
        return plani_refuse(self->asked->job, self->work);
    *taken = best->point;
    int rc = plani_search_check(self, taken);
    if (rc == 0) {
        rc = plani_compile_point(&self->job, taken, out, self->work);
        if (rc == ERR_NO_FIT && allow_fewer(self, taken))
            return 1;
    }
    for (uint32_t i = 0; i < count && rc == ERR_NO_FIT; i++)
        self->fails[i] = self->fails[i] || tiles[i] == best->point.tile_elems;
    return rc == ERR_NO_FIT ? 1 : rc;
}

/* plan_compile. *taken: the point, but for homes. */
static int compile_given(const plan_job *job, plan_set *out, struct plani_point *taken,
                         plani_work *work)
{
    plani_search self;
    struct plan_place_asked asked = {.job = job, .has_drives = true};
    uint64_t begun = work->ops;
    memset(out, 0, sizeof *out);
    assert(job->stage_count >= 2);
    TRY(plani_check_job(job));
    TRY(check_slots(job));
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        asked.wanted[kind] = job->homes[kind];
    int rc = plani_search_init(&self, &asked, work);
    self.is_closed = true;
    while (rc == 0) {
        rc = plani_search_ways(&self);
        if (rc == 0)
            rc = compile_closed(&self, out, taken);
        if (rc != 1)
            break;
        rc = 0;
    }
    plani_search_fini(&self);
    out->work_ops = work->ops - begun;
    return rc;
}

int plan_compile(const plan_job *job, plan_set *out)
{
    plani_work work = {0};
    struct plani_point taken;
    int rc = compile_given(job, out, &taken, &work);
    plani_work_fini(&work);
    return rc;
}

/* ---- the winner ----------------------------------------------------------------------------- */

/* Compiles what the homes of the point allow. */
static int compile_homes(plani_search *self, plan_set *set, struct plani_point *point)
{
    struct plani_point taken;
    plani_point_apply(self, point);
    self->compiles++;
    int rc = compile_given(&self->job, set, &taken, self->work);
    if (rc == 0) {
        memcpy(taken.until, point->until, sizeof taken.until);
        taken.spread = point->spread;
        taken.whole = point->whole;
        *point = taken;
    }
    return rc;
}

/* Compiles the placement that needs least of the near tiers; 1: that does not fit either. */
static int compile_any(plani_search *self, plan_set *set, struct plani_point *taken)
{
    uint64_t need[TIER_COUNT];
    int rc = plani_find_fit(self, FIT_WORK, taken, need);
    if (rc == 0)
        rc = compile_homes(self, set, taken);
    return rc == ERR_NO_FIT ? 1 : rc;
}

/* The cost of lacking bytes, in bytes of nvme: memory costs more than drives. The weights are
 * chosen, not measured. */
static double price_of(const double bytes[TIER_COUNT])
{
    return 256 * bytes[TIER_DEVICE] + 32 * bytes[TIER_HOST] + bytes[TIER_NVME];
}

/* Compiles whole kinds, nearest first. 1: none fits, and *taken is the one whose homes lack what
 * costs least; among equals the last, which needs least memory. */
static int compile_whole_kinds(plani_search *self, plan_set *set, struct plani_point *taken)
{
    struct plani_point nearest = plani_first_point(self);
    double least = INFINITY;
    for (uint32_t i = 0; i < PLANI_WHOLE_KINDS; i++) {
        double excess[TIER_COUNT];
        struct plani_point point = plani_first_point(self);
        plani_point_of_kinds(self, i, &point);
        if (!plani_point_is_legal(self, &point))
            continue;
        plani_point_usual_update(self, &point);
        *taken = point;
        int rc = ERR_NO_FIT;
        if (!self->is_hopeless && self->work->ops <= LAST_RESORT_WORK)
            rc = compile_homes(self, set, taken);
        if (rc != ERR_NO_FIT)
            return rc;
        plani_point_apply(self, &point);
        TRY(plani_home_excess(self, excess));
        double price = price_of(excess);
        if (price <= least) {
            least = price;
            nearest = point;
        }
    }
    *taken = nearest;
    return 1;
}

/* ---- the refusal ---------------------------------------------------------------------------- */

/* Looks at the ways to park what waits between the passes of cut stages: where the point says, or
 * on the host; and of as many micro-batches as it has room for on the device. Where one of them
 * needs less than *least, it becomes *nearest. */
static int park_least(plani_search *self, struct plani_point point, uint64_t work_end,
                      struct plani_point *nearest, double *least)
{
    const plan_job *job = &self->job;
    const uint64_t budget = job->budget_bytes[TIER_DEVICE];
    for (int way = 0; way < 2; way++) {
        uint64_t more = 0;
        point.parked_near = 0;
        point.parked_on_host = way > 0;
        do {
            uint64_t need[TIER_COUNT], parked;
            double bytes;
            point.parked_near += (uint32_t)more;
            plani_point_apply(self, &point);
            TRY(plani_excess(job, need, &bytes, self->work));
            if (bytes < *least) {
                *least = bytes;
                *nearest = point;
            }
            parked = plani_parked_bytes(job);
            if (parked == 0 || plani_parked_home(job) == TIER_DEVICE)
                return 0;
            more = (budget - size_min(need[TIER_DEVICE], budget)) / parked;
            more = size_min(more, job->micro_batch_count - point.parked_near);
        } while (more > 0 && self->work->ops < work_end);
        if (plani_parked_home(job) != TIER_NVME)
            return 0;
    }
    return 0;
}

/* Looks at the variants of a placement: any open update, inner activations kept or not, and the
 * ways to park. */
static int vary_least(plani_search *self, const struct plani_point *usual, uint64_t work_end,
                      struct plani_point *nearest, double *least)
{
    uint8_t updates[PLANI_UPDATES];
    uint32_t count = plani_open_updates(self, updates);
    uint32_t kept = self->counts[STATE_INNER_ACTIVATIONS];
    for (uint32_t i = 0; i < count; i++)
        for (int tier = TIER_COUNT; tier > TIER_DEVICE; tier--) {
            struct plani_point point = *usual;
            point.update = (enum update)updates[i];
            for (int t = tier; t < TIER_COUNT && kept; t++)
                point.until[STATE_INNER_ACTIVATIONS][t] = kept;
            if ((tier < TIER_COUNT && kept == 0) || !plani_point_is_legal(self, &point) ||
                self->work->ops > work_end)
                continue;
            TRY(park_least(self, point, work_end, nearest, least));
        }
    return 0;
}

/* Finds what needs least: a variant of the given placement, or of one by whole kinds. Where a
 * program is long only the first ones are tried. */
static int find_least(plani_search *self, struct plani_point *nearest)
{
    uint64_t work_end = self->work->ops + REFUSAL_WORK;
    const struct plani_point usual = *nearest;
    double least = INFINITY;
    TRY(vary_least(self, &usual, work_end, nearest, &least));
    for (uint32_t i = 0; i < PLANI_WHOLE_KINDS; i++) {
        struct plani_point point = plani_first_point(self);
        plani_point_of_kinds(self, i, &point);
        TRY(vary_least(self, &point, work_end, nearest, &least));
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
    return compile_homes(self, set, nearest);
}

/* Adds to the refusal what budgets of one tier alone were found to be enough, while the others keep
 * theirs. Full drives and a GPU's memory do not grow, so they are left out. The search for them is
 * short, so nothing is said of a tier for which it finds none. Nor is a tier named twice, where the
 * refusal has named the least of the only one that lacks. */
static int name_alone(plani_search *self, int refused)
{
    const plan_job *job = self->asked->job;
    const plani_work *work = self->work;
    uint64_t work_end = work->ops + ALONE_WORK;
    char enough[400] = "";
    uint32_t lacks = 0;
    err_record refusal;
    err_save(&refusal, refused);
    for (int a = 0; a < TIER_COUNT; a++)
        lacks += work->refused[a] > job->budget_bytes[a];
    for (int a = TIER_COUNT - 1; a >= 0; a--) { /* the cheapest first */
        char text[SIZE_TEXT_BYTES];
        uint64_t bytes, sharers = a == TIER_NVME ? size_max(job->nvme_sharers, 1) : 1;
        size_t used = strlen(enough);
        bool is_named =
            lacks == 1 && work->refused_is_known && work->refused[a] > job->budget_bytes[a];
        bool is_fixed = a == TIER_NVME     ? !self->asked->has_drives || job->nvme_advice
                        : a == TIER_DEVICE ? !job->machine.device_is_cpu
                                           : false;
        if (is_fixed)
            continue;
        if (plani_find_least(self, a, work_end, &bytes) < 0)
            return err_restore(&refusal);
        if (bytes == UINT64_MAX || (is_named && work->refused[a] <= bytes))
            continue;
        snprintf(enough + used, sizeof enough - used, "%s%" PRIu64 " bytes (%s) of %s",
                 used ? " or " : "", bytes * sharers, size_format(bytes * sharers, text),
                 tier_name((enum tier)a));
    }
    if (enough[0] == '\0')
        return err_restore(&refusal);
    return err_set(refused, "%s; with the other tiers as they are it fits with %s", refusal.text,
                   enough);
}

/* ---- the question and its answer ------------------------------------------------------------ */

static void fill_found(plani_search *self, const struct plani_point *taken,
                       struct plan_place_found *found)
{
    plani_point_apply(self, taken);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        memcpy(found->homes[kind], self->homes[kind], self->job.unit_count);
    found->order = self->job.order;
    found->update = self->job.update;
    found->parked_near = self->job.parked_near;
    found->parked_on_host = self->job.parked_on_host;
}

/* Bytes at rest, without the padding of tiles. */
static void sum_homes(const plani_search *self, uint64_t sums[STATE_KIND_COUNT][TIER_COUNT])
{
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (uint32_t u = 0; u < self->job.unit_count; u++) {
            uint8_t home = self->homes[kind][u];
            if (home != TIER_RECOMPUTE)
                sums[kind][tier_of_home(home)] += plani_bytes_at_home(self, kind, u, home);
        }
}

/* A placement that fits, or the refusal of the last one that was tried. */
static int place_any(plani_search *self, struct plan_place_found *found)
{
    struct plani_point point;
    int rc = plani_find_fit(self, FIT_WORK, &point, found->need_bytes);
    TRY(rc);
    fill_found(self, &point, found);
    sum_homes(self, found->set.home_bytes);
    return rc == 0 ? 0 : plani_refuse_lack(&self->job, found->need_bytes);
}

/* Compiles the best point; with other tiles, or fewer copies or carried tiles, where a program has
 * no room that no trial looked at. 1: nothing was found to fit. */
static int compile_best(plani_search *self, plan_set *set, struct plani_point *taken)
{
    int rc;
    do {
        TRY(plani_search_ways(self));
        if (!plani_search_best(self))
            return 1;
        *taken = plani_search_best(self)->point;
        plani_point_apply(self, taken);
        self->compiles++;
        rc = plani_search_check(self, taken);
        if (rc == 0)
            rc = plani_compile_point(&self->job, taken, set, self->work);
        bool checked = self->checks_all;
        self->checks_all = rc == ERR_NO_FIT;
        if (rc != ERR_NO_FIT || (checked && !allow_fewer(self, taken)))
            break;
    } while (true);
    return rc == ERR_NO_FIT ? compile_homes(self, set, taken) : rc;
}

/* The placement whose step is shortest, compiled. */
static int place_best(plani_search *self, struct plan_place_found *found)
{
    struct plani_point taken;
    int rc = compile_best(self, &found->set, &taken);
    if ((rc == 1 || rc == ERR_NO_FIT) && !self->is_hopeless)
        rc = compile_any(self, &found->set, &taken);
    if (rc == 1 || rc == ERR_NO_FIT)
        rc = compile_whole_kinds(self, &found->set, &taken);
    if (rc == 1)
        rc = refuse_or_compile(self, &found->set, &taken);
    bool is_other = self->asked->chooses_order && self->job.order == ORDER_BATCH_MAJOR;
    if (rc == ERR_NO_FIT && !self->asked->job->no_advice && !is_other)
        rc = name_alone(self, rc);
    TRY(rc);
    fill_found(self, &taken, found);
    self->winner = taken;
    rc = plani_give_reasons(self, found);
    if (rc < 0)
        plan_set_fini(&found->set);
    return rc;
}

/* Asks for batch-major alone, where layer-major is refused: it is the answer where the order is
 * open, or else a word in the refusal. */
static int try_batch_major(const struct plan_place_asked *asked, int first_rc,
                           struct plan_place_found *found)
{
    err_record refusal;
    plan_job job = *asked->job;
    struct plan_place_asked other = *asked;
    err_save(&refusal, first_rc);
    job.order = ORDER_BATCH_MAJOR;
    job.no_advice = !asked->chooses_order;
    other.job = &job;
    int rc = plan_place(&other, found);
    if (asked->chooses_order && rc != ERR_NO_FIT)
        return rc;
    plan_set_fini(&found->set);
    found->order = asked->job->order;
    if (rc == 0)
        return err_set(first_rc, "%s; or as it is with schedule.order=batch_major", refusal.text);
    return err_restore(&refusal);
}

int plan_place(const struct plan_place_asked *asked, struct plan_place_found *found)
{
    plani_search self;
    plani_work work = {0};
    const plan_job *job = asked->job;
    memset(&found->set, 0, sizeof found->set);
    found->order = job->order;
    found->reason_count = 0;
    int rc = plani_search_init(&self, asked, &work);
    if (rc == 0)
        rc = plani_check_job(job);
    if (rc == 0)
        rc = check_slots(job);
    if (rc == 0)
        rc = asked->only_fits ? place_any(&self, found) : place_best(&self, found);
    found->trial_count = work.try_count - work.repeat_count;
    found->compile_count = self.compiles;
    found->work_ops = work.ops;
    found->repeat_count = work.repeat_count;
    plani_search_fini(&self);
    plani_work_fini(&work);
    bool has_other =
        job->order == ORDER_LAYER_MAJOR && job->micro_batch_count > 1 && !job->is_owned;
    bool asks = asked->chooses_order || (!asked->only_fits && !job->no_advice);
    return rc == ERR_NO_FIT && has_other && asks ? try_batch_major(asked, rc, found) : rc;
}
