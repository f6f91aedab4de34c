// GPU side of the check of a library's attention against ours: random operands, and the difference
// of two tensors. It runs when an attention is created, never in a step. It allocates nothing; its
// sums have a fixed order.
#include "kernels/cuda/device.cuh"

extern "C" {
#include "kernels/cuda/attention/attention_launch.h"
}

namespace
{

enum { THREADS = 256 };

// A bijection of 64 bits that mixes well (the finalizer of MurmurHash3).
__device__ __forceinline__ uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

// The values are sums of four uniform numbers, so they stay within 3.5 standard deviations.
template <typename T>
__global__ void __launch_bounds__(THREADS)
    fill(T *target, uint64_t count, float amplitude, uint64_t seed)
{
    for (uint64_t i = cudai_thread_idx(); i < count; i += cudai_thread_count()) {
        uint64_t bits = mix(i + (seed << 40));
        int sum = 0;
        for (int part = 0; part < 4; part++)
            sum += static_cast<int>(bits >> 16 * part & 0xffff);
        // Each number has the mean 32767.5 and the variance 65536^2 / 12.
        float value = (static_cast<float>(sum) - 131070.0f) * (1.7320508f / 65536.0f);
        target[i] = cudai_narrow<T>(value * amplitude);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    compare(const T *ours, const T *theirs, uint64_t rows, uint64_t columns, uint64_t stride,
            cudai_difference *parts)
{
    __shared__ cudai_difference of_thread[THREADS];
    cudai_difference total = {0.0, 0.0, 0.0, 0.0};
    for (uint64_t row = blockIdx.x; row < rows; row += gridDim.x)
        for (uint64_t column = threadIdx.x; column < columns; column += THREADS) {
            float a = cudai_widen(ours[row * stride + column]);
            float b = cudai_widen(theirs[row * stride + column]);
            double value = fabs(static_cast<double>(a));
            double error = fabs(static_cast<double>(a) - static_cast<double>(b));
            if (!(error < INFINITY)) { // otherwise a large sum of values could hide it
                error = INFINITY;
                value = 0.0;
            }
            total.error_squares += error * error;
            total.value_squares += value * value;
            total.error_max = error > total.error_max ? error : total.error_max;
            total.value_max = value > total.value_max ? value : total.value_max;
        }
    of_thread[threadIdx.x] = total;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            cudai_difference &mine = of_thread[threadIdx.x];
            const cudai_difference &other = of_thread[threadIdx.x + half];
            mine.error_squares += other.error_squares;
            mine.value_squares += other.value_squares;
            mine.error_max = other.error_max > mine.error_max ? other.error_max : mine.error_max;
            mine.value_max = other.value_max > mine.value_max ? other.value_max : mine.value_max;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0)
        parts[blockIdx.x] = of_thread[0];
}

} // namespace

extern "C" int cudai_attention_fill_launch(enum dtype type, void *target, uint64_t count,
                                           float amplitude, uint32_t seed, void *stream)
{
    dim3 grid(cudai_blocks(count, THREADS, 64));
    CUDAI_BY_TYPE(type, T,
                  return cudai_launch(fill<T>, grid, dim3(THREADS), 0,
                                      static_cast<cudaStream_t>(stream), static_cast<T *>(target),
                                      count, amplitude, seed));
}

extern "C" int cudai_attention_compare_launch(enum dtype type, const void *ours, const void *theirs,
                                              uint64_t rows, uint64_t columns, uint64_t stride,
                                              cudai_difference *parts, void *stream)
{
    CUDAI_BY_TYPE(type, T,
                  return cudai_launch(compare<T>, dim3(CUDAI_COMPARE_BLOCKS), dim3(THREADS), 0,
                                      static_cast<cudaStream_t>(stream),
                                      static_cast<const T *>(ours), static_cast<const T *>(theirs),
                                      rows, columns, stride, parts));
}
