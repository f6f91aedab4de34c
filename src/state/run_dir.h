/* The run directory, and the slabs that a manifest names.
 *
 *   <run>/job.json, plan.json, metrics.jsonl, trace.json    what people and tools read
 *   <run>/state/manifest-0, manifest-1, lock                what commits are (tiers/FORMAT.md)
 *   <run>/keep/step-<9 digits>/                             commits that are kept, each a run directory of its own
 *   <run>/hf/                                               files that belong to the model beside its weights
 *   <drive>/sluice-<uuid>/                                  the slabs
 *
 * One thread. */
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
    int lock_fd;                 /* -1: not open */
};

/* Makes the directories and takes the lock. ERR_INPUT where another process holds it. */
int state_run_dir_open(struct state_run_dir *self, const char *path) MUST_CHECK;
void state_run_dir_close(struct state_run_dir *self);
/* Writes <run>/<name> atomically: after a loss of power it is whole, old or new. */
int state_run_dir_write(const struct state_run_dir *self, const char *name,
                        const char *text) MUST_CHECK;
int state_run_dir_sync(const struct state_run_dir *self) MUST_CHECK; /* its entries */
/* Removes the slabs that `found` names (NULL: none), then the run's files. */
int state_run_dir_clear(const struct state_run_dir *self, const manifest *found) MUST_CHECK;
/* True if both paths are the same directory. */
bool state_is_same_directory(const char *one, const char *other);

/* RUN/hf; for a kept commit, that of its run. 1 and the path; 0: there is none. */
int state_hf_dir(const char *run_dir, char out[FILE_PATH_BYTES]) MUST_CHECK;

/* ---- slabs that a manifest names ---- */

/* The configuration for slab_open and slab_remove_files. The caller frees *drives. */
int state_slab_config(const manifest_slabs *from, uint32_t rank, slab_config *config,
                      slab_drive **drives) MUST_CHECK;
/* Removes the slabs of all ranks that are on this host. */
int state_remove_slabs(const manifest_slabs *slabs) MUST_CHECK;
bool state_has_slabs(const manifest_slabs *slabs); /* each file is there */
/* The manifest has absolute paths. If a run's slab lies in its own state directory (no drive was
 * named) and the whole run directory was moved, the slab moved with it, and so did those of kept
 * commits: corrects the paths in `found`. */
int state_find_moved(manifest *found, const char *state_dir) MUST_CHECK;
/* The same for the job's drives: all slabs are there, and the manifest knows them by other
 * paths. */
int state_find_renamed(manifest *found, const struct job *asked) MUST_CHECK;
/* Directory of drive `drive_idx` of a rank, without placeholders; the second: the rank's file
 * there. ERR_INPUT for a path that is too long. */
int state_drive_of_rank(const manifest_slabs *slabs, uint32_t rank, uint32_t drive_idx,
                        char path[FILE_PATH_BYTES]) MUST_CHECK;
int state_slab_of_rank(const manifest_slabs *slabs, uint32_t rank, uint32_t drive_idx,
                       char path[FILE_PATH_BYTES]) MUST_CHECK;

#endif
