/* Reads all extents of a manifest, from the slabs of all its ranks, at the drives' speed, and
 * computes their sums meanwhile.
 *
 *   owner    submit -> poll ------------------------> retire in order -> on_extent, on_progress
 *   sums     one extent each, round robin     \ wait for the pieces
 *   weights  the master streams, in order     / in their order
 *
 * The slabs' bytes pass through a ring of pieces of SWEEP_PIECE_BYTES, so memory does not depend on
 * the size of tiles. All memory is allocated when the sweep begins. The owner only passes requests
 * on, so the drives' queue stays full while the other threads compute sums. */
#ifndef SLUICE_STATE_SWEEP_H
#define SLUICE_STATE_SWEEP_H

#include <signal.h>

#include "format/manifest.h"
#include "model/model.h"
#include "tiers/io.h"

enum { SWEEP_PIECE_BYTES = 4 << 20 };

/* The result of reading an extent, which is a tile of state or of frozen params. */
struct state_swept {
    uint64_t extent_idx;
    uint64_t sum;      /* XXH3-64 of the streams' elements; 0 if it could not be read */
    const char *error; /* NULL, or why it could not be read */
};

struct state_sweep_options {
    const manifest *record; /* its slabs are opened here when they are needed (rank_slabs.h) */
    uint32_t copy_rank;     /* if the record is_replicated: the rank whose slab is read */
    /* [ranks] true for ranks whose extents are skipped; NULL: none is skipped. */
    const bool *is_absent;
    /* The model of the record's units. Elements beyond a unit's end are padding, which the hash of
     * the weights leaves out. NULL: there is no padding. */
    const model *net;
    enum io_backend backend;
    uint32_t pool_threads;
    uint64_t stuck_ns, stop_ns; /* as in io_config */
    const volatile sig_atomic_t *stop;
    const struct io_faults *faults; /* tests; or NULL */
    /* Called for each extent, in the record's order. */
    void (*on_extent)(void *user, const struct state_swept *swept);
    /* Called with the extents' first streams (master weights, or frozen params) in pieces, in the
     * record's order. `data` has `size_bytes` bytes of the extent's elements; they begin
     * `begin_bytes` after its first one. Elements beyond the unit's end are left out. The halves of
     * a split master come joined, as fp32, with the extent of state. Called on a thread of its own,
     * before the extent is compared. A negative result ends the sweep and becomes its error. Or
     * NULL. */
    int (*on_weights)(void *user, uint64_t extent_idx, uint64_t begin_bytes, const void *data,
                      uint64_t size_bytes);
    /* Called ten times a second, on the caller's thread; or NULL. */
    void (*on_progress)(void *user, uint64_t done_bytes, double seconds);
    void *user;
};

/* Blocks; calls on_extent and on_progress on the caller's thread. *weights_hash is over the master
 * streams of all extents, one after the other; frozen units count with their params. It means
 * nothing if an extent failed. Returns 0, ERR_STOPPED, or the error of a queue that broke. */
int state_sweep(const struct state_sweep_options *options, uint64_t *weights_hash) MUST_CHECK;

#endif
