// Tiles of rows in shared memory, and a warp's products over them, for the fused attention of
// 16-bit types.
//
// A block has 4 warps. It owns the rows whose results it computes: queries in the forward pass and
// for their gradients, keys for theirs. Warp w owns 16 MT of these rows, from 16 MT w on. Only this
// warp reads them from shared memory, so it may overwrite them with its results before it writes
// these out. All warps read the tiles of the other side. A product's second operand is loaded once
// for the MT row blocks of a warp.
//
// A row in shared memory has DIM elements (D or E rounded up, the rest zero) and 8 more. So the
// distance of rows is an odd number of 16-byte units, and the 8 rows that ldmatrix reads at once
// lie in different banks. Rows beyond the sequence are zero.
#ifndef SLUICE_KERNELS_CUDA_ATTENTION_TILES_H
#define SLUICE_KERNELS_CUDA_ATTENTION_TILES_H

#include "kernels/cuda/tensor_core.cuh"

extern "C" {
#include "kernels/cuda/attention/attention_launch.h"
}

enum { ATTENTION_WARPS = 4, ATTENTION_THREADS = ATTENTION_WARPS * CUDAI_WARP };

constexpr float ATTENTION_LOG2E = 1.44269504088896340736f;

// Elements between rows of a tile.
template <int DIM> constexpr int attention_pitch = DIM + 8;

// The tile and the head on which a block works. The tiles of one head are neighbours, so that they
// share their reads in the second-level cache.
struct attention_place {
    uint32_t tile;
    uint64_t head, batch;
};

static __device__ __forceinline__ attention_place attention_locate(uint32_t tiles, uint64_t heads)
{
    uint64_t rest = blockIdx.x / tiles;
    return {blockIdx.x % tiles, rest % heads, rest / heads};
}

// The positions of the other side that some neighbouring rows of one side see: at least one of them
// sees [begin, end), and all of them see [all_begin, all_end), which may be empty. Rows after the
// end of the sequence count as if they were not there.
struct attention_reach {
    uint32_t begin, end, all_begin, all_end;
};

// The reach of `rows` queries from `first` on, or of as many keys.
template <bool OF_QUERIES>
static __device__ __forceinline__ attention_reach attention_reach_of(const attention_mask &mask,
                                                                     uint32_t first, uint32_t rows)
{
    const uint32_t tokens = static_cast<uint32_t>(mask.tokens);
    if (first >= tokens)
        return {0, 0, 0, 0};
    const uint32_t last = rows < tokens - first ? first + rows - 1 : tokens - 1;
    const attention_range low =
        OF_QUERIES ? attention_keys_of(&mask, first) : attention_queries_of(&mask, first);
    const attention_range high =
        OF_QUERIES ? attention_keys_of(&mask, last) : attention_queries_of(&mask, last);
    return {static_cast<uint32_t>(low.begin), static_cast<uint32_t>(high.end),
            static_cast<uint32_t>(high.begin), static_cast<uint32_t>(low.end)};
}

// True if one of the rows sees a position of a tile, or if all of them see all of it.
static __device__ __forceinline__ bool attention_sees(const attention_reach &reach, uint32_t first,
                                                      uint32_t count)
{
    return first < reach.end && first + count > reach.begin;
}

static __device__ __forceinline__ bool attention_sees_whole(const attention_reach &reach,
                                                            uint32_t first, uint32_t count)
{
    return first >= reach.all_begin && first + count <= reach.all_end;
}

// The keys of a tile that begins at `key` that a query sees, counted from its beginning. A query
// after the end of the sequence sees none.
struct attention_columns {
    int begin, end;
};

static __device__ __forceinline__ attention_columns attention_columns_of(const attention_mask &mask,
                                                                         uint32_t query,
                                                                         uint32_t key)
{
    if (query >= mask.tokens)
        return {0, 0};
    const attention_range keys = attention_keys_of(&mask, query);
    return {static_cast<int>(keys.begin) - static_cast<int>(key),
            static_cast<int>(keys.end) - static_cast<int>(key)};
}

// tanh, with an absolute error of some 1e-7.
static __device__ __forceinline__ float attention_tanh(float x)
{
    return 1.0f - __fdividef(2.0f, cudai_exp2(2.0f * ATTENTION_LOG2E * x) + 1.0f);
}

