/* One trial of a point: its deciding step, emitted and simulated.
 *
 * The steady step decides (only_eval: the evaluation). Its programs are emitted for the homes that
 * the job has, with the tile size, held stages, copies, carried tiles and way to commit of the
 * point. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "plan/search/search_internal.h"

/* ---- how a step commits --------------------------------------------------------------------- */

/* State that was updated at the end of a step is committed by the next step before all else.
 * Pending updates leave the whole backward to hide the commit. */
enum plan_commit plani_usual_commit(const plan_job *job)
{
    if (!plani_commits(job) || job->update == UPDATE_DELAYED_ONE_STEP)
        return PLAN_COMMIT_APART;
    return job->update == UPDATE_IN_NEXT_FORWARD ? PLAN_COMMIT_BEHIND : PLAN_COMMIT_FIRST;
}

bool plani_has_state_in_memory(const plan_job *job)
{
    for (uint32_t u = 0; u < job->unit_count; u++)
        if ((plan_learns(job, u) && job->homes[STATE_OPTIMIZER][u] != TIER_NVME) ||
            (plani_is_split(job, u) && plani_high_arena(job, u) != TIER_NVME))
            return true;
    return false;
}

/* ---- held stages ---------------------------------------------------------------------------- */

/* True if a pass before this one, of the same phase of the stage, uses the unit as well. */
static bool is_seen(const struct stage *stage, enum phase phase, uint32_t pass_idx, uint32_t unit)
{
    for (uint32_t p = 0; p < pass_idx; p++)
        for (uint32_t i = 0; i < stage->passes[phase][p].unit_count; i++)
            if (stage->passes[phase][p].units[i] == unit)
                return true;
    return false;
}

/* Elements of the units of a stage's backward; or only of those whose params are gathered. */
static uint64_t stage_elems(const plan_job *job, uint32_t s, bool gathered_only)
{
    const struct stage *stage = &job->stages[s];
    uint64_t elems = 0;
    for (uint32_t p = 0; p < stage->pass_count[PHASE_BACKWARD]; p++) {
        const struct pass *pass = &stage->passes[PHASE_BACKWARD][p];
        for (uint32_t i = 0; i < pass->unit_count; i++)
            if ((!gathered_only || plani_is_gathered(job, pass->units[i])) &&
                !is_seen(stage, PHASE_BACKWARD, p, pass->units[i]))
                elems += plani_used_elems(job, pass->units[i]);
    }
    return elems;
}

/* Elements of the units of a pass; or only of those whose params are gathered. */
static uint64_t pass_elems(const plan_job *job, const struct pass *pass, bool gathered_only)
{
    uint64_t elems = 0;
    for (uint32_t i = 0; i < pass->unit_count; i++)
        if (pass->reads_params[i] && (!gathered_only || plani_is_gathered(job, pass->units[i])))
            elems += plani_used_elems(job, pass->units[i]);
    return elems;
}

/* How many of the stage's passes may hold their params, where its units are in parts. */
static uint32_t held_in_stage(const plan_job *job, uint32_t s, uint64_t reuse_most,
                              uint64_t live_most)
{
    const struct stage *stage = &job->stages[s];
    const struct pass *turning = stage->passes[plani_turning_phase(job, s)];
    uint32_t most = plani_turning_passes(job, s), backs = stage->pass_count[PHASE_BACKWARD];
    uint64_t distance = 0, live = 0;
    for (uint32_t p = 0; p < backs; p++) {
        const struct pass *pass = &stage->passes[PHASE_BACKWARD][p];
        live = size_max(live, pass_elems(job, pass, true));
        if (turning != stage->passes[PHASE_BACKWARD] && p + most < backs)
            distance += pass_elems(job, pass, false);
    }
    for (uint32_t held = 0; held < most; held++) {
        const struct pass *pass = &turning[most - 1 - held];
        live += pass_elems(job, pass, true);
        distance += pass_elems(job, pass, false);
        if (distance > reuse_most || live > live_most)
            return held;
        distance += pass_elems(job, pass, false);
    }
    return UINT32_MAX;
}

static uint32_t held_passes_most(const plan_job *job, uint64_t reuse_most, uint64_t live_most)
{
    bool has_limits = reuse_most < UINT64_MAX || live_most < UINT64_MAX;
    uint32_t most = 0, least = UINT32_MAX;
    for (uint32_t s = 0; s < job->stage_count; s++) {
        most = (uint32_t)size_max(most, plani_turning_passes(job, s));
        if (has_limits && plani_turning_passes(job, s) > 0)
            least = (uint32_t)size_min(least, held_in_stage(job, s, reuse_most, live_most));
    }
    return (uint32_t)size_min(most, least);
}

