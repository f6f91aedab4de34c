/* The control plane between forked ranks: whatever becomes of one rank ends all, soon, with one
 * text that names it; and a rank that works is waited for. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/progress.h"
#include "comm/comm_internal.h"
#include "tests/comm/comm_fixture.h"
#include "tests/unit.h"

/* Shared by a test and its ranks. */
struct board {
    atomic_int ready;  /* ranks that have come to where one is hit */
    atomic_int victim; /* whom the test hits with `signal` once all are ready */
    atomic_int signal;
    atomic_int is_hit;
    atomic_int worker; /* a process that the victim has forked */
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
    sleep_ms(500); /* a heartbeat carries the labels */
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

/* As a program whose data is loaded by forked workers. */
static int be_hit_beside_a_worker(comm *self, void *user)
{
    struct board *board = user;
    if ((int)comm_get_rank(self) == board->victim) {
        pid_t worker = fork();
        if (worker == 0)
            for (;;)
                pause();
        atomic_store(&board->worker, worker);
    }
    return be_hit(self, user);
}

static void a_forked_worker_does_not_hide_a_death(void **state)
{
    for (int victim = 0; victim < 2; victim++) {
        struct board *board = comm_fixture_shared(sizeof *board);
        board->victim = victim;
        board->signal = SIGKILL;
        comm_fixture fixture = {.world = 3, .timeout_seconds = 2.0, .watch = hit};
        comm_fixture_run(&fixture, be_hit_beside_a_worker, board);
        kill(atomic_load(&board->worker), SIGKILL);
        expect_failure(&fixture, (uint32_t)victim, "is gone: its connection closed", "rank");
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

/* Work that takes longer than the timeout while others wait, such as copying a commit. */
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
    for (uint32_t busy = 0; busy < 2; busy++) {
        comm_fixture fixture = {.world = 3, .timeout_seconds = 0.6};
        comm_fixture_run(&fixture, work_long, &busy);
        comm_fixture_expect_ok(&fixture);
    }
}

/* Rank 1 hangs, rank 2 waits for rank 1, and rank 0 waits for rank 2, which is not to blame. */
static int wait_in_a_row(comm *self, void *user)
{
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
    comm_fixture fixture = {.world = 3, .timeout_seconds = 0.8};
    comm_fixture_run(&fixture, wait_in_a_row, NULL);
    expect_failure(&fixture, 99, "rank 1 on host", "has not come");
    expect_failure(&fixture, 99, "rank 1 on host", "place 1");
}

static int do_differently(comm *self, void *user)
{
    return comm_barrier(self, comm_get_rank(self) == 2 ? "two" : "one");
}

static void different_calls_are_refused(void **state)
{
    comm_fixture fixture = {.world = 3};
    comm_fixture_run(&fixture, do_differently, NULL);
    expect_failure(&fixture, 99, "rank 2 on host", "\"two\"");
    expect_failure(&fixture, 99, "rank 0 on host", "\"one\"");
    assert_int_equal(fixture.codes[1], ERR_INTERNAL);
}

static int hang_after_failure(comm *self, void *user)
{
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
    comm_fixture fixture = {.world = 3, .exit_seconds = 0.5};
    comm_fixture_run(&fixture, hang_after_failure, NULL);
    assert_true(WIFEXITED(fixture.statuses[2]) && WEXITSTATUS(fixture.statuses[2]) == 1);
    assert_true(strstr(fixture.texts[0], "rank 1 on host"));
}

/* The report from rank 0, which hangs as on a stuck drive but has to report. */
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

/* The other ranks end after rank 0, so that no launcher ends it before it has reported. */
static void a_teller_that_hangs_tells(void **state)
{
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
    bool is_full = comm_get_rank(self) == 1;
    int rc = comm_agree(self, "space", is_full ? err_set(ERR_NO_FIT, "the drive is full") : 0);
    return is_full ? await_failure(self) : err_prefix(rc, "step 4");
}

static void a_refusal_is_named_once(void **state)
{
    comm_fixture fixture = {.world = 3, .hosts = {"a", "b", "c"}};
    comm_fixture_run(&fixture, refuse_together, NULL);
    for (int r = 0; r < 3; r++)
        assert_string_equal(fixture.texts[r], "step 4: rank 1 on b: the drive is full");
}

static int leave_early(comm *self, void *user)
{
    return comm_get_rank(self) == 1 ? 0 : comm_barrier(self, "one more");
}

static void a_rank_that_leaves_early_is_named(void **state)
{
    comm_fixture fixture = {.world = 3};
    comm_fixture_run(&fixture, leave_early, NULL);
    assert_int_equal(fixture.codes[0], ERR_INTERNAL);
    assert_true(strstr(fixture.texts[0], "rank 1 on host") && strstr(fixture.texts[0], "leaving"));
}

static int accuse(comm *self, void *user)
{
    if (comm_get_rank(self) == 2)
        comm_note(self, "step 5, backward of block.1");
    TRY(comm_barrier(self, "before"));
    if (comm_get_rank(self) != 1)
        return await_failure(self);
    atomic_store(&self->waits, true); /* as in a collective */
    while (!commi_is_aborted(self)) {
        commi_say_waiting(self, 2, "all-gather of block.0");
        sleep_ms(20);
    }
    return comm_check(self);
}

static void a_bulk_call_names_who_is_missing(void **state)
{
    comm_fixture fixture = {.world = 3, .timeout_seconds = 2.0};
    comm_fixture_run(&fixture, accuse, NULL);
    expect_failure(&fixture, 99, "rank 2 on host", "all-gather of block.0");
    expect_failure(&fixture, 99, "rank 2 on host", "backward of block.1");
}

/* ---- the end ---- */

static int fail_together(comm *self, void *user)
{
    char why[32];
    snprintf(why, sizeof why, "error %u", comm_get_rank(self));
    if (comm_get_rank(self) > 0)
        comm_note_failure(self, why);
    return comm_end(self);
}

static void ranks_that_fail_together_end_in_order(void **state)
{
    comm_fixture fixture = {.world = 3, .exit_seconds = 20};
    comm_fixture_run(&fixture, fail_together, NULL);
    comm_fixture_expect_ok(&fixture);
}

struct early {
    uint32_t rank;       /* that ends */
    const char *failure; /* of its program */
    bool is_on_its_way;  /* it waits in a collective before its end */
    bool is_idle;        /* the others wait for nobody; else they are in a collective */
};

static int end_early(comm *self, void *user)
{
    const struct early *early = user;
    TRY(comm_barrier(self, "before"));
    bool is_early = comm_get_rank(self) == early->rank;
    if (is_early && early->failure)
        comm_note_failure(self, early->failure);
    if (is_early && !early->is_on_its_way)
        return comm_end(self);
    comm_note(self, "step 8, all-gather of block.3");
    atomic_store(&self->waits, is_early || !early->is_idle);
    return await_failure(self);
}

static void a_rank_that_ends_before_the_others_is_named(void **state)
{
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct early early = {.rank = rank};
        comm_fixture fixture = {.world = 3, .timeout_seconds = 2.0};
        char expected[64];
        snprintf(expected, sizeof expected, "rank %u on host ", rank);
        comm_fixture_run(&fixture, end_early, &early);
        expect_failure(&fixture, 99, expected, "has come to the end of its run, and rank ");
        expect_failure(&fixture, 99, expected,
                       " waits for it in step 8, all-gather of block.3: all ranks must");
        early.failure = "ValueError: bad batch";
        comm_fixture_run(&fixture, end_early, &early);
        expect_failure(&fixture, 99, expected, "has come to its end after ValueError: bad batch, ");
    }
}

static void a_program_that_fails_does_not_wait(void **state)
{
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct early early = {.rank = rank / 2,
                              .failure = "ValueError: bad batch",
                              .is_on_its_way = rank % 2,
                              .is_idle = true};
        comm_fixture fixture = {.world = 3, .exit_seconds = 1.0};
        comm_fixture_run(&fixture, end_early, &early);
        expect_failure(&fixture, 99, "ValueError: bad batch, and the others go on", "rank");
        assert_int_equal(fixture.codes[2], -ECONNRESET);
    }
}

