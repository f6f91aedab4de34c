/* Runs programs: one scheduler thread (the caller's) hands ready ops to lanes in program order.
 *
 *   for each lane: next op in order --(dependencies done, room)--> submit --> poll --> done
 *
 * Ops of a lane are issued in program order. An op is issued when its dependencies are complete, or
 * are in flight on the worker that will also run this op. (A worker is a thread that runs the ops
 * of one or more lanes, see lane.h.) So a worker always has its next ops queued.
 *
 * Conditional ops (op.if_applied) belong to an update that may be skipped after an overflow of its
 * gradients; *is_skipped is then true. Which value of it counts follows from the program, not from
 * timing:
 *   - An op that comes after an OP_NORM of its program, through dependencies or the order of its
 *     lane, takes the value at the completion of that norm. It is not issued before.
 *   - If no conditional op of a program comes after a norm, they all belong to a pending update:
 *     they take the value at the call of executor_run, whatever the program's own norm says later.
 *   - In a program that has conditional ops after a norm, those before it are transfers ahead of
 *     the decision. They always run, and what they brought is dropped with the update. So they may
 *     write transients only; executor_create refuses a program in which one writes a home.
 * A skipped op never reaches its lane. It completes when everything that it would have waited for
 * is complete: its dependencies, and on a chain (program.h, ORDERING) the ops before it. So its
 * dependents, and the ops that reuse its memory, start no sooner than if it had run. It moves no
 * bytes and leaves no trace event, and its targets keep their content. So an op that reads a
 * transient that a conditional op writes must be conditional too.
 *
 * Ops that depend on a hit (program.h) wait until the router's op is complete, and are skipped in
 * the same manner if their unit is not hit.
 *
 * Ops with if_commits belong to a commit. If *is_committing is false at the call of executor_run,
 * they are skipped in the same manner, wherever they stand. An op with both conditions runs only if
 * both hold.
 *
 * executor_create allocates all bookkeeping for the largest program. executor_run allocates nothing
 * and sleeps in poll(2) when no lane has news. After the first failed op no further op is issued;
 * the executor waits for the ops in flight and is then POISONED, and every later run fails with
 * that. One thread owns the executor.
 *
 * Paranoid mode (see swap/paranoid.h) makes errors visible that timing usually hides:
 *   - At the start of a run all bytes of the device and host arenas become 0xff, which is NaN in
 *     every type, but for homes and what is carried into the program. So nothing else survives from
 *     one program to the next.
 *   - The target of an OP_READ becomes 0xff before the read is issued.
 *   - A transient that is not carried out becomes 0xff when its last user is complete, before
 *     anything that waited for that op is issued. For this, no worker gets its next op ahead:
 *     chains have one op in flight. */
#ifndef SLUICE_SWAP_EXECUTOR_H
#define SLUICE_SWAP_EXECUTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/trace.h"
#include "swap/lane.h"
#include "swap/program.h"

struct executor_config {
    /* Borrowed; NULL for a lane that no program uses. One object may stand in several slots
     * (lane.h). */
    lane *lanes[LANE_COUNT];
    /* All programs that may run; borrowed until destroy. They have passed program_check: the
     * executor relies on what it proves. */
    const program *const *programs;
    uint32_t program_count;
    trace *ring; /* borrowed; NULL: no trace */
    /* Borrowed; NULL: nothing is skipped. Read at the call of executor_run and right after an
     * OP_NORM is complete, never while one is in flight, so a norm may set it on its worker's
     * thread. */
    const bool *is_skipped;
    /* Borrowed; NULL: every run commits. Read at the call of executor_run. */
    const bool *is_committing;
    /* An op of the commit lane that is in flight for longer, because it waits for a drive's sync,
     * is named in a warning, and again each time that this time has doubled; 0: never. */
    uint64_t stuck_ns;
    bool paranoid;
    /* The start of the device and of the host arena, each of at least the programs' peaks. In host
     * memory lie the hits of programs that depend on them. Paranoid mode overwrites both arenas,
     * if they are given. */
    unsigned char *arena_base[TIER_COUNT];
};
typedef struct executor_config executor_config;

struct lane_totals {
    uint64_t op_count;      /* ops that ran */
    uint64_t skipped_count; /* conditional ops that were skipped */
    uint64_t bytes;         /* moved */
    uint64_t spared_bytes;  /* not moved, because no token chose an expert of the unit */
    uint64_t busy_ns;       /* time in which at least one op of the lane ran, without its pauses */
    /* Time in which computing waited for this lane. Computing is a GPU's compute stream; on the CPU
     * backend the cores, with their updates if they share a worker. Idle time before an op counts
     * for the dependency on another lane that ended last within it. The time after the last op of
     * computing counts for the op that ends the run. */
    uint64_t stall_ns;
};
typedef struct lane_totals lane_totals;

struct run_totals {
    uint64_t start_ns, end_ns;
    lane_totals lanes[LANE_COUNT];
};
typedef struct run_totals run_totals;

typedef struct executor executor;

/* -EINVAL for a lane of depth 0. ERR_INTERNAL if a program needs a lane that is not given, or
 * writes a home ahead of the norm that decides. -ENOMEM. */
int executor_create(const executor_config *config, executor **out) MUST_CHECK;
void executor_destroy(executor *self); /* does not destroy the lanes; NULL is allowed */

/* Runs all ops of `prog` and returns when the last one is complete. `step` is recorded in the
 * trace. totals may be NULL. On failure it waits for what is in flight and returns the first
 * error's code and text, prefixed with the op (kind, unit, tile or micro-batch); totals are zero.
 * ERR_POISONED after an earlier failure. ERR_INTERNAL for a program that executor_create was not
 * given (then nothing ran), or one whose ops wait for each other. */
int executor_run(executor *self, const program *prog, uint64_t step, run_totals *totals) MUST_CHECK;

#endif
