/* A run as its files say it: what `verify` and `inspect` look at, without a program and without
 * memory of the tiers. Nothing is written, no lock is taken here. One thread.
 *
 *   manifest slots -> the newest valid record (its slabs: rank_slabs.h)
 *   job.json       -> the model's units by name, where it can be read */
#ifndef SLUICE_STATE_RUN_VIEW_H
#define SLUICE_STATE_RUN_VIEW_H

#include "config/job.h"
#include "format/manifest.h"
#include "model/model.h"

enum { STATE_UNIT_NAME_BYTES = 64 };

/* About 290 KiB: heap memory. */
struct state_view {
    char path[FILE_PATH_BYTES];
    char state_path[FILE_PATH_BYTES];
    manifest_slot slots[2];
    bool has_record;
    manifest record; /* of the newest valid slot */
    job *asked;      /* NULL: there is no job.json that can be read */
    model *net;      /* NULL: likewise */
};
typedef struct state_view state_view;

/* Whether there is a directory of a run: ERR_INPUT where not. Makes nothing. */
int state_view_exists(const char *run_dir) MUST_CHECK;

/* Reads what the directory holds, `with_names` also the names of its units; that slots are damaged
 * is no error, a run that is in use no hindrance. ERR_INPUT where the directory holds no run. Close
 * it in either case. */
int state_view_open(state_view *self, const char *run_dir, bool with_names) MUST_CHECK;
void state_view_close(state_view *self);

/* state/manifest-<slot>. */
void state_view_slot_path(const state_view *self, uint32_t slot, char path[FILE_PATH_BYTES]);

/* "block.3"; "unit 3" where the model is not known. */
void state_view_unit_name(const state_view *self, uint32_t unit, char name[STATE_UNIT_NAME_BYTES]);

#endif
