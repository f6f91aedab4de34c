/* Adam, AdamW, Lion and Adagrad on the CPU: the choice of the instruction set, the threads, and the
 * definitions.
 *
 * Rules of the definitions. Each line is one correctly rounded fp32 operation, or two if it is
 * written as a product of products. fma(a, b, c) rounds a*b + c once; nothing else is contracted.
 * Division and square root follow IEEE. Rounding is to nearest even, and subnormals are kept. All
 * variants (here: reference, AVX2, AVX-512 and NEON) give these bits for any thread count,
 * alignment and tile size.
 *
 * Adam
 *   once a call   a1 = 1 - beta1              a2 = 1 - beta2
 *                 step = learning_rate / bias_correction1
 *                 c2   = 1 / bias_correction2_sqrt
 *                 decay = decoupled ? fma(-learning_rate, weight_decay, 1) : 1
 *   an element    g = widen(grads[i]) * grad_scale
 *                 g = fma(weight_decay, master, g)    only if L2: not decoupled, weight_decay != 0
 *                 m = fma(beta1, m, a1 * g)
 *                 v = fma(beta2, v, (a2 * g) * g)
 *                 d = fma(sqrt(v), c2, epsilon)
 *                 master = fma(-step, m / d, master * decay)
 *                 params[i] = working copy of master
 *
 * In exact arithmetic this is PyTorch's AdamW (Loshchilov and Hutter, "Decoupled weight decay
 * regularization", 2019) or Adam with L2 (Kingma and Ba, 2015). PyTorch divides sqrt(v) by
 * sqrt(bias_correction2). Multiplication by the rounded reciprocal differs by one rounding and
 * saves one of two divisions, which limit the loop if memory does not. 1 - beta is exact in fp32
 * for beta >= 0.5. The moments decay by the fp32 betas, so bias corrections should be computed from
 * these.
 *
 * Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023, algorithm 2)
 *   once a call   a1 = 1 - beta1              a2 = 1 - beta2
 *                 decay = fma(-learning_rate, weight_decay, 1)
 *   an element    g = widen(grads[i]) * grad_scale
 *                 c = fma(beta1, m, a1 * g)
 *                 m = fma(beta2, m, a2 * g)
 *                 step = -learning_rate if c > 0, learning_rate if c < 0, +0 if c is 0, else NaN
 *                 master = fma(master, decay, step)
 *                 params[i] = working copy of master
 *
 * Adagrad (Duchi, Hazan and Singer, "Adaptive subgradient methods", 2011)
 *   an element    g = widen(grads[i]) * grad_scale
 *                 g = fma(weight_decay, master, g)    only if weight_decay != 0
 *                 v = fma(g, g, v)
 *                 d = sqrt(v) + epsilon
 *                 master = fma(-learning_rate, g / d, master)
 *                 params[i] = working copy of master
 *
 * Infinities and NaN propagate as in IEEE. A stored result that is NaN always has the bits
 * 0x7fc00000, because hardware differs in the sign and payload that it propagates.
 *
 * Working copy: fp32 unchanged; bf16 (bits + 0x8000) >> 16; fp16 nearest even (base/dtype.h).
 *
 * Gradient close: each element is rounded to nearest even into the gradient dtype. The squares of
 * the rounded values are summed in fp64 for each block of 4096 elements. There are 16 lanes: lane j
 * sums the elements j, j + 16, ... Then lane j += lane j + 8, and in the same way for + 4, + 2, +
 * 1. Each square is exact in fp64, so only the order of the additions matters. A sum that is NaN
 * has the bits 0x7ff8000000000000.
 *
 * Norm: tree(n) = tree(first p) + tree(other n - p) with p the largest power of two below n. This
 * is the same as adding neighbours level by level, where an odd last one moves up unchanged.
 *
 * Threads: the caller's thread, and OpenMP's workers during a call. Nothing is allocated here. All
 * loads of an element come before its stores. A pass writes the streams that it also reads with
 * ordinary stores (non-temporal stores in place were slower, 32 against 52 GB/s). It writes the
 * streams that it does not read (the working copy or the closed gradient) with non-temporal stores
 * (adam_body.h). */
#include <assert.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>

#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/optimizer/adam_internal.h"

enum {
    /* Subtrees of the norm that are summed separately. */
    NORM_SUBTREES_MAX = 64,
    NORM_SUBTREE_LEAVES_MIN = 4096,
};

void cpui_adam_select(kernel_context *context)
{
    context->adam = &adami_reference;
#ifdef __x86_64__
    if (context->isa >= CPU_AVX512)
        context->adam = &adami_avx512;
    else if (context->isa >= CPU_AVX2)
        context->adam = &adami_avx2;
#endif
#ifdef __aarch64__
    if (context->isa >= CPU_NEON)
        context->adam = &adami_neon;
#endif
}

const char *cpui_adam_name(const kernel_context *context)
{
    return context->adam->name;
}

