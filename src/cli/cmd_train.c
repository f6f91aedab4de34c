/* sluice train JOB: trains, and prints a line for each step. See cli.h. */
#include "base/log.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "cli/launched_ranks.h"
#include "cli/machine_option.h"
#include "config/config.h"
#include "setup/summary.h"
#include "train/train.h"

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
    cli_live_step(progress);
}

static void train_show_eval(void *user, const struct train_eval *eval)
{
    (void)user;
    cli_live_note("step %llu  held-out loss %.4f nats per token", (unsigned long long)eval->step,
                  eval->loss);
}

static struct {
    cli_texts set;
    const char *from, *machine_file, *auto_of;
    bool fresh, json, quiet;
} asked;

static const cli_option options[] = {
    {"set", CLI_TEXTS, "KEY.PATH=VALUE",
     "overrides a key of the job; JSON or a bare word; repeatable", .target = &asked.set},
    {"auto", CLI_TEXT, "hf", CLI_AUTO_HELP, .target = &asked.auto_of},
    {"fresh", CLI_FLAG, NULL,
     "the run directory must be new or hold no commit; refuses otherwise\n(default: goes "
     "on from the last commit that it holds)",
     .target = &asked.fresh},
    {"from", CLI_TEXT, "RUN",
     "a new run begins with the last commit of this run directory, such as one that\n"
     "run.keep has kept; it stays as it is (default: initial weights)",
     .target = &asked.from},
    {"machine", CLI_TEXT, "FILE", CLI_MACHINE_HELP, .target = &asked.machine_file},
    {"json", CLI_FLAG, NULL,
     "no lines; at the end one JSON object, bytes and seconds\n(default: a line a step, tables)",
     .target = &asked.json},
    {"quiet", CLI_FLAG, NULL, "warnings and errors alone (default: a line a step, tables)",
     .target = &asked.quiet},
};

static int train_job(const job *work, const machine *on, bool fresh)
{
    bool is_first = comm_get_rank(cli_ranks()) == 0;
    static struct train_screen screen; /* large */
    static struct train_summary summary;
    screen.quiet = asked.quiet || asked.json || !is_first;
    struct train_options how = {
        .job = work,
        .comm = cli_ranks(),
        .machine = on,
        .fresh = fresh,
        .from = asked.from,
        .stop = cli_stop_install(is_first ? "stopping when this step is done" : NULL),
        .on_plan = train_show_plan,
        .on_step = train_show_step,
        .on_eval = train_show_eval,
        .user = &screen,
    };
    cli_live_begin(work->run.log_every, comm_get_world(cli_ranks()) > 1, screen.quiet);
    int rc = train_run(&how, &summary);
    cli_live_end();
    if (rc < 0 && rc != ERR_STOPPED)
        return rc;
    int printed = 0;
    if (!is_first)
        return rc;
    if (asked.json)
        printed = cli_summary_json(stdout, &summary);
    else if (!asked.quiet)
        cli_print_summary(stdout, &screen.plan, &summary);
    return rc < 0 ? rc : printed;
}

static double train_join_seconds(const cli_texts *operands)
{
    return job_peek_timeout(operands->items[0], NULL, asked.set.items, asked.set.count);
}

static int train_start(const cli_texts *operands)
{
    if (asked.quiet || asked.json)
        log_set_level(LOG_WARN);
    job *work;
    bool is_fresh;
    const machine *on;
    TRY(cli_set_auto(&asked.set, asked.auto_of));
    TRY(setup_read_job(cli_ranks(), operands->items[0], NULL, asked.set.items, asked.set.count,
                       &work, &is_fresh));
    int rc = cli_machine_share(cli_ranks(), asked.machine_file, &on);
    if (rc == 0) {
        rc = train_job(work, on, asked.fresh || is_fresh);
        rc = cli_ranks_leave(cli_ranks(), rc, rc == ERR_STOPPED);
    }
    job_destroy(work);
    return rc;
}

const cli_command cli_train_command = {
    .name = "train",
    .operand = "JOB",
    .operands_min = 1,
    .operands_max = 1,
    .launch = CLI_RANKS,
    .computes = true,
    .list_keys = job_print_keys,
    .summary = "trains the model of a job file",
    .details =
        "Writes metrics.jsonl, plan.json and trace.json to the job's run.dir. JOB \"-\" is\n"
        "standard input.\n"
        "SIGINT, SIGTERM, SIGUSR1 or SIGHUP (the terminal closes; not under nohup) finishes the\n"
        "step, commits and exits with 75; the same command without --fresh then resumes. A\n"
        "second signal other than SIGHUP stops at once. The run then resumes\n"
        "from its last commit, as after a crash; with run.commit_every 0 it has none.\n"
        "Under mpirun or srun each process is a rank. Rank 0 reads JOB, prints and keeps\n"
        "run.dir. A signal to one rank stops all, and a failure of one ends all.\n"
        "Speeds are in GB/s (10^9 bytes), losses in nats per token.",
    CLI_OPTIONS(options),
    .join_seconds = train_join_seconds,
    .run = train_start,
};
