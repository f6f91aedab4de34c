/* fp16 with a dynamic loss scale against PyTorch's GradScaler (reference/README.md, the curves
 * fp16-*): the same steps skipped at the same scales, the same losses; and a run that is stopped in
 * the middle of a window of the scaler resumes with the same results. Argument: the curve's name.
 * */
#include <math.h>

#include "tests/train/train_fixture.h"
#include "tests/unit.h"

/* Both sides round activations to fp16 (2^-11 each), at places that differ a little: measured are
 * 6e-5 and 5e-4. */
#define LOSS_TOLERANCE 1e-3
#define NORM_TOLERANCE 5e-3
#define RATE_TOLERANCE 1e-6 /* fp32 in the metrics */

enum { SKIPS_MIN = 8, GROWTHS_MIN = 3 };

static const char *fixture_name = "fp16-gpt2-tied";

static job *make_job(json_t *fixture, const char *name, const char *const *more,
                     uint32_t more_count)
{
    const json_t *scaler = curve_member(fixture, "fp16");
    char texts[2][64];
    snprintf(texts[0], sizeof texts[0], "fp16.initial_scale_power=%llu",
             (unsigned long long)curve_integer(scaler, "initial_scale_power"));
    snprintf(texts[1], sizeof texts[1], "fp16.loss_scale_window=%llu",
             (unsigned long long)curve_integer(scaler, "loss_scale_window"));
    const char *sets[8] = {"fp16.enabled=true", "fp16.hysteresis=1", texts[0], texts[1]};
    assert_true(more_count <= 4);
    for (uint32_t i = 0; i < more_count; i++)
        sets[4 + i] = more[i];
    const char *corpus = fixture_path(NULL, "corpus.txt");
    curve_write_corpus(fixture, corpus);
    return curve_job(fixture, corpus, name, sets, 4 + more_count);
}

static void train(json_t *fixture, const char *name, const char *const *more, uint32_t more_count,
                  uint64_t stop_after, fixture_result *result)
{
    job *asked = make_job(fixture, name, more, more_count);
    fixture_call call = {.name = name, .stop_after = stop_after};
    fixture_train(asked, &call, result);
    job_destroy(asked);
    if (result->rc < 0 && !(stop_after && result->rc == ERR_STOPPED))
        fail_msg("%s: %s", name, result->error);
}

static bool is_near(double ours, double theirs, double tolerance)
{
    return fabs(ours - theirs) <= tolerance * fabs(theirs);
}

/* The largest relative differences of losses and norms. */
struct differences {
    double loss, norm;
};

static void check_step(const json_t *fixture, const json_t *line, uint64_t i,
                       struct differences *worst)
{
    bool skipped = json_is_true(json_array_get(curve_member(fixture, "skipped"), i));
    double scale = json_number_value(json_array_get(curve_member(fixture, "loss_scales"), i));
    double loss = json_number_value(json_array_get(curve_member(fixture, "losses"), i));
    unsigned long long step = i + 1;
    if (curve_number(line, "loss_scale") != scale)
        fail_msg("step %llu: loss scale %g, PyTorch's %g", step, curve_number(line, "loss_scale"),
                 scale);
    if (json_is_true(curve_member(line, "skipped")) != skipped)
        fail_msg("step %llu at scale %g is %sskipped, but PyTorch %s it", step, scale,
                 skipped ? "not " : "", skipped ? "skips" : "applies");
    double ours = curve_number(line, "loss");
    if (!is_near(ours, loss, LOSS_TOLERANCE))
        fail_msg("step %llu: loss %.6f, PyTorch's %.6f", step, ours, loss);
    worst->loss = fmax(worst->loss, fabs(ours / loss - 1));
    if (skipped)
        return;
    double norm = json_number_value(json_array_get(curve_member(fixture, "grad_norms"), i));
    double rate = json_number_value(json_array_get(curve_member(fixture, "learning_rates"), i));
    if (!is_near(curve_number(line, "grad_norm"), norm, NORM_TOLERANCE))
        fail_msg("step %llu: gradient norm %.6f, PyTorch's %.6f", step,
                 curve_number(line, "grad_norm"), norm);
    if (!is_near(curve_number(line, "lr"), rate, RATE_TOLERANCE))
        fail_msg("step %llu: learning rate %.9g, not %.9g", step, curve_number(line, "lr"), rate);
    worst->norm = fmax(worst->norm, fabs(curve_number(line, "grad_norm") / norm - 1));
}

