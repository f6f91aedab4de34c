/* XXH3-64 compiled for more than the base instruction set; equal to the library's on every
 * input. */
#ifndef SLUICE_SWAP_CHECKSUM_INTERNAL_H
#define SLUICE_SWAP_CHECKSUM_INTERNAL_H

#include <stdint.h>

/* One of several ranges that are summed as if they were one. */
struct swapi_stream {
    uint64_t offset, size_bytes;
};

#if defined(__x86_64__)
/* checksum_streams and checksum_stream_and_zeros of checksum_body.h. The CPU must have AVX2. */
uint64_t swapi_checksum_avx2(const void *data, const struct swapi_stream *streams,
                             uint32_t stream_count);
uint64_t swapi_checksum_zeros_avx2(const void *data, uint64_t stream_bytes, uint64_t others_bytes,
                                   const void *zeros, uint64_t zero_bytes);
#endif

#endif
