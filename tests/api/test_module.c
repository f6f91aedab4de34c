/* Runs whose passes a program computes (sluice_module_*): they train as the program would in
 * memory, to the bit, wherever their states rest; and they can be left, closed and resumed at any
 * point. */
#include <dirent.h>
#include <math.h>
#include <sched.h>
#include <sys/mman.h>

#include "kernels/ops.h"
#include "tests/api/toy_module.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

/* ---- against training in memory ---- */

static float params[TOY_UNITS][TOY_ELEMS_MAX], grads[TOY_UNITS][TOY_ELEMS_MAX];
static float m[TOY_UNITS][TOY_ELEMS_MAX], v[TOY_UNITS][TOY_ELEMS_MAX];

static void update(uint64_t step, const struct sluice_group groups[2])
{
    const kernel_ops *ops = &kernels_cpu;
    kernel_context_config config = {.thread_count = 1};
    kernel_context *context;
    assert_int_equal(ops->context_create(&config, &context), 0);
    static float working[TOY_ELEMS_MAX];
    for (uint32_t u = 0; u < TOY_UNITS; u++) {
        const struct sluice_group *of = &groups[u > 0];
        update_scalars scalars = {
            .learning_rate = (float)of->lr,
            .beta1 = 0.9f,
            .beta2 = 0.999f,
            .epsilon = 1e-8f,
            .weight_decay = (float)of->weight_decay,
            .decoupled = true,
            .bias_correction1 = (float)(1 - pow((double)0.9f, (double)step)),
            .bias_correction2_sqrt = (float)sqrt(1 - pow((double)0.999f, (double)step)),
            .grad_scale = 1,
        };
        update_args args = {.count = toy_elems(u),
                            .master = params[u],
                            .m = m[u],
                            .v = v[u],
                            .grads = grads[u],
                            .grad_type = DTYPE_FP32,
                            .params = working,
                            .param_type = DTYPE_FP32,
                            .scalars = &scalars};
        assert_int_equal(ops->update(context, NULL, &args), 0);
    }
    ops->context_destroy(context);
}

static void it_trains_as_in_memory(void **state)
{
    static toy self, plain;
    const struct sluice_group groups[2] = {
        {.lr = 0.01, .weight_decay = 0.1, .betas = {NAN, NAN}, .eps = NAN},
        {.lr = 0.003, .weight_decay = 0.0, .betas = {NAN, NAN}, .eps = NAN},
    };
    toy_job asked = toy_new_job(DTYPE_FP32);
    asked.accumulation = 2;
    asked.more = ", \"gradient_clipping\": 0";
    toy_open(&self, &asked, NULL, 0);
    for (uint32_t g = 0; g < 2; g++)
        assert_int_equal(sluice_module_set_group(self.run, g, &groups[g]), SLUICE_DONE);
    toy_train(&self, 6);
    assert_true(isfinite(toy_evaluate(&self)));

    for (uint32_t u = 0; u < TOY_UNITS; u++)
        toy_first(NULL, u, 0, toy_elems(u), params[u]);
    for (uint64_t s = 0; s < 6; s++) {
        plain.steps_made = s;
        double loss = toy_plain(&plain, params, grads, 0.5, 0, true);
        loss = (loss + toy_plain(&plain, params, grads, 0.5, 1, false)) / 2;
        float bits = (float)loss;
        assert_memory_equal(&bits, &self.losses[s], sizeof bits);
        update(s + 1, groups);
    }
    for (uint32_t u = 0; u < TOY_UNITS; u++)
        assert_memory_equal(params[u], self.seen[u], toy_elems(u) * sizeof(float));
    toy_close(&self);
}

/* Two runs in one process do not know of each other. */
static void several_runs_train(void **state)
{
    static toy one, other;
    const char *const set[] = {"tiers.place.params=nvme", "tiers.place.optimizer=nvme"};
    toy_job asked = toy_new_job(DTYPE_FP32);
    toy_open(&one, &asked, NULL, 0);
    asked = toy_new_job(DTYPE_FP32);
    toy_open(&other, &asked, set, 2);
    for (uint64_t s = 1; s <= 4; s++) {
        toy_train(&one, s);
        toy_train(&other, s);
    }
    assert_memory_equal(one.losses, other.losses, sizeof one.losses);
    toy_close(&one);
    toy_train(&other, 5);
    toy_close(&other);
}

