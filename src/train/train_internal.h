/* What the files of src/train share.
 *
 *   model_spec.c  the job's model block as a model_spec
 *   setup.c       job -> model, placement, plan          engine.c      memory, slabs, lanes, start, end
 *   norm.c        the global norm of gradients, part by part
 *   compute.c     ops -> calls of the ops table          run_dir.c     files of the run directory
 *   loop.c        steps, evaluation, metrics             commit.c      what a commit does, and when
 *   run.c         a run from its opening to its end  read_job.c   one job for all ranks
 *   start.c       data, run directory, first state   resume.c      the state of an earlier process
 *   finish.c      the end of a run                    generate.c    sampling from a trained run
 *   placement.c   where each state rests             scalars.c     a step's update scalars
 *   state_formats.c  how state is stored             drives.c      what a plan has of drives
 *   loss_scale.c  the loss scale of fp16             backend.c     CPU or GPU, and what it can hold
 *   memory.c      host memory that outlives a run    recut.c       extents in another layout
 *   keep.c        copies of commits                   verify.c      all sums, and what a run is
 *   owner.c       whose slabs they are               rank_slabs.c  the slabs of all ranks
 *   ranks.c       what ranks tell each other         summary.c     a plan in figures
 *   engine_lanes.c  the lanes of an engine         figures.c     what the machine can do, of one rank
 *   described.c   a machine that is not this one    plan_json.c   plan.json; plan_memory.c its curves
 *   data.c        files as sources, and as tokens
 *   windows.c     tokens of a step                   as_rank.c     one rank of ranks that are not there
 *   first_weights.c  what a new run begins with      side_files.c  what goes with a model beside weights
 *   trained.c     a run or a checkpoint to look at   fill.c        its parameters to where they rest
 *   evaluate.c    the loss on files                  load_ranks.c  parameters of a commit
 *   profile*.c, watch.c  steps that are measured */
#ifndef SLUICE_TRAIN_INTERNAL_H
#define SLUICE_TRAIN_INTERNAL_H

#include <sched.h>

#include "base/trace.h"
#include "comm/comm.h"
#include "data/mixture.h"
#include "format/manifest.h"
#include "kernels/ops.h"
#include "model/model.h"
#include "plan/plan.h"
#include "prof/metrics.h"
#include "swap/executor.h"
#include "swap/lane_io.h"
#include "swap/lane_pace.h"
#include "swap/lane_stream.h"
#include "swap/paranoid.h"
#include "swap/places.h"
#include "tiers/arena.h"
#include "tiers/device.h"
#include "tiers/drive_speed.h"
#include "tiers/io.h"
#include "tiers/sim.h"
#include "tiers/slab.h"
#include "tiers/topology.h"
#include "train/loss_scale.h"
#include "train/train.h"
#include "train/watch.h"

struct machine;
struct weights;

/* Which of the run's ranks this process is. ranks.c */
struct traini_ranks {
    comm *comm; /* borrowed; NULL: one rank */
    uint32_t rank, world;
    uint32_t local_rank, local_world; /* among those of this host */
    bool shares_cores;                /* with other ranks of this host */
    char host[COMM_HOST_BYTES];       /* its name */
};
int traini_ranks_init(struct traini_ranks *self, comm *members) MUST_CHECK;
void traini_name_host(struct traini_ranks *self);
/* As the functions of comm.h; of one rank what it has. */
int traini_agree(const struct traini_ranks *self, const char *what, int code) MUST_CHECK;
/* The others learn of this rank's failure, whose text is this thread's. */
void traini_fail_all(const struct traini_ranks *self, int code);
int traini_barrier(const struct traini_ranks *self, const char *what) MUST_CHECK;
int traini_from_rank0(const struct traini_ranks *self, const char *what, void *data,
                      uint64_t bytes) MUST_CHECK;
/* *value becomes whether all ranks have it. */
int traini_all_true(const struct traini_ranks *self, const char *what, bool *value) MUST_CHECK;
/* What rank 0 has found, to all; the extents of the others are theirs to free. */
int traini_share_manifest(const struct traini_ranks *self, manifest *found,
                          bool *exists) MUST_CHECK;

/* A job made into a model and programs; no memory of the tiers yet. setup.c */
struct traini_setup {
    const struct job *job;
    const kernel_ops *ops; /* of the device */
    kernel_context *context;
    device *gpu;          /* NULL: the CPU computes */
    uint32_t gpu_sharers; /* ranks that have this GPU */
    enum comm_backend collectives;
    uint64_t gpu_free_at_open; /* of its memory, before CUDA's libraries took theirs */
    uint64_t nccl_bytes;       /* that NCCL holds of it while it is open */
    model *net;
    model *single; /* with a cache: the same model for calls of one token; else NULL */
    plan_job plan;
    plan_stage *stages;
    plan_pass *passes; /* of all stages */
    uint64_t pass_count;
    uint64_t *unit_elems;
    uint8_t *
        is_frozen; /* [unit_count] 1: the unit does not learn, and its params are part of the state; with
                           params_alone there is none, and no unit is */
    uint8_t *homes[STATE_KIND_COUNT];
    plan_set set;
    uint32_t reason_count;
    char reasons[PLAN_REASONS_MAX][PLAN_REASON_BYTES]; /* of the placement, sentences */
    char identity[MANIFEST_TEXT_BYTES]; /* what the bits depend on, as in manifest.h */
    uint64_t fingerprint;               /* of it */
    int thread_count;                   /* that compute */
    topology machine;
    core_plan cores;
    struct traini_ranks ranks;
    uint8_t *stays_gathered;        /* [unit_count] plan_job */
    uint64_t workspace_temp_offset; /* model's `saved` lies at 0 of the workspace, temp here */
    slab_drive drives[DRIVES_MAX];
    char drive_names[DRIVES_MAX]
                    [FILE_PATH_BYTES]; /* their paths, placeholders of ranks as they are */
    uint32_t drive_count;
    const struct machine *stated; /* borrowed, while it is set up: its figures; NULL: defaults */
    bool is_described;            /* train_plan_options: nothing of this machine was looked at */
    bool described_gpu;           /* with is_described: a GPU would compute; gpu is NULL */
    bool only_fits;               /* traini_setup_options */
    bool only_homes;              /* likewise */
    uint64_t need_bytes[TIER_COUNT]; /* of only_fits: that its programs take at least */
};
typedef struct traini_setup traini_setup;

