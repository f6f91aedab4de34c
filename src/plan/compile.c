/* The search: which tile size, how many held stages, what copies of the state that a step begins with.
 *
 * The steady step decides. For each candidate tile size, largest first, and each number of held stages,
 * fewest first, its program is simulated; the shortest step wins. A gain under plan_gain does not justify a
 * smaller tile or more held stages, nor another way to commit than the usual one of the update; and what is
 * within it of the bound is not improved on. Copies come last, beside the tile size and the held stages that are best
 * without.
 *
 * A tile size fits if and only if the budgets cover what the serial order of its programs needs (refuse.c).
 * Only the steady step is looked at before a choice is made. Where the needs of another program then do not
 * fit, which is rare, the search goes on without that tile size. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/compile.h"

static const double plan_gain = 0.0005;
/* A commit that is a step older, so that a crash loses a step more, needs this much. */
static const double older_commit_gain = 0.02;
/* And each part of the host's memory that copies take. */
static const double copy_gain = 0.002;
/* What smaller tiles may cost by the simulator, where copies leave room for few larger ones. */
static const double fine_cost = 0.01;

enum {
    COPY_PARTS = 8,            /* of the host's room, tried as copies */
    TILES_UNDER_WAY = 6,       /* that copies should leave room for */
    TILE_ELEMS_FINE = 1 << 20, /* and no smaller for that: their state is a dozen transfers */
    SLOTS_MOST = 4000000,      /* stages times micro-batches */
    SEARCH_WORK = 8000000,     /* ops: what fits by then is not improved on */
    TRIAL_TILES_MOST = 1024,
    TRIAL_TILES_OF_HOST = 64,
};

/* Programs at the ends of a run move all state through memory once. As far ahead as memory allows they
 * would fill a host budget that steps leave free, and that would have to be touched and pinned for them
 * alone. */
static bool is_at_an_end(enum program_kind kind)
{
    return kind == PROGRAM_INIT || kind == PROGRAM_SAVE || kind == PROGRAM_LOAD;
}

/* The shorter of two lookaheads, of which 0 is no limit. */
static uint64_t shorter_lookahead(uint64_t a, uint64_t b)
{
    return a == 0 ? b : b == 0 ? a : size_min(a, b);
}

/* Whether a step of `ns` is as good as one can be that has this bound. */
static bool is_at_bound(uint64_t ns, uint64_t bound_ns)
{
    return (double)ns <= (1 + plan_gain) * (double)bound_ns;
}

static int schedule_one(plani_builder *b, const struct plani_order *asked, const uint64_t *budgets,
                        program *out)
{
    if (asked->serial)
        return plani_needs(b, asked->kind, budgets, out);
    uint64_t lookahead = b->job->lookahead_ops;
    if (is_at_an_end(asked->kind))
        lookahead = shorter_lookahead(lookahead, PLANI_LOOKAHEAD_OF_SAVES);
    if (asked->work)
        *asked->work += b->op_count;
    return plani_schedule(b, asked->kind, budgets, lookahead, asked->whole, out);
}

static int fill_bounds(const plani_builder *b, plan_set *set)
{
    TRY(plani_phases_bound(b, true, &set->bound_ns));
    TRY(plani_phases_bound(b, false, &set->uncommitted_bound_ns));
    TRY(plani_schedule_bound(b, true, &set->schedule_bound_ns));
    return plani_schedule_bound(b, false, &set->uncommitted_schedule_bound_ns);
}

