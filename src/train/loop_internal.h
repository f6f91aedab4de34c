/* One run of the training loop: what the files of src/train share.
 *
 *   run.c     open ─► steps ─► finish, or rescue after a failure
 *   start.c   what the run directory holds, the first state          data.c   files opened as sources of tokens
 *   loop.c    one step, evaluation, metrics                          finish.c the end of a run */
#ifndef SLUICE_LOOP_INTERNAL_H
#define SLUICE_LOOP_INTERNAL_H

#include "base/log.h"
#include "data/mixture.h"
#include "hf/hf.h"
#include "report/metrics.h"
#include "setup/loss_scale.h"
#include "state/state.h"
#include "train/train.h"

struct loop_data;
struct step_word;

struct loop {
    const struct train_options *options;
    struct state_run run; /* ranks, setup, engine, run directory, record, commit */
    manifest found;       /* at the start; it has extents until the state is made */
    state_point before;   /* the point one step earlier */
    struct hf_first_weights first;
    mixture *train_data, *valid_data; /* NULL: random tokens; no evaluation */
    struct loop_data *data;           /* where tokens may have to be made; or NULL */
    metrics_file metrics;
    bool pending; /* gradients of the step before wait to be applied */
    bool resumed;
    bool spoiled; /* the state holds what must not be committed */
    loss_scaler scaler;
    uint32_t skips_in_a_row;
    bool is_asked_to_stop;        /* some rank */
    struct step_word *step_words; /* [world] */
    uint64_t sent_bytes;          /* by collectives, in the last step */
    uint64_t mapped_at_seal;
    uint64_t begin_ns, begin_step;
    struct train_summary *summary;
    struct train_progress last; /* of the last step; seconds_left: for the steps that are left */
};

/* ---- start.c ---- */

/* Fills self->run.options from self->options. */
void loop_set_run_options(struct loop *self);
/* Opens the checkpoint of model.hf once, for a new run that begins with one; self->run.setup is
 * there. */
int loop_open_first_weights(struct loop *self) MUST_CHECK;
/* Options of a new run's setup. */
struct setup_options loop_setup_options(const struct loop *self);
/* Removes this rank's slabs of the run; on rank 0 also its files. */
int loop_clear(struct loop *self, const manifest *found) MUST_CHECK;
/* Rank 0 reads what the directory holds and decides for all: a new run, resume (*exists), or a
 * refusal. */
int loop_find_run(struct loop *self, manifest *found, bool *exists) MUST_CHECK;
/* Makes the setup, then memory. `found`: the manifest of a run to resume, or NULL; its generation
 * grows if it is written once more. */
int loop_start(struct loop *self, manifest *found) MUST_CHECK;
/* The state of step 0, or of the step where the run stopped. */
int loop_make_state(struct loop *self) MUST_CHECK;

/* ---- changed_settings.c ---- */

/* Warns once about settings that differ from the process before, and about those that no longer
 * have an effect. Before job.json and plan.json are written anew. */
void loop_tell_changes(const struct loop *self, const manifest *found);

/* ---- run_data.c: all ranks together ---- */

/* Refuses what can be refused before anything is made, and opens the data unless tokens are to be
 * made of it. */
int loop_open_data(struct loop *self) MUST_CHECK;
/* Makes the tokens, once the run directory is this run's, and opens the data. */
int loop_make_data(struct loop *self) MUST_CHECK;
/* For a state that comes from another run, which has a tokenizer: ERR_CONFIG if this job would cut
 * text into bytes without having asked for it. */
int loop_check_borrowed_tokenizer(const struct loop *self) MUST_CHECK;
void loop_close_data(struct loop *self);

/* ---- windows.c ---- */

uint64_t loop_step_windows(const struct loop *self); /* of all ranks */
/* Puts tokens and targets of this rank's windows into the host buffer: its part, in rank order, of
 * the step's windows that begin with window `first`. `from` NULL: random tokens. Sets the engine's
 * step.target_count of all ranks; they tell each other their counts if some tokens do not count as
 * targets. */
int loop_load_windows(struct loop *self, mixture *from, bool shuffled, uint64_t first) MUST_CHECK;

/* ---- loop.c ---- */

int loop_evaluate(struct loop *self, bool is_last) MUST_CHECK;
int loop_apply_pending(struct loop *self) MUST_CHECK;
int loop_step(struct loop *self) MUST_CHECK; /* one step, after the commit that is due before it */
void loop_begin_steps(struct loop *self);    /* starts the clock of the progress */
/* Steps until the last one or a stop. Returns 1 when stopped on request. */
int loop_run_steps(struct loop *self) MUST_CHECK;

/* ---- step_exchange.c ---- */

/* ERR_INPUT, on all ranks, where one has opened other data than rank 0. */
int loop_compare_data(struct loop *self) MUST_CHECK;
int loop_make_step_words(struct loop *self) MUST_CHECK;
/* The sum of all ranks' sums; sets is_asked_to_stop if one of them is to stop. */
int loop_share_step(struct loop *self, double own_sum, double *total) MUST_CHECK;
/* The sum of all ranks' counts. */
int loop_share_count(struct loop *self, uint64_t own, uint64_t *total) MUST_CHECK;
/* Fills summary.ranks on rank 0. */
int loop_collect_ranks(struct loop *self) MUST_CHECK;

/* ---- finish.c ---- */

/* Commits the state after the last step, unless that is committed already. */
int loop_commit_now(struct loop *self) MUST_CHECK;
int loop_finish(struct loop *self, bool stopped) MUST_CHECK;
/* *is_done: the last line of the metrics, of an earlier process, is an evaluation at this step. */
int loop_is_evaluated(const struct loop *self, bool *is_done) MUST_CHECK;
/* Adds to the error the commit that the run goes on from; returns its code. */
int loop_name_commit(const err_record *first, uint64_t step);
/* After a failure: commits what can be committed, and says which commit is the last. The first
 * error stays. */
int loop_rescue(struct loop *self, int failed) MUST_CHECK;

#endif
