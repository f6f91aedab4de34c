/* sluice train JOB: trains, and prints a line for each step. See cli.h. */
#include "base/log.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "cli/launched_ranks.h"
#include "cli/machine_option.h"
#include "config/config.h"
#include "setup/summary.h"
#include "train/train.h"

const cli_command cli_train_command = {
    .name = "train",
    .operand = "JOB",
    .list_keys = job_print_keys,
    .summary = "trains the model of a job file",
    .details =
        "Writes metrics.jsonl, plan.json and trace.json to the job's run.dir. JOB \"-\" is\n"
        "standard input.\n"
        "SIGINT, SIGTERM or SIGUSR1 finishes the step, commits and exits with 75; the same\n"
        "command without --fresh then resumes. A second signal stops at once. The run then\n"
        "resumes from its last commit, as after a crash; with run.commit_every 0 it has none.\n"
        "Under mpirun or srun each process is a rank. Rank 0 reads JOB, prints and keeps\n"
        "run.dir. A signal to one rank stops all, and a failure of one ends all.\n"
        "Speeds are in GB/s (10^9 bytes), losses in nats per token.",
    .run = cli_train,
};

struct train_screen {
    struct setup_summary plan;
    bool quiet; /* neither tables nor lines */
};

static void train_show_plan(void *user, const struct setup_summary *plan)
{
    struct train_screen *screen = user;
    screen->plan = *plan;
    if (screen->quiet)
        return;
    cli_print_plan_brief(stdout, plan);
    fputc('\n', stdout);
    fflush(stdout);
}

static void train_show_step(void *user, const struct train_progress *progress)
{
    (void)user;
    live_status status = {
        .step = progress->step,
        .steps = progress->steps,
        .loss = progress->loss,
        .grad_norm = progress->grad_norm,
        .lr = progress->learning_rate,
        .skipped = progress->skipped,
        .step_seconds = progress->seconds,
        .tokens_per_second = progress->tokens_per_second,
        .seconds_left = progress->seconds_left,
    };
    double stall_seconds = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        status.lane_bytes[lane] = progress->lanes[lane].bytes;
        stall_seconds += progress->lanes[lane].stall_seconds;
    }
    if (progress->seconds > 0)
        status.stall_share = stall_seconds / progress->seconds;
    cli_live_step(&status);
}

static void train_show_eval(void *user, const struct train_eval *eval)
{
    (void)user;
    cli_live_note("step %llu  held-out loss %.4f nats per token", (unsigned long long)eval->step,
                  eval->loss);
}

static int train_job(comm *ranks, const job *asked, const machine *on, const char *from, bool fresh,
                     bool json, bool quiet)
{
    bool is_first = comm_get_rank(ranks) == 0;
    static struct train_screen screen; /* large */
    static struct train_summary summary;
    screen.quiet = quiet || json || !is_first;
    struct train_options options = {
        .job = asked,
        .comm = ranks,
        .machine = on,
        .fresh = fresh,
        .from = from,
        .stop = cli_stop_install(is_first ? "stopping when this step is done" : NULL),
        .on_plan = train_show_plan,
        .on_step = train_show_step,
        .on_eval = train_show_eval,
        .user = &screen,
    };
    cli_live_begin(asked->run.log_every, comm_get_world(ranks) > 1, screen.quiet);
    int rc = train_run(&options, &summary);
    cli_live_end();
    if (rc < 0 && rc != ERR_STOPPED)
        return rc;
    int printed = 0;
    if (!is_first)
        return rc;
    if (json)
        printed = cli_summary_json(stdout, &summary);
    else if (!quiet)
        cli_print_summary(stdout, &screen.plan, &summary);
    return rc < 0 ? rc : printed;
}

int cli_train(int argc, char **argv)
{
    cli_texts set = {.count = 0};
    const char *from = NULL, *machine_file = NULL;
    bool fresh = false, json = false, quiet = false;
    const cli_option options[] = {
        {.name = "set",
         .type = CLI_TEXTS,
         .value = "KEY.PATH=VALUE",
         .help = "overrides a key of the job; JSON or a bare word; repeatable",
         .target = &set},
        {.name = "fresh",
         .type = CLI_FLAG,
         .help =
             "the run directory must be new or hold no commit; refuses otherwise\n(default: goes "
             "on from the last commit that it holds)",
         .target = &fresh},
        {.name = "from",
         .type = CLI_TEXT,
         .value = "RUN",
         .help = "a new run begins with the last commit of this run directory, such as one that\n"
                 "run.keep has kept; it stays as it is (default: initial weights)",
         .target = &from},
        {.name = "machine",
         .type = CLI_TEXT,
         .value = "FILE",
         .help = CLI_MACHINE_HELP,
         .target = &machine_file},
        {.name = "json",
         .type = CLI_FLAG,
         .help = "no lines; at the end one JSON object, bytes and seconds\n(default: a line a "
                 "step, tables)",
         .target = &json},
        {.name = "quiet",
         .type = CLI_FLAG,
         .help = "warnings and errors alone (default: a line a step, tables)",
         .target = &quiet},
    };
    const char *path;
    comm *ranks;
    TRY(cli_ranks_join(&ranks));
    int rc = cli_parse(&cli_train_command, options, sizeof options / sizeof options[0], argc, argv,
                       &path);
    if (rc != 0)
        return cli_ranks_leave(ranks, rc, true); /* all ranks have the same arguments */
    if (quiet || json)
        log_set_level(LOG_WARN);

    job *asked;
    bool is_fresh;
    rc = cli_ranks_read_job(ranks, path, &set, &asked, &is_fresh);
    if (rc < 0)
        return cli_ranks_leave(ranks, rc, true);
    const machine *on;
    rc = cli_machine_share(ranks, machine_file, &on);
    if (rc < 0) {
        job_destroy(asked);
        return cli_ranks_leave(ranks, rc, true);
    }
    rc = train_job(ranks, asked, on, from, fresh || is_fresh, json, quiet);
    job_destroy(asked);
    return cli_ranks_leave(ranks, rc, rc == ERR_STOPPED);
}
