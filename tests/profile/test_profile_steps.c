/* sluice profile as a function: steady steps alone count, bytes are those of the plan, and nothing
 * stays. */
#include <dirent.h>
#include <math.h>

#include "profile/profile.h"
#include "setup/summary.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "train/train.h"

enum { STEPS = 4 };

static const fixture_model shape = {.family = "gpt2", .layers = 3, .hidden = 96};
static struct profile_summary summary; /* large */

struct seen {
    uint64_t plans, steps, stop_after;
    volatile sig_atomic_t stop;
};

static void on_plan(void *user, const struct setup_summary *plan)
{
    struct seen *seen = user;
    seen->plans++;
    assert_true(plan->step_seconds > 0);
}

static void on_step(void *user, const struct train_progress *progress)
{
    struct seen *seen = user;
    seen->steps++;
    assert_int_equal(progress->step, seen->steps);
    if (seen->steps == seen->stop_after)
        seen->stop = 1;
}

/* Everything on drives. */
static fixture_sets drive_sets(void)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "tiers.place.optimizer=nvme");
    fixture_set(&sets, "tiers.place.params=nvme");
    fixture_set(&sets, "tiers.place.grads=nvme");
    fixture_set(&sets, "tiers.host.budget=6MiB"); /* with more, steps need to read nothing */
    return sets;
}

static int profile_it(const char *name, const fixture_sets *sets, struct profile_options options,
                      struct seen *seen)
{
    job *asked = fixture_job(name, &shape, sets);
    options.job = asked;
    options.stop = &seen->stop;
    options.on_plan = on_plan;
    options.on_step = on_step;
    options.user = seen;
    int rc = profile_run(&options, &summary);
    job_destroy(asked);
    return rc;
}

/* Neither the run's directory, nor the drive's, nor the trial's. */
static void assert_nothing_left(const char *name)
{
    assert_false(fixture_exists(fixture_path(name, NULL)));
    assert_false(fixture_exists(fixture_path(name, ".nvme")));
    DIR *directory = opendir(fixture_dir);
    assert_non_null(directory);
    for (const struct dirent *entry; (entry = readdir(directory));)
        if (strncmp(entry->d_name, "sluice-profile-", 15) == 0)
            fail_msg("%s is left", entry->d_name);
    closedir(directory);
}

static void assert_measured(uint64_t steps)
{
    double lanes = 0;
    assert_int_equal(summary.steps, steps);
    assert_true(summary.measured_fastest > 0);
    assert_true(summary.measured_fastest <= summary.measured_seconds);
    assert_true(summary.measured_seconds <= summary.measured_slowest);
    assert_true(summary.predicted_seconds > 0);
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        const struct profile_lane *each = &summary.lanes[kind];
        assert_int_equal(each->measured_bytes, each->predicted_bytes);
        assert_true((each->measured_seconds > 0) == (each->predicted_seconds > 0));
        assert_true(each->measured_seconds <=
                    summary.lanes[summary.measured_binding].measured_seconds);
        assert_true(each->predicted_seconds <=
                    summary.lanes[summary.predicted_binding].predicted_seconds);
        lanes += each->measured_seconds;
    }
    assert_true(lanes > 0);
    for (int r = 0; r < PROFILE_RESOURCE_COUNT; r++)
        assert_true(summary.measured_resource_seconds[r] <=
                    summary.measured_resource_seconds[summary.measured_resource]);
    for (uint32_t i = 1; i < summary.unit_count; i++)
        assert_true(summary.units[i].stall_seconds <= summary.units[i - 1].stall_seconds);
    for (int a = TIER_DEVICE; a <= TIER_NVME; a++)
        assert_int_equal(summary.peak_bytes[a], summary.plan.peak_bytes[a]);
}

/* Each transfer of the measured steps, cut as aio.block_size says, and nothing else. */
static void assert_drive_times(void)
{
    uint64_t counts[2] = {0, 0};
    assert_int_equal(summary.drive_count, 1);
    for (int way = 0; way < 2; way++) {
        const struct profile_times *times = &summary.drives[0].times[way];
        const struct profile_lane *each = &summary.lanes[way ? LANE_WRITE : LANE_READ];
        counts[way] = times->count;
        assert_true(0 < times->p50 && times->p50 <= times->p95 && times->p95 <= times->p99);
        assert_true(times->p99 <= times->max);
        assert_true(times->max <= summary.measured_slowest);
        assert_true(each->measured_bytes > 0);
        /* Extents are far smaller than a block here: a transfer each, at least 4 KiB. */
        assert_true(counts[way] * 4096 <= each->measured_bytes * STEPS);
        assert_int_equal(counts[way] % STEPS, 0);
    }
}

