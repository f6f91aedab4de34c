// The router of a mixture of experts (kernels/ops_experts.h): one warp for each row, whose scores
// lie in shared memory. Element e of a row belongs to lane e % 32. Sums over the E elements are
// those of the lanes, in order, and then a butterfly; sums over the K choices are fp64, in order.
//
// Experts are chosen one after another by the largest key. A key is the value's bits, mapped so
// that they are ordered as the values are, above the inverted index. So no two keys are equal, ties
// go to the lower index, and NaN is below all numbers.
#include "kernels/cuda/device.cuh"

extern "C" {
#include "kernels/cuda/rows/rows_launch.h"
}

enum { FREE, CLOSED, CHOSEN }; // of an expert in the choice of a row

static __device__ __forceinline__ uint64_t key_of(float value, unsigned idx)
{
    uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f)); // -0 becomes 0
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(isnan(value) ? 0u : bits) << 32 | (0xffffffffu - idx);
}

static __device__ __forceinline__ unsigned idx_of(uint64_t key)
{
    return 0xffffffffu - static_cast<unsigned>(key);
}

static __device__ __forceinline__ uint64_t warp_largest(uint64_t key)
{
    for (int step = CUDAI_WARP / 2; step > 0; step /= 2) {
        uint64_t other = __shfl_xor_sync(0xffffffffu, key, step);
        key = other > key ? other : key;
    }
    return key;
}

// The index of the largest of values[n] whose state is FREE.
static __device__ __forceinline__ unsigned largest_free(const float *values,
                                                        const unsigned char *state, unsigned n)
{
    uint64_t best = 0;
    for (unsigned e = threadIdx.x; e < n; e += CUDAI_WARP) {
        uint64_t key = state[e] == FREE ? key_of(values[e], e) : 0;
        best = key > best ? key : best;
    }
    return idx_of(warp_largest(best));
}

// p[n] = the softmax of logits[n]; returns their logsumexp. Each lane writes its own elements
// of p: call __syncwarp before reading others.
static __device__ __forceinline__ double softmax(const float *logits, unsigned n, float *p)
{
    float largest = -INFINITY, sum = 0.0f;
    for (unsigned e = threadIdx.x; e < n; e += CUDAI_WARP)
        largest = fmaxf(largest, logits[e]);
    largest = cudai_warp_max(largest);
    for (unsigned e = threadIdx.x; e < n; e += CUDAI_WARP) {
        p[e] = expf(__fadd_rn(logits[e], -largest));
        sum = __fadd_rn(sum, p[e]);
    }
    sum = cudai_warp_sum(sum);
    for (unsigned e = threadIdx.x; e < n; e += CUDAI_WARP)
        p[e] = __fdiv_rn(p[e], sum);
    return log(static_cast<double>(sum)) + static_cast<double>(largest);
}

static __device__ __forceinline__ float sigmoid(float x)
{
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x)));
}

static __device__ __forceinline__ void scores_of(const router_args &args, const float *logits,
                                                 unsigned n, float *scores)
{
    if (args.score == ROUTER_SOFTMAX)
        softmax(logits, n, scores);
    else
        for (unsigned e = threadIdx.x; e < n; e += CUDAI_WARP)
            scores[e] = sigmoid(logits[e]);
}

// The value of the group values[n]: its largest, or the sum of its two largest.
static __device__ __forceinline__ float group_value(const float *values, unsigned n,
                                                    unsigned group_best)
{
    float first = values[0], second = -INFINITY;
    for (unsigned e = 1; e < n; e++) {
        if (values[e] > first) {
            second = first;
            first = values[e];
        } else if (values[e] > second) {
            second = values[e];
        }
    }
    return group_best == 2 ? __fadd_rn(first, second) : first;
}

// Sets the state of all experts outside the best groups to CLOSED, of the others to FREE.
static __device__ void close_groups(const router_args &args, const float *values,
                                    float *group_values, unsigned char *state)
{
    unsigned groups = static_cast<unsigned>(args.groups);
    unsigned experts = static_cast<unsigned>(args.experts), size = experts / groups;
    for (unsigned g = threadIdx.x; g < groups; g += CUDAI_WARP) {
        group_values[g] = group_value(values + g * size, size, args.group_best);
        state[g] = FREE;
    }
    __syncwarp();
    for (unsigned i = 0; i < args.groups_chosen; i++) {
        unsigned best = largest_free(group_values, state, groups);
        __syncwarp();
        if (threadIdx.x == 0)
            state[best] = CHOSEN;
        __syncwarp();
    }
    // The decision is kept in group_values, because the states of experts overwrite state[].
    for (unsigned g = threadIdx.x; g < groups; g += CUDAI_WARP)
        group_values[g] = state[g] == CHOSEN ? 1.0f : 0.0f;
    __syncwarp();
    for (unsigned e = threadIdx.x; e < experts; e += CUDAI_WARP)
        state[e] = group_values[e / size] != 0.0f ? FREE : CLOSED;
    __syncwarp();
}

