/* What a run that is measured does differently, and whom it tells. `sluice profile` and benchmarks
 * pass one.
 *
 *   on_setup   the plan is made; nothing of it is allocated yet
 *   on_step    after each step; the engine's trace ring holds the step's ops
 *
 * Both run on the loop's thread and may be NULL; an error ends the run. on_step must not allocate:
 * memory is sealed. */
#ifndef SLUICE_SETUP_WATCH_H
#define SLUICE_SETUP_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct engine;
struct program;
struct run_totals;
struct setup;

struct setup_watched_step {
    const struct run_totals *totals;
    const struct program *prog;
    uint64_t events_begin; /* of trace.written: where the step's ops begin */
    bool skipped;          /* gradients were not finite, so the update was not applied */
    double seconds;        /* with what comes before and after the program */
};

/* only_transfers: a plan_machine.device_flops_per_second so high that computing takes no time. */
#define WATCH_NO_TIME 1e30

struct setup_watch {
    double comm_bytes_per_second; /* above 0: replaces the machine's figure */
    /* Forward and backward only wait, as long as the machine of train_options takes for them, or
     * not at all where no machine is given. Collectives take their time but bring no other rank's
     * bytes. Updates, gradients and the norm are computed as usual. */
    bool only_transfers;
    /* Updates compute nothing: state is read and written unchanged, and the working weights are
     * zeros until a later update makes them again. A benchmark changes this between steps. */
    bool leaves_out_updates;
    int (*on_setup)(void *user, const struct setup *setup);
    int (*on_step)(void *user, const struct engine *engine, const struct setup_watched_step *step);
    void *user;
};

#endif
