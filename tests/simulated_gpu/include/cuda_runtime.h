// The header that kernel files include: the runtime's interface, and in C++ also the language of
// kernels.
#ifndef SIMULATED_CUDA_RUNTIME_H
#define SIMULATED_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus
#include "simulated_vectors.h"
// (after the vector types)
#include "simulated_device.h"
// CUDA has these for functions of any type.
template <typename T>
static inline cudaError_t cudaFuncSetAttribute(T *kernel, enum cudaFuncAttribute which, int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), which, value);
}

template <typename T>
static inline cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, T *kernel)
{
    return cudaFuncGetAttributes(attributes, reinterpret_cast<const void *>(kernel));
}

template <typename T> static inline cudaError_t cudaMalloc(T **pointer, size_t bytes)
{
    return cudaMalloc(reinterpret_cast<void **>(pointer), bytes);
}
#endif
#endif
