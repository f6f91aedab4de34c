/* Random numbers that depend only on (seed, stream, index). There is no hidden state, so any
 * thread, rank or resumed run draws the same value for the same element. Philox-4x32-10 (Salmon et
 * al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Pure. */
#ifndef SLUICE_BASE_RNG_H
#define SLUICE_BASE_RNG_H

#include <stdint.h>

/* The four 32-bit words of block `block` of stream `stream` under `seed`. */
void rng_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4]);

/* 64 random bits for one index. */
uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t idx);

/* Uniform in [0, bound), bound > 0, unbiased to 2^-64. */
uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t idx, uint64_t bound);

/* Uniform in [0, 1), 53 bits. */
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t idx);

/* Standard normal (Box-Muller in double, rounded once). */
float rng_normal(uint64_t seed, uint64_t stream, uint64_t idx);

/* rng_normal of each index in [begin, begin + count), with the same bits, in a fraction of the
 * time. */
void rng_normals(uint64_t seed, uint64_t stream, uint64_t begin, uint64_t count, float *values);

#endif
