/* A job and a machine made into everything that a run needs to know before it begins: the model,
 * where each state rests, and the compiled programs. Nothing large is allocated and no file is
 * made, so a job that does not fit is refused here.
 *
 *   job ─► model ─► device, cores, drives ─► budgets ─► placement ─► programs
 *
 * Several ranks: all call setup_create together with the same job; they agree on the inputs of the
 * plan and then compare their programs. Everything here runs on the thread that sets up or trains.
 * summary.h has the setup's figures. */
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

struct machine;

enum { SETUP_FORMATS_BYTES = 64 };

struct setup {
    const struct job *job; /* borrowed */
    struct ranks ranks;
    const kernel_ops *ops; /* of the device */
    kernel_context *context;
    device *gpu;               /* NULL: the CPU computes */
    uint32_t gpu_sharers;      /* ranks that use this GPU */
    uint64_t gpu_free_at_open; /* bytes free before CUDA's libraries took their memory */
    uint64_t nccl_bytes;       /* of GPU memory that NCCL holds while it is open */
    enum comm_backend collectives;
    model *net;
    /* with a cache of keys and values: the model for calls of one token; else NULL */
    model *single;
    plan_job plan;
    plan_stage *stages;
    plan_pass *passes; /* of all stages */
    uint64_t pass_count;
    uint64_t *unit_elems;    /* [unit_count] */
    uint8_t *stays_gathered; /* [unit_count] as plan_job has it */
    /* [unit_count] 1: the unit does not learn, and its params are part of the state. All 0 with
     * params_alone. */
    uint8_t *is_frozen;
    uint8_t *homes[STATE_KIND_COUNT]; /* [unit_count] enum tier */
    plan_set set;
    uint32_t reason_count; /* sentences: why states rest where they do */
    char reasons[PLAN_REASONS_MAX][PLAN_REASON_BYTES];
    char identity[MANIFEST_TEXT_BYTES]; /* "key=value" lines: what the bits depend on */
    uint64_t fingerprint;               /* XXH3 of identity */
    topology machine;
    core_plan cores;
    int thread_count; /* threads that compute */
    /* in the workspace: the model's `saved` is at 0, `temp` is here */
    uint64_t workspace_temp_offset;
    slab_drive drives[DRIVES_MAX];
    uint32_t drive_count;
    char drive_names[DRIVES_MAX][FILE_PATH_BYTES]; /* paths, with the placeholders of ranks */
    const struct machine *stated;    /* borrowed during setup: measured figures; NULL: defaults */
    bool is_described;               /* planned for a machine that is only described */
    bool described_gpu;              /* with is_described: a GPU would compute; gpu is NULL */
    bool only_fits, only_homes;      /* as in setup_options */
    uint64_t need_bytes[TIER_COUNT]; /* with only_fits: the least that the programs take */
};

struct lane; /* swap/lane.h */

/* Tests: lanes in the place of the engine's own. The thread that runs makes all calls. */
struct setup_lanes {
    /* Called once, before any lane is wrapped, with all programs that may run. */
    int (*begin)(void *user, const program *const *programs, uint32_t program_count);
    /* Puts another lane in the place of *item, which serves lanes of this kind (LANE_H2D for all
     * copies, LANE_COMPUTE for the cores). The new lane owns the old one, or the call has destroyed
     * it. On failure *item is a lane or NULL. */
    int (*wrap)(void *user, enum lane_kind kind, struct lane **item);
    void (*end)(void *user); /* after the lanes are destroyed, if begin succeeded */
    void *user;
};

/* For tests alone: what a run does otherwise. NULL in every option struct of a real run. */
struct setup_test {
    const plan_machine *pace;        /* the plan is for this machine; NULL: for the real one */
    const struct setup_lanes *lanes; /* NULL: the engine's own lanes; only without a GPU */
    uint64_t norm_part_bytes;        /* plan_job.norm_part_bytes; 0: the default. Changes no bit */
    const struct io_faults *faults;  /* what the drives shall do (tiers/io.h), or NULL */
    bool simulates_drives;           /* the slabs' bytes lie in memory (tiers/sim.h) */
    /* Memory of the simulated drives, for runs that follow each other. A NULL there is filled by
     * the first run; the caller destroys it. Or NULL: the run's own. */
    struct sim_store **store;
};