uint32_t plani_held_most(const plan_job *job)
{
    bool gathers = plani_world(job) > 1 && job->zero_stage >= 3;
    uint64_t reuse_most = gathers && job->limits_reuse ? job->reuse_elems_max : UINT64_MAX;
    uint64_t live_most = gathers && job->live_elems_max ? job->live_elems_max : UINT64_MAX;
    if (job->only_eval)
        return 0;
    if (plani_has_cut_stage(job)) /* the device is too small to hold whole stages */
        return held_passes_most(job, reuse_most, live_most);
    uint32_t most = 0; /* those before the head that are used again */
    for (uint32_t s = 0; s + 1 < job->stage_count; s++)
        most += plani_goes_back(job, s);
    if (!gathers)
        return most;
    uint32_t head = job->stage_count - 1;
    uint64_t distance = stage_elems(job, head, false), live = stage_elems(job, head, true);
    for (uint32_t held = 0; held < most; held++) {
        uint32_t s = head - 1 - held;
        live += stage_elems(job, s, true);
        if (distance > reuse_most || live > live_most)
            return held;
        distance += 2 * stage_elems(job, s, false);
    }
    return most;
}

/* ---- one program ---------------------------------------------------------------------------- */

/* Programs at the ends of a run move all state through memory once. As far ahead as memory allows
 * they would fill a host budget that steps leave free, and that would have to be touched and
 * pinned for them alone. */
static bool is_at_an_end(enum program_kind kind)
{
    return kind == PROGRAM_INIT || kind == PROGRAM_SAVE || kind == PROGRAM_LOAD;
}

enum { AHEAD_LEAST = 4 }; /* ops: with one, nothing is reserved ahead */

/* The shorter of two lookaheads, where 0 is no limit. */
static uint64_t shorter_lookahead(uint64_t a, uint64_t b)
{
    return a == 0 ? b : b == 0 ? a : size_min(a, b);
}

static int schedule_one(plani_builder *b, struct plani_request *asked, const uint64_t *budgets,
                        program *out)
{
    if (asked->serial)
        return plani_schedule_serial(b, asked->kind, budgets, out);
    uint64_t lookahead[TIER_COUNT] = {0};
    for (int a = TIER_DEVICE; a < TIER_NVME; a++) {
        lookahead[a] = b->job->lookahead_ops;
        if (is_at_an_end(asked->kind))
            lookahead[a] = shorter_lookahead(lookahead[a], plani_saves_ahead(b));
        if (asked->ahead[a])
            lookahead[a] = shorter_lookahead(lookahead[a],
                                             size_max(b->op_count >> asked->ahead[a], AHEAD_LEAST));
    }
    int rc =
        plani_schedule(b, asked->kind, budgets, lookahead, asked->enough_ns, asked->whole, out);
    if (rc == 1)
        asked->bound_ns = asked->enough_ns;
    if (rc >= 0) /* where memory lacks, little was done */
        asked->ops += rc == 1 ? b->op_count / 2 : b->op_count;
    return rc;
}

static int fill_bounds(const plani_builder *b, plan_set *set)
{
    TRY(plani_phases_bound(b, true, &set->bound_ns));
    TRY(plani_phases_bound(b, false, &set->uncommitted_bound_ns));
    TRY(plani_schedule_bound(b, true, &set->schedule_bound_ns));
    return plani_schedule_bound(b, false, &set->uncommitted_schedule_bound_ns);
}

/* The host memory of so many parts of the room that homes leave. */
static uint64_t room_bytes(const plan_job *job, uint32_t parts)
{
    return parts ? parts * (plani_host_room(job) / PLANI_PARTS) : 0;
}

int plani_set_begin(const plan_job *job, const struct plani_point *point, plan_set *set,
                    plani_layout *layout)
{
    memset(set, 0, sizeof *set);
    set->tile_elems = point->tile_elems;
    set->copy_bytes = room_bytes(job, point->copy_parts);
    bool is_cut = plani_has_cut_stage(job);
    set->held_stages = is_cut ? 0 : point->held;
    set->held_passes = is_cut ? point->held : 0;
    set->commit = point->commit;
    set->fetches_hit = point->fetches_hit;
    int rc = plani_layout_make(job, set, layout);
    if (rc == 0)
        rc = plani_carry_make(job, room_bytes(job, point->carried_parts), layout, set);
    if (rc < 0) {
        plani_layout_fini(layout);
        plan_set_fini(set);
    }
    return rc;
}

