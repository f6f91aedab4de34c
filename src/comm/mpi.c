/* The only file that calls MPI; comm.h says on which thread (one at a time: MPI_THREAD_SERIALIZED).
 * MPI's error handler returns, so every failure becomes a code with a text. */
#include "comm/comm_internal.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

enum { TAG = 77 }; /* of all messages: their order tells them apart */

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
    self->rank = (uint32_t)rank;
    self->world = (uint32_t)size;
    return 0;
}

int commi_mpi_open(comm *self, const commi_launch *launch)
{
    int provided = MPI_THREAD_SINGLE;
    int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    if (rc != MPI_SUCCESS)
        return mpi_error(rc, "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED)
        return err_set(
            ERR_BACKEND,
            "this MPI (%s) allows no calls from several threads: use one built with threads",
            commi_mpi_version());
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    TRY(check_world(self, launch));
    if (self->world == 1) {
        (void)MPI_Finalize();
        return 0;
    }
    struct commi_mpi *mpi = mem_alloc(1, sizeof *mpi, "comm MPI");
    if (!mpi)
        return -ENOMEM;
    rc = MPI_Comm_dup(MPI_COMM_WORLD, &mpi->world);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_set_errhandler(mpi->world, MPI_ERRORS_RETURN);
    if (rc != MPI_SUCCESS) {
        mem_free(mpi);
        return mpi_error(rc, "duplicating the communicator");
    }
    self->mpi = mpi;
    return 0;
}

int commi_mpi_broadcast(comm *self, void *data, uint64_t bytes)
{
    assert(bytes <= INT_MAX);
    int rc = MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, self->mpi->world);
    return rc == MPI_SUCCESS ? 0 : mpi_error(rc, "MPI_Bcast");
}

/* MPI_Finalize waits for all ranks. It never returns if one of them ended after it left: then this
 * guard ends the process. */
struct guard {
    pthread_t thread;
    int fd; /* eventfd: readable when MPI has ended */
    int limit_ms;
};

static void *run_guard(void *argument)
{
    const struct guard *self = argument;
    struct pollfd fd = {.fd = self->fd, .events = POLLIN};
    int count;
    do
        count = poll(&fd, 1, self->limit_ms);
    while (count < 0 && errno == EINTR);
    if (count == 0) { /* all work is done and reported: nothing is lost */
        log_warn("MPI has not ended within %d ms: a rank is gone; leaving it", self->limit_ms);
        _exit(1);
    }
    return NULL;
}

static void finalize(const comm *self)
{
    int64_t limit_ms = atomic_load(&self->exit_ns) / 1000000;
    struct guard guard = {.limit_ms = limit_ms < INT_MAX ? (int)limit_ms : INT_MAX};
    sigset_t all, before;
    sigfillset(&all);
    guard.fd = eventfd(0, EFD_CLOEXEC);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool is_guarded = guard.fd >= 0 && pthread_create(&guard.thread, NULL, run_guard, &guard) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)MPI_Finalize();
    if (is_guarded) {
        (void)eventfd_write(guard.fd, 1);
        pthread_join(guard.thread, NULL);
    }
    if (guard.fd >= 0)
        close(guard.fd);
}

void commi_mpi_close(comm *self, int code)
{
    if (code == 0) {
        (void)MPI_Comm_free(&self->mpi->world);
        finalize(self);
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
