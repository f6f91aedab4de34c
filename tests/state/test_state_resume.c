/* A clean stop and its resumption give the bits of an uninterrupted run. A run that cannot be
 * resumed is refused with a sentence that names the next step. With the arguments "victim DIR" the
 * program is the run that kills itself. */
#include <fcntl.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "format/manifest.h"
#include "state/verify.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "train/train.h"

static const fixture_model shape = {.family = "llama", .bf16 = true, .layers = 2, .hidden = 128};

enum { STEPS = 10, KILL_STEP = 4 };

/* Placements of every kind, update mode. */
static fixture_sets make_sets(const char *tier, const char *update)
{
    fixture_sets sets = {.count = 0};
    static const char *const kinds[] = {"params", "grads", "optimizer", "activations"};
    for (int k = 0; k < 4; k++)
        fixture_set(&sets, "tiers.place.%s=%s", kinds[k], tier);
    fixture_set(&sets, "schedule.update=%s", update);
    fixture_set(&sets, "run.steps=%d", STEPS);
    return sets;
}

/* The uninterrupted run. Placements, updates and commits change no bit, so it is every test's. */
static fixture_result whole;

static int train_whole(void **state)
{
    fixture_sets sets = make_sets("device", "after_backward");
    if (fixture_setup(state) != 0)
        return -1;
    fixture_train_good("whole", &shape, &sets, &whole);
    assert_int_equal(whole.step_count, STEPS);
    return 0;
}

/* Stops after each of `stops` (0 ends the list), then runs to the end. */
static void stop_and_resume(const fixture_sets *sets, const uint64_t *stops)
{
    static fixture_result result;
    uint64_t before = 0;
    for (; *stops; stops++) {
        fixture_train_stop("parts", &shape, sets, *stops, &result);
        assert_int_equal(result.step_count, *stops);
        assert_int_equal(result.summary.steps_done, *stops - before);
        assert_int_equal(result.summary.was_resumed, before > 0);
        assert_non_null(strstr(result.error, "resume"));
        before = *stops;
    }
    fixture_train_good("parts", &shape, sets, &result);
    assert_true(result.summary.was_resumed);
    assert_int_equal(result.step_count, STEPS);
    assert_int_equal(result.summary.steps_done, STEPS - before);
    fixture_assert_same(&whole, &result);
    fixture_remove("parts");
}

static void resumed_runs_give_the_same_bits(void **state)
{
    static const char *const tiers[] = {"device", "host", "nvme"};
    static const char *const updates[] = {"after_backward", "in_next_forward"};
    static const uint64_t stops[][4] = {{1}, {9}, {2, 3, 7}};
    for (int t = 0; t < 3; t++)
        for (int u = 0; u < 2; u++) {
            fixture_sets sets = make_sets(tiers[t], updates[u]);
            for (int i = 0; i < 3; i++)
                stop_and_resume(&sets, stops[i]);
        }
}

/* Evaluation draws from other data and leaves training as it is, also across a resume. */
static void evaluation_changes_nothing(void **state)
{
    static fixture_result result;
    fixture_sets sets = make_sets("nvme", "in_next_forward"), evaluated = sets;
    fixture_set(&evaluated, "run.eval_every=3");
    fixture_train_stop("parts", &shape, &evaluated, 6, &result);
    fixture_train_good("parts", &shape, &evaluated, &result);
    assert_true(result.summary.eval_given);
    assert_true(result.summary.eval_loss > 0 && result.summary.eval_loss < 7);
    fixture_assert_same(&whole, &result);
    fixture_remove("parts");
}

static void completed_run_goes_on(void **state)
{
    static fixture_result result;
    fixture_sets sets = make_sets("nvme", "in_next_forward"), shorter = sets;
    fixture_set(&shorter, "run.steps=6");
    fixture_train_good("parts", &shape, &shorter, &result);
    assert_int_equal(result.step_count, 6);
    uint64_t hash = result.weights_hash;
    /* If no step is left, the run does nothing, and the state stays. */
    fixture_train_good("parts", &shape, &shorter, &result);
    assert_int_equal(result.summary.steps_done, 0);
    assert_int_equal(result.step_count, 6);
    assert_true(result.weights_hash == hash);
    fixture_train_good("parts", &shape, &sets, &result);
    assert_true(result.summary.was_resumed);
    fixture_assert_same(&whole, &result);
    fixture_remove("parts");
}

