// Shared by the kernels of fp32 state (update_adam.cu) and of packed state (update_adam_state.cu):
// the update of one element by Adam, and the values that are stored. The bits are those of
// kernels/cpu/optimizer/adam.c.
#ifndef SLUICE_KERNELS_CUDA_UPDATE_ADAM_H
#define SLUICE_KERNELS_CUDA_UPDATE_ADAM_H

#include "kernels/cuda/device.cuh"

extern "C" {
#include "kernels/cuda/update/update_launch.h"
}

enum { UPDATE_THREADS = 256 };

static __device__ __forceinline__ float one_nan(float value)
{
    uint32_t bits = __float_as_uint(value);
    return (bits & 0x7fffffffu) > 0x7f800000u ? __uint_as_float(ADAMI_QUIET_NAN_BITS) : value;
}

// Returns the working copy of a master weight. bf16 rounds half away from zero; base/dtype.h gives
// the reason.
template <typename P> static __device__ __forceinline__ P copy_of(float master)
{
    return cudai_narrow<P>(master);
}

template <> __device__ __forceinline__ cudai_bf16 copy_of<cudai_bf16>(float master)
{
    uint32_t bits = __float_as_uint(master);
    uint32_t rounded =
        (bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : (bits + 0x8000u) >> 16;
    return cudai_bf16{static_cast<uint16_t>(rounded)};
}

// Returns the new master weight and updates the element's m and v. Branches on scalars are the same
// for all threads.
struct adam_rule {
    enum { STATE_COUNT = 2 };
    adami_scalars s;

    __device__ __forceinline__ float update(float grad, float weight, float *state) const
    {
        grad = __fmul_rn(grad, s.grad_scale);
        if (s.l2 != 0.0f)
            grad = __fmaf_rn(s.l2, weight, grad);
        float m = __fmaf_rn(s.beta1, state[0], __fmul_rn(s.one_minus_beta1, grad));
        float v = __fmaf_rn(s.beta2, state[1], __fmul_rn(__fmul_rn(s.one_minus_beta2, grad), grad));
        float denominator = __fmaf_rn(__fsqrt_rn(v), s.correction2, s.epsilon);
        state[0] = one_nan(m);
        state[1] = one_nan(v);
        return one_nan(
            __fmaf_rn(s.minus_step, __fdiv_rn(m, denominator), __fmul_rn(weight, s.decay)));
    }
};

#endif
