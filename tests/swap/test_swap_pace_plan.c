/* The compiler's prediction for a step holds for the executor on lanes of the same speeds: compiled
 * jobs of one rank and of several run on paced lanes without work. The result is a ratio to the
 * predicted length, the best of several tries, since the machine has other work. */
#include "swap/executor.h"
#include "tests/plan/plan_fixture.h"
#include "tests/swap/lane_pace.h"
#include "tests/unit.h"

enum { TRIES = 4, RUNS = 12 };

/* A step may be faster than predicted: the compiler gives memory away in the order of the step, the
 * executor waits for nothing but what it takes over. Seldom by more than a twentieth. */
static const double fastest = 0.75, slowest = 1.15;

static const double shortest_ns = 1e8, longest_ns = 4e8; /* of a step that is run */

/* The same machine, so many times slower: ops become longer than threads are late. */
static void slow_down(plan_machine *machine, double times)
{
    machine->drive_read_bytes_per_second /= times;
    machine->drive_write_bytes_per_second /= times;
    machine->h2d_bytes_per_second /= times;
    machine->d2h_bytes_per_second /= times;
    machine->comm_bytes_per_second /= times;
    machine->dram_bytes_per_second /= times;
    machine->device_flops_per_second /= times;
    machine->device_bytes_per_second /= times;
    machine->core_count /= times;
    machine->op_seconds = 2e-4;
    machine->comm_seconds = 5e-4;
    machine->sync_seconds = 5e-3;
}

/* The shortest of several runs, in relation to what is predicted. */
static double measure(const program *prog, const plan_machine *machine)
{
    lane_pace_config config = {
        .rates = pace_rates_of(machine), .programs = &prog, .program_count = 1};
    lane_pace *pace;
    executor_config run = {.programs = &prog, .program_count = 1};
    assert_int_equal(lane_pace_create(&config, &pace), 0);
    for (int kind = 0; kind < LANE_COUNT; kind++)
        assert_int_equal(lane_pace_wrap(pace, NULL, &run.lanes[kind]), 0);
    executor *exec;
    assert_int_equal(executor_create(&run, &exec), 0);
    double best = 1e9;
    for (int i = 0; i < TRIES && best > 1.1; i++) {
        run_totals totals;
        assert_ok(executor_run(exec, prog, 1, &totals));
        double ratio = (double)(totals.end_ns - totals.start_ns) / (double)prog->predicted_ns;
        best = ratio < best ? ratio : best;
    }
    executor_destroy(exec);
    for (int kind = 0; kind < LANE_COUNT; kind++)
        run.lanes[kind]->ops->destroy(run.lanes[kind]);
    lane_pace_destroy(pace);
    return best;
}

static void steps_take_what_was_predicted(void **state)
{
    uint32_t runs = 0;
    for (uint64_t seed = 1; seed <= 200 && runs < RUNS; seed++) {
        random_job r;
        uint32_t world = seed % 4 == 0 ? 1 : 4;
        fixture_ranks(&r, seed, world, (uint32_t)(seed % 4));
        slow_down(&r.job.machine, 16);
        plan_set set;
        if (plan_compile(&r.job, &set) != 0)
            continue;
        const program *prog = &set.programs[PROGRAM_STEADY];
        double predicted_ns = (double)prog->predicted_ns;
        if (predicted_ns > shortest_ns && predicted_ns < longest_ns) {
            double ratio = measure(prog, &r.job.machine);
            printf("seed %d: %u ranks, %d ops, %.1f ms predicted, %.3f of it measured\n", (int)seed,
                   world, (int)prog->op_count, predicted_ns * 1e-6, ratio);
            assert_true(ratio > fastest && (ratio < slowest || !getenv("SLUICE_TEST_TIMES")));
            runs++;
        }
        plan_set_fini(&set);
    }
    assert_int_equal(runs, RUNS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_take_what_was_predicted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
