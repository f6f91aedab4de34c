// LayerNorm and RMSNorm, forward and backward, and sums of columns.
//
// Forward: a warp or a block per row. The row stays in registers between the mean, the squared
// distances from it and the output. Rows of more than 4096 packs are read again instead.
//
// Backward: a block takes some rows one after another. It keeps the columns' sums for the
// parameters' gradients in registers and writes them to its row of scratch. A second kernel adds
// the blocks in order, in double. For rows of more than 1024 packs a separate kernel sums the
// columns. It runs before the input gradient, which may overwrite what this kernel reads.
//
// The assignment of a row's elements to threads depends only on its length and type, and arithmetic
// uses _rn intrinsics. So the bits are the same on every GPU and for every alignment. Elementwise
// parts round where the CPU backend rounds.
#include "kernels/cuda/rows/rows_launch.h"
#include "kernels/cuda/rows/rows_pack.cuh"

static constexpr int block_max = 1024;      // threads
static constexpr int forward_threads = 256; // of a block, for rows of up to 1024 packs
static constexpr int column_rows = 8;       // warps of a column sum; each adds every eighth row
static constexpr int fold_slices = 32;      // warps that share a column's blocks in a fold
static constexpr uint64_t grid_max = 1ull << 30; // blocks in x

// --- forward -----------------------------------------------------------------------------------

template <int WIDTH> static __device__ __forceinline__ float row_sum(float value, float *partial)
{
    return WIDTH == CUDAI_WARP ? cudai_warp_sum(value) : cudai_block_sum(value, partial);
}

// Returns a pack of the values to normalize: the input, or its sum with the residual. If there is
// an array for sums, the values are stored there.
template <bool ALIGNED, typename T>
static __device__ __forceinline__ rows_pack<T> norm_operand(const norm_args &args, uint64_t row,
                                                            uint64_t at)
{
    const T *input = static_cast<const T *>(args.input) + row * args.stride;
    rows_pack<T> x = rows_load<ALIGNED>(input, at, args.channels);
    if (args.sum == nullptr)
        return x;
    if (args.residual != nullptr) {
        const T *residual = static_cast<const T *>(args.residual) + row * args.channels;
        rows_pack<T> other = rows_load<ALIGNED>(residual, at, args.channels);
#pragma unroll
        for (int i = 0; i < rows_pack_elems<T>; i++)
            x.item[i] =
                cudai_narrow<T>(__fadd_rn(cudai_widen(x.item[i]), cudai_widen(other.item[i])));
    }
    rows_store<ALIGNED>(static_cast<T *>(args.sum) + row * args.channels, at, args.channels, x);
    return x;
}

template <typename T, bool ALIGNED>
static __device__ __forceinline__ void norm_output(const norm_args &args, uint64_t row, uint64_t at,
                                                   const rows_pack<T> &x, float mean, float rstd)
{
    const float added = rows_weight_added(args.weight, args.adds_one);
    rows_pack<T> w = rows_load_if<ALIGNED, T>(args.weight, at, args.channels), y;
    rows_pack<T> b = rows_load_if<ALIGNED, T>(args.bias, at, args.channels);
#pragma unroll
    for (int i = 0; i < rows_pack_elems<T>; i++) {
        float xhat = __fmul_rn(__fsub_rn(cudai_widen(x.item[i]), mean), rstd);
        float value = __fmul_rn(xhat, rows_weight(w.item[i], added));
        if (args.bias != nullptr)
            value = __fadd_rn(value, cudai_widen(b.item[i]));
        y.item[i] = cudai_narrow<T>(value);
    }
    rows_store<ALIGNED>(static_cast<T *>(args.output) + row * args.stride, at, args.channels, y);
}

// Threads of a block if a row has WIDTH threads. A block has one row, or one row per warp.
template <int WIDTH>
static constexpr int block_of_width = WIDTH == CUDAI_WARP ? forward_threads : WIDTH;

