/* The engine's use of a GPU, observed through the simulated one. Once the engine runs, nothing is
 * allocated and no copy is pageable; a fault ends the run with its text; without a GPU the CPU
 * trains. */
#include "base/mem.h"
#include "engine/engine.h"
#include "setup/summary.h"
#include "swap/stream_plan.h"
#include "tests/simulated_gpu/simulated_gpu.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "train/train.h"

static const fixture_model shape = {.family = "llama", .bf16 = true, .layers = 2, .hidden = 64};
static simulated_gpu_counters early, late;
static uint64_t fault_step;

static void set_spread(fixture_sets *sets)
{
    memset(sets, 0, sizeof *sets);
    fixture_set(sets, "device.backend=cuda");
    fixture_set(sets, "tiers.place.params=host");
    fixture_set(sets, "tiers.place.grads=host");
    fixture_set(sets, "tiers.place.optimizer=nvme");
    fixture_set(sets, "tiers.place.activations=host");
    fixture_set(sets, "schedule.tile_elems=32768");
    fixture_set(sets, "run.steps=8");
}

static void note_step(uint64_t step)
{
    simulated_gpu_slow_products(0, 0); /* the trial is over */
    if (step == 3)
        simulated_gpu_get_counters(&early);
    if (step == 8)
        simulated_gpu_get_counters(&late);
    if (fault_step && step == fault_step)
        simulated_gpu_inject_fault(SIMULATED_FAULT_ANY, 40);
}

static void run(const char *name, const fixture_sets *sets, fixture_result *result)
{
    job *asked = fixture_job(name, &shape, sets);
    fixture_train(asked, &(fixture_call){.name = name, .on_step = note_step}, result);
    job_destroy(asked);
}

/* The driver's calls of steps 4 to 8, in which nothing is allocated. `kernels` leaves out work of
 * graphs. */
static simulated_gpu_counters calls_of(const char *name, const char *is_traced,
                                       const char *graph_bytes, fixture_result *result)
{
    fixture_sets sets;
    set_spread(&sets);
    fixture_set(&sets, "run.trace=%s", is_traced);
    fixture_set(&sets, "device.graph_bytes=%s", graph_bytes);
    run(name, &sets, result);
    if (result->rc < 0)
        fail_msg("%s", result->error);
    assert_true(late.kernels > early.kernels);
    assert_true(late.copies > early.copies);
    assert_int_equal(late.allocations, early.allocations);
    assert_int_equal(late.streams, early.streams);
    assert_int_equal(late.events, early.events);
    assert_int_equal(late.pageable_copies, early.pageable_copies);
    assert_int_equal(result->summary.sealed_alloc_count, 0);
    simulated_gpu_counters calls = {.kernels = late.kernels - early.kernels,
                                    .copies = late.copies - early.copies,
                                    .fills = late.fills - early.fills,
                                    .records = late.records - early.records,
                                    .timed_records = late.timed_records - early.timed_records,
                                    .waits = late.waits - early.waits,
                                    .host_functions = late.host_functions - early.host_functions,
                                    .graph_launches = late.graph_launches - early.graph_launches,
                                    .graph_nodes = late.graph_nodes - early.graph_nodes};
    uint64_t all = calls.kernels + calls.copies + calls.fills + calls.records + calls.waits +
                   calls.host_functions + calls.graph_launches;
    printf("%-12s per step: %llu calls: %llu kernels, %llu copies and fills, %llu records, "
           "%llu waits, %llu host functions, %llu graphs of %llu pieces\n",
           name, (unsigned long long)all / 5, (unsigned long long)calls.kernels / 5,
           (unsigned long long)(calls.copies + calls.fills) / 5,
           (unsigned long long)calls.records / 5, (unsigned long long)calls.waits / 5,
           (unsigned long long)calls.host_functions / 5,
           (unsigned long long)calls.graph_launches / 5, (unsigned long long)calls.graph_nodes / 5);
    return calls;
}

