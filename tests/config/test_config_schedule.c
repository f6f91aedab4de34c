/* Learning rates and momenta against the numbers that DeepSpeed's own classes gave, two thousand
 * steps each (tests/reference/lr_schedules.json), and against values worked out by hand. */
#include "tests/config/test_config_common.h"

#include <jansson.h>
#include <math.h>

enum { STEPS_MAX = 4096 };

/* The values of a packed series: differences of some order, in a unit, "n*k" for k equal ones. */
static void unpack(const json_t *series, int order, double *values, size_t count)
{
    const char *at = json_string_value(json_object_get(series, "differences"));
    double unit = json_number_value(json_object_get(series, "unit"));
    int64_t sums[8] = {0};
    size_t used = 0;
    assert_true(at && unit > 0 && order < 8 && count <= STEPS_MAX);
    while (*at != '\0') {
        char *end;
        sums[order] = strtoll(at, &end, 10);
        assert_true(end != at);
        long repeats = *end == '*' ? strtol(end + 1, &end, 10) : 1;
        for (; repeats > 0; repeats--) {
            assert_true(used < count);
            for (int i = order; i > 0; i--)
                sums[i - 1] += sums[i];
            values[used++] = (double)sums[0] * unit;
        }
        at = end + strspn(end, " ");
    }
    assert_int_equal(used, count);
}

/* Each within 1e-6 of itself. Expected numbers have twelve digits of their series' largest, of
 * which the last may be off by one half. */
static void assert_series(const json_t *series, int order, size_t count, const job *self,
                          double (*value)(const job *, uint64_t), const char *what)
{
    static double expected[STEPS_MAX];
    unpack(series, order, expected, count);
    double unit = json_number_value(json_object_get(series, "unit"));
    double off_max = 0;
    for (size_t i = 0; i < count; i++) {
        double got = value(self, i + 1), off = fabs(got - expected[i]);
        if (!(off <= fmin(1e-6 * expected[i], 1e-9) + 0.51 * unit))
            fail_msg("%s: update %zu: %.12g, not %.12g", what, i + 1, got, expected[i]);
        if (expected[i] > 0 && off / expected[i] > off_max)
            off_max = off / expected[i];
    }
    print_message("%s: %zu updates, at most %.1e off\n", what, count, off_max);
}

static void deepspeed_agrees(void **state)
{
    json_t *fixture =
        json_load_file(SLUICE_SOURCE_DIR "/tests/reference/lr_schedules.json", 0, NULL);
    assert_non_null(fixture);
    size_t count = (size_t)json_integer_value(json_object_get(fixture, "steps"));
    int order = (int)json_integer_value(json_object_get(fixture, "order"));
    assert_true(count >= 2000);
    uint32_t seen = 0, momenta = 0;
    size_t idx;
    json_t *item;
    log_set_level(LOG_QUIET); /* totals below the warm-up and replaced betas warn */
    json_array_foreach(json_object_get(fixture, "cases"), idx, item)
    {
        json_t *document = json_loads(quoted(SMALL_JOB), 0, NULL);
        json_object_set(document, "scheduler", json_object_get(item, "scheduler"));
        json_object_set(document, "optimizer", json_object_get(item, "optimizer"));
        char *text = json_dumps(document, 0), *what = NULL;
        job *self = read_good(text, NULL);
        what = json_dumps(json_object_get(item, "scheduler"), JSON_COMPACT);
        assert_series(json_object_get(item, "learning_rates"), order, count, self,
                      job_learning_rate, what);
        const json_t *momentum = json_object_get(item, "momenta");
        if (momentum) {
            assert_series(momentum, order, count, self, job_momentum, "its momenta");
            assert_true(self->optimizer.beta2 == json_number_value(json_object_get(item, "beta2")));
            momenta++;
        } else {
            assert_true(job_momentum(self, 1) == 0.85 && job_momentum(self, 1234) == 0.85);
            assert_true(self->optimizer.beta2 == 0.98);
        }
        seen |= 1u << self->scheduler.type;
        job_destroy(self);
        free(what);
        free(text);
        json_decref(document);
    }
    log_set_level(LOG_WARN);
    /* All five, and momentum: an emptied fixture must not pass. */
    assert_int_equal(seen, 1u << JOB_WARMUP_LR | 1u << JOB_WARMUP_DECAY_LR |
                               1u << JOB_WARMUP_COSINE_LR | 1u << JOB_ONE_CYCLE |
                               1u << JOB_LR_RANGE_TEST);
    assert_true(momenta >= 3);
    json_decref(fixture);
}

static void assert_rate(double got, double expected, uint64_t step)
{
    if (fabs(got - expected) > 1e-12 * fabs(expected) + 1e-300)
        fail_msg("step %llu: %.17g, not %.17g", (unsigned long long)step, got, expected);
}

