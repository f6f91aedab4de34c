// Pointwise ops: addition, conversion, GELU, SwiGLU, rotary positions, scaled rows.
//
// Threads take packs of 16 bytes if addresses and shapes allow, otherwise single elements. Both
// compute each element by the same _rn arithmetic, rounded where the CPU backend rounds. A pack is
// loaded completely before any of it is stored, and no thread reads what another one writes. So the
// ops can work in place wherever kernels/ops.h allows it.
#include "kernels/cuda/rows_launch.h"
#include "kernels/cuda/rows_pack.cuh"
#include "kernels/rope_frequency.h"

static constexpr unsigned point_threads = 256;
static constexpr uint64_t grid_y_max = 65535;

// --- the functions -----------------------------------------------------------------------------

// u = sqrt(2/pi) (x + 0.044715 x^3); GELU(x) = x (1 + tanh u) / 2 = x sigmoid(2u).
static constexpr float gelu_twice_root = 1.5957691216057308f; // 2 sqrt(2/pi)
static constexpr float gelu_cubic = 0.044715f;

static __device__ __forceinline__ float gelu_twice_u(float x)
{
    float cube = __fmul_rn(__fmul_rn(x, x), x);
    return __fmul_rn(gelu_twice_root, __fadd_rn(x, __fmul_rn(gelu_cubic, cube)));
}

static __device__ __forceinline__ float sigmoid_of_exp(float exp_of_minus_x)
{
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, exp_of_minus_x));
}

struct gelu_function {
    static __device__ __forceinline__ float apply(float x)
    {
        return __fmul_rn(x, sigmoid_of_exp(expf(-gelu_twice_u(x))));
    }
};

struct same_function {
    static __device__ __forceinline__ float apply(float x)
    {
        return x;
    }
};

struct add_function {
    static __device__ __forceinline__ float apply(float a, float b)
    {
        return __fadd_rn(a, b);
    }
};

// dy (s + x s (1 - s) d(2u)/dx) with s = sigmoid(2u), 1 - s = s e^-2u. Beyond |x| = 10 the factor
// is 0 or 1 to fp32's precision. The clamp keeps e^-2u finite there and passes NaN on.
struct gelu_grad_function {
    static __device__ __forceinline__ float apply(float x, float dy)
    {
        float v = x > 10.0f ? 10.0f : x;
        v = v < -10.0f ? -10.0f : v;
        float e = expf(-gelu_twice_u(v)), s = sigmoid_of_exp(e);
        float square = __fmul_rn(v, v);
        float slope =
            __fmul_rn(gelu_twice_root, __fadd_rn(1.0f, __fmul_rn(3.0f * gelu_cubic, square)));
        float bend = __fmul_rn(__fmul_rn(__fmul_rn(v, s), __fmul_rn(s, e)), slope);
        return __fmul_rn(dy, __fadd_rn(s, bend));
    }
};

static __device__ __forceinline__ float swiglu_of(float gate, float up)
{
    return __fmul_rn(__fmul_rn(gate, sigmoid_of_exp(expf(-gate))), up);
}

// silu(g) = g s, silu'(g) = s + g s (1 - s). The clamp at -87 keeps e^-g finite if s is 0.
static __device__ __forceinline__ void swiglu_grad_of(float gate, float up, float dy, float *dgate,
                                                      float *dup)
{
    float g = gate < -87.0f ? -87.0f : gate;
    float e = expf(-g), s = sigmoid_of_exp(e);
    float silu = __fmul_rn(g, s);
    float slope = __fadd_rn(s, __fmul_rn(silu, __fmul_rn(s, e)));
    *dgate = __fmul_rn(__fmul_rn(dy, up), slope);
    *dup = __fmul_rn(dy, silu);
}

// --- maps over a whole array -------------------------------------------------------------------

