/* A setup in figures, for `plan`, the screen, plan.json and the report; and plans of jobs that
 * nobody runs. plan_figures.h has the name and the unit of each figure.
 *
 * All figures are counted from the compiled programs; rates are those that the plan was made with.
 * Times are seconds, sizes bytes, and both are of one rank, unless a comment says otherwise. */
#ifndef SLUICE_SETUP_SUMMARY_H
#define SLUICE_SETUP_SUMMARY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "config/job.h"
#include "swap/program.h"

struct comm;
struct machine;
struct setup;

enum {
    SETUP_PEAK_BYTES = 192,
    SETUP_LINKS_MAX = 8,
};

/* What the ops of a rank's steady step ask of one resource (enum plan_resource), and from how many
 * tokens a step on that hides behind computing. Growing is what there is more of with more tokens:
 * activations, and the passes themselves. The rest, states on their way, is the same for any number
 * of them (in the order batch_major: for any size of micro-batch). */
struct setup_link {
    const char *name;        /* "drive", "h2d", "d2h", "dram", "cores", "device", "comm" */
    double bytes;            /* drive: read and written; cores: 0 */
    double bytes_per_second; /* as the plan takes it; drive: of this mix; 0: it moves no bytes */
    double seconds;          /* that all of the resource is needed */
    double growing_seconds;  /* of these, what grows with the tokens */
    bool is_computing;       /* the passes run on it */
    /* T*: tokens of a rank's step at which the resource is needed as long as computing takes; 0: at
     * any number; INFINITY: at none, because what grows takes longer than computing as it is; NAN
     * where is_computing */
    double hidden_tokens;
};

struct setup_summary {
    char model_name[96];
    uint32_t world_size, zero_stage, ranks_per_host;
    uint64_t sent_bytes;    /* by each rank to others in a steady step */
    char state_formats[64]; /* of each stream of optimizer state: "fp32, bf16, bf16" */
    /* of it, for each parameter that learns; tiles' padding not counted */
    double state_param_bytes;
    bool state_has_formats; /* one is not fp32 */
    uint64_t param_count, unit_count;
    uint64_t micro_batch, micro_batch_count, seq_length; /* of a rank's step: B, how many, T */
    /* Of each rank, as all below. What lies in an arena adds up: homes of states, scratch, places
     * of the state on the slab, padding (alignment and rounding), and above all homes what is under
     * way, to the peak. */
    uint64_t home_bytes[STATE_KIND_COUNT][TIER_COUNT]; /* where each state rests */
    uint64_t scratch_bytes[TIER_COUNT]; /* workspace, tables, tokens, losses, norms */
    uint64_t save_bytes;   /* of nvme: places of optimizer state that is homed in memory */
    uint64_t second_bytes; /* of nvme: the second places of what commits keep (run.commit_every) */
    /* of host: optimizer state on nvme that a step begins with (plan/plan.h) */
    uint64_t copy_bytes;
    uint64_t kept_bytes; /* what second places take, or would take, where steps commit */
    uint64_t padding_bytes[TIER_COUNT];
    uint64_t moving_bytes[TIER_COUNT];
    uint64_t budget_bytes[TIER_COUNT], peak_bytes[TIER_COUNT];
    uint64_t host_peak_bytes[TIER_COUNT]; /* of all ranks of a host */
    uint64_t all_peak_bytes[TIER_COUNT];  /* of all ranks */
    /* What nvme takes with two places for optimizer state, and with one (run.commit_every 0): one
     * of them is the planned peak. */
    uint64_t nvme_with_commits_bytes, nvme_without_commits_bytes;
    double nvme_with_commits_per_parameter, nvme_without_commits_per_parameter; /* bytes */
    /* The buffer that ends at the peak, who makes it, and in which program. "": nothing lies
     * there. */
    char peak_what[TIER_COUNT][SETUP_PEAK_BYTES];
    /* Of a steady step, in the mean over those that commit and those that do not: */
    uint64_t lane_bytes[LANE_COUNT];
    double lane_seconds[LANE_COUNT]; /* that an op of the lane runs */
    double step_seconds;             /* predicted */
    double steps_per_hour, tokens_per_second;
    double bound_seconds; /* per phase, the busiest resource's work */
    double over_bound;    /* (step - bound) / bound; NAN: no bound */
    /* a bound that knows the dependencies too: at least bound_seconds; 0: none */
    double schedule_bound_seconds;
    double over_schedule_bound; /* as over_bound */
    uint32_t link_count;
    struct setup_link links[SETUP_LINKS_MAX]; /* by enum plan_resource */
    const char
        *bottleneck; /* the lane that is busy longest: what a measurement can be compared with */
    const char *busiest;    /* the resource that is needed longest; read and write are one drive */
    double busiest_seconds; /* that it is needed */
    double computing_seconds; /* of the passes alone, on the resource that computes */
    uint64_t tokens_per_step, tile_elems, held_stages, op_count; /* tokens: of all ranks */
    const char *order;                                           /* schedule.order */
    const char *update;                                          /* schedule.update in use */
    bool machine_is_measured;
    char machine_name[96]; /* "defaults", or machine.json's */
    /* Why each state rests where it does, in sentences. */
    uint32_t reason_count;
    char reasons[PLAN_REASONS_MAX][PLAN_REASON_BYTES];
    double model_flops;     /* of a step, all ranks, as the field counts them: no recomputation */
    double hardware_flops;  /* of a step, of each rank: recomputation included */
    double tflops_per_rank; /* model_flops a second, in 10^12 */
    double hardware_tflops_per_rank; /* hardware_flops a second, in 10^12 */
    double peak_tflops_per_rank;     /* of a rank's device, in 10^12 a second; 0: not known */
    double mfu;                      /* tflops_per_rank of the peak; 0: no peak is known */
    /* Of each rank: */
    /* that a commit writes to the drives beyond what its step writes anyway */
    uint64_t commit_bytes;
    double commit_seconds; /* that it makes its step longer */
    uint64_t commit_every; /* run.commit_every; 0: at clean stops alone */
    /* of the drives, in the mean step; without what commits write */
    uint64_t read_bytes[STATE_KIND_COUNT], written_bytes[STATE_KIND_COUNT];
    uint64_t commit_share_bytes;   /* what commits write, in the mean step */
    uint64_t drive_written_bytes;  /* all of it */
    uint64_t drive_capacity_bytes; /* of all drives of a host; 0: not known */
    double drive_endurance_bytes;  /* likewise */
    /* what all ranks write to drives in the mean step, for each parameter of the model */
    double drive_written_per_parameter;
    double host_written_bytes_per_day; /* to the drives of a host */
    double drive_life_days;            /* until their endurance is written; 0: not known */
};