struct traini_setup_options {
    const struct traini_ranks *ranks; /* NULL: as job->world says, none of whom is there */
    uint32_t local_world;             /* with no ranks: how many of them share a host; 0: all */
    const struct train_pace *pace;    /* train_options */
    const struct machine *machine;    /* train_options, train_plan_options */
    bool is_described;                /* train_plan_options */
    bool only_fits;           /* to learn whether it fits: the setup has homes, but no programs */
    bool only_homes;          /* with only_fits: plan_place_asked */
    uint64_t norm_part_bytes; /* train_options */
    bool only_eval;           /* parameters and forward alone */
    bool
        params_alone; /* with only_eval: there is no state to load them from, whoever runs it fills their homes
                                 (fill.c). No drives but those that the job names */
    model_window window;             /* of the model; zeros: as it trains */
    bool is_trial;                   /* train_options */
    const struct train_watch *watch; /* likewise */
    const manifest *found; /* a run to go on: ERR_INPUT, naming what differs, where its bits cannot;
                              or (only_eval) to look at; NULL: a new one */
    const char *found_in;  /* the run directory of `found`; NULL: the job's */
    bool as_it_lies; /* with `found`: on its slabs, with its tile size; else on the job's drives */
};

/* model_spec.c. The second writes the lines of a run's identity for what most models leave at its default, of
 * a spec that model_create has completed, and returns their length as snprintf does. */
model_spec traini_model_spec(const struct job_model *from);
int traini_variant_identity(const model_spec *spec, char *text, size_t capacity);

int traini_setup_create(const struct job *asked, const struct traini_setup_options *options,
                        traini_setup **out) MUST_CHECK;
void traini_setup_destroy(traini_setup *self);
/* A record of weights that no run has changed (import.c): its identity holds the model alone, so that any job of the
 * model can go on from it. */
int traini_name_import(const struct job *asked, const model *net, manifest *record) MUST_CHECK;
/* identity.c: what such a record keeps of an identity, whether a record is one, and ERR_INPUT, naming what differs,
 * where a job of that identity cannot go on from it. */
void traini_import_identity(const char *identity, char text[MANIFEST_TEXT_BYTES]);
bool traini_is_imported(const manifest *found);
int traini_check_import(const manifest *found, const char *identity,
                        const char *run_dir) MUST_CHECK;
/* What of the drives' budgets the plan cannot have: needs drive_count. drives.c, as the next three */
void traini_fill_overhead(traini_setup *self);
/* Drives: the job's, those of an existing slab, or the run directory for the final state alone. */
int traini_make_drives(traini_setup *self, const struct traini_setup_options *options) MUST_CHECK;
/* The directories that a job's slabs are made in, as they are known from any directory; placeholders of ranks
 * as they are. */
int traini_job_drives(const struct job *asked, slab_drive drives[DRIVES_MAX],
                      uint32_t *count) MUST_CHECK;
/* Ranks of this host that divide the budget and the space of a drive among them: all, where its path is not
 * each one's own. */
uint32_t traini_drive_sharers(const struct traini_ranks *ranks, const char *path);
/* Sets ops, and for a GPU gpu and context. ERR_CONFIG where the job demands a GPU that is not there; where
 * it leaves the choice, a GPU that cannot be used is warned of. backend.c */
int traini_choose_backend(traini_setup *self) MUST_CHECK;
/* ERR_CONFIG where who updates has no kernel for the formats that the job's state is kept in. */
int traini_check_state_kernels(const traini_setup *self) MUST_CHECK;
int traini_make_cpu_context(traini_setup *self) MUST_CHECK; /* once the cores are placed */
/* The device budget on a GPU: what the job asks (0: all it can have), ERR_NO_FIT above what its free
 * memory allows. After model_prepare, when the libraries have taken theirs. */
int traini_gpu_budget(const traini_setup *self, uint64_t asked_bytes,
                      uint64_t *budget_bytes) MUST_CHECK;
int traini_gpu_used(const traini_setup *self, uint64_t *used_bytes) MUST_CHECK;
/* How collectives move, all ranks alike. After traini_choose_backend. backend.c */
int traini_choose_collectives(traini_setup *self) MUST_CHECK;
/* What the machine can do, of one rank: the stated figures, and the plan's defaults where there are none. Once
 * cores are placed and drives are known. figures.c */
