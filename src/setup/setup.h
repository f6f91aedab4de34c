/* A setup is everything that a run needs to know before it begins: the model, where each state
 * rests, and the compiled programs. setup_create makes it from a job and a machine. It allocates
 * nothing large and makes no file, so a job that does not fit is refused before anything is
 * touched.
 *
 *   job ─► model ─► device, cores, drives ─► budgets ─► placement ─► programs
 *
 * Words used here:
 *
 *   unit      params that are fetched together, such as a block or a part of it (model/model.h)
 *   home      the tier in which a unit's state of one kind rests between uses (base/words.h)
 *   stage     one step of the forward order; its passes use one or two units (model/model.h)
 *   program   the compiled ops of a training step, an evaluation, a load and so on (swap/program.h)
 *   budget    bytes of a tier that one rank may use
 *   identity  "key=value" lines: all that the bits of a run depend on, except the data
 *
 * With several ranks, all ranks call setup_create together with the same job. They agree on the
 * inputs of the plan, and then compare their programs. Everything here runs on the thread that sets
 * up or trains. The figures of a setup for people and files are in summary.h. */
#ifndef SLUICE_SETUP_SETUP_H
#define SLUICE_SETUP_SETUP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "comm/ranks.h"
#include "config/job.h"
#include "format/manifest.h"
#include "kernels/ops.h"
#include "model/model.h"
#include "plan/plan.h"
#include "setup/summary.h"
#include "setup/watch.h"
#include "tiers/device.h"
#include "tiers/slab.h"
#include "tiers/topology.h"

struct engine;
struct machine;

enum { SETUP_FORMATS_BYTES = 64 };

struct setup {
    const struct job *job; /* borrowed until setup_destroy */
    struct ranks ranks;
    const kernel_ops *ops; /* kernels of the device that computes */
    kernel_context *context;
    device *gpu;               /* NULL if the CPU computes */
    uint32_t gpu_sharers;      /* ranks of this host that use this GPU */
    uint64_t gpu_free_at_open; /* bytes free before CUDA's libraries took their memory */
    uint64_t nccl_bytes;       /* GPU memory that NCCL holds while it is open */
    enum comm_backend collectives;
    model *net;
    /* The same model for calls of one token, if there is a cache of keys and values; else NULL. */
    model *single;
    plan_job plan;
    struct stage
        *stages; /* [stage_count] of net, as the plan takes them; the passes are net's own */
    uint64_t *unit_elems;    /* [unit_count] model_unit.rest_elems */
    uint8_t *stays_gathered; /* [unit_count] plan_job.stays_gathered */
    uint8_t *is_owned;       /* [unit_count] plan_job.is_owned; NULL: no unit is owned */
    /* Bytes that a rank sends in a step for routed experts: by ZeRO, and if ranks own them. Both 0:
     * there are none, or they cannot be divided over the ranks. */
    uint64_t expert_zero_bytes, expert_rows_bytes;
    /* [unit_count] 1: the unit does not learn, so its params are part of the state. All 0 with
     * params_alone. */
    uint8_t *is_frozen;
    double *matrix_flops;   /* [unit_count] as in plan_job; NULL unless the optimizer is Muon */
    uint32_t *unit_streams; /* [unit_count] as in plan_job; NULL unless the optimizer is Muon */
    uint8_t *homes[STATE_KIND_COUNT]; /* [unit_count] each: enum tier */
    plan_set set;
    uint32_t reason_count; /* sentences that say why states rest where they do */
    char reasons[PLAN_REASONS_MAX][PLAN_REASON_BYTES];
    char identity[MANIFEST_TEXT_BYTES]; /* "key=value" lines */
    uint64_t fingerprint;               /* XXH3 of identity */
    topology machine;
    core_plan cores;
    int thread_count; /* threads that compute */
    /* Offset within the workspace of the model's `temp`; `saved` is at 0. */
    uint64_t workspace_temp_offset;
    slab_drive drives[DRIVES_MAX];
    uint32_t drive_count;
    /* paths in which the placeholders of ranks are kept */
    char drive_names[DRIVES_MAX][FILE_PATH_BYTES];
    /* borrowed: the machine's measured or stated figures; NULL: the plan's defaults */
    const struct machine *stated;
    bool is_described; /* planned for a machine that is known only by its file */
    /* with is_described: a GPU would compute, though gpu is NULL */
    bool described_gpu;
    bool only_fits, only_homes;      /* as in setup_options */
    uint64_t need_bytes[TIER_COUNT]; /* with only_fits: the least memory that the programs take */
};