/* Rank 0 reads the job from `path` ("-": standard input) with the overrides set[0..set_count); the
 * other ranks get its text. A bad job is refused on all ranks, and the comm can still be used.
 * *fresh: run.fresh. The caller destroys *out. Collective. */
int setup_read_job(struct comm *members, const char *path, const char *const *set,
                   uint32_t set_count, struct job **out, bool *fresh) MUST_CHECK;

/* Fills *out from a setup with programs. */
void setup_summarize(const struct setup *self, struct setup_summary *out);

struct setup_plan_options {
    uint32_t local_world; /* ranks that share a host; 0: all of them (described: the machine's) */
    const struct machine *machine; /* config/machine.h; borrowed; NULL: defaults */
    /* nothing is looked at but the machine: memory, devices, cores and drives are what it says, and
     * the budgets that the job leaves open come from it. Scratch of a GPU's kernels is then
     * estimated */
    bool is_described;
};

/* As setup_plan, for a machine that was measured or is only described. */
int setup_plan_on(const struct job *asked, const struct setup_plan_options *options,
                  struct setup_summary *out) MUST_CHECK;

/* For job->world ranks, of which `local_world` share a host and its drives (0: all of them). */
int setup_plan(const struct job *asked, uint32_t local_world, struct setup_summary *out) MUST_CHECK;

/* The largest model of a family that fits a job's machine and budgets, and what stops the next
 * one. */
struct setup_max_model {
    uint64_t layers, hidden, heads, max_part_bytes; /* max_part_bytes: 0: blocks are whole */
    uint64_t param_count;
    /* Of each rank: what a placement that fits takes at least, and what is there. */
    uint64_t need_bytes[TIER_COUNT], budget_bytes[TIER_COUNT];
    uint32_t world_size, ranks_per_host, zero_stage;
    char machine_name[96];
    uint64_t next_layers, next_hidden; /* 0: the family ends */
    char next_problem[ERR_TEXT_BYTES]; /* which tier, with numbers */
    uint32_t tries;
};

/* Takes everything but `model` from the job, and of that the sequence, initialization and
 * max_part_bytes (0: 256 MiB from hidden size 8192 on). Families: "gpt" (GPT-2's to ZeRO-Infinity's
 * shapes and those in between), "zero-offload", "llama". Each try asks only whether a placement
 * fits, not which is fast. ERR_USAGE for another family; ERR_NO_FIT where not even the smallest
 * fits. */
int setup_max_model(const struct job *asked, const char *family,
                    const struct setup_plan_options *options,
                    struct setup_max_model *out) MUST_CHECK;

#endif
