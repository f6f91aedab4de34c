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
 * The aim is that no job is beyond; the known ones may not get worse. Seeds 1, 8, 18, 39, 48, 63,
 * 87, 113, 139, 178, 183 and 199 of 1 to 200 are beyond. Some were examined: in 139 the first
 * forward waits for reads during which the device has little to do, while the bound lets it work;
 * in 48, 178 and 183 other rules gave orders that were up to 4% shorter. The cause in the others is
 * not known. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/search_internal.h"

enum { JOBS_SHORT = 60, JOBS_LONG = 200 };
enum verdict { WITHIN, BY_ORDER, BY_MEMORY, BEYOND, VERDICTS };

static const double near_enough = 1.05;
static uint64_t job_count = JOBS_SHORT, first_seed = 1;

static const char *const keys[TIER_COUNT] = {
    "tiers.device.budget=", "tiers.host.budget=", "tiers.nvme[].budget="};

/* ---- random jobs ----
 *
 * Gpt2- and llama-like models of some sizes on machines of very different balance, with every
 * placement, order, update and number of ranks. The work and traffic of passes follow from the
 * shapes. A job is a function of the seed alone. (plan_fixture.h draws stranger models, of tiny
 * units.) */

enum { JOB_UNITS_MAX = 40 };

struct family_job {
    plan_job job;
    uint64_t elems[JOB_UNITS_MAX];
    struct stage stages[JOB_UNITS_MAX];
    struct pass passes[JOB_UNITS_MAX][2];
    uint8_t homes[STATE_KIND_COUNT][JOB_UNITS_MAX];
    uint8_t stays_gathered[JOB_UNITS_MAX];
    uint64_t hidden, tokens, vocabulary; /* tokens of a micro-batch */
    bool tied;
    uint64_t seed, counter;
};
typedef struct family_job family_job;

static uint64_t job_draw(family_job *f, uint64_t bound)
{
    return rng_below(f->seed, 91, f->counter++, bound);
}

/* Between the two, evenly by logarithm. */
static double job_draw_log(family_job *f, double least, double most)
{
    return least * pow(most / least, (double)job_draw(f, 1001) / 1000.0);
}

static void job_stage(family_job *f, uint32_t s, bool is_llama)
{
    bool is_embed = s == 0, is_head = s + 1 == f->job.stage_count;
    uint64_t c = f->hidden;
    uint64_t block = is_llama ? 12 * c * c + 2 * c : (12 * c + 13) * c;
    uint64_t table = f->vocabulary * c;
    uint64_t elems = is_embed ? table : is_head ? (f->tied ? 2 * c : table + c) : block;
    double tokens = (double)f->tokens;
    /* Products, and attention over sequences of 1024; the embedding's rows are copied. */
    double products = is_head ? 2.0 * (double)table * tokens : 2.0 * (double)block * tokens;
    double forward = is_embed ? 0 : products + (is_head ? 0 : 4.0 * 1024 * (double)c * tokens);
    uint64_t row_bytes = f->tokens * c * 4;
    struct pass *there = &f->passes[s][0], *back = &f->passes[s][1];
    f->elems[s] = size_round_up(elems, SHARD_ELEMS_STEP);
    bool both = is_head && f->tied;
    *there = (struct pass){.units = {s, 0},
                           .unit_count = both ? 2 : 1,
                           .reads_params = {true, both},
                           .input = is_embed ? 0 : ACCESS_READ,
                           .output = is_head ? 0 : ACCESS_WRITE,
                           .losses = is_head ? ACCESS_WRITE : 0,
                           .flops = forward,
                           .dram_bytes = (is_embed ? 0 : 2 * elems) + 6 * row_bytes};
    *back = *there;
    back->reads_params[0] = !is_embed;
    back->adds_grads[0] = true;
    back->adds_grads[1] = both;
    back->output = 0;
    back->output_grad = is_head ? 0 : ACCESS_READ;
    back->input_grad = is_embed ? 0 : ACCESS_WRITE;
    back->flops = 3 * forward;
    back->dram_bytes = 3 * there->dram_bytes;
    f->stages[s] = (struct stage){.passes = {there, NULL, back}, .pass_count = {1, 0, 1}};
    if (is_embed || is_head)
        return;
    f->stages[s].saved_bytes = size_round_up(row_bytes * 7, TILE_BLOCK_BYTES);
    f->stages[s].recompute_flops = forward;
    f->stages[s].recompute_dram_bytes = there->dram_bytes;
}

/* Each kind as a whole on one tier, or cut into two runs of units on two, or unit by unit. */
static void job_homes(family_job *f)
{
    for (int k = 0; k < STATE_KIND_COUNT; k++) {
        uint64_t tiers = k == STATE_INNER_ACTIVATIONS ? TIER_COUNT + 1 : TIER_COUNT;
        uint64_t first = job_draw(f, tiers), second = job_draw(f, tiers);
        uint64_t way = job_draw(f, 4), cut = job_draw(f, f->job.unit_count);
        if (k == STATE_INNER_ACTIVATIONS && job_draw(f, 2))
            first = second = TIER_COUNT;
        for (uint32_t u = 0; u < f->job.unit_count; u++)
            f->homes[k][u] = (uint8_t)(way == 0               ? job_draw(f, tiers)
                                       : way == 1 && u >= cut ? second
                                                              : first);
        f->job.homes[k] = f->homes[k];
    }
}

