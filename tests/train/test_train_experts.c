/* Experts that no token chose are not fetched (schedule.experts). The bits are those of the run
 * that fetches all of them, whatever learns, wherever params rest, in both orders. The bytes that
 * were moved and those that were spared add up to those of that run. */
#include <math.h>

#include "infer/infer.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { EXPERTS = 24, LAYERS = 2, TOKENS = 12, TEXT_BYTES = 128 };

/* 2 micro-batches of 8 tokens that choose one of 24 experts each: at most 16 of 24 are hit. */
static const fixture_model shape = {
    .family = "mixtral", .bf16 = true, .layers = LAYERS, .hidden = 64};
static const char adapters[] = "train.lora={\"rank\":4,\"targets\":[\"q_proj\",\"v_proj\"]}";

static const char of_experts[] =
    "train.lora={\"rank\":4,\"targets\":[\"experts.gate_up_proj\",\"experts.down_proj\"]}";

static fixture_sets sets_of(const char *params, const char *learns)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.steps=4");
    fixture_set(&sets, "run.eval_every=2");
    fixture_set(&sets, "model.seq_length=8");
    fixture_set(&sets, "model.num_experts=%d", EXPERTS);
    fixture_set(&sets, "model.num_experts_per_tok=1");
    fixture_set(&sets, "model.expert_ffn_size=16");
    fixture_set(&sets, "model.experts_per_unit=1");
    fixture_set(&sets, "train_micro_batch_size_per_gpu=1");
    fixture_set(&sets, "tiers.place.params=%s", params);
    if (learns)
        fixture_set(&sets, "%s", learns);
    return sets;
}

/* Forward and backward of each block have a pass for each expert, once in a round. */
static void check_plan(const struct setup_summary *plan, bool is_layer_major)
{
    double rounds = is_layer_major ? 1 : 2, passes = rounds * 2 * LAYERS * EXPERTS;
    double missed = pow(1 - 1.0 / EXPERTS, is_layer_major ? 16 : 8);
    assert_true(fabs(plan->expert_passes - passes) < 1e-9);
    assert_true(fabs(plan->expert_passes_hit - passes * (1 - missed)) < 1e-9);
    assert_string_equal(plan->experts, "hit");
    assert_true(plan->lane_spared_bytes[LANE_H2D] > 0);
    assert_true(plan->all_hit_seconds >= 0.95 * plan->step_seconds);
}

/* Bytes of inner activations that the lane moved. Plans may let them wait at different places.
 * Those that go to the device have come from it. */
static uint64_t parked_bytes(const fixture_result *result, int kind)
{
    return kind == LANE_H2D ? result->summary.lanes[LANE_D2H].bytes : 0;
}

static void compare(const char *params, const char *learns, const char *order, const char *update)
{
    static fixture_result all, hit;
    fixture_sets sets = sets_of(params, learns);
    fixture_set(&sets, "schedule.order=%s", order);
    fixture_set(&sets, "schedule.update=%s", update);
    fixture_set(&sets, "schedule.experts=all");
    fixture_train_good("all", &shape, &sets, &all);
    fixture_set(&sets, "schedule.experts=hit");
    fixture_train_good("hit", &shape, &sets, &hit);
    fixture_assert_same(&all, &hit);
    check_plan(&hit.plan, strcmp(order, "layer_major") == 0);
    assert_memory_equal(&all.summary.eval_loss, &hit.summary.eval_loss, sizeof(double));
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        const metrics_lane *one = &all.summary.lanes[kind], *other = &hit.summary.lanes[kind];
        bool fetches = kind == LANE_H2D || (kind == LANE_READ && strcmp(params, "nvme") == 0);
        assert_int_equal(one->spared_bytes, 0);
        if (fetches && all.plan.held_passes == hit.plan.held_passes)
            assert_int_equal(other->bytes + other->spared_bytes - parked_bytes(&hit, kind),
                             one->bytes - parked_bytes(&all, kind));
        assert_int_equal(other->spared_bytes > 0, fetches);
    }
    printf("%s, %s: %llu of %llu bytes to the device\n", params, learns ? learns : "all learn",
           (unsigned long long)hit.summary.lanes[LANE_H2D].bytes,
           (unsigned long long)all.summary.lanes[LANE_H2D].bytes);
    fixture_remove("all");
    fixture_remove("hit");
}

