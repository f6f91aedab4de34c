/* The start of a run: reads what the run directory holds, makes setup and memory, and the state of
 * step 0 or of the step where the run stopped. Everything that can be refused is refused before
 * anything is made. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "train/loop_internal.h"

/* The error of --fresh if there is something to lose. */
static int refuse_fresh(const struct loop *self, const manifest *found, bool is_read)
{
    char what[96] = "manifests that cannot be read";
    if (is_read && found->state == MANIFEST_RUNNING)
        snprintf(what, sizeof what,
                 "a run of one place per extent, stopped or killed after step %" PRIu64,
                 found->point.step);
    else if (is_read)
        snprintf(what, sizeof what, "a run with a commit of step %" PRIu64, found->point.step);
    return err_set(ERR_INPUT,
                   "a fresh run needs a new or empty run.dir, but %s holds %s: name another "
                   "run.dir, or remove that one (%s %s)",
                   self->run.dir.path, what, is_read ? "sluice remove" : "rm -r",
                   self->run.dir.path);
}

struct setup_options loop_setup_options(const struct loop *self)
{
    return (struct setup_options){.ranks = &self->run.ranks,
                                  .is_trial = !loop_is_kept(self),
                                  .test = self->options->test,
                                  .machine = self->options->machine,
                                  .watch = self->options->watch};
}

int loop_clear(struct loop *self, const manifest *found)
{
    if (self->run.ranks.rank == 0)
        return state_run_dir_clear(&self->run.dir, found);
    TRY(state_remove_slabs(&found->slabs));
    return state_remove_slabs(&found->leftover);
}

/* A run that was killed before its first commit has nothing to continue from: it is removed. */
static int forget_begun(struct loop *self, manifest *found)
{
    if (self->run.ranks.rank == 0)
        log_info("the run in %s has no commit yet: it begins again", self->run.dir.path);
    /* Rank 0's manifest is removed last: until all slabs are gone, it names them. */
    int rc = self->run.ranks.rank != 0 ? loop_clear(self, found) : 0;
    rc = ranks_agree(&self->run.ranks, "removal of the run's slabs", rc);
    if (rc == 0 && self->run.ranks.rank == 0)
        rc = loop_clear(self, found);
    manifest_fini(found);
    return rc;
}

/* Finds the slabs where the manifest says or, if they are not there or belong to another run, where
 * the job says. Slabs at the job's places may be of an older backup. */
static int find_slabs(const struct loop *self, manifest *found)
{
    TRY(state_find_moved(found, self->run.dir.state));
    bool are_there = state_has_slabs(&found->slabs);
    int rc = are_there ? state_check_owner(self->run.dir.state, &found->slabs) : ERR_INPUT;
    if (rc != ERR_INPUT)
        return rc;
    TRY(state_find_renamed(found, self->run.job));
    return state_check_owner(self->run.dir.state, &found->slabs);
}

/* On rank 0. *there: there is a manifest. It may be that of a run that has begun but has no
 * commit. */
static int look_at_run(struct loop *self, manifest *found, int *there)
{
    int rc = manifest_read(self->run.dir.state, found);
    bool has_manifest = rc > 0;
    bool fresh = self->options->fresh || self->options->is_temporary;
    if (rc < 0 && !(fresh && rc == ERR_CORRUPT))
        return rc;
    if (has_manifest)
        TRY(find_slabs(self, found));
    if (rc == 0)
        TRY(state_check_no_kept(self->run.dir.path));
    *there = has_manifest;
    if (has_manifest && found->state == MANIFEST_BEGUN)
        return 0;
    if (fresh && (rc < 0 || has_manifest))
        return refuse_fresh(self, found, has_manifest);
    if (has_manifest && found->state == MANIFEST_RUNNING)
        return err_set(ERR_INPUT,
                       "the run in %s has one place per extent (run.commit_every 0) and was not "
                       "stopped cleanly after step %" PRIu64
                       ": its state was changed in place and cannot be resumed; begin in another "
                       "run.dir, with run.commit_every above 0 to be able to go on",
                       self->run.dir.path, found->point.step);
    return 0;
}

int loop_find_run(struct loop *self, manifest *found, bool *exists)
{
    int there = 0, rc = self->run.ranks.rank == 0 ? look_at_run(self, found, &there) : 0;
    TRY(ranks_agree(&self->run.ranks, "run directory", rc));
    *exists = there;
    TRY(state_share_manifest(&self->run.ranks, found, exists));
    if (!*exists || found->state != MANIFEST_BEGUN)
        return 0;
    *exists = false;
    return forget_begun(self, found);
}

/* state_run_options.on_setup: shows the plan before memory is reserved. */
static void show_setup(void *user, const struct setup *setup)
{
    struct loop *self = user;
    struct setup_summary summary;
    setup_summarize(setup, &summary);
    bool speaks = self->run.ranks.rank == 0 || comm_is_pretended(self->run.ranks.comm);
    if (self->options->on_plan && speaks)
        self->options->on_plan(self->options->user, &summary);
    for (int a = 0; a < TIER_COUNT; a++)
        self->summary->peak_bytes[a] = summary.peak_bytes[a];
    log_info("%s backend: %s", setup->ops->name, setup->ops->describe(setup->context));
    char text[TOPOLOGY_TEXT_BYTES];
    log_info("%s", topology_describe(&setup->machine, text));
    log_info("%s", core_plan_describe(&setup->cores, text));
}

