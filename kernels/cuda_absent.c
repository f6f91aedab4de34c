/* A build without CUDA: there is no such table; callers see NULL and say so. */
#include "kernels/ops.h"

const kernel_ops *kernels_cuda(void)
{
    return NULL;
}
