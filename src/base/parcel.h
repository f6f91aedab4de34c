/* Parcels: a part of a buffer for each rank, as an all-to-all moves them (comm/comm.h). Tables of
 * parcels, by rank, lie in host memory, also if the buffers are a GPU's. Pure. */
#ifndef SLUICE_BASE_PARCEL_H
#define SLUICE_BASE_PARCEL_H

#include <stdint.h>

enum { PARCEL_ALIGN_BYTES = 256 };

struct rank_parcel {
    uint64_t begin_bytes, size_bytes; /* from the start of the buffer */
};
typedef struct rank_parcel rank_parcel;

#endif
