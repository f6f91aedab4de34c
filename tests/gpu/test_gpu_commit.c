/* Commits of runs whose optimizer state is in the memory of a GPU. A commit that follows the work
 * of a step must save the state of that step and of no other. A run ends in its n-th commit, is
 * started again, and must end with the bits of a run without interruption. */
#include <errno.h>

#include "base/failpoint.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { STEPS = 8 };

static const fixture_model shape = {.family = "llama", .bf16 = true, .layers = 2, .hidden = 64};

/* Where state rests, and when it is updated. */
static const struct {
    const char *update, *params, *optimizer, *rules;
} cases[] = {
    {"in_next_forward", "device", "device", "[]"},
    {"after_backward", "nvme", "device", "[]"},
    {"in_next_forward", "host", "device",
     "[{\"units\":\"1-1\",\"kind\":\"optimizer\",\"tier\":\"nvme\"},"
     "{\"units\":\"2-2\",\"kind\":\"optimizer\",\"tier\":\"host\"}]"},
};

static void set_case(size_t i, fixture_sets *sets)
{
    memset(sets, 0, sizeof *sets);
    fixture_set(sets, "device.backend=cuda");
    fixture_set(sets, "run.steps=%d", STEPS);
    fixture_set(sets, "run.commit_every=1");
    fixture_set(sets, "schedule.tile_elems=32768");
    fixture_set(sets, "schedule.update=%s", cases[i].update);
    fixture_set(sets, "tiers.place.params=%s", cases[i].params);
    fixture_set(sets, "tiers.place.optimizer=%s", cases[i].optimizer);
    fixture_set(sets, "tiers.place.activations=host");
    fixture_set(sets, "tiers.place.rules=%s", cases[i].rules);
}

/* Counts down to the commit that fails before its manifest is written. Earlier commits succeed. */
static int commits_left;

static int end_in_commit(void *user, const char *name)
{
    if (strcmp(name, "commit.synced") != 0 || --commits_left > 0)
        return 0;
    return err_set(-EIO, "the commit that is to fail");
}

static void run(const char *name, const fixture_sets *sets, fixture_result *result)
{
    job *asked = fixture_job(name, &shape, sets);
    fixture_train(asked, &(fixture_call){.name = name}, result);
    job_destroy(asked);
}

static void a_commit_has_the_state_of_its_step(void **state)
{
    static fixture_result whole, ended, result;
    fixture_sets sets;
    set_case(0, &sets);
    run("whole", &sets, &whole); /* where state rests changes no bit: for all cases */
    if (whole.rc < 0)
        fail_msg("%s", whole.error);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_case(i, &sets);
        for (int nth = 3; nth <= 6; nth += 3) {
            failpoint_hook(end_in_commit, NULL);
            commits_left = nth;
            run("ended", &sets, &ended);
            failpoint_hook(NULL, NULL);
            assert_int_equal(ended.rc, -EIO);
            assert_true(ended.summary.steps_done < STEPS);
            run("ended", &sets, &result);
            if (result.rc < 0)
                fail_msg("case %d, commit %d: %s", (int)i, nth, result.error);
            assert_true(result.summary.was_resumed);
            assert_int_equal(result.summary.steps_done, STEPS - (nth - 1));
            fixture_assert_same(&whole, &result);
            fixture_remove("ended");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_commit_has_the_state_of_its_step),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
