/* The public interface: tasks without an open run. Training by one call has the losses of a whole
 * run, and a stop from a callback commits and resumes. A job can be a text. Plans, texts, losses
 * and checkpoints come from the calls that a program makes. Refusals are values. */
#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "sluice.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { STEPS = 6 };

static const fixture_model shape = {.family = "llama", .bf16 = true, .layers = 2, .hidden = 64};

static job *make_job(const char *name)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.steps=%d", STEPS);
    fixture_set(&sets, "tiers.place.optimizer=nvme");
    return fixture_job(name, &shape, &sets);
}

static void assert_done(int status)
{
    if (status != SLUICE_DONE)
        fail_msg("%d: %s", status, sluice_error());
}

static void assert_refused(int status, int wanted, const char *text)
{
    if (status != wanted || !strstr(sluice_error(), text))
        fail_msg("%d, \"%s\"; expected %d and \"%s\"", status, sluice_error(), wanted, text);
}

struct watcher {
    volatile sig_atomic_t stop;
    uint64_t stop_at, made; /* steps */
    float losses[STEPS];
};

static void on_step(void *user, const struct sluice_step_info *step)
{
    struct watcher *self = user;
    assert_int_equal(step->step, self->made + 1);
    assert_true(step->tokens_per_second > 0 && step->model_flops > 0);
    self->losses[self->made++] = (float)step->loss;
    self->stop = self->made == self->stop_at;
}

static void one_call_trains_as_the_command_does(void **state)
{
    static fixture_result whole;
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.steps=%d", STEPS);
    fixture_set(&sets, "tiers.place.optimizer=nvme");
    fixture_train_good("whole", &shape, &sets, &whole);

    job *asked = make_job("called");
    struct watcher seen = {.stop_at = 4};
    struct sluice_train_options options = {
        .job.job_text = asked->text, .stop = &seen.stop, .on_step = on_step, .user = &seen};
    struct sluice_train_result result;
    assert_refused(sluice_train("a job", &options, &result), SLUICE_STOPPED, "step 4");
    assert_int_equal(result.step, 4);
    assert_int_equal(seen.made, 4);
    assert_false(result.resumed);
    seen.stop = 0;
    assert_done(sluice_train("a job", &options, &result));
    assert_int_equal(result.step, STEPS);
    assert_int_equal(result.steps_done, STEPS - 4);
    assert_true(result.resumed && result.peak_bytes[2] > 0 && result.resident_bytes > 0);
    assert_memory_equal(seen.losses, whole.loss_bits, sizeof seen.losses);

    assert_done(sluice_train("a job", &options, &result)); /* nothing is left to do */
    assert_int_equal(result.steps_done, 0);
    assert_true(isnan(result.loss));
    job_destroy(asked);
    fixture_remove("whole");
}

/* Continues the run of the test before. */
static void an_open_run_takes_a_text(void **state)
{
    job *asked = make_job("called");
    const char *const more[] = {"run.steps=8"};
    struct sluice_options options = {.set = more, .set_count = 1, .job_text = asked->text};
    sluice_run *run;
    struct sluice_info info;
    assert_done(sluice_open("a job", &options, &run));
    sluice_get_info(run, &info);
    assert_int_equal(info.step, STEPS);
    assert_int_equal(info.steps, 8);
    assert_done(sluice_close(run));
    options.job_text = "{\"model\": 3}";
    assert_refused(sluice_open("my job", &options, &run), SLUICE_WRONG, "my job: ");
    job_destroy(asked);
}

static void plans_are_json(void **state)
{
    job *asked = make_job("called");
    struct sluice_plan_options options = {.job_text = asked->text, .ranks = 2};
    char *text;
    assert_done(sluice_plan("a job", &options, &text));
    json_t *plan = json_loads(text, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(plan, "world_size")), 2);
    assert_true(json_real_value(json_object_get(plan, "step_seconds")) > 0);
    json_decref(plan);
    sluice_free(text);

    const char *const small[] = {"tiers.device.budget=64KiB"};
    options.set = small;
    options.set_count = 1;
    assert_refused(sluice_plan("a job", &options, &text), SLUICE_NO_FIT, "device");
    assert_null(text);
    options = (struct sluice_plan_options){.job_text = asked->text, .ranks_per_host = 2};
    assert_refused(sluice_plan("a job", &options, &text), SLUICE_WRONG, "ranks_per_host");
    options = (struct sluice_plan_options){.job_text = asked->text, .machine = "no/such.json"};
    assert_refused(sluice_plan("a job", &options, &text), SLUICE_WRONG, "no/such.json");
    assert_refused(sluice_plan("no/such/job.json", NULL, &text), SLUICE_WRONG, "no/such/job.json");
    sluice_free(NULL);
    job_destroy(asked);
}

