/* The only file that calls MPI; comm.h says on which thread (one at a time: MPI_THREAD_SERIALIZED).
 * MPI's error handler returns, so every failure becomes a code with a text. */
#include "comm/comm_internal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#ifdef COMM_LOADS_MPI
#include "comm/mpi_library.h"
#endif

enum {
    TAG = 77,             /* of all messages: their order tells them apart */
    MPI_HEAD_BYTES = 256, /* room for Open MPI's own head of a message */
};

struct commi_mpi {
    /* a duplicate, so messages of other users of MPI in this process cannot meet ours */
    MPI_Comm world;
};

static_assert(sizeof(MPI_Request) <= sizeof((commi_request *)0)->handle, "a request fits");

static int mpi_error(int rc, const char *what)
{
    char text[MPI_MAX_ERROR_STRING + 1];
    int length = 0;
    if (MPI_Error_string(rc, text, &length) != MPI_SUCCESS)
        length = 0;
    text[length] = '\0';
    return err_set(ERR_BACKEND, "MPI: %s failed with %d: %s", what, rc, text);
}

const char *commi_mpi_version(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING + 1];
    int length = 0;
    if (text[0] == '\0' && MPI_Get_library_version(text, &length) == MPI_SUCCESS)
        text[strcspn(text, ",\n")] = '\0';
    return text;
}

static uint32_t world_rank; /* of this process */

static int check_world(comm *self, const commi_launch *launch)
{
    int size = 0, rank = 0;
    int rc = MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rc != MPI_SUCCESS)
        return mpi_error(rc, "asking for the ranks");
    if (launch->world > 1 && size == 1)
        return err_set(ERR_CONFIG,
                       "%s started %u processes, but each is alone for MPI (%s): start them by the "
                       "mpirun of that library, or by srun --mpi=pmix",
                       launch->launcher, launch->world, commi_mpi_version());
    if (size > COMM_RANKS_MAX)
        return err_set(ERR_CONFIG, "%s started %d ranks; the most is %d: start fewer",
                       launch->launcher, size, COMM_RANKS_MAX);
    self->rank = world_rank = (uint32_t)rank;
    self->world = (uint32_t)size;
    return 0;
}

/* True if the messages of all ranks have room in shared memory; a rank takes 4 MiB by default. Open
 * MPI crashes if it may use nothing else and a rank gets none. */
static bool has_shared_memory(const commi_launch *launch)
{
    static const char directory[] = "/dev/shm";
    const uint64_t wanted_bytes = (uint64_t)launch->world * 2 * (4 << 20);
    struct statvfs room;
    if (access(directory, W_OK) == 0 && statvfs(directory, &room) == 0 &&
        (uint64_t)room.f_bavail * room.f_frsize >= wanted_bytes)
        return true;
    if (launch->rank == 0)
        log_warn("%s has less than the %llu MiB that %u ranks may take, so MPI listens on the "
                 "network: give it more room (docker run --shm-size)",
                 directory, (unsigned long long)(wanted_bytes >> 20), launch->world);
    return false;
}

/* The ranks of Open MPI listen on all addresses of their host, and a stranger who connects there
 * can stop MPI's progress. On one host they need no network: nothing listens without the two
 * transports that use TCP, and with the messaging layer that brings no network of its own. MPI
 * reads these variables in MPI_Init. Variables that the user has set stay. */
static void ask_for_shared_memory(const commi_launch *launch)
{
    if (getenv("OMPI_MCA_btl") || getenv("OMPI_MCA_pml") || !has_shared_memory(launch))
        return;
    (void)setenv("OMPI_MCA_btl", "^tcp,ofi", 1);
    (void)setenv("OMPI_MCA_pml", "ob1", 1);
}

/* By default Open MPI first asks the other side whether a message longer than 64 KiB may come. On
 * TCP question and answer wait behind the data under way, on a slow link tens of milliseconds for
 * each round of a collective. No rank is more than two rounds ahead of another, so the messages of
 * rounds of the default size may come unasked. Open MPI takes memory for some of them. */
static void ask_for_eager_messages(void)
{
    char bytes[24];
    (void)snprintf(bytes, sizeof bytes, "%" PRIu64, COMMI_STAGING_BYTES / 2 + MPI_HEAD_BYTES);
    (void)setenv("OMPI_MCA_btl_tcp_eager_limit", bytes, 0);
    (void)setenv("OMPI_MCA_btl_tcp_max_send_size", bytes, 0);
}