// Caps scores: scale * score becomes soft_cap tanh(scale * score / soft_cap).
template <int MT, int N>
static __device__ __forceinline__ void attention_cap(const cudai_attention_args &args,
                                                     float (&scores)[MT][N][4])
{
    const float inner = args.scale / args.soft_cap, outer = args.soft_cap / args.scale;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                scores[m][n][i] = outer * attention_tanh(scores[m][n][i] * inner);
}

// The same, and multiplies the distance of a gradient from its row's delta by the derivative, so
// that what follows needs to know nothing of the cap. delta_of(m, n, i) is that of an element.
template <int MT, int N, typename F>
static __device__ __forceinline__ void attention_cap_grads(const cudai_attention_args &args,
                                                           float (&scores)[MT][N][4],
                                                           float (&grads)[MT][N][4], F delta_of)
{
    const float inner = args.scale / args.soft_cap, outer = args.soft_cap / args.scale;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float t = attention_tanh(scores[m][n][i] * inner), delta = delta_of(m, n, i);
                scores[m][n][i] = outer * t;
                grads[m][n][i] = (grads[m][n][i] - delta) * (1.0f - t * t) + delta;
            }
}

template <typename T>
static __device__ __forceinline__ const T *
attention_head(const void *base, const cudai_attention_args &args, uint64_t batch, uint64_t head)
{
    return static_cast<const T *>(base) + batch * args.tokens * args.qkv_stride +
           head * args.head_dim;
}

// As attention_head, for v and its gradient.
template <typename T>
static __device__ __forceinline__ const T *attention_value_head(const void *base,
                                                                const cudai_attention_args &args,
                                                                uint64_t batch, uint64_t head)
{
    return static_cast<const T *>(base) + batch * args.tokens * args.qkv_stride +
           head * args.value_dim;
}

// The same for tensors of the output's layout, whose rows are contiguous.
template <typename T>
static __device__ __forceinline__ const T *attention_output_head(const void *base,
                                                                 const cudai_attention_args &args,
                                                                 uint64_t batch, uint64_t head)
{
    return static_cast<const T *>(base) +
           (batch * args.tokens * args.heads + head) * args.value_dim;
}

// Starts to load ROWS rows of a tile. The first `present` of them exist; the rest become zero.
// `source` is row 0 of the tile in the head. cudai_copy_commit must follow. Neighbouring threads
// take the 16-byte units of a row in groups of 8, or of 4 if DIM requires it. A thread's address
// moves down the rows, so that it needs few registers.
template <typename T, int DIM, int ROWS>
static __device__ __forceinline__ void attention_load(T *tile, const T *source, uint64_t stride,
                                                      uint32_t present, uint32_t head_dim,
                                                      bool is_vector)
{
    constexpr uint32_t group = DIM % 64 == 0 ? 8 : 4, step = ATTENTION_THREADS / group;
    static_assert(ROWS % step == 0 && DIM % (8 * group) == 0, "every thread has the same share");
    uint32_t row = threadIdx.x / group, column = threadIdx.x % group * 8;
    const T *from = source + row * stride + column;
    T *target = tile + row * attention_pitch<DIM> + column;
    if (is_vector) {
#pragma unroll
        for (uint32_t i = 0; i < ROWS / step; i++, from += step * stride)
#pragma unroll
            for (uint32_t j = 0; j < DIM; j += 8 * group) {
                bool is_there = row + i * step < present && column + j < head_dim;
                cudai_copy_async<16>(target + i * step * attention_pitch<DIM> + j, from + j,
                                     is_there);
            }
        return;
    }
#pragma unroll 1
    for (uint32_t i = 0; i < ROWS / step; i++, from += step * stride)
#pragma unroll 1
        for (uint32_t j = 0; j < DIM; j += 8 * group) {
            cudai_pack<T, 8> pack;
#pragma unroll
            for (uint32_t e = 0; e < 8; e++)
                pack.item[e] =
                    row + i * step < present && column + j + e < head_dim ? from[j + e] : T{0};
            cudai_store<T, 8>(target + i * step * attention_pitch<DIM> + j, pack);
        }
}

