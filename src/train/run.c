/* A run from its opening to its end, as a whole (train_run) or step by step (train_open). This file
 * sets the order in which things are refused, made and kept. The steps themselves are in loop.c. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "train/loop_internal.h"

/* Removes the run, its memory and slab, but not its directory. */
static int remove_run(struct loop *self)
{
    engine_destroy(self->run.engine);
    self->run.engine = NULL;
    return loop_clear(self, &self->run.record);
}

/* A run that failed, and of which nothing is kept, leaves only its directory: a new run that could
 * not start, a trial or a temporary run. With several ranks, each removes the slabs that it sees,
 * but the manifest stays and says that the run had begun. A rank that is gone has removed nothing;
 * the next start removes its slabs. Returns the first error. */
static int remove_failed(struct loop *self, int failed)
{
    err_record first;
    err_save(&first, failed);
    if (failed != ERR_STOPPED) /* all ranks have agreed on a stop */
        ranks_fail_all(&self->run.ranks, failed);
    engine_destroy(self->run.engine);
    self->run.engine = NULL;
    int rc = self->run.ranks.world > 1 ? state_remove_slabs(&self->run.record.slabs)
                                       : loop_clear(self, &self->run.record);
    if (rc < 0)
        log_warn("removing what the failed run left: %s", err_text());
    return err_restore(&first);
}

/* True if the failed start must be undone. A run of several ranks that took over another run's
 * state has a commit already, which stays. */
static bool is_to_be_undone(const struct loop *self)
{
    return self->run.has_named_slabs && !(self->run.is_moved && self->run.ranks.world > 1);
}

static void sum_up_lanes(struct loop *self)
{
    for (int i = 0; i < LANE_COUNT; i++)
        self->summary->lanes[i] = self->run.engine->totals[i];
}

/* Ends a trial or a temporary run: nothing of it stays. */
static int end_without_state(struct loop *self, int result)
{
    if (result < 0)
        return remove_failed(self, result);
    TRY(ranks_barrier(&self->run.ranks, "end of a run that keeps no state"));
    return remove_run(self);
}

static int end_trial(struct loop *self, int result)
{
    sum_up_lanes(self);
    if (result >= 0)
        TRY(loop_collect_ranks(self));
    TRY(end_without_state(self, result));
    return result == 1 ? err_set(ERR_STOPPED, "stopped on request; a trial keeps no state") : 0;
}

/* Handles a failure while the state of a commit was loaded: adds the commit's step to the text.
 * Refusals stay unchanged, because they already say what to change. */
static int name_commit(int failed, uint64_t step)
{
    err_record first;
    err_save(&first, failed);
    if (failed == ERR_INPUT || failed == ERR_NO_FIT || failed == ERR_CONFIG ||
        failed == ERR_STOPPED)
        return err_restore(&first);
    return loop_name_commit(&first, step);
}

/* *has_state: rank 0 finds a state in the run directory. */
static int has_run_dir(const struct loop *self, bool *has_state)
{
    char state[FILE_PATH_BYTES + 16];
    snprintf(state, sizeof state, "%s/state", self->run.job->run.dir);
    uint8_t is_there = access(state, F_OK) == 0;
    TRY(ranks_from_rank0(&self->run.ranks, "run directory", &is_there, sizeof is_there));
    *has_state = is_there;
    return 0;
}

/* Opens the run directory. A directory that exists keeps its permissions, so this says if they let
 * others read more than the job wishes. */
static int open_run_dir(struct loop *self)
{
    const char *path = self->run.job->run.dir;
    int mode = self->run.job->run.mode, found = file_mode_of(path);
    TRY(state_check_apart(path, self->run.job->hf));
    TRY(state_run_dir_open(&self->run.dir, path, mode));
    if (found & ~mode & 0444)
        log_info("others may read %s: it keeps its permissions although run.mode is %04o; chmod -R "
                 "go-rwx makes it private",
                 path, (unsigned)mode);
    return 0;
}

