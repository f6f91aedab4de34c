// Fused attention, forward pass, for bf16 and fp16 (Dao, FlashAttention-2, 2023).
//
// A block takes one tile of queries of one head and visits the tiles of keys that they see: S = Q
// K^T, online softmax (Milakov and Gimelshein 2018) in fp32 with powers of 2, P rounded to the
// 16-bit type, O = O * correction + P V with O in registers. The sums of a softmax use P before it
// is rounded and before dropout, whose scale comes at the end. The tile of queries stays in shared
// memory. The keys are loaded during the product with the values, and the values during the product
// with the keys.
//
// Each row's arithmetic has a fixed order and needs nothing from other rows, so its bits depend
// only on the row's operands and its position. Allocates nothing.
#include "kernels/cuda/attention/attention_tiles.cuh"

namespace
{

// Tile sizes: 16 row_blocks queries per warp, `keys` keys per step. The sums O (row_blocks DIM / 2
// registers) and S (row_blocks keys / 2) stay below a thread's 255 registers, and the tiles below
// 99 KiB.
template <int DIM> struct config {
    static constexpr int row_blocks = DIM <= 128 ? 2 : 1;
    static constexpr int keys = DIM == 128 || DIM == 256 ? 32 : 64;
    static constexpr int queries = 16 * row_blocks * ATTENTION_WARPS;
    static constexpr size_t shared_bytes = size_t(queries + 2 * keys) * attention_pitch<DIM> * 2;
};

// A thread's state of its rows. For row block m they are rows lane / 4 and lane / 4 + 8.
template <int MT> struct softmax_state {
    float largest[MT][2]; // largest unscaled score so far
    float sum[MT][2];     // sum over this thread's columns, relative to `largest`
};

// Turns scores into exp(scale (score - largest)), and updates the state and the output. `factor` is
// scale log2(e).
template <int DIM, int MT, int N>
__device__ __forceinline__ void online_softmax(float (&scores)[MT][N / 8][4],
                                               softmax_state<MT> &state,
                                               float (&output)[MT][DIM / 8][4], float factor)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float largest = state.largest[m][half];
#pragma unroll
            for (int n = 0; n < N / 8; n++)
                largest = fmaxf(largest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            // A row that has seen only -infinity must not compute inf - inf. The old and the new
            // base are rounded in the same way, so that an unchanged base gives exactly 1.
            // Otherwise rounding errors of the products would grow over the steps.
            float base = largest == -INFINITY ? 0.0f : __fmul_rn(largest, factor);
            float shrink = cudai_exp2(__fmul_rn(state.largest[m][half], factor) - base);
            float sum = state.sum[m][half];
            if (__any_sync(0xffffffffu, shrink != 1.0f)) { // rare after the first steps
                sum *= shrink;
#pragma unroll
                for (int n = 0; n < DIM / 8; n++) {
                    output[m][n][2 * half] *= shrink;
                    output[m][n][2 * half + 1] *= shrink;
                }
            }
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    scores[m][n][i] = cudai_exp2(__fmaf_rn(scores[m][n][i], factor, -base));
                    sum += scores[m][n][i];
                }
            state.largest[m][half] = largest;
            state.sum[m][half] = sum;
        }
}

