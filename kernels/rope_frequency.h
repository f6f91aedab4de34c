/* The frequency of a pair of rotary positions, scaled as rope_table_args says. This one function
 * serves all backends, on hosts and on GPUs. It is pure and computes in double. */
#ifndef SLUICE_KERNELS_ROPE_FREQUENCY_H
#define SLUICE_KERNELS_ROPE_FREQUENCY_H

#include "kernels/ops.h"

#ifdef __CUDACC__
#define ROPE_FREQUENCY_ON static __host__ __device__ inline
#else
#define ROPE_FREQUENCY_ON static inline
#endif

/* The scaled frequency; `plain` is the unscaled one, theta^(-2i/D). */
ROPE_FREQUENCY_ON double rope_scaled_frequency(const rope_table_args *args, double plain)
{
    const double two_pi = 6.283185307179586476925;
    if (args->scaling == ROPE_PLAIN)
        return plain;
    double stretched = plain / args->factor;
    if (args->scaling == ROPE_LINEAR)
        return stretched;
    double wave = two_pi / plain, original = args->original_positions;
    if (wave < original / args->high_freq_factor)
        return plain;
    if (wave > original / args->low_freq_factor)
        return stretched;
    double share = (original / wave - args->low_freq_factor) /
                   (args->high_freq_factor - args->low_freq_factor);
    return (1 - share) * stretched + share * plain;
}

#endif