/* ---- placements ---- */

static const char *const places[][6] = {
    {"tiers.place.params=device", "tiers.place.grads=device", "tiers.place.optimizer=device"},
    {"tiers.place.params=host", "tiers.place.grads=host", "tiers.place.optimizer=host"},
    {"tiers.place.params=nvme", "tiers.place.grads=nvme", "tiers.place.optimizer=nvme"},
    {"tiers.place.params=host", "tiers.place.grads=nvme", "tiers.place.optimizer=nvme"},
    {"tiers.place.params=nvme", "tiers.place.grads=host", "tiers.place.optimizer=host",
     "schedule.update=after_backward"},
    {"tiers.place.params=device", "tiers.place.grads=host", "tiers.place.optimizer=nvme",
     "schedule.update=in_next_forward"},
    {"tiers.place.params=nvme", "tiers.place.grads=nvme", "tiers.place.optimizer=nvme",
     "tiers.device.budget=1MiB", "tiers.host.budget=2MiB"},
    {"tiers.place.params=host", "tiers.place.optimizer=nvme", "schedule.tile_elems=32768",
     "run.commit_every=1"},
    {"run.paranoid=true", "tiers.place.optimizer=nvme", "tiers.place.params=host"},
    {"tiers.place.params=auto", "tiers.place.grads=auto", "tiers.place.optimizer=auto",
     "run.commit_every=0"},
};
enum { PLACES = sizeof places / sizeof places[0] };

static size_t count_of(const char *const *set)
{
    size_t count = 0;
    while (count < 6 && set[count])
        count++;
    return count;
}

static void train_whole(toy *self, const toy_job *asked, const char *const *set, uint64_t steps)
{
    toy_open(self, asked, set, count_of(set));
    toy_train(self, steps);
    (void)toy_evaluate(self);
    toy_close(self);
}

static void assert_same(const toy *a, const toy *b)
{
    assert_memory_equal(a->losses, b->losses, sizeof a->losses);
    assert_memory_equal(a->norms, b->norms, sizeof a->norms);
    assert_memory_equal(a->seen, b->seen, sizeof a->seen);
}

/* Every place of `stride`, each in a run of its own. */
static void check_places(toy_job asked, int stride)
{
    static toy first, self;
    for (int p = 0; p < PLACES; p += FIXTURE_IS_SANITIZED ? 4 : stride) {
        toy_job fresh = toy_new_job(asked.type);
        asked.dir = fresh.dir;
        asked.drive = fresh.drive;
        train_whole(&self, &asked, places[p], 5);
        if (p == 0)
            first = self;
        assert_same(&self, &first);
    }
    /* it learns: something has changed, and of a frozen unit nothing */
    static float begun[TOY_ELEMS_MAX];
    toy_first(NULL, 2, 0, toy_elems(2), begun);
    assert_memory_not_equal(begun, first.seen[2], toy_elems(2) * sizeof(float));
    toy_first(NULL, 1, 0, toy_elems(1), begun);
    if (asked.freezes && asked.type == DTYPE_FP32)
        assert_memory_equal(begun, first.seen[1], toy_elems(1) * sizeof(float));
}

static void places_change_no_bit(void **state)
{
    check_places((toy_job){.type = DTYPE_FP32}, 1);
    check_places((toy_job){.type = DTYPE_FP32, .accumulation = 2, .freezes = 1, .shares = 1}, 2);
    check_places((toy_job){.type = DTYPE_BF16, .accumulation = 2}, 3);
    check_places((toy_job){.type = DTYPE_FP16, .shares = true}, 3);
    static const char muon[] = "{\"type\": \"Muon\", \"params\": {\"lr\": 0.01}}";
    static const char lion[] = "{\"type\": \"Lion\", \"params\": {\"lr\": 0.001}}";
    check_places((toy_job){.type = DTYPE_FP32, .optimizer = muon}, 3);
    check_places((toy_job){.type = DTYPE_BF16, .optimizer = lion}, 4);
}

