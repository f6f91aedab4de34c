/* sluice plan JOB: what a run would need and how fast it would be; touches no drive. See cli.h. */
#include <limits.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "cli/machine_option.h"
#include "config/config.h"
#include "plan/plan_job.h"
#include "setup/plan_figures.h"
#include "setup/summary.h"
#include "train/train.h"

enum { PLAN_ROWS_MAX = 32 };

static struct {
    const char *path; /* of the job, or NULL */
    cli_texts set;
    const char *machine_file, *auto_of;
    struct cli_machine on; /* the machine whose figures the plan uses */
    uint64_t local_world;  /* 0: all ranks */
    bool json;
    const char *max_model;                       /* the name of a family, or NULL */
    const char *table;                           /* or NULL */
    const char *ranks;                           /* "1" or "1,2,4"; NULL: not given */
    uint32_t worlds[PLAN_ROWS_MAX], world_count; /* the numbers in `ranks` */
} asked;

static const cli_option options[] = {
    {"set", CLI_TEXTS, "KEY.PATH=VALUE",
     "overrides a key of the job; JSON or a bare word; repeatable", .target = &asked.set},
    {"auto", CLI_TEXT, "hf", CLI_AUTO_HELP, .target = &asked.auto_of},
    {"ranks", CLI_TEXT, "N[,N...]",
     "plans for N ranks, as mpirun -n N would start them (default: 1, or\n"
     "all of a described machine); of several numbers a table with a row for each",
     .target = &asked.ranks},
    {"ranks-per-host", CLI_COUNT, "M",
     "ranks that share a host, its free memory and its drives\n(default: all of them)",
     .target = &asked.local_world, .min = 1, .max = COMM_RANKS_MAX},
    {"machine", CLI_TEXT, "FILE", CLI_MACHINE_HELP, .target = &asked.machine_file},
    {"max-model", CLI_TEXT, "FAMILY",
     "finds the largest model of a family (gpt, zero-offload, llama) that fits in\n"
     "place of JOB's model, with its sequence length",
     .target = &asked.max_model},
    {"table", CLI_TEXT, "zero|published",
     "takes no JOB. zero: Table 1 and Table 2 of ZeRO from its formulas. published:\n"
     "figures of the papers beside those of this planner, with the reasons for differences",
     .target = &asked.table},
    {"json", CLI_FLAG, NULL, "one JSON object, bytes and seconds (default: tables)",
     .target = &asked.json},
};

/* The line that says, on a terminal, what a long plan is doing. */
static struct {
    cli_progress line;
    plan_watch watch;
    uint32_t ranks; /* that the plan at hand is for */
} screen;

static void show_progress(void *user, const plan_watch *watch)
{
    double seconds;
    (void)user;
    if (!cli_progress_is_late(&screen.line, &seconds))
        return;
    cli_progress_draw(&screen.line, seconds,
                      "plan for %u rank%s: %s, %llu program%s of %.1f million ops so far, %.0f s",
                      screen.ranks, screen.ranks > 1 ? "s" : "",
                      watch->what ? watch->what : "counting", (unsigned long long)watch->step_count,
                      watch->step_count == 1 ? "" : "s", (double)watch->op_count * 1e-6, seconds);
}

/* Keeps freed memory for the next allocation. Each trial of the search fills and frees arrays of
 * the same sizes; given back in between, their pages came anew with every trial, which took a
 * third of the processor time of a large plan. */
