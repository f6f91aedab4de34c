// Tiles and products of the fused attention for fp32 operands: ordinary fp32 multiply-adds.
//
// A block is 16 by 16 threads; thread (x, y) has the elements (y + 16 i, x + 16 j) of a block of scores,
// so a row of scores is in 16 neighbouring lanes, and the columns 4 x + 64 j .. + 3 of rows y + 16 i of
// a block of DIM columns. Rows in shared memory hold DIM elements, head_dim rounded up to 64, 128 or
// 256, the rest zero, and 4 more, so that 16-byte loads of 8 neighbouring rows lie in different banks.
#ifndef SLUICE_KERNELS_CUDA_ATTENTION_PLAIN_CUH
#define SLUICE_KERNELS_CUDA_ATTENTION_PLAIN_CUH

#include "kernels/cuda/attention_tiles.cuh"

enum { PLAIN_THREADS = 256 };

// Rows of every tile, queries and keys alike, and how many of them a thread has.
template <int DIM> constexpr int plain_rows = DIM <= 128 ? 32 : 16;
template <int DIM> constexpr int plain_share = plain_rows<DIM> / 16;
template <int DIM> constexpr int plain_pitch = DIM + 4;
template <int DIM> constexpr int plain_elems = plain_rows<DIM> *plain_pitch<DIM>;
// Of a block of scores in shared memory.
template <int DIM> constexpr int plain_score_pitch = plain_rows<DIM> + 1;
template <int DIM> constexpr int plain_score_elems = plain_rows<DIM> *plain_score_pitch<DIM>;

static __device__ __forceinline__ uint32_t plain_x()
{
    return threadIdx.x % 16;
}

static __device__ __forceinline__ uint32_t plain_y()
{
    return threadIdx.x / 16;
}

// Loads a tile of which `present` rows exist; to be followed by a barrier.
template <int DIM>
static __device__ __forceinline__ void plain_load(float *tile, const float *source, uint64_t stride,
                                                  uint32_t present, uint32_t head_dim,
                                                  bool is_vector)
{
    constexpr uint32_t units = DIM / 4;
    for (uint32_t idx = threadIdx.x; idx < plain_rows<DIM> * units; idx += PLAIN_THREADS) {
        uint32_t row = idx / units, column = idx % units * 4;
        const float *from = source + row * stride + column;
        cudai_pack<float, 4> pack;
        if (is_vector && row < present && column < head_dim) {
            pack = cudai_load<float, 4>(from);
        } else {
#pragma unroll
            for (uint32_t e = 0; e < 4; e++)
                pack.item[e] = row < present && column + e < head_dim ? from[e] : 0.0f;
        }
        cudai_store<float, 4>(tile + row * plain_pitch<DIM> + column, pack);
    }
}

// This thread's elements of A B', row by row in shared memory; sums over the columns in order.
template <int DIM>
static __device__ __forceinline__ void
plain_product(float (&sums)[plain_share<DIM>][plain_share<DIM>], const float *a, const float *b)
{
    constexpr int share = plain_share<DIM>, pitch = plain_pitch<DIM>;
#pragma unroll
    for (int i = 0; i < share; i++)
#pragma unroll
        for (int j = 0; j < share; j++)
            sums[i][j] = 0.0f;
#pragma unroll 4
    for (int k = 0; k < DIM; k += 4) {
        cudai_pack<float, 4> rows[share], columns[share];
#pragma unroll
        for (int i = 0; i < share; i++) {
            rows[i] = cudai_load<float, 4>(a + (plain_y() + 16 * i) * pitch + k);
            columns[i] = cudai_load<float, 4>(b + (plain_x() + 16 * i) * pitch + k);
        }
#pragma unroll
        for (int i = 0; i < share; i++)
#pragma unroll
            for (int j = 0; j < share; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sums[i][j] = __fmaf_rn(rows[i].item[e], columns[j].item[e], sums[i][j]);
    }
}

// This thread's columns of `sums` += P B, with P a block of scores and B a tile, in shared memory.
template <int DIM>
static __device__ __forceinline__ void plain_mix(float (&sums)[plain_share<DIM>][DIM / 64][4],
                                                 const float *p, const float *b)
{
    constexpr int share = plain_share<DIM>;
#pragma unroll 4
    for (int k = 0; k < plain_rows<DIM>; k++) {
        float weights[share];
#pragma unroll
        for (int i = 0; i < share; i++)
            weights[i] = p[(plain_y() + 16 * i) * plain_score_pitch<DIM> + k];
#pragma unroll
        for (int j = 0; j < DIM / 64; j++) {
            cudai_pack<float, 4> values =
                cudai_load<float, 4>(b + k * plain_pitch<DIM> + 4 * plain_x() + 64 * j);
#pragma unroll
            for (int i = 0; i < share; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sums[i][j][e] = __fmaf_rn(weights[i], values.item[e], sums[i][j][e]);
        }
    }
}

// Puts this thread's elements of a block of scores into shared memory.
template <int DIM>
static __device__ __forceinline__ void
plain_keep(float *target, const float (&values)[plain_share<DIM>][plain_share<DIM>])
{
#pragma unroll
    for (int i = 0; i < plain_share<DIM>; i++)
#pragma unroll
        for (int j = 0; j < plain_share<DIM>; j++)
            target[(plain_y() + 16 * i) * plain_score_pitch<DIM> + plain_x() + 16 * j] =
                values[i][j];
}

// Writes this thread's columns, times a factor per row, of the rows that exist.
template <int DIM>
static __device__ __forceinline__ void
plain_write(float *target, const float (&sums)[plain_share<DIM>][DIM / 64][4],
            const float (&factors)[plain_share<DIM>], uint64_t stride, uint32_t present,
            uint32_t head_dim, bool is_vector)
{
#pragma unroll
    for (int i = 0; i < plain_share<DIM>; i++)
#pragma unroll
        for (int j = 0; j < DIM / 64; j++) {
            uint32_t row = plain_y() + 16 * i, column = 4 * plain_x() + 64 * j;
            if (row >= present || column >= head_dim)
                continue;
            cudai_pack<float, 4> pack;
#pragma unroll
            for (int e = 0; e < 4; e++)
                pack.item[e] = sums[i][j][e] * factors[i];
            float *to = target + row * stride + column;
            if (is_vector) {
                cudai_store<float, 4>(to, pack);
            } else {
#pragma unroll
                for (uint32_t e = 0; e < 4; e++)
                    if (column + e < head_dim)
                        to[e] = pack.item[e];
            }
        }
}

template <int DIM>
static __device__ __forceinline__ void plain_clear(float (&sums)[plain_share<DIM>][DIM / 64][4])
{
#pragma unroll
    for (int i = 0; i < plain_share<DIM>; i++)
#pragma unroll
        for (int j = 0; j < DIM / 64; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[i][j][e] = 0.0f;
}

template <typename F> static inline cudaError_t plain_by_dim(uint64_t head_dim, F call)
{
    if (head_dim <= 64)
        return call(std::integral_constant<int, 64>());
    if (head_dim <= 128)
        return call(std::integral_constant<int, 128>());
    return call(std::integral_constant<int, 256>());
}

#endif
