/* Parcels: a part of a buffer for each rank, as an all-to-all moves them (comm/comm.h). A buffer of
 * rows of tokens begins with a table of its parcels, by rank (swap/program.h, EXPERTS OF OTHER
 * RANKS). Pure. */
#ifndef SLUICE_BASE_PARCEL_H
#define SLUICE_BASE_PARCEL_H

#include <stdint.h>

#include "base/size.h"

enum { PARCEL_ALIGN_BYTES = 256 };

struct rank_parcel {
    uint64_t begin_bytes, size_bytes; /* from the start of the buffer */
};
typedef struct rank_parcel rank_parcel;

/* Bytes of a table of parcels, a multiple of PARCEL_ALIGN_BYTES. */
static inline uint64_t parcel_table_bytes(uint64_t ranks)
{
    return size_round_up(ranks * sizeof(rank_parcel), PARCEL_ALIGN_BYTES);
}

#endif