/* The contiguous share of the blocks that the calling thread gets in a parallel region. */
static void thread_share(uint64_t block_count, uint64_t *begin, uint64_t *end)
{
    uint64_t team = (uint64_t)omp_get_num_threads(), self = (uint64_t)omp_get_thread_num();
    uint64_t share = block_count / team, extra = block_count % team;
    *begin = self * share + size_min(self, extra);
    *end = *begin + share + (self < extra);
}

void adami_over_ranges(const kernel_context *context, uint64_t count, adami_loop *loop,
                       const adami_work *work)
{
    uint64_t block_count = size_div_up(count, ADAMI_BLOCK_ELEMS);
    int thread_count = cpui_threads_for(context, block_count);
    if (thread_count == 1) {
        loop(work, 0, count);
        adami_stream_fence();
        return;
    }
#pragma omp parallel num_threads(thread_count)
    {
        uint64_t begin, end;
        thread_share(block_count, &begin, &end);
        loop(work, size_min(begin * ADAMI_BLOCK_ELEMS, count),
             size_min(end * ADAMI_BLOCK_ELEMS, count));
        adami_stream_fence();
    }
}

int cpui_update(kernel_context *context, void *stream, const update_args *args)
{
    if (tile_has_formats(args->streams))
        return adami_update_packed(context, args);
    adami_work work = adami_work_of(args);
    adami_over_ranges(context, args->count, context->adam->update[args->rule], &work);
    return 0;
}

int cpui_working_copy(kernel_context *context, void *stream, const float *master, void *params,
                      enum dtype param_type, uint64_t count)
{
    adami_work work = {.count = count,
                       .master = (float *)master, /* read only here; the struct serves all loops */
                       .params = params,
                       .param_type = param_type};
    adami_over_ranges(context, count, context->adam->copy, &work);
    return 0;
}

static double one_nan(double value)
{
    static const uint64_t quiet_bits = 0x7ff8000000000000u;
    if (value != value)
        memcpy(&value, &quiet_bits, sizeof value);
    return value;
}

static void close_blocks(const struct adam_variant *variant, const grad_close_args *args,
                         uint64_t begin, uint64_t end)
{
    for (uint64_t block = begin; block < end; block++) {
        double lanes[ADAMI_SUM_LANES];
        variant->close(args, block, lanes);
        for (int width = ADAMI_SUM_LANES / 2; width > 0; width /= 2)
            for (int lane = 0; lane < width; lane++)
                lanes[lane] += lanes[lane + width];
        args->block_sums[block] = one_nan(lanes[0]);
    }
    adami_stream_fence();
}

int cpui_grad_close(kernel_context *context, void *stream, const grad_close_args *args)
{
    assert(args->count % ADAMI_BLOCK_ELEMS == 0);
    uint64_t block_count = args->count / ADAMI_BLOCK_ELEMS;
    int thread_count = cpui_threads_for(context, block_count);
    if (thread_count == 1) {
        close_blocks(context->adam, args, 0, block_count);
        return 0;
    }
#pragma omp parallel num_threads(thread_count)
    {
        uint64_t begin, end;
        thread_share(block_count, &begin, &end);
        close_blocks(context->adam, args, begin, end);
    }
    return 0;
}

/* tree(count) of the comment at the top, in one pass. waiting[k] is the sum of a full subtree of
 * 2^k leaves that waits for its right neighbour; bit k of the leaf number says if there is one. */
static double tree_sum(const double *sums, uint64_t count)
{
    double waiting[64];
    for (uint64_t i = 0; i < count; i++) {
        double sum = sums[i];
        int level = 0;
        for (; i >> level & 1; level++)
            sum = waiting[level] + sum;
        waiting[level] = sum;
    }
    double total = 0;
    bool is_empty = true;
    for (int level = 0; level < 64 && count >> level != 0; level++) {
        if (!(count >> level & 1))
            continue;
        total = is_empty ? waiting[level] : waiting[level] + total;
        is_empty = false;
    }
    return total;
}

int cpui_norm_reduce(kernel_context *context, void *stream, const double *sums, uint64_t count,
                     double *total)
{
    /* Subtrees with a power of two of leaves are nodes of the tree, so they can be summed
     * separately. */
    uint64_t leaves = NORM_SUBTREE_LEAVES_MIN;
    while (size_div_up(count, leaves) > NORM_SUBTREES_MAX)
        leaves *= 2;
    double partial[NORM_SUBTREES_MAX];
    int64_t subtree_count = (int64_t)size_div_up(count, leaves);
    int thread_count = cpui_threads_for(context, (uint64_t)subtree_count);
#pragma omp parallel for schedule(static) num_threads(thread_count) if (thread_count > 1)
    for (int64_t i = 0; i < subtree_count; i++) {
        uint64_t begin = (uint64_t)i * leaves;
        partial[i] = tree_sum(sums + begin, size_min(leaves, count - begin));
    }
    *total = one_nan(tree_sum(partial, (uint64_t)subtree_count));
    return 0;
}