void traini_machine_figures(const traini_setup *self, plan_machine *machine);
/* Transfers of the rank's drives: their most bytes and how many each way are in flight on a drive. What the job
 * says; else what the machine file says of these drives, as measured; else the job's defaults. figures.c */
void traini_drive_settings(const traini_setup *self, uint64_t *block_bytes, uint32_t *queue_depth);
/* Threads that its kernels were measured with, of a rank; 0: not known. figures.c */
double traini_measured_threads(const struct machine *from);
/* Bytes of all drives of a host, at most INT64_MAX. described.c */
uint64_t traini_drives_capacity(const struct machine *on);
/* With is_described, in place of what is found out here: how the ranks lie on its hosts; ops (kernels/reference),
 * context, thread counts and collectives; budgets and drives, after the plan's inputs. ERR_CONFIG where the machine
 * cannot have such ranks, ERR_NO_FIT for budgets above what it has. described.c */
int traini_described_ranks(traini_setup *self) MUST_CHECK;
int traini_described_device(traini_setup *self) MUST_CHECK;
int traini_described_budgets(traini_setup *self) MUST_CHECK;
/* Fills the seconds of the passes and stages from the machine's kernels; nothing where it is NULL, was not
 * measured with the model's type, or computes on another kind of device. After traini_machine_figures. costs.c */
void traini_price_passes(traini_setup *self, const struct machine *from);
/* What the watch states of the machine, and that nothing computes. watch.c */
void traini_watch_inputs(traini_setup *self, const struct traini_setup_options *options);
/* Seconds that a forward or backward op waits in place of computing. watch.c */
double traini_watched_seconds(const traini_setup *setup, const op *item);
/* Fills homes and update from the job, choosing what it leaves open, and compiles. placement.c */
int traini_place_and_compile(traini_setup *self) MUST_CHECK;
/* ranks.c: the least of all ranks' budgets, the most of their workspaces, rank 0's figures of the
 * machine, its times of the passes and its identity. */
int traini_share_inputs(traini_setup *self) MUST_CHECK;
/* ERR_INTERNAL, on all ranks, where their programs differ. */
int traini_compare_programs(const traini_setup *self) MUST_CHECK;
/* First element, within the unit, of the optimizer state that rests on this rank. */
uint64_t traini_state_begin(const traini_setup *self, uint32_t unit);
/* Bytes of an arena that the programs reach: budgets are limits, and what no program reaches need not be
 * taken from the machine. */
uint64_t traini_reached_bytes(const traini_setup *self, enum tier which);
/* Predicted, of steady steps with and without a commit as they come in a run. */
double traini_mean_step_ns(const plan_job *plan, const plan_set *set);
/* The binding lane, of a plan as of a measurement: the one that is busy longest; of equals computing. */
enum lane_kind traini_busiest_lane(const double seconds[LANE_COUNT]);
void traini_setup_summary(const traini_setup *self, struct plan_summary *out);

/* Scalars of a step, written between programs by the loop's thread, read by the workers in them. */
struct traini_step {
    uint64_t step;    /* optimizer step being computed, from 1 */
    uint64_t applied; /* optimizer steps begun so far: the t of the bias correction */
    uint64_t seed;    /* of the run, for rounding of state that is not fp32 */
    adam_scalars
        scalars;       /* of the pending (or, with no update pending, this step's) update; Lion and
                             Adagrad take theirs from here */
    bool skip;         /* the update of these scalars is skipped: overflow */
    double loss_scale; /* that this step's gradients carry; 1 but for fp16 */
    uint64_t target_count; /* of all ranks' windows: the loss is the mean over them */
    double grad_norm;      /* out: of this step, without the loss scale */
};

struct traini_keeper; /* keep.c */
typedef struct traini_keeper traini_keeper;

/* A point of a run between two steps: what a commit of it says, and a resume sets. */
struct traini_point {
    uint64_t seed; /* of the initial weights */
    uint64_t step, window_count, skipped_count;
    double loss_scale;
    uint64_t scale_iteration, scale_hysteresis_left;
    int64_t scale_last_overflow;
};
typedef struct traini_point traini_point;

/* What OP_COMMIT is to do. The loop fills it before a program that commits; the commit's worker reads it,
 * and writes it where it says so. */
struct traini_commit {
    bool is_due;           /* the program at hand commits: executor_config.is_committing */
    const char *state_dir; /* borrowed */
    int metrics_fd; /* synced before a manifest, so that every committed step has its line; -1 */
    const struct job *job;
    traini_keeper *keeper; /* or NULL */
    manifest record; /* of the next slot but for generation and extents, which the worker fills */
    bool has_commit; /* worker: record.step is durable */
    uint64_t committed_step;
    struct traini_placed *own, *all; /* [extents of a rank]; of several ranks, on rank 0: of all */
};
typedef struct traini_commit traini_commit;

struct train_memory {
    arena host;
    device *gpu; /* NULL: none */
    bool is_pinned;
};

