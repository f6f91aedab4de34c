/* The end of a run: the last commit, the trace, the last evaluation; and the handling of a
 * failure. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "report/chrome_trace.h"
#include "train/loop_internal.h"

static int write_trace(const struct loop *self)
{
    char path[FILE_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/trace.json", self->run.dir.path);
    const model *net = self->run.setup->net;
    const char **names = mem_alloc(net->unit_count, sizeof *names, "trace names");
    if (!names)
        return -ENOMEM;
    for (uint32_t u = 0; u < net->unit_count; u++)
        names[u] = net->units[u].name;
    chrome_trace_names labels = {
        .process = "sluice rank 0", .unit_names = names, .unit_count = net->unit_count};
    engine_trace_drives(self->run.engine, &labels);
    int rc = chrome_trace_write(path, self->run.job->run.mode, &self->run.engine->ring, &labels);
    mem_free(names);
    return rc;
}

int loop_commit_now(struct loop *self)
{
    state_commit *commit = &self->run.commit;
    if (commit->has_commit && commit->committed_step == self->run.record.point.step)
        return 0;
    TRY(loop_apply_pending(self));
    commit->record.point = self->run.record.point;
    return engine_run(self->run.engine, PROGRAM_SAVE, self->run.record.point.step, NULL);
}

int loop_is_evaluated(const struct loop *self, bool *is_done)
{
    uint8_t is_last = self->resumed && self->run.ranks.rank == 0 &&
                      metrics_file_ends_evaluated(&self->metrics, self->run.record.point.step);
    TRY(ranks_from_rank0(&self->run.ranks, "last evaluation", &is_last, sizeof is_last));
    *is_done = is_last;
    return 0;
}

/* Ends a run after its last step. The commit comes first, so that no later failure can lose the
 * run. */
int loop_finish(struct loop *self, bool stopped)
{
    const struct setup_test *test = self->options->test;
    TRY(loop_commit_now(self));
    if (test && test->on_end)
        TRY(test->on_end(test->user, self->run.engine));
    if (self->summary->steps_done > 0 && self->run.ranks.rank == 0 && self->run.job->run.trace &&
        write_trace(self) < 0) /* before evaluation overwrites it */
        log_warn("trace.json is not written: %s", err_text());
    bool is_done;
    TRY(loop_is_evaluated(self, &is_done));
    return self->valid_data && !stopped && !is_done ? loop_evaluate(self, true) : 0;
}

int loop_name_commit(const err_record *first, uint64_t step)
{
    /* the rank that failed has added it already */
    if (strstr(first->text, "; the last good commit is of step "))
        return err_restore(first);
    return err_set(first->code,
                   "%s; the last good commit is of step %" PRIu64
                   ", the same command goes on from there",
                   first->text, step);
}

/* Adds to the error's text from which commit the run would continue. */
static int tell_last_commit(const struct loop *self, const err_record *first)
{
    const state_commit *commit = &self->run.commit;
    if (self->run.ranks.rank == 0 && access(self->run.dir.state, F_OK) != 0 && errno == ENOENT)
        return err_set(first->code, "%s; %s was removed while it was in use, so the run is lost",
                       first->text, self->run.dir.state);
    if (self->run.job->run.commit_every == 0 && !commit->has_commit)
        return err_set(first->code,
                       "%s; with one place per extent (run.commit_every 0) the state was being "
                       "changed in place, so the run cannot be resumed",
                       first->text);
    if (!commit->has_commit)
        return err_set(first->code,
                       "%s; the run had no commit yet, the same command begins it again",
                       first->text);
    if (first->code == ERR_CORRUPT) /* the commit itself may be corrupt */
        return err_set(first->code,
                       "%s; the last commit is of step %" PRIu64
                       ": `sluice verify %s` says whether it is whole, and then the same command "
                       "goes on from there",
                       first->text, commit->committed_step, self->run.dir.path);
    return loop_name_commit(first, commit->committed_step);
}

int loop_rescue(struct loop *self, int failed)
{
    err_record first;
    err_save(&first, failed);
    if (self->options->is_temporary) {
        ranks_fail_all(&self->run.ranks, failed);
        return err_set(failed, "%s; the run was temporary, so its state is lost", first.text);
    }
    /* With several ranks, a rank that failed must not wait for the others, because a commit takes
     * all of them. If training diverges, all ranks see it at the same step. */
    if (self->run.ranks.world > 1 && failed != ERR_DIVERGED) {
        ranks_fail_all(&self->run.ranks, failed); /* the rank that reports names the last commit */
        return tell_last_commit(self, &first);
    }
    /* After ERR_CORRUPT, the bytes that were read wrongly may be those of the commit, even one of
     * this very step. */
    if (self->spoiled || failed == ERR_CORRUPT || loop_commit_now(self) < 0)
        return tell_last_commit(self, &first); /* here also if the engine itself failed */
    return err_set(failed, "%s; the state after step %" PRIu64 " is committed", first.text,
                   self->run.record.point.step);
}