static void job_machine(family_job *f)
{
    plan_machine *m = &f->job.machine;
    if (job_draw(f, 3) == 0) {
        plan_machine_default_cpu(m, 8 + (uint32_t)job_draw(f, 56), true);
    } else {
        plan_machine_default_gpu(m, 8 + (uint32_t)job_draw(f, 56), 7 + (int)job_draw(f, 3), 0);
        m->device_flops_per_second = job_draw_log(f, 5e12, 600e12);
        m->h2d_bytes_per_second = m->d2h_bytes_per_second = job_draw_log(f, 6e9, 60e9);
    }
    m->drive_read_bytes_per_second = job_draw_log(f, 0.5e9, 50e9);
    m->drive_write_bytes_per_second = m->drive_read_bytes_per_second * job_draw_log(f, 0.3, 1.0);
    m->comm_bytes_per_second = job_draw_log(f, 2e9, 100e9);
    m->comm_is_copies = m->device_is_cpu && job_draw(f, 2);
    m->op_seconds = job_draw_log(f, 1e-6, 30e-6);
}

static void job_ranks(family_job *f)
{
    plan_job *job = &f->job;
    job->world = UINT32_C(1) << job_draw(f, 5);
    job->zero_stage = (uint32_t)job_draw(f, 4);
    job->wire_bytes = job_draw(f, 2) ? 4 : 2;
    job->reduce_scratch_bytes = 2 * (uint32_t)job_draw(f, 3);
    for (uint32_t u = 0; u < job->unit_count; u++)
        f->stays_gathered[u] = f->elems[u] < 100000;
    job->stays_gathered = f->stays_gathered;
}

/* Budgets are left at 0. */
static void family_random_job(family_job *f, uint64_t seed)
{
    memset(f, 0, sizeof *f);
    f->seed = seed;
    plan_job *job = &f->job;
    bool is_llama = job_draw(f, 2);
    f->tied = !is_llama || job_draw(f, 4) == 0;
    f->hidden = 256 * (1 + job_draw(f, 8));
    f->vocabulary = job_draw(f, 2) ? 8192 : 50304;
    f->tokens = UINT64_C(512) << job_draw(f, 6);
    job->stage_count = job->unit_count = 4 + (uint32_t)job_draw(f, 21);
    for (uint32_t s = 0; s < job->stage_count; s++)
        job_stage(f, s, is_llama);
    if (f->tied) {
        f->passes[job->stage_count - 1][0].units[1] = 0;
        f->passes[job->stage_count - 1][1].units[1] = 0;
    }
    job->unit_elems = f->elems;
    job->stages = f->stages;
    job_homes(f);
    job_ranks(f);
    job_machine(f);
    job->micro_batch_count = 1 + (uint32_t)job_draw(f, 4);
    job->boundary_bytes = f->tokens * f->hidden * 4;
    job->workspace_bytes = f->tokens * f->hidden * 40;
    job->constants_bytes = 4096;
    job->tokens_bytes = size_round_up(f->tokens * 4 * job->micro_batch_count, TILE_BLOCK_BYTES);
    job->losses_bytes = job->tokens_bytes;
    job->param_bytes = job_draw(f, 4) ? 2 : 4;
    job->grad_bytes = job_draw(f, 2) ? 2 : 4;
    job->state_streams = job_draw(f, 4) ? 3 : 2;
    job->update = (enum update)job_draw(f, 4);
    job->order = job_draw(f, 3) ? ORDER_LAYER_MAJOR : ORDER_BATCH_MAJOR;
    job->needs_save_places = job_draw(f, 2);
    job->commits = job_draw(f, 2);
    job->commit_every = job_draw(f, 2) ? 1 : 50;
    job->tile_elems = job_draw(f, 4) ? 0 : (TILE_ELEMS_STEP * 64) << job_draw(f, 4);
}

/* ---- budgets ---- */

static uint64_t needed(int arena)
{
    const char *at = strstr(err_text(), keys[arena]);
    return at ? strtoull(at + strlen(keys[arena]), NULL, 10) : 0;
}

/* Reads from a refusal the budgets that the job needs, for all tiers that it uses. */
static void learn_needs(family_job *f, uint64_t need[TIER_COUNT])
{
    plan_set set;
    assert_int_equal(plan_compile(&f->job, &set), ERR_NO_FIT);
    for (int a = 0; a < TIER_COUNT; a++)
        need[a] = needed(a);
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
                            set->held_stages};
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
    (void)state;
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
    assert_true(counts[BEYOND] <= job_count / 20 + 2); /* 5 of 60, 12 of 200 */
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
