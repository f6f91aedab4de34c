/* The control plane between forked ranks: what the calls give, and that whatever becomes of one rank ends all, soon,
 * with one text that names it. With "mpirun": the same calls among ranks that mpirun starts. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/progress.h"
#include "comm/comm_internal.h"

#include "comm_fixture.h"

enum { LARGE_BYTES = 5 << 20 };

/* What a test and its ranks share. */
struct board {
    atomic_int ready;  /* ranks that have come to where one is hit */
    atomic_int victim; /* whom the test hits with `signal` once all are ready */
    atomic_int signal;
    atomic_int is_hit;
};

static char *told_board; /* shared */

static int expect(bool is_true, const char *what)
{
    return is_true ? 0 : err_set(ERR_INTERNAL, "wrong: %s", what);
}

#define EXPECT(condition) TRY(expect((condition), #condition))

static void sleep_ms(int ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000L};
    nanosleep(&time, NULL);
}

static unsigned char pattern(uint32_t rank, uint64_t i)
{
    return (unsigned char)(rank * 37 + i * 11 + (i >> 9));
}

/* ---- values ---- */

static int check_payload(comm *self, uint64_t bytes)
{
    uint32_t rank = comm_get_rank(self), world = comm_get_world(self);
    unsigned char *mine = malloc(bytes + 1), *all = calloc(world, bytes + 1);
    for (uint64_t i = 0; i < bytes; i++)
        mine[i] = pattern(rank, i);
    TRY(comm_exchange(self, "values", mine, bytes, all));
    for (uint64_t i = 0; i < world * bytes; i++)
        EXPECT(all[i] == pattern((uint32_t)(i / bytes), i % bytes));
    memset(all, 0, world * bytes);
    TRY(comm_gather(self, "values at 0", mine, bytes, rank == 0 ? all : NULL));
    for (uint64_t i = 0; i < world * bytes; i++)
        EXPECT(all[i] == (rank == 0 ? pattern((uint32_t)(i / bytes), i % bytes) : 0));
    TRY(comm_broadcast(self, "value of 0", mine, bytes));
    for (uint64_t i = 0; i < bytes; i++)
        EXPECT(mine[i] == pattern(0, i));
    free(mine);
    free(all);
    return 0;
}

static int check_agreement(comm *self)
{
    uint32_t rank = comm_get_rank(self), world = comm_get_world(self);
    TRY(comm_agree(self, "all well", 0));
    for (uint32_t bad = 0; bad < world; bad++) {
        int code = rank >= bad ? err_set(ERR_NO_FIT, "too small by %u", rank) : 0;
        char expected[128];
        EXPECT(comm_agree(self, "some not", code) == ERR_NO_FIT);
        if (rank == bad)
            snprintf(expected, sizeof expected, "too small by %u", bad);
        else
            snprintf(expected, sizeof expected, "rank %u on %s: too small by %u", bad,
                     comm_get_ranks(self)[bad].host, bad);
        EXPECT(strcmp(err_text(), expected) == 0);
    }
    return comm_agree(self, "well again", 0);
}

static int calls_give_values(comm *self, void *user)
{
    (void)user;
    static const uint64_t sizes[] = {0, 1, 119, 65537, LARGE_BYTES};
    for (int i = 0; i < 3; i++)
        TRY(comm_barrier(self, "a barrier"));
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        TRY(check_payload(self, sizes[s]));
    TRY(check_agreement(self));
    const comm_rank *ranks = comm_get_ranks(self);
    EXPECT(ranks[comm_get_rank(self)].pid == getpid());
    EXPECT(comm_is_teller(self) == (comm_get_rank(self) == 0));
    return comm_check(self);
}

static void values_arrive(void **state)
{
    (void)state;
    static const uint32_t worlds[] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        comm_fixture fixture = {.world = worlds[i]};
        comm_fixture_run(&fixture, calls_give_values, NULL);
        comm_fixture_expect_ok(&fixture);
    }
}