// chosen[K] = the experts whose state is CHOSEN, ascending.
static __device__ __forceinline__ void list_chosen(const unsigned char *state, unsigned experts,
                                                   int32_t *chosen)
{
    unsigned before = 0, lanes_below = (1u << threadIdx.x) - 1;
    for (unsigned first = 0; first < experts; first += CUDAI_WARP) {
        unsigned e = first + threadIdx.x;
        bool is_chosen = e < experts && state[e] == CHOSEN;
        unsigned mask = __ballot_sync(0xffffffffu, is_chosen);
        if (is_chosen)
            chosen[before + static_cast<unsigned>(__popc(mask & lanes_below))] =
                static_cast<int32_t>(e);
        before += static_cast<unsigned>(__popc(mask));
    }
}

static __global__ void __launch_bounds__(CUDAI_WARP) router_kernel(router_args args)
{
    __shared__ float scores[ROUTER_EXPERTS_MAX], values[ROUTER_EXPERTS_MAX];
    __shared__ float group_values[ROUTER_EXPERTS_MAX];
    __shared__ unsigned char state[ROUTER_EXPERTS_MAX];
    const uint64_t row = blockIdx.x, choices = args.choices;
    const unsigned experts = static_cast<unsigned>(args.experts);
    const float *logits = args.logits + row * experts;
    int32_t *chosen = args.chosen + row * choices;
    scores_of(args, logits, experts, scores);
    for (unsigned e = threadIdx.x; e < experts; e += CUDAI_WARP) {
        values[e] = args.bias     ? __fadd_rn(scores[e], args.bias[e])
                    : args.groups ? scores[e]
                                  : logits[e];
        state[e] = FREE;
    }
    __syncwarp();
    if (args.groups)
        close_groups(args, values, group_values, state);
    for (unsigned k = 0; k < choices; k++) {
        unsigned best = largest_free(values, state, experts);
        __syncwarp();
        if (threadIdx.x == 0)
            state[best] = CHOSEN;
        __syncwarp();
    }
    list_chosen(state, experts, chosen);
    __syncwarp();
    double sum = 1e-20;
    for (unsigned k = 0; k < choices; k++)
        sum = __dadd_rn(sum, static_cast<double>(scores[chosen[k]]));
    for (unsigned k = threadIdx.x; k < choices; k += CUDAI_WARP) {
        double weight =
            __dmul_rn(static_cast<double>(args.scale), static_cast<double>(scores[chosen[k]]));
        args.weights[row * choices + k] =
            static_cast<float>(args.normalizes ? __ddiv_rn(weight, sum) : weight);
    }
}

// Adds the gradients of the scores of the chosen experts to grads[E], times `slope` of each.
template <typename S>
static __device__ __forceinline__ void scores_backward(const router_args &args, uint64_t row,
                                                       const float *scores, float *grads, S slope)
{
    const int32_t *chosen = args.chosen + row * args.choices;
    const float *weights_grad = args.weights_grad + row * args.choices;
    double sum = 1e-20, inner = 0.0, scale = static_cast<double>(args.scale);
    for (unsigned k = 0; k < args.choices; k++) {
        double score = static_cast<double>(scores[chosen[k]]);
        sum = __dadd_rn(sum, score);
        inner = __dadd_rn(inner, __dmul_rn(static_cast<double>(weights_grad[k]), score));
    }
    double share = __ddiv_rn(inner, sum);
    for (unsigned k = threadIdx.x; k < args.choices; k += CUDAI_WARP) {
        double grad = static_cast<double>(weights_grad[k]);
        grad = args.normalizes ? __ddiv_rn(__dmul_rn(scale, __dadd_rn(grad, -share)), sum)
                               : __dmul_rn(scale, grad);
        float *to = grads + chosen[k];
        *to = __fadd_rn(*to, __fmul_rn(static_cast<float>(grad), slope(chosen[k])));
    }
}

