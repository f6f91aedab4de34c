/* Runs whose passes a program computes (sluice_module_*): wrong calls, wrong jobs and another
 * module get a sentence. */
#include "tests/api/toy_module.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

static void another_module_is_refused_by_its_first_tensor(void **state)
{
    static toy self;
    toy_job asked = toy_new_job(DTYPE_FP32);
    toy_open(&self, &asked, NULL, 0);
    toy_train(&self, 1);
    toy_close(&self);
    asked.freezes = true;
    const struct sluice_options options = {.job_text = toy_text(&asked), .first = toy_first};
    toy_assert_wrong(
        toy_try_open(&self, &asked, &options),
        "the first parameter that differs was 0.up [200, 24] of block.0 and is 0.up [200, "
        "24] of block.0, frozen; go on");
}

static void wrong_calls_get_a_sentence(void **state)
{
    static toy self;
    struct sluice_use use;
    struct sluice_group numbers = {.lr = 1};
    double loss;
    uint64_t offset, elems;
    void *home;
    toy_job asked = toy_new_job(DTYPE_FP32);
    toy_open(&self, &asked, NULL, 0);
    toy_assert_wrong(sluice_step(self.run, NULL), "sluice_module_begin");
    toy_assert_wrong(sluice_evaluate(self.run, &loss), "sluice_module_begin");
    toy_assert_wrong(sluice_module_wait(self.run, &use), "no step is open");
    toy_assert_wrong(sluice_module_done(self.run, NULL), "no step is open");
    toy_assert_wrong(sluice_module_end(self.run, NULL), "no step is open");
    toy_assert_wrong(sluice_module_abort(self.run, "why"), "no step is open");
    toy_assert_wrong(sluice_module_set_group(self.run, 2, &numbers), "groups 0 to 1");
    toy_assert_wrong(sluice_module_locate(self.run, 4, 0, &offset, &elems),
                     "no tensor 0 of unit 4");
    toy_assert_wrong(sluice_module_home(self.run, 9, &home, &offset), "units 0 to 3");
    toy_assert_wrong(sluice_export(self.run, "nowhere", NULL), "model.module, toy");
    assert_int_equal(sluice_broadcast(self.run, &numbers, sizeof numbers), SLUICE_DONE);
    assert_true(numbers.lr == 1); /* of one rank nothing changes */
    toy_begin(&self, 1);
    toy_assert_wrong(sluice_module_begin(self.run, 1), "is open");
    toy_assert_wrong(sluice_commit(self.run, NULL), "is open");
    toy_assert_wrong(sluice_broadcast(self.run, &numbers, sizeof numbers), "is open");
    toy_assert_wrong(sluice_module_set_group(self.run, 0, &numbers), "is open");
    toy_assert_wrong(sluice_module_home(self.run, 0, &home, &offset), "is open");
    toy_assert_wrong(sluice_module_done(self.run, NULL), "no use is held");
    toy_assert_wrong(sluice_module_end(self.run, NULL), "the forward of stage 1, stage.1");
    assert_int_equal(sluice_module_wait(self.run, &use), SLUICE_DONE);
    toy_assert_wrong(sluice_module_wait(self.run, &use), "stage 1, stage.1 is not over");
    assert_int_equal(sluice_module_abort(self.run, "why"), SLUICE_DONE);
    toy_begin(&self, 2 * TOY_BLOCKS + 3);
    toy_assert_wrong(sluice_module_wait(self.run, &use), "no more uses");
    assert_int_equal(sluice_module_end(self.run, NULL), SLUICE_DONE);
    struct sluice_info info;
    sluice_get_info(self.run, &info);
    assert_int_equal(info.step, 1);
    toy_close(&self);

    fixture_sets sets = {.count = 0};
    job *plain = fixture_job("plain", &(fixture_model){"llama", true, 2, 64}, &sets);
    const struct sluice_options options = {.job_text = plain->text};
    sluice_run *run;
    assert_int_equal(sluice_open("plain", &options, &run), SLUICE_DONE);
    toy_assert_wrong(sluice_module_begin(run, 1), "no model.module");
    assert_int_equal(sluice_close(run), SLUICE_DONE);
    job_destroy(plain);
}

static int no_weights(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values)
{
    memset(values, 0, count * sizeof *values);
    return unit == 2 ? -1 : 0;
}

static void wrong_jobs_are_refused(void **state)
{
    static const char *const wrong[][2] = {
        {"data.train=[\"x.txt\"]", "data.train"},
        {"train.only=all", "train.only"},
        {"model.hidden_size=64", "model.hidden_size"},
        {"run.eval_every=3", "run.eval_every"},
        {"model.module.units.1.group=-1", "group"},
        {"model.module.units.1.shape=3", "unknown key"},
        {"model.module.stages.1.units=[9]", "0 to 3"},
        {"model.module.stages.1.units=[1,1]", "twice"},
        {"model.module.stages.1.backward=null", "no backward"},
        {"model.module.stages.1.backward.adds=[false]", "block.0, learns"},
        {"model.module.stages.1.backward.adds=[1]", "true or false"},
        {"model.module.stages.0.backward={\"reads\":[true],\"adds\":[false]}",
         "after its last gradient"},
        {"model.module.units.1.name=root", "of unit 0 too"},
        {"model.module.units.1.frozen=3", "true or false"},
        {"model.module.units.1.tensors=[]", "tensors"},
        {"model.module=no-such-file.json", "no-such-file.json"},
    };
    toy_job asked = toy_new_job(DTYPE_FP32);
    sluice_run *run;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct sluice_options options = {
            .set = wrong[i], .set_count = 1, .job_text = toy_text(&asked), .first = toy_first};
        toy_assert_wrong(sluice_open("toy", &options, &run), wrong[i][1]);
    }
    const struct sluice_options options = {.job_text = toy_text(&asked), .first = no_weights};
    assert_int_equal(sluice_open("toy", &options, &run), SLUICE_FAILED);
    assert_non_null(strstr(sluice_error(), "unit 2"));
    const struct sluice_train_options train = {.job = {.job_text = toy_text(&asked)}};
    toy_assert_wrong(sluice_train("toy", &train, NULL), "computed by a program");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_module_is_refused_by_its_first_tensor),
        cmocka_unit_test(wrong_calls_get_a_sentence),
        cmocka_unit_test(wrong_jobs_are_refused),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
