/* `sluice list` and `sluice remove`: the runs below a directory, slabs that no run names, and the
 * removal of a run with its slabs.
 *
 *   <place>/.../RUN/state          a run: its manifests name drives and uuid
 *   <drive>/sluice-<uuid>/         its slabs; `owner` names the run (slab_owner.c)
 *   <drive>/sluice-<uuid>.keep/    the slabs of its kept commits
 *
 * One thread. Symbolic links are not followed, except to a run that one names. */
#ifndef SLUICE_STATE_RUNS_H
#define SLUICE_STATE_RUNS_H

#include <stdbool.h>
#include <stdint.h>

#include "state/run_dir.h"

/* ---- finding ---- */

struct state_found_run {
    char path[FILE_PATH_BYTES];
    /* "committed", "running", "begun", "damaged" as in verify.h; "empty": no manifest, as a start
     * or a removal that was killed leaves it; "in removal": a removal was killed */
    const char *state;
    uint64_t step;         /* of the newest commit */
    uint64_t bytes;        /* on the drive of the run directory, without slabs */
    uint64_t slab_bytes;   /* on the drives, with those of kept commits */
    uint32_t slab_count;   /* files */
    uint32_t absent_count; /* files that are named and not there */
    uint32_t kept_count;
};
typedef struct state_found_run state_found_run;

/* A directory of slabs that no run in the list names, and no run that its note names. */
struct state_found_slabs {
    char path[FILE_PATH_BYTES];
    char owner[FILE_PATH_BYTES]; /* the run that its note names and that is not there; or "" */
    uint64_t bytes;
};
typedef struct state_found_slabs state_found_slabs;

struct state_found {
    state_found_run *runs; /* [run_count] sorted by path */
    uint32_t run_count;
    state_found_slabs *slabs; /* [slabs_count] sorted by path */
    uint32_t slabs_count;
};
typedef struct state_found state_found;

/* Looks for runs and slabs in each place, down to STATE_FIND_DEPTH directories below it, and for
 * slabs on the drives of these runs and in `drives`. The runs may be in use. Directories below
 * these are passed over if they cannot be read, as those of other users, or have a name that begins
 * with a dot. ERR_INPUT for a place or a drive that cannot be read. Free the result with
 * state_found_fini, also after an error. */
enum { STATE_FIND_DEPTH = 4 };
int state_find(const char *const *places, uint32_t place_count, const char *const *drives,
               uint32_t drive_count, state_found *out) MUST_CHECK;
void state_found_fini(state_found *self);

/* ---- removing ---- */

/* A run that is about to be removed; holds its lock. Some 20 KiB: allocate it on the heap. */
struct state_removal {
    char path[FILE_PATH_BYTES]; /* without links */
    char link[FILE_PATH_BYTES]; /* the link that was named, or "" */
    char state[FILE_PATH_BYTES];
    int lock_fd;
    bool is_kept;        /* a kept commit */
    bool is_resumed;     /* an earlier removal was killed */
    state_found_run run; /* what there is */
    /* The directory is a copy: its slabs belong to this run and stay. Else "". */
    char owner[FILE_PATH_BYTES];
    /* One sentence: why some of its slabs cannot be removed from here. "": all can be removed. */
    char missing[ERR_TEXT_BYTES];
};
typedef struct state_removal state_removal;

/* Examines the run and takes its lock. Changes nothing. ERR_INPUT: no run, or in use. -ELOOP: parts
 * of it are links. Call state_removal_close in any case. */
int state_removal_open(state_removal *self, const char *path) MUST_CHECK;
/* Removes, in this order: the slabs of kept commits and these commits, the run's slabs, its other
 * files, its manifests, its directory. If it is killed, the run is "in removal": other commands
 * refuse it, and another removal goes on. Files that are not the run's stay: *rest is the name of
 * one, or "". With `missing` call it only if what is missing may stay where it is. */
int state_removal_run(state_removal *self, char rest[FILE_PATH_BYTES]) MUST_CHECK;
void state_removal_close(state_removal *self);

/* ERR_INPUT if a removal of the run was killed. */
int state_check_not_removed(const char *state_dir) MUST_CHECK;

#endif
