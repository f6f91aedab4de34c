/* See comm_fixture.h. */
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/comm/comm_fixture.h"
#include "tests/unit.h"

/* The results that a rank gives to the test, in shared memory. */
struct outcome {
    int code;
    bool is_reporter;
    char text[ERR_TEXT_BYTES];
};

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void *comm_fixture_shared(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

uint16_t comm_fixture_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    close(fd);
    return ntohs(address.sin_port);
}

static void be_rank(const comm_join_config *config, comm_fixture_body *body, void *user,
                    struct outcome *outcome)
{
    comm *self;
    int code = comm_join(config, &self);
    if (code == 0)
        code = body(self, user);
    snprintf(outcome->text, sizeof outcome->text, "%s", code < 0 ? err_text() : "");
    if (code == 0)
        code = comm_check(self);
    if (self && code < 0) {
        (void)comm_fail(self, code, err_text());
        if (comm_check(self) < 0)
            snprintf(outcome->text, sizeof outcome->text, "%s", err_text());
    }
    outcome->is_reporter = comm_is_reporter(self);
    outcome->code = code;
    comm_leave(self, code);
    _exit(code == 0 ? 0 : 1);
}

static void start(comm_fixture *self, comm_fixture_body *body, void *user, struct outcome *outcomes)
{
    comm_join_config config = {.is_given = true, .world = self->world};
    config.timeout_seconds = self->timeout_seconds > 0.0 ? self->timeout_seconds : 20.0;
    config.exit_seconds = self->exit_seconds > 0.0 ? self->exit_seconds : 10.0;
    config.report = self->tell;
    config.hub_port = comm_fixture_port();
    config.token = (uint64_t)getpid() << 20 | config.hub_port;
    for (uint32_t r = 0; r < self->world; r++) {
        config.rank = r;
        config.host = self->hosts[r];
        outcomes[r].code = 1;
        fflush(NULL);
        self->pids[r] = fork();
        assert_true(self->pids[r] >= 0);
        if (self->pids[r] == 0)
            be_rank(&config, body, user, &outcomes[r]);
    }
}

static void wait_for_all(comm_fixture *self, void *user)
{
    double began = now_seconds();
    double limit = self->limit_seconds > 0.0 ? self->limit_seconds : 40.0;
    uint32_t left = self->world;
    bool has_ended[COMM_FIXTURE_RANKS_MAX] = {false};
    while (left > 0) {
        bool is_late = now_seconds() - began > limit;
        for (uint32_t r = 0; r < self->world; r++) {
            if (has_ended[r])
                continue;
            if (is_late) {
                print_error("rank %u is still there after %.1f s: killed\n", r, limit);
                kill(self->pids[r], SIGKILL);
            }
            if (waitpid(self->pids[r], &self->statuses[r], is_late ? 0 : WNOHANG) ==
                self->pids[r]) {
                has_ended[r] = true;
                self->seconds[r] = now_seconds() - began;
                left--;
            }
        }
        if (is_late)
            fail_msg("the ranks did not end within %.1f s", limit);
        if (self->watch)
            self->watch(user, self->pids, self->world);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

void comm_fixture_run(comm_fixture *self, comm_fixture_body *body, void *user)
{
    assert_in_range(self->world, 1, COMM_FIXTURE_RANKS_MAX);
    uint64_t bytes = self->world * sizeof(struct outcome);
    struct outcome *outcomes = comm_fixture_shared(bytes);
    start(self, body, user, outcomes);
    wait_for_all(self, user);
    for (uint32_t r = 0; r < self->world; r++) {
        self->codes[r] = outcomes[r].code;
        self->are_tellers[r] = outcomes[r].is_reporter;
        memcpy(self->texts[r], outcomes[r].text, ERR_TEXT_BYTES);
    }
    munmap(outcomes, bytes);
}

void comm_fixture_expect_ok(const comm_fixture *self)
{
    for (uint32_t r = 0; r < self->world; r++)
        if (self->codes[r] != 0 || !WIFEXITED(self->statuses[r]) ||
            WEXITSTATUS(self->statuses[r]) != 0)
            fail_msg("rank %u: code %d, status %#x: %s", r, self->codes[r],
                     (unsigned)self->statuses[r], self->texts[r]);
}