/* The fixture shows what it is for. */
static void check_fixture(const json_t *fixture)
{
    uint64_t skips = 0, growths = 0, steps = curve_integer(fixture, "steps");
    double before = 0;
    for (uint64_t i = 0; i < steps; i++) {
        skips += json_is_true(json_array_get(curve_member(fixture, "skipped"), i));
        double scale = json_number_value(json_array_get(curve_member(fixture, "loss_scales"), i));
        growths += i > 0 && scale > before;
        before = scale;
    }
    assert_true(skips >= SKIPS_MIN && growths >= GROWTHS_MIN && skips < steps / 2);
    assert_true(curve_number(fixture, "margin") >= 1.5);
}

static void follow(const char *const *more, uint32_t more_count)
{
    static fixture_result result;
    json_t *fixture = curve_open(fixture_name);
    check_fixture(fixture);
    train(fixture, "fp16", more, more_count, 0, &result);
    uint64_t steps = curve_integer(fixture, "steps");
    assert_int_equal(result.step_count, steps);
    json_t *lines = fixture_metrics("fp16");
    struct differences worst = {0};
    for (uint64_t i = 0; i < steps; i++)
        check_step(fixture, json_array_get(lines, i), i, &worst);
    printf("%s, %s: last loss %.6f; largest relative differences: loss %.2g, gradient norm %.2g\n",
           fixture_name, more[0], result.losses[steps - 1], worst.loss, worst.norm);
    json_decref(lines);
    json_decref(fixture);
    fixture_remove("fp16");
}

static void follows_pytorch_after_backward(void **state)
{
    static const char *const more[] = {"schedule.update=after_backward"};
    follow(more, 1);
}

static void follows_pytorch_in_next_forward(void **state)
{
    static const char *const more[] = {"schedule.update=in_next_forward"};
    follow(more, 1);
}

/* Stops right after an overflow, within a window, and before the step that doubles the scale. */
static void stops_change_nothing(void **state)
{
    static fixture_result whole, parts;
    static const uint64_t stops[] = {2, 9, 14, 17, 46};
    static const char *const more[] = {"schedule.update=in_next_forward"};
    json_t *fixture = curve_open(fixture_name);
    train(fixture, "whole", more, 1, 0, &whole);
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++) {
        train(fixture, "parts", more, 1, stops[i], &parts);
        assert_int_equal(parts.rc, ERR_STOPPED);
        assert_int_equal(parts.step_count, stops[i]);
    }
    train(fixture, "parts", more, 1, 0, &parts);
    fixture_assert_same(&whole, &parts);
    for (uint64_t i = 0; i < whole.step_count; i++)
        assert_true(whole.skipped[i] == parts.skipped[i]);
    json_t *a = fixture_metrics("whole"), *b = fixture_metrics("parts");
    for (uint64_t i = 0; i < whole.step_count; i++)
        assert_true(curve_number(json_array_get(a, i), "loss_scale") ==
                    curve_number(json_array_get(b, i), "loss_scale"));
    json_decref(a);
    json_decref(b);
    json_decref(fixture);
    fixture_remove("whole");
    fixture_remove("parts");
}

int main(int argc, char **argv)
{
    if (argc > 1)
        fixture_name = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_pytorch_after_backward),
        cmocka_unit_test(follows_pytorch_in_next_forward),
        cmocka_unit_test(stops_change_nothing),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
