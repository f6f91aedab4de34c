/* Several ranks on a GPU, through train_run: forked ranks that share one GPU and exchange through the
 * host (staged), one rank on NCCL, and on the simulated GPU several ranks on NCCL's stand-in. Bits are
 * equal over the stages and placements, losses near those of one rank and of the CPU; a rank that is
 * killed ends all, and the run goes on; what ranks have trained can be sampled from; they share the
 * GPU's memory. Argument: a name from `groups` below. Exits with 77 where there is no GPU, or no NCCL
 * for what needs it.
 *
 * The test's own process makes no call of CUDA, which does not outlive a fork. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>
#include <signal.h>

#include "base/size.h"
#include "comm_fixture.h"
#include "tiers/device.h"
#include "train_fixture.h"

#ifdef GPU_RANKS_FAKE_NCCL
#include "fake_nccl/fake_nccl.h"
#endif

#ifdef SLUICE_SIMULATED_GPU
#include "simulated_gpu/simulated_gpu.h"
enum { IS_SIMULATED = 1 };
#else
enum { IS_SIMULATED = 0 };
#endif

enum { RANKS = 4, BATCH = 4, TEXT_BYTES = 64, KILL_STEP = 3, STEPS_FEW = 4 };

/* On the simulated GPU, or where SLUICE_TEST_FEW says that one is slow: fewer cases, of few steps. */
static bool is_few;

static fixture_model shape = {.family = "gpt2", .layers = 2, .hidden = 64};

/* ---- runs of forked ranks ---- */

/* What ranks and test tell each other. */
struct shared {
    fixture_result results[RANKS];
    atomic_uint step, is_killed;
    uint64_t late_allocations, late_pageable_copies; /* on the simulated GPU, behind 2 steps */
    char text[TEXT_BYTES];
    uint64_t gpu_count, total_bytes, budgets[RANKS + 1];
    int nccl_code;
    char reason[ERR_TEXT_BYTES];
};
static struct shared *shared;

struct run {
    const char *name;
    uint32_t world;
    bool is_spread; /* each rank on a host of its own */
    bool
        has_own; /* each rank sees a GPU of its own as the only one, as srun --gpus-per-task=1 does */
    bool kills;     /* rank 1, once rank 0 has done KILL_STEP */
    bool faults;    /* rank 0's simulated GPU, after KILL_STEP */
    bool keeps;     /* what the run leaves */
    const job *job; /* filled by train */
};

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
    shared->late_allocations = now.allocations - early.allocations;
    shared->late_pageable_copies = now.pageable_copies - early.pageable_copies;
#endif
    (void)step;
}

/* On rank 0. */
static void break_gpu(uint64_t step)
{
#ifdef SLUICE_SIMULATED_GPU
    if (step == KILL_STEP)
        simulated_gpu_inject_fault(SIMULATED_FAULT_ANY, 40);
#endif
    (void)step;
}

