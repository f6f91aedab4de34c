/* A run's durable state while one process has the run open: commits, and how a run resumes from
 * one.
 *
 *   (nothing) ─ state_name_new_slabs ─► BEGUN ─ first commit ─► COMMITTED ─ commit ─► COMMITTED ...
 *   COMMITTED ─ state_resume ─► on its slabs as they lie, or moved to new ones (resume.c)
 *   COMMITTED ─ first step with run.commit_every 0 ─► RUNNING ─ clean stop ─► COMMITTED
 *
 * Vocabulary:
 * - A commit is the state after a step that a resume can start from. It exists once its manifest is
 *   durable (tiers/FORMAT.md).
 * - BEGUN: the manifest names slabs but no state; a start that was killed may have left them.
 * - RUNNING: the state is being changed in place. Only a clean stop makes it a commit again.
 * - Borrowed state: a new run begins with a copy of another run's state (state_run_options.from).
 * - Leftover slabs (the manifest's field `leftover`): slabs that a manifest names so that the next
 *   start removes them.
 * - A kept commit: a copy of a commit in a run directory of its own (run.keep).
 *
 * With several ranks, rank 0 owns the run directory and writes the manifest. Every function is
 * collective (all ranks call it) unless its comment says otherwise. Owner: the loop's thread.
 * state_run_commit runs on the commit lane's worker while a program that commits runs. */
#ifndef SLUICE_STATE_STATE_H
#define SLUICE_STATE_STATE_H

#include <signal.h>

#include "engine/engine.h"
#include "state/run_dir.h"

struct state_keeper; /* the copies of commits; see kept_commits.c */
typedef struct state_keeper state_keeper;
struct state_placed;

/* The work of OP_COMMIT. The loop fills it before a program that commits. Meanwhile the worker
 * reads it and writes only the members that are marked "worker". */
struct state_commit {
    struct engine *engine; /* borrowed */
    const struct job *job;
    const char *state_dir; /* borrowed */
    /* Synced before a manifest is written, so that every committed step has its line. -1: none. */
    int metrics_fd;
    state_keeper *keeper; /* NULL: no commit is kept */
    /* The record of the next slot. The worker fills in its generation and the places and sums of
     * its extents. */
    manifest record;
    bool has_commit;         /* worker: committed_step is durable */
    uint64_t committed_step; /* worker: the step of the last commit */
    /* Memory to gather places and sums: [extents of a rank]; [extents of all ranks] on rank 0. */
    struct state_placed *own, *all;
};
typedef struct state_commit state_commit;

struct state_run_options {
    const struct machine *machine; /* NULL: the plan's defaults */
    /* A run directory or kept commit whose state a new run begins with; or NULL. */
    const char *from;
    bool is_trial; /* a trial: it makes no commits, and a kill leaves no file on the drives */
    const struct setup_watch *watch;   /* or NULL */
    const struct setup_test *test;     /* or NULL */
    const volatile sig_atomic_t *stop; /* or NULL */
    engine_first_elems *first_elems;   /* or NULL */
    engine_first_codes *first_codes;   /* or NULL */
    void *first_user;
    /* Called before memory is reserved; or NULL. */
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
    struct state_run_dir dir;  /* rank 0 holds its lock */
    struct state_run_dir from; /* options.from; rank 0 holds its lock while it is read */
    manifest record;           /* this run's identity, slabs, and the point after the last step */
    sim_store *moved_store;    /* memory of the simulated drives that a move copies from */
    bool is_borrowed;          /* the state came from another run */
    bool is_moved;             /* a move is done: the manifest names the new slabs */
    bool has_named_slabs;      /* a new run whose manifest names its slabs */
};

/* Draws a random id. All ranks get the one of rank 0. */
int state_draw_uuid(const struct ranks *ranks, uint8_t uuid[SLAB_UUID_BYTES]) MUST_CHECK;
/* Writes the manifest that names a new run's slabs, before they are made. If the start is killed,
 * the next one finds the slabs and removes them. */
int state_name_new_slabs(struct state_run *self, const uint8_t uuid[SLAB_UUID_BYTES]) MUST_CHECK;
/* Makes the engine of self->setup, and what commits need. If `found` is not NULL, the engine uses
 * its slabs; else it makes new ones with this uuid. */
int state_start_engine(struct state_run *self, const manifest *found,
                       const uint8_t uuid[SLAB_UUID_BYTES]) MUST_CHECK;
void state_commit_fini(state_commit *self); /* after engine_destroy */
/* Makes setup and engine with the state of `found`, either where it lies or moved to new slabs.
 * Removes leftover slabs that the manifest names, once both slots agree. */
int state_resume(struct state_run *self, manifest *found) MUST_CHECK;
/* Opens options.from and reads its last commit into *found. Only rank 0 calls it. */
int state_borrow(struct state_run *self, manifest *found) MUST_CHECK;
/* Sends rank 0's manifest to all ranks. Each rank then owns its copy of the extents. */
int state_share_manifest(const struct ranks *self, manifest *found, bool *exists) MUST_CHECK;
/* ERR_INPUT if the slabs belong to another run directory that exists. Not collective. */
int state_check_owner(const char *state_dir, const manifest_slabs *slabs) MUST_CHECK;
/* Writes a note beside the slabs, which must exist, that they belong to this directory. A note that
 * cannot be written is a warning. Not collective. */
int state_claim_slabs(const char *state_dir, const manifest_slabs *slabs) MUST_CHECK;

/* ---- commits ---- */

/* An engine_options.run_commit; `user` is the state_commit. */
int state_run_commit(void *user, const program *prog, const op *item);
/* Writes self->record into the next manifest slot, with this state. MANIFEST_RUNNING notes that the
 * state is being changed in place. */
int state_write_slot(state_commit *self, enum manifest_state state) MUST_CHECK;
/* True if the job keeps the commit of this step (run.keep). Not collective. */
bool state_is_kept(const struct job *asked, uint64_t step);
/* Copies the commit if the job keeps it. `record` is the manifest that was written for the commit,
 * or read from it. A copy that fails is a warning. */
int state_keep_commit(state_commit *self, const manifest *record) MUST_CHECK;

#endif
