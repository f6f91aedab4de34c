/* What the files of src/state share: records, owners of slabs, kept commits, and moves to another
 * layout. */
#ifndef SLUICE_STATE_INTERNAL_H
#define SLUICE_STATE_INTERNAL_H

#include <signal.h>

#include "base/log.h"
#include "state/state.h"

/* ---- commit.c: the record of a run ---- */

/* Fills self->record with the run's identity, its slabs and the extents of the engine's places,
 * without sums. */
int state_record_init(state_commit *self) MUST_CHECK;
/* Names the slabs of all ranks by the setup's drives. */
void state_name_slabs(const struct setup *setup, const uint8_t uuid[SLAB_UUID_BYTES],
                      manifest_slabs *slabs);
/* what the record says of the setup */
void state_name_run(const struct setup *setup, manifest *record);
/* Puts the newest place of each extent and its sum into the record: on rank 0 those of all
 * ranks. */
int state_fill_extents(state_commit *self) MUST_CHECK;

/* Removes the note of state_claim_slabs. */
void state_release_slabs(const manifest_slabs *slabs); /* before they are removed */

/* Removes RUN/hf and what it holds. */
int state_remove_hf_dir(const char *run_dir) MUST_CHECK;

/* ---- kept_commits.c ---- */

/* A kept commit is a copy beside the run: the run directory "<run>/keep/step-<9 digits>/" with
 * job.json and state/manifest-<g mod 2>, and slabs under "<drive>/sluice-<uuid>.keep/step-<9
 * digits>/". It is a run directory of its own: verify, inspect, generate and train take it. It is
 * complete once its manifest is there; a complete one is left alone, a partial one is made anew.
 * All calls come on the commit's thread, before anything writes state again; nothing is allocated.
 * If the file system has no space for the copy, there is a warning and the run goes on. Failpoints:
 * keep.begin, keep.copied.
 *
 * Several ranks, if state_is_kept:
 *
 *   rank 0: begin ─► its answer to all ─► all: copy slabs ─► the outcome of all to all ─► rank 0: record
 *                                                            if one failed, the others: drop
 *
 * `record` names the run's slabs and this rank's extents as they are now (on rank 0 those of all).
 * On another rank than 0 run_dir is NULL and extent_count is the record's. */
int state_keeper_create(const char *run_dir, const struct job *asked, uint64_t extent_count,
                        state_keeper **out) MUST_CHECK;
void state_keeper_destroy(state_keeper *self); /* NULL is allowed */
/* 1: all ranks are to copy; 0: nothing to do (the copy exists, or there was a warning);
 * ERR_INTERNAL. */
int state_keep_begin(state_keeper *self, const manifest *record) MUST_CHECK;
/* Removes this rank's slabs of the copy, and directories that this leaves empty. Pass an error to
 * state_keep_record. */
int state_keep_drop(state_keeper *self, const slab *disk, const manifest *record) MUST_CHECK;
/* Copies this rank's slabs, after all ranks have dropped what an earlier attempt left: ranks may
 * share a drive's directory. Pass an error to state_keep_record. */
int state_keep_slabs(state_keeper *self, const slab *disk, const manifest *record) MUST_CHECK;
/* `outcome`: 0, or the error of the slabs with this thread's message; then the copy is removed,
 * with a warning. The only error is ERR_INTERNAL. */
int state_keep_record(state_keeper *self, const manifest *record, int outcome) MUST_CHECK;
/* All of the above, with one rank. */
int state_keep(state_keeper *self, const slab *disk, const manifest *record) MUST_CHECK;

/* ---- recut.c: the committed state in another layout ---- */

/* Copies this rank's part of the committed state of `found`, whatever ranks wrote it, to the places
 * of `to`: a slab made for another layout, placement, tile size, number of drives or of ranks. It
 * writes place 0 of each extent, which becomes the newest with its sum. Units, streams and bits
 * stay the same; elements beyond a unit's end are not copied, they are zeros in the new layout. A
 * unit that was frozen and now learns gets its params as master weights and zeros as moments; a
 * unit that learned and is now frozen gets the working copy of its master weights.
 *
 * Each rank reads what its own tiles overlap, from the files of the ranks that wrote it
 * (rank_slabs.h), tile by tile. Memory: one tile of the old and one of the new size, or 32 MiB of
 * each where that is more, and RANK_SLABS_OPEN_MAX open slabs. Every extent read is compared with
 * its sum: ERR_CORRUPT names unit, tile, file and offset. ERR_INPUT for a slab that cannot be seen
 * from this host. Failpoint recut.copied at the end. Blocks; log lines tell the progress. */
struct state_recut {
    const manifest *found;
    slab *to;
    place_table *places;        /* of `to` */
    const uint64_t *unit_elems; /* [unit_count] of the model */
    uint32_t unit_count;
    uint32_t rank, world; /* of the new run; world 0 acts as 1 */
    bool is_sharded; /* the places hold the rank's shards (plan_is_sharded); else whole units */
    uint32_t state_streams;
    const uint8_t *is_frozen; /* [unit_count] of the new run: only params are kept; NULL: none */
    enum dtype param_type;    /* of frozen params, of both runs */
    enum io_backend backend;  /* as for io_create */
    /* By rank of `found`; NULL, or NULL at the rank: a slab of files, opened here. */
    slab *const *from;                 /* already open */
    sim_store *const *from_store;      /* simulated drives */
    sim_store *to_store;               /* simulated drives of `to`, or NULL */
    const volatile sig_atomic_t *stop; /* ERR_STOPPED, nothing is changed; may be NULL */
    const struct io_faults *faults;    /* tests: of the drives of both, or NULL */
    uint64_t stuck_ns, stop_ns;        /* as for io_create, but 0 for stuck_ns is 30 s */
};
/* Checks that all slabs which the copy will read can be seen, before anything is made. Of `work`
 * only found, unit_elems, unit_count, rank, world and is_sharded are used. ERR_INPUT as above. */
int state_recut_check(const struct state_recut *work) MUST_CHECK;
int state_recut_copy(const struct state_recut *work) MUST_CHECK;

#endif
