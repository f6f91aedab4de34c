/* The frequencies of rotary positions, scaled as rope_table_args says, and the factor of their
 * tables. All backends call these functions on the host. They are pure and compute in double.
 *
 * The formulas are those of Hugging Face's modeling_rope_utils.py, which computes in fp32. */
#ifndef SLUICE_KERNELS_ROPE_FREQUENCY_H
#define SLUICE_KERNELS_ROPE_FREQUENCY_H

#include <math.h>

#include "kernels/ops.h"

/* The length of the sequences. */
static inline double rope_length(const rope_table_args *args)
{
    return (double)(args->length ? args->length : args->tokens);
}

/* How much the scaling of Llama 3 leaves of a frequency; the rest is divided by the factor. */
static inline double rope_llama3_share(const rope_table_args *args, double frequency)
{
    double wave = 6.283185307179586476925 / frequency, original = args->original_positions;
    if (wave < original / args->high_freq_factor)
        return 1.0;
    if (wave > original / args->low_freq_factor)
        return 0.0;
    return (original / wave - args->low_freq_factor) /
           (args->high_freq_factor - args->low_freq_factor);
}

/* The pair, as a real number, that turns `turns` times within the original positions. */
static inline double rope_pair_of_turns(const rope_table_args *args, double turns)
{
    double wave = args->original_positions / turns;
    return (double)args->head_dim * log(wave / 6.283185307179586476925) / (2.0 * log(args->theta));
}

/* The same for YaRN (Peng et al. 2023). */
static inline double rope_yarn_share(const rope_table_args *args, uint64_t pair)
{
    double low = rope_pair_of_turns(args, args->beta_fast > 0 ? args->beta_fast : 32.0);
    double high = rope_pair_of_turns(args, args->beta_slow > 0 ? args->beta_slow : 1.0);
    double last = (double)args->head_dim - 1.0;
    if (!args->keeps_fraction) {
        low = floor(low);
        high = ceil(high);
    }
    low = low < 0.0 ? 0.0 : low;
    high = high > last ? last : high;
    if (low == high)
        high += 0.001;
    double ramp = ((double)pair - low) / (high - low);
    return ramp < 0.0 ? 1.0 : ramp > 1.0 ? 0.0 : 1.0 - ramp;
}

/* The frequency of a pair, in radians for each position. */
static inline double rope_frequency(const rope_table_args *args, uint64_t pair)
{
    double dim = (double)args->head_dim, theta = args->theta, length = rope_length(args);
    if (args->scaling == ROPE_DYNAMIC && length > args->original_positions && dim > 2.0)
        theta *= pow(args->factor * length / args->original_positions - (args->factor - 1.0),
                     dim / (dim - 2.0));
    double plain = pow(theta, -2.0 * (double)pair / dim), share = 1.0;
    if (args->scaling == ROPE_LINEAR)
        share = 0.0;
    if (args->scaling == ROPE_LLAMA3)
        share = rope_llama3_share(args, plain);
    if (args->scaling == ROPE_YARN)
        share = rope_yarn_share(args, pair);
    if (args->scaling == ROPE_LONGROPE)
        return plain /
               (length > args->original_positions ? args->long_factors : args->short_factors)[pair];
    if (share == 1.0)
        return plain;
    return (1.0 - share) * (plain / args->factor) + share * plain;
}

static inline double rope_yarn_magnitude(double factor, double scale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * scale * log(factor) + 1.0;
}

/* The factor of all cosines and sines. */
static inline double rope_attention_factor(const rope_table_args *args)
{
    double factor = args->factor;
    if (args->scaling != ROPE_YARN && args->scaling != ROPE_LONGROPE)
        return 1.0;
    if (args->attention_factor > 0)
        return args->attention_factor;
    if (args->scaling == ROPE_LONGROPE)
        return factor <= 1.0 ? 1.0 : sqrt(1.0 + log(factor) / log(args->original_positions));
    if (args->mscale > 0 && args->mscale_all_dim > 0)
        return rope_yarn_magnitude(factor, args->mscale) /
               rope_yarn_magnitude(factor, args->mscale_all_dim);
    return rope_yarn_magnitude(factor, 1.0);
}

#endif