/* Expects a refusal with ERR_INPUT whose sentence holds the words. */
static void refused(const fixture_model *model, const fixture_sets *sets, const char *words)
{
    static fixture_result result;
    int rc = fixture_run("parts", model, sets, NULL, &result);
    if (rc != ERR_INPUT || !strstr(result.error, words))
        fail_msg("expected ERR_INPUT with \"%s\", got %s: %s", words, err_name(rc), result.error);
}

static int try_lock(void)
{
    int fd = open(fixture_path("parts", "state/lock"), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    close(fd);
    return -1;
}

static bool was_locked;

static void look_at_lock(uint64_t step)
{
    int fd = try_lock();
    was_locked = fd < 0;
    if (fd >= 0)
        close(fd);
}

static void two_cannot_share_a_run(void **state)
{
    static fixture_result result;
    fixture_sets sets = make_sets("nvme", "in_next_forward");
    fixture_call call = {.name = "parts", .stop_after = 2, .on_step = look_at_lock};
    assert_int_equal(fixture_run("parts", &shape, &sets, &call, &result), ERR_STOPPED);
    assert_true(was_locked);
    int fd = try_lock();
    assert_true(fd >= 0); /* given back */
    refused(&shape, &sets, "in use by another process");
    close(fd);
    fixture_train_good("parts", &shape, &sets, &result);
    assert_int_equal(result.step_count, STEPS);
    fixture_remove("parts");
}

static void other_jobs_are_refused(void **state)
{
    static fixture_result result;
    fixture_sets sets = make_sets("nvme", "in_next_forward");
    fixture_train_stop("parts", &shape, &sets, 5, &result);

    fixture_model other = shape;
    other.layers = 3;
    refused(&other, &sets, "model.num_layers was 2 and is 3");
    other = shape;
    other.bf16 = false;
    refused(&other, &sets, "dtype was bf16 and is fp32");
    fixture_sets changed = sets;
    fixture_set(&changed, "train_micro_batch_size_per_gpu=1");
    refused(&shape, &changed, "train_micro_batch_size_per_gpu was 2 and is 1");
    changed = sets;
    fixture_set(&changed, "device.threads=1");
    refused(&shape, &changed, "threads was 2 and is 1");
    changed = sets; /* whose second moment would be read as its sum of squares, or be absent */
    fixture_set(&changed, "optimizer={\"type\":\"Adagrad\",\"params\":{\"lr\":1e-3}}");
    refused(&shape, &changed, "optimizer.type was Adam and is Adagrad");

    /* None of them touched the state. */
    fixture_train_good("parts", &shape, &sets, &result);
    assert_true(result.summary.was_resumed);
    fixture_assert_same(&whole, &result);
    fixture_remove("parts");
}

/* The one slab file of a run with one drive. */
static int open_slab(const char *name)
{
    glob_t found;
    char pattern[FIXTURE_PATH_BYTES + 96];
    snprintf(pattern, sizeof pattern, "%s/sluice-*/rank-0-drive-0.slab",
             fixture_path(name, ".nvme"));
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    int fd = open(found.gl_pathv[0], O_RDWR);
    assert_true(fd >= 0);
    globfree(&found);
    return fd;
}

/* Where the commit has the first tile of unit 0. */
static uint64_t first_extent(const char *name)
{
    static manifest found;
    if (manifest_read(fixture_path(name, "state"), &found) <= 0)
        fail_msg("no manifest of %s: %s", name, err_text());
    uint64_t offset = found.extents[0].offset_bytes;
    manifest_fini(&found);
    return offset;
}

/* Rot between a stop and the next start is found, wherever the state rests while training. */
static void rot_is_found(void **state)
{
    static fixture_result result;
    static const char *const tiers[] = {"host", "nvme"};
    for (int t = 0; t < 2; t++) {
        fixture_sets sets = make_sets(tiers[t], "in_next_forward");
        if (t == 1) /* what another process has written is compared all the same */
            fixture_set(&sets, "io.verify_reads=false");
        fixture_train_stop("parts", &shape, &sets, 5, &result);
        int fd = open_slab("parts");
        off_t at = (off_t)(4096 + first_extent("parts") + 20000); /* in its master weights */
        unsigned char byte;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 4;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        assert_int_equal(fixture_run("parts", &shape, &sets, NULL, &result), ERR_CORRUPT);
        assert_non_null(strstr(result.error, "of unit 0"));
        assert_non_null(strstr(result.error, "rank-0-drive-0.slab"));
        assert_non_null(strstr(result.error, "the commit of step 5"));
        /* Repaired, it goes on: the refusal changed nothing. */
        byte ^= 4;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
        fixture_train_good("parts", &shape, &sets, &result);
        fixture_assert_same(&whole, &result);
        fixture_remove("parts");
    }
}

/* A run may go on under another schedule, other budgets and with its states on other tiers. */
static void run_goes_on_elsewhere(void **state)
{
    static fixture_result result;
    fixture_sets on_device = make_sets("device", "after_backward");
    fixture_sets on_host = make_sets("host", "in_next_forward");
    fixture_set(&on_host, "tiers.device.budget=48MiB");
    fixture_set(&on_host, "debug.schedule.lookahead=4");
    fixture_set(&on_host, "io.backend=pool");
    fixture_sets on_nvme = make_sets("nvme", "in_next_forward");
    fixture_train_stop("parts", &shape, &on_device, 3, &result);
    fixture_train_stop("parts", &shape, &on_nvme, 5, &result);
    assert_true(result.summary.was_resumed);
    fixture_train_stop("parts", &shape, &on_host, 6, &result);
    fixture_train_good("parts", &shape, &on_device, &result);
    fixture_assert_same(&whole, &result);
    fixture_remove("parts");
}

/* ---- a run that is killed -------------------------------------------------------------------- */

static void die(uint64_t step)
{
    if (step == KILL_STEP)
        raise(SIGKILL);
}

/* One place per extent: what is changed in place cannot be gone back to. */
static fixture_sets one_place(void)
{
    fixture_sets sets = make_sets("nvme", "in_next_forward");
    fixture_set(&sets, "run.commit_every=0");
    return sets;
}

/* A process of its own, since a fork of one that has run OpenMP cannot compute. */
static int be_victim(const char *dir)
{
    log_set_level(LOG_WARN);
    snprintf(fixture_dir, sizeof fixture_dir, "%s", dir);
    static fixture_result result;
    fixture_sets sets = one_place();
    fixture_call call = {.name = "parts", .on_step = die};
    fixture_run("parts", &shape, &sets, &call, &result);
    return 1; /* it should not have come here */
}

static void killed_run_of_one_place_is_refused(void **state)
{
    static fixture_result result;
    fixture_sets sets = one_place();
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "test_state_resume", "victim", fixture_dir, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

    refused(&shape, &sets, "another run.dir");
    refused(&shape, &sets, "not stopped cleanly");
    fixture_sets fresh = sets;
    fixture_set(&fresh, "run.fresh=true");
    fixture_call call = {.name = "parts", .fresh = true};
    if (fixture_run("parts", &shape, &fresh, &call, &result) < 0)
        fail_msg("%s", result.error);
    assert_false(result.summary.was_resumed);
    assert_int_equal(result.step_count, STEPS);
    fixture_assert_same(&whole, &result);
    fixture_remove("parts");
}

/* --fresh never costs a run. */
static void fresh_wants_an_empty_directory(void **state)
{
    static fixture_result result;
    fixture_sets sets = make_sets("nvme", "in_next_forward"), fresh = sets;
    fixture_set(&fresh, "run.fresh=true");
    fixture_call call = {.name = "parts", .fresh = true, .stop_after = 5};
    assert_int_equal(fixture_run("parts", &shape, &fresh, &call, &result), ERR_STOPPED);
    job *asked = fixture_job("parts", &shape, &fresh);
    struct train_options options = {.job = asked, .fresh = true};
    struct train_summary summary;
    assert_error(train_run(&options, &summary), ERR_INPUT, "new or empty");
    assert_non_null(strstr(err_text(), "step 5"));
    job_destroy(asked);
    fixture_train_good("parts", &shape, &sets, &result);
    fixture_assert_same(&whole, &result);
    fixture_remove("parts");
}

/* A new run begins with the commit of another run, which is not changed. */
static void run_begins_with_another(void **state)
{
    static fixture_result result;
    fixture_sets sets = make_sets("nvme", "in_next_forward");
    fixture_train_stop("parts", &shape, &sets, 4, &result);
    char from[FIXTURE_PATH_BYTES + 16];
    snprintf(from, sizeof from, "%s/parts", fixture_dir);
    for (int i = 0; i < 2; i++) { /* stopped on the way, the same command goes on */
        const fixture_call call = {.from = from, .stop_after = i ? 0 : 7};
        if (fixture_run("branch", &shape, &sets, &call, &result) != (i ? 0 : ERR_STOPPED))
            fail_msg("%s", result.error);
        assert_int_equal(result.summary.steps_done, 3);
    }
    assert_true(result.weights_hash == whole.weights_hash);
    fixture_remove("branch");
    fixture_train_good("parts", &shape, &sets, &result);
    assert_int_equal(result.summary.steps_done, STEPS - 4);
    fixture_assert_same(&whole, &result);
    fixture_remove("parts");
}

/* A run directory that holds its own slab may be moved whole. */
static void run_is_moved(void **state)
{
    static fixture_result result;
    fixture_sets sets = make_sets("host", "in_next_forward");
    fixture_set(&sets, "tiers.nvme=[]");
    fixture_train_stop("before", &shape, &sets, 4, &result);
    assert_int_equal(rename(fixture_path("before", NULL), fixture_path("parts", NULL)), 0);
    struct state_verify_options verify = {.run_dir = fixture_path("parts", NULL)};
    struct state_verify_summary verified;
    assert_ok(state_verify(&verify, &verified));
    fixture_train_good("parts", &shape, &sets, &result);
    assert_true(result.summary.was_resumed);
    fixture_assert_same(&whole, &result);
    fixture_remove("parts");
}

/* Other drives, another number of them, another tile size, one place and two: the extents are
 * re-cut. */
static void run_goes_on_on_other_drives(void **state)
{
    static fixture_result result;
    char base[FIXTURE_PATH_BYTES + 16];
    snprintf(base, sizeof base, "%s/parts.nvme", fixture_dir);
    char two[2 * FIXTURE_PATH_BYTES + 160], one[FIXTURE_PATH_BYTES + 64];
    snprintf(two, sizeof two,
             "tiers.nvme=[{\"path\":\"%s/a\",\"budget\":\"128MiB\"},{\"path\":\"%s/b\"}]", base,
             base);
    snprintf(one, sizeof one, "tiers.nvme=[{\"path\":\"%s/c\"}]", base);
    fixture_sets sets = make_sets("nvme", "in_next_forward");
    const char *changes[][2] = {{two, "schedule.tile_elems=131072"},
                                {one, "schedule.tile_elems=65536"},
                                {one, "run.commit_every=0"},
                                {two, "run.commit_every=2"}};
    uint64_t stop = 2;
    fixture_train_stop("parts", &shape, &sets, stop, &result);
    for (int i = 0; i < 4; i++) {
        fixture_sets other = make_sets(i % 2 ? "host" : "nvme", "in_next_forward");
        fixture_set(&other, "%s", changes[i][0]);
        fixture_set(&other, "%s", changes[i][1]);
        if (i < 3)
            fixture_train_stop("parts", &shape, &other, stop += 2, &result);
        else
            fixture_train_good("parts", &shape, &other, &result);
        assert_true(result.summary.was_resumed);
        /* Nothing of the run is left on the drives. */
        glob_t found;
        char pattern[FIXTURE_PATH_BYTES + 96];
        snprintf(pattern, sizeof pattern, "%s/*/sluice-*", base);
        assert_int_equal(glob(pattern, 0, NULL, &found), 0);
        assert_int_equal(found.gl_pathc, strcmp(changes[i][0], two) == 0 ? 2 : 1);
        globfree(&found);
        snprintf(pattern, sizeof pattern, "%s/sluice-*", base);
        assert_int_equal(glob(pattern, 0, NULL, &found), GLOB_NOMATCH);
    }
    fixture_assert_same(&whole, &result);
    fixture_remove("parts");
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "victim") == 0)
        return be_victim(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumed_runs_give_the_same_bits),
        cmocka_unit_test(evaluation_changes_nothing),
        cmocka_unit_test(completed_run_goes_on),
        cmocka_unit_test(two_cannot_share_a_run),
        cmocka_unit_test(other_jobs_are_refused),
        cmocka_unit_test(rot_is_found),
        cmocka_unit_test(run_goes_on_elsewhere),
        cmocka_unit_test(killed_run_of_one_place_is_refused),
        cmocka_unit_test(fresh_wants_an_empty_directory),
        cmocka_unit_test(run_begins_with_another),
        cmocka_unit_test(run_is_moved),
        cmocka_unit_test(run_goes_on_on_other_drives),
    };
    return cmocka_run_group_tests(tests, train_whole, fixture_teardown);
}
