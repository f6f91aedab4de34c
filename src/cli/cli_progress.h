/* The line of progress, on standard error, of commands that take long. Main thread. */
#ifndef SLUICE_CLI_CLI_PROGRESS_H
#define SLUICE_CLI_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct cli_progress {
    const char *verb; /* "imported"; for cli_progress_show */
    bool is_shown, is_terminal;
    bool is_drawn;       /* a line is on the terminal */
    double told_seconds; /* when the last line was written */
};
typedef struct cli_progress cli_progress;

/* Begins the display: a line that is rewritten on a terminal, else a plain line every ten seconds.
 * Log lines clear it first. */
void cli_progress_begin(cli_progress *self, const char *verb, bool is_shown);
/* Shows "imported 1.20 of 6.00 GB (20%)  0.85 GB/s  left 5s" if a line is due. `user` is the
 * cli_progress. */
void cli_progress_show(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
void cli_progress_clear(cli_progress *self); /* before other output */
void cli_progress_end(cli_progress *self);   /* clears the line */

/* For other lines. `seconds` since the beginning: true if it is time for the next line. */
bool cli_progress_is_due(const cli_progress *self, double seconds);
__attribute__((format(printf, 3, 4))) void cli_progress_draw(cli_progress *self, double seconds,
                                                             const char *format, ...);

#endif
