/* The stop request. See cli.h. */
#include "cli/cli.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    STOP_TEXT_BYTES = 128,
    /* One request may arrive as several signals: `timeout -s INT` and some launchers signal the
     * process and then its process group. Nobody presses Ctrl-C twice in this time. */
    STOP_REPEAT_MS = 250,
};

static volatile sig_atomic_t stop_requested;
static volatile sig_atomic_t stop_is_asked; /* by a signal other than SIGHUP */
static struct timespec asked_at;            /* written once, before stop_is_asked is set */
static char stop_text[STOP_TEXT_BYTES];     /* constant once a handler is installed */
static size_t stop_text_bytes;

static bool is_repeat(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - asked_at.tv_sec) * 1000 + (now.tv_nsec - asked_at.tv_nsec) / 1000000 <
           STOP_REPEAT_MS;
}

/* A terminal that closes sends SIGHUP more than once (the kernel and the shell), and systemd sends
 * it right after SIGTERM: it asks for a stop, but never for one at once. */
static void stop_handler(int number)
{
    int saved_errno = errno;
    if (!stop_requested) {
        ssize_t written = write(STDERR_FILENO, stop_text, stop_text_bytes);
        (void)written;
    }
    stop_requested = 1;
    if (number != SIGHUP && !stop_is_asked) {
        clock_gettime(CLOCK_MONOTONIC, &asked_at);
        stop_is_asked = 1;
    } else if (number != SIGHUP && !is_repeat()) {
        /* The default action, as if there were no handler; it comes when this handler returns. */
        signal(number, SIG_DFL);
        raise(number);
    }
    errno = saved_errno;
}

const volatile sig_atomic_t *cli_stop_install(const char *what)
{
    if (what)
        snprintf(stop_text, sizeof stop_text, "\nsluice: %.64s; once more to stop at once\n", what);
    stop_text_bytes = strlen(stop_text);
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction before;
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN)
            continue;
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_handler = stop_handler;
        action.sa_flags = SA_RESTART; /* file I/O of other code is not interrupted */
        sigemptyset(&action.sa_mask);
        sigaction(numbers[i], &action, NULL);
    }
    return &stop_requested;
}
