// Basics for every kernel file: element types and their conversions, packs of elements that move in
// one access, sums over warps and blocks in a fixed order, and launches.
//
// nvcc compiles the kernel files for GPUs. With SLUICE_SIMULATED_GPU a host compiler compiles the
// same files against tests/simulated_gpu, which runs every thread of a block on the CPU. So kernels
// are tested on machines without a GPU. For this reason kernels use CUDA's own names (threadIdx,
// __shared__, __syncthreads, __shfl_xor_sync, __fmaf_rn, ...), get dynamic shared memory through
// CUDAI_DYNAMIC_SHARED, are launched through cudai_launch, and have a plain C++ form for every
// inline PTX.
//
// Element counts and indices are 64-bit. Arithmetic whose bits are promised uses the _rn
// intrinsics, which the compiler never fuses.
#ifndef SLUICE_KERNELS_CUDA_DEVICE_H
#define SLUICE_KERNELS_CUDA_DEVICE_H

#include <cuda_runtime.h>
#include <stdint.h>

extern "C" {
#include "kernels/cuda/cuda_internal.h"
}

#ifdef SLUICE_SIMULATED_GPU
#include <simulated_launch.h> // simulated_launch, simulated_dynamic_shared, simulated fp16
#define CUDAI_DYNAMIC_SHARED(type, name)                                                           \
    type *name = static_cast<type *>(simulated_dynamic_shared())
#else
#include <cuda_fp16.h>
#define CUDAI_DYNAMIC_SHARED(type, name)                                                           \
    extern __shared__ __align__(128) unsigned char cudai_dynamic_shared[];                         \
    type *name = reinterpret_cast<type *>(cudai_dynamic_shared)
#endif

enum { CUDAI_WARP = 32 };

// --- launches ----------------------------------------------------------------------------------

// Enqueues the kernel; its arguments are converted to the kernel's parameter types. Returns CUDA's
// error of the launch, not of the run. For more than 48 KiB of dynamic shared memory,
// cudai_allow_shared must be called before.
template <typename... P, typename... A>
static inline cudaError_t cudai_launch(void (*kernel)(P...), dim3 grid, dim3 block,
                                       size_t shared_bytes, cudaStream_t stream, A... args)
{
#ifdef SLUICE_SIMULATED_GPU
    return simulated_launch(kernel, grid, block, shared_bytes, stream, static_cast<P>(args)...);
#else
    kernel<<<grid, block, shared_bytes, stream>>>(static_cast<P>(args)...);
    return cudaGetLastError();
#endif
}

// Allows this much dynamic shared memory. Also loads the kernel: CUDA documents that a query of a
// kernel's attributes loads it.
template <typename... P>
static inline cudaError_t cudai_allow_shared(void (*kernel)(P...), size_t shared_bytes)
{
    const void *function = reinterpret_cast<const void *>(kernel);
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, function);
    if (error != cudaSuccess)
        return error;
    return cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(shared_bytes));
}

// Returns the blocks for a grid-stride loop over `items` pieces of work, one per thread: enough to
// fill the GPU several times, but never more than there is work for.
static inline unsigned cudai_blocks(uint64_t items, unsigned threads, int sm_count)
{
    uint64_t wanted = (items + threads - 1) / threads;
    uint64_t most = static_cast<uint64_t>(sm_count) * 32;
    uint64_t blocks = wanted < most ? wanted : most;
    return blocks > 0 ? static_cast<unsigned>(blocks) : 1u;
}

