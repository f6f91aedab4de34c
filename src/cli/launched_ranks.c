/* Joins the ranks and leaves them. See launched_ranks.h. */
#include "cli/launched_ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"

static comm *joined;

/* Sends what is printed to /dev/null. Not by freopen, which only takes streams of files, and stdout
 * is another one if it shows a terminal (terminal.c). */
static int silence_output(void)
{
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0)
        return err_errno(errno, "cannot open /dev/null");
    close(fd);
    return 0;
}

int cli_ranks_join(double timeout_seconds)
{
    const comm_join_config config = {.timeout_seconds = timeout_seconds, .report = cli_print_error};
    int rc = comm_join(&config, &joined);
    if (rc < 0) {
        /* MPI may have begun, and its end would wait for ranks that are not there */
        cli_exit_as(comm_is_reporter(NULL), true);
        return rc;
    }
    uint32_t rank = comm_get_rank(joined);
    if (rank == 0)
        return 0;
    char prefix[32];
    snprintf(prefix, sizeof prefix, "rank %u: ", rank);
    log_set_prefix(prefix);
    log_set_level(LOG_WARN);
    rc = silence_output();
    return rc < 0 ? cli_ranks_leave(joined, rc, false) : 0;
}

comm *cli_ranks(void)
{
    return joined;
}

/* Replaces this rank's error `mine` by the failure of the job, in two cases:
 * - `mine` contains the job's failure, with text before it (what this rank was doing) and after it
 *   (what became of the run). The text after it is kept unless the failure has it too.
 * - `mine` does not contain it: it only followed from the failure of another rank, because a rank
 *   that ends takes away things that other ranks still use. */
static void ranks_name_failure(comm *ranks, err_record *mine)
{
    err_record failure;
    err_save(&failure, comm_check(ranks));
    if (failure.code >= 0 || mine->code == ERR_STOPPED)
        return;
    const comm_rank *own = &comm_get_ranks(ranks)[comm_get_rank(ranks)];
    char name[COMM_HOST_BYTES + 32];
    int length =
        snprintf(name, sizeof name, "rank %u on host %s: ", comm_get_rank(ranks), own->host);
    bool is_own = strncmp(failure.text, name, (size_t)length) == 0;
    const char *cause = failure.text + (is_own ? length : 0);
    const char *begin = strstr(mine->text, cause);
    if (begin) {
        const char *behind = begin + strlen(cause);
        bool is_said = strstr(failure.text, behind) != NULL;
        mine->code = err_set(failure.code, "%s%s", failure.text, is_said ? "" : behind);
        err_save(mine, mine->code);
    } else {
        *mine = failure; /* the failure of another rank, which came first */
    }
}

int cli_ranks_leave(comm *ranks, int rc, bool agreed)
{
    if (!ranks)
        return rc;
    joined = NULL;
    bool is_alone = comm_get_world(ranks) == 1;
    agreed = agreed && comm_check(ranks) == 0;
    if (rc >= 0) {
        int barrier = comm_barrier(ranks, "the end");
        rc = barrier < 0 ? barrier : rc;
        agreed = barrier >= 0;
    }
    err_record first;
    err_save(&first, rc);
    if (rc < 0 && !agreed)
        comm_fail(ranks, rc, first.text);
    if (rc < 0 && !is_alone)
        ranks_name_failure(ranks, &first);
    rc = rc < 0 ? first.code : rc;
    bool speaks = comm_is_reporter(ranks);
    /* print before other ranks may end, because mpirun then ends this one */
    if (rc < 0 && speaks && !is_alone) {
        fflush(stdout);
        err_restore(&first);
        cli_print_error(rc);
        speaks = false;
    }
    cli_exit_as(speaks, rc < 0 && !agreed && !is_alone);
    comm_leave(ranks, agreed ? 0 : rc);
    return rc < 0 ? err_restore(&first) : rc;
}

int cli_ranks_refuse(const char *command)
{
    TRY(cli_ranks_join(0.0));
    uint32_t world = comm_get_world(joined);
    int rc = 0;
    if (world > 1)
        rc = err_set(ERR_USAGE,
                     "sluice %s is one process, and the launcher has started %u: run it without "
                     "mpirun or srun",
                     command, world);
    return cli_ranks_leave(joined, rc, true);
}
