// Fused attention, gradients of keys and values, for bf16 and fp16 (Dao, FlashAttention-2,
// 2023, algorithm 2, by columns).
//
// A block takes one tile of keys of one key/value head. It visits the query heads of its group, and
// of each head the tiles of queries that see its keys, always in the same order. P is recomputed
// from the saved lse. Everything is transposed, so that a warp's rows are keys (' means
// transposed):
//   S' = K Q',  P' = exp(scale S' - lse),  dP' = V dO',  dS' = P' (dP' - delta),
//   dV += P' dO,  dK += dS' Q,  and at the end dK *= scale.
// With dropout, what is dropped is 0 in dP', and in P' for dV; dV is scaled at the end.
//
// P' and dS' are rounded to the 16-bit type before their products and never leave the registers,
// where dK and dV are summed in fp32. There are no atomics and no sums in memory, so the bits
// depend only on the operands.
//
// Above 128 elements per head the registers hold only one of the two sums: the kernel runs once for
// dV and once for dK. Allocates nothing.
#include "kernels/cuda/attention/attention_tiles.cuh"

namespace
{

// The gradients that a kernel computes.
enum { KEYS = 1, VALUES = 2 };

// Tile sizes: 16 row_blocks keys per warp, `queries` queries per step, `stages` steps of queries in
// shared memory. Shared memory stays below 99 KiB, so that two blocks share a multiprocessor of
// sm_80 and sm_90, up to 192 elements per head.
template <int DIM, int WHAT> struct config {
    static constexpr int row_blocks = DIM <= 64 ? 2 : 1;
    static constexpr int queries = DIM <= 192 ? 32 : 16;
    static constexpr int stages = DIM <= 128 ? 2 : 1;
    static constexpr int keys = 16 * row_blocks * ATTENTION_WARPS;
    static constexpr int own_tiles = WHAT & KEYS ? 2 : 1; // K, and also V if dP is needed
    static constexpr int own_elems = own_tiles * keys * attention_pitch<DIM>;
    static constexpr int query_elems = queries * attention_pitch<DIM>;
    static constexpr size_t shared_bytes =
        2 * size_t(own_elems + stages * 2 * query_elems) + stages * 2 * queries * sizeof(float);
};

// The operands of one step, in shared memory.
template <typename T> struct query_step {
    T *q, *output_grad; // [queries, DIM]
    float *lse, *delta; // [queries]
};

template <typename T, int DIM, int WHAT>
__device__ __forceinline__ query_step<T> step_place(T *shared, uint32_t stage)
{
    typedef config<DIM, WHAT> sizes;
    T *tiles = shared + sizes::own_elems;
    float *rows = reinterpret_cast<float *>(tiles + sizes::stages * 2 * sizes::query_elems);
    query_step<T> step;
    step.q = tiles + stage * 2 * sizes::query_elems;
    step.output_grad = step.q + sizes::query_elems;
    step.lse = rows + stage * 2 * sizes::queries;
    step.delta = step.lse + sizes::queries;
    return step;
}

// Starts to load the queries of `head`, from `query` on.
template <typename T, int DIM, int WHAT>
__device__ __forceinline__ void load_step(const cudai_attention_args &args, T *shared,
                                          uint32_t stage, uint64_t batch, uint64_t head,
                                          uint32_t query)
{
    constexpr int queries = config<DIM, WHAT>::queries;
    query_step<T> step = step_place<T, DIM, WHAT>(shared, stage);
    uint32_t present = static_cast<uint32_t>(args.tokens) - query;
    uint64_t output_stride = args.heads * args.value_dim;
    uint64_t first_row = (batch * args.heads + head) * args.tokens + query;
    attention_load<T, DIM, queries>(
        step.q, attention_head<T>(args.q, args, batch, head) + query * args.qkv_stride,
        args.qkv_stride, present, args.head_dim, args.is_vector);
    attention_load<T, DIM, queries>(step.output_grad,
                                    attention_output_head<T>(args.output_grad, args, batch, head) +
                                        query * output_stride,
                                    output_stride, present, args.value_dim, args.is_vector);
    if (threadIdx.x < queries) {
        bool is_there = threadIdx.x < present;
        uint64_t row = first_row + (is_there ? threadIdx.x : 0);
        cudai_copy_async<4>(step.lse + threadIdx.x, args.lse + row, is_there);
        cudai_copy_async<4>(step.delta + threadIdx.x, args.delta + row, is_there);
    }
    cudai_copy_commit();
}

// Turns the scores into P' and dP' into dS', both in place. Queries after the end of the sequence
// need no mask, since their rows of Q and dO, lse and delta are zero.
template <int MT, int N, int WHAT>
__device__ __forceinline__ void score_grads(float (&scores)[MT][N / 8][4],
                                            float (&grads)[MT][N / 8][4], const float *lse,
                                            const float *delta, float factor)
{
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            uint32_t query = attention_column(n, side);
            float base = lse[query] * -ATTENTION_LOG2E;
            float row_delta = WHAT & KEYS ? delta[query] : 0.0f;
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = side; i < 4; i += 2) {
                    float p = cudai_exp2(__fmaf_rn(scores[m][n][i], factor, base));
                    scores[m][n][i] = p;
                    if constexpr (WHAT & KEYS)
                        grads[m][n][i] = p * (grads[m][n][i] - row_delta);
                }
        }
}

