/* Asynchronous reads and writes between host memory and the slabs.
 *
 *   submit --> [ split by stripe and block size ] --> queue --> in flight (<= queue_depth) --> DONE
 *
 * Three backends with one interface: io_uring with registered files and buffers; a pool of threads
 * calling pread/pwrite where the kernel or a container forbids io_uring (one warning says what it
 * costs); and the simulated drive, which keeps the bytes in memory (tiers/sim.h) and completes transfers
 * in an order drawn from a seed. Requests are owned by the caller and hold their own completion; nothing
 * is allocated after io_create. Short transfers are continued, EINTR and EAGAIN retried; any other error
 * fails the request with a text that names file and offset. Completion order is not submit order.
 * One thread calls everything, io_sync excepted. */
#ifndef SLUICE_TIERS_IO_H
#define SLUICE_TIERS_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "tiers/io_latency.h"
#include "tiers/slab.h"

enum io_backend {
    IO_AUTO,  /* io_uring if a real read through it works, else the pool */
    IO_URING, /* or an error */
    IO_POOL,
    IO_SIM /* never chosen by IO_AUTO; see tiers/sim.h */
};
enum io_direction { IO_READ, IO_WRITE };

enum { IO_QUEUE_DEPTH_MAX = 1024 }; /* of one direction and drive */

struct io_region {
    void *base; /* host memory that requests will use; registered with the kernel where allowed */
    uint64_t size_bytes;
};
typedef struct io_region io_region;

struct sim_store; /* tiers/sim.h */
struct io_test;   /* tiers/io_faults.h */

struct io_config {
    slab *target; /* borrowed for the life of the io */
    enum io_backend backend;
    uint32_t queue_depth;  /* transfers in flight per direction and drive (a sum: a busy drive may
                                use what an idle one leaves); 0: 16; at most
                                IO_QUEUE_DEPTH_MAX */
    uint64_t block_bytes;  /* largest single transfer; multiple of 4 KiB; 0: 1 MiB */
    uint32_t pool_threads; /* of the stand-in; 0: 4 per drive; at most 64 */
    const io_region *regions;
    uint32_t region_count;
    uint32_t request_capacity; /* most requests submitted and not yet polled; 0: 4096 */
    uint64_t
        stuck_ns; /* a transfer in flight for longer is named in a warning, again at each doubling
                          of that time, and waited for all the same; 0: never */
    uint64_t
        stop_ns; /* a transfer in flight for longer breaks the queue: io_poll fails with -ETIMEDOUT,
                          its text naming file and offset (io_create likewise, of its first reads);
                          0: never */
    const struct io_test *test; /* tests; read by io_create; NULL: none */
    struct sim_store
        *store; /* IO_SIM: where the bytes live, borrowed, made for `target`; NULL: the io
                                makes its own, which begins as zeros and is gone with it */
};
typedef struct io_config io_config;

struct io_request {
    enum io_direction direction;
    uint64_t offset;     /* in the slab's address space; aligned to 4 KiB */
    void *data;          /* host memory, aligned to 4 KiB */
    uint64_t size_bytes; /* multiple of 4 KiB, > 0 */
    void *user;
    /* Names the work that this request is for ("read of unit 3, tile 2 (op 17)"), for the warning about
     * a transfer that does not return; called from io_poll alone. NULL: has no name. */
    void (*describe)(const struct io_request *request, char *text, size_t capacity);
    /* A request of the other direction that goes first: no transfer of this one is handed over before all
     * of that one's have been, or it has failed. It is in flight, or will be submitted; else it is taken
     * back by io_forget. io sets it to NULL once that is over. NULL: goes when its turn comes. */
    const struct io_request *behind;
    /* Set before io_poll returns it: */
    int result;                /* 0, or a negative code; its text: io_request_error */
    uint64_t start_ns, end_ns; /* first transfer handed to the kernel, last one complete */
    /* Private to io: */
    struct io_request *next;
    uint64_t issued_bytes, done_bytes;
    uint32_t in_flight, failed_drive_idx;
    uint64_t failed_offset, failed_bytes;
    int64_t failed_result;
};
typedef struct io_request io_request;

