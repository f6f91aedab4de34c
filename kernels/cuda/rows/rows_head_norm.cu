// Norms of single heads within rows, forward and backward.
//
// LANES neighbouring threads of a warp share one head; each holds PACKS packs of 16 bytes of it in
// registers. So short heads share a warp, and a head is read once. Backward: a block takes some
// heads. It adds the weight's gradient up in registers, then over its groups of threads in order,
// and writes it to its row of scratch. If each head has its own weight, all heads of a block have
// the same number. rows_norm.cu adds the blocks in order, in double.
//
// The assignment of elements to threads depends only on the head's width and type, and arithmetic
// uses _rn intrinsics, as in rows_norm.cu. So the bits are the same on every GPU and for every
// alignment.
#include "kernels/cuda/rows/rows_launch.h"
#include "kernels/cuda/rows/rows_pack.cuh"

static constexpr int head_threads = 256;           // of a block
static constexpr uint64_t head_grid_max = 1 << 20; // blocks

template <int LANES> static __device__ __forceinline__ float lanes_sum(float value)
{
    for (int step = LANES / 2; step > 0; step /= 2)
        value = __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}

// The beginning of a head, in elements. If the item does not exist, is_there is false and the place
// is that of the first head.
struct head_place {
    uint64_t data, before, rstd;
    bool is_there;
};

static __device__ __forceinline__ head_place place_of(const head_norm_args &args, uint64_t item,
                                                      uint64_t end)
{
    head_place place;
    place.is_there = item < end;
    place.rstd = place.is_there ? item : 0;
    place.before = place.rstd * args.head_dim;
    place.data = place.rstd / args.heads * args.stride + place.rstd % args.heads * args.head_dim;
    return place;
}

// The weights of a head; NULL if there are none.
template <typename T>
static __device__ __forceinline__ const T *weight_of(const head_norm_args &args, uint64_t head)
{
    const T *weight = static_cast<const T *>(args.weight);
    return weight != nullptr && args.weight_per_head ? weight + head * args.head_dim : weight;
}

template <typename T, int LANES, int PACKS, bool ALIGNED>
static __global__ void __launch_bounds__(head_threads) head_norm_kernel(head_norm_args args)
{
    constexpr int V = rows_pack_elems<T>;
    constexpr uint64_t groups = head_threads / LANES;
    const uint64_t dim = args.head_dim, items = args.rows * args.heads;
    const uint64_t lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const float added = rows_weight_added(args.weight, args.adds_one);
    // All threads of a warp make the same turns, since they add over the warp.
    for (uint64_t first = blockIdx.x * groups; first < items; first += gridDim.x * groups) {
        const head_place place = place_of(args, first + group, items);
        T *data = static_cast<T *>(args.data) + place.data;
        rows_pack<T> kept[PACKS];
        float sum = 0.0f, mean = 0.0f, squares = 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            uint64_t at = (p * LANES + lane) * V;
            if (at >= dim)
                continue;
            kept[p] = rows_load<ALIGNED>(data, at, dim);
#pragma unroll
            for (int i = 0; i < V; i++) // elements beyond the end are zero
                sum = __fadd_rn(sum, cudai_widen(kept[p].item[i]));
        }
        if (args.is_layer)
            mean = __fdiv_rn(lanes_sum<LANES>(sum), static_cast<float>(dim));
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            uint64_t at = (p * LANES + lane) * V;
            if (at >= dim)
                continue;
#pragma unroll
            for (int i = 0; i < V; i++) {
                float distance = __fsub_rn(cudai_widen(kept[p].item[i]), mean);
                if (ALIGNED || at + i < dim)
                    squares = __fmaf_rn(distance, distance, squares);
            }
        }
        float variance = __fdiv_rn(lanes_sum<LANES>(squares), static_cast<float>(dim));
        float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, args.epsilon)));
        if (!place.is_there)
            continue;
        if (lane == 0)
            args.rstd[place.rstd] = rstd;
        if (lane == 0 && args.is_layer)
            args.mean[place.rstd] = mean;
        const T *weight = weight_of<T>(args, place.rstd % args.heads);
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            uint64_t at = (p * LANES + lane) * V;
            if (at >= dim)
                continue;
            rows_pack<T> w = rows_load_if<ALIGNED, T>(weight, at, dim), y;
