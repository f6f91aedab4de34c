/* Training: a whole run from its opening to its end (train_run), or step by step for a program that
 * wants to act between steps (train_open).
 *
 *   job ─► setup (model, placement, programs) ─► engine (arenas, slabs, lanes) ─► steps ─► commits
 *
 * A run lives in its run directory (job->run.dir). A commit is a durable state of one step; a run
 * that ended early continues from its last commit when it is started again. A trial (is_trial) only
 * measures.
 *
 * The calls block. One call at a time per process; the calling thread keeps a short scheduling
 * slice from then on. Callbacks run on the calling thread. With several ranks, all ranks call each
 * function with the same arguments. Errors are those of the err_code list; ERR_NO_FIT comes before
 * any file or large allocation is made. */
#ifndef SLUICE_TRAIN_TRAIN_H
#define SLUICE_TRAIN_TRAIN_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/words.h"
#include "config/config.h"
#include "report/metrics.h"
#include "setup/summary.h"

struct arena;
struct comm;
struct engine_group;
struct machine;
struct model;
struct model_use;
struct setup_test;
struct setup_watch;

/* The step that was just made. */
struct train_progress {
    uint64_t step, steps, tokens; /* tokens: of this step */
    double loss, grad_norm, learning_rate, seconds, tokens_per_second, model_tflops;
    double seconds_left; /* negative if unknown */
    bool has_router_losses;
    double balance_loss, router_z_loss; /* without their coefficients */
    bool skipped;
    metrics_lane lanes[LANE_COUNT];
};

struct train_eval {
    uint64_t step;
    double loss; /* nats per token of data.valid */
};

/* Resources that one rank had and used. Sizes in bytes. */
struct train_rank {
    char host[64];
    /* sizes of the device and host arenas, and of the slab's extents */
    uint64_t arena_bytes[TIER_COUNT];
    uint64_t slab_file_bytes; /* size of its slab files, headers included */
    uint64_t sent_bytes;      /* to other ranks by collectives, in the last step */
    uint64_t resident_bytes_max;
};

enum { TRAIN_RANKS_MAX = 64 }; /* whose figures a summary has */

struct train_summary {
    uint64_t step;               /* the run is at this step, and it is committed */
    uint64_t steps_done, tokens; /* done by this call */
    double seconds;
    double train_loss; /* mean loss of the last step */
    double eval_loss;
    bool eval_given;
    bool was_resumed;
    metrics_lane lanes[LANE_COUNT];
    uint64_t peak_bytes[TIER_COUNT];
    uint64_t gpu_used_bytes;     /* GPU memory in use at the end, by all processes; 0 on the CPU */
    uint64_t resident_bytes_max; /* VmHWM */
    /* our allocations between the second step and the end; should be 0 */
    uint64_t sealed_alloc_count;
    uint64_t sealed_mapped_bytes;             /* growth of the mappings in the same time */
    struct train_rank ranks[TRAIN_RANKS_MAX]; /* [min(world, TRAIN_RANKS_MAX)] on rank 0 */
    uint32_t world_size;
};

struct train_options {
    const struct job *job;
    /* The run's ranks, which the caller joins and leaves; NULL: one rank. Callbacks run on rank
     * 0. */
    struct comm *comm;
    /* measured figures (config/machine.h); NULL: the plan's defaults. Changes no bit. */
    const struct machine *machine;
    const struct setup_watch *watch; /* for a profile or a benchmark; or NULL */
    bool fresh;                      /* the run directory must be new, or hold no commit */
    /* A run directory or a kept commit with whose state a new run begins; it is not changed. NULL:
     * the run begins with initial weights. A run that already has a commit ignores it. */
    const char *from;
    bool is_trial;     /* only measure: no state is kept and nothing is left behind */
    bool is_temporary; /* for train_open: train, but keep no state and leave nothing behind */
    const volatile sig_atomic_t *stop; /* polled between steps; may be NULL */
    const struct setup_test *test;     /* NULL in a real run */
    /* Callbacks, each or NULL. on_plan comes before memory is reserved. */
    void (*on_plan)(void *user, const struct setup_summary *plan);
    void (*on_step)(void *user, const struct train_progress *progress);
    void (*on_eval)(void *user, const struct train_eval *eval);
    void *user;
    /* For train_open, if the job has model.module: the program that computes the passes, and the
     * weights with which a new run begins (NULL: zeros). */
    int (*run_module)(void *user, struct model_use *use); /* a model_runner */
    int (*first_elems)(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *master);
    void *module_user;
};