/* What PROGRAM_INIT brings: a checkpoint's weights, or the model's own. first_weights.c */
struct traini_first_weights {
    struct weights *from;                                /* borrowed; NULL: the model's own */
    bool speaks;                                         /* lines of progress */
    uint64_t done_bytes, total_bytes, begin_ns, told_ns; /* bytes of fp32, of this rank */
};
enum { TRAINI_LOGITS_NONE = -2 };

/* A setup with its memory and lanes. engine.c */
struct traini_engine {
    traini_setup *setup;
    arena arenas[2];   /* device, host; of a GPU's memory only base and size are set */
    bool is_pinned;    /* the host arena, for the GPU, by the engine */
    bool borrows_host; /* the host arena is a train_memory's */
    void *results[2];  /* of traini_result_memory on the CPU */
    slab *disk;
    bool disk_is_open;
    io *transport;
    sim_store *store;     /* of simulated drives, where it is the engine's own to free; else NULL */
    checksum_table *sums; /* of params, grads and activations that the programs write to the slab */
    place_table *places;  /* of the optimizer state there */
    traini_commit commit;
    enum io_backend io_kind;
    lane *read_lane, *write_lane, *commit_lane;
    lane_pace *pace;                /* train_options.pace; or NULL */
    lane *comm_lane;                /* of several ranks, but where a GPU's stream serves it */
    lane *core_lane, *copy_lane;    /* NULL with a GPU */
    lane *gpu_lane;                 /* compute and copies of a GPU; NULL: the CPU */
    lane *update_lane;              /* NULL: the update runs on the core lane */
    kernel_context *update_context; /* likewise; of the CPU's backend */
    double *
        norm_nodes; /* sums of squares of the step's gradients, as norm.c has them; pinned for a GPU */
    paranoid *checked_cores, *checked_updates, *checked_copies, *checked_comm; /* run.paranoid */
    executor *runner;
    trace ring;
    struct traini_step step;
    cpu_set_t caller_cores; /* of the thread that made the engine, which it gets back */
    bool is_bound;
    const struct train_watch *watch; /* train_options; or NULL */
    struct traini_first_weights first;
    /* >= 0: the head's forward writes logits of this row instead of losses; TRAINI_LOGITS_NONE: nothing */
    int64_t logits_row;
    bool is_single;           /* the program is run for one token: setup->single */
    uint64_t position, count; /* with a cache: of the call, as in model_call */
    float *logits;            /* [V]; pinned for a GPU */
    struct lane_numbers totals[LANE_COUNT];
};
typedef struct traini_engine traini_engine;

struct traini_engine_options {
    uint8_t uuid[SLAB_UUID_BYTES];
    bool open_existing;
    uint64_t slab_bytes; /* of an existing slab; 0: as the plan needs */
    const io_faults *faults;
    bool simulates_drives;
    struct sim_store **store; /* train_options; or NULL */
    uint64_t stripe_bytes;
    const manifest *found;           /* whose extents the slab holds, or NULL */
    const train_memory *memory;      /* host memory to use, or NULL */
    bool is_paced;                   /* train_options.pace is given; the CPU computes */
    const struct train_watch *watch; /* train_options; or NULL */
};

int traini_engine_create(traini_setup *setup, const struct traini_engine_options *options,
                         traini_engine **out) MUST_CHECK;
void traini_engine_destroy(traini_engine *self);
/* Runs a program of the set; adds to self->totals; run may be NULL. */
int traini_engine_run(traini_engine *self, enum program_kind kind, uint64_t step,
                      run_totals *run) MUST_CHECK;
unsigned char *traini_home(const traini_engine *self, uint32_t buffer_idx);

/* Zeroed memory of the host that the device can write results to; the engine's. */
int traini_result_memory(traini_engine *self, uint64_t size_bytes, void **out) MUST_CHECK;

/* engine_lanes.c, for engine.c: after arenas, places and the drives' lanes, in this order. */
int traini_make_workers(traini_engine *self) MUST_CHECK;
int traini_open_collectives(traini_engine *self) MUST_CHECK; /* all ranks together */
int traini_pace_lanes(traini_engine *self) MUST_CHECK;       /* train_options.pace */
int traini_make_executor(traini_engine *self) MUST_CHECK;
void traini_destroy_lanes(traini_engine *self);
int traini_start_io_thread(void *group); /* a core_group: threads that mostly wait */
void traini_list_programs(const traini_engine *self, const program *programs[PROGRAM_KIND_COUNT]);

/* first_weights.c: before PROGRAM_INIT, and after it. */
void traini_first_begin(traini_engine *engine, struct weights *from, bool speaks);
void traini_first_end(traini_engine *engine);
/* Elements [begin, begin + count) of a unit's padded flat vector as a new run has them. Changes all of `master`. On
 * the thread of the op that wants them. */
int traini_first_elems(traini_engine *engine, uint32_t unit, uint64_t begin, uint64_t count,
                       float *master) MUST_CHECK;

/* norm.c: room for what comes of a step's norm; part `part` of it (plan_set.norm_part_begin), from the sums of
 * this rank or, of several, of all of them as gathered, which it puts in order in `ordered`; and once all
 * parts are complete the sum of the squares. The middle one is enqueued on a GPU's stream. */
int traini_make_norm(traini_engine *self) MUST_CHECK;
int traini_reduce_norm(const traini_engine *self, void *stream, uint32_t part, const double *sums,
                       double *ordered) MUST_CHECK;
