/* Several ranks on a GPU, through train_run: forked ranks that share one GPU and exchange through
 * the host (staged), one rank on NCCL, and on the simulated GPU several ranks on NCCL's stand-in.
 * Bits are equal over the stages and placements, losses near those of one rank and of the CPU; a
 * rank that is killed ends all, and the run goes on; what ranks have trained can be sampled from;
 * they share the GPU's memory. Argument: a name from `groups` below. Exits with 77 where there is
 * no GPU, or no NCCL for what needs it.
 *
 * The test's own process makes no call of CUDA, which does not outlive a fork. */
#include <inttypes.h>
#include <math.h>

#include "base/size.h"
#include "infer/infer.h"
#include "setup/summary.h"
#include "state/verify.h"
#include "tests/gpu/gpu_ranks_rig.h"
#include "tests/unit.h"
#include "tiers/device.h"

#ifdef GPU_RANKS_FAKE_NCCL
#include "tests/fake_nccl/fake_nccl.h"
#endif

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

/* Losses of two backends may differ as far as in tests/gpu/test_gpu_train.c. */
static void stages_agree(void **state)
{
    static fixture_result alone, first, result;
    fixture_sets sets;
    gpu_ranks_sets(&sets, "cuda", 0);
    gpu_ranks_train_good((struct gpu_ranks_run){.name = "alone", .world = 1}, &sets, &alone);
    for (uint32_t world = 2; world <= 4; world += 2) {
        const unsigned begin = gpu_ranks_are_few && world == 4 ? 3 : 0;
        for (unsigned stage = begin; stage <= 3; stage++) {
            gpu_ranks_sets(&sets, "cuda", stage);
            struct gpu_ranks_run run = {.name = "ranks", .world = world};
            run.norm_part_bytes = stage % 2; /* the norm unit by unit, or at once */
            gpu_ranks_train_good(run, &sets, stage > begin ? &result : &first);
            if (stage > begin)
                fixture_assert_same(&first, &result);
        }
        expect_near("ranks and one rank", &first, &alone, 1e-4);
    }
    gpu_ranks_sets(&sets, "cpu", 3);
    gpu_ranks_train_good((struct gpu_ranks_run){.name = "cpu", .world = 4}, &sets, &result);
    expect_near("the GPU and the CPU", &first, &result, 2e-4);
}

/* An overflow skips the step on all ranks, and on none that one rank alone would not skip. */
static void overflows_skip_on_all(void **state)
{
    static fixture_result alone, first, result;
    for (uint32_t i = 0; i < 3; i++) {
        fixture_sets sets;
        gpu_ranks_sets(&sets, "cuda", i == 2 ? 3 : 0);
        fixture_set(&sets, "fp16.enabled=true");
        fixture_set(&sets, "fp16.initial_scale_power=20");
        fixture_set(&sets, "fp16.loss_scale_window=2");
        fixture_set(&sets, "fp16.hysteresis=1");
        fixture_set(&sets, "communication_data_type=fp32");
        gpu_ranks_train_good((struct gpu_ranks_run){.name = "halves", .world = i == 0 ? 1 : 2},
                             &sets,
                             i == 0   ? &alone
                             : i == 1 ? &first
                                      : &result);
    }
    fixture_assert_same(&first, &result);
    assert_true(alone.skipped[0] && !alone.skipped[alone.step_count - 1]);
    for (uint64_t i = 0; i < alone.step_count; i++)
        assert_int_equal(first.skipped[i], alone.skipped[i]);
}

/* ---- experts ---- */

/* 16 tokens of all ranks choose one of 24 experts each. An expert that none of them chose stays,
 * and the bits are those of the run that gathers all. */
