/* sluice profile JOB: a few real steps, and where their time goes. See cli.h. */
#include "base/log.h"
#include "cli/cli.h"
#include "cli/cli_profile.h"
#include "cli/launched_ranks.h"
#include "cli/machine_option.h"
#include "config/config.h"
#include "train/train.h"

const cli_command cli_profile_command = {
    .name = "profile",
    .operand = "JOB",
    .list_keys = job_print_keys,
    .summary = "runs a few steps and says where the time goes",
    .details =
        "Measures steady steps of the job, without commits, from fresh weights. It keeps\n"
        "nothing and leaves no files; only kill -9 leaves a directory sluice-profile-* of some\n"
        "KB where the run's directory would be. Compares bytes and busy time of each lane with\n"
        "the plan, names the units that were waited for and the resource that limits the step,\n"
        "and simulates what a change of one setting would give at the measured speeds. A job\n"
        "without data.train gets random tokens. JOB \"-\" is standard input. Not under mpirun.\n"
        "--as-rank measures one rank of many. Its reads, writes, copies, updates and computing\n"
        "are real, but the data of the other ranks is not, so its losses mean nothing. Speeds\n"
        "are in GB/s (10^9 bytes).",
    .run = cli_profile,
};

struct profile_screen {
    bool quiet;
    bool is_pretended; /* the losses have no meaning */
};

static void profile_show_step(void *user, const struct train_progress *progress)
{
    const struct profile_screen *screen = user;
    char left[CLI_DURATION_BYTES];
    if (screen->quiet)
        return;
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
    if (screen->is_pretended) {
        cli_live_note("step %llu/%llu  %.3f s  read %.2f write %.2f GB/s  left %s",
                      (unsigned long long)progress->step, (unsigned long long)progress->steps,
                      progress->seconds,
                      (double)progress->lanes[LANE_READ].bytes / progress->seconds / 1e9,
                      (double)progress->lanes[LANE_WRITE].bytes / progress->seconds / 1e9,
                      cli_duration(progress->seconds_left, left));
        return;
    }
    double stall_seconds = 0;
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        status.lane_bytes[kind] = progress->lanes[kind].bytes;
        stall_seconds += progress->lanes[kind].stall_seconds;
    }
    if (progress->seconds > 0)
        status.stall_share = stall_seconds / progress->seconds;
    cli_live_step(&status);
}

/* Checks the options that need --as-rank. */
static int profile_check(uint64_t rank, uint64_t world, uint64_t scale_down, double comm_speed,
                         bool only_transfers)
{
    if (world > 0 && rank == UINT64_MAX)
        return err_set(ERR_USAGE, "--of %u needs --as-rank R, from 0 to %u", (unsigned)world,
                       (unsigned)world - 1);
    if (world == 0 && rank != UINT64_MAX)
        return err_set(ERR_USAGE, "--as-rank %u needs --of N, the number of ranks", (unsigned)rank);
    if (world > 0 && rank >= world)
        return err_set(ERR_USAGE, "--as-rank %u is none of --of %u ranks, which count from 0",
                       (unsigned)rank, (unsigned)world);
    if (world == 0 && (scale_down > 1 || comm_speed > 0 || only_transfers))
        return err_set(ERR_USAGE, "%s is for one rank of several: it needs --as-rank R --of N",
                       scale_down > 1   ? "--scale-down"
                       : comm_speed > 0 ? "--comm-speed"
                                        : "--transfers-only");
    return 0;
}

static int profile_job(struct profile_options *options, bool json, bool quiet)
{
    static struct profile_summary summary; /* large */
    struct profile_screen screen = {.quiet = quiet || json, .is_pretended = options->of_ranks > 0};
    options->stop = cli_stop_install("stopping when this step is done; nothing is kept");
    options->on_step = profile_show_step;
    options->user = &screen;
    cli_live_begin(1, false, screen.quiet);
    int rc = profile_run(options, &summary);
    cli_live_end();
    if (rc < 0)
        return rc;
    if (json)
        return cli_profile_json(stdout, &summary);
    cli_print_profile(stdout, &summary);
    return 0;
}

