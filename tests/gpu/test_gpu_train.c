/* Training on a GPU, through train_run: against the CPU backend for 20 steps, to the bit under
 * every placement, across a stop, and with budgets that do not fit. Argument: FAMILY-DTYPE for the
 * curves and placements, or a word for the rest. Exits with 77 if there is no GPU. */
#include <math.h>

#include "base/size.h"
#include "infer/infer.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "tiers/device.h"

static fixture_model shape = {.family = "gpt2", .layers = 2, .hidden = 64};
static const char *group = "gpt2-bf16";

static bool is_group(const char *word)
{
    return strstr(group, word) != NULL;
}

static void set_group(fixture_sets *sets, const char *backend)
{
    static const char *const experts[] = {
        "num_experts=6",      "num_experts_per_tok=2",    "experts_per_unit=4",
        "expert_ffn_size=64", "router_aux_loss_coef=0.1", "router_z_loss_coef=0.01"};
    memset(sets, 0, sizeof *sets);
    fixture_set(sets, "device.backend=%s", backend);
    fixture_set(sets, "model.tie_embeddings=%s", is_group("untied") ? "false" : "true");
    if (is_group("fp16")) {
        fixture_set(sets, "fp16.enabled=true");
        fixture_set(sets, "fp16.initial_scale_power=20"); /* the first steps overflow */
        fixture_set(sets, "fp16.loss_scale_window=2");
        fixture_set(sets, "fp16.hysteresis=1");
    }
    if (is_group("cut"))
        fixture_set(sets, "model.max_part_bytes=%d", is_group("fp32") ? 49152 : 24576);
    if (is_group("moe"))
        for (size_t i = 0; i < sizeof experts / sizeof experts[0]; i++)
            fixture_set(sets, "model.%s", experts[i]);
    if (is_group("lion") || is_group("adagrad"))
        fixture_set(sets, "optimizer={\"type\":\"%s\",\"params\":{\"lr\":%s,\"weight_decay\":0.1}}",
                    is_group("lion") ? "Lion" : "Adagrad", is_group("lion") ? "3e-4" : "1e-2");
}

/* Two backends round differently, and training carries the difference on: what is allowed at step
 * 20 is what 20 steps of this model make of a last bit of the working dtype (CPU runs of other
 * thread counts and part sizes lie within a third of it). */
static double tolerance(void)
{
    return is_group("fp32") ? 2e-4 : is_group("fp16") ? 1e-2 : 4e-2;
}

static void losses_follow_the_cpu(void **state)
{
    static fixture_result cpu, gpu;
    fixture_sets sets;
    set_group(&sets, "cpu");
    fixture_train_good("cpu", &shape, &sets, &cpu);
    set_group(&sets, "cuda");
    fixture_train_good("gpu", &shape, &sets, &gpu);
    assert_int_equal(gpu.step_count, 20);
    assert_true(gpu.losses[19] < gpu.losses[0] - (is_group("lion") ? 0.05 : 0.5));
    for (uint64_t i = 0; i < 20; i++) {
        double apart = fabs(gpu.losses[i] - cpu.losses[i]);
        if (!(apart <= tolerance()))
            fail_msg("step %u: loss %.7f on the GPU, %.7f on the CPU", (unsigned)i + 1,
                     gpu.losses[i], cpu.losses[i]);
        assert_int_equal(gpu.skipped[i], cpu.skipped[i]);
    }
    printf("%s: step 20: %.7f on the GPU, %.7f on the CPU\n", group, gpu.losses[19],
           cpu.losses[19]);
    assert_true(fabs(gpu.summary.eval_loss - cpu.summary.eval_loss) <= tolerance());
    fixture_remove("cpu");
    fixture_remove("gpu");
}

/* Homes of params, grads, optimizer, activations and inner activations; order; update; elements of
 * a tile; ops ahead; "tight": with the least budgets. Graphs and timed events are on and off by
 * turns. */