double traini_norm_total(const traini_engine *self);

/* compute.c: the workers' callbacks; `user` is the engine. On a GPU an op is enqueued on its stream, and
 * finished when it is complete. */
int traini_run_op(void *user, const program *prog, const op *item);
int traini_enqueue_op(void *user, const program *prog, const op *item, void *stream);
int traini_finish_op(void *user, const program *prog, const op *item);
int traini_run_copy(void *user, const program *prog, const op *item);
int traini_run_collective(void *user, const program *prog, const op *item);
/* The streams code (base/tile.h) of the job's optimizer state; of fp32 where params are there alone, which then are
 * no half of it. state_formats.c */
uint32_t traini_state_streams(const struct job *asked, bool params_alone);
/* Its lines of the run's identity; none where all is fp32. Returns as snprintf. state_formats.c */
int traini_state_identity(const struct job *asked, char *text, size_t capacity);

enum { TRAINI_FORMATS_BYTES = 64 };

/* "fp32, bf16, bf16" of a streams code. Returns `text`. state_formats.c */
const char *traini_formats_text(uint32_t streams, char text[TRAINI_FORMATS_BYTES]);

/* What stochastic rounding in the `update`-th update of a unit draws from (kernels/ops.h). state_formats.c */
uint64_t traini_rounding_key(uint64_t seed, uint64_t update, uint32_t unit);

/* The clip factor and skip flag from the norm; scalars of update `applied` (1-based). scalars.c */
void traini_make_scalars(traini_engine *self);
/* Whether a step's gradients wait for a later program to be applied. */
bool traini_leaves_update(const traini_setup *setup);

/* run_dir.c */
struct traini_run_dir {
    char path[FILE_PATH_BYTES];
    char state[FILE_PATH_BYTES];
    int lock_fd;
};
bool traini_is_same_directory(const char *one, const char *other); /* under whatever names */
/* Makes the directories and takes the lock. ERR_INPUT where another process holds it. */
int traini_run_dir_open(struct traini_run_dir *self, const char *path) MUST_CHECK;
void traini_run_dir_close(struct traini_run_dir *self);
/* The file is whole, as it was or as it is now, also after a loss of power. */
int traini_run_dir_write(const struct traini_run_dir *self, const char *name,
                         const char *text) MUST_CHECK;
int traini_run_dir_sync(const struct traini_run_dir *self) MUST_CHECK; /* its entries */
int traini_run_dir_clear(const struct traini_run_dir *self, const manifest *found) MUST_CHECK;
/* What slab_open and slab_remove_files want to know of slabs that a manifest names. The caller frees
 * *drives. */
int traini_slab_config(const manifest_slabs *from, uint32_t rank, slab_config *config,
                       slab_drive **drives) MUST_CHECK;
/* Those of all its ranks, as far as they are on this host. */
int traini_remove_slabs(const manifest_slabs *slabs) MUST_CHECK;
/* The manifest has absolute paths. Where a run's slab lies in its own state directory (no drive was named)
 * and the whole run directory was moved, the slab is found there, as is that of a commit kept in it: its
 * path is corrected in `found`. */
int traini_find_moved(manifest *found, const char *state_dir) MUST_CHECK;
bool traini_has_slabs(const manifest_slabs *slabs); /* each file, under its name */
/* Directory of drive `drive_idx` of a rank, with its placeholders replaced; the rank's file there;
 * rank_slabs.c. ERR_INPUT for a path without room. */
int traini_drive_of_rank(const manifest_slabs *slabs, uint32_t rank, uint32_t drive_idx,
                         char path[FILE_PATH_BYTES]) MUST_CHECK;
int traini_slab_of_rank(const manifest_slabs *slabs, uint32_t rank, uint32_t drive_idx,
                        char path[FILE_PATH_BYTES]) MUST_CHECK;
/* The same for the job's drives: all slabs are there, and the manifest knows them by other names. */
int traini_find_renamed(manifest *found, const struct job *asked) MUST_CHECK;
int traini_make_absolute(char path[FILE_PATH_BYTES]) MUST_CHECK; /* setup.c */

/* --- identity.c --- */

/* "model.num_layers was 12 and is 24; ...", as many as there is room for. */
void traini_list_differences(const char *was, const char *is, char *text, size_t capacity);

/* --- learning.c --- */

/* spec.learn and spec.lora from the job's train block; the rest of spec is filled. ERR_CONFIG for a layer
 * that the family does not have. */
int traini_fill_learning(const struct job *asked, model_spec *spec) MUST_CHECK;
/* The lines of the run's identity that say what learns, none where everything does; their length. */
size_t traini_name_learning(const model *net, char *text, size_t capacity);
/* owner.c: ERR_INPUT where the slabs are those of another run directory that is there. */
int traini_check_owner(const char *state_dir, const manifest_slabs *slabs) MUST_CHECK;
/* Notes beside the slabs, which exist, that they are those of this directory; a failure is a warning. */
int traini_claim_slabs(const char *state_dir, const manifest_slabs *slabs) MUST_CHECK;
void traini_disclaim_slabs(const manifest_slabs *slabs); /* before they are removed */
int traini_write_plan(const struct traini_run_dir *self, const traini_setup *setup,
                      uint64_t train_tokens) MUST_CHECK; /* those of data.train */

