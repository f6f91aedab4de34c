/* A build without MPI: what needs MPI is refused with a sentence. See comm_internal.h.
 * Compiled without the warning about unused parameters. */
#include "comm/comm_internal.h"

#include <errno.h>

int commi_mpi_open(comm *self, const commi_launch *launch)
{
    return err_set(
        ERR_CONFIG,
        "%s started several processes, and this build has no MPI: build with -DSLUICE_MPI=ON "
        "(Debian: libopenmpi-dev), or start one process",
        launch->launcher);
}

static int absent(void)
{
    return err_set(-ENOTSUP, "this build has no MPI: build with -DSLUICE_MPI=ON");
}

int commi_mpi_broadcast(comm *self, void *data, uint64_t bytes)
{
    return absent();
}

void commi_mpi_close(comm *self, int code)
{
}

const char *commi_mpi_version(void)
{
    return "";
}

int commi_mpi_send(comm *self, commi_request *request, const void *data, uint64_t bytes,
                   uint32_t rank)
{
    return absent();
}

int commi_mpi_receive(comm *self, commi_request *request, void *data, uint64_t bytes, uint32_t rank)
{
    return commi_mpi_send(self, request, data, bytes, rank);
}

int commi_mpi_test(commi_request *request, bool *is_done)
{
    *is_done = true;
    return 0;
}

void commi_mpi_cancel(commi_request *request)
{
    request->is_active = false;
}
