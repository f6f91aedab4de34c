/* The programs of the point that wins. */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "plan/search/search_internal.h"

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
    mem_free(set->carried);
    memset(set, 0, sizeof *set);
}

/* One program of the set. A program that has no room for held params holds none. */
static int compile_kind(const plan_job *job, const struct plani_point *point,
                        enum program_kind kind, const plani_layout *layout, plan_set *out,
                        plani_work *work)
{
    const uint32_t stages = out->held_stages, passes = out->held_passes;
    struct plani_request asked = {.kind = kind, .whole = true, .builder = &work->builder};
    if (kind == (job->only_eval ? PROGRAM_EVAL : PROGRAM_STEADY))
        memcpy(asked.ahead, point->ahead, sizeof asked.ahead);
    asked.bounds = kind == PROGRAM_STEADY ? out : NULL;
    int rc = plani_compile_one(job, out, layout, &asked, job->budget_bytes, &out->programs[kind]);
    if (rc == ERR_NO_FIT && stages + passes > 0) {
        out->held_stages = out->held_passes = 0;
        rc = plani_compile_one(job, out, layout, &asked, job->budget_bytes, &out->programs[kind]);
        out->held_stages = stages;
        out->held_passes = passes;
    }
    plani_count_work(work, asked.ops, asked.step_ops);
    return rc == 0 ? program_check(&out->programs[kind]) : rc;
}

/* Notes the time of a step that does not commit. It takes at most the time of a step with one. */
static int note_uncommitted(const plan_job *job, const struct plani_point *point, plan_set *set,
                            plani_work *work)
{
    struct plani_point other = *point;
    struct plani_figures usual, apart;
    if (job->only_eval)
        return 0;
    other.commit = plani_usual_commit(job);
    TRY(plani_try_step(job, &other, 0, &usual, work));
    other.commit = PLAN_COMMIT_APART;
    TRY(plani_try_step(job, &other, 0, &apart, work));
    const struct plani_figures *taken = apart.ns <= usual.ns ? &apart : &usual;
    set->uncommitted_ns = taken->ns;
    memcpy(set->uncommitted_lane_ns, taken->lane_ns, sizeof taken->lane_ns);
    return 0;
}

/* Notes the time of a step that has so many tokens that they hit all experts. */
static int note_all_hit(const plan_job *job, const struct plani_point *point, plan_set *set,
                        plani_work *work)
{
    plan_job other = *job;
    double ns;
    other.call_tokens = UINT64_C(1) << 30;
    if (!point->fetches_hit)
        return 0;
    TRY(plani_try(&other, point, 0, &ns, work));
    set->all_hit_ns = (uint64_t)ns;
    return 0;
}

/* Checks that each program finds what the one before it has carried. Where commits are one step
 * older, a save may come between a step and the next program. */
static int check_seams(const plan_set *set)
{
    static const enum program_kind after_step[] = {PROGRAM_STEADY, PROGRAM_FLUSH, PROGRAM_SAVE};
    static const enum program_kind before[] = {PROGRAM_FIRST, PROGRAM_STEADY, PROGRAM_SAVE};
    const size_t count = set->commit == PLAN_COMMIT_FIRST ? 3 : 2;
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count; j++)
            TRY(program_check_seam(&set->programs[before[i]], &set->programs[after_step[j]]));
    return 0;
}

int plani_compile_point(const plan_job *job, const struct plani_point *point, plan_set *out,
                        plani_work *work)
{
    plani_layout layout;
    plani_note_work(job, "compiling programs", 0);
    TRY(plani_set_begin(job, point, out, &layout));
    int rc = note_uncommitted(job, point, out, work);
    if (rc == 0)
        rc = note_all_hit(job, point, out, work);
    for (int k = 0; k < PROGRAM_KIND_COUNT && rc == 0; k++)
        rc = compile_kind(job, point, (enum program_kind)k, &layout, out, work);
    plani_layout_fini(&layout);
    if (rc == 0 && out->carried_count > 0)
        rc = check_seams(out);
    out->scouted_count = work->scouted_count;
    if (rc < 0)
        plan_set_fini(out);
    return rc;
}
