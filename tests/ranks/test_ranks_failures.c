/* One rank of 4 hangs, has a bad drive, computes differently, gets no memory, was started with
 * something else, or misses a file: all end in time, with one sentence that names it, and what was
 * committed is there to go on from. */
#include <errno.h>
#include <glob.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"
#include "tests/ranks/ranks_rig.h"
#include "tests/unit.h"
#include "tiers/arena.h"
#include "tiers/io.h"
#include "tiers/io_faults.h"
#include "train/train.h"

enum { STREAM_FAILURES = 620, WORLD = 4, TIMEOUT_SECONDS = 3, EXIT_SECONDS = 3 };

static const fixture_model shape = {.family = "gpt2", .layers = 2, .hidden = 128};
static const char *const name = "failed";
static crash_trail right;
static rig run;

static void begin_case(uint32_t stage)
{
    memset(&run, 0, sizeof run);
    run.name = name;
    run.world = WORLD;
    run.limit_seconds = TIMEOUT_SECONDS + EXIT_SECONDS + 20; /* and what a busy machine adds */
    fixture_remove(name);
    rig_write_job(name, &shape);
    fixture_set(&run.sets, "zero_optimization.stage=%u", stage);
    fixture_set(&run.sets, "comm.timeout_seconds=%d", TIMEOUT_SECONDS);
    fixture_set(&run.sets, "debug.comm.exit_seconds=%d", EXIT_SECONDS);
    fixture_set(&run.sets, "tiers.place.params=nvme");
    fixture_set(&run.sets, "tiers.place.optimizer=nvme");
}

/* Nobody ended well, and who speaks names the rank and says this. */
static void expect(uint32_t rank, const char *text)
{
    char wanted[32];
    for (uint32_t r = 0; r < run.world; r++)
        if (WIFEXITED(run.statuses[r]) && WEXITSTATUS(run.statuses[r]) == 0)
            fail_msg("rank %u ended well: %s", r, run.says);
    if (run.error_count != 1)
        fail_msg("%u messages instead of one: %s", run.error_count, run.says);
    snprintf(wanted, sizeof wanted, "rank %u", rank);
    static const char *const tails[] = {"no commit yet", "good commit is of"};
    for (int i = 0; i < 2; i++) {
        const char *tail = strstr(run.error, tails[i]);
        if (tail && strstr(tail + 1, tails[i]))
            fail_msg("the last commit is told twice: %s", run.error);
    }
    if ((rank > 0 && !strstr(run.error, wanted)) || !strstr(run.error, text))
        fail_msg("\"%s\" does not name rank %u and \"%s\"", run.error, rank, text);
    print_message("%.2f s: %s\n", run.seconds, run.error);
}

static void run_and_expect(uint32_t rank, const char *text)
{
    rig_begin(&run);
    rig_end(&run);
    expect(rank, text);
}

/* The commit is whole, and the run goes on from it to what it should be. */
static void goes_on(void)
{
    static rig_verified verified;
    static crash_trail got;
    char why[CRASH_TEXT_BYTES];
    uint64_t committed = crash_committed_step(name);
    if (committed > 0) {
        rig_verify(fixture_path(name, NULL), &verified);
        if (!rig_is_whole(&verified))
            fail_msg("the commit of step %u: %s", (unsigned)committed, verified.error);
    }
    run.faults = NULL;
    run.prepare = NULL;
    memset(run.failpoints, 0, sizeof run.failpoints);
    rig_run_good(&run);
    rig_read_trail(name, &got);
    if (!crash_trail_is_same(&right, &got, why))
        fail_msg("from the commit of step %u: %s", (unsigned)committed, why);
}

static int group_setup(void **state)
{
    if (fixture_setup(state) != 0)
        return -1;
    begin_case(1);
    rig_run_good(&run);
    rig_read_trail(name, &right);
    return 0;
}

/* ---- hangs ----------------------------------------------------------------------------------- */

/* Stopped as a whole; when it wakes up it ends, too. */
static void hang(uint32_t rank)
{
    begin_case(3);
    run.stopped_rank = rank;
    rig_begin(&run);
    rig_await_step(&run, 4);
    kill(run.pids[rank], SIGSTOP);
    run.has_stopped = true;
    rig_mark(&run);
    rig_end(&run);
    expect(rank, "has not ");
    assert_non_null(strstr(run.error, rank == 0 ? "rank 0 on host" : "on host"));
    goes_on();
}

static void a_rank_that_hangs_ends_all(void **state)
{
    hang(2);
}

