/* The read and write lanes: ops between the nvme address space and the host arena, through tiers/io.
 * Both lanes share one io object and its queue; each has its own requests. Owner thread: the
 * executor's. */
#ifndef SLUICE_SWAP_LANE_IO_H
#define SLUICE_SWAP_LANE_IO_H

#include "swap/checksum.h"
#include "swap/lane.h"
#include "swap/place_table.h"
#include "tiers/io.h"

struct lane_io_config {
    io *transport;             /* borrowed */
    unsigned char *host_base;  /* start of the host arena */
    uint32_t depth;            /* ops in flight per lane */
    uint32_t request_capacity; /* requests kept ready per lane, >= depth */
    checksum_table *verify;    /* borrowed: made for the programs that will run, outlives the lanes;
                                  NULL: nothing is summed but what has places */
    /* Borrowed, outlives the lanes: where the optimizer state that programs name lies. Ops of it
     * (state_kind, elem_count > 0) go there, are summed when written, and compared when read. NULL:
     * they are as any other. */
    place_table *places;
    /* Reads are not compared (io.verify_reads false), but those of PROGRAM_LOAD from places. Writes to places are summed as ever, for the
     * manifest; others need not be, and are not. */
    bool compares_not;
    /* Called first on the thread that sums, if there is one, to bind cores for example; may be NULL. */
    int (*start_thread)(void *user);
    void *user;
};
typedef struct lane_io_config lane_io_config;

/* Creates the pair. Offsets of buffers in the nvme arena are addresses of the slab, but for what has places.
 * One op is one io_request; where the transport is full, submit says -EAGAIN. Each lane's descriptor is
 * readable also for completions that the other's poll has found.
 *
 * An op that goes behind another (op.behind) may be submitted while that one is in flight: its transfers wait in the
 * queue, a write's sum is taken meanwhile, and go when all of the other's are with the kernel (io_request.behind).
 *
 * With `verify`, each write is summed before it is submitted, its sum is stored when it is complete, and
 * each read is compared with the sums of what was written there (swap/checksum.h).
 *
 * With `places`, an op of a tile of optimizer state names an entry of the table by its range in the nvme
 * arena and its elements; submit is ERR_INTERNAL where there is none. Its bytes lie elsewhere:
 *
 *   write   to the place that no durable commit names: submit ─ place_begin_write ─ sum ─ write ─ done:
 *           place_written. One that fails leaves the entry's newest place and its sum as they were (but
 *           where it was rewritten in place)
 *   read    of the newest place, compared with its sum if there is one; ERR_INTERNAL where nothing was
 *           written yet
 *
 * The entry is touched between submit of the op and the poll that returns it, on this thread alone: the
 * thread that sums has copies of what it needs (swap/place_table.h says what the commit may read meanwhile).
 *
 * A read that differs fails with ERR_CORRUPT and what it was of, bytes, offset and path of the file, both
 * sums and what to do. A thread of the pair sums ("sluice-sums"), so that the drives' queues stay full
 * meanwhile: 0.03 s of a core per GB with AVX2. There is none where nothing is to be summed or compared.
 *
 * Errors of requests name direction, file and offset; the executor puts the op before them. A transfer
 * that the transport reports as stuck is named by its op.
 *
 * Destroy both, in any order, before the transport, and only when no request is in flight or a poll of
 * either lane has failed: then what was in flight never comes back, and the arena may go once io_destroy
 * has returned.
 * Errors: -EINVAL for a bad config, -ENOMEM, or the system's for descriptors. */
int lane_io_create(const lane_io_config *config, lane **read_lane, lane **write_lane) MUST_CHECK;

#endif
