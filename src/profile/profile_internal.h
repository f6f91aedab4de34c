/* Declarations that the files of src/profile share. */
#ifndef SLUICE_PROFILE_INTERNAL_H
#define SLUICE_PROFILE_INTERNAL_H

#include "engine/engine.h"
#include "profile/profile.h"
#include "setup/setup.h"
#include "train/train.h"

/* An interval of busy time, ns. */
struct profilei_span {
    uint64_t start_ns, end_ns;
};

/* Measurements of one step. */
struct profilei_step {
    double seconds;
    double lane_seconds[LANE_COUNT], stall_seconds[LANE_COUNT];
    double resource_seconds[PROFILE_RESOURCE_COUNT];
    uint64_t lane_bytes[LANE_COUNT], spared_bytes[LANE_COUNT];
};

struct profilei_unit {
    double stall_seconds[LANE_COUNT + 1]; /* [lane that was waited for] over all measured steps */
};

struct profile {
    const struct profile_options *options;
    struct profile_summary *out;
    /* the job as it is run; from mem_alloc, but its text and lists are the caller's */
    job *own;
    /* a copy of `own` in which homes, tiles, order and update are those that were run */
    job *placed;
    bool is_placed;       /* `placed` could state all homes */
    plan_machine machine; /* the figures that the plan used */
    bool is_cpu;          /* the CPU computes */
    uint64_t measured_count, capacity, seen_count, taken_count;
    uint64_t wanted;                       /* steps to measure; 0: not known yet */
    uint64_t passes_seen, passes_hit_seen; /* the engine's counts of experts before the step */
    struct profilei_step *steps;           /* [capacity] */
    struct profilei_span *spans; /* [span_capacity] scratch: the ops of one resource in a step */
    uint64_t span_capacity;
    struct profilei_unit *units; /* [unit_count] */
    io_latency (*latencies)[2];  /* [DRIVES_MAX] read, write; over all measured steps */
    char (*unit_names)[64];      /* [unit_count] */
    uint32_t unit_count;
    struct setup_watch watch;
    char run_dir[FILE_PATH_BYTES];    /* made for this trial; "" before that */
    uint8_t *homes[STATE_KIND_COUNT]; /* [unit_count] as run */
    uint8_t *scratch_homes;           /* [unit_count] */
    bool is_gpu_budget_open;          /* the GPU's free memory decides the device budget */
    /* [drives] for each, the nearest directory that existed before the trial */
    char (*drive_bases)[FILE_PATH_BYTES];
};
typedef struct profile profile;

/* Fills the busy seconds of lanes and resources that the program predicts. `spans`: scratch,
 * [prog->op_count]. */
void profilei_predict(const program *prog, bool device_is_cpu, struct profilei_span *spans,
                      double lanes[LANE_COUNT], double resources[PROFILE_RESOURCE_COUNT]);

/* Makes the trial's run directory; and removes it, with those directories of drives that did not
 * exist before. */
int profilei_make_places(profile *self) MUST_CHECK;
void profilei_remove_places(const profile *self);

/* Fills the placed job from the setup that is about to run. */
int profilei_place(profile *self, const struct setup *setup) MUST_CHECK;
/* After the trial: fills calibrated_seconds and the advice. A failure of the simulator is only
 * logged. */
void profilei_advise(profile *self);

#endif
