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

struct io_config {
    slab *target;            /* borrowed for the life of the io */
    enum io_backend backend; /* IO_AUTO: io_uring if a real read through it works, else the pool */
    uint32_t queue_depth;    /* transfers in flight per direction, > 0; 0: 16 */
    uint64_t block_bytes;    /* largest single transfer; multiple of 4 KiB; 0: 1 MiB */
    uint32_t pool_threads;   /* of the stand-in; 0: 4 */
    const io_region *regions;
    uint32_t region_count;
    uint32_t request_capacity; /* most requests submitted and not yet polled; 0: 4096 */
    bool deny_uring;           /* tests: act as if the kernel refused io_uring */
    bool deny_registration;    /* tests: act as if RLIMIT_MEMLOCK forbade registered buffers */
};
typedef struct io_config io_config;

struct io_request {
    enum io_direction direction;
    uint64_t offset;     /* in the slab's address space; aligned to 4 KiB */
    void *data;          /* host memory, aligned to 4 KiB */
    uint64_t size_bytes; /* multiple of 4 KiB, > 0 */
    void *user;
    /* Set before io_poll returns it: */
    int result; /* 0, or a negative code; the text is in `error` of the io */
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

int io_create(const io_config *config, io **out) MUST_CHECK;
void io_destroy(io *self); /* waits for what is in flight */

/* Queues the request; never blocks on the disk, never calls back. -EINVAL for a misaligned or
 * out-of-range request (then it was not taken), -EAGAIN when request_capacity is used up. */
int io_submit(io *self, io_request *request) MUST_CHECK;

/* Moves queued work into the kernel, collects completions, stores up to `max` finished requests in
 * `done`, returns how many. Never blocks. */
int io_poll(io *self, io_request **done, size_t max) MUST_CHECK;

/* Readable when io_poll may return something. */
int io_event_fd(const io *self);

/* Submits one request and waits for it: for start-up and the end, not for a step. */
int io_transfer(io *self, enum io_direction direction, uint64_t offset, void *data,
                uint64_t size_bytes) MUST_CHECK;

/* The first failed request's error, code 0 if none failed. */
const err_record *io_error(const io *self);

void io_get_stats(const io *self, io_stats *stats);

#endif
