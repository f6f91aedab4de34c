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
#include "plan/waits.h"
#include "swap/program.h"

struct comm;
struct machine;
struct setup;

#define SETUP_WAITS_OVER 0.05 /* of the bound */

enum {
    SETUP_PEAK_BYTES = 192,
    SETUP_LINKS_MAX = 8,
    SETUP_WAIT_BYTES = 1024, /* two names of units, and some 600 bytes */
    SETUP_CANNOT_RUN_BYTES = 160,
};

/* A part of the critical path (plan/waits.h), with names. */
struct setup_wait {
    struct plan_wait of;
    double share;                       /* of the step that the path was found in */
    char first_unit[96], last_unit[96]; /* "block.3"; "": the part serves no unit */
    char text[SETUP_WAIT_BYTES];        /* one sentence */
};

/* One resource (enum plan_resource) in the mean step of a rank: how long all of it is needed, and
 * from how many tokens a step on that time is hidden behind computing.
 *
 * Growing work increases with the number of tokens: activations, and the passes themselves. The
 * rest is state that moves once a step however many tokens there are (with batch_major: once a
 * micro-batch of any size). */
struct setup_link {
    const char *name;        /* "drive", "h2d", "d2h", "dram", "cores", "device", "comm" */
    double bytes;            /* drive: read and written; cores: 0 */
    double bytes_per_second; /* the plan's rate; drive: of this mix; 0: it moves no bytes */
    /* How long all of the resource is needed: bytes / rate. Where is_computing it is what passes
     * need, computing_seconds, and what other ops need: on a GPU other_bytes at its memory's
     * rate. */
    double seconds;
    double other_bytes;     /* of a GPU: bytes that ops other than passes move there; else 0 */
    double growing_seconds; /* the part of seconds that is growing work */
    bool is_computing;      /* the passes run on this resource */
    /* T*: the tokens of a rank's step at which the resource is needed as long as computing takes.
     * 0: any number; INFINITY: none, since growing work takes longer than computing; NAN if
     * is_computing. */
    double hidden_tokens;
};

/* The rates of one rank that the plan assumes, in bytes/s. A copy to the CPU's device arena reads
 * and writes memory. The drives take (read bytes / read + written bytes / write) / both_ways. */
struct setup_ceilings {
    double read, write, both_ways, drive_kept; /* both_ways, drive_kept: plan_job.h */
    double h2d, d2h, comm, dram;
    double flops; /* a second */
};

struct setup_summary {
    /* ---- the job ---- */
    char model_name[96];
    uint32_t world_size, zero_stage, ranks_per_host;
    uint64_t param_count, unit_count;
    uint64_t micro_batch, micro_batch_count, seq_length; /* of a rank's step: B, how many, T */
    uint64_t tokens_per_step;                            /* of all ranks */
    char state_formats[64];   /* of each stream of optimizer state: "fp32, bf16, bf16" */
    bool state_has_formats;   /* one of them is not fp32 */
    double state_param_bytes; /* for each parameter that learns, without the padding of tiles */
    const char *order;        /* schedule.order */
    const char *update;       /* schedule.update in use */
    const char *experts;      /* schedule.experts in use: "all", "hit"; "": all are needed */
    /* Passes of a step of one rank that use a unit of experts which it may not need; and how many
     * of them are expected to need it, at the step's tokens. */
    double expert_passes, expert_passes_hit;
    double all_hit_seconds; /* with "hit": of a step that needs all of them */
    uint64_t tile_elems, held_stages, held_passes, op_count;
    bool machine_is_measured;
    char machine_name[96];     /* "defaults", or machine.json's */
    bool machine_is_disturbed; /* it was measured beside other work: */
    char machine_disturbed_by[96];
    /* One sentence: why Sluice would not run on this machine, although the job fits; or "". */
    char machine_cannot_run[SETUP_CANNOT_RUN_BYTES];
    double model_flops;    /* of a step of all ranks, without recomputation, as the field does */
    double hardware_flops; /* of a step of one rank, with recomputation */
    uint64_t sent_bytes;   /* by each rank to others in a steady step */
    /* The part of that for routed experts, in both ways: by ZeRO, and if ranks own them. 0: there
     * are none, or they cannot be divided. And the number of ranks that own them; 1: ZeRO. */
    uint64_t expert_zero_bytes, expert_rows_bytes;
    uint32_t expert_parallel_size;
    /* How often a steady step gathers and reduces the model's padded parameters, and the sum of
     * both, as ZeRO counts it. Each of N ranks sends (N - 1) / N of that, and the norm's sums. */
    double gathered_times, reduced_times, sent_times;