template <typename T>
static __global__ void __launch_bounds__(CUDAI_WARP) router_grad_kernel(router_args args)
{
    __shared__ float p[ROUTER_EXPERTS_MAX], grads[ROUTER_EXPERTS_MAX];
    __shared__ float scores[ROUTER_EXPERTS_MAX];
    const uint64_t row = blockIdx.x;
    const unsigned experts = static_cast<unsigned>(args.experts);
    const float *logits = args.logits + row * experts;
    const bool is_softmax = args.score == ROUTER_SOFTMAX;
    T *out = static_cast<T *>(args.logits_grad) + row * experts;
    float shift = args.z_scale, inner = 0.0f;
    double lse = softmax(logits, experts, p);
    shift = shift != 0.0f ? __fmul_rn(shift, static_cast<float>(lse)) : 0.0f;
    for (unsigned e = threadIdx.x; e < experts; e += CUDAI_WARP)
        grads[e] = 0.0f;
    __syncwarp();
    if (is_softmax)
        scores_backward(args, row, p, grads, [](int) { return 1.0f; });
    __syncwarp();
    for (unsigned e = threadIdx.x; e < experts; e += CUDAI_WARP) {
        if (args.balance_scale != 0.0f)
            grads[e] = __fadd_rn(grads[e],
                                 __fmul_rn(args.balance_scale, static_cast<float>(args.totals[e])));
        inner = __fadd_rn(inner, __fmul_rn(p[e], grads[e]));
    }
    inner = cudai_warp_sum(inner);
    for (unsigned e = threadIdx.x; e < experts; e += CUDAI_WARP)
        grads[e] = __fmul_rn(p[e], __fadd_rn(__fadd_rn(grads[e], -inner), shift));
    if (!is_softmax) {
        scores_of(args, logits, experts, scores);
        __syncwarp();
        scores_backward(args, row, scores, grads, [=](int e) {
            return __fmul_rn(scores[e], sigmoid(-logits[e])); // 1 - score without cancellation
        });
    }
    __syncwarp();
    for (unsigned e = threadIdx.x; e < experts; e += CUDAI_WARP)
        out[e] = cudai_narrow<T>(grads[e]);
}

// sums[block, 2 * E + 1] of a block of rows, in the order of rows.
static __global__ void __launch_bounds__(CUDAI_WARP)
    router_sums_kernel(router_sums_args args, cudai_row_blocks blocks, double *sums)
{
    __shared__ float p[ROUTER_EXPERTS_MAX];
    __shared__ double totals[2 * ROUTER_EXPERTS_MAX + 1];
    const unsigned experts = static_cast<unsigned>(args.experts), width = 2 * experts + 1;
    const uint64_t begin = blockIdx.x * blocks.rows_per_block;
    const uint64_t left = args.rows - begin;
    const uint64_t rows = left < blocks.rows_per_block ? left : blocks.rows_per_block;
    for (unsigned i = threadIdx.x; i < width; i += CUDAI_WARP)
        totals[i] = 0.0;
    __syncwarp();
    for (uint64_t row = begin; row < begin + rows; row++) {
        double lse = softmax(args.logits + row * experts, experts, p);
        // The experts of a row differ, so no two lanes add to the same total.
        for (uint64_t k = threadIdx.x; k < args.choices; k += CUDAI_WARP) {
            double *count = totals + args.chosen[row * args.choices + k];
            *count = __dadd_rn(*count, 1.0);
        }
        for (unsigned e = threadIdx.x; e < experts; e += CUDAI_WARP)
            totals[experts + e] = __dadd_rn(totals[experts + e], static_cast<double>(p[e]));
        if (threadIdx.x == 0)
            totals[2 * experts] = __dadd_rn(totals[2 * experts], __dmul_rn(lse, lse));
        __syncwarp();
    }
    for (unsigned i = threadIdx.x; i < width; i += CUDAI_WARP)
        sums[static_cast<uint64_t>(blockIdx.x) * width + i] = totals[i];
}

static __global__ void router_fold_kernel(const double *sums, uint64_t blocks, uint64_t width,
                                          double *totals)
{
    uint64_t i = cudai_thread_idx();
    if (i >= width)
        return;
    double total = totals[i];
    for (uint64_t b = 0; b < blocks; b++)
        total = __dadd_rn(total, sums[b * width + i]);
    totals[i] = total;
}

extern "C" int cudai_launch_router_forward(void *stream, const router_args *args)
{
    return cudai_launch(router_kernel, dim3(static_cast<unsigned>(args->rows)), dim3(CUDAI_WARP), 0,
                        static_cast<cudaStream_t>(stream), *args);
}

extern "C" int cudai_launch_router_backward(void *stream, const router_args *args)
{
    dim3 grid(static_cast<unsigned>(args->rows));
    CUDAI_BY_TYPE(args->type, T, {
        return cudai_launch(router_grad_kernel<T>, grid, dim3(CUDAI_WARP), 0,
                            static_cast<cudaStream_t>(stream), *args);
    });
}

extern "C" int cudai_launch_router_sums(void *stream, const router_sums_args *args,
                                        cudai_row_blocks blocks)
{
    enum { THREADS = 128 };
    uint64_t width = 2 * args->experts + 1;
    double *sums = static_cast<double *>(args->scratch);
    cudaError_t error =
        cudai_launch(router_sums_kernel, dim3(static_cast<unsigned>(blocks.count)),
                     dim3(CUDAI_WARP), 0, static_cast<cudaStream_t>(stream), *args, blocks, sums);
    if (error != cudaSuccess)
        return error;
    dim3 grid(static_cast<unsigned>((width + THREADS - 1) / THREADS));
    return cudai_launch(router_fold_kernel, grid, dim3(THREADS), 0,
                        static_cast<cudaStream_t>(stream), sums, blocks.count, width, args->totals);
}