int plani_compile_one(const plan_job *job, const plan_set *set, const plani_layout *layout,
                      struct plani_order *asked, const uint64_t *budgets, program *out)
{
    plani_builder b;
    uint64_t rooms[TIER_COUNT];
    memset(out, 0, sizeof *out);
    for (int a = 0; a < TIER_COUNT; a++)
        rooms[a] = plani_room_in(job, a, budgets[a]);
    int rc = plani_builder_init(&b, job, set, layout, asked->held);
    if (rc == 0) {
        plani_emit_program(&b, asked->kind);
        rc = b.error;
    }
    if (asked->work)
        *asked->work += b.op_count;
    if (rc == 0)
        rc = plani_phases_bound(&b, set->commit != PLAN_COMMIT_APART, &asked->bound_ns);
    if (rc == 0 && asked->bounds)
        rc = fill_bounds(&b, asked->bounds);
    if (rc == 0 && asked->enough_ns && asked->bound_ns >= asked->enough_ns)
        rc = 1;
    if (rc == 0)
        rc = schedule_one(&b, asked, rooms, out);
    plani_builder_fini(&b);
    return rc;
}

static void programs_fini(plan_set *set)
{
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
        program_fini(&set->programs[k]);
}

void plan_set_fini(plan_set *set)
{
    programs_fini(set);
    mem_free(set->homes.params); /* the table of all homes */
    mem_free(set->norm_block_begin);
    mem_free(set->norm_part_begin);
    memset(set, 0, sizeof *set);
}

/* How a steady step commits, as far as the update says it: state that was updated at the end of a step
 * is committed by the next one before all else; pending updates leave the whole backward to hide it. */
static enum plan_commit usual_commit(const plan_job *job)
{
    if (!plani_commits(job) || job->update == UPDATE_DELAYED_ONE_STEP)
        return PLAN_COMMIT_APART;
    return job->update == UPDATE_IN_NEXT_FORWARD ? PLAN_COMMIT_BEHIND : PLAN_COMMIT_FIRST;
}

static bool has_state_in_memory(const plan_job *job)
{
    for (uint32_t u = 0; u < job->unit_count; u++)
        if ((plan_learns(job, u) && job->homes[STATE_OPTIMIZER][u] != TIER_NVME) ||
            (plani_is_split(job, u) && plani_high_arena(job, u) != TIER_NVME))
            return true;
    return false;
}

int plani_set_begin_with(const plan_job *job, uint64_t tile_elems, uint64_t copy_bytes,
                         plan_set *set, plani_layout *layout)
{
    memset(set, 0, sizeof *set);
    set->tile_elems = tile_elems;
    set->copy_bytes = copy_bytes;
    set->commit = usual_commit(job);
    int rc = plani_layout_make(job, set, layout);
    if (rc < 0) {
        plani_layout_fini(layout);
        plan_set_fini(set);
    }
    return rc;
}

int plani_set_begin(const plan_job *job, uint64_t tile_elems, plan_set *set, plani_layout *layout)
{
    return plani_set_begin_with(job, tile_elems, 0, set, layout);
}

struct choice {
    uint64_t tile_elems;
    uint64_t copy_bytes;
    uint32_t held;
    uint64_t predicted_ns; /* of the step that decides; 0: none yet */
    uint64_t bound_ns;     /* of the same */
    uint64_t compute_ns;   /* its lane, busy */
    uint64_t host_bytes;   /* end of the homes there, without copies */
    enum plan_commit commit;
    uint64_t uncommitted_ns, uncommitted_lane_ns[LANE_COUNT];
    struct plani_candidate *from;
};

/* The step that the choice looks at: most of them do not commit where commits are seldom. */
static enum plan_commit decisive_commit(const plan_job *job)
{
    return job->commit_every > 1 && has_state_in_memory(job) ? PLAN_COMMIT_APART
                                                             : usual_commit(job);
}

struct tile_search {
    const plan_job *job;
    struct plani_candidate *from;
    struct choice *best;
    plan_set set;
    plani_layout layout;
    uint64_t *work;
};

