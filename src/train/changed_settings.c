/* Warnings for a run that is resumed: settings that differ from before, and options that no longer
 * have an effect. Nothing is refused here; setup.c refuses what cannot continue. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "train/loop_internal.h"

/* Reads train_tokens from the plan.json of the process before. False if there is none. */
static bool read_tokens(const char *run_dir, uint64_t *tokens)
{
    char path[FILE_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/plan.json", run_dir);
    json_t *plan = json_load_file(path, 0, NULL);
    const json_t *found = json_object_get(plan, "train_tokens");
    bool is_found = json_is_integer(found);
    *tokens = is_found ? (uint64_t)json_integer_value(found) : 0;
    json_decref(plan);
    return is_found;
}

/* Reads the job of the process before; NULL if it cannot be read. That process has already logged
 * the warnings about its keys. */
static job *read_job(const char *run_dir, uint32_t world)
{
    char path[FILE_PATH_BYTES + 16];
    job *was = NULL;
    snprintf(path, sizeof path, "%s/job.json", run_dir);
    enum log_level level = log_get_level();
    log_set_level(LOG_QUIET);
    int rc = job_read_ranks(path, NULL, 0, world, &was);
    log_set_level(level);
    return rc < 0 ? NULL : was;
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
    uint64_t tokens = 0, has = mixture_token_count(self->train_data);
    job *was = read_job(self->run.dir.path, found->world_size ? found->world_size : 1);
    if (was && job_list_changes(was, self->run.job, found->step, text, sizeof text) > 0)
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

void loop_tell_changes(const struct loop *self, const manifest *found)
{
    const struct job *asked = self->run.job;
    if (found->seed != asked->run.seed && !setup_is_imported(found))
        log_warn("run.seed is %" PRIu64 ", but the weights began with %" PRIu64
                 ": it changes nothing in a run that goes on",
                 asked->run.seed, found->seed);
    if (!self->run.is_borrowed) {
        if (!setup_is_imported(found)) /* an import has made no step with other settings */
            tell_settings(self, found);
        if (self->options->from)
            log_info("the run in %s has already begun: --from %s is ignored", self->run.dir.path,
                     self->options->from);
        if (is_kept_commit(found) && found->step < asked->run.steps)
            log_warn(
                "%s is a kept commit: the run goes on from it and it is not kept any more; --from "
                "with another run.dir leaves it unchanged",
                self->run.dir.path);
    }
    if (found->step >= asked->run.steps)
        log_line(found->step > asked->run.steps ? LOG_WARN : LOG_INFO,
                 "nothing to train: the run in %s is at step %" PRIu64
                 ", and run.steps is %" PRIu64,
                 self->run.is_borrowed ? self->run.from.path : self->run.dir.path, found->step,
                 asked->run.steps);
}
