/* The control plane: joining, what the calls give, and leaving; between forked ranks, and by what
 * launchers say in the environment. With "mpirun": the same calls among ranks that mpirun starts,
 * and how they end. */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/control_internal.h"
#include "tests/comm/comm_fixture.h"
#include "tests/unit.h"

enum { LARGE_BYTES = 5 << 20 };

static int expect(bool is_true, const char *what)
{
    return is_true ? 0 : err_set(ERR_INTERNAL, "wrong: %s", what);
}

#define EXPECT(condition) TRY(expect((condition), #condition))

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
    static const uint64_t sizes[] = {0, 1, 119, 65537, LARGE_BYTES};
    for (int i = 0; i < 3; i++)
        TRY(comm_barrier(self, "a barrier"));
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        TRY(check_payload(self, sizes[s]));
    TRY(check_agreement(self));
    const comm_rank *ranks = comm_get_ranks(self);
    EXPECT(ranks[comm_get_rank(self)].pid == getpid());
    EXPECT(comm_is_reporter(self) == (comm_get_rank(self) == 0));
    return comm_check(self);
}

static void values_arrive(void **state)
{
    static const uint32_t worlds[] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        comm_fixture fixture = {.world = worlds[i]};
        comm_fixture_run(&fixture, calls_give_values, NULL);
        comm_fixture_expect_ok(&fixture);
    }
}

static int look_at_hosts(comm *self, void *user)
{
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
    comm_fixture fixture = {.world = 5, .hosts = {"n0", "n1", "n0", "n1", "n1"}};
    comm_fixture_run(&fixture, look_at_hosts, NULL);
    comm_fixture_expect_ok(&fixture);
}

/* ---- joining ---- */

