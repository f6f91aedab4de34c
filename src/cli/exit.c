/* Turns error codes into exit statuses and one line on standard error. See cli.h. */
#include "cli/cli.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

static bool exit_speaks = true, exit_at_once;

void cli_exit_as(bool speaks, bool at_once)
{
    exit_speaks = speaks;
    exit_at_once = at_once;
}

int cli_exit_code(int code)
{
    if (code >= 0)
        return CLI_EXIT_DONE;
    switch (code) {
    case ERR_USAGE:
    case ERR_CONFIG:
    case ERR_INPUT:
        return CLI_EXIT_WRONG;
    case ERR_NO_FIT:
        return CLI_EXIT_NO_FIT;
    case ERR_STOPPED:
        return CLI_EXIT_STOPPED;
    default:
        return CLI_EXIT_FAILED;
    }
}

/* A reader that closed its end is not an error of this command: `sluice plan JOB | head` is fine. A
 * write that failed earlier leaves only the error flag, so this asks the pipe itself. */
static int exit_flush(void)
{
    errno = 0;
    if (fflush(stdout) != 0 && errno != EPIPE)
        return err_errno(errno ? errno : EIO, "cannot write to standard output");
    if (!ferror(stdout))
        return 0;
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (poll(&out, 1, 0) == 1 && (out.revents & POLLERR))
        return 0;
    return err_set(-EIO, "a write to standard output failed");
}

void cli_print_error(int code)
{
    char line[ERR_TEXT_BYTES + 32];
    const char *text = err_text()[0] ? err_text() : err_name(code);
    int used =
        snprintf(line, sizeof line - 1, "sluice: %s%s", code == ERR_STOPPED ? "" : "error: ", text);
    size_t bytes = used < (int)sizeof line - 1 ? (size_t)used : sizeof line - 2;
    line[bytes++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, bytes);
    (void)written; /* there is no place to report a broken stderr */
}

int cli_finish(int code)
{
    err_record first;
    err_save(&first, code);
    int flush = exit_flush();
    if (code >= 0)
        code = flush;
    else
        err_restore(&first);
    if (code < 0 && exit_speaks)
        cli_print_error(code);
    int status = cli_exit_code(code);
    if (exit_at_once)
        _exit(status);
    return status;
}
