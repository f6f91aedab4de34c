/* sluice report RUN: a page about a run. See cli.h. */
#include "cli/cli.h"
#include "report/report.h"

const cli_command cli_report_command = {
    .name = "report",
    .operand = "RUN",
    .summary = "writes a page about a run: loss, speed, timeline, memory",
    .details =
        "Writes one HTML file that needs no network: loss and learning rate, tokens per second,\n"
        "one step by lane, stalls by unit, bandwidth against ceilings, memory over the step,\n"
        "placement. Reads plan.json, metrics.jsonl and trace.json of the run directory RUN,\n"
        "also while the run goes on. The page names files that are missing. trace.json itself\n"
        "opens in Perfetto (ui.perfetto.dev) and chrome://tracing. Prints the path of the page.",
    .run = cli_report,
};

int cli_report(int argc, char **argv)
{
    const char *named, *path = NULL;
    const cli_option options[] = {
        {.name = "output",
         .type = CLI_TEXT,
         .value = "FILE",
         .help = "where to write the page (default: report.html in RUN)",
         .target = &path},
    };
    int rc = cli_parse(&cli_report_command, options, sizeof options / sizeof options[0], argc, argv,
                       &named);
    if (rc != 0)
        return rc;
    TRY(report_write(named, path));
    if (path)
        printf("%s\n", path);
    else
        printf("%s/report.html\n", named);
    return 0;
}
