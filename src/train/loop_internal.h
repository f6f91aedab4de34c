/* One run of the training loop: declarations that the files of src/train share.
 *
 *   loop_open_data ─► loop_find_run ─► loop_make_data ─► loop_start ─► loop_make_state
 *                                                                            │
 *                     loop_finish, or loop_rescue after a failure ◄─ loop_run_steps
 *
 * run.c calls these in this order; all ranks call each of them, on the loop's thread. */
#ifndef SLUICE_TRAIN_LOOP_INTERNAL_H
#define SLUICE_TRAIN_LOOP_INTERNAL_H

#include <errno.h>

#include "base/log.h"
#include "data/mixture.h"
#include "hf/hf.h"
#include "report/metrics.h"
#include "report/tensorboard.h"
#include "setup/loss_scale.h"
#include "state/state.h"
#include "train/train.h"

struct loop_data;
struct step_word;

struct loop {
    const struct train_options *options;
    struct state_run run;  /* ranks, setup, engine, run directory, manifest record, commit */
    manifest found;        /* the manifest that the run starts from; freed when the state is made */
    manifest_point before; /* step and counters one step earlier */
    struct hf_first_weights first;
    /* train_data NULL: random tokens. valid_data NULL: no evaluation. */
    mixture *train_data, *valid_data;
    masking mask;           /* share 0: the model predicts the next token */
    struct loop_data *data; /* if files may have to be made into tokens; else NULL */
    metrics_file metrics;
    tensorboard_file board;   /* closed unless the job asks for it */
    uint64_t lost_line_count; /* lines that found no room in the metrics since the last warning */
    bool pending;             /* gradients of the last step wait to be applied */
    bool was_left; /* its program has given up the last step or evaluation; the run goes on */
    double *module_losses; /* [micro-batches] of a module's step; else NULL */
    bool resumed;
    bool spoiled; /* the state is damaged and must not be committed */
    loss_scaler scaler;
    uint32_t skips_in_a_row;
    bool is_asked_to_stop;        /* some rank was asked to stop */
    struct step_word *step_words; /* [world] */
    uint64_t sent_bytes;          /* sent by collectives in the last step */
    uint64_t mapped_at_seal;
    uint64_t begin_ns, begin_step;
    struct train_summary *summary;
    struct train_progress last; /* the last step; seconds_left is for the remaining steps */
};

/* False for a trial or a temporary run: it makes no commits, and nothing of it stays. */
static inline bool loop_is_kept(const struct loop *self)
{
    return !self->options->is_trial && !self->options->is_temporary;
}

/* True if there was no room for a file. Then files for people keep their old text, and only a
 * failed commit ends the run. */
static inline bool loop_is_disk_full(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT;
}

/* loop.c: after a failure of the event file, warns with its text and goes on without it. */
void loop_give_up_board(struct loop *self);
/* loop.c: tells how many lines the metrics lack since the last call. */
void loop_tell_lost_lines(struct loop *self);

/* ---- start.c ---- */

/* Fills self->run.options from self->options. */
void loop_set_run_options(struct loop *self);
/* Opens the checkpoint of model.hf for a new run that begins with it. self->run.setup must exist.
 * Opens it once, however often it is called. */
int loop_open_first_weights(struct loop *self) MUST_CHECK;
/* The options of a new run's setup. */
struct setup_options loop_setup_options(const struct loop *self);
/* Removes this rank's slabs of the run; on rank 0 also the run's files. */
int loop_clear(struct loop *self, const manifest *found) MUST_CHECK;
/* Rank 0 reads what the run directory holds and decides for all ranks: resume (*exists), begin a
 * new run, or refuse. */
int loop_find_run(struct loop *self, manifest *found, bool *exists) MUST_CHECK;
/* Makes the setup, then reserves memory. `found`: the manifest of the run to resume, or NULL. If
 * its generation is written once more, it grows. */
int loop_start(struct loop *self, manifest *found) MUST_CHECK;
/* Makes the state of step 0, or loads the state of the step where the run stopped. */
int loop_make_state(struct loop *self) MUST_CHECK;

/* ---- run_data.c: all ranks together ---- */

