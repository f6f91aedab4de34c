/* How a run that is measured differs from other runs, and the callbacks that it makes. `sluice
 * profile` and benchmarks use it.
 *
 *   on_setup   called when the plan is made; nothing of it is allocated yet
 *   on_step    called after each step; the engine's trace ring holds the step's ops
 *
 * Both run on the loop's thread and may be NULL. An error that they return ends the run. on_step
 * must not allocate, because memory is sealed then. */
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
    /* the step's ops are the trace events from this value of trace.written on */
    uint64_t events_begin;
    bool skipped;   /* gradients were not finite, so the update was not applied */
    double seconds; /* of the whole step, with the work before and after its program */
};

/* With only_transfers: a plan_machine.device_flops_per_second so high that computing takes no
 * time. */
#define WATCH_NO_TIME 1e30

struct setup_watch {
    double comm_bytes_per_second; /* if above 0, it replaces the machine's figure */
    /* Forward and backward compute nothing. They only wait for as long as train_options.machine
     * would need, or not at all if no machine is given. Collectives take their time but bring no
     * other rank's bytes. Updates, gradients and the norm are computed as usual. */
    bool only_transfers;
    /* Updates compute nothing. State is read and written unchanged, and the working weights are
     * zeros until a later update makes them again. A benchmark changes this between steps. */
    bool leaves_out_updates;
    int (*on_setup)(void *user, const struct setup *setup);
    int (*on_step)(void *user, const struct engine *engine, const struct setup_watched_step *step);
    void *user;
};

#endif
