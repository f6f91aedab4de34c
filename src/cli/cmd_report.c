/* sluice report. See cli.h. */
#include <errno.h>

#include "cli/cli.h"

const cli_command cli_report_command = {
    .name = "report",
    .operand = "RUN",
    .summary = "writes a page about a run: loss, speed, timeline, memory",
    .run = cli_report,
};

int cli_report(int argc, char **argv)
{
    const char *named;
    int rc = cli_parse(&cli_report_command, NULL, 0, argc, argv, &named);
    return rc != 0 ? rc : err_set(-ENOTSUP, "sluice report is not built yet");
}
