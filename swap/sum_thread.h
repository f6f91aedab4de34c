/* The threads of the nvme lane that compute checksums of writes and compare those of reads.
 * So the executor's thread only hands work over, and the drives' queues stay full.
 *
 *   owner: push ─► todo ─(a thread: sum or compare)─► done, event fd readable ─► take: owner
 *
 * Measured on two cores with tiles of 8 MiB, 8 reads and 8 writes in flight, relative to no sums at
 * all:
 *
 *   idle cores                              0-5% less of the drive's rate, on either thread
 *   both cores kept busy (the usual case)   6% less mixed and 9% less writing with this thread;
 *                                           17% and 29% if the executor's thread sums by itself
 *
 * It costs 0.035 s of a core per GB in all cases. Jobs belong to the caller and begin in order;
 * one thread also ends them in order. One thread sums all bytes of a job, since the stored sum is
 * that of all of them. A thread sleeps while it has no work; nothing is allocated after creation.
 * One thread owns all of it; only lane_io uses it. */
#ifndef SLUICE_SWAP_SUM_THREAD_H
#define SLUICE_SWAP_SUM_THREAD_H

#include "swap/checksum.h"

enum swapi_sum_task {
    SWAPI_SUM_TAKE,    /* extent.sum becomes that of `data` */
    SWAPI_SUM_COMPARE, /* `data` is compared with extent.sum */
    SWAPI_SUM_VERIFY,  /* `data`, read from the extent's range, is compared with the table's sums */
};

struct swapi_sum_job {
    enum swapi_sum_task task;
    const checksum_table *table;
    const void *data; /* extent.size_bytes bytes; nobody else touches them until `take` */
    checksum_extent extent;
    uint64_t elem_count; /* of a tile of optimizer state with places; otherwise 0 */
    uint32_t streams;    /* the tile's streams code; 0: no tile */
    void *user;
    /* Results of a comparison: */
    int result;                 /* 0 or ERR_CORRUPT, without a text */
    checksum_extent expected;   /* ERR_CORRUPT: the extent that differs */
    uint64_t found;             /* ERR_CORRUPT: the sum of its bytes */
    struct swapi_sum_job *next; /* private to sum_thread.c */
};
typedef struct swapi_sum_job swapi_sum_job;

typedef struct swapi_sum_thread swapi_sum_thread;

/* Starts thread_count threads. Each calls `start` first, for example to bind cores. `start` may be
 * NULL; its error is that of creation. -ENOMEM, or the system's error for threads and files. */
int swapi_sum_thread_create(uint32_t thread_count, int (*start)(void *user), void *user,
                            swapi_sum_thread **out) MUST_CHECK;

/* Ends the threads after their present jobs; jobs that did not begin never run. NULL is allowed. */
void swapi_sum_thread_destroy(swapi_sum_thread *self);

void swapi_sum_thread_push(swapi_sum_thread *self, swapi_sum_job *job);

/* Returns the next finished job. NULL: there is none, and the descriptor is not readable until
 * another one finishes. */
swapi_sum_job *swapi_sum_thread_take(swapi_sum_thread *self);

/* Readable when `take` has something. */
int swapi_sum_thread_fd(const swapi_sum_thread *self);

#endif
