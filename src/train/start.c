/* The start of a run: what the run directory holds, setup, memory, and the state of step 0 or of
 * the step where the run stopped. Everything that can be refused is refused before anything is made. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/mem.h"
#include "train/train_internal.h"
#include "train/weights.h"

/* What --fresh says where there is something to lose. */
static int refuse_fresh(const traini_loop *self, const manifest *found, bool is_read)
{
    char what[96] = "manifests that cannot be read";
    if (is_read && found->state == MANIFEST_RUNNING)
        snprintf(what, sizeof what,
                 "a run of one place per extent, stopped or killed after step %" PRIu64,
                 found->step);
    else if (is_read)
        snprintf(what, sizeof what, "a run with a commit of step %" PRIu64, found->step);
    return err_set(
        ERR_INPUT,
        "--fresh asks for a new or empty run.dir, but %s holds %s: name another run.dir, "
        "or remove that run (its directory%s%s)",
        self->dir.path, what, is_read ? ", and its slabs in " : "",
        is_read ? found->slabs.drives[0] : "");
}

struct traini_setup_options traini_setup_options_of(const traini_loop *self)
{
    return (struct traini_setup_options){.ranks = &self->ranks,
                                         .is_trial = self->options->is_trial,
                                         .pace = self->options->pace,
                                         .machine = self->options->machine,
                                         .norm_part_bytes = self->options->norm_part_bytes,
                                         .watch = self->options->watch};
}

int traini_clear(traini_loop *self, const manifest *found)
{
    if (self->ranks.rank == 0)
        return traini_run_dir_clear(&self->dir, found);
    TRY(traini_remove_slabs(&found->slabs));
    return traini_remove_slabs(&found->stray);
}

/* A run that was killed before its first commit, or while it began, has nothing to go on from. */
static int forget_begun(traini_loop *self, manifest *found)
{
    if (self->ranks.rank == 0)
        log_info("the run in %s has no commit yet: it begins again", self->dir.path);
    /* Rank 0's manifest goes last: until all slabs are gone it names them. */
    int rc = self->ranks.rank != 0 ? traini_clear(self, found) : 0;
    rc = traini_agree(&self->ranks, "removal of the run's slabs", rc);
    if (rc == 0 && self->ranks.rank == 0)
        rc = traini_clear(self, found);
    manifest_fini(found);
    return rc;
}

/* Commits that another run has kept here: a new one would neither replace them nor keep its own. */
static int refuse_kept(const traini_loop *self)
{
    char path[FILE_PATH_BYTES + 16], name[sizeof path + 300];
    snprintf(path, sizeof path, "%s/keep", self->dir.path);
    DIR *directory = opendir(path);
    if (!directory)
        return 0;
    int rc = 0;
    for (const struct dirent *entry; rc == 0 && (entry = readdir(directory));)
        for (int slot = 0; rc == 0 && slot < 2; slot++) {
            snprintf(name, sizeof name, "%s/%s/state/manifest-%d", path, entry->d_name, slot);
            if (strncmp(entry->d_name, "step-", 5) == 0 && access(name, F_OK) == 0)
                rc = err_set(ERR_INPUT,
                             "%s holds commits that another run has kept, such as %s, but not that "
                             "run: name another run.dir, or move or remove %s",
                             self->dir.path, entry->d_name, path);
        }
    closedir(directory);
    return rc;
}

/* Where the manifest says; else, and where those are another run's, where the job says. Slabs there that lie
 * beside those of the manifest may be of an older backup. */
static int find_slabs(const traini_loop *self, manifest *found)
{
    TRY(traini_find_moved(found, self->dir.state));
    bool are_there = traini_has_slabs(&found->slabs);
    int rc = are_there ? traini_check_owner(self->dir.state, &found->slabs) : ERR_INPUT;
    if (rc != ERR_INPUT)
        return rc;
    TRY(traini_find_renamed(found, self->job));
    return traini_check_owner(self->dir.state, &found->slabs);
}

