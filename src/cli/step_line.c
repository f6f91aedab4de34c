/* The line of a step: rewritten in place on a terminal, plain lines elsewhere. See cli.h.
 *
 * It runs between steps on the main thread. Log lines may come from any thread and call
 * live_clear. */
#include "cli/cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"
#include "report/live.h"
#include "train/train.h"

enum { LIVE_REDRAW_NS = 100000000 };

static struct {
    bool terminal, quiet;
    uint64_t every;
    uint64_t drawn_ns; /* when the line was last drawn */
    atomic_bool shown; /* a live line is on the terminal */
    live_status last;  /* the content of the live line; step 0: nothing yet */
} live;

char *cli_duration(double seconds, char text[CLI_DURATION_BYTES])
{
    if (!(seconds >= 0) || seconds > 1e9) {
        snprintf(text, CLI_DURATION_BYTES, "?");
        return text;
    }
    unsigned long whole = (unsigned long)ceil(seconds);
    if (whole < 60)
        snprintf(text, CLI_DURATION_BYTES, "%lus", whole);
    else if (whole < 3600)
        snprintf(text, CLI_DURATION_BYTES, "%lum %02lus", whole / 60, whole % 60);
    else if (whole < 86400)
        snprintf(text, CLI_DURATION_BYTES, "%luh %02lum", whole / 3600, whole / 60 % 60);
    else
        snprintf(text, CLI_DURATION_BYTES, "%lud %02luh", whole / 86400, whole / 3600 % 24);
    return text;
}

static void live_write(const char *text)
{
    fputs(text, stdout);
    fflush(stdout);
}

/* The log calls it before a line of its own. It must not log. */
static void live_clear(void *user)
{
    (void)user;
    if (atomic_exchange(&live.shown, false)) {
        ssize_t written = write(STDOUT_FILENO, "\r\033[K", 4);
        (void)written;
    }
}

void cli_live_begin(uint64_t every, bool plain, bool quiet)
{
    static char stdout_bytes[4096]; /* so that stdio allocates none */
    setvbuf(stdout, stdout_bytes, _IOFBF, sizeof stdout_bytes);
    live.quiet = quiet;
    live.every = every ? every : 1;
    live.terminal = !plain && isatty(STDOUT_FILENO) == 1;
    live.drawn_ns = 0;
    live.last.step = 0;
    if (live.terminal && !quiet)
        log_set_hook(live_clear, NULL);
}

static void live_draw(void)
{
    char text[LIVE_LINE_BYTES], line[LIVE_LINE_BYTES + 8];
    struct winsize window;
    unsigned columns = 79;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1)
        columns = window.ws_col - 1u; /* the last column would wrap on some terminals */
    live_format(&live.last, columns, text, sizeof text);
    snprintf(line, sizeof line, "\r%s\033[K", text);
    cli_terminal_control(line);
    atomic_store(&live.shown, true);
    live.drawn_ns = clock_ns();
}

/* The figures of a step as the line shows them. */
static live_status live_status_of(const struct train_progress *progress)
{
    live_status status = {
        .step = progress->step,
        .steps = progress->steps,
        .loss = progress->loss,
        .has_router_losses = progress->has_router_losses,
        .balance_loss = progress->balance_loss,
        .router_z_loss = progress->router_z_loss,
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
    return status;
}

void cli_live_step(const struct train_progress *progress)
{
    if (live.quiet)
        return;
    live.last = live_status_of(progress);
    bool last = progress->step == progress->steps;
    if (live.terminal) {
        if (last || clock_ns() - live.drawn_ns >= LIVE_REDRAW_NS)
            live_draw();
    } else if (last || progress->step % live.every == 0) {
        char line[LIVE_LINE_BYTES + 1];
        size_t length = live_format_plain(&live.last, line, sizeof line - 1);
        line[length] = '\n';
        line[length + 1] = '\0';
        live_write(line);
    }
}

void cli_live_note(const char *format, ...)
{
    if (live.quiet)
        return;
    char line[LIVE_LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    strcat(line, "\n");
    live_clear(NULL);
    live_write(line);
}

void cli_live_end(void)
{
    log_set_hook(NULL, NULL);
    if (live.terminal && !live.quiet && live.last.step > 0) {
        live_draw();
        atomic_store(&live.shown, false);
        live_write("\n");
    }
}
