/* The rest of a point where the homes are given: tile size, held stages, copies and the way to
 * commit; and the programs of the point that wins. plan_compile.
 *
 * For each candidate tile size, largest first, and each number of held stages, fewest first, the
 * deciding step is tried (trial.c); the shortest one wins. A time that equals its lower bound is
 * not improved further. Then, beside that tile size and number of held stages, copies are tried,
 * finer tiles where the copies leave little room, and last the two ways to commit.
 *
 * Only the deciding step is looked at before a choice is made. Where the needs of another program
 * then do not fit, which is rare, the search goes on without that tile size. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "plan/search_internal.h"

enum {
    COPY_PARTS = 8,            /* of the host's room, tried as copies */
    TILES_UNDER_WAY = 6,       /* that copies should leave room for */
    TILE_ELEMS_FINE = 1 << 20, /* and no smaller for that: their state is a dozen transfers */
    SLOTS_MOST = 4000000,      /* stages times micro-batches */
    SETTLE_WORK = 8000000,     /* ops: what fits by then is not improved on */
};

/* A point that was tried, and what its trial showed. */
struct settled {
    struct plani_point point;
    struct plani_trial trial; /* ns 0: none was tried yet */
    struct plani_candidate *from;
    uint64_t uncommitted_ns, uncommitted_lane_ns[LANE_COUNT];
};

struct settler {
    const plan_job *job;
    struct plani_candidate list[PLANI_CANDIDATES_MAX]; /* tile sizes */
    uint32_t count;
    struct plani_candidate *at; /* the one that is tried */
    struct settled best;
    plani_work *work;
    uint64_t begun_ops; /* of it, before this point */
};

static bool may_go_on(const struct settler *s)
{
    return s->work->ops - s->begun_ops <= SETTLE_WORK;
}

/* ---- tile size and held stages -------------------------------------------------------------- */

/* Tries the tile size with so many held stages and takes it where that is worth it; ERR_NO_FIT. */
static int try_held(struct settler *s, enum plan_commit commit, uint32_t held)
{
    struct settled *best = &s->best;
    struct plani_point point = plani_plain_point(s->job, s->at->tile_elems);
    struct plani_trial trial;
    point.held = held;
    point.commit = commit;
    uint64_t limit = plani_limit_ns(PLANI_CHANGE_TILE_OR_HELD, best->trial.ns);
    TRY(plani_try(s->job, &point, limit, &trial, s->work));
    assert(best->trial.ns > 0 || trial.ns < UINT64_MAX); /* without a limit a trial is simulated */
    if (best->trial.ns == 0 ||
        plani_is_worth(PLANI_CHANGE_TILE_OR_HELD, (double)trial.ns, (double)best->trial.ns))
        *best = (struct settled){.point = point, .trial = trial, .from = s->at};
    return 0;
}

/* 0, 1, 2, 4, ... held stages until no more fit, then the numbers beside the best of them. */
static int try_counts(struct settler *s, enum plan_commit commit)
{
    uint32_t most = plani_held_most(s->job), open_end = most;
    bool open = true;
    for (uint32_t held = 0; open; held = held == 0 ? 1 : size_min(2 * (uint64_t)held, most)) {
        int rc = try_held(s, commit, held);
        if (rc == ERR_NO_FIT && held == 0)
            return rc;
        if (rc == ERR_NO_FIT) {
            open_end = held - 1;
            break; /* more held stages need more memory */
        }
        TRY(rc);
        open = held < most && may_go_on(s);
    }
    uint32_t center = s->best.point.held;
    const uint32_t beside[] = {center - center / 4, center + center / 2};
    for (int i = 0; i < 2 && s->best.from == s->at && center > 1; i++) {
        if (beside[i] == center || beside[i] > open_end || !may_go_on(s) ||
            plani_is_at_bound(&s->best.trial))
            continue;
        int rc = try_held(s, commit, beside[i]);
        if (rc < 0 && rc != ERR_NO_FIT)
            return rc;
    }
    return 0;
}

/* Tries one tile size: with the commit that decides and, where that does not fit, with the usual
 * one. */
static int try_tile(struct settler *s)
{
    enum plan_commit decisive = plani_decisive_commit(s->job), usual = plani_usual_commit(s->job);
    int rc = try_counts(s, decisive);
    if (rc == ERR_NO_FIT && decisive != usual)
        rc = try_counts(s, usual);
    s->at->fails = rc == ERR_NO_FIT;
    return rc == ERR_NO_FIT ? 0 : rc;
}