struct lane; /* swap/lane.h */

/* For tests: lanes that replace the engine's own. All calls come from the thread that runs
 * programs. */
struct setup_lanes {
    /* Called once before any lane is wrapped, with all programs that may run. */
    int (*begin)(void *user, const program *const *programs, uint32_t program_count);
    /* Replaces *item, a lane that serves this kind. LANE_READ stands for writes too, LANE_H2D for
     * all copies and LANE_COMPUTE for the cores. The new lane owns the old one, or the call has
     * destroyed the old one. On failure *item is a valid lane or NULL. */
    int (*wrap)(void *user, enum lane_kind kind, struct lane **item);
    void (*end)(void *user); /* called after the lanes are destroyed, if begin succeeded */
    void *user;
};

/* For tests only: what differs from a real run. Every option struct of a real run has NULL here. */
struct setup_test {
    const plan_machine *pace;        /* plan for this machine; NULL: the real one */
    const struct setup_lanes *lanes; /* NULL: the engine's own lanes. Only without a GPU. */
    /* plan_job.norm_part_bytes; 0: the default. It changes no bit. */
    uint64_t norm_part_bytes;
    const struct io_faults *faults; /* faults that the drives inject (tiers/io.h), or NULL */
    bool simulates_drives;          /* the slabs' bytes are kept in memory */
    /* Memory of the simulated drives, shared by runs that follow each other. If *store is NULL the
     * first run makes it; the caller destroys it. If store is NULL each run makes and frees its
     * own. */
    struct sim_store **store;
    /* With simulates_drives: they keep no bytes, so nothing is summed or compared, the slabs' files
     * take no space, and drives are as large as their budgets say. */
    bool keeps_no_bytes;
    /* Called at the end of a run, after the last commit; a negative result fails it. */
    int (*on_end)(void *user, struct engine *engine);
    void *user;
};

struct setup_options {
    const struct ranks *ranks; /* NULL: only plan, for job->world ranks that do not exist */
    uint32_t local_world;      /* without `ranks`: how many ranks share a host; 0: all */
    const struct machine *machine;
    /* Replaces all figures that `machine` or the defaults give; or NULL. */
    const plan_machine *figures;
    /* take memory, devices, cores and drives from `machine`; do not look at this machine */
    bool is_described;
    bool only_fits;  /* only find out if the job fits: choose homes, compile no programs */
    bool only_homes; /* with only_fits: plan_place_asked.only_homes */
    bool only_eval;  /* only params and the forward pass */
    /* With only_eval: there is no optimizer state to load params from, so the caller fills the
     * homes of params. Only drives that the job names are used. */
    bool params_alone;
    model_window window;             /* the model's window; zeros: as in training */
    bool is_trial;                   /* a measurement: nothing stays on the drives after it */
    const struct setup_watch *watch; /* or NULL */
    plan_watch *plan_watch;          /* told what the plan is doing; or NULL */
    /* The run to resume or, with only_eval, to read. NULL: a new run. ERR_INPUT, which names what
     * differs, if this job cannot continue the run with the same bits. */
    const manifest *found;
    const char *found_in; /* run directory of `found`; NULL: the job's */
    bool as_it_lies;      /* with `found`: use its slabs and its tile size; else the job's drives */
    const struct setup_test *test; /* or NULL */
};

