// The sort of choices by expert, and the rows of tokens and of slots (kernels/ops_experts.h).
//
// The sort counts and places the choices of one expert in one block, so that each block reads all
// choices twice: 2 * E * N * K integers from the second-level cache. There are no atomics; the
// place of a choice follows from votes and sums in a fixed order.
#include "kernels/cuda/rows/rows_launch.h"
#include "kernels/cuda/rows/rows_map.cuh"

enum { SORT_THREADS = 256, SORT_WARPS = SORT_THREADS / CUDAI_WARP, WEIGH_THREADS = 128 };

// The sum of a number of each warp over the warps before this one, and over all in *total. Every
// thread of the block calls it, with the same number in all threads of a warp.
static __device__ __forceinline__ unsigned warps_before(unsigned count, unsigned *total)
{
    __shared__ unsigned counts[SORT_WARPS];
    unsigned before = 0, warp = threadIdx.x / CUDAI_WARP;
    __syncthreads();
    if (threadIdx.x % CUDAI_WARP == 0)
        counts[warp] = count;
    __syncthreads();
    *total = 0;
    for (unsigned w = 0; w < SORT_WARPS; w++) {
        before += w < warp ? counts[w] : 0;
        *total += counts[w];
    }
    return before;
}

// offsets[1 + e] = the number of choices of expert e.
static __global__ void __launch_bounds__(SORT_THREADS) experts_count_kernel(experts_sort_args args)
{
    const uint64_t pairs = args.rows * args.choices;
    const int32_t expert = static_cast<int32_t>(blockIdx.x);
    unsigned count = 0, total;
    for (uint64_t first = 0; first < pairs; first += SORT_THREADS) {
        uint64_t pair = first + threadIdx.x;
        bool is_hit = pair < pairs && args.chosen[pair] == expert;
        count += static_cast<unsigned>(__popc(__ballot_sync(0xffffffffu, is_hit)));
    }
    warps_before(count, &total);
    if (threadIdx.x == 0)
        args.offsets[1 + expert] = static_cast<int32_t>(total);
}

// From counts to the first slots.
static __global__ void experts_offsets_kernel(experts_sort_args args)
{
    int64_t slot = 0, multiple = static_cast<int64_t>(args.multiple);
    args.offsets[0] = 0;
    for (uint64_t e = 1; e <= args.experts; e++) {
        slot += (args.offsets[e] + multiple - 1) / multiple * multiple;
        args.offsets[e] = static_cast<int32_t>(slot);
    }
}

static __global__ void __launch_bounds__(SORT_THREADS) experts_place_kernel(experts_sort_args args)
{
    const uint64_t pairs = args.rows * args.choices;
    const int32_t expert = static_cast<int32_t>(blockIdx.x);
    const unsigned lanes_below = (1u << threadIdx.x % CUDAI_WARP) - 1;
    uint64_t slot = static_cast<uint64_t>(args.offsets[expert]);
    for (uint64_t first = 0; first < pairs; first += SORT_THREADS) {
        uint64_t pair = first + threadIdx.x;
        bool is_hit = pair < pairs && args.chosen[pair] == expert;
        unsigned mask = __ballot_sync(0xffffffffu, is_hit), total;
        unsigned before = warps_before(static_cast<unsigned>(__popc(mask)), &total);
        if (is_hit) {
            uint64_t place = slot + before + static_cast<unsigned>(__popc(mask & lanes_below));
            args.order[place] = static_cast<int32_t>(pair);
            args.slots[pair] = static_cast<int32_t>(place);
        }
        slot += total;
    }
}

// A thread copies V elements of one row after another. channels % V == 0.
template <typename T, int V>
static __global__ void __launch_bounds__(point_threads)
    experts_gather_kernel(experts_rows_args args)
{
    const T *tokens = static_cast<const T *>(args.tokens);
    T *slot_rows = static_cast<T *>(args.slot_rows);
    const uint64_t at = cudai_thread_idx() * V;
    for (uint64_t i = row_first(); at < args.channels && i < args.slot_count; i += row_step()) {
        int32_t pair = args.order[args.slot_begin + i];
        cudai_pack<T, V> x = {};
        if (pair >= 0)
            x = cudai_load<T, V>(tokens +
                                 static_cast<uint64_t>(pair) / args.choices * args.channels + at);
        cudai_store<T, V>(slot_rows + i * args.channels + at, x);
    }
}