struct text {
    char bytes[256];
    size_t count;
    uint32_t tokens, prompt_tokens;
    int ends; /* not 0: the reader wants no more */
};

static int on_text(void *user, const char *bytes, size_t byte_count)
{
    struct text *self = user;
    assert_true(self->count + byte_count <= sizeof self->bytes);
    memcpy(self->bytes + self->count, bytes, byte_count);
    self->count += byte_count;
    return self->ends;
}

static void on_token(void *user, int32_t id, int is_prompt)
{
    struct text *self = user;
    assert_true(id >= 0);
    if (is_prompt)
        self->prompt_tokens++;
    else
        self->tokens++;
}

/* With the run of the first test. */
static void trained_models_are_used(void **state)
{
    char run[FIXTURE_PATH_BYTES + 32], out[sizeof run + 32], file[sizeof out + 32];
    snprintf(run, sizeof run, "%s/called", fixture_dir);
    snprintf(out, sizeof out, "%s/called-hf", fixture_dir);
    snprintf(file, sizeof file, "%s/model.safetensors", out);

    struct text read = {.count = 0};
    struct sluice_generate_options options = {.token_count = 12,
                                              .ignore_end = 1,
                                              .on_text = on_text,
                                              .on_token = on_token,
                                              .user = &read};
    struct sluice_generate_result made;
    assert_done(sluice_generate(run, "ab", 2, &options, &made));
    assert_int_equal(made.tokens, 12);
    assert_int_equal(read.tokens, 12);
    assert_int_equal(read.prompt_tokens, 2);
    assert_memory_equal(read.bytes, "ab", 2);
    assert_string_equal(made.ended_by, "tokens");
    read = (struct text){.ends = 1};
    assert_refused(sluice_generate(run, "ab", 2, &options, &made), SLUICE_STOPPED, "reader");
    options.temperature = -1;
    assert_refused(sluice_generate(run, "ab", 2, &options, NULL), SLUICE_WRONG, "temperature");
    assert_refused(sluice_generate("no/such/run", "ab", 2, NULL, NULL), SLUICE_WRONG,
                   "no/such/run");

    struct sluice_evaluate_options few = {.batches = 1};
    struct sluice_evaluate_result loss;
    const char *const files[] = {__FILE__};
    assert_done(sluice_evaluate_files(run, files, 1, &few, &loss));
    assert_true(loss.loss > 0 && loss.tokens > 0 && loss.bits_per_byte > 0);
    assert_refused(sluice_evaluate_files(run, NULL, 0, &few, &loss), SLUICE_WRONG, "name files");

    assert_done(sluice_export_run(run, out, NULL));
    assert_int_equal(access(file, F_OK), 0);
    assert_refused(sluice_export_run(run, out, NULL), SLUICE_WRONG, "not empty");
    const struct sluice_export_options again = {.force = 1};
    assert_done(sluice_export_run(run, out, &again));
    fixture_remove("called");
    fixture_remove("called-hf");
}

static void on_progress(void *user, const char *what, double done_share)
{
    assert_true(what[0] != '\0' && done_share >= 0 && done_share <= 1.01);
    ++*(int *)user;
}

static void a_probe_writes_a_machine(void **state)
{
    int told = 0;
    char path[FIXTURE_PATH_BYTES + 32];
    const char *drive = fixture_dir;
    snprintf(path, sizeof path, "%s/machine.json", fixture_dir);
    struct sluice_probe_options options = {
        .drives = &drive, .drive_count = 1, .tiny = 1, .on_progress = on_progress, .user = &told};
    assert_done(sluice_probe(path, &options));
    assert_true(told > 0);
    job *asked = make_job("planned");
    const struct sluice_plan_options with = {.job_text = asked->text, .machine = path};
    char *text;
    assert_done(sluice_plan("a job", &with, &text));
    assert_non_null(strstr(text, "\"is_measured\": true"));
    sluice_free(text);
    job_destroy(asked);

    const char *nowhere = "no/such/drive";
    options.drives = &nowhere;
    assert_refused(sluice_probe(path, &options), SLUICE_WRONG, "no/such/drive");
    options.drive_count = 0;
    assert_refused(sluice_probe(__FILE__, &options), SLUICE_WRONG, "not overwritten");
    volatile sig_atomic_t stop = 1;
    options.stop = &stop;
    assert_refused(sluice_probe(path, &options), SLUICE_STOPPED, "stopped");
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_call_trains_as_the_command_does),
        cmocka_unit_test(an_open_run_takes_a_text),
        cmocka_unit_test(plans_are_json),
        cmocka_unit_test(trained_models_are_used),
        cmocka_unit_test(a_probe_writes_a_machine),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
