/* See run_view.h. Allocates the record's extents, the job and the model; state_view_close frees
 * them. */
#include "state/run_view.h"
#include "config/config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "state/rank_slabs.h"
#include "state/state_internal.h"

enum {
    LOOKS_MAX = 5, /* reads of a slot that a run may be writing at that moment */
    LOOK_PAUSE_NS = 20000000,
};

int state_check_committed(const manifest *record, const char *run_dir)
{
    if (record->state == MANIFEST_BEGUN)
        return err_set(ERR_INPUT, "the run in %s has no commit yet: train it first", run_dir);
    if (record->state == MANIFEST_RUNNING)
        return err_set(ERR_INPUT,
                       "the run in %s has one place per extent (run.commit_every 0) and was not "
                       "stopped cleanly: its state was changed in place after step %" PRIu64,
                       run_dir, record->point.step);
    return 0;
}

void state_view_unit_name(const state_view *self, uint32_t unit, char name[STATE_UNIT_NAME_BYTES])
{
    if (self->net && unit < self->net->unit_count)
        snprintf(name, STATE_UNIT_NAME_BYTES, "%.*s", STATE_UNIT_NAME_BYTES - 1,
                 self->net->units[unit].name);
    else
        snprintf(name, STATE_UNIT_NAME_BYTES, "unit %u", unit);
}

/* Reads both slots and the newest record. Returns 1, or 0 if a slot looks damaged and may just be
 * changing. */
static int look_at_slots(state_view *self)
{
    bool is_damaged = false;
    manifest_fini(&self->record);
    TRY(manifest_examine(self->state_path, self->slots, &self->record));
    self->has_record = false;
    for (int i = 0; i < 2; i++) {
        self->has_record |= self->slots[i].outcome == MANIFEST_SLOT_VALID;
        is_damaged |= self->slots[i].outcome == MANIFEST_SLOT_DAMAGED;
    }
    if (self->has_record)
        TRY(state_find_moved(&self->record, self->state_path));
    return !is_damaged;
}

/* A run that is in use may be writing a slot, which then looks damaged for a moment. */
static int read_record(state_view *self)
{
    for (int looks = 0; looks < LOOKS_MAX; looks++) {
        static const struct timespec pause = {.tv_nsec = LOOK_PAUSE_NS};
        if (looks > 0)
            (void)nanosleep(&pause, NULL);
        int settled = look_at_slots(self);
        if (settled != 0)
            return settled < 0 ? settled : 0;
    }
    return 0;
}

/* Reads the job and makes its model, for the names of units and to know the padding of several
 * ranks' units. If the job cannot be read, only these are missing. */
static void read_model(state_view *self)
{
    char path[FILE_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/job.json", self->path);
    if (length >= (int)sizeof path ||
        job_read(path, NULL, NULL, 0, rank_slabs_world(&self->record), &self->asked) < 0)
        return;
    const module_spec *module = self->asked->module;
    if (module) {
        if (model_create_module(module, self->asked->type, &self->net) < 0)
            self->net = NULL;
        return;
    }
    model_spec spec;
    if (setup_model_spec(self->asked, &spec) < 0)
        return;
    if (spec.expert_ranks == 0)
        spec.expert_ranks = setup_recorded_expert_ranks(&self->record);
    if (model_create(&spec, self->asked->type, self->asked->micro_batch, &self->net) < 0)
        self->net = NULL;
}

/* Sets state_path and checks that it is a directory. */
static int find_state(const char *run_dir, char state_path[FILE_PATH_BYTES])
{
    struct stat status;
    int length = snprintf(state_path, FILE_PATH_BYTES, "%s/state", run_dir);
    if (length >= FILE_PATH_BYTES)
        return err_set(ERR_INPUT, "the path of the run is too long: %.200s...", run_dir);
    bool is_there = stat(state_path, &status) == 0;
    if (!is_there && errno == EACCES)
        return file_cannot_look_into(run_dir);
    if (!is_there && access(run_dir, F_OK) != 0)
        return err_set(ERR_INPUT, "%s is no run directory: there is no such directory", run_dir);
    if (!is_there || !S_ISDIR(status.st_mode))
        return err_set(ERR_INPUT, "%s is no run directory: it has no directory \"state\"", run_dir);
    return 0;
}

int state_view_exists(const char *run_dir)
{
    char state_path[FILE_PATH_BYTES];
    return find_state(run_dir, state_path);
}

int state_view_open(state_view *self, const char *run_dir, bool with_names)
{
    memset(self, 0, sizeof *self);
    TRY(find_state(run_dir, self->state_path));
    snprintf(self->path, sizeof self->path, "%s", run_dir); /* fits: state_path is longer */
    TRY(read_record(self));
    if (self->slots[0].outcome == MANIFEST_SLOT_ABSENT &&
        self->slots[1].outcome == MANIFEST_SLOT_ABSENT)
        return err_set(ERR_INPUT, "%s holds no run: it has no manifest in \"state\"", run_dir);
    if (with_names)
        read_model(self);
    return 0;
}

void state_view_close(state_view *self)
{
    manifest_fini(&self->record);
    model_destroy(self->net);
    job_destroy(self->asked);
    memset(self, 0, sizeof *self);
}