#pragma unroll
            for (int i = 0; i < V; i++) {
                float xhat = __fmul_rn(__fsub_rn(cudai_widen(kept[p].item[i]), mean), rstd);
                y.item[i] = cudai_narrow<T>(__fmul_rn(xhat, rows_weight(w.item[i], added)));
            }
            rows_store<ALIGNED>(static_cast<T *>(args.before) + place.before, at, dim, kept[p]);
            rows_store<ALIGNED>(data, at, dim, y);
        }
    }
}

// dx = rstd * (g - mean(g) - xhat * mean(g xhat)), g = dy * w. RMSNorm has no mean(g).
// Block (b, 0) takes heads [b * items_per_block, ...). If each head has its own weight, block (b,
// h) takes head h of rows [b * items_per_block, ...).
template <typename T, int LANES, int PACKS, bool ALIGNED>
static __global__ void __launch_bounds__(head_threads)
    head_norm_grad_kernel(head_norm_args args, uint64_t items_per_block)
{
    constexpr int V = rows_pack_elems<T>;
    constexpr uint64_t groups = head_threads / LANES, columns = LANES * PACKS * V;
    __shared__ float shared[groups * columns];
    const uint64_t dim = args.head_dim, head = blockIdx.y;
    const uint64_t stride = args.weight_per_head ? args.heads : 1; // from item to item
    const uint64_t items = args.rows * args.heads / stride;
    const uint64_t lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const uint64_t begin = blockIdx.x * items_per_block;
    const uint64_t end = begin + items_per_block < items ? begin + items_per_block : items;
    const float count = static_cast<float>(dim);
    const float added = rows_weight_added(args.weight, args.adds_one);
    rows_pack<T> w[PACKS];
    float sums[PACKS][V];
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        uint64_t at = (p * LANES + lane) * V;
        w[p] = rows_pack<T>{};
        if (at < dim)
            w[p] = rows_load_if<ALIGNED, T>(weight_of<T>(args, head), at, dim);
        for (int i = 0; i < V; i++)
            sums[p][i] = 0.0f;
    }
    for (uint64_t first = begin; first < end; first += groups) {
        const head_place place =
            place_of(args, (first + group) * stride + head, (end - 1) * stride + head + 1);
        T *data = static_cast<T *>(args.data) + place.data;
        const T *before = static_cast<const T *>(args.before) + place.before;
        const float mean = args.is_layer ? args.mean[place.rstd] : 0.0f;
        const float rstd = args.rstd[place.rstd];
        rows_pack<T> x[PACKS], dy[PACKS];
        float g_mean = 0.0f, gx_mean = 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            uint64_t at = (p * LANES + lane) * V;
            if (at >= dim || !place.is_there)
                continue;
            x[p] = rows_load<ALIGNED>(before, at, dim);
            dy[p] = rows_load<ALIGNED>(static_cast<const T *>(data), at, dim);
#pragma unroll
            for (int i = 0; i < V; i++) {
                float xhat = __fmul_rn(__fsub_rn(cudai_widen(x[p].item[i]), mean), rstd);
                float grad = cudai_widen(dy[p].item[i]);
                float g = __fmul_rn(grad, rows_weight(w[p].item[i], added));
                sums[p][i] = __fmaf_rn(grad, xhat, sums[p][i]);
                g_mean = __fadd_rn(g_mean, g);
                gx_mean = __fmaf_rn(g, xhat, gx_mean);
            }
        }
        gx_mean = __fdiv_rn(lanes_sum<LANES>(gx_mean), count);
        g_mean = args.is_layer ? __fdiv_rn(lanes_sum<LANES>(g_mean), count) : 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            uint64_t at = (p * LANES + lane) * V;
            if (at >= dim || !place.is_there)
                continue;
            rows_pack<T> dx;
