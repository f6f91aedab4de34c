// Fused causal attention for fp32 operands, forward pass: the online softmax of attention_forward.cu with
// ordinary multiply-adds and accurate exponentials. For checks and small models; not tuned further. The
// bits depend on a row's operands and place alone. No allocation; called by attention_own.c.
#include "kernels/cuda/attention_plain.cuh"

namespace
{

template <int DIM>
constexpr size_t forward_bytes = (3 * plain_elems<DIM> + plain_score_elems<DIM>)*sizeof(float);

// Over the 16 lanes that share a row.
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

// Turns scores into exp(scale score - largest), 0 where the key is behind the query, and brings along
// the largest scaled score, the sum and the output of each row. `ahead` is the first query's position
// less the first key's, or large where no pair is masked.
template <int DIM>
__device__ __forceinline__ void
online_softmax(float (&scores)[plain_share<DIM>][plain_share<DIM>],
               float (&largest)[plain_share<DIM>], float (&sum)[plain_share<DIM>],
               float (&output)[plain_share<DIM>][DIM / 64][4], float scale, uint32_t ahead)
{
    constexpr int share = plain_share<DIM>;
#pragma unroll
    for (int i = 0; i < share; i++) {
        uint32_t last = ahead + plain_y() + 16 * i;
        float most = -INFINITY;
#pragma unroll
        for (int j = 0; j < share; j++)
            if (plain_x() + 16 * j <= last)
                most = fmaxf(most, scores[i][j] * scale);
        most = fmaxf(largest[i], row_max(most));
        float base = most == -INFINITY ? 0.0f : most, part = 0.0f;
#pragma unroll
        for (int j = 0; j < share; j++) {
            float p = expf(__fmaf_rn(scores[i][j], scale, -base));
            scores[i][j] = plain_x() + 16 * j <= last ? p : 0.0f;
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
__global__ void __launch_bounds__(PLAIN_THREADS) plain_forward(cudai_attention_args args)
{
    constexpr int share = plain_share<DIM>, rows = plain_rows<DIM>;
    CUDAI_DYNAMIC_SHARED(float, q_tile);
    float *k_tile = q_tile + plain_elems<DIM>, *v_tile = k_tile + plain_elems<DIM>;
    float *probs = v_tile + plain_elems<DIM>;
    uint32_t tokens = static_cast<uint32_t>(args.tokens);
    uint32_t tiles = (tokens + rows - 1) / rows;
    attention_place place = attention_locate(tiles, args.heads);
    uint32_t first = (tiles - 1 - place.tile) * rows; // the long ones begin first
    uint32_t end = first + rows < tokens ? first + rows : tokens;
    uint64_t kv_head = place.head / (args.heads / args.kv_heads);
    const float *k = attention_head<float>(args.k, args, place.batch, kv_head);
    const float *v = attention_head<float>(args.v, args, place.batch, kv_head);
    plain_load<DIM>(q_tile,
                    attention_head<float>(args.q, args, place.batch, place.head) +
                        first * args.qkv_stride,
                    args.qkv_stride, tokens - first, args.head_dim, args.is_vector);
    float largest[share], sum[share], output[share][DIM / 64][4];
    plain_clear<DIM>(output);
#pragma unroll
    for (int i = 0; i < share; i++) {
        largest[i] = -INFINITY;
        sum[i] = 0.0f;
    }
    for (uint32_t key = 0; key < end; key += rows) {
        uint64_t offset = key * args.qkv_stride;
        __syncthreads(); // the last step's tiles are no longer read
        plain_load<DIM>(k_tile, k + offset, args.qkv_stride, tokens - key, args.head_dim,
                        args.is_vector);
        plain_load<DIM>(v_tile, v + offset, args.qkv_stride, tokens - key, args.head_dim,
                        args.is_vector);
        __syncthreads();
        float scores[share][share];
        plain_product<DIM>(scores, q_tile, k_tile);
        online_softmax<DIM>(scores, largest, sum, output, args.scale, first - key);
        plain_keep<DIM>(probs, scores);
        __syncwarp(); // a row of probabilities stays within its warp
        plain_mix<DIM>(output, probs, v_tile);
    }
    float factors[share];
#pragma unroll
    for (int i = 0; i < share; i++) {
        uint32_t row = first + plain_y() + 16 * i;
        factors[i] = 1.0f / sum[i];
        if (plain_x() == 0 && row < tokens)
            args.lse[(place.batch * args.heads + place.head) * args.tokens + row] =
                largest[i] + logf(sum[i]);
    }
    uint64_t stride = args.heads * args.head_dim;
    float *target = const_cast<float *>(
        attention_output_head<float>(args.output, args, place.batch, place.head));
    plain_write<DIM>(target + first * stride, output, factors, stride, tokens - first,
                     args.head_dim, args.is_vector);
}

} // namespace

extern "C" int cudai_attention_plain_allow(uint64_t head_dim, uint64_t *shared_bytes)
{
    return plain_by_dim(head_dim, [=](auto dim) {
        constexpr int DIM = decltype(dim)::value;
        *shared_bytes = forward_bytes<DIM>;
        return cudai_allow_shared(plain_forward<DIM>, forward_bytes<DIM>);
    });
}

extern "C" int cudai_attention_plain_launch(const cudai_attention_args *args, void *stream)
{
    return plain_by_dim(args->head_dim, [=](auto dim) {
        constexpr int DIM = decltype(dim)::value;
        uint64_t tiles = (args->tokens + plain_rows<DIM> - 1) / plain_rows<DIM>;
        dim3 grid(static_cast<unsigned>(tiles * args->heads * args->batch));
        return cudai_launch(plain_forward<DIM>, grid, dim3(PLAIN_THREADS), forward_bytes<DIM>,
                            static_cast<cudaStream_t>(stream), *args);
    });
}
