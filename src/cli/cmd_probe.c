/* sluice probe. See cli.h. */
#include <errno.h>

#include "cli/cli.h"

const cli_command cli_probe_command = {
    .name = "probe",
    .operand = "",
    .summary = "measures this machine and writes machine.json",
    .run = cli_probe,
};

int cli_probe(int argc, char **argv)
{
    const char *named;
    int rc = cli_parse(&cli_probe_command, NULL, 0, argc, argv, &named);
    return rc != 0 ? rc : err_set(-ENOTSUP, "sluice probe is not built yet");
}
