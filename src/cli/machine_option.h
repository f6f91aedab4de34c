/* --machine FILE of the commands that plan: whose figures a plan takes. Main thread. */
#ifndef SLUICE_CLI_CLI_MACHINE_H
#define SLUICE_CLI_CLI_MACHINE_H

#include <stdbool.h>

#include "base/error.h"
#include "comm/comm.h"
#include "config/machine.h"

/* What the option's help says, alike in all commands. */
#define CLI_MACHINE_HELP                                                                           \
    "figures of the machine: a file, a name in configs/clusters, or \"none\" for\nthe plan's "     \
    "defaults (default: machine.json here, where it is of this host)"

struct cli_machine {
    const machine *figures; /* static storage, until the next call; NULL: the plan's defaults */
    bool is_here;           /* measured on this host; else `why` says what differs */
    char why[320];
};

/* `asked`: the option's value; NULL: not given, then ./machine.json counts where it was measured on
 * this host, else it is ignored with a warning. `is_one_of_many`: this process may have a part of
 * the host's cores. Errors of machine_read for a file that was asked for. */
int cli_machine_read(const char *asked, bool is_one_of_many, struct cli_machine *out) MUST_CHECK;

/* The same on rank 0, for all ranks; warns where a file that was asked for is not of this host.
 * *out: static storage, or NULL. Wrong files are refused on all ranks alike: then the comm is in
 * order. */
int cli_machine_share(comm *ranks, const char *asked, const machine **out) MUST_CHECK;

#endif
