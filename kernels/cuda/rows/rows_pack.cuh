// Packs of 16 bytes for the row kernels: the check that they may be used, and loads and stores of a
// row's packs that fall back to single elements.
//
// The assignment of elements to threads never depends on alignment: a row that is not aligned is
// divided into the same packs, which are loaded element by element. So sums have the same bits for
// all addresses.
#ifndef SLUICE_KERNELS_CUDA_ROWS_PACK_H
#define SLUICE_KERNELS_CUDA_ROWS_PACK_H

#include "kernels/cuda/device.cuh"

static constexpr size_t rows_pack_bytes = 16;

// Elements of a pack.
template <typename T>
static constexpr int rows_pack_elems = static_cast<int>(rows_pack_bytes / sizeof(T));

template <typename T> using rows_pack = cudai_pack<T, rows_pack_elems<T>>;

// True if all addresses are multiples of `bytes`. NULL counts as aligned.
template <typename... P> static inline bool rows_are_aligned(size_t bytes, P... pointers)
{
    uintptr_t bits = 0;
    const void *all[] = {pointers...};
    for (const void *one : all)
        bits |= reinterpret_cast<uintptr_t>(one);
    return bits % bytes == 0;
}

// A norm's weights are those stored, 1 + those stored, or 1. The first function gives the number
// that is added to the stored ones, the second gives one weight.
static __device__ __forceinline__ float rows_weight_added(const void *weight, bool adds_one)
{
    return adds_one || weight == nullptr ? 1.0f : 0.0f;
}

template <typename T> static __device__ __forceinline__ float rows_weight(T stored, float added)
{
    float weight = cudai_widen(stored);
    return added != 0.0f ? __fadd_rn(weight, added) : weight;
}

// Loads elements [at, at + pack) of a row of `channels`; those beyond its end are zero. ALIGNED
// means that channels is a multiple of the pack and that the row begins at a multiple of 16 bytes.
template <bool ALIGNED, typename T>
static __device__ __forceinline__ rows_pack<T> rows_load(const T *row, uint64_t at,
                                                         uint64_t channels)
{
    if constexpr (ALIGNED) {
        return cudai_load<T, rows_pack_elems<T>>(row + at);
    } else {
        rows_pack<T> pack;
#pragma unroll
        for (int i = 0; i < rows_pack_elems<T>; i++)
            pack.item[i] = at + i < channels ? row[at + i] : T{};
        return pack;
    }
}

// The same where there may be no row: zeros then.
template <bool ALIGNED, typename T>
static __device__ __forceinline__ rows_pack<T> rows_load_if(const void *row, uint64_t at,
                                                            uint64_t channels)
{
    if (row == nullptr)
        return rows_pack<T>{};
    return rows_load<ALIGNED>(static_cast<const T *>(row), at, channels);
}

template <bool ALIGNED, typename T>
static __device__ __forceinline__ void rows_store(T *row, uint64_t at, uint64_t channels,
                                                  const rows_pack<T> &pack)
{
    if constexpr (ALIGNED) {
        cudai_store<T, rows_pack_elems<T>>(row + at, pack);
    } else {
#pragma unroll
        for (int i = 0; i < rows_pack_elems<T>; i++)
            if (at + i < channels)
                row[at + i] = pack.item[i];
    }
}

#endif