    /* ---- memory of one rank ----
     * In each arena homes + scratch + places on the slab + padding + what is under way = peak. */
    uint64_t home_bytes[STATE_KIND_COUNT][TIER_COUNT]; /* where each state rests */
    uint64_t scratch_bytes[TIER_COUNT]; /* workspace, tables, tokens, losses, norms */
    uint64_t save_bytes;    /* on nvme: places of optimizer state whose home is memory */
    uint64_t second_bytes;  /* on nvme: second places of committed state (run.commit_every) */
    uint64_t copy_bytes;    /* on host: optimizer state of nvme that is read once (plan/plan.h) */
    uint64_t carried_bytes; /* on host, under way: what a step leaves to the next (plan/plan.h) */
    uint64_t kept_bytes;    /* what second places take, or would take, if steps commit */
    uint64_t padding_bytes[TIER_COUNT]; /* alignment and rounding */
    uint64_t moving_bytes[TIER_COUNT];  /* under way, above all homes */
    uint64_t budget_bytes[TIER_COUNT], peak_bytes[TIER_COUNT];
    uint64_t host_peak_bytes[TIER_COUNT]; /* of all ranks of a host */
    uint64_t all_peak_bytes[TIER_COUNT];  /* of all ranks */
    /* Bytes on nvme with two places of optimizer state, and with one (run.commit_every 0). One of
     * the two is the planned peak. */
    uint64_t nvme_with_commits_bytes, nvme_without_commits_bytes;
    double nvme_with_commits_per_parameter, nvme_without_commits_per_parameter; /* bytes */
    /* The buffer that ends at the peak, the op that makes it, and the program. "": none. */
    char peak_what[TIER_COUNT][SETUP_PEAK_BYTES];
    uint32_t reason_count; /* sentences: why each state rests where it does */
    char reasons[PLAN_REASONS_MAX][PLAN_REASON_BYTES];

    /* ---- speed: the mean of steady steps with and without a commit ---- */
    double step_seconds; /* predicted */
    double steps_per_hour, tokens_per_second;
    double bound_seconds;          /* sum over the phases of the busiest resource's work */
    double over_bound;             /* (step - bound) / bound; NAN: no bound */
    double schedule_bound_seconds; /* counts dependencies too, >= bound_seconds; 0: none */
    double over_schedule_bound;    /* as over_bound */
    /* The critical path, if over_schedule_bound is above SETUP_WAITS_OVER. The parts add up to a
     * step that does not commit; if every step commits, to that. */
    uint32_t wait_count;
    struct setup_wait waits[PLAN_WAITS_MAX];
    uint64_t lane_bytes[LANE_COUNT];
    uint64_t lane_spared_bytes[LANE_COUNT]; /* of experts that are not expected to be needed */
    double lane_seconds[LANE_COUNT];        /* an op of the lane runs */
    const char *bottleneck; /* the lane that is busy longest, comparable to a measurement */
    uint32_t link_count;
    struct setup_link links[SETUP_LINKS_MAX]; /* by enum plan_resource */
    const char *busiest;    /* the resource that is needed longest; read and write are one drive */
    double busiest_seconds; /* how long it is needed */
    struct setup_ceilings ceilings;
    double computing_seconds;        /* the passes alone, on the resource that computes */
    double tflops_per_rank;          /* model_flops a second, in 10^12 */
    double hardware_tflops_per_rank; /* hardware_flops a second, in 10^12 */
    double peak_tflops_per_rank;     /* of a rank's device, in 10^12 a second; 0: unknown */
    double mfu;                      /* tflops_per_rank / peak; 0: no peak is known */