void loop_set_run_options(struct loop *self)
{
    const struct train_options *asked = self->options;
    self->run.options = (struct state_run_options){
        .machine = asked->machine,
        .from = asked->from,
        .is_trial = !loop_is_kept(self),
        .watch = asked->watch,
        .test = asked->test,
        .stop = asked->stop,
        .first_elems = asked->job->module ? asked->first_elems : hf_first_elems,
        .first_codes = asked->job->module ? NULL : hf_first_codes,
        .first_user = asked->job->module ? asked->module_user : &self->first,
        .on_setup = show_setup,
        .user = self,
    };
}

int loop_open_first_weights(struct loop *self)
{
    const struct state_run *run = &self->run;
    if (self->options->is_trial) /* a trial does not depend on the weights */
        return 0;
    return hf_first_open(&self->first, &run->ranks, run->job, run->setup->net);
}

/* ---- warnings about settings that differ from before ---- */

/* Reads train_tokens from the plan.json of the process before. False if there is none. */
static bool read_tokens(const char *run_dir, uint64_t *tokens)
{
    char path[FILE_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/plan.json", run_dir);
    int fd;
    uint64_t bytes;
    if (file_open(path, &fd, &bytes) < 0)
        return false;
    json_t *plan = json_loadfd(fd, 0, NULL);
    close(fd);
    const json_t *found = json_object_get(plan, "train_tokens");
    bool is_found = json_is_integer(found);
    *tokens = is_found ? (uint64_t)json_integer_value(found) : 0;
    json_decref(plan);
    return is_found;
}

static bool has_same_files(const job *was, const job *is)
{
    const struct job_files *old = &was->data.train, *new = &is->data.train;
    bool same = old->count == new->count;
    for (uint32_t i = 0; same && i < old->count; i++)
        same = strcmp(old->path[i], new->path[i]) == 0;
    return same;
}

static void tell_settings(const struct loop *self, const manifest *found)
{
    enum { TEXT_BYTES = 1024 };
    char text[TEXT_BYTES];
    uint64_t tokens = 0, has = self->train_data ? mixture_token_count(self->train_data) : 0;
    job *was = job_read_of_run(self->run.dir.path, found->world_size ? found->world_size : 1);
    if (was && job_list_changes(was, self->run.job, found->point.step, text, sizeof text) > 0)
        log_warn("the run in %s goes on with other settings: %s", self->run.dir.path, text);
    if (read_tokens(self->run.dir.path, &tokens) && tokens != has &&
        (!was || has_same_files(was, self->run.job)))
        log_warn("data.train held %" PRIu64 " tokens and now holds %" PRIu64
                 ": the samples that follow are in another order",
                 tokens, has);
    if (was && job_list_late_keys(was, self->run.job, text, sizeof text) > 0)
        log_warn("%s: it changes nothing in a run that goes on, whose weights are its own", text);
    job_destroy(was);
}

/* The names of a kept commit's drives contain the name of its directory (state/kept_commits.c). */
static bool is_kept_commit(const manifest *found)
{
    return found->slabs.drive_count > 0 && strstr(found->slabs.drives[0], ".keep/step-") != NULL;
}

/* Refuses nothing; setup/identity.c refuses what cannot continue. Call it before job.json and
 * plan.json are written again. */
static void tell_changes(const struct loop *self, const manifest *found)
{
    const struct job *asked = self->run.job;
    if (found->point.seed != asked->run.seed && !setup_is_imported(found))
        log_warn("run.seed is %" PRIu64 ", but the weights began with %" PRIu64
                 ": it changes nothing in a run that goes on",
                 asked->run.seed, found->point.seed);
    if (!self->run.is_borrowed) {
        if (!setup_is_imported(found)) /* an import has made no step with other settings */
            tell_settings(self, found);
        if (self->options->from)
            log_info("the run in %s has already begun: --from %s is ignored", self->run.dir.path,
                     self->options->from);
        if (is_kept_commit(found) && found->point.step < asked->run.steps)
            log_warn(
                "%s is a kept commit: the run goes on from it and it is not kept any more; --from "
                "with another run.dir leaves it unchanged",
                self->run.dir.path);
    }
    if (found->point.step >= asked->run.steps)
        log_line(found->point.step > asked->run.steps ? LOG_WARN : LOG_INFO,
                 "nothing to train: the run in %s is at step %" PRIu64
                 ", and run.steps is %" PRIu64,
                 self->run.is_borrowed ? self->run.from.path : self->run.dir.path,
                 found->point.step, asked->run.steps);
}

/* ---- start ---- */

/* Sets the engine and the loop to the point of the commit. */
static int take_point(struct loop *self, const manifest *found)
{
    self->run.record.point = found->point;
    if (setup_is_imported(found)) /* its weights were not drawn, and no step was made */
        self->run.record.point.seed = self->run.job->run.seed;
    TRY(loss_scaler_load(&self->scaler, found));
    self->resumed = true;
    self->run.commit.has_commit = true;
    self->run.commit.committed_step = found->point.step;
    self->run.engine->step.step = found->point.step;
    self->run.engine->step.applied = found->point.step - found->point.skipped_count;
    self->run.engine->step.seed = self->run.record.point.seed;
    return 0;
}

int loop_start(struct loop *self, manifest *found)
{
    struct setup_options asked = loop_setup_options(self);
    uint8_t uuid[SLAB_UUID_BYTES];
    loss_scaler_init(&self->scaler, self->run.job);
    loss_scaler_save(&self->scaler, &self->run.record);
    if (found) {
        TRY(state_resume(&self->run, found));
        TRY(take_point(self, found));
        if (self->run.ranks.rank == 0)
            tell_changes(self, found);
        const state_commit *commit = &self->run.commit;
        if (self->run.is_borrowed &&
            self->run.ranks.rank == 0) /* a kept copy of the commit includes job.json */
            TRY(state_run_dir_write(&self->run.dir, "job.json", self->run.job->text));
        /* An earlier attempt to keep this commit may have been killed. */
        TRY(state_keep_commit(&self->run.commit, self->run.is_moved ? &commit->record : found));
    } else {
        if (!self->run.setup)
            TRY(setup_create(self->run.job, &asked, &self->run.setup));
        TRY(loop_open_first_weights(self));
        TRY(state_draw_uuid(&self->run.ranks, uuid));
        TRY(state_name_new_slabs(&self->run, uuid));
        TRY(state_start_engine(&self->run, NULL, uuid));
        self->run.commit.record.generation = self->run.record.generation;
    }
    self->run.engine->step.loss_scale = self->scaler.scale;
    self->before = self->run.record.point;
    return 0;
}

static int open_metrics(struct loop *self)
{
    char path[FILE_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/metrics.jsonl", self->run.dir.path);
    uint64_t step = self->resumed ? self->run.record.point.step : 0;
    TRY(metrics_file_open(&self->metrics, path, self->run.job->run.mode, step));
    const char *board = self->run.job->run.tensorboard;
    if (board[0] == '\0' || self->options->is_trial)
        return 0;
    int rc = tensorboard_file_open(&self->board, board, self->run.job->run.mode, step + 1);
    if (rc < 0 && self->resumed) { /* a new run can still be told to write elsewhere */
        loop_give_up_board(self);
        rc = 0;
    }
    return rc;
}

static int write_plan(struct loop *self)
{
    uint64_t train_tokens = self->train_data ? mixture_token_count(self->train_data) : 0;
    char *text;
    TRY(setup_plan_json(self->run.setup, train_tokens, &text));
    int rc = state_run_dir_write(&self->run.dir, "plan.json", text);
    free(text);
    return rc;
}

/* Writes job.json and plan.json. A run that goes on has them already, so that it needs no room. */
static int describe_run(struct loop *self)
{
    int rc = state_run_dir_write(&self->run.dir, "job.json", self->run.job->text);
    if (rc == 0)
        rc = write_plan(self);
    if (!self->resumed || self->run.is_borrowed || !loop_is_disk_full(rc))
        return rc;
    log_warn("%s: the run goes on, and job.json or plan.json stay as they were", err_text());
    return 0;
}

/* Writes the run's files, on rank 0. */
static int write_files(struct loop *self)
{
    if (self->run.ranks.rank != 0)
        return 0;
    TRY(describe_run(self));
    if ((!self->resumed || self->run.is_borrowed) && !self->options->is_trial)
        TRY(hf_carry_side_files(&self->run.dir, self->run.job->hf,
                                self->run.is_borrowed ? self->run.from.path : NULL));
    TRY(open_metrics(self));
    return state_run_dir_sync(&self->run.dir);
}

int loop_make_state(struct loop *self)
{
    state_commit *commit = &self->run.commit;
    TRY(ranks_agree(&self->run.ranks, "files of the run", write_files(self)));
    commit->metrics_fd = self->metrics.fd;
    if (self->resumed) {
        log_info("resuming %s at step %" PRIu64, self->run.dir.path, self->run.record.point.step);
        TRY(engine_run(self->run.engine, PROGRAM_LOAD, self->run.record.point.step, NULL));
    }
    if (self->run.job->run.commit_every == 0 && loop_is_kept(self)) {
        /* one place per extent: from here on the state is changed in place */
        commit->record.point = self->run.record.point;
        TRY(state_write_slot(&self->run.commit, MANIFEST_RUNNING));
        commit->has_commit = false;
    }
    if (!self->resumed) {
        hf_first_begin(&self->first, self->run.setup, self->run.ranks.rank == 0);
        TRY(engine_run(self->run.engine, PROGRAM_INIT, 0, NULL));
        hf_first_end(&self->first);
    }
    hf_first_close(&self->first); /* frees its buffers before the first step */
    memset(self->run.engine->totals, 0, sizeof self->run.engine->totals);
    return 0;
}
