/* The lane of reads and writes: it runs ops between the nvme address space and the host arena,
 * through tiers/io. The same object stands in the executor's slots of both kinds, since both share
 * the queue of one io object. Owner thread: the executor's. */
#ifndef SLUICE_SWAP_LANE_IO_H
#define SLUICE_SWAP_LANE_IO_H

#include "swap/checksum.h"
#include "swap/lane.h"
#include "swap/place_table.h"
#include "tiers/io.h"

struct lane_io_config {
    io *transport;            /* borrowed */
    unsigned char *host_base; /* start of the host arena */
    uint32_t depth;           /* ops in flight of each kind */
    /* Borrowed, made for the programs that will run, outlives the lane. NULL: only ops with a
     * place are summed. */
    checksum_table *verify;
    /* Borrowed, outlives the lane: where the optimizer state of the programs lies. NULL: ops of
     * optimizer state are like any others. */
    place_table *places;
    /* Do not compare reads (io.verify_reads false), except those of PROGRAM_LOAD from places.
     * Writes to places are still summed, for the manifest; other writes are not. */
    bool trusts_reads;
    bool sums_nothing; /* the drives keep no bytes: all sums are 0, and nothing is compared */
    uint32_t sum_thread_count; /* see lane_io_sum_threads; 0: 1; at most LANE_IO_SUM_THREADS_MAX */
    /* Called first on each thread that sums, for example to bind cores. May be NULL. */
    int (*start_thread)(void *user);
    void *user;
};
typedef struct lane_io_config lane_io_config;

enum { LANE_IO_SUM_THREADS_MAX = 16 };

/* How many threads sum as fast as the drives move bytes_per_second, if one needs seconds_per_byte
 * (0: unknown), but no more than a quarter of core_count, rounded up: computing needs the rest. At
 * least 1. Pure. */
uint32_t lane_io_sum_threads(double bytes_per_second, double seconds_per_byte, uint32_t core_count);

/* Creates the lane. Offsets of buffers in the nvme arena are addresses of the slab, except for
 * state with places. One op is one io_request. submit returns -EAGAIN if the transport is full.
 *
 * An op with op.behind may be submitted while that op is in flight. Its transfers wait in the queue
 * until all transfers of the other op are with the kernel (io_request.behind); a write is summed
 * meanwhile. The transport has the requests of a direction in the order in which they were
 * submitted here, also those that are still being summed (io_request.is_held).
 *
 * With `verify`, each write is summed before it is written, and its sum is stored when it is
 * complete. Each read is compared with the sums of what was written there (swap/checksum.h).
 *
 * With `places`, an op on a tile of optimizer state finds its entry by its range in the nvme arena
 * and its elements; submit returns ERR_INTERNAL if there is none.
 *
 *   write   goes to the place that no durable commit names: submit ─ place_begin_write ─ sum ─
 *           write ─ done: place_written. A failed write leaves the entry's newest place and its sum
 *           as they were, unless it rewrote that place
 *   read    reads the newest place and compares it with its sum, if there is one; ERR_INTERNAL if
 *           nothing was written yet
 *
 * The entry is used between submit of the op and the poll that returns it, on this thread only; the
 * threads that sum have copies (swap/place_table.h says what the commit may read meanwhile).
 *
 * A read that differs fails with ERR_CORRUPT; the text names the state, bytes, offset and path of
 * the file, both sums and the next step. Threads of the lane ("sluice-sums") sum, so that the
 * drives' queues stay full meanwhile: 0.03 s of a core per GB with AVX2. There are none if there is
 * nothing to sum or compare.
 *
 * Errors of requests name direction, file and offset; the executor adds the op. A transfer that the
 * transport reports as stuck is named by its op.
 *
 * Destroy the lane before the transport, when no request is in flight or poll has failed. After a
 * failed poll nothing in flight comes back, and the arena must live until io_destroy has returned.
 * -EINVAL for a bad config, -ENOMEM, or the system's error for descriptors. */
int lane_io_create(const lane_io_config *config, lane **out) MUST_CHECK;

#endif
