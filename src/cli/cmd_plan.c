/* sluice plan JOB: what a run would need and how fast it would be; touches no drive. See cli.h. */
#include "cli/cli.h"
#include "cli/cli_report.h"

const cli_command cli_plan_command = {
    .name = "plan",
    .operand = "JOB",
    .list_keys = train_list_keys,
    .summary = "says where a job's states go, what it needs, and how long a step takes",
    .details =
        "Compiles the job's steps and simulates them. Writes nothing and allocates no arena.\n"
        "Exit status 3 when the job does not fit its budgets. JOB \"-\" is standard input.",
    .run = cli_plan,
};

int cli_plan(int argc, char **argv)
{
    cli_texts set = {.count = 0};
    bool json = false;
    const cli_option options[] = {
        {.name = "set",
         .type = CLI_TEXTS,
         .value = "KEY.PATH=VALUE",
         .help = "overrides a key of the job; JSON or a bare word; repeatable",
         .target = &set},
        {.name = "json",
         .type = CLI_FLAG,
         .help = "one JSON object, bytes and seconds (default: tables)",
         .target = &json},
    };
    const char *path;
    int rc = cli_parse(&cli_plan_command, options, sizeof options / sizeof options[0], argc, argv,
                       &path);
    if (rc != 0)
        return rc;

    job *asked = NULL;
    TRY(job_read(path, set.items, set.count, &asked));
    static struct plan_summary plan; /* large */
    TRY_GOTO(rc, train_plan(asked, 0, &plan), done);
    if (json)
        rc = cli_plan_json(stdout, &plan);
    else
        cli_print_plan(stdout, &plan);
done:
    job_destroy(asked);
    return rc;
}
