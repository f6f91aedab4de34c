// Softmax cross-entropy of rows of logits, over the whole vocabulary or parts of its columns.
//
// One block per row. The logits are read at most twice. One pass gives the largest logit and the
// sum of exponentials (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
// A second pass gives the gradient; it may overwrite the logits, since each thread writes the
// elements that it read.
//
// If rows are a multiple of 4 elements apart, thread t takes the elements 4t..4t+3 of each stretch
// of 4 * threads, in accesses of 16 bytes. The last access of a row may read elements between rows,
// also after the last row, and leaves them unchanged. Otherwise rows are not aligned, and thread t
// takes the elements t, t + threads, ..., so adjacent threads take adjacent elements. A thread's
// fp32 sum follows the order of its elements, 8 at a time; the threads' sums are added in a fixed
// tree. So the bits depend on the number of columns and the distance of rows, but not on a row's
// position, on the grid, or on whether gradients are requested. No sum is fused with a product (the
// _rn intrinsics), so the whole vocabulary as one part has the bits of the uncut op.
//
// NaN and infinities:
//   - The maximum ignores NaN, but the sum then contains it.
//   - +infinity makes the sum NaN, by infinity - infinity.
//   - While all elements so far are -infinity, their exponentials are taken relative to 0: they add
//     nothing, and later columns may still be finite.
//   - If all elements are -infinity, the loss is NaN.
#include "kernels/cuda/device.cuh"

extern "C" {
#include "kernels/cuda/rows/rows_launch.h"
}

enum {
    ITEMS = 8, // elements of a thread's turn: two packs, or 8 single ones
    PACK = 4,
    THREADS_MIN = 64,
    THREADS_MAX = 512,
    LOSS_THREADS = 256,
    BLOCKS_PER_SM_MAX = 256,
};

enum { IGNORED = -1 }; // a target that does not count

static const uint32_t NAN_BITS = 0x7fc00000u;

// --- a row's elements and threads ----------------------------------------------------------------

// Returns the first element of thread t's pack `pack` in the turn that begins at `begin`. If not
// IS_PACKED, a pack is one element.
template <bool IS_PACKED>
static __device__ __forceinline__ uint64_t place_of(uint64_t begin, unsigned pack)
{
    unsigned width = IS_PACKED ? PACK : 1;
    return begin + (static_cast<uint64_t>(pack) * blockDim.x + threadIdx.x) * width;
}

// Kernels know whether there is a cap: without one the compiler drops its code.
template <bool IS_CAPPED, typename A> static __device__ __forceinline__ float cap_of(const A &args)
{
    return IS_CAPPED ? args.soft_cap : 0.0f;
}

// z of a logit.
static __device__ __forceinline__ float capped_logit(float cap, float logit)
{
    return cap == 0.0f ? logit : __fmul_rn(cap, tanhf(__fdiv_rn(logit, cap)));
}

// dz/dlogit, from z.
static __device__ __forceinline__ float logit_slope(float cap, float z)
{
    float t = cap == 0.0f ? 0.0f : __fdiv_rn(z, cap);
    return __fmaf_rn(-t, t, 1.0f);
}

// x = z of this thread's elements of a turn; -infinity beyond the end of the row.
template <bool IS_PACKED>
static __device__ __forceinline__ void load_items(float cap, const float *logits, uint64_t count,
                                                  uint64_t begin, float (&x)[ITEMS])
{
    const unsigned width = IS_PACKED ? PACK : 1;
#pragma unroll
    for (unsigned pack = 0; pack < ITEMS / width; pack++) {
        uint64_t at = place_of<IS_PACKED>(begin, pack);
        cudai_pack<float, width> loaded;
        for (unsigned k = 0; k < width; k++)
            loaded.item[k] = -INFINITY;
        if (at < count)
            loaded = cudai_load<float, width>(logits + at);
        for (unsigned k = 0; k < width; k++)
            x[pack * width + k] = at + k < count ? capped_logit(cap, loaded.item[k]) : -INFINITY;
    }
}

template <typename T, bool IS_PACKED>
static __device__ __forceinline__ void store_items(T *target, uint64_t count, uint64_t begin,
                                                   const float (&x)[ITEMS])
{
    const unsigned width = IS_PACKED ? PACK : 1;
#pragma unroll
    for (unsigned pack = 0; pack < ITEMS / width; pack++) {
        uint64_t at = place_of<IS_PACKED>(begin, pack);
        cudai_pack<T, width> rounded;
        for (unsigned k = 0; k < width; k++)
            rounded.item[k] = cudai_narrow<T>(x[pack * width + k]);
        if (at + width <= count)
            cudai_store<T, width>(target + at, rounded);
        else
            for (unsigned k = 0; k < width; k++)
                if (at + k < count)
                    target[at + k] = rounded.item[k];
    }
}

