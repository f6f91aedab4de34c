/* The tiles of an import from the checkpoint to the slab, at the drive's speed. See import.c.
 *
 *   lane 0   [ read | convert | sum ][ read | convert | sum ] ...     each tile is the next that nobody has taken
 *            write -----------------> write ---------------->
 *   lane 1   ...
 *
 * A lane is a thread with tiles and a queue of writes of its own, so that reads, arithmetic and
 * writes of several tiles go on at once and lanes share nothing but the number of the next tile.
 * Matrices that are stored transposed pass through one strip: there tiles are read one after the
 * other, in order, and only sums and writes go on beside that. Memory: IMPORT_LANES * (IMPORT_SLOTS
 * tiles of masters + WEIGHTS_ROOM_BYTES), on huge pages, and what weights.h says. */
#ifndef SLUICE_HF_IMPORT_STREAM_H
#define SLUICE_HF_IMPORT_STREAM_H

#include <signal.h>
#include <stdint.h>

#include "base/error.h"
#include "format/manifest.h"
#include "hf/weights.h"
#include "model/model.h"
#include "tiers/slab.h"

enum {
    IMPORT_LANES = 4,
    IMPORT_SLOTS = 3, /* of a lane: one is filled, the others are being written */
};

struct import_stream {
    hf_weights *from;
    const model *net;
    slab *disk;
    manifest *record; /* extents whose sums are filled in; tile_elems, state_streams and seed */
    const volatile sig_atomic_t *stop; /* may be NULL */
    /* Called on the caller's thread, some times a second and at the end; NULL: not. Bytes of
     * masters. */
    void (*on_progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
    void *user;
};
typedef struct import_stream import_stream;

/* Fills the slab and syncs it. What was written, and how long it took. ERR_STOPPED; what weights.h
 * and tiers/io.h say: the first failure of a lane; the others have ended when this returns. */
int import_stream_run(const import_stream *self, uint64_t *written_bytes,
                      double *seconds) MUST_CHECK;

#endif
