/* The public interface. Its steps are bit for bit those of a whole run. A refused call returns a
 * status with a sentence. A run that is closed and opened again continues. */
#include <unistd.h>

#include "sluice.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { STEPS = 7 };

static const fixture_model shape = {.family = "llama", .bf16 = true, .layers = 2, .hidden = 64};

/* Writes NAME.json for sluice_open. */
static const char *write_job(const char *name, const char *more)
{
    static char path[FIXTURE_PATH_BYTES + 64];
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.steps=%d", STEPS);
    fixture_set(&sets, "tiers.place.optimizer=nvme");
    if (more)
        fixture_set(&sets, "%s", more);
    job *asked = fixture_job(name, &shape, &sets);
    snprintf(path, sizeof path, "%s/%s.merged.json", fixture_dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(asked->text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    job_destroy(asked);
    return path;
}

static void assert_done(int status)
{
    if (status != SLUICE_DONE)
        fail_msg("%d: %s", status, sluice_error());
}

static sluice_run *open_run(const char *path)
{
    sluice_run *run;
    assert_done(sluice_open(path, NULL, &run));
    return run;
}

static void steps_are_those_of_a_whole_run(void **state)
{
    static fixture_result whole, parts;
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.steps=%d", STEPS);
    fixture_set(&sets, "tiers.place.optimizer=nvme");
    fixture_train_good("whole", &shape, &sets, &whole);

    const char *path = write_job("parts", NULL);
    uint64_t made = 0;
    for (uint64_t until = 3; made < STEPS; until = STEPS) { /* closed after three */
        sluice_run *run = open_run(path);
        struct sluice_info info;
        sluice_get_info(run, &info);
        assert_int_equal(info.step, made);
        assert_int_equal(info.steps, STEPS);
        assert_int_equal(info.world, 1);
        assert_true(info.nvme_bytes > 0 && info.device_bytes > 0 && info.param_count > 0);
        for (; made < until; made++) {
            struct sluice_step_info step;
            assert_done(sluice_step(run, &step));
            assert_int_equal(step.step, made + 1);
            assert_int_equal(step.tokens, info.tokens_per_step);
            float loss = (float)step.loss;
            assert_memory_equal(&loss, &whole.loss_bits[made], sizeof loss);
            assert_false(step.skipped);
        }
        if (made == STEPS) {
            assert_int_equal(sluice_step(run, NULL), SLUICE_WRONG);
            assert_non_null(strstr(sluice_error(), "run.steps"));
        }
        assert_done(sluice_close(run));
    }
    memset(&parts, 0, sizeof parts);
    fixture_read_steps("parts", &parts);
    assert_int_equal(parts.step_count, STEPS);
    assert_memory_equal(parts.loss_bits, whole.loss_bits, STEPS * sizeof *whole.loss_bits);
    fixture_remove("whole");
    fixture_remove("parts");
}

static void commits_and_evaluations_come_when_they_are_asked_for(void **state)
{
    double loss = 0;
    uint64_t step = 0;
    sluice_run *run = open_run(write_job("asked", "run.commit_every=100"));
    int status = sluice_evaluate(run, &loss);
    if (status == SLUICE_DONE)
        assert_true(loss > 0);
    else /* the fixture's job may name no held-out text */
        assert_non_null(strstr(sluice_error(), "data.valid"));
    assert_done(sluice_step(run, NULL));
    assert_done(sluice_step(run, NULL));
    assert_done(sluice_commit(run, &step));
    assert_int_equal(step, 2);
    assert_done(sluice_commit(run, NULL)); /* nothing to do */
    assert_done(sluice_step(run, NULL));
    assert_done(sluice_close(run));

    run = open_run(write_job("asked", "run.commit_every=100"));
    struct sluice_info info;
    sluice_get_info(run, &info);
    assert_int_equal(info.step, 3);
    assert_done(sluice_close(run));
    fixture_remove("asked");
}

/* After three steps, in the middle of the run, whose further steps are those of a run without
 * it. */
static void an_export_in_between_changes_nothing(void **state)
{
    static const char *const every[] = {"run.commit_every=2", "run.commit_every=0"};
    static fixture_result whole, parts;
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.steps=%d", STEPS);
    fixture_set(&sets, "tiers.place.optimizer=nvme");
    fixture_train_good("whole", &shape, &sets, &whole);
    for (int i = 0; i < 2; i++) {
        char out[FIXTURE_PATH_BYTES + 32], file[sizeof out + 32];
        snprintf(out, sizeof out, "%s/exported%d", fixture_dir, i);
        snprintf(file, sizeof file, "%s/model.safetensors", out);
        sluice_run *run = open_run(write_job("parts", every[i]));
        for (int step = 0; step < STEPS; step++) {
            if (step == 3) {
                struct sluice_export_options wrong = {.dtype = "fp8"};
                assert_int_equal(sluice_export(run, out, &wrong), SLUICE_WRONG);
                assert_int_equal(access(file, F_OK), -1);
                assert_done(sluice_export(run, out, NULL));
                assert_int_equal(access(file, F_OK), 0);
                assert_int_equal(sluice_export(run, out, NULL), SLUICE_WRONG); /* it is there */
            }
            assert_done(sluice_step(run, NULL));
        }
        assert_done(sluice_close(run));
        memset(&parts, 0, sizeof parts);
        fixture_read_steps("parts", &parts);
        assert_int_equal(parts.step_count, STEPS);
        assert_memory_equal(parts.loss_bits, whole.loss_bits, STEPS * sizeof *whole.loss_bits);
        fixture_remove("parts");
    }
    fixture_remove("whole");
}

static void refusals_are_values(void **state)
{
    sluice_run *run = (sluice_run *)(uintptr_t)8;
    assert_int_equal(sluice_open("no/such/job.json", NULL, &run), SLUICE_WRONG);
    assert_null(run);
    assert_non_null(strstr(sluice_error(), "no/such/job.json"));

    const char *path = write_job("refused", NULL);
    const char *const wrong[] = {"model.hiden_size=64"};
    struct sluice_options options = {.set = wrong, .set_count = 1};
    assert_int_equal(sluice_open(path, &options, &run), SLUICE_WRONG);
    assert_non_null(strstr(sluice_error(), "hidden_size"));

    const char *const small[] = {"tiers.device.budget=64KiB"};
    options = (struct sluice_options){.set = small, .set_count = 1};
    assert_int_equal(sluice_open(path, &options, &run), SLUICE_NO_FIT);
    assert_non_null(strstr(sluice_error(), "device"));
    assert_null(run);

    options = (struct sluice_options){.machine = "no/such/machine.json"};
    assert_int_equal(sluice_open(path, &options, &run), SLUICE_WRONG);
    assert_non_null(strstr(sluice_error(), "machine.json"));
    assert_done(sluice_close(NULL));

    char begun[FIXTURE_PATH_BYTES + 32];
    snprintf(begun, sizeof begun, "%s/refused/state", fixture_dir);
    assert_int_equal(access(begun, F_OK), -1); /* nothing was made */
    run = open_run(path);                      /* and it can still be opened */
    assert_done(sluice_close(run));
    fixture_remove("refused");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_those_of_a_whole_run),
        cmocka_unit_test(commits_and_evaluations_come_when_they_are_asked_for),
        cmocka_unit_test(an_export_in_between_changes_nothing),
        cmocka_unit_test(refusals_are_values),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
