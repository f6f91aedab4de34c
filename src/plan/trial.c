/* One trial of a point: its deciding step, emitted and simulated; and the one rule by which a
 * point replaces another.
 *
 * The steady step decides (only_eval: the evaluation). Its programs are emitted for the homes that
 * the job has, with the tile size, held stages, copies and way to commit of the point. */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "plan/search_internal.h"

/* ---- the rule of acceptance ----------------------------------------------------------------- */

/* The share of a step that a change must save. A change below 0 may cost that much. */
static const double gain_least[PLANI_CHANGE_COUNT] = {
    [PLANI_CHANGE_HOMES] = 0.0002,      [PLANI_CHANGE_TILE_OR_HELD] = 0.0005,
    [PLANI_CHANGE_OLDER_COMMIT] = 0.02, [PLANI_CHANGE_COPIES] = 0.002,
    [PLANI_CHANGE_FINER_TILES] = -0.01, [PLANI_CHANGE_ORDER] = 0.005,
};

bool plani_is_worth(enum plani_change change, double ns, double best_ns)
{
    assert(change < PLANI_CHANGE_COUNT && ns >= 0 && best_ns >= 0);
    return ns < (1 - gain_least[change]) * best_ns;
}

uint64_t plani_limit_ns(enum plani_change change, uint64_t best_ns)
{
    return (uint64_t)((1 - gain_least[change]) * (double)best_ns);
}

bool plani_is_at_bound(const struct plani_trial *trial)
{
    return (double)trial->ns <=
           (1 + gain_least[PLANI_CHANGE_TILE_OR_HELD]) * (double)trial->bound_ns;
}

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

enum plan_commit plani_decisive_commit(const plan_job *job)
{
    return job->commit_every > 1 && plani_has_state_in_memory(job) ? PLAN_COMMIT_APART
                                                                   : plani_usual_commit(job);
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
            if ((!gathered_only || plan_is_sharded(job, STATE_PARAMS, pass->units[i])) &&
                !is_seen(stage, PHASE_BACKWARD, p, pass->units[i]))
                elems += plani_whole_elems(job, pass->units[i]);
    }
    return elems;
}

