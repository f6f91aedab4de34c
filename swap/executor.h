/* Runs programs: one scheduler thread (the caller's), which hands ready ops to lanes in program order.
 *
 *   for each lane: next op in order --(dependencies complete, lane has room)--> submit --> poll --> done
 *
 * Ops of a lane are issued in program order. An op is issued when its dependencies are complete, or
 * are in flight on the worker that will run it too: a worker always has its next ops queued.
 *
 * All bookkeeping is allocated by executor_create for the largest program; executor_run allocates
 * nothing and sleeps in poll(2) whenever no lane has news. The first failing op stops the issue of
 * further ops; what is in flight is awaited; then the executor is POISONED and every later run says so.
 * Not thread-safe: one thread owns it. */
#ifndef SLUICE_SWAP_EXECUTOR_H
#define SLUICE_SWAP_EXECUTOR_H

#include <stdint.h>

#include "base/error.h"
#include "base/trace.h"
#include "swap/lane.h"
#include "swap/program.h"

struct executor_config {
    lane *lanes[LANE_COUNT]; /* borrowed; NULL where no program uses the lane; one object may stand
                                in several slots (lane.h) */
    const program *const *programs; /* all that will be run; borrowed until destroy, checked before
                                       (program_check): they are walked, not proved, here */
    uint32_t program_count;
    trace *ring; /* borrowed; NULL: no trace */
};
typedef struct executor_config executor_config;

struct lane_totals {
    uint64_t op_count;
    uint64_t bytes;    /* moved */
    uint64_t busy_ns;  /* time in which at least one op of the lane was running */
    uint64_t stall_ns; /* time in which the cores (compute, update) waited for this lane: idle time
                          before an op counts for the dependency of another worker that ended last
                          within it, and the time after their last op for the op that ends the run */
};
typedef struct lane_totals lane_totals;

struct run_totals {
    uint64_t start_ns, end_ns;
    lane_totals lanes[LANE_COUNT];
};
typedef struct run_totals run_totals;

typedef struct executor executor;

/* -EINVAL for a lane of depth 0, ERR_INTERNAL where a program needs a lane that is not given or has
 * dependencies outside of itself, -ENOMEM. */
int executor_create(const executor_config *config, executor **out) MUST_CHECK;
void executor_destroy(executor *self); /* leaves the lanes alone; NULL is allowed */

/* Runs all ops of `prog` and returns when the last is complete. `step` is recorded in the trace.
 * totals may be NULL. On failure: the first error's code and text, prefixed with what the op was
 * (kind, unit, tile or micro-batch), after all that was in flight is back; totals are zero.
 * ERR_POISONED after an earlier failure, ERR_INTERNAL for a program not named at creation (nothing
 * is run then) or one whose ops wait for each other. */
int executor_run(executor *self, const program *prog, uint64_t step, run_totals *totals) MUST_CHECK;

#endif
