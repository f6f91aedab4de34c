/* The program as people stop it: SIGTERM, SIGINT and SIGHUP between steps, within commits and
 * before the first step; several signals at once, a second one, and a second process on the same
 * run directory. Exit 75 and the same command goes on, to the bits of the run that nobody
 * stopped. */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "setup/setup.h"
#include "state/verify.h"
#include "tests/state/crash_case.h"
#include "tests/unit.h"
#include "train/train.h"

enum { STREAM_SIGNALS = 540, CASES = 3, EXIT_STOPPED = 75, EXIT_REFUSED = 2, POLL_NS = 2000000 };

static const char *const name = "signalled";

static crash_case drawn;
static crash_trail whole;
static double whole_seconds;
static crash_draws draws = {.seed = 1, .stream = STREAM_SIGNALS};

/* The job as one file. */
static const char *job_path(void)
{
    return fixture_path(name, ".merged.json");
}

static job *write_merged_job(void)
{
    job *asked = fixture_job(name, &drawn.shape, &drawn.sets);
    FILE *file = fopen(job_path(), "w");
    assert_non_null(file);
    assert_true(fputs(asked->text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    return asked;
}

/* "sluice train JOB" with these failpoints; what it says goes to signalled.says. */
static pid_t start(const char *failpoints)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int says = open(fixture_path(name, ".says"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
        setenv("OMP_WAIT_POLICY", "passive", 1);
        setenv("SLUICE_FAILPOINTS", failpoints, 1);
        if (says >= 0 && dup2(says, 1) == 1 && dup2(says, 2) == 2)
            execl(SLUICE_PROGRAM, "sluice", "train", job_path(), (char *)NULL);
        _exit(127);
    }
    assert_true(child > 0);
    return child;
}

static const char *says(void)
{
    static char text[16384];
    FILE *file = fopen(fixture_path(name, ".says"), "r");
    assert_non_null(file);
    size_t got = fread(text, 1, sizeof text - 1, file);
    text[got] = '\0';
    fclose(file);
    return text;
}

static void assert_exit(pid_t child, int code)
{
    int status = crash_wait(child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != code)
        fail_msg("%s: status %x and not exit %d: %s", drawn.text, (unsigned)status, code, says());
}

/* Until the run has a commit of at least this step, or the process is gone. */
static void await_commit(pid_t child, uint64_t step)
{
    while (crash_committed_step(name) < step && !crash_ends_within(child, POLL_NS))
        ;
}

/* Reads the losses and weights at the run's end. A run that has no step left gives the hash of the
 * weights. */
static void read_end(crash_trail *out)
{
    char why[CRASH_TEXT_BYTES];
    job *asked = fixture_job(name, &drawn.shape, &drawn.sets);
    const struct setup_test test = {.on_end = fixture_hash_weights, .user = &out->hash};
    struct train_options options = {.job = asked, .test = &test};
    struct train_summary summary;
    int rc = train_run(&options, &summary);
    job_destroy(asked);
    assert_ok(rc);
    assert_int_equal(summary.steps_done, 0);
    if (!crash_trail_read(name, out, why))
        fail_msg("%s", why);
}

static void finish_and_compare(void)
{
    static crash_trail got;
    char why[CRASH_TEXT_BYTES];
    assert_exit(start(""), 0);
    read_end(&got);
    if (!crash_trail_is_same(&whole, &got, why))
        fail_msg("%s: %s", drawn.text, why);
    fixture_remove(name);
}

/* A case whose bits a stop leaves alone, and the run of it that nobody stops. */
static void begin_case(uint64_t seed)
{
    do
        crash_draw(seed, 0, CRASH_ANY, name, &drawn);
    while (strstr(drawn.text, "delayed") && (seed += 100));
    fixture_remove(name); /* of a test that failed */
    job_destroy(write_merged_job());
    uint64_t begin_ns = clock_ns();
    assert_exit(start(""), 0);
    whole_seconds = (double)(clock_ns() - begin_ns) * 1e-9;
    read_end(&whole);
    fixture_remove(name);
}

/* Stops and restarts the run at random instants until it is done. Returns the number of stops. A
 * signal that comes before the program listens ends it, and the next one comes later: a machine
 * that got slow would never go past its start. */
static uint64_t stop_until_done(double seconds)
{
    for (uint64_t stops = 0;;) {
        pid_t child = start("");
        double share = (double)crash_draw_below(&draws, 1000) / 1000;
        crash_ends_within(child, (uint64_t)(seconds * (0.2 + 0.8 * share) * 1e9));
        static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
        kill(child, signals[crash_draw_below(&draws, 3)]);
        int status = crash_wait(child);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            return stops;
        if (WIFSIGNALED(status))
            seconds *= 2;
        else if (WEXITSTATUS(status) == EXIT_STOPPED)
            stops++;
        else
            fail_msg("%s: status %x: %s", drawn.text, (unsigned)status, says());
    }
}

/* A stop loses no work that was done. A run that was done before its first stop is started anew,
 * and gets half the time: how fast the machine is decides nothing. */
static void stopped_runs_go_on(void **state)
{
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        begin_case(seed);
        for (double seconds = whole_seconds; stop_until_done(seconds) == 0; seconds /= 2)
            fixture_remove(name);
        finish_and_compare();
    }
}

/* Commits take so long here that the signal meets one. */
static void stops_within_commits_go_on(void **state)
{
    static const char *const points[] = {"commit.begin", "commit.synced", "manifest.half",
                                         "manifest.synced"};
    for (uint64_t i = 0; i < 4; i++) {
        char failpoints[64];
        begin_case(11 + i % CASES);
        snprintf(failpoints, sizeof failpoints, "%s=sleep:60ms", points[i]);
        pid_t child = start(failpoints);
        await_commit(child, 1 + crash_draw_below(&draws, 4));
        kill(child, SIGTERM);
        assert_exit(child, EXIT_STOPPED);
        assert_non_null(strstr(says(), "resume with the same command"));
        assert_true(crash_committed_step(name) > 0);
        finish_and_compare();
    }
}

/* `timeout -s INT` and some launchers signal a process and then its process group. */
static void signals_at_once_are_one_request(void **state)
{
    begin_case(21);
    pid_t child = start("commit.synced=sleep:50ms");
    await_commit(child, 1);
    for (int i = 0; i < 3; i++)
        kill(child, SIGINT);
    assert_exit(child, EXIT_STOPPED);
    finish_and_compare();
}

/* A terminal that closes sends more than one. */
static void hangups_never_end_it_at_once(void **state)
{
    begin_case(12);
    pid_t child = start("commit.synced=sleep:600ms");
    await_commit(child, 1);
    kill(child, SIGHUP);
    assert_false(crash_ends_within(child, 300000000)); /* longer than one request may take */
    kill(child, SIGHUP);
    kill(child, SIGTERM); /* the first that is no hangup */
    kill(child, SIGHUP);
    assert_exit(child, EXIT_STOPPED);
    finish_and_compare();
}

/* nohup ignores SIGHUP before it starts the program. */
static void an_ignored_hangup_stays_ignored(void **state)
{
    begin_case(12);
    signal(SIGHUP, SIG_IGN);
    pid_t child = start("commit.synced=sleep:20ms");
    signal(SIGHUP, SIG_DFL);
    await_commit(child, 1);
    kill(child, SIGHUP);
    assert_exit(child, 0);
    finish_and_compare();
}

/* The second signal ends the process at once, in the middle of a commit; the commit before is
 * there. */
static void second_signal_ends_it_at_once(void **state)
{
    begin_case(21);
    pid_t child = start("commit.synced=sleep:800ms");
    await_commit(child, 1);
    kill(child, SIGTERM);
    if (crash_ends_within(child, 300000000)) /* longer than one request may take (cli/stop.c) */
        fail_msg("it was to be in a commit for longer: %s", says());
    kill(child, SIGTERM);
    int status = crash_wait(child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    assert_true(crash_committed_step(name) > 0);
    assert_true(crash_committed_step(name) < drawn.steps);
    finish_and_compare();
}

static void a_stop_before_the_first_step_goes_on(void **state)
{
    begin_case(31);
    pid_t child = start("slab.create=sleep:200ms");
    while (!fixture_exists(fixture_path(name, "state/lock")) && !crash_ends_within(child, POLL_NS))
        ;
    kill(child, SIGTERM);
    assert_exit(child, EXIT_STOPPED);
    finish_and_compare();
}

static void second_process_is_refused(void **state)
{
    begin_case(41);
    pid_t first = start("commit.synced=sleep:150ms");
    await_commit(first, 1);
    pid_t second = start("");
    assert_exit(second, EXIT_REFUSED);
    assert_non_null(strstr(says(), "in use by another process"));
    struct state_verify_options options = {.run_dir = fixture_path(name, NULL)};
    struct state_verify_summary summary;
    assert_int_equal(state_verify(&options, &summary), ERR_INPUT);
    assert_false(crash_ends_within(first, 0)); /* else it did not share the time with them */
    assert_exit(first, 0);
    finish_and_compare();
}

int main(void)
{
    log_set_level(LOG_QUIET);
    print_message("seed %llu\n", (unsigned long long)draws.seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stopped_runs_go_on),
        cmocka_unit_test(stops_within_commits_go_on),
        cmocka_unit_test(signals_at_once_are_one_request),
        cmocka_unit_test(hangups_never_end_it_at_once),
        cmocka_unit_test(an_ignored_hangup_stays_ignored),
        cmocka_unit_test(second_signal_ends_it_at_once),
        cmocka_unit_test(a_stop_before_the_first_step_goes_on),
        cmocka_unit_test(second_process_is_refused),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
