/* Which elements a dropout drops: a pure function of the run's seed, the step, the sequence's
 * number in the global batch, the site (the place in the model) and the element's number within its
 * sequence and site. So a recomputation, another cut into parts or micro-batches and another number
 * of ranks drop the same elements, and no mask is kept. One function for all backends, on hosts and
 * on GPUs.
 *
 * The generator is Philox-4x32-10 (Salmon et al., SC 2011) with the seed as its key. Its counter is
 *
 *   word 0    quad, low 32 bits     elements 4 * quad ... 4 * quad + 3 take words 0 ... 3
 *   word 1    1 (1 bit), site (23 bits), quad, high 8 bits
 *   word 2    sequence
 *   word 3    step
 *
 * which is rng_block of base/rng.h with stream = step << 32 | sequence. The bit that is 1 keeps it
 * apart from the other uses of the seed. */
#ifndef SLUICE_KERNELS_DROPOUT_MASK_H
#define SLUICE_KERNELS_DROPOUT_MASK_H

#include <stdint.h>

#ifdef __CUDACC__
#define DROPOUT_ON_GPU __host__ __device__
#else
#define DROPOUT_ON_GPU
#endif

enum { DROPOUT_SITE_BITS = 23, DROPOUT_QUAD_BITS = 40 };

/* The place of a mask: all of the counter but the quad. */
struct dropout_place {
    uint64_t seed;
    uint32_t step, sequence, site;
};
typedef struct dropout_place dropout_place;

/* The words of one quad. quad < 2^40, site < 2^23. */
DROPOUT_ON_GPU static inline void dropout_words(dropout_place place, uint64_t quad,
                                                uint32_t words[4])
{
    uint32_t c0 = (uint32_t)quad;
    uint32_t c1 = UINT32_C(0x80000000) | place.site << 8 | (uint32_t)(quad >> 32);
    uint32_t c2 = place.sequence, c3 = place.step;
    uint32_t key0 = (uint32_t)place.seed, key1 = (uint32_t)(place.seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)c0 * 0xD2511F53u, product1 = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ key0;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ key1;
        c1 = (uint32_t)product1;
        c3 = (uint32_t)product0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* Attention's probabilities: the first quad of the row of a head's query, in sequences of `tokens`.
 * Key k has word k % 4 of quad number k / 4 from there on. */
DROPOUT_ON_GPU static inline uint64_t dropout_row_quad(uint64_t tokens, uint64_t head,
                                                       uint64_t query)
{
    return (head * tokens + query) * ((tokens + 3) / 4);
}

/* An element is dropped if its word is below this. probability is in [0, 1). */
DROPOUT_ON_GPU static inline uint32_t dropout_threshold(float probability)
{
    return (uint32_t)((double)probability * 4294967296.0);
}

/* The factor of the elements that are kept. */
DROPOUT_ON_GPU static inline float dropout_scale(float probability)
{
    return (float)(1.0 / (1.0 - (double)probability));
}

#endif
