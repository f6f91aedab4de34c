// Adam, AdamW, Lion, Adagrad and working copies. One thread updates one element after another, with
// the arithmetic that the head of kernels/cpu/optimizer/adam.c defines, so the bits are the CPU's.
//
// The equality of bits depends on these points, here and in the build:
//   - Every operation is an _rn intrinsic, which gives IEEE's result and is never contracted.
//   - Subnormals are kept: nvcc's -ftz=false (its default) must stay; --use_fast_math is forbidden.
//   - A stored NaN is set to ADAMI_QUIET_NAN_BITS by integer operations.
//   - device.cuh and copy_of convert 16-bit types.
//
// The passes are bound by memory. A thread takes packs of four elements at a stride of the grid, so
// that a warp's accesses are contiguous (512 bytes of fp32, 256 of 16 bits). It takes two packs at
// once, which is eight loads in flight for Adam. All loads of an element come before its stores,
// and no pointer is __restrict__, since params may lie on grads. The update is in place, so no
// thread reads what another one writes.
#include "kernels/cuda/update/update_adam.cuh"

enum { COPY_DEPTH = 4 };

// --- one element -------------------------------------------------------------------------------

// As adam_rule, the other rules return the new master weight and update the element's state.
struct lion_rule {
    enum { STATE_COUNT = 1 };
    adami_scalars s;

    __device__ __forceinline__ float update(float grad, float weight, float *state) const
    {
        grad = __fmul_rn(grad, s.grad_scale);
        float direction = __fmaf_rn(s.beta1, state[0], __fmul_rn(s.one_minus_beta1, grad));
        float step = direction; // a NaN stays
        if (direction > 0.0f)
            step = s.minus_step;
        else if (direction < 0.0f)
            step = -s.minus_step;
        else if (direction == 0.0f)
            step = 0.0f; // for either zero
        state[0] = one_nan(__fmaf_rn(s.beta2, state[0], __fmul_rn(s.one_minus_beta2, grad)));
        return one_nan(__fmaf_rn(weight, s.decay, step));
    }
};

struct adagrad_rule {
    enum { STATE_COUNT = 1 };
    adami_scalars s;

    __device__ __forceinline__ float update(float grad, float weight, float *state) const
    {
        grad = __fmul_rn(grad, s.grad_scale);
        if (s.l2 != 0.0f)
            grad = __fmaf_rn(s.l2, weight, grad);
        float v = __fmaf_rn(grad, grad, state[0]);
        float denominator = __fadd_rn(__fsqrt_rn(v), s.epsilon);
        state[0] = one_nan(v);
        return one_nan(__fmaf_rn(s.minus_step, __fdiv_rn(grad, denominator), weight));
    }
};

// --- a tile ------------------------------------------------------------------------------------

// N elements of a tile in registers.
template <typename Rule, typename G, typename P, int N> struct update_pack {
    cudai_pack<float, N> weight, state[Rule::STATE_COUNT];
    cudai_pack<G, N> grad;

    __device__ __forceinline__ void load(const adami_work &tile, uint64_t at)
    {
        grad = cudai_load<G, N>(static_cast<const G *>(tile.grads) + at);
        weight = cudai_load<float, N>(tile.master + at);
        for (int i = 0; i < Rule::STATE_COUNT; i++)
            state[i] = cudai_load<float, N>(tile.state[i] + at);
    }

    __device__ __forceinline__ void update_and_store(const Rule &rule, const adami_work &tile,
                                                     uint64_t at)
    {
        cudai_pack<P, N> copy;
        for (int n = 0; n < N; n++) {
            float element[Rule::STATE_COUNT];
            for (int i = 0; i < Rule::STATE_COUNT; i++)
                element[i] = state[i].item[n];
            weight.item[n] = rule.update(cudai_widen(grad.item[n]), weight.item[n], element);
            copy.item[n] = copy_of<P>(weight.item[n]);
            for (int i = 0; i < Rule::STATE_COUNT; i++)
                state[i].item[n] = element[i];
        }
        cudai_store(tile.master + at, weight);
        for (int i = 0; i < Rule::STATE_COUNT; i++)
            cudai_store(tile.state[i] + at, state[i]);
        cudai_store(static_cast<P *>(tile.params) + at, copy);
    }
};

// Any grid of one dimension. N is 1 if a pointer is not aligned to a pack.
template <typename Rule, typename G, typename P, int N>
static __global__ void __launch_bounds__(UPDATE_THREADS)
    update_kernel(const Rule rule, const adami_work tile)
{
    uint64_t pack_count = tile.count / N, stride = cudai_thread_count();
    uint64_t pack = cudai_thread_idx();
    for (; pack + stride < pack_count; pack += 2 * stride) {
        uint64_t at = pack * N, next = (pack + stride) * N;
        update_pack<Rule, G, P, N> here, there;
        here.load(tile, at);
        there.load(tile, next);
        here.update_and_store(rule, tile, at);
        there.update_and_store(rule, tile, next);
    }
    if (pack < pack_count) {
        update_pack<Rule, G, P, N> here;
        here.load(tile, pack * N);
        here.update_and_store(rule, tile, pack * N);
    }
    // The last elements that do not fill a pack, fewer than N.
    uint64_t at = pack_count * N + cudai_thread_idx();
    if (at < tile.count) {
        update_pack<Rule, G, P, 1> last;
        last.load(tile, at);
        last.update_and_store(rule, tile, at);
    }
}