// PACKS: packs of one thread, kept in registers; 0: any number, read again in each pass. WIDTH:
// threads of a row, a warp or a block. It is a constant, since otherwise nvcc 13.0 splits the
// stores of packs.
template <typename T, int PACKS, int WIDTH, bool ALIGNED>
static __global__ void __launch_bounds__(block_of_width<WIDTH>) norm_forward_kernel(norm_args args)
{
    constexpr int V = rows_pack_elems<T>;
    constexpr unsigned block_rows = block_of_width<WIDTH> / WIDTH;
    constexpr uint64_t step = static_cast<uint64_t>(WIDTH) * V;
    __shared__ float partial[CUDAI_WARP];
    const uint64_t channels = args.channels;
    const unsigned worker = threadIdx.x % WIDTH;
    const uint64_t passes = PACKS > 0 ? PACKS : (channels + step - 1) / step;
    uint64_t row = static_cast<uint64_t>(blockIdx.x) * block_rows + threadIdx.x / WIDTH;
    for (; row < args.rows; row += static_cast<uint64_t>(gridDim.x) * block_rows) {
        const T *source = static_cast<const T *>(args.sum ? args.sum : args.input) +
                          row * (args.sum ? channels : args.stride);
        rows_pack<T> kept[PACKS > 0 ? PACKS : 1];
        float mean = 0.0f, sum = 0.0f;
#pragma unroll
        for (uint64_t p = 0; p < passes; p++) {
            uint64_t at = p * step + static_cast<uint64_t>(worker) * V;
            if (at >= channels)
                continue;
            rows_pack<T> &x = kept[PACKS > 0 ? p : 0];
            x = norm_operand<ALIGNED, T>(args, row, at);
#pragma unroll
            for (int i = 0; i < V; i++) // elements beyond the end are zero
                sum = __fadd_rn(sum, cudai_widen(x.item[i]));
        }
        if (args.kind == NORM_LAYER)
            mean = __fdiv_rn(row_sum<WIDTH>(sum, partial), static_cast<float>(channels));
        float squares = 0.0f;
#pragma unroll
        for (uint64_t p = 0; p < passes; p++) {
            uint64_t at = p * step + static_cast<uint64_t>(worker) * V;
            if (at >= channels)
                continue;
            rows_pack<T> x =
                PACKS > 0 ? kept[PACKS > 0 ? p : 0] : rows_load<ALIGNED>(source, at, channels);
#pragma unroll
            for (int i = 0; i < V; i++) {
                float distance = __fsub_rn(cudai_widen(x.item[i]), mean);
                if (ALIGNED || at + i < channels)
                    squares = __fmaf_rn(distance, distance, squares);
            }
        }
        float variance = __fdiv_rn(row_sum<WIDTH>(squares, partial), static_cast<float>(channels));
        float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, args.epsilon)));
        if (worker == 0) {
            if (args.kind == NORM_LAYER)
                args.mean[row] = mean;
            args.rstd[row] = rstd;
        }
#pragma unroll
        for (uint64_t p = 0; p < passes; p++) {
            uint64_t at = p * step + static_cast<uint64_t>(worker) * V;
            if (at >= channels)
                continue;
            rows_pack<T> x =
                PACKS > 0 ? kept[PACKS > 0 ? p : 0] : rows_load<ALIGNED>(source, at, channels);
            norm_output<T, ALIGNED>(args, row, at, x, mean, rstd);
        }
    }
}

template <typename T, int PACKS, int WIDTH, bool ALIGNED>
static cudaError_t launch_forward_as(cudaStream_t stream, const norm_args &args)
{
    constexpr int threads = block_of_width<WIDTH>;
    constexpr uint64_t block_rows = threads / WIDTH;
    uint64_t blocks = (args.rows + block_rows - 1) / block_rows;
    dim3 grid(static_cast<unsigned>(blocks < grid_max ? blocks : grid_max));
    return cudai_launch(norm_forward_kernel<T, PACKS, WIDTH, ALIGNED>, grid, dim3(threads), 0,
                        stream, args);
}