/* Refuses unusable data before anything is made. Opens the data, unless tokens must be made
 * first. */
int loop_open_data(struct loop *self) MUST_CHECK;
/* Makes the tokens and opens the data. Call it when the run directory belongs to this run. */
int loop_make_data(struct loop *self) MUST_CHECK;
/* For a state that comes from another run: ERR_CONFIG if that run has a tokenizer, but this job
 * would cut text into bytes without having asked for it. */
int loop_check_borrowed_tokenizer(const struct loop *self) MUST_CHECK;
void loop_close_data(struct loop *self);

/* ---- load_windows.c ---- */

/* Windows of a step, of all ranks. */
uint64_t loop_step_windows(const struct loop *self);
/* Puts the tokens and targets of this rank's windows, and where their documents begin, into the
 * host buffer. The step's windows, of all ranks in rank order, begin with window `first`. `from`
 * NULL: random tokens. Sets the engine's step.target_count to the targets of all ranks; they
 * exchange their counts if some tokens do not count as targets. */
int loop_load_windows(struct loop *self, mixture *from, bool shuffled, uint64_t first) MUST_CHECK;

/* ---- loop.c ---- */

int loop_write_metrics(struct loop *self, const metrics_line *line) MUST_CHECK;
/* Evaluates data.valid, writes the result to the metrics and calls on_eval. Does nothing without
 * data.valid. If a stop is requested the evaluation is left, unless `is_last`. */
int loop_evaluate(struct loop *self, bool is_last) MUST_CHECK;
/* Applies the pending update, if there is one. First commits the state without it, if that commit
 * is due and must be kept. */
int loop_apply_pending(struct loop *self) MUST_CHECK;
int loop_step(struct loop *self) MUST_CHECK; /* first makes the commit that is due */
void loop_begin_steps(struct loop *self);    /* starts the clock for train_progress */
/* Runs steps until the last one or a stop. Returns 1 if it stopped on request. */
int loop_run_steps(struct loop *self) MUST_CHECK;

/* ---- step_exchange.c ---- */

/* ERR_INPUT, on all ranks, if one of them has opened other data than rank 0. */
int loop_compare_data(struct loop *self) MUST_CHECK;
/* Allocates step_words. */
int loop_make_step_words(struct loop *self) MUST_CHECK;
/* Losses of a step; summed, or the mean. */
struct loop_losses {
    double tokens;     /* those of the model's tokens that count */
    double balance, z; /* those of routers, without coefficients (model_router_losses) */
};
/* Adds all ranks' sums in rank order. Sets is_asked_to_stop if one rank is asked to stop. */
int loop_share_step(struct loop *self, const struct loop_losses *own,
                    struct loop_losses *total) MUST_CHECK;
/* *total is the sum of all ranks' counts. */
int loop_share_count(struct loop *self, uint64_t own, uint64_t *total) MUST_CHECK;
/* Fills summary.ranks on rank 0. */
int loop_collect_ranks(struct loop *self) MUST_CHECK;

/* ---- module.c: jobs with model.module ---- */

/* Has the options' program compute the passes. Call it when the setup and the engine exist. */
int loop_start_module(struct loop *self) MUST_CHECK;
/* Runs every stage's forward. *loss is NaN if the program gives none. */
int loop_evaluate_module(struct loop *self, double *loss) MUST_CHECK;

/* ---- finish.c ---- */

/* Commits the state after the last step, unless it is committed already. */
int loop_commit_now(struct loop *self) MUST_CHECK;
/* Ends a run after its last step: commits, writes the trace and, unless `stopped`, evaluates. */
int loop_finish(struct loop *self, bool stopped) MUST_CHECK;
/* *is_done is true if an earlier process has already evaluated at this step: the last line of the
 * metrics is that evaluation. */
int loop_is_evaluated(const struct loop *self, bool *is_done) MUST_CHECK;
/* Adds to the error's text the commit from which the run can continue. Returns its code. */
int loop_name_commit(const err_record *first, uint64_t step);
/* After a failure: commits the state if it is still good, and adds to the error's text which commit
 * is the last. A temporary run has none. Returns the first error. */
int loop_rescue(struct loop *self, int failed) MUST_CHECK;

#endif
