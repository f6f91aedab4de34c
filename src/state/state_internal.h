/* Declarations that the files of src/state share: records, owners of slabs, kept commits, and moves
 * to another layout. */
#ifndef SLUICE_STATE_INTERNAL_H
#define SLUICE_STATE_INTERNAL_H

#include <signal.h>

#include "base/log.h"
#include "state/run_view.h"
#include "state/runs.h"
#include "state/state.h"

/* ---- commit.c: the record of a run ---- */

/* Fills self->record with the run's identity, its slabs, and the extents of the engine's places,
 * without their sums. */
int state_record_init(state_commit *self) MUST_CHECK;
/* Fills *slabs: the slabs of all ranks with this uuid, on the setup's drives. */
void state_name_slabs(const struct setup *setup, const uint8_t uuid[SLAB_UUID_BYTES],
                      manifest_slabs *slabs);
/* Fills in the part of the record that the setup decides: identity, layout, number of ranks. */
void state_name_run(const struct setup *setup, manifest *record);
/* Puts the newest place of each extent and its sum into the record; on rank 0 those of all ranks.
 * Collective. */
int state_fill_extents(state_commit *self) MUST_CHECK;

/* Removes the note of state_claim_slabs. Call it before the slabs are removed. */
void state_release_slabs(const manifest_slabs *slabs);

/* Finds the run that owns the slabs by their note. Returns 1 with its directory if it is another
 * one than state_dir's, exists, and names them; else 0 and "". */
int state_find_owner(const char *state_dir, const manifest_slabs *slabs,
                     char owner[FILE_PATH_BYTES]) MUST_CHECK;
/* True if an existing run names the directory of slabs `path`, by the note of its owner. Else
 * `owner` is the run that the note names; "": there is no note. -ENOMEM. */
int state_slabs_are_owned(const char *path, char owner[FILE_PATH_BYTES]) MUST_CHECK;

/* ---- slab_age.c ---- */

struct state_slab_age {
    const manifest *newest; /* a commit; its slabs are where it says */
    const char *state_dir;  /* has the manifests; if they cannot be read, only `newest` is used */
    uint32_t rank;          /* whose slab is looked at */
    enum io_backend backend;
    uint64_t stuck_ns, stop_ns; /* as for io_create */
};
/* Compares up to four tiles of the rank's slab with the newest commit. Returns 0 if one of them is
 * as committed, or if nothing can be said. ERR_CORRUPT if the slab is an old copy, as one that was
 * copied back: *older_step is then the step of the commit that it holds, or UINT64_MAX if that is
 * not known. Otherwise the error of opening or reading the slab. */
int state_check_slab_age(const struct state_slab_age *asked, uint64_t *older_step) MUST_CHECK;

/* ---- find_runs.c: shared with remove_run.c ---- */

#define STATE_REMOVAL_NAME "removing" /* in `state`, while the run is removed */
#define STATE_REMOVAL_NOTE "state/" STATE_REMOVAL_NAME

/* True if the directory is, or was, one of a run. */
bool state_is_run(const char *path);
/* Fills *out, and calls take_slabs (may be NULL) for the slabs that the run, its leftovers and its
 * kept commits name. `view` is scratch. */
int state_look_at_run(const char *path, state_view *view, state_found_run *out,
                      int (*take_slabs)(void *user, const manifest_slabs *slabs),
                      void *user) MUST_CHECK;
/* Calls `take` for each directory of a kept commit, in any order, until one fails. */
int state_each_kept(const char *run_dir, int (*take)(void *user, const char *path),
                    void *user) MUST_CHECK;

/* ---- kept_commits.c ---- */

/* A kept commit is a copy of a commit beside the run: the run directory "<run>/keep/step-<9
 * digits>/" with job.json, state/manifest-<g mod 2> and a module's buffers if there are any, and
 * slabs under "<drive>/sluice-<uuid>.keep/step-<9 digits>/". It is a run directory of its own:
 * verify, inspect, generate and train accept it. It is complete once its manifest exists. A
 * complete copy is left unchanged; a partial one is made again.
 *
 * Except for create and destroy, all calls come on the commit's thread, before anything writes
 * state again, and allocate nothing. If the file system has no space for the copy, there is a
 * warning and the run continues. Failpoints: keep.begin, keep.copied.
 *
 * Several ranks, if state_is_kept:
 *
 *   1  rank 0      begin; sends its answer to all ranks
 *   2  all ranks   copy their slabs, and learn whether all copies succeeded
 *   3  rank 0      record
 *      others      drop, if a copy failed
 *
 * `record` names the run's slabs and this rank's extents as they are now (on rank 0 those of all
 * ranks). On other ranks than 0 run_dir is NULL and extent_count is the record's. */