/* On rank 0. What is *there may be a manifest of a run that has begun and has no commit. */
static int look_at_run(traini_loop *self, manifest *found, int *there)
{
    int has_manifest = 0;
    int rc = manifest_read(self->dir.state, found, &has_manifest);
    if (rc < 0 && !(self->options->fresh && rc == ERR_CORRUPT))
        return rc;
    if (has_manifest)
        TRY(find_slabs(self, found));
    if (rc == 0 && (!has_manifest || found->state == MANIFEST_BEGUN))
        TRY(refuse_kept(self));
    *there = has_manifest;
    if (has_manifest && found->state == MANIFEST_BEGUN)
        return 0;
    if (self->options->fresh && (rc < 0 || has_manifest))
        return refuse_fresh(self, found, has_manifest);
    if (has_manifest && found->state == MANIFEST_RUNNING)
        return err_set(ERR_INPUT,
                       "the run in %s has one place per extent (run.commit_every 0) and was not "
                       "stopped cleanly after step %" PRIu64
                       ": its state was changed in place and cannot be resumed; begin in another "
                       "run.dir, with run.commit_every above 0 to be able to go on",
                       self->dir.path, found->step);
    return 0;
}

int traini_find_run(traini_loop *self, manifest *found, bool *exists)
{
    int there = 0, rc = self->ranks.rank == 0 ? look_at_run(self, found, &there) : 0;
    TRY(traini_agree(&self->ranks, "run directory", rc));
    *exists = there;
    TRY(traini_share_manifest(&self->ranks, found, exists));
    if (!*exists || found->state != MANIFEST_BEGUN)
        return 0;
    *exists = false;
    return forget_begun(self, found);
}

int traini_draw_uuid(const struct traini_ranks *ranks, uint8_t uuid[SLAB_UUID_BYTES])
{
    int rc = 0;
    if (getrandom(uuid, SLAB_UUID_BYTES, 0) != SLAB_UUID_BYTES)
        rc = err_errno(errno, "cannot draw an id for the slabs");
    TRY(traini_agree(ranks, "id of the slabs", rc));
    return traini_from_rank0(ranks, "id of the slabs", uuid, SLAB_UUID_BYTES);
}

/* Before a new run's slabs are made, the manifest names them: whenever the start is killed, the next one
 * finds what it left. */
int traini_announce(traini_loop *self, const uint8_t uuid[SLAB_UUID_BYTES])
{
    manifest *record = &self->record;
    traini_name_slabs(self->setup, uuid, &record->slabs);
    traini_name_run(self->setup, record);
    self->announced = true;
    record->state = MANIFEST_BEGUN;
    record->generation++;
    int rc = self->ranks.rank == 0 ? manifest_write(self->dir.state, record) : 0;
    TRY(traini_agree(&self->ranks, "the run's first manifest", rc));
    return failpoint("slab.create");
}

static void show_setup(traini_loop *self)
{
    struct plan_summary summary;
    traini_setup_summary(self->setup, &summary);
    bool speaks = self->ranks.rank == 0 || comm_is_pretended(self->ranks.comm);
    if (self->options->on_plan && speaks)
        self->options->on_plan(self->options->user, &summary);
    for (int a = 0; a < TIER_COUNT; a++)
        self->summary->peak_bytes[a] = summary.peak_bytes[a];
    log_info("%s backend: %s", self->setup->ops->name,
             self->setup->ops->describe(self->setup->context));
    char text[TOPOLOGY_TEXT_BYTES];
    log_info("%s", topology_describe(&self->setup->machine, text));
    log_info("%s", core_plan_describe(&self->setup->cores, text));
}

int traini_start_engine(traini_loop *self, const manifest *found,
                        const uint8_t uuid[SLAB_UUID_BYTES])
{
    show_setup(self);
    const struct train_watch *watch = self->options->watch;
    if (watch && watch->on_setup)
        TRY(watch->on_setup(watch->user, self->setup));
    struct traini_engine_options options = {
        .faults = self->options->faults,
        .simulates_drives = self->options->simulates_drives,
        .store = self->options->store,
        .memory = self->options->memory,
        .is_paced = self->options->pace != NULL,
        .watch = watch,
        .open_existing = found != NULL,
        .slab_bytes = found ? found->total_bytes : 0,
        .stripe_bytes = found ? found->stripe_bytes : 0,
        .found = found,
    };
    memcpy(options.uuid, uuid, sizeof options.uuid);
    TRY(traini_engine_create(self->setup, &options, &self->engine));
    traini_commit *commit = &self->engine->commit;
    commit->state_dir = self->dir.state;
    commit->job = self->job;
    if (self->options->is_trial) /* what is killed leaves no file on the drives */
        return self->engine->disk_is_open ? slab_unname(self->engine->disk) : 0;
    TRY(traini_record_init(self->engine, &commit->record));
    if (self->job->run.keep_every > 0 || self->job->run.keep_count > 0)
        TRY(traini_keeper_create(self->ranks.rank == 0 ? self->dir.path : NULL, self->job,
                                 commit->record.extent_count, &commit->keeper));
    return self->ranks.rank == 0 ? traini_claim_slabs(self->dir.state, &commit->record.slabs) : 0;
}

