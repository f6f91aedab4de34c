/* A run is stopped at random steps, or at random moments, and resumed each time under another
 * order, exact update mode, placement, lookahead, I/O backend and budget. It gives the bits of the
 * run that was never stopped, and so does a run that is stopped before its first step or within an
 * evaluation. If a leg does not fit, the refusal names budgets with which it does, and nothing is
 * lost.
 *
 * Argument: the kind of run, as FAMILY-DTYPE and any of untied, cut, unclipped, delayed, tokens,
 * lion, adagrad, adam, muon, m16, m8, split, onecycle, range, dropout. A run with delayed_one_step
 * only has to go on: a stop brings the weights up to date, so later results differ from those of
 * the run that was never stopped. */
#include <pthread.h>
#include <time.h>

#include "base/rng.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "train/train.h"

enum {
    STEPS = 12,
    TRIALS = 7,
    DRAW_STREAM = 77,
    KINDS = 5,
    VOCAB = 640,
    TOKENS = 6000,
    LEAST_BUDGET_BYTES = 65536,
    LLMC_MAGIC = 20240520,
};

static fixture_model shape = {.family = "gpt2", .layers = 2, .hidden = 64};
static const char *group = "llama-fp16";
static uint64_t seed = 5;
static fixture_result whole;

static const char *const kinds[KINDS] = {"params", "grads", "optimizer", "activations",
                                         "inner_activations"};
static const char *const tiers[] = {"device",    "host",           "nvme",          "recompute",
                                    "selective", "selective_host", "selective_nvme"};
static const char *const budget_keys[] = {"tiers.device.budget", "tiers.host.budget"};

static bool is_group(const char *word)
{
    return strstr(group, word) != NULL;
}

static bool overflows(void)
{
    return is_group("fp16");
}

static void set_optimizer(fixture_sets *sets)
{
    if (is_group("dropout"))
        fixture_set(sets, "train.dropout=0.1");
    if (is_group("lion"))
        fixture_set(sets, "optimizer={\"type\":\"Lion\",\"params\":{\"lr\":3e-4}}");
    if (is_group("adagrad"))
        fixture_set(sets, "optimizer={\"type\":\"Adagrad\",\"params\":{\"lr\":1e-2}}");
    if (is_group("muon"))
        fixture_set(sets, "optimizer={\"type\":\"Muon\",\"params\":{\"lr\":5e-3}}");
    if (is_group("adam"))
        fixture_set(sets, "optimizer={\"type\":\"Adam\",\"params\":{\"lr\":1e-3,"
                          "\"adam_w_mode\":false,\"weight_decay\":0.01}}");
    if (is_group("-m16") || is_group("-m8"))
        fixture_set(sets, "state.moments=%s", is_group("-m16") ? "bf16" : "8bit");
    if (is_group("-split"))
        fixture_set(sets, "state.master=split");
    if (is_group("onecycle"))
        fixture_set(sets, "scheduler={\"type\":\"OneCycle\",\"params\":{\"cycle_min_lr\":1e-4,"
                          "\"cycle_max_lr\":3e-3,\"cycle_first_step_size\":5,"
                          "\"decay_step_size\":3,\"decay_lr_rate\":0.1}}");
    if (is_group("range"))
        fixture_set(sets, "scheduler={\"type\":\"LRRangeTest\",\"params\":{"
                          "\"lr_range_test_min_lr\":1e-4,\"lr_range_test_step_size\":3}}");
}

/* Sets what all legs of the group share. Their bits depend on it. */
static void set_group(fixture_sets *sets)
{
    memset(sets, 0, sizeof *sets);
    fixture_set(sets, "run.steps=%d", STEPS);
    fixture_set(sets, "gradient_accumulation_steps=3");
    fixture_set(sets, "model.tie_embeddings=%s", is_group("untied") ? "false" : "true");
    if (overflows()) { /* overflows, grows, falls, is within a window at stops */
        fixture_set(sets, "fp16.enabled=true");
        fixture_set(sets, "fp16.initial_scale_power=19");
        fixture_set(sets, "fp16.loss_scale_window=3");
        fixture_set(sets, "fp16.hysteresis=2");
    }
    if (is_group("cut"))
        fixture_set(sets, "model.max_part_bytes=%d", is_group("fp32") ? 32768 : 16384);
    if (is_group("unclipped")) {
        fixture_set(sets, "gradient_clipping=0");
        if (is_group("bf16"))
            fixture_set(sets, "bf16.check_grad_overflow=false");
    }
    if (is_group("tokens")) {
        fixture_set(sets, "data.train=[\"%s\"]", fixture_path(NULL, "tokens.bin"));
        fixture_set(sets, "data.valid=[\"%s\"]", fixture_path(NULL, "tokens.bin"));
    }
    set_optimizer(sets);
}

