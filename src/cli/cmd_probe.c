/* sluice probe: what this machine can do, into machine.json. See cli.h. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "probe/probe.h"

static struct {
    const char *path, *backend;
    cli_texts drives;
    bool is_quick, shows_json, is_quiet;
} asked = {.path = "machine.json", .backend = "auto"};

struct probe_screen {
    FILE *stream; /* where results go: standard output, or standard error with --json */
    cli_progress progress;
    uint64_t start_ns;
    char step[64]; /* the step of the last line */
};

/* Shows "probe 3/9 nvme /mnt/x: write 1 MiB x 8  20%, 5s left": on a terminal a line that is
 * rewritten, else a plain line at the beginning of each step and every 10 s. */
static void probe_show_progress(void *user, const char *what, double done_share,
                                double seconds_left)
{
    struct probe_screen *screen = user;
    char left[CLI_DURATION_BYTES], step[sizeof screen->step];
    double seconds = (double)(clock_ns() - screen->start_ns) * 1e-9;
    snprintf(step, sizeof step, "%.*s", (int)strcspn(what, " "), what);
    bool is_new = strcmp(step, screen->step) != 0;
    if (!screen->progress.is_shown || (!is_new && !cli_progress_is_due(&screen->progress, seconds)))
        return;
    memcpy(screen->step, step, sizeof step);
    cli_progress_draw(&screen->progress, seconds, "probe %.*s  %.0f%%, %s left",
                      screen->progress.is_terminal ? 60 : (int)strlen(what), what, 100 * done_share,
                      cli_duration(seconds_left, left));
}

static void probe_show_line(void *user, const char *text)
{
    struct probe_screen *screen = user;
    cli_progress_clear(&screen->progress);
    fprintf(screen->stream, "%s\n", text);
    fflush(screen->stream);
}

static int probe_print_file(const char *path)
{
    char *text;
    uint64_t bytes;
    TRY(file_read(path, UINT64_MAX - 1, &text, &bytes));
    fwrite(text, 1, bytes, stdout);
    mem_free(text);
    return 0;
}

static int probe_measure(const struct probe_options *work, struct probe_screen *screen)
{
    machine *found = mem_alloc(1, sizeof *found, "machine");
    if (!found)
        return -ENOMEM;
    cli_progress_begin(&screen->progress, NULL, !asked.is_quiet);
    int rc = probe_run(work, found);
    cli_progress_end(&screen->progress);
    if (rc == 0)
        rc = machine_write(found, asked.path);
    if (rc == 0) {
        fprintf(screen->stream,
                "%s written after %.0f s; sluice plan JOB --machine %s plans with it\n", asked.path,
                (double)(clock_ns() - screen->start_ns) * 1e-9, asked.path);
        if (asked.shows_json)
            rc = probe_print_file(asked.path);
    }
    mem_free(found);
    return rc;
}

static const cli_option options[] = {
    {"out", CLI_TEXT, "FILE", "where to write (default: machine.json)", .target = &asked.path},
    {"drive", CLI_TEXTS, "DIR",
     "measure the drive that holds DIR; several times for several\n"
     "(default: the working directory)",
     .target = &asked.drives},
    {"quick", CLI_FLAG, NULL, "under 30 s: fewer settings, shapes and rounds",
     .target = &asked.is_quick},
    {"backend", CLI_TEXT, "NAME", "auto, cpu or cuda: what computes (default: auto)",
     .target = &asked.backend},
    {"json", CLI_FLAG, NULL,
     "prints what was written on standard output, all else on\nstandard error",
     .target = &asked.shows_json},
    {"quiet", CLI_FLAG, NULL, "no progress", .target = &asked.is_quiet},
};

static int probe_start(const cli_texts *operands)
{
    (void)operands; /* there are none */
    if (asked.drives.count > DRIVES_MAX)
        return err_set(ERR_USAGE, "probe: --drive is given %u times; at most %d can be measured",
                       asked.drives.count, DRIVES_MAX);
    if (asked.path[0] == '\0')
        return err_set(ERR_USAGE, "probe: --out is empty, and must be the name of a file");
    TRY(probe_check_file(asked.path));
    TRY(probe_check_drives("probe: --drive", asked.drives.items, asked.drives.count));
    struct probe_screen screen = {.stream = asked.shows_json ? stderr : stdout,
                                  .start_ns = clock_ns()};
    struct probe_options work = {.drives = {"."},
                                 .drive_count = asked.drives.count ? asked.drives.count : 1,
                                 .backend = asked.backend,
                                 .is_quick = asked.is_quick,
                                 .stop = cli_stop_install("stopping the probe"),
                                 .on_progress = probe_show_progress,
                                 .on_line = probe_show_line,
                                 .user = &screen};
    for (uint32_t d = 0; d < asked.drives.count; d++)
        work.drives[d] = asked.drives.items[d];
    return probe_measure(&work, &screen);
}

const cli_command cli_probe_command = {
    .name = "probe",
    .operand = "",
    .summary = "measures this machine and writes machine.json",
    .details =
        "Measures memory, the optimizer, matrix products, attention, copies, collectives and\n"
        "each drive over block size and queue depth, on the cores that a run uses. Writes the\n"
        "file that sluice plan --machine FILE reads. Takes under 3 minutes, with --quick under\n"
        "30 s. Each figure is the median of several rounds, in which the compared variants\n"
        "alternate; +- is half of the distance between its quartiles. Rates are in GB/s (10^9\n"
        "bytes). The machine should have nothing else to do.\n"
        "On each drive it uses a file without a name, of at most 2 GiB and half of the free\n"
        "space. The file is gone at the end, however the command ends. Exit status 75 after\n"
        "Ctrl-C: nothing was written.",
    CLI_OPTIONS(options),
    .run = probe_start,
};