/* The step with so many held stages, taken where it is the shortest; ERR_NO_FIT. */
static int try_held(struct tile_search *s, uint32_t held)
{
    const plan_job *job = s->job;
    struct choice *best = s->best;
    program trial;
    struct plani_order asked = {
        .kind = job->only_eval ? PROGRAM_EVAL : PROGRAM_STEADY, .held = held, .work = s->work};
    if (best->predicted_ns)
        asked.enough_ns = (uint64_t)((1 - plan_gain) * (double)best->predicted_ns);
    int rc = plani_compile_one(job, &s->set, &s->layout, &asked, job->budget_bytes, &trial);
    if (rc == 0 && (asked.enough_ns == 0 || trial.predicted_ns < asked.enough_ns))
        *best = (struct choice){.tile_elems = s->set.tile_elems,
                                .held = held,
                                .predicted_ns = trial.predicted_ns,
                                .bound_ns = asked.bound_ns,
                                .compute_ns = trial.lane_busy_ns[LANE_COMPUTE],
                                .host_bytes = s->layout.end_bytes[TIER_HOST],
                                .commit = s->set.commit,
                                .from = s->from};
    program_fini(&trial);
    return rc == ERR_NO_FIT ? rc : rc < 0 ? rc : 0;
}

/* 0, 1, 2, 4, ... held stages until no more fit, then what lies beside the best of them. */
static int try_counts(struct tile_search *s)
{
    uint32_t most = plani_held_most(s->job), open_end = most;
    bool open = true;
    for (uint32_t held = 0; open; held = held == 0 ? 1 : size_min(2 * (uint64_t)held, most)) {
        int rc = try_held(s, held);
        if (rc == ERR_NO_FIT && held == 0)
            return rc;
        if (rc == ERR_NO_FIT) {
            open_end = held - 1;
            break; /* more held stages need more memory */
        }
        TRY(rc);
        open = held < most && *s->work <= SEARCH_WORK;
    }
    uint32_t center = s->best->held;
    const uint32_t beside[] = {center - center / 4, center + center / 2};
    for (int i = 0; i < 2 && s->best->from == s->from && center > 1; i++) {
        if (beside[i] == center || beside[i] > open_end || *s->work > SEARCH_WORK ||
            is_at_bound(s->best->predicted_ns, s->best->bound_ns))
            continue;
        int rc = try_held(s, beside[i]);
        if (rc < 0 && rc != ERR_NO_FIT)
            return rc;
    }
    return 0;
}

/* Tries the steady step at one tile size. */
static int try_tile(const plan_job *job, struct plani_candidate *c, struct choice *best,
                    uint64_t *work)
{
    struct tile_search s = {.job = job, .from = c, .best = best, .work = work};
    TRY(plani_set_begin(job, c->tile_elems, &s.set, &s.layout));
    int rc = ERR_NO_FIT;
    enum plan_commit usual = s.set.commit;
    s.set.commit = decisive_commit(job);
    if (plani_homes_fit(job, &s.layout))
        rc = try_counts(&s);
    if (rc == ERR_NO_FIT && s.set.commit != usual && plani_homes_fit(job, &s.layout)) {
        s.set.commit = usual;
        rc = try_counts(&s);
    }
    c->fails = rc == ERR_NO_FIT;
    plani_layout_fini(&s.layout);
    plan_set_fini(&s.set);
    return rc == ERR_NO_FIT ? 0 : rc;
}

static int search(const plan_job *job, struct plani_candidate *list, uint32_t count,
                  struct choice *best, uint64_t *work)
{
    memset(best, 0, sizeof *best);
    uint64_t enough = plani_searched_tile(job);
    if (!plani_homes_may_fit(job))
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t before = best->predicted_ns;
        if (list[i].fails)
            continue;
        TRY(try_tile(job, &list[i], best, work));
        if (best->predicted_ns &&
            (best->predicted_ns == before || list[i].tile_elems <= enough || *work > SEARCH_WORK ||
             is_at_bound(best->predicted_ns, best->bound_ns)))
            break;
    }
    return 0;
}

/* The steady step of the choice's tile and held stages, committing so, and what its lanes are busy;
 * UINT64_MAX: does not fit. */