uint32_t plani_held_most(const plan_job *job)
{
    if (job->only_eval || plani_has_cut_stage(job))
        return 0;      /* units are cut because the device is too small to hold them */
    uint32_t most = 0; /* those before the head that are used again */
    for (uint32_t s = 0; s + 1 < job->stage_count; s++)
        most += plani_goes_back(job, s);
    if (plani_world(job) < 2 || job->zero_stage < 3)
        return most;
    uint64_t reuse_most = job->limits_reuse ? job->reuse_elems_max : UINT64_MAX;
    uint64_t live_most = job->live_elems_max ? job->live_elems_max : UINT64_MAX;
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

/* The shorter of two lookaheads, where 0 is no limit. */
static uint64_t shorter_lookahead(uint64_t a, uint64_t b)
{
    return a == 0 ? b : b == 0 ? a : size_min(a, b);
}

static int schedule_one(plani_builder *b, const struct plani_request *asked,
                        const uint64_t *budgets, program *out)
{
    if (asked->serial)
        return plani_schedule_serial(b, asked->kind, budgets, out);
    uint64_t lookahead = b->job->lookahead_ops;
    if (is_at_an_end(asked->kind))
        lookahead = shorter_lookahead(lookahead, PLANI_LOOKAHEAD_OF_SAVES);
    if (asked->work)
        asked->work->ops += b->op_count;
    return plani_schedule(b, asked->kind, budgets, lookahead, asked->whole, out);
}

static int fill_bounds(const plani_builder *b, plan_set *set)
{
    TRY(plani_phases_bound(b, true, &set->bound_ns));
    TRY(plani_phases_bound(b, false, &set->uncommitted_bound_ns));
    TRY(plani_schedule_bound(b, true, &set->schedule_bound_ns));
    return plani_schedule_bound(b, false, &set->uncommitted_schedule_bound_ns);
}

int plani_set_begin(const plan_job *job, const struct plani_point *point, plan_set *set,
                    plani_layout *layout)
{
    memset(set, 0, sizeof *set);
    set->tile_elems = point->tile_elems;
    set->copy_bytes = point->copy_bytes;
    set->held_stages = point->held;
    set->commit = point->commit;
    int rc = plani_layout_make(job, set, layout);
    if (rc < 0) {
        plani_layout_fini(layout);
        plan_set_fini(set);
    }
    return rc;
}

int plani_compile_one(const plan_job *job, const plan_set *set, const plani_layout *layout,
                      struct plani_request *asked, const uint64_t *budgets, program *out)
{
    plani_builder b;
    uint64_t rooms[TIER_COUNT];
    memset(out, 0, sizeof *out);
    for (int a = 0; a < TIER_COUNT; a++)
        rooms[a] = plani_room_in(job, a, budgets[a]);
    if (job->watch)
        job->watch->step_count++;
    plani_note_work(job, asked->whole ? "compiling programs" : NULL, 0);
    int rc = plani_builder_init(&b, job, set, layout, set->held_stages);
    if (rc == 0) {
        plani_emit_program(&b, asked->kind);
        rc = b.error;
    }
    if (asked->work)
        asked->work->ops += b.op_count;
    plani_note_work(job, NULL, b.op_count % PLANI_OPS_OF_A_NOTE);
    if (rc == 0 && !asked->serial)
        rc = plani_graph_create(&b, &b.graph);
    if (rc == 0 && !asked->serial)
        rc = plani_phases_bound(&b, set->commit != PLAN_COMMIT_APART, &asked->bound_ns);
    if (rc == 0 && asked->bounds)
        rc = fill_bounds(&b, asked->bounds);
    if (rc == 0 && asked->enough_ns && asked->bound_ns >= asked->enough_ns)
        rc = 1;
    if (rc == 0)
        rc = schedule_one(&b, asked, rooms, out);
    if (rc == 0 && !asked->serial)
        plani_note_work(job, NULL, b.op_count % PLANI_OPS_OF_A_NOTE);
    plani_builder_fini(&b);
    return rc;
}

/* ---- one trial ------------------------------------------------------------------------------ */

/* Builds and simulates the step, and fills the rest of *made. With a bound that is not below the
 * limit it is not simulated. */
static int make_trial(const plan_job *job, const struct plani_point *point, uint64_t limit_ns,
                      struct plani_known *made, plani_work *work)
{
    plan_set set;
    plani_layout layout;
    program step;
    struct plani_trial *trial = &made->trial;
    uint64_t begun = work->ops;
    TRY(plani_set_begin(job, point, &set, &layout));
    struct plani_request asked = {.kind = job->only_eval ? PROGRAM_EVAL : PROGRAM_STEADY,
                                  .enough_ns = limit_ns,
                                  .work = work};
    memset(&step, 0, sizeof step);
    int rc = ERR_NO_FIT;
    if (plani_homes_fit(job, &layout))
        rc = plani_compile_one(job, &set, &layout, &asked, job->budget_bytes, &step);
    made->is_simulated = rc != 1;
    made->op_count = (work->ops - begun) / (made->is_simulated ? 2 : 1);
    trial->bound_ns = asked.bound_ns;
    memcpy(trial->home_ends, layout.end_bytes, sizeof trial->home_ends);
    if (rc == 0) {
        trial->ns = step.predicted_ns;
        assert((double)trial->ns >= 0.999 * (double)trial->bound_ns); /* but for rounding */
        memcpy(trial->lane_ns, step.lane_busy_ns, sizeof trial->lane_ns);
    }
    program_fini(&step);
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return rc == 1 ? 0 : rc;
}

/* Gives the figures that the known trial would have shown with the limit. */
static int show_known(const struct plani_known *known, uint64_t limit_ns, struct plani_trial *trial,
                      plani_work *work)
{
    bool is_cut = limit_ns && known->trial.bound_ns >= limit_ns;
    work->repeat_count++;
    work->ops += known->op_count * (is_cut ? 1 : 2);
    if (known->rc == 0 || is_cut)
        *trial = known->trial;
    if (is_cut) {
        trial->ns = UINT64_MAX;
        memset(trial->lane_ns, 0, sizeof trial->lane_ns);
    }
    return is_cut || known->rc == 0 ? 0 : err_set(known->rc, "no memory for the step's ops");
}

int plani_try(const plan_job *job, const struct plani_point *point, uint64_t limit_ns,
              struct plani_trial *trial, plani_work *work)
{
    assert(point->tile_elems > 0 && point->order == job->order && point->update == job->update);
    memset(trial, 0, sizeof *trial);
    trial->ns = UINT64_MAX;
    if (point->held > plani_held_most(job) || !plani_homes_may_fit(job))
        return ERR_NO_FIT;
    struct plani_known made = {.key = plani_trial_key(job, point), .trial = *trial};
    const struct plani_known *known = plani_recall(work, made.key);
    work->try_count++;
    if (known && (known->is_simulated || (limit_ns && known->trial.bound_ns >= limit_ns)))
        return show_known(known, limit_ns, trial, work);
    made.rc = make_trial(job, point, limit_ns, &made, work);
    *trial = made.trial;
    if (made.rc == 0 || made.rc == ERR_NO_FIT)
        plani_remember(work, &made);
    return made.rc;
}