int state_keeper_create(const char *run_dir, const struct job *asked, uint64_t extent_count,
                        state_keeper **out) MUST_CHECK;
void state_keeper_destroy(state_keeper *self); /* NULL is allowed */
/* Returns 1 if all ranks are to copy, and 0 if nothing is needed: the copy exists, or it
 * failed with a warning. The only error is ERR_INTERNAL. */
int state_keep_begin(state_keeper *self, const manifest *record) MUST_CHECK;
/* Removes this rank's slabs of the copy, and directories that this leaves empty. Pass its error to
 * state_keep_record. */
int state_keep_drop(state_keeper *self, const slab *disk, const manifest *record) MUST_CHECK;
/* Copies this rank's slabs. All ranks must have dropped what an earlier attempt left before one of
 * them copies, since ranks may share a drive's directory. Pass its error to state_keep_record. */
int state_keep_slabs(state_keeper *self, const slab *disk, const manifest *record) MUST_CHECK;
/* Finishes the copy if `outcome` is 0. Else `outcome` is the error of the slabs, with this thread's
 * message: the copy is removed, with a warning. The only error is ERR_INTERNAL. */
int state_keep_record(state_keeper *self, const manifest *record, int outcome) MUST_CHECK;
/* All of the above, if the job keeps this commit. Collective. */
int state_keep(state_keeper *self, const struct ranks *ranks, const slab *disk,
               const manifest *record) MUST_CHECK;

/* ---- recut.c: the committed state in another layout ---- */

/* Copies this rank's part of the committed state of `found` to the places of `to`. `to` is a slab
 * made for another layout: another placement, tile size, number of drives or of ranks. Any ranks
 * may have written `found`. The copy writes place 0 of each extent, which becomes the newest with
 * its sum.
 *
 * Units, streams and bits stay the same, with these rules:
 * - Elements beyond a unit's end are not copied; they are zeros in the new layout.
 * - A unit that was frozen and now learns gets its params as master weights, and zeros as moments.
 * - A unit that learned and is now frozen gets the working copy of its master weights.
 *
 * Each rank reads the old extents that its own tiles overlap, tile by tile, from the files of the
 * ranks that wrote them (rank_slabs.h). Memory: for the old and for the new layout two tiles or 32
 * MiB, whichever is more, and RANK_SLABS_OPEN_MAX open slabs. Every extent read is compared with
 * its sum.
 *
 * Errors: ERR_CORRUPT names unit, tile, file and offset; ERR_INPUT for a slab that cannot be seen
 * from this host; ERR_STOPPED. Failpoint recut.copied at the end. Blocks; log lines report the
 * progress. */
struct state_recut {
    const manifest *found;
    slab *to;
    place_table *places;        /* of `to` */
    const uint64_t *unit_elems; /* [unit_count] of the model */
    uint32_t unit_count;
    uint32_t rank, world; /* of the new run; world 0 means 1 */
    /* The places hold the rank's shards (plan_is_sharded); else whole units. */
    bool is_sharded;
    uint32_t state_streams;
    /* [unit_count] units that the new run keeps only the params of; NULL: none. */
    const uint8_t *is_frozen;
    enum dtype param_type;   /* the type of frozen params in both runs */
    enum io_backend backend; /* as for io_create */
    /* Indexed by rank of `found`. NULL, or NULL at a rank: the slab's files are opened here. */
    slab *const *from;            /* already open */
    sim_store *const *from_store; /* simulated drives */
    sim_store *to_store;          /* simulated drives of `to`, or NULL */
    /* A request to stop: ERR_STOPPED, and the commit is unchanged. May be NULL. */
    const volatile sig_atomic_t *stop;
    const struct io_faults *faults; /* for tests: faults of both layouts' drives; or NULL */
    uint64_t stuck_ns, stop_ns;     /* as for io_create; a stuck_ns of 0 means 30 s */
};
/* Checks that all slabs which the copy will read can be seen, before anything is made. It uses only
 * found, unit_elems, unit_count, rank, world, is_sharded and from of `work`. ERR_INPUT as above. */
int state_recut_check(const struct state_recut *work) MUST_CHECK;
int state_recut_copy(const struct state_recut *work) MUST_CHECK;

/* True if the path is a symbolic link. find_runs.c has it. */
bool statei_is_link(const char *path);

#endif
