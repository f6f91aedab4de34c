/* Asynchronous reads and writes between host memory and the slabs.
 *
 *   submit --> [ split by stripe and block size ] --> queue --> in flight (<= queue_depth) --> DONE
 *
 * Two backends with one interface: io_uring with registered files and buffers, and a pool of threads
 * calling pread/pwrite where the kernel or a container forbids io_uring (one warning says what it
 * costs). Requests are owned by the caller and hold their own completion; nothing is allocated after
 * io_create. Short transfers are continued, EINTR and EAGAIN retried; any other error fails the
 * request with a text that names file and offset. Completion order is not submit order.
 * One thread calls everything; no callback. */
#ifndef SLUICE_TIERS_IO_H
#define SLUICE_TIERS_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "tiers/slab.h"

enum io_backend { IO_AUTO, IO_URING, IO_POOL };
enum io_direction { IO_READ, IO_WRITE };

struct io_region {
    void *base; /* host memory that requests will use; registered with the kernel where allowed */
    uint64_t size_bytes;
};
typedef struct io_region io_region;

/* The simulated drive: what a real one may do, by seed, for tests. Each rate is in transfers of a
 * thousand, drawn per transfer from (seed, number of the transfer) alone. */
struct io_faults {
    uint64_t seed;
    uint32_t
        short_rate; /* moves only a part, as a signal or a busy drive may cause: is continued */
    uint32_t retry_rate;  /* ends with EINTR or EAGAIN before moving anything: is retried */
    uint32_t eio_rate;    /* fails with EIO after moving all: reads are garbage, writes are done */
    uint32_t torn_rate;   /* writes only: a part is written, then EIO */
    uint32_t enospc_rate; /* writes only: ENOSPC, nothing is written */
    uint32_t flip_rate; /* reads only: one bit of what was read is wrong, and nothing is reported */
    uint64_t break_after; /* the queue itself breaks once so many transfers were tried; 0: never */
    uint32_t latency_us_max; /* completions are held back for up to this long, so order changes */
};
typedef struct io_faults io_faults;

struct io_config {
    slab *target;            /* borrowed for the life of the io */
    enum io_backend backend; /* IO_AUTO: io_uring if a real read through it works, else the pool */
    uint32_t queue_depth;    /* transfers in flight per direction and drive (a sum: a busy drive may
                                use what an idle one leaves); 0: 16; at most 1024 */
    uint64_t block_bytes;    /* largest single transfer; multiple of 4 KiB; 0: 1 MiB */
    uint32_t pool_threads;   /* of the stand-in; 0: 4 per drive; at most 64 */
    const io_region *regions;
    uint32_t region_count;
    uint32_t request_capacity; /* most requests submitted and not yet polled; 0: 4096 */
    bool deny_uring;           /* tests: act as if the kernel refused io_uring */
    bool deny_registration;    /* tests: act as if RLIMIT_MEMLOCK forbade registered buffers */
    const io_faults *faults;   /* tests: copied; NULL: none */
};
typedef struct io_config io_config;

struct io_request {
    enum io_direction direction;
    uint64_t offset;     /* in the slab's address space; aligned to 4 KiB */
    void *data;          /* host memory, aligned to 4 KiB */
    uint64_t size_bytes; /* multiple of 4 KiB, > 0 */
    void *user;
    /* Set before io_poll returns it: */
    int result;                /* 0, or a negative code; the text is in `error` of the io */
    uint64_t start_ns, end_ns; /* first transfer handed to the kernel, last one complete */
    /* Private to io: */
    struct io_request *next;
    uint64_t issued_bytes, done_bytes;
    uint32_t in_flight;
};
typedef struct io_request io_request;

struct io_stats {
    uint64_t bytes[2];     /* by direction */
    uint64_t transfers[2]; /* requests to the kernel */
    uint64_t short_count, retry_count;
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
 * forgotten: they are not read or written, so their memory may be gone already. Only where io_uring
 * itself no longer answers does the waiting end after 5 s, which is logged: the ring is then closed,
 * which makes the kernel end what is in flight in its own time (direct I/O keeps the pages concerned
 * pinned until then, so that unmapping the regions is safe). NULL is allowed. */
void io_destroy(io *self);

/* Queues the request; never blocks on the disk, never calls back. -EINVAL for a misaligned or
 * out-of-range request (then it was not taken), -EAGAIN when request_capacity is used up. */
int io_submit(io *self, io_request *request) MUST_CHECK;

/* Moves queued work into the kernel, collects completions, stores up to `max` finished requests in
 * `done`, returns how many. Never blocks. ERR_POISONED or an errno code only if the backend itself
 * broke (never for a failed request): then no request completes any more, and only io_destroy helps. */
int io_poll(io *self, io_request **done, size_t max) MUST_CHECK;

/* Readable when io_poll has something to do: requests to return, completions to collect, or requests
 * submitted since the last io_poll. Do not read from it: io_poll does when it finds nothing. So the
 * loop { submit all there is; io_poll; if nothing came, poll(2) } neither spins nor sleeps too long. */
int io_event_fd(const io *self);

/* Submits one request and waits for it: for start-up and the end, not for a step. Others in flight go
 * on and are returned by the next io_poll. Returns the request's result, its text as the error. */
int io_transfer(io *self, enum io_direction direction, uint64_t offset, void *data,
                uint64_t size_bytes) MUST_CHECK;

/* The first failed request's error, code 0 if none failed. */
const err_record *io_error(const io *self);

void io_get_stats(const io *self, io_stats *stats);

#endif