static void try_experts(const char *params, const char *order)
{
    static fixture_result results[2];
    static const char *const sizes[] = {"num_experts=24", "num_experts_per_tok=1",
                                        "expert_ffn_size=16", "experts_per_unit=1", "seq_length=4"};
    const fixture_model before = gpu_ranks_shape;
    gpu_ranks_shape = (fixture_model){.family = "mixtral", .bf16 = true, .layers = 2, .hidden = 64};
    for (int i = 0; i < 2; i++) {
        fixture_sets sets;
        gpu_ranks_sets(&sets, "cuda", 3);
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
            fixture_set(&sets, "model.%s", sizes[k]);
        fixture_set(&sets, "schedule.order=%s", order);
        fixture_set(&sets, "schedule.experts=%s", i == 0 ? "all" : "hit");
        fixture_set(&sets, "tiers.place.params=%s", params);
        gpu_ranks_train_good((struct gpu_ranks_run){.name = "experts", .world = 2}, &sets,
                             &results[i]);
    }
    gpu_ranks_shape = before;
    fixture_assert_same(&results[0], &results[1]);
    const metrics_lane *lanes = results[1].summary.lanes;
    assert_true(lanes[LANE_COMM].spared_bytes > 0);
    assert_true((lanes[LANE_H2D].spared_bytes > 0) == (strcmp(params, "host") == 0));
    printf("%s: %" PRIu64 " bytes not sent\n", params, lanes[LANE_COMM].spared_bytes);
}

static void experts_of_no_rank_stay(void **state)
{
    try_experts("host", "layer_major");
    try_experts("device", "batch_major");
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
    {2, 3, {"host", "host", "host", "device"}, "batch_major", "in_next_forward", "32768"},
    {2, 1, {"nvme", "host", "nvme", "host"}, "layer_major", "after_backward", "32768"},
    {2, 0, {"host", "host", "device", "device"}, "layer_major", "in_next_forward", "32768"},
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
    static fixture_result first, first_by_batch, result;
    static const char *const wires[] = {"bf16", "fp32"};
    fixture_sets sets;
    gpu_ranks_shape.bf16 = true;
    uint64_t hashes[2];
    for (int w = 0; w < 2; w++) {
        gpu_ranks_sets(&sets, "cuda", 3);
        fixture_set(&sets, "communication_data_type=%s", wires[w]);
        gpu_ranks_train_good((struct gpu_ranks_run){.name = "first", .world = 2}, &sets, &first);
        hashes[w] = first.weights_hash;
        bool has_batch = false; /* several ranks give other bits in the other order */
        size_t count = sizeof placements / sizeof placements[0];
        for (size_t i = w == 0 || !gpu_ranks_are_few ? 0 : count - 1; i < count; i++) {
            const struct placement *to = &placements[i];
            gpu_ranks_sets(&sets, "cuda", to->stage);
            fixture_set(&sets, "communication_data_type=%s", wires[w]);
            place(&sets, to);
            printf("stage %u: %s %s %s %s, %s, %s\n", to->stage, to->tiers[0], to->tiers[1],
                   to->tiers[2], to->tiers[3], to->order, to->update);
            bool is_batch = strcmp(to->order, "batch_major") == 0;
            gpu_ranks_train_good((struct gpu_ranks_run){.name = "moved", .world = to->world}, &sets,
                                 is_batch && !has_batch ? &first_by_batch : &result);
            if (!is_batch || has_batch)
                fixture_assert_same(is_batch ? &first_by_batch : &first, &result);
            has_batch = has_batch || is_batch;
        }
    }
    assert_true(hashes[0] != hashes[1]); /* the canary: the wire changes bits */
}

/* ---- NCCL ---- */

/* One rank for which NCCL is asked has a communicator, and the bits of one without. */
static void one_rank_on_nccl_is_as_one_without(void **state)
{
    static fixture_result alone, result;
    fixture_sets sets;
    gpu_ranks_sets(&sets, "cuda", 0);
    gpu_ranks_train_good((struct gpu_ranks_run){.name = "alone", .world = 1}, &sets, &alone);
    for (unsigned stage = 0; stage <= 3; stage += 3) {
        gpu_ranks_sets(&sets, "cuda", stage);
        fixture_set(&sets, "comm.backend=nccl");
        gpu_ranks_train_good((struct gpu_ranks_run){.name = "nccl", .world = 1}, &sets, &result);
        fixture_assert_same(&alone, &result);
    }
}

#ifdef GPU_RANKS_FAKE_NCCL
/* The stand-in adds in rank order, like the staged backend. In fp32 both give the same bits. */
static void ranks_on_nccl_are_as_staged_ones(void **state)
{
    static fixture_result staged, result;
    fixture_sets sets;
    for (uint32_t world = 2; world <= 4; world += 2) {
        gpu_ranks_sets(&sets, "cuda", 2);
        gpu_ranks_train_good((struct gpu_ranks_run){.name = "staged", .world = world}, &sets,
                             &staged);
        for (unsigned stage = world == 2 ? 0 : 3; stage <= 3; stage++) {
            gpu_ranks_sets(&sets, "cuda", stage);
            fixture_set(&sets, "comm.backend=%s", stage % 2 ? "nccl" : "auto");
            gpu_ranks_train_good(
                (struct gpu_ranks_run){.name = "nccl", .world = world, .has_own = true}, &sets,
                &result);
            fixture_assert_same(&staged, &result);
        }
    }
}