// target[i] = F(source[i]) for i < count, V elements at a time, and single elements for the rest.
template <typename S, typename T, int V, typename F>
static __global__ void __launch_bounds__(point_threads)
    map_kernel(const S *source, T *target, uint64_t count)
{
    const uint64_t packs = count / V, step = cudai_thread_count();
    for (uint64_t i = cudai_thread_idx(); i < packs; i += step) {
        cudai_pack<S, V> x = cudai_load<S, V>(source + i * V);
        cudai_pack<T, V> y;
#pragma unroll
        for (int k = 0; k < V; k++)
            y.item[k] = cudai_narrow<T>(F::apply(cudai_widen(x.item[k])));
        cudai_store<T, V>(target + i * V, y);
    }
    for (uint64_t i = packs * V + cudai_thread_idx(); i < count; i += step)
        target[i] = cudai_narrow<T>(F::apply(cudai_widen(source[i])));
}

// out[i] = F(a[i], b[i]); out may be a or b.
template <typename T, int V, typename F>
static __global__ void __launch_bounds__(point_threads)
    map_pair_kernel(const T *a, const T *b, T *out, uint64_t count)
{
    const uint64_t packs = count / V, step = cudai_thread_count();
    for (uint64_t i = cudai_thread_idx(); i < packs; i += step) {
        cudai_pack<T, V> x = cudai_load<T, V>(a + i * V), y = cudai_load<T, V>(b + i * V), z;
#pragma unroll
        for (int k = 0; k < V; k++)
            z.item[k] = cudai_narrow<T>(F::apply(cudai_widen(x.item[k]), cudai_widen(y.item[k])));
        cudai_store<T, V>(out + i * V, z);
    }
    for (uint64_t i = packs * V + cudai_thread_idx(); i < count; i += step)
        out[i] = cudai_narrow<T>(F::apply(cudai_widen(a[i]), cudai_widen(b[i])));
}

// Launch the two kernels with V elements per access if the addresses allow, otherwise with single
// ones.
template <typename F, typename S, typename T>
static cudaError_t launch_map(cudaStream_t stream, int sm_count, const void *source, void *target,
                              uint64_t count)
{
    constexpr int V = rows_pack_bytes / (sizeof(S) > sizeof(T) ? sizeof(S) : sizeof(T));
    const S *from = static_cast<const S *>(source);
    T *to = static_cast<T *>(target);
    if (rows_are_aligned(V * sizeof(S), source) && rows_are_aligned(V * sizeof(T), target)) {
        dim3 grid(cudai_blocks((count + V - 1) / V, point_threads, sm_count));
        return cudai_launch(map_kernel<S, T, V, F>, grid, dim3(point_threads), 0, stream, from, to,
                            count);
    }
    dim3 grid(cudai_blocks(count, point_threads, sm_count));
    return cudai_launch(map_kernel<S, T, 1, F>, grid, dim3(point_threads), 0, stream, from, to,
                        count);
}

template <typename F, typename T>
static cudaError_t launch_map_pair(cudaStream_t stream, int sm_count, const void *a, const void *b,
                                   void *out, uint64_t count)
{
    constexpr int V = rows_pack_elems<T>;
    const T *left = static_cast<const T *>(a), *right = static_cast<const T *>(b);
    T *to = static_cast<T *>(out);
    if (rows_are_aligned(rows_pack_bytes, a, b, out)) {
        dim3 grid(cudai_blocks((count + V - 1) / V, point_threads, sm_count));
        return cudai_launch(map_pair_kernel<T, V, F>, grid, dim3(point_threads), 0, stream, left,
                            right, to, count);
    }
    dim3 grid(cudai_blocks(count, point_threads, sm_count));
    return cudai_launch(map_pair_kernel<T, 1, F>, grid, dim3(point_threads), 0, stream, left, right,
                        to, count);
}

extern "C" int cudai_launch_add(void *stream, int sm_count, enum dtype type, uint64_t count,
                                const void *a, const void *b, void *out)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    CUDAI_BY_TYPE(type, T, return launch_map_pair<add_function, T>(on, sm_count, a, b, out, count));
}