/* Opens the run directory, on rank 0 only, and tells all ranks what it holds. */
static int find_state(struct loop *self, manifest *found, bool *exists)
{
    const struct ranks *ranks = &self->run.ranks;
    snprintf(self->run.dir.path, sizeof self->run.dir.path, "%s", self->run.job->run.dir);
    int rc = ranks->rank == 0 ? open_run_dir(self) : 0;
    TRY(ranks_agree(ranks, "run directory", rc));
    TRY(loop_find_run(self, found, exists));
    if (*exists || !self->options->from)
        return 0;
    rc = ranks->rank == 0 ? state_borrow(&self->run, found) : 0;
    if (rc == 0 && ranks->rank == 0)
        rc = loop_check_borrowed_tokenizer(self);
    TRY(ranks_agree(ranks, "the run to begin with", rc));
    *exists = self->run.is_borrowed = true;
    snprintf(self->run.from.path, sizeof self->run.from.path, "%s", self->options->from);
    return state_share_manifest(ranks, found, exists);
}

/* Does everything that comes before the first step. */
static int open_all(struct loop *self)
{
    manifest *found = &self->found;
    bool exists = false, has_state;
    /* Refuse first, before any file is made: unusable data, then a plan that does not fit. The
     * directory is made only after the plan fits. */
    TRY(ranks_init(&self->run.ranks, self->options->comm));
    TRY(loop_make_step_words(self));
    TRY(loop_open_data(self));
    TRY(has_run_dir(self, &has_state));
    if (!has_state) {
        struct setup_options asked = loop_setup_options(self);
        TRY(setup_create(self->run.job, &asked, &self->run.setup));
        if (!self->options->from)
            TRY(loop_open_first_weights(self));
    }
    int rc = find_state(self, found, &exists);
    if (rc == 0)
        rc = loop_make_data(self);
    if (rc == 0)
        rc = loop_start(self, exists ? found : NULL);
    if (rc == 0)
        rc = loop_start_module(self);
    if (rc == 0)
        rc = loop_make_state(self);
    manifest_fini(found);
    if (rc < 0 && is_to_be_undone(self))
        return remove_failed(self, rc);
    if (rc == ERR_CORRUPT && exists)
        return err_prefix(rc, "the commit of step %" PRIu64 " in %s cannot be resumed",
                          found->point.step, self->run.dir.path);
    if (rc < 0 && exists && (!self->run.is_borrowed || self->run.is_moved))
        return name_commit(rc, found->point.step);
    TRY(rc);
    self->summary->was_resumed = self->resumed;
    return 0;
}

static int run_all(struct loop *self)
{
    TRY(open_all(self));
    int stopped = loop_run_steps(self);
    if (stopped >= 0 && self->run.setup->gpu)
        TRY(setup_gpu_used(self->run.setup, &self->summary->gpu_used_bytes));
    if (self->options->is_trial)
        return end_trial(self, stopped);
    if (stopped < 0)
        return loop_rescue(self, stopped);
    self->summary->step = self->run.record.point.step;
    int finished = loop_finish(self, stopped == 1);
    if (finished < 0)
        return loop_rescue(self, finished);
    sum_up_lanes(self);
    TRY(loop_collect_ranks(self));
    if (stopped)
        return err_set(ERR_STOPPED,
                       "stopped on request after step %" PRIu64 " of %" PRIu64
                       "; state is committed, resume with the same command (without --fresh)",
                       self->run.record.point.step, self->run.job->run.steps);
    return 0;
}

static int create(const struct train_options *options, struct train_summary *summary,
                  struct loop **out)
{
    memset(summary, 0, sizeof *summary);
    struct loop *self = mem_alloc(1, sizeof *self, "training loop");
    *out = self;
    if (!self)
        return -ENOMEM;
    self->options = options;
    self->run.job = options->job;
    self->summary = summary;
    self->run.dir.lock_fd = self->run.from.lock_fd = -1;
    self->metrics.fd = self->board.fd = self->run.commit.metrics_fd = -1;
    loop_set_run_options(self);
    return 0;
}

/* Frees everything. `rc` is the result so far. Returns the first failure, whose text stays. */
static int destroy(struct loop *self, int rc)
{
    if (rc < 0 && rc != ERR_STOPPED)
        ranks_fail_all(&self->run.ranks, rc);
    sim_store_destroy(self->run.moved_store);
    int memory = arena_process_memory(NULL, &self->summary->resident_bytes_max, NULL);
    if (memory < 0 && rc == 0)
        rc = memory;
    err_record first; /* freeing after a failure may fail too */
    err_save(&first, rc);
    loop_tell_lost_lines(self);
    metrics_file_close(&self->metrics);
    tensorboard_file_close(&self->board);
    manifest_fini(&self->found);
    mem_free(self->step_words);
    mem_free(self->module_losses);
    engine_destroy(self->run.engine);
    state_commit_fini(&self->run.commit);
    hf_first_close(&self->first); /* it borrows the setup's model */
    setup_destroy(self->run.setup);
    manifest_fini(&self->run.record);
    loop_close_data(self);
    state_run_dir_close(&self->run.from);
    state_run_dir_close(&self->run.dir);
    mem_free(self);
    return rc < 0 ? err_restore(&first) : rc;
}