struct draws {
    uint64_t trial, counter;
};

static uint64_t draw(struct draws *d, uint64_t bound)
{
    return rng_below(seed + d->trial, DRAW_STREAM, d->counter++, bound);
}

/* Draws the settings that no bit depends on. */
static void draw_leg(struct draws *d, fixture_sets *sets)
{
    static const char *const updates[] = {"after_backward", "in_next_forward", "in_backward"};
    set_group(sets);
    uint64_t u = draw(d, is_group("unclipped") ? 3 : 2);
    fixture_set(sets, "schedule.update=%s", is_group("delayed") ? "delayed_one_step" : updates[u]);
    fixture_set(sets, "schedule.order=%s", draw(d, 2) ? "batch_major" : "layer_major");
    fixture_set(sets, "debug.schedule.lookahead=%u", draw(d, 2) ? 0 : 1 + (unsigned)draw(d, 20));
    fixture_set(sets, "schedule.tile_elems=%u", draw(d, 2) ? 0 : 16384 << draw(d, 3));
    fixture_set(sets, "io.backend=%s", draw(d, 2) ? "uring" : "pool");
    if (!is_group("delayed")) { /* there a commit brings the weights up to date, as a stop does */
        static const unsigned commits[] = {0, 1, 2, 5};
        fixture_set(sets, "run.commit_every=%u", commits[draw(d, 4)]);
    }
    fixture_set(sets, "run.eval_every=%u", is_group("delayed") ? 0 : (unsigned)draw(d, 4));
    for (int k = 0; k < KINDS; k++)
        fixture_set(sets, "tiers.place.%s=%s", kinds[k], tiers[draw(d, k == KINDS - 1 ? 7 : 3)]);
    for (int i = 0; i < 2; i++)
        if (draw(d, 3) == 0)
            fixture_set(sets, "%s=%llu", budget_keys[i],
                        (unsigned long long)LEAST_BUDGET_BYTES << draw(d, 7));
}

/* The last values of what a leg was drawn with. */
static void say_leg(const struct draws *d, const fixture_sets *sets, uint64_t stop)
{
    printf("%s, seed %llu, trial %llu, stop %llu:", group, (unsigned long long)seed,
           (unsigned long long)d->trial, (unsigned long long)stop);
    for (uint32_t i = 0; i < sets->count; i++)
        if (strncmp(sets->text[i], "schedule", 8) == 0 || strncmp(sets->text[i], "tiers", 5) == 0 ||
            strncmp(sets->text[i], "io", 2) == 0)
            printf(" %s", strchr(sets->text[i], '=') + 1);
    printf("\n");
    fflush(stdout);
}

static void train(const fixture_sets *sets, uint64_t stop_after, fixture_result *result)
{
    fixture_call call = {.name = "stopped", .stop_after = stop_after};
    fixture_run("stopped", &shape, sets, &call, result);
}

/* Follows a refusal: raises the budgets that it names, and moves the state off a slab that exists
 * and is too small. */
static void make_it_fit(fixture_sets *sets, const char *error)
{
    int changes = 0;
    if (strstr(error, "of nvme, has")) {
        for (int k = 0; k < KINDS; k++)
            if (strcmp(kinds[k], "optimizer") != 0)
                fixture_set(sets, "tiers.place.%s=host", kinds[k]);
        fixture_set(sets, "%s=%d", budget_keys[1], FIXTURE_BUDGET_BYTES);
        changes++;
    }
    for (int i = 0; i < 2; i++) {
        uint64_t bytes = fixture_budget_named(error, budget_keys[i]);
        if (bytes)
            fixture_set(sets, "%s=%llu", budget_keys[i], (unsigned long long)bytes);
        changes += bytes > 0;
    }
    if (!changes)
        fail_msg("a refusal without a way out: %s", error);
}

/* A leg to `stop` (0: to the end), with the budgets that a refusal names where it comes to that. */
static void run_leg(struct draws *d, uint64_t before, uint64_t stop, fixture_result *result)
{
    static fixture_sets sets;
    draw_leg(d, &sets);
    say_leg(d, &sets, stop);
    train(&sets, stop, result);
    for (int turn = 0; turn < 2 && result->rc == ERR_NO_FIT; turn++) {
        static char error[ERR_TEXT_BYTES];
        memcpy(error, result->error, sizeof error);
        make_it_fit(&sets, error);
        train(&sets, stop, result);
    }
    if (result->rc != (stop ? ERR_STOPPED : 0))
        fail_msg("%s: %s", err_name(result->rc), result->error);
    assert_int_equal(result->summary.was_resumed, before > 0);
    uint64_t end = stop ? stop : STEPS;
    assert_int_equal(result->step_count, end);
    assert_int_equal(result->summary.steps_done, end - before);
    if (before == 0)
        assert_memory_equal(result->loss_bits, whole.loss_bits, end * sizeof whole.loss_bits[0]);
}

