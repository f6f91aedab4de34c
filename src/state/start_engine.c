/* Names a new run's slabs, and makes the engine of a run with what its commits need. */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/failpoint.h"
#include "state/state_internal.h"

int state_draw_uuid(const struct ranks *ranks, uint8_t uuid[SLAB_UUID_BYTES])
{
    int rc = 0;
    if (getrandom(uuid, SLAB_UUID_BYTES, 0) != SLAB_UUID_BYTES)
        rc = err_errno(errno, "cannot draw an id for the slabs");
    TRY(ranks_agree(ranks, "id of the slabs", rc));
    return ranks_from_rank0(ranks, "id of the slabs", uuid, SLAB_UUID_BYTES);
}

int state_name_new_slabs(struct state_run *self, const uint8_t uuid[SLAB_UUID_BYTES])
{
    manifest *record = &self->record;
    state_name_slabs(self->setup, uuid, &record->slabs);
    state_name_run(self->setup, record);
    self->has_named_slabs = true;
    record->state = MANIFEST_BEGUN;
    record->generation++;
    int rc = self->ranks.rank == 0 ? manifest_write(self->dir.state, record) : 0;
    TRY(ranks_agree(&self->ranks, "the run's first manifest", rc));
    return failpoint("slab.create");
}

int state_start_engine(struct state_run *self, const manifest *found,
                       const uint8_t uuid[SLAB_UUID_BYTES])
{
    const struct state_run_options *asked = &self->options;
    const struct setup_watch *watch = asked->watch;
    if (asked->on_setup)
        asked->on_setup(asked->user, self->setup);
    if (watch && watch->on_setup)
        TRY(watch->on_setup(watch->user, self->setup));
    state_commit *commit = &self->commit;
    struct engine_options options = {
        .memory = asked->memory,
        .watch = watch,
        .test = asked->test,
        .first_elems = asked->first_elems,
        .first_user = asked->first_user,
        .run_commit = state_run_commit,
        .commit_user = commit,
        .open_existing = found != NULL,
        .slab_bytes = found ? found->total_bytes : 0,
        .stripe_bytes = found ? found->stripe_bytes : 0,
        .found = found,
    };
    memcpy(options.uuid, uuid, sizeof options.uuid);
    TRY(engine_create(self->setup, &options, &self->engine));
    commit->engine = self->engine;
    commit->state_dir = self->dir.state;
    commit->job = self->job;
    commit->metrics_fd = -1;
    if (asked->is_trial) /* a killed trial leaves no file on the drives */
        return self->engine->disk_is_open ? slab_unname(self->engine->disk) : 0;
    TRY(state_record_init(commit));
    if (self->job->run.keep_every > 0 || self->job->run.keep_count > 0)
        TRY(state_keeper_create(self->ranks.rank == 0 ? self->dir.path : NULL, self->job,
                                commit->record.extent_count, &commit->keeper));
    return self->ranks.rank == 0 ? state_claim_slabs(self->dir.state, &commit->record.slabs) : 0;
}
