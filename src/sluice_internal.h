/* What the files of the public interface share. See sluice.h. */
#ifndef SLUICE_SLUICE_INTERNAL_H
#define SLUICE_SLUICE_INTERNAL_H

#include "base/error.h"
#include "sluice.h"
#include "train/train.h"

/* What training needs: the ranks, the job, the figures of the machine, and train's options with
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

/* Begins a call: log lines come as asked, and the CPU and the limits of the process are good enough,
 * also for the threads of a call that computes. */
int api_begin(int verbose, bool computes) MUST_CHECK;

/* The status for a code of base/error.h. */
int api_status_of(int rc);

struct sluice_step_info api_step_info(const struct train_progress *made);

#endif
