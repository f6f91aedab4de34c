// Fused attention, gradient of the queries for bf16 and fp16, and delta for all types.
//
//   delta = rowsum(dO * O) in fp32, [B,H,T]. 8 lanes compute a row, in a fixed order. It runs
//   before both gradients.
//
// dQ: a block takes one tile of queries of one head and visits the tiles of keys that they see. P
// is recomputed from the saved lse, dP = dO V^T, dS = P (dP - delta), dQ += dS K, and at the end dQ
// *= scale. dS is rounded to the 16-bit type before its product and never leaves the registers.
// Compared with one kernel for all gradients, this computes S and dP once more. But it needs no
// atomics and no sum of dQ in memory, so the bits depend only on the operands. Allocates nothing.
#include "kernels/cuda/attention/attention_tiles.cuh"

namespace
{

// Tile sizes: 16 row_blocks queries per warp, `keys` keys per step, `stages` steps in shared
// memory, which stays within 99 KiB.
template <int DIM> struct config {
    static constexpr int row_blocks = DIM <= 64 ? 2 : 1;
    static constexpr int keys = 32;
    static constexpr int stages = DIM <= 128 ? 2 : 1;
    static constexpr int queries = 16 * row_blocks * ATTENTION_WARPS;
    static constexpr int key_elems = keys * attention_pitch<DIM>;
    static constexpr size_t shared_bytes =
        2 * size_t(2 * queries * attention_pitch<DIM> + stages * 2 * key_elems);
};

// Turns scores into dS, given dP.
template <int MT, int N>
__device__ __forceinline__ void
score_grads(float (&scores)[MT][N / 8][4], const float (&grads)[MT][N / 8][4],
            const float (&base)[MT][2], const float (&delta)[MT][2], float factor)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float p = cudai_exp2(__fmaf_rn(scores[m][n][i], factor, base[m][i / 2]));
                scores[m][n][i] = p * (grads[m][n][i] - delta[m][i / 2]);
            }
}

// Starts to load keys and values, from `key` on.
template <typename T, int DIM>
__device__ __forceinline__ void load_step(const cudai_attention_args &args, T *tile, const T *k,
                                          const T *v, uint32_t key)
{
    constexpr int keys = config<DIM>::keys;
    uint32_t present = static_cast<uint32_t>(args.tokens) - key;
    uint64_t offset = key * args.qkv_stride;
    attention_load<T, DIM, keys>(tile, k + offset, args.qkv_stride, present, args.head_dim,
                                 args.is_vector);
    attention_load<T, DIM, keys>(tile + config<DIM>::key_elems, v + offset, args.qkv_stride,
                                 present, args.value_dim, args.is_vector);
    cudai_copy_commit();
}