static void keep_freed_memory(void)
{
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

static struct setup_plan_options plan_options(uint32_t world)
{
    screen.ranks = world;
    return (struct setup_plan_options){.local_world = (uint32_t)size_min(asked.local_world, world),
                                       .machine = asked.on.figures,
                                       .is_described = asked.on.figures && !asked.on.is_here,
                                       .watch = &screen.watch};
}

static int read_job(uint32_t world, job **out)
{
    return job_read(asked.path, NULL, asked.set.items, asked.set.count, world, out);
}

/* Plans the job for `world` ranks. */
static int plan_for(uint32_t world, struct setup_summary *out)
{
    job *work;
    const struct setup_plan_options how = plan_options(world);
    TRY(read_job(world, &work));
    int rc = train_check_tokens(work);
    if (rc == 0)
        rc = setup_plan_on(work, &how, out);
    cli_progress_clear(&screen.line);
    job_destroy(work);
    return rc;
}

/* Reads "1,2,4" as numbers. */
static int read_worlds(void)
{
    uint32_t largest = 0;
    for (const char *next = asked.ranks;; next++) {
        char *end = NULL;
        unsigned long value = *next >= '0' && *next <= '9' ? strtoul(next, &end, 10) : 0;
        if (value < 1 || value > COMM_RANKS_MAX || (*end != ',' && *end != '\0'))
            return err_set(ERR_USAGE,
                           "plan: --ranks is \"%s\", and must be a whole number from 1 to %d, or "
                           "several with commas between them",
                           asked.ranks, COMM_RANKS_MAX);
        if (asked.world_count == PLAN_ROWS_MAX)
            return err_set(ERR_USAGE, "plan: --ranks lists more than %d numbers", PLAN_ROWS_MAX);
        asked.worlds[asked.world_count++] = (uint32_t)value;
        largest = value > largest ? (uint32_t)value : largest;
        next = end;
        if (*next == '\0')
            break;
    }
    if (asked.local_world > largest)
        return err_set(ERR_USAGE, "--ranks-per-host %u is more than --ranks %u",
                       (unsigned)asked.local_world, largest);
    if (asked.world_count > 1 && strcmp(asked.path, "-") == 0)
        return err_set(ERR_USAGE, "plan: standard input can be read for one number of ranks alone: "
                                  "name a file");
    return 0;
}

/* Prints a row for each number of ranks. If the job cannot run with one of them, that row shows the
 * problem. If it can run with none, the command ends with the first problem's code. */
static int plan_each(void)
{
    static struct cli_ranks_row rows[PLAN_ROWS_MAX]; /* large */
    enum log_level usual = log_get_level();
    bool fits_any = false;
    for (uint32_t i = 0; i < asked.world_count; i++) {
        struct cli_ranks_row *row = &rows[i];
        row->ranks = asked.worlds[i];
        row->code = plan_for(row->ranks, &row->plan);
        if (row->code < 0)
            strncpy(row->problem, err_text(), sizeof row->problem - 1);
        fits_any = fits_any || row->code == 0;
        log_set_level(LOG_QUIET); /* the job's warnings were logged for the first row */
    }
    log_set_level(usual);
    TRY(cli_table_ranks(stdout, rows, asked.world_count, asked.json));
    if (!fits_any)
        return err_set(rows[0].code, "for none of these numbers of ranks; for %u: %s",
                       rows[0].ranks, rows[0].problem);
    return 0;
}

/* Prints the largest model that fits in place of the job's model. */
static int plan_largest(void)
{
    static struct setup_max_model found; /* large */
    job *work;
    uint32_t world = asked.worlds[0];
    const struct setup_plan_options how = plan_options(world);
    if (asked.world_count > 1)
        return err_set(ERR_USAGE, "plan: --max-model takes one number of ranks, not \"%s\"",
                       asked.ranks);
    TRY(read_job(world, &work));
    int rc = setup_max_model(work, asked.max_model, &how, &found);
    cli_progress_clear(&screen.line);
    job_destroy(work);
    return rc < 0 ? rc : cli_print_max_model(stdout, asked.max_model, &found, asked.json);
}

static int plan_one(void)
{
    static struct setup_summary plan; /* large */
    TRY(plan_for(asked.worlds[0], &plan));
    if (asked.json)
        return cli_print_json(stdout, setup_plan_object(&plan));
    cli_print_plan(stdout, &plan);
    return 0;
}

/* Plans the published figures. A text's rows are printed as they are found. */
static int plan_published(void)
{
    static struct setup_published row; /* large */
    const struct setup_claim *before = NULL;
    json_t *list = json_array();
    int rc = 0;
    log_set_level(LOG_QUIET); /* remarks on the jobs of the rows */
    for (uint32_t i = 0; i < setup_published_count() && rc == 0; i++) {
        screen.ranks = setup_published_claim(i)->ranks;
        rc = setup_published_plan(i, &screen.watch, &row);
        cli_progress_clear(&screen.line);
        if (rc == 0 && asked.json)
            json_array_append_new(list, cli_published_object(&row));
        else if (rc == 0)
            cli_print_published(stdout, before, &row);
        before = row.claim;
    }
    if (rc == 0 && asked.json)
        return cli_print_json(stdout, json_pack("{s:o}", "published", list));
    json_decref(list);
    return rc;
}

/* Prints a table that needs no job. */
static int plan_table(void)
{
    bool is_zero = strcmp(asked.table, "zero") == 0;
    if (!is_zero && strcmp(asked.table, "published") != 0)
        return err_set(ERR_USAGE,
                       "plan: --table is \"%s\", and the tables are \"zero\" and \"published\"",
                       asked.table);
    if (asked.path)
        return err_set(ERR_USAGE, "plan: --table %s takes no job, and was given \"%s\"",
                       asked.table, asked.path);
    return is_zero ? cli_table_zero(stdout, asked.json) : plan_published();
}

/* Reads the figures for the plan. For a described machine, the number of ranks defaults to all of
 * its ranks. */
static int read_machine(void)
{
    static char all[24];
    TRY(cli_machine_read(asked.machine_file, false, &asked.on));
    const machine *on = asked.on.figures;
    bool is_described = on && !asked.on.is_here;
    uint32_t hosts = is_described && on->host_count ? on->host_count : 1;
    uint32_t of_host = is_described && on->ranks_per_host ? on->ranks_per_host : 1;
    if (is_described)
        log_info("machine \"%s\" is not this one (%s): the plan uses no facts of this machine",
                 on->name, asked.on.why);
    if (is_described && asked.local_world > of_host)
        return err_set(ERR_USAGE,
                       "--ranks-per-host %u is more than the %u of each host of machine \"%s\"",
                       (unsigned)asked.local_world, of_host, on->name);
    if (asked.ranks)
        return 0;
    if ((uint64_t)hosts * of_host > COMM_RANKS_MAX)
        return err_set(ERR_INPUT,
                       "machine \"%s\" has %u hosts of %u ranks, and at most %d ranks can be "
                       "planned: say how many with --ranks N",
                       on->name, hosts, of_host, COMM_RANKS_MAX);
    snprintf(all, sizeof all, "%u", hosts * of_host);
    asked.ranks = all;
    return 0;
}

static int plan_asked(void)
{
    if (asked.max_model)
        return plan_largest();
    return asked.world_count > 1 ? plan_each() : plan_one();
}

static int plan_start(const cli_texts *operands)
{
    asked.path = operands->count > 0 ? operands->items[0] : NULL;
    if (!asked.table) {
        if (!asked.path)
            return err_set(ERR_USAGE, "plan: JOB is missing; sluice plan --help says more");
        TRY(cli_set_auto(&asked.set, asked.auto_of));
        TRY(read_machine());
        TRY(read_worlds());
    }
    keep_freed_memory();
    cli_progress_begin(&screen.line, NULL, true);
    screen.watch.on_progress = show_progress;
    int rc = asked.table ? plan_table() : plan_asked();
    cli_progress_end(&screen.line);
    return rc;
}

const cli_command cli_plan_command = {
    .name = "plan",
    .operand = "JOB",
    .operands_min = 0,
    .operands_max = 1,
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
    CLI_OPTIONS(options),
    .run = plan_start,
};
