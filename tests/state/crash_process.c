/* See crash_process.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/state/crash_process.h"

bool crash_ends_within(pid_t child, uint64_t ns)
{
    int fd = (int)syscall(SYS_pidfd_open, child, 0);
    assert_true(fd >= 0);
    struct pollfd end = {.fd = fd, .events = POLLIN};
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000),
                            .tv_nsec = (long)(ns % 1000000000)};
    int rc = ppoll(&end, 1, &time, NULL);
    close(fd);
    assert_true(rc >= 0);
    return rc == 1;
}

int crash_wait(pid_t child)
{
    int status;
    bool ended = crash_ends_within(child, CRASH_HANG_SECONDS * 1000000000ull);
    if (!ended)
        kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!ended)
        fail_msg("the process did not end");
    return status;
}
