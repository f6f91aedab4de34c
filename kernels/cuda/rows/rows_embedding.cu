// The embedding and its gradient.
//
// Forward: one row of threads per token, 16 bytes per thread if the shape allows.
//
// Backward, for the token table: the rows are sorted by token, then the rows of each token, a
// segment, are summed. A key has 64 bits: the token's table row above the row's number. So all keys
// differ and there is only one sorted order. The sort is bitonic within runs of 4096 keys, in
// shared memory. Then 4 runs at a time are merged: each key finds its place by counting the smaller
// keys in the 3 other runs. So 65536 rows take 3 launches.
//
// The order of the sums depends only on the rows of a table element. A segment of at most SHORT
// rows is added to the accumulator row by row in order; the CPU does the same, with the same bits.
// A longer one is distributed over STRANDS strands, BATCH rows at a time. Each strand adds its rows
// in order to 0, the strands are added in order, and the result is added to the accumulator. The
// part of the table, the width of an access and the grid have no influence.
#include "kernels/cuda/device.cuh"

extern "C" {
#include "kernels/cuda/rows/rows_launch.h"
#include "kernels/row_position.h"
}

enum {
    STRANDS = 16,        // warps of a block that sums segments, and sorted positions per block
    SHORT = 16,          // rows; at least STRANDS - 1, so at most one long segment begins per block
    BATCH = 8,           // rows of a strand's turn; their loads are in flight together
    SHORT_BATCH = 4,     // the same for a short segment
    PACK = 4,            // channels of one access in the backward pass
    BLOCK_THREADS = 256, // for the other kernels
    BLOCKS_PER_SM_MAX = 256,
};

static_assert(SHORT >= STRANDS - 1, "a block handles one long segment");
static_assert(STRANDS + SHORT <= CUDAI_WARP, "a warp's keys reach to the end of a short segment");
static_assert(STRANDS * CUDAI_WARP <= 1024, "threads of a block");

static const uint32_t ELSEWHERE = 0xffffffffu; // in a key: the token has no row in this part
static const uint32_t ALL_LANES = 0xffffffffu;

// Returns the shape of a block: packs of channels in x, rows in y.
static dim3 shape_of_block(uint64_t packs)
{
    unsigned x = 1;
    while (x < packs && x < BLOCK_THREADS)
        x *= 2;
    return dim3(x, BLOCK_THREADS / x);
}

static unsigned block_count(uint64_t items, int sm_count)
{
    uint64_t most = static_cast<uint64_t>(sm_count) * BLOCKS_PER_SM_MAX;
    return static_cast<unsigned>(items < most ? items : most);
}

static bool is_aligned_to(const void *memory, uint64_t bytes)
{
    return reinterpret_cast<uintptr_t>(memory) % bytes == 0;
}

// --- forward -----------------------------------------------------------------------------------

// output[c..c+N) = source[c..c+N) + position[c..c+N). A NULL position is left out. A NULL source
// gives NaN.
template <typename T, int N>
static __device__ __forceinline__ void embed_pack(const T *source, const T *position, T *output,
                                                  uint64_t c)
{
    cudai_pack<T, N> x;
    if (source) {
        x = cudai_load<T, N>(source + c);
    } else {
        for (int i = 0; i < N; i++)
            x.item[i] = cudai_narrow<T>(NAN);
    }
    if (position) {
        cudai_pack<T, N> p = cudai_load<T, N>(position + c);
        for (int i = 0; i < N; i++)
            x.item[i] = cudai_narrow<T>(cudai_widen(x.item[i]) + cudai_widen(p.item[i]));
    }
    cudai_store<T, N>(output + c, x);
}

// The rows of the position table.
template <typename ARGS> static __host__ __device__ uint64_t position_count(const ARGS &args)
{
    return args.position_count ? args.position_count : args.tokens;
}