// Returns the thread that stores element `idx` of a row.
template <bool IS_PACKED> static __device__ __forceinline__ unsigned owner_of(uint64_t idx)
{
    return static_cast<unsigned>((IS_PACKED ? idx / PACK : idx) % blockDim.x);
}

template <typename T, bool IS_PACKED>
static __device__ __forceinline__ void fill_row(T *target, uint64_t count, float value)
{
    float x[ITEMS];
    for (int i = 0; i < ITEMS; i++)
        x[i] = value;
    uint64_t turn = static_cast<uint64_t>(blockDim.x) * ITEMS;
    for (uint64_t begin = 0; begin < count; begin += turn)
        store_items<T, IS_PACKED>(target, count, begin, x);
}

// --- the two passes ----------------------------------------------------------------------------

struct row_stats {
    float largest; // of the row's elements and of `before`
    float shift;   // largest, or 0 if that is -infinity
    float sum;     // of exp(x - shift) over the row's elements
};

// All threads get the same result. `partial` is shared memory of 32 floats.
template <bool IS_PACKED>
static __device__ __forceinline__ row_stats stats_of_row(float cap, const float *logits,
                                                         uint64_t count, float before,
                                                         float *partial)
{
    float largest = -INFINITY, shift = 0.0f, sum = 0.0f;
    uint64_t turn = static_cast<uint64_t>(blockDim.x) * ITEMS;
    for (uint64_t begin = 0; begin < count; begin += turn) {
        float x[ITEMS];
        load_items<IS_PACKED>(cap, logits, count, begin, x);
        float top = x[0];
#pragma unroll
        for (int i = 1; i < ITEMS; i++)
            top = fmaxf(top, x[i]); // ignores NaN
        if (top > largest) {
            sum = __fmul_rn(sum, expf(largest - top));
            largest = shift = top;
        }
#pragma unroll
        for (int i = 0; i < ITEMS; i++)
            sum = __fadd_rn(sum, expf(x[i] - shift));
    }
    row_stats stats;
    stats.largest = fmaxf(before, cudai_block_max(largest, partial));
    stats.shift = stats.largest == -INFINITY ? 0.0f : stats.largest;
    stats.sum = cudai_block_sum(__fmul_rn(sum, expf(largest - stats.shift)), partial);
    return stats;
}

// grads[i] = exp(z[i] - largest) * scale * slope of z[i], in place or not.
template <typename T, bool IS_PACKED>
static __device__ __forceinline__ void softmax_grad(float cap, const float *logits, uint64_t count,
                                                    float largest, float scale, T *grads)
{
    uint64_t turn = static_cast<uint64_t>(blockDim.x) * ITEMS;
    for (uint64_t begin = 0; begin < count; begin += turn) {
        float x[ITEMS];
        load_items<IS_PACKED>(cap, logits, count, begin, x);
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            float grad = expf(x[i] - largest) * scale;
            x[i] = cap == 0.0f ? grad : __fmul_rn(grad, logit_slope(cap, x[i]));
        }
        store_items<T, IS_PACKED>(grads, count, begin, x);
    }
}

// Returns the gradient at the target's column, whose z is given.
static __device__ __forceinline__ float target_grad(float cap, float z, float largest, float sum,
                                                    float grad_scale)
{
    double softmax = exp(static_cast<double>(z - largest)) / static_cast<double>(sum);
    return static_cast<float>((softmax - 1.0) * static_cast<double>(grad_scale) *
                              static_cast<double>(logit_slope(cap, z)));
}

static __device__ __forceinline__ float loss_of(float target_logit, float largest, float sum)
{
    double distance = __dsub_rn(static_cast<double>(largest), static_cast<double>(target_logit));
    float loss = static_cast<float>(__dadd_rn(log(static_cast<double>(sum)), distance));
    return loss == loss ? loss : __uint_as_float(NAN_BITS);
}

// --- the whole vocabulary ------------------------------------------------------------------------