/* The blocks lend their gradients; the root, which two stages use, does not. */
static void check_lent(enum dtype type, bool freezes, const char *optimizer, const char *state)
{
    static toy plain, self;
    enum { STEPS = 4 };
    const char *const set[] = {"gradient_clipping=0", "schedule.update=in_backward", state,
                               "bf16.check_grad_overflow=false"};
    uint64_t needed[2];
    for (int lends = 0; lends < 2; lends++) {
        struct sluice_info info;
        toy_job asked = toy_new_job(type);
        asked.freezes = freezes;
        asked.optimizer = optimizer;
        asked.lends = lends;
        toy_open(&self, &asked, set, type == DTYPE_BF16 ? 4 : 3);
        sluice_get_info(self.run, &info);
        needed[lends] = info.device_bytes;
        toy_train(&self, STEPS);
        (void)toy_evaluate(&self);
        toy_close(&self);
        if (!lends)
            plain = self;
    }
    assert_int_equal(plain.lent_count, 0);
    assert_int_equal(self.lent_count, STEPS * (TOY_BLOCKS - freezes));
    assert_true(needed[1] <= needed[0]);
    assert_same(&self, &plain);
}

static void lent_gradients_change_no_bit(void **state)
{
    const char *lion = "{\"type\": \"Lion\", \"params\": {\"lr\": 0.001}}";
    const char *adagrad = "{\"type\": \"Adagrad\", \"params\": {\"lr\": 0.01}}";
    check_lent(DTYPE_FP32, false, NULL, "state.master=split");
    check_lent(DTYPE_FP32, true, adagrad, "run.paranoid=true");
    check_lent(DTYPE_BF16, false, NULL, "state.moments=8bit");
    check_lent(DTYPE_BF16, true, lion, "run.paranoid=true");
}

/* ---- an optimizer alone: no stage has a forward, and no pass reads params ---- */

static const char optimizer_alone[] =
    "{\"model\": {\"module\": {\"name\": \"updates\", \"units\": ["
    "{\"name\": \"a\", \"tensors\": [{\"name\": \"a\", \"shape\": [100, 40]}]}, "
    "{\"name\": \"b\", \"tensors\": [{\"name\": \"b\", \"shape\": [70000]}]}], \"stages\": ["
    "{\"name\": \"a\", \"units\": [0], \"forward\": null, \"backward\": {\"reads\": [false]}}, "
    "{\"name\": \"b\", \"units\": [1], \"forward\": null, \"backward\": {\"reads\": [false]}}]}}, "
    "\"run\": {\"dir\": \"%s\"}, \"gradient_clipping\": %s, \"tiers\": {"
    "\"device\": {\"budget\": \"8MiB\"}, \"host\": {\"budget\": \"8MiB\"}, "
    "\"nvme\": [{\"path\": \"%s\", \"budget\": \"32MiB\"}], "
    "\"place\": {\"params\": \"host\", \"optimizer\": \"nvme\"}}}";

static void an_optimizer_alone_updates(void **state)
{
    char text[2048];
    void *home;
    uint64_t bytes;
    sluice_run *run;
    for (int clips = 0; clips < 2; clips++) {
        const toy_job fresh = toy_new_job(DTYPE_FP32);
        snprintf(text, sizeof text, optimizer_alone, fresh.dir, clips ? "1e9" : "0", fresh.drive);
        const char *const next[] = {"schedule.update=in_next_forward"};
        struct sluice_options options = {.set = next, .set_count = 1, .job_text = text};
        toy_assert_wrong(sluice_open("updates", &options, &run), "schedule.update");
        options.set_count = 0;
        assert_int_equal(sluice_open("updates", &options, &run), SLUICE_DONE);
        for (uint64_t step = 1; step <= 3; step++) {
            assert_int_equal(sluice_module_begin(run, 1), SLUICE_DONE);
            for (uint32_t i = 0; i < 2; i++) {
                struct sluice_use use;
                assert_int_equal(sluice_module_wait(run, &use), SLUICE_DONE);
                assert_int_equal(use.stage, 1 - i);
                assert_int_equal(use.pass, SLUICE_BACKWARD);
                assert_null(use.params[0]);
                for (uint64_t k = 0; k < use.elems[0]; k++)
                    use.grads[0][k] = k % 2 ? 0.5f : -0.5f;
                assert_int_equal(sluice_module_done(run, NULL), SLUICE_DONE);
            }
            assert_int_equal(sluice_module_end(run, NULL), SLUICE_DONE);
            assert_int_equal(sluice_module_home(run, 1, &home, &bytes), SLUICE_DONE);
            const float *values = home; /* Adam's steps of 0.001 against the sign */
            assert_float_equal(values[0], 0.001 * (double)step, 1e-6);
            assert_float_equal(values[69999], -0.001 * (double)step, 1e-6);
            assert_true(values[70000] == 0); /* padding */
        }
        assert_int_equal(sluice_close(run), SLUICE_DONE);
    }
}