static const char *const placements[] = {
    "device device device device device, layer_major, in_next_forward, tiles 0, ahead 0",
    "device device host device recompute, layer_major, in_next_forward, tiles 32768, ahead 0",
    "device host host device recompute, layer_major, after_backward, tiles 32768, ahead 0",
    "host host host device recompute, layer_major, in_next_forward, tiles 65536, ahead 8, tight",
    "host host host host host, batch_major, in_next_forward, tiles 32768, ahead 0, tight",
    "host device device host recompute, layer_major, after_backward, tiles 32768, ahead 0, tight",
    "device host nvme device recompute, layer_major, in_next_forward, tiles 0, ahead 0",
    "host host nvme host nvme, layer_major, in_next_forward, tiles 32768, ahead 1, tight",
    "nvme nvme nvme nvme recompute, layer_major, in_next_forward, tiles 32768, ahead 0, tight",
    "nvme nvme nvme host host, batch_major, after_backward, tiles 65536, ahead 0, tight",
    "nvme device host nvme device, batch_major, in_next_forward, tiles 0, ahead 8",
    "device host host host selective, layer_major, in_next_forward, tiles 0, ahead 0",
    "device nvme device host selective_host, layer_major, after_backward, tiles 32768, ahead 0, "
    "tight",
};

/* Returns whether the placement is tried with the least budgets. */
static bool place(fixture_sets *sets, const char *placement)
{
    static const char *const keys[] = {"tiers.place.params",
                                       "tiers.place.grads",
                                       "tiers.place.optimizer",
                                       "tiers.place.activations",
                                       "tiers.place.inner_activations",
                                       "schedule.order",
                                       "schedule.update",
                                       "schedule.tile_elems",
                                       "debug.schedule.lookahead"};
    char words[sizeof keys / sizeof keys[0]][32];
    assert_int_equal(sscanf(placement,
                            "%31s %31s %31s %31s %31[^,], %31[^,], %31[^,], tiles %31[^,], "
                            "ahead %31[^,]",
                            words[0], words[1], words[2], words[3], words[4], words[5], words[6],
                            words[7], words[8]),
                     9);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        fixture_set(sets, "%s=%s", keys[i], words[i]);
    return strstr(placement, "tight");
}

/* Returns the bytes that were not copied to the device. */
static uint64_t compare(const char *what, const fixture_result *baseline, fixture_sets *sets)
{
    static fixture_result result;
    printf("%s: %s\n", group, what);
    fflush(stdout);
    fixture_train_good("moved", &shape, sets, &result);
    fixture_assert_same(baseline, &result);
    fixture_remove("moved");
    return result.summary.lanes[LANE_H2D].spared_bytes;
}

/* Few tokens that choose among many experts, of which many are not hit. The baseline has all of
 * them on the device, the others fetch what is hit. */
static void spare_experts(fixture_sets *sets)
{
    if (!is_group("moe"))
        return;
    fixture_set(sets, "model.seq_length=4");
    fixture_set(sets, "model.num_experts=16");
    fixture_set(sets, "model.num_experts_per_tok=1");
    fixture_set(sets, "model.experts_per_unit=1");
    fixture_set(sets, "schedule.experts=hit");
}

