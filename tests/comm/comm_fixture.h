/* Ranks as forked processes, without a launcher, for tests of src/comm and of its users.
 *
 *   comm_fixture_run(4, config, body, user)   forks 4 ranks; each joins and runs body; waits
 *
 * The test's own process is not a rank. The ranks share the test's standard error. After its body a
 * rank leaves with the body's code; the process exits with 0 if that code is 0, else with 1. */
#ifndef SLUICE_TESTS_COMM_FIXTURE_H
#define SLUICE_TESTS_COMM_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/comm.h"

enum { COMM_FIXTURE_RANKS_MAX = 16 };

struct comm_fixture {
    uint32_t world;
    double timeout_seconds, exit_seconds;      /* 0: 20 and 10 */
    const char *hosts[COMM_FIXTURE_RANKS_MAX]; /* NULL: the machine's name */
    void (*tell)(int code);                    /* comm_join_config's */
    double limit_seconds; /* for all to end; 0: 40. Beyond: killed, and failed */
    /* Called in the test's process every few ms while ranks run, to kill or stop some. */
    void (*watch)(void *user, const pid_t *pids, uint32_t world);
    /* The results, by rank: */
    pid_t pids[COMM_FIXTURE_RANKS_MAX];
    int statuses[COMM_FIXTURE_RANKS_MAX];   /* of waitpid */
    double seconds[COMM_FIXTURE_RANKS_MAX]; /* from the start to the rank's end */
    int codes[COMM_FIXTURE_RANKS_MAX]; /* of the body, or of comm_join; 1 if the rank gave none */
    bool are_tellers[COMM_FIXTURE_RANKS_MAX];
    char texts[COMM_FIXTURE_RANKS_MAX]
              [ERR_TEXT_BYTES]; /* of comm_check after the body, else err_text */
};
typedef struct comm_fixture comm_fixture;

/* A body runs in a rank's process: 0, or a failure (< 0) whose text is the thread's. */
typedef int comm_fixture_body(comm *self, void *user);

/* Zeroes the results and runs the ranks. They see `user` as it was at the fork, unless it lies in
 * memory of comm_fixture_shared. */
void comm_fixture_run(comm_fixture *self, comm_fixture_body *body, void *user);

/* Zeroed memory that the ranks share with the test, until the test ends. */
void *comm_fixture_shared(uint64_t bytes);

/* Asserts that every rank's body gave 0 and its process ended with 0. */
void comm_fixture_expect_ok(const comm_fixture *self);

/* A free port of 127.0.0.1. */
uint16_t comm_fixture_port(void);

#endif