// The index of this thread in the grid, and the number of threads in the grid, both in x.
static __device__ __forceinline__ uint64_t cudai_thread_idx()
{
    return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ uint64_t cudai_thread_count()
{
    return static_cast<uint64_t>(gridDim.x) * blockDim.x;
}

// --- element types -----------------------------------------------------------------------------

struct cudai_bf16 {
    uint16_t bits;
};
struct cudai_fp16 {
    uint16_t bits;
};

static __device__ __forceinline__ float cudai_widen(float value)
{
    return value;
}

static __device__ __forceinline__ float cudai_widen(cudai_bf16 value)
{
    return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}

// A NaN keeps its sign and payload, as in base/dtype.h. The hardware's conversions would make it
// one pattern.
static __device__ __forceinline__ float cudai_widen(cudai_fp16 value)
{
    uint32_t bits = value.bits;
    if ((bits & 0x7fffu) > 0x7c00u)
        return __uint_as_float((bits & 0x8000u) << 16 | 0x7f800000u | (bits & 0x3ffu) << 13);
#ifdef SLUICE_SIMULATED_GPU
    return simulated_widen_fp16(value.bits);
#else
    return __half2float(__ushort_as_half(value.bits));
#endif
}

// Rounds to nearest even; NaN stays NaN. The bits are those of base/dtype.h.
template <typename T> static __device__ __forceinline__ T cudai_narrow(float value);

template <> __device__ __forceinline__ float cudai_narrow<float>(float value)
{
    return value;
}

template <> __device__ __forceinline__ cudai_bf16 cudai_narrow<cudai_bf16>(float value)
{
    uint32_t bits = __float_as_uint(value);
    uint32_t rounded = (bits & 0x7fffffffu) > 0x7f800000u
                           ? (bits >> 16) | 0x40u
                           : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return cudai_bf16{static_cast<uint16_t>(rounded)};
}

template <> __device__ __forceinline__ cudai_fp16 cudai_narrow<cudai_fp16>(float value)
{
    uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) { // NaN: quieted, with sign and payload
        uint32_t half = (bits >> 16 & 0x8000u) | 0x7e00u | (magnitude >> 13 & 0x3ffu);
        return cudai_fp16{static_cast<uint16_t>(half)};
    }
#ifdef SLUICE_SIMULATED_GPU
    return cudai_fp16{simulated_narrow_fp16(value)};
#else
    return cudai_fp16{__half_as_ushort(__float2half_rn(value))};
#endif
}

// N elements that are loaded and stored as one aligned access.
template <typename T, int N> struct alignas(sizeof(T) * N) cudai_pack {
    T item[N];
};

template <typename T, int N>
static __device__ __forceinline__ cudai_pack<T, N> cudai_load(const T *source)
{
    return *reinterpret_cast<const cudai_pack<T, N> *>(source);
}

template <typename T, int N>
static __device__ __forceinline__ void cudai_store(T *target, const cudai_pack<T, N> &value)
{
    *reinterpret_cast<cudai_pack<T, N> *>(target) = value;
}

// Runs the statement with T defined as the element type of `dtype`:
//   CUDAI_BY_TYPE(args->type, T, return launch_norm<T>(...));
#define CUDAI_BY_TYPE(dtype, T, ...)                                                               \
    do {                                                                                           \
        switch (dtype) {                                                                           \
        case DTYPE_FP32: {                                                                         \
            typedef float T;                                                                       \
            __VA_ARGS__;                                                                           \
        } break;                                                                                   \
        case DTYPE_BF16: {                                                                         \
            typedef cudai_bf16 T;                                                                  \
            __VA_ARGS__;                                                                           \
        } break;                                                                                   \
        default: {                                                                                 \
            typedef cudai_fp16 T;                                                                  \
            __VA_ARGS__;                                                                           \
        } break;                                                                                   \
        }                                                                                          \
    } while (0)

// --- sums in a fixed order ---------------------------------------------------------------------

// A butterfly: every lane gets the same bits, since each addition has the same two operands in both
// lanes. It is a true addition; the compiler cannot fuse a product into it.
static __device__ __forceinline__ float cudai_warp_sum(float value)
{
    for (int step = CUDAI_WARP / 2; step > 0; step /= 2)
        value = __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}

static __device__ __forceinline__ float cudai_warp_max(float value)
{
    for (int step = CUDAI_WARP / 2; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}

// Sum and maximum over a block of any multiple of 32 threads, at most 1024. Every thread gets the
// result. `partial` is shared memory of 32 floats, which is free again after the call. All threads
// of the block must call it.
static __device__ __forceinline__ float cudai_block_sum(float value, float *partial)
{
    unsigned lane = threadIdx.x % CUDAI_WARP, warp = threadIdx.x / CUDAI_WARP;
    unsigned warps = blockDim.x / CUDAI_WARP;
    value = cudai_warp_sum(value);
    if (lane == 0)
        partial[warp] = value;
    __syncthreads();
    float total = cudai_warp_sum(lane < warps ? partial[lane] : 0.0f);
    __syncthreads();
    return total;
}

static __device__ __forceinline__ float cudai_block_max(float value, float *partial)
{
    unsigned lane = threadIdx.x % CUDAI_WARP, warp = threadIdx.x / CUDAI_WARP;
    unsigned warps = blockDim.x / CUDAI_WARP;
    value = cudai_warp_max(value);
    if (lane == 0)
        partial[warp] = value;
    __syncthreads();
    float most = cudai_warp_max(lane < warps ? partial[lane] : -INFINITY);
    __syncthreads();
    return most;
}

#endif