static void rank_0_that_hangs_ends_all(void **state)
{
    hang(0);
}

/* ---- drives ---------------------------------------------------------------------------------- */

static void a_bad_drive_ends_all(void **state)
{
    static const enum io_fault_kind kinds[] = {IO_FAULT_EIO, IO_FAULT_ENOSPC};
    static const char *const texts[] = {"rank-1-drive-0.slab", "rank-3-drive-0.slab"};
    crash_draws draws = {.seed = 1, .stream = STREAM_FAILURES};
    for (uint32_t i = 0; i < 2; i++) {
        struct io_faults faults = {
            .seed = 1, .at_transfer = 30 + crash_draw_below(&draws, 40), .at_kind = kinds[i]};
        begin_case(3 - 2 * i);
        run.faults = &faults;
        run.faulty_rank = 1 + 2 * i;
        run_and_expect(run.faulty_rank, texts[i]);
        goes_on();
    }
}

static void a_drive_that_hangs_ends_all(void **state)
{
    struct io_faults faults = {
        .seed = 1, .at_transfer = 50, .at_kind = IO_FAULT_STUCK, .stuck_us = 60000000};
    begin_case(2);
    fixture_set(&run.sets, "io.stuck_seconds=0.5");
    fixture_set(&run.sets, "debug.io.stop_seconds=1");
    run.faults = &faults;
    run.faulty_rank = 2;
    run_and_expect(2, "rank-2-drive-0.slab");
    run.sets.count -= 2;
    goes_on();
}

/* ---- commits of which a part fails ----------------------------------------------------------- */

static void a_commit_that_fails_on_one_rank_is_none(void **state)
{
    static const struct {
        uint32_t rank;
        const char *failpoint, *text;
    } cases[] = {
        {3, "slab.sync=fail:EIO@2", "step 3"},
        {2, "commit.synced=fail:EIO@2", "step 3"},
        {0, "manifest.half=fail:ENOSPC@3", "step 3"},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin_case(i);
        run.failpoints[cases[i].rank] = cases[i].failpoint;
        run_and_expect(cases[i].rank, cases[i].text);
        assert_int_equal(crash_committed_step(name), 3);
        goes_on();
    }
}

/* ---- what one rank alone has ----------------------------------------------------------------- */

static int learn_faster(uint32_t rank, struct train_options *options, void *user)
{
    if (rank == 2) /* as a processor would that multiplies wrongly now and then */
        ((struct job *)(uintptr_t)options->job)->optimizer.lr *= 1.001;
    return 0;
}

static void a_rank_that_computes_differently_is_named(void **state)
{
    begin_case(0);
    run.prepare = learn_faster;
    run_and_expect(2, "differs from rank 0's");
    assert_int_equal(crash_committed_step(name), 0);
    run.prepare = NULL;
    goes_on();
}

/* At once, or where the arenas are made. */
static int limit_memory(uint32_t rank, struct train_options *options, void *user)
{
    const uint64_t *more_bytes = user;
    uint64_t mapped_bytes;
    if (rank != 1)
        return 0;
    TRY(arena_process_memory(NULL, NULL, &mapped_bytes));
    struct rlimit limit = {.rlim_cur = mapped_bytes + *more_bytes, .rlim_max = RLIM_INFINITY};
    return setrlimit(RLIMIT_AS, &limit) == 0 ? 0 : err_errno(errno, "RLIMIT_AS");
}

static void a_rank_without_memory_ends_all(void **state)
{
    static uint64_t more_bytes[] = {1 << 16, 6 << 20};
    for (uint32_t i = 0; i < 2; i++) {
        begin_case(2);
        run.prepare = limit_memory;
        run.user = &more_bytes[i];
        /* With a higher limit a library may be the first that gets no memory, and may end the
         * process. Then the other ranks report the failure. */
        run_and_expect(1, i == 0 ? "no memory for" : "rank 1 on host");
        print_message("rank 1 ended with %#x\n", (unsigned)run.statuses[1]);
    }
    goes_on();
}

/* As where a rank that has learned of the failure tidies up what another one still makes. */
static int meet_a_consequence(uint32_t rank, struct train_options *options, void *user)
{
    if (rank == 2)
        (void)raise(SIGKILL);
    while (comm_check(options->comm) == 0)
        rig_sleep(0.001);
    return err_set(-ENOENT, "the directory that it works in is gone");
}

static void what_came_first_is_told(void **state)
{
    begin_case(1);
    run.prepare = meet_a_consequence;
    run_and_expect(2, "is gone: its connection closed");
    goes_on();
}

