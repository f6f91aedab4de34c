/* sluice profile: measures a few real steps of a job and compares them with the plan's prediction.
 *
 * profile_run works in three steps:
 *
 *   1. It trains the job as a trial (train_options.is_trial) in a run directory of its own, which
 *      is removed at the end, also after a failure. State begins anew and nothing is kept. Steady
 *      steps without commits are measured.
 *   2. It sets the simulator to the measured speeds.
 *   3. It simulates changes of single settings and reports those that gain (profile_advice).
 *
 * The busy time of a lane is the time in which at least one of its ops was running, measured and
 * predicted alike. The binding lane is the lane that is busy longest. Some lanes share a resource:
 * reads and writes share the drives; on the CPU backend, computing and updating share the cores.
 * Such lanes are also counted together, and the binding resource is the one that is busy longest.
 *
 * as_rank: one process does alone what rank R of N does (comm_pretend): its shards, slabs, buffers,
 * reads, writes, copies, updates and computing. Collectives are copies of their size that take the
 * stated time. The process has the host to itself. Losses and weights mean nothing then. If a job
 * is too large for one machine's disks, scale_down divides the number of its blocks and changes
 * nothing else. Every unit's transfers are then still those of the rank, and a step has that many
 * times fewer of them, except those of the embedding and the head. */
#ifndef SLUICE_PROFILE_PROFILE_H
#define SLUICE_PROFILE_PROFILE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/words.h"
#include "config/job.h"
#include "config/machine.h"
#include "train/train.h"

enum {
    PROFILE_UNITS_SHOWN = 12,
    PROFILE_ADVICE_MAX = 4,
    PROFILE_STEPS_MAX = 1000,
};

enum profile_resource {
    PROFILE_DRIVES, /* reads and writes */
    PROFILE_H2D,
    PROFILE_D2H,
    PROFILE_COMM,
    PROFILE_CORES,  /* updates; if the CPU computes: computing too */
    PROFILE_DEVICE, /* computing on a GPU */
    PROFILE_SYNC,   /* commit */
    PROFILE_RESOURCE_COUNT
};

struct profile_lane {
    uint64_t predicted_bytes, measured_bytes;   /* per step */
    double predicted_seconds, measured_seconds; /* busy time per step; measured: the median */
    /* time per step in which computing waited for this lane; the median */
    double stall_seconds;
    double ceiling; /* bytes/s that the machine file states; 0: not known */
    /* per step, of experts that no token chose; measured: the mean */
    uint64_t predicted_spared_bytes;
    double measured_spared_bytes;
};

struct profile_unit {
    char name[64];
    double stall_seconds; /* per step, in the mean: time in which computing for this unit waited */
    uint8_t lane;         /* enum lane_kind: the lane that it mostly waited for */
};

/* Times of single transfers (each at most aio.block_size) in all measured steps, in seconds: from
 * when a transfer is handed to the kernel until this process sees it complete. */
struct profile_times {
    uint64_t count;
    double p50, p95, p99, max; /* percentiles are at most 1/16 too high (tiers/io_latency.h) */
};

struct profile_drive {
    char path[4096];               /* as the job names it */
    struct profile_times times[2]; /* read, write */
};

struct profile_advice {
    char text[240];      /* the setting to change, its new value, and why */
    double step_seconds; /* simulated with the change, for as many tokens as before */
    double gain;         /* 0.1: a tenth less time for as many tokens */
};

struct profile_options {
    const struct job *job;         /* read for of_ranks ranks if that is above 0 */
    const struct machine *machine; /* NULL: the plan's defaults */
    /* Steps to measure, after the warm-up; 0: as many as take half a minute, 3 to 20. */
    uint64_t steps;
    /* if of_ranks > 0, this process does the work of that rank alone */
    uint32_t as_rank, of_ranks;
    double comm_bytes_per_second; /* with of_ranks: speed of collectives; 0: the machine's */
    uint32_t scale_down;          /* with of_ranks: divides the number of blocks; 0 acts as 1 */
    /* With of_ranks: forward and backward only wait, for as long as `machine` needs for them, or
     * not at all without one. */
    bool only_transfers;
    bool no_advice;
    const volatile sig_atomic_t *stop;
    /* as in train_options */
    void (*on_plan)(void *user, const struct setup_summary *plan);
    void (*on_step)(void *user, const struct train_progress *progress);
    void *user;
};

struct profile_summary {
    struct setup_summary plan;
    uint64_t steps, warmup_steps;               /* measured steps, and steps before them */
    double predicted_seconds, measured_seconds; /* per step; measured: the median */
    double measured_fastest, measured_slowest;
    struct profile_lane lanes[LANE_COUNT];
    /* Passes of a step whose experts may not be needed, and those of them that needed them, in the
     * mean; both 0 where all experts are fetched. plan.expert_passes has what was expected. */
    double expert_passes, expert_passes_hit;
    uint8_t predicted_binding, measured_binding; /* enum lane_kind */
    double predicted_resource_seconds[PROFILE_RESOURCE_COUNT];
    double measured_resource_seconds[PROFILE_RESOURCE_COUNT]; /* the median */
    uint8_t predicted_resource, measured_resource; /* enum profile_resource: the busiest one */
    uint64_t peak_bytes[TIER_COUNT];               /* sizes of the arenas as they were made */
    uint64_t resident_bytes_max;                   /* of the whole process (VmHWM) */
    uint64_t gpu_used_bytes; /* GPU memory in use at the end, by all processes; 0 on the CPU */
    uint32_t unit_count;
    struct profile_unit units[PROFILE_UNITS_SHOWN]; /* by stall time, the longest first */
    uint32_t drive_count;
    struct profile_drive drives[DRIVES_MAX];
    /* Simulated seconds of a step with the measured speeds, then how many changes were simulated.
     * 0: the simulation was not done. */
    double calibrated_seconds;
    uint32_t tried_count, advice_count;
    struct profile_advice advice[PROFILE_ADVICE_MAX]; /* by gain, the largest first */
    bool is_random_data;                              /* the job names no training data */
    uint32_t as_rank, of_ranks, scale_down;
    /* blocks of the model as it was run, and as the job has it */
    uint64_t block_count, block_count_asked;
    double comm_bytes_per_second; /* with of_ranks: speed at which collectives ran */
    bool only_transfers;
    bool is_compute_timed; /* with only_transfers: computing took the machine's time, not none */
};

/* Profiles a job and fills *out. Blocks. Errors as those of train_run: ERR_NO_FIT, ERR_CONFIG and
 * others before anything is made; ERR_STOPPED after a requested stop. */
int profile_run(const struct profile_options *options, struct profile_summary *out) MUST_CHECK;

const char *profile_resource_name(enum profile_resource resource); /* "drives", "cores", ... */

#endif
