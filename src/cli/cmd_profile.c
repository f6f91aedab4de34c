/* sluice profile JOB: a few real steps, and where their time goes. See cli.h. */
#include "base/log.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "cli/machine_option.h"
#include "config/config.h"
#include "train/train.h"

static struct {
    cli_texts set;
    const char *machine_file, *auto_of;
    uint64_t steps, rank, world, scale_down;
    double comm_speed;
    bool json, quiet, only_transfers, no_advice;
} asked = {.rank = UINT64_MAX, .scale_down = 1};

static const cli_option options[] = {
    {"set", CLI_TEXTS, "KEY.PATH=VALUE",
     "overrides a key of the job; JSON or a bare word; repeatable", .target = &asked.set},
    {"auto", CLI_TEXT, "hf", CLI_AUTO_HELP, .target = &asked.auto_of},
    {"machine", CLI_TEXT, "FILE", CLI_MACHINE_HELP, .target = &asked.machine_file},
    {"steps", CLI_COUNT, "N",
     "steps to measure, after one or two that are not\n(default: half a minute of them, 3 to 20)",
     .target = &asked.steps, .min = 1, .max = PROFILE_STEPS_MAX},
    {"as-rank", CLI_COUNT, "R",
     "does the work of rank R of --of N ranks, from 0, alone on this host", .target = &asked.rank,
     .min = 0, .max = COMM_RANKS_MAX - 1},
    {"of", CLI_COUNT, "N", "number of ranks for --as-rank", .target = &asked.world, .min = 1,
     .max = COMM_RANKS_MAX},
    {"comm-speed", CLI_REAL, "GB/S",
     "with --as-rank: speed at which collectives send, 10^9 bytes a second\n(default: "
     "the machine's figure)",
     .target = &asked.comm_speed, .min = 0.001, .max = 1e6},
    {"scale-down", CLI_COUNT, "K",
     "with --as-rank: only one K-th of the model's blocks, each as it is\n(default: 1)",
     .target = &asked.scale_down, .min = 1, .max = 1e6},
    {"transfers-only", CLI_FLAG, NULL,
     "with --as-rank: forward and backward take the time that --machine says, or none",
     .target = &asked.only_transfers},
    {"no-advice", CLI_FLAG, NULL,
     "does not simulate other settings (default: up to half a minute of that)",
     .target = &asked.no_advice},
    {"json", CLI_FLAG, NULL, "one JSON object, bytes and seconds (default: a line a step, tables)",
     .target = &asked.json},
    {"quiet", CLI_FLAG, NULL, "no line a step (default: one)", .target = &asked.quiet},
};

/* Shows a step of a run whose losses have no meaning. */
static void profile_show_pretended(const struct train_progress *progress)
{
    char left[CLI_DURATION_BYTES];
    cli_live_note("step %llu/%llu  %.3f s  read %.2f write %.2f GB/s  left %s",
                  (unsigned long long)progress->step, (unsigned long long)progress->steps,
                  progress->seconds,
                  (double)progress->lanes[LANE_READ].bytes / progress->seconds / 1e9,
                  (double)progress->lanes[LANE_WRITE].bytes / progress->seconds / 1e9,
                  cli_duration(progress->seconds_left, left));
}

static void profile_show_step(void *user, const struct train_progress *progress)
{
    (void)user;
    if (asked.world > 0)
        profile_show_pretended(progress);
    else
        cli_live_step(progress);
}

/* Checks the options that need --as-rank. */
static int profile_check(void)
{
    uint64_t rank = asked.rank, world = asked.world;
    if (world > 0 && rank == UINT64_MAX)
        return err_set(ERR_USAGE, "--of %u needs --as-rank R, from 0 to %u", (unsigned)world,
                       (unsigned)world - 1);
    if (world == 0 && rank != UINT64_MAX)
        return err_set(ERR_USAGE, "--as-rank %u needs --of N, the number of ranks", (unsigned)rank);
    if (world > 0 && rank >= world)
        return err_set(ERR_USAGE, "--as-rank %u is none of --of %u ranks, which count from 0",
                       (unsigned)rank, (unsigned)world);
    if (world == 0 && (asked.scale_down > 1 || asked.comm_speed > 0 || asked.only_transfers))
        return err_set(ERR_USAGE, "%s is for one rank of several: it needs --as-rank R --of N",
                       asked.scale_down > 1   ? "--scale-down"
                       : asked.comm_speed > 0 ? "--comm-speed"
                                              : "--transfers-only");
    return 0;
}

static int profile_start(const cli_texts *operands)
{
    static struct profile_summary summary; /* large */
    struct cli_machine on;
    job *work;
    TRY(profile_check());
    TRY(cli_set_auto(&asked.set, asked.auto_of));
    if (asked.quiet || asked.json)
        log_set_level(LOG_WARN);
    TRY(cli_machine_read(asked.machine_file, false, &on));
    TRY(job_read(operands->items[0], NULL, asked.set.items, asked.set.count,
                 asked.world ? (uint32_t)asked.world : 1, &work));
    const struct profile_options how = {
        .job = work,
        .machine = on.figures,
        .steps = asked.steps,
        .as_rank = asked.world ? (uint32_t)asked.rank : 0,
        .of_ranks = (uint32_t)asked.world,
        .comm_bytes_per_second = asked.comm_speed * 1e9,
        .scale_down = (uint32_t)asked.scale_down,
        .only_transfers = asked.only_transfers,
        .no_advice = asked.no_advice,
        .stop = cli_stop_install("stopping when this step is done; nothing is kept"),
        .on_step = profile_show_step,
    };
    cli_live_begin(1, false, asked.quiet || asked.json);
    int rc = profile_run(&how, &summary);
    cli_live_end();
    if (rc == 0 && asked.json)
        rc = cli_profile_json(stdout, &summary);
    else if (rc == 0)
        cli_print_profile(stdout, &summary);
    job_destroy(work);
    return rc;
}

const cli_command cli_profile_command = {
    .name = "profile",
    .operand = "JOB",
    .operands_min = 1,
    .operands_max = 1,
    .computes = true,
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
    CLI_OPTIONS(options),
    .run = profile_start,
};
