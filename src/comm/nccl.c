/* The backend nccl: not there yet. */
#include "comm/comm_internal.h"

#include <errno.h>

int commi_open_nccl(comm *self, const comm_open_config *config)
{
    (void)self;
    (void)config;
    return err_set(-ENOTSUP, "NCCL is not built in");
}
