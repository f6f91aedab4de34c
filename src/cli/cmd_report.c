/* sluice report RUN: a page about a run. See cli.h. */
#include "cli/cli.h"
#include "report/report.h"

static const char *output;

static const cli_option options[] = {
    {"output", CLI_TEXT, "FILE", "where to write the page (default: report.html in RUN)",
     .target = &output},
};

static int report_run(const cli_texts *operands)
{
    TRY(report_write(operands->items[0], output));
    if (output)
        printf("%s\n", output);
    else
        printf("%s/report.html\n", operands->items[0]);
    return 0;
}

const cli_command cli_report_command = {
    .name = "report",
    .operand = "RUN",
    .operands_min = 1,
    .operands_max = 1,
    .launch = CLI_EACH_ALONE,
    .summary = "writes a page about a run: loss, speed, timeline, memory",
    .details =
        "Writes one HTML file that needs no network: loss and learning rate, tokens per second,\n"
        "one step by lane, stalls by unit, bandwidth against ceilings, memory over the step,\n"
        "placement. Reads plan.json, metrics.jsonl and trace.json of the run directory RUN,\n"
        "also while the run goes on. The page names files that are missing. trace.json itself\n"
        "opens in Perfetto (ui.perfetto.dev) and chrome://tracing. Prints the path of the page.",
    CLI_OPTIONS(options),
    .run = report_run,
};