static int look_at_hosts(comm *self, void *user)
{
    (void)user;
    static const uint32_t hosts[] = {0, 1, 0, 1, 1}, locals[] = {0, 0, 1, 1, 2};
    const comm_rank *ranks = comm_get_ranks(self);
    for (uint32_t r = 0; r < 5; r++) {
        EXPECT(ranks[r].host_idx == hosts[r]);
        EXPECT(ranks[r].local_rank == locals[r]);
        EXPECT(ranks[r].local_world == (hosts[r] ? 3 : 2));
        EXPECT(strcmp(ranks[r].host, hosts[r] ? "n1" : "n0") == 0);
    }
    return 0;
}

static void hosts_are_numbered(void **state)
{
    (void)state;
    comm_fixture fixture = {.world = 5, .hosts = {"n0", "n1", "n0", "n1", "n1"}};
    comm_fixture_run(&fixture, look_at_hosts, NULL);
    comm_fixture_expect_ok(&fixture);
}

/* ---- failures ---- */

static uint32_t count_tellers(const comm_fixture *fixture)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < fixture->world; r++)
        count += fixture->are_tellers[r];
    return count;
}

/* All but `except` ended with 1 and a text that holds `part` and `also`; one of them tells. */
static void expect_failure(const comm_fixture *fixture, uint32_t except, const char *part,
                           const char *also)
{
    for (uint32_t r = 0; r < fixture->world; r++) {
        if (r == except)
            continue;
        if (fixture->codes[r] >= 0 || !strstr(fixture->texts[r], part) ||
            !strstr(fixture->texts[r], also) || !WIFEXITED(fixture->statuses[r]))
            fail_msg("rank %u: code %d, status %#x: '%s' lacks '%s' or '%s'", r, fixture->codes[r],
                     (unsigned)fixture->statuses[r], fixture->texts[r], part, also);
    }
    assert_int_equal(count_tellers(fixture), 1);
}

static int fail_one(comm *self, void *user)
{
    uint32_t bad = *(uint32_t *)user;
    TRY(comm_barrier(self, "before"));
    if (comm_get_rank(self) == bad) {
        sleep_ms(20);
        return err_set(-EIO, "drive /mnt/a: read failed");
    }
    int rc = comm_barrier(self, "after");
    EXPECT(rc == -EIO);
    EXPECT(comm_check(self) == -EIO);
    return rc;
}

static void a_failure_reaches_all(void **state)
{
    (void)state;
    for (uint32_t bad = 0; bad < 4; bad++) {
        comm_fixture fixture = {.world = 4, .hosts = {"n0", "n1", "n2", "n3"}};
        char expected[64];
        snprintf(expected, sizeof expected, "rank %u on host n%u: drive /mnt/a", bad, bad);
        comm_fixture_run(&fixture, fail_one, &bad);
        expect_failure(&fixture, 99, expected, "read failed");
    }
}

static void hit(void *user, const pid_t *pids, uint32_t world)
{
    struct board *board = user;
    if (atomic_load(&board->is_hit) || atomic_load(&board->ready) < (int)world)
        return;
    atomic_store(&board->is_hit, 1);
    sleep_ms(250); /* a heartbeat carries the labels */
    kill(pids[board->victim], board->signal);
}

static int be_hit(comm *self, void *user)
{
    struct board *board = user;
    char label[64];
    snprintf(label, sizeof label, "step 17, all-gather of block.%u", comm_get_rank(self));
    comm_note(self, label);
    TRY(comm_barrier(self, "before"));
    atomic_fetch_add(&board->ready, 1);
    if ((int)comm_get_rank(self) == board->victim)
        for (;;)
            pause();
    if (comm_get_rank(self) % 2 == 0) /* some wait in a call, some compute */
        return comm_barrier(self, "after");
    while (comm_check(self) == 0)
        sleep_ms(2);
    return comm_check(self);
}

