/* Updates in the pauses of passes that a program computes (sluice_module_pause): they run while the
 * use is held, the trace shows them there, and they change no bit. A step may be given up after
 * such a pause, and an update may fail in it. */
#include <errno.h>

#include "engine/engine.h"
#include "kernels/ops.h"
#include "sluice_internal.h"
#include "tests/api/toy_module.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { STEPS = 6, ASKED = 100 };

/* The budgets leave little room for state that is read ahead, so that tiles are read while a use is
 * held. */
static const char *const in_next_forward[] = {
    "tiers.place.params=nvme",  "tiers.place.grads=nvme",   "tiers.place.optimizer=nvme",
    "tiers.host.budget=448KiB", "schedule.tile_elems=4096", "schedule.update=in_next_forward"};

static const char *run_dir; /* of the latest job */

static toy_job new_job(enum dtype type)
{
    toy_job made = toy_new_job(type);
    run_dir = made.dir;
    made.lends = true;
    made.more = ", \"gradient_clipping\": 0";
    return made;
}

static void end_run(toy *self)
{
    toy_train(self, STEPS);
    (void)toy_evaluate(self);
    assert_int_equal(sluice_module_pause(self->run), 0); /* no use is held */
    toy_close(self);
}

/* A run of a few steps with all states on a drive, so that updates wait for reads; closed. */
static void run_steps(toy *self, enum dtype type, const char *const *set, size_t set_count,
                      uint32_t asked_pauses)
{
    const toy_job asked = new_job(type);
    toy_open(self, &asked, set, set_count);
    self->asked_pauses = asked_pauses;
    end_run(self);
}

/* Passes of the run at hand in whose trace updates lie within them, as long as they say. */
static uint64_t count_paused_passes(void)
{
    const double rounding_us = 0.01; /* times are written in thousandths of a microsecond */
    char path[FIXTURE_PATH_BYTES + 64];
    uint64_t count = 0;
    snprintf(path, sizeof path, "%s/trace.json", run_dir);
    json_t *written = fixture_json(path), *pass, *other;
    const json_t *events = json_object_get(written, "traceEvents");
    size_t i, k;
    json_array_foreach(events, i, pass)
    {
        json_t *paused_us = json_object_get(json_object_get(pass, "args"), "paused_us");
        if (!paused_us)
            continue;
        assert_string_equal(json_string_value(json_object_get(pass, "cat")), "compute");
        double begin = json_number_value(json_object_get(pass, "ts")), inner_us = 0;
        double end = begin + json_number_value(json_object_get(pass, "dur"));
        json_array_foreach(events, k, other)
        {
            const char *category = json_string_value(json_object_get(other, "cat"));
            double at = json_number_value(json_object_get(other, "ts"));
            if (category && strcmp(category, "update") == 0 && at >= begin && at < end)
                inner_us += json_number_value(json_object_get(other, "dur")) - rounding_us;
        }
        assert_true(inner_us > 0);
        assert_true(inner_us <= json_number_value(paused_us));
        count++;
    }
    json_decref(written);
    return count;
}

/* Returns in how many passes updates ran. */
static uint64_t check_pauses(enum dtype type, const char *const *set, size_t set_count)
{
    static toy plain, self;
    run_steps(&plain, type, set, set_count, 0);
    assert_int_equal(count_paused_passes(), 0);
    run_steps(&self, type, set, set_count, ASKED);
    uint64_t passes = count_paused_passes();
    assert_true(passes <= self.pauses);
    assert_memory_equal(self.losses, plain.losses, sizeof self.losses);
    assert_memory_equal(self.norms, plain.norms, sizeof self.norms);
    assert_memory_equal(self.seen, plain.seen, sizeof self.seen);
    return passes;
}

/* An update of lent gradients seldom has to wait for its state. */
static void updates_run_while_a_use_is_held(void **state)
{
    const char *const lent[] = {"tiers.place.params=host",        "tiers.place.optimizer=nvme",
                                "schedule.update=in_backward",    "schedule.tile_elems=4096",
                                "bf16.check_grad_overflow=false", "tiers.host.budget=544KiB"};
    assert_true(check_pauses(DTYPE_FP32, in_next_forward, 6) > 0);
    (void)check_pauses(DTYPE_BF16, lent, 6);
}

