/* Log lines. See log.h. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/utf8.h"

static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static enum log_level log_threshold = LOG_INFO;
static void (*log_hook)(void *user);
static void *log_hook_user;
static char log_prefix[32];

void log_set_level(enum log_level threshold)
{
    pthread_mutex_lock(&log_mutex);
    log_threshold = threshold;
    pthread_mutex_unlock(&log_mutex);
}

enum log_level log_get_level(void)
{
    pthread_mutex_lock(&log_mutex);
    enum log_level threshold = log_threshold;
    pthread_mutex_unlock(&log_mutex);
    return threshold;
}

void log_set_hook(void (*before_line)(void *user), void *user)
{
    pthread_mutex_lock(&log_mutex);
    log_hook = before_line;
    log_hook_user = user;
    pthread_mutex_unlock(&log_mutex);
}

void log_set_prefix(const char *prefix)
{
    snprintf(log_prefix, sizeof log_prefix, "%s", prefix);
}

void log_line(enum log_level level, const char *format, ...)
{
    char text[2048], line[2048 + sizeof log_prefix + 32];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t bytes = (size_t)snprintf(line, sizeof line, "sluice: %s%s", log_prefix,
                                    level == LOG_WARN ? "warning: " : "");
    bytes += utf8_visible(text, strlen(text), "", line + bytes, sizeof line - bytes - 1);
    line[bytes++] = '\n';

    pthread_mutex_lock(&log_mutex);
    if (level >= log_threshold && log_threshold != LOG_QUIET) {
        if (log_hook)
            log_hook(log_hook_user);
        ssize_t written = write(STDERR_FILENO, line, bytes);
        (void)written; /* nowhere to report a broken stderr */
    }
    pthread_mutex_unlock(&log_mutex);
}

uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