template <typename T, bool IS_PACKED, bool IS_CAPPED>
static __device__ __forceinline__ void cross_entropy_row(const cross_entropy_args &args,
                                                         uint64_t row, float *partial)
{
    uint64_t vocab = args.vocab, at = row * args.stride;
    int32_t target = args.targets[row];
    const float cap = cap_of<IS_CAPPED>(args);
    const float *logits = args.logits + at;
    T *grads = args.logits_grad ? static_cast<T *>(args.logits_grad) + at : nullptr;
    if (target < 0 || static_cast<uint64_t>(target) >= vocab) {
        float value = target == IGNORED ? 0.0f : __uint_as_float(NAN_BITS);
        if (threadIdx.x == 0)
            args.losses[row] = value;
        if (grads)
            fill_row<T, IS_PACKED>(grads, vocab, value);
        return;
    }
    // Read before the barriers of the sums; after them the logits may be overwritten.
    float target_logit = capped_logit(cap, logits[target]);
    row_stats stats = stats_of_row<IS_PACKED>(cap, logits, vocab, -INFINITY, partial);
    if (threadIdx.x == 0)
        args.losses[row] = loss_of(target_logit, stats.largest, stats.sum);
    if (!grads)
        return;
    softmax_grad<T, IS_PACKED>(cap, logits, vocab, stats.largest,
                               __fdiv_rn(args.grad_scale, stats.sum), grads);
    if (threadIdx.x == owner_of<IS_PACKED>(static_cast<uint64_t>(target)))
        grads[target] = cudai_narrow<T>(
            target_grad(cap, target_logit, stats.largest, stats.sum, args.grad_scale));
}

template <typename T, bool IS_PACKED, bool IS_CAPPED>
static __global__ void __launch_bounds__(THREADS_MAX, IS_PACKED ? 4 : 1)
    cross_entropy_kernel(cross_entropy_args args)
{
    __shared__ float partial[CUDAI_WARP];
    for (uint64_t row = blockIdx.x; row < args.rows; row += gridDim.x)
        cross_entropy_row<T, IS_PACKED, IS_CAPPED>(args, row, partial);
}

// Returns the threads of a block for rows of `count` elements. They depend only on `count`.
static dim3 threads_for(uint64_t count)
{
    unsigned threads = THREADS_MIN;
    while (threads < THREADS_MAX && static_cast<uint64_t>(threads) * ITEMS < count)
        threads *= 2;
    return dim3(threads);
}

static dim3 blocks_for(uint64_t rows, int sm_count)
{
    uint64_t most = static_cast<uint64_t>(sm_count) * BLOCKS_PER_SM_MAX;
    return dim3(static_cast<unsigned>(rows < most ? rows : most));
}

template <typename T>
static cudaError_t launch_cross_entropy(const cross_entropy_args *asked, int sm_count,
                                        cudaStream_t stream)
{
    cross_entropy_args args = *asked;
    args.stride = cross_entropy_stride(asked); // kernels need the actual stride
    dim3 grid = blocks_for(args.rows, sm_count), block = threads_for(args.vocab);
    bool capped = args.soft_cap != 0.0f;
    if (args.stride % PACK == 0)
        return cudai_launch(capped ? cross_entropy_kernel<T, true, true>
                                   : cross_entropy_kernel<T, true, false>,
                            grid, block, 0, stream, args);
    return cudai_launch(capped ? cross_entropy_kernel<T, false, true>
                               : cross_entropy_kernel<T, false, false>,
                        grid, block, 0, stream, args);
}

extern "C" int cudai_launch_cross_entropy(const cross_entropy_args *args, int sm_count,
                                          void *stream)
{
    CUDAI_BY_TYPE(
        args->type, T,
        return launch_cross_entropy<T>(args, sm_count, static_cast<cudaStream_t>(stream)));
}

// --- parts of the vocabulary ---------------------------------------------------------------------

// Adds one more part to a row's stats:
//   sum = round_fp32(sum * exp(old largest - new largest) + the part's sum); NaN has one pattern.
// A target below -1 makes the sum NaN.
template <bool IS_PACKED, bool IS_CAPPED>
static __device__ __forceinline__ void softmax_part_row(const softmax_part_args &args, uint64_t row,
                                                        float *partial)
{
    const float cap = cap_of<IS_CAPPED>(args);
    const float *logits = args.logits + row * args.stride;
    int32_t target = args.targets[row];
    float before = args.is_first ? -INFINITY : args.largest[row];
    float held = args.is_first ? 0.0f : args.sum[row];
    float largest = before, sum = target < IGNORED ? __uint_as_float(NAN_BITS) : held;
    if (target >= 0) { // after its barriers all threads have read the old stats
        row_stats stats = stats_of_row<IS_PACKED>(cap, logits, args.columns, before, partial);
        double kept = static_cast<double>(held) * static_cast<double>(expf(before - stats.shift));
        largest = stats.largest;
        sum = static_cast<float>(kept + static_cast<double>(stats.sum));
        sum = sum == sum ? sum : __uint_as_float(NAN_BITS);
    }
    if (threadIdx.x != 0)
        return;
    args.largest[row] = largest;
    args.sum[row] = sum;
    uint64_t column = static_cast<uint64_t>(target) - args.column_begin; // wraps if before
    if (target >= 0 && column < args.columns)
        args.target_logit[row] = capped_logit(cap, logits[column]);
    else if (args.is_first)
        args.target_logit[row] = 0.0f;
}