template <typename T, int DIM>
__global__ void __launch_bounds__(ATTENTION_THREADS, 2) query_grad(cudai_attention_args args)
{
    typedef config<DIM> sizes;
    constexpr int MT = sizes::row_blocks, keys = sizes::keys, queries = sizes::queries;
    constexpr int pitch = attention_pitch<DIM>;
    CUDAI_DYNAMIC_SHARED(T, q_tile);
    T *grad_tile = q_tile + queries * pitch, *steps = grad_tile + queries * pitch;
    uint32_t tokens = static_cast<uint32_t>(args.tokens);
    uint32_t tiles = (tokens + queries - 1) / queries;
    attention_place place = attention_locate(tiles, args.heads);
    uint32_t first = (tiles - 1 - place.tile) * queries; // long tiles start first
    uint32_t warp_row = threadIdx.x / CUDAI_WARP * 16 * MT, warp_first = first + warp_row;
    const attention_mask mask = attention_mask_at(args.mask, place.batch);
    const attention_reach reach = attention_reach_of<true>(mask, warp_first, 16 * MT);
    uint32_t begin, end; // of the keys that the tile sees
    {
        const attention_reach all = attention_reach_of<true>(mask, first, queries);
        begin = all.begin / keys * keys;
        end = all.end;
    }
    uint64_t kv_head = place.head / (args.heads / args.kv_heads);
    uint64_t output_stride = args.heads * args.value_dim;
    const T *q = attention_head<T>(args.q, args, place.batch, place.head);
    const T *output_grad =
        attention_output_head<T>(args.output_grad, args, place.batch, place.head);
    const T *k = attention_head<T>(args.k, args, place.batch, kv_head);
    const T *v = attention_value_head<T>(args.v, args, place.batch, kv_head);
    attention_load<T, DIM, queries>(q_tile, q + first * args.qkv_stride, args.qkv_stride,
                                    tokens - first, args.head_dim, args.is_vector);
    attention_load<T, DIM, queries>(grad_tile, output_grad + first * output_stride, output_stride,
                                    tokens - first, args.value_dim, args.is_vector);
    load_step<T, DIM>(args, steps, k, v, begin);

    float base[MT][2], delta[MT][2], sums[MT][DIM / 8][4];
    uint64_t first_row = (place.batch * args.heads + place.head) * args.tokens + warp_first;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t row = attention_row(m, 2 * half);
            bool is_there = warp_first + row < tokens;
            base[m][half] = is_there ? args.lse[first_row + row] * -ATTENTION_LOG2E : 0.0f;
            delta[m][half] = is_there ? args.delta[first_row + row] : 0.0f;
        }
    attention_clear(sums);
    for (uint32_t key = begin, n = 0; key < end; key += keys, n++) {
        T *k_tile = steps + (sizes::stages == 2 ? n % 2 : 0) * 2 * sizes::key_elems;
        cudai_copy_wait<0>();
        __syncthreads(); // this step is loaded; nobody reads the one before any more
        if (sizes::stages == 2 && key + keys < end)
            load_step<T, DIM>(args, steps + (n + 1) % 2 * 2 * sizes::key_elems, k, v, key + keys);
        if (attention_sees(reach, key, keys)) { // if a query of this warp sees it
            float scores[MT][keys / 8][4], grads[MT][keys / 8][4];
            attention_clear(scores);
            attention_clear(grads);
            attention_product<T, DIM, MT, keys>(scores, q_tile + warp_row * pitch, k_tile);
            attention_product<T, DIM, MT, keys>(grads, grad_tile + warp_row * pitch,
                                                k_tile + sizes::key_elems);
            if (args.drop.masks.counter)
                attention_keep(
                    grads,
                    attention_kept<MT, keys, false>(args, place.batch, place.head, warp_first, key),
                    args.drop.scale);
            if (args.soft_cap > 0.0f)
                attention_cap_grads<MT, keys / 8>(
                    args, scores, grads, [&](int m, int, int i) { return delta[m][i / 2]; });
            score_grads<MT, keys>(scores, grads, base, delta, args.scale * ATTENTION_LOG2E);
            if (!attention_sees_whole(reach, key, keys))
                attention_hide<MT, keys>(scores, 0.0f, mask, warp_first, key);
            uint32_t p[MT][keys / 16][4];
            attention_round<T, MT, keys>(p, scores);
            attention_mix<T, DIM, MT, keys>(sums, p, k_tile);
        }
        if (sizes::stages == 1 && key + keys < end) {
            __syncthreads(); // nobody reads this step any more
            load_step<T, DIM>(args, steps, k, v, key + keys);
        }
    }
    float factors[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++)
        factors[m][0] = factors[m][1] = args.scale;
    T *target = const_cast<T *>(attention_head<T>(args.q_grad, args, place.batch, place.head)) +
                warp_first * args.qkv_stride;
    attention_write<T, DIM, MT>(q_tile + warp_row * pitch, sums, factors, target, args.qkv_stride,
                                warp_first < tokens ? tokens - warp_first : 0, args.head_dim,
                                args.is_vector);
}

