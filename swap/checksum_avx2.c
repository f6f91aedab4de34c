/* XXH3-64 with AVX2: the library's own code, compiled here for this instruction set, since distributions
 * build the library for SSE2. Any thread. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "swap/checksum_internal.h"

uint64_t swapi_xxh3_avx2(const void *data, uint64_t size_bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, size_bytes, seed);
}