template <typename T, bool ALIGNED>
static cudaError_t launch_forward(cudaStream_t stream, const norm_args &args)
{
    constexpr int warp = CUDAI_WARP, few = forward_threads, many = block_max;
    uint64_t packs = (args.channels + rows_pack_elems<T> - 1) / rows_pack_elems<T>;
    if (packs <= warp)
        return launch_forward_as<T, 1, warp, ALIGNED>(stream, args);
    if (packs <= 2 * warp)
        return launch_forward_as<T, 2, warp, ALIGNED>(stream, args);
    if (packs <= 4 * warp)
        return launch_forward_as<T, 4, warp, ALIGNED>(stream, args);
    if (packs <= few)
        return launch_forward_as<T, 1, few, ALIGNED>(stream, args);
    if (packs <= 2 * few)
        return launch_forward_as<T, 2, few, ALIGNED>(stream, args);
    if (packs <= 4 * few)
        return launch_forward_as<T, 4, few, ALIGNED>(stream, args);
    if (packs <= 2 * many)
        return launch_forward_as<T, 4, many / 2, ALIGNED>(stream, args);
    if (packs <= 4 * many)
        return launch_forward_as<T, 4, many, ALIGNED>(stream, args);
    return launch_forward_as<T, 0, many, ALIGNED>(stream, args);
}

extern "C" int cudai_launch_norm_forward(void *stream, const norm_args *asked)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    norm_args args = *asked;
    args.stride = norm_stride(asked); // kernels need the actual stride
    bool is_aligned = rows_are_aligned(rows_pack_bytes, args.input, args.residual, args.sum,
                                       args.weight, args.bias, args.output);
    CUDAI_BY_TYPE(args.type, T, {
        constexpr uint64_t V = rows_pack_elems<T>;
        if (is_aligned && args.channels % V == 0 && args.stride % V == 0)
            return launch_forward<T, true>(on, args);
        return launch_forward<T, false>(on, args);
    });
    return cudaErrorInvalidValue;
}

// --- backward ----------------------------------------------------------------------------------

// Sums two values over the block; every thread gets both sums. `partial` is [2][2][32] floats of
// shared memory. `turn` alternates between calls, so that one barrier is enough: a thread that
// writes one half again has passed the barrier of the other half, and all threads reach that one
// after they have read the first.
static __device__ __forceinline__ void
block_sum_pair(float *first, float *second, float (*partial)[2][CUDAI_WARP], unsigned turn)
{
    unsigned worker = threadIdx.x % CUDAI_WARP, warp = threadIdx.x / CUDAI_WARP;
    unsigned warps = blockDim.x / CUDAI_WARP;
    float a = cudai_warp_sum(*first), b = cudai_warp_sum(*second);
    if (worker == 0) {
        partial[turn][0][warp] = a;
        partial[turn][1][warp] = b;
    }
    __syncthreads();
    *first = cudai_warp_sum(worker < warps ? partial[turn][0][worker] : 0.0f);
    *second = cudai_warp_sum(worker < warps ? partial[turn][1][worker] : 0.0f);
}

// dx = rstd * (dy * w - g_mean - xhat * gx_mean) [+ residual]. `skip` is the residual, if has_skip.
// `added` is what the stored weights are raised by.
template <typename T>
static __device__ __forceinline__ rows_pack<T>
input_grad_of(const rows_pack<T> &x, const rows_pack<T> &dy, const rows_pack<T> &w, float added,
              const rows_pack<T> &skip, bool has_skip, float mean, float rstd, float g_mean,
              float gx_mean)
{
    rows_pack<T> dx;
#pragma unroll
    for (int i = 0; i < rows_pack_elems<T>; i++) {
        float xhat = __fmul_rn(__fsub_rn(cudai_widen(x.item[i]), mean), rstd);
        float g = __fmul_rn(cudai_widen(dy.item[i]), rows_weight(w.item[i], added));
        float value = __fmul_rn(rstd, __fsub_rn(__fsub_rn(g, g_mean), __fmul_rn(xhat, gx_mean)));
        if (has_skip)
            value = __fadd_rn(value, cudai_widen(skip.item[i]));
        dx.item[i] = cudai_narrow<T>(value);
    }
    return dx;
}

