/* The stream of an import's tiles from the checkpoint to the slab, at the drive's speed. See
 * import.c.
 *
 *   lane 0   [ read | convert | sum ][ read | convert | sum ] ...
 *            write -----------------> write ---------------->
 *   lane 1   ...                                    each takes the next tile that no lane has taken
 *
 * A lane is a thread with its own tiles and its own queue of writes. So reads, arithmetic and
 * writes of several tiles overlap, and lanes share only the number of the next tile. Matrices that
 * are stored transposed pass through one strip: with such a checkpoint tiles are read one after the
 * other, in order, and only sums and writes overlap with that.
 *
 * Memory: IMPORT_LANES * (IMPORT_SLOTS tiles of masters + WEIGHTS_ROOM_BYTES), on huge pages, and
 * what weights.h says. */
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
    IMPORT_SLOTS = 3, /* tiles of a lane: one is filled while the others are written */
};

struct import_stream {
    hf_weights *from;
    const model *net;
    slab *disk;
    /* Its extents' sums are filled in; state_streams and seed are read. */
    manifest *record;
    const volatile sig_atomic_t *stop; /* may be NULL */
    /* Called on the caller's thread, a few times a second and at the end; or NULL. The bytes are
     * those of masters. */
    void (*on_progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
    void *user;
};
typedef struct import_stream import_stream;

/* Fills the slab and syncs it. Blocks. Returns the bytes written and the time that it took. Errors:
 * ERR_STOPPED, or the first failure of a lane, as in weights.h and tiers/io.h. All lanes have ended
 * when this returns. */
int import_stream_run(const import_stream *self, uint64_t *written_bytes,
                      double *seconds) MUST_CHECK;

#endif
