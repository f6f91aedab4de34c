// Pointwise ops: addition, conversion, scaled rows, dropout, rotary positions. Each element is
// rounded where the CPU backend rounds it. rows_map.cuh says how elements are shared out to
// threads.
#include "kernels/cuda/rows/rows_launch.h"
#include "kernels/cuda/rows/rows_map.cuh"
#include "kernels/dropout_mask.h"
#include "kernels/rope_frequency.h"
#include "kernels/row_position.h"

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

// --- dropout -----------------------------------------------------------------------------------

// A thread takes V columns of one row after another. Where V > 1, its first element is a multiple
// of 4 within its sequence, so each quad has one owner; a single element computes a quad for
// itself.
template <typename T, int V>
static __global__ void __launch_bounds__(point_threads) dropout_kernel(dropout_args args)
{
    const uint64_t column = cudai_thread_idx() * V;
    if (column >= args.columns)
        return;
    const uint32_t threshold = dropout_threshold(args.probability);
    const float scale = dropout_scale(args.probability);
    dropout_place place = {args.seed, args.counter[0], 0, args.site};
    for (uint64_t row = row_first(); row < args.rows; row += row_step()) {
        const uint64_t token = args.row_begin + row, at = row * args.columns + column;
        const uint64_t elem = token % args.tokens * args.columns + column;
        place.sequence = args.counter[1] + static_cast<uint32_t>(token / args.tokens);
        cudai_pack<T, V> x = cudai_load<T, V>(static_cast<const T *>(args.source) + at), y;
#pragma unroll
        for (int k = 0; k < V; k += 4) {
            uint32_t words[4];
            dropout_words(place, (elem + k) / 4, words);
#pragma unroll
            for (int j = 0; j < (V < 4 ? V : 4); j++) {
                uint32_t word = V > 1 ? words[j] : words[elem % 4];
                float kept = __fmul_rn(scale, cudai_widen(x.item[k + j]));
                y.item[k + j] = cudai_narrow<T>(word < threshold ? 0.0f : kept);
            }
        }
        cudai_store<T, V>(static_cast<T *>(args.target) + at, y);
    }
}

template <typename T, int V>
static cudaError_t launch_dropout(cudaStream_t stream, const dropout_args &args)
{
    row_grid over = row_grid_of(args.rows, args.columns / V);
    return cudai_launch(dropout_kernel<T, V>, over.grid, over.block, 0, stream, args);
}

extern "C" int cudai_launch_dropout(void *stream, const dropout_args *args)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    CUDAI_BY_TYPE(args->type, T, {
        constexpr int V = rows_pack_elems<T>;
        if (rows_are_aligned(rows_pack_bytes, args->source, args->target) && args->columns % V == 0)
            return launch_dropout<T, V>(on, *args);
        return launch_dropout<T, 1>(on, *args);
    });
}

// --- rotary positions --------------------------------------------------------------------------

// A thread rotates V pairs of one head of one row after another. The pairs of a head are a multiple
// of V. `both` holds their elements: x of all pairs and then y, or pair after pair if INTERLEAVED.
template <typename T, int V, bool INTERLEAVED>
static __global__ void __launch_bounds__(point_threads) rope_kernel(rope_args args)
{
    const uint64_t pairs = args.rotated / 2, packs_of_head = pairs / V;
    const uint64_t item = cudai_thread_idx(), rows = args.batch * args.tokens;
    if (item >= args.heads * packs_of_head)
        return;
    const uint64_t head = item / packs_of_head, first = item % packs_of_head * V;
    for (uint64_t row = row_first(); row < rows; row += row_step()) {
        T *head_at = static_cast<T *>(args.data) + row * args.stride + head * args.head_dim;
        T *low_at = head_at + (INTERLEAVED ? 2 * first : first);
        T *high_at = low_at + (INTERLEAVED ? V : pairs);
        const float *turn_at =
            args.table + (row_position(row, args.tokens, args.begins) * pairs + first) * 2;
        const cudai_pack<T, V> low = cudai_load<T, V>(low_at), high = cudai_load<T, V>(high_at);
        constexpr int FLOATS = V > 1 ? 4 : 1; // table entries per access; it is aligned if V > 1
        float turn[2 * V];
#pragma unroll
        for (int k = 0; k < 2 * V; k += FLOATS) {
            cudai_pack<float, FLOATS> part = cudai_load<float, FLOATS>(turn_at + k);
#pragma unroll
            for (int j = 0; j < FLOATS; j++)
                turn[k + j] = part.item[j];
        }
        T both[2 * V];
#pragma unroll
        for (int k = 0; k < V; k++) {
            both[k] = low.item[k];
            both[V + k] = high.item[k];
        }
#pragma unroll
        for (int k = 0; k < V; k++) {
            T &x_at = both[INTERLEAVED ? 2 * k : k], &y_at = both[INTERLEAVED ? 2 * k + 1 : V + k];
            float cosine = turn[2 * k], sine = args.inverse ? -turn[2 * k + 1] : turn[2 * k + 1];
            float x = cudai_widen(x_at), y = cudai_widen(y_at);
            x_at = cudai_narrow<T>(__fsub_rn(__fmul_rn(x, cosine), __fmul_rn(y, sine)));
            y_at = cudai_narrow<T>(__fadd_rn(__fmul_rn(x, sine), __fmul_rn(y, cosine)));
        }
        cudai_pack<T, V> new_low, new_high;
#pragma unroll
        for (int k = 0; k < V; k++) {
            new_low.item[k] = both[k];
            new_high.item[k] = both[V + k];
        }
        cudai_store<T, V>(low_at, new_low);
        cudai_store<T, V>(high_at, new_high);
    }
}