template <typename T, int N>
static __global__ void __launch_bounds__(BLOCK_THREADS) forward_kernel(embedding_args args)
{
    const T *table = static_cast<const T *>(args.token_table);
    const T *positions = static_cast<const T *>(args.position_table);
    uint64_t rows = args.batch * args.tokens, channels = args.channels;
    uint64_t part_rows = args.row_count ? args.row_count : args.vocab;
    uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.y;
    for (uint64_t row = static_cast<uint64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
         row += step) {
        T *output = static_cast<T *>(args.output) + row * channels;
        uint64_t token = static_cast<uint64_t>(args.token_ids[row]); // negative: a huge number
        const T *source = output;
        if (token >= args.vocab) {
            source = nullptr;
        } else if (table) {
            uint64_t part_row = token - args.row_begin; // wraps if the token lies before this part
            if (part_row >= part_rows)
                continue;
            source = table + part_row * channels;
        }
        uint64_t place = row_position_in(row, args.tokens, args.begins, args.position_first,
                                         args.position_begin);
        const T *position =
            positions && place < position_count(args) ? positions + place * channels : nullptr;
        for (uint64_t c = static_cast<uint64_t>(threadIdx.x) * N; c < channels;
             c += static_cast<uint64_t>(blockDim.x) * N)
            embed_pack<T, N>(source, position, output, c);
    }
}

template <typename T, int N>
static cudaError_t launch_forward(const embedding_args *args, int sm_count, cudaStream_t stream)
{
    dim3 block = shape_of_block(args->channels / N);
    uint64_t rows = args->batch * args->tokens;
    unsigned blocks = block_count((rows + block.y - 1) / block.y, sm_count);
    return cudai_launch(forward_kernel<T, N>, dim3(blocks), block, 0, stream, *args);
}

template <typename T>
static cudaError_t choose_forward(const embedding_args *args, int sm_count, cudaStream_t stream)
{
    const int wide = 16 / static_cast<int>(sizeof(T));
    if (args->channels % wide == 0 && is_aligned_to(args->token_table, 16) &&
        is_aligned_to(args->position_table, 16) && is_aligned_to(args->output, 16))
        return launch_forward<T, wide>(args, sm_count, stream);
    return launch_forward<T, 1>(args, sm_count, stream);
}

extern "C" int cudai_launch_embedding_forward(const embedding_args *args, int sm_count,
                                              void *stream)
{
    CUDAI_BY_TYPE(args->type, T,
                  return choose_forward<T>(args, sm_count, static_cast<cudaStream_t>(stream)));
}

// --- sorting rows by token ---------------------------------------------------------------------

// Sorts `capacity` keys, a power of two, in shared memory. All threads of the block must call it.
static __device__ __forceinline__ void bitonic_sort(uint64_t *keys, unsigned capacity)
{
    for (unsigned size = 2; size <= capacity; size *= 2)
        for (unsigned distance = size / 2; distance > 0; distance /= 2) {
            __syncthreads();
            for (unsigned pair = threadIdx.x; pair < capacity / 2; pair += blockDim.x) {
                unsigned low = 2 * pair - (pair & (distance - 1)), high = low + distance;
                uint64_t a = keys[low], b = keys[high];
                bool is_rising = (low & size) == 0;
                if ((a > b) == is_rising) {
                    keys[low] = b;
                    keys[high] = a;
                }
            }
        }
    __syncthreads();
}

static __global__ void __launch_bounds__(1024)
    keys_kernel(const int32_t *token_ids, uint64_t rows, uint64_t row_begin, uint64_t part_rows,
                unsigned capacity, uint64_t *keys)
{
    __shared__ uint64_t run[CUDAI_SORT_KEYS];
    uint64_t begin = static_cast<uint64_t>(blockIdx.x) * capacity;
    for (unsigned i = threadIdx.x; i < capacity; i += blockDim.x) {
        uint64_t row = begin + i, key = ~static_cast<uint64_t>(0); // sorts after all rows
        if (row < rows) {
            uint64_t part_row = static_cast<uint64_t>(token_ids[row]) - row_begin; // may wrap
            key = (part_row < part_rows ? part_row : ELSEWHERE) << 32 | row;
        }
        run[i] = key;
    }
    bitonic_sort(run, capacity);
    for (unsigned i = threadIdx.x; i < capacity && begin + i < rows; i += blockDim.x)
        keys[begin + i] = run[i];
}

extern "C" int cudai_launch_embedding_keys(const embedding_grad_args *args, uint64_t *keys,
                                           void *stream)
{
    uint64_t rows = args->batch * args->tokens;
    uint64_t part_rows = args->row_count ? args->row_count : args->vocab;
    unsigned capacity = 4 * CUDAI_WARP;
    while (capacity < rows && capacity < CUDAI_SORT_KEYS)
        capacity *= 2;
    uint64_t runs = (rows + capacity - 1) / capacity;
    return cudai_launch(keys_kernel, dim3(static_cast<unsigned>(runs)), dim3(capacity / 4), 0,
                        static_cast<cudaStream_t>(stream), args->token_ids, rows, args->row_begin,
                        part_rows, capacity, keys);
}

