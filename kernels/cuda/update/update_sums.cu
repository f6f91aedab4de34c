// Sums in fp64 in the CPU's order: the sum of squares of each block of a gradient that is closed,
// and the tree over all blocks. The head of kernels/cpu/optimizer/adam.c defines the order. The
// build keeps subnormals (see update_adam.cu).
#include "kernels/cuda/device.cuh"

extern "C" {
#include "kernels/cuda/update/update_launch.h"
}

static const unsigned ALL_LANES = 0xffffffffu;

static __device__ __forceinline__ double one_nan(double value)
{
    long long magnitude = __double_as_longlong(value) & 0x7fffffffffffffffll;
    return magnitude > 0x7ff0000000000000ll ? __longlong_as_double(0x7ff8000000000000ll) : value;
}

// --- the close of a gradient -------------------------------------------------------------------

// Four neighbouring threads share a block of 4096 elements. Thread q computes the partial sums 4q
// to 4q + 3 of the 16, so that each of its loads is 16 bytes and the four threads' loads are 64
// contiguous bytes. Eight rows of 16 elements are loaded before they are used. A warp takes eight
// blocks.
enum {
    CLOSE_THREADS = 64, // few, so that a small unit has blocks for all multiprocessors
    CLOSE_SHARE = 4,    // threads per block of elements
    CLOSE_DEPTH = 8,    // rows in flight
    CLOSE_ROWS = ADAMI_BLOCK_ELEMS / ADAMI_SUM_LANES,
    CLOSE_WARP_BLOCKS = CUDAI_WARP / CLOSE_SHARE,
};
static_assert(CLOSE_SHARE * CUDAI_UPDATE_PACK == ADAMI_SUM_LANES, "a row is the lanes");
static_assert(CLOSE_ROWS % CLOSE_DEPTH == 0, "rows come in whole batches");

typedef cudai_pack<float, CUDAI_UPDATE_PACK> quad;

template <bool IS_WIDE> static __device__ __forceinline__ quad load_quad(const float *source)
{
    if constexpr (IS_WIDE) {
        return cudai_load<float, CUDAI_UPDATE_PACK>(source);
    } else {
        quad value;
        for (int i = 0; i < CUDAI_UPDATE_PACK; i++)
            value.item[i] = source[i];
        return value;
    }
}

template <typename G, bool IS_WIDE>
static __device__ __forceinline__ void store_quad(G *target,
                                                  const cudai_pack<G, CUDAI_UPDATE_PACK> &value)
{
    if constexpr (IS_WIDE) {
        cudai_store(target, value);
    } else {
        for (int i = 0; i < CUDAI_UPDATE_PACK; i++)
            target[i] = value.item[i];
    }
}

// Computes this thread's share of one block of elements.
template <typename G, bool IS_WIDE, bool IS_STORED>
static __device__ __forceinline__ void close_share(const float *source, G *target,
                                                   double sums[CUDAI_UPDATE_PACK])
{
#pragma unroll 1
    for (int row = 0; row < CLOSE_ROWS; row += CLOSE_DEPTH) {
        quad values[CLOSE_DEPTH];
        for (int i = 0; i < CLOSE_DEPTH; i++)
            values[i] = load_quad<IS_WIDE>(source + i * ADAMI_SUM_LANES);
        for (int i = 0; i < CLOSE_DEPTH; i++) {
            cudai_pack<G, CUDAI_UPDATE_PACK> rounded;
            for (int k = 0; k < CUDAI_UPDATE_PACK; k++) {
                rounded.item[k] = cudai_narrow<G>(values[i].item[k]);
                double value = static_cast<double>(cudai_widen(rounded.item[k]));
                sums[k] = __fma_rn(value, value, sums[k]); // the square is exact in fp64
            }
            if constexpr (IS_STORED)
                store_quad<G, IS_WIDE>(target + i * ADAMI_SUM_LANES, rounded);
        }
        source += CLOSE_DEPTH * ADAMI_SUM_LANES;
        target += CLOSE_DEPTH * ADAMI_SUM_LANES;
    }
}

