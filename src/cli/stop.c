/* The stop request. See cli.h. */
#include "cli/cli.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t stop_requested;

static void stop_handler(int number)
{
    int saved_errno = errno;
    if (stop_requested) {
        /* As if we had never caught it: delivered when this handler returns. */
        signal(number, SIG_DFL);
        raise(number);
    } else {
        static const char text[] =
            "\nsluice: stopping when this step is done; once more to stop at once\n";
        stop_requested = 1;
        ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
        (void)written;
    }
    errno = saved_errno;
}

const volatile sig_atomic_t *cli_stop_install(void)
{
    static const int numbers[] = {SIGINT, SIGTERM};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction before;
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN)
            continue;
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_handler = stop_handler;
        action.sa_flags = SA_RESTART; /* file I/O elsewhere goes on undisturbed */
        sigemptyset(&action.sa_mask);
        sigaction(numbers[i], &action, NULL);
    }
    return &stop_requested;
}