static void placements_give_equal_bits(void **state)
{
    static fixture_result baseline;
    fixture_sets sets;
    set_group(&sets, "cuda");
    fixture_set(&sets, "run.steps=5");
    fixture_set(&sets, "tiers.place.inner_activations=recompute");
    fixture_set(&sets, "schedule.update=after_backward");
    spare_experts(&sets);
    fixture_train_good("baseline", &shape, &sets, &baseline);
    /* Experts add kernels, not lanes: few placements, with and without graphs. On the simulated
     * GPU, where a run takes seconds, other models run with the rest of the placements. */
    bool is_few = getenv("SLUICE_TEST_FEW") != NULL;
    for (size_t i = 0; i < sizeof placements / sizeof placements[0]; i++) {
        if (is_group("moe") ? i % 3 != 0 : is_few && i % 3 == 0)
            continue;
        set_group(&sets, "cuda");
        fixture_set(&sets, "run.steps=5");
        bool is_tight = place(&sets, placements[i]);
        spare_experts(&sets);
        fixture_set(&sets, "run.trace=%s", i % 2 ? "false" : "true");
        fixture_set(&sets, "device.graph_bytes=%s", i % 4 < 2 ? "64MiB" : "0");
        if (is_tight)
            fixture_tighten("moved", &shape, &sets);
        uint64_t spared_bytes = compare(placements[i], &baseline, &sets);
        bool moves = strncmp(placements[i], "device", strlen("device")) != 0;
        assert_int_equal(spared_bytes > 0, is_group("moe") && moves);
    }
    /* State on all three tiers in one step: each unit is updated on the tier of its state. */
    set_group(&sets, "cuda");
    fixture_set(&sets, "run.steps=5");
    fixture_set(&sets, "schedule.tile_elems=32768");
    spare_experts(&sets);
    fixture_set(&sets,
                "tiers.place.rules=[{\"units\":\"0\",\"kind\":\"optimizer\",\"tier\":\"nvme\"},"
                "{\"units\":\"1\",\"kind\":\"optimizer\",\"tier\":\"host\"},"
                "{\"units\":\"1-2\",\"kind\":\"params\",\"tier\":\"host\"},"
                "{\"units\":\"0-1\",\"kind\":\"grads\",\"tier\":\"host\"}]");
    compare("by unit: nvme, host, device", &baseline, &sets);
    set_group(&sets, "cuda"); /* the canary: this changes bits */
    fixture_set(&sets, "run.steps=5");
    spare_experts(&sets);
    fixture_set(&sets, "optimizer.params.lr=2.001e-3");
    static fixture_result other;
    fixture_train_good("other", &shape, &sets, &other);
    assert_true(other.weights_hash != baseline.weights_hash);
    fixture_remove("other");
    fixture_remove("baseline");
}

/* Stopped after step 3, resumed with other homes: the bits of the whole run; and its parameters can
 * be sampled from. */
static void a_stopped_run_goes_on(void **state)
{
    static fixture_result whole, first, second;
    fixture_sets sets;
    set_group(&sets, "cuda");
    fixture_set(&sets, "run.steps=8");
    fixture_set(&sets, "schedule.tile_elems=32768");
    fixture_set(&sets, "model.vocab_size=256");
    fixture_train_good("whole", &shape, &sets, &whole);
    job *asked = fixture_job("part", &shape, &sets);
    fixture_train(asked, &(fixture_call){.name = "part", .stop_after = 3}, &first);
    assert_int_equal(first.rc, ERR_STOPPED);
    job_destroy(asked);
    fixture_set(&sets, "tiers.place.optimizer=host");
    fixture_set(&sets, "tiers.place.params=host");
    fixture_set(&sets, "tiers.place.activations=host");
    asked = fixture_job("part", &shape, &sets);
    fixture_train(asked, &(fixture_call){.name = "part"}, &second);
    if (second.rc < 0)
        fail_msg("%s", second.error);
    job_destroy(asked);
    assert_true(second.summary.was_resumed);
    assert_int_equal(second.weights_hash, whole.weights_hash);
    assert_memory_equal(second.loss_bits, whole.loss_bits, 8 * sizeof second.loss_bits[0]);
}

static int count_bytes(void *user, const char *bytes, uint64_t count)
{
    *(uint64_t *)user += count;
    return 0;
}

static void a_run_can_be_sampled(void **state)
{
    uint64_t bytes = 0;
    const char *dir = fixture_path("whole", NULL);
    struct infer_generate_options asked = {.run_dir = dir,
                                           .prompt = "abc",
                                           .prompt_bytes = 3,
                                           .token_count = 4,
                                           .on_token = count_bytes,
                                           .user = &bytes};
    assert_ok(infer_generate(&asked));
    assert_int_equal(bytes, 7);
}

/* A budget beyond the memory is refused with the numbers, before anything is allocated or
 * written. */
static void a_budget_beyond_the_memory_is_refused(void **state)
{
    static fixture_result result;
    fixture_sets sets;
    set_group(&sets, "cuda");
    fixture_set(&sets, "tiers.device.budget=4TiB");
    job *asked = fixture_job("large", &shape, &sets);
    fixture_train(asked, &(fixture_call){.name = "large"}, &result);
    job_destroy(asked);
    assert_int_equal(result.rc, ERR_NO_FIT);
    printf("%s\n", result.error);
    assert_non_null(strstr(result.error, "tiers.device.budget is 4.00 TiB"));
    assert_non_null(strstr(result.error, " free"));
    assert_false(result.planned);
    assert_false(fixture_exists(fixture_path("large", "state")));
    /* A job that needs more than a permitted budget is refused too. */
    set_group(&sets, "cuda");
    fixture_set(&sets, "tiers.device.budget=64KiB");
    asked = fixture_job("small", &shape, &sets);
    fixture_train(asked, &(fixture_call){.name = "small"}, &result);
    job_destroy(asked);
    assert_int_equal(result.rc, ERR_NO_FIT);
    assert_true(fixture_budget_named(result.error, "tiers.device.budget") > 64 * KIB);
}

