/* The option --machine FILE of the commands that plan: it says which figures a plan uses. Main
 * thread. */
#ifndef SLUICE_CLI_MACHINE_OPTION_H
#define SLUICE_CLI_MACHINE_OPTION_H

#include <stdbool.h>

#include "base/error.h"
#include "comm/comm.h"
#include "config/machine.h"

/* The option's help, the same in all commands. */
#define CLI_MACHINE_HELP                                                                           \
    "figures of the machine: a file, a name in configs/clusters.json, or \"none\"\nfor the "       \
    "plan's defaults (default: machine.json here, where it is of this host)"

struct cli_machine {
    const machine *figures; /* static storage, until the next call; NULL: the plan's own defaults */
    bool is_here;           /* measured on this host; if not, `why` says what differs */
    char why[320];
};

/* Reads the machine file that the option's value `asked` names. NULL: the option is not given; then
 * ./machine.json is used if it was measured on this host, and ignored with a warning if not.
 * `is_one_of_many`: this process may have only a part of the host's cores. Returns the errors of
 * machine_read for a file that was asked for. */
int cli_machine_read(const char *asked, bool is_one_of_many, struct cli_machine *out) MUST_CHECK;

/* Does the same on rank 0 and sends the figures to all ranks. Warns if a file that was asked for
 * was not measured on this host. *out: static storage, or NULL. If the file is wrong, all ranks
 * return the same error, and the comm can still be used. */
int cli_machine_share(comm *ranks, const char *asked, const machine **out) MUST_CHECK;

#endif
