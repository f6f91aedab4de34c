/* sluice probe: what this machine can do, into machine.json. See cli.h. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/launched_ranks.h"
#include "probe/probe.h"

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
    .run = cli_probe,
};

enum { PLAIN_EVERY_SECONDS = 10 };

struct probe_screen {
    FILE *stream; /* where results go: standard output, or standard error with --json */
    bool is_terminal, is_quiet, is_shown;
    double told_seconds;
    uint64_t start_ns;
    char step[64]; /* the step of the last plain line */
};

/* It must not log. */
static void probe_clear_line(void *user)
{
    struct probe_screen *screen = user;
    if (screen->is_shown)
        fputs("\r\033[K", stderr);
    screen->is_shown = false;
}

/* Shows "3/9 nvme /mnt/x: write 1 MiB x 8". Off a terminal this is a plain line at the beginning of
 * each step, and every 10 s. */
static void probe_show_progress(void *user, const char *what, double done_share,
                                double seconds_left)
{
    struct probe_screen *screen = user;
    char left[CLI_DURATION_BYTES], step[sizeof screen->step];
    if (screen->is_quiet)
        return;
    double seconds = (double)(clock_ns() - screen->start_ns) * 1e-9;
    snprintf(step, sizeof step, "%.*s", (int)strcspn(what, " "), what);
    bool is_new = strcmp(step, screen->step) != 0;
    if (!screen->is_terminal && !is_new && seconds - screen->told_seconds < PLAIN_EVERY_SECONDS)
        return;
    if (screen->is_terminal && !is_new && seconds - screen->told_seconds < 0.1)
        return;
    screen->told_seconds = seconds;
    snprintf(screen->step, sizeof screen->step, "%s", step);
    cli_duration(seconds_left, left);
    if (screen->is_terminal)
        fprintf(stderr, "\r\033[Kprobe %.60s  %.0f%%, %s left", what, 100 * done_share, left);
    else
        fprintf(stderr, "probe %s  %.0f%%, %s left\n", what, 100 * done_share, left);
    fflush(stderr);
    screen->is_shown = screen->is_terminal;
}

static void probe_show_line(void *user, const char *text)
{
    struct probe_screen *screen = user;
    probe_clear_line(screen);
    fprintf(screen->stream, "%s\n", text);
    fflush(screen->stream);
}

/* Checks, before anything is measured, that the file can be written, and that an existing file may
 * be overwritten. */
static int probe_check_target(const char *path)
{
    struct stat status;
    char directory[MACHINE_PATH_BYTES];
    if (path[0] == '\0')
        return err_set(ERR_USAGE, "probe: --out is empty, and must be the name of a file");
    if (stat(path, &status) == 0) {
        /* Without a slash, the name would also be looked for among the clusters. */
        char here[MACHINE_PATH_BYTES + 2];
        snprintf(here, sizeof here, "%s%s", strchr(path, '/') ? "" : "./", path);
        machine *old = mem_alloc(1, sizeof *old, "machine");
        if (!old)
            return -ENOMEM;
        bool is_ours = S_ISREG(status.st_mode) && status.st_size > 0 &&
                       machine_read(here, old) == 0 && old->measured_by[0] != '\0';
        mem_free(old);
        if (!is_ours)
            return err_set(ERR_INPUT,
                           "%s is there and is not a machine file that the probe wrote: it is not "
                           "overwritten; delete it, or name another with --out FILE",
                           path);
    } else if (errno != ENOENT) {
        return err_set(ERR_INPUT, "%s cannot be written: %s", path, strerror(errno));
    }
    const char *slash = strrchr(path, '/');
    int length = slash ? (int)(slash - path) + (slash == path) : 1;
    snprintf(directory, sizeof directory, "%.*s", length, slash ? path : ".");
    if (access(directory, W_OK | X_OK) != 0)
        return err_set(ERR_INPUT, "%s cannot be written: %s: %s", path, directory, strerror(errno));
    return 0;
}

/* A directory that does not exist is a typing error. Measuring the drive of its parent would answer
 * another question. */
static int probe_check_drives(const cli_texts *drives)
{
    struct stat status;
    for (uint32_t d = 0; d < drives->count; d++)
        if (stat(drives->items[d], &status) != 0)
            return err_set(ERR_INPUT, "probe: --drive %s: %s; name a directory on the drive",
                           drives->items[d], strerror(errno));
    return 0;
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

static int probe_measure(const struct probe_options *options, const char *path, bool shows_json)
{
    struct probe_screen *screen = options->user;
    machine *found = mem_alloc(1, sizeof *found, "machine");
    if (!found)
        return -ENOMEM;
    int rc = probe_run(options, found);
    probe_clear_line(screen);
    log_set_hook(NULL, NULL);
    if (rc == 0)
        rc = machine_write(found, path);
    if (rc == 0) {
        fprintf(screen->stream,
                "%s written after %.0f s; sluice plan JOB --machine %s plans with it\n", path,
                (double)(clock_ns() - screen->start_ns) * 1e-9, path);
        if (shows_json)
            rc = probe_print_file(path);
    }
    mem_free(found);
    return rc;
}

int cli_probe(int argc, char **argv)
{
    const char *named, *path = "machine.json", *backend = "auto";
    cli_texts drives = {.count = 0};
    bool is_quick = false, shows_json = false, is_quiet = false;
    const cli_option options[] = {
        {.name = "out",
         .type = CLI_TEXT,
         .value = "FILE",
         .help = "where to write (default: machine.json)",
         .target = &path},
        {.name = "drive",
         .type = CLI_TEXTS,
         .value = "DIR",
         .help = "measure the drive that holds DIR; several times for several\n"
                 "(default: the working directory)",
         .target = &drives},
        {.name = "quick",
         .type = CLI_FLAG,
         .help = "under 30 s: fewer settings, shapes and rounds",
         .target = &is_quick},
        {.name = "backend",
         .type = CLI_TEXT,
         .value = "NAME",
         .help = "auto, cpu or cuda: what computes (default: auto)",
         .target = &backend},
        {.name = "json",
         .type = CLI_FLAG,
         .help = "prints what was written on standard output, all else on\nstandard error",
         .target = &shows_json},
        {.name = "quiet", .type = CLI_FLAG, .help = "no progress", .target = &is_quiet},
    };
    int rc = cli_parse(&cli_probe_command, options, sizeof options / sizeof options[0], argc, argv,
                       &named);
    if (rc != 0)
        return rc;
    TRY(cli_ranks_refuse("probe"));
    if (drives.count > DRIVES_MAX)
        return err_set(ERR_USAGE, "probe: --drive is given %u times; at most %d can be measured",
                       drives.count, DRIVES_MAX);
    TRY(probe_check_target(path));
    TRY(probe_check_drives(&drives));
    struct probe_screen screen = {.stream = shows_json ? stderr : stdout,
                                  .is_terminal = isatty(STDERR_FILENO) == 1,
                                  .is_quiet = is_quiet,
                                  .start_ns = clock_ns()};
    struct probe_options asked = {.drives = {"."},
                                  .drive_count = drives.count ? drives.count : 1,
                                  .backend = backend,
                                  .is_quick = is_quick,
                                  .stop = cli_stop_install("stopping the probe"),
                                  .on_progress = probe_show_progress,
                                  .on_line = probe_show_line,
                                  .user = &screen};
    for (uint32_t d = 0; d < drives.count; d++)
        asked.drives[d] = drives.items[d];
    if (screen.is_terminal && !is_quiet)
        log_set_hook(probe_clear_line, &screen);
    return probe_measure(&asked, path, shows_json);
}