int train_run(const struct train_options *options, struct train_summary *summary)
{
    struct loop *self;
    memset(summary, 0, sizeof *summary);
    TRY(setup_refuse_module(options->job, options->is_trial ? "a trial" : "training"));
    if (options->is_temporary)
        return err_set(ERR_USAGE, "a temporary run is made step by step");
    TRY(create(options, summary, &self));
    return destroy(self, run_all(self));
}

/* ---- step by step ---- */

struct train_session {
    struct train_options options;
    struct train_summary summary;
    struct loop *loop;
    err_record failure; /* code < 0: the step or commit that ended the session failed */
};

int train_open(const struct train_options *options, train_session **out)
{
    *out = NULL;
    if (options->is_trial)
        return err_set(ERR_USAGE, "a trial is not run step by step");
    if (options->is_temporary && options->from)
        return err_set(ERR_USAGE, "a temporary run cannot begin with the state of %s",
                       options->from);
    if (!options->run_module)
        TRY(setup_refuse_module(options->job, "training"));
    train_session *self = mem_alloc(1, sizeof *self, "training session");
    if (!self)
        return -ENOMEM;
    self->options = *options;
    int rc = create(&self->options, &self->summary, &self->loop);
    if (rc == 0)
        rc = open_all(self->loop);
    if (rc < 0) {
        if (self->loop)
            rc = destroy(self->loop, rc);
        mem_free(self);
        return rc;
    }
    loop_begin_steps(self->loop);
    *out = self;
    return 0;
}

/* After a failure: commits if possible and keeps the error. The session can then only be closed. */
static int note(train_session *self, int rc)
{
    if (rc < 0) {
        rc = loop_rescue(self->loop, rc);
        err_save(&self->failure, rc);
    }
    return rc;
}

static int check_usable(const train_session *self)
{
    return self->failure.code < 0 ? err_restore(&self->failure) : 0;
}

/* With one place per extent, the next step changes the committed state in place. The manifest must
 * say so first. */
static int leave_commit(struct loop *loop)
{
    state_commit *commit = &loop->run.commit;
    if (loop->run.job->run.commit_every > 0 || !commit->has_commit)
        return 0;
    TRY(state_write_slot(&loop->run.commit, MANIFEST_RUNNING));
    commit->has_commit = false;
    return 0;
}

int train_step(train_session *self, struct train_progress *progress)
{
    TRY(check_usable(self));
    struct loop *loop = self->loop;
    if (loop->run.record.point.step >= loop->run.job->run.steps)
        return err_set(ERR_USAGE,
                       "step %" PRIu64 " is the run's last (run.steps): raise it to go on",
                       loop->run.record.point.step);
    TRY(note(self, leave_commit(loop)));
    int rc = loop_step(loop);
    TRY(loop->was_left ? rc : note(self, rc));
    *progress = loop->last;
    return 0;
}

int train_evaluate(train_session *self, double *loss)
{
    TRY(check_usable(self));
    if (!self->loop->run.job->module && !self->loop->valid_data)
        return err_set(ERR_USAGE, "there is nothing to evaluate on: give data.valid");
    TRY(note(self, ranks_meet(&self->loop->run.ranks, "an evaluation between steps")));
    if (self->loop->run.job->module) {
        int rc = loop_evaluate_module(self->loop, loss);
        return self->loop->was_left ? rc : note(self, rc);
    }
    TRY(note(self, loop_evaluate(self->loop, true)));
    *loss = self->summary.eval_loss;
    return 0;
}

int train_commit(train_session *self, uint64_t *step)
{
    TRY(check_usable(self));
    if (!loop_is_kept(self->loop))
        return err_set(ERR_USAGE, "this run is temporary: it makes no commits");
    TRY(note(self, ranks_meet(&self->loop->run.ranks, "a commit between steps")));
    TRY(note(self, loop_commit_now(self->loop)));
    *step = self->loop->run.record.point.step;
    return 0;
}

