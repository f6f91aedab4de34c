/* sluice plan JOB: what a run would need and how fast it would be; touches no drive. See cli.h. */
#include "cli/cli.h"
#include "cli/cli_ranks.h"
#include "cli/cli_report.h"

const cli_command cli_plan_command = {
    .name = "plan",
    .operand = "JOB",
    .list_keys = train_list_keys,
    .summary = "says where a job's states go, what it needs, and how long a step takes",
    .details =
        "Compiles the job's steps and simulates them. Writes nothing and allocates no arena.\n"
        "Exit status 3 when the job does not fit its budgets. JOB \"-\" is standard input.\n"
        "Of several ranks the figures are of each; tokens and speed are of all. Not under mpirun.",
    .run = cli_plan,
};

int cli_plan(int argc, char **argv)
{
    cli_texts set = {.count = 0};
    uint64_t world = 1, local_world = 0;
    bool json = false;
    const cli_option options[] = {
        {.name = "set",
         .type = CLI_TEXTS,
         .value = "KEY.PATH=VALUE",
         .help = "overrides a key of the job; JSON or a bare word; repeatable",
         .target = &set},
        {.name = "ranks",
         .type = CLI_COUNT,
         .value = "N",
         .help = "plans for N ranks, as mpirun -n N would start them (default: 1)",
         .min = 1,
         .max = COMM_RANKS_MAX,
         .target = &world},
        {.name = "ranks-per-host",
         .type = CLI_COUNT,
         .value = "M",
         .help = "ranks that share a host, its free memory and its drives\n(default: all of them)",
         .min = 1,
         .max = COMM_RANKS_MAX,
         .target = &local_world},
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

    TRY(cli_ranks_refuse("plan"));
    if (local_world > world)
        return err_set(ERR_USAGE, "--ranks-per-host %u is more than --ranks %u",
                       (unsigned)local_world, (unsigned)world);
    job *asked = NULL;
    TRY(job_read_ranks(path, set.items, set.count, (uint32_t)world, &asked));
    static struct plan_summary plan; /* large */
    TRY_GOTO(rc, train_plan(asked, (uint32_t)local_world, &plan), done);
    if (json)
        rc = cli_plan_json(stdout, &plan);
    else
        cli_print_plan(stdout, &plan);
done:
    job_destroy(asked);
    return rc;
}
