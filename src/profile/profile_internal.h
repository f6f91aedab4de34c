/* What the files of `sluice profile` share.
 *
 *   profile.c         the trial, what is measured of it     as_rank.c    the job of one rank of many
 *   profile_advice.c  what a change would give              profile_places.c  directories
 *   drive_times.c     how long transfers took */
#ifndef SLUICE_PROFILE_PROFILE_INTERNAL_H
#define SLUICE_PROFILE_PROFILE_INTERNAL_H

#include "engine/engine.h"
#include "profile/profile.h"
#include "setup/setup.h"
#include "train/train.h"

/* A begin or an end of busy time, ns. */
struct profilei_span {
    uint64_t start_ns, end_ns;
};

/* What a step took: [steps] of each. */
struct profilei_step {
    double seconds;
    double lane_seconds[LANE_COUNT], stall_seconds[LANE_COUNT];
    double resource_seconds[PROFILE_RESOURCE_COUNT];
    uint64_t lane_bytes[LANE_COUNT];
};

struct profilei_unit {
    double stall_seconds[LANE_COUNT + 1]; /* by the lane that was waited for; all measured steps */
};

struct profile {
    const struct profile_options *options;
    struct profile_summary *out;
    job *own;       /* the job as it is run: mem_alloc'd, its text and lists are the caller's */
    job *placed;    /* likewise, with the homes, tiles, order and update that were run */
    bool is_placed; /* placed says all of it */
    plan_machine machine; /* as planned with */
    bool is_cpu;          /* the device */
    uint64_t measured_count, capacity, seen_count, taken_count;
    uint64_t wanted;             /* steps to measure; 0: not known yet */
    struct profilei_step *steps; /* [capacity] */
    struct profilei_span *spans; /* [span_capacity] of a step's ops of a resource */
    uint64_t span_capacity;
    struct profilei_unit *units; /* [unit_count] */
    io_latency (*latencies)[2];  /* [DRIVES_MAX] read, write: of all measured steps */
    char (*unit_names)[64];      /* [unit_count] */
    uint32_t unit_count;
    struct setup_watch watch;
    char run_dir[FILE_PATH_BYTES];        /* made for this run, "" before */
    uint8_t *homes[STATE_KIND_COUNT];     /* [unit_count] as run */
    uint8_t *scratch_homes;               /* [unit_count] */
    bool is_gpu_budget_open;              /* what is free of the GPU decides */
    char (*drive_bases)[FILE_PATH_BYTES]; /* [drives] what was there of each one's directory */
};
typedef struct profile profile;

/* Busy seconds by lane and by resource as the program predicts them. `spans`: room for its ops. */
void profilei_predict(const program *prog, bool device_is_cpu, struct profilei_span *spans,
                      double lanes[LANE_COUNT], double resources[PROFILE_RESOURCE_COUNT]);

/* drive_times.c: the transfers since the last call, of a step that counts or not; and their sum, as
 * shown. */
void profilei_note_drives(profile *self, const struct engine *engine, bool counts);
void profilei_sum_drives(profile *self);

/* as_rank.c: the job as the rank has it, and the ranks that are not there. ERR_CONFIG,
 * ERR_USAGE. */
int profilei_scale(profile *self) MUST_CHECK;

/* profile_places.c: the run directory, made; and gone again, with directories of drives that were
 * not there. */
int profilei_make_places(profile *self) MUST_CHECK;
void profilei_remove_places(const profile *self);

/* profile_advice.c: the placed job from what is about to run. */
int profilei_place(profile *self, const struct setup *setup) MUST_CHECK;
/* After the trial: calibrated_seconds, advice. A failure of the simulator is told in the log
 * alone. */
void profilei_advise(profile *self);

#endif