// Returns how many of the sorted keys[begin..end) are below `key`.
static __device__ __forceinline__ uint64_t keys_below(const uint64_t *keys, uint64_t begin,
                                                      uint64_t end, uint64_t key)
{
    uint64_t low = begin;
    while (low < end) {
        uint64_t middle = low + (end - low) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            end = middle;
    }
    return low - begin;
}

static __global__ void __launch_bounds__(BLOCK_THREADS)
    merge_kernel(const uint64_t *source, uint64_t *target, uint64_t rows, uint64_t run_keys)
{
    for (uint64_t i = cudai_thread_idx(); i < rows; i += cudai_thread_count()) {
        uint64_t key = source[i];
        uint64_t own_run = i & ~(run_keys - 1);
        uint64_t group = i & ~(run_keys * CUDAI_MERGE_WAYS - 1);
        uint64_t place = group + (i - own_run);
        for (int way = 0; way < CUDAI_MERGE_WAYS; way++) {
            uint64_t run = group + static_cast<uint64_t>(way) * run_keys;
            if (run == own_run || run >= rows)
                continue;
            place += keys_below(source, run, run + run_keys < rows ? run + run_keys : rows, key);
        }
        target[place] = key;
    }
}

extern "C" int cudai_launch_embedding_merge(const uint64_t *source, uint64_t *target, uint64_t rows,
                                            uint64_t run_keys, int sm_count, void *stream)
{
    return cudai_launch(merge_kernel, dim3(cudai_blocks(rows, BLOCK_THREADS, sm_count)),
                        dim3(BLOCK_THREADS), 0, static_cast<cudaStream_t>(stream), source, target,
                        rows, run_keys);
}

// --- sums of segments --------------------------------------------------------------------------

// One warp's view of a block's STRANDS positions in the sorted order. Lane l holds the key of
// position base + l; lane w < STRANDS decides for position base + w. All warps of the block hold
// the same.
struct sorted_window {
    uint32_t row, token; // of this lane's key
    unsigned begin_mask; // bit w: a segment of this part begins at base + w
    unsigned long_mask;  // bit w: that segment has more than SHORT rows; at most one bit is set
};

static __device__ __forceinline__ uint32_t token_of(uint64_t key)
{
    return static_cast<uint32_t>(key >> 32);
}

static __device__ __forceinline__ sorted_window window_at(const uint64_t *keys, uint64_t rows,
                                                          uint64_t base)
{
    unsigned lane = threadIdx.x % CUDAI_WARP;
    uint64_t key = base + lane < rows ? keys[base + lane] : ~static_cast<uint64_t>(0);
    sorted_window window;
    window.row = static_cast<uint32_t>(key);
    window.token = token_of(key);
    uint32_t before = __shfl_up_sync(ALL_LANES, window.token, 1);
    if (lane == 0)
        before = base > 0 ? token_of(keys[base - 1]) : ~window.token;
    uint32_t after = __shfl_down_sync(ALL_LANES, window.token, SHORT);
    bool begins = lane < STRANDS && window.token != ELSEWHERE && window.token != before;
    window.begin_mask = __ballot_sync(ALL_LANES, begins);
    window.long_mask = __ballot_sync(ALL_LANES, begins && window.token == after);
    return window;
}

// sum += COUNT rows of `grads` (at this thread's channels) in order, of which the first `count`
// exist. Lane first + i holds the number of row i. All lanes of the warp must call it.
template <typename T, int N, int COUNT>
static __device__ __forceinline__ void add_rows(float (&sum)[N], const T *grads, uint64_t channels,
                                                bool is_active, uint32_t lane_row, unsigned first,
                                                unsigned count)
{
    cudai_pack<T, N> x[COUNT];
#pragma unroll
    for (unsigned i = 0; i < COUNT; i++) {
        uint64_t row = __shfl_sync(ALL_LANES, lane_row, static_cast<int>(first + i) % CUDAI_WARP);
        if (i < count && is_active)
            x[i] = cudai_load<T, N>(grads + row * channels);
        else
            x[i] = cudai_pack<T, N>();
    }
#pragma unroll
    for (unsigned i = 0; i < COUNT; i++)
        if (i < count)
            for (int k = 0; k < N; k++)
                sum[k] += cudai_widen(x[i].item[k]);
}

