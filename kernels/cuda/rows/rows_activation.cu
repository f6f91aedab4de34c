// Activations, plain and gated: y = f(x), or y = f(gate) up for rows gate | up. Each function is a
// struct with f, and with f and its slope together. Elements are rounded where the CPU backend
// rounds them.
#include "kernels/cuda/rows/rows_launch.h"
#include "kernels/cuda/rows/rows_map.cuh"

// --- the functions -----------------------------------------------------------------------------

// The factor of f(gate), and the gradient of `up` from the gradient of that factor. In most gates
// the factor is `up` itself.
struct plain_up {
    static __device__ __forceinline__ float factor(float up)
    {
        return up;
    }

    static __device__ __forceinline__ float up_grad(float, float grad)
    {
        return grad;
    }
};

static __device__ __forceinline__ float sigmoid_of_exp(float exp_of_minus_x)
{
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, exp_of_minus_x));
}

// u = sqrt(2/pi) (x + 0.044715 x^3); GELU(x) = x (1 + tanh u) / 2 = x sigmoid(2u).
static constexpr float gelu_twice_root = 1.5957691216057308f; // 2 sqrt(2/pi)
static constexpr float gelu_cubic = 0.044715f;

static __device__ __forceinline__ float gelu_twice_u(float x)
{
    float cube = __fmul_rn(__fmul_rn(x, x), x);
    return __fmul_rn(gelu_twice_root, __fadd_rn(x, __fmul_rn(gelu_cubic, cube)));
}

struct gelu_function : plain_up {
    static __device__ __forceinline__ float value(float x)
    {
        return __fmul_rn(x, sigmoid_of_exp(expf(-gelu_twice_u(x))));
    }

    // The slope is s + x s (1 - s) d(2u)/dx with s = sigmoid(2u), 1 - s = s e^-2u. Beyond |x| = 10
    // it is 0 or 1 to fp32's precision. The clamp keeps e^-2u finite there and passes NaN on.
    static __device__ __forceinline__ void slopes(float x, float *value, float *slope)
    {
        float v = x > 10.0f ? 10.0f : x;
        v = v < -10.0f ? -10.0f : v;
        float e = expf(-gelu_twice_u(v)), s = sigmoid_of_exp(e);
        float square = __fmul_rn(v, v);
        float bend =
            __fmul_rn(gelu_twice_root, __fadd_rn(1.0f, __fmul_rn(3.0f * gelu_cubic, square)));
        *value = __fmul_rn(x, s);
        *slope = __fadd_rn(s, __fmul_rn(__fmul_rn(__fmul_rn(v, s), __fmul_rn(s, e)), bend));
    }
};

struct silu_function : plain_up {
    static __device__ __forceinline__ float value(float x)
    {
        return __fmul_rn(x, sigmoid_of_exp(expf(-x)));
    }

    // silu(x) = x s, silu'(x) = s + x s (1 - s). The clamp at -87 keeps e^-x finite if s is 0.
    static __device__ __forceinline__ void slopes(float x, float *value, float *slope)
    {
        float v = x < -87.0f ? -87.0f : x;
        float e = expf(-v), s = sigmoid_of_exp(e);
        float silu = __fmul_rn(v, s);
        *value = silu;
        *slope = __fadd_rn(s, __fmul_rn(silu, __fmul_rn(s, e)));
    }
};

// v sigmoid(alpha v) with v = min(x, limit), and up limited to [-limit, limit], plus 1.
struct silu_clamped_function {
    float alpha, limit;

    __device__ __forceinline__ float value(float x) const
    {
        float v = x > limit ? limit : x;
        return __fmul_rn(v, sigmoid_of_exp(expf(-__fmul_rn(alpha, v))));
    }