    /* ---- commits and wear, of one rank ---- */
    uint64_t commit_every; /* run.commit_every; 0: only at clean stops */
    uint64_t commit_bytes; /* that a commit writes in addition to what its step writes */
    double commit_seconds; /* that it makes its step longer */
    /* Bytes of the drives in the mean step, without what commits write. */
    uint64_t read_bytes[STATE_KIND_COUNT], written_bytes[STATE_KIND_COUNT];
    uint64_t commit_share_bytes;        /* what commits write, in the mean step */
    uint64_t drive_written_bytes;       /* the sum of both */
    uint64_t drive_capacity_bytes;      /* of all drives of a host; 0: unknown */
    double drive_endurance_bytes;       /* of all drives of a host; 0: unknown */
    double drive_written_per_parameter; /* bytes of all ranks a step, by parameters of the model */
    double host_written_bytes_per_day;  /* to the drives of a host */
    double drive_life_days; /* until the endurance of the drives is written; 0: unknown */
};

/* A new run writes its own copy of the job to RUN/job.json. Refuses a job file that this would
 * replace, with the comments in it. A run that is there already, which has a manifest, has such a
 * copy, and may be named. ERR_CONFIG. */
int setup_keep_job_file(const char *path, const char *run_dir) MUST_CHECK;

/* Rank 0 calls job_read; the other ranks get the job from it, and use `path` for messages alone. A
 * bad job, or one that setup_keep_job_file refuses, is refused on all ranks, and the comm can still
 * be used. *fresh: run.fresh. The caller destroys *out. Collective. */
int setup_read_job(struct comm *members, const char *path, const char *text, const char *const *set,
                   uint32_t set_count, struct job **out, bool *fresh) MUST_CHECK;
/* Compares the lines with rank 0's. ERR_INPUT on all ranks, with the first line that differs,
 * unless all have the same ones; the comm can still be used. Collective. */
int setup_compare_lines(struct comm *members, const char *lines) MUST_CHECK;

/* Fills *out from a setup with programs. */
void setup_summarize(const struct setup *self, struct setup_summary *out);

struct setup_plan_options {
    uint32_t local_world; /* ranks that share a host; 0: all of them (described: the machine's) */
    const struct machine *machine; /* config/machine.h; borrowed; NULL: defaults */
    /* Look at nothing but `machine`: its memory, devices, cores and drives, and its budgets for
     * those that the job leaves open. Scratch of a GPU's kernels is then an estimate. */
    bool is_described;
    struct plan_watch *watch; /* plan/plan_job.h; told what the plan is doing; or NULL */
};

/* Plans a job for a machine that was measured or is only described. Nothing is made. */
int setup_plan_on(const struct job *asked, const struct setup_plan_options *options,
                  struct setup_summary *out) MUST_CHECK;

/* The largest model of a family that fits a job's machine and budgets, and what stops the next
 * one. */
struct setup_max_model {
    uint64_t layers, hidden, heads, max_part_bytes; /* max_part_bytes: 0: blocks are whole */
    uint64_t param_count;
    /* Bytes of one rank: the least that a placement takes, and the budget. */
    uint64_t need_bytes[TIER_COUNT], budget_bytes[TIER_COUNT];
    uint32_t world_size, ranks_per_host, zero_stage;
    char machine_name[96];
    char machine_cannot_run[SETUP_CANNOT_RUN_BYTES]; /* as in setup_summary */
    uint64_t next_layers, next_hidden;               /* 0: the family ends */
    char next_problem[ERR_TEXT_BYTES];               /* which tier, with numbers */
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
