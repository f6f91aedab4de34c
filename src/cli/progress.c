/* The line of progress. See cli.h. */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"

static const double redraw_seconds = 0.1, plain_seconds = 10, late_seconds = 2;

/* It must not log. */
static void progress_clear(void *user)
{
    cli_progress_clear(user);
}

void cli_progress_begin(cli_progress *self, const char *verb, bool is_shown)
{
    *self = (cli_progress){.verb = verb,
                           .is_shown = is_shown,
                           .is_terminal = isatty(STDERR_FILENO) == 1,
                           .start_ns = clock_ns()};
    if (is_shown && self->is_terminal)
        log_set_hook(progress_clear, self);
}

void cli_progress_clear(cli_progress *self)
{
    if (atomic_exchange(&self->is_drawn, false))
        fputs("\r\033[K", stderr);
}

bool cli_progress_is_due(const cli_progress *self, double seconds)
{
    double pause = self->is_terminal ? redraw_seconds : plain_seconds;
    return self->is_shown && seconds - self->shown_seconds >= pause;
}

bool cli_progress_is_late(const cli_progress *self, double *seconds)
{
    *seconds = (double)(clock_ns() - self->start_ns) * 1e-9;
    return self->is_terminal && *seconds >= late_seconds && cli_progress_is_due(self, *seconds);
}

void cli_progress_draw(cli_progress *self, double seconds, const char *format, ...)
{
    va_list args;
    self->shown_seconds = seconds;
    fputs(self->is_terminal ? "\r\033[K" : "", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputs(self->is_terminal ? "" : "\n", stderr);
    fflush(stderr);
    atomic_store(&self->is_drawn, self->is_terminal);
}

void cli_progress_show(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds)
{
    cli_progress *self = user;
    char left[CLI_DURATION_BYTES];
    if (!cli_progress_is_due(self, seconds))
        return;
    double speed = seconds > 0 ? (double)done_bytes / seconds : 0;
    double left_seconds = speed > 0 ? (double)(total_bytes - done_bytes) / speed : -1;
    cli_progress_draw(self, seconds, "%s %.2f of %.2f GB (%.0f%%)  %.2f GB/s  left %s", self->verb,
                      (double)done_bytes / 1e9, (double)total_bytes / 1e9,
                      total_bytes ? 100 * (double)done_bytes / (double)total_bytes : 100,
                      speed / 1e9, cli_duration(left_seconds, left));
}

void cli_progress_end(cli_progress *self)
{
    log_set_hook(NULL, NULL);
    cli_progress_clear(self);
}
