/* XXH3-64 with AVX2: the library's own code, compiled here for this instruction set, since
 * distributions build the library for SSE2. Any thread. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "swap/checksum_internal.h"

#include "swap/checksum_body.h"

uint64_t swapi_checksum_avx2(const void *data, const struct swapi_stream *streams,
                             uint32_t stream_count)
{
    return checksum_streams(data, streams, stream_count);
}

uint64_t swapi_checksum_zeros_avx2(const void *data, uint64_t stream_bytes, uint64_t others_bytes,
                                   const void *zeros, uint64_t zero_bytes)
{
    return checksum_stream_and_zeros(data, stream_bytes, others_bytes, zeros, zero_bytes);
}
