/* The manifest: the small checksummed record that makes the slabs a checkpoint.
 *
 * state/manifest-0 and state/manifest-1 alternate; the newest slot with a good checksum counts. The
 * byte layout is a table in tiers/FORMAT.md and the structs of manifest.c. A slot is written whole,
 * then fsync'ed; a slot is RUNNING while the slabs are being changed in place (a run with one place
 * per extent), and such a run cannot be resumed after a crash. Little-endian. One thread. */
#ifndef SLUICE_FORMAT_MANIFEST_H
#define SLUICE_FORMAT_MANIFEST_H

#include <stdint.h>

#include "base/error.h"

enum { MANIFEST_UUID_BYTES = 16, MANIFEST_TEXT_BYTES = 4096 };

enum manifest_state {
    MANIFEST_CLEAN = 1,  /* the extents are the state after `step` */
    MANIFEST_RUNNING = 2 /* the extents are being changed in place: not resumable */
};

/* Where one tile of one unit's optimizer state rests on the slab. */
struct manifest_extent {
    uint32_t unit, tile;
    uint64_t offset_bytes; /* in the nvme address space */
    uint64_t size_bytes;   /* of the extent, padding included */
    uint64_t elem_begin, elem_count;
    uint64_t checksum; /* XXH3-64 of the three streams' elements, padding excluded; 0: not taken */
};
typedef struct manifest_extent manifest_extent;

struct manifest {
    enum manifest_state state;
    uint64_t generation; /* grows by one with each write; slot = generation mod 2 */
    uint8_t uuid[MANIFEST_UUID_BYTES];
    uint64_t fingerprint;  /* hash of model, dtypes, micro-batch and kernel variant: what the bits
                               depend on */
    uint64_t step;         /* optimizer steps completed */
    uint64_t window_count; /* sampler position */
    uint64_t seed;
    uint64_t skipped_count;
    double loss_scale; /* of the next step; with the three below the state of train/loss_scale.h */
    uint64_t scale_iteration;       /* steps that the loss scaler has counted */
    int64_t scale_last_overflow;    /* of them the last one that overflowed, from 0; -1: none */
    uint64_t scale_hysteresis_left; /* overflows until the scale is halved */
    uint64_t tile_elems, total_bytes, stripe_bytes;
    uint32_t drive_count;
    char drives[16][MANIFEST_TEXT_BYTES]; /* slab directories */
    uint64_t extent_count;
    manifest_extent *extents; /* mem_alloc'd */
};
typedef struct manifest manifest;

void manifest_fini(manifest *self);

/* Writes the slot generation mod 2 under `state_dir`, fsync of file and directory. -errno. */
int manifest_write(const char *state_dir, const manifest *self) MUST_CHECK;

/* Reads the newest valid slot. 0 when there is none (*found 0), 1 when read. ERR_CORRUPT when slots
 * exist and none is valid, naming both and why. */
int manifest_read(const char *state_dir, manifest *out, int *found) MUST_CHECK;

#endif
