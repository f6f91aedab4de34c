/* What a run that is measured does otherwise, and whom it tells: train_options.watch. Inside of src/train.
 *
 *   on_setup   the plan is made and about to run; nothing of it is allocated yet
 *   on_step    after each step, with what its program did; the trace ring holds the step's ops
 *
 * Both on the loop's thread, or NULL; an error ends the run. on_step allocates nothing: memory is sealed. */
#ifndef SLUICE_TRAIN_WATCH_H
#define SLUICE_TRAIN_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "swap/executor.h"

struct traini_setup;
struct traini_loop;

struct traini_watched_step {
    const run_totals *totals;
    const program *prog;
    uint64_t events_begin; /* of trace.written: where the step's ops begin */
    bool skipped;          /* gradients that were not finite: its update is not applied */
    double seconds;        /* with what comes before and after the program */
};

/* only_transfers: the plan_machine.device_flops_per_second that takes no time. */
#define WATCH_NO_TIME 1e30

struct train_watch {
    double comm_bytes_per_second; /* above 0: takes the place of the machine's figure */
    /* Forward and backward do nothing but wait: as long as the machine that train_options names takes for them,
     * and without one not at all. Collectives take their time, but bring nothing of other ranks. Else all is as
     * ever: updates, closed gradients, the norm. */
    bool only_transfers;
    /* Updates compute nothing: state is read and written as it was, and the working weights are zeros, until a later
     * update makes them again. For perf/bench_side, which changes it between steps. */
    bool leaves_out_updates;
    int (*on_setup)(void *user, const struct traini_setup *setup);
    int (*on_step)(void *user, const struct traini_loop *loop,
                   const struct traini_watched_step *step);
    void *user;
};

#endif