// Adds g = dy * w and g * xhat of a pack. Elements beyond the row's end have dy, w and x 0, so they
// add zeros.
template <typename T>
static __device__ __forceinline__ void add_grad_sums(const rows_pack<T> &x, const rows_pack<T> &dy,
                                                     const rows_pack<T> &w, float added, float mean,
                                                     float rstd, float *g_sum, float *gx_sum)
{
#pragma unroll
    for (int i = 0; i < rows_pack_elems<T>; i++) {
        float xhat = __fmul_rn(__fsub_rn(cudai_widen(x.item[i]), mean), rstd);
        float g = __fmul_rn(cudai_widen(dy.item[i]), rows_weight(w.item[i], added));
        *g_sum = __fadd_rn(*g_sum, g);
        *gx_sum = __fmaf_rn(g, xhat, *gx_sum);
    }
}

// A thread has one pack of columns of each row. Block b takes rows [b * rows_per_block, ...). If
// PLAIN, the weight is the stored one and rows lie side by side. More would not fit in registers.
template <typename T, bool LAYER, bool PLAIN, bool ALIGNED>
static __global__ void __launch_bounds__(block_max)
    norm_backward_kernel(norm_grad_args args, uint64_t rows_per_block)
{
    constexpr int V = rows_pack_elems<T>;
    __shared__ float partial[2][2][CUDAI_WARP];
    const uint64_t channels = args.channels, at = static_cast<uint64_t>(threadIdx.x) * V;
    const bool has_columns = at < channels, has_skip = args.residual_grad != nullptr;
    const float count = static_cast<float>(channels);
    const float added = PLAIN ? 0.0f : rows_weight_added(args.weight, args.adds_one);
    float weight_sum[V] = {}, bias_sum[V] = {};
    rows_pack<T> w = {};
    if (has_columns && (PLAIN || args.weight != nullptr))
        w = rows_load<ALIGNED>(static_cast<const T *>(args.weight), at, channels);
    uint64_t row = blockIdx.x * rows_per_block;
    uint64_t end = args.rows - row < rows_per_block ? args.rows : row + rows_per_block;
    for (; row < end; row++) {
        const uint64_t row_at = row * channels, grad_at = PLAIN ? row_at : row * args.stride;
        const float mean = LAYER ? args.mean[row] : 0.0f, rstd = args.rstd[row];
        rows_pack<T> x = {}, dy = {}, skip = {};
        float g_mean = 0.0f, gx_mean = 0.0f;
        if (has_columns) {
            x = rows_load<ALIGNED>(static_cast<const T *>(args.input) + row_at, at, channels);
            dy = rows_load<ALIGNED>(static_cast<const T *>(args.output_grad) + grad_at, at,
                                    channels);
            if (has_skip)
                skip = rows_load<ALIGNED>(static_cast<const T *>(args.residual_grad) + row_at, at,
                                          channels);
            add_grad_sums(x, dy, w, added, mean, rstd, &g_mean, &gx_mean);
#pragma unroll
            for (int i = 0; i < V; i++) {
                float xhat = __fmul_rn(__fsub_rn(cudai_widen(x.item[i]), mean), rstd);
                float grad = cudai_widen(dy.item[i]);
                weight_sum[i] = __fmaf_rn(grad, xhat, weight_sum[i]);
                if (LAYER)
                    bias_sum[i] = __fadd_rn(bias_sum[i], grad);
            }
        }
        block_sum_pair(&g_mean, &gx_mean, partial, row % 2);
        g_mean = LAYER ? __fdiv_rn(g_mean, count) : 0.0f;
        gx_mean = __fdiv_rn(gx_mean, count);
        if (has_columns)
            rows_store<ALIGNED>(
                static_cast<T *>(args.input_grad) + grad_at, at, channels,
                input_grad_of(x, dy, w, added, skip, has_skip, mean, rstd, g_mean, gx_mean));
    }
    float *sums = static_cast<float *>(args.scratch) + blockIdx.x * (LAYER ? 2 : 1) * channels;
#pragma unroll
    for (int i = 0; i < V; i++) {
        if (at + i >= channels)
            break;
        sums[at + i] = weight_sum[i];
        if (LAYER)
            sums[channels + at + i] = bias_sum[i];
    }
}

