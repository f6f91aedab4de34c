/* Paced lanes: lanes that take as long as on a machine of stated speeds, for tests of timing.
 *
 * A paced lane stands between the executor and a lane that works. It hands each request on, so
 * bytes move and ranks wait for each other as usual. But it returns the request no sooner than a
 * machine of the stated rates would have finished it:
 *
 *   executor ─ submit ─► paced lane ─ submit ─► worker, drives ...      its bytes move now
 *                            │
 *                            └─ joins its lane's queue ─► runs ─► over; released after its work
 *
 * One clock (struct lane_pace) serves the queues of all paced lanes, in the same way as the
 * simulator: of each lane one op runs at a time, in submit order. Each op uses parts of the
 * machine's resources (op.demand), and ops that run together share them max-min fair: drives with
 * r/R + w/W <= 1, each direction of the link, the links between ranks, DRAM, cores. It takes
 * nothing else from the compiler, neither predicted times nor code. So the time of a run shows the
 * effect of order, dependencies, depths and other ranks at known speeds.
 *
 * A lane without work of its own (inner NULL) only takes the time. It is for compute and update
 * ops, whose arithmetic would take the cores that other ranks of a test need. Its ops complete with
 * 0 and write nothing.
 *
 * Threads wake late. An op starts when its prerequisites were over: the op before it on its lane,
 * and its dependencies on paced lanes. So lateness of threads up to late_seconds does not add up.
 * Longer delays (a rank that did not come, work that takes longer than stated) count in full. So
 * ops should be longer than threads are late: some milliseconds if ranks share cores.
 *
 *   lane_pace_config paced = {.rates = {...}, .programs = programs, .program_count = n};
 *   TRY(lane_pace_create(&paced, &pace));
 *   TRY(lane_pace_wrap(pace, io_lane, &io_lane));      the same for copies, comm
 *   TRY(lane_pace_wrap(pace, NULL, &cores_lane));
 *   A lane that serves two kinds is put in both of their slots.
 *
 * The executor's thread makes all calls, including those of the lanes. One executor at a time. */
#ifndef SLUICE_TESTS_LANE_PACE_H
#define SLUICE_TESTS_LANE_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "swap/lane.h"
#include "swap/program.h"

/* The rates of one rank, per second. A rate of 0 means no limit. */
struct pace_rates {
    double drive_read_bytes, drive_write_bytes; /* one resource: r/R + w/W <= 1 */
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
    const program *const *programs; /* all programs that may run; read by lane_pace_create only */
    uint32_t program_count;
    double late_seconds; /* 0: 0.005 */
};
typedef struct lane_pace_config lane_pace_config;

typedef struct lane_pace lane_pace;

/* -EINVAL for a negative rate, -ENOMEM, or the system's error for the timer. Only lane_pace_wrap
 * allocates afterwards. */
int lane_pace_create(const lane_pace_config *config, lane_pace **out) MUST_CHECK;
void lane_pace_destroy(lane_pace *self); /* after its lanes; NULL is allowed */

/* Makes a paced lane of `inner`, for all kinds of ops that `inner` serves. An object may stand in
 * several slots of executor_config.lanes, and so may this one. It owns `inner`, which may be the
 * same variable as *out: destroying it destroys both. inner NULL: see above. Its requests carry the
 * paced times; wait_ns is how long their lane was idle. -ENOMEM, or the system's error for
 * descriptors: then `inner` and *out are unchanged. */
int lane_pace_wrap(lane_pace *self, lane *inner, lane **out) MUST_CHECK;

struct plan_machine;
/* The rates of a plan's machine. */
pace_rates pace_rates_of(const struct plan_machine *machine);

/* Seconds that the op takes if nothing else runs. */
double lane_pace_alone_seconds(const pace_rates *rates, const op *item);

#endif