/* Finds s->best; its trial.ns stays 0 where nothing fits. */
static int try_tiles(struct settler *s)
{
    uint64_t enough = plani_searched_tile(s->job);
    plani_note_work(s->job, "choosing tile sizes", 0);
    memset(&s->best, 0, sizeof s->best);
    if (!plani_homes_may_fit(s->job))
        return 0;
    for (uint32_t i = 0; i < s->count; i++) {
        uint64_t before = s->best.trial.ns;
        s->at = &s->list[i];
        if (s->at->fails)
            continue;
        TRY(try_tile(s));
        if (s->best.trial.ns && (s->best.trial.ns == before || s->at->tile_elems <= enough ||
                                 !may_go_on(s) || plani_is_at_bound(&s->best.trial)))
            break;
    }
    return 0;
}

/* ---- copies, finer tiles, the commit -------------------------------------------------------- */

/* Copies of the state that a step begins with, where they make it shorter: parts of what the
 * host's budget leaves beside the homes, smallest first. Copies take room from what is read ahead,
 * so that more of them may also make the step longer. */
static int choose_copies(struct settler *s, struct settled *best)
{
    static const uint64_t parts[] = {1, 2, 4, 6};
    const plan_job *job = s->job;
    uint64_t budget = job->budget_bytes[TIER_HOST], homes = best->trial.home_ends[TIER_HOST];
    uint64_t compute_ns = best->trial.lane_ns[LANE_COMPUTE], shortest = best->trial.ns;
    if (job->update != UPDATE_IN_NEXT_FORWARD || job->only_eval || !may_go_on(s))
        return 0;
    uint64_t room = budget > homes ? budget - homes : 0;
    struct plani_point with = best->point;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && may_go_on(s); i++) {
        struct plani_trial trial;
        if (!plani_is_worth(PLANI_CHANGE_COPIES, (double)compute_ns, (double)shortest))
            break; /* nothing to gain */
        with.copy_bytes = room / COPY_PARTS * parts[i];
        int rc = plani_try(job, &with, 0, &trial, s->work);
        if (rc == ERR_NO_FIT)
            break;
        TRY(rc);
        compute_ns = trial.lane_ns[LANE_COMPUTE];
        if (plani_is_worth(PLANI_CHANGE_COPIES, (double)trial.ns, (double)shortest)) {
            shortest = trial.ns;
            best->point.copy_bytes = with.copy_bytes;
        }
    }
    best->trial.ns = shortest;
    return 0;
}

static uint64_t under_way_bytes(const plan_job *job, uint64_t elems)
{
    return tile_state_bytes(job->state_streams, elems) +
           elems * (job->param_bytes + job->grad_bytes);
}

/* Smaller tiles where copies leave room for few, unless the step gets longer than that may cost.
 * In a run a tile is also compared and summed between ops, which no trial knows, and the drive
 * goes on with other tiles. For 151M params through 170 MiB, 1 Mi in place of 4 Mi elements: 1.09
 * times as fast. */
static int choose_finer(struct settler *s, struct settled *best)
{
    const plan_job *job = s->job;
    uint64_t taken = best->trial.home_ends[TIER_HOST] + best->point.copy_bytes;
    uint64_t budget = job->budget_bytes[TIER_HOST], room = budget > taken ? budget - taken : 0;
    const uint64_t before_ns = best->trial.ns;
    struct plani_point with = best->point;
    while (best->point.copy_bytes > 0 && !job->tile_elems && may_go_on(s) &&
           room / under_way_bytes(job, best->point.tile_elems) < TILES_UNDER_WAY) {
        struct plani_trial trial;
        with.tile_elems = size_round_up(best->point.tile_elems / 2, TILE_ELEMS_STEP);
        if (with.tile_elems < TILE_ELEMS_FINE)
            break;
        int rc = plani_try(job, &with, 0, &trial, s->work);
        if (rc < 0 && rc != ERR_NO_FIT)
            return rc;
        if (rc == ERR_NO_FIT ||
            !plani_is_worth(PLANI_CHANGE_FINER_TILES, (double)trial.ns, (double)before_ns))
            break;
        best->point.tile_elems = with.tile_elems;
        best->trial.ns = trial.ns;
    }
    return 0;
}

/* Tries the chosen point with that commit; trial->ns is UINT64_MAX where it does not fit. */
static int try_commit(struct settler *s, const struct settled *best, enum plan_commit commit,
                      struct plani_trial *trial)
{
    struct plani_point point = best->point;
    point.commit = commit;
    int rc = plani_try(s->job, &point, 0, trial, s->work);
    return rc == ERR_NO_FIT ? 0 : rc;
}

static void note_uncommitted(struct settled *best, const struct plani_trial *trial)
{
    best->uncommitted_ns = trial->ns;
    memcpy(best->uncommitted_lane_ns, trial->lane_ns, sizeof trial->lane_ns);
}

