/* The loss scaler against the scales that DeepSpeed's and PyTorch's own classes gave for the same
 * overflows (reference/loss_scale.json), written-out cases of its rules, and its way through a
 * manifest at any step. */
#include <jansson.h>
#include <math.h>

#include "base/rng.h"
#include "setup/loss_scale.h"
#include "tests/unit.h"

#define STREAM_OVERFLOW 0x6f766572666c6f77u
#define STREAM_RATE     0x72617465u

enum { CASES_MIN = 15 };

static struct job *make_job(double static_scale, uint64_t power, uint64_t window,
                            uint64_t hysteresis, bool consecutive, double minimum)
{
    struct job *asked = test_calloc(1, sizeof *asked);
    asked->type = DTYPE_FP16;
    asked->fp16.loss_scale = static_scale;
    asked->fp16.initial_scale_power = power;
    asked->fp16.loss_scale_window = window;
    asked->fp16.hysteresis = hysteresis;
    asked->fp16.consecutive_hysteresis = consecutive;
    asked->fp16.min_loss_scale = minimum;
    return asked;
}

static loss_scaler make(uint64_t power, uint64_t window, uint64_t hysteresis, bool consecutive,
                        double minimum)
{
    loss_scaler self;
    struct job *asked = make_job(0, power, window, hysteresis, consecutive, minimum);
    loss_scaler_init(&self, asked);
    test_free(asked);
    return self;
}

/* 'o' overflows, '.' does not; the log2 of the scale after each step. */
static void expect_powers(loss_scaler *self, const char *steps, const int *powers)
{
    for (int i = 0; steps[i]; i++) {
        assert_ok(loss_scaler_update(self, steps[i] == 'o'));
        if (self->scale != ldexp(1.0, powers[i]))
            fail_msg("step %d of %s: the scale is %g, not 2^%d", i, steps, self->scale, powers[i]);
    }
}

static void rules_in_small(void **state)
{
    loss_scaler self = make(4, 3, 1, false, 1);
    assert_true(self.scale == 16);
    expect_powers(&self, "...o..o....oo", (int[]){4, 4, 5, 4, 4, 4, 3, 3, 3, 4, 4, 3, 2});
    /* Two overflows to halve; back only when the scale grows. */
    self = make(4, 3, 2, false, 1);
    expect_powers(&self, "o..o.o...oo", (int[]){4, 4, 4, 3, 3, 2, 2, 2, 3, 3, 2});
    /* Back at any step without overflow. */
    self = make(4, 3, 2, true, 1);
    expect_powers(&self, "o.o.oo.oooo", (int[]){4, 4, 4, 4, 4, 3, 3, 3, 2, 1, 0});
    assert_int_equal(loss_scaler_update(&self, true), ERR_DIVERGED);
}

static void the_minimum_ends_training(void **state)
{
    loss_scaler self = make(2, 100, 1, false, 3);
    assert_ok(loss_scaler_update(&self, false));
    assert_ok(loss_scaler_update(&self, true));
    assert_true(self.scale == 3);
    loss_scaler before = self;
    assert_int_equal(loss_scaler_update(&self, true), ERR_DIVERGED);
    assert_memory_equal(&self, &before, sizeof self);
    static const char *const words[] = {"loss scale, 3 (", "fp16.min_loss_scale", "bf16"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strstr(err_text(), words[i]))
            fail_msg("no \"%s\" in: %s", words[i], err_text());
}

static void other_scales_stay(void **state)
{
    static const struct {
        enum dtype type;
        double asked, scale;
    } cases[] = {{DTYPE_FP16, 128.5, 128.5}, {DTYPE_BF16, 128.5, 1}, {DTYPE_FP32, 0, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct job *asked = make_job(cases[c].asked, 16, 1, 1, false, 1);
        asked->type = cases[c].type;
        loss_scaler self;
        loss_scaler_init(&self, asked);
        for (uint64_t i = 0; i < 100; i++) {
            assert_true(self.scale == cases[c].scale);
            assert_ok(loss_scaler_update(&self, i % 3 != 0));
        }
        assert_int_equal(self.iteration, 100);
        test_free(asked);
    }
}

/* The scale stops growing at the largest double. */
static void scales_stay_finite(void **state)
{
    loss_scaler self = make(UINT64_MAX, 1, 1, false, 1);
    for (int i = 0; i < 10; i++) {
        assert_true(self.scale == ldexp(1.0, 1023));
        assert_ok(loss_scaler_update(&self, false));
    }
    assert_ok(loss_scaler_update(&self, true));
    assert_true(self.scale == ldexp(1.0, 1022));
}

/* ---- against the libraries ---- */

static json_t *read_fixture(void)
{
    json_error_t error;
    json_t *fixture = json_load_file(FIXTURE_DIR "/loss_scale.json", 0, &error);
    if (!fixture)
        fail_msg("%s: %s", FIXTURE_DIR, error.text);
    return fixture;
}

static uint64_t integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return (uint64_t)json_integer_value(value);
}

static loss_scaler make_of(const json_t *item)
{
    return make(integer(item, "power"), integer(item, "window"), integer(item, "hysteresis"),
                json_is_true(json_object_get(item, "consecutive")),
                json_number_value(json_object_get(item, "minimum")));
}

