/* Declarations that the files of the public interface share. See sluice.h. */
#ifndef SLUICE_SLUICE_INTERNAL_H
#define SLUICE_SLUICE_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "base/error.h"
#include "model/model.h"
#include "setup/summary.h"
#include "sluice.h"
#include "train/train.h"

/* The inputs of training: the ranks, the job, the figures of the machine, and train's options with
 * all of these. */
struct api_inputs {
    struct comm *ranks;
    struct job *asked;
    struct machine *figures; /* or NULL */
    struct train_options train;
};

/* Joins the ranks and reads job and machine. After a failure too, api_inputs_fini must follow. */
int api_inputs_init(struct api_inputs *self, const char *job_path,
                    const struct sluice_options *options) MUST_CHECK;

/* Leaves the ranks and frees everything. `rc` is the result so far; returns it. Its text stays. */
int api_inputs_fini(struct api_inputs *self, int rc) MUST_CHECK;

/* Begins a call. Sets the log level. Checks that the CPU and the limits of the process are good
 * enough, also for the threads of a call that computes. */
int api_begin(int verbose, bool computes) MUST_CHECK;

/* A pass of a module on its way from a worker of the library to the caller and back:
 *
 *   NOTHING ──api_run_pass──► POSTED ──sluice_module_wait──► HELD ──sluice_module_done──► NOTHING
 *                                                            │  ▲
 *                                        sluice_module_pause ▼  │ api_run_pass has run updates
 *                                                            PAUSED
 *
 * A step that is given up takes it back to NOTHING from anywhere. */
enum api_use { API_USE_NOTHING, API_USE_POSTED, API_USE_HELD, API_USE_PAUSED };

/* An open run. A thread of its own makes all calls of the session, so that the caller's threads
 * keep their cores and their scheduling. `lock` guards all members below it. A worker's own lock
 * may be taken within it (use->pause.is_wanted), never the other way round. */
struct sluice_run {
    struct api_inputs inputs; /* of the run's thread while it works */
    train_session *session;
    const char *job_path; /* while it opens */
    struct train_summary summary;
    struct setup_summary plan;
    struct train_progress made; /* by the last step */
    int (*first)(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values);
    void *first_user;
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t asked; /* for the run's thread: there is a call, or the end */
    pthread_cond_t told;  /* for all others: a call is over, or a use has changed hands */
    int (*call)(sluice_run *self, void *argument); /* NULL: none */
    void *argument;
    bool ends;
    err_record result; /* of the last call */
    struct sluice_info info;
    char failure[ERR_TEXT_BYTES]; /* of the program; "": none */

    /* a module's step or evaluation */
    bool is_open;
    enum api_use use_state;
    model_use *use; /* of the worker that waits */
    bool is_given_up;
    char why[ERR_TEXT_BYTES]; /* it was given up */
};

/* Has the run's thread make the call; api_end_call waits for its end and returns its result. */
void api_begin_call(sluice_run *self, int (*call)(sluice_run *self, void *argument),
                    void *argument);
int api_end_call(sluice_run *self) MUST_CHECK;
int api_call(sluice_run *self, int (*call)(sluice_run *self, void *argument),
             void *argument) MUST_CHECK;

/* A call for these: makes one step. No argument. */
int api_make_step(sluice_run *self, void *argument) MUST_CHECK;

/* A model_runner; `user` is the run. */
int api_run_pass(void *user, model_use *use);
/* An engine_first_elems: calls the caller's `first`. */
int api_first_elems(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values);
/* Gives up the open step or evaluation of a module, and waits for its end. Returns its code. */
int api_give_up(sluice_run *self, const char *why) MUST_CHECK;
/* ERR_USAGE if a step or evaluation of a module is open, or the job has a module at all. */
int api_check_closed(sluice_run *self, const char *function) MUST_CHECK;

/* The status for a code of base/error.h. */
int api_status_of(int rc);

struct sluice_step_info api_step_info(const struct train_progress *made);

#endif