/* A model whose states are three times the device budget, and more: only what is in use is there.
 * On a real GPU the model has 12.7 GiB of states and the budget is 4 GiB. */
static void a_model_of_three_budgets_trains(void **state)
{
    static fixture_result result;
    gpu_fixture *gpu = gpu_begin();
    bool is_large = !gpu->is_simulated;
    gpu_end(gpu);
    fixture_model large = {.family = "llama",
                           .bf16 = true,
                           .layers = is_large ? 16 : 8,
                           .hidden = is_large ? 2048 : 64};
    uint64_t budget = is_large ? 4 * GIB : 0;
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "device.backend=cuda");
    fixture_set(&sets, "run.steps=4");
    if (is_large) { /* the fixture's 4 heads would be of 512 columns */
        fixture_set(&sets, "model.num_heads=16");
        fixture_set(&sets, "model.num_kv_heads=8");
        fixture_set(&sets, "tiers.nvme=[{\"path\":\"%s\",\"budget\":\"20GiB\"}]",
                    fixture_path("three", ".nvme"));
    }
    fixture_set(&sets, "optimizer.params.lr=%s", is_large ? "3e-4" : "1e-3");
    fixture_set(&sets, "tiers.host.budget=%llu",
                (unsigned long long)(is_large ? 24 * GIB : 64 * MIB));
    static const char *const kinds[] = {"params", "grads", "optimizer", "activations"};
    for (int k = 0; k < 4; k++)
        fixture_set(&sets, "tiers.place.%s=host", kinds[k]);
    fixture_set(&sets, "schedule.tile_elems=32768");
    if (is_large)
        fixture_set(&sets, "tiers.device.budget=%llu", (unsigned long long)budget);
    else
        fixture_tighten("three", &large, &sets);
    fixture_train_good("three", &large, &sets, &result);
    uint64_t states = 0;
    for (int kind = STATE_PARAMS; kind <= STATE_OPTIMIZER; kind++)
        states += result.plan.home_bytes[kind][TIER_HOST];
    budget = result.plan.budget_bytes[TIER_DEVICE];
    printf("states %llu bytes, device budget %llu, peak %llu\n", (unsigned long long)states,
           (unsigned long long)budget, (unsigned long long)result.plan.peak_bytes[TIER_DEVICE]);
    assert_true(states >= 3 * budget);
    assert_true(result.plan.peak_bytes[TIER_DEVICE] <= budget);
    assert_true(result.losses[3] < result.losses[0]);
}

int main(int argc, char **argv)
{
    char reason[DEVICE_TEXT_BYTES];
    if (device_count(reason) == 0) {
        printf("skipped: %s\n", reason);
        return 77;
    }
    if (argc > 1)
        group = argv[1];
    shape.bf16 = is_group("bf16");
    if (is_group("llama"))
        shape.family = "llama";
    if (is_group("moe"))
        shape.family = "olmoe";
    const struct CMUnitTest curves[] = {cmocka_unit_test(losses_follow_the_cpu)};
    const struct CMUnitTest placed[] = {cmocka_unit_test(placements_give_equal_bits)};
    const struct CMUnitTest rest[] = {
        cmocka_unit_test(a_stopped_run_goes_on),
        cmocka_unit_test(a_run_can_be_sampled),
        cmocka_unit_test(a_budget_beyond_the_memory_is_refused),
        cmocka_unit_test(a_model_of_three_budgets_trains),
    };
    if (is_group("curve"))
        return cmocka_run_group_tests(curves, fixture_setup, fixture_teardown);
    if (is_group("placed"))
        return cmocka_run_group_tests(placed, fixture_setup, fixture_teardown);
    return cmocka_run_group_tests(rest, fixture_setup, fixture_teardown);
}