static void ask_open_mpi(const commi_launch *launch)
{
    static const char open_mpi[] = "Open MPI";
    if (strncmp(commi_mpi_version(), open_mpi, sizeof open_mpi - 1) != 0)
        return;
    if (launch->is_one_host)
        ask_for_shared_memory(launch);
    else
        ask_for_eager_messages();
}

/* ---- the begin and the end of MPI ----
 *
 * A process can begin MPI once. A C program ends it with its only run of several ranks. In the
 * Python package, where a process opens run after run, and other code may have begun MPI, it ends
 * with the process. There MPI_Finalize waits as long as another rank works on: its program may do
 * more than this one after their last run, and mpirun ends the ranks whose peers have died. A
 * process that ends with a status other than 0 gives the others exit_ns to end too, since they may
 * wait for it, and then ends all ranks. */

#ifdef COMM_LOADS_MPI
static const bool ends_with_process = true;
#else
static const bool ends_with_process = false;
#endif

static int64_t exit_ns;     /* how long MPI_Finalize may take at the end of a run, or of a program
                             * that fails */
static int exit_status;     /* of the process, at its end */
static bool is_begun;       /* by us, and not ended */
static pid_t begun_pid;     /* the process that began it: one that it forks does not end it */
static bool is_run_open;    /* at the end of the process a thread may work in it still */
static bool has_run_failed; /* the last run: then mpirun ends all ranks */

/* MPI_Finalize waits for all ranks. It may never return if one of them has died. */
static void leave_mpi(comm *unused, const char *call)
{
    (void)unused;
    /* all work is done and reported: nothing is lost */
    log_warn("%s has not returned within %.1f s: a rank is gone; leaving it", call,
             (double)exit_ns * 1e-9);
    _exit(1);
}

static void end_this_rank(comm *unused, const char *call)
{
    (void)unused;
    (void)call;
    _exit(exit_status);
}

/* MPI_Abort comes while another thread is in MPI_Finalize, which MPI_THREAD_SERIALIZED does not
 * allow. Open MPI 4.1.4 ends all ranks nevertheless. If a version hangs there, this rank ends
 * alone, and mpirun ends the others. */
static void end_all_ranks(comm *unused, const char *call)
{
    commi_guard guard;
    (void)unused;
    log_warn(
        "the program of rank %u ended with status %d, and other ranks work on %.1f s later (%s "
        "has not returned): ending all ranks",
        world_rank, exit_status, (double)exit_ns * 1e-9, call);
    if (commi_guard_start(&guard, NULL, commi_now_ns() + exit_ns, end_this_rank) < 0)
        _exit(exit_status);
    commi_guard_enter(&guard, "MPI_Abort");
    (void)MPI_Abort(MPI_COMM_WORLD, exit_status);
    _exit(exit_status);
}

static void finalize_within_limit(void (*expire)(comm *unused, const char *call))
{
    static const char call[] = "MPI_Finalize";
    commi_guard guard;
    bool is_guarded = commi_guard_start(&guard, NULL, commi_now_ns() + exit_ns, expire) == 0;
    if (is_guarded)
        commi_guard_enter(&guard, call);
    (void)MPI_Finalize();
    if (is_guarded)
        commi_guard_stop(&guard);
    is_begun = false;
}

static void finalize_at_exit(int status, void *unused)
{
    int is_over = 0;
    (void)unused;
    if (!is_begun || begun_pid != getpid() || is_run_open || has_run_failed)
        return;
    exit_status = status;
    if (MPI_Finalized(&is_over) != MPI_SUCCESS || is_over) /* other code may have ended it */
        return;
    if (status != 0)
        finalize_within_limit(end_all_ranks);
    else
        (void)MPI_Finalize();
}

