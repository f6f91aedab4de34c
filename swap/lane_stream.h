/* The lanes of a GPU: h2d, d2h, compute and comm, each a stream, behind one lane object.
 *
 *   submit(op) ─► [wait for the events of its dependencies on other streams] [start event]
 *                 copy, config.enqueue (kernels), or a graph that replays it  [end event]
 *                                                     └─► signal stream: host function ─► eventfd
 *   poll ◄─ finished ops, in submit order of each stream; config.finish has run for each
 *
 * The same object stands in the executor's slots of all these lanes. It is in order and has one
 * owner, so the executor submits an op as soon as its dependencies are complete or submitted here:
 * events keep the order between streams on the GPU, without the host. An op that depends on other
 * lanes (a read from nvme, an update on the CPU) is submitted when those are complete. Completions
 * come back by a host function that writes to the lane's descriptor, on a second stream so that it
 * delays no work. No thread of ours waits or spins (except for at most 50 us a second, to compare
 * the clocks).
 *
 * lane_stream_prepare saves calls of the driver. Host functions then follow only those ops that the
 * host waits for, and at least every second of `depth` ops; events only those that another stream
 * waits for; and runs of ops of the compute lane whose work is the same at each run become graphs
 * (stream_plan.h says which). Poll returns an op without a host function together with the next one
 * that has one, or after two seconds, if a failure elsewhere keeps that one from being submitted.
 *
 * A GPU that faults calls no host function. So a timer wakes the executor once a second, and poll
 * asks for the oldest op in flight: the fault comes back as the lane's failure, with CUDA's text. A
 * collective whose other ranks are gone does not end either; poll calls config.watch for it.
 *
 * If the comm lane is a worker of the host (collectives through host memory), that worker stands in
 * the executor's slot and has another owner. Its work begins when the ops that it depends on are
 * complete here, and ends before the executor submits what depends on it. It copies on a stream of
 * its own and waits for that stream.
 *
 * Copies (OP_H2D, OP_D2H) are made here. For all other ops config.enqueue puts the kernels on the
 * given stream; it must not allocate. If it waits for the GPU, it must itself do what config.watch
 * does, since nothing else runs on this thread meanwhile. config.finish runs on the
 * executor's thread once the op is complete and before the executor learns of it; it may read what
 * the op wrote to pinned memory. With config.is_timed, times of requests are the GPU's, on the
 * clock of clock_ns, within about 10 us, and a graph replays only one op, so that each has its
 * times. Otherwise no event is timed, and the times are those of the host, which knows of an op
 * later than it ends, and not when it waited. wait_ns is how long the op's stream was idle before
 * it.
 *
 * Failures:
 *   - submit could not enqueue an op: it was not taken, and the code is that of enqueue or of the
 *     device. Requests in flight are returned. Later submits return ERR_POISONED.
 *   - finish fails: its request has the error, requests that finish after it have ERR_POISONED (the
 *     GPU may have run them, but finish has not), and later submits return ERR_POISONED.
 *   - the GPU or watch fails: poll fails and nothing in flight comes back. That may take a second.
 * submit returns -EAGAIN if `depth` ops of that lane kind are in flight. Work of a failed op may
 * still run when the executor has returned: destroy waits for it, and the arenas must live until
 * then.
 *
 * One thread, the executor's, which opened the device, uses the lane. Everything is made at
 * creation and in lane_stream_prepare: two streams per lane kind, and for each of its `depth` ops
 * in flight a record and one event, or two if they are timed. The device owns streams and events
 * until it is closed. */
#ifndef SLUICE_SWAP_LANE_STREAM_H
#define SLUICE_SWAP_LANE_STREAM_H

#include <stdint.h>

#include "base/error.h"
#include "swap/lane.h"
#include "tiers/device.h"

struct lane_stream_config {
    device *gpu;                  /* borrowed */
    bool serves[LANE_COUNT];      /* the lanes with a stream: any but read and write */
    unsigned char *arena_base[2]; /* TIER_DEVICE: GPU memory; TIER_HOST: pinned */
    int (*enqueue)(void *user, const program *prog, const op *item, void *stream);
    int (*finish)(void *user, const program *prog, const op *item); /* may be NULL */
    /* May be NULL. poll calls it about once a second while no op comes back. It returns 0, or a
     * negative code that becomes the lane's failure; then it has ended the work that would never
     * leave the streams. */
    int (*watch)(void *user);
    void *user;
    bool is_timed;  /* for a trace */
    uint32_t owner; /* lane.h */
    uint32_t depth; /* per lane kind */
};
typedef struct lane_stream_config lane_stream_config;

/* -EINVAL for a bad config, -ENOMEM, the device's error. destroy waits for the streams. */
int lane_stream_create(const lane_stream_config *config, lane **out) MUST_CHECK;

struct lane_stream_graphs {
    /* True if config.enqueue enqueues the same for the op at each run of the program, whatever
     * changes from step to step. It is asked for ops of the compute lane. */
    bool (*may_replay)(void *user, const program *prog, const op *item);
    uint64_t bytes_max; /* no more graphs once they take so much of the GPU's memory; 0: none */
};
typedef struct lane_stream_graphs lane_stream_graphs;

/* Prepares the programs that will run, which are borrowed until destroy. Called once at most, while
 * nothing runs; config.enqueue is called for each op that a graph replays, and its work does not
 * run. Without it every op reports to the host, as paranoid mode needs it. If CUDA refuses a graph,
 * the log says so once and the ops are enqueued one by one. -ENOMEM, the device's error. */
int lane_stream_prepare(lane *self, const program *const *programs, uint32_t count,
                        const lane_stream_graphs *graphs) MUST_CHECK;

/* The stream of a lane, to enqueue set-up work between programs; NULL if it has none. */
device_stream *lane_stream_of(const lane *self, enum lane_kind kind);

#endif