// sums[16 MT, N] += A[16 MT, DIM] B[N, DIM]^T, both row by row in shared memory. The loop is not
// unrolled completely: otherwise the compiler loads so far ahead that registers spill.
template <typename T, int DIM, int MT, int N>
static __device__ __forceinline__ void attention_product(float (&sums)[MT][N / 8][4], const T *a,
                                                         const T *b)
{
    constexpr int pitch = attention_pitch<DIM>;
    unsigned lane = threadIdx.x % CUDAI_WARP;
    const T *a_lane = a + lane % 16 * pitch + lane / 16 * 8;
    const T *b_lane = b + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8;
#pragma unroll(DIM > 64 ? 4 : 2)
    for (int k = 0; k < DIM; k += 16) {
        uint32_t rows[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            cudai_load_matrix(rows[m], a_lane + m * 16 * pitch + k);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t columns[4];
            cudai_load_matrix(columns, b_lane + n * 16 * pitch + k);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                cudai_mma<T>(sums[m][2 * n], rows[m], columns[0], columns[1]);
                cudai_mma<T>(sums[m][2 * n + 1], rows[m], columns[2], columns[3]);
            }
        }
    }
}

// sums[16 MT, DIM] += P[16 MT, K] B[K, DIM]. P is given as fragments, B row by row in shared
// memory.
template <typename T, int DIM, int MT, int K>
static __device__ __forceinline__ void attention_mix(float (&sums)[MT][DIM / 8][4],
                                                     const uint32_t (&p)[MT][K / 16][4], const T *b)
{
    constexpr int pitch = attention_pitch<DIM>;
    unsigned lane = threadIdx.x % CUDAI_WARP;
    const T *b_lane = b + lane % 16 * pitch + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            uint32_t columns[4];
            cudai_load_transposed(columns, b_lane + k * 16 * pitch + n * 16);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                cudai_mma<T>(sums[m][2 * n], p[m][k], columns[0], columns[1]);
                cudai_mma<T>(sums[m][2 * n + 1], p[m][k], columns[2], columns[3]);
            }
        }
    }
}

// Rounds a block of sums to fragments of the next product's first operand.
template <typename T, int MT, int N>
static __device__ __forceinline__ void attention_round(uint32_t (&p)[MT][N / 16][4],
                                                       const float (&sums)[MT][N / 8][4])
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < N / 16; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[m][n][i] = cudai_pack_pair<T>(sums[m][2 * n + i / 2][i % 2 * 2],
                                                sums[m][2 * n + i / 2][i % 2 * 2 + 1]);
}

template <int MT, int N>
static __device__ __forceinline__ void attention_clear(float (&sums)[MT][N][4])
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[m][n][i] = 0.0f;
}

// Return the row of element i of row block m, among the warp's 16 MT rows, and the column of
// element i of column block n.
static __device__ __forceinline__ uint32_t attention_row(int m, int i)
{
    return static_cast<uint32_t>(m * 16 + i / 2 * 8) + threadIdx.x % CUDAI_WARP / 4;
}

static __device__ __forceinline__ uint32_t attention_column(int n, int i)
{
    return static_cast<uint32_t>(n * 8 + i % 2) + threadIdx.x % 4 * 2;
}

// Sets the elements of a block of queries by keys to `value` where the query does not see the key.
// `first` is the position of the warp's first query, `key` that of the first key.
template <int MT, int N>
static __device__ __forceinline__ void attention_hide(float (&block)[MT][N / 8][4], float value,
                                                      const attention_mask &mask, uint32_t first,
                                                      uint32_t key)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const attention_columns seen =
                attention_columns_of(mask, first + attention_row(m, 2 * half), key);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    const int column = static_cast<int>(attention_column(n, i));
                    if (column < seen.begin || column >= seen.end)
                        block[m][n][i] = value;
                }
        }
}

// --- dropout (kernels/dropout_mask.h) ---

// The words of the 4 keys from `key` / 4 * 4 on, for one query.
static __device__ __forceinline__ void attention_words(const cudai_attention_args &args,
                                                       uint64_t batch, uint64_t head,
                                                       uint32_t query, uint32_t key,
                                                       uint32_t (&words)[4])
{
    const attention_dropout &masks = args.drop.masks;
    const dropout_place place = {masks.seed, masks.counter[0],
                                 masks.counter[1] + static_cast<uint32_t>(batch), masks.site};
    dropout_words(place, dropout_row_quad(args.tokens, head, query) + key / 4, words);
}

static __device__ __forceinline__ bool attention_is_kept(const cudai_attention_args &args,
                                                         const uint32_t (&words)[4], uint32_t key)
{
    const uint32_t low = key % 2 ? words[1] : words[0], high = key % 2 ? words[3] : words[2];
    return (key % 4 < 2 ? low : high) >= args.drop.threshold;
}