static void assert_whole(const fixture_result *result)
{
    if (is_group("delayed")) /* a stop brings the weights up to date, and what follows differs */
        return;
    fixture_assert_same(&whole, result);
    assert_memory_equal(whole.skipped, result->skipped, sizeof whole.skipped);
    assert_memory_equal(whole.rates, result->rates, sizeof whole.rates);
}

/* The run that is never stopped; in fp16 it must skip some steps and not others. */
static void make_whole(void)
{
    static fixture_sets sets;
    fixture_remove("stopped"); /* of a test that failed */
    fixture_remove("whole");
    set_group(&sets);
    fixture_set(&sets, "schedule.update=%s",
                is_group("delayed") ? "delayed_one_step" : "after_backward");
    fixture_train_good("whole", &shape, &sets, &whole);
    assert_int_equal(whole.step_count, STEPS);
    int skipped = 0;
    for (int i = 0; i < STEPS; i++)
        skipped += whole.skipped[i];
    assert_true(overflows() ? skipped >= 2 && skipped < STEPS - 3 : skipped == 0);
    if (is_group("cut"))
        assert_true(whole.plan.unit_count > 6);
    fixture_remove("whole");
}

static void stops_at_random_steps(void **state)
{
    static fixture_result result;
    make_whole();
    for (uint64_t t = 0; t < TRIALS; t++) {
        struct draws d = {.trial = t};
        uint64_t before = 0, count = 1 + draw(&d, 3);
        for (uint64_t i = 0; i < count && before < STEPS - 1; i++) {
            uint64_t stop = before + 1 + draw(&d, (STEPS - 1 - before + 1) / 2);
            run_leg(&d, before, stop, &result);
            before = stop;
        }
        run_leg(&d, before, 0, &result);
        assert_whole(&result);
        fixture_remove("stopped");
    }
}

/* ---- stops that no step is waited for -------------------------------------------------------- */

struct late_stop {
    volatile sig_atomic_t flag;
    uint64_t after_us;
};

static void *set_later(void *data)
{
    struct late_stop *self = data;
    struct timespec wait = {.tv_sec = (time_t)(self->after_us / 1000000),
                            .tv_nsec = (long)(self->after_us % 1000000 * 1000)};
    nanosleep(&wait, NULL);
    self->flag = 1;
    return NULL;
}

static int train_until(const fixture_sets *sets, struct late_stop *stop)
{
    static struct train_summary summary;
    job *asked = fixture_job("stopped", &shape, sets);
    struct train_options options = {.job = asked, .stop = &stop->flag};
    int rc = train_run(&options, &summary);
    job_destroy(asked);
    return rc;
}

static void stop_before_the_first_step(void **state)
{
    static fixture_sets sets;
    static fixture_result result;
    make_whole();
    struct draws d = {.trial = 100};
    draw_leg(&d, &sets);
    fixture_set(&sets, "run.eval_every=0");
    fixture_set(&sets, "tiers.device.budget=%d", FIXTURE_BUDGET_BYTES);
    fixture_set(&sets, "tiers.host.budget=%d", FIXTURE_BUDGET_BYTES);
    for (int i = 0; i < 2; i++) { /* also where there is a run already */
        struct late_stop stop = {.flag = 1};
        assert_error(train_until(&sets, &stop), ERR_STOPPED, "after step 0 of 12");
        assert_true(fixture_exists(fixture_path("stopped", "state")));
    }
    train(&sets, 0, &result);
    assert_int_equal(result.rc, 0);
    assert_true(result.summary.was_resumed);
    assert_int_equal(result.summary.steps_done, STEPS);
    fixture_assert_same(&whole, &result);
    fixture_remove("stopped");
}

/* At random moments, of which most lie in the evaluations, which take much longer than the
 * steps. */