/* side_files.c: RUN/hf, or of a commit that was kept that of its run: 1 and the path, 0 where there is none. */
int traini_side_dir(const char *run_dir, char out[FILE_PATH_BYTES]) MUST_CHECK;
/* Where the job's tokenizer is that of its checkpoint: what its file is called in such a directory; else NULL. */
const char *traini_hf_tokenizer(const struct job *asked);
/* Whether the job names a tokenizer, "bytes" too, that is there and is another than its checkpoint's: it goes before
 * RUN/hf. */
bool traini_names_tokenizer(const struct job *asked);
/* Copies what is there of hf_side_files to RUN/hf: from another run where `from_run` names one, else from the
 * checkpoint's directory; "": nothing. */
int traini_carry_side_files(const char *run_dir, const char *from_hf,
                            const char *from_run) MUST_CHECK;
int traini_remove_side_files(const char *run_dir) MUST_CHECK;

/* recut.c: this rank's part of the committed state of `found`, whatever ranks wrote it, to the places of `to`
 * (a slab made for another layout, placement, tile size, number of drives or of ranks; place 0 of each extent,
 * which becomes newest with its sum). Same units, streams and bits; what lies behind a unit's end is dropped,
 * and zeros in the new layout. What was frozen and learns now gets its params as master weights and zeros as
 * moments; what learned and is frozen now, the working copy of its master weights. Each rank reads what its own tiles overlap, from the files of the ranks that
 * wrote it (rank_slabs.h). Streams tile by tile: memory is one tile of the old and one of the new size, or 32
 * MiB of each where that is more, and RANK_SLABS_OPEN_MAX open slabs. Every extent read is compared with its
 * sum: ERR_CORRUPT names unit, tile, file and offset. ERR_INPUT for a slab that cannot be seen from this host.
 * `backend` as for io_create. Failpoint recut.copied at the end. Blocks; log lines tell progress. */
struct traini_recut {
    const manifest *found;
    slab *to;
    place_table *places;        /* of `to` */
    const uint64_t *unit_elems; /* [unit_count] of the model */
    uint32_t unit_count;
    uint32_t rank, world; /* of the new run; world 0 acts as 1 */
    bool
        is_sharded; /* the places are those of the rank's shards (plan_is_sharded); else whole units */
    uint32_t state_streams;
    const uint8_t
        *is_frozen; /* [unit_count] of the new run, whose params alone are kept; NULL: none */
    enum dtype param_type; /* of frozen params, of both runs */
    enum io_backend backend;
    /* By rank of `found`; NULL, or NULL at the rank: opened here when wanted, files. */
    slab *const *from;                 /* open already */
    sim_store *const *from_store;      /* simulated drives */
    sim_store *to_store;               /* likewise, or NULL */
    const volatile sig_atomic_t *stop; /* ERR_STOPPED, nothing is changed; may be NULL */
    const io_faults *faults;           /* tests: of the drives of both, or NULL */
    uint64_t stuck_ns, stop_ns;        /* as for io_create, but 0 for stuck_ns is 30 s */
};
/* Whether all slabs that the copy will read can be seen, before anything is made: of `work` only found,
 * unit_elems, unit_count, rank, world and is_sharded count. ERR_INPUT as above. */
int traini_recut_check(const struct traini_recut *work) MUST_CHECK;
int traini_recut_copy(const struct traini_recut *work) MUST_CHECK;

/* keep.c: whether the commit of a step is one to keep, and the copy of the one that `record` was just
 * written for: run directory "<run>/keep/step-<9 digits>/" with job.json and state/manifest-<g mod 2>, slabs
 * under "<drive>/sluice-<uuid>.keep/step-<9 digits>/". It is a run directory of its own: verify, inspect,
 * generate and train take it. Complete before its manifest is there; an existing one is left alone, a
 * partial one made anew. Called on the commit's thread, before anything writes state again; allocates
 * nothing. A file system that has no space for it: a warning, the run goes on. Failpoints keep.begin,
 * keep.copied.
 *
 * Of several ranks, where traini_is_kept says so:
 *
 *   rank 0: begin ─► its answer to all ─► all: slabs ─► the outcome of all to all ─► rank 0: record
 *                                                          where one failed, the others: drop
 *
 * `record` names the run's slabs and this rank's extents as they are now (on rank 0 those of all). A keeper of
 * another rank than 0 has no run_dir (NULL), its extent_count is that of the record. */
bool traini_is_kept(const struct job *asked, uint64_t step);
int traini_keeper_create(const char *run_dir, const struct job *asked, uint64_t extent_count,
                         traini_keeper **out) MUST_CHECK;
void traini_keeper_destroy(traini_keeper *self); /* NULL is allowed */
/* 1: all ranks are to copy; 0: none is, it is there already, or there is a warning; ERR_INTERNAL. */
int traini_keep_begin(traini_keeper *self, const manifest *record) MUST_CHECK;
/* Removes this rank's slabs of the copy, and directories that this leaves empty. An error is for
 * traini_keep_record, as is that of the next one. */
int traini_keep_drop(traini_keeper *self, const slab *disk, const manifest *record) MUST_CHECK;
/* Copies this rank's slabs, when all ranks have dropped what an earlier attempt has left: of a drive that they
 * share no directory is removed any more. */