// Which elements of a block are kept: bit 4 (m N / 8 + n) + i. The warp's first row is `first`, the
// first column `column`; rows are queries, or keys if BY_KEYS. The loop is not unrolled, because
// the generator is long.
template <int MT, int N, bool BY_KEYS>
static __device__ __forceinline__ uint64_t attention_kept(const cudai_attention_args &args,
                                                          uint64_t batch, uint64_t head,
                                                          uint32_t first, uint32_t column)
{
    static_assert(MT * N / 2 <= 64, "a bit for each element of a thread");
    uint64_t kept = 0;
#pragma unroll 1
    for (int pair = 0; pair < MT * N / 4; pair++) {
        const int m = pair / (N / 4), n = pair / 2 % (N / 8), i = pair % 2 * 2;
        const uint32_t row = first + attention_row(m, i), other = column + attention_column(n, 0);
        uint32_t words[4];
        bool is_kept[2];
        attention_words(args, batch, head, BY_KEYS ? other : row, BY_KEYS ? row : other, words);
        is_kept[0] = attention_is_kept(args, words, BY_KEYS ? row : other);
        if (BY_KEYS)
            attention_words(args, batch, head, other + 1, row, words);
        is_kept[1] = attention_is_kept(args, words, BY_KEYS ? row : other + 1);
        kept |= static_cast<uint64_t>((is_kept[0] ? 1 : 0) | (is_kept[1] ? 2 : 0)) << (2 * pair);
    }
    return kept;
}

// Multiplies what is kept by `scale` and sets the rest to 0.
template <int MT, int N>
static __device__ __forceinline__ void attention_keep(float (&values)[MT][N][4], uint64_t kept,
                                                      float scale)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                values[m][n][i] =
                    kept >> (4 * (m * N + n) + i) & 1 ? values[m][n][i] * scale : 0.0f;
}

// Multiplies the warp's rows of sums by their factors, rounds them, and writes the first `present`
// rows to `target`. They pass through the warp's own rows of a tile in shared memory, so that
// writes are whole 16-byte units.
template <typename T, int DIM, int MT>
static __device__ __forceinline__ void
attention_write(T *tile_rows, const float (&sums)[MT][DIM / 8][4], const float (&factors)[MT][2],
                T *target, uint64_t stride, uint32_t present, uint32_t head_dim, bool is_vector)
{
    constexpr uint32_t chunks = DIM / 8;
    constexpr int pitch = attention_pitch<DIM>;
    unsigned lane = threadIdx.x % CUDAI_WARP;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float factor = factors[m][half];
                uint32_t pair = cudai_pack_pair<T>(sums[m][n][2 * half] * factor,
                                                   sums[m][n][2 * half + 1] * factor);
                T *cell = tile_rows + attention_row(m, 2 * half) * pitch + attention_column(n, 0);
                *reinterpret_cast<uint32_t *>(cell) = pair;
            }
    __syncwarp();
    for (uint32_t idx = lane; idx < 16 * MT * chunks; idx += CUDAI_WARP) {
        uint32_t row = idx / chunks, column = idx % chunks * 8;
        if (row >= present || column >= head_dim)
            continue;
        cudai_pack<T, 8> pack = cudai_load<T, 8>(tile_rows + row * pitch + column);
        T *to = target + row * stride + column;
        if (is_vector) {
            cudai_store<T, 8>(to, pack);
        } else {
#pragma unroll
            for (uint32_t e = 0; e < 8; e++)
                if (column + e < head_dim)
                    to[e] = pack.item[e];
        }
    }
}

// Calls `call(std::integral_constant<int, DIM>())` with the smallest DIM that holds head_dim.
template <typename F> static inline cudaError_t attention_by_dim(uint64_t head_dim, F call)
{
    if (head_dim <= 32)
        return call(std::integral_constant<int, 32>());
    if (head_dim <= 64)
        return call(std::integral_constant<int, 64>());
    if (head_dim <= 96)
        return call(std::integral_constant<int, 96>());
    if (head_dim <= 128)
        return call(std::integral_constant<int, 128>());
    if (head_dim <= 192)
        return call(std::integral_constant<int, 192>());
    return call(std::integral_constant<int, 256>());
}

// Calls `call` with an element of the 16-bit type.
template <typename F> static inline cudaError_t attention_by_type(enum dtype type, F call)
{
    return type == DTYPE_BF16 ? call(cudai_bf16{0}) : call(cudai_fp16{0});
}

#endif