/* Counts the calls of one step by the plan of the steady program. */
static void plan_calls(stream_calls *calls)
{
    static const bool serves[LANE_COUNT] = {
        [LANE_H2D] = true, [LANE_D2H] = true, [LANE_COMPUTE] = true};
    stream_plan_config config = {.serves = serves};
    struct setup_options options = {0};
    struct setup *setup;
    stream_plan plan;
    fixture_sets sets;
    set_spread(&sets);
    job *asked = fixture_job("counted", &shape, &sets);
    assert_ok(setup_create(asked, &options, &setup));
    assert_ok(stream_plan_init(&plan, &setup->set.programs[PROGRAM_STEADY], &config));
    stream_plan_count(&plan, serves, ENGINE_GPU_DEPTH, false, calls);
    stream_plan_fini(&plan);
    setup_destroy(setup);
    job_destroy(asked);
}

/* Graphs and untimed events change no bit. The host functions and events are those that the plan
 * counts, and no timed event remains. */
static void a_step_takes_few_calls(void **state)
{
    static fixture_result whole, result;
    simulated_gpu_counters plain, calls;
    stream_calls planned;
    plain = calls_of("one-by-one", "true", "0", &whole);
    assert_int_equal(plain.graph_launches, 0);
    calls = calls_of("timed-graphs", "true", "64MiB", &result);
    fixture_assert_same(&whole, &result);
    assert_true(calls.graph_launches > 0);
    assert_int_equal(calls.kernels + calls.copies + calls.fills + calls.graph_nodes,
                     plain.kernels + plain.copies + plain.fills);
    assert_true(calls.kernels < plain.kernels / 2);
    calls = calls_of("graphs", "false", "64MiB", &result);
    fixture_assert_same(&whole, &result);
    assert_int_equal(calls.timed_records, 0);
    assert_true(fixture_exists(fixture_path("one-by-one", "trace.json")));
    assert_false(fixture_exists(fixture_path("graphs", "trace.json")));
    plan_calls(&planned);
    /* A machine on which nothing ends for seconds has each stream report once more. */
    uint64_t extra = calls.host_functions - 5 * planned.host_functions;
    assert_true(extra <= 6);
    assert_in_range(calls.records, 5 * planned.records, 5 * planned.records + extra);
    assert_true(calls.waits <= 5 * planned.waits + extra);
}

/* A run that is timed takes the fastest algorithms and keeps them when it goes on, though others
 * are faster by then. */
static void a_run_keeps_its_algorithms(void **state)
{
    static fixture_result whole, result;
    fixture_sets sets;
    set_spread(&sets);
    fixture_set(&sets, "device.products=timed");
    fixture_set(&sets, "run.steps=4");
    simulated_gpu_slow_products(2000, 0);
    run("timed", &sets, &whole);
    assert_int_equal(whole.rc, 0);
    for (int i = 0; i < 2; i++) {
        simulated_gpu_slow_products(i == 0 ? 2000 : 0, i == 0 ? 0 : 2000);
        fixture_call call = {.name = "kept", .stop_after = i == 0 ? 2 : 0, .on_step = note_step};
        fixture_run("kept", &shape, &sets, &call, &result);
        assert_int_equal(result.rc, i == 0 ? ERR_STOPPED : 0);
    }
    assert_int_equal(result.weights_hash, whole.weights_hash);
    simulated_gpu_slow_products(0, 2000);
    run("other", &sets, &result); /* the canary: another choice gives other bits */
    assert_int_equal(result.rc, 0);
    assert_true(result.weights_hash != whole.weights_hash);
}

/* The fault comes in the middle of step 4. The run ends with CUDA's words and does not hang. The
 * next start continues from the last commit and gives the bits of a run without a fault. */