/* ---- ends ---- */

static void a_resumed_run_is_the_same(void **state)
{
    static toy whole, parts;
    toy_job asked = toy_new_job(DTYPE_FP32);
    train_whole(&whole, &asked, places[3], 7);

    asked = toy_new_job(DTYPE_FP32);
    for (uint64_t until = 3, part = 0; part < 3; part++, until += 2) {
        toy_open(&parts, &asked, places[part + 3], count_of(places[part + 3]));
        assert_int_equal(parts.steps_made, part == 0 ? 0 : until - 2);
        toy_train(&parts, until);
        for (uint64_t s = part == 0 ? 0 : until - 2; s < until; s++)
            assert_int_equal(parts.losses[s], whole.losses[s]);
        (void)toy_evaluate(&parts);
        toy_close(&parts);
    }
    assert_memory_equal(parts.seen, whole.seen, sizeof whole.seen);
}

static void a_step_that_is_given_up_changes_nothing(void **state)
{
    static toy whole, self;
    for (int p = 4; p < 6; p++) { /* after_backward, in_next_forward */
        struct sluice_use use;
        toy_job asked = toy_new_job(DTYPE_FP32);
        train_whole(&whole, &asked, places[p], 6);

        asked = toy_new_job(DTYPE_FP32);
        toy_open(&self, &asked, places[p], count_of(places[p]));
        toy_begin(&self, 0);
        assert_int_equal(sluice_module_abort(self.run, "at once"), SLUICE_DONE);
        toy_train(&self, 2);
        toy_begin(&self, 3);
        assert_int_equal(sluice_module_abort(self.run, "after three"), SLUICE_DONE);
        toy_train(&self, 3);
        toy_begin(&self, 6);
        assert_int_equal(sluice_module_wait(self.run, &use), SLUICE_DONE); /* and never done */
        assert_int_equal(sluice_module_abort(self.run, NULL), SLUICE_DONE);
        assert_int_equal(sluice_module_begin(self.run, 0), SLUICE_DONE); /* an evaluation */
        assert_int_equal(sluice_module_wait(self.run, &use), SLUICE_DONE);
        assert_int_equal(sluice_module_abort(self.run, "enough"), SLUICE_DONE);
        toy_train(&self, 4);
        toy_begin(&self, 4);
        toy_close(&self); /* in the middle of a step */
        toy_open(&self, &asked, places[p], count_of(places[p]));
        assert_int_equal(self.steps_made, 4);
        toy_train(&self, 6);
        (void)toy_evaluate(&self);
        toy_close(&self);
        assert_memory_equal(&self.losses[4], &whole.losses[4], 2 * sizeof *whole.losses);
        assert_memory_equal(self.seen, whole.seen, sizeof whole.seen);
    }
}