static int change_model(uint32_t rank, struct train_options *options, void *user)
{
    if (rank == 3)
        ((struct job *)(uintptr_t)options->job)->model.num_layers++;
    return 0;
}

static void a_rank_with_another_program_is_refused(void **state)
{
    begin_case(3);
    run.prepare = change_model;
    run_and_expect(3, "start all ranks with the same sluice and the same job");
    goes_on();
}

static int lose_data(uint32_t rank, struct train_options *options, void *user)
{
    if (rank == 3)
        strcpy(((struct job *)(uintptr_t)options->job)->data.train.path[0], "/nonexistent.txt");
    return 0;
}

static void data_that_one_rank_misses_is_named(void **state)
{
    begin_case(1);
    run.prepare = lose_data;
    run_and_expect(3, "/nonexistent.txt");
    assert_false(fixture_exists(fixture_path(name, "state")));
    goes_on();
}

static void find_slab(uint32_t rank, char path[1024])
{
    glob_t found;
    snprintf(path, 1024, "%s/sluice-*/rank-%u-drive-0.slab", fixture_path(name, ".nvme"), rank);
    assert_int_equal(glob(path, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(path, 1024, "%s", found.gl_pathv[0]);
    globfree(&found);
}

/* On as many ranks, and on fewer, none of which writes a byte; back again it goes on. */
static void a_slab_that_is_missing_is_named(void **state)
{
    char path[1024], aside[1100];
    begin_case(2);
    run.stop_after = 6;
    rig_run_good(&run);
    run.stop_after = 0;
    find_slab(2, path);
    snprintf(aside, sizeof aside, "%s.aside", path);
    assert_int_equal(rename(path, aside), 0);
    run_and_expect(2, "rank-2-drive-0.slab");
    run.world = 3;
    run_and_expect(0, "rank-2-drive-0.slab");
    assert_int_equal(rename(aside, path), 0);
    run.world = WORLD;
    goes_on();
}

/* ---- signals --------------------------------------------------------------------------------- */

static void stop(uint32_t first, uint32_t count, int number)
{
    begin_case(first);
    rig_begin(&run);
    rig_await_step(&run, 3);
    for (uint32_t r = first; r < first + count; r++)
        kill(run.pids[r], number);
    rig_end(&run);
    for (uint32_t r = 0; r < WORLD; r++)
        if (!WIFEXITED(run.statuses[r]) || WEXITSTATUS(run.statuses[r]) != 75)
            fail_msg("rank %u ended with %#x: %s", r, (unsigned)run.statuses[r], run.says);
    assert_int_equal(run.error_count, 0);
    uint64_t steps = atomic_load(&run.board[0].step);
    assert_int_equal(crash_committed_step(name), steps);
    print_message("stopped after step %u\n", (unsigned)steps);
    goes_on();
}

static void a_signal_to_one_or_all_stops_all(void **state)
{
    stop(2, 1, SIGHUP);
    stop(0, WORLD, SIGINT);
}

static void the_second_signal_ends_it_at_once(void **state)
{
    begin_case(3);
    run.failpoints[1] = "commit.synced=sleep:800ms";
    rig_begin(&run);
    rig_await_step(&run, 3);
    kill(run.pids[1], SIGTERM);
    rig_sleep(0.3); /* longer than one request may take (cli/stop.c) */
    kill(run.pids[1], SIGTERM);
    rig_mark(&run);
    rig_end(&run);
    assert_true(WIFSIGNALED(run.statuses[1]) && WTERMSIG(run.statuses[1]) == SIGTERM);
    expect(1, "is gone");
    goes_on();
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_hangs_ends_all),
        cmocka_unit_test(rank_0_that_hangs_ends_all),
        cmocka_unit_test(a_bad_drive_ends_all),
        cmocka_unit_test(a_drive_that_hangs_ends_all),
        cmocka_unit_test(a_commit_that_fails_on_one_rank_is_none),
        cmocka_unit_test(a_rank_that_computes_differently_is_named),
        cmocka_unit_test(a_rank_without_memory_ends_all),
        cmocka_unit_test(what_came_first_is_told),
        cmocka_unit_test(a_rank_with_another_program_is_refused),
        cmocka_unit_test(data_that_one_rank_misses_is_named),
        cmocka_unit_test(a_slab_that_is_missing_is_named),
        cmocka_unit_test(a_signal_to_one_or_all_stops_all),
        cmocka_unit_test(the_second_signal_ends_it_at_once),
    };
    printf("seed 1\n");
    return cmocka_run_group_tests(tests, group_setup, fixture_teardown);
}
