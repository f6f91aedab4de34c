/* Run directories that are copied, named in other ways, or left between the manifests of a move: no
 * slab is removed that a manifest names, none is copied without need; and which commits are kept
 * where the steps that would make them do not come. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "format/manifest.h"
#include "plan/plan.h"
#include "state/verify.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

static const fixture_model shape = {.family = "gpt2", .bf16 = true, .layers = 1, .hidden = 64};

enum { STEPS = 8 };

static fixture_sets make_sets(void)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "tiers.place.optimizer=nvme");
    fixture_set(&sets, "schedule.update=in_next_forward");
    fixture_set(&sets, "model.seq_length=16");
    fixture_set(&sets, "run.steps=%d", STEPS);
    return sets;
}

/* The uninterrupted run. Where states rest and when commits are made changes no bit, so it is every
 * test's. */
static fixture_result whole;

static int train_whole(void **state)
{
    fixture_sets sets = make_sets();
    if (fixture_setup(state) != 0)
        return -1;
    fixture_train_good("whole", &shape, &sets, &whole);
    return 0;
}

/* To the end, with the bits of `whole`. */
static void goes_on(const fixture_sets *sets)
{
    static fixture_result result;
    fixture_train_good("parts", &shape, sets, &result);
    assert_true(result.summary.was_resumed);
    fixture_assert_same(&whole, &result);
}

static void stop_at(const char *name, const fixture_sets *sets, uint64_t step)
{
    static fixture_result result;
    fixture_train_stop(name, &shape, sets, step, &result);
}

/* The only path of that pattern under the fixture's directory. */
static void find_one(const char *pattern, char out[2 * FIXTURE_PATH_BYTES])
{
    char path[2 * FIXTURE_PATH_BYTES];
    glob_t found;
    snprintf(path, sizeof path, "%s/%s", fixture_dir, pattern);
    if (glob(path, 0, NULL, &found) != 0)
        fail_msg("there is no %s", path);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(out, 2 * FIXTURE_PATH_BYTES, "%s", found.gl_pathv[0]);
    globfree(&found);
}

static void copy_run(const char *from, const char *to)
{
    char command[4 * FIXTURE_PATH_BYTES];
    snprintf(command, sizeof command, "cp -a '%s/%s' '%s/%s'", fixture_dir, from, fixture_dir, to);
    assert_int_equal(system(command), 0);
}

/* ---- copies of a run directory ---- */

static void refuses_the_copy(const fixture_sets *sets)
{
    static fixture_result result;
    assert_int_equal(fixture_run("copy", &shape, sets, NULL, &result), ERR_INPUT);
    if (!strstr(result.error, "--from"))
        fail_msg("%s", result.error);
}

/* Where the slabs are elsewhere, both directories name them: the copy may neither train in them nor
 * move them away. */
static void copied_directory_costs_no_run(void **state)
{
    fixture_sets sets = make_sets();
    stop_at("parts", &sets, 4);
    copy_run("parts", "copy");
    refuses_the_copy(&sets); /* to its own drive, which would remove the slabs of "parts" */
    fixture_sets same = sets;
    fixture_set(&same, "tiers.nvme=[{\"path\":\"%s\"}]", fixture_path("parts", ".nvme"));
    refuses_the_copy(&same);
    goes_on(&sets);
    fixture_remove("copy");
    fixture_remove("parts");
}

/* A directory that was moved, not copied, takes its slabs along; so does a copy that has slabs of
 * its own. */
static void moved_directory_goes_on(void **state)
{
    static fixture_result result;
    fixture_sets sets = make_sets(), drive = sets, inside = sets;
    fixture_set(&drive, "tiers.nvme=[{\"path\":\"%s/drive\"}]", fixture_dir);
    stop_at("before", &drive, 4);
    assert_int_equal(rename(fixture_path("before", NULL), fixture_path("parts", NULL)), 0);
    goes_on(&drive);
    copy_run("parts", "copy");
    refuses_the_copy(&drive); /* the slabs are those of "parts" now */
    fixture_remove("copy");
    fixture_remove("parts");
    fixture_remove("drive");

    fixture_set(&inside, "tiers.place.optimizer=host");
    fixture_set(&inside, "tiers.nvme=[]");
    fixture_set(&inside, "run.keep=[3]");
    stop_at("first", &inside, 4);
    assert_int_equal(rename(fixture_path("first", NULL), fixture_path("moved", NULL)), 0);
    struct state_verify_options kept = {.run_dir = fixture_path("moved", "keep/step-000000003")};
    struct state_verify_summary sum;
    assert_ok(state_verify(&kept, &sum));
    assert_int_equal(sum.step, 3);
    assert_int_equal(rename(fixture_path("moved", NULL), fixture_path("first", NULL)), 0);
    copy_run("first", "parts");
    goes_on(&inside);
    fixture_train_good("first", &shape, &inside, &result);
    fixture_assert_same(&whole, &result);
    fixture_remove("first");
    fixture_remove("parts");
}

/* The drives are mounted elsewhere now, or the whole run was copied with its drives. The run uses
 * the slabs in the places that the job names. */
