/* Reads the properties of the GPU, and converts CUDA's errors to ours. */
#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_internal.h"

int cudai_check(int cuda_error, const char *what)
{
    if (cuda_error == cudaSuccess)
        return 0;
    cudaError_t code = (cudaError_t)cuda_error;
    (void)cudaGetLastError(); /* otherwise the next call would report it again */
    return err_set(ERR_BACKEND, "%s: CUDA says %s (%s)", what, cudaGetErrorName(code),
                   cudaGetErrorString(code));
}

static int attribute(int device_idx, enum cudaDeviceAttr which, int *value)
{
    *value = 0;
    return cudai_check(cudaDeviceGetAttribute(value, which, device_idx), "asking for the GPU");
}

int cudai_context_fill(kernel_context *context, int device_idx)
{
    int shared_bytes;
    TRY(cudai_check(cudaSetDevice(device_idx), "choosing the GPU"));
    context->device_idx = device_idx;
    TRY(attribute(device_idx, cudaDevAttrMultiProcessorCount, &context->sm_count));
    TRY(attribute(device_idx, cudaDevAttrComputeCapabilityMajor, &context->compute_major));
    TRY(attribute(device_idx, cudaDevAttrComputeCapabilityMinor, &context->compute_minor));
    TRY(attribute(device_idx, cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared_bytes));
    context->shared_bytes_max = (uint64_t)shared_bytes;
    return 0;
}