// A thread adds the choices of V elements of a token, in order.
template <typename T, int V>
static __global__ void __launch_bounds__(point_threads)
    experts_combine_kernel(experts_rows_args args)
{
    const T *slot_rows = static_cast<const T *>(args.slot_rows);
    const uint64_t at = cudai_thread_idx() * V;
    for (uint64_t row = row_first(); at < args.channels && row < args.rows; row += row_step()) {
        cudai_pack<float, V> sum = cudai_load<float, V>(args.sums + row * args.channels + at);
        for (uint64_t pair = row * args.choices; pair < (row + 1) * args.choices; pair++) {
            // wraps around if before these slots
            uint64_t i = static_cast<uint64_t>(args.slots[pair]) - args.slot_begin;
            if (i >= args.slot_count)
                continue;
            cudai_pack<T, V> x = cudai_load<T, V>(slot_rows + i * args.channels + at);
            float weight = args.weights ? args.weights[pair] : 1.0f;
#pragma unroll
            for (int k = 0; k < V; k++)
                sum.item[k] = __fadd_rn(sum.item[k], __fmul_rn(weight, cudai_widen(x.item[k])));
        }
        cudai_store<float, V>(args.sums + row * args.channels + at, sum);
    }
}

// One block for each slot.
template <typename T>
static __global__ void __launch_bounds__(WEIGH_THREADS) experts_weigh_kernel(experts_rows_args args)
{
    __shared__ float partial[CUDAI_WARP];
    const uint64_t begin = blockIdx.x * args.channels;
    const T *bias = static_cast<const T *>(args.bias);
    const T *output = args.output ? static_cast<const T *>(args.output) + begin : bias;
    T *grads = static_cast<T *>(args.slot_rows);
    const uint64_t slot = args.slot_begin + blockIdx.x;
    const int32_t pair = args.order ? args.order[slot] : static_cast<int32_t>(slot);
    if (pair < 0)
        return;
    float weight = args.weights[pair], sum = 0.0f;
    for (uint64_t c = threadIdx.x; c < args.channels; c += WEIGH_THREADS) {
        float grad = cudai_widen(grads[begin + c]);
        if (output)
            sum = __fadd_rn(sum, __fmul_rn(cudai_widen(output[c]), grad));
        grads[begin + c] = cudai_narrow<T>(__fmul_rn(weight, grad));
    }
    sum = cudai_block_sum(sum, partial);
    if (output && threadIdx.x == 0)
        args.weights_grad[pair] = args.output ? sum : __fadd_rn(args.weights_grad[pair], sum);
}

extern "C" int cudai_launch_experts_sort(void *stream, const experts_sort_args *args)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    dim3 grid(static_cast<unsigned>(args->experts)), block(SORT_THREADS);
    cudaError_t error = cudai_launch(experts_count_kernel, grid, block, 0, on, *args);
    if (error == cudaSuccess)
        error = cudai_launch(experts_offsets_kernel, dim3(1), dim3(1), 0, on, *args);
    if (error == cudaSuccess)
        error = cudai_launch(experts_place_kernel, grid, block, 0, on, *args);
    return error;
}

template <typename T>
static cudaError_t launch_gather(cudaStream_t stream, const experts_rows_args &args)
{
    constexpr int V = rows_pack_elems<T>;
    bool is_packed =
        args.channels % V == 0 && rows_are_aligned(rows_pack_bytes, args.tokens, args.slot_rows);
    row_grid over = row_grid_of(args.slot_count, is_packed ? args.channels / V : args.channels);
    return cudai_launch(is_packed ? experts_gather_kernel<T, V> : experts_gather_kernel<T, 1>,
                        over.grid, over.block, 0, stream, args);
}

template <typename T>
static cudaError_t launch_combine(cudaStream_t stream, const experts_rows_args &args)
{
    constexpr int V = 4; // the sums are fp32
    bool is_packed = args.channels % V == 0 && rows_are_aligned(V * sizeof(T), args.slot_rows) &&
                     rows_are_aligned(V * sizeof(float), args.sums);
    row_grid over = row_grid_of(args.rows, is_packed ? args.channels / V : args.channels);
    return cudai_launch(is_packed ? experts_combine_kernel<T, V> : experts_combine_kernel<T, 1>,
                        over.grid, over.block, 0, stream, args);
}

extern "C" int cudai_launch_experts_gather(void *stream, const experts_rows_args *args)
{
    CUDAI_BY_TYPE(args->type, T, return launch_gather<T>(static_cast<cudaStream_t>(stream), *args));
}

extern "C" int cudai_launch_experts_combine(void *stream, const experts_rows_args *args)
{
    CUDAI_BY_TYPE(args->type, T,
                  return launch_combine<T>(static_cast<cudaStream_t>(stream), *args));
}

extern "C" int cudai_launch_experts_weights_backward(void *stream, const experts_rows_args *args)
{
    dim3 grid(static_cast<unsigned>(args->slot_count));
    CUDAI_BY_TYPE(args->type, T, {
        return cudai_launch(experts_weigh_kernel<T>, grid, dim3(WEIGH_THREADS), 0,
                            static_cast<cudaStream_t>(stream), *args);
    });
}