    __device__ __forceinline__ void slopes(float x, float *value, float *slope) const
    {
        float v = x > limit ? limit : x, least = -87.0f / alpha;
        v = v < least ? least : v;
        float twist = __fmul_rn(alpha, v);
        float e = expf(-twist), s = sigmoid_of_exp(e);
        *value = __fmul_rn(v, s);
        *slope = x > limit ? 0.0f : __fadd_rn(s, __fmul_rn(__fmul_rn(twist, s), __fmul_rn(s, e)));
    }

    __device__ __forceinline__ float factor(float up) const
    {
        float v = up > limit ? limit : up;
        return __fadd_rn(v < -limit ? -limit : v, 1.0f);
    }

    __device__ __forceinline__ float up_grad(float up, float grad) const
    {
        return up > limit || up < -limit ? 0.0f : grad;
    }
};

// The exact GELU(x) = x Phi(x), Phi(x) = erfc(-x / sqrt(2)) / 2. The slope is Phi(x) + x e^(-x^2/2)
// / sqrt(2 pi). Beyond |x| = 16, Phi is 0 or 1.
struct gelu_erf_function : plain_up {
    static __device__ __forceinline__ float clamped(float x)
    {
        float v = x > 16.0f ? 16.0f : x;
        return v < -16.0f ? -16.0f : v;
    }

    static __device__ __forceinline__ float below(float v)
    {
        return __fmul_rn(0.5f, erfcf(__fmul_rn(v, -0.70710678118654752f)));
    }

    static __device__ __forceinline__ float value(float x)
    {
        return __fmul_rn(x, below(clamped(x)));
    }

    static __device__ __forceinline__ void slopes(float x, float *value, float *slope)
    {
        float v = clamped(x), phi = below(v);
        float power = expf(__fmul_rn(-0.5f, __fmul_rn(v, v)));
        *value = __fmul_rn(x, phi);
        *slope = __fadd_rn(phi, __fmul_rn(__fmul_rn(v, 0.39894228040143268f), power));
    }
};

struct relu_function {
    static __device__ __forceinline__ float value(float x)
    {
        return x < 0.0f ? 0.0f : x;
    }

    static __device__ __forceinline__ void slopes(float x, float *value, float *slope)
    {
        *value = x < 0.0f ? 0.0f : x;
        *slope = x > 0.0f ? 1.0f : 0.0f;
    }
};

// --- plain -------------------------------------------------------------------------------------

template <typename F> struct value_map {
    static __device__ __forceinline__ float apply(float x)
    {
        return F::value(x);
    }
};

template <typename F> struct grad_map {
    static __device__ __forceinline__ float apply(float x, float dy)
    {
        float value, slope;
        F::slopes(x, &value, &slope);
        return __fmul_rn(dy, slope);
    }
};

// --- gated -------------------------------------------------------------------------------------

// A thread takes V features of one row after another. features % V == 0.
template <typename F, typename T, int V>
static __global__ void __launch_bounds__(point_threads)
    gated_kernel(F function, const T *input, T *output, uint64_t rows, uint64_t features)
{
    const uint64_t at = cudai_thread_idx() * V;
    for (uint64_t row = row_first(); at < features && row < rows; row += row_step()) {
        const T *gate_at = input + row * 2 * features + at;
        cudai_pack<T, V> gate = cudai_load<T, V>(gate_at);
        cudai_pack<T, V> up = cudai_load<T, V>(gate_at + features), y;
#pragma unroll
        for (int k = 0; k < V; k++)
            y.item[k] = cudai_narrow<T>(__fmul_rn(function.value(cudai_widen(gate.item[k])),
                                                  function.factor(cudai_widen(up.item[k]))));
        cudai_store<T, V>(output + row * features + at, y);
    }
}

