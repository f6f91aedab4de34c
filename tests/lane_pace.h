/* Lanes that take as long as stated: for tests, and to see what a plan would do on another machine.
 *
 * A paced lane stands between the executor and a lane that works. It hands each request on, so bytes move
 * and ranks wait for each other as ever, but gives it back no sooner than a machine of the stated rates would
 * have done it:
 *
 *   executor ─ submit ─► paced lane ─ submit ─► worker, drives ...        its bytes move now
 *                            │
 *                            └─ joins its lane's queue ─► runs ─► is over; released when its work is done too
 *
 * The queues of all paced lanes are served by one clock (struct lane_pace), as the simulator has it: of each
 * lane one op runs at a time, in submit order; each op uses parts of the machine's resources (op.demand); and
 * what runs together shares them max-min fair: drives with r/R + w/W <= 1, each direction of the link, the
 * links between ranks, DRAM, cores. Nothing else is taken from the compiler: neither its predicted times nor
 * its code. So the time of a run says what order, dependencies, depths and peers did, at known speeds.
 *
 * A lane without work of its own (inner NULL) takes the time alone: for compute and update ops, whose
 * arithmetic would take the cores that other ranks of a test need. Its ops complete with 0 and write nothing.
 *
 * Threads wake late. An op starts when what it waited for was over: the op before it on its lane, the
 * dependencies that were on paced lanes; a lateness of the threads up to late_seconds thus does not add up.
 * What comes later than that (a peer that did not come, work that takes longer than stated) counts in full.
 * So ops want to be longer than the threads are late: some milliseconds where ranks share cores.
 *
 *   lane_pace_config paced = {.rates = {...}, .programs = programs, .program_count = n};
 *   TRY(lane_pace_create(&paced, &self->pace));
 *   TRY(lane_pace_wrap(self->pace, self->read_lane, &self->read_lane));   likewise write, copies, comm
 *   TRY(lane_pace_wrap(self->pace, NULL, &self->cores_lane));             in both of its slots
 *
 * All calls, those of the lanes included, on the executor's thread. One executor at a time. */
#ifndef SLUICE_TESTS_LANE_PACE_H
#define SLUICE_TESTS_LANE_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "swap/lane.h"
#include "swap/program.h"

/* What one rank has for itself, per second. A rate of 0 is without limit. */
struct pace_rates {
    double drive_read_bytes, drive_write_bytes; /* of one resource: r/R + w/W <= 1 */
    double h2d_bytes, d2h_bytes;
    double comm_bytes; /* sent to other ranks */
    double dram_bytes;
    double device_flops, device_bytes;
    double cores;       /* core-seconds */
    bool device_is_cpu; /* device_flops take the cores */
    double op_seconds;  /* fixed cost of any op, beside its demand.wait_seconds */
};
typedef struct pace_rates pace_rates;

struct lane_pace_config {
    pace_rates rates;
    const program *const *programs; /* all that will be run; only looked at by lane_pace_create */
    uint32_t program_count;
    double late_seconds; /* 0: 0.005 */
};
typedef struct lane_pace_config lane_pace_config;

typedef struct lane_pace lane_pace;

/* -EINVAL for a negative rate, -ENOMEM, or the system's for the timer. Nothing is allocated afterwards but by
 * lane_pace_wrap. */
int lane_pace_create(const lane_pace_config *config, lane_pace **out) MUST_CHECK;
void lane_pace_destroy(lane_pace *self); /* after its lanes; NULL is allowed */

/* A paced lane of `inner`, for all kinds of ops that `inner` serves (an object may stand in several slots of
 * executor_config.lanes; so may this one). It owns `inner`, which may be the same variable as *out: destroying
 * it destroys both. inner NULL: see above. Its requests carry the paced times, and wait_ns is how long their
 * lane had nothing to do. -ENOMEM, the system's for descriptors:
 * then `inner` is as it was, and *out too. */
int lane_pace_wrap(lane_pace *self, lane *inner, lane **out) MUST_CHECK;

struct plan_machine;
/* What a plan's machine has. */
pace_rates pace_rates_of(const struct plan_machine *machine);

/* Seconds that the op takes where nothing else runs. */
double lane_pace_alone_seconds(const pace_rates *rates, const op *item);

#endif