// 8 lanes share a row and take units of 8 elements in turn. The order is the same with and without
// wide loads.
template <typename T> __global__ void __launch_bounds__(256) row_delta(cudai_attention_args args)
{
    uint64_t rows = args.batch * args.tokens * args.heads;
    unsigned lane = threadIdx.x % 8;
    // All lanes of a warp stay for the shuffles, although some rows of the last round do not exist.
    for (uint64_t begin = static_cast<uint64_t>(blockIdx.x) * (blockDim.x / 8); begin < rows;
         begin += static_cast<uint64_t>(gridDim.x) * (blockDim.x / 8)) {
        uint64_t row = begin + threadIdx.x / 8; // its index in [B, T, H]
        bool is_there = row < rows;
        const T *output = static_cast<const T *>(args.output) + row * args.value_dim;
        const T *grad = static_cast<const T *>(args.output_grad) + row * args.value_dim;
        float sum = 0.0f;
        for (uint32_t i = lane * 8; is_there && i < args.value_dim; i += 64) {
            cudai_pack<T, 8> a, b;
            if (args.is_vector && i + 8 <= args.value_dim) {
                constexpr int width = 16 / sizeof(T);
#pragma unroll
                for (int part = 0; part < 8; part += width) {
                    cudai_pack<T, width> x = cudai_load<T, width>(output + i + part);
                    cudai_pack<T, width> y = cudai_load<T, width>(grad + i + part);
#pragma unroll
                    for (int e = 0; e < width; e++) {
                        a.item[part + e] = x.item[e];
                        b.item[part + e] = y.item[e];
                    }
                }
            } else {
#pragma unroll
                for (uint32_t e = 0; e < 8; e++) {
                    a.item[e] = i + e < args.value_dim ? output[i + e] : T{0};
                    b.item[e] = i + e < args.value_dim ? grad[i + e] : T{0};
                }
            }
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum = __fmaf_rn(cudai_widen(a.item[e]), cudai_widen(b.item[e]), sum);
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 4);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        if (is_there && lane == 0) {
            uint64_t head = row % args.heads, position = row / args.heads;
            uint64_t batch = position / args.tokens;
            args.delta[(batch * args.heads + head) * args.tokens + position % args.tokens] = sum;
        }
    }
}

} // namespace

extern "C" int cudai_attention_delta_allow(enum dtype type)
{
    CUDAI_BY_TYPE(type, T, return cudai_allow_shared(row_delta<T>, 0));
}

extern "C" int cudai_attention_delta_launch(enum dtype type, const cudai_attention_args *args,
                                            void *stream)
{
    uint64_t blocks = (args->batch * args->tokens * args->heads + 31) / 32;
    dim3 grid(static_cast<unsigned>(blocks < 65536 ? blocks : 65536));
    CUDAI_BY_TYPE(type, T,
                  return cudai_launch(row_delta<T>, grid, dim3(256), 0,
                                      static_cast<cudaStream_t>(stream), *args));
}

extern "C" int cudai_attention_query_grad_allow(enum dtype type, uint64_t head_dim,
                                                uint64_t *shared_bytes)
{
    return attention_by_type(type, [=](auto zero) {
        return attention_by_dim(head_dim, [=](auto dim) {
            constexpr int DIM = decltype(dim)::value;
            *shared_bytes = config<DIM>::shared_bytes;
            return cudai_allow_shared(query_grad<decltype(zero), DIM>, *shared_bytes);
        });
    });
}

extern "C" int cudai_attention_query_grad_launch(enum dtype type, const cudai_attention_args *args,
                                                 void *stream)
{
    return attention_by_type(type, [=](auto zero) {
        return attention_by_dim(
            cudai_attention_tile_dim(args->head_dim, args->value_dim), [=](auto dim) {
                constexpr int DIM = decltype(dim)::value;
                uint64_t tiles = (args->tokens + config<DIM>::queries - 1) / config<DIM>::queries;
                dim3 grid(static_cast<unsigned>(tiles * args->heads * args->batch));
                return cudai_launch(query_grad<decltype(zero), DIM>, grid, dim3(ATTENTION_THREADS),
                                    config<DIM>::shared_bytes, static_cast<cudaStream_t>(stream),
                                    *args);
            });
    });
}
