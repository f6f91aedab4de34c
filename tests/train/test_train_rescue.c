/* Failures beside the training itself lose nothing that was trained: files that cannot be written,
 * and a loss that is no longer finite. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "setup/setup.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "train/train.h"

static const fixture_model shape = {.family = "gpt2", .bf16 = true, .layers = 2, .hidden = 64};

static int run(const char *name, const fixture_sets *sets, fixture_result *result,
               uint64_t stop_after)
{
    fixture_call call = {.name = name, .stop_after = stop_after};
    fixture_run(name, &shape, sets, &call, result);
    return result->rc;
}

static void whole_run(const fixture_sets *sets, fixture_result *whole)
{
    if (run("whole", sets, whole, 0) < 0)
        fail_msg("%s", whole->error);
}

/* trace.json cannot be written: a warning, and the run is complete and committed. */
static void trace_cannot_be_written(void **state)
{
    static fixture_result whole, result;
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.steps=6");
    whole_run(&sets, &whole);

    char path[FIXTURE_PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/blocked", fixture_dir);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/blocked/trace.json", fixture_dir);
    assert_int_equal(mkdir(path, 0755), 0); /* a directory cannot be replaced by a file */
    assert_int_equal(run("blocked", &sets, &result, 3), ERR_STOPPED);
    assert_int_equal(run("blocked", &sets, &result, 0), 0);
    assert_true(result.summary.was_resumed);
    assert_true(result.weights_hash == whole.weights_hash);
}

/* Puts the file at `path` in the place of the open metrics of the run `name`. */
static void replace_metrics(const char *name, const char *path, int flags)
{
    char end[FIXTURE_PATH_BYTES];
    int other = open(path, flags | O_CLOEXEC), replaced = 0;
    assert_true(other >= 0);
    snprintf(end, sizeof end, "/%s/metrics.jsonl", name);
    for (int fd = 3; fd < 1024; fd++) {
        char link[64], target[FIXTURE_PATH_BYTES + 64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target - 1);
        if (length < 0)
            continue;
        target[length] = '\0';
        if (strstr(target, end)) {
            assert_int_equal(dup2(other, fd), fd);
            replaced++;
        }
    }
    close(other);
    assert_int_equal(replaced, 1);
}

/* From step 3 on: the line of step 4 fails. */
static void fill_the_device(uint64_t step)
{
    if (step == 3)
        replace_metrics("full", "/dev/full", O_WRONLY);
}

static void close_for_writing(uint64_t step)
{
    if (step == 3)
        replace_metrics("closed", "/dev/null", O_RDONLY);
}

/* Metrics that cannot be written in the middle of a run. If the disk is full the run goes on, and
 * ends with the bits of the whole one. Any other error ends it, with all that was trained
 * committed, and the resumed run has those bits. Both update modes: with in_next_forward an update
 * is pending when it happens. */
static void metrics_cannot_be_written(void **state)
{
    static fixture_result whole, result;
    static const char *const updates[] = {"after_backward", "in_next_forward"};
    for (int i = 0; i < 2; i++) {
        fixture_sets sets = {.count = 0};
        fixture_set(&sets, "run.steps=8");
        fixture_set(&sets, "schedule.update=%s", updates[i]);
        fixture_set(&sets, "tiers.place.optimizer=%s", i ? "nvme" : "host");
        fixture_call anew = {.name = "whole", .fresh = true};
        fixture_run("whole", &shape, &sets, &anew, &whole);
        assert_int_equal(whole.rc, 0);

        /* Without a name, because the fixture wants every line of a run that it can name. */
        fixture_call full = {.fresh = true, .on_step = fill_the_device};
        fixture_remove("full");
        if (fixture_run("full", &shape, &sets, &full, &result) < 0)
            fail_msg("%s", result.error);
        assert_int_equal(result.summary.steps_done, 8);
        assert_true(result.weights_hash == whole.weights_hash);

        fixture_call failing = {.name = "closed", .fresh = true, .on_step = close_for_writing};
        job *asked = fixture_job("closed", &shape, &sets);
        fixture_train(asked, &failing, &result);
        assert_int_equal(result.rc, -EBADF);
        assert_non_null(strstr(result.error, "metrics.jsonl"));
        assert_non_null(strstr(result.error, "the state after step 4 is committed"));
        /* The line of step 4 is lost, so not through the fixture. */
        struct train_summary summary;
        uint64_t hash;
        const struct setup_test test = {.on_end = fixture_hash_weights, .user = &hash};
        struct train_options again = {.job = asked, .test = &test};
        int rc = train_run(&again, &summary);
        job_destroy(asked);
        assert_ok(rc);
        assert_true(summary.was_resumed);
        assert_int_equal(summary.steps_done, 4);
        assert_true(hash == whole.weights_hash);
    }
}

/* Ten steps without a finite gradient end the run with the step and the learning rate. */
static void divergence_is_an_error(void **state)
{
    static fixture_result result;
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.steps=30");
    fixture_set(&sets, "optimizer.params.lr=1e38");
    assert_int_equal(run("wild", &sets, &result, 0), ERR_DIVERGED);
    assert_non_null(strstr(result.error, "diverged"));
    assert_true(result.step_count < 30);
}

/* data.valid of few windows: each counts once, however long an evaluation is asked for. */
static void short_validation_data(void **state)
{
    static fixture_result few, many;
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.steps=3");
    fixture_set(&sets, "run.eval_every=3");
    fixture_set(&sets, "run.eval_batches=1000000");
    assert_int_equal(run("many", &sets, &many, 0), 0);
    assert_true(many.summary.eval_given);
    fixture_set(&sets, "run.eval_batches=2000000");
    assert_int_equal(run("few", &sets, &few, 0), 0);
    assert_true(few.summary.eval_loss == many.summary.eval_loss);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trace_cannot_be_written),
        cmocka_unit_test(metrics_cannot_be_written),
        cmocka_unit_test(divergence_is_an_error),
        cmocka_unit_test(short_validation_data),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
