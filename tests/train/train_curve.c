/* See train_curve.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tests/train/train_curve.h"

#define STREAM_CORPUS 0x636f7270757300u

json_t *curve_open(const char *name)
{
    json_t *curves = fixture_json(FIXTURE_DIR "/curves.json");
    json_t *curve = json_incref(curve_member(curves, name));
    json_decref(curves);
    return curve;
}

json_t *curve_member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (value == NULL)
        fail_msg("the fixture has no key %s", key);
    return value;
}

double curve_number(const json_t *object, const char *key)
{
    return json_number_value(curve_member(object, key));
}

uint64_t curve_integer(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(curve_member(object, key));
}

static void write_spikes(const json_t *fixture, FILE *file)
{
    const json_t *source = curve_member(fixture, "corpus"), *begin;
    const json_t *spikes = json_object_get(fixture, "spikes");
    size_t i;
    json_array_foreach(spikes, i, begin)
    {
        assert_int_equal(fseek(file, (long)json_integer_value(begin), SEEK_SET), 0);
        for (uint64_t k = 0; k < curve_integer(source, "spike_bytes"); k++)
            fputc((int)curve_integer(source, "spike_byte"), file);
    }
}

void curve_write_corpus(const json_t *fixture, const char *path)
{
    const json_t *source = curve_member(fixture, "corpus");
    uint64_t count = curve_integer(source, "tokens"), alphabet = curve_integer(source, "alphabet");
    uint64_t seed = curve_integer(fixture, "seed"), token = 0;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (uint64_t i = 0; i < count; i++) {
        fputc((int)token, file);
        token = (5 * token + 17 + rng_below(seed, STREAM_CORPUS, i, 3)) % alphabet;
    }
    write_spikes(fixture, file);
    assert_int_equal(fclose(file), 0);
}

/* The job of the fixture's keys; jansson takes the reference of each value. */
static json_t *make_job(json_t *fixture, const char *corpus, const char *name)
{
    const json_t *training = curve_member(fixture, "training");
    json_error_t error;
    json_t *made = json_pack_ex(
        &error, 0,
        "{s:O, s:{s:[s], s:O}, s:{s:s, s:O, s:O}, s:O, s:O, s:O, s:{s:s, s:{s:O, s:O, s:O, s:O}}, "
        "s:{s:s, s:{s:O, s:O, s:s, s:O, s:O}}}",
        "model", curve_member(fixture, "model"), "data", "train", corpus, "seed",
        curve_member(fixture, "seed"), "run", "dir", fixture_path(name, NULL), "steps",
        curve_member(fixture, "steps"), "seed", curve_member(fixture, "seed"),
        "train_micro_batch_size_per_gpu", curve_member(fixture, "micro_batch"),
        "gradient_accumulation_steps", curve_member(fixture, "accumulation"), "gradient_clipping",
        curve_member(training, "gradient_clipping"), "optimizer", "type", "AdamW", "params", "lr",
        curve_member(training, "learning_rate"), "betas", curve_member(training, "betas"), "eps",
        curve_member(training, "epsilon"), "weight_decay", curve_member(training, "weight_decay"),
        "scheduler", "type", "WarmupCosineLR", "params", "total_num_steps",
        curve_member(fixture, "steps"), "warmup_num_steps", curve_member(training, "warmup_steps"),
        "warmup_type", "linear", "warmup_min_ratio", curve_member(training, "warmup_min_ratio"),
        "cos_min_ratio", curve_member(training, "cos_min_ratio"));
    if (!made)
        fail_msg("the job cannot be made: %s", error.text);
    json_t *tiers = json_pack("{s:{s:s}, s:{s:s}, s:[{s:s, s:s}], s:{s:s, s:s, s:s, s:s, "
                              "s:[{s:s, s:s, s:s}, {s:s, s:s, s:s}]}}",
                              "device", "budget", "32MiB", "host", "budget", "32MiB", "nvme",
                              "path", fixture_path(name, ".nvme"), "budget", "64MiB", "place",
                              "params", "nvme", "grads", "host", "optimizer", "nvme", "activations",
                              "host", "rules", "units", "1", "kind", "optimizer", "tier", "host",
                              "units", "0", "kind", "grads", "tier", "nvme");
    assert_non_null(tiers);
    json_object_set_new(made, "tiers", tiers);
    return made;
}

job *curve_job(json_t *fixture, const char *corpus, const char *name, const char *const *sets,
               uint32_t set_count)
{
    json_t *made = make_job(fixture, corpus, name);
    assert_int_equal(json_dump_file(made, fixture_path(name, ".json"), JSON_INDENT(1)), 0);
    json_decref(made);
    job *asked;
    if (job_read(fixture_path(name, ".json"), sets, set_count, &asked) < 0)
        fail_msg("%s", err_text());
    return asked;
}