// input_grad may be input: a thread stores the gradients of gate and up where it read the values.
template <typename F, typename T, int V>
static __global__ void __launch_bounds__(point_threads)
    gated_grad_kernel(F function, const T *input, const T *output_grad, T *input_grad,
                      uint64_t rows, uint64_t features)
{
    const uint64_t at = cudai_thread_idx() * V;
    for (uint64_t row = row_first(); at < features && row < rows; row += row_step()) {
        const uint64_t gate_at = row * 2 * features + at;
        cudai_pack<T, V> gate = cudai_load<T, V>(input + gate_at);
        cudai_pack<T, V> up = cudai_load<T, V>(input + gate_at + features);
        cudai_pack<T, V> dy = cudai_load<T, V>(output_grad + row * features + at);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float value, slope, grad = cudai_widen(dy.item[k]), u = cudai_widen(up.item[k]);
            function.slopes(cudai_widen(gate.item[k]), &value, &slope);
            gate.item[k] = cudai_narrow<T>(__fmul_rn(__fmul_rn(grad, function.factor(u)), slope));
            up.item[k] = cudai_narrow<T>(function.up_grad(u, __fmul_rn(grad, value)));
        }
        cudai_store<T, V>(input_grad + gate_at, gate);
        cudai_store<T, V>(input_grad + gate_at + features, up);
    }
}

template <typename F, typename T, int V>
static cudaError_t launch_gated(F function, cudaStream_t stream, const activation_args &args,
                                bool is_backward)
{
    row_grid over = row_grid_of(args.rows, args.features / V);
    const T *input = static_cast<const T *>(args.input);
    if (is_backward)
        return cudai_launch(gated_grad_kernel<F, T, V>, over.grid, over.block, 0, stream, function,
                            input, static_cast<const T *>(args.output_grad),
                            static_cast<T *>(args.input_grad), args.rows, args.features);
    return cudai_launch(gated_kernel<F, T, V>, over.grid, over.block, 0, stream, function, input,
                        static_cast<T *>(args.output), args.rows, args.features);
}

// --- both --------------------------------------------------------------------------------------

template <typename F, typename T, bool GATED>
static cudaError_t launch(cudaStream_t stream, int sm_count, const activation_args &args,
                          bool is_backward, F function = F())
{
    if constexpr (GATED) {
        constexpr int V = rows_pack_elems<T>;
        bool is_aligned = is_backward ? rows_are_aligned(rows_pack_bytes, args.input,
                                                         args.output_grad, args.input_grad)
                                      : rows_are_aligned(rows_pack_bytes, args.input, args.output);
        if (is_aligned && args.features % V == 0)
            return launch_gated<F, T, V>(function, stream, args, is_backward);
        return launch_gated<F, T, 1>(function, stream, args, is_backward);
    } else {
        uint64_t count = args.rows * args.features;
        if (is_backward)
            return launch_map_pair<grad_map<F>, T>(stream, sm_count, args.input, args.output_grad,
                                                   args.input_grad, count);
        return launch_map<value_map<F>, T, T>(stream, sm_count, args.input, args.output, count);
    }
}

extern "C" int cudai_launch_activation(void *stream, int sm_count, const activation_args *args,
                                       bool is_backward)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    CUDAI_BY_TYPE(args->type, T, {
        switch (args->kind) {
        case ACTIVATION_GELU:
            return launch<gelu_function, T, false>(on, sm_count, *args, is_backward);
        case ACTIVATION_SWIGLU:
            return launch<silu_function, T, true>(on, sm_count, *args, is_backward);
        case ACTIVATION_GELU_ERF:
            return launch<gelu_erf_function, T, false>(on, sm_count, *args, is_backward);
        case ACTIVATION_RELU:
            return launch<relu_function, T, false>(on, sm_count, *args, is_backward);
        case ACTIVATION_GEGLU:
            return launch<gelu_function, T, true>(on, sm_count, *args, is_backward);
        case ACTIVATION_GEGLU_ERF:
            return launch<gelu_erf_function, T, true>(on, sm_count, *args, is_backward);
        case ACTIVATION_SWIGLU_CLAMPED:
            return launch<silu_clamped_function, T, true>(
                on, sm_count, *args, is_backward, silu_clamped_function{args->alpha, args->limit});
        default:
            return cudaErrorInvalidValue;
        }
    });
}