static void an_update_in_the_backward_cannot_be_left(void **state)
{
    static toy self;
    toy_job asked = toy_new_job(DTYPE_FP32);
    asked.more = ", \"gradient_clipping\": 0, \"schedule\": {\"update\": \"in_backward\"}";
    const char *const set[] = {"bf16.check_grad_overflow=false"};
    toy_open(&self, &asked, set, 1);
    toy_train(&self, 2);
    assert_int_equal(sluice_commit(self.run, NULL), SLUICE_DONE);
    toy_begin(&self, 6);
    assert_int_equal(sluice_module_abort(self.run, "the loader broke"), SLUICE_FAILED);
    assert_non_null(strstr(sluice_error(), "the loader broke"));
    assert_int_equal(sluice_module_begin(self.run, 1), SLUICE_DONE);
    assert_int_equal(sluice_module_end(self.run, NULL), SLUICE_FAILED);
    assert_int_equal(sluice_close(self.run), SLUICE_FAILED);
    toy_open(&self, &asked, set, 1);
    assert_int_equal(self.steps_made, 2);
    toy_train(&self, 3);
    toy_close(&self);
}

static void params_at_home_are_the_last_ones(void **state)
{
    static toy self;
    void *home, *again;
    uint64_t bytes;
    toy_job asked = toy_new_job(DTYPE_FP32);
    toy_open(&self, &asked, places[5], count_of(places[5])); /* the update is in the next forward */
    toy_train(&self, 2);
    assert_int_equal(sluice_module_home(self.run, 2, &home, &bytes), SLUICE_DONE);
    assert_int_equal(bytes, toy_elems(2) * sizeof(float));
    (void)toy_evaluate(&self);
    assert_memory_equal(home, self.seen[2], bytes);
    toy_train(&self, 3);
    assert_int_equal(sluice_module_home(self.run, 2, &again, &bytes), SLUICE_DONE);
    assert_ptr_equal(home, again);
    toy_close(&self);
    asked = toy_new_job(DTYPE_FP32);
    toy_open(&self, &asked, places[2], count_of(places[2]));
    assert_int_equal(sluice_module_home(self.run, 2, &home, &bytes), SLUICE_DONE);
    assert_null(home);
    toy_close(&self);
}

static uint64_t count_bytes_not_zero(const struct sluice_memory *memory)
{
    uint64_t count = 0;
    for (int a = 0; a < 2; a++)
        for (uint64_t i = 0; i < memory->bytes[a]; i++)
            count += ((const unsigned char *)memory->base[a])[i] != 0;
    return count;
}

static void memory_outlives_its_run(void **state)
{
    static toy self;
    for (int keeps = 0; keeps < 2; keeps++) {
        const char *const *set = places[keeps]; /* params rest on the device, or on the host */
        toy_job asked = toy_new_job(DTYPE_FP32);
        void *homes[TOY_UNITS];
        struct sluice_memory memory;
        uint64_t bytes, params_bytes = 0;
        toy_open(&self, &asked, set, count_of(set));
        toy_train(&self, 3);
        (void)toy_evaluate(&self);
        for (uint32_t u = 0; u < TOY_UNITS; u++) {
            assert_int_equal(sluice_module_home(self.run, u, &homes[u], &bytes), SLUICE_DONE);
            params_bytes += bytes;
        }
        assert_int_equal(sluice_module_begin(self.run, 1), SLUICE_DONE); /* a step is open */
        assert_int_equal(sluice_module_close(self.run, keeps, &memory), SLUICE_DONE);
        for (uint32_t u = 0; u < TOY_UNITS && keeps; u++)
            assert_memory_equal(homes[u], self.seen[u], toy_elems(u) * sizeof(float));
        assert_in_range(count_bytes_not_zero(&memory), keeps ? 1 : 0, keeps ? params_bytes : 0);
        memset(homes[0], 1, 64); /* it may be written to */
        struct sluice_memory old = memory;
        sluice_module_unmap(&memory);
        assert_null(memory.base[0]);
        for (int a = 0; a < 2; a++)
            assert_int_equal(msync(old.base[a], 4096, MS_ASYNC), -1); /* not mapped */
        sluice_module_unmap(&memory);
        toy_open(&self, &asked, set, count_of(set)); /* the run was committed */
        assert_int_equal(self.steps_made, 3);
        toy_close(&self);
    }
}