static bool overflows(const json_t *item, uint64_t block, uint64_t step)
{
    const json_t *rates = json_object_get(item, "rates");
    uint64_t seed = integer(item, "seed");
    uint64_t drawn = rng_below(seed, STREAM_RATE, step / block, json_array_size(rates));
    uint64_t rate = (uint64_t)json_integer_value(json_array_get(rates, drawn));
    return rng_below(seed, STREAM_OVERFLOW, step, 1000) < rate;
}

/* Through a manifest into a new scaler. */
static void pass_through_manifest(loss_scaler *self, const json_t *item)
{
    static manifest record;
    loss_scaler resumed = make_of(item);
    loss_scaler_save(self, &record);
    assert_ok(loss_scaler_load(&resumed, &record));
    assert_memory_equal(&resumed, self, sizeof resumed);
    *self = resumed;
}

/* The number of overflows. */
static uint64_t follow(const json_t *item, uint64_t steps, uint64_t block)
{
    const char *name = json_string_value(json_object_get(item, "name"));
    const json_t *changes = json_object_get(item, "changes");
    const json_t *stopped_at = json_object_get(item, "stopped_at");
    loss_scaler self = make_of(item);
    double expected = self.scale;
    size_t next = 0;
    uint64_t overflow_count = 0, step = 0;
    for (; step < steps; step++) {
        bool overflow = overflows(item, block, step);
        overflow_count += overflow;
        if (loss_scaler_update(&self, overflow) < 0)
            break;
        const json_t *change = json_array_get(changes, next);
        if (change && (uint64_t)json_integer_value(json_array_get(change, 0)) == step) {
            expected = json_number_value(json_array_get(change, 1));
            next++;
        }
        if (self.scale != expected)
            fail_msg("%s, step %llu: the scale is %g, not %g", name, (unsigned long long)step,
                     self.scale, expected);
        if (rng_below(integer(item, "seed"), 1, step, 10) == 0)
            pass_through_manifest(&self, item);
    }
    assert_int_equal(next, json_array_size(changes));
    if (json_is_integer(stopped_at))
        assert_int_equal(step, json_integer_value(stopped_at));
    else
        assert_int_equal(step, steps);
    assert_int_equal(self.iteration, step);
    return overflow_count;
}

static void follows_deepspeed_and_pytorch(void **state)
{
    json_t *fixture = read_fixture();
    const json_t *cases = json_object_get(fixture, "cases"), *item;
    size_t i, pytorch_count = 0;
    uint64_t overflow_count = 0;
    json_array_foreach(cases, i, item)
    {
        overflow_count += follow(item, integer(fixture, "steps"), integer(fixture, "block"));
        pytorch_count +=
            strncmp(json_string_value(json_object_get(item, "name")), "pytorch", 7) == 0;
    }
    assert_true(i >= CASES_MIN && pytorch_count >= 5 && i - pytorch_count >= 10);
    assert_true(overflow_count > 1000);
    printf("%zu sequences with %llu overflows, of %s\n", i, (unsigned long long)overflow_count,
           json_string_value(json_object_get(fixture, "made_by")));
    json_decref(fixture);
}

/* ---- stored state ---- */

static void impossible_states_are_refused(void **state)
{
    static manifest good, bad;
    loss_scaler self = make(8, 4, 3, false, 1), before = self;
    good.point = (manifest_point){.step = 12,
                                  .loss_scale = 64,
                                  .scale_iteration = 12,
                                  .scale_last_overflow = 11,
                                  .scale_hysteresis_left = 1};
    static const double scales[] = {0, -1, INFINITY, NAN};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        bad = good;
        bad.point.loss_scale = scales[i];
        assert_int_equal(loss_scaler_load(&self, &bad), ERR_CORRUPT);
    }
    static const int64_t lasts[] = {12, -2, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof lasts / sizeof lasts[0]; i++) {
        bad = good;
        bad.point.scale_last_overflow = lasts[i];
        assert_int_equal(loss_scaler_load(&self, &bad), ERR_CORRUPT);
    }
    bad = good;
    bad.point.scale_iteration = UINT64_MAX;
    assert_int_equal(loss_scaler_load(&self, &bad), ERR_CORRUPT);
    bad = good;
    bad.point.scale_hysteresis_left = 0;
    assert_error(loss_scaler_load(&self, &bad), ERR_CORRUPT, "step 12");
    assert_memory_equal(&self, &before, sizeof self);
    assert_ok(loss_scaler_load(&self, &good));
    assert_true(self.scale == 64 && self.last_overflow == 11 && self.iteration == 12);
}

/* The settings of the resuming job apply. */
static void the_job_rules_on_resume(void **state)
{
    static manifest record;
    record.point = (manifest_point){.loss_scale = 64,
                                    .scale_iteration = 12,
                                    .scale_last_overflow = -1,
                                    .scale_hysteresis_left = 7};
    loss_scaler self = make(8, 4, 3, false, 1);
    assert_ok(loss_scaler_load(&self, &record));
    assert_int_equal(self.hysteresis_left, 3);
    struct job *asked = make_job(512, 0, 1, 1, false, 1);
    loss_scaler_init(&self, asked);
    assert_ok(loss_scaler_load(&self, &record));
    assert_true(self.scale == 512 && self.iteration == 12);
    test_free(asked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_in_small),
        cmocka_unit_test(the_minimum_ends_training),
        cmocka_unit_test(other_scales_stay),
        cmocka_unit_test(scales_stay_finite),
        cmocka_unit_test(follows_deepspeed_and_pytorch),
        cmocka_unit_test(impossible_states_are_refused),
        cmocka_unit_test(the_job_rules_on_resume),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