/* NCCL's memory is taken off the free memory before the budget is chosen. */
static void a_communicator_has_its_memory(void **state)
{
    static fixture_result result;
    enum { HELD_MIB = 100, TOTAL_MIB = 700, KEPT_MIB = 256 };
    fixture_sets sets;
    gpu_ranks_sets(&sets, "cuda", 3);
    fixture_set(&sets, "run.steps=1");
    fixture_set(&sets, "tiers.device.budget=auto");
    setenv("SLUICE_SIMULATED_GPU_TOTAL_MB", "700", 1);
    fake_nccl.held_bytes = HELD_MIB * MIB;
    gpu_ranks_train_good((struct gpu_ranks_run){.name = "nccl", .world = 2, .has_own = true}, &sets,
                         &result);
    fake_nccl.held_bytes = 0;
    unsetenv("SLUICE_SIMULATED_GPU_TOTAL_MB");
    uint64_t budget = result.plan.budget_bytes[TIER_DEVICE];
    printf("budget: %" PRIu64 " MiB\n", budget / MIB);
    assert_in_range(budget, (TOTAL_MIB - HELD_MIB - KEPT_MIB - 4) * MIB,
                    (TOTAL_MIB - HELD_MIB - KEPT_MIB) * MIB);
}

static void a_wire_of_16_bits_on_nccl(void **state)
{
    static fixture_result first, result;
    fixture_sets sets;
    gpu_ranks_shape.bf16 = true;
    for (unsigned stage = 1; stage <= 3; stage += 2) {
        gpu_ranks_sets(&sets, "cuda", stage);
        fixture_set(&sets, "comm.backend=nccl");
        if (stage == 3)
            place(&sets, &placements[0]);
        gpu_ranks_train_good((struct gpu_ranks_run){.name = "nccl", .world = 2, .is_spread = true},
                             &sets, stage == 1 ? &first : &result);
    }
    fixture_assert_same(&first, &result);
    gpu_ranks_shape.bf16 = false;
}
#endif

/* ---- failures ---- */

static void fail_and_go_on(struct gpu_ranks_run run, unsigned stage, const char *backend)
{
    fixture_sets sets;
    gpu_ranks_sets(&sets, "cuda", stage);
    fixture_set(&sets, "comm.backend=%s", backend);
    gpu_ranks_fail(run, &sets);
}

static void a_killed_rank_ends_all(void **state)
{
    fail_and_go_on((struct gpu_ranks_run){.name = "ended", .world = 2, .kills = true}, 3, "staged");
#ifdef GPU_RANKS_FAKE_NCCL
    fail_and_go_on(
        (struct gpu_ranks_run){.name = "ended", .world = 2, .is_spread = true, .kills = true}, 3,
        "nccl");
#endif
}

#ifdef SLUICE_SIMULATED_GPU
static void a_gpu_that_fails_ends_all(void **state)
{
    fail_and_go_on((struct gpu_ranks_run){.name = "ended", .world = 2, .faults = true}, 1,
                   "staged");
#ifdef GPU_RANKS_FAKE_NCCL
    fail_and_go_on(
        (struct gpu_ranks_run){.name = "ended", .world = 2, .is_spread = true, .faults = true}, 1,
        "nccl");
#endif
}
#endif

/* ---- sampling ---- */

static int take_text(void *user, const char *bytes, uint64_t count)
{
    uint64_t *taken = user;
    for (uint64_t i = 0; i < count && *taken < GPU_RANKS_TEXT_BYTES; i++)
        gpu_ranks_shared->text[(*taken)++] = bytes[i];
    return 0;
}

static int sample_body(comm *self, void *user)
{
    uint64_t taken = 0;
    struct infer_generate_options asked = {.run_dir = user,
                                           .prompt = "abc",
                                           .prompt_bytes = 3,
                                           .token_count = 12,
                                           .temperature = 1.0,
                                           .seed = 5,
                                           .on_token = take_text,
                                           .user = &taken};
    memset(gpu_ranks_shared->text, 0, GPU_RANKS_TEXT_BYTES);
    TRY(infer_generate(&asked));
    return taken == 15 ? 0 : err_set(ERR_INTERNAL, "%d bytes", (int)taken);
}