// Any grid of one dimension. All lanes of a warp stay together for the shuffles. IS_STORED is false
// in place, since the values to write are already there.
template <typename G, bool IS_WIDE, bool IS_STORED>
static __global__ void __launch_bounds__(CLOSE_THREADS)
    close_kernel(const float *accumulator, G *grads, double *block_sums, uint64_t block_count)
{
    unsigned lane = threadIdx.x % CUDAI_WARP, share = lane % CLOSE_SHARE;
    uint64_t begin = cudai_thread_idx() / CUDAI_WARP * CLOSE_WARP_BLOCKS;
    uint64_t stride = cudai_thread_count() / CUDAI_WARP * CLOSE_WARP_BLOCKS;
    for (; begin < block_count; begin += stride) {
        uint64_t block = begin + lane / CLOSE_SHARE;
        double sums[CUDAI_UPDATE_PACK] = {0.0, 0.0, 0.0, 0.0};
        if (block < block_count) {
            uint64_t at = block * ADAMI_BLOCK_ELEMS + share * CUDAI_UPDATE_PACK;
            close_share<G, IS_WIDE, IS_STORED>(accumulator + at, grads + at, sums);
        }
        // Lane j += lane j + 8, then j + 4: these are two threads away, then one. A shuffle stays
        // within the four threads of a block; the results of the upper two threads are not used.
        for (int step = CLOSE_SHARE / 2; step > 0; step /= 2)
            for (int k = 0; k < CUDAI_UPDATE_PACK; k++)
                sums[k] = __dadd_rn(sums[k], __shfl_xor_sync(ALL_LANES, sums[k], step));
        // Then j + 2 and j + 1, within the thread.
        double sum = __dadd_rn(__dadd_rn(sums[0], sums[2]), __dadd_rn(sums[1], sums[3]));
        if (share == 0 && block < block_count)
            block_sums[block] = one_nan(sum);
    }
}

template <typename G, bool IS_STORED>
static cudaError_t launch_close(const kernel_context *context, void *stream,
                                const grad_close_args *args, bool is_wide)
{
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    uint64_t block_count = args->count / ADAMI_BLOCK_ELEMS;
    unsigned grid = cudai_blocks(block_count * CLOSE_SHARE, CLOSE_THREADS, context->sm_count);
    return cudai_launch(is_wide ? close_kernel<G, true, IS_STORED>
                                : close_kernel<G, false, IS_STORED>,
                        dim3(grid), dim3(CLOSE_THREADS), 0, queue, args->accumulator,
                        static_cast<G *>(args->grads), args->block_sums, block_count);
}

extern "C" int cudai_launch_grad_close(const kernel_context *context, void *stream,
                                       const grad_close_args *args, bool is_wide)
{
    if (args->grads == static_cast<const void *>(args->accumulator))
        return launch_close<float, false>(context, stream, args, is_wide);
    CUDAI_BY_TYPE(args->grad_type, G, return launch_close<G, true>(context, stream, args, is_wide));
}

// --- the norm ----------------------------------------------------------------------------------

// tree(n) adds neighbours level by level and carries an odd last one up. -0 stands for missing
// leaves, since adding -0 changes no bits. So the tree is always complete, and each aligned power
// of two of leaves is a node of it.
//
// There is one launch, and it needs no memory from the caller. A block of threads computes one node
// and stores it in norm_partials. The block that finishes last, by norm_blocks_done, adds these and
// resets the counter to 0 for the next launch. The additions are the same whichever block is last.
// Both variables exist once per GPU, so a process's launches on a GPU must follow one another, as
// launches on one stream follow. A context's ops are on one stream at a time.
enum {
    NORM_THREADS = 256,
    NORM_WARPS = NORM_THREADS / CUDAI_WARP,
    NORM_DEPTH = CUDAI_NORM_WARP_LEAVES / (2 * CUDAI_WARP), // pairs in flight per thread
    NORM_NODES_MAX = CUDAI_NORM_BLOCK_MAX / CUDAI_NORM_WARP_LEAVES,
};
static_assert(NORM_DEPTH == 8, "the last three levels of a warp's tree");
static_assert(int{NORM_NODES_MAX} >= int{CUDAI_NORM_BLOCKS_MAX}, "the last block's nodes fit");

static __device__ double norm_partials[CUDAI_NORM_BLOCKS_MAX];
static __device__ unsigned norm_blocks_done;

typedef cudai_pack<double, 2> leaf_pair;

// Returns the sum of leaves at and at + 1. Leaves from `count` on are missing.
static __device__ __forceinline__ double pair_near_end(const double *sums, uint64_t at,
                                                       uint64_t count)
{
    double left = at < count ? sums[at] : -0.0;
    return __dadd_rn(left, at + 1 < count ? sums[at + 1] : -0.0);
}

