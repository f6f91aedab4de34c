/* The slabs of all ranks that a manifest names, read by one process: a recut, a sweep.
 *
 *   record, rank --submit--> [ open already | a free slot | the slot idle for longest ] --> its io --> poll
 *
 * A rank's slab is opened when the first request for it comes. Of however many ranks there are, at
 * most RANK_SLABS_OPEN_MAX are open: file descriptors, rings and threads of the pool are bounded by
 * that, memory by some 200 KiB for each. Where requests of all open ones are in flight and another
 * rank is wanted, submit says so; who submits in the order of need and polls always goes on. One
 * thread. */
#ifndef SLUICE_STATE_RANK_SLABS_H
#define SLUICE_STATE_RANK_SLABS_H

#include <poll.h>

#include "format/manifest.h"
#include "tiers/io.h"
#include "tiers/sim.h"

enum { RANK_SLABS_OPEN_MAX = 8 };

typedef struct rank_slabs rank_slabs;

struct rank_slabs_config {
    const manifest *record; /* borrowed */
    enum io_backend backend;
    uint32_t queue_depth, pool_threads; /* of each rank's io, as io_config has them */
    uint32_t request_capacity;          /* most requests in flight of all ranks */
    io_region region; /* that requests read to; registered where there is one rank */
    uint64_t stuck_ns, stop_ns;
    const struct io_faults *faults; /* tests: of each rank's drives; or NULL */
    slab *const *disks;       /* [ranks] open already, borrowed; NULL, or NULL at a rank: files */
    sim_store *const *stores; /* [ranks] simulated drives; likewise */
};
typedef struct rank_slabs_config rank_slabs_config;

int rank_slabs_create(const rank_slabs_config *config, rank_slabs **out) MUST_CHECK;
void rank_slabs_destroy(rank_slabs *self); /* waits for what is in flight; NULL is allowed */

/* 1: submitted to the rank's slab; 0: every open slab has requests in flight: poll, and try again;
 * or an error of opening or of io_submit. ERR_INPUT for a slab that is not there, as
 * rank_slabs_look words it. */
int rank_slabs_submit(rank_slabs *self, uint32_t rank, io_request *request) MUST_CHECK;
/* Finished requests of one rank, and its io for io_request_error; 0: there are none of any. */
int rank_slabs_poll(rank_slabs *self, io_request **done, int capacity, io **of) MUST_CHECK;
/* What poll(2) waits for; how many. */
uint32_t rank_slabs_fds(const rank_slabs *self, struct pollfd fds[RANK_SLABS_OPEN_MAX]);

/* Whether all files of the rank are there: 0; ERR_INPUT with a text that names rank, host, the
 * first path that is not there, and what to do. */
int rank_slabs_look(const manifest *record, uint32_t rank) MUST_CHECK;
/* Whether the rank ran on another host than this process, which then may not see its drives. */
bool rank_slabs_is_elsewhere(const manifest *record, uint32_t rank);
/* How slab_open opens the rank's slab to be read; opens it. */
int rank_slabs_open(const manifest *record, uint32_t rank, slab *out) MUST_CHECK;
/* File and offset of byte `offset` of the rank's address space; "" where its slab cannot be opened.
 * Slow: for messages. `held` is the slab, where it is open; or NULL. */
void rank_slabs_locate(const manifest *record, uint32_t rank, const slab *held, uint64_t offset,
                       char path[FILE_PATH_BYTES], uint64_t *file_offset);
/* Ranks of a record, at least 1. */
uint32_t rank_slabs_world(const manifest *record);

#endif
