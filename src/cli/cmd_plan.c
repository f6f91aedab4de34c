/* sluice plan JOB: what a run would need and how fast it would be; touches no drive. See cli.h. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "cli/launched_ranks.h"
#include "cli/machine_option.h"
#include "config/config.h"
#include "setup/plan_figures.h"
#include "setup/summary.h"

const cli_command cli_plan_command = {
    .name = "plan",
    .operand = "JOB",
    .is_optional = true,
    .list_keys = job_print_keys,
    .summary = "says where a job's states go, what it needs, and how long a step takes",
    .details =
        "Compiles the job's steps and simulates them. Writes nothing and allocates no arena.\n"
        "Exit status 3 if the job does not fit its budgets. JOB \"-\" is standard input.\n"
        "With several ranks the figures are of each rank, unless they name hosts or all ranks;\n"
        "tokens and speed are of all ranks. Not under mpirun.\n"
        "Lanes and resources are of the mean step, which includes the share of a commit, 1 /\n"
        "run.commit_every. B/parameter: bytes of a rank for each parameter of the whole model.\n"
        "T*: the number of tokens of a rank's step from which a resource's work is hidden by\n"
        "computing.",
    .run = cli_plan,
};

enum { PLAN_ROWS_MAX = 32 };

/* The arguments of the command. */
struct plan_request {
    const char *path;
    cli_texts set;
    struct cli_machine on; /* the machine whose figures the plan uses */
    uint64_t local_world;  /* 0: all ranks */
    bool json;
    const char *max_model;                       /* the name of a family, or NULL */
    const char *table;                           /* or NULL */
    const char *ranks;                           /* "1" or "1,2,4"; NULL: not given */
    uint32_t worlds[PLAN_ROWS_MAX], world_count; /* the numbers in `ranks` */
};
typedef struct plan_request plan_request;

/* Plans the job for `world` ranks. */
static int plan_for(const plan_request *asked, uint32_t world, struct setup_summary *out)
{
    job *work = NULL;
    struct setup_plan_options options = {.local_world = (uint32_t)asked->local_world,
                                         .machine = asked->on.figures,
                                         .is_described = asked->on.figures && !asked->on.is_here};
    if (options.local_world > world)
        options.local_world = world;
    TRY(job_read_ranks(asked->path, asked->set.items, asked->set.count, world, &work));
    int rc = setup_plan_on(work, &options, out);
    job_destroy(work);
    return rc;
}

/* Reads "1,2,4" as numbers. */
static int read_worlds(plan_request *asked)
{
    uint32_t largest = 0;
    for (const char *next = asked->ranks;; next++) {
        char *end = NULL;
        unsigned long value = *next >= '0' && *next <= '9' ? strtoul(next, &end, 10) : 0;
        if (value < 1 || value > COMM_RANKS_MAX || (*end != ',' && *end != '\0'))
            return err_set(ERR_USAGE,
                           "plan: --ranks is \"%s\", and must be a whole number from 1 to %d, or "
                           "several with commas between them",
                           asked->ranks, COMM_RANKS_MAX);
        if (asked->world_count == PLAN_ROWS_MAX)
            return err_set(ERR_USAGE, "plan: --ranks lists more than %d numbers", PLAN_ROWS_MAX);
        asked->worlds[asked->world_count++] = (uint32_t)value;
        largest = value > largest ? (uint32_t)value : largest;
        next = end;
        if (*next == '\0')
            break;
    }
    if (asked->local_world > largest)
        return err_set(ERR_USAGE, "--ranks-per-host %u is more than --ranks %u",
                       (unsigned)asked->local_world, largest);
    if (asked->world_count > 1 && strcmp(asked->path, "-") == 0)
        return err_set(ERR_USAGE, "plan: standard input can be read for one number of ranks alone: "
                                  "name a file");
    return 0;
}

/* Prints a row for each number of ranks. If the job cannot run with one of them, that row shows the
 * problem. If it can run with none, the command ends with the first problem's code. */
static int plan_each(const plan_request *asked)
{
    static struct cli_ranks_row rows[PLAN_ROWS_MAX]; /* large */
    enum log_level usual = log_get_level();
    int rc = 0;
    bool fits_any = false;
    for (uint32_t i = 0; i < asked->world_count; i++) {
        struct cli_ranks_row *row = &rows[i];
        row->ranks = asked->worlds[i];
        row->code = plan_for(asked, row->ranks, &row->plan);
        if (row->code < 0)
            strncpy(row->problem, err_text(), sizeof row->problem - 1);
        fits_any = fits_any || row->code == 0;
        log_set_level(LOG_QUIET); /* the job's warnings were logged for the first row */
    }
    log_set_level(usual);
    TRY_GOTO(rc, cli_table_ranks(stdout, rows, asked->world_count, asked->json), done);
    if (!fits_any)
        rc = err_set(rows[0].code, "for none of these numbers of ranks; for %u: %s", rows[0].ranks,
                     rows[0].problem);
done:
    return rc;
}

