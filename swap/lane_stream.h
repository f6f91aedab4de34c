/* The lanes of a GPU: h2d, d2h, compute and comm, each a stream, behind one lane object.
 *
 *   submit(op) ─► [wait for the events of its dependencies on other streams] [start event]
 *                 copy, or config.enqueue (kernels)                          [end event]
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
 * given stream; it must not wait, allocate or read results of the GPU. config.finish runs on the
 * executor's thread once the op is complete and before the executor learns of it; it may read what
 * the op wrote to pinned memory. Times of requests are the GPU's, on the clock of clock_ns, within
 * about 10 us; wait_ns is how long the op's stream was idle before it.
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
 * creation: two streams per lane kind, and a record and two events for each of its `depth` ops in
 * flight. The device owns streams and events until it is closed. */
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
    uint32_t owner; /* lane.h */
    uint32_t depth; /* per lane kind */
};
typedef struct lane_stream_config lane_stream_config;

/* -EINVAL for a bad config, -ENOMEM, the device's error. destroy waits for the streams. */
int lane_stream_create(const lane_stream_config *config, lane **out) MUST_CHECK;

/* The stream of a lane, to enqueue set-up work between programs; NULL if it has none. */
device_stream *lane_stream_of(const lane *self, enum lane_kind kind);

#endif
