/* sluice profile: a few real steps of a job, held against what the plan predicts of them.
 *
 *   profile_run   the job as a trial (train_options.is_trial): state begins anew, steady steps without commits are
 *                 measured, nothing is kept; a run directory of its own, removed at the end, whatever the end;
 *                 then the simulator is set to the speeds that were measured, and asked what a change would give
 *
 * Busy time of a lane: time in which at least one of its ops was running; predicted likewise. The
 * binding lane is the one that is busy longest. Lanes that share a resource (reads and writes the
 * drives; on the CPU backend computing and updating the cores) are also looked at together: the
 * binding resource.
 *
 * as_rank: one process does what rank R of N does, alone (comm_pretend): its shards, slabs,
 * buffers, reads, writes, copies, updates and computing; collectives are copies of their size that
 * take the stated time. It has the host to itself. Losses and weights then mean nothing. A job that
 * is too large for one machine's disks may be scaled down: its blocks are divided by `scale_down`
 * and nothing else is changed, so every unit's transfers are those of the rank, and the step has so
 * many times fewer of them (but for the embedding and the head). */
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
    PROFILE_DRIVES, /* read and write */
    PROFILE_H2D,
    PROFILE_D2H,
    PROFILE_COMM,
    PROFILE_CORES,  /* update; where the CPU is the device: compute too */
    PROFILE_DEVICE, /* compute of a GPU */
    PROFILE_SYNC,   /* commit */
    PROFILE_RESOURCE_COUNT
};

struct profile_lane {
    uint64_t predicted_bytes, measured_bytes;   /* of a step */
    double predicted_seconds, measured_seconds; /* busy, of a step: measured: the median */
    double stall_seconds;                       /* what computes waited for it; the median */
    double ceiling; /* bytes/s that the machine was probed for, 0: none is known */
};

struct profile_unit {
    char name[64];
    double stall_seconds; /* of a step, in the mean: computing for this unit waited */
    uint8_t lane;         /* enum lane_kind: mostly for this one */
};

/* Of single transfers (aio.block_size at most), in seconds, over all measured steps: from when one
 * is handed to the kernel until this process sees it complete. */
struct profile_times {
    uint64_t count;
    double p50, p95, p99, max; /* percentiles are at most 1/16 too high (tiers/io_latency.h) */
};

struct profile_drive {
    char path[4096];               /* as the job names it */
    struct profile_times times[2]; /* read, write */
};

struct profile_advice {
    char text[240];      /* what to set to what, and why */
    double step_seconds; /* simulated, with it; of as many tokens as before */
    double gain;         /* 0.1: a tenth less time for as many tokens */
};

struct profile_options {
    const struct job *job;         /* for of_ranks ranks, where that is above 0 */
    const struct machine *machine; /* NULL: the plan's defaults */
    /* measured, after those that are not; 0: as many as take half a minute, 3 to 20 */
    uint64_t steps;
    uint32_t as_rank, of_ranks;   /* of_ranks > 0: this process does the work of that rank alone */
    double comm_bytes_per_second; /* of_ranks: of collectives; 0: the machine's */
    uint32_t scale_down;          /* of_ranks: divides the number of blocks; 0 acts as 1 */
    /* of_ranks: forward and backward are waited for as long as the machine takes for them, or
     * without one left out */
    bool only_transfers;
    bool no_advice;
    const volatile sig_atomic_t *stop;
    void (*on_plan)(void *user, const struct setup_summary *plan);
    void (*on_step)(void *user, const struct train_progress *progress);
    void *user;
};

struct profile_summary {
    struct setup_summary plan;
    uint64_t steps, warmup_steps;               /* measured; and before them */
    double predicted_seconds, measured_seconds; /* of a step; measured: the median */
    double measured_fastest, measured_slowest;
    struct profile_lane lanes[LANE_COUNT];
    uint8_t predicted_binding, measured_binding; /* enum lane_kind */
    double predicted_resource_seconds[PROFILE_RESOURCE_COUNT];
    double measured_resource_seconds[PROFILE_RESOURCE_COUNT]; /* the median */
    uint8_t predicted_resource, measured_resource; /* enum profile_resource: the busiest */
    uint64_t peak_bytes[TIER_COUNT];               /* measured: of the arenas as they were made */
    uint64_t resident_bytes_max;                   /* of the process, all told (VmHWM) */
    uint32_t unit_count;
    struct profile_unit units[PROFILE_UNITS_SHOWN]; /* by stall, the longest first */
    uint32_t drive_count;
    struct profile_drive drives[DRIVES_MAX];
    /* Of the simulation with the speeds that were measured, and what else it was asked; 0: it was
     * not. */
    double calibrated_seconds;
    uint32_t tried_count, advice_count;
    struct profile_advice advice[PROFILE_ADVICE_MAX]; /* by gain */
    bool is_random_data;                              /* the job names none */
    uint32_t as_rank, of_ranks, scale_down;
    uint64_t block_count, block_count_asked; /* of the model */
    double comm_bytes_per_second;            /* of_ranks: at which collectives ran */
    bool only_transfers;
    bool is_compute_timed; /* only_transfers: waited for, at the machine's speed */
};

/* As train_run: ERR_NO_FIT, ERR_CONFIG and so on before anything is made; ERR_STOPPED after a
 * stop. */
int profile_run(const struct profile_options *options, struct profile_summary *out) MUST_CHECK;

const char *profile_resource_name(enum profile_resource resource); /* "drives", "cores", ... */

#endif