static int begin_mpi(comm *self)
{
    int provided = MPI_THREAD_SINGLE, has_begun = 0;
    int rc = MPI_Initialized(&has_begun);
    if (rc == MPI_SUCCESS && has_begun)
        rc = MPI_Query_thread(&provided);
    if (rc == MPI_SUCCESS && !has_begun) {
        commi_guard_enter(self->guard, "MPI_Init");
        rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
        commi_guard_enter(self->guard, NULL);
        is_begun = rc == MPI_SUCCESS;
        begun_pid = getpid();
        if (is_begun && ends_with_process)
            (void)on_exit(finalize_at_exit, NULL); /* after MPI_Init: it comes before MPI's own */
    }
    if (rc != MPI_SUCCESS)
        return mpi_error(rc, "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED)
        return err_set(
            ERR_BACKEND,
            "this MPI (%s) allows no calls from several threads: use one built with threads",
            commi_mpi_version());
    return 0;
}

int commi_mpi_open(comm *self, const commi_launch *launch)
{
#ifdef COMM_LOADS_MPI
    TRY(commi_mpi_load());
#endif
    exit_ns = atomic_load(&self->exit_ns);
    int is_over = 0;
    if (MPI_Finalized(&is_over) == MPI_SUCCESS && is_over) {
        if (launch->world == 1)
            return 0; /* one rank needs no MPI */
        return err_set(ERR_CONFIG,
                       "MPI has ended in this process, with its first run or by other code, and "
                       "cannot begin again: start a process for each run of several ranks");
    }
    ask_open_mpi(launch);
    TRY(begin_mpi(self));
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    TRY(check_world(self, launch));
    if (self->world == 1) {
        if (!ends_with_process)
            finalize_within_limit(leave_mpi);
        return 0;
    }
    struct commi_mpi *mpi = mem_alloc(1, sizeof *mpi, "comm MPI");
    if (!mpi)
        return -ENOMEM;
    commi_guard_enter(self->guard, "MPI_Comm_dup");
    int rc = MPI_Comm_dup(MPI_COMM_WORLD, &mpi->world);
    commi_guard_enter(self->guard, NULL);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_set_errhandler(mpi->world, MPI_ERRORS_RETURN);
    if (rc != MPI_SUCCESS) {
        mem_free(mpi);
        return mpi_error(rc, "duplicating the communicator");
    }
    self->mpi = mpi;
    is_run_open = true;
    return 0;
}

int commi_mpi_broadcast(comm *self, void *data, uint64_t bytes)
{
    assert(bytes <= INT_MAX);
    commi_guard_enter(self->guard, "MPI_Bcast");
    int rc = MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, self->mpi->world);
    commi_guard_enter(self->guard, NULL);
    return rc == MPI_SUCCESS ? 0 : mpi_error(rc, "MPI_Bcast");
}

void commi_mpi_close(comm *self, int code)
{
    exit_ns = atomic_load(&self->exit_ns);
    has_run_failed = code != 0;
    is_run_open = false;
    if (code == 0) {
        (void)MPI_Comm_free(&self->mpi->world);
        if (!ends_with_process)
            finalize_within_limit(leave_mpi);
    }
    mem_free(self->mpi);
    self->mpi = NULL;
}

static void keep_handle(commi_request *request, MPI_Request handle)
{
    memcpy(request->handle, &handle, sizeof handle);
    request->is_active = true;
}

int commi_mpi_send(comm *self, commi_request *request, const void *data, uint64_t bytes,
                   uint32_t rank)
{
    assert(!request->is_active && bytes <= INT_MAX);
    MPI_Request handle;
    int rc = MPI_Isend(data, (int)bytes, MPI_BYTE, (int)rank, TAG, self->mpi->world, &handle);
    if (rc != MPI_SUCCESS)
        return mpi_error(rc, "MPI_Isend");
    keep_handle(request, handle);
    return 0;
}

int commi_mpi_receive(comm *self, commi_request *request, void *data, uint64_t bytes, uint32_t rank)
{
    assert(!request->is_active && bytes <= INT_MAX);
    MPI_Request handle;
    int rc = MPI_Irecv(data, (int)bytes, MPI_BYTE, (int)rank, TAG, self->mpi->world, &handle);
    if (rc != MPI_SUCCESS)
        return mpi_error(rc, "MPI_Irecv");
    keep_handle(request, handle);
    return 0;
}

int commi_mpi_test(commi_request *request, bool *is_done)
{
    *is_done = true;
    if (!request->is_active)
        return 0;
    MPI_Request handle;
    int flag = 0;
    memcpy(&handle, request->handle, sizeof handle);
    int rc = MPI_Test(&handle, &flag, MPI_STATUS_IGNORE);
    memcpy(request->handle, &handle, sizeof handle);
    if (rc != MPI_SUCCESS)
        return mpi_error(rc, "MPI_Test");
    request->is_active = !flag;
    *is_done = flag != 0;
    return 0;
}

void commi_mpi_cancel(commi_request *request)
{
    if (!request->is_active)
        return;
    MPI_Request handle;
    memcpy(&handle, request->handle, sizeof handle);
    (void)MPI_Cancel(&handle);
    (void)MPI_Request_free(&handle);
    request->is_active = false;
}
