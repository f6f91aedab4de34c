/* A lane whose timing is random and seeded, to test the executor: with a thread, or without one,
 * where the executor's own polls decide what completes. It executes ops by a callback, can fail the
 * n-th op, and reports all it sees to a watch that several lanes share. */
#ifndef SLUICE_TESTS_FAKE_LANE_H
#define SLUICE_TESTS_FAKE_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "swap/lane.h"

/* The executor's actions as its lanes see them. Only submit and poll write it, so one thread writes
 * it. */
struct fake_watch {
    const program *prog;
    lane *lanes[LANE_COUNT];
    uint8_t *states;     /* [op_count] 0 not seen, 1 in flight, 2 done */
    const bool *skipped; /* [op_count] ops that must never be seen; NULL: none */
    uint32_t in_flight[LANE_COUNT];
    uint32_t in_flight_max[LANE_COUNT];
    uint32_t next_min[LANE_COUNT]; /* op index that the next submit of the lane may not be below */
    uint64_t together[LANE_COUNT][LANE_COUNT]; /* submits on the first while the second had work */
    uint64_t fifo_violations;                  /* submits against the issue order of the lane */
    uint64_t dep_violations; /* submits before a dependency was done, or in flight on the owner */
    /* submits before their op.behind was seen, or before its lane's part was done */
    uint64_t behind_violations;
    uint64_t behind_submits; /* submits while their op.behind was in flight */
    uint64_t early_submits;  /* submits with a dependency still in flight on the same owner */
    uint64_t submits_after_failure;
    uint64_t skipped_submits; /* of ops that must never be seen */
    bool failed;              /* a failed request was handed back */
};
typedef struct fake_watch fake_watch;

void fake_watch_init(fake_watch *self, const program *prog);
void fake_watch_fini(fake_watch *self);

struct fake_lane_config {
    uint64_t seed;
    uint32_t depth;
    uint8_t in_order, keeps_behind;
    uint32_t owner;
    bool threaded;
    /* submit returns -EAGAIN once in so many calls with work in flight; 0: never */
    uint32_t busy_one_in;
    bool busy_for_others; /* then also with work in flight on any other lane of the watch */
    uint64_t fail_op_idx; /* this op fails, PROGRAM_NONE: none */
    int fail_code;
    bool fail_submit; /* it fails in submit, not in poll */
    bool fail_poll;   /* poll itself fails once that op is in flight: the lane is broken */
    int (*run)(void *user, const program *prog, const op *item); /* NULL: nothing */
    void *user;
    fake_watch *watch; /* NULL: none */
};
typedef struct fake_lane_config fake_lane_config;

lane *fake_lane_create(const fake_lane_config *config);

#endif