static void renamed_drives_go_on(void **state)
{
    static fixture_result result;
    fixture_sets sets = make_sets(), before = sets, after = sets;
    fixture_set(&before, "tiers.nvme=[{\"path\":\"%s/a\"},{\"path\":\"%s/b\"}]", fixture_dir,
                fixture_dir);
    fixture_set(&after, "tiers.nvme=[{\"path\":\"%s/c\"},{\"path\":\"%s/d\"}]", fixture_dir,
                fixture_dir);
    stop_at("parts", &before, 4);
    copy_run("parts", "copy");
    copy_run("a", "c");
    copy_run("b", "d");
    fixture_train_good("copy", &shape, &after, &result);
    fixture_assert_same(&whole, &result);
    fixture_remove("copy");
    fixture_remove("c");
    fixture_remove("d");
    copy_run("a", "c"); /* an older backup: the run moves there from where it is */
    copy_run("b", "d");
    stop_at("parts", &before, 6);
    goes_on(&after);
    fixture_remove("parts");
    fixture_remove("c");
    fixture_remove("d");
    stop_at("parts", &before, 4);
    assert_int_equal(rename(fixture_path("a", NULL), fixture_path("c", NULL)), 0);
    assert_int_equal(rename(fixture_path("b", NULL), fixture_path("d", NULL)), 0);
    goes_on(&after);
    fixture_remove("c");
    fixture_remove("d");
    fixture_remove("parts");
}

/* The same directory under another name is no other drive: nothing is copied. */
static void other_names_move_nothing(void **state)
{
    char slab[2 * FIXTURE_PATH_BYTES], now[2 * FIXTURE_PATH_BYTES];
    fixture_sets sets = make_sets(), renamed = sets;
    stop_at("parts", &sets, 4);
    find_one("parts.nvme/sluice-*", slab);
    assert_int_equal(symlink(fixture_path("parts", ".nvme"), fixture_path("other", NULL)), 0);
    fixture_set(&renamed, "tiers.nvme=[{\"path\":\"%s//other/.\",\"budget\":\"64MiB\"}]",
                fixture_dir);
    goes_on(&renamed);
    find_one("parts.nvme/sluice-*", now);
    assert_string_equal(slab, now);
    assert_int_equal(unlink(fixture_path("other", NULL)), 0);
    fixture_remove("parts");
}

/* ---- between the manifests of a move ---- */

struct failure {
    const char *point;
    int at, count;
};

static int fail_at(void *user, const char *name)
{
    struct failure *self = user;
    if (strcmp(name, self->point) != 0 || ++self->count != self->at)
        return 0;
    return err_set(-EIO, "the test ends it here");
}

static void fails_at(const fixture_sets *sets, const char *point, int at)
{
    static fixture_result result;
    struct failure failure = {.point = point, .at = at};
    fixture_call call = {.name = NULL};
    failpoint_hook(fail_at, &failure);
    fixture_run("parts", &shape, sets, &call, &result);
    failpoint_hook(NULL, NULL);
    if (result.rc != -EIO)
        fail_msg("%s", result.rc < 0 ? result.error : "it did not fail");
}

static void damage_newest(const char *name)
{
    manifest_slot slots[2];
    assert_int_equal(manifest_examine(fixture_path(name, "state"), slots, NULL), 0);
    bool second = slots[1].generation > slots[0].generation;
    int fd = open(fixture_path(name, second ? "state/manifest-1" : "state/manifest-0"), O_RDWR);
    char byte;
    assert_int_equal(pread(fd, &byte, 1, 300), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, 300), 1);
    close(fd);
}

/* A move may end between its two last manifests. The older of the two still has old and new slabs
 * exchanged. Once the old slabs are removed, a single flipped bit must not make that manifest the
 * newest one: it lists the new slabs as leftovers to remove. */
static void no_manifest_names_what_is_gone(void **state)
{
    fixture_sets sets = make_sets(), moved = sets;
    fixture_set(&moved, "tiers.nvme=[{\"path\":\"%s/parts.nvme/b\"}]", fixture_dir);
    stop_at("parts", &sets, 4);
    fails_at(&moved, "manifest.begin", 3); /* leftovers listed, state switched, again */
    fails_at(&moved, "commit.begin", 1);   /* the old slabs are removed at the start of this one */
    damage_newest("parts");
    goes_on(&moved);
    fixture_remove("parts");
}

/* While the state's own slabs are missing, no leftover slab is removed. */
static void leftovers_stay_while_the_state_is_away(void **state)
{
    static fixture_result result;
    char slab[2 * FIXTURE_PATH_BYTES];
    fixture_sets sets = make_sets(), moved = sets;
    fixture_set(&moved, "tiers.nvme=[{\"path\":\"%s/far\"}]", fixture_dir);
    stop_at("parts", &sets, 4);
    fails_at(&moved, "recut.copied", 1);
    find_one("far/sluice-*", slab);
    assert_int_equal(rename(fixture_path("parts", ".nvme"), fixture_path("away", NULL)), 0);
    fixture_call call = {.name = NULL};
    assert_int_equal(fixture_run("parts", &shape, &moved, &call, &result), ERR_INPUT);
    find_one("far/sluice-*", slab);
    assert_int_equal(rename(fixture_path("away", NULL), fixture_path("parts", ".nvme")), 0);
    goes_on(&moved);
    find_one("far/sluice-*", slab); /* one: the leftover is gone */
    fixture_remove("parts");
    fixture_remove("far");
}