static int steady_ns(const plan_job *job, const struct choice *best, enum plan_commit commit,
                     uint64_t *work, uint64_t *ns, uint64_t lane_ns[LANE_COUNT])
{
    plan_set set;
    plani_layout layout;
    *ns = UINT64_MAX;
    TRY(plani_set_begin_with(job, best->tile_elems, best->copy_bytes, &set, &layout));
    set.commit = commit;
    program trial;
    struct plani_order asked = {.kind = PROGRAM_STEADY, .held = best->held, .work = work};
    int rc = ERR_NO_FIT;
    memset(&trial, 0, sizeof trial);
    if (plani_homes_fit(job, &layout))
        rc = plani_compile_one(job, &set, &layout, &asked, job->budget_bytes, &trial);
    if (rc == 0) {
        *ns = trial.predicted_ns;
        memcpy(lane_ns, trial.lane_busy_ns, sizeof trial.lane_busy_ns);
    }
    program_fini(&trial);
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return rc == ERR_NO_FIT ? 0 : rc;
}

/* How the step of the search's choice commits, and its time both ways. State homed in memory may be so
 * much that the drive is at its saves when the step's other work ends, and the sync comes on top. Where
 * the saves come first the step hides that too, at the price of updates that wait for them, and of a
 * commit that is a step older. */
static int choose_commit(const plan_job *job, struct choice *best, uint64_t *work)
{
    enum plan_commit usual = usual_commit(job);
    uint64_t usual_ns, first_ns, usual_lane_ns[LANE_COUNT], first_lane_ns[LANE_COUNT];
    TRY(steady_ns(job, best, usual, work, &usual_ns, usual_lane_ns));
    if (usual_ns == UINT64_MAX) { /* no room for its saves as well */
        best->held = 0;
        TRY(steady_ns(job, best, usual, work, &usual_ns, usual_lane_ns));
        if (usual_ns == UINT64_MAX)
            return ERR_NO_FIT;
    }
    best->uncommitted_ns = usual_ns;
    memcpy(best->uncommitted_lane_ns, usual_lane_ns, sizeof usual_lane_ns);
    if (usual != PLAN_COMMIT_APART) {
        uint64_t apart_ns, apart_lane_ns[LANE_COUNT];
        TRY(steady_ns(job, best, PLAN_COMMIT_APART, work, &apart_ns, apart_lane_ns));
        if (apart_ns <= usual_ns) {
            best->uncommitted_ns = apart_ns;
            memcpy(best->uncommitted_lane_ns, apart_lane_ns, sizeof apart_lane_ns);
        }
    }
    best->commit = usual;
    if (usual != PLAN_COMMIT_BEHIND || !has_state_in_memory(job) || *work > SEARCH_WORK)
        return 0;
    TRY(steady_ns(job, best, PLAN_COMMIT_FIRST, work, &first_ns, first_lane_ns));
    if ((double)first_ns < (1.0 - older_commit_gain) * (double)usual_ns)
        best->commit = PLAN_COMMIT_FIRST;
    return 0;
}

/* Copies of the state that a step begins with, where they make it shorter: of parts of what the host's budget
 * leaves beside the homes, the smallest first. They take room from what is read ahead, so more of them may also make it
 * longer. */
static int choose_copies(const plan_job *job, struct choice *best, uint64_t *work)
{
    static const uint64_t parts[] = {1, 2, 4, 6};
    uint64_t budget = job->budget_bytes[TIER_HOST], lane_ns[LANE_COUNT], ns;
    uint64_t compute_ns = best->compute_ns, shortest = best->predicted_ns;
    if (job->update != UPDATE_IN_NEXT_FORWARD || job->only_eval || *work > SEARCH_WORK)
        return 0;
    uint64_t room = budget > best->host_bytes ? budget - best->host_bytes : 0;
    struct choice with = *best;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && *work <= SEARCH_WORK; i++) {
        if ((double)compute_ns >= (1 - copy_gain) * (double)shortest)
            break; /* nothing to gain */
        with.copy_bytes = room / COPY_PARTS * parts[i];
        TRY(steady_ns(job, &with, best->commit, work, &ns, lane_ns));
        if (ns == UINT64_MAX)
            break;
        compute_ns = lane_ns[LANE_COMPUTE];
        if ((double)ns < (1 - copy_gain) * (double)shortest) {
            shortest = ns;
            best->copy_bytes = with.copy_bytes;
        }
    }
    best->predicted_ns = shortest;
    return 0;
}

