/* Counter-based random numbers. See rng.h. */
#include "base/rng.h"

#include <assert.h>
#include <math.h>

enum { PHILOX_ROUNDS = 10 };

void rng_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4])
{
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ key0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ key1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t idx)
{
    uint32_t words[4];
    rng_block(seed, stream, idx, words);
    return (uint64_t)words[1] << 32 | words[0];
}

uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t idx, uint64_t bound)
{
    assert(bound > 0);
    return (uint64_t)(((unsigned __int128)rng_u64(seed, stream, idx) * bound) >> 64);
}

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t idx)
{
    return (double)(rng_u64(seed, stream, idx) >> 11) * 0x1p-53;
}

float rng_normal(uint64_t seed, uint64_t stream, uint64_t idx)
{
    uint32_t words[4];
    rng_block(seed, stream, idx, words);
    uint64_t a = (uint64_t)words[1] << 32 | words[0];
    uint64_t b = (uint64_t)words[3] << 32 | words[2];
    double radius_uniform = ((double)(a >> 11) + 1.0) * 0x1p-53; /* (0, 1] */
    double angle = 6.283185307179586476925 * ((double)(b >> 11) * 0x1p-53);
    return (float)(sqrt(-2.0 * log(radius_uniform)) * cos(angle));
}