#pragma unroll
            for (int i = 0; i < V; i++) {
                float xhat = __fmul_rn(__fsub_rn(cudai_widen(x[p].item[i]), mean), rstd);
                float g = __fmul_rn(cudai_widen(dy[p].item[i]), rows_weight(w[p].item[i], added));
                float value =
                    __fmul_rn(rstd, __fsub_rn(__fsub_rn(g, g_mean), __fmul_rn(xhat, gx_mean)));
                dx.item[i] = cudai_narrow<T>(value);
            }
            rows_store<ALIGNED>(data, at, dim, dx);
        }
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++)
        for (int i = 0; i < V; i++)
            shared[group * columns + (p * LANES + lane) * V + i] = sums[p][i];
    __syncthreads();
    if (threadIdx.x >= dim)
        return;
    float total = 0.0f;
    for (uint64_t part = 0; part < groups; part++)
        total = __fadd_rn(total, shared[part * columns + threadIdx.x]);
    static_cast<float *>(args.scratch)[(blockIdx.x * stride + head) * dim + threadIdx.x] = total;
}

template <typename T, int LANES, int PACKS, bool ALIGNED>
static cudaError_t launch_as(cudaStream_t stream, const head_norm_args &args,
                             const cudai_row_blocks *blocks)
{
    constexpr uint64_t groups = head_threads / LANES;
    if (blocks != nullptr)
        return cudai_launch(head_norm_grad_kernel<T, LANES, PACKS, ALIGNED>,
                            dim3(static_cast<unsigned>(blocks->count),
                                 args.weight_per_head ? static_cast<unsigned>(args.heads) : 1u),
                            dim3(head_threads), 0, stream, args, blocks->rows_per_block);
    uint64_t wanted = (args.rows * args.heads + groups - 1) / groups;
    dim3 grid(static_cast<unsigned>(wanted < head_grid_max ? wanted : head_grid_max));
    return cudai_launch(head_norm_kernel<T, LANES, PACKS, ALIGNED>, grid, dim3(head_threads), 0,
                        stream, args);
}

// Chooses the fewest lanes, 4 or more, that hold a head with one pack each; 32 lanes may have two
// packs.
template <typename T, bool ALIGNED>
static cudaError_t launch_head(cudaStream_t stream, const head_norm_args &args,
                               const cudai_row_blocks *blocks)
{
    uint64_t packs = (args.head_dim + rows_pack_elems<T> - 1) / rows_pack_elems<T>;
    if (packs <= 4)
        return launch_as<T, 4, 1, ALIGNED>(stream, args, blocks);
    if (packs <= 8)
        return launch_as<T, 8, 1, ALIGNED>(stream, args, blocks);
    if (packs <= 16)
        return launch_as<T, 16, 1, ALIGNED>(stream, args, blocks);
    if (packs <= 32)
        return launch_as<T, 32, 1, ALIGNED>(stream, args, blocks);
    if (packs <= 64)
        return launch_as<T, 32, 2, ALIGNED>(stream, args, blocks);
    return cudaErrorInvalidValue;
}

static cudaError_t launch(void *stream, const head_norm_args &args, const cudai_row_blocks *blocks)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    bool is_aligned = rows_are_aligned(rows_pack_bytes, args.data, args.before, args.weight);
    CUDAI_BY_TYPE(args.type, T, {
        if (is_aligned && args.head_dim % rows_pack_elems<T> == 0 &&
            args.stride % rows_pack_elems<T> == 0)
            return launch_head<T, true>(on, args, blocks);
        return launch_head<T, false>(on, args, blocks);
    });
    return cudaErrorInvalidValue;
}

extern "C" int cudai_launch_head_norm_forward(void *stream, const head_norm_args *args)
{
    return launch(stream, *args, nullptr);
}

extern "C" int cudai_launch_head_norm_backward(void *stream, const head_norm_args *args,
                                               cudai_row_blocks blocks)
{
    cudaError_t error = launch(stream, *args, &blocks);
    if (error != cudaSuccess || !args->weight_grad)
        return error;
    return cudai_launch_fold_sums(stream, static_cast<const float *>(args->scratch), blocks.count,
                                  (args->weight_per_head ? args->heads : 1) * args->head_dim,
                                  args->weight_grad);
}