int traini_keep_slabs(traini_keeper *self, const slab *disk, const manifest *record) MUST_CHECK;
/* `outcome`: 0, or what of the slabs failed, with its text as this thread's: then nothing stays, and there is a
 * warning. ERR_INTERNAL alone is an error. */
int traini_keep_record(traini_keeper *self, const manifest *record, int outcome) MUST_CHECK;
/* All of it, of one rank, for a step that is one to keep. */
int traini_keep(traini_keeper *self, const slab *disk, const manifest *record) MUST_CHECK;

/* fill.c: params from master weights, to where they rest in an engine with params_alone: once per engine. */
struct traini_filler {
    traini_engine *engine;
    kernel_context *context; /* of the CPU's kernels */
    void *block;             /* what copy lies in */
    unsigned char *copy;     /* of params, on their way to a GPU or to drives */
    uint64_t copy_elems;
    uint32_t unit; /* on drives: the part that is being filled */
    uint64_t part_begin, part_elems;
};
typedef struct traini_filler traini_filler;
int traini_filler_init(traini_filler *self, traini_engine *engine, uint64_t copy_elems) MUST_CHECK;
void traini_filler_fini(traini_filler *self);
/* Elements [begin, begin + count) of a unit, at most copy_elems; each unit's in order, from 0 to its end. */
int traini_fill(traini_filler *self, uint32_t unit, uint64_t begin, uint64_t count,
                const float *master) MUST_CHECK;

/* load_ranks.c: the params of a commit, of however many ranks, to their homes in the engine of a process alone.
 * `copy_rank`: where the record is_replicated, whose slab is read. `stop`: ERR_STOPPED; may be NULL. */
int traini_load_ranks(traini_engine *engine, const manifest *record, uint32_t copy_rank,
                      const volatile sig_atomic_t *stop) MUST_CHECK;

/* commit.c */
/* Every extent of the setup's programs, in a table; with `found` its places and sums too: 1 where each extent
 * of it is a place of this layout, 0 where they are not (no table then). */
int traini_places_create(const traini_setup *setup, const manifest *found,
                         place_table **out) MUST_CHECK;
/* A record that holds the run's identity and the extents of the table, without sums. */
int traini_record_init(traini_engine *self, manifest *record) MUST_CHECK;
/* The slabs of all ranks, by the names of the setup's drives. */
void traini_name_slabs(const traini_setup *setup, const uint8_t uuid[SLAB_UUID_BYTES],
                       manifest_slabs *slabs);
void traini_name_run(const traini_setup *setup, manifest *record); /* what it says of the setup */
/* The newest place of each extent and its sum, into the record's extents: on rank 0 those of all ranks. */
int traini_fill_extents(traini_engine *self, manifest *record) MUST_CHECK;
void traini_point_take(traini_point *self, const manifest *from);
void traini_point_put(const traini_point *self, manifest *record);
/* The commit that `record` was written for, or taken from, where it is one to keep (keep.c). */
int traini_keep_commit(traini_engine *self, const manifest *record) MUST_CHECK;
/* The commit worker's callback; `user` is the engine. */
int traini_run_commit(void *user, const program *prog, const op *item);
/* Rank 0 writes a slot, and all know that it is written. Used also for one that is no commit: a new run's first, or that the slab is being changed in place. */
int traini_write_slot(traini_engine *self, enum manifest_state state) MUST_CHECK;
int traini_weights_hash(traini_engine *self, uint64_t *hash) MUST_CHECK;

/* One run of the loop. run.c, loop.c, start.c, resume.c, finish.c */
struct traini_loop {
    struct traini_ranks ranks;
    const struct train_options *options;
    const struct job *job;
    traini_setup *setup;
    traini_engine *engine;
    struct traini_run_dir dir;
    manifest found;         /* at the start; its extents until the state is made */
    manifest record;        /* of this run: identity, slabs, and the point after the last step */
    traini_point before;    /* the point one step earlier */
    sim_store *moved_store; /* of simulated drives that a re-cut leaves */
    struct traini_run_dir from;       /* train_options.from, locked while it is read */
    bool is_borrowed;                 /* the state is another run's */
    bool is_moved;                    /* a re-cut is done: the manifest names the new slabs */
    struct weights *weights;          /* of model.hf, for a new run; NULL: none, or not any more */
    mixture *train_data, *valid_data; /* NULL: random tokens; none */
    struct traini_data *data;         /* data.c, where tokens may have to be made; or NULL */
    metrics_file metrics;
    bool pending; /* gradients of the step before wait to be applied */
    bool resumed;
    bool announced; /* a new run whose manifest names its slab */
    bool spoiled;   /* the state holds what must not be committed */
    loss_scaler scaler;
    uint32_t skips_in_a_row;
    bool is_asked_to_stop;        /* any rank */
    struct step_word *step_words; /* [world] ranks.c */
    uint64_t sent_bytes;          /* by collectives, in the last step */
    uint64_t mapped_at_seal;
    uint64_t begin_ns, begin_step;
    struct train_summary *summary;
    struct train_progress last; /* of the step before; seconds_left: of the steps that are left */
};
typedef struct traini_loop traini_loop;