struct setup_options {
    const struct ranks *ranks; /* NULL: plan for job->world ranks, none of which exists */
    uint32_t local_world;      /* without ranks: how many of them share a host; 0: all */
    const struct machine *machine;
    /* replaces all that is measured or stated of the machine; or NULL */
    const plan_machine *figures;
    bool is_described; /* look at nothing but `machine`: its memory, devices, cores and drives */
    bool only_fits;    /* find homes, but compile no programs: does the job fit? */
    bool only_homes;   /* with only_fits: plan_place_asked */
    bool only_eval;    /* parameters and forward alone */
    /* With only_eval: no optimizer state to load params from; the caller fills their homes. Only
     * drives that the job names are used. */
    bool params_alone;
    model_window window;             /* of the model; zeros: as it trains */
    bool is_trial;                   /* a measurement: nothing is kept on the drives after it */
    const struct setup_watch *watch; /* or NULL */
    /* A run to go on from, or (only_eval) to look at. ERR_INPUT, which names what differs, where
     * its bits cannot go on. NULL: a new run. */
    const manifest *found;
    const char *found_in; /* run directory of `found`; NULL: the job's */
    bool as_it_lies; /* with `found`: on its slabs, with its tile size; else on the job's drives */
    const struct setup_test *test; /* or NULL */
};

/* Errors: ERR_CONFIG, ERR_INPUT, ERR_NO_FIT (what is missing, on which tier, and the setting that
 * fits), -ENOMEM. `asked` is borrowed until setup_destroy. */
int setup_create(const struct job *asked, const struct setup_options *options,
                 struct setup **out) MUST_CHECK;
void setup_destroy(struct setup *self); /* NULL is allowed */

/* ---- pieces of a setup that later rooms use too ---- */

model_spec setup_model_spec(const struct job_model *from);
/* Fills spec.learn and spec.lora from the job's train block; the rest of spec is filled. ERR_CONFIG
 * for a layer that the family does not have. */
int setup_fill_learning(const struct job *asked, model_spec *spec) MUST_CHECK;
/* The streams code (base/tile.h) of the job's optimizer state; fp32 with params_alone. */
uint32_t setup_state_streams(const struct job *asked, bool params_alone);
/* "fp32, bf16, bf16" of a streams code. Returns `text`. */
const char *setup_formats_text(uint32_t streams, char text[SETUP_FORMATS_BYTES]);
/* The key of the random numbers for stochastic rounding in the `update`-th update of a unit
 * (kernels/ops.h). */
uint64_t setup_rounding_key(uint64_t seed, uint64_t update, uint32_t unit);
/* First element, within the unit, of the optimizer state that rests on this rank. */
uint64_t setup_state_begin(const struct setup *self, uint32_t unit);
/* Bytes of an arena that the programs reach; a budget above it need not be reserved. */
uint64_t setup_reached_bytes(const struct setup *self, enum tier which);
int setup_gpu_used(const struct setup *self, uint64_t *used_bytes) MUST_CHECK;

/* The identity of an imported checkpoint holds its model alone: any job of that model can go on
 * from it. */
int setup_name_import(const struct job *asked, const model *net, manifest *record) MUST_CHECK;
bool setup_is_imported(const manifest *found);
/* "model.num_layers was 12 and is 24; ...", as many differences of two identities as fit. */
void setup_list_differences(const char *was, const char *is, char *text, size_t capacity);

/* Directories of the job's slabs as absolute paths; placeholders of ranks are kept. */
int setup_job_drives(const struct job *asked, slab_drive drives[DRIVES_MAX],
                     uint32_t *count) MUST_CHECK;
int setup_make_absolute(char path[FILE_PATH_BYTES]) MUST_CHECK;
/* Ranks of this host that share a drive's budget and space: all of them, unless the path differs by
 * rank. */
uint32_t setup_drive_sharers(const struct ranks *ranks, const char *path);
/* Bytes of a transfer and transfers in flight per direction on each drive: from the job, else as
 * machine.json measured these drives, else the defaults. */
void setup_drive_settings(const struct setup *self, uint64_t *block_bytes, uint32_t *queue_depth);
/* What one rank can have of the machine: stated figures, or the plan's defaults. */
void setup_machine_figures(const struct setup *self, plan_machine *machine);
/* The lane that is busy longest; computing among equals. */
enum lane_kind setup_busiest_lane(const double seconds[LANE_COUNT]);
/* With setup_watch.only_transfers: seconds that a forward or backward op waits instead of
 * computing. */
double setup_watched_seconds(const struct setup *self, const op *item);
/* The text of plan.json, from malloc; the caller frees it. train_tokens: tokens of data.train. */
int setup_plan_json(const struct setup *self, uint64_t train_tokens, char **text) MUST_CHECK;

#endif