static void steady_steps_are_measured(void **state)
{
    /* With updates left for the next step the first is another program; the first steady one warms
     * up. */
    static const struct {
        const char *update;
        uint64_t warmups;
    } ways[] = {{"in_next_forward", 2}, {"after_backward", 1}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        fixture_sets sets = drive_sets();
        fixture_set(&sets, "schedule.update=%s", ways[i].update);
        struct seen seen = {0};
        struct profile_options options = {.steps = STEPS, .no_advice = true};
        assert_ok(profile_it("drives", &sets, options, &seen));
        assert_measured(STEPS);
        assert_int_equal(summary.warmup_steps, ways[i].warmups);
        assert_int_equal(seen.steps, STEPS + ways[i].warmups);
        assert_int_equal(seen.plans, 1);
        assert_true(summary.lanes[LANE_READ].measured_bytes > 0);
        assert_drive_times();
        assert_int_equal(summary.of_ranks, 0);
        assert_false(summary.is_random_data);
        assert_nothing_left("drives");
    }
}

/* Blocks of the drives as the machine file has them, unless the job says how large. */
static void blocks_are_the_machines(void **state)
{
    static machine on;
    const uint64_t stated = 4096, asked = 16384;
    fixture_sets sets = drive_sets();
    struct seen seen = {0};
    struct profile_options options = {.steps = STEPS, .no_advice = true, .machine = &on};
    on.drive_count = 2; /* the other one is not the job's */
    snprintf(on.drives[0].path, sizeof on.drives[0].path, "%s", fixture_dir);
    on.drives[0].block_bytes = stated;
    on.drives[0].queue_depth = 3;
    on.drives[1].block_bytes = 8 * stated;
    for (int is_asked = 0; is_asked < 2; is_asked++) {
        if (is_asked)
            fixture_set(&sets, "aio.block_size=%llu", (unsigned long long)asked);
        seen = (struct seen){0};
        assert_ok(profile_it("blocks", &sets, options, &seen));
        for (int way = 0; way < 2; way++) {
            uint64_t bytes = summary.lanes[way ? LANE_WRITE : LANE_READ].measured_bytes * STEPS;
            uint64_t count = summary.drives[0].times[way].count;
            assert_true(bytes > 0);
            if (!is_asked)
                assert_int_equal(count * stated, bytes);
            else
                assert_true(count * asked >= bytes && count * stated < bytes);
        }
    }
    assert_nothing_left("blocks");
}

/* Overflows of a dynamic loss scale would make steps that update nothing. */
static void fp16_without_data_is_measured(void **state)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "fp16={\"enabled\":true}");
    fixture_set(&sets, "data.train=[]");
    fixture_set(&sets, "data.valid=[]");
    fixture_set(&sets, "run.eval_every=0");
    struct seen seen = {0};
    if (profile_it("fp16", &sets, (struct profile_options){.no_advice = true}, &seen) < 0)
        fail_msg("%s", err_text());
    assert_in_range(summary.steps, 3, 20);
    assert_measured(summary.steps);
    assert_true(summary.is_random_data);
    assert_nothing_left("fp16");
}

static void a_rank_is_measured_alone(void **state)
{
    fixture_sets sets = drive_sets();
    fixture_set(&sets, "model.num_layers=4");
    fixture_set(&sets, "zero_optimization.stage=3");
    fixture_set(&sets, "zero_optimization.stage3_param_persistence_threshold=0");
    job *asked = fixture_job_ranks("alone", &shape, &sets, 16);
    struct seen seen = {0};
    struct profile_options options = {.job = asked,
                                      .steps = STEPS,
                                      .as_rank = 11,
                                      .of_ranks = 16,
                                      .comm_bytes_per_second = 2e9,
                                      .no_advice = true,
                                      .on_plan = on_plan,
                                      .on_step = on_step,
                                      .user = &seen};
    uint64_t read_bytes[2];
    for (uint32_t i = 0; i < 2; i++) {
        seen = (struct seen){0};
        options.scale_down = i + 1;
        options.only_transfers = i == 1;
        assert_ok(profile_run(&options, &summary));
        assert_measured(STEPS);
        assert_int_equal(seen.plans, 1);
        assert_int_equal(summary.block_count_asked, 4);
        assert_int_equal(summary.block_count, 4 / (i + 1));
        assert_true(summary.comm_bytes_per_second == 2e9);
        assert_true(summary.lanes[LANE_COMM].measured_seconds >=
                    (double)summary.lanes[LANE_COMM].measured_bytes / 2e9);
        read_bytes[i] = summary.lanes[LANE_READ].measured_bytes;
        assert_nothing_left("alone");
    }
    assert_true(read_bytes[1] < read_bytes[0]);
    options.scale_down = 3; /* does not divide 4 */
    assert_int_equal(profile_run(&options, &summary), ERR_USAGE);
    options.as_rank = 16;
    assert_int_equal(profile_run(&options, &summary), ERR_USAGE);
    assert_nothing_left("alone");
    job_destroy(asked);
}