// The input gradient of rows of any length, which are read twice; a block per row.
template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(block_max) norm_input_grad_kernel(norm_grad_args args)
{
    constexpr int V = rows_pack_elems<T>;
    __shared__ float partial[2][2][CUDAI_WARP];
    const bool is_layer = args.kind == NORM_LAYER, has_skip = args.residual_grad != nullptr;
    const uint64_t channels = args.channels, step = static_cast<uint64_t>(blockDim.x) * V;
    const uint64_t first = static_cast<uint64_t>(threadIdx.x) * V;
    const float added = rows_weight_added(args.weight, args.adds_one);
    unsigned turn = 0;
    for (uint64_t row = blockIdx.x; row < args.rows; row += gridDim.x, turn ^= 1) {
        const uint64_t row_at = row * channels;
        const T *input = static_cast<const T *>(args.input) + row_at;
        const T *output_grad = static_cast<const T *>(args.output_grad) + row * args.stride;
        const T *residual_grad = static_cast<const T *>(args.residual_grad);
        const float mean = is_layer ? args.mean[row] : 0.0f, rstd = args.rstd[row];
        float g_mean = 0.0f, gx_mean = 0.0f;
        for (uint64_t at = first; at < channels; at += step)
            add_grad_sums(rows_load<ALIGNED>(input, at, channels),
                          rows_load<ALIGNED>(output_grad, at, channels),
                          rows_load_if<ALIGNED, T>(args.weight, at, channels), added, mean, rstd,
                          &g_mean, &gx_mean);
        block_sum_pair(&g_mean, &gx_mean, partial, turn);
        g_mean = is_layer ? __fdiv_rn(g_mean, static_cast<float>(channels)) : 0.0f;
        gx_mean = __fdiv_rn(gx_mean, static_cast<float>(channels));
        for (uint64_t at = first; at < channels; at += step) {
            rows_pack<T> skip = {};
            if (has_skip)
                skip = rows_load<ALIGNED>(residual_grad + row_at, at, channels);
            rows_pack<T> dx = input_grad_of(rows_load<ALIGNED>(input, at, channels),
                                            rows_load<ALIGNED>(output_grad, at, channels),
                                            rows_load_if<ALIGNED, T>(args.weight, at, channels),
                                            added, skip, has_skip, mean, rstd, g_mean, gx_mean);
            rows_store<ALIGNED>(static_cast<T *>(args.input_grad) + row * args.stride, at, channels,
                                dx);
        }
    }
}

// --- sums of columns ---------------------------------------------------------------------------

// The terms that a column sum adds for each element.
enum column_terms {
    TERMS_GRAD,          // dy
    TERMS_GRAD_XHAT,     // dy * xhat
    TERMS_GRAD_XHAT_BOTH // dy * xhat, followed by dy
};

struct column_args {
    const void *output_grad, *input; // [rows, channels]; no input for TERMS_GRAD
    const float *mean, *rstd;        // [rows]; a NULL mean stands for 0
    uint64_t rows, channels, rows_per_block;
    uint64_t stride; // elements between rows of output_grad
    float *sums;     // [blocks, 1 or 2, channels]
};

