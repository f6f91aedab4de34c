/* Commands under mpirun or srun: all ranks run one job, and one of them prints. Main thread. */
#ifndef SLUICE_CLI_LAUNCHED_RANKS_H
#define SLUICE_CLI_LAUNCHED_RANKS_H

#include <stdbool.h>

#include "base/error.h"
#include "comm/comm.h"

/* Calls comm_join, which waits for the other ranks for up to `timeout_seconds`; 0: as long as a job
 * waits by default. From here on, ranks other than 0:
 * - print nothing on standard output,
 * - log only warnings, with "rank 2: " before them,
 * - print an error message only if comm_is_reporter chooses them. */
int cli_ranks_join(double timeout_seconds) MUST_CHECK;

/* The ranks that this process has joined; NULL: none, or it has left them. */
comm *cli_ranks(void);

/* Leaves the ranks and returns the code that the command ends with: `rc`, or the failure of another
 * rank that did not come this far. `agreed`: all ranks have the same `rc`. NULL is allowed. */
int cli_ranks_leave(comm *ranks, int rc, bool agreed);

/* Returns ERR_USAGE if a launcher has started several processes of a command that runs as one. */
int cli_ranks_refuse(const char *command) MUST_CHECK;

#endif
