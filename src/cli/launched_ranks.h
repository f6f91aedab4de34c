/* Commands under mpirun or srun: all ranks run one job, and one of them prints. Main thread. */
#ifndef SLUICE_CLI_LAUNCHED_RANKS_H
#define SLUICE_CLI_LAUNCHED_RANKS_H

#include "config/job.h"
#include <stdbool.h>

#include "base/error.h"
#include "cli/cli.h"
#include "comm/comm.h"

/* Calls comm_join. From here on, ranks other than 0:
 * - print nothing on standard output,
 * - log only warnings, with "rank 2: " before them,
 * - print an error message only if comm_is_reporter chooses them. */
int cli_ranks_join(comm **out) MUST_CHECK;

/* Calls setup_read_job with the values of --set. */
int cli_ranks_read_job(comm *ranks, const char *path, const cli_texts *set, job **out,
                       bool *fresh) MUST_CHECK;

/* Leaves the ranks and returns the code that the command ends with: `rc`, or the failure of another
 * rank that did not come this far. `agreed`: all ranks have the same `rc`. NULL is allowed. */
int cli_ranks_leave(comm *ranks, int rc, bool agreed);

/* Returns ERR_USAGE if a launcher has started several processes of a command that runs as one. */
int cli_ranks_refuse(const char *command) MUST_CHECK;

#endif