template <typename S>
static cudaError_t launch_convert_from(cudaStream_t stream, int sm_count, const void *source,
                                       void *target, enum dtype target_type, uint64_t count)
{
    CUDAI_BY_TYPE(target_type, T,
                  return launch_map<same_function, S, T>(stream, sm_count, source, target, count));
}

extern "C" int cudai_launch_convert(void *stream, int sm_count, const void *source,
                                    enum dtype source_type, void *target, enum dtype target_type,
                                    uint64_t count)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    CUDAI_BY_TYPE(source_type, S,
                  return launch_convert_from<S>(on, sm_count, source, target, target_type, count));
}

// --- maps over rows ----------------------------------------------------------------------------

// The grid for `rows` of `width` items: x over items, y over rows. It is no wider in x than a row
// needs.
struct row_grid {
    dim3 grid, block;
};

static row_grid row_grid_of(uint64_t rows, uint64_t width)
{
    unsigned x = 1;
    while (x < point_threads && x < width)
        x *= 2;
    unsigned y = point_threads / x;
    uint64_t tiles = (width + x - 1) / x, groups = (rows + y - 1) / y;
    row_grid of = {dim3(static_cast<unsigned>(tiles),
                        static_cast<unsigned>(groups < grid_y_max ? groups : grid_y_max)),
                   dim3(x, y)};
    return of;
}

// The first row of this thread, and the distance to its next row.
static __device__ __forceinline__ uint64_t row_first()
{
    return static_cast<uint64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
}

static __device__ __forceinline__ uint64_t row_step()
{
    return static_cast<uint64_t>(gridDim.y) * blockDim.y;
}

// Input rows are gate | up. A thread takes V features of one row after another. features % V == 0.
template <typename T, int V>
static __global__ void __launch_bounds__(point_threads)
    swiglu_kernel(const T *input, T *output, uint64_t rows, uint64_t features)
{
    const uint64_t at = cudai_thread_idx() * V;
    for (uint64_t row = row_first(); at < features && row < rows; row += row_step()) {
        const T *gate_at = input + row * 2 * features + at;
        cudai_pack<T, V> gate = cudai_load<T, V>(gate_at);
        cudai_pack<T, V> up = cudai_load<T, V>(gate_at + features), y;
#pragma unroll
        for (int k = 0; k < V; k++)
            y.item[k] =
                cudai_narrow<T>(swiglu_of(cudai_widen(gate.item[k]), cudai_widen(up.item[k])));
        cudai_store<T, V>(output + row * features + at, y);
    }
}

// input_grad may be input: a thread stores the gradients of gate and up where it read the values.
template <typename T, int V>
static __global__ void __launch_bounds__(point_threads)
    swiglu_grad_kernel(const T *input, const T *output_grad, T *input_grad, uint64_t rows,
                       uint64_t features)
{
    const uint64_t at = cudai_thread_idx() * V;
    for (uint64_t row = row_first(); at < features && row < rows; row += row_step()) {
        const uint64_t gate_at = row * 2 * features + at;
        cudai_pack<T, V> gate = cudai_load<T, V>(input + gate_at);
        cudai_pack<T, V> up = cudai_load<T, V>(input + gate_at + features);
        cudai_pack<T, V> dy = cudai_load<T, V>(output_grad + row * features + at);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float dgate, dup;
            swiglu_grad_of(cudai_widen(gate.item[k]), cudai_widen(up.item[k]),
                           cudai_widen(dy.item[k]), &dgate, &dup);
            gate.item[k] = cudai_narrow<T>(dgate);
            up.item[k] = cudai_narrow<T>(dup);
        }
        cudai_store<T, V>(input_grad + gate_at, gate);
        cudai_store<T, V>(input_grad + gate_at + features, up);
    }
}

template <typename T, int V>
static cudaError_t launch_swiglu(cudaStream_t stream, const activation_args &args)
{
    row_grid over = row_grid_of(args.rows, args.features / V);
    return cudai_launch(swiglu_kernel<T, V>, over.grid, over.block, 0, stream,
                        static_cast<const T *>(args.input), static_cast<T *>(args.output),
                        args.rows, args.features);
}