static void frozen_experts(void **state)
{
    compare("nvme", adapters, "layer_major", "after_backward");
    compare("host", adapters, "batch_major", "in_next_forward");
    compare("nvme", of_experts, "layer_major", "after_backward");
}

static void packed_experts(void **state)
{
    static const char packed[] = "state.params=nf4";
    fixture_sets sets = sets_of("nvme", adapters);
    static fixture_result all, hit;
    fixture_set(&sets, "%s", packed);
    fixture_set(&sets, "schedule.experts=all");
    fixture_train_good("all", &shape, &sets, &all);
    fixture_set(&sets, "schedule.experts=hit");
    fixture_train_good("hit", &shape, &sets, &hit);
    fixture_assert_same(&all, &hit);
    assert_true(hit.summary.lanes[LANE_READ].spared_bytes > 0);
    fixture_remove("all");
    fixture_remove("hit");
}

static void experts_that_learn(void **state)
{
    compare("nvme", NULL, "layer_major", "after_backward");
    compare("host", NULL, "batch_major", "after_backward");
    compare("host", NULL, "layer_major", "in_next_forward");
}

/* On the device nothing moves, and nothing is spared. */
static void experts_at_home(void **state)
{
    static fixture_result all, hit;
    fixture_sets sets = sets_of("device", NULL);
    fixture_set(&sets, "schedule.experts=hit");
    fixture_train_good("hit", &shape, &sets, &hit);
    fixture_set(&sets, "schedule.experts=all");
    fixture_train_good("all", &shape, &sets, &all);
    fixture_assert_same(&all, &hit);
    assert_int_equal(hit.summary.lanes[LANE_H2D].spared_bytes, 0);
    fixture_remove("all");
    fixture_remove("hit");
}

/* ---- generation ---- */

struct page {
    char text[TEXT_BYTES];
    uint64_t count;
};

static int add_text(void *user, const char *bytes, uint64_t count)
{
    struct page *page = user;
    assert_true(page->count + count <= TEXT_BYTES);
    memcpy(page->text + page->count, bytes, count);
    page->count += count;
    return 0;
}

static void generate(const char *fetch, struct page *page, struct infer_generate_result *result)
{
    char text[64];
    const char *const sets[] = {text, "tiers.place.params=host"};
    snprintf(text, sizeof text, "schedule.experts=%s", fetch);
    struct infer_generate_options options = {.run_dir = fixture_path("run", NULL),
                                             .set = sets,
                                             .set_count = 2,
                                             .prompt = "the",
                                             .prompt_bytes = 3,
                                             .token_count = TOKENS,
                                             .context = 64,
                                             .ignores_end = true,
                                             .on_token = add_text,
                                             .user = page,
                                             .result = result};
    memset(page, 0, sizeof *page);
    if (infer_generate(&options) < 0)
        fail_msg("generate: %s", err_text());
}

/* A call with one token fetches one expert of each block. auto finds that out. */
static void one_token_needs_few_experts(void **state)
{
    static fixture_result trained;
    struct page all, page;
    struct infer_generate_result whole, result;
    fixture_sets sets = sets_of("device", NULL);
    fixture_set(&sets, "model.seq_length=64");
    fixture_set(&sets, "run.steps=1");
    fixture_train_good("run", &shape, &sets, &trained);
    generate("all", &all, &whole);
    assert_int_equal(whole.spared_bytes, 0);
    uint64_t unit_bytes = 4096 * sizeof(uint16_t); /* 3 * 16 * 64 elements, padded */
    uint64_t calls = TOKENS - 1;
    static const char *const fetches[] = {"hit", "auto"};
    for (int i = 0; i < 2; i++) {
        generate(fetches[i], &page, &result);
        assert_int_equal(page.count, all.count);
        assert_memory_equal(page.text, all.text, all.count);
        assert_int_equal(result.spared_bytes, calls * LAYERS * (EXPERTS - 1) * unit_bytes);
        assert_int_equal(result.copied_bytes + result.spared_bytes, whole.copied_bytes);
    }
    printf("a token: %llu of %llu bytes\n", (unsigned long long)(result.copied_bytes / calls),
           (unsigned long long)(whole.copied_bytes / calls));
    fixture_remove("run");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frozen_experts),
        cmocka_unit_test(packed_experts),
        cmocka_unit_test(experts_that_learn),
        cmocka_unit_test(experts_at_home),
        cmocka_unit_test(one_token_needs_few_experts),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
