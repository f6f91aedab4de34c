/* The loss curves of plain PyTorch (reference/README.md) through the whole engine: from a text
 * file and a job file, with states spread over host memory and the drive. Argument: the
 * fixture's name. */
#include <math.h>

#include "tests/train/train_fixture.h"
#include "tests/unit.h"

static const char *fixture_name = "gpt2-tied";

static void follow(const char *update)
{
    static fixture_result result;
    json_t *fixture = curve_open(fixture_name);
    const char *corpus = fixture_path(NULL, "corpus.txt");
    curve_write_corpus(fixture, corpus);
    job *asked = curve_job(fixture, corpus, "curve", &update, 1);
    fixture_call call = {.name = "curve"};
    fixture_train(asked, &call, &result);
    job_destroy(asked);
    if (result.rc < 0)
        fail_msg("%s", result.error);
    uint64_t steps = curve_integer(fixture, "steps");
    assert_int_equal(result.step_count, steps);
    assert_true(result.summary.lanes[LANE_READ].bytes > 0);
    json_t *lines = fixture_metrics("curve");
    double worst = 0, worst_norm = 0;
    for (uint64_t i = 0; i < steps; i++) {
        double loss = json_number_value(json_array_get(curve_member(fixture, "losses"), i));
        double rate = json_number_value(json_array_get(curve_member(fixture, "learning_rates"), i));
        double norm = json_number_value(json_array_get(curve_member(fixture, "grad_norms"), i));
        double ours = curve_number(json_array_get(lines, i), "grad_norm");
        worst = fmax(worst, fabs(result.losses[i] / loss - 1));
        worst_norm = fmax(worst_norm, fabs(ours / norm - 1));
        if (!(fabs(result.losses[i] / loss - 1) < 1e-4))
            fail_msg("step %llu: loss %.7f, PyTorch's %.7f", (unsigned long long)i + 1,
                     result.losses[i], loss);
        if (!(fabs(result.rates[i] - rate) <= 1e-6 * rate)) /* fp32 in the metrics */
            fail_msg("step %llu: learning rate %.9g, not %.9g", (unsigned long long)i + 1,
                     result.rates[i], rate);
    }
    printf("%s, %s: last loss %.6f; largest relative differences: loss %.2g, gradient norm %.2g\n",
           fixture_name, update, result.losses[steps - 1], worst, worst_norm);
    assert_true(worst_norm < 1e-3);
    json_decref(lines);
    json_decref(fixture);
    fixture_remove("curve");
}

static void follows_pytorch_after_backward(void **state)
{
    follow("schedule.update=after_backward");
}

static void follows_pytorch_in_next_forward(void **state)
{
    follow("schedule.update=in_next_forward");
}

int main(int argc, char **argv)
{
    if (argc > 1)
        fixture_name = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_pytorch_after_backward),
        cmocka_unit_test(follows_pytorch_in_next_forward),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