template <typename T, int V>
static cudaError_t launch_swiglu_grad(cudaStream_t stream, const activation_args &args)
{
    row_grid over = row_grid_of(args.rows, args.features / V);
    return cudai_launch(swiglu_grad_kernel<T, V>, over.grid, over.block, 0, stream,
                        static_cast<const T *>(args.input),
                        static_cast<const T *>(args.output_grad), static_cast<T *>(args.input_grad),
                        args.rows, args.features);
}

extern "C" int cudai_launch_activation_forward(void *stream, int sm_count,
                                               const activation_args *args)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    bool is_aligned = rows_are_aligned(rows_pack_bytes, args->input, args->output);
    CUDAI_BY_TYPE(args->type, T, {
        if (args->kind == ACTIVATION_GELU)
            return launch_map<gelu_function, T, T>(on, sm_count, args->input, args->output,
                                                   args->rows * args->features);
        if (is_aligned && args->features % rows_pack_elems<T> == 0)
            return launch_swiglu<T, rows_pack_elems<T>>(on, *args);
        return launch_swiglu<T, 1>(on, *args);
    });
}

extern "C" int cudai_launch_activation_backward(void *stream, int sm_count,
                                                const activation_args *args)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    bool is_aligned =
        rows_are_aligned(rows_pack_bytes, args->input, args->output_grad, args->input_grad);
    CUDAI_BY_TYPE(args->type, T, {
        if (args->kind == ACTIVATION_GELU)
            return launch_map_pair<gelu_grad_function, T>(on, sm_count, args->input,
                                                          args->output_grad, args->input_grad,
                                                          args->rows * args->features);
        if (is_aligned && args->features % rows_pack_elems<T> == 0)
            return launch_swiglu_grad<T, rows_pack_elems<T>>(on, *args);
        return launch_swiglu_grad<T, 1>(on, *args);
    });
}

// --- scaled rows -------------------------------------------------------------------------------

// A thread takes V columns of one row after another.
template <typename T, int V, bool ADDS>
static __global__ void __launch_bounds__(point_threads) scale_rows_kernel(scale_rows_args args)
{
    const uint64_t column = cudai_thread_idx() * V;
    if (column >= args.columns)
        return;
    for (uint64_t row = row_first(); row < args.rows; row += row_step()) {
        const T *source = static_cast<const T *>(args.source) + row * args.source_stride + column;
        T *target = static_cast<T *>(args.target) + row * args.target_stride + column;
        cudai_pack<T, V> x = cudai_load<T, V>(source), y;
        if constexpr (ADDS)
            y = cudai_load<T, V>(target);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float scaled = __fmul_rn(args.scale, cudai_widen(x.item[k]));
            if constexpr (ADDS)
                scaled = __fadd_rn(cudai_widen(y.item[k]), scaled);
            y.item[k] = cudai_narrow<T>(scaled);
        }
        cudai_store<T, V>(target, y);
    }
}

template <typename T, int V>
static cudaError_t launch_scale_rows(cudaStream_t stream, const scale_rows_args &args)
{
    row_grid over = row_grid_of(args.rows, args.columns / V);
    if (args.accumulates)
        return cudai_launch(scale_rows_kernel<T, V, true>, over.grid, over.block, 0, stream, args);
    return cudai_launch(scale_rows_kernel<T, V, false>, over.grid, over.block, 0, stream, args);
}

extern "C" int cudai_launch_scale_rows(void *stream, const scale_rows_args *args)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    CUDAI_BY_TYPE(args->type, T, {
        constexpr int V = rows_pack_elems<T>;
        if (rows_are_aligned(rows_pack_bytes, args->source, args->target) &&
            args->columns % V == 0 && args->source_stride % V == 0 && args->target_stride % V == 0)
            return launch_scale_rows<T, V>(on, *args);
        return launch_scale_rows<T, 1>(on, *args);
    });
}

// --- rotary positions --------------------------------------------------------------------------

