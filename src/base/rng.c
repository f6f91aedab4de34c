/* Counter-based random numbers. See rng.h. */
#include "base/rng.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/cpu.h"

enum { PHILOX_ROUNDS = 10, NORMALS_BLOCK = 256 };

static const double two_pi = 6.283185307179586476925;

/* Philox4x32-10 of one counter. */
static inline __attribute__((always_inline)) void draw(uint64_t seed, uint64_t stream,
                                                       uint64_t block, uint32_t words[4])
{
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
#pragma GCC unroll 10
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

void rng_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4])
{
    draw(seed, stream, block, words);
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
    double angle = two_pi * ((double)(b >> 11) * 0x1p-53);
    return (float)(sqrt(-2.0 * log(radius_uniform)) * cos(angle));
}

/* ---- many normal numbers ----
 *
 * The library's log and cos take most of the time of rng_normal. The functions below are the same
 * to some 2^-50 of their value, and the compiler turns them into vector instructions. A product
 * that lies so near to the border between two fp32 numbers that an error of 2^-44 could cross it is
 * computed again by rng_normal, which happens once in some 2^19 times. So all instruction sets give
 * the bits of rng_normal. */

static inline double from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* (high << 32 | low) >> 11, exactly. */
static inline double upper_53(uint32_t low, uint32_t high)
{
    double upper = (double)(int32_t)(high ^ 0x80000000u) + 0x1p31;
    return upper * 0x1p21 + (double)(int32_t)(low >> 11);
}

/* log(x) of a normal x: x = 2^k m with sqrt(1/2) <= m < sqrt(2), and log(m) = 2 atanh(s). */
static inline double log_of(double x)
{
    const uint64_t root_half = 0x3fe6a09e667f3bcdULL, one = 0x3ff0000000000000ULL;
    uint64_t shifted = bits_of(x) + (one - root_half);
    double k = from_bits(shifted >> 52 | 0x4330000000000000ULL) - (0x1p52 + 1023.0);
    double m = from_bits((shifted & 0x000fffffffffffffULL) + root_half);
    double s = (m - 1.0) / (m + 1.0), square = s * s, sum = 1.0 / 23.0;
    sum = sum * square + 1.0 / 21.0; /* atanh(s) = s + s^3/3 + ...; s^2 <= 0.0295 */
    sum = sum * square + 1.0 / 19.0;
    sum = sum * square + 1.0 / 17.0;
    sum = sum * square + 1.0 / 15.0;
    sum = sum * square + 1.0 / 13.0;
    sum = sum * square + 1.0 / 11.0;
    sum = sum * square + 1.0 / 9.0;
    sum = sum * square + 1.0 / 7.0;
    sum = sum * square + 1.0 / 5.0;
    sum = sum * square + 1.0 / 3.0;
    sum = sum * square;
    return k * 0.693147180559945309417 + 2.0 * (s + s * sum);
}

/* cos(angle), where angle is two_pi * turns, rounded: angle = quarters pi/2 + y, |y| <= pi/4. */
static inline double cos_of(double angle, double turns)
{
    const double rounder = 0x1.8p52; /* its sum with a small number has that number, rounded */
    /* pi/2 in two parts. The upper one has 33 bits, so that its product with 0 to 4 is exact. */
    const double upper = 0x1.921fb544p+0, lower = 0x1.0b4611a626331p-34;
    double quarters = (turns * 4.0 + rounder) - rounder;
    double y = (angle - quarters * upper) - quarters * lower, square = y * y;
    double even = 1.0 / 20922789888000.0; /* 1 - y^2/2! + ... + y^16/16! */
    even = even * square - 1.0 / 87178291200.0;
    even = even * square + 1.0 / 479001600.0;
    even = even * square - 1.0 / 3628800.0;
    even = even * square + 1.0 / 40320.0;
    even = even * square - 1.0 / 720.0;
    even = even * square + 1.0 / 24.0;
    even = even * square - 0.5;
    even = even * square + 1.0;
    double odd = 1.0 / 355687428096000.0; /* y - y^3/3! + ... + y^17/17! */
    odd = odd * square - 1.0 / 1307674368000.0;
    odd = odd * square + 1.0 / 6227020800.0;
    odd = odd * square - 1.0 / 39916800.0;
    odd = odd * square + 1.0 / 362880.0;
    odd = odd * square - 1.0 / 5040.0;
    odd = odd * square + 1.0 / 120.0;
    odd = odd * square - 1.0 / 6.0;
    odd = odd * square * y + y;
    double size = quarters == 1.0 || quarters == 3.0 ? odd : even;
    return quarters == 1.0 || quarters == 2.0 ? -size : size;
}

/* Returns rng_normal of idx, if *is_sure. */
static inline __attribute__((always_inline)) float normal_of(uint64_t seed, uint64_t stream,
                                                             uint64_t idx, int32_t *is_sure)
{
    uint32_t words[4];
    draw(seed, stream, idx, words);
    double turns = upper_53(words[2], words[3]) * 0x1p-53;
    double radius = sqrt(-2.0 * log_of((upper_53(words[0], words[1]) + 1.0) * 0x1p-53));
    double cosine = cos_of(two_pi * turns, turns), value = radius * cosine;
    float low = (float)(value * (1.0 - 0x1p-44)), high = (float)(value * (1.0 + 0x1p-44));
    *is_sure = low == high && fabs(cosine) > 0x1p-10 && radius > 0x1p-20;
    return low;
}

/* values[i] = rng_normal of begin + i, where is_sure[i]; count <= NORMALS_BLOCK. The body of the
 * loop is a function of its own: an array that is declared in the loop keeps GCC from vectors. */
static inline __attribute__((always_inline)) void normals_body(uint64_t seed, uint64_t stream,
                                                               uint64_t begin, int count,
                                                               float *values, int32_t *is_sure)
{
#pragma omp simd
    for (int i = 0; i < count; i++)
        values[i] = normal_of(seed, stream, begin + (uint64_t)i, &is_sure[i]);
}

static void normals_plain(uint64_t seed, uint64_t stream, uint64_t begin, int count, float *values,
                          int32_t *is_sure)
{
    normals_body(seed, stream, begin, count, values, is_sure);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void normals_avx2(uint64_t seed, uint64_t stream,
                                                         uint64_t begin, int count, float *values,
                                                         int32_t *is_sure)
{
    normals_body(seed, stream, begin, count, values, is_sure);
}

__attribute__((target("avx512f,avx512dq,avx512vl"))) static void
normals_avx512(uint64_t seed, uint64_t stream, uint64_t begin, int count, float *values,
               int32_t *is_sure)
{
    normals_body(seed, stream, begin, count, values, is_sure);
}
#endif

void rng_normals(uint64_t seed, uint64_t stream, uint64_t begin, uint64_t count, float *values)
{
    int32_t is_sure[NORMALS_BLOCK];
    void (*normals)(uint64_t, uint64_t, uint64_t, int, float *, int32_t *) = normals_plain;
#if defined(__x86_64__)
    enum cpu_isa isa = cpu_isa();
    normals = isa >= CPU_AVX512 ? normals_avx512 : isa >= CPU_AVX2 ? normals_avx2 : normals;
#endif
    for (uint64_t at = 0; at < count; at += NORMALS_BLOCK) {
        int some = count - at < NORMALS_BLOCK ? (int)(count - at) : NORMALS_BLOCK;
        normals(seed, stream, begin + at, some, values + at, is_sure);
        for (int i = 0; i < some; i++)
            if (!is_sure[i])
                values[at + (uint64_t)i] = rng_normal(seed, stream, begin + at + (uint64_t)i);
    }
}
