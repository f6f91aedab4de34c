/* sluice profile. See cli.h. */
#include <errno.h>

#include "cli/cli.h"

const cli_command cli_profile_command = {
    .name = "profile",
    .operand = "JOB",
    .summary = "runs a few steps and says where the time goes",
    .run = cli_profile,
};

int cli_profile(int argc, char **argv)
{
    const char *named;
    int rc = cli_parse(&cli_profile_command, NULL, 0, argc, argv, &named);
    return rc != 0 ? rc : err_set(-ENOTSUP, "sluice profile is not built yet");
}
