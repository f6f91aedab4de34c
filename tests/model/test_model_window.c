/* Windows of attention in some blocks: how far back a token is seen, in which blocks; windows that
 * are wider than a sequence; what windows cost; wrong settings. On the reference backend and the
 * CPU's, whole and in parts. Argument: the family. */
#include <math.h>

#include "base/error.h"
#include "model/costs.h"
#include "tests/model/model_harness.h"
#include "tests/unit.h"

enum { TOKENS = 24, LAYERS = 3, WINDOW = 4, BATCH = 2, VOCAB = 61, SEED = 11 };

static const char *instance = "gpt2";

static model_spec spec_of(uint64_t window, const char *pattern, uint64_t max_part_bytes)
{
    model_spec spec = {
        .num_layers = LAYERS,
        .hidden_size = 64,
        .ffn_size = 96,
        .vocab_size = VOCAB,
        .seq_length = TOKENS,
        .init_std = 0.2, /* so that attention is not all alike */
        .max_part_bytes = max_part_bytes,
        .window = window,
    };
    harness_complete(instance, &spec);
    strcpy(spec.window_pattern, pattern);
    return spec;
}

static void start(harness *h, const kernel_ops *ops, const model_spec *spec)
{
    harness_start(h, ops, spec, DTYPE_FP32, 0, SEED, false);
}

static bool is_same(const float *a, const float *b, uint64_t first, uint64_t end)
{
    return memcmp(a + first, b + first, (end - first) * sizeof *a) == 0;
}

/* The first token of the first sequence is another one: the losses of the first `reach` positions
 * may change, and the last of these must. */
static void check_reach(const kernel_ops *ops, const char *pattern, uint64_t max_part_bytes,
                        uint64_t reach)
{
    harness a, b;
    model_spec spec = spec_of(WINDOW, pattern, max_part_bytes);
    start(&a, ops, &spec);
    start(&b, ops, &spec);
    b.tokens[0] = (a.tokens[0] + 1) % VOCAB;
    harness_forward(&a, true);
    harness_forward(&b, true);
    assert_false(is_same(a.losses, b.losses, reach - 1, reach));
    assert_true(is_same(a.losses, b.losses, reach, (uint64_t)BATCH * TOKENS));
    harness_destroy(&a);
    harness_destroy(&b);
}

static const kernel_ops *const backends[] = {&kernels_reference,
#ifdef HAVE_KERNELS_CPU
                                             &kernels_cpu
#endif
};

/* Each block with the window lets a token reach WINDOW - 1 positions further. */
static void a_token_reaches_as_far_as_windows_let_it(void **state)
{
    for (size_t k = 0; k < sizeof backends / sizeof backends[0]; k++)
        for (uint64_t bytes = 0; bytes <= 16384; bytes += 16384) {
            check_reach(backends[k], "w", bytes, LAYERS * (WINDOW - 1) + 1);
            check_reach(backends[k], "", bytes, LAYERS * (WINDOW - 1) + 1);
            check_reach(backends[k], "wwf", bytes, TOKENS);
            check_reach(backends[k], "wf", bytes, TOKENS);
            check_reach(backends[k], "f", bytes, TOKENS);
        }
}

static void compare_steps(const kernel_ops *ops, const model_spec *one, const model_spec *other,
                          bool are_equal)
{
    harness a, b;
    start(&a, ops, one);
    start(&b, ops, other);
    harness_step(&a, 0.1f, false);
    harness_step(&b, 0.1f, true);
    if (are_equal)
        harness_expect_same_bits(&a, &b);
    else
        assert_false(is_same(a.losses, b.losses, 0, (uint64_t)BATCH * TOKENS));
    harness_destroy(&a);
    harness_destroy(&b);
}