static uint64_t under_way_bytes(const plan_job *job, uint64_t elems)
{
    return tile_state_bytes(job->state_streams, elems) +
           elems * (job->param_bytes + job->grad_bytes);
}

/* Smaller tiles where copies leave room for few, unless the step gets longer. In a run, other than here, a tile is
 * compared and summed between ops, and the drive goes on with others. Of 151M params through 170 MiB, 1 Mi
 * in place of 4 Mi elements: 1.09 times as fast. */
static int choose_finer(const plan_job *job, struct choice *copied, uint64_t *work)
{
    uint64_t taken = copied->host_bytes + copied->copy_bytes, lane_ns[LANE_COUNT], ns;
    uint64_t budget = job->budget_bytes[TIER_HOST], room = budget > taken ? budget - taken : 0;
    struct choice with = *copied;
    while (copied->copy_bytes > 0 && !job->tile_elems && *work <= SEARCH_WORK &&
           room / under_way_bytes(job, copied->tile_elems) < TILES_UNDER_WAY) {
        with.tile_elems = size_round_up(copied->tile_elems / 2, TILE_ELEMS_STEP);
        if (with.tile_elems < TILE_ELEMS_FINE)
            break;
        TRY(steady_ns(job, &with, copied->commit, work, &ns, lane_ns));
        if (ns == UINT64_MAX || (double)ns > (1 + fine_cost) * (double)with.predicted_ns)
            break;
        copied->tile_elems = with.tile_elems;
        copied->predicted_ns = ns;
    }
    return 0;
}

static int compile_all(const plan_job *job, const struct choice *best, plan_set *out,
                       uint64_t *work)
{
    plani_layout layout;
    TRY(plani_set_begin_with(job, best->tile_elems, best->copy_bytes, out, &layout));
    out->held_stages = best->held;
    out->commit = best->commit;
    out->uncommitted_ns = job->only_eval ? 0 : best->uncommitted_ns;
    memcpy(out->uncommitted_lane_ns, best->uncommitted_lane_ns, sizeof out->uncommitted_lane_ns);
    int rc = 0;
    for (int k = 0; k < PROGRAM_KIND_COUNT && rc == 0; k++) {
        struct plani_order asked = {
            .kind = (enum program_kind)k, .held = best->held, .whole = true, .work = work};
        asked.bounds = k == PROGRAM_STEADY ? out : NULL;
        rc = plani_compile_one(job, out, &layout, &asked, job->budget_bytes, &out->programs[k]);
        asked.held = 0;
        if (rc == ERR_NO_FIT && best->held > 0)
            rc = plani_compile_one(job, out, &layout, &asked, job->budget_bytes, &out->programs[k]);
        if (rc == 0)
            rc = program_check(&out->programs[k]);
    }
    plani_layout_fini(&layout);
    if (rc < 0)
        plan_set_fini(out);
    return rc;
}

static int compile_choice(const plan_job *job, struct choice *best, plan_set *out, uint64_t *work)
{
    if (!job->only_eval)
        TRY(choose_commit(job, best, work));
    return compile_all(job, best, out, work);
}

/* Compile with copies where they gain; compile without them if another program of the set then
 * has no room. */
static int compile_best(const plan_job *job, struct choice *best, plan_set *out, uint64_t *work)
{
    struct choice with = *best;
    TRY(choose_copies(job, &with, work));
    TRY(choose_finer(job, &with, work));
    int rc = compile_choice(job, &with, out, work);
    if (rc == ERR_NO_FIT && with.copy_bytes > 0)
        rc = compile_choice(job, best, out, work);
    return rc;
}