// Sets P' and dS' to 0 where the query does not see the key. `query` and `key` are the positions of
// the first query and of the warp's first key.
template <int MT, int N, int WHAT>
__device__ __forceinline__ void mask_grads(float (&probs)[MT][N / 8][4],
                                           float (&grads)[MT][N / 8][4], const attention_mask &mask,
                                           uint32_t query, uint32_t key)
{
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const attention_columns seen =
                attention_columns_of(mask, query + attention_column(n, side), key);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = side; i < 4; i += 2) {
                    const int row = static_cast<int>(attention_row(m, i));
                    const bool counts = row >= seen.begin && row < seen.end;
                    probs[m][n][i] = counts ? probs[m][n][i] : 0.0f;
                    if constexpr (WHAT & KEYS)
                        grads[m][n][i] = counts ? grads[m][n][i] : 0.0f;
                }
        }
}

template <typename T, int DIM, int WHAT>
__global__ void __launch_bounds__(ATTENTION_THREADS, 2) key_grad(cudai_attention_args args)
{
    typedef config<DIM, WHAT> sizes;
    constexpr int MT = sizes::row_blocks, queries = sizes::queries, keys = sizes::keys;
    constexpr int pitch = attention_pitch<DIM>;
    CUDAI_DYNAMIC_SHARED(T, shared);
    T *k_tile = shared, *v_tile = k_tile + (sizes::own_tiles - 1) * keys * pitch;
    uint32_t tokens = static_cast<uint32_t>(args.tokens);
    attention_place place = attention_locate((tokens + keys - 1) / keys, args.kv_heads);
    uint32_t first = place.tile * keys; // long tiles start first
    uint32_t warp_row = threadIdx.x / CUDAI_WARP * 16 * MT, warp_first = first + warp_row;
    uint64_t group = args.heads / args.kv_heads;
    uint64_t offset = first * args.qkv_stride;
    const attention_mask mask = attention_mask_at(args.mask, place.batch);
    const attention_reach reach = attention_reach_of<false>(mask, warp_first, 16 * MT);
    uint32_t begin, end; // of the queries that see the tile
    {
        const attention_reach all = attention_reach_of<false>(mask, first, keys);
        begin = all.begin;
        end = all.end;
    }
    uint32_t steps_per_head = (end - begin + queries - 1) / queries;
    uint64_t steps = group * steps_per_head;

    float key_sums[WHAT & KEYS ? MT : 1][DIM / 8][4],
        value_sums[WHAT & VALUES ? MT : 1][DIM / 8][4];
    attention_clear(key_sums);
    attention_clear(value_sums);
    attention_load<T, DIM, keys>(k_tile,
                                 attention_head<T>(args.k, args, place.batch, place.head) + offset,
                                 args.qkv_stride, tokens - first, args.head_dim, args.is_vector);
    if constexpr (WHAT & KEYS)
        attention_load<T, DIM, keys>(
            v_tile, attention_value_head<T>(args.v, args, place.batch, place.head) + offset,
            args.qkv_stride, tokens - first, args.value_dim, args.is_vector);
    uint64_t head = place.head * group; // the head of the step that is loaded next
    uint32_t query = begin;
    load_step<T, DIM, WHAT>(args, shared, 0, place.batch, head, query);
    for (uint64_t n = 0; n < steps; n++) {
        uint32_t current = query; // the first query of the step that is computed now
        uint64_t current_head = head;
        if (query + queries < end) {
            query += queries;
        } else {
            query = begin;
            head++;
        }
        cudai_copy_wait<0>();
        __syncthreads(); // this step is loaded; nobody reads the one before any more
        if (sizes::stages == 2 && n + 1 < steps)
            load_step<T, DIM, WHAT>(args, shared, (n + 1) % 2, place.batch, head, query);
        if (attention_sees(reach, current, queries)) { // if a key of this warp is seen
            query_step<T> step = step_place<T, DIM, WHAT>(shared, sizes::stages == 2 ? n % 2 : 0);
            float scores[MT][queries / 8][4], grads[MT][queries / 8][4];
            uint32_t p[MT][queries / 16][4];
            attention_clear(scores);
            attention_clear(grads);
            attention_product<T, DIM, MT, queries>(scores, k_tile + warp_row * pitch, step.q);
            if constexpr (WHAT & KEYS)
                attention_product<T, DIM, MT, queries>(grads, v_tile + warp_row * pitch,
                                                       step.output_grad);
            uint64_t kept = 0;
            if (args.drop.masks.counter) {
                kept = attention_kept<MT, queries, true>(args, place.batch, current_head,
                                                         warp_first, current);
                if constexpr (WHAT & KEYS)
                    attention_keep(grads, kept, args.drop.scale);
            }
            if (args.soft_cap > 0.0f)
                attention_cap_grads<MT, queries / 8>(args, scores, grads, [&](int, int n8, int i) {
                    return step.delta[attention_column(n8, i)];
                });
            score_grads<MT, queries, WHAT>(scores, grads, step.lse, step.delta,
                                           args.scale * ATTENTION_LOG2E);
            if (!attention_sees_whole(reach, current, queries))
                mask_grads<MT, queries, WHAT>(scores, grads, mask, current, warp_first);
            if constexpr (WHAT & VALUES) {
                if (args.drop.masks.counter)
                    attention_keep(scores, kept, 1.0f);
                attention_round<T, MT, queries>(p, scores);
                attention_mix<T, DIM, MT, queries>(value_sums, p, step.output_grad);
            }
            if constexpr (WHAT & KEYS) {
                attention_round<T, MT, queries>(p, grads);
                attention_mix<T, DIM, MT, queries>(key_sums, p, step.q);
            }
        }
        if (sizes::stages == 1 && n + 1 < steps) {
            __syncthreads(); // nobody reads this step any more
            load_step<T, DIM, WHAT>(args, shared, 0, place.batch, head, query);
        }
    }
    uint32_t present = warp_first < tokens ? tokens - warp_first : 0;
    uint64_t warp_offset = warp_first * args.qkv_stride;
    float factors[MT][2];
    if constexpr (WHAT & VALUES) {
#pragma unroll
        for (int m = 0; m < MT; m++)
            factors[m][0] = factors[m][1] = args.drop.masks.counter ? args.drop.scale : 1.0f;
        T *target =
            const_cast<T *>(attention_value_head<T>(args.v_grad, args, place.batch, place.head));
        attention_write<T, DIM, MT>(v_tile + warp_row * pitch, value_sums, factors,
                                    target + warp_offset, args.qkv_stride, present, args.value_dim,
                                    args.is_vector);
    }
    if constexpr (WHAT & KEYS) {
#pragma unroll
        for (int m = 0; m < MT; m++)
            factors[m][0] = factors[m][1] = args.scale;
        T *target = const_cast<T *>(attention_head<T>(args.k_grad, args, place.batch, place.head));
        attention_write<T, DIM, MT>(k_tile + warp_row * pitch, key_sums, factors,
                                    target + warp_offset, args.qkv_stride, present, args.head_dim,
                                    args.is_vector);
    }
}

