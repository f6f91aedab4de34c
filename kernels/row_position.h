/* The position of a row's token in its sequence, or in its document. For all backends, on hosts and
 * on GPUs. Pure. */
#ifndef SLUICE_KERNELS_ROW_POSITION_H
#define SLUICE_KERNELS_ROW_POSITION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ROW_POSITION_ON_GPU __host__ __device__
#else
#define ROW_POSITION_ON_GPU
#endif

/* `row` counts over a batch of sequences of `tokens` rows. begins: [B,T], the token at which each
 * token's document begins; or NULL. */
ROW_POSITION_ON_GPU static inline uint64_t row_position(uint64_t row, uint64_t tokens,
                                                        const int32_t *begins)
{
    return row % tokens - (begins != NULL ? (uint64_t)begins[row] : 0);
}

/* The same as a row of a table that begins with position `table_begin`, where sequences begin with
 * position `first`. A huge number if the position lies before the table. */
ROW_POSITION_ON_GPU static inline uint64_t row_position_in(uint64_t row, uint64_t tokens,
                                                           const int32_t *begins, uint64_t first,
                                                           uint64_t table_begin)
{
    return first + row_position(row, tokens, begins) - table_begin;
}

#endif