// A thread rotates V pairs of one head of one row after another. pairs % V == 0, pairs = D/2. The
// table's rows are [pairs, 2].
template <typename T, int V>
static __global__ void __launch_bounds__(point_threads) rope_kernel(rope_args args)
{
    const uint64_t pairs = args.head_dim / 2, packs_of_head = pairs / V;
    const uint64_t item = cudai_thread_idx(), rows = args.batch * args.tokens;
    if (item >= args.heads * packs_of_head)
        return;
    const uint64_t head = item / packs_of_head, first = item % packs_of_head * V;
    for (uint64_t row = row_first(); row < rows; row += row_step()) {
        T *low_at = static_cast<T *>(args.data) + row * args.stride + head * args.head_dim + first;
        const float *turn_at = args.table + ((row % args.tokens) * pairs + first) * 2;
        cudai_pack<T, V> low = cudai_load<T, V>(low_at), high = cudai_load<T, V>(low_at + pairs);
        constexpr int FLOATS = V > 1 ? 4 : 1; // table entries per access; it is aligned if V > 1
        float turn[2 * V];
#pragma unroll
        for (int k = 0; k < 2 * V; k += FLOATS) {
            cudai_pack<float, FLOATS> part = cudai_load<float, FLOATS>(turn_at + k);
#pragma unroll
            for (int j = 0; j < FLOATS; j++)
                turn[k + j] = part.item[j];
        }
#pragma unroll
        for (int k = 0; k < V; k++) {
            float cosine = turn[2 * k], sine = args.inverse ? -turn[2 * k + 1] : turn[2 * k + 1];
            float x = cudai_widen(low.item[k]), y = cudai_widen(high.item[k]);
            low.item[k] = cudai_narrow<T>(__fsub_rn(__fmul_rn(x, cosine), __fmul_rn(y, sine)));
            high.item[k] = cudai_narrow<T>(__fadd_rn(__fmul_rn(x, sine), __fmul_rn(y, cosine)));
        }
        cudai_store<T, V>(low_at, low);
        cudai_store<T, V>(low_at + pairs, high);
    }
}

template <typename T, int V>
static cudaError_t launch_rope(cudaStream_t stream, const rope_args &args)
{
    row_grid over = row_grid_of(args.batch * args.tokens, args.heads * (args.head_dim / 2 / V));
    return cudai_launch(rope_kernel<T, V>, over.grid, over.block, 0, stream, args);
}

extern "C" int cudai_launch_rope(void *stream, const rope_args *args)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    uint64_t pairs = args->head_dim / 2;
    CUDAI_BY_TYPE(args->type, T, {
        constexpr int V = rows_pack_elems<T>;
        if (rows_are_aligned(rows_pack_bytes, args->data, args->table) && pairs % V == 0 &&
            args->stride % V == 0)
            return launch_rope<T, V>(on, *args);
        return launch_rope<T, 1>(on, *args);
    });
}

// The same formula as in the CPU backend, in double.
static __global__ void __launch_bounds__(point_threads) rope_table_kernel(rope_table_args args)
{
    float *table = args.table;
    const uint64_t pairs = args.head_dim / 2, count = args.tokens * pairs;
    for (uint64_t at = cudai_thread_idx(); at < count; at += cudai_thread_count()) {
        double exponent = -2.0 * static_cast<double>(at % pairs) / static_cast<double>(2 * pairs);
        double frequency = rope_scaled_frequency(&args, pow(args.theta, exponent));
        double angle = __dmul_rn(static_cast<double>(at / pairs), frequency);
        table[2 * at] = static_cast<float>(cos(angle));
        table[2 * at + 1] = static_cast<float>(sin(angle));
    }
}

extern "C" int cudai_launch_rope_table(void *stream, int sm_count, const rope_table_args *args)
{
    dim3 grid(cudai_blocks(args->tokens * (args->head_dim / 2), point_threads, sm_count));
    return cudai_launch(rope_table_kernel, grid, dim3(point_threads), 0,
                        static_cast<cudaStream_t>(stream), *args);
}
