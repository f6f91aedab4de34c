// Attention sinks and the heads of latent attention (kernels/ops_heads.h).
#include "kernels/cuda/rows/rows_launch.h"
#include "kernels/cuda/rows/rows_map.cuh"

enum { SINK_THREADS = 256, SINK_WARPS = SINK_THREADS / CUDAI_WARP };

// The index of the lse of a row of a head.
static __device__ __forceinline__ uint64_t lse_place(const attention_sinks_args &args, uint64_t row,
                                                     uint64_t head)
{
    return (row / args.tokens * args.heads + head) * args.tokens + row % args.tokens;
}

// One warp for each row of a head.
template <typename T>
static __global__ void __launch_bounds__(SINK_THREADS) sinks_kernel(attention_sinks_args args)
{
    const uint64_t items = args.batch * args.tokens * args.heads;
    const uint32_t lane = threadIdx.x % CUDAI_WARP;
    T *output = static_cast<T *>(args.output);
    for (uint64_t item = cudai_thread_idx() / CUDAI_WARP; item < items;
         item += cudai_thread_count() / CUDAI_WARP) {
        const uint64_t head = item % args.heads, first = item * args.value_dim;
        float *lse = args.lse + lse_place(args, item / args.heads, head);
        const float before = *lse, sink = cudai_widen(static_cast<const T *>(args.sinks)[head]);
        const float rest = expf(__fsub_rn(sink, before)); // infinite: the sink takes everything
        const float share = __fdiv_rn(1.0f, __fadd_rn(1.0f, rest));
        __syncwarp(); // all lanes have read lse
        for (uint64_t i = first + lane; i < first + args.value_dim; i += CUDAI_WARP)
            output[i] = cudai_narrow<T>(__fmul_rn(cudai_widen(output[i]), share));
        if (lane == 0)
            *lse = rest > 1.0f ? __fadd_rn(sink, log1pf(expf(__fsub_rn(before, sink))))
                               : __fadd_rn(before, log1pf(rest));
    }
}

// One block for each head. Warp w sums rows w, w + SINK_WARPS, and so on, in order.
template <typename T>
static __global__ void __launch_bounds__(SINK_THREADS) sinks_grad_kernel(attention_sinks_args args)
{
    __shared__ double sums[SINK_WARPS];
    const uint64_t rows = args.batch * args.tokens, head = blockIdx.x;
    const uint32_t lane = threadIdx.x % CUDAI_WARP, warp = threadIdx.x / CUDAI_WARP;
    const T *output = static_cast<const T *>(args.output);
    const T *grads = static_cast<const T *>(args.output_grad);
    const float sink = cudai_widen(static_cast<const T *>(args.sinks)[head]);
    double sum = 0.0;
    for (uint64_t row = warp; row < rows; row += SINK_WARPS) {
        const uint64_t first = (row * args.heads + head) * args.value_dim;
        float delta = 0.0f;
        for (uint64_t i = first + lane; i < first + args.value_dim; i += CUDAI_WARP)
            delta = __fmaf_rn(cudai_widen(output[i]), cudai_widen(grads[i]), delta);
        delta = cudai_warp_sum(delta);
        sum += static_cast<double>(
            __fmul_rn(expf(__fsub_rn(sink, args.lse[lse_place(args, row, head)])), delta));
    }
    if (lane == 0)
        sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int w = 1; w < SINK_WARPS; w++)
        sum += sums[w];
    args.sinks_grad[head] = __fsub_rn(args.sinks_grad[head], static_cast<float>(sum));
}

// A thread copies one element of a row after another: of `packed`, or, with BACK, of q, kv and
// common.
template <typename T, bool BACK>
static __global__ void __launch_bounds__(point_threads) heads_kernel(heads_join_args args)
{
    const uint64_t dim = args.own + args.shared, q_width = args.heads * dim;
    const uint64_t kv_dim = args.own + args.value, width = 2 * q_width + args.heads * args.value;
    const uint64_t at = cudai_thread_idx();
    const uint64_t own_width = q_width + args.heads * kv_dim; // of q and kv
    for (uint64_t row = row_first(); row < args.rows; row += row_step()) {
        T *q = static_cast<T *>(args.q) + row * q_width;
        T *kv = static_cast<T *>(args.kv) + row * args.heads * kv_dim;
        T *common = static_cast<T *>(args.common) + row * args.common_stride;
        T *packed = static_cast<T *>(args.packed) + row * width;
        if (at < own_width) { // elements that correspond one to one
            const uint64_t h = (at - q_width) / kv_dim, i = (at - q_width) % kv_dim;
            T *side = at < q_width ? q + at : kv + (at - q_width);
            T *place = packed + (at < q_width   ? at
                                 : i < args.own ? q_width + h * dim + i
                                                : 2 * q_width + h * args.value + i - args.own);
            if (BACK)
                *side = *place;
            else
                *place = *side;
        } else if (at < own_width + args.shared) {
            const uint64_t i = at - own_width;
            T *keys = packed + q_width + args.own + i;
            float sum = 0.0f;
            for (uint64_t h = 0; h < args.heads; h++) {
                if (BACK)
                    sum = __fadd_rn(sum, cudai_widen(keys[h * dim]));
                else
                    keys[h * dim] = common[i];
            }
            if (BACK)
                common[i] = cudai_narrow<T>(sum);
        }
    }
}

extern "C" int cudai_launch_attention_sinks(void *stream, int sm_count,
                                            const attention_sinks_args *args)
{
    uint64_t items = args->batch * args->tokens * args->heads;
    dim3 grid(cudai_blocks(items * CUDAI_WARP, SINK_THREADS, sm_count));
    CUDAI_BY_TYPE(args->type, T, {
        return cudai_launch(sinks_kernel<T>, grid, dim3(SINK_THREADS), 0,
                            static_cast<cudaStream_t>(stream), *args);
    });
}

extern "C" int cudai_launch_attention_sinks_backward(void *stream, const attention_sinks_args *args)
{
    dim3 grid(static_cast<unsigned>(args->heads));
    CUDAI_BY_TYPE(args->type, T, {
        return cudai_launch(sinks_grad_kernel<T>, grid, dim3(SINK_THREADS), 0,
                            static_cast<cudaStream_t>(stream), *args);
    });
}

extern "C" int cudai_launch_heads_join(void *stream, const heads_join_args *args, bool is_back)
{
    uint64_t items = args->heads * (2 * args->own + args->shared + args->value) + args->shared;
    row_grid over = row_grid_of(args->rows, items);
    CUDAI_BY_TYPE(args->type, T, {
        return cudai_launch(is_back ? heads_kernel<T, true> : heads_kernel<T, false>, over.grid,
                            over.block, 0, static_cast<cudaStream_t>(stream), *args);
    });
}