static void a_fault_of_the_gpu_ends_the_run(void **state)
{
    static fixture_result whole, result;
    fixture_sets sets;
    set_spread(&sets);
    run("whole", &sets, &whole);
    assert_int_equal(whole.rc, 0);
    fault_step = 3;
    run("fault", &sets, &result);
    fault_step = 0;
    simulated_gpu_clear_fault();
    printf("%s\n", result.error);
    assert_int_equal(result.rc, ERR_BACKEND);
    assert_non_null(strstr(result.error, "cudaErrorIllegalAddress"));
    assert_non_null(strstr(result.error, "step 4"));
    run("fault", &sets, &result);
    if (result.rc < 0)
        fail_msg("%s", result.error);
    fixture_assert_same(&whole, &result);
}

static void without_a_gpu_the_cpu_trains(void **state)
{
    static fixture_result result, cpu;
    fixture_sets sets;
    simulated_gpu_set_absent(1);
    set_spread(&sets);
    run("absent", &sets, &result);
    printf("%s\n", result.error);
    assert_int_equal(result.rc, ERR_CONFIG);
    assert_non_null(strstr(result.error, "device.backend is \"cuda\""));
    set_spread(&sets);
    fixture_set(&sets, "device.backend=auto");
    run("auto", &sets, &result);
    assert_int_equal(result.rc, 0);
    set_spread(&sets);
    fixture_set(&sets, "device.backend=cpu");
    run("cpu", &sets, &cpu);
    fixture_assert_same(&cpu, &result);
    simulated_gpu_set_absent(0);
}

/* A smaller GPU than the job asks for, and one that other processes have filled. */
static void the_memory_that_is_free_decides(void **state)
{
    static fixture_result result;
    fixture_sets sets;
    simulated_gpu_set_total_bytes(UINT64_C(300) << 20);
    set_spread(&sets);
    fixture_set(&sets, "tiers.device.budget=64MiB");
    run("narrow", &sets, &result); /* 256 MiB stay for the libraries */
    simulated_gpu_set_total_bytes(UINT64_C(2) << 30);
    printf("%s\n", result.error);
    assert_int_equal(result.rc, ERR_NO_FIT);
    assert_non_null(strstr(result.error, "256.00 MiB stay"));
    simulated_gpu_set_total_bytes(UINT64_C(200) << 20);
    run("full", &sets, &result);
    simulated_gpu_set_total_bytes(UINT64_C(2) << 30);
    printf("%s\n", result.error);
    assert_int_equal(result.rc, ERR_NO_FIT);
    assert_non_null(strstr(result.error, "end what else uses this GPU"));
}

static void take_the_gpu(void *user, const struct setup_summary *plan)
{
    simulated_gpu_set_total_bytes(1 << 20);
}

/* Another process takes the GPU's memory after the plan was made. The run reports that and leaves
 * nothing on the GPU or in the run directory, and the next run trains. */
static void memory_lost_after_the_plan_is_refused(void **state)
{
    static fixture_result result;
    fixture_sets sets;
    set_spread(&sets);
    job *asked = fixture_job("lost", &shape, &sets);
    struct train_options options = {.job = asked, .on_plan = take_the_gpu};
    struct train_summary summary;
    mem_stats before, after;
    mem_get_stats(&before);
    int rc = train_run(&options, &summary);
    mem_get_stats(&after);
    simulated_gpu_set_total_bytes(UINT64_C(2) << 30);
    printf("%s\n", err_text());
    assert_error(rc, ERR_NO_FIT, "cannot reserve");
    assert_int_equal(after.live_bytes, before.live_bytes);
    job_destroy(asked);
    run("lost", &sets, &result);
    if (result.rc < 0)
        fail_msg("%s", result.error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_takes_few_calls),
        cmocka_unit_test(a_run_keeps_its_algorithms),
        cmocka_unit_test(without_a_gpu_the_cpu_trains),
        cmocka_unit_test(the_memory_that_is_free_decides),
        cmocka_unit_test(memory_lost_after_the_plan_is_refused),
        cmocka_unit_test(a_fault_of_the_gpu_ends_the_run), /* the last: it spoils the GPU */
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
