/* Asynchronous reads and writes between host memory and the slabs.
 *
 *   submit --> [ split by stripe and block size ] --> queue --> in flight (<= queue_depth) --> DONE
 *
 * There are three backends with one interface:
 *   - io_uring, with registered files and buffers;
 *   - a pool of threads that call pread and pwrite, where the kernel or a container forbids
 *     io_uring (one warning says why, what that costs and what to do);
 *   - the simulated drive, which keeps the bytes in memory (tiers/sim.h) and completes transfers in
 *     an order drawn from a seed.
 *
 * The caller owns the requests, which contain their own completion; nothing is allocated after
 * io_create. A short transfer is continued; EINTR and EAGAIN are retried. Any other error fails the
 * request, with a text that names file and offset. Requests complete in any order. One thread makes
 * all calls except io_sync. */
#ifndef SLUICE_TIERS_IO_H
#define SLUICE_TIERS_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "tiers/io_latency.h"
#include "tiers/slab.h"

enum io_backend {
    IO_AUTO,  /* io_uring if a real read through it works, otherwise the pool */
    IO_URING, /* io_uring, or an error */
    IO_POOL,
    IO_SIM /* never chosen by IO_AUTO; see tiers/sim.h */
};
enum io_direction { IO_READ, IO_WRITE };

enum { IO_QUEUE_DEPTH_MAX = 1024 }; /* for one direction and drive */

struct io_region {
    void *base; /* host memory that requests will use; registered with the kernel if allowed */
    uint64_t size_bytes;
};
typedef struct io_region io_region;

struct sim_store; /* tiers/sim.h */
struct io_test;   /* tiers/io_faults.h */

struct io_config {
    slab *target; /* borrowed for the life of the io */
    enum io_backend backend;
    /* Transfers in flight per direction and drive; 0: 16; at most IO_QUEUE_DEPTH_MAX. It is a sum:
     * a busy drive may use what an idle one leaves, and a direction what the other leaves. */
    uint32_t queue_depth;
    uint64_t block_bytes;  /* largest single transfer; multiple of 4 KiB; 0: 1 MiB */
    uint32_t pool_threads; /* threads of the pool; 0: 4 per drive; at most 64 */
    /* io_uring without interrupts: the owner's thread asks the drives for completions, and never
     * sleeps while a transfer is in flight. So it takes a core. Used only if a real read proves
     * that it works; otherwise a log line says why it does not. A transfer is then at most what
     * its drive takes in one piece. */
    bool polls;
    const io_region *regions;
    uint32_t region_count;
    uint32_t request_capacity; /* most requests submitted and not yet polled; 0: 4096 */
    /* A drive whose oldest transfer is in flight for longer is reported in one warning, which
     * counts the transfers that wait, and again each time that this time has doubled. A line says
     * when it answers again. The same holds for the first reads of io_create. 0: never. */
    uint64_t stuck_ns;
    /* A transfer in flight for longer breaks the queue: io_poll fails with -ETIMEDOUT and a text
     * that names file and offset. The same holds for the first reads of io_create. 0: never. */
    uint64_t stop_ns;
    /* IO_SIM: where the bytes live; borrowed, made for `target`. NULL: the io makes a store of its
     * own, which begins as zeros and is destroyed with it. */
    struct sim_store *store;
    /* io_create is called by one thread and all else by another: io_uring is then set up in the way
     * that binds it to no thread, which costs some processor time. */
    bool changes_thread;
    const struct io_test *test; /* for tests; read by io_create; NULL: none */
};
typedef struct io_config io_config;

struct io_request {
    enum io_direction direction;
    uint64_t offset;     /* in the slab's address space; aligned to 4 KiB */
    void *data;          /* host memory, aligned to 4 KiB */
    uint64_t size_bytes; /* multiple of 4 KiB, > 0 */
    void *user;
    /* Names the work of this request ("read of unit 3, tile 2 (op 17)") for the warning about a
     * transfer that does not return. Called from io_poll only. NULL: no name. */
    void (*describe)(const struct io_request *request, char *text, size_t capacity);
    /* A request of the other direction that goes first. It must be in flight. Until all of its
     * transfers are with the backend, or it has failed, no transfer of this request goes there.
     * Then io sets it to NULL. NULL: nothing goes first. */
    const struct io_request *behind;
    /* The request keeps its place in the queue, but is not handed over before io_release; those of
     * its direction that were submitted after it wait too. */
    bool is_held;
    /* Set before io_poll returns the request: */
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
    uint64_t bytes[2]; /* by direction */
    /* Transfers handed to the backend. Their sum is the number of the latest one, as
     * io_faults.at_transfer counts. */
    uint64_t transfers[2];
    uint64_t short_count, retry_count;
    uint64_t stuck_count;    /* warnings about drives that did not answer in time */
    enum io_backend backend; /* in use */
    bool buffers_registered, files_registered;
    bool polls;           /* io_config.polls, if it works here */
    uint64_t block_bytes; /* largest single transfer */
};
typedef struct io_stats io_stats;

