/* Which rank this process is, and agreement between the ranks of a run.
 *
 * A run of one rank has no comm. Every function here works for both: with one rank it returns at
 * once, so that callers need no special case. With several ranks each function but ranks_name_host
 * is collective: all ranks call it in the same order, on the thread that runs the training loop. It
 * blocks until all have called it, or until comm.timeout_seconds say that one is gone. */
#ifndef SLUICE_COMM_RANKS_H
#define SLUICE_COMM_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "comm/comm.h"

struct ranks {
    comm *comm;                       /* borrowed; NULL: one rank */
    uint32_t rank, world;             /* of the run */
    uint32_t local_rank, local_world; /* among the ranks of this host */
    bool shares_cores;                /* another rank of this host may run on the same cores */
    char host[COMM_HOST_BYTES];       /* this host's name */
};

/* Fills self. `members` is borrowed; NULL or a comm of one member: one rank. */
int ranks_init(struct ranks *self, comm *members) MUST_CHECK;
void ranks_name_host(struct ranks *self); /* not collective */

/* Returns `code` if it is negative on this rank. If another rank failed, returns that rank's code
 * and sets its message. Otherwise returns 0. `what` names the point in messages. */
int ranks_agree(const struct ranks *self, const char *what, int code) MUST_CHECK;
/* Tells the other ranks that this rank has failed with `code` and this thread's message. Not
 * collective. */
void ranks_fail_all(const struct ranks *self, int code);
int ranks_barrier(const struct ranks *self, const char *what) MUST_CHECK;
int ranks_meet(const struct ranks *self, const char *what) MUST_CHECK; /* comm_meet */
int ranks_end(const struct ranks *self) MUST_CHECK;                    /* comm_end */
/* data: [bytes] rank 0's bytes go to all. */
int ranks_from_rank0(const struct ranks *self, const char *what, void *data,
                     uint64_t bytes) MUST_CHECK;
/* *value becomes true only if it is true on all ranks. */
int ranks_all_true(const struct ranks *self, const char *what, bool *value) MUST_CHECK;

#endif
