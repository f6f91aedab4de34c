/* state_verify and state_inspect: what can be verified and what cannot, the output of inspect, kept
 * commits, old copies of slabs, and drives that are not mounted. */
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/state/verify_rig.h"
#include "tests/unit.h"

/* ---- what there is to verify ---- */

static void runs_that_cannot_be_verified(void **state)
{
    struct state_inspect_summary sum;
    const struct report *report = verify(fixture_path("none", NULL));
    assert_int_equal(report->rc, ERR_INPUT);
    assert_int_equal(state_inspect(fixture_path("none", NULL), &sum), ERR_INPUT);
    assert_false(fixture_exists(fixture_path("none", NULL))); /* nothing was made */
    state_inspect_fini(&sum);

    fixture_sets sets = make_sets();
    uint64_t hash = train_run_of("run", &sets);
    int fd = open(fixture_path("run", "state/lock"), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
    report = verify(fixture_path("run", NULL));
    assert_int_equal(report->rc, ERR_INPUT);
    assert_non_null(strstr(report->error, "in use"));
    assert_ok(state_inspect(fixture_path("run", NULL), &sum)); /* that looks all the same */
    state_inspect_fini(&sum);
    close(fd);

    static const volatile sig_atomic_t stop = 1;
    report = verify_with(fixture_path("run", NULL), NULL, &stop);
    assert_int_equal(report->rc, ERR_STOPPED);
    assert_intact(fixture_path("run", NULL), STEPS, hash);

    /* Names need the model; damage is found without. */
    struct opened *run = open_run(fixture_path("run", NULL));
    uint64_t at;
    const char *path = byte_place(run, &run->record.extents[0], 0, &at);
    assert_int_equal(unlink(fixture_path("run", "job.json")), 0);
    flip(path, at, 0);
    report = verify(fixture_path("run", NULL));
    assert_damage(report, path, at);
    assert_string_equal(report->damages[0].unit_name, "unit 0");
    close_run(run);
}

/* The output of inspect agrees with the manifest and the files. */
static void inspection_agrees(void **state)
{
    fixture_sets sets = make_sets();
    train_run_of("run", &sets);
    struct opened *run = open_run(fixture_path("run", NULL));
    const manifest *record = &run->record;
    struct state_inspect_summary sum;
    assert_ok(state_inspect(fixture_path("run", NULL), &sum));
    assert_int_equal(sum.record.point.step, STEPS);
    assert_int_equal(sum.record.generation, record->generation);
    assert_int_equal(sum.record.point.seed, 7);
    assert_int_equal(sum.record.tile_elems, record->tile_elems);
    assert_int_equal(sum.record.extent_count, record->extent_count);
    assert_int_equal(sum.file_count, 2);
    for (uint32_t d = 0; d < 2; d++) {
        assert_string_equal(sum.files[d].path, run->disk.files[d].path);
        assert_int_equal(sum.files[d].size_bytes, file_bytes(sum.files[d].path));
        assert_true(sum.files[d].allocated_bytes > 0);
        assert_non_null(strstr(sum.files[d].path, sum.uuid));
    }
    static const char *const names[] = {"embed", "block.0", "block.1", "head"};
    uint64_t tiles = 0, bytes = 0;
    assert_int_equal(sum.unit_count, 4);
    for (uint32_t u = 0; u < 4; u++) {
        assert_string_equal(sum.units[u].name, names[u]);
        assert_int_equal(sum.units[u].offset_bytes, record->extents[tiles].offset_bytes);
        tiles += sum.units[u].tile_count;
        bytes += sum.units[u].size_bytes;
    }
    assert_int_equal(tiles, record->extent_count);
    assert_int_equal(bytes, sum.extents_bytes);
    assert_non_null(strstr(sum.record.identity, "model.num_layers=2\n"));
    assert_int_equal(sum.state_streams, 3);
    assert_int_equal(sum.kept_count, 0);
    state_inspect_fini(&sum);
    close_run(run);
}

/* ---- one run with kept commits, which each of the following cases leaves whole ---- */

static uint64_t kept_hash;

static fixture_sets make_kept_sets(void)
{
    fixture_sets sets = make_sets();
    fixture_set(&sets, "run.keep=[2, 4]");
    return sets;
}

static int train_kept(void **state)
{
    fixture_sets sets = make_kept_sets();
    kept_hash = train_run_of("run", &sets);
    return 0;
}

/* A kept commit is a run directory: it is verified and inspected as such. */
static void kept_commits_are_runs(void **state)
{
    struct state_inspect_summary sum, copy;
    assert_ok(state_inspect(fixture_path("run", NULL), &sum));
    assert_int_equal(sum.kept_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t step = 2 * (i + 1);
        assert_int_equal(sum.kept[i].step, step);
        const struct report *report = verify(sum.kept[i].path);
        if (report->rc < 0)
            fail_msg("%s", report->error);
        assert_int_equal(report->sum.step, step);
        assert_true(report->sum.weights_hash != 0 && report->sum.weights_hash != kept_hash);
        assert_ok(state_inspect(sum.kept[i].path, &copy));
        assert_int_equal(copy.record.point.step, step);
        assert_string_equal(copy.units[0].name, "embed");
        state_inspect_fini(&copy);
    }
    struct opened *run = open_run(sum.kept[0].path);
    uint64_t at;
    const char *path = byte_place(run, &run->record.extents[3], 8, &at);
    flip(path, at, 1);
    assert_int_equal(verify(sum.kept[0].path)->damage_count, 1);
    assert_int_equal(verify(sum.kept[1].path)->damage_count, 0);
    assert_intact(fixture_path("run", NULL), STEPS, kept_hash);
    flip(path, at, 1);
    assert_int_equal(verify(sum.kept[0].path)->damage_count, 0);
    close_run(run);
    state_inspect_fini(&sum);
}

/* Puts another slab's bytes in the place of this one's. */
static void copy_slab(const char *from, const char *to)
{
    int source = open(from, O_RDONLY | O_CLOEXEC), target = open(to, O_WRONLY | O_CLOEXEC);
    assert_true(source >= 0 && target >= 0);
    for (ssize_t got = 1; got > 0;) {
        got = copy_file_range(source, NULL, target, NULL, 1 << 30, 0);
        assert_true(got >= 0);
    }
    close(source);
    close(target);
}

/* Training on is refused with this text. */
static void assert_no_resume(fixture_sets sets, int code, const char *text)
{
    static fixture_result result;
    const fixture_call call = {.name = NULL};
    fixture_set(&sets, "run.steps=%d", STEPS + 1);
    job *asked = fixture_job("run", &shape, &sets);
    fixture_train(asked, &call, &result);
    if (result.rc != code || !strstr(result.error, text))
        fail_msg("%d: '%s'", result.rc, result.error);
    job_destroy(asked);
}

/* A slab of an earlier commit, copied back from a backup, is told from damage. */
static void old_slabs_are_named(void **state)
{
    fixture_sets sets = make_kept_sets();
    struct state_inspect_summary now, old;
    assert_ok(state_inspect(fixture_path("run", NULL), &now));
    char saved[2][FILE_PATH_BYTES + 8];
    for (uint32_t d = 0; d < 2; d++) {
        snprintf(saved[d], sizeof saved[d], "%s.saved", now.files[d].path);
        assert_int_equal(rename(now.files[d].path, saved[d]), 0);
    }
    for (uint32_t k = 0; k < 2; k++) {
        assert_ok(state_inspect(now.kept[k].path, &old));
        for (uint32_t d = 0; d < 2; d++) {
            int fd = open(now.files[d].path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
            assert_true(fd >= 0);
            close(fd);
            copy_slab(old.files[d].path, now.files[d].path);
        }
        state_inspect_fini(&old);
        const struct report *report = verify(fixture_path("run", NULL));
        assert_int_equal(report->rc, ERR_CORRUPT);
        /* The manifest of step 4 still exists, that of step 2 does not. */
        const char *text =
            k ? " is an old copy: it holds the commit of step 4, and the run is at "
                "step 6"
              : "of 4 tiles that were compared is as committed, so it is an old copy";
        if (k == 0 ? !strstr(report->error, "a slab seems to be an old copy")
                   : report->damage_count != 1 || !strstr(report->damages[0].reason, text))
            fail_msg("%s: %s", report->error, report->damages[0].reason);
        assert_no_resume(sets, ERR_CORRUPT, text);
    }
    for (uint32_t d = 0; d < 2; d++)
        assert_int_equal(rename(saved[d], now.files[d].path), 0);
    assert_intact(fixture_path("run", NULL), STEPS, kept_hash);
    state_inspect_fini(&now);
}

/* A drive that is not mounted is no damage, and nothing is made in its place. */
static void drives_that_are_not_mounted(void **state)
{
    fixture_sets sets = make_kept_sets();
    struct state_inspect_summary sum;
    char drive[FILE_PATH_BYTES], away[FILE_PATH_BYTES + 8];
    snprintf(drive, sizeof drive, "%s/run.nvme/b", fixture_dir);
    snprintf(away, sizeof away, "%s.away", drive);
    assert_int_equal(rename(drive, away), 0);
    for (int exists = 0; exists < 2; exists++) {
        if (exists)
            assert_int_equal(mkdir(drive, 0700), 0);
        const struct report *report = verify(fixture_path("run", NULL));
        if (report->rc != ERR_INPUT || report->damage_count != 0 ||
            !strstr(report->error, "run.nvme/b is not mounted or is empty"))
            fail_msg("%d: '%s'", report->rc, report->error);
        assert_no_resume(sets, ERR_INPUT, "run.nvme/b is not mounted or is empty");
        assert_ok(state_inspect(fixture_path("run", NULL), &sum));
        assert_false(sum.files[0].is_unmounted);
        assert_true(sum.files[1].is_unmounted);
        state_inspect_fini(&sum);
        assert_int_equal(rmdir(drive), exists ? 0 : -1); /* still absent, or empty */
    }
    assert_int_equal(rename(away, drive), 0);
    assert_intact(fixture_path("run", NULL), STEPS, kept_hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(runs_that_cannot_be_verified, remove_run),
        cmocka_unit_test_teardown(inspection_agrees, remove_run),
        cmocka_unit_test_setup(kept_commits_are_runs, train_kept),
        cmocka_unit_test(old_slabs_are_named),
        cmocka_unit_test_teardown(drives_that_are_not_mounted, remove_run),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
