/* A run as its files say it: what `verify` and `inspect` look at, without a program and without memory of
 * the tiers. Nothing is written, no lock is taken here. One thread.
 *
 *   manifest slots -> the newest valid record (its slabs: rank_slabs.h)
 *   job.json       -> the model's units by name, where it can be read */
#ifndef SLUICE_TRAIN_RUN_VIEW_H
#define SLUICE_TRAIN_RUN_VIEW_H

#include "config/job.h"
#include "format/manifest.h"
#include "model/model.h"

enum { TRAINI_UNIT_NAME_BYTES = 64 };

/* About 290 KiB: heap memory. */
struct traini_view {
    char path[FILE_PATH_BYTES];
    char state_path[FILE_PATH_BYTES];
    manifest_slot slots[2];
    bool has_record;
    manifest record; /* of the newest valid slot */
    job *asked;      /* NULL: there is no job.json that can be read */
    model *net;      /* NULL: likewise */
};
typedef struct traini_view traini_view;

/* Whether there is a directory of a run: ERR_INPUT where not. Makes nothing. */
int traini_view_exists(const char *run_dir) MUST_CHECK;

/* Reads what the directory holds, `with_names` also the names of its units; that slots are damaged is no
 * error, a run that is in use no hindrance. ERR_INPUT where the directory holds no run. Close it in
 * either case. */
int traini_view_open(traini_view *self, const char *run_dir, bool with_names) MUST_CHECK;
void traini_view_close(traini_view *self);

/* state/manifest-<slot>. */
void traini_view_slot_path(const traini_view *self, uint32_t slot, char path[FILE_PATH_BYTES]);

/* "block.3"; "unit 3" where the model is not known. */
void traini_view_unit_name(const traini_view *self, uint32_t unit,
                           char name[TRAINI_UNIT_NAME_BYTES]);

#endif
