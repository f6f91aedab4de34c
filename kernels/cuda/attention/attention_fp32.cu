// Fused attention for fp32 operands, both passes. It is the algorithm of
// attention_forward.cu, attention_key_grad.cu and attention_query_grad.cu with fp32 multiply-adds
// and accurate exponentials. The matrix units that those files use multiply only 16-bit operands,
// and cuDNN's attention takes only 16-bit operands. So this file serves every fp32 shape, and no
// 16-bit ones. It is not tuned further, because fp32 training serves checks and small models.
//
// A block has 16 by 16 threads. Thread (x, y) holds the elements (y + 16 i, x + 16 j) of a block of
// scores, so a row of scores lies in 16 neighbouring lanes. The thread also holds the columns 4 x +
// 64 j .. + 3 of rows y + 16 i of a block of DIM columns. Rows in shared memory have DIM elements
// (D or E rounded up to 64, 128 or 256, the rest zero) and 4 more, so that 16-byte loads of 8
// neighbouring rows use different banks.
//
// The bits depend only on a row's operands and position. There are no atomics, no sums in memory
// and no allocation.
#include "kernels/cuda/attention/attention_tiles.cuh"

namespace
{

enum { FP32_THREADS = 256 };

// Rows of every tile, for queries and keys, and the number of them that a thread holds.
template <int DIM> constexpr int fp32_rows = DIM <= 128 ? 32 : 16;
template <int DIM> constexpr int fp32_share = fp32_rows<DIM> / 16;
template <int DIM> constexpr int fp32_pitch = DIM + 4;
template <int DIM> constexpr int fp32_elems = fp32_rows<DIM> *fp32_pitch<DIM>;
// Distances in a block of scores in shared memory.
template <int DIM> constexpr int fp32_score_pitch = fp32_rows<DIM> + 1;
template <int DIM> constexpr int fp32_score_elems = fp32_rows<DIM> *fp32_score_pitch<DIM>;

__device__ __forceinline__ uint32_t fp32_x()
{
    return threadIdx.x % 16;
}

__device__ __forceinline__ uint32_t fp32_y()
{
    return threadIdx.x / 16;
}

// Loads a tile, of which `present` rows exist. A barrier must follow.
template <int DIM>
__device__ __forceinline__ void fp32_load(float *tile, const float *source, uint64_t stride,
                                          uint32_t present, uint32_t head_dim, bool is_vector)
{
    constexpr uint32_t units = DIM / 4;
    for (uint32_t idx = threadIdx.x; idx < fp32_rows<DIM> * units; idx += FP32_THREADS) {
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
        cudai_store<float, 4>(tile + row * fp32_pitch<DIM> + column, pack);
    }
}

// Computes this thread's elements of A B^T; both lie row by row in shared memory. Sums run over the
// columns in order.
template <int DIM>
__device__ __forceinline__ void fp32_product(float (&sums)[fp32_share<DIM>][fp32_share<DIM>],
                                             const float *a, const float *b)
{
    constexpr int share = fp32_share<DIM>, pitch = fp32_pitch<DIM>;
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
            rows[i] = cudai_load<float, 4>(a + (fp32_y() + 16 * i) * pitch + k);
            columns[i] = cudai_load<float, 4>(b + (fp32_x() + 16 * i) * pitch + k);
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

// Adds P B to this thread's columns of `sums`. P is a block of scores and B a tile, both in shared
// memory.
template <int DIM>
__device__ __forceinline__ void fp32_mix(float (&sums)[fp32_share<DIM>][DIM / 64][4],
                                         const float *p, const float *b)
{
    constexpr int share = fp32_share<DIM>;
#pragma unroll 4
    for (int k = 0; k < fp32_rows<DIM>; k++) {
        float weights[share];
#pragma unroll
        for (int i = 0; i < share; i++)
            weights[i] = p[(fp32_y() + 16 * i) * fp32_score_pitch<DIM> + k];
#pragma unroll
        for (int j = 0; j < DIM / 64; j++) {
            cudai_pack<float, 4> values =
                cudai_load<float, 4>(b + k * fp32_pitch<DIM> + 4 * fp32_x() + 64 * j);
#pragma unroll
            for (int i = 0; i < share; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sums[i][j][e] = __fmaf_rn(weights[i], values.item[e], sums[i][j][e]);
        }
    }
}

// Stores this thread's elements of a block of scores in shared memory.
template <int DIM>
__device__ __forceinline__ void fp32_keep(float *target,
                                          const float (&values)[fp32_share<DIM>][fp32_share<DIM>])
{
#pragma unroll
    for (int i = 0; i < fp32_share<DIM>; i++)
#pragma unroll
        for (int j = 0; j < fp32_share<DIM>; j++)
            target[(fp32_y() + 16 * i) * fp32_score_pitch<DIM> + fp32_x() + 16 * j] = values[i][j];
}

// Writes this thread's columns, times a factor per row, for the rows that exist.
template <int DIM>
__device__ __forceinline__ void fp32_write(float *target,
                                           const float (&sums)[fp32_share<DIM>][DIM / 64][4],
                                           const float (&factors)[fp32_share<DIM>], uint64_t stride,
                                           uint32_t present, uint32_t head_dim, bool is_vector)
{
#pragma unroll
    for (int i = 0; i < fp32_share<DIM>; i++)
#pragma unroll
        for (int j = 0; j < DIM / 64; j++) {
            uint32_t row = fp32_y() + 16 * i, column = 4 * fp32_x() + 64 * j;
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
__device__ __forceinline__ void fp32_clear(float (&sums)[fp32_share<DIM>][DIM / 64][4])
{
#pragma unroll
    for (int i = 0; i < fp32_share<DIM>; i++)
#pragma unroll
        for (int j = 0; j < DIM / 64; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[i][j][e] = 0.0f;
}

template <typename F> inline cudaError_t fp32_by_dim(uint64_t head_dim, F call)
{
    if (head_dim <= 64)
        return call(std::integral_constant<int, 64>());
    if (head_dim <= 128)
        return call(std::integral_constant<int, 128>());
    return call(std::integral_constant<int, 256>());
}

// Caps scores; see attention_cap in attention_tiles.cuh.
template <int DIM>
__device__ __forceinline__ void fp32_cap(const cudai_attention_args &args,
                                         float (&scores)[fp32_share<DIM>][fp32_share<DIM>])
{
#pragma unroll
    for (int i = 0; i < fp32_share<DIM>; i++)
#pragma unroll
        for (int j = 0; j < fp32_share<DIM>; j++)
            scores[i][j] = attention_tanh(scores[i][j] * (args.scale / args.soft_cap)) *
                           (args.soft_cap / args.scale);
}

// The derivative of the cap, of a score that is capped.
__device__ __forceinline__ float fp32_slope(const cudai_attention_args &args, float score)
{
    float t = args.soft_cap > 0.0f ? score * (args.scale / args.soft_cap) : 0.0f;
    return 1.0f - t * t;
}

// The factor of a probability: 0 if it is dropped.
__device__ __forceinline__ float fp32_kept(const cudai_attention_args &args, uint64_t batch,
                                           uint64_t head, uint32_t query, uint32_t key)
{
    if (!args.drop.masks.counter)
        return 1.0f;
    uint32_t words[4];
    attention_words(args, batch, head, query, key, words);
    return attention_is_kept(args, words, key) ? args.drop.scale : 0.0f;
}

// ---- forward ----

template <int DIM>
constexpr size_t forward_bytes = (3 * fp32_elems<DIM> + fp32_score_elems<DIM>)*sizeof(float);

// Maximum and sum over the 16 lanes that share a row.
__device__ __forceinline__ float row_max(float value)
{
    for (int step = 8; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}

__device__ __forceinline__ float row_sum(float value)
{
    for (int step = 8; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

__device__ __forceinline__ bool is_within(const attention_columns &seen, uint32_t column)
{
    return static_cast<int>(column) >= seen.begin && static_cast<int>(column) < seen.end;
}

// Turns scores into exp(scale score - largest), or 0 if the query does not see the key. Updates the
// largest scaled score, the sum and the output of each row. `first` and `key` are the positions of
// the first query and of the first key.
template <int DIM>
__device__ __forceinline__ void
online_softmax(float (&scores)[fp32_share<DIM>][fp32_share<DIM>], float (&largest)[fp32_share<DIM>],
               float (&sum)[fp32_share<DIM>], float (&output)[fp32_share<DIM>][DIM / 64][4],
               float scale, const attention_mask &mask, uint32_t first, uint32_t key)
{
    constexpr int share = fp32_share<DIM>;
#pragma unroll
    for (int i = 0; i < share; i++) {
        const attention_columns seen = attention_columns_of(mask, first + fp32_y() + 16 * i, key);
        float most = -INFINITY;
#pragma unroll
        for (int j = 0; j < share; j++)
            if (is_within(seen, fp32_x() + 16 * j))
                most = fmaxf(most, scores[i][j] * scale);
        most = fmaxf(largest[i], row_max(most));
        float base = most == -INFINITY ? 0.0f : most, part = 0.0f;
#pragma unroll
        for (int j = 0; j < share; j++) {
            float p = expf(__fmaf_rn(scores[i][j], scale, -base));
            scores[i][j] = is_within(seen, fp32_x() + 16 * j) ? p : 0.0f;
            part += scores[i][j];
        }
        float shrink = expf(largest[i] - base);
        sum[i] = __fmaf_rn(sum[i], shrink, row_sum(part));
        largest[i] = most;
#pragma unroll
        for (int j = 0; j < DIM / 64; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                output[i][j][e] *= shrink;
    }
}

template <int DIM>
__global__ void __launch_bounds__(FP32_THREADS) fp32_forward(cudai_attention_args args)
{
    constexpr int share = fp32_share<DIM>, rows = fp32_rows<DIM>;
    CUDAI_DYNAMIC_SHARED(float, q_tile);
    float *k_tile = q_tile + fp32_elems<DIM>, *v_tile = k_tile + fp32_elems<DIM>;
    float *probs = v_tile + fp32_elems<DIM>;
    uint32_t tokens = static_cast<uint32_t>(args.tokens);
    uint32_t tiles = (tokens + rows - 1) / rows;
    attention_place place = attention_locate(tiles, args.heads);
    uint32_t first = (tiles - 1 - place.tile) * rows; // long tiles start first
    const attention_mask mask = attention_mask_at(args.mask, place.batch);
    const attention_reach reach = attention_reach_of<true>(mask, first, rows);
    uint64_t kv_head = place.head / (args.heads / args.kv_heads);
    const float *k = attention_head<float>(args.k, args, place.batch, kv_head);
    const float *v = attention_value_head<float>(args.v, args, place.batch, kv_head);
    fp32_load<DIM>(q_tile,
                   attention_head<float>(args.q, args, place.batch, place.head) +
                       first * args.qkv_stride,
                   args.qkv_stride, tokens - first, args.head_dim, args.is_vector);
    float largest[share], sum[share], output[share][DIM / 64][4];
    fp32_clear<DIM>(output);
#pragma unroll
    for (int i = 0; i < share; i++) {
        largest[i] = -INFINITY;
        sum[i] = 0.0f;
    }
    for (uint32_t key = reach.begin / rows * rows; key < reach.end; key += rows) {
        uint64_t offset = key * args.qkv_stride;
        __syncthreads(); // nobody reads the last step's tiles any more
        fp32_load<DIM>(k_tile, k + offset, args.qkv_stride, tokens - key, args.head_dim,
                       args.is_vector);
        fp32_load<DIM>(v_tile, v + offset, args.qkv_stride, tokens - key, args.value_dim,
                       args.is_vector);
        __syncthreads();
        float scores[share][share];
        fp32_product<DIM>(scores, q_tile, k_tile);
        if (args.soft_cap > 0.0f)
            fp32_cap<DIM>(args, scores);
        online_softmax<DIM>(scores, largest, sum, output, args.scale, mask, first, key);
#pragma unroll
        for (int i = 0; i < share; i++)
#pragma unroll
            for (int j = 0; j < share; j++)
                scores[i][j] *= fp32_kept(args, place.batch, place.head, first + fp32_y() + 16 * i,
                                          key + fp32_x() + 16 * j);
        fp32_keep<DIM>(probs, scores);
        __syncwarp(); // a row of probabilities stays within its warp
        fp32_mix<DIM>(output, probs, v_tile);
    }
    float factors[share];
#pragma unroll
    for (int i = 0; i < share; i++) {
        uint32_t row = first + fp32_y() + 16 * i;
        factors[i] = 1.0f / sum[i];
        if (fp32_x() == 0 && row < tokens)
            args.lse[(place.batch * args.heads + place.head) * args.tokens + row] =
                largest[i] + logf(sum[i]);
    }
    uint64_t stride = args.heads * args.value_dim;
    float *target = const_cast<float *>(
        attention_output_head<float>(args.output, args, place.batch, place.head));
    fp32_write<DIM>(target + first * stride, output, factors, stride, tokens - first,
                    args.value_dim, args.is_vector);
}

// ---- gradients: one kernel by tiles of keys for dK and dV, one by tiles of queries for dQ ----

template <int DIM>
constexpr size_t key_bytes = (4 * fp32_elems<DIM> + 2 * fp32_score_elems<DIM>)*sizeof(float);
template <int DIM>
constexpr size_t query_bytes = (4 * fp32_elems<DIM> + fp32_score_elems<DIM>)*sizeof(float);

template <int DIM>
__global__ void __launch_bounds__(FP32_THREADS) fp32_key_grad(cudai_attention_args args)
{
    constexpr int share = fp32_share<DIM>, rows = fp32_rows<DIM>;
    CUDAI_DYNAMIC_SHARED(float, k_tile);
    float *v_tile = k_tile + fp32_elems<DIM>, *q_tile = v_tile + fp32_elems<DIM>;
    float *grad_tile = q_tile + fp32_elems<DIM>, *probs = grad_tile + fp32_elems<DIM>;
    float *prob_grads = probs + fp32_score_elems<DIM>;
    uint32_t tokens = static_cast<uint32_t>(args.tokens);
    attention_place place = attention_locate((tokens + rows - 1) / rows, args.kv_heads);
    uint32_t first = place.tile * rows; // long tiles start first
    uint64_t group = args.heads / args.kv_heads, output_stride = args.heads * args.value_dim;
    uint64_t offset = first * args.qkv_stride;
    const attention_mask mask = attention_mask_at(args.mask, place.batch);
    const attention_reach reach = attention_reach_of<false>(mask, first, rows);
    fp32_load<DIM>(k_tile, attention_head<float>(args.k, args, place.batch, place.head) + offset,
                   args.qkv_stride, tokens - first, args.head_dim, args.is_vector);
    fp32_load<DIM>(v_tile,
                   attention_value_head<float>(args.v, args, place.batch, place.head) + offset,
                   args.qkv_stride, tokens - first, args.value_dim, args.is_vector);
    float key_sums[share][DIM / 64][4], value_sums[share][DIM / 64][4];
    fp32_clear<DIM>(key_sums);
    fp32_clear<DIM>(value_sums);
    for (uint64_t head = place.head * group; head < (place.head + 1) * group; head++) {
        const float *q = attention_head<float>(args.q, args, place.batch, head);
        const float *grad = attention_output_head<float>(args.output_grad, args, place.batch, head);
        uint64_t first_row = (place.batch * args.heads + head) * args.tokens;
        for (uint32_t query = reach.begin; query < reach.end; query += rows) {
            __syncthreads(); // nobody reads the last step's tiles any more
            fp32_load<DIM>(q_tile, q + query * args.qkv_stride, args.qkv_stride, tokens - query,
                           args.head_dim, args.is_vector);
            fp32_load<DIM>(grad_tile, grad + query * output_stride, output_stride, tokens - query,
                           args.value_dim, args.is_vector);
            __syncthreads();
            float scores[share][share], grads[share][share];
            fp32_product<DIM>(scores, k_tile, q_tile);
            fp32_product<DIM>(grads, v_tile, grad_tile);
            if (args.soft_cap > 0.0f)
                fp32_cap<DIM>(args, scores);
#pragma unroll
            for (int j = 0; j < share; j++) {
                uint32_t column = query + fp32_x() + 16 * j; // position of a query
                bool is_there = column < tokens;
                float lse = is_there ? args.lse[first_row + column] : 0.0f;
                float delta = is_there ? args.delta[first_row + column] : 0.0f;
                const attention_columns seen = attention_columns_of(mask, column, first);
#pragma unroll
                for (int i = 0; i < share; i++) {
                    bool counts = is_within(seen, fp32_y() + 16 * i);
                    float p = counts ? expf(__fmaf_rn(scores[i][j], args.scale, -lse)) : 0.0f;
                    float slope = fp32_slope(args, scores[i][j]);
                    float kept =
                        fp32_kept(args, place.batch, head, column, first + fp32_y() + 16 * i);
                    scores[i][j] = p * kept;
                    grads[i][j] = counts ? p * (grads[i][j] * kept - delta) * slope : 0.0f;
                }
            }
            fp32_keep<DIM>(probs, scores);
            fp32_keep<DIM>(prob_grads, grads);
            __syncwarp(); // a row of both stays within its warp
            fp32_mix<DIM>(value_sums, probs, grad_tile);
            fp32_mix<DIM>(key_sums, prob_grads, q_tile);
            __syncwarp();
        }
    }
    float ones[share], scales[share];
#pragma unroll
    for (int i = 0; i < share; i++) {
        ones[i] = 1.0f;
        scales[i] = args.scale;
    }
    float *k_grad =
        const_cast<float *>(attention_head<float>(args.k_grad, args, place.batch, place.head));
    float *v_grad = const_cast<float *>(
        attention_value_head<float>(args.v_grad, args, place.batch, place.head));
    fp32_write<DIM>(k_grad + offset, key_sums, scales, args.qkv_stride, tokens - first,
                    args.head_dim, args.is_vector);
    fp32_write<DIM>(v_grad + offset, value_sums, ones, args.qkv_stride, tokens - first,
                    args.value_dim, args.is_vector);
}

template <int DIM>
__global__ void __launch_bounds__(FP32_THREADS) fp32_query_grad(cudai_attention_args args)
{
    constexpr int share = fp32_share<DIM>, rows = fp32_rows<DIM>;
    CUDAI_DYNAMIC_SHARED(float, q_tile);
    float *grad_tile = q_tile + fp32_elems<DIM>, *k_tile = grad_tile + fp32_elems<DIM>;
    float *v_tile = k_tile + fp32_elems<DIM>, *score_grads = v_tile + fp32_elems<DIM>;
    uint32_t tokens = static_cast<uint32_t>(args.tokens);
    uint32_t tiles = (tokens + rows - 1) / rows;
    attention_place place = attention_locate(tiles, args.heads);
    uint32_t first = (tiles - 1 - place.tile) * rows; // long tiles start first
    const attention_mask mask = attention_mask_at(args.mask, place.batch);
    const attention_reach reach = attention_reach_of<true>(mask, first, rows);
    uint64_t kv_head = place.head / (args.heads / args.kv_heads);
    uint64_t output_stride = args.heads * args.value_dim, offset = first * args.qkv_stride;
    const float *k = attention_head<float>(args.k, args, place.batch, kv_head);
    const float *v = attention_value_head<float>(args.v, args, place.batch, kv_head);
    fp32_load<DIM>(q_tile, attention_head<float>(args.q, args, place.batch, place.head) + offset,
                   args.qkv_stride, tokens - first, args.head_dim, args.is_vector);
    fp32_load<DIM>(grad_tile,
                   attention_output_head<float>(args.output_grad, args, place.batch, place.head) +
                       first * output_stride,
                   output_stride, tokens - first, args.value_dim, args.is_vector);
    uint64_t first_row = (place.batch * args.heads + place.head) * args.tokens + first;
    float lse[share], delta[share], sums[share][DIM / 64][4];
    fp32_clear<DIM>(sums);
#pragma unroll
    for (int i = 0; i < share; i++) {
        uint32_t row = fp32_y() + 16 * i;
        lse[i] = first + row < tokens ? args.lse[first_row + row] : 0.0f;
        delta[i] = first + row < tokens ? args.delta[first_row + row] : 0.0f;
    }
    for (uint32_t key = reach.begin / rows * rows; key < reach.end; key += rows) {
        __syncthreads(); // nobody reads the last step's tiles any more
        fp32_load<DIM>(k_tile, k + key * args.qkv_stride, args.qkv_stride, tokens - key,
                       args.head_dim, args.is_vector);
        fp32_load<DIM>(v_tile, v + key * args.qkv_stride, args.qkv_stride, tokens - key,
                       args.value_dim, args.is_vector);
        __syncthreads();
        float scores[share][share], grads[share][share];
        fp32_product<DIM>(scores, q_tile, k_tile);
        fp32_product<DIM>(grads, grad_tile, v_tile);
        if (args.soft_cap > 0.0f)
            fp32_cap<DIM>(args, scores);
#pragma unroll
        for (int i = 0; i < share; i++) {
            const attention_columns seen =
                attention_columns_of(mask, first + fp32_y() + 16 * i, key);
#pragma unroll
            for (int j = 0; j < share; j++) {
                bool counts = is_within(seen, fp32_x() + 16 * j);
                float p = counts ? expf(__fmaf_rn(scores[i][j], args.scale, -lse[i])) : 0.0f;
                float slope = fp32_slope(args, scores[i][j]);
                float kept = fp32_kept(args, place.batch, place.head, first + fp32_y() + 16 * i,
                                       key + fp32_x() + 16 * j);
                scores[i][j] = counts ? p * (grads[i][j] * kept - delta[i]) * slope : 0.0f;
            }
        }
        fp32_keep<DIM>(score_grads, scores);
        __syncwarp(); // a row stays within its warp
        fp32_mix<DIM>(sums, score_grads, k_tile);
    }
    float factors[share];
#pragma unroll
    for (int i = 0; i < share; i++)
        factors[i] = args.scale;
    float *target =
        const_cast<float *>(attention_head<float>(args.q_grad, args, place.batch, place.head));
    fp32_write<DIM>(target + offset, sums, factors, args.qkv_stride, tokens - first, args.head_dim,
                    args.is_vector);
}

} // namespace

extern "C" int cudai_attention_fp32_allow(uint64_t head_dim, uint64_t *shared_bytes)
{
    return fp32_by_dim(head_dim, [=](auto dim) {
        constexpr int DIM = decltype(dim)::value;
        *shared_bytes = forward_bytes<DIM>;
        return cudai_allow_shared(fp32_forward<DIM>, forward_bytes<DIM>);
    });
}

extern "C" int cudai_attention_fp32_launch(const cudai_attention_args *args, void *stream)
{
    return fp32_by_dim(cudai_attention_tile_dim(args->head_dim, args->value_dim), [=](auto dim) {
        constexpr int DIM = decltype(dim)::value;
        uint64_t tiles = (args->tokens + fp32_rows<DIM> - 1) / fp32_rows<DIM>;
        dim3 grid(static_cast<unsigned>(tiles * args->heads * args->batch));
        return cudai_launch(fp32_forward<DIM>, grid, dim3(FP32_THREADS), forward_bytes<DIM>,
                            static_cast<cudaStream_t>(stream), *args);
    });
}

extern "C" int cudai_attention_fp32_grad_allow(uint64_t head_dim, uint64_t *shared_bytes)
{
    return fp32_by_dim(head_dim, [=](auto dim) {
        constexpr int DIM = decltype(dim)::value;
        *shared_bytes = key_bytes<DIM>;
        cudaError_t error = cudai_allow_shared(fp32_key_grad<DIM>, key_bytes<DIM>);
        return error != cudaSuccess ? error
                                    : cudai_allow_shared(fp32_query_grad<DIM>, query_bytes<DIM>);
    });
}

extern "C" int cudai_attention_fp32_grad_launch(const cudai_attention_args *args, void *stream)
{
    return fp32_by_dim(cudai_attention_tile_dim(args->head_dim, args->value_dim), [=](auto dim) {
        constexpr int DIM = decltype(dim)::value;
        uint64_t tiles = (args->tokens + fp32_rows<DIM> - 1) / fp32_rows<DIM>;
        dim3 key_grid(static_cast<unsigned>(tiles * args->kv_heads * args->batch));
        dim3 query_grid(static_cast<unsigned>(tiles * args->heads * args->batch));
        cudaError_t error = cudai_launch(fp32_key_grad<DIM>, key_grid, dim3(FP32_THREADS),
                                         key_bytes<DIM>, static_cast<cudaStream_t>(stream), *args);
        return error != cudaSuccess
                   ? error
                   : cudai_launch(fp32_query_grad<DIM>, query_grid, dim3(FP32_THREADS),
                                  query_bytes<DIM>, static_cast<cudaStream_t>(stream), *args);
    });
}
