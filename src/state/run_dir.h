/* The run directory, and the slabs that a manifest names.
 *
 *   <run>/job.json, plan.json, metrics.jsonl, trace.json    files for people and tools
 *   <run>/state/manifest-0, manifest-1, lock                the commits (tiers/FORMAT.md)
 *   <run>/keep/step-<9 digits>/                             kept commits, each a run directory
 *   <run>/hf/                                               the model's files beside its weights
 *   <drive>/sluice-<uuid>/                                  the slabs
 *
 * The slabs hold the state: each rank has one file on each of its drives. A manifest names the
 * slabs of all ranks; a kept commit has its own copies of them (state_internal.h).
 *
 * One thread. An open struct state_run_dir owns one file descriptor, which holds the lock. An error
 * of state_run_dir_open leaves nothing to close, and state_run_dir_close is allowed after it. */
#ifndef SLUICE_STATE_RUN_DIR_H
#define SLUICE_STATE_RUN_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "config/job.h"
#include "format/manifest.h"
#include "tiers/slab.h"

struct state_run_dir {
    char path[FILE_PATH_BYTES];
    char state[FILE_PATH_BYTES]; /* <path>/state */
    int mode;                    /* permissions of files that are made (base/file.h) */
    int lock_fd;                 /* holds the lock; -1: not open */
};

/* Makes the directories that are missing, with this mode (run.mode of the job), and takes the lock
 * without waiting. Existing ones keep their permissions. ERR_INPUT if another process holds the
 * lock, or if the directories cannot be made. */
int state_run_dir_open(struct state_run_dir *self, const char *path, int mode) MUST_CHECK;
void state_run_dir_close(struct state_run_dir *self);
/* Writes <run>/<name> atomically: after a loss of power the file is whole, with the old or the new
 * text. */
int state_run_dir_write(const struct state_run_dir *self, const char *name,
                        const char *text) MUST_CHECK;
int state_run_dir_sync(const struct state_run_dir *self) MUST_CHECK; /* syncs its entries */
/* Removes the slabs that `found` names (NULL: none), then our own files in the run directory. Slabs
 * that cannot be removed are a warning. All other files stay. */
int state_run_dir_clear(const struct state_run_dir *self, const manifest *found) MUST_CHECK;
/* True if both paths are the same directory. */
bool state_is_same_directory(const char *one, const char *other);
/* ERR_INPUT if a run in `run_dir` would write among the files of the checkpoint `hf_dir` ("": there
 * is none), because that is `run_dir` itself or its `hf`. */
int state_check_apart(const char *run_dir, const char *hf_dir) MUST_CHECK;
/* ERR_INPUT if the directory has commits that another run has kept: a new run would neither replace
 * them nor keep its own. */
int state_check_no_kept(const char *run_dir) MUST_CHECK;

/* Finds RUN/hf; a kept commit uses the one of its run. Returns 1 and the path, or 0 if there is
 * none. */
int state_hf_dir(const char *run_dir, char out[FILE_PATH_BYTES]) MUST_CHECK;

/* ---- slabs that a manifest names ---- */

/* Fills the configuration of a rank's slab for slab_open and slab_remove_files, with the caller's
 * memory for its drives. Sizes are not set. */
int state_slab_config(const manifest_slabs *from, uint32_t rank, slab_drive drives[DRIVES_MAX],
                      slab_config *config) MUST_CHECK;
/* Removes the slabs of all ranks, as far as this host sees them. Missing ones are no error. */
int state_remove_slabs(const manifest_slabs *slabs) MUST_CHECK;
/* True if all files of rank 0 exist. */
bool state_has_slabs(const manifest_slabs *slabs);
/* A manifest has absolute paths. If no drive was named, a run's slab lies in its own state
 * directory and moves with the run directory, as do those of its kept commits. This function then
 * corrects the path in `found`. */
int state_find_moved(manifest *found, const char *state_dir) MUST_CHECK;
/* The same for drives that the job names by other paths than the manifest: if all slabs are found
 * there, `found` gets the job's paths. */
int state_find_renamed(manifest *found, const struct job *asked) MUST_CHECK;
/* The directory of drive `drive_idx` of a rank, with its placeholders filled in; and the rank's
 * slab file there. ERR_INPUT if the path is too long. */
int state_drive_of_rank(const manifest_slabs *slabs, uint32_t rank, uint32_t drive_idx,
                        char path[FILE_PATH_BYTES]) MUST_CHECK;
int state_slab_of_rank(const manifest_slabs *slabs, uint32_t rank, uint32_t drive_idx,
                       char path[FILE_PATH_BYTES]) MUST_CHECK;

#endif