static void stops_within_evaluations(void **state)
{
    static fixture_sets sets;
    static fixture_result result;
    int stops = 0;
    if (is_group("delayed")) /* an evaluation brings its weights up to date */
        skip();
    make_whole();
    for (uint64_t t = 0; t < 2; t++) {
        struct draws d = {.trial = 200 + t};
        int rc = ERR_STOPPED;
        for (int leg = 0; rc == ERR_STOPPED && leg < 12; leg++) {
            draw_leg(&d, &sets);
            fixture_set(&sets, "run.eval_every=1");
            fixture_set(&sets, "run.eval_batches=60");
            fixture_set(&sets, "tiers.device.budget=%d", FIXTURE_BUDGET_BYTES);
            fixture_set(&sets, "tiers.host.budget=%d", FIXTURE_BUDGET_BYTES);
            struct late_stop stop = {.after_us = 10000 + draw(&d, 200000)};
            pthread_t thread;
            assert_int_equal(pthread_create(&thread, NULL, set_later, &stop), 0);
            rc = train_until(&sets, &stop);
            pthread_join(thread, NULL);
            if (rc == ERR_NO_FIT) { /* the slab is there and too small for this leg */
                assert_non_null(strstr(err_text(), "of nvme, has"));
                rc = ERR_STOPPED;
                continue;
            }
            if (rc < 0 && rc != ERR_STOPPED)
                fail_msg("%s: %s", err_name(rc), err_text());
            stops += rc == ERR_STOPPED;
        }
        fixture_set(&sets, "run.eval_every=0");
        train(&sets, 0, &result);
        assert_int_equal(result.rc, 0);
        /* If no step is left, the weights are those on the slab. */
        assert_whole(&result);
        fixture_remove("stopped");
    }
    print_message("%d stops within evaluations or steps\n", stops);
    assert_true(stops >= 2);
}

/* ---- what is not continued ------------------------------------------------------------------- */

/* Refused with a sentence that holds the word, and the run goes on as if nothing had been asked. */
static void refused(const char *setting, const char *word)
{
    static fixture_sets sets;
    static fixture_result result;
    set_group(&sets);
    for (int k = 0; k < KINDS; k++)
        fixture_set(&sets, "tiers.place.%s=device", kinds[k]);
    fixture_set(&sets, "%s", setting);
    train(&sets, 0, &result);
    if (result.rc != ERR_INPUT || !strstr(result.error, word))
        fail_msg("%s: expected ERR_INPUT with \"%s\", got %s: %s", setting, word,
                 err_name(result.rc), result.error);
}

static void other_numerics_are_refused(void **state)
{
    static fixture_sets sets;
    static fixture_result result;
    make_whole();
    struct draws d = {.trial = 300};
    /* With everything on the slab it has room for any of these. */
    set_group(&sets);
    for (int k = 0; k < KINDS; k++)
        fixture_set(&sets, "tiers.place.%s=nvme", kinds[k]);
    train(&sets, 5, &result);
    assert_int_equal(result.rc, ERR_STOPPED);
    if (is_group("cut"))
        refused("model.max_part_bytes=65536", "model.max_part_bytes was ");
    refused("model.init_std=0.5", "model.init_std was 0.02 and is 0.5");
    refused("train_micro_batch_size_per_gpu=3", "train_micro_batch_size_per_gpu was 2 and is 3");
    if (is_group("-m8"))
        refused("state.moments=bf16", "state.moments was 8bit and is bf16");
    else if (!is_group("-m16") && !is_group("lion") && !is_group("adagrad") && !is_group("muon"))
        refused("state.moments=bf16", "state.moments was fp32 and is bf16");
    if (overflows())
        refused("data_types.grad_accum_dtype=fp32",
                "data_types.grad_accum_dtype was fp16 and is fp32");
    if (is_group("fp16"))
        refused("fp16.enabled=false", "dtype was fp16 and is fp32");
    run_leg(&d, 5, 0, &result);
    assert_whole(&result);
    fixture_remove("stopped");
}

/* ---- the program ----------------------------------------------------------------------------- */

static void write_tokens(void)
{
    FILE *file = fopen(fixture_path(NULL, "tokens.bin"), "wb");
    assert_non_null(file);
    uint32_t header[256] = {LLMC_MAGIC, 1, TOKENS};
    fwrite(header, sizeof header, 1, file);
    for (uint64_t i = 0; i < TOKENS; i++) {
        uint16_t token = (uint16_t)rng_below(seed, DRAW_STREAM + 1, i, VOCAB);
        fwrite(&token, sizeof token, 1, file);
    }
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state)
{
    int rc = fixture_setup(state);
    if (rc == 0 && is_group("tokens"))
        write_tokens();
    return rc;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        group = argv[1];
    seed = unit_seed(seed);
    shape.family = is_group("llama") ? "llama" : "gpt2";
    shape.bf16 = is_group("bf16");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stops_at_random_steps),
        cmocka_unit_test(stop_before_the_first_step),
        cmocka_unit_test(stops_within_evaluations),
        cmocka_unit_test(other_numerics_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, fixture_teardown);
}
