/* The engine's use of a GPU, observed through the simulated one. Once the engine runs, nothing is
 * allocated and no copy is pageable; a fault ends the run with its text; without a GPU the CPU
 * trains. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "setup/summary.h"
#include "tests/simulated_gpu/simulated_gpu.h"
#include "train/train.h"
#include "tests/train/train_fixture.h"

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

static void nothing_is_allocated_while_it_runs(void **state)
{
    (void)state;
    static fixture_result result;
    fixture_sets sets;
    set_spread(&sets);
    run("sealed", &sets, &result);
    if (result.rc < 0)
        fail_msg("%s", result.error);
    assert_true(late.kernels > early.kernels);
    assert_true(late.copies > early.copies);
    assert_int_equal(late.allocations, early.allocations);
    assert_int_equal(late.streams, early.streams);
    assert_int_equal(late.events, early.events);
    assert_int_equal(late.pageable_copies, early.pageable_copies);
    assert_int_equal(result.summary.sealed_alloc_count, 0);
}

/* The fault comes in the middle of step 4. The run ends with CUDA's words and does not hang. The
 * next start continues from the last commit and gives the bits of a run without a fault. */
static void a_fault_of_the_gpu_ends_the_run(void **state)
{
    (void)state;
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
    (void)state;
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
    (void)state;
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
    (void)user, (void)plan;
    simulated_gpu_set_total_bytes(1 << 20);
}

/* Another process takes the GPU's memory after the plan was made. The run reports that and leaves
 * nothing on the GPU or in the run directory, and the next run trains. */
static void memory_lost_after_the_plan_is_refused(void **state)
{
    (void)state;
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
    assert_int_equal(rc, ERR_NO_FIT);
    assert_non_null(strstr(err_text(), "cannot reserve"));
    assert_int_equal(after.live_bytes, before.live_bytes);
    job_destroy(asked);
    run("lost", &sets, &result);
    if (result.rc < 0)
        fail_msg("%s", result.error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_allocated_while_it_runs),
        cmocka_unit_test(without_a_gpu_the_cpu_trains),
        cmocka_unit_test(the_memory_that_is_free_decides),
        cmocka_unit_test(memory_lost_after_the_plan_is_refused),
        cmocka_unit_test(a_fault_of_the_gpu_ends_the_run), /* the last: it spoils the GPU */
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
