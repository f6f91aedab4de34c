/* The lanes of a GPU: h2d, d2h, compute and comm, each a stream, behind one lane object.
 *
 *   submit(op) ─► [wait for the events of its dependencies on other streams] [start event]
 *                 copy, or config.enqueue (kernels)                          [end event]
 *                                                         └─► signal stream: host function ─► eventfd
 *   poll ◄─ finished ops, in submit order of each stream; config.finish has run for each
 *
 * The same object stands in the executor's slots of all these lanes; it is in order and has one owner,
 * so the executor submits an op as soon as its dependencies are complete or submitted here: the order
 * between streams is kept on the GPU, by events, and the host is not asked. What depends on work of
 * other lanes (a read from nvme, an update on the CPU) is submitted when that is complete. What other
 * lanes wait for comes back by a host function that writes to the lane's descriptor: no thread of ours
 * waits, and none spins (but for 50 us a second at most, to compare the clocks). The host function
 * rides on a second stream, so that it delays no work.
 *
 * A GPU that faults calls no host function; a timer therefore wakes the executor once a second, and
 * poll asks for the oldest op in flight: the fault comes back as the lane's failure, with CUDA's text.
 * Nor does a collective end whose other ranks are gone; poll asks config.watch after it then.
 *
 * Where the comm lane is a worker of the host instead (collectives through host memory), it stands in the
 * executor's slot of that lane and has another owner: what it does begins when the ops that it depends on
 * are complete here, and is done when the executor submits what depends on it. It copies on a stream of
 * its own and waits for that before it says that an op is done.
 *
 * Copies (OP_H2D, OP_D2H) are made here. For all other ops config.enqueue puts the kernels on the
 * stream given; it may not wait, allocate or read what the GPU makes. config.finish, where given, runs
 * on the executor's thread once the op is complete, before the executor hears of it: it may read what
 * the op wrote to pinned memory. Times of requests are the GPU's, on the clock of clock_ns, to about
 * 10 us; wait_ns is how long the op's stream was idle before it.
 *
 * Failures. What submit could not enqueue is not taken (the code is that of enqueue or of the device);
 * what was in flight comes back as ever. Where finish fails, its request has the error, and those that
 * finish after it have ERR_POISONED: the GPU may have run them, their finish has not. After either,
 * submit refuses with ERR_POISONED. -EAGAIN: `depth` ops of that lane kind are in flight. A GPU that
 * fails makes poll fail, as watch does, and nothing in flight comes back; that takes a second where nothing
 * else shows it. Work of a failed op may still run when the executor has returned: destroy waits for it, and
 * the arenas must live until then.
 *
 * One thread (the executor's, which opened the device) uses the lane. Everything is made at creation:
 * per lane kind two streams, and for each of its `depth` ops in flight a record and two events, which
 * the device owns until it is closed. */
#ifndef SLUICE_SWAP_LANE_STREAM_H
#define SLUICE_SWAP_LANE_STREAM_H

#include <stdint.h>

#include "base/error.h"
#include "swap/lane.h"
#include "tiers/device.h"

struct lane_stream_config {
    device *gpu;                  /* borrowed */
    bool serves[LANE_COUNT];      /* those with a stream: any but read and write */
    unsigned char *arena_base[2]; /* TIER_DEVICE: GPU memory; TIER_HOST: pinned */
    int (*enqueue)(void *user, const program *prog, const op *item, void *stream);
    int (*finish)(void *user, const program *prog, const op *item); /* may be NULL */
    /* May be NULL. Called by poll about once a second while no op comes back: 0, or a negative code, which
     * becomes the lane's failure. Then it has ended what else would never leave the streams. */
    int (*watch)(void *user);
    void *user;
    uint32_t owner; /* lane.h */
    uint32_t depth; /* per lane kind */
};
typedef struct lane_stream_config lane_stream_config;

/* -EINVAL for a bad config, -ENOMEM, the device's error. destroy waits for the streams. */
int lane_stream_create(const lane_stream_config *config, lane **out) MUST_CHECK;

/* The stream of a lane, to enqueue set-up work on it between programs; NULL where it has none. */
device_stream *lane_stream_of(const lane *self, enum lane_kind kind);

#endif
