/* A run's durable state while one process has the run open: what a commit is, and how a run goes on
 * from one.
 *
 *   (nothing) ─ state_name_new_slabs ─► BEGUN ─ first commit ─► COMMITTED ─ each commit ─► COMMITTED
 *   COMMITTED ─ state_resume ─► on its slabs as they lie, or moved to new ones (resume.c)
 *   COMMITTED ─ run.commit_every 0: the first step ─► RUNNING ─ clean stop ─► COMMITTED
 *
 * BEGUN: the manifest names slabs that a killed start may have left. RUNNING: the state is changed
 * in place, and only a clean stop makes it a commit again. With several ranks rank 0 owns the run
 * directory and writes the manifest; every function here is collective unless it says otherwise.
 * Owner: the loop's thread; state_run_commit runs on the commit lane's worker while a program that
 * commits runs. */
#ifndef SLUICE_STATE_STATE_H
#define SLUICE_STATE_STATE_H

#include <signal.h>

#include "engine/engine.h"
#include "state/run_dir.h"

/* A point of a run between two steps: what a commit says of it, and what a resume sets. */
struct state_point {
    uint64_t seed; /* of the initial weights */
    uint64_t step, window_count, skipped_count;
    double loss_scale;
    uint64_t scale_iteration, scale_hysteresis_left;
    int64_t scale_last_overflow;
};
typedef struct state_point state_point;
void state_point_take(state_point *self, const manifest *from);
void state_point_put(const state_point *self, manifest *record);

struct state_keeper; /* kept_commits.c */
typedef struct state_keeper state_keeper;
struct state_placed;

/* What OP_COMMIT is to do. The loop fills it before a program that commits; the worker reads it,
 * and writes only what a comment says. */
struct state_commit {
    struct engine *engine; /* borrowed */
    const struct job *job;
    const char *state_dir; /* borrowed */
    /* synced before a manifest, so that every committed step has its line; -1: none */
    int metrics_fd;
    state_keeper *keeper; /* or NULL: no commit is kept */
    manifest record;      /* of the next slot, but generation and extents, which the worker fills */
    bool has_commit;      /* worker: record.step is durable */
    uint64_t committed_step;        /* worker */
    struct state_placed *own, *all; /* [extents of a rank]; [extents of all ranks] on rank 0 */
};
typedef struct state_commit state_commit;

struct state_run_options {
    const struct machine *machine; /* NULL: the plan's defaults */
    /* a run directory or kept commit whose state a new run begins with, or NULL */
    const char *from;
    bool is_trial;
    engine_memory *memory;             /* borrowed; NULL: memory of the run's own */
    const struct setup_watch *watch;   /* or NULL */
    const struct setup_test *test;     /* or NULL */
    const volatile sig_atomic_t *stop; /* or NULL */
    engine_first_elems *first_elems;   /* or NULL */
    void *first_user;
    /* before memory is reserved; or NULL */
    void (*on_setup)(void *user, const struct setup *setup);
    void *user;
};

struct state_run {
    struct state_run_options options;
    const struct job *job;
    struct ranks ranks;
    struct setup *setup;
    struct engine *engine;
    struct state_commit commit;
    struct state_run_dir dir;  /* on rank 0 locked */
    struct state_run_dir from; /* options.from, on rank 0 locked while it is read */
    manifest record;           /* of this run: identity, slabs, and the point after the last step */
    sim_store *moved_store;    /* memory of simulated drives that a move leaves */
    bool is_borrowed;          /* the state came from another run */
    bool is_moved;             /* a move is done: the manifest names the new slabs */
    bool has_named_slabs;      /* a new run whose manifest names its slabs */
};

/* Draws rank 0's random id, on all ranks. */
int state_draw_uuid(const struct ranks *ranks, uint8_t uuid[SLAB_UUID_BYTES]) MUST_CHECK;
/* Writes the manifest that names a new run's slabs, before they are made: if the start is killed,
 * the next one finds what it left. */
int state_name_new_slabs(struct state_run *self, const uint8_t uuid[SLAB_UUID_BYTES]) MUST_CHECK;
/* Makes the engine of self->setup, and what commits need. `found`: on its slabs; NULL: on new ones
 * with this uuid. */
int state_start_engine(struct state_run *self, const manifest *found,
                       const uint8_t uuid[SLAB_UUID_BYTES]) MUST_CHECK;
void state_commit_fini(state_commit *self); /* after engine_destroy */
/* Makes setup and engine with the state of `found`, as it lies or moved. Removes slabs that the
 * manifest lists as leftovers, once both slots agree. */
int state_resume(struct state_run *self, manifest *found) MUST_CHECK;
/* Opens options.from and reads its last commit into *found. Rank 0 alone. */
int state_borrow(struct state_run *self, manifest *found) MUST_CHECK;
/* Sends rank 0's manifest to all; the other ranks own the extents that they get. */
int state_share_manifest(const struct ranks *self, manifest *found, bool *exists) MUST_CHECK;
/* ERR_INPUT where the slabs belong to another run directory that exists. Not collective. */
int state_check_owner(const char *state_dir, const manifest_slabs *slabs) MUST_CHECK;
/* Notes beside the slabs, which exist, that they belong to this directory. A failure is a warning.
 * Not collective. */
int state_claim_slabs(const char *state_dir, const manifest_slabs *slabs) MUST_CHECK;

/* ---- commits ---- */

/* engine_options.run_commit; `user` is the state_commit. */
int state_run_commit(void *user, const program *prog, const op *item);
/* Writes a manifest slot that is no commit: a new run's first, or "the state is changed in place"
 * (MANIFEST_RUNNING). */
int state_write_slot(state_commit *self, enum manifest_state state) MUST_CHECK;
/* True if the job keeps the commit of this step. */
bool state_is_kept(const struct job *asked, uint64_t step);
/* Copies the commit that `record` was written for, or taken from, if the job keeps it. */
int state_keep_commit(state_commit *self, const manifest *record) MUST_CHECK;
/* XXH3 over all master weights (of units that do not learn: their params), in the order of units:
 * equal weights have an equal hash, whatever the number of ranks. *hash is set on rank 0. */
int state_weights_hash(struct engine *self, uint64_t *hash) MUST_CHECK;

#endif