/* The engine and the loop at the point of the commit. */
static int take_point(traini_loop *self, const manifest *found)
{
    traini_point point;
    traini_point_take(&point, found);
    traini_point_put(&point, &self->record);
    TRY(loss_scaler_load(&self->scaler, found));
    self->resumed = true;
    self->engine->commit.has_commit = true;
    self->engine->commit.committed_step = found->step;
    self->engine->step.step = found->step;
    self->engine->step.applied = found->step - found->skipped_count;
    self->engine->step.seed = found->seed;
    return 0;
}

int traini_start(traini_loop *self, manifest *found)
{
    struct traini_setup_options asked = traini_setup_options_of(self);
    uint8_t uuid[SLAB_UUID_BYTES];
    loss_scaler_init(&self->scaler, self->job);
    loss_scaler_save(&self->scaler, &self->record);
    if (found) {
        TRY(traini_resume(self, found));
        TRY(take_point(self, found));
        if (self->ranks.rank == 0)
            traini_tell_changes(self, found);
        const traini_commit *commit = &self->engine->commit;
        if (self->is_borrowed && self->ranks.rank == 0) /* a copy of the commit takes it along */
            TRY(traini_run_dir_write(&self->dir, "job.json", self->job->text));
        /* An attempt to keep it may have been killed. */
        TRY(traini_keep_commit(self->engine, self->is_moved ? &commit->record : found));
    } else {
        if (!self->setup)
            TRY(traini_setup_create(self->job, &asked, &self->setup));
        TRY(traini_open_weights(self));
        TRY(traini_draw_uuid(&self->ranks, uuid));
        TRY(traini_announce(self, uuid));
        TRY(traini_start_engine(self, NULL, uuid));
        self->engine->commit.record.generation = self->record.generation;
    }
    self->engine->step.loss_scale = self->scaler.scale;
    traini_point_take(&self->before, &self->record);
    return 0;
}

static int open_metrics(traini_loop *self)
{
    char path[FILE_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/metrics.jsonl", self->dir.path);
    uint64_t lines = 0;
    if (self->resumed)
        TRY(metrics_lines_through(path, self->record.step, &lines));
    return metrics_file_open(&self->metrics, path, lines);
}

/* Rank 0's. */
static int write_files(traini_loop *self)
{
    if (self->ranks.rank != 0)
        return 0;
    uint64_t train_tokens = self->train_data ? mixture_token_count(self->train_data) : 0;
    TRY(traini_run_dir_write(&self->dir, "job.json", self->job->text));
    if ((!self->resumed || self->is_borrowed) && !self->options->is_trial)
        TRY(traini_carry_side_files(self->dir.path, self->job->model.hf,
                                    self->is_borrowed ? self->from.path : NULL));
    TRY(traini_write_plan(&self->dir, self->setup, train_tokens));
    TRY(open_metrics(self));
    return traini_run_dir_sync(&self->dir);
}

int traini_make_state(traini_loop *self)
{
    traini_commit *commit = &self->engine->commit;
    TRY(traini_agree(&self->ranks, "files of the run", write_files(self)));
    commit->metrics_fd = self->metrics.fd;
    if (self->resumed) {
        log_info("resuming %s at step %" PRIu64, self->dir.path, self->record.step);
        TRY(traini_engine_run(self->engine, PROGRAM_LOAD, self->record.step, NULL));
    }
    if (self->job->run.commit_every == 0 && !self->options->is_trial) {
        traini_point point; /* one place per extent: from here on it is changed in place */
        traini_point_take(&point, &self->record);
        traini_point_put(&point, &commit->record);
        TRY(traini_write_slot(self->engine, MANIFEST_RUNNING));
        commit->has_commit = false;
    }
    if (!self->resumed) {
        traini_first_begin(self->engine, self->weights, self->ranks.rank == 0);
        TRY(traini_engine_run(self->engine, PROGRAM_INIT, 0, NULL));
        traini_first_end(self->engine);
    }
    weights_close(self->weights); /* what it holds is memory of the run's own again */
    self->weights = NULL;
    memset(self->engine->totals, 0, sizeof self->engine->totals);
    return 0;
}