struct io_stats {
    uint64_t bytes[2];     /* by direction */
    uint64_t transfers[2]; /* handed to the backend; their sum is the number of the latest one for
                              io_faults.at_transfer */
    uint64_t short_count, retry_count;
    uint64_t stuck_count;    /* warnings about transfers that did not return in time */
    enum io_backend backend; /* in use */
    bool buffers_registered, files_registered;
};
typedef struct io_stats io_stats;

typedef struct io io;

/* Opens the backend and proves it by reading the header of every slab file. -EINVAL for a bad config;
 * -ENOMEM; with IO_URING asked for by name, the kernel's error where it refuses (IO_AUTO then takes
 * the pool). */
int io_create(const io_config *config, io **out) MUST_CHECK;

/* Waits for what is in flight, also after the queue broke: when it returns, no transfer touches the
 * regions any more. What is still queued never runs. Requests that io_poll has not returned are
 * forgotten: they are not read or written, so their memory may be gone already. Where the queue broke by
 * io_config.stop_ns, or where io_uring itself no longer answers, the waiting ends after 5 s, which is
 * logged: what is in flight then ends in the kernel's own time (direct I/O keeps the pages concerned
 * pinned until then, so that unmapping the regions is safe; without it the process should end instead of
 * using their addresses anew). Threads of the pool that do not come back are left behind with the little
 * that they look at. NULL is allowed. */
void io_destroy(io *self);

/* Queues the request; never blocks on the disk, never calls back. -EINVAL for a misaligned or
 * out-of-range request (then it was not taken), -EAGAIN when request_capacity is used up. */
int io_submit(io *self, io_request *request) MUST_CHECK;

/* Requests that go behind this one wait for it no more: it will not be submitted. */
void io_forget(io *self, const io_request *request);

/* How many more requests io_submit takes before it says -EAGAIN. */
uint32_t io_room(const io *self);

/* Moves queued work into the kernel, collects completions, stores up to `max` finished requests in
 * `done`, returns how many. Never blocks. ERR_POISONED or an errno code only if the backend itself
 * broke (never for a failed request; -ETIMEDOUT: a transfer was out for longer than stop_ns): then no
 * request completes any more, and only io_destroy helps. */
int io_poll(io *self, io_request **done, size_t max) MUST_CHECK;

/* Readable when io_poll has something to do: requests to return, completions to collect, requests
 * submitted since the last io_poll, or a transfer to be reported as stuck or given up. Do not read from it:
 * io_poll does when it finds nothing. So the loop { submit all there is; io_poll; if nothing came,
 * poll(2) } neither spins nor sleeps too long. */
int io_event_fd(const io *self);

/* Submits one request and waits for it: for start-up and the end, not for a step. Others in flight go
 * on and are returned by the next io_poll. Returns the request's result, its text as the error. */
int io_transfer(io *self, enum io_direction direction, uint64_t offset, void *data,
                uint64_t size_bytes) MUST_CHECK;

/* The first failed request's error, code 0 if none failed. */
const err_record *io_error(const io *self);

/* Makes the text of a failed request that io_poll returned this thread's error; returns its result. */
int io_request_error(const io *self, const io_request *request);

/* The slab that requests go to. */
const slab *io_target(const io *self);

/* fdatasync of the slab's files, or with IO_SIM the same of the store (sim_store_cache): what was complete
 * before survives a loss of power. Blocks. The one call that may come from another thread than the owner's,
 * also while the owner submits and polls, one at a time. Meets failpoint "slab.sync". An error means that
 * what was written may be lost, although a second call would report success: stop, the last commit is
 * the state. */
int io_sync(io *self) MUST_CHECK;

void io_get_stats(const io *self, io_stats *stats);

/* How long the transfers (not requests: a request is cut into several) of one drive took, since creation or
 * io_clear_latencies: from when it was handed to the backend until io_poll collected it, continued and
 * retried parts included; those that failed are left out. Owner thread; NULL for a drive that the slab
 * does not have. Valid until io_destroy. */
const io_latency *io_get_latency(const io *self, uint32_t drive_idx, enum io_direction direction);
void io_clear_latencies(io *self);

#endif