static void sample(const char *name, uint32_t world, char text[GPU_RANKS_TEXT_BYTES])
{
    char dir[FIXTURE_PATH_BYTES];
    static struct state_inspect_summary seen;
    snprintf(dir, sizeof dir, "%s", fixture_path(name, NULL));
    assert_ok(state_inspect(dir, &seen));
    assert_int_equal(seen.record.world_size, world);
    state_inspect_fini(&seen);
    comm_fixture one = {.world = 1};
    comm_fixture_run(&one, sample_body, dir);
    comm_fixture_expect_ok(&one);
    memcpy(text, gpu_ranks_shared->text, GPU_RANKS_TEXT_BYTES);
}

/* From the state of two ranks, and from the same state once it is one rank's. */
static void what_ranks_trained_is_sampled(void **state)
{
    static fixture_result result;
    static const char *const homes[] = {"device", "host", "nvme"};
    char of_ranks[GPU_RANKS_TEXT_BYTES], of_one[GPU_RANKS_TEXT_BYTES];
    fixture_sets sets;
    gpu_ranks_shape.bf16 = true;
    for (unsigned i = 0; i < 3; i++) {
        gpu_ranks_sets(&sets, "cuda", i == 0 ? 3 : i - 1); /* 3, 0, 1 */
        fixture_set(&sets, "run.steps=2");
        fixture_set(&sets, "model.vocab_size=256");
        fixture_set(&sets, "tiers.place.params=%s", homes[i]);
        fixture_set(&sets, "device.products=%s", i == 1 ? "timed" : "estimated");
        gpu_ranks_train_good((struct gpu_ranks_run){.name = "sampled", .world = 2, .keeps = true},
                             &sets, &result);
        sample("sampled", 2, of_ranks);
        gpu_ranks_train_good((struct gpu_ranks_run){.name = "sampled", .world = 1, .keeps = true},
                             &sets, &result);
        assert_true(result.summary.was_resumed);
        sample("sampled", 1, of_one);
        assert_memory_equal(of_ranks, of_one, GPU_RANKS_TEXT_BYTES);
        fixture_remove("sampled");
    }
}

/* ---- memory ---- */

static int plan_body(comm *self, void *user)
{
    const job *const *jobs = user;
    struct setup_summary plan;
    for (uint32_t world = 1; world <= GPU_RANKS_MAX; world *= 2) {
        TRY(setup_plan_on(jobs[world], &(struct setup_plan_options){0}, &plan));
        gpu_ranks_shared->budgets[world] = plan.budget_bytes[TIER_DEVICE];
    }
    int rc = setup_plan_on(jobs[0], &(struct setup_plan_options){0}, &plan);
    snprintf(gpu_ranks_shared->reason, sizeof gpu_ranks_shared->reason, "%s",
             rc < 0 ? err_text() : "");
    return rc == ERR_NO_FIT ? 0
                            : err_set(ERR_INTERNAL, "code %d: %s", rc, gpu_ranks_shared->reason);
}

/* Each has its part of what is free, less what CUDA's libraries may take. jobs[0] asks for more. */
static void ranks_share_the_memory(void **state)
{
    job *jobs[GPU_RANKS_MAX + 1] = {NULL};
    uint64_t kept =
        (GPU_RANKS_IS_SIMULATED ? 256 : 512) * MIB; /* of each; other tests use a real GPU too */
    fixture_sets sets;
    for (uint32_t world = 0; world <= GPU_RANKS_MAX; world = world ? 2 * world : 1) {
        gpu_ranks_sets(&sets, "cuda", 3);
        fixture_set(&sets, "tiers.device.budget=%s", world ? "auto" : "4TiB");
        fixture_set(&sets, "train_micro_batch_size_per_gpu=1");
        jobs[world] =
            fixture_job_ranks("planned", &gpu_ranks_shape, &sets, world ? world : GPU_RANKS_MAX);
    }
    comm_fixture one = {.world = 1};
    comm_fixture_run(&one, plan_body, jobs);
    comm_fixture_expect_ok(&one);
    for (uint32_t world = 0; world <= GPU_RANKS_MAX; world++)
        job_destroy(jobs[world]);
    for (uint32_t world = 1; world <= GPU_RANKS_MAX; world *= 2) {
        uint64_t all = world * gpu_ranks_shared->budgets[world];
        printf("%u ranks: %" PRIu64 " MiB each, of %" PRIu64 " MiB\n", world,
               gpu_ranks_shared->budgets[world] / MIB, gpu_ranks_shared->total_bytes / MIB);
        assert_true(all <= gpu_ranks_shared->total_bytes);
        assert_true(all + world * kept >= gpu_ranks_shared->budgets[1] / 10 * 9);
    }
    printf("%s\n", gpu_ranks_shared->reason);
    assert_non_null(strstr(gpu_ranks_shared->reason, "tiers.device.budget is 4.00 TiB"));
    assert_non_null(
        strstr(gpu_ranks_shared->reason, " free for each of the 4 ranks that share it"));
}

