/* The loss curves of plain PyTorch (reference/README.md) through the whole engine: from a text file and
 * a job file, with states spread over host memory and the drive. Argument: the fixture's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "base/rng.h"
#include "train_fixture.h"

#define STREAM_CORPUS 0x636f7270757300u

static const char *fixture_name = "gpt2-tied";

static json_t *member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (value == NULL)
        fail_msg("the fixture has no key %s", key);
    return value;
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(member(object, key));
}

static uint64_t integer(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(member(object, key));
}

static void write_corpus(const json_t *fixture, const char *path)
{
    const json_t *source = member(fixture, "corpus");
    uint64_t count = integer(source, "tokens"), alphabet = integer(source, "alphabet");
    uint64_t seed = integer(fixture, "seed"), token = 0;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (uint64_t i = 0; i < count; i++) {
        fputc((int)token, file);
        token = (5 * token + 17 + rng_below(seed, STREAM_CORPUS, i, 3)) % alphabet;
    }
    assert_int_equal(fclose(file), 0);
}

/* The job of the fixture's keys; jansson takes the reference of each value. */
static json_t *make_job(json_t *fixture, const char *corpus)
{
    const json_t *training = member(fixture, "training");
    json_error_t error;
    json_t *made = json_pack_ex(
        &error, 0,
        "{s:O, s:{s:[s], s:O}, s:{s:s, s:O, s:O}, s:O, s:O, s:O, s:{s:s, s:{s:O, s:O, s:O, s:O}}, "
        "s:{s:s, s:{s:O, s:O, s:s, s:O, s:O}}}",
        "model", member(fixture, "model"), "data", "train", corpus, "seed", member(fixture, "seed"),
        "run", "dir", fixture_path("curve", NULL), "steps", member(fixture, "steps"), "seed",
        member(fixture, "seed"), "train_micro_batch_size_per_gpu", member(fixture, "micro_batch"),
        "gradient_accumulation_steps", member(fixture, "accumulation"), "gradient_clipping",
        member(training, "gradient_clipping"), "optimizer", "type", "AdamW", "params", "lr",
        member(training, "learning_rate"), "betas", member(training, "betas"), "eps",
        member(training, "epsilon"), "weight_decay", member(training, "weight_decay"), "scheduler",
        "type", "WarmupCosineLR", "params", "total_num_steps", member(fixture, "steps"),
        "warmup_num_steps", member(training, "warmup_steps"), "warmup_type", "linear",
        "warmup_min_ratio", member(training, "warmup_min_ratio"), "cos_min_ratio",
        member(training, "cos_min_ratio"));
    if (!made)
        fail_msg("the job cannot be made: %s", error.text);
    json_t *tiers = json_pack("{s:{s:s}, s:{s:s}, s:[{s:s, s:s}], s:{s:s, s:s, s:s, s:s, "
                              "s:[{s:s, s:s, s:s}, {s:s, s:s, s:s}]}}",
                              "device", "budget", "32MiB", "host", "budget", "32MiB", "nvme",
                              "path", fixture_path("curve", ".nvme"), "budget", "64MiB", "place",
                              "params", "nvme", "grads", "host", "optimizer", "nvme", "activations",
                              "host", "rules", "units", "1", "kind", "optimizer", "tier", "host",
                              "units", "0", "kind", "grads", "tier", "nvme");
    assert_non_null(tiers);
    json_object_set_new(made, "tiers", tiers);
    return made;
}

static void follow(const char *update)
{
    static fixture_result result;
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.json", FIXTURE_DIR, fixture_name);
    json_t *fixture = fixture_json(path);
    const char *corpus = fixture_path(NULL, "corpus.txt");
    write_corpus(fixture, corpus);
    json_t *made = make_job(fixture, corpus);
    assert_int_equal(json_dump_file(made, fixture_path("curve", ".json"), JSON_INDENT(1)), 0);
    json_decref(made);
    job *asked;
    int rc = job_read(fixture_path("curve", ".json"), &update, 1, &asked);
    if (rc < 0)
        fail_msg("%s", err_text());
    fixture_call call = {.name = "curve"};
    fixture_train(asked, &call, &result);
    job_destroy(asked);
    if (result.rc < 0)
        fail_msg("%s", result.error);
    uint64_t steps = integer(fixture, "steps");
    assert_int_equal(result.step_count, steps);
    assert_true(result.summary.lanes[LANE_READ].bytes > 0);
    json_t *lines = fixture_metrics("curve");
    double worst = 0, worst_norm = 0;
    for (uint64_t i = 0; i < steps; i++) {
        double loss = json_number_value(json_array_get(member(fixture, "losses"), i));
        double rate = json_number_value(json_array_get(member(fixture, "learning_rates"), i));
        double norm = json_number_value(json_array_get(member(fixture, "grad_norms"), i));
        double ours = number(json_array_get(lines, i), "grad_norm");
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
    (void)state;
    follow("schedule.update=after_backward");
}

static void follows_pytorch_in_next_forward(void **state)
{
    (void)state;
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