/* 16 tokens choose one of 24 experts each, so that a step hits 16 of a block at most. */
static void experts_are_counted(void **state)
{
    static const fixture_model mixture = {.family = "mixtral", .layers = 2, .hidden = 64};
    static const char *const more[] = {"num_experts=24", "num_experts_per_tok=1",
                                       "expert_ffn_size=16", "experts_per_unit=1", "seq_length=8"};
    fixture_sets sets = drive_sets();
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        fixture_set(&sets, "model.%s", more[i]);
    fixture_set(&sets, "train_micro_batch_size_per_gpu=1");
    fixture_set(&sets, "schedule.experts=hit");
    job *asked = fixture_job("experts", &mixture, &sets);
    struct profile_options options = {.job = asked, .steps = STEPS, .no_advice = true};
    assert_ok(profile_run(&options, &summary));
    job_destroy(asked);
    assert_true(fabs(summary.expert_passes - 2.0 * 2 * 24) < 1e-9); /* both ways, blocks */
    assert_true(fabs(summary.expert_passes - summary.plan.expert_passes) < 1e-9);
    assert_true(summary.expert_passes_hit > 0 && summary.expert_passes_hit <= 2.0 * 2 * 16);
    const struct profile_lane *copies = &summary.lanes[LANE_H2D];
    double all = (double)copies->predicted_bytes + (double)copies->predicted_spared_bytes;
    assert_true(copies->measured_spared_bytes > 0 && copies->predicted_spared_bytes > 0);
    assert_true(copies->measured_spared_bytes < all);
    assert_nothing_left("experts");
}

/* A rank that owns experts works without the other ranks. If it only moves bytes, it sends the rows
 * that the plan counts. */
static void ranks_that_own_experts_are_pretended(void **state)
{
    static const fixture_model mixture = {.family = "mixtral", .layers = 2, .hidden = 64};
    fixture_sets sets = drive_sets();
    fixture_set(&sets, "model.num_experts=4");
    fixture_set(&sets, "model.expert_parallel_size=2");
    fixture_set(&sets, "zero_optimization.stage=2");
    for (int only = 0; only < 2; only++) {
        job *asked = fixture_job_ranks("owned", &mixture, &sets, 2);
        struct profile_options options = {.job = asked,
                                          .steps = STEPS,
                                          .no_advice = true,
                                          .as_rank = 1,
                                          .of_ranks = 2,
                                          .comm_bytes_per_second = 1e7,
                                          .only_transfers = only};
        assert_ok(profile_run(&options, &summary));
        assert_int_equal(summary.plan.expert_parallel_size, 2);
        assert_true(summary.plan.expert_rows_bytes > 0);
        const struct profile_lane *sent = &summary.lanes[LANE_COMM];
        if (only) /* collectives take the time of the bytes that they are given */
            assert_true(sent->measured_seconds >= (double)sent->predicted_bytes / 1e7);
        job_destroy(asked);
    }
    assert_nothing_left("owned");
}

/* The advice depends on the machine, so only its form is asserted: sorted by gain, no gain too
 * small, no two changes alike. */
static void changes_are_simulated(void **state)
{
    fixture_sets sets = drive_sets();
    struct seen seen = {0};
    if (profile_it("advice", &sets, (struct profile_options){.steps = STEPS}, &seen) < 0)
        fail_msg("%s", err_text());
    assert_true(summary.calibrated_seconds > 0);
    assert_true(summary.tried_count > 10);
    assert_true(summary.advice_count <= PROFILE_ADVICE_MAX);
    for (uint32_t i = 0; i < summary.advice_count; i++) {
        const struct profile_advice *each = &summary.advice[i];
        assert_true(each->gain >= 0.02 && each->gain < 1);
        assert_true(each->step_seconds > 0);
        assert_true(strchr(each->text, '=') || strchr(each->text, '.'));
        assert_true(i == 0 || each->gain <= summary.advice[i - 1].gain);
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(each->text, summary.advice[j].text);
    }
    assert_nothing_left("advice");
    seen = (struct seen){0};
    if (profile_it("advice", &sets, (struct profile_options){.steps = 1, .no_advice = true},
                   &seen) < 0)
        fail_msg("%s", err_text());
    assert_int_equal(summary.tried_count, 0);
    assert_int_equal(summary.advice_count, 0);
}

static void ends_leave_nothing(void **state)
{
    fixture_sets sets = drive_sets();
    struct seen seen = {.stop_after = 3};
    struct profile_options options = {.steps = 50, .no_advice = true};
    assert_int_equal(profile_it("stopped", &sets, options, &seen), ERR_STOPPED);
    assert_int_equal(seen.steps, 3);
    assert_nothing_left("stopped");
    fixture_set(&sets, "tiers.host.budget=4KiB");
    seen = (struct seen){0};
    assert_int_equal(profile_it("small", &sets, options, &seen), ERR_NO_FIT);
    assert_int_equal(seen.plans, 0);
    assert_nothing_left("small");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steady_steps_are_measured),
        cmocka_unit_test(blocks_are_the_machines),
        cmocka_unit_test(fp16_without_data_is_measured),
        cmocka_unit_test(a_rank_is_measured_alone),
        cmocka_unit_test(experts_are_counted),
        cmocka_unit_test(ranks_that_own_experts_are_pretended),
        cmocka_unit_test(changes_are_simulated),
        cmocka_unit_test(ends_leave_nothing),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