template <bool IS_PACKED, bool IS_CAPPED>
static __global__ void __launch_bounds__(THREADS_MAX) softmax_part_kernel(softmax_part_args args)
{
    __shared__ float partial[CUDAI_WARP];
    for (uint64_t row = blockIdx.x; row < args.rows; row += gridDim.x)
        softmax_part_row<IS_PACKED, IS_CAPPED>(args, row, partial);
}

extern "C" int cudai_launch_softmax_part(const softmax_part_args *asked, int sm_count, void *stream)
{
    softmax_part_args args = *asked;
    args.stride = softmax_part_stride(asked);
    dim3 grid = blocks_for(args.rows, sm_count), block = threads_for(args.columns);
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    bool capped = args.soft_cap != 0.0f;
    if (args.stride % PACK == 0)
        return cudai_launch(capped ? softmax_part_kernel<true, true>
                                   : softmax_part_kernel<true, false>,
                            grid, block, 0, on, args);
    return cudai_launch(capped ? softmax_part_kernel<false, true>
                               : softmax_part_kernel<false, false>,
                        grid, block, 0, on, args);
}

static __global__ void __launch_bounds__(LOSS_THREADS) softmax_losses_kernel(softmax_part_args args)
{
    for (uint64_t row = cudai_thread_idx(); row < args.rows; row += cudai_thread_count()) {
        int32_t target = args.targets[row];
        float loss = target == IGNORED ? 0.0f : __uint_as_float(NAN_BITS);
        if (target >= 0)
            loss = loss_of(args.target_logit[row], args.largest[row], args.sum[row]);
        args.losses[row] = loss;
    }
}

extern "C" int cudai_launch_softmax_losses(const softmax_part_args *args, int sm_count,
                                           void *stream)
{
    return cudai_launch(softmax_losses_kernel,
                        dim3(cudai_blocks(args->rows, LOSS_THREADS, sm_count)), dim3(LOSS_THREADS),
                        0, static_cast<cudaStream_t>(stream), *args);
}

template <typename T, bool IS_PACKED, bool IS_CAPPED>
static __device__ __forceinline__ void cross_entropy_part_row(const softmax_part_args &args,
                                                              uint64_t row)
{
    uint64_t columns = args.columns, at = row * args.stride;
    int32_t target = args.targets[row];
    T *grads = static_cast<T *>(args.logits_grad) + at;
    if (target < 0) {
        fill_row<T, IS_PACKED>(grads, columns,
                               target == IGNORED ? 0.0f : __uint_as_float(NAN_BITS));
        return;
    }
    const float cap = cap_of<IS_CAPPED>(args);
    float largest = args.largest[row], sum = args.sum[row];
    softmax_grad<T, IS_PACKED>(cap, args.logits + at, columns, largest,
                               __fdiv_rn(args.grad_scale, sum), grads);
    uint64_t column = static_cast<uint64_t>(target) - args.column_begin; // wraps if before
    if (column < columns && threadIdx.x == owner_of<IS_PACKED>(column))
        grads[column] = cudai_narrow<T>(
            target_grad(cap, args.target_logit[row], largest, sum, args.grad_scale));
}

template <typename T, bool IS_PACKED, bool IS_CAPPED>
static __global__ void __launch_bounds__(THREADS_MAX, IS_PACKED ? 4 : 1)
    cross_entropy_part_kernel(softmax_part_args args)
{
    for (uint64_t row = blockIdx.x; row < args.rows; row += gridDim.x)
        cross_entropy_part_row<T, IS_PACKED, IS_CAPPED>(args, row);
}

template <typename T>
static cudaError_t launch_cross_entropy_part(const softmax_part_args *asked, int sm_count,
                                             cudaStream_t stream)
{
    softmax_part_args args = *asked;
    args.stride = softmax_part_stride(asked);
    dim3 grid = blocks_for(args.rows, sm_count), block = threads_for(args.columns);
    bool capped = args.soft_cap != 0.0f;
    if (args.stride % PACK == 0)
        return cudai_launch(capped ? cross_entropy_part_kernel<T, true, true>
                                   : cross_entropy_part_kernel<T, true, false>,
                            grid, block, 0, stream, args);
    return cudai_launch(capped ? cross_entropy_part_kernel<T, false, true>
                               : cross_entropy_part_kernel<T, false, false>,
                        grid, block, 0, stream, args);
}

extern "C" int cudai_launch_cross_entropy_part(const softmax_part_args *args, int sm_count,
                                               void *stream)
{
    CUDAI_BY_TYPE(
        args->type, T,
        return launch_cross_entropy_part<T>(args, sm_count, static_cast<cudaStream_t>(stream)));
}