/* Makes the setup of `asked`, which is borrowed until setup_destroy. Collective over
 * options->ranks. If it fails, *out is NULL and nothing is left to destroy. Errors: ERR_CONFIG,
 * ERR_INPUT, -ENOMEM, and ERR_NO_FIT, which says what is missing, on which tier, and which setting
 * would fit. */
int setup_create(const struct job *asked, const struct setup_options *options,
                 struct setup **out) MUST_CHECK;
void setup_destroy(struct setup *self); /* NULL is allowed */

/* ---- pieces of a setup that other folders use too ---- */

/* The job's model for model_create: with the layers that train.lora.targets names, and with
 * splits_vectors. ERR_CONFIG for a layer that does not exist in the model family. */
int setup_model_spec(const struct job *asked, model_spec *spec) MUST_CHECK;
/* ERR_USAGE if the job has a module, for a task that has no program to compute it. */
int setup_refuse_module(const struct job *asked, const char *task) MUST_CHECK;
/* The streams code (base/tile.h) of the state of a unit of the job's model. */
uint32_t setup_streams_of(const struct job *asked, const model *net, uint32_t unit);
/* Writes a streams code as text, such as "fp32, bf16, bf16". Returns `text`. */
const char *setup_formats_text(uint32_t streams, char text[SETUP_FORMATS_BYTES]);
/* The key of the random numbers with which update number `update` of a unit rounds stochastically
 * (kernels/ops.h). */
uint64_t setup_rounding_key(uint64_t seed, uint64_t update, uint32_t unit);
/* The first element, within the unit, whose optimizer state rests on this rank. */
uint64_t setup_state_begin(const struct setup *self, uint32_t unit);
/* Bytes of an arena that the programs use. It is at most the budget; the rest need not be
 * reserved. */
uint64_t setup_reached_bytes(const struct setup *self, enum tier which);
/* Bytes of the GPU's memory that all processes use now. Only with a GPU. */
int setup_gpu_used(const struct setup *self, uint64_t *used_bytes) MUST_CHECK;

/* Writes the identity of an imported checkpoint into the record. It names the model (and the
 * optimizer's type) only, so any job of that model can continue from it. */
int setup_name_import(const struct job *asked, const model *net, manifest *record) MUST_CHECK;
/* True if the identity in the manifest is that of an import. */
bool setup_is_imported(const manifest *found);
/* The ranks that own experts in a run, 1: none. For a job that leaves it open ("auto"). */
uint64_t setup_recorded_expert_ranks(const manifest *found);
/* The directories of the job's slabs, as absolute paths. Placeholders of ranks are kept. */
int setup_job_drives(const struct job *asked, slab_drive drives[DRIVES_MAX],
                     uint32_t *count) MUST_CHECK;
/* Makes a path absolute, relative to the working directory. ERR_CONFIG if it becomes too long. */
int setup_make_absolute(char path[FILE_PATH_BYTES]) MUST_CHECK;
/* How many ranks of this host share a drive's budget and space: all, unless the path differs by
 * rank. */
uint32_t setup_drive_sharers(const struct ranks *ranks, const char *path);
/* For each drive: bytes of a transfer, and transfers in flight per direction. They come from the
 * job; else from machine.json, if it has measured these drives; else from the defaults. */
void setup_drive_settings(const struct setup *self, uint64_t *block_bytes, uint32_t *queue_depth);
/* Fills the figures of the machine that one rank can use: stated figures, or the plan's
 * defaults. */
void setup_machine_figures(const struct setup *self, plan_machine *machine);
/* The lane that is busy longest. Among equals, computing wins. */
enum lane_kind setup_busiest_lane(const double seconds[LANE_COUNT]);
/* With setup_watch.only_transfers: the seconds that a forward or backward op waits instead of
 * computing. */
double setup_watched_seconds(const struct setup *self, const op *item);
/* Makes the text of plan.json with malloc; the caller frees it. `train_tokens`: tokens of
 * data.train. */
int setup_plan_json(const struct setup *self, uint64_t train_tokens, char **text) MUST_CHECK;

#endif
