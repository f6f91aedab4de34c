// Pointwise ops: addition, conversion, rotary positions, scaled rows. Each element is rounded where
// the CPU backend rounds it. rows_map.cuh says how elements are shared out to threads.
#include "kernels/cuda/rows_launch.h"
#include "kernels/cuda/rows_map.cuh"
#include "kernels/rope_frequency.h"

// --- the functions -----------------------------------------------------------------------------

struct same_function {
    static __device__ __forceinline__ float apply(float x)
    {
        return x;
    }
};

struct add_function {
    static __device__ __forceinline__ float apply(float a, float b)
    {
        return __fadd_rn(a, b);
    }
};

// --- maps over a whole array -------------------------------------------------------------------

extern "C" int cudai_launch_add(void *stream, int sm_count, enum dtype type, uint64_t count,
                                const void *a, const void *b, void *out)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    CUDAI_BY_TYPE(type, T, return launch_map_pair<add_function, T>(on, sm_count, a, b, out, count));
}

template <typename S>
static cudaError_t launch_convert_from(cudaStream_t stream, int sm_count, const void *source,
                                       void *target, enum dtype target_type, uint64_t count)
{
    CUDAI_BY_TYPE(target_type, T,
                  return launch_map<same_function, S, T>(stream, sm_count, source, target, count));
}

extern "C" int cudai_launch_convert(void *stream, int sm_count, const void *source,
                                    enum dtype source_type, void *target, enum dtype target_type,
                                    uint64_t count)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    CUDAI_BY_TYPE(source_type, S,
                  return launch_convert_from<S>(on, sm_count, source, target, target_type, count));
}

// --- scaled rows -------------------------------------------------------------------------------

// A thread takes V columns of one row after another.
template <typename T, int V, bool ADDS>
static __global__ void __launch_bounds__(point_threads) scale_rows_kernel(scale_rows_args args)
{
    const uint64_t column = cudai_thread_idx() * V;
    if (column >= args.columns)
        return;
    for (uint64_t row = row_first(); row < args.rows; row += row_step()) {
        const T *source = static_cast<const T *>(args.source) + row * args.source_stride + column;
        T *target = static_cast<T *>(args.target) + row * args.target_stride + column;
        cudai_pack<T, V> x = cudai_load<T, V>(source), y;
        if constexpr (ADDS)
            y = cudai_load<T, V>(target);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float scaled = __fmul_rn(args.scale, cudai_widen(x.item[k]));
            if constexpr (ADDS)
                scaled = __fadd_rn(cudai_widen(y.item[k]), scaled);
            y.item[k] = cudai_narrow<T>(scaled);
        }
        cudai_store<T, V>(target, y);
    }
}

template <typename T, int V>
static cudaError_t launch_scale_rows(cudaStream_t stream, const scale_rows_args &args)
{
    row_grid over = row_grid_of(args.rows, args.columns / V);
    if (args.accumulates)
        return cudai_launch(scale_rows_kernel<T, V, true>, over.grid, over.block, 0, stream, args);
    return cudai_launch(scale_rows_kernel<T, V, false>, over.grid, over.block, 0, stream, args);
}

extern "C" int cudai_launch_scale_rows(void *stream, const scale_rows_args *args)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    CUDAI_BY_TYPE(args->type, T, {
        constexpr int V = rows_pack_elems<T>;
        if (rows_are_aligned(rows_pack_bytes, args->source, args->target) &&
            args->columns % V == 0 && args->source_stride % V == 0 && args->target_stride % V == 0)
            return launch_scale_rows<T, V>(on, *args);
        return launch_scale_rows<T, 1>(on, *args);
    });
}

// --- rotary positions --------------------------------------------------------------------------

// A thread rotates V pairs of one head of one row after another. pairs % V == 0, pairs = D/2. The
// table's rows are [pairs, 2].
template <typename T, int V>
static __global__ void __launch_bounds__(point_threads) rope_kernel(rope_args args)
{
    const uint64_t pairs = args.head_dim / 2, packs_of_head = pairs / V;
    const uint64_t item = cudai_thread_idx(), rows = args.batch * args.tokens;
    if (item >= args.heads * packs_of_head)
        return;
    const uint64_t head = item / packs_of_head, first = item % packs_of_head * V;
    for (uint64_t row = row_first(); row < rows; row += row_step()) {
        T *low_at = static_cast<T *>(args.data) + row * args.stride + head * args.head_dim + first;
        const float *turn_at = args.table + ((row % args.tokens) * pairs + first) * 2;
        cudai_pack<T, V> low = cudai_load<T, V>(low_at), high = cudai_load<T, V>(low_at + pairs);
        constexpr int FLOATS = V > 1 ? 4 : 1; // table entries per access; it is aligned if V > 1
        float turn[2 * V];
#pragma unroll
        for (int k = 0; k < 2 * V; k += FLOATS) {
            cudai_pack<float, FLOATS> part = cudai_load<float, FLOATS>(turn_at + k);
#pragma unroll
            for (int j = 0; j < FLOATS; j++)
                turn[k + j] = part.item[j];
        }
#pragma unroll
        for (int k = 0; k < V; k++) {
            float cosine = turn[2 * k], sine = args.inverse ? -turn[2 * k + 1] : turn[2 * k + 1];
            float x = cudai_widen(low.item[k]), y = cudai_widen(high.item[k]);
            low.item[k] = cudai_narrow<T>(__fsub_rn(__fmul_rn(x, cosine), __fmul_rn(y, sine)));
            high.item[k] = cudai_narrow<T>(__fadd_rn(__fmul_rn(x, sine), __fmul_rn(y, cosine)));
        }
        cudai_store<T, V>(low_at, low);
        cudai_store<T, V>(low_at + pairs, high);
    }
}

template <typename T, int V>
static cudaError_t launch_rope(cudaStream_t stream, const rope_args &args)
{
    row_grid over = row_grid_of(args.batch * args.tokens, args.heads * (args.head_dim / 2 / V));
    return cudai_launch(rope_kernel<T, V>, over.grid, over.block, 0, stream, args);
}

extern "C" int cudai_launch_rope(void *stream, const rope_args *args)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    uint64_t pairs = args->head_dim / 2;
    CUDAI_BY_TYPE(args->type, T, {
        constexpr int V = rows_pack_elems<T>;
        if (rows_are_aligned(rows_pack_bytes, args->data, args->table) && pairs % V == 0 &&
            args->stride % V == 0)
            return launch_rope<T, V>(on, *args);
        return launch_rope<T, 1>(on, *args);
    });
}

// The same formula as in the CPU backend, in double.
static __global__ void __launch_bounds__(point_threads) rope_table_kernel(rope_table_args args)
{
    float *table = args.table;
    const uint64_t pairs = args.head_dim / 2, count = args.tokens * pairs;
    for (uint64_t at = cudai_thread_idx(); at < count; at += cudai_thread_count()) {
        double exponent = -2.0 * static_cast<double>(at % pairs) / static_cast<double>(2 * pairs);
        double frequency = rope_scaled_frequency(&args, pow(args.theta, exponent));
        double angle = __dmul_rn(static_cast<double>(at / pairs), frequency);
        table[2 * at] = static_cast<float>(cos(angle));
        table[2 * at + 1] = static_cast<float>(sin(angle));
    }
}

extern "C" int cudai_launch_rope_table(void *stream, int sm_count, const rope_table_args *args)
{
    dim3 grid(cudai_blocks(args->tokens * (args->head_dim / 2), point_threads, sm_count));
    return cudai_launch(rope_table_kernel, grid, dim3(point_threads), 0,
                        static_cast<cudaStream_t>(stream), *args);
}
