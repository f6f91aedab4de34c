/* The slabs of all ranks that a manifest names, read by one process: for a recut, a sweep, or to
 * load parameters.
 *
 *   (record, rank) ─ submit ─► a slab that is open already ─┐
 *                              else a free slot            ─┼─► its io ─► poll
 *                              else the longest idle slot  ─┘
 *
 * A rank's slab is opened at the first request for it. At most RANK_SLABS_OPEN_MAX slabs are open,
 * for any number of ranks. This bounds file descriptors, rings and threads of the pool, and memory
 * to some 200 KiB for each open slab.
 *
 * If another rank is wanted while all open slabs have requests in flight, submit returns 0. A
 * caller that submits in the order in which it needs the data, and polls, always makes progress.
 * One thread. */
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
    uint32_t queue_depth, pool_threads; /* for each rank's io, as in io_config */
    uint32_t request_capacity;          /* most requests in flight, of all ranks together */
    /* Memory that requests read to. It is registered with the kernel only if there is one rank. */
    io_region region;
    uint64_t stuck_ns, stop_ns;
    const struct io_faults *faults; /* for tests: faults of each rank's drives; or NULL */
    /* [ranks] slabs that are open already, borrowed. NULL, or NULL at a rank: its files are opened
     * here. */
    slab *const *disks;
    /* [ranks] simulated drives. NULL, or NULL at a rank: none. */
    sim_store *const *stores;
};
typedef struct rank_slabs_config rank_slabs_config;

int rank_slabs_create(const rank_slabs_config *config, rank_slabs **out) MUST_CHECK;
void rank_slabs_destroy(rank_slabs *self); /* waits for what is in flight; NULL is allowed */

/* Returns 1 if the request was submitted to the rank's slab, 0 if every open slab has requests in
 * flight (poll, then try again), or an error of opening or of io_submit. ERR_INPUT if the slab does
 * not exist, with the message of rank_slabs_look. */
int rank_slabs_submit(rank_slabs *self, uint32_t rank, io_request *request) MUST_CHECK;
/* Takes finished requests of one rank. *of is that rank's io, for io_request_error. Returns their
 * number; 0 if no rank has any. */
int rank_slabs_poll(rank_slabs *self, io_request **done, int capacity, io **of) MUST_CHECK;
/* Lists the file descriptors that poll(2) should wait for. Returns their number. */
uint32_t rank_slabs_fds(const rank_slabs *self, struct pollfd fds[RANK_SLABS_OPEN_MAX]);

/* Returns 0 if all files of the rank exist. ERR_INPUT otherwise, with a message that names the
 * first path that is missing, the cause (a drive that is not mounted, or the rank's host), and the
 * next step. */
int rank_slabs_look(const manifest *record, uint32_t rank) MUST_CHECK;
/* True if the directory of the rank's drive does not exist or is empty, as that of a drive that is
 * not mounted. */
bool rank_slabs_is_unmounted(const manifest *record, uint32_t rank, uint32_t drive_idx);
/* For a record whose ranks each have the whole state: chooses the rank `first` if its files exist,
 * else the first rank whose files exist. ERR_INPUT with the message of `first` if there is none. */
int rank_slabs_choose(const manifest *record, uint32_t first, uint32_t *out) MUST_CHECK;
/* The rank whose slab an extent is read from; copy_rank if each rank has the whole state. */
static inline uint32_t rank_slabs_rank_of(const manifest *record, const manifest_extent *extent,
                                          uint32_t copy_rank)
{
    return record->is_replicated ? copy_rank : extent->rank;
}
/* True if the rank ran on another host than this process, which then may not see its drives. */
bool rank_slabs_is_elsewhere(const manifest *record, uint32_t rank);
/* Opens the rank's slab for reading, with slab_open. */
int rank_slabs_open(const manifest *record, uint32_t rank, slab *out) MUST_CHECK;
/* Finds the file and the offset in it of byte `offset` of the rank's address space. path is "" if
 * the rank's slab cannot be opened. `held` is the open slab, or NULL: then it is opened for this
 * call. Slow; only for messages. */
void rank_slabs_locate(const manifest *record, uint32_t rank, const slab *held, uint64_t offset,
                       char path[FILE_PATH_BYTES], uint64_t *file_offset);
/* The number of ranks of a record, at least 1. */
uint32_t rank_slabs_world(const manifest *record);

#endif