template <typename Rule, typename G, typename P>
static cudaError_t launch_update(const kernel_context *context, void *stream,
                                 const adami_work &tile, const Rule &rule, bool is_wide)
{
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    uint64_t each = is_wide ? 2 * CUDAI_UPDATE_PACK : 2;
    unsigned blocks =
        cudai_blocks(size_div_up(tile.count, each), UPDATE_THREADS, context->sm_count);
    if (is_wide)
        return cudai_launch(update_kernel<Rule, G, P, CUDAI_UPDATE_PACK>, dim3(blocks),
                            dim3(UPDATE_THREADS), 0, queue, rule, tile);
    return cudai_launch(update_kernel<Rule, G, P, 1>, dim3(blocks), dim3(UPDATE_THREADS), 0, queue,
                        rule, tile);
}

template <typename Rule>
static cudaError_t launch_rule(const kernel_context *context, void *stream, const adami_work &tile,
                               const Rule &rule, bool is_wide)
{
    CUDAI_BY_TYPE(
        tile.grad_type, G,
        CUDAI_BY_TYPE(tile.param_type, P,
                      return launch_update<Rule, G, P>(context, stream, tile, rule, is_wide)));
}

extern "C" int cudai_launch_update(const kernel_context *context, void *stream,
                                   enum update_rule rule, const adami_work *work, bool is_wide)
{
    if (rule == UPDATE_ADAM)
        return launch_rule(context, stream, *work, adam_rule{work->scalars}, is_wide);
    if (rule == UPDATE_LION)
        return launch_rule(context, stream, *work, lion_rule{work->scalars}, is_wide);
    return launch_rule(context, stream, *work, adagrad_rule{work->scalars}, is_wide);
}

// --- working copies ----------------------------------------------------------------------------

template <typename P, int N>
static __device__ __forceinline__ void store_copy(P *target, const cudai_pack<float, N> &master)
{
    cudai_pack<P, N> copy;
    for (int n = 0; n < N; n++)
        copy.item[n] = copy_of<P>(master.item[n]);
    cudai_store(target, copy);
}

template <typename P, int N>
static __global__ void __launch_bounds__(UPDATE_THREADS)
    copy_kernel(const float *master, P *params, uint64_t count)
{
    uint64_t pack_count = count / N, stride = cudai_thread_count();
    uint64_t pack = cudai_thread_idx();
    for (; pack + (COPY_DEPTH - 1) * stride < pack_count; pack += COPY_DEPTH * stride) {
        cudai_pack<float, N> weights[COPY_DEPTH];
        for (int i = 0; i < COPY_DEPTH; i++)
            weights[i] = cudai_load<float, N>(master + (pack + i * stride) * N);
        for (int i = 0; i < COPY_DEPTH; i++)
            store_copy<P, N>(params + (pack + i * stride) * N, weights[i]);
    }
    for (; pack < pack_count; pack += stride)
        store_copy<P, N>(params + pack * N, cudai_load<float, N>(master + pack * N));
    uint64_t at = pack_count * N + cudai_thread_idx();
    if (at < count)
        store_copy<P, 1>(params + at, cudai_load<float, 1>(master + at));
}

template <typename P>
static cudaError_t launch_copy(const kernel_context *context, void *stream, const float *master,
                               void *params, uint64_t count, bool is_wide)
{
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    uint64_t each = is_wide ? COPY_DEPTH * CUDAI_UPDATE_PACK : COPY_DEPTH;
    unsigned blocks = cudai_blocks(size_div_up(count, each), UPDATE_THREADS, context->sm_count);
    if (is_wide)
        return cudai_launch(copy_kernel<P, CUDAI_UPDATE_PACK>, dim3(blocks), dim3(UPDATE_THREADS),
                            0, queue, master, static_cast<P *>(params), count);
    return cudai_launch(copy_kernel<P, 1>, dim3(blocks), dim3(UPDATE_THREADS), 0, queue, master,
                        static_cast<P *>(params), count);
}

extern "C" int cudai_launch_working_copy(const kernel_context *context, void *stream,
                                         const float *master, void *params, enum dtype param_type,
                                         uint64_t count, bool is_wide)
{
    CUDAI_BY_TYPE(param_type, P,
                  return launch_copy<P>(context, stream, master, params, count, is_wide));
}
