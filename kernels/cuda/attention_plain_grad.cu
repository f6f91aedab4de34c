// Fused causal attention for fp32 operands, gradients: one kernel by tiles of keys for dK and dV, as
// attention_key_grad.cu, and one by tiles of queries for dQ, as attention_query_grad.cu, with ordinary
// multiply-adds. No atomics, no sums in memory, no allocation; called by attention_own.c.
#include "kernels/cuda/attention_plain.cuh"

namespace
{

template <int DIM>
constexpr size_t key_bytes = (4 * plain_elems<DIM> + 2 * plain_score_elems<DIM>)*sizeof(float);
template <int DIM>
constexpr size_t query_bytes = (4 * plain_elems<DIM> + plain_score_elems<DIM>)*sizeof(float);

template <int DIM>
__global__ void __launch_bounds__(PLAIN_THREADS) plain_key_grad(cudai_attention_args args)
{
    constexpr int share = plain_share<DIM>, rows = plain_rows<DIM>;
    CUDAI_DYNAMIC_SHARED(float, k_tile);
    float *v_tile = k_tile + plain_elems<DIM>, *q_tile = v_tile + plain_elems<DIM>;
    float *grad_tile = q_tile + plain_elems<DIM>, *probs = grad_tile + plain_elems<DIM>;
    float *prob_grads = probs + plain_score_elems<DIM>;
    uint32_t tokens = static_cast<uint32_t>(args.tokens);
    attention_place place = attention_locate((tokens + rows - 1) / rows, args.kv_heads);
    uint32_t first = place.tile * rows; // the long ones begin first
    uint64_t group = args.heads / args.kv_heads, output_stride = args.heads * args.head_dim;
    uint64_t offset = first * args.qkv_stride;
    plain_load<DIM>(k_tile, attention_head<float>(args.k, args, place.batch, place.head) + offset,
                    args.qkv_stride, tokens - first, args.head_dim, args.is_vector);
    plain_load<DIM>(v_tile, attention_head<float>(args.v, args, place.batch, place.head) + offset,
                    args.qkv_stride, tokens - first, args.head_dim, args.is_vector);
    float key_sums[share][DIM / 64][4], value_sums[share][DIM / 64][4];
    plain_clear<DIM>(key_sums);
    plain_clear<DIM>(value_sums);
    for (uint64_t head = place.head * group; head < (place.head + 1) * group; head++) {
        const float *q = attention_head<float>(args.q, args, place.batch, head);
        const float *grad = attention_output_head<float>(args.output_grad, args, place.batch, head);
        uint64_t first_row = (place.batch * args.heads + head) * args.tokens;
        for (uint32_t query = first; query < tokens; query += rows) {
            __syncthreads(); // the last step's tiles are no longer read
            plain_load<DIM>(q_tile, q + query * args.qkv_stride, args.qkv_stride, tokens - query,
                            args.head_dim, args.is_vector);
            plain_load<DIM>(grad_tile, grad + query * output_stride, output_stride, tokens - query,
                            args.head_dim, args.is_vector);
            __syncthreads();
            float scores[share][share], grads[share][share];
            plain_product<DIM>(scores, k_tile, q_tile);
            plain_product<DIM>(grads, v_tile, grad_tile);
#pragma unroll
            for (int j = 0; j < share; j++) {
                uint32_t column = query + plain_x() + 16 * j; // a query
                bool is_there = column < tokens;
                float lse = is_there ? args.lse[first_row + column] : 0.0f;
                float delta = is_there ? args.delta[first_row + column] : 0.0f;
#pragma unroll
                for (int i = 0; i < share; i++) {
                    bool counts = is_there && column >= first + plain_y() + 16 * i;
                    float p = counts ? expf(__fmaf_rn(scores[i][j], args.scale, -lse)) : 0.0f;
                    scores[i][j] = p;
                    grads[i][j] = counts ? p * (grads[i][j] - delta) : 0.0f;
                }
            }
            plain_keep<DIM>(probs, scores);
            plain_keep<DIM>(prob_grads, grads);
            __syncwarp(); // a row of both stays within its warp
            plain_mix<DIM>(value_sums, probs, grad_tile);
            plain_mix<DIM>(key_sums, prob_grads, q_tile);
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
    float *v_grad =
        const_cast<float *>(attention_head<float>(args.v_grad, args, place.batch, place.head));
    plain_write<DIM>(k_grad + offset, key_sums, scales, args.qkv_stride, tokens - first,
                     args.head_dim, args.is_vector);
    plain_write<DIM>(v_grad + offset, value_sums, ones, args.qkv_stride, tokens - first,
                     args.head_dim, args.is_vector);
}

template <int DIM>
__global__ void __launch_bounds__(PLAIN_THREADS) plain_query_grad(cudai_attention_args args)
{
    constexpr int share = plain_share<DIM>, rows = plain_rows<DIM>;
    CUDAI_DYNAMIC_SHARED(float, q_tile);
    float *grad_tile = q_tile + plain_elems<DIM>, *k_tile = grad_tile + plain_elems<DIM>;
    float *v_tile = k_tile + plain_elems<DIM>, *score_grads = v_tile + plain_elems<DIM>;
    uint32_t tokens = static_cast<uint32_t>(args.tokens);
    uint32_t tiles = (tokens + rows - 1) / rows;
    attention_place place = attention_locate(tiles, args.heads);
    uint32_t first = (tiles - 1 - place.tile) * rows; // the long ones begin first
    uint32_t end = first + rows < tokens ? first + rows : tokens;
    uint64_t kv_head = place.head / (args.heads / args.kv_heads);
    uint64_t output_stride = args.heads * args.head_dim, offset = first * args.qkv_stride;
    const float *k = attention_head<float>(args.k, args, place.batch, kv_head);
    const float *v = attention_head<float>(args.v, args, place.batch, kv_head);
    plain_load<DIM>(q_tile, attention_head<float>(args.q, args, place.batch, place.head) + offset,
                    args.qkv_stride, tokens - first, args.head_dim, args.is_vector);
    plain_load<DIM>(grad_tile,
                    attention_output_head<float>(args.output_grad, args, place.batch, place.head) +
                        first * output_stride,
                    output_stride, tokens - first, args.head_dim, args.is_vector);
    uint64_t first_row = (place.batch * args.heads + place.head) * args.tokens + first;
    float lse[share], delta[share], sums[share][DIM / 64][4];
    plain_clear<DIM>(sums);
#pragma unroll
    for (int i = 0; i < share; i++) {
        uint32_t row = plain_y() + 16 * i;
        lse[i] = first + row < tokens ? args.lse[first_row + row] : 0.0f;
        delta[i] = first + row < tokens ? args.delta[first_row + row] : 0.0f;
    }
    for (uint32_t key = 0; key < end; key += rows) {
        __syncthreads(); // the last step's tiles are no longer read
        plain_load<DIM>(k_tile, k + key * args.qkv_stride, args.qkv_stride, tokens - key,
                        args.head_dim, args.is_vector);
        plain_load<DIM>(v_tile, v + key * args.qkv_stride, args.qkv_stride, tokens - key,
                        args.head_dim, args.is_vector);
        __syncthreads();
        float scores[share][share], grads[share][share];
        plain_product<DIM>(scores, q_tile, k_tile);
        plain_product<DIM>(grads, grad_tile, v_tile);
#pragma unroll
        for (int i = 0; i < share; i++)
#pragma unroll
            for (int j = 0; j < share; j++) {
                bool counts = key + plain_x() + 16 * j <= first + plain_y() + 16 * i;
                float p = counts ? expf(__fmaf_rn(scores[i][j], args.scale, -lse[i])) : 0.0f;
                scores[i][j] = counts ? p * (grads[i][j] - delta[i]) : 0.0f;
            }
        plain_keep<DIM>(score_grads, scores);
        __syncwarp(); // a row stays within its warp
        plain_mix<DIM>(sums, score_grads, k_tile);
    }
    float factors[share];
#pragma unroll
    for (int i = 0; i < share; i++)
        factors[i] = args.scale;
    float *target =
        const_cast<float *>(attention_head<float>(args.q_grad, args, place.batch, place.head));
    plain_write<DIM>(target + offset, sums, factors, args.qkv_stride, tokens - first, args.head_dim,
                     args.is_vector);
}

} // namespace

extern "C" int cudai_attention_plain_grad_allow(uint64_t head_dim, uint64_t *shared_bytes)
{
    return plain_by_dim(head_dim, [=](auto dim) {
        constexpr int DIM = decltype(dim)::value;
        *shared_bytes = key_bytes<DIM>;
        cudaError_t error = cudai_allow_shared(plain_key_grad<DIM>, key_bytes<DIM>);
        return error != cudaSuccess ? error
                                    : cudai_allow_shared(plain_query_grad<DIM>, query_bytes<DIM>);
    });
}

extern "C" int cudai_attention_plain_grad_launch(const cudai_attention_args *args, void *stream)
{
    return plain_by_dim(args->head_dim, [=](auto dim) {
        constexpr int DIM = decltype(dim)::value;
        uint64_t tiles = (args->tokens + plain_rows<DIM> - 1) / plain_rows<DIM>;
        dim3 key_grid(static_cast<unsigned>(tiles * args->kv_heads * args->batch));
        dim3 query_grid(static_cast<unsigned>(tiles * args->heads * args->batch));
        cudaError_t error = cudai_launch(plain_key_grad<DIM>, key_grid, dim3(PLAIN_THREADS),
                                         key_bytes<DIM>, static_cast<cudaStream_t>(stream), *args);
        return error != cudaSuccess
                   ? error
                   : cudai_launch(plain_query_grad<DIM>, query_grid, dim3(PLAIN_THREADS),
                                  query_bytes<DIM>, static_cast<cudaStream_t>(stream), *args);
    });
}