/* ---- what is kept ---- */

static bool commits_first;

void __real_plan_machine_default_cpu(plan_machine *machine, uint32_t core_count,
                                     bool bf16_products);
void __wrap_plan_machine_default_cpu(plan_machine *machine, uint32_t core_count,
                                     bool bf16_products);

/* Figures of a drive with which steps that apply an update commit the state before it
 * (PLAN_COMMIT_FIRST). */
void __wrap_plan_machine_default_cpu(plan_machine *machine, uint32_t core_count, bool bf16_products)
{
    __real_plan_machine_default_cpu(machine, core_count, bf16_products);
    if (!commits_first)
        return;
    machine->sync_seconds = 10e-3;
    machine->device_flops_per_second = 3e8;
}

/* A stop, the end and an evaluation apply what is pending: a commit to keep that the next step
 * would have made is made before. */
static void commits_are_kept_though_updates_follow(void **state)
{
    static fixture_result result;
    fixture_sets sets = make_sets();
    fixture_set(&sets, "tiers.place.optimizer=host");
    commits_first = true;
    fixture_set(&sets, "run.commit_every=1");
    fixture_set(&sets, "run.keep=1");
    fixture_set(&sets, "run.eval_every=3");
    fixture_train_good("parts", &shape, &sets, &result);
    commits_first = false;
    fixture_assert_same(&whole, &result);
    struct state_inspect_summary seen;
    assert_ok(state_inspect(fixture_path("parts", NULL), &seen));
    for (uint32_t i = 0; i < seen.kept_count; i++) {
        struct state_verify_options asked = {.run_dir = seen.kept[i].path};
        struct state_verify_summary sum;
        assert_int_equal(seen.kept[i].step, i + 1);
        assert_ok(state_verify(&asked, &sum));
    }
    assert_int_equal(seen.kept_count, STEPS);
    state_inspect_fini(&seen);
    fixture_remove("parts");
}

/* The commit that a run begins with is one to keep like its own. */
static void first_commit_of_a_branch_is_kept(void **state)
{
    static fixture_result result;
    fixture_sets sets = make_sets();
    stop_at("parts", &sets, 4);
    char from[FIXTURE_PATH_BYTES];
    snprintf(from, sizeof from, "%s", fixture_path("parts", NULL));
    fixture_call call = {.name = NULL, .from = from};
    fixture_sets other = sets;
    fixture_set(&other, "optimizer={\"type\":\"Lion\",\"params\":{\"lr\":1e-4}}");
    assert_int_equal(fixture_run("branch", &shape, &other, &call, &result), ERR_INPUT);
    if (!strstr(result.error, "parts was made with other")) /* not "branch" */
        fail_msg("%s", result.error);
    fixture_set(&sets, "run.keep=[4]");
    fixture_set(&sets, "run.commit_every=4");
    if (fixture_run("branch", &shape, &sets, &call, &result) < 0)
        fail_msg("%s", result.error);
    struct state_inspect_summary seen;
    assert_ok(state_inspect(fixture_path("branch", NULL), &seen));
    assert_int_equal(seen.kept_count, 1);
    assert_int_equal(seen.kept[0].step, 4);
    state_inspect_fini(&seen);
    fixture_remove("branch");
    fixture_remove("parts");
}

/* One place per extent: a failure says that there is nothing to go on from. */
static void failure_with_one_place_says_so(void **state)
{
    static fixture_result result;
    fixture_sets sets = make_sets();
    fixture_set(&sets, "run.commit_every=0");
    struct failure failure = {.point = "commit.begin", .at = 1};
    fixture_call call = {.name = NULL};
    failpoint_hook(fail_at, &failure);
    assert_int_equal(fixture_run("parts", &shape, &sets, &call, &result), -EIO);
    failpoint_hook(NULL, NULL);
    if (!strstr(result.error, "cannot be resumed"))
        fail_msg("%s", result.error);
    fixture_remove("parts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copied_directory_costs_no_run),
        cmocka_unit_test(moved_directory_goes_on),
        cmocka_unit_test(renamed_drives_go_on),
        cmocka_unit_test(other_names_move_nothing),
        cmocka_unit_test(no_manifest_names_what_is_gone),
        cmocka_unit_test(leftovers_stay_while_the_state_is_away),
        cmocka_unit_test(commits_are_kept_though_updates_follow),
        cmocka_unit_test(first_commit_of_a_branch_is_kept),
        cmocka_unit_test(failure_with_one_place_says_so),
    };
    log_set_level(LOG_QUIET);
    return cmocka_run_group_tests(tests, train_whole, fixture_teardown);
}