int plani_compile_one(const plan_job *job, const plan_set *set, const plani_layout *layout,
                      struct plani_request *asked, const uint64_t *budgets, program *out)
{
    plani_builder own = {0}, *b = asked->builder ? asked->builder : &own;
    uint64_t rooms[TIER_COUNT];
    memset(out, 0, sizeof *out);
    for (int a = 0; a < TIER_COUNT; a++)
        rooms[a] = plani_room_in(job, a, budgets[a]);
    if (job->watch)
        job->watch->step_count++;
    plani_note_work(job, asked->whole ? "compiling programs" : NULL, 0);
    int rc = plani_builder_begin(b, job, set, layout, set->held_stages);
    if (rc == 0) {
        plani_builder_limit(b, rooms);
        plani_emit_program(b, asked->kind);
        rc = b->error;
    }
    asked->ops += b->op_count;
    if (rc == 0 && !asked->serial)
        asked->step_ops = b->op_count;
    plani_note_work(job, NULL, b->op_count % PLANI_OPS_OF_A_NOTE);
    if (rc == 0) /* what has no room says so, even if it is too long as well */
        rc = plani_check_room(b, rooms);
    if (rc == 0 && !asked->serial)
        rc = plani_graph_create(b, &b->graph);
    if (rc == 0 && !asked->serial)
        rc = plani_trial_bound(b, set->commit != PLAN_COMMIT_APART, &asked->bound_ns);
    if (rc == 0 && asked->bounds)
        rc = fill_bounds(b, asked->bounds);
    if (rc == 0 && asked->enough_ns && asked->bound_ns >= asked->enough_ns)
        rc = 1;
    if (rc == 0)
        rc = schedule_one(b, asked, rooms, out);
    if (rc == 0 && !asked->serial) /* what the search compares a finished step with */
        rc = plani_phases_bound(b, set->commit != PLAN_COMMIT_APART, &asked->bound_ns);
    if (rc == 0 && !asked->serial)
        plani_note_work(job, NULL, b->op_count % PLANI_OPS_OF_A_NOTE);
    plani_builder_end(b);
    plani_builder_fini(&own);
    return rc;
}

/* ---- one trial ------------------------------------------------------------------------------ */

/* Builds and simulates one step. 1: by its bound it is not below the limit, and not simulated. */
static int make_step(const plan_job *job, const struct plani_point *point, plani_builder *builder,
                     struct plani_answer *made)
{
    plan_set set;
    plani_layout layout;
    program step;
    TRY(plani_set_begin(job, point, &set, &layout));
    struct plani_request asked = {.kind = job->only_eval ? PROGRAM_EVAL : PROGRAM_STEADY,
                                  .enough_ns = made->limit_ns,
                                  .builder = builder};
    memset(&step, 0, sizeof step);
    int rc = ERR_NO_FIT;
    memcpy(asked.ahead, point->ahead, sizeof asked.ahead);
    if (plani_homes_fit(job, &layout, job->budget_bytes))
        rc = plani_compile_one(job, &set, &layout, &asked, job->budget_bytes, &step);
    made->ops = asked.ops;
    made->step_ops = asked.step_ops;
    made->step.bound_ns = asked.bound_ns;
    if (rc == 0) {
        made->step.ns = step.predicted_ns;
        /* but for rounding */
        assert((double)made->step.ns >= 0.999 * (double)made->step.bound_ns);
        memcpy(made->step.lane_ns, step.lane_busy_ns, sizeof made->step.lane_ns);
    }
    program_fini(&step);
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return rc;
}

int plani_try_step(const plan_job *job, const struct plani_point *point, uint64_t limit_ns,
                   struct plani_figures *step, plani_work *work)
{
    assert(point->tile_elems > 0 && point->order == job->order && point->update == job->update);
    *step = (struct plani_figures){.ns = UINT64_MAX};
    if (point->held > plani_held_most(job) || !plani_homes_may_fit(job))
        return ERR_NO_FIT;
    struct plani_answer asked = {
        .key = plani_trial_key(job, point), .limit_ns = limit_ns, .step = *step};
    const struct plani_known *known = plani_recall(work, asked.key);
    work->try_count++;
    if (known && (known->rc <= 0 || (limit_ns && known->step.bound_ns >= limit_ns))) {
        work->repeat_count++;
        *step = known->step;
        return known->rc == ERR_NO_FIT ? err_set(ERR_NO_FIT, "no memory for the step's ops") : 0;
    }
    int rc = plani_ask(job, work, &asked);
    TRY(rc);
    if (rc == 1) {
        asked.rc = make_step(job, point, &work->builder, &asked);
        plani_tell(work, &asked);
    }
    if (asked.rc < 0 && asked.rc != ERR_NO_FIT)
        return asked.rc;
    *step = asked.step;
    TRY(plani_remember(work, &(struct plani_known){asked.key, asked.rc, asked.step}));
    return asked.rc < 0 ? err_set(ERR_NO_FIT, "no memory for the step's ops") : 0;
}

int plani_try(const plan_job *job, const struct plani_point *point, double limit_ns,
              double *mean_ns, plani_work *work)
{
    struct plani_figures with, without;
    struct plani_point apart = *point;
    double every = (double)size_max(job->commit_every, 1);
    bool mixes = every > 1 && point->commit != PLAN_COMMIT_APART && plani_has_state_in_memory(job);
    double ns = 0, limit = fmin(limit_ns, 1e18);
    *mean_ns = INFINITY;
    apart.commit = PLAN_COMMIT_APART;
    if (mixes) {
        TRY(plani_try_step(job, &apart, (uint64_t)limit, &without, work));
        ns = (double)without.ns;
        if (without.ns == UINT64_MAX || (limit > 0 && ns >= limit))
            return 0;
        limit = limit > 0 ? fmin(ns + (limit - ns) * every, 1e18) : 0;
    }
    TRY(plani_try_step(job, point, (uint64_t)limit, &with, work));
    if (with.ns < UINT64_MAX)
        *mean_ns = mixes ? ns + ((double)with.ns - ns) / every : (double)with.ns;
    return 0;
}
