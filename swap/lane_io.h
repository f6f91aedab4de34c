/* The read and write lanes: ops between the nvme address space and the host arena, through tiers/io.
 * Both lanes share one io object and its queue; each has its own requests. Owner thread: the
 * executor's. */
#ifndef SLUICE_SWAP_LANE_IO_H
#define SLUICE_SWAP_LANE_IO_H

#include "swap/checksum.h"
#include "swap/lane.h"
#include "swap/places.h"
#include "tiers/io.h"

struct lane_io_config {
    io *transport;             /* borrowed */
    unsigned char *host_base;  /* start of the host arena */
    uint32_t depth;            /* ops in flight per lane */
    uint32_t request_capacity; /* requests kept ready per lane, >= depth */
    checksum_table *verify;    /* borrowed: made for the programs that will run, outlives the lanes;
                                  NULL: nothing is summed */
    place_table
        *places; /* borrowed, outlives the lanes: where the optimizer state that programs name
                            lies. Ops of optimizer state (state_kind, elem_count > 0) go there, are summed
                            when written, and compared when read. NULL: they are as any other */
    bool
        compares_not; /* reads are not compared (io.verify_reads false); writes are summed as ever */
    int (*start_thread)(void *user); /* with a table: called first on the thread that sums, to bind
                                        cores for example; may be NULL */
    void *user;
};
typedef struct lane_io_config lane_io_config;

/* Creates the pair. Offsets of buffers in the nvme arena are addresses of the slab. One op is one
 * io_request; where the transport is full, submit says -EAGAIN. Each lane's descriptor is readable also
 * for completions that the other's poll has found.
 *
 * With a table, each write is summed before it is submitted, its sum is stored when it is complete, and
 * each read is compared with the sums of what was written there (swap/checksum.h). A difference fails the
 * read with ERR_CORRUPT and the extent's place, both sums and what to do. A thread of the pair does it
 * ("sluice-sums"), so that the drives' queues stay full meanwhile: 0.03 s of a core per GB with AVX2.
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