// Returns the node over CUDAI_NORM_WARP_LEAVES leaves from `begin`, in every lane. The whole warp
// must call it.
static __device__ __forceinline__ double warp_node(const double *sums, uint64_t begin,
                                                   uint64_t count, bool is_wide)
{
    unsigned lane = threadIdx.x % CUDAI_WARP;
    double nodes[NORM_DEPTH];
    uint64_t at = begin + 2 * lane;
    if (is_wide && begin + CUDAI_NORM_WARP_LEAVES <= count) {
        leaf_pair pairs[NORM_DEPTH];
        for (int i = 0; i < NORM_DEPTH; i++)
            pairs[i] = cudai_load<double, 2>(sums + at + i * 2 * CUDAI_WARP);
        for (int i = 0; i < NORM_DEPTH; i++)
            nodes[i] = __dadd_rn(pairs[i].item[0], pairs[i].item[1]);
    } else {
        for (int i = 0; i < NORM_DEPTH; i++)
            nodes[i] = pair_near_end(sums, at + i * 2 * CUDAI_WARP, count);
    }
    for (int step = 1; step < CUDAI_WARP; step *= 2)
        for (int i = 0; i < NORM_DEPTH; i++)
            nodes[i] = __dadd_rn(nodes[i], __shfl_xor_sync(ALL_LANES, nodes[i], step));
    double low = __dadd_rn(__dadd_rn(nodes[0], nodes[1]), __dadd_rn(nodes[2], nodes[3]));
    double high = __dadd_rn(__dadd_rn(nodes[4], nodes[5]), __dadd_rn(nodes[6], nodes[7]));
    return __dadd_rn(low, high);
}

// Adds nodes[0 .. node_count), a power of two, into nodes[0]. The whole block must call it. No
// barrier is needed between the block's writes to `nodes` and the call. Only thread 0 may read
// nodes[0] before the next barrier.
static __device__ __forceinline__ void block_tree(double *nodes, unsigned node_count)
{
    for (unsigned step = 1; step < node_count; step *= 2) {
        __syncthreads();
        for (unsigned i = 2 * step * threadIdx.x; i < node_count; i += 2 * step * NORM_THREADS)
            nodes[i] = __dadd_rn(nodes[i], nodes[i + step]);
    }
}

// Grid: one block for each block_leaves leaves, the last of which may lack some. With no leaves,
// one block.
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_kernel(const double *sums, uint64_t count, uint64_t block_leaves, bool is_wide,
                double *total)
{
    __shared__ double nodes[NORM_NODES_MAX];
    __shared__ bool is_last;
    unsigned node_count = static_cast<unsigned>(block_leaves / CUDAI_NORM_WARP_LEAVES);
    for (unsigned i = threadIdx.x / CUDAI_WARP; i < node_count; i += NORM_WARPS) {
        uint64_t begin = blockIdx.x * block_leaves + uint64_t{i} * CUDAI_NORM_WARP_LEAVES;
        double node = begin < count ? warp_node(sums, begin, count, is_wide) : -0.0;
        if (threadIdx.x % CUDAI_WARP == 0)
            nodes[i] = node;
    }
    block_tree(nodes, node_count);
    if (threadIdx.x == 0) {
        norm_partials[blockIdx.x] = nodes[0];
        __threadfence(); // the partial is written before it is counted
        is_last = atomicAdd(&norm_blocks_done, 1u) == gridDim.x - 1;
        __threadfence(); // no partial is read before all are counted
    }
    __syncthreads();
    if (!is_last)
        return;
    unsigned partial_count = 1;
    while (partial_count < gridDim.x)
        partial_count *= 2;
    const volatile double *partials = norm_partials; // bypasses this multiprocessor's cache
    for (unsigned i = threadIdx.x; i < partial_count; i += NORM_THREADS)
        nodes[i] = i < gridDim.x ? partials[i] : -0.0;
    block_tree(nodes, partial_count);
    if (threadIdx.x == 0) {
        *total = count == 0 ? 0.0 : one_nan(nodes[0]);
        norm_blocks_done = 0;
    }
}

extern "C" int cudai_launch_norm_reduce(void *stream, const double *sums, uint64_t count,
                                        uint64_t block_leaves, bool is_wide, double *total)
{
    uint64_t grid = size_max(size_div_up(count, block_leaves), 1);
    return cudai_launch(norm_kernel, dim3(static_cast<unsigned>(grid)), dim3(NORM_THREADS), 0,
                        static_cast<cudaStream_t>(stream), sums, count, block_leaves, is_wide,
                        total);
}
