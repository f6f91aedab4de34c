/* sluice profile: a few real steps of a job, held against what the plan predicts of them.
 *
 * Runs as a trial (train_options.is_trial): state begins anew, nothing is kept, nothing is left behind. */
#ifndef SLUICE_TRAIN_PROFILE_H
#define SLUICE_TRAIN_PROFILE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "config/job.h"
#include "config/machine.h"
#include "train/train.h"

enum { PROFILE_UNITS_SHOWN = 12, PROFILE_ADVICE_MAX = 4 };

struct profile_lane {
    uint64_t predicted_bytes, measured_bytes;   /* of a step */
    double predicted_seconds, measured_seconds; /* busy, of a step: measured: the median */
    double stall_seconds;                       /* what computes waited for it */
    double ceiling; /* bytes/s that the machine was probed for, 0: none is known */
};

struct profile_unit {
    char name[64];
    double stall_seconds; /* of a step: computing for this unit waited */
    uint8_t lane;         /* enum lane_kind: mostly for this one */
};

struct profile_advice {
    char text[240];      /* what to set to what, and why */
    double step_seconds; /* simulated, with it */
};

struct profile_options {
    const struct job *job;
    const struct machine *machine; /* NULL: the plan's defaults */
    uint64_t steps; /* measured, after one that is not; 0: as many as take half a minute, 3 to 20 */
    uint32_t as_rank,
        of_ranks; /* of_ranks > 0: this process does the work of that rank alone: collectives are
                                   copies of their size at the machine's stated speed */
    const volatile sig_atomic_t *stop;
    void (*on_plan)(void *user, const struct plan_summary *plan);
    void (*on_step)(void *user, const struct train_progress *progress);
    void *user;
};

struct profile_summary {
    struct plan_summary plan;
    uint64_t steps;
    double predicted_seconds, measured_seconds; /* of a step; measured: the median */
    double measured_fastest, measured_slowest;
    struct profile_lane lanes[LANE_COUNT];
    uint8_t predicted_binding, measured_binding; /* enum lane_kind */
    uint64_t peak_bytes[ARENA_COUNT];            /* measured: of the arenas as they were made */
    uint64_t resident_bytes_max;
    uint32_t unit_count;
    struct profile_unit units[PROFILE_UNITS_SHOWN]; /* by stall, the longest first */
    uint32_t advice_count;
    struct profile_advice advice[PROFILE_ADVICE_MAX]; /* by gain */
};

/* As train_run: ERR_NO_FIT, ERR_CONFIG and so on before anything is made; ERR_STOPPED after a stop. */
int profile_run(const struct profile_options *options, struct profile_summary *out) MUST_CHECK;

#endif
