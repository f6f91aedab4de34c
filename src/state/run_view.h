/* A run as its files describe it, for `verify`, `inspect` and export. It needs no program and no
 * memory of the tiers, writes nothing and takes no lock. One thread.
 *
 *   manifest slots -> the newest valid record (its slabs: rank_slabs.h)
 *   job.json       -> the names of the model's units, if it can be read */
#ifndef SLUICE_STATE_RUN_VIEW_H
#define SLUICE_STATE_RUN_VIEW_H

#include "config/job.h"
#include "format/manifest.h"
#include "model/model.h"

enum { STATE_UNIT_NAME_BYTES = 64 };

/* A state_view has about 290 KiB: allocate it on the heap. */
struct state_view {
    char path[FILE_PATH_BYTES];
    char state_path[FILE_PATH_BYTES];
    manifest_slot slots[2];
    bool has_record;
    manifest record; /* of the newest valid slot */
    job *asked;      /* NULL: there is no job.json, or it cannot be read */
    model *net;      /* the job's model; NULL if asked is NULL or the model cannot be made */
};
typedef struct state_view state_view;

/* Returns 0 if run_dir has a directory "state", else ERR_INPUT. Makes nothing. */
int state_view_exists(const char *run_dir) MUST_CHECK;

/* Reads both slots and the newest valid record; with `with_names` also the job and its model.
 * Damaged slots are no error, and the run may be in use. ERR_INPUT if the directory holds no run.
 * Call state_view_close in any case, also after an error. */
int state_view_open(state_view *self, const char *run_dir, bool with_names) MUST_CHECK;
void state_view_close(state_view *self);

/* ERR_INPUT if the record is not of a commit: the run has only begun, or was changing its state in
 * place. */
int state_check_committed(const manifest *record, const char *run_dir) MUST_CHECK;

/* The name of a unit, such as "block.3"; "unit 3" if the model is not known. */
void state_view_unit_name(const state_view *self, uint32_t unit, char name[STATE_UNIT_NAME_BYTES]);

#endif
