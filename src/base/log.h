/* Log lines on standard error, and the clock. Any thread; one line is one write.
 *
 *   sluice: message                 (info)
 *   sluice: warning: message        (warn)
 *   sluice: rank 2: message         (after log_set_prefix("rank 2: "))
 *
 * While a live line is on the terminal, src/cli installs a hook that clears it first. */
#ifndef SLUICE_BASE_LOG_H
#define SLUICE_BASE_LOG_H

#include <stdint.h>

enum log_level {
    LOG_DEBUG, /* only with SLUICE_LOG=debug */
    LOG_INFO,
    LOG_WARN,
    LOG_QUIET /* a threshold only: nothing is written */
};

void log_set_level(enum log_level threshold);
enum log_level log_get_level(void);

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)

/* Sets the text before the message of each later line; up to 31 bytes of it are copied. Call it
 * before other threads are started. */
void log_set_prefix(const char *prefix);

/* Sets the function that is called before each line is written; NULL for none. It must not log. */
void log_set_hook(void (*before_line)(void *user), void *user);

/* Monotonic time in nanoseconds. */
uint64_t clock_ns(void);

#endif
