/* Runs programs: one scheduler thread (the caller's), which hands ready ops to lanes in program order.
 *
 *   for each lane: next op in order --(dependencies complete, lane has room)--> submit --> poll --> done
 *
 * Ops of a lane are issued in program order. An op is issued when its dependencies are complete, or
 * are in flight on the worker that will run it too: a worker always has its next ops queued.
 *
 * Conditional ops (op.if_applied) belong to an update that may be skipped, for an overflow of its
 * gradients. *is_skipped says so. Which of its values counts is a matter of the program alone, never of
 * timing:
 *   - an op that comes after an OP_NORM of its program, through dependencies or the order of its lane,
 *     takes the value that stood when that norm was complete; until then it is not issued;
 *   - a program without such ops has its conditional ops from a pending update: they all take the value
 *     that stood when executor_run was called, whatever the program's own norm says later;
 *   - in a program with such ops, the conditional ops that come before the norm are transfers ahead of
 *     the decision. They run in any case: what they brought is dropped with the update. They may
 *     therefore write transients only; executor_create refuses a program where one writes a home.
 * A skipped op never reaches its lane. It completes in the order of its lane, when all that it had to
 * wait for is complete (its dependencies; on a chain lane also the ops before it), so it releases its
 * dependents, and the memory that they reuse, no sooner than if it had run. It moves no bytes and leaves
 * no trace event; its targets keep what they held. So what reads a transient that a conditional op
 * writes must be conditional too.
 *
 * Ops with if_commits belong to a commit: where *is_committing is false when executor_run is called they
 * are skipped in the same manner, wherever they stand in the program. An op may carry both conditions: it
 * runs where both are met.
 *
 * All bookkeeping is allocated by executor_create for the largest program; executor_run allocates
 * nothing and sleeps in poll(2) whenever no lane has news. The first failing op stops the issue of
 * further ops; what is in flight is awaited; then the executor is POISONED and every later run says so.
 * Not thread-safe: one thread owns it.
 *
 * Paranoid mode (with swap/paranoid.h, which see) makes what timing usually hides show each time:
 *   - at the start of a run all bytes of the device and host arenas that are no home become 0xff, which
 *     is NaN in every type: nothing survives from one program to the next but homes;
 *   - the target of an OP_READ becomes 0xff before the read is issued;
 *   - a transient becomes 0xff when its last user is complete, before anything that waited for that op
 *     is issued. For this no worker is fed ahead: chain lanes have one op in flight. */
#ifndef SLUICE_SWAP_EXECUTOR_H
#define SLUICE_SWAP_EXECUTOR_H

#include <stdbool.h>
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
    /* Borrowed; NULL: nothing is skipped. Read when executor_run is called and right after an OP_NORM
     * is complete, never while one is in flight, so that op may set it on its worker's thread. */
    const bool *is_skipped;
    /* Borrowed; NULL: every run commits. Read when executor_run is called. */
    const bool *is_committing;
    uint64_t
        stuck_ns; /* an op of the commit lane in flight for longer, which waits for a drive's sync,
                          is named in a warning, and again at each doubling of that time; 0: never */
    bool paranoid;
    unsigned char
        *arena_base[TIER_COUNT]; /* paranoid: start of the device and of the host arena, of
                                               at least the programs' peaks; NULL: left alone */
};
typedef struct executor_config executor_config;

struct lane_totals {
    uint64_t op_count;      /* that ran */
    uint64_t skipped_count; /* conditional ops that did not */
    uint64_t bytes;         /* moved */
    uint64_t busy_ns;       /* time in which at least one op of the lane was running */
    uint64_t
        stall_ns; /* time in which what computes (a GPU's compute stream; on the CPU backend the
                          cores, which also update where they share a worker) waited for this lane:
                          idle time before an op counts for the dependency on another lane that ended
                          last within it, and the time after their last op for the op that ends the
                          run */
};
typedef struct lane_totals lane_totals;

struct run_totals {
    uint64_t start_ns, end_ns;
    lane_totals lanes[LANE_COUNT];
};
typedef struct run_totals run_totals;

typedef struct executor executor;

/* -EINVAL for a lane of depth 0, ERR_INTERNAL where a program needs a lane that is not given, has
 * dependencies outside of itself, or writes a home ahead of the norm that decides, -ENOMEM. */
int executor_create(const executor_config *config, executor **out) MUST_CHECK;
void executor_destroy(executor *self); /* leaves the lanes alone; NULL is allowed */

/* Runs all ops of `prog` and returns when the last is complete. `step` is recorded in the trace.
 * totals may be NULL. On failure: the first error's code and text, prefixed with what the op was
 * (kind, unit, tile or micro-batch), after all that was in flight is back; totals are zero.
 * ERR_POISONED after an earlier failure, ERR_INTERNAL for a program not named at creation (nothing
 * is run then) or one whose ops wait for each other. */
int executor_run(executor *self, const program *prog, uint64_t step, run_totals *totals) MUST_CHECK;

#endif