int cli_profile(int argc, char **argv)
{
    cli_texts set = {.count = 0};
    const char *machine_path = NULL;
    uint64_t steps = 0, rank = UINT64_MAX, world = 0, scale_down = 1;
    double comm_speed = 0;
    bool json = false, quiet = false, only_transfers = false, no_advice = false;
    const cli_option options[] = {
        {.name = "set",
         .type = CLI_TEXTS,
         .value = "KEY.PATH=VALUE",
         .help = "overrides a key of the job; JSON or a bare word; repeatable",
         .target = &set},
        {.name = "machine",
         .type = CLI_TEXT,
         .value = "FILE",
         .help = CLI_MACHINE_HELP,
         .target = &machine_path},
        {.name = "steps",
         .type = CLI_COUNT,
         .value = "N",
         .help = "steps to measure, after one or two that are not\n(default: half a minute of "
                 "them, 3 to 20)",
         .min = 1,
         .max = PROFILE_STEPS_MAX,
         .target = &steps},
        {.name = "as-rank",
         .type = CLI_COUNT,
         .value = "R",
         .help = "does the work of rank R of --of N ranks, from 0, alone on this host",
         .min = 0,
         .max = COMM_RANKS_MAX - 1,
         .target = &rank},
        {.name = "of",
         .type = CLI_COUNT,
         .value = "N",
         .help = "number of ranks for --as-rank",
         .min = 1,
         .max = COMM_RANKS_MAX,
         .target = &world},
        {.name = "comm-speed",
         .type = CLI_REAL,
         .value = "GB/S",
         .help = "with --as-rank: speed at which collectives send, 10^9 bytes a second\n(default: "
                 "the machine's figure)",
         .min = 0.001,
         .max = 1e6,
         .target = &comm_speed},
        {.name = "scale-down",
         .type = CLI_COUNT,
         .value = "K",
         .help = "with --as-rank: only one K-th of the model's blocks, each as it is\n(default: 1)",
         .min = 1,
         .max = 1e6,
         .target = &scale_down},
        {.name = "transfers-only",
         .type = CLI_FLAG,
         .help = "with --as-rank: forward and backward take the time that --machine says, or none",
         .target = &only_transfers},
        {.name = "no-advice",
         .type = CLI_FLAG,
         .help = "does not simulate other settings (default: up to half a minute of that)",
         .target = &no_advice},
        {.name = "json",
         .type = CLI_FLAG,
         .help = "one JSON object, bytes and seconds (default: a line a step, tables)",
         .target = &json},
        {.name = "quiet",
         .type = CLI_FLAG,
         .help = "no line a step (default: one)",
         .target = &quiet},
    };
    const char *path;
    int rc = cli_parse(&cli_profile_command, options, sizeof options / sizeof options[0], argc,
                       argv, &path);
    if (rc != 0)
        return rc;
    TRY(profile_check(rank, world, scale_down, comm_speed, only_transfers));
    TRY(cli_ranks_refuse("profile"));
    if (quiet || json)
        log_set_level(LOG_WARN);
    struct cli_machine on;
    TRY(cli_machine_read(machine_path, false, &on));
    job *asked = NULL;
    TRY(job_read_ranks(path, set.items, set.count, world ? (uint32_t)world : 1, &asked));
    struct profile_options run = {
        .job = asked,
        .machine = on.figures,
        .steps = steps,
        .as_rank = world ? (uint32_t)rank : 0,
        .of_ranks = (uint32_t)world,
        .comm_bytes_per_second = comm_speed * 1e9,
        .scale_down = (uint32_t)scale_down,
        .only_transfers = only_transfers,
        .no_advice = no_advice,
    };
    rc = profile_job(&run, json, quiet);
    job_destroy(asked);
    return rc;
}
