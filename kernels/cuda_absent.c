/* The stub of a build without CUDA: kernels_cuda returns NULL, and callers report that CUDA was not
 * built. */
#include "kernels/ops.h"

const kernel_ops *kernels_cuda(void)
{
    return NULL;
}