/* How the step commits, and its time both ways. State homed in memory may be so much that the
 * drive is at its saves when the step's other work ends, and the sync comes on top. Where the
 * saves come first the step hides that too, at the price of updates that wait for them, and of a
 * commit that is a step older. */
static int choose_commit(struct settler *s, struct settled *best)
{
    enum plan_commit usual = plani_usual_commit(s->job);
    struct plani_trial trial, other;
    TRY(try_commit(s, best, usual, &trial));
    if (trial.ns == UINT64_MAX) { /* no room for its saves as well */
        best->point.held = 0;
        TRY(try_commit(s, best, usual, &trial));
        if (trial.ns == UINT64_MAX)
            return ERR_NO_FIT;
    }
    note_uncommitted(best, &trial);
    if (usual != PLAN_COMMIT_APART) {
        TRY(try_commit(s, best, PLAN_COMMIT_APART, &other));
        if (other.ns <= trial.ns)
            note_uncommitted(best, &other);
    }
    best->point.commit = usual;
    if (usual != PLAN_COMMIT_BEHIND || !plani_has_state_in_memory(s->job) || !may_go_on(s))
        return 0;
    TRY(try_commit(s, best, PLAN_COMMIT_FIRST, &other));
    if (plani_is_worth(PLANI_CHANGE_OLDER_COMMIT, (double)other.ns, (double)trial.ns))
        best->point.commit = PLAN_COMMIT_FIRST;
    return 0;
}

/* ---- all programs of the point -------------------------------------------------------------- */

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

/* One program of the set. A program that has no room for held stages holds none. */
static int compile_kind(struct settler *s, enum program_kind kind, const plani_layout *layout,
                        plan_set *out)
{
    const plan_job *job = s->job;
    const uint32_t held = out->held_stages;
    struct plani_request asked = {.kind = kind, .whole = true, .work = s->work};
    asked.bounds = kind == PROGRAM_STEADY ? out : NULL;
    int rc = plani_compile_one(job, out, layout, &asked, job->budget_bytes, &out->programs[kind]);
    if (rc == ERR_NO_FIT && held > 0) {
        out->held_stages = 0;
        rc = plani_compile_one(job, out, layout, &asked, job->budget_bytes, &out->programs[kind]);
        out->held_stages = held;
    }
    return rc == 0 ? program_check(&out->programs[kind]) : rc;
}

static int compile_point(struct settler *s, struct settled best, plan_set *out)
{
    plani_layout layout;
    if (!s->job->only_eval)
        TRY(choose_commit(s, &best));
    TRY(plani_set_begin(s->job, &best.point, out, &layout));
    out->uncommitted_ns = best.uncommitted_ns;
    memcpy(out->uncommitted_lane_ns, best.uncommitted_lane_ns, sizeof out->uncommitted_lane_ns);
    int rc = 0;
    for (int k = 0; k < PROGRAM_KIND_COUNT && rc == 0; k++)
        rc = compile_kind(s, (enum program_kind)k, &layout, out);
    plani_layout_fini(&layout);
    if (rc < 0)
        plan_set_fini(out);
    return rc;
}

/* With copies where they gain; without them where another program then has no room. */
static int compile_best(struct settler *s, plan_set *out)
{
    struct settled with = s->best;
    plani_note_work(s->job, "choosing copies and commits", 0);
    TRY(choose_copies(s, &with));
    TRY(choose_finer(s, &with));
    int rc = compile_point(s, with, out);
    if (rc == ERR_NO_FIT && with.point.copy_bytes > 0)
        rc = compile_point(s, s->best, out);
    return rc;
}

static int settle(struct settler *s, plan_set *out)
{
    for (;;) {
        TRY(try_tiles(s));
        if (s->best.trial.ns == 0)
            return plani_refuse(s->job, s->list, s->count, s->work);
        int rc = plani_check_needs(s->job, s->best.from, s->work);
        if (rc == 0)
            rc = compile_best(s, out);
        if (rc != ERR_NO_FIT)
            return rc;
        s->best.from->fails = true;
    }
}

int plani_compile(const plan_job *job, plan_set *out, plani_work *work)
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
    struct settler s = {.job = job, .work = work, .begun_ops = work->ops};
    s.count = plani_list_candidates(job, s.list);
    int rc = settle(&s, out);
    out->work_ops = work->ops - s.begun_ops;
    return rc;
}

int plan_compile(const plan_job *job, plan_set *out)
{
    plani_work work = {0};
    int rc = plani_compile(job, out, &work);
    plani_work_fini(&work);
    return rc;
}
