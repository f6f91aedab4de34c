/* Reads all extents of a manifest, from the slabs of all its ranks, at the drives' speed, and sums
 * them meanwhile.
 *
 *   owner    submit -> poll ------------------------> retire in order -> on_extent, on_progress
 *   sums     one extent each, round robin     \ wait for the pieces
 *   weights  the master streams, in order     / in their order
 *
 * The slab's bytes pass through a ring of pieces of SWEEP_PIECE_BYTES, so that memory does not
 * depend on tiles; all of it is taken when the sweep begins. The owner only hands requests over:
 * the drives' queue stays full while the other threads sum. */
#ifndef SLUICE_STATE_SWEEP_H
#define SLUICE_STATE_SWEEP_H

#include <signal.h>

#include "format/manifest.h"
#include "tiers/io.h"

enum { SWEEP_PIECE_BYTES = 4 << 20 };

/* What reading an extent gave, of a tile of state or of frozen params. */
struct state_swept {
    uint64_t extent_idx;
    uint64_t sum;      /* XXH3-64 of the streams' elements; 0 where it could not be read */
    const char *error; /* NULL, or why it could not be read */
};

struct state_sweep_options {
    const manifest *record; /* its slabs are opened here, as they are wanted (rank_slabs.h) */
    uint32_t copy_rank;     /* where is_replicated: whose slab is read */
    const bool *is_absent;  /* [ranks] whose extents are left out; NULL: nobody's */
    const uint64_t
        *unit_elems; /* of the model: what is behind them is padding, of which the hash of
                                   the weights knows nothing; NULL: there is none */
    enum io_backend backend;
    uint32_t pool_threads;
    uint64_t stuck_ns, stop_ns; /* as io_config has them */
    const volatile sig_atomic_t *stop;
    const struct io_faults *faults;                                 /* tests; or NULL */
    void (*on_extent)(void *user, const struct state_swept *swept); /* in the record's order */
    /* The extents' first streams (master weights, or frozen params), in the record's order, in
     * pieces: `size_bytes` of the extent's elements (fp32 also of a split master, whose halves are
     * joined: those of the extent of state) that begin `begin_bytes` behind its first one; elements
     * behind the unit's end are left out. On a thread of its own, before the extent is compared.
     * Negative ends the sweep, as its failure. Or NULL. */
    int (*on_weights)(void *user, uint64_t extent_idx, uint64_t begin_bytes, const void *data,
                      uint64_t size_bytes);
    void (*on_progress)(void *user, uint64_t done_bytes, double seconds); /* ten times a second */
    void *user;
};

/* The streams code (base/tile.h) of the extent; 0 if it holds params alone. */
uint32_t state_extent_streams(const manifest *record, const manifest_extent *extent);

/* Blocks, calls back on the caller's thread. *weights_hash: of the master streams of all extents,
 * one after the other, of frozen units their params (meaningless where an extent failed). 0;
 * ERR_STOPPED; the error of a queue that broke. */
int state_sweep(const struct state_sweep_options *options, uint64_t *weights_hash) MUST_CHECK;

#endif