/* start.c */
/* The same for all ranks of a run, each on its host: slabs; then rank 0's files. */
int traini_clear(traini_loop *self, const manifest *found) MUST_CHECK;
struct traini_setup_options traini_setup_options_of(const traini_loop *self); /* for a new run */
/* Rank 0 reads what the directory holds and decides, for all: fresh, resume (*exists), or a refusal. */
int traini_find_run(traini_loop *self, manifest *found, bool *exists) MUST_CHECK;
/* Setup, then memory. `found` is the manifest of a run to resume, or NULL; its generation grows where it is
 * written once more. */
int traini_start(traini_loop *self, manifest *found) MUST_CHECK;
/* The checkpoint of model.hf, if a new run begins with one, opened and held against the setup's model; once.
 * first_weights.c */
int traini_open_weights(traini_loop *self) MUST_CHECK;
/* Memory, slabs and lanes of the setup. `found`: on its slabs; NULL: on new ones with this uuid. */
int traini_start_engine(traini_loop *self, const manifest *found,
                        const uint8_t uuid[SLAB_UUID_BYTES]) MUST_CHECK;
/* Rank 0's draw, on all. */
int traini_draw_uuid(const struct traini_ranks *ranks, uint8_t uuid[SLAB_UUID_BYTES]) MUST_CHECK;
/* Before a new run's slabs are made, the manifest names them. */
int traini_announce(traini_loop *self, const uint8_t uuid[SLAB_UUID_BYTES]) MUST_CHECK;
/* The state of step 0, or of the step where the run stopped. */
int traini_make_state(traini_loop *self) MUST_CHECK;

/* resume.c: setup and engine with the state of `found`, as it lies or re-cut. Slabs that the manifest names
 * as strays are removed first, once both slots agree on them. */
int traini_resume(traini_loop *self, manifest *found) MUST_CHECK;
/* The last commit of train_options.from, for a new run. */
int traini_borrow(traini_loop *self, manifest *found) MUST_CHECK;

/* changes.c: warns once of what is set otherwise than in the process before, and of what changes nothing in a
 * run that goes on. Before job.json and plan.json are written anew. */
void traini_tell_changes(const traini_loop *self, const manifest *found);

/* windows.c */
uint64_t traini_step_windows(const traini_loop *self); /* of all ranks */
/* Tokens and targets of this rank's windows of those from window `first` on into the host buffer: each rank
 * takes its part of the step's, in rank order. NULL: random ones. Sets the engine's step.target_count, of all
 * ranks, for which they tell each other where some tokens do not count. */
int traini_load_windows(traini_loop *self, mixture *from, bool shuffled, uint64_t first) MUST_CHECK;

/* data.c: all ranks together. The first refuses what can be refused before anything is made, and opens the data
 * unless tokens are to be made of it; then the second does, once the run directory is this run's. */
int traini_open_data(traini_loop *self) MUST_CHECK;
/* After it, where the state is that of another run which has a tokenizer: ERR_CONFIG if text were cut as bytes unasked. */
int traini_check_borrowed_words(const traini_loop *self) MUST_CHECK;
int traini_make_data(traini_loop *self) MUST_CHECK;
void traini_close_data(traini_loop *self);

/* drive_times.c: how long the transfers of the run's drives took so far. Paths are the setup's. */
struct chrome_trace_names;
void traini_trace_drives(const struct traini_engine *engine, struct chrome_trace_names *names);

/* watch.c: tells train_options.watch, if there is one. */
int traini_watch_step(traini_loop *self, const run_totals *run, enum program_kind kind,
                      uint64_t events_begin, double seconds) MUST_CHECK;

/* loop.c */
int traini_evaluate(traini_loop *self, bool is_last) MUST_CHECK;
int traini_apply_pending(traini_loop *self) MUST_CHECK;
int traini_step(traini_loop *self) MUST_CHECK; /* one, and the commit that is due before it */
void traini_begin_steps(traini_loop *self);    /* the clock of tell_step starts here */
/* Steps until the last or a stop. 1 when stopped on request. */
int traini_run_steps(traini_loop *self) MUST_CHECK;

/* ranks.c */
/* ERR_INPUT, on all ranks, where one has opened other data than rank 0. */
int traini_compare_data(traini_loop *self) MUST_CHECK;
int traini_make_step_words(traini_loop *self) MUST_CHECK;
/* The sum of all ranks' sums, and whether one of them is to stop. */
int traini_share_step(traini_loop *self, double own_sum, double *total) MUST_CHECK;
/* The sum of all ranks' counts. */
int traini_share_count(traini_loop *self, uint64_t own, uint64_t *total) MUST_CHECK;
/* Fills summary.ranks on rank 0. */
int traini_collect_ranks(traini_loop *self) MUST_CHECK;

/* finish.c */
/* Commits the state as it is after the last step, unless that is committed already. */
int traini_commit_now(traini_loop *self) MUST_CHECK;
int traini_finish(traini_loop *self, bool stopped) MUST_CHECK;
/* Whether the last line of the metrics is an evaluation at this step: of a process before. */
int traini_is_evaluated(const traini_loop *self, bool *is_done) MUST_CHECK;
/* The error with the commit that the run goes on from behind it; returns its code. */
int traini_name_commit(const err_record *first, uint64_t step);
/* After a failure: commits what can be committed, and says which commit is the last. The first error stays. */
int traini_rescue(traini_loop *self, int failed) MUST_CHECK;

#endif