int plan_compile(const plan_job *job, plan_set *out)
{
    memset(out, 0, sizeof *out);
    assert(job->stage_count >= 2);
    TRY(plani_check_job(job));
    if ((uint64_t)job->stage_count * job->micro_batch_count > SLOTS_MOST)
        return err_set(ERR_CONFIG,
                       "gradient_accumulation_steps %" PRIu32 " times %" PRIu32
                       " stages is more than %d passes in a step: at most %" PRIu32 " fit",
                       job->micro_batch_count, job->stage_count, SLOTS_MOST,
                       (uint32_t)SLOTS_MOST / job->stage_count);
    struct plani_candidate list[PLANI_CANDIDATES_MAX];
    uint32_t count = plani_list_candidates(job, list);
    uint64_t work = 0;
    for (;;) {
        struct choice best;
        TRY(search(job, list, count, &best, &work));
        out->work_ops = work;
        if (best.predicted_ns == 0)
            return plani_refuse(job, list, count, &out->work_ops);
        int rc = plani_check_needs(job, best.from, &work);
        if (rc == 0)
            rc = compile_best(job, &best, out, &work);
        out->work_ops = work;
        if (rc != ERR_NO_FIT)
            return rc;
        best.from->fails = true;
    }
}

/* The tile sizes of trials: coarse where that costs but little of the host's memory. */
static uint64_t trial_tile(const plan_job *job, const struct plani_candidate *list, uint32_t count,
                           uint32_t level)
{
    if (level > 0)
        return list[size_min(2 * (uint64_t)(level - 1), count - 1)].tile_elems;
    if (job->tile_elems || job->tile_elems_max)
        return list[0].tile_elems;
    uint64_t share = job->budget_bytes[TIER_HOST] / TRIAL_TILES_OF_HOST;
    uint64_t coarse = size_min(plani_total_elems(job) / TRIAL_TILES_MOST, share / (4 * 3));
    return size_max(list[0].tile_elems, size_round_up(coarse, TILE_ELEMS_STEP));
}

int plani_excess(const plan_job *job, double *bytes, uint64_t *work)
{
    struct plani_candidate list[PLANI_CANDIDATES_MAX];
    uint32_t count = plani_list_candidates(job, list);
    return plani_excess_of(job, list, count, bytes, work);
}

uint64_t plani_trial_tile(const plan_job *job, uint32_t level)
{
    struct plani_candidate list[PLANI_CANDIDATES_MAX];
    uint32_t count = plani_list_candidates(job, list);
    return trial_tile(job, list, count, level);
}

static int try_level(const plan_job *job, struct plani_trial *trial)
{
    plan_set set;
    plani_layout layout;
    program steady;
    TRY(plani_set_begin(job, trial->tile_elems, &set, &layout));
    set.commit = decisive_commit(job);
    struct plani_order asked = {.kind = job->only_eval ? PROGRAM_EVAL : PROGRAM_STEADY,
                                .held = trial->held,
                                .enough_ns = trial->enough_ns,
                                .work = &trial->work};
    memset(&steady, 0, sizeof steady);
    int rc = ERR_NO_FIT;
    if (plani_homes_fit(job, &layout) && trial->held <= plani_held_most(job))
        rc = plani_compile_one(job, &set, &layout, &asked, job->budget_bytes, &steady);
    trial->bound_ns = asked.bound_ns;
    trial->ns = rc == 0 ? steady.predicted_ns : UINT64_MAX;
    program_fini(&steady);
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return rc == 1 ? 0 : rc;
}

int plani_try(const plan_job *job, struct plani_trial *trial)
{
    struct plani_candidate list[PLANI_CANDIDATES_MAX];
    uint32_t count = plani_list_candidates(job, list);
    if (!plani_homes_may_fit(job))
        return ERR_NO_FIT;
    for (uint64_t before = 0;; trial->level++) {
        trial->tile_elems = trial_tile(job, list, count, trial->level);
        int rc = trial->tile_elems == before ? ERR_NO_FIT : try_level(job, trial);
        before = trial->tile_elems;
        bool is_last = trial->level > 0 && 2 * (uint64_t)(trial->level - 1) >= count - 1;
        if (rc != ERR_NO_FIT || is_last || trial->level >= trial->level_max ||
            trial->work > trial->work_most)
            return rc;
    }
}
