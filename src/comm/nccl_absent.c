/* A build without NCCL: the backend nccl is refused, with advice how to get it. See comm.h.
 * Compiled without the warning about unused parameters. */
#include <errno.h>

#include "comm/comm_internal.h"

int comm_nccl_check(void)
{
    return err_set(
        -ENOTSUP,
        "this build has no NCCL: install CUDA's toolkit and NCCL's header (nccl.h, package "
        "libnccl-dev) and build again with -DSLUICE_NCCL=ON; or set comm.backend to \"staged\"");
}

int commi_open_nccl(comm *self, const comm_open_config *config)
{
    return comm_nccl_check();
}
