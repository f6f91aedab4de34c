/* XXH3-64 compiled for more than the base instruction set; equal to the library's on every input. */
#ifndef SLUICE_SWAP_CHECKSUM_INTERNAL_H
#define SLUICE_SWAP_CHECKSUM_INTERNAL_H

#include <stdint.h>

#if defined(__x86_64__)
/* Only where the CPU has AVX2. */
uint64_t swapi_xxh3_avx2(const void *data, uint64_t size_bytes, uint64_t seed);
#endif

#endif