/* Entries of a directory; 0 if there is none. */
static int count_entries(const char *path)
{
    int count = 0;
    DIR *entries = opendir(path);
    for (const struct dirent *entry; entries && (entry = readdir(entries));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    if (entries)
        closedir(entries);
    return count;
}

static void a_temporary_run_keeps_no_state(void **state)
{
    static toy kept, failed, self;
    toy_job asked = toy_new_job(DTYPE_FP32);
    char path[FIXTURE_PATH_BYTES + 64];
    const char *const set[] = {"tiers.place.optimizer=nvme"};
    struct sluice_options options = {.set = set,
                                     .set_count = 1,
                                     .job_text = toy_text(&asked),
                                     .first = toy_first,
                                     .temporary = 1};
    assert_int_equal(toy_try_open(&self, &asked, &options), SLUICE_DONE);
    assert_int_equal(count_entries(asked.drive), 0); /* its slab has no name, also after a kill */
    toy_train(&self, 5);                             /* run.commit_every is 2 */
    toy_assert_wrong(sluice_commit(self.run, NULL), "temporary");
    assert_int_equal(sluice_module_begin(self.run, 1), SLUICE_DONE);
    toy_close(&self); /* in the middle of a step */
    snprintf(path, sizeof path, "%s/metrics.jsonl", asked.dir);
    assert_false(fixture_exists(path));
    snprintf(path, sizeof path, "%s/state", asked.dir);
    assert_int_equal(count_entries(path), 1); /* the lock, which the next run uses again */
    assert_int_equal(count_entries(asked.drive), 0);
    assert_int_equal(count_entries(asked.dir), 1);

    toy_job failing = toy_new_job(DTYPE_FP32);
    failing.more = ", \"gradient_clipping\": 0, \"schedule\": {\"update\": \"in_backward\"}";
    const char *const fails[] = {set[0], "bf16.check_grad_overflow=false"};
    options.set = fails;
    options.set_count = 2;
    options.job_text = toy_text(&failing);
    assert_int_equal(toy_try_open(&failed, &failing, &options), SLUICE_DONE);
    toy_begin(&failed, 6);
    assert_int_equal(sluice_module_abort(failed.run, "the loader broke"), SLUICE_FAILED);
    assert_int_equal(sluice_close(failed.run), SLUICE_FAILED);
    assert_int_equal(count_entries(asked.drive), 0);
    assert_int_equal(count_entries(asked.dir), 1);

    options.set = set;
    options.set_count = 1;
    options.job_text = toy_text(&asked);
    options.temporary = 0;
    assert_int_equal(toy_try_open(&kept, &asked, &options), SLUICE_DONE);
    assert_int_equal(kept.steps_made, 0); /* the same directory has no commit */
    toy_train(&kept, 5);
    assert_memory_equal(kept.losses, self.losses, 5 * sizeof kept.losses[0]);
    toy_close(&kept);
    options.temporary = 1;
    sluice_run *run;
    toy_assert_wrong(sluice_open("toy", &options, &run), "a run with a commit of step 5");
    assert_int_equal(count_entries(asked.drive), 1);
    options.from = asked.dir;
    toy_assert_wrong(sluice_open("toy", &options, &run), "temporary");
}

static void the_callers_thread_keeps_its_cores(void **state)
{
    static toy self;
    cpu_set_t before, within;
    toy_job asked = toy_new_job(DTYPE_FP32);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    toy_open(&self, &asked, NULL, 0);
    toy_begin(&self, 2);
    assert_int_equal(sched_getaffinity(0, sizeof within, &within), 0);
    assert_true(CPU_EQUAL(&before, &within));
    assert_int_equal(sluice_module_abort(self.run, "seen"), SLUICE_DONE);
    toy_close(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_trains_as_in_memory),
        cmocka_unit_test(places_change_no_bit),
        cmocka_unit_test(lent_gradients_change_no_bit),
        cmocka_unit_test(an_optimizer_alone_updates),
        cmocka_unit_test(several_runs_train),
        cmocka_unit_test(a_resumed_run_is_the_same),
        cmocka_unit_test(a_step_that_is_given_up_changes_nothing),
        cmocka_unit_test(an_update_in_the_backward_cannot_be_left),
        cmocka_unit_test(params_at_home_are_the_last_ones),
        cmocka_unit_test(memory_outlives_its_run),
        cmocka_unit_test(a_temporary_run_keeps_no_state),
        cmocka_unit_test(the_callers_thread_keeps_its_cores),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