template <typename T, int V>
static cudaError_t launch_rope(cudaStream_t stream, const rope_args &args)
{
    row_grid over = row_grid_of(args.batch * args.tokens, args.heads * (args.rotated / 2 / V));
    if (args.interleaved)
        return cudai_launch(rope_kernel<T, V, true>, over.grid, over.block, 0, stream, args);
    return cudai_launch(rope_kernel<T, V, false>, over.grid, over.block, 0, stream, args);
}

extern "C" int cudai_launch_rope(void *stream, const rope_args *asked)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    rope_args args = *asked;
    args.rotated = args.rotated ? args.rotated : args.head_dim;
    CUDAI_BY_TYPE(args.type, T, {
        constexpr int V = rows_pack_elems<T>;
        if (rows_are_aligned(rows_pack_bytes, args.data, args.table) && args.rotated / 2 % V == 0 &&
            args.head_dim % V == 0 && args.stride % V == 0)
            return launch_rope<T, V>(on, args);
        return launch_rope<T, 1>(on, args);
    });
}

// The frequencies of some pairs, from the host. They travel with the launch.
static constexpr uint64_t table_pairs = 128;
struct rope_frequencies {
    double of[table_pairs];
    double attention_factor;
    uint64_t first, count; // pairs
};

static __global__ void __launch_bounds__(point_threads)
    rope_table_kernel(float *table, uint64_t tokens, uint64_t pairs, rope_frequencies frequencies)
{
    const uint64_t count = tokens * frequencies.count;
    for (uint64_t at = cudai_thread_idx(); at < count; at += cudai_thread_count()) {
        const uint64_t position = at / frequencies.count, i = at % frequencies.count;
        double angle = __dmul_rn(static_cast<double>(position), frequencies.of[i]);
        float *turn = table + (position * pairs + frequencies.first + i) * 2;
        turn[0] = static_cast<float>(__dmul_rn(cos(angle), frequencies.attention_factor));
        turn[1] = static_cast<float>(__dmul_rn(sin(angle), frequencies.attention_factor));
    }
}

extern "C" int cudai_launch_rope_table(void *stream, int sm_count, const rope_table_args *args)
{
    const uint64_t pairs = args->head_dim / 2;
    rope_frequencies frequencies;
    frequencies.attention_factor = rope_attention_factor(args);
    for (uint64_t first = 0; first < pairs; first += table_pairs) {
        frequencies.first = first;
        frequencies.count = pairs - first < table_pairs ? pairs - first : table_pairs;
        for (uint64_t i = 0; i < frequencies.count; i++)
            frequencies.of[i] = rope_frequency(args, first + i);
        dim3 grid(cudai_blocks(args->tokens * frequencies.count, point_threads, sm_count));
        cudaError_t error = cudai_launch(rope_table_kernel, grid, dim3(point_threads), 0,
                                         static_cast<cudaStream_t>(stream), args->table,
                                         args->tokens, pairs, frequencies);
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}