/* ---- ends ---- */

/* Trains until updates run in a pause, whose use stays held. */
static void train_into_pause(toy *self)
{
    self->asked_pauses = ASKED;
    self->stays_in_pause = true;
    toy_train(self, STEPS);
    assert_int_equal(self->pauses, 1);
    self->stays_in_pause = false;
}

static void a_step_is_given_up_after_a_pause(void **state)
{
    static toy plain, self;
    run_steps(&plain, DTYPE_FP32, in_next_forward, 6, 0);
    const toy_job asked = new_job(DTYPE_FP32);
    toy_open(&self, &asked, in_next_forward, 6);
    train_into_pause(&self);
    assert_int_equal(sluice_module_abort(self.run, "enough"), SLUICE_DONE);
    end_run(&self);
    assert_memory_equal(self.losses, plain.losses, sizeof self.losses);
    assert_memory_equal(self.seen, plain.seen, sizeof self.seen);
}

static const toy *failing;
static const kernel_ops *real_ops;

static int fail_in_pause(kernel_context *context, void *stream, const update_args *args)
{
    if (failing->is_in_pause)
        return err_set(-EIO, "an update failed in a pause");
    return real_ops->update(context, stream, args);
}

/* From now on updates of the run fail in pauses. */
static void make_updates_fail(const toy *self)
{
    static kernel_ops ops;
    struct sluice_use use;
    assert_int_equal(sluice_module_begin(self->run, 1), SLUICE_DONE);
    assert_int_equal(sluice_module_wait(self->run, &use), SLUICE_DONE);
    struct setup *setup = ((struct engine *)self->run->use->pause.user)->setup;
    assert_int_equal(sluice_module_abort(self->run, "seen"), SLUICE_DONE);
    failing = self;
    real_ops = setup->ops;
    ops = *real_ops;
    ops.update = fail_in_pause;
    setup->ops = &ops;
}

/* The use goes on to its end; what comes next fails. The run goes on from its last commit. */
static void an_update_fails_in_a_pause(void **state)
{
    static toy plain, self;
    struct sluice_use use;
    run_steps(&plain, DTYPE_FP32, in_next_forward, 6, 0);
    const toy_job asked = new_job(DTYPE_FP32);
    toy_open(&self, &asked, in_next_forward, 6);
    make_updates_fail(&self);
    train_into_pause(&self);
    uint64_t made = self.steps_made;
    assert_int_equal(sluice_module_done(self.run, NULL), SLUICE_DONE);
    assert_int_equal(sluice_module_wait(self.run, &use), SLUICE_FAILED);
    assert_non_null(strstr(sluice_error(), "an update failed in a pause"));
    assert_int_equal(sluice_module_end(self.run, NULL), SLUICE_FAILED);
    assert_int_equal(sluice_close(self.run), SLUICE_FAILED);
    toy_open(&self, &asked, in_next_forward, 6);
    uint64_t begun = self.steps_made;
    assert_true(begun <= made);
    end_run(&self);
    assert_memory_equal(self.losses + begun, plain.losses + begun,
                        (STEPS - begun) * sizeof *self.losses);
    assert_memory_equal(self.seen, plain.seen, sizeof self.seen);
}

/* run.paranoid has scratch for one op at a time. */
static void paranoid_runs_have_none(void **state)
{
    static toy self;
    const char *const set[] = {"tiers.place.optimizer=nvme", "run.paranoid=true"};
    run_steps(&self, DTYPE_FP32, set, 2, ASKED);
    assert_int_equal(self.pauses, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_run_while_a_use_is_held),
        cmocka_unit_test(a_step_is_given_up_after_a_pause),
        cmocka_unit_test(an_update_fails_in_a_pause),
        cmocka_unit_test(paranoid_runs_have_none),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