typedef struct io io;

/* Opens the backend and proves it by reading the header of every slab file. -EINVAL for a bad
 * config; -ENOMEM. If IO_URING is asked for by name and the kernel refuses it: the kernel's error,
 * with advice (IO_AUTO then takes the pool). */
int io_create(const io_config *config, io **out) MUST_CHECK;

/* Waits for what is in flight, also after the queue broke. When it returns, no transfer touches the
 * regions any more. Queued transfers that the kernel does not have yet never run. Requests that
 * io_poll has not returned are neither read nor written, so their memory may already be freed. NULL
 * is allowed.
 *
 * If the queue broke by stop_ns, or io_uring itself no longer answers, the waiting ends after 5 s
 * with a log line. Transfers in flight then end later, when the kernel completes them. With direct
 * I/O the kernel keeps the pages pinned until then, so unmapping the regions is safe; without it
 * the process should end instead of reusing their addresses. Threads of the pool that do not return
 * are left behind with the little memory that they use. */
void io_destroy(io *self);

/* Queues the request. Never blocks on the drive and never calls back. -EINVAL for a misaligned or
 * out-of-range request, -EAGAIN if request_capacity is used up; in both cases it was not taken. */
int io_submit(io *self, io_request *request) MUST_CHECK;

/* Lets a request go on that was submitted with is_held. */
void io_release(io *self, io_request *request);

/* The number of requests that io_submit will still take. */
uint32_t io_room(const io *self);

/* Moves queued work into the kernel, collects completions, stores up to `max` finished requests in
 * `done` and returns how many. Never blocks. It fails only if the backend itself broke (-ETIMEDOUT:
 * a transfer took longer than stop_ns) and later with ERR_POISONED; then no request completes any
 * more and only io_destroy helps. A failed request is not a failure of io_poll. */
int io_poll(io *self, io_request **done, size_t max) MUST_CHECK;

/* Readable when io_poll has work: requests to return, completions to collect, requests submitted
 * since the last io_poll, or a transfer to report as stuck or to give up. Do not read from it:
 * io_poll does, when it finds nothing. A loop that submits, calls io_poll, and calls poll(2) if
 * io_poll returned nothing, neither spins nor sleeps too long. */
int io_event_fd(const io *self);

/* Submits one request and waits for it. It is for the start and the end of a run, not for a step.
 * Other requests go on meanwhile, and the next io_poll returns them. No request of this direction
 * may be held. Returns the request's result, with its text as the error. */
int io_transfer(io *self, enum io_direction direction, uint64_t offset, void *data,
                uint64_t size_bytes) MUST_CHECK;

/* The first failed request's error; code 0 if none has failed. */
const err_record *io_error(const io *self);

/* Makes the text of a failed request that io_poll returned this thread's error; returns its
 * result. */
int io_request_error(const io *self, const io_request *request);

/* The slab that requests go to. */
const slab *io_target(const io *self);

/* fdatasync of the slab's files; with IO_SIM the same for the store (sim_store_cache). Writes
 * that were complete before the call survive a loss of power. Blocks. This is the only call that
 * may come from another thread, also while the owner submits and polls; one at a time. After an
 * error, data may be lost although a second call would report success: stop, the last commit is
 * the state. Meets failpoint "slab.sync". */
int io_sync(io *self) MUST_CHECK;

void io_get_stats(const io *self, io_stats *stats);

/* How long the transfers of one drive took since creation or io_clear_latencies. A request is cut
 * into several transfers. A time runs from the handover to the backend until io_poll collected the
 * transfer, including its continued and retried parts; failed transfers do not count. Owner thread;
 * NULL if the slab does not lie on such a drive. Valid until io_destroy. */
const io_latency *io_get_latency(const io *self, uint32_t drive_idx, enum io_direction direction);
void io_clear_latencies(io *self);

#endif