// A block of 32 x 8 threads sums 32 packs of columns over one block of rows: warp i % 8 adds row i
// of the block, then the warps are added in order.
template <typename T, enum column_terms TERMS, bool ALIGNED>
static __global__ void __launch_bounds__(CUDAI_WARP *column_rows)
    column_sums_kernel(column_args args)
{
    constexpr int V = rows_pack_elems<T>;
    constexpr int KINDS = TERMS == TERMS_GRAD_XHAT_BOTH ? 2 : 1;
    __shared__ float shared[KINDS][column_rows][V][CUDAI_WARP];
    const uint64_t channels = args.channels, tile = blockIdx.x * uint64_t{CUDAI_WARP * V};
    const uint64_t at = tile + threadIdx.x * V;
    const uint64_t begin = blockIdx.y * args.rows_per_block;
    const uint64_t end =
        args.rows - begin < args.rows_per_block ? args.rows : begin + args.rows_per_block;
    float sum[KINDS][V] = {};
    for (uint64_t row = begin + threadIdx.y; at < channels && row < end; row += column_rows) {
        const uint64_t row_at = row * channels;
        rows_pack<T> dy = rows_load<ALIGNED>(
            static_cast<const T *>(args.output_grad) + row * args.stride, at, channels);
        rows_pack<T> x = {};
        float mean = 0.0f, rstd = 0.0f;
        if (TERMS != TERMS_GRAD) {
            x = rows_load<ALIGNED>(static_cast<const T *>(args.input) + row_at, at, channels);
            mean = args.mean ? args.mean[row] : 0.0f;
            rstd = args.rstd[row];
        }
#pragma unroll
        for (int i = 0; i < V; i++) {
            float grad = cudai_widen(dy.item[i]);
            float xhat = __fmul_rn(__fsub_rn(cudai_widen(x.item[i]), mean), rstd);
            if (TERMS != TERMS_GRAD)
                sum[0][i] = __fmaf_rn(grad, xhat, sum[0][i]);
            if (TERMS != TERMS_GRAD_XHAT)
                sum[KINDS - 1][i] = __fadd_rn(sum[KINDS - 1][i], grad);
        }
    }
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < V; i++)
            shared[kind][threadIdx.y][i][threadIdx.x] = sum[kind][i];
    __syncthreads();
    unsigned column = threadIdx.y * CUDAI_WARP + threadIdx.x; // of the tile
    if (column >= CUDAI_WARP * V || tile + column >= channels)
        return;
    for (int kind = 0; kind < KINDS; kind++) {
        float total = 0.0f;
        for (int warp = 0; warp < column_rows; warp++)
            total = __fadd_rn(total, shared[kind][warp][column % V][column / V]);
        args.sums[(blockIdx.y * uint64_t{KINDS} + kind) * channels + tile + column] = total;
    }
}

// target[c] += the sum over blocks of sums[block * stride + c], in double, for c < width <= stride.
// Each of 32 warps adds a run of blocks in order, then the warps are added in order. Columns from
// `channels` on belong to `second`.
static __global__ void __launch_bounds__(CUDAI_WARP *fold_slices)
    fold_sums_kernel(const float *sums, uint64_t blocks, uint64_t stride, uint64_t width,
                     uint64_t channels, float *first, float *second)
{
    __shared__ double shared[fold_slices][CUDAI_WARP];
    const uint64_t column = blockIdx.x * uint64_t{CUDAI_WARP} + threadIdx.x;
    const uint64_t run = (blocks + fold_slices - 1) / fold_slices, begin = threadIdx.y * run;
    const uint64_t end = begin + run < blocks ? begin + run : blocks;
    double sum = 0.0;
    if (column < width)
        for (uint64_t block = begin; block < end; block++)
            sum += static_cast<double>(sums[block * stride + column]);
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= width)
        return;
    double total = 0.0;
    for (int slice = 0; slice < fold_slices; slice++)
        total += shared[slice][threadIdx.x];
    float *target = column < channels ? first + column : second + (column - channels);
    *target = __fadd_rn(*target, __double2float_rn(total));
}

template <typename T, enum column_terms TERMS>
static cudaError_t launch_column_sums(cudaStream_t stream, const column_args &args, uint64_t blocks)
{
    constexpr uint64_t tile = CUDAI_WARP * rows_pack_elems<T>;
    dim3 grid(static_cast<unsigned>((args.channels + tile - 1) / tile),
              static_cast<unsigned>(blocks));
    dim3 block(CUDAI_WARP, column_rows);
    if (args.channels % rows_pack_elems<T> == 0 && args.stride % rows_pack_elems<T> == 0 &&
        rows_are_aligned(rows_pack_bytes, args.output_grad, args.input))
        return cudai_launch(column_sums_kernel<T, TERMS, true>, grid, block, 0, stream, args);
    return cudai_launch(column_sums_kernel<T, TERMS, false>, grid, block, 0, stream, args);
}

// sums: [blocks, stride]
static cudaError_t launch_fold(cudaStream_t stream, const float *sums, uint64_t blocks,
                               uint64_t channels, uint64_t stride, float *first, float *second)
{
    uint64_t width = second ? 2 * channels : channels;
    dim3 grid(static_cast<unsigned>((width + CUDAI_WARP - 1) / CUDAI_WARP));
    return cudai_launch(fold_sums_kernel, grid, dim3(CUDAI_WARP, fold_slices), 0, stream, sums,
                        blocks, stride, width, channels, first, second);
}

