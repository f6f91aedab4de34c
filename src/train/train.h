/* Training, planning and generating: the only place that combines all other parts.
 *
 *   train_run     job -> setup (model, placement, programs) -> engine (arenas, slabs, lanes) -> steps
 *   train_plan    job -> setup alone: nothing is created, no large allocation
 *   generate_run  run directory -> parameters from its slab -> tokens
 *
 * One call at a time per process, on a thread that keeps a short scheduling slice from then on. Blocking; progress is told through callbacks on the caller's thread.
 * Errors: see the err_code list; ERR_NO_FIT comes before any file or large allocation. */
#ifndef SLUICE_TRAIN_TRAIN_H
#define SLUICE_TRAIN_TRAIN_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "config/job.h"
#include "swap/program.h"

/* What a lane did in one step or in a whole run. */
struct lane_numbers {
    uint64_t bytes;       /* moved */
    double busy_seconds;  /* at least one op was running */
    double stall_seconds; /* the cores waited for this lane */
};

struct train_progress {
    uint64_t step, steps, tokens; /* tokens of this step */
    double loss, grad_norm, learning_rate, seconds, tokens_per_second, model_tflops;
    double seconds_left; /* negative: unknown */
    bool skipped;
    struct lane_numbers lanes[LANE_COUNT];
};

struct train_eval {
    uint64_t step;
    double loss; /* nats per token of data.valid */
};

struct plan_summary {
    char model_name[96];
    uint64_t param_count, unit_count;
    uint64_t home_bytes[STATE_KIND_COUNT][ARENA_COUNT]; /* where each state rests */
    uint64_t budget_bytes[ARENA_COUNT], peak_bytes[ARENA_COUNT];
    uint64_t lane_bytes[LANE_COUNT]; /* of a steady step */
    double lane_seconds[LANE_COUNT];
    double step_seconds;  /* predicted, of a steady step */
    double bound_seconds; /* per phase, the busiest resource's work */
    uint64_t tokens_per_step, tile_elems, held_stages, op_count;
    const char *bottleneck; /* lane with most predicted work */
    const char *order;      /* schedule.order */
    const char *update;     /* schedule.update in use */
    bool machine_is_measured;
};

struct train_summary {
    uint64_t steps_done, tokens; /* of this call */
    double seconds;
    double train_loss; /* of the last step */
    double eval_loss;
    bool eval_given;
    bool was_resumed;
    struct lane_numbers lanes[LANE_COUNT];
    uint64_t peak_bytes[ARENA_COUNT];
    uint64_t gpu_used_bytes;      /* of its memory, at the end, by all processes; 0 on the CPU */
    uint64_t resident_bytes_max;  /* VmHWM */
    uint64_t sealed_alloc_count;  /* allocations of ours between the second step and the end: 0 */
    uint64_t sealed_mapped_bytes; /* growth of the mappings in the same time */
    uint64_t weights_hash; /* XXH3 over all master weights, by unit: equal weights, equal hash */
};

/* Host memory for runs that follow each other in one process, such as a benchmark's: touching and pinning
 * 100 GB takes minutes. Made for the GPU that device.backend "auto" takes, where there is one. A run
 * that is given it takes its host tier from it, and fails with ERR_NO_FIT where it needs more. Create and
 * destroy on the thread that runs. */
typedef struct train_memory train_memory;
int train_memory_create(uint64_t host_bytes, train_memory **out) MUST_CHECK;
void train_memory_destroy(train_memory *self); /* after the last run; NULL is allowed */

struct train_options {
    const struct job *job;
    train_memory *memory;              /* borrowed; NULL: memory of the run's own */
    bool fresh;                        /* begin anew where the run directory holds a run */
    bool is_trial;                     /* to measure: no state is kept, none has a place on the
                                          drives but what rests there; nothing is left behind */
    bool hash_weights;                 /* fill summary.weights_hash (reads all state once more) */
    const volatile sig_atomic_t *stop; /* polled between steps; may be NULL */
    const struct io_faults *faults;    /* tests: what the drives shall do (tiers/io.h), or NULL */
    bool simulates_drives;             /* tests: the slabs' bytes lie in memory (tiers/sim.h) */
    void (*on_plan)(void *user, const struct plan_summary *plan);
    void (*on_step)(void *user, const struct train_progress *progress);
    void (*on_eval)(void *user, const struct train_eval *eval);
    void *user;
};

/* Trains to run.steps, resuming a run that stopped cleanly. Returns 0, ERR_STOPPED after a requested
 * stop (state is committed), or an error; the summary is filled as far as the run came. */
int train_run(const struct train_options *options, struct train_summary *summary) MUST_CHECK;

/* Lists every key of a job file for people: type, choices, range, unit, default, meaning. */
void train_list_keys(FILE *out);

int train_plan(const struct job *asked, struct plan_summary *out) MUST_CHECK;

struct generate_options {
    const char *run_dir;
    const char *prompt; /* bytes */
    uint64_t prompt_bytes, token_count, top_k, seed;
    double temperature; /* 0: the likeliest token */
    const volatile sig_atomic_t *stop;
    int (*on_token)(void *user, const char *bytes, uint64_t count); /* negative ends it */
    void *user;
};

/* Continues the prompt with the model of a run that stopped cleanly. The prompt is shown first. */
int generate_run(const struct generate_options *options) MUST_CHECK;

#endif
