/* Which backends this build has besides the CPU's. */
#include "kernels/ops.h"

/* The CUDA backend is not part of this version; callers see NULL and say so. */
const kernel_ops *kernels_cuda(void)
{
    return NULL;
}