static int meet_early(comm *self, void *user)
{
    const struct early *early = user;
    TRY(comm_meet(self, "a commit"));
    if (comm_get_rank(self) == early->rank)
        return comm_meet(self, "a commit");
    comm_note(self, "step 8, all-gather of block.3");
    atomic_store(&self->waits, true);
    return await_failure(self);
}

static void a_rank_that_commits_alone_is_named(void **state)
{
    struct early early = {.rank = 1};
    comm_fixture fixture = {.world = 3, .timeout_seconds = 2.0};
    comm_fixture_run(&fixture, meet_early, &early);
    expect_failure(&fixture, 99, "rank 1 on host ",
                   "has come to a commit, and rank 2 waits for it");
}

static int end_for_a_call(comm *self, void *user)
{
    const struct early *early = user;
    return comm_get_rank(self) == early->rank ? comm_end(self) : comm_barrier(self, "losses");
}

static void a_rank_that_ends_in_place_of_a_call_is_named(void **state)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct early early = {.rank = rank};
        comm_fixture fixture = {.world = 2};
        char expected[64];
        snprintf(expected, sizeof expected, "rank %u on host ", rank);
        comm_fixture_run(&fixture, end_for_a_call, &early);
        expect_failure(&fixture, 99, expected, "goes on with \"losses\": all ranks must");
    }
}

int main(void)
{
    printf("seed: none, nothing is drawn\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_reaches_all),
        cmocka_unit_test(a_killed_rank_ends_all),
        cmocka_unit_test(a_forked_worker_does_not_hide_a_death),
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
        cmocka_unit_test(ranks_that_fail_together_end_in_order),
        cmocka_unit_test(a_rank_that_ends_before_the_others_is_named),
        cmocka_unit_test(a_program_that_fails_does_not_wait),
        cmocka_unit_test(a_rank_that_commits_alone_is_named),
        cmocka_unit_test(a_rank_that_ends_in_place_of_a_call_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