int train_broadcast(train_session *self, void *data, uint64_t bytes)
{
    const struct ranks *ranks = &self->loop->run.ranks;
    TRY(check_usable(self));
    TRY(note(self, ranks_meet(ranks, "a broadcast between steps")));
    return note(self, ranks_from_rank0(ranks, "data of the program", data, bytes));
}

int train_export(train_session *self, const struct hf_export_options *options,
                 struct hf_export_summary *summary)
{
    struct loop *loop = self->loop;
    uint64_t step;
    memset(summary, 0, sizeof *summary);
    TRY(setup_refuse_module(loop->run.job, "export"));
    TRY(train_commit(self, &step));
    struct hf_export_options asked = *options;
    asked.run_dir = loop->run.job->run.dir;
    asked.is_held = true;
    int rc = loop->run.ranks.rank == 0 ? hf_export(&asked, summary) : 0;
    return ranks_agree(&loop->run.ranks, "export", rc);
}

int train_set_group(train_session *self, uint32_t group, const engine_group *numbers)
{
    struct engine *engine = self->loop->run.engine;
    if (group >= engine->group_count)
        return err_set(ERR_USAGE,
                       "there is no group %" PRIu32 ": the module has groups 0 to %" PRIu32, group,
                       engine->group_count - 1);
    const double betas[2] = {numbers->beta1, numbers->beta2};
    bool is_wrong = numbers->learning_rate < 0 || isinf(numbers->learning_rate) ||
                    numbers->epsilon < 0 || isinf(numbers->epsilon) || isinf(numbers->weight_decay);
    for (int i = 0; i < 2; i++)
        is_wrong = is_wrong || betas[i] < 0 || betas[i] >= 1;
    if (is_wrong)
        return err_set(ERR_USAGE,
                       "group %" PRIu32 " has lr %g, weight_decay %g, betas %g and %g, eps %g: lr "
                       "and eps must be finite and at least 0, betas at least 0 and below 1",
                       group, numbers->learning_rate, numbers->weight_decay, betas[0], betas[1],
                       numbers->epsilon);
    engine->groups[group] = *numbers;
    return 0;
}

int train_home(train_session *self, uint32_t unit, void **params, uint64_t *bytes)
{
    const struct setup *setup = self->loop->run.setup;
    *params = NULL;
    *bytes = 0;
    TRY(check_usable(self));
    if (unit >= setup->net->unit_count)
        return err_set(ERR_USAGE,
                       "there is no unit %" PRIu32 ": the module has units 0 to %" PRIu32, unit,
                       setup->net->unit_count - 1);
    enum tier home = (enum tier)setup->homes[STATE_PARAMS][unit];
    if (home == TIER_NVME || (home == TIER_DEVICE && setup->gpu) ||
        plan_is_sharded(&setup->plan, STATE_PARAMS, unit))
        return 0;
    TRY(note(self, loop_apply_pending(self->loop)));
    *params = engine_home(self->loop->run.engine, setup->set.homes.params[unit]);
    *bytes = setup->net->units[unit].elems * dtype_bytes(setup->net->type);
    return 0;
}

void train_keep_memory(train_session *self, bool keeps_params, struct arena *kept)
{
    engine_keep_memory(self->loop->run.engine, keeps_params, kept);
}

bool train_is_usable(const train_session *self)
{
    return self->failure.code == 0;
}

const struct model *train_model(const train_session *self)
{
    return self->loop->run.setup->net;
}

void train_get_summary(const train_session *self, struct train_summary *summary,
                       struct setup_summary *plan)
{
    *summary = self->summary;
    summary->step = self->loop->run.record.point.step;
    setup_summarize(self->loop->run.setup, plan);
}

int train_close(train_session *self)
{
    if (!self)
        return 0;
    int rc = check_usable(self);
    if (rc == 0)
        rc = note(self, ranks_end(&self->loop->run.ranks));
    if (!loop_is_kept(self->loop))
        rc = end_without_state(self->loop, rc);
    else if (rc == 0)
        rc = note(self, loop_finish(self->loop, true));
    rc = destroy(self->loop, rc);
    mem_free(self);
    return rc;
}
