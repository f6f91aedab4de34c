/* Learning rates against the formulas of deepspeed/runtime/lr_schedules.py, written out again here
 * from its classes, and against values worked out by hand. */
#include "test_config_common.h"

#include <math.h>

struct expected {
    enum job_schedule type;
    double lr, low, high; /* high: warmup_max_lr as it applies */
    double start_ratio, floor_ratio;
    int64_t warmup, total;
    bool linear;
};

/* get_lr of the three classes with last_batch_iteration `last`. */
static double reference_rate(const struct expected *e, int64_t last)
{
    int64_t warmup = e->warmup > 2 ? e->warmup : 2;
    double inverse_log = 1.0 / log((double)warmup);
    double ramp = e->linear ? (double)last / (double)warmup : inverse_log * log((double)last + 1);
    if (e->type == JOB_WARMUP_COSINE_LR) {
        if (last < warmup)
            return e->lr * (e->start_ratio + ramp * (1.0 - e->start_ratio));
        int64_t span = e->total - warmup > 1 ? e->total - warmup : 1;
        double progress = (double)(last - warmup + 1) / (double)span;
        if (progress > 1.0)
            progress = 1.0;
        double ratio = (1 + cos(acos(-1.0) * progress)) / 2;
        ratio = e->floor_ratio + (1.0 - e->floor_ratio) * ratio;
        return e->lr * (ratio > 0 ? ratio : 0.0);
    }
    double gamma = 1.0;
    if (last < warmup) {
        gamma = ramp;
    } else if (e->type == JOB_WARMUP_DECAY_LR) {
        double span = (double)(e->total - warmup);
        gamma = (double)(e->total - last) / (span > 1.0 ? span : 1.0);
        if (gamma < 0)
            gamma = 0;
    }
    return e->low + (e->high - e->low) * gamma;
}

static void assert_rate(double got, double expected, uint64_t step)
{
    if (fabs(got - expected) > 1e-12 * fabs(expected) + 1e-300)
        fail_msg("step %llu: %.17g, not %.17g", (unsigned long long)step, got, expected);
}

static void formulas_agree(void **state)
{
    (void)state;
    static const struct {
        const char *scheduler;
        struct expected e;
    } cases[] = {
        {"{\"type\": \"WarmupLR\"}", {JOB_WARMUP_LR, 2e-3, 0, 2e-3, 0, 0, 1000, 0, false}},
        {"{\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 1e-4, \"warmup_max_lr\": 5e-3, "
         "\"warmup_num_steps\": 7, \"warmup_type\": \"linear\"}}",
         {JOB_WARMUP_LR, 2e-3, 1e-4, 5e-3, 0, 0, 7, 0, true}},
        {"{\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 1}}",
         {JOB_WARMUP_LR, 2e-3, 0, 2e-3, 0, 0, 1, 0, false}},
        {"{\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 50, "
         "\"warmup_num_steps\": 10}}",
         {JOB_WARMUP_DECAY_LR, 2e-3, 0, 1e-3, 0, 0, 10, 50, false}},
        {"{\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 20, "
         "\"warmup_num_steps\": 30, \"warmup_min_lr\": 1e-5, \"warmup_max_lr\": 4e-3, "
         "\"warmup_type\": \"linear\"}}",
         {JOB_WARMUP_DECAY_LR, 2e-3, 1e-5, 4e-3, 0, 0, 30, 20, true}},
        {"{\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 50, "
         "\"warmup_num_steps\": 10, \"warmup_max_lr\": null}}",
         {JOB_WARMUP_DECAY_LR, 2e-3, 0, 2e-3, 0, 0, 10, 50, false}},
        {"{\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 60, "
         "\"warmup_num_steps\": 10}}",
         {JOB_WARMUP_COSINE_LR, 2e-3, 0, 0, 0, 1e-4, 10, 60, false}},
        {"{\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 60, "
         "\"warmup_num_steps\": 5, \"warmup_min_ratio\": 0.1, \"cos_min_ratio\": 0.25, "
         "\"warmup_type\": \"linear\"}}",
         {JOB_WARMUP_COSINE_LR, 2e-3, 0, 0, 0.1, 0.25, 5, 60, true}},
        {"{\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 4, "
         "\"warmup_num_steps\": 8}}",
         {JOB_WARMUP_COSINE_LR, 2e-3, 0, 0, 0, 1e-4, 8, 4, false}},
    };
    log_set_level(LOG_QUIET); /* totals below the warm-up warn */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "{\"optimizer\": {\"params\": {\"lr\": 2e-3}}, "
                 "\"scheduler\": %s, " SMALL_MODEL ", " SMALL_REST "}",
                 cases[i].scheduler);
        job *self = read_good(text, NULL);
        assert_int_equal(self->scheduler.type, cases[i].e.type);
        for (uint64_t step = 1; step <= 1200; step++)
            assert_rate(job_learning_rate(self, step),
                        reference_rate(&cases[i].e, (int64_t)step - 1), step);
        job_destroy(self);
    }
    log_set_level(LOG_WARN);
}

/* Worked out by hand: log and linear warm-ups of 8 and 10, a decay over 10 to 50, a cosine. */
static void known_points(void **state)
{
    (void)state;
    job self = {.optimizer.lr = 3e-4, .scheduler.type = JOB_SCHEDULE_NONE};
    assert_rate(job_learning_rate(&self, 12345), 3e-4, 12345);
    self.scheduler.type = JOB_WARMUP_LR;
    self.scheduler.warmup_num_steps = 8;
    assert_rate(job_learning_rate(&self, 1), 0.0, 1);  /* ln 1 = 0 */
    assert_rate(job_learning_rate(&self, 2), 1e-4, 2); /* ln 2 / ln 8 = 1/3 */
    assert_rate(job_learning_rate(&self, 8), 3e-4, 8);
    assert_rate(job_learning_rate(&self, 9), 3e-4, 9);
    self.scheduler.type = JOB_WARMUP_DECAY_LR;
    self.scheduler.warmup_max_lr_given = true;
    self.scheduler.warmup_max_lr = 1e-3;
    self.scheduler.warmup_linear = true;
    self.scheduler.warmup_num_steps = 10;
    self.scheduler.total_num_steps = 50;
    assert_rate(job_learning_rate(&self, 6), 5e-4, 6);
    assert_rate(job_learning_rate(&self, 11), 1e-3, 11);
    assert_rate(job_learning_rate(&self, 31), 5e-4, 31); /* 20 of 40 left */
    assert_rate(job_learning_rate(&self, 51), 0.0, 51);
    assert_rate(job_learning_rate(&self, 99), 0.0, 99);
    self.scheduler.type = JOB_WARMUP_COSINE_LR;
    self.scheduler.cos_min_ratio = 0.5;
    assert_rate(job_learning_rate(&self, 30), 3e-4 * 0.75, 30); /* 20 of 40 done: halfway */
    assert_rate(job_learning_rate(&self, 50), 1.5e-4, 50);
    assert_rate(job_learning_rate(&self, 5000), 1.5e-4, 5000); /* stays there */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formulas_agree),
        cmocka_unit_test(known_points),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