static void a_killed_rank_ends_all(void **state)
{
    (void)state;
    for (int victim = 0; victim < 4; victim++) {
        struct board *board = comm_fixture_shared(sizeof *board);
        board->victim = victim;
        board->signal = SIGKILL;
        comm_fixture fixture = {.world = 4, .timeout_seconds = 2.0, .watch = hit};
        char expected[64], label[64];
        snprintf(expected, sizeof expected, "rank %d on host ", victim);
        snprintf(label, sizeof label, "last seen at step 17, all-gather of block.%d", victim);
        comm_fixture_run(&fixture, be_hit, board);
        expect_failure(&fixture, (uint32_t)victim, expected, "is gone: its connection closed");
        expect_failure(&fixture, (uint32_t)victim, expected, label);
        assert_true(fixture.are_tellers[victim == 0 ? 1 : 0]);
    }
}

/* A stopped rank is killed when the others have ended. */
static void stop_then_kill(void *user, const pid_t *pids, uint32_t world)
{
    struct board *board = user;
    hit(user, pids, world);
    siginfo_t info;
    for (uint32_t r = 0; r < world; r++) {
        info.si_pid = 0;
        if ((int)r != board->victim &&
            waitid(P_PID, (id_t)pids[r], &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid == 0)
            return; /* still there */
    }
    kill(pids[board->victim], SIGKILL);
}

static void a_stopped_rank_ends_all(void **state)
{
    (void)state;
    static const int victims[] = {0, 2};
    for (int i = 0; i < 2; i++) {
        struct board *board = comm_fixture_shared(sizeof *board);
        board->victim = victims[i];
        board->signal = SIGSTOP;
        comm_fixture fixture = {.world = 3, .timeout_seconds = 1.0, .watch = stop_then_kill};
        char expected[64];
        snprintf(expected, sizeof expected, "rank %d on host ", victims[i]);
        comm_fixture_run(&fixture, be_hit, board);
        expect_failure(&fixture, (uint32_t)victims[i], expected, "");
        assert_true(fixture.are_tellers[victims[i] == 0 ? 1 : 0]);
    }
}

static int await_failure(comm *self)
{
    while (comm_check(self) == 0)
        sleep_ms(5);
    return comm_check(self);
}

static int stay_away(comm *self, void *user)
{
    uint32_t absent = *(uint32_t *)user;
    TRY(comm_barrier(self, "before"));
    if (comm_get_rank(self) == absent) {
        comm_note(self, "step 3, commit");
        return await_failure(self);
    }
    return comm_barrier(self, "the norm");
}

static void a_rank_that_does_not_come_is_named(void **state)
{
    (void)state;
    for (uint32_t absent = 0; absent < 3; absent++) {
        comm_fixture fixture = {.world = 3, .timeout_seconds = 0.7};
        char expected[64];
        snprintf(expected, sizeof expected, "rank %u on host ", absent);
        comm_fixture_run(&fixture, stay_away, &absent);
        expect_failure(&fixture, 99, expected, "has not come to the norm");
        expect_failure(&fixture, 99, expected, "step 3, commit");
        assert_true(fixture.are_tellers[absent == 0 ? 1 : 0]); /* one that hangs prints nothing */
    }
}

/* What takes longer than the timeout where others wait: a commit that is copied, say. */
static int work_long(comm *self, void *user)
{
    uint32_t busy = *(uint32_t *)user;
    TRY(comm_barrier(self, "before"));
    for (int i = 0; comm_get_rank(self) == busy && i < 16; i++) {
        progress_note();
        sleep_ms(100);
    }
    TRY(comm_barrier(self, "the commit"));
    return comm_barrier(self, "after");
}

static void a_rank_that_works_is_waited_for(void **state)
{
    (void)state;
    for (uint32_t busy = 0; busy < 2; busy++) {
        comm_fixture fixture = {.world = 3, .timeout_seconds = 0.6};
        comm_fixture_run(&fixture, work_long, &busy);
        comm_fixture_expect_ok(&fixture);
    }
}

/* Rank 1 hangs, rank 2 waits for it, rank 0 for rank 2, which is not to blame. */
static int wait_in_a_row(comm *self, void *user)
{
    (void)user;
    uint32_t rank = comm_get_rank(self);
    char label[32];
    snprintf(label, sizeof label, "place %u", rank);
    comm_note(self, label);
    TRY(comm_barrier(self, "before"));
    if (rank == 0)
        return comm_barrier(self, "after");
    atomic_store(&self->waits, rank == 2);
    while (!commi_is_aborted(self)) {
        if (rank == 2)
            commi_say_waiting(self, 1, "all-gather");
        sleep_ms(20);
    }
    return comm_check(self);
}

static void the_one_that_waits_for_nobody_is_named(void **state)
{
    (void)state;
    comm_fixture fixture = {.world = 3, .timeout_seconds = 0.8};
    comm_fixture_run(&fixture, wait_in_a_row, NULL);
    expect_failure(&fixture, 99, "rank 1 on host", "has not come");
    expect_failure(&fixture, 99, "rank 1 on host", "place 1");
}

static int do_differently(comm *self, void *user)
{
    (void)user;
    return comm_barrier(self, comm_get_rank(self) == 2 ? "two" : "one");
}

static void different_calls_are_refused(void **state)
{
    (void)state;
    comm_fixture fixture = {.world = 3};
    comm_fixture_run(&fixture, do_differently, NULL);
    expect_failure(&fixture, 99, "rank 2 on host", "\"two\"");
    expect_failure(&fixture, 99, "rank 0 on host", "\"one\"");
    assert_int_equal(fixture.codes[1], ERR_INTERNAL);
}

static int hang_after_failure(comm *self, void *user)
{
    (void)user;
    TRY(comm_barrier(self, "before"));
    if (comm_get_rank(self) == 1)
        return err_set(-EIO, "drive");
    if (comm_get_rank(self) == 2)
        for (;;)
            pause(); /* in a drive that does not answer */
    return comm_barrier(self, "after");
}

static void a_process_that_hangs_is_ended(void **state)
{
    (void)state;
    comm_fixture fixture = {.world = 3, .exit_seconds = 0.5};
    comm_fixture_run(&fixture, hang_after_failure, NULL);
    assert_true(WIFEXITED(fixture.statuses[2]) && WEXITSTATUS(fixture.statuses[2]) == 1);
    assert_true(strstr(fixture.texts[0], "rank 1 on host"));
}

/* As a drive that hangs on rank 0, which is to tell. */
static void tell(int code)
{
    if (told_board)
        snprintf(told_board, ERR_TEXT_BYTES, "%d %s", code, err_text());
}

static int hang_as_teller(comm *self, void *user)
{
    told_board = user;
    TRY(comm_barrier(self, "before"));
    if (comm_get_rank(self) == 0)
        for (;;)
            pause();
    if (comm_get_rank(self) == 1)
        return err_set(-EIO, "drive");
    return comm_barrier(self, "after");
}

/* The others end after it, so that no launcher ends it before it has told. */
static void a_teller_that_hangs_tells(void **state)
{
    (void)state;
    char *board = comm_fixture_shared(ERR_TEXT_BYTES);
    comm_fixture fixture = {.world = 3, .exit_seconds = 2.0, .tell = tell};
    comm_fixture_run(&fixture, hang_as_teller, board);
    assert_true(WIFEXITED(fixture.statuses[0]) && WEXITSTATUS(fixture.statuses[0]) == 1);
    assert_true(strstr(board, "-5 rank 1 on host") == board && strstr(board, ": drive"));
    for (int r = 1; r < 3; r++)
        assert_true(fixture.seconds[r] > 1.4);
}

static int refuse_together(comm *self, void *user)
{
    (void)user;
    bool is_full = comm_get_rank(self) == 1;
    int rc = comm_agree(self, "space", is_full ? err_set(ERR_NO_FIT, "the drive is full") : 0);
    return is_full ? await_failure(self) : err_prefix(rc, "step 4");
}

static void a_refusal_is_named_once(void **state)
{
    (void)state;
    comm_fixture fixture = {.world = 3, .hosts = {"a", "b", "c"}};
    comm_fixture_run(&fixture, refuse_together, NULL);
    for (int r = 0; r < 3; r++)
        assert_string_equal(fixture.texts[r], "step 4: rank 1 on b: the drive is full");
}

static int leave_early(comm *self, void *user)
{
    (void)user;
    return comm_get_rank(self) == 1 ? 0 : comm_barrier(self, "one more");
}

static void a_rank_that_leaves_early_is_named(void **state)
{
    (void)state;
    comm_fixture fixture = {.world = 3};
    comm_fixture_run(&fixture, leave_early, NULL);
    assert_int_equal(fixture.codes[0], ERR_INTERNAL);
    assert_true(strstr(fixture.texts[0], "rank 1 on host") && strstr(fixture.texts[0], "leaving"));
}

static int accuse(comm *self, void *user)
{
    (void)user;
    if (comm_get_rank(self) == 2)
        comm_note(self, "step 5, backward of block.1");
    TRY(comm_barrier(self, "before"));
    if (comm_get_rank(self) != 1)
        return comm_get_rank(self) == 0 ? comm_barrier(self, "after") : await_failure(self);
    atomic_store(&self->waits, true); /* as in a collective */
    while (!commi_is_aborted(self)) {
        commi_say_waiting(self, 2, "all-gather of block.0");
        sleep_ms(20);
    }
    return comm_check(self);
}

static void a_bulk_call_names_who_is_missing(void **state)
{
    (void)state;
    comm_fixture fixture = {.world = 3, .timeout_seconds = 2.0};
    comm_fixture_run(&fixture, accuse, NULL);
    expect_failure(&fixture, 99, "rank 2 on host", "all-gather of block.0");
    expect_failure(&fixture, 99, "rank 2 on host", "backward of block.1");
}

/* ---- joining ---- */

static void a_rank_that_never_joins_is_named(void **state)
{
    (void)state;
    uint16_t port = comm_fixture_port();
    comm_join_config config = {.is_given = true, .world = 3, .hub_port = port, .token = 5};
    config.timeout_seconds = 0.5;
    pid_t child = fork();
    if (child == 0) {
        comm *self;
        config.rank = 1;
        int rc = comm_join(&config, &self);
        _exit(rc == -ETIMEDOUT && strstr(err_text(), "rank 2 has not joined") &&
                      !comm_is_teller(NULL)
                  ? 0
                  : 1);
    }
    comm *self;
    int status;
    assert_int_equal(comm_join(&config, &self), -ETIMEDOUT);
    assert_null(self);
    assert_true(strstr(err_text(), "rank 2 has not joined") != NULL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Rank 0 has room for the connections, or says that it has not. */
static void descriptors_suffice(void **state)
{
    (void)state;
    enum { WORLD = 3, HARD = 2048, LITTLE = 60 };
    static const rlim_t hard[] = {HARD, LITTLE};
    for (int i = 0; i < 2; i++) {
        comm_join_config config = {.is_given = true, .world = WORLD, .timeout_seconds = 0.3};
        config.hub_port = comm_fixture_port();
        pid_t child = fork();
        if (child == 0) {
            comm *self;
            struct rlimit limit = {.rlim_cur = LITTLE, .rlim_max = hard[i]};
            bool is_set = setrlimit(RLIMIT_NOFILE, &limit) == 0;
            int rc = comm_join(&config, &self);
            bool is_raised = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > LITTLE;
            _exit(is_set && is_raised == (i == 0) && rc == (i == 0 ? -ETIMEDOUT : ERR_CONFIG) ? 0
                                                                                              : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

static void one_rank_needs_nobody(void **state)
{
    (void)state;
    comm_join_config config = {0};
    static const char *const keys[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",      "PMIX_RANK",
                                       "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        unsetenv(keys[i]);
    comm *self;
    assert_int_equal(comm_join(&config, &self), 0);
    assert_int_equal(comm_get_world(self), 1);
    assert_int_equal(calls_give_values(self, NULL), 0);
    assert_int_equal(comm_fail(self, -EIO, "a drive"), -EIO);
    assert_int_equal(comm_barrier(self, "x"), -EIO);
    assert_string_equal(err_text(), "a drive");
    comm_leave(self, -EIO);
}

/* The environment of launchers, as far as it decides without MPI. */
static void launchers_are_understood(void **state)
{
    (void)state;
    commi_launch launch;
    setenv("SLURM_NTASKS", "4", 1); /* a batch script is no step */
    setenv("SLURM_PROCID", "0", 1);
    assert_int_equal(commi_launch_read(&launch), 0);
    assert_false(launch.is_launched);
    setenv("MPI_LOCALNRANKS", "1", 1); /* of this host: there may be others */
    setenv("MPI_LOCALRANKID", "0", 1);
    assert_int_equal(commi_launch_read(&launch), 0);
    assert_true(launch.is_launched && launch.world == 0);
    unsetenv("MPI_LOCALNRANKS");
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    setenv("SLURM_PROCID", "1", 1);
    assert_int_equal(commi_launch_read(&launch), 0);
    assert_true(launch.is_launched && launch.rank == 1 && launch.world == 2);
    setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
    setenv("OMPI_COMM_WORLD_RANK", "2", 1);
    assert_int_equal(commi_launch_read(&launch), 0);
    assert_true(launch.rank == 2 && launch.world == 3);
    setenv("OMPI_COMM_WORLD_SIZE", "2000", 1);
    assert_int_equal(commi_launch_read(&launch), ERR_CONFIG);
    comm *none;
    assert_int_equal(comm_join(&(comm_join_config){0}, &none), ERR_CONFIG);
    assert_false(comm_is_teller(NULL)); /* rank 0 says it */
    assert_true(strstr(err_text(), "2000") != NULL);
    setenv("OMPI_COMM_WORLD_SIZE", "many", 1);
    assert_int_equal(commi_launch_read(&launch), ERR_CONFIG);
    setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    assert_int_equal(commi_launch_read(&launch), 0);
    assert_false(launch.is_launched);
}

/* A build without MPI cannot join what mpirun started, and rank 0 alone says so. */
static void a_launcher_without_mpi_is_refused(void **state)
{
    (void)state;
    if (commi_mpi_version()[0] != '\0')
        return; /* this build would join */
    comm_join_config config = {0};
    comm *self;
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        setenv("OMPI_COMM_WORLD_RANK", rank ? "1" : "0", 1);
        assert_int_equal(comm_join(&config, &self), ERR_CONFIG);
        assert_true(strstr(err_text(), "SLUICE_MPI") != NULL);
        assert_int_equal(comm_is_teller(NULL), rank == 0);
    }
}

/* ---- under mpirun ---- */

/* A rank that mpirun has started: the same calls, and messages by MPI. */
static int be_launched(void)
{
    comm_join_config config = {.timeout_seconds = 20.0};
    comm *self;
    if (comm_join(&config, &self) < 0) {
        fprintf(stderr, "join: %s\n", err_text());
        return 1;
    }
    uint32_t rank = comm_get_rank(self), world = comm_get_world(self);
    int rc = world == 3 && commi_has_mpi(self) ? calls_give_values(self, NULL) : ERR_INTERNAL;
    commi_request requests[2] = {0};
    uint32_t sent = rank, got = 99;
    bool is_done = false;
    if (rc == 0)
        rc = commi_mpi_send(self, &requests[0], &sent, sizeof sent, (rank + 1) % world, 7);
    if (rc == 0)
        rc = commi_mpi_receive(self, &requests[1], &got, sizeof got, (rank + world - 1) % world, 7);
    for (int i = 0; i < 2 && rc == 0; i++)
        for (is_done = false; rc == 0 && !is_done;)
            rc = commi_mpi_test(&requests[i], &is_done);
    if (rc == 0 && got != (rank + world - 1) % world)
        rc = err_set(ERR_INTERNAL, "rank %u got %u", rank, got);
    if (rc < 0)
        fprintf(stderr, "rank %u: %s\n", rank, err_text());
    comm_leave(self, rc);
    return rc < 0;
}

/* Rank 1 is killed; mpirun then ends the others (SIGTERM, which a program of ours takes as a request), and rank 0
 * has said why by then. */
static int be_launched_to_die(void)
{
    comm_join_config config = {.timeout_seconds = 20.0};
    comm *self;
    signal(SIGTERM, SIG_IGN);
    if (comm_join(&config, &self) < 0)
        return 1;
    int rc = comm_barrier(self, "before");
    if (comm_get_rank(self) == 1)
        raise(SIGKILL);
    if (rc == 0)
        rc = comm_barrier(self, "after");
    if (comm_is_teller(self))
        printf("told: %s\n", err_text());
    fflush(stdout);
    comm_leave(self, rc);
    return 1;
}

static int expect_told(const char *program)
{
    char command[4096], line[2048];
    snprintf(command, sizeof command, "exec mpirun --oversubscribe -n 3 '%s' dying 2>&1", program);
    FILE *output = popen(command, "r");
    uint32_t count = 0;
    while (output && fgets(line, sizeof line, output)) {
        char *told = strstr(line, "told: rank 1 on host ");
        count += told != NULL && strstr(told, "is gone") != NULL;
    }
    int status = output ? pclose(output) : 0;
    if (count == 1 && status != 0)
        return 0;
    fprintf(stderr, "told %u times that rank 1 is gone, status %#x\n", count, (unsigned)status);
    return 1;
}

static int run_mpirun(const char *program)
{
    if (access("/usr/bin/mpirun", X_OK) != 0 && system("command -v mpirun >/dev/null") != 0) {
        puts("skipped: there is no mpirun");
        return 77;
    }
    if (commi_mpi_version()[0] == '\0') {
        puts("skipped: built without MPI");
        return 77;
    }
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    char command[4096];
    snprintf(command, sizeof command, "exec mpirun --oversubscribe -n 3 '%s' rank", program);
    int status = system(command);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return 1;
    return expect_told(program);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "rank") == 0)
        return be_launched();
    if (argc > 1 && strcmp(argv[1], "dying") == 0)
        return be_launched_to_die();
    if (argc > 1 && strcmp(argv[1], "mpirun") == 0)
        return run_mpirun(argv[0]);
    printf("seed: none, nothing is drawn\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_needs_nobody),
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(hosts_are_numbered),
        cmocka_unit_test(a_failure_reaches_all),
        cmocka_unit_test(a_killed_rank_ends_all),
        cmocka_unit_test(a_stopped_rank_ends_all),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(a_rank_that_works_is_waited_for),
        cmocka_unit_test(the_one_that_waits_for_nobody_is_named),
        cmocka_unit_test(different_calls_are_refused),
        cmocka_unit_test(a_process_that_hangs_is_ended),
        cmocka_unit_test(a_teller_that_hangs_tells),
        cmocka_unit_test(a_refusal_is_named_once),
        cmocka_unit_test(a_rank_that_leaves_early_is_named),
        cmocka_unit_test(a_bulk_call_names_who_is_missing),
        cmocka_unit_test(a_rank_that_never_joins_is_named),
        cmocka_unit_test(descriptors_suffice),
        cmocka_unit_test(launchers_are_understood),
        cmocka_unit_test(a_launcher_without_mpi_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