/* A window that no sequence reaches is none, to the bit; and each block has its own. */
static void patterns_select_blocks(void **state)
{
    const model_spec none = spec_of(0, "", 0), wide = spec_of(TOKENS, "w", 0);
    const model_spec full = spec_of(WINDOW, "f", 0), two = spec_of(WINDOW, "wf", 0);
    const model_spec listed = spec_of(WINDOW, "wfw", 0), other = spec_of(WINDOW, "fw", 0);
    for (size_t k = 0; k < sizeof backends / sizeof backends[0]; k++) {
        compare_steps(backends[k], &none, &wide, true);
        compare_steps(backends[k], &none, &full, true);
        compare_steps(backends[k], &two, &listed, true);
        compare_steps(backends[k], &none, &two, false);
        compare_steps(backends[k], &two, &other, false);
    }
}

static double attention_flops(const model *self, uint32_t stage)
{
    model_costs costs;
    model_pass_costs(self, PHASE_FORWARD, stage, 0, &costs);
    return costs.attention_forward_flops;
}

/* A token sees WINDOW / 2 positions on average at the begin, and WINDOW of them later. */
static void windows_cost_less(void **state)
{
    const model_spec none = spec_of(0, "", 0), spec = spec_of(WINDOW, "wf", 0);
    model *full, *some;
    assert_ok(model_create(&none, DTYPE_BF16, BATCH, &full));
    assert_ok(model_create(&spec, DTYPE_BF16, BATCH, &some));
    double scores = WINDOW * (TOKENS - WINDOW / 2.0), causal = TOKENS * TOKENS / 2.0;
    assert_true(attention_flops(full, 1) == 4 * BATCH * causal * 64);
    assert_true(attention_flops(some, 1) == 4 * BATCH * scores * 64);
    assert_true(attention_flops(some, 2) == attention_flops(full, 2));
    double saved = model_step_flops(full, TOKENS) - model_step_flops(some, TOKENS);
    assert_float_equal(saved, 2 * 12 * (causal - scores) * 64, 1e-3);
    model_destroy(full);
    model_destroy(some);
}

static void wrong_settings_are_refused(void **state)
{
    model *self;
    const struct {
        const char *family;
        uint64_t window;
        const char *pattern;
        double theta, caps[2];
        const char *words;
    } cases[] = {
        {instance, WINDOW, "wx", 0, {0, 0}, "window_pattern is \"wx\", but its letters"},
        {"gpt2", WINDOW, "w", 5, {0, 0}, "the gpt2 family has no rotary positions"},
        {"llama", WINDOW, "w", 0.5, {0, 0}, "window_rope_theta is 0.5, but must be"},
        {"bert", WINDOW, "w", 0, {0, 0}, "the bert family attends to both sides"},
        {instance, WINDOW, "w", 0, {-1, 0}, "attention_soft_cap"},
        {instance, WINDOW, "w", 0, {0, NAN}, "logits_soft_cap"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model_spec spec = spec_of(cases[i].window, cases[i].pattern, 0);
        harness_complete(cases[i].family, &spec);
        spec.window_rope_theta = cases[i].theta;
        spec.attention_soft_cap = cases[i].caps[0];
        spec.logits_soft_cap = cases[i].caps[1];
        assert_error(model_create(&spec, DTYPE_FP32, BATCH, &self), ERR_CONFIG, cases[i].words);
    }
}

/* Patterns that mean the same are one in the spec of the model, and so in the identity of a run. */
static void equal_patterns_have_one_form(void **state)
{
    static const char *const pairs[][2] = {{"", "w"},      {"www", "w"},    {"wfw", "wf"},
                                           {"wfwf", "wf"}, {"ffww", "ffw"}, {"fwfww", "fw"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        model_spec spec = spec_of(WINDOW, pairs[i][0], 0);
        model *self;
        assert_ok(model_create(&spec, DTYPE_FP32, BATCH, &self));
        assert_string_equal(self->spec.window_pattern, pairs[i][1]);
        model_destroy(self);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        instance = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_reaches_as_far_as_windows_let_it),
        cmocka_unit_test(patterns_select_blocks),
        cmocka_unit_test(equal_patterns_have_one_form),
        cmocka_unit_test(windows_cost_less),
        cmocka_unit_test(wrong_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