/* A backend of collectives that the job asks for by name is used, or all ranks refuse the job. */
static void collectives_of_gpus_are_refused_on_the_cpu(void **state)
{
    static fixture_result result;
    static const char *const backends[] = {"nccl", "staged"};
    for (int i = 0; i < 2; i++) {
        fixture_sets sets;
        gpu_ranks_sets(&sets, "cpu", 3);
        fixture_set(&sets, "comm.backend=%s", backends[i]);
        struct gpu_ranks_run run = {.name = "refused", .world = 2};
        comm_fixture ranks = gpu_ranks_train(&run, &sets, &result);
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
    char text[DEVICE_TEXT_BYTES];
    device *gpu;
    gpu_ranks_shared->gpu_count = device_count(text);
    snprintf(gpu_ranks_shared->reason, sizeof gpu_ranks_shared->reason, "%s", text);
    if (gpu_ranks_shared->gpu_count == 0)
        return 0;
    TRY(device_open(0, &gpu));
    gpu_ranks_shared->total_bytes = device_get_info(gpu)->total_bytes;
    device_close(gpu);
    gpu_ranks_shared->nccl_code = comm_nccl_check();
    if (gpu_ranks_shared->nccl_code < 0)
        snprintf(gpu_ranks_shared->reason, sizeof gpu_ranks_shared->reason, "%s", err_text());
    return 0;
}

static const struct group {
    const char *name;
    bool needs_nccl;
    struct CMUnitTest tests[3];
    size_t count;
} groups[] = {
    {"stages",
     false,
     {cmocka_unit_test(stages_agree), cmocka_unit_test(overflows_skip_on_all),
      cmocka_unit_test(experts_of_no_rank_stay)},
     3},
    {"owned", false, {cmocka_unit_test(owned_experts_have_the_bits_of_zero)}, 1},
    {"placements", false, {cmocka_unit_test(placements_agree)}, 1},
    {"one-on-nccl", true, {cmocka_unit_test(one_rank_on_nccl_is_as_one_without)}, 1},
#ifdef GPU_RANKS_FAKE_NCCL
    {"nccl",
     true,
     {cmocka_unit_test(ranks_on_nccl_are_as_staged_ones),
      cmocka_unit_test(a_wire_of_16_bits_on_nccl), cmocka_unit_test(a_communicator_has_its_memory)},
     3},
    {"owned-nccl",
     true,
     {cmocka_unit_test(owned_experts_on_nccl),
      cmocka_unit_test(a_rank_that_dies_before_its_rows_ends_all)},
     2},
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
    gpu_ranks_are_few = GPU_RANKS_IS_SIMULATED || getenv("SLUICE_TEST_FEW") != NULL;
    gpu_ranks_shared = comm_fixture_shared(sizeof *gpu_ranks_shared);
    comm_fixture one = {.world = 1};
    comm_fixture_run(&one, look_body, NULL);
    comm_fixture_expect_ok(&one);
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        const struct group *group = &groups[g];
        if (strcmp(group->name, name) != 0)
            continue;
        if (gpu_ranks_shared->gpu_count == 0 ||
            (group->needs_nccl && gpu_ranks_shared->nccl_code < 0)) {
            printf("skipped: %s\n", gpu_ranks_shared->reason);
            return 77;
        }
        return _cmocka_run_group_tests(name, group->tests, group->count, fixture_setup,
                                       fixture_teardown);
    }
    printf("there are no tests \"%s\"\n", name);
    return 1;
}
