// Kernels that map elements to elements, and grids over rows, for the files of pointwise ops.
//
// Threads take packs of 16 bytes if addresses and shapes allow, otherwise single elements. Both
// compute each element by the same _rn arithmetic. A pack is loaded completely before any of it is
// stored, and no thread reads what another one writes. So the ops can work in place wherever
// kernels/ops.h allows it.
#ifndef SLUICE_KERNELS_CUDA_ROWS_MAP_H
#define SLUICE_KERNELS_CUDA_ROWS_MAP_H

#include "kernels/cuda/rows/rows_pack.cuh"

static constexpr unsigned point_threads = 256;
static constexpr uint64_t grid_y_max = 65535;

// --- maps over a whole array -------------------------------------------------------------------

// target[i] = F(source[i]) for i < count, V elements at a time, and single elements for the rest.
template <typename S, typename T, int V, typename F>
static __global__ void __launch_bounds__(point_threads)
    map_kernel(const S *source, T *target, uint64_t count)
{
    const uint64_t packs = count / V, step = cudai_thread_count();
    for (uint64_t i = cudai_thread_idx(); i < packs; i += step) {
        cudai_pack<S, V> x = cudai_load<S, V>(source + i * V);
        cudai_pack<T, V> y;
#pragma unroll
        for (int k = 0; k < V; k++)
            y.item[k] = cudai_narrow<T>(F::apply(cudai_widen(x.item[k])));
        cudai_store<T, V>(target + i * V, y);
    }
    for (uint64_t i = packs * V + cudai_thread_idx(); i < count; i += step)
        target[i] = cudai_narrow<T>(F::apply(cudai_widen(source[i])));
}

// out[i] = F(a[i], b[i]); out may be a or b.
template <typename T, int V, typename F>
static __global__ void __launch_bounds__(point_threads)
    map_pair_kernel(const T *a, const T *b, T *out, uint64_t count)
{
    const uint64_t packs = count / V, step = cudai_thread_count();
    for (uint64_t i = cudai_thread_idx(); i < packs; i += step) {
        cudai_pack<T, V> x = cudai_load<T, V>(a + i * V), y = cudai_load<T, V>(b + i * V), z;
#pragma unroll
        for (int k = 0; k < V; k++)
            z.item[k] = cudai_narrow<T>(F::apply(cudai_widen(x.item[k]), cudai_widen(y.item[k])));
        cudai_store<T, V>(out + i * V, z);
    }
    for (uint64_t i = packs * V + cudai_thread_idx(); i < count; i += step)
        out[i] = cudai_narrow<T>(F::apply(cudai_widen(a[i]), cudai_widen(b[i])));
}

// Launch the two kernels with V elements per access if the addresses allow, otherwise with single
// ones.
template <typename F, typename S, typename T>
static cudaError_t launch_map(cudaStream_t stream, int sm_count, const void *source, void *target,
                              uint64_t count)
{
    constexpr int V = rows_pack_bytes / (sizeof(S) > sizeof(T) ? sizeof(S) : sizeof(T));
    const S *from = static_cast<const S *>(source);
    T *to = static_cast<T *>(target);
    if (rows_are_aligned(V * sizeof(S), source) && rows_are_aligned(V * sizeof(T), target)) {
        dim3 grid(cudai_blocks((count + V - 1) / V, point_threads, sm_count));
        return cudai_launch(map_kernel<S, T, V, F>, grid, dim3(point_threads), 0, stream, from, to,
                            count);
    }
    dim3 grid(cudai_blocks(count, point_threads, sm_count));
    return cudai_launch(map_kernel<S, T, 1, F>, grid, dim3(point_threads), 0, stream, from, to,
                        count);
}

template <typename F, typename T>
static cudaError_t launch_map_pair(cudaStream_t stream, int sm_count, const void *a, const void *b,
                                   void *out, uint64_t count)
{
    constexpr int V = rows_pack_elems<T>;
    const T *left = static_cast<const T *>(a), *right = static_cast<const T *>(b);
    T *to = static_cast<T *>(out);
    if (rows_are_aligned(rows_pack_bytes, a, b, out)) {
        dim3 grid(cudai_blocks((count + V - 1) / V, point_threads, sm_count));
        return cudai_launch(map_pair_kernel<T, V, F>, grid, dim3(point_threads), 0, stream, left,
                            right, to, count);
    }
    dim3 grid(cudai_blocks(count, point_threads, sm_count));
    return cudai_launch(map_pair_kernel<T, 1, F>, grid, dim3(point_threads), 0, stream, left, right,
                        to, count);
}

// --- maps over rows ----------------------------------------------------------------------------

// The grid for `rows` of `width` items: x over items, y over rows. It is no wider in x than a row
// needs.
struct row_grid {
    dim3 grid, block;
};

static inline row_grid row_grid_of(uint64_t rows, uint64_t width)
{
    unsigned x = 1;
    while (x < point_threads && x < width)
        x *= 2;
    unsigned y = point_threads / x;
    uint64_t tiles = (width + x - 1) / x, groups = (rows + y - 1) / y;
    row_grid of = {dim3(static_cast<unsigned>(tiles),
                        static_cast<unsigned>(groups < grid_y_max ? groups : grid_y_max)),
                   dim3(x, y)};
    return of;
}

// The first row of this thread, and the distance to its next row.
static __device__ __forceinline__ uint64_t row_first()
{
    return static_cast<uint64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
}

static __device__ __forceinline__ uint64_t row_step()
{
    return static_cast<uint64_t>(gridDim.y) * blockDim.y;
}

#endif