template <typename T, bool LAYER, bool ALIGNED>
static cudaError_t launch_backward(cudaStream_t stream, const norm_grad_args &args,
                                   cudai_row_blocks blocks)
{
    uint64_t packs = (args.channels + rows_pack_elems<T> - 1) / rows_pack_elems<T>;
    if (packs <= block_max) {
        dim3 threads(static_cast<unsigned>((packs + CUDAI_WARP - 1) / CUDAI_WARP * CUDAI_WARP));
        bool is_plain = args.stride == args.channels && args.weight && !args.adds_one;
        return cudai_launch(is_plain ? norm_backward_kernel<T, LAYER, true, ALIGNED>
                                     : norm_backward_kernel<T, LAYER, false, ALIGNED>,
                            dim3(static_cast<unsigned>(blocks.count)), threads, 0, stream, args,
                            blocks.rows_per_block);
    }
    column_args columns = {};
    columns.output_grad = args.output_grad;
    columns.input = args.input;
    columns.mean = LAYER ? args.mean : nullptr;
    columns.rstd = args.rstd;
    columns.rows = args.rows;
    columns.channels = args.channels;
    columns.stride = args.stride;
    columns.rows_per_block = blocks.rows_per_block;
    columns.sums = static_cast<float *>(args.scratch);
    cudaError_t error = launch_column_sums < T,
                LAYER ? TERMS_GRAD_XHAT_BOTH : TERMS_GRAD_XHAT > (stream, columns, blocks.count);
    if (error != cudaSuccess)
        return error;
    dim3 grid(static_cast<unsigned>(args.rows < grid_max ? args.rows : grid_max));
    return cudai_launch(norm_input_grad_kernel<T, ALIGNED>, grid, dim3(block_max), 0, stream, args);
}

extern "C" int cudai_launch_norm_backward(void *stream, const norm_grad_args *asked,
                                          cudai_row_blocks blocks)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    norm_grad_args args = *asked;
    args.stride = norm_grad_stride(asked);
    bool is_layer = args.kind == NORM_LAYER;
    bool is_aligned = rows_are_aligned(rows_pack_bytes, args.input, args.weight, args.output_grad,
                                       args.residual_grad, args.input_grad);
    cudaError_t error = cudaErrorInvalidValue;
    CUDAI_BY_TYPE(args.type, T, {
        constexpr uint64_t V = rows_pack_elems<T>;
        if (is_aligned && args.channels % V == 0 && args.stride % V == 0)
            error = is_layer ? launch_backward<T, true, true>(on, args, blocks)
                             : launch_backward<T, false, true>(on, args, blocks);
        else
            error = is_layer ? launch_backward<T, true, false>(on, args, blocks)
                             : launch_backward<T, false, false>(on, args, blocks);
    });
    if (error != cudaSuccess || !args.weight_grad)
        return error;
    return launch_fold(on, static_cast<const float *>(args.scratch), blocks.count, args.channels,
                       (is_layer ? 2 : 1) * args.channels, args.weight_grad, args.bias_grad);
}

extern "C" int cudai_launch_fold_sums(void *stream, const float *sums, uint64_t blocks,
                                      uint64_t channels, float *target)
{
    return launch_fold(static_cast<cudaStream_t>(stream), sums, blocks, channels, channels, target,
                       nullptr);
}

extern "C" int cudai_launch_bias_backward(void *stream, enum dtype type, uint64_t rows, uint64_t n,
                                          uint64_t stride, const void *output_grad,
                                          float *bias_grad, float *scratch, cudai_row_blocks blocks)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    cudaError_t error = cudaErrorInvalidValue;
    column_args args = {};
    args.output_grad = output_grad;
    args.rows = rows;
    args.channels = n;
    args.stride = stride;
    args.rows_per_block = blocks.rows_per_block;
    args.sums = scratch;
    CUDAI_BY_TYPE(type, T, error = launch_column_sums<T, TERMS_GRAD>(on, args, blocks.count));
    if (error != cudaSuccess)
        return error;
    return launch_fold(on, scratch, blocks.count, n, n, bias_grad, nullptr);
}