// One warp sums the segment of at most SHORT rows that begins at position `strand` of the window.
template <typename T, int N>
static __device__ __forceinline__ void sum_short(const sorted_window &window, unsigned strand,
                                                 const T *grads, uint64_t channels, bool is_active,
                                                 float *table)
{
    uint32_t token = __shfl_sync(ALL_LANES, window.token, static_cast<int>(strand));
    unsigned rows = static_cast<unsigned>(
        __popc(__ballot_sync(ALL_LANES, window.token == token))); // neighbours, since sorted
    float *target = table + token * channels;
    float sum[N] = {0};
    if (is_active) {
        cudai_pack<float, N> held = cudai_load<float, N>(target);
        for (int k = 0; k < N; k++)
            sum[k] = held.item[k];
    }
    for (unsigned i = 0; i < rows; i += SHORT_BATCH)
        add_rows<T, N, SHORT_BATCH>(sum, grads, channels, is_active, window.row, strand + i,
                                    rows - i);
    if (is_active) {
        cudai_pack<float, N> total;
        for (int k = 0; k < N; k++)
            total.item[k] = sum[k];
        cudai_store<float, N>(target, total);
    }
}

// Adds this strand's share of the long segment that begins at `begin` to `sum`, which must be 0.
template <typename T, int N>
static __device__ __forceinline__ void
sum_strand(float (&sum)[N], const uint64_t *keys, uint64_t rows, uint64_t begin, uint32_t token,
           unsigned strand, const T *grads, uint64_t channels, bool is_active)
{
    unsigned lane = threadIdx.x % CUDAI_WARP;
    uint64_t at = begin + static_cast<uint64_t>(strand) * BATCH + lane;
    const uint64_t none = ~static_cast<uint64_t>(0), turn = STRANDS * BATCH;
    uint64_t next = lane < BATCH && at < rows ? keys[at] : none;
    for (unsigned count = BATCH; count == BATCH;) {
        uint64_t key = next;
        at += turn;
        next = lane < BATCH && at < rows ? keys[at] : none; // loads one turn ahead
        count = static_cast<unsigned>(__popc(__ballot_sync(ALL_LANES, token_of(key) == token)));
        add_rows<T, N, BATCH>(sum, grads, channels, is_active, static_cast<uint32_t>(key), 0,
                              count);
    }
}

// A block takes STRANDS positions of the sorted order and 32 * N channels at a time. Warp w sums
// the short segment that begins at position w. Then all warps together sum the long segment, if one
// begins here.
template <typename T, int N>
static __global__ void __launch_bounds__(STRANDS *CUDAI_WARP, 2)
    tokens_kernel(embedding_grad_args args, const uint64_t *keys)
{
    enum { TILE = CUDAI_WARP * N };
    __shared__ __align__(16) float partial[STRANDS][TILE];
    unsigned lane = threadIdx.x % CUDAI_WARP, strand = threadIdx.x / CUDAI_WARP;
    uint64_t rows = args.batch * args.tokens, channels = args.channels;
    uint64_t tiles = (channels + TILE - 1) / TILE, groups = (rows + STRANDS - 1) / STRANDS;
    for (uint64_t item = blockIdx.x; item < tiles * groups; item += gridDim.x) {
        uint64_t base = item / tiles * STRANDS, tile_at = item % tiles * TILE;
        uint64_t channel = tile_at + lane * N;
        bool is_active = channel < channels;
        const T *grads = static_cast<const T *>(args.output_grad) + channel;
        sorted_window window = window_at(keys, rows, base);
        if ((window.begin_mask & ~window.long_mask) >> strand & 1u)
            sum_short<T, N>(window, strand, grads, channels, is_active,
                            args.token_table_grad + channel);
        if (window.long_mask == 0)
            continue; // the whole block continues

        unsigned first = static_cast<unsigned>(__ffs(static_cast<int>(window.long_mask))) - 1;
        uint32_t token = __shfl_sync(ALL_LANES, window.token, static_cast<int>(first));
        float sum[N] = {0};
        sum_strand<T, N>(sum, keys, rows, base + first, token, strand, grads, channels, is_active);
        cudai_pack<float, N> share;
        for (int k = 0; k < N; k++)
            share.item[k] = sum[k];
        cudai_store<float, N>(&partial[strand][lane * N], share);
        __syncthreads();
        unsigned own = threadIdx.x; // channel of the tile
        if (own < TILE && tile_at + own < channels) {
            float total = partial[0][own];
            for (int s = 1; s < STRANDS; s++)
                total += partial[s][own];
            args.token_table_grad[token * channels + tile_at + own] += total;
        }
        __syncthreads();
    }
}