/* Trains to run.steps, from the last commit of the run directory or from the beginning. Returns 0;
 * ERR_STOPPED after a requested stop, with the state committed; or an error whose text names the
 * last commit. The summary is filled as far as the run came. */
int train_run(const struct train_options *options, struct train_summary *summary) MUST_CHECK;

/* Checks what setup_plan_on does not: ERR_NO_FIT if train_run would first make tokens, and
 * tiers.host.budget is too small for that. Files that are not here, or that cannot be read, are not
 * judged. Makes nothing. */
int train_check_tokens(const struct job *asked) MUST_CHECK;

/* Training step by step. The session begins with the state with which train_run would begin its
 * first step. One session at a time per process, and all calls from one thread. `options` is
 * copied; what its pointers refer to is borrowed until train_close. is_trial is refused. */
typedef struct train_session train_session;
int train_open(const struct train_options *options, train_session **out) MUST_CHECK;
/* Makes one step, and the commit that run.commit_every asks for; no evaluation. ERR_USAGE after
 * run.steps. A step that fails ends the session: the state is committed if it is still good, and
 * every later call except train_close returns the same error. A temporary run never commits, and
 * train_close removes it. */
int train_step(train_session *self, struct train_progress *progress) MUST_CHECK;
/* ---- jobs with model.module ----
 *
 * train_step calls the runner for each pass of the step. If the program gives up the step,
 * train_step returns -ECANCELED: the run is then at the step before and goes on, or, if
 * train_is_usable says false, the session has failed. train_evaluate runs the forward of each stage
 * for one micro-batch, and writes a line of metrics only if the program gives a loss. */

/* Sets the numbers of a group for the steps that follow. ERR_USAGE if there is no such group. */
int train_set_group(train_session *self, uint32_t group,
                    const struct engine_group *numbers) MUST_CHECK;
/* The unit's params with all updates that were made, where they rest in memory of this process;
 * *params NULL: they rest elsewhere, or other ranks have a part. Applies a pending update. */
int train_home(train_session *self, uint32_t unit, void **params, uint64_t *bytes) MUST_CHECK;
/* engine_keep_memory, for the train_close that comes next. From any thread. */
void train_keep_memory(train_session *self, bool keeps_params, struct arena *kept /* [2] */);
bool train_is_usable(const train_session *self); /* false after a failure: only to be closed */
const struct model *train_model(const train_session *self);

/* Evaluates data.valid: *loss in nats per token, also written as a line of metrics.jsonl. ERR_USAGE
 * without data.valid. */
int train_evaluate(train_session *self, double *loss) MUST_CHECK;
/* Commits the state after the last step, unless it is committed already. *step is that step. */
int train_commit(train_session *self, uint64_t *step) MUST_CHECK;
/* Gives rank 0's data[bytes] to all ranks. One rank alone returns at once. */
int train_broadcast(train_session *self, void *data, uint64_t bytes) MUST_CHECK;
/* Commits; then rank 0 runs hf_export for that commit while the other ranks wait. It sets the
 * options run_dir and is_held itself. A failed export leaves the session usable. */
struct hf_export_options;
struct hf_export_summary;
int train_export(train_session *self, const struct hf_export_options *options,
                 struct hf_export_summary *summary) MUST_CHECK;
/* Fills the summary so far, and the summary of the setup. */
void train_get_summary(const train_session *self, struct train_summary *summary,
                       struct setup_summary *plan);
/* Commits the last step if that is not done, and frees the session. After a failed step it only
 * frees, and returns that step's error. A NULL session is allowed. */
int train_close(train_session *self) MUST_CHECK;

#endif
