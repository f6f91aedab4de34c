/* Commands under mpirun or srun: one job on all ranks, one voice. Main thread. */
#ifndef SLUICE_CLI_CLI_RANKS_H
#define SLUICE_CLI_CLI_RANKS_H

#include "config/job.h"
#include <stdbool.h>

#include "base/error.h"
#include "cli/cli.h"
#include "comm/comm.h"

/* comm_join, and from here on ranks other than 0 print nothing on standard output, log warnings
 * alone with "rank 2: " before them, and end without a message unless they are the teller. */
int cli_ranks_join(comm **out) MUST_CHECK;

/* setup_read_job, with what --set gave. */
int cli_ranks_read_job(comm *ranks, const char *path, const cli_texts *set, job **out,
                       bool *fresh) MUST_CHECK;

/* Leaves, with the code that the command ends with: `rc`, or the failure of another rank that did
 * not come this far. `agreed`: all ranks have the same `rc`. NULL is allowed. */
int cli_ranks_leave(comm *ranks, int rc, bool agreed);

/* ERR_USAGE where a launcher has started several processes of a command that is for one. */
int cli_ranks_refuse(const char *command) MUST_CHECK;

#endif