static void a_rank_that_never_joins_is_named(void **state)
{
    uint16_t port = comm_fixture_port();
    comm_join_config config = {.is_given = true, .world = 3, .hub_port = port, .token = 5};
    config.timeout_seconds = 0.5;
    pid_t child = fork();
    if (child == 0) {
        comm *self;
        config.rank = 1;
        int rc = comm_join(&config, &self);
        _exit(rc == -ETIMEDOUT && strstr(err_text(), "rank 2 has not joined") &&
                      !comm_is_reporter(NULL)
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

/* Holds more connections to the hub than it has places for, connects again where the hub closes
 * one, and says nothing, half a HELLO or something else on them; until it is killed. */
static void crowd_the_hub(uint16_t port)
{
    enum { HELD_MAX = 400 };
    static const unsigned char hello[] = {0x73, 0x6c, 0x63, 0x68};
    struct sockaddr_storage to;
    struct commi_address loopback = commi_loopback();
    socklen_t bytes = commi_make_sockaddr(&loopback, port, &to);
    static int held[HELD_MAX];
    for (uint32_t turn = 0;; turn++) {
        char byte;
        int *place = &held[turn % HELD_MAX];
        if (*place > 0 && recv(*place, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN)
            continue; /* the hub still holds it */
        if (*place > 0)
            close(*place);
        *place = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (*place < 0 || connect(*place, (struct sockaddr *)&to, bytes) != 0)
            commi_sleep_ns(1000000);
        else if (turn % 4 == 1)
            (void)send(*place, hello, sizeof hello, MSG_NOSIGNAL);
        else if (turn % 4 == 2)
            (void)send(*place, &turn, sizeof turn, MSG_NOSIGNAL);
    }
}

/* The hub's places are all taken by strangers when rank 1 comes, and more strangers come. */
static void strangers_keep_no_rank_out(void **state)
{
    comm_join_config config = {.is_given = true, .world = 2, .timeout_seconds = 10, .token = 5};
    config.hub_port = comm_fixture_port();
    pid_t crowd = fork();
    if (crowd == 0)
        crowd_the_hub(config.hub_port);
    pid_t late = fork();
    if (late == 0) {
        comm *self;
        config.rank = 1;
        commi_sleep_ns(500000000); /* the crowd comes first */
        int rc = comm_join(&config, &self);
        if (rc == 0)
            comm_leave(self, 0);
        _exit(rc == 0 ? 0 : 1);
    }
    comm *self;
    int rc = comm_join(&config, &self), status;
    kill(crowd, SIGKILL);
    if (rc == 0)
        comm_leave(self, 0);
    assert_int_equal(waitpid(crowd, &status, 0), crowd);
    assert_int_equal(waitpid(late, &status, 0), late);
    assert_int_equal(rc, 0);
    assert_int_equal(status, 0);
}

/* Rank 0 has room for the connections, or says that it has not. */
static void descriptors_suffice(void **state)
{
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
    comm_join_config config = {0};
    static const char *const keys[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",      "PMIX_RANK",
                                       "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        unsetenv(keys[i]);
    comm *self;
    assert_ok(comm_join(&config, &self));
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
    assert_false(launch.is_one_host);
    setenv("SLURM_STEP_NUM_NODES", "1", 1);
    assert_int_equal(commi_launch_read(&launch), 0);
    assert_true(launch.is_one_host);
    setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
    setenv("OMPI_COMM_WORLD_RANK", "2", 1);
    assert_int_equal(commi_launch_read(&launch), 0);
    assert_true(launch.rank == 2 && launch.world == 3);
    assert_false(launch.is_one_host);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
    assert_int_equal(commi_launch_read(&launch), 0);
    assert_false(launch.is_one_host);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "3", 1);
    assert_int_equal(commi_launch_read(&launch), 0);
    assert_true(launch.is_one_host);
    setenv("OMPI_COMM_WORLD_SIZE", "2000", 1);
    assert_int_equal(commi_launch_read(&launch), ERR_CONFIG);
    comm *none;
    assert_int_equal(comm_join(&(comm_join_config){0}, &none), ERR_CONFIG);
    assert_false(comm_is_reporter(NULL)); /* rank 0 says it */
    assert_true(strstr(err_text(), "2000") != NULL);
    setenv("OMPI_COMM_WORLD_SIZE", "many", 1);
    assert_int_equal(commi_launch_read(&launch), ERR_CONFIG);
    setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    assert_int_equal(commi_launch_read(&launch), 0);
    assert_false(launch.is_launched);
}

struct store {
    int fds[2];
    struct commi_meeting newest;
    uint32_t call_count;
};

/* Rank 0 writes into the pipe what the other rank reads. At its first two calls the other rank gets
 * what a rank 0 gave that has ended: first of one that could not listen. */
static int share_by_pipe(void *user, void *data, uint64_t bytes, double timeout_seconds)
{
    struct store *store = user;
    EXPECT(timeout_seconds > 0 && timeout_seconds <= 10);
    EXPECT(bytes == sizeof store->newest);
    if (strcmp(getenv("RANK"), "0") == 0)
        return write(store->fds[1], data, bytes) == (ssize_t)bytes ? 0 : err_set(-EIO, "the pipe");
    if (store->call_count == 0)
        EXPECT(read(store->fds[0], &store->newest, bytes) == (ssize_t)bytes);
    struct commi_meeting *given = data;
    *given = store->newest;
    if (store->call_count == 0)
        given->port = 0;
    if (store->call_count == 1)
        given->token[0]++;
    store->call_count++;
    return 0;
}

static int gather_ranks(comm *self)
{
    float mine[64], all[2 * 64];
    for (int i = 0; i < 64; i++)
        mine[i] = (float)comm_get_rank(self);
    const comm_open_config config = {.backend = COMM_MPI};
    TRY(comm_open(self, &config));
    const comm_call call = {.label = "ranks", .source = mine, .target = all, .count = sizeof mine};
    TRY(comm_all_gather(self, &call));
    for (int i = 0; i < 2 * 64; i++)
        EXPECT(all[i] == (float)(i / 64));
    return 0;
}

/* torchrun says who the ranks are, and the program passes on where they meet. */
static void ranks_of_torchrun_meet_without_mpi(void **state)
{
    int status;
    struct store store = {0};
    comm_join_config config = {.timeout_seconds = 10};
    comm *self;
    assert_int_equal(pipe(store.fds), 0);
    setenv("SLURM_STEP_NUM_TASKS", "7", 1); /* srun has started a torchrun on each of its hosts */
    setenv("SLURM_PROCID", "3", 1);
    setenv("TORCHELASTIC_RUN_ID", "none", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", "0", 1);
    assert_error(comm_join(&config, &self), ERR_CONFIG, "torchrun started 2 processes");
    config.share = share_by_pipe;
    config.share_user = &store;
    pid_t child = fork();
    if (child == 0)
        setenv("RANK", "1", 1);
    int rc = comm_join(&config, &self);
    if (rc == 0) {
        rc = calls_give_values(self, NULL);
        if (rc == 0)
            rc = gather_ranks(self);
        comm_leave(self, rc);
    }
    if (child == 0)
        _exit(rc == 0 && store.call_count == 3 ? 0 : 1);
    assert_int_equal(rc, 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    static const char *const keys[] = {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID",
                                       "TORCHELASTIC_RUN_ID",  "LOCAL_WORLD_SIZE",
                                       "WORLD_SIZE",           "RANK"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        unsetenv(keys[i]);
    close(store.fds[0]);
    close(store.fds[1]);
}

/* A build without MPI cannot join the ranks of mpirun, and only rank 0 prints that. */
static void a_launcher_without_mpi_is_refused(void **state)
{
    if (commi_mpi_version()[0] != '\0')
        return; /* this build would join */
    comm_join_config config = {0};
    comm *self;
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        setenv("OMPI_COMM_WORLD_RANK", rank ? "1" : "0", 1);
        assert_int_equal(comm_join(&config, &self), ERR_CONFIG);
        assert_true(strstr(err_text(), "SLUICE_MPI") != NULL);
        assert_int_equal(comm_is_reporter(NULL), rank == 0);
    }
}

/* ---- under mpirun ---- */

/* The number of sockets of this process at which others can connect. */
static uint32_t count_listening(void)
{
    uint32_t count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        int domain = 0, listens = 0;
        socklen_t domain_bytes = sizeof domain, listens_bytes = sizeof listens;
        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_bytes) == 0 &&
            getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_bytes) == 0)
            count += listens && (domain == AF_INET || domain == AF_INET6);
    }
    return count;
}

/* A rank that mpirun has started: the same calls, messages by MPI, and no port once it has
 * joined. */
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
    uint32_t ports = count_listening();
    if (rc == 0 && ports != 0 && strstr(commi_mpi_version(), "Open MPI"))
        rc = err_set(ERR_INTERNAL, "rank %u listens on %u ports", rank, ports);
    commi_request requests[2] = {0};
    uint32_t sent = rank, got = 99;
    bool is_done = false;
    if (rc == 0)
        rc = commi_mpi_send(self, &requests[0], &sent, sizeof sent, (rank + 1) % world);
    if (rc == 0)
        rc = commi_mpi_receive(self, &requests[1], &got, sizeof got, (rank + world - 1) % world);
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

/* Rank 1 is killed; mpirun then ends the others (SIGTERM, which a program of ours takes as a
 * request), and rank 0 has said why by then. */
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
    if (comm_is_reporter(self))
        printf("told: %s\n", err_text());
    fflush(stdout);
    comm_leave(self, rc);
    return 1;
}

/* Rank 1 ends after it has left, without MPI's end: the others do not wait for it for ever. */
static int be_launched_to_vanish(void)
{
    comm_join_config config = {.timeout_seconds = 20.0, .exit_seconds = 1.5};
    comm *self;
    if (comm_join(&config, &self) < 0)
        return 1;
    if (comm_get_rank(self) == 1) {
        int rc = comm_barrier(self, "leaving"); /* a failure ends its wait too */
        (void)rc;
        commi_control_close(self);
        for (;;)
            pause();
    }
    comm_leave(self, 0);
    return 1;
}

static void print_failure(int code)
{
    printf("told: %s\n", err_text());
    fflush(stdout);
}

/* Rank 1 does not begin to join: the others wait in MPI, and end in time with one sentence. */
static int be_launched_to_wait(void)
{
    comm_join_config config = {.timeout_seconds = 2.0, .report = print_failure};
    commi_launch launch;
    comm *self;
    if (commi_launch_read(&launch) < 0)
        return 1;
    while (launch.rank == 1)
        pause();
    int rc = comm_join(&config, &self);
    printf("joined with %d\n", rc);
    return 0;
}

/* mpirun ends the one that hangs when the others have gone. */
static int expect_end(const char *program)
{
    char command[4096];
    snprintf(command, sizeof command,
             "timeout -k 1 20 mpirun --oversubscribe -n 3 '%s' vanishing >/dev/null 2>&1", program);
    int status = system(command);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
        return 0;
    fprintf(stderr, "a rank that hangs in MPI's end: status %#x\n", (unsigned)status);
    return 1;
}

/* Starts three ranks of this program in a role, of which one must print "told: " and `text`, and
 * which must fail without a limit from outside. */
static int expect_told(const char *program, const char *role, const char *text)
{
    char command[4096], line[2048];
    snprintf(command, sizeof command, "exec timeout 40 mpirun --oversubscribe -n 3 '%s' %s 2>&1",
             program, role);
    FILE *output = popen(command, "r");
    uint32_t count = 0;
    while (output && fgets(line, sizeof line, output)) {
        char *told = strstr(line, "told: ");
        count += told != NULL && strstr(told, text) != NULL;
    }
    int status = output ? pclose(output) : 0;
    if (count == 1 && WIFEXITED(status) && WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 124)
        return 0;
    fprintf(stderr, "%s: told %u times \"%s\", status %#x\n", role, count, text, (unsigned)status);
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
    /* ThreadSanitizer makes a process that ends sleep for a second. Rank 0 has two seconds to end
     * and have the launcher end the others (end_joining), else they speak too. */
    const char *options = getenv("TSAN_OPTIONS");
    char command[4096];
    snprintf(command, sizeof command, "%s atexit_sleep_ms=0", options ? options : "");
    setenv("TSAN_OPTIONS", command, 1);
    snprintf(command, sizeof command, "exec mpirun --oversubscribe -n 3 '%s' rank", program);
    int status = system(command);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return 1;
    return expect_told(program, "dying", "is gone") +
           expect_told(program, "waiting", "have not met within 2.0 s") + expect_end(program);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "rank") == 0)
        return be_launched();
    if (argc > 1 && strcmp(argv[1], "dying") == 0)
        return be_launched_to_die();
    if (argc > 1 && strcmp(argv[1], "waiting") == 0)
        return be_launched_to_wait();
    if (argc > 1 && strcmp(argv[1], "vanishing") == 0)
        return be_launched_to_vanish();
    if (argc > 1 && strcmp(argv[1], "mpirun") == 0)
        return run_mpirun(argv[0]);
    printf("seed: none, nothing is drawn\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_needs_nobody),
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(hosts_are_numbered),
        cmocka_unit_test(a_rank_that_never_joins_is_named),
        cmocka_unit_test(strangers_keep_no_rank_out),
        cmocka_unit_test(descriptors_suffice),
        cmocka_unit_test(launchers_are_understood),
        cmocka_unit_test(ranks_of_torchrun_meet_without_mpi),
        cmocka_unit_test(a_launcher_without_mpi_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