// Divides by the sums, and writes the warp's rows and their lse. `first` is the position of its
// first row.
template <typename T, int DIM, int MT, bool DROPS>
__device__ __forceinline__ void
finish_rows(const cudai_attention_args &args, const attention_place &place, T *tile_rows,
            const softmax_state<MT> &state, const float (&output)[MT][DIM / 8][4], uint32_t first)
{
    uint32_t tokens = static_cast<uint32_t>(args.tokens);
    uint32_t present = first < tokens ? tokens - first : 0;
    float *lse = args.lse + (place.batch * args.heads + place.head) * args.tokens + first;
    float factors[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = state.sum[m][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            factors[m][half] = (DROPS ? args.drop.scale : 1.0f) / sum;
            uint32_t row = attention_row(m, 2 * half);
            if (threadIdx.x % 4 == 0 && row < present)
                lse[row] = __fmaf_rn(state.largest[m][half], args.scale, logf(sum));
        }
    uint64_t stride = args.heads * args.value_dim;
    T *target =
        const_cast<T *>(attention_output_head<T>(args.output, args, place.batch, place.head)) +
        first * stride;
    attention_write<T, DIM, MT>(tile_rows, output, factors, target, stride, present, args.value_dim,
                                args.is_vector);
}

// DROPS: with dropout. Without it the kernel keeps its registers.
template <typename T, int DIM, bool DROPS>
__global__ void __launch_bounds__(ATTENTION_THREADS, 2) forward(cudai_attention_args args)
{
    constexpr int MT = config<DIM>::row_blocks, keys = config<DIM>::keys;
    constexpr int queries = config<DIM>::queries, pitch = attention_pitch<DIM>;
    CUDAI_DYNAMIC_SHARED(T, q_tile);
    T *k_tile = q_tile + queries * pitch, *v_tile = k_tile + keys * pitch;
    uint32_t tokens = static_cast<uint32_t>(args.tokens);
    uint32_t tiles = (tokens + queries - 1) / queries;
    attention_place place = attention_locate(tiles, args.heads);
    uint32_t first = (tiles - 1 - place.tile) * queries; // long tiles start first
    uint64_t kv_head = place.head / (args.heads / args.kv_heads);
    const T *q = attention_head<T>(args.q, args, place.batch, place.head) + first * args.qkv_stride;
    const T *k = attention_head<T>(args.k, args, place.batch, kv_head);
    const T *v = attention_value_head<T>(args.v, args, place.batch, kv_head);
    const attention_mask mask = attention_mask_at(args.mask, place.batch);
    uint32_t warp_row = threadIdx.x / CUDAI_WARP * 16 * MT, warp_first = first + warp_row;
    T *warp_tile = q_tile + warp_row * pitch;
    float factor = args.scale * ATTENTION_LOG2E;
    const attention_reach reach = attention_reach_of<true>(mask, warp_first, 16 * MT);
    uint32_t begin, end; // of the keys that the tile sees
    {
        const attention_reach all = attention_reach_of<true>(mask, first, queries);
        begin = all.begin / keys * keys;
        end = all.end;
    }

    float output[MT][DIM / 8][4];
    attention_clear(output);
    softmax_state<MT> state;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            state.largest[m][half] = -INFINITY;
            state.sum[m][half] = 0.0f;
        }
    attention_load<T, DIM, queries>(q_tile, q, args.qkv_stride, tokens - first, args.head_dim,
                                    args.is_vector);
    attention_load<T, DIM, keys>(k_tile, k + begin * args.qkv_stride, args.qkv_stride,
                                 tokens - begin, args.head_dim, args.is_vector);
    cudai_copy_commit();
    for (uint32_t key = begin; key < end; key += keys) {
        bool is_seen = attention_sees(reach, key, keys); // by some row of this warp
        cudai_copy_wait<0>();
        __syncthreads(); // the keys are loaded; nobody reads the last step's values any more
        attention_load<T, DIM, keys>(v_tile, v + key * args.qkv_stride, args.qkv_stride,
                                     tokens - key, args.value_dim, args.is_vector);
        cudai_copy_commit();
        float scores[MT][keys / 8][4];
        attention_clear(scores);
        if (is_seen)
            attention_product<T, DIM, MT, keys>(scores, warp_tile, k_tile);
        cudai_copy_wait<0>();
        __syncthreads(); // the values are loaded; nobody reads the keys any more
        if (key + keys < end) {
            attention_load<T, DIM, keys>(k_tile, k + (key + keys) * args.qkv_stride,
                                         args.qkv_stride, tokens - key - keys, args.head_dim,
                                         args.is_vector);
            cudai_copy_commit();
        }
        if (is_seen) {
            if (args.soft_cap > 0.0f)
                attention_cap<MT, keys / 8>(args, scores);
            if (!attention_sees_whole(reach, key, keys))
                attention_hide<MT, keys>(scores, -INFINITY, mask, warp_first, key);
            online_softmax<DIM, MT, keys>(scores, state, output, factor);
            if constexpr (DROPS)
                attention_keep(
                    scores,
                    attention_kept<MT, keys, false>(args, place.batch, place.head, warp_first, key),
                    1.0f);
            uint32_t probs[MT][keys / 16][4];
            attention_round<T, MT, keys>(probs, scores);
            attention_mix<T, DIM, MT, keys>(output, probs, v_tile);
        }
    }
    finish_rows<T, DIM, MT, DROPS>(args, place, warp_tile, state, output, warp_first);
}

} // namespace

extern "C" int cudai_attention_forward_allow(enum dtype type, uint64_t head_dim,
                                             uint64_t *shared_bytes)
{
    return attention_by_type(type, [=](auto zero) {
        return attention_by_dim(head_dim, [=](auto dim) {
            constexpr int DIM = decltype(dim)::value;
            *shared_bytes = config<DIM>::shared_bytes;
            cudaError_t error =
                cudai_allow_shared(forward<decltype(zero), DIM, true>, *shared_bytes);
            return error != cudaSuccess
                       ? error
                       : cudai_allow_shared(forward<decltype(zero), DIM, false>, *shared_bytes);
        });
    });
}

extern "C" int cudai_attention_forward_launch(enum dtype type, const cudai_attention_args *args,
                                              void *stream)
{
    return attention_by_type(type, [=](auto zero) {
        return attention_by_dim(
            cudai_attention_tile_dim(args->head_dim, args->value_dim), [=](auto dim) {
                constexpr int DIM = decltype(dim)::value;
                uint64_t tiles = (args->tokens + config<DIM>::queries - 1) / config<DIM>::queries;
                dim3 grid(static_cast<unsigned>(tiles * args->heads * args->batch));
                auto kernel = args->drop.masks.counter ? forward<decltype(zero), DIM, true>
                                                       : forward<decltype(zero), DIM, false>;
                return cudai_launch(kernel, grid, dim3(ATTENTION_THREADS),
                                    config<DIM>::shared_bytes, static_cast<cudaStream_t>(stream),
                                    *args);
            });
    });
}
