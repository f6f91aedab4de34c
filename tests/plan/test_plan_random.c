/* Measures the quality of compiled schedules. Random jobs of real shapes are compiled. Each either
 * gives programs whose peaks are within the budgets, or is refused with the budgets that it really
 * needs. Simulated time is compared with its bounds:
 *
 *   within   at most 5% above the bound (per phase the busiest resource)
 *   order    dependencies alone keep every order of the ops more than 5% above the bound
 *   memory   the same program (homes, tiles, held stages, commits) would be within if device and
 *            host memory had room for all of it
 *   beyond   none of these: a better order may exist, or something forbids it that the bound of all
 *            orders does not know
 *
 * The aim is that no job is beyond; the known ones may not get worse. Seeds 1, 8, 17, 18, 39, 46,
 * 48, 63, 87, 113, 139, 178, 183 and 199 of 1 to 200 are beyond. Some were examined: in 139 the
 * first forward waits for reads during which the device has little to do, while the bound lets it
 * work; in 48, 178 and 183 other rules gave orders that were up to 4% shorter. The cause in the
 * others is not known. */
#include <math.h>

#include "plan/search/search_internal.h"
#include "tests/plan/plan_family.h"
#include "tests/unit.h"

enum { JOBS_SHORT = 60, JOBS_LONG = 200 };
enum verdict { WITHIN, BY_ORDER, BY_MEMORY, BEYOND, VERDICTS };

static const double near_enough = 1.05;
static uint64_t job_count = JOBS_SHORT, first_seed = 1;

/* ---- budgets ---- */

/* Reads from a refusal the budgets that the job needs, for all tiers that it uses. */
static void learn_needs(family_job *f, uint64_t need[TIER_COUNT])
{
    plan_set set;
    assert_int_equal(plan_compile(&f->job, &set), ERR_NO_FIT);
    for (int a = 0; a < TIER_COUNT; a++)
        need[a] = family_need(a);
    assert_true(need[TIER_DEVICE] > 0 && need[TIER_HOST] > 0);
}

/* With exactly the needed bytes it compiles, with one block less of any tier it does not. */
static void assert_needs(family_job *f, const uint64_t need[TIER_COUNT])
{
    plan_set set;
    memcpy(f->job.budget_bytes, need, sizeof f->job.budget_bytes);
    assert_int_equal(plan_compile(&f->job, &set), 0);
    plan_set_fini(&set);
    for (int a = 0; a < TIER_COUNT; a++) {
        if (need[a] == 0)
            continue;
        f->job.budget_bytes[a] = need[a] - TILE_BLOCK_BYTES;
        assert_int_equal(plan_compile(&f->job, &set), ERR_NO_FIT);
        f->job.budget_bytes[a] = need[a];
    }
}

/* From just fitting to ample. */
static void draw_budgets(family_job *f, const uint64_t need[TIER_COUNT])
{
    static const double room[] = {1.0, 1.05, 1.25, 2, 5, 100};
    for (int a = 0; a < TIER_COUNT; a++)
        f->job.budget_bytes[a] =
            size_round_up((uint64_t)((double)need[a] * room[job_draw(f, 6)]), TILE_BLOCK_BYTES);
    f->job.budget_bytes[TIER_NVME] += 10 * need[TIER_NVME];
}

struct figures {
    double ns, bound_ns, least_ns;
    enum plan_commit commit;
    uint64_t tile_elems;
    uint32_t held;
};

/* Figures of the step that the compiler makes short: the step without a commit if commits are
 * seldom, else the steady step. */
static struct figures figures_of(const plan_job *job, const plan_set *set)
{
    struct figures found = {(double)set->programs[PROGRAM_STEADY].predicted_ns,
                            (double)set->bound_ns,
                            (double)set->schedule_bound_ns,
                            set->commit,
                            set->tile_elems,
                            set->held_stages + set->held_passes};
    if (job->commits && job->needs_save_places && job->commit_every > 1) {
        found.ns = (double)set->uncommitted_ns;
        found.bound_ns = (double)set->uncommitted_bound_ns;
        found.least_ns = (double)set->uncommitted_schedule_bound_ns;
        found.commit = PLAN_COMMIT_APART;
    }
    return found;
}