/* Worked out by hand: log and linear warm-ups of 8 and 10, a decay over 10 to 50, a cosine. Update
 * s runs with last_batch_iteration s - 2, and so the start of a warm-up is seen twice. */
static void known_points(void **state)
{
    job self = {.optimizer.lr = 3e-4, .scheduler.type = JOB_SCHEDULE_NONE};
    assert_rate(job_learning_rate(&self, 12345), 3e-4, 12345);
    self.scheduler.type = JOB_WARMUP_LR;
    self.scheduler.warmup_num_steps = 8;
    assert_rate(job_learning_rate(&self, 1), 0.0, 1);
    assert_rate(job_learning_rate(&self, 2), 0.0, 2);  /* ln 1 = 0 */
    assert_rate(job_learning_rate(&self, 3), 1e-4, 3); /* ln 2 / ln 8 = 1/3 */
    assert_rate(job_learning_rate(&self, 9), 3e-4, 9);
    assert_rate(job_learning_rate(&self, 10), 3e-4, 10);
    self.scheduler.type = JOB_WARMUP_DECAY_LR;
    self.scheduler.warmup_max_lr_given = true;
    self.scheduler.warmup_max_lr = 1e-3;
    self.scheduler.warmup_linear = true;
    self.scheduler.warmup_num_steps = 10;
    self.scheduler.total_num_steps = 50;
    assert_rate(job_learning_rate(&self, 7), 5e-4, 7);
    assert_rate(job_learning_rate(&self, 12), 1e-3, 12);
    assert_rate(job_learning_rate(&self, 32), 5e-4, 32); /* 20 of 40 left */
    assert_rate(job_learning_rate(&self, 52), 0.0, 52);
    assert_rate(job_learning_rate(&self, 99), 0.0, 99);
    self.scheduler.type = JOB_WARMUP_COSINE_LR;
    self.scheduler.cos_min_ratio = 0.5;
    self.scheduler.warmup_min_ratio = 0.1;
    assert_rate(job_learning_rate(&self, 1), 0.0, 1);           /* whatever the ratio says */
    assert_rate(job_learning_rate(&self, 2), 3e-5, 2);          /* its start */
    assert_rate(job_learning_rate(&self, 31), 3e-4 * 0.75, 31); /* 20 of 40 done: halfway */
    assert_rate(job_learning_rate(&self, 51), 1.5e-4, 51);
    assert_rate(job_learning_rate(&self, 5000), 1.5e-4, 5000); /* stays there */
}

/* Keys of a scheduler that are not numbers, and defaults that depend on the optimizer. */
static void schedulers_are_read(void **state)
{
    job *self = read_good(
        SMALL_WITH("'optimizer': {'type': 'adagrad'}, 'scheduler': {'type': 'OneCycle','params': "
                   "{'cycle_min_lr': 1e-4, 'cycle_max_lr': 1e-3,'cycle_momentum': false}},"),
        NULL);
    assert_false(self->scheduler.cycle.momentum);
    assert_int_equal(self->scheduler.cycle.first_step_size, 2000);
    assert_int_equal(self->scheduler.cycle.second_step_size, 2000);
    assert_true(self->optimizer.lr == 1e-2);
    job_destroy(self);
    log_set_level(LOG_QUIET);
    self =
        read_good(SMALL_WITH("'optimizer': {'type': 'adagrad'}, 'scheduler': {'type': "
                             "'OneCycle','params': {'cycle_min_lr': 1e-4, 'cycle_max_lr': 1e-3}},"),
                  NULL);
    assert_false(self->scheduler.cycle.momentum); /* there is none */
    job_destroy(self);
    log_set_level(LOG_WARN);
    self =
        read_good(SMALL_WITH("'optimizer': {'type': 'LION'}, 'scheduler': {'type': "
                             "'OneCycle','params': {'cycle_min_lr': 1e-4, 'cycle_max_lr': 1e-3}},"),
                  NULL);
    assert_true(job_momentum(self, 1) == 0.8 && self->optimizer.beta2 == 0.99);
    job_destroy(self);
    /* Values that a trainer above DeepSpeed would put in the place of "auto". */
    self = read_good(
        SMALL_WITH("'optimizer': {'params': {'lr': 2e-5}}, 'scheduler': {'type': 'WarmupDecayLR', "
                   "'params': {'warmup_min_lr': 'auto', 'warmup_max_lr': 'auto', "
                   "'warmup_num_steps': 10, 'total_num_steps': 'auto'}},"),
        "run.steps=321");
    assert_int_equal(self->scheduler.total_num_steps, 321);
    assert_false(self->scheduler.warmup_max_lr_given);
    assert_rate(job_learning_rate(self, 12), 2e-5, 12);
    job_destroy(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepspeed_agrees),
        cmocka_unit_test(known_points),
        cmocka_unit_test(schedulers_are_read),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
