/* Kept commits of real runs: keeping changes no bit of the run; each copy holds the state of its
 * step, and trains on from there to what the run became, where it lies or moved to other drives and
 * tiles. */
#include <glob.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "state/verify.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { STEPS = 10 };

static const fixture_model shape = {.family = "llama", .bf16 = true, .layers = 2, .hidden = 128};

static fixture_sets make_sets(const char *optimizer)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "tiers.place.optimizer=%s", optimizer);
    fixture_set(&sets, "run.steps=%d", STEPS);
    fixture_set(&sets, "run.commit_every=2");
    return sets;
}

static const char *kept_dir(const char *name, int step)
{
    char file[64];
    snprintf(file, sizeof file, "keep/step-%09d", step);
    return fixture_path(name, file);
}

static void assert_holds(const char *dir, uint64_t step, uint64_t hash)
{
    struct state_verify_options asked = {.run_dir = dir};
    static struct state_verify_summary sum;
    if (state_verify(&asked, &sum) < 0)
        fail_msg("%s: %s", dir, err_text());
    assert_int_equal(sum.step, step);
    assert_true(sum.weights_hash == hash);
}

/* The hash of the weights after so many steps. */
static uint64_t hash_at(const char *optimizer, int steps)
{
    static fixture_result result;
    fixture_sets sets = make_sets(optimizer);
    fixture_set(&sets, "run.steps=%d", steps);
    fixture_train_good("part", &shape, &sets, &result);
    fixture_remove("part");
    return result.weights_hash;
}

/* Trains the run in `dir` to the end; losses and weights are those of `whole`. */
static void goes_on(const char *dir, const fixture_sets *sets, int step,
                    const fixture_result *whole)
{
    static fixture_result result;
    fixture_sets own = *sets;
    fixture_set(&own, "run.dir=%s", dir);
    fixture_call call = {.name = NULL};
    fixture_run("copy", &shape, &own, &call, &result);
    if (result.rc < 0)
        fail_msg("%s: %s", dir, result.error);
    assert_true(result.summary.was_resumed);
    assert_int_equal(result.summary.steps_done, STEPS - step);
    assert_true(result.weights_hash == whole->weights_hash);
    char path[2 * FIXTURE_PATH_BYTES], line[8192];
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int at = step; at < STEPS; at++) {
        assert_non_null(fgets(line, sizeof line, file));
        json_t *one = json_loads(line, 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(one, "step")), at + 1);
        const char *bits = json_string_value(json_object_get(one, "loss_bits"));
        assert_int_equal(strtoul(bits, NULL, 16), whole->loss_bits[at]);
        json_decref(one);
    }
    fclose(file);
}

/* Finds the directory of a copy on the drive. Exactly one name may match. */
static void find_drive(const char *name, int step, char out[2 * FIXTURE_PATH_BYTES])
{
    char pattern[2 * FIXTURE_PATH_BYTES];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/sluice-*.keep/step-%09d", fixture_path(name, ".nvme"),
             step);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(out, 2 * FIXTURE_PATH_BYTES, "%s", found.gl_pathv[0]);
    globfree(&found);
}

static void copies_go_on(const char *optimizer)
{
    static fixture_result whole, kept;
    fixture_sets sets = make_sets(optimizer), keeping = sets;
    fixture_train_good("whole", &shape, &sets, &whole);
    fixture_set(&keeping, "run.keep=4");
    fixture_train_good("run", &shape, &keeping, &kept);
    fixture_assert_same(&whole, &kept);
    assert_int_equal(kept.summary.sealed_alloc_count, 0);
    struct state_inspect_summary seen;
    assert_ok(state_inspect(fixture_path("run", NULL), &seen));
    assert_int_equal(seen.kept_count, 2);
    assert_int_equal(seen.kept[0].step, 4);
    assert_int_equal(seen.kept[1].step, 8);
    state_inspect_fini(&seen);
    assert_holds(kept_dir("run", 4), 4, hash_at(optimizer, 4));
    assert_holds(kept_dir("run", 8), 8, hash_at(optimizer, 8));

    char drive[2 * FIXTURE_PATH_BYTES];
    find_drive("run", 4, drive);
    fixture_sets in_place = sets, moved = sets;
    fixture_set(&in_place, "tiers.nvme=[{\"path\":\"%s\",\"budget\":\"256MiB\"}]", drive);
    goes_on(kept_dir("run", 4), &in_place, 4, &whole);
    fixture_set(&moved, "schedule.tile_elems=32768"); /* and the drive copy.nvme */
    goes_on(kept_dir("run", 8), &moved, 8, &whole);
    assert_holds(fixture_path("run", NULL), STEPS, whole.weights_hash);
    fixture_remove("whole");
    fixture_remove("run");
    fixture_remove("copy");
}

static void copies_of_state_on_drives(void **state)
{
    copies_go_on("nvme");
}

static void copies_of_state_in_memory(void **state)
{
    copies_go_on("device");
}

static int die(void *user, const char *name)
{
    if (strcmp(name, user) == 0)
        kill(getpid(), SIGKILL);
    return 0;
}

/* The process is killed while it keeps its first commit: the next one goes on, and has that copy
 * too. */
static void killed_while_keeping(void **state)
{
    static fixture_result whole, kept;
    fixture_sets sets = make_sets("nvme"), keeping = sets;
    fixture_set(&keeping, "run.keep=4");
    static char point[] = "keep.copied";
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        failpoint_hook(die, point);
        fixture_train_good("run", &shape, &keeping, &kept);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    fixture_train_good("whole", &shape, &sets, &whole);
    fixture_train_good("run", &shape, &keeping, &kept);
    fixture_assert_same(&whole, &kept);
    assert_true(kept.summary.was_resumed);
    assert_holds(kept_dir("run", 4), 4, hash_at("nvme", 4));
    assert_holds(kept_dir("run", 8), 8, hash_at("nvme", 8));
    fixture_remove("whole");
    fixture_remove("run");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_while_keeping), /* first: it forks, before there are threads */
        cmocka_unit_test(copies_of_state_on_drives),
        cmocka_unit_test(copies_of_state_in_memory),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