/* *roomy_ratio, of what is BEYOND: how near the same program comes with unlimited memory. */
static enum verdict judge(const family_job *f, const struct figures *found, double *roomy_ratio)
{
    *roomy_ratio = 0;
    if (found->ns <= near_enough * found->bound_ns)
        return WITHIN;
    if (found->least_ns > near_enough * found->bound_ns)
        return BY_ORDER;
    static const uint64_t ample[TIER_COUNT] = {UINT64_C(1) << 50, UINT64_C(1) << 50,
                                               UINT64_C(1) << 60};
    plan_job wide = f->job;
    plan_set same;
    plani_layout layout;
    program roomy;
    struct plani_request asked = {.kind = PROGRAM_STEADY};
    struct plani_point point = plani_plain_point(&wide, found->tile_elems);
    point.held = found->held;
    point.commit = found->commit;
    wide.unit_elems = f->elems;
    assert_int_equal(plani_set_begin(&wide, &point, &same, &layout), 0);
    assert_int_equal(plani_compile_one(&wide, &same, &layout, &asked, ample, &roomy), 0);
    double ns = (double)roomy.predicted_ns;
    program_fini(&roomy);
    plani_layout_fini(&layout);
    plan_set_fini(&same);
    *roomy_ratio = ns / (double)asked.bound_ns;
    return *roomy_ratio <= near_enough ? BY_MEMORY : BEYOND;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static void print_verdicts(double ratios[VERDICTS][JOBS_LONG], const uint64_t *counts)
{
    static const char *const names[VERDICTS] = {"within 5%", "dependencies", "memory", "beyond"};
    for (int v = 0; v < VERDICTS; v++) {
        uint64_t n = counts[v];
        if (n == 0)
            continue;
        qsort(ratios[v], n, sizeof(double), compare);
        print_message("%-12s %3llu jobs: simulated/bound %.3f %.3f %.3f (least, median, most)\n",
                      names[v], (unsigned long long)n, ratios[v][0], ratios[v][n / 2],
                      ratios[v][n - 1]);
    }
}

static void schedules_are_near_their_bounds(void **state)
{
    static double ratios[VERDICTS][JOBS_LONG];
    uint64_t counts[VERDICTS] = {0};
    for (uint64_t seed = first_seed; seed < first_seed + job_count; seed++) {
        family_job f;
        uint64_t need[TIER_COUNT];
        family_random_job(&f, seed);
        learn_needs(&f, need);
        if (seed % 8 == 0)
            assert_needs(&f, need);
        draw_budgets(&f, need);
        plan_set set;
        assert_int_equal(plan_compile(&f.job, &set), 0);
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
            for (int a = 0; a < TIER_COUNT; a++)
                assert_true(set.programs[k].peak_bytes[a] <= f.job.budget_bytes[a]);
        struct figures found = figures_of(&f.job, &set);
        plan_set_fini(&set);
        assert_true(found.least_ns >= 0.9999 * found.bound_ns);
        assert_true(found.ns >= 0.9999 * found.least_ns);
        double roomy_ratio;
        enum verdict v = judge(&f, &found, &roomy_ratio);
        ratios[v][counts[v]++] = found.ns / found.bound_ns;
        if (v == BEYOND)
            print_message("seed %llu takes %.3f of its bound, %.3f with unlimited memory\n",
                          (unsigned long long)seed, found.ns / found.bound_ns, roomy_ratio);
    }
    print_message("seeds %llu to %llu\n", (unsigned long long)first_seed,
                  (unsigned long long)(first_seed + job_count - 1));
    print_verdicts(ratios, counts);
    /* Held, not aimed at: more jobs beyond their bounds, or fewer within, and the compiler got
     * worse. */
    assert_true(counts[BEYOND] <= job_count / 20 + 4); /* 7 of 60, 14 of 200 */
    assert_true(counts[WITHIN] * 100 >= 40 * job_count);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        job_count = size_min(strtoull(argv[1], NULL, 10), JOBS_LONG);
    if (argc > 2)
        first_seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(schedules_are_near_their_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