/* Prints the largest model that fits in place of the job's model. */
static int plan_largest(const plan_request *asked)
{
    static struct setup_max_model found; /* large */
    job *work = NULL;
    uint32_t world = asked->worlds[0];
    const struct setup_plan_options options = {.local_world = (uint32_t)asked->local_world,
                                               .machine = asked->on.figures,
                                               .is_described =
                                                   asked->on.figures && !asked->on.is_here};
    if (asked->world_count > 1)
        return err_set(ERR_USAGE, "plan: --max-model takes one number of ranks, not \"%s\"",
                       asked->ranks);
    TRY(job_read_ranks(asked->path, asked->set.items, asked->set.count, world, &work));
    int rc = setup_max_model(work, asked->max_model, &options, &found);
    job_destroy(work);
    return rc < 0 ? rc : cli_print_max_model(stdout, asked->max_model, &found, asked->json);
}

static int plan_one(const plan_request *asked)
{
    static struct setup_summary plan; /* large */
    TRY(plan_for(asked, asked->worlds[0], &plan));
    if (asked->json)
        return cli_print_json(stdout, setup_plan_object(&plan));
    cli_print_plan(stdout, &plan);
    return 0;
}

/* Prints a table that needs no job. */
static int plan_table(const plan_request *asked)
{
    if (strcmp(asked->table, "zero") != 0)
        return err_set(ERR_USAGE, "plan: --table is \"%s\", and the only table is \"zero\"",
                       asked->table);
    if (asked->path)
        return err_set(ERR_USAGE, "plan: --table zero takes no job, and was given \"%s\"",
                       asked->path);
    return cli_table_zero(stdout, asked->json);
}

/* Reads the figures for the plan. For a described machine, the number of ranks defaults to all of
 * its ranks. */
static int read_machine(plan_request *asked, const char *machine_file)
{
    static char all[24];
    TRY(cli_machine_read(machine_file, false, &asked->on));
    const machine *on = asked->on.figures;
    bool is_described = on && !asked->on.is_here;
    uint32_t hosts = is_described && on->host_count ? on->host_count : 1;
    uint32_t of_host = is_described && on->ranks_per_host ? on->ranks_per_host : 1;
    if (is_described)
        log_info("machine \"%s\" is not this one (%s): the plan uses no facts of this machine",
                 on->name, asked->on.why);
    if (is_described && asked->local_world > of_host)
        return err_set(ERR_USAGE,
                       "--ranks-per-host %u is more than the %u of each host of machine \"%s\"",
                       (unsigned)asked->local_world, of_host, on->name);
    if (asked->ranks)
        return 0;
    if ((uint64_t)hosts * of_host > COMM_RANKS_MAX)
        return err_set(ERR_INPUT,
                       "machine \"%s\" has %u hosts of %u ranks, and at most %d ranks can be "
                       "planned: say how many with --ranks N",
                       on->name, hosts, of_host, COMM_RANKS_MAX);
    snprintf(all, sizeof all, "%u", hosts * of_host);
    asked->ranks = all;
    return 0;
}

int cli_plan(int argc, char **argv)
{
    plan_request asked = {.ranks = NULL};
    const char *machine_file = NULL;
    const cli_option options[] = {
        {.name = "set",
         .type = CLI_TEXTS,
         .value = "KEY.PATH=VALUE",
         .help = "overrides a key of the job; JSON or a bare word; repeatable",
         .target = &asked.set},
        {.name = "ranks",
         .type = CLI_TEXT,
         .value = "N[,N...]",
         .help = "plans for N ranks, as mpirun -n N would start them (default: 1, or\n"
                 "all of a described machine); of several numbers a table with a row for each",
         .target = &asked.ranks},
        {.name = "ranks-per-host",
         .type = CLI_COUNT,
         .value = "M",
         .help = "ranks that share a host, its free memory and its drives\n(default: all of them)",
         .min = 1,
         .max = COMM_RANKS_MAX,
         .target = &asked.local_world},
        {.name = "machine",
         .type = CLI_TEXT,
         .value = "FILE",
         .help = CLI_MACHINE_HELP,
         .target = &machine_file},
        {.name = "max-model",
         .type = CLI_TEXT,
         .value = "FAMILY",
         .help = "finds the largest model of a family (gpt, zero-offload, llama) that fits in\n"
                 "place of JOB's model, with its sequence length",
         .target = &asked.max_model},
        {.name = "table",
         .type = CLI_TEXT,
         .value = "zero",
         .help = "prints Table 1 and Table 2 of ZeRO from its formulas; takes no JOB",
         .target = &asked.table},
        {.name = "json",
         .type = CLI_FLAG,
         .help = "one JSON object, bytes and seconds (default: tables)",
         .target = &asked.json},
    };
    int rc = cli_parse(&cli_plan_command, options, sizeof options / sizeof options[0], argc, argv,
                       &asked.path);
    if (rc != 0)
        return rc;

    TRY(cli_ranks_refuse("plan"));
    if (asked.table)
        return plan_table(&asked);
    if (!asked.path)
        return err_set(ERR_USAGE, "plan: JOB is missing; sluice plan --help says more");
    TRY(read_machine(&asked, machine_file));
    TRY(read_worlds(&asked));
    if (asked.max_model)
        return plan_largest(&asked);
    return asked.world_count > 1 ? plan_each(&asked) : plan_one(&asked);
}