/* On rank 0, while rank 1 is to be killed. */
static void wait_for_the_end(uint64_t step)
{
    atomic_store(&shared->step, (unsigned)step);
    for (int i = 0; i < 10000 && step == KILL_STEP && !atomic_load(&shared->is_killed); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void kill_rank_1(void *user, const pid_t *pids, uint32_t world)
{
    (void)user;
    (void)world;
    if (atomic_load(&shared->step) < KILL_STEP || atomic_load(&shared->is_killed))
        return;
    kill(pids[1], SIGKILL);
    atomic_store(&shared->is_killed, 1);
}

static int train_body(comm *self, void *user)
{
    const struct run *run = user;
    fixture_result *result = &shared->results[comm_get_rank(self)];
    char bus[8];
    snprintf(bus, sizeof bus, "%u", 0x40 + comm_get_rank(self));
    if (run->has_own) /* of the simulated GPU */
        setenv("SLUICE_SIMULATED_GPU_BUS", bus, 1);
    fixture_call call = {.comm = self, .on_step = count_calls};
    if (run->kills || run->faults)
        call.on_step = run->kills ? wait_for_the_end : break_gpu;
    fixture_train(run->job, &call, result);
    return result->rc < 0 ? err_set(result->rc, "%s", result->error) : 0;
}

/* A step of all ranks has BATCH sequences, each a micro-batch. */
static comm_fixture train(struct run *run, const fixture_sets *asked, fixture_result *result)
{
    static const char *const hosts[RANKS] = {"alpha", "beta", "gamma", "delta"};
    comm_fixture ranks = {.world = run->world, .timeout_seconds = 60.0};
    ranks.limit_seconds = is_few && !IS_SIMULATED ? 400.0 : 110.0;
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
    fixture_set(&sets, "gradient_accumulation_steps=%u", BATCH / run->world);
    job *of_ranks = fixture_job_ranks(run->name, &shape, &sets, run->world);
    run->job = of_ranks;
    atomic_store(&shared->step, 0);
    atomic_store(&shared->is_killed, 0);
    shared->late_allocations = shared->late_pageable_copies = 0;
    comm_fixture_run(&ranks, train_body, run);
    job_destroy(of_ranks);
    run->job = NULL;
    *result = shared->results[0];
    return ranks;
}

static void train_good(struct run run, const fixture_sets *sets, fixture_result *result)
{
    comm_fixture ranks = train(&run, sets, result);
    comm_fixture_expect_ok(&ranks);
    assert_int_equal(result->summary.world_size, run.world);
    assert_int_equal(result->summary.sealed_alloc_count, 0);
    assert_int_equal(shared->late_allocations, 0);
    assert_int_equal(shared->late_pageable_copies, 0);
    fixture_read_steps(run.name, result);
    if (!run.keeps)
        fixture_remove(run.name);
}

static void begin_sets(fixture_sets *sets, const char *backend, unsigned stage)
{
    memset(sets, 0, sizeof *sets);
    fixture_set(sets, "device.backend=%s", backend);
    fixture_set(sets, "run.steps=%d", is_few ? STEPS_FEW : 20);
    fixture_set(sets, "zero_optimization.stage=%u", stage);
    fixture_set(sets, "zero_optimization.stage3_param_persistence_threshold=1000");
}

static void expect_near(const char *what, const fixture_result *got, const fixture_result *want,
                        double relative)
{
    assert_int_equal(got->step_count, want->step_count);
    for (uint64_t i = 0; i < got->step_count; i++)
        if (!(fabs(got->losses[i] - want->losses[i]) <= relative * fabs(want->losses[i])))
            fail_msg("%s, step %u: loss %.7f, expected %.7f", what, (unsigned)i + 1, got->losses[i],
                     want->losses[i]);
    printf("%s: last loss %.7f, expected %.7f\n", what, got->losses[got->step_count - 1],
           want->losses[got->step_count - 1]);
}

/* ---- stages ---- */

/* Losses of two backends part as those of tests/test_gpu_train.c do. */
static void stages_agree(void **state)
{
    (void)state;
    static fixture_result alone, first, result;
    fixture_sets sets;
    begin_sets(&sets, "cuda", 0);
    train_good((struct run){.name = "alone", .world = 1}, &sets, &alone);
    for (uint32_t world = 2; world <= 4; world += 2) {
        for (unsigned stage = 0; stage <= 3; stage++) {
            if (is_few && world == 4 && stage % 3 != 0)
                continue;
            begin_sets(&sets, "cuda", stage);
            train_good((struct run){.name = "ranks", .world = world}, &sets,
                       stage ? &result : &first);
            if (stage > 0)
                fixture_assert_same(&first, &result);
        }
        expect_near("ranks and one rank", &first, &alone, 1e-4);
    }
    begin_sets(&sets, "cpu", 3);
    train_good((struct run){.name = "cpu", .world = 4}, &sets, &result);
    expect_near("the GPU and the CPU", &first, &result, 2e-4);
}

/* An overflow skips the step on all ranks, and on none that one rank alone would not skip. */
static void overflows_skip_on_all(void **state)
{
    (void)state;
    static fixture_result alone, first, result;
    for (uint32_t i = 0; i < 3; i++) {
        fixture_sets sets;
        begin_sets(&sets, "cuda", i == 2 ? 3 : 0);
        fixture_set(&sets, "fp16.enabled=true");
        fixture_set(&sets, "fp16.initial_scale_power=20");
        fixture_set(&sets, "fp16.loss_scale_window=2");
        fixture_set(&sets, "fp16.hysteresis=1");
        fixture_set(&sets, "communication_data_type=fp32");
        train_good((struct run){.name = "halves", .world = i == 0 ? 1 : 2}, &sets,
                   i == 0   ? &alone
                   : i == 1 ? &first
                            : &result);
    }
    fixture_assert_same(&first, &result);
    assert_true(alone.skipped[0] && !alone.skipped[alone.step_count - 1]);
    for (uint64_t i = 0; i < alone.step_count; i++)
        assert_int_equal(first.skipped[i], alone.skipped[i]);
}

/* ---- placements ---- */

/* params, grads, optimizer, activations. */
static const struct placement {
    unsigned world, stage;
    const char *tiers[4], *order, *update, *tile_elems;
} placements[] = {
    {2, 3, {"device", "host", "host", "device"}, "layer_major", "in_next_forward", "32768"},
    {2, 3, {"nvme", "nvme", "nvme", "nvme"}, "layer_major", "in_next_forward", "16384"},
    {2, 2, {"host", "device", "device", "host"}, "batch_major", "after_backward", "0"},
    {2, 1, {"nvme", "host", "nvme", "host"}, "layer_major", "after_backward", "32768"},
    {2, 0, {"host", "host", "device", "device"}, "batch_major", "in_next_forward", "32768"},
};

static void place(fixture_sets *sets, const struct placement *to)
{
    static const char *const kinds[] = {"params", "grads", "optimizer", "activations"};
    for (int k = 0; k < 4; k++)
        fixture_set(sets, "tiers.place.%s=%s", kinds[k], to->tiers[k]);
    fixture_set(sets, "schedule.order=%s", to->order);
    fixture_set(sets, "schedule.update=%s", to->update);
    fixture_set(sets, "schedule.tile_elems=%s", to->tile_elems);
}

static void placements_agree(void **state)
{
    (void)state;
    static fixture_result first, result;
    static const char *const wires[] = {"bf16", "fp32"};
    fixture_sets sets;
    shape.bf16 = true;
    uint64_t hashes[2];
    for (int w = 0; w < 2; w++) {
        begin_sets(&sets, "cuda", 3);
        fixture_set(&sets, "communication_data_type=%s", wires[w]);
        train_good((struct run){.name = "first", .world = 2}, &sets, &first);
        hashes[w] = first.summary.weights_hash;
        size_t count = sizeof placements / sizeof placements[0];
        for (size_t i = w == 0 || !is_few ? 0 : count - 1; i < count; i++) {
            const struct placement *to = &placements[i];
            begin_sets(&sets, "cuda", to->stage);
            fixture_set(&sets, "communication_data_type=%s", wires[w]);
            place(&sets, to);
            printf("stage %u: %s %s %s %s, %s, %s\n", to->stage, to->tiers[0], to->tiers[1],
                   to->tiers[2], to->tiers[3], to->order, to->update);
            train_good((struct run){.name = "moved", .world = to->world}, &sets, &result);
            fixture_assert_same(&first, &result);
        }
    }
    assert_true(hashes[0] != hashes[1]); /* the canary: the wire changes bits */
}

/* ---- NCCL ---- */

/* One rank for which NCCL is asked has a communicator, and the bits of one without. */
static void one_rank_on_nccl_is_as_one_without(void **state)
{
    (void)state;
    static fixture_result alone, result;
    fixture_sets sets;
    begin_sets(&sets, "cuda", 0);
    train_good((struct run){.name = "alone", .world = 1}, &sets, &alone);
    for (unsigned stage = 0; stage <= 3; stage += 3) {
        begin_sets(&sets, "cuda", stage);
        fixture_set(&sets, "comm.backend=nccl");
        train_good((struct run){.name = "nccl", .world = 1}, &sets, &result);
        fixture_assert_same(&alone, &result);
    }
}

#ifdef GPU_RANKS_FAKE_NCCL
/* The stand-in's sums are in rank order, as ours are: in fp32 they have the same bits. */
static void ranks_on_nccl_are_as_staged_ones(void **state)
{
    (void)state;
    static fixture_result staged, result;
    fixture_sets sets;
    for (uint32_t world = 2; world <= 4; world += 2) {
        begin_sets(&sets, "cuda", 2);
        train_good((struct run){.name = "staged", .world = world}, &sets, &staged);
        for (unsigned stage = world == 2 ? 0 : 3; stage <= 3; stage++) {
            begin_sets(&sets, "cuda", stage);
            fixture_set(&sets, "comm.backend=%s", stage % 2 ? "nccl" : "auto");
            train_good((struct run){.name = "nccl", .world = world, .has_own = true}, &sets,
                       &result);
            fixture_assert_same(&staged, &result);
        }
    }
}

/* What NCCL holds is not the budget's. */
static void a_communicator_has_its_memory(void **state)
{
    (void)state;
    static fixture_result result;
    enum { HELD_MIB = 100, TOTAL_MIB = 700, KEPT_MIB = 256 };
    fixture_sets sets;
    begin_sets(&sets, "cuda", 3);
    fixture_set(&sets, "run.steps=1");
    fixture_set(&sets, "tiers.device.budget=auto");
    setenv("SLUICE_SIMULATED_GPU_TOTAL_MB", "700", 1);
    fake_nccl.held_bytes = HELD_MIB * MIB;
    train_good((struct run){.name = "nccl", .world = 2, .has_own = true}, &sets, &result);
    fake_nccl.held_bytes = 0;
    unsetenv("SLUICE_SIMULATED_GPU_TOTAL_MB");
    uint64_t budget = result.plan.budget_bytes[ARENA_DEVICE];
    printf("budget: %" PRIu64 " MiB\n", budget / MIB);
    assert_in_range(budget, (TOTAL_MIB - HELD_MIB - KEPT_MIB - 4) * MIB,
                    (TOTAL_MIB - HELD_MIB - KEPT_MIB) * MIB);
}

static void a_wire_of_16_bits_on_nccl(void **state)
{
    (void)state;
    static fixture_result first, result;
    fixture_sets sets;
    shape.bf16 = true;
    for (unsigned stage = 1; stage <= 3; stage += 2) {
        begin_sets(&sets, "cuda", stage);
        fixture_set(&sets, "comm.backend=nccl");
        if (stage == 3)
            place(&sets, &placements[0]);
        train_good((struct run){.name = "nccl", .world = 2, .is_spread = true}, &sets,
                   stage == 1 ? &first : &result);
    }
    fixture_assert_same(&first, &result);
    shape.bf16 = false;
}
#endif

/* ---- failures ---- */

static void expect_end(const comm_fixture *ranks, uint32_t rank, const char *part)
{
    printf("rank %u: %d, \"%s\", after %.1f s\n", rank, ranks->codes[rank], ranks->texts[rank],
           ranks->seconds[rank]);
    assert_true(ranks->codes[rank] < 0);
    assert_true(WIFEXITED(ranks->statuses[rank]) && WEXITSTATUS(ranks->statuses[rank]) == 1);
    assert_non_null(strstr(ranks->texts[rank], part));
}

/* Begun again, `run` gives the bits of the run that nothing happened to. */
static void fail_and_go_on(struct run run, unsigned stage, const char *backend)
{
    static fixture_result whole, result;
    fixture_sets sets;
    begin_sets(&sets, "cuda", stage);
    fixture_set(&sets, "comm.backend=%s", backend);
    fixture_set(&sets, "run.commit_every=2");
    struct run good = {.name = "whole", .world = run.world, .is_spread = run.is_spread};
    train_good(good, &sets, &whole);
    comm_fixture ranks = train(&run, &sets, &result);
    if (run.kills)
        assert_true(WIFSIGNALED(ranks.statuses[1]));
    else
        expect_end(&ranks, 1, "rank 0");
    expect_end(&ranks, 0, run.kills ? "rank 1" : "cudaErrorIllegalAddress");
    good.name = run.name;
    train_good(good, &sets, &result);
    assert_true(result.summary.was_resumed);
    fixture_assert_same(&whole, &result);
}

static void a_killed_rank_ends_all(void **state)
{
    (void)state;
    fail_and_go_on((struct run){.name = "ended", .world = 2, .kills = true}, 3, "staged");
#ifdef GPU_RANKS_FAKE_NCCL
    fail_and_go_on((struct run){.name = "ended", .world = 2, .is_spread = true, .kills = true}, 3,
                   "nccl");
#endif
}

#ifdef SLUICE_SIMULATED_GPU
static void a_gpu_that_fails_ends_all(void **state)
{
    (void)state;
    fail_and_go_on((struct run){.name = "ended", .world = 2, .faults = true}, 1, "staged");
#ifdef GPU_RANKS_FAKE_NCCL
    fail_and_go_on((struct run){.name = "ended", .world = 2, .is_spread = true, .faults = true}, 1,
                   "nccl");
#endif
}
#endif

/* ---- sampling ---- */

static int take_text(void *user, const char *bytes, uint64_t count)
{
    uint64_t *taken = user;
    for (uint64_t i = 0; i < count && *taken < TEXT_BYTES; i++)
        shared->text[(*taken)++] = bytes[i];
    return 0;
}

static int sample_body(comm *self, void *user)
{
    (void)self;
    uint64_t taken = 0;
    struct generate_options asked = {.run_dir = user,
                                     .prompt = "abc",
                                     .prompt_bytes = 3,
                                     .token_count = 12,
                                     .temperature = 1.0,
                                     .seed = 5,
                                     .on_token = take_text,
                                     .user = &taken};
    memset(shared->text, 0, TEXT_BYTES);
    TRY(generate_run(&asked));
    return taken == 15 ? 0 : err_set(ERR_INTERNAL, "%d bytes", (int)taken);
}

static void sample(const char *name, uint32_t world, char text[TEXT_BYTES])
{
    char dir[FIXTURE_PATH_BYTES];
    static struct inspect_summary seen;
    snprintf(dir, sizeof dir, "%s", fixture_path(name, NULL));
    assert_int_equal(inspect_run(dir, &seen), 0);
    assert_int_equal(seen.world_size, world);
    inspect_fini(&seen);
    comm_fixture one = {.world = 1};
    comm_fixture_run(&one, sample_body, dir);
    comm_fixture_expect_ok(&one);
    memcpy(text, shared->text, TEXT_BYTES);
}

/* From the state of two ranks, and from the same state once it is one rank's. */
static void what_ranks_trained_is_sampled(void **state)
{
    (void)state;
    static fixture_result result;
    static const char *const homes[] = {"device", "host", "nvme"};
    char of_ranks[TEXT_BYTES], of_one[TEXT_BYTES];
    fixture_sets sets;
    shape.bf16 = true;
    for (unsigned i = 0; i < 3; i++) {
        begin_sets(&sets, "cuda", i == 0 ? 3 : i - 1); /* 3, 0, 1 */
        fixture_set(&sets, "run.steps=2");
        fixture_set(&sets, "model.vocab_size=256");
        fixture_set(&sets, "tiers.place.params=%s", homes[i]);
        train_good((struct run){.name = "sampled", .world = 2, .keeps = true}, &sets, &result);
        sample("sampled", 2, of_ranks);
        train_good((struct run){.name = "sampled", .world = 1, .keeps = true}, &sets, &result);
        assert_true(result.summary.was_resumed);
        sample("sampled", 1, of_one);
        assert_memory_equal(of_ranks, of_one, TEXT_BYTES);
        fixture_remove("sampled");
    }
}

/* ---- memory ---- */

static int plan_body(comm *self, void *user)
{
    const job *const *jobs = user;
    struct plan_summary plan;
    (void)self;
    for (uint32_t world = 1; world <= RANKS; world *= 2) {
        TRY(train_plan(jobs[world], 0, &plan));
        shared->budgets[world] = plan.budget_bytes[ARENA_DEVICE];
    }
    int rc = train_plan(jobs[0], 0, &plan);
    snprintf(shared->reason, sizeof shared->reason, "%s", rc < 0 ? err_text() : "");
    return rc == ERR_NO_FIT ? 0 : err_set(ERR_INTERNAL, "code %d: %s", rc, shared->reason);
}

/* Each has its part of what is free, less what CUDA's libraries may take. jobs[0] asks for more. */
static void ranks_share_the_memory(void **state)
{
    (void)state;
    job *jobs[RANKS + 1] = {NULL};
    uint64_t kept = (IS_SIMULATED ? 256 : 512) * MIB; /* of each; other tests use a real GPU too */
    fixture_sets sets;
    for (uint32_t world = 0; world <= RANKS; world = world ? 2 * world : 1) {
        begin_sets(&sets, "cuda", 3);
        fixture_set(&sets, "tiers.device.budget=%s", world ? "auto" : "4TiB");
        fixture_set(&sets, "train_micro_batch_size_per_gpu=1");
        jobs[world] = fixture_job_ranks("planned", &shape, &sets, world ? world : RANKS);
    }
    comm_fixture one = {.world = 1};
    comm_fixture_run(&one, plan_body, jobs);
    comm_fixture_expect_ok(&one);
    for (uint32_t world = 0; world <= RANKS; world++)
        job_destroy(jobs[world]);
    for (uint32_t world = 1; world <= RANKS; world *= 2) {
        uint64_t all = world * shared->budgets[world];
        printf("%u ranks: %" PRIu64 " MiB each, of %" PRIu64 " MiB\n", world,
               shared->budgets[world] / MIB, shared->total_bytes / MIB);
        assert_true(all <= shared->total_bytes);
        assert_true(all + world * kept >= shared->budgets[1] / 10 * 9);
    }
    printf("%s\n", shared->reason);
    assert_non_null(strstr(shared->reason, "tiers.device.budget is 4.00 TiB"));
    assert_non_null(strstr(shared->reason, " free for each of the 4 ranks that share it"));
}

/* What is asked for by name is had, or refused by all. */
static void collectives_of_gpus_are_refused_on_the_cpu(void **state)
{
    (void)state;
    static fixture_result result;
    static const char *const backends[] = {"nccl", "staged"};
    for (int i = 0; i < 2; i++) {
        fixture_sets sets;
        begin_sets(&sets, "cpu", 3);
        fixture_set(&sets, "comm.backend=%s", backends[i]);
        struct run run = {.name = "refused", .world = 2};
        comm_fixture ranks = train(&run, &sets, &result);
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(ranks.codes[r], ERR_CONFIG);
            assert_non_null(strstr(ranks.texts[r], "comm.backend is \""));
            assert_non_null(strstr(ranks.texts[r], backends[i]));
        }
        assert_false(fixture_exists(fixture_path("refused", "state")));
    }
}

/* ---- which tests ---- */

static int look_body(comm *self, void *user)
{
    (void)self;
    (void)user;
    char text[DEVICE_TEXT_BYTES];
    device *gpu;
    shared->gpu_count = device_count(text);
    snprintf(shared->reason, sizeof shared->reason, "%s", text);
    if (shared->gpu_count == 0)
        return 0;
    TRY(device_open(0, &gpu));
    shared->total_bytes = device_get_info(gpu)->total_bytes;
    device_close(gpu);
    shared->nccl_code = comm_nccl_check();
    if (shared->nccl_code < 0)
        snprintf(shared->reason, sizeof shared->reason, "%s", err_text());
    return 0;
}

static const struct group {
    const char *name;
    bool needs_nccl;
    struct CMUnitTest tests[3];
    size_t count;
} groups[] = {
    {"stages", false, {cmocka_unit_test(stages_agree), cmocka_unit_test(overflows_skip_on_all)}, 2},
    {"placements", false, {cmocka_unit_test(placements_agree)}, 1},
    {"one-on-nccl", true, {cmocka_unit_test(one_rank_on_nccl_is_as_one_without)}, 1},
#ifdef GPU_RANKS_FAKE_NCCL
    {"nccl",
     true,
     {cmocka_unit_test(ranks_on_nccl_are_as_staged_ones),
      cmocka_unit_test(a_wire_of_16_bits_on_nccl), cmocka_unit_test(a_communicator_has_its_memory)},
     3},
#endif
    {"killed", false, {cmocka_unit_test(a_killed_rank_ends_all)}, 1},
#ifdef SLUICE_SIMULATED_GPU
    {"broken", false, {cmocka_unit_test(a_gpu_that_fails_ends_all)}, 1},
#endif
    {"sampled", false, {cmocka_unit_test(what_ranks_trained_is_sampled)}, 1},
    {"memory",
     false,
     {cmocka_unit_test(ranks_share_the_memory),
      cmocka_unit_test(collectives_of_gpus_are_refused_on_the_cpu)},
     2},
};

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "stages";
    unsetenv("SLUICE_TEST_BACKEND"); /* jobs here say it, and the fixture would look for a GPU */
    is_few = IS_SIMULATED || getenv("SLUICE_TEST_FEW") != NULL;
    shared = comm_fixture_shared(sizeof *shared);
    comm_fixture one = {.world = 1};
    comm_fixture_run(&one, look_body, NULL);
    comm_fixture_expect_ok(&one);
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        const struct group *group = &groups[g];
        if (strcmp(group->name, name) != 0)
            continue;
        if (shared->gpu_count == 0 || (group->needs_nccl && shared->nccl_code < 0)) {
            printf("skipped: %s\n", shared->reason);
            return 77;
        }
        return _cmocka_run_group_tests(name, group->tests, group->count, fixture_setup,
                                       fixture_teardown);
    }
    printf("there are no tests \"%s\"\n", name);
    return 1;
}
