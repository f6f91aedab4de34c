/* The formulas of plan/zero.h: they are each other's inverse, full overlap takes the tokens that
 * the papers state for their traffic, and the planner, which counts buffer by buffer, gives each
 * rank of a real model what they say, for every stage, but for padding. The tables' cells are in
 * test_cli_plan.c. */
#include <math.h>

#include "plan/zero.h"
#include "setup/setup.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

static void near(double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance * fabs(expected)))
        fail_msg("%.12g is not %.12g within %g of it", found, expected, tolerance);
}

static void memory_and_its_inverse(void **state)
{
    zero_states each = zero_mixed_adam();
    near(zero_rank_bytes(&each, 0, 1.5e9, 64), 24e9, 1e-12); /* 16 bytes of each, any ranks */
    near(zero_rank_bytes(&each, 1, 1.5e9, 3), 4 * 1.5e9 + 12 * 0.5e9, 1e-12);
    near(zero_rank_bytes(&each, 2, 1.5e9, 3), 2 * 1.5e9 + 14 * 0.5e9, 1e-12);
    near(zero_rank_bytes(&each, 3, 1.5e9, 3), 16 * 0.5e9, 1e-12);
    for (uint32_t stage = 0; stage < ZERO_STAGE_COUNT; stage++) {
        near(zero_rank_bytes(&each, stage, 7e9, 1), 16 * 7e9, 1e-12);
        for (uint32_t ranks = 1; ranks <= 512; ranks *= 8) {
            double most = zero_params_max(&each, stage, 32e9, ranks);
            near(zero_rank_bytes(&each, stage, most, ranks), 32e9, 1e-12);
        }
    }
    for (uint32_t stage = 0; stage < ZERO_STAGE_COUNT; stage++)
        near(zero_sent_elems(stage), stage == 3 ? 3 : 2, 0);
}

/* As ZeRO-Infinity counts: 8 flops a parameter and token; of a link 2 bytes a parameter three
 * times and its gradient's 2 once; of a drive 16 bytes of optimizer state and gradient, read and
 * written. */
static void full_overlap(void **state)
{
    const double params = 3e9, peak = 700e12, rate = 55e9, tokens = 4096;
    double computing = 8 * params * tokens / peak;
    near(zero_hidden_tokens(8 * params / rate, 0, computing, tokens), peak / rate, 1e-12);
    near(zero_hidden_tokens(32 * params / rate, 0, computing, tokens), 4 * peak / rate, 1e-12);
    /* At T* both take as long, also where some of the traffic grows. */
    double growing = computing / 3, hidden = zero_hidden_tokens(2, growing, computing, tokens);
    near(2 + growing * hidden / tokens, computing * hidden / tokens, 1e-12);
    near(zero_hidden_tokens(0, growing, computing, tokens), 0, 0);
    assert_true(isinf(zero_hidden_tokens(2, computing, computing, tokens)));
    assert_true(isinf(zero_hidden_tokens(0, 2 * computing, computing, tokens)));
}

/* Sums over all units of a rank's shard, and of the whole, in padded elements. */
static void count_elems(const struct setup *setup, uint32_t world, uint64_t *whole, uint64_t *part)
{
    *whole = *part = 0;
    for (uint32_t u = 0; u < setup->net->unit_count; u++) {
        uint64_t step = (uint64_t)world * 4096;
        *whole += (setup->unit_elems[u] + step - 1) / step * step;
        *part += (setup->unit_elems[u] + step - 1) / step * 4096;
    }
}

static void check_stage(uint32_t stage, uint32_t world)
{
    static const fixture_model shape = {.family = "gpt2", .bf16 = true, .layers = 6, .hidden = 512};
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "model.vocab_size=16384");
    fixture_set(&sets, "zero_optimization={\"stage\":%u,\"stage3_param_persistence_threshold\":0}",
                stage);
    fixture_set(&sets, "tiers.device.budget=4GiB");
    fixture_set(&sets, "schedule.update=after_backward");
    job *asked = fixture_job_ranks("stages", &shape, &sets, world);
    struct setup_options options = {.is_trial = true};
    struct setup *setup;
    int rc = setup_create(asked, &options, &setup);
    if (rc < 0)
        fail_msg("stage %u: %s", stage, err_text());

    uint64_t whole, part, homes[STATE_KIND_COUNT] = {0}, sum = 0;
    count_elems(setup, world, &whole, &part);
    for (int kind = 0; kind <= STATE_OPTIMIZER; kind++)
        for (int a = 0; a < TIER_COUNT; a++) {
            homes[kind] += setup->set.home_bytes[kind][a];
            sum += setup->set.home_bytes[kind][a];
        }
    assert_int_equal(homes[STATE_PARAMS], 2 * (stage >= 3 ? part : whole));
    assert_int_equal(homes[STATE_GRADS], 2 * (stage >= 2 ? part : whole));
    zero_states each = zero_mixed_adam();
    double params = (double)setup->net->param_count;
    double formula = zero_rank_bytes(&each, stage, params, world);
    printf("stage %u of %u ranks: %.0f bytes by the formula, %llu planned, %.2f%% more\n", stage,
           world, formula, (unsigned long long)sum, 100 * ((double)sum / formula - 1));
    assert_true((double)sum >= formula && (double)sum <= 1.02 * formula);
    double optimizer = 12 * params / (stage >= 1 ? world : 1);
    assert_true((double)homes[STATE_OPTIMIZER] >= optimizer &&
                (double)homes[STATE_OPTIMIZER] <= 1.02 * optimizer);
    setup_destroy(setup);
    job_destroy(asked);
}

static void the_planner_agrees(void **state)
{
    for (uint32_t stage = 0; stage < ZERO_STAGE_COUNT; stage++) {
        check_stage(stage, 4);
        check_stage(stage, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_and_its_inverse),
        cmocka_unit_test(full_overlap),
        cmocka_unit_test(the_planner_agrees),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
