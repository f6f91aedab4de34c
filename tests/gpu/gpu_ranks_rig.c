/* See gpu_ranks_rig.h. */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/gpu/gpu_ranks_rig.h"
#include "tests/unit.h"

#ifdef GPU_RANKS_FAKE_NCCL
#include "tests/fake_nccl/fake_nccl.h"
#endif

#ifdef SLUICE_SIMULATED_GPU
#include "tests/simulated_gpu/simulated_gpu.h"
#endif

bool gpu_ranks_are_few;
fixture_model gpu_ranks_shape = {.family = "gpt2", .layers = 2, .hidden = 64};
struct gpu_ranks_shared *gpu_ranks_shared;

/* On rank 0. */
static void count_calls(uint64_t step)
{
#ifdef SLUICE_SIMULATED_GPU
    static simulated_gpu_counters early;
    static unsigned calls;
    simulated_gpu_counters now;
    simulated_gpu_get_counters(&now);
    if (calls++ < 2)
        early = now;
    gpu_ranks_shared->late_allocations = now.allocations - early.allocations;
    gpu_ranks_shared->late_pageable_copies = now.pageable_copies - early.pageable_copies;
    gpu_ranks_shared->late_row_copies = now.row_copies - early.row_copies;
#endif
}

/* On rank 0. */
static void break_gpu(uint64_t step)
{
#ifdef SLUICE_SIMULATED_GPU
    if (step == GPU_RANKS_KILL_STEP)
        simulated_gpu_inject_fault(SIMULATED_FAULT_ANY, 40);
#endif
}

/* On rank 0, while rank 1 is to be killed. */
static void wait_for_the_end(uint64_t step)
{
    atomic_store(&gpu_ranks_shared->step, (unsigned)step);
    for (int i = 0;
         i < 10000 && step == GPU_RANKS_KILL_STEP && !atomic_load(&gpu_ranks_shared->is_killed);
         i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void kill_rank_1(void *user, const pid_t *pids, uint32_t world)
{
    if (atomic_load(&gpu_ranks_shared->step) < GPU_RANKS_KILL_STEP ||
        atomic_load(&gpu_ranks_shared->is_killed))
        return;
    kill(pids[1], SIGKILL);
    atomic_store(&gpu_ranks_shared->is_killed, 1);
}

static int train_body(comm *self, void *user)
{
    const struct gpu_ranks_run *run = user;
    fixture_result *result = &gpu_ranks_shared->results[comm_get_rank(self)];
    char bus[8];
    snprintf(bus, sizeof bus, "%u", 0x40 + comm_get_rank(self));
    if (run->has_own) /* of the simulated GPU */
        setenv("SLUICE_SIMULATED_GPU_BUS", bus, 1);
#ifdef GPU_RANKS_FAKE_NCCL
    fake_nccl.deadly_rows = comm_get_rank(self) == 1 ? run->deadly_rows : 0;
#endif
    fixture_call call = {
        .comm = self, .on_step = count_calls, .norm_part_bytes = run->norm_part_bytes};
    if (run->kills || run->faults)
        call.on_step = run->kills ? wait_for_the_end : break_gpu;
    fixture_train(run->job, &call, result);
    return result->rc < 0 ? err_set(result->rc, "%s", result->error) : 0;
}

comm_fixture gpu_ranks_train(struct gpu_ranks_run *run, const fixture_sets *asked,
                             fixture_result *result)
{
    static const char *const hosts[GPU_RANKS_MAX] = {"alpha", "beta", "gamma", "delta"};
    comm_fixture ranks = {.world = run->world, .timeout_seconds = 60.0};
    ranks.limit_seconds = gpu_ranks_are_few && !GPU_RANKS_IS_SIMULATED ? 400.0 : 110.0;
    for (uint32_t r = 0; run->is_spread && r < run->world; r++)
        ranks.hosts[r] = hosts[r];
    ranks.watch = run->kills ? kill_rank_1 : NULL;
#ifdef GPU_RANKS_FAKE_NCCL
    fake_nccl.shared = comm_fixture_shared(sizeof *fake_nccl.shared);
    fake_nccl.questions = 1;
#endif
    fixture_sets sets = *asked;
    fixture_set(&sets, "device.threads=1");
    fixture_set(&sets, "train_micro_batch_size_per_gpu=1");
    fixture_set(&sets, "gradient_accumulation_steps=%u", GPU_RANKS_BATCH / run->world);
    job *of_ranks = fixture_job_ranks(run->name, &gpu_ranks_shape, &sets, run->world);
    run->job = of_ranks;
    atomic_store(&gpu_ranks_shared->step, 0);
    atomic_store(&gpu_ranks_shared->is_killed, 0);
    gpu_ranks_shared->late_allocations = gpu_ranks_shared->late_pageable_copies = 0;
    gpu_ranks_shared->late_row_copies = 0;
    comm_fixture_run(&ranks, train_body, run);
    job_destroy(of_ranks);
    run->job = NULL;
    *result = gpu_ranks_shared->results[0];
    return ranks;
}

void gpu_ranks_train_good(struct gpu_ranks_run run, const fixture_sets *sets,
                          fixture_result *result)
{
    comm_fixture ranks = gpu_ranks_train(&run, sets, result);
    comm_fixture_expect_ok(&ranks);
    assert_int_equal(result->summary.world_size, run.world);
    assert_int_equal(result->summary.sealed_alloc_count, 0);
    assert_int_equal(gpu_ranks_shared->late_allocations, 0);
    assert_int_equal(gpu_ranks_shared->late_pageable_copies, 0);
    fixture_read_steps(run.name, result);
    if (!run.keeps)
        fixture_remove(run.name);
}

void gpu_ranks_sets(fixture_sets *sets, const char *backend, unsigned stage)
{
    memset(sets, 0, sizeof *sets);
    fixture_set(sets, "device.backend=%s", backend);
    fixture_set(sets, "run.steps=%d", gpu_ranks_are_few ? GPU_RANKS_STEPS_FEW : 20);
    fixture_set(sets, "zero_optimization.stage=%u", stage);
    fixture_set(sets, "zero_optimization.stage3_param_persistence_threshold=1000");
}

static void expect_end(const comm_fixture *ranks, uint32_t rank, const char *part)
{
    printf("rank %u: %d, \"%s\", after %.1f s\n", rank, ranks->codes[rank], ranks->texts[rank],
           ranks->seconds[rank]);
    assert_true(ranks->codes[rank] < 0);
    assert_true(WIFEXITED(ranks->statuses[rank]) && WEXITSTATUS(ranks->statuses[rank]) == 1);
    assert_non_null(strstr(ranks->texts[rank], part));
}

void gpu_ranks_fail(struct gpu_ranks_run run, fixture_sets *sets)
{
    static fixture_result whole, result;
    fixture_set(sets,
                "run.commit_every=1"); /* the state of step 1 is durable by GPU_RANKS_KILL_STEP */
    struct gpu_ranks_run good = {
        .name = "whole", .world = run.world, .is_spread = run.is_spread, .has_own = run.has_own};
    gpu_ranks_train_good(good, sets, &whole);
    comm_fixture ranks = gpu_ranks_train(&run, sets, &result);
    if (run.faults)
        expect_end(&ranks, 1, "rank 0");
    else
        assert_true(WIFSIGNALED(ranks.statuses[1]));
    expect_end(&ranks, 0, run.faults ? "cudaErrorIllegalAddress" : "rank 1");
    good.name = run.name;
    gpu_ranks_train_good(good, sets, &result);
    assert_true(result.summary.was_resumed);
    fixture_assert_same(&whole, &result);
}
