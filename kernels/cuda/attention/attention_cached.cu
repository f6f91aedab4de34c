// Attention of new positions over cached keys and values (attention_cached_args in kernels/ops.h).
// First, k and v of the new positions are appended to the cached ones. Then a block of four warps
// computes one row of one head. Warp w visits every fourth position, from the w-th that it sees on,
// with a running maximum; each lane holds every 32nd element of the head. The four warps' results
// are combined in order, so results depend only on the operands.
//
// Everything is fp32. Each row and head reads keys and values once, so the kernel suits one new row
// at a time, where these reads are the limit. It is also correct for a chunk of a prompt, but
// slower than it could be.
#include "kernels/cuda/device.cuh"

extern "C" {
#include "kernels/cuda/attention/attention_launch.h"
}

namespace
{

enum { WARPS = 4, THREADS = WARPS * CUDAI_WARP, SHARE = CUDAI_HEAD_DIM_MAX / CUDAI_WARP };

// Appends heads of k or v, of `dim` elements, to the cached ones.
template <typename T>
__device__ __forceinline__ void keep_heads(const attention_cached_args &args, const void *rows,
                                           uint64_t dim, void *kept)
{
    const uint64_t columns = args.kv_heads * dim, count = args.rows * columns;
    for (uint64_t i = cudai_thread_idx(); i < count; i += cudai_thread_count()) {
        const uint64_t row = i / columns, column = i % columns, group = column / dim;
        const uint64_t to = (group * args.capacity + args.begin + row) * dim + column % dim;
        static_cast<T *>(kept)[to] = static_cast<const T *>(rows)[row * args.qkv_stride + column];
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) keep(attention_cached_args args)
{
    keep_heads<T>(args, args.k, args.head_dim, args.keys);
    keep_heads<T>(args, args.v, args.value_dim, args.values);
}

template <typename T> __global__ void __launch_bounds__(THREADS) attend(attention_cached_args args)
{
    __shared__ float largest_of[WARPS], sum_of[WARPS], output_of[WARPS][CUDAI_HEAD_DIM_MAX];
    const uint32_t lane = threadIdx.x % CUDAI_WARP, warp = threadIdx.x / CUDAI_WARP;
    const uint32_t dim = static_cast<uint32_t>(args.head_dim);
    const uint32_t value_dim = static_cast<uint32_t>(args.value_dim);
    const uint64_t row = blockIdx.x / args.heads, head = blockIdx.x % args.heads;
    const uint64_t group = head / (args.heads / args.kv_heads), count = args.begin + row + 1;
    const uint64_t first = args.window && count > args.window ? count - args.window : 0;
    const T *query = static_cast<const T *>(args.q) + row * args.qkv_stride + head * dim;
    const T *keys = static_cast<const T *>(args.keys) + group * args.capacity * dim;
    const T *values = static_cast<const T *>(args.values) + group * args.capacity * value_dim;
    float own[SHARE], output[SHARE], largest = -INFINITY, sum = 0.0f;
    if (args.sinks && warp == 0) { // the sink is a score without a value
        largest = cudai_widen(static_cast<const T *>(args.sinks)[head]);
        sum = 1.0f;
    }
#pragma unroll
    for (uint32_t i = 0; i < SHARE; i++) {
        const uint32_t d = lane + i * CUDAI_WARP;
        own[i] = d < dim ? __fmul_rn(cudai_widen(query[d]), args.scale) : 0.0f;
        output[i] = 0.0f;
    }
    for (uint64_t s = first + warp; s < count; s += WARPS) {
        float score = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < SHARE; i++) {
            const uint32_t d = lane + i * CUDAI_WARP;
            if (d < dim)
                score = __fmaf_rn(own[i], cudai_widen(keys[s * dim + d]), score);
        }
        score = cudai_warp_sum(score);
        if (args.soft_cap > 0.0f)
            score = __fmul_rn(args.soft_cap, tanhf(__fdiv_rn(score, args.soft_cap)));
        const float most = fmaxf(largest, score);
        const float shrink = largest == -INFINITY ? 0.0f : expf(__fsub_rn(largest, most));
        const float p = expf(__fsub_rn(score, most));
        largest = most;
        sum = __fmaf_rn(sum, shrink, p);
#pragma unroll
        for (uint32_t i = 0; i < SHARE; i++) {
            const uint32_t d = lane + i * CUDAI_WARP;
            if (d < value_dim)
                output[i] = __fmaf_rn(p, cudai_widen(values[s * value_dim + d]),
                                      __fmul_rn(output[i], shrink));
        }
    }
    if (lane == 0) {
        largest_of[warp] = largest;
        sum_of[warp] = sum;
    }
#pragma unroll
    for (uint32_t i = 0; i < SHARE; i++)
        output_of[warp][lane + i * CUDAI_WARP] = output[i];
    __syncthreads();
    float most = -INFINITY, total = 0.0f, factor[WARPS];
    for (uint32_t w = 0; w < WARPS; w++)
        most = fmaxf(most, largest_of[w]);
    for (uint32_t w = 0; w < WARPS; w++) {
        factor[w] = largest_of[w] == -INFINITY ? 0.0f : expf(__fsub_rn(largest_of[w], most));
        total = __fmaf_rn(sum_of[w], factor[w], total);
    }
    T *target = static_cast<T *>(args.output) + (row * args.heads + head) * value_dim;
    for (uint32_t d = threadIdx.x; d < value_dim; d += THREADS) {
        float value = 0.0f;
        for (uint32_t w = 0; w < WARPS; w++)
            value = __fmaf_rn(output_of[w][d], factor[w], value);
        target[d] = cudai_narrow<T>(__fdiv_rn(value, total));
    }
}

template <typename T>
cudaError_t launch(attention_cached_args args, int sm_count, cudaStream_t stream)
{
    if (args.value_dim == 0)
        args.value_dim = args.head_dim;
    const uint64_t kept = args.rows * args.kv_heads * args.head_dim;
    dim3 some(cudai_blocks(kept, THREADS, sm_count));
    cudaError_t error = cudai_launch(keep<T>, some, dim3(THREADS), 0, stream, args);
    if (error != cudaSuccess)
        return error;
    dim3 all(static_cast<unsigned>(args.rows * args.heads));
    return cudai_launch(attend<T>, all, dim3(THREADS), 0, stream, args);
}

} // namespace

extern "C" int cudai_attention_cached_launch(const attention_cached_args *args, int sm_count,
                                             void *stream)
{
    CUDAI_BY_TYPE(args->type, T,
                  return launch<T>(*args, sm_count, static_cast<cudaStream_t>(stream)));
}