template <typename T, int DIM, int WHAT>
cudaError_t launch(const cudai_attention_args *args, void *stream)
{
    typedef config<DIM, WHAT> sizes;
    uint64_t tiles = (args->tokens + sizes::keys - 1) / sizes::keys;
    dim3 grid(static_cast<unsigned>(tiles * args->kv_heads * args->batch));
    return cudai_launch(key_grad<T, DIM, WHAT>, grid, dim3(ATTENTION_THREADS), sizes::shared_bytes,
                        static_cast<cudaStream_t>(stream), *args);
}

} // namespace

extern "C" int cudai_attention_key_grad_allow(enum dtype type, uint64_t head_dim,
                                              uint64_t *shared_bytes)
{
    return attention_by_type(type, [=](auto zero) {
        typedef decltype(zero) T;
        return attention_by_dim(head_dim, [=](auto dim) {
            constexpr int DIM = decltype(dim)::value;
            if constexpr (DIM <= 128) {
                *shared_bytes = config<DIM, KEYS | VALUES>::shared_bytes;
                return cudai_allow_shared(key_grad<T, DIM, KEYS | VALUES>, *shared_bytes);
            } else {
                *shared_bytes = config<DIM, KEYS>::shared_bytes;
                cudaError_t error =
                    cudai_allow_shared(key_grad<T, DIM, VALUES>, config<DIM, VALUES>::shared_bytes);
                return error != cudaSuccess
                           ? error
                           : cudai_allow_shared(key_grad<T, DIM, KEYS>, *shared_bytes);
            }
        });
    });
}

extern "C" int cudai_attention_key_grad_launch(enum dtype type, const cudai_attention_args *args,
                                               void *stream)
{
    return attention_by_type(type, [=](auto zero) {
        typedef decltype(zero) T;
        return attention_by_dim(
            cudai_attention_tile_dim(args->head_dim, args->value_dim), [=](auto dim) {
                constexpr int DIM = decltype(dim)::value;
                if constexpr (DIM <= 128) {
                    return launch<T, DIM, KEYS | VALUES>(args, stream);
                } else {
                    cudaError_t error = launch<T, DIM, VALUES>(args, stream);
                    return error != cudaSuccess ? error : launch<T, DIM, KEYS>(args, stream);
                }
            });
    });
}
