/* See cli_progress.h. */
#include "cli/cli_progress.h"

#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"

enum { PLAIN_EVERY_SECONDS = 10 };

/* It must not log. */
static void progress_clear_line(void *user)
{
    (void)user;
    fputs("\r\033[K", stderr);
}

void cli_progress_begin(cli_progress *self, const char *verb, bool is_shown)
{
    *self = (cli_progress){
        .verb = verb, .is_shown = is_shown, .is_terminal = isatty(STDERR_FILENO) == 1};
    if (is_shown && self->is_terminal)
        log_set_hook(progress_clear_line, NULL);
}

void cli_progress_show(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds)
{
    cli_progress *self = user;
    char left[CLI_DURATION_BYTES];
    if (!self->is_shown ||
        (!self->is_terminal && seconds - self->told_seconds < PLAIN_EVERY_SECONDS))
        return;
    self->told_seconds = seconds;
    double speed = seconds > 0 ? (double)done_bytes / seconds : 0;
    double left_seconds = speed > 0 ? (double)(total_bytes - done_bytes) / speed : -1;
    fprintf(stderr, "%s%s %.2f of %.2f GB (%.0f%%)  %.2f GB/s  left %s%s",
            self->is_terminal ? "\r\033[K" : "", self->verb, (double)done_bytes / 1e9,
            (double)total_bytes / 1e9,
            total_bytes ? 100 * (double)done_bytes / (double)total_bytes : 100, speed / 1e9,
            cli_duration(left_seconds, left), self->is_terminal ? "" : "\n");
    fflush(stderr);
}

void cli_progress_end(cli_progress *self)
{
    log_set_hook(NULL, NULL);
    if (self->is_shown && self->is_terminal)
        progress_clear_line(NULL);
}
