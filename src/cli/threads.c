/* How threads wait that have nothing to compute. See cli.h.
 *
 * After each parallel region the threads of GCC's OpenMP spin for milliseconds before they sleep.
 * Meanwhile they hold the cores that copies, the update's I/O and the scheduler need. OpenMP reads
 * from the environment, before main begins, how long they spin. So the process restarts itself
 * once, with the variables set. Runs on the main thread before there is any other thread; allocates
 * no memory of ours. */
#include "cli/cli.h"

#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"

static const char threads_mark[] = "SLUICE_RESTARTED"; /* set: this is the second start */

/* Rounds of waiting, some 0.1 ms. It is long enough that waking a region's threads stays cheap
 * within one op, and short enough that an idle team leaves the cores to copies. The measurement
 * showed no significant difference: with quickstart's model on two cores of a machine under a load
 * of 3 to 4, 8 or 9 runs per value, the medians were 3744 tokens/s with the default of 300000, 3775
 * with OMP_WAIT_POLICY=passive, 3847 with 1000 and 3986 with 3000, but single runs ranged from 2700
 * to 5800. */
static const char threads_spin_count[] = "3000";

/* True if the user has set how threads wait, in any of the ways that OpenMP's runtimes know. */
static bool threads_is_set_by_user(void)
{
    static const char *const names[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (getenv(names[i]))
            return true;
    return false;
}

/* Gives the thread all cores again. If the user lets OpenMP bind threads (OMP_PROC_BIND), it has
 * already bound this thread to one core. The restarted process would take that core for all cores
 * there are, and compute with one thread. */
static void threads_free_cores(void)
{
    core_set allowed;
    if (thread_allowed_cores(&allowed) < 0 || thread_bind(&allowed) < 0)
        log_debug("restarting without a change of cores: %s", err_text());
}

void cli_threads_settle(char **argv)
{
    if (getenv(threads_mark)) {
        unsetenv(threads_mark); /* processes that we start must not inherit it */
        return;
    }
    /* Without a loader in the file (a static program, or `ld.so sluice`), the link below names
     * another program. */
    if (threads_is_set_by_user() || getauxval(AT_BASE) == 0)
        return;
    /* the link's target, because with the link itself the process would be called "exe" */
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0 || length >= (ssize_t)sizeof path - 1)
        return;
    path[length] = '\0';
    if (setenv("GOMP_SPINCOUNT", threads_spin_count, 1) != 0)
        return;
    threads_free_cores();
    if (setenv(threads_mark, "1", 1) == 0)
        execv(path, argv);
    /* The restart failed: the file is gone, or we may not start it. The process works, but more
     * slowly. */
    unsetenv(threads_mark);
    unsetenv("GOMP_SPINCOUNT");
}