template <typename T, int N>
static cudaError_t launch_tokens(const embedding_grad_args *args, const uint64_t *keys,
                                 int sm_count, cudaStream_t stream)
{
    uint64_t rows = args->batch * args->tokens, tile = CUDAI_WARP * N;
    uint64_t items = (rows + STRANDS - 1) / STRANDS * ((args->channels + tile - 1) / tile);
    return cudai_launch(tokens_kernel<T, N>, dim3(block_count(items, sm_count)),
                        dim3(STRANDS * CUDAI_WARP), 0, stream, *args, keys);
}

// True if rows of both gradients can be moved PACK elements at a time.
template <typename T> static bool is_packed(const embedding_grad_args *args, const float *table)
{
    return args->channels % PACK == 0 && is_aligned_to(args->output_grad, PACK * sizeof(T)) &&
           is_aligned_to(table, PACK * sizeof(float));
}

template <typename T>
static cudaError_t choose_tokens(const embedding_grad_args *args, const uint64_t *keys,
                                 int sm_count, cudaStream_t stream)
{
    if (is_packed<T>(args, args->token_table_grad))
        return launch_tokens<T, PACK>(args, keys, sm_count, stream);
    return launch_tokens<T, 1>(args, keys, sm_count, stream);
}

extern "C" int cudai_launch_embedding_tokens(const embedding_grad_args *args, const uint64_t *keys,
                                             int sm_count, void *stream)
{
    CUDAI_BY_TYPE(args->type, T,
                  return choose_tokens<T>(args, keys, sm_count, static_cast<cudaStream_t>(stream)));
}

// --- positions ---------------------------------------------------------------------------------

// Adds a pack of a row's gradients.
template <typename T, int N>
static __device__ __forceinline__ void add_grads(cudai_pack<float, N> *sum, const T *grads)
{
    cudai_pack<T, N> x = cudai_load<T, N>(grads);
    for (int k = 0; k < N; k++)
        sum->item[k] += cudai_widen(x.item[k]);
}

// Each thread owns some channels of a position and adds the sequences in order, with the CPU's
// bits. If positions restart with documents, it looks for its position in each of them.
template <typename T, int N>
static __global__ void __launch_bounds__(BLOCK_THREADS) positions_kernel(embedding_grad_args args)
{
    uint64_t channels = args.channels, sequence = args.tokens * channels;
    uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.y;
    for (uint64_t place = static_cast<uint64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
         place < position_count(args); place += step) {
        // the first row that may have the position; a huge number if none has it
        uint64_t t = place + args.position_begin - args.position_first;
        for (uint64_t c = static_cast<uint64_t>(threadIdx.x) * N; c < channels && t < args.tokens;
             c += static_cast<uint64_t>(blockDim.x) * N) {
            const T *grads = static_cast<const T *>(args.output_grad) + c;
            float *target = args.position_table_grad + place * channels + c;
            cudai_pack<float, N> sum = cudai_load<float, N>(target);
            if (args.begins == nullptr) {
#pragma unroll 4
                for (uint64_t b = 0; b < args.batch; b++)
                    add_grads<T, N>(&sum, grads + b * sequence + t * channels);
            } else {
                for (uint64_t row = t; row < args.batch * args.tokens; row++)
                    if (row_position(row, args.tokens, args.begins) == t)
                        add_grads<T, N>(&sum, grads + row * channels);
            }
            cudai_store<float, N>(target, sum);
        }
    }
}

template <typename T, int N>
static cudaError_t launch_positions(const embedding_grad_args *args, int sm_count,
                                    cudaStream_t stream)
{
    dim3 block = shape_of_block(args->channels / N);
    unsigned blocks = block_count((position_count(*args) + block.y - 1) / block.y, sm_count);
    return cudai_launch(positions_kernel<T, N>, dim3(blocks), block, 0, stream, *args);
}

template <typename T>
static cudaError_t choose_positions(const embedding_grad_args *args, int sm_count,
                                    cudaStream_t stream)
{
    if (is_packed<T>(args, args->position_table_grad))
        return launch_positions<T, PACK>(args, sm_count, stream);
    return launch_positions<T, 1>(args, sm_count, stream);
}

extern "C" int cudai_launch_embedding_positions(const embedding_grad_args *args, int sm_count,
                                                void *stream)
{
    CUDAI_BY_TYPE(args->type, T,
                  return choose_positions<T>(args, sm_count, static_cast<cudaStream_t>(stream)));
}
