/* The thread behind the nvme lanes that sums what is to be written and compares what was read, so that the
 * executor's thread only hands work over and the drives' queues stay full.
 *
 *   owner: push ─► todo ─(thread: sum or compare)─► done, event fd readable ─► take: owner
 *
 * Measured on two cores, tiles of 8 MiB, 8 reads and 8 writes in flight, against no sums at all: with the
 * cores idle 0-5% less of the drive's rate, here or on the executor's thread; with both cores kept busy
 * by others (the usual case: they compute) 6% less mixed and 9% less writing with this thread, 17% and
 * 29% where the executor's thread sums by itself. 0.035 s of a core per GB in all cases.
 *
 * Jobs belong to the caller and are done in order. It sleeps when there is nothing to do; nothing is
 * allocated after creation. One thread owns it; only lane_io uses it. */
#ifndef SLUICE_SWAP_SUM_THREAD_H
#define SLUICE_SWAP_SUM_THREAD_H

#include "swap/checksum.h"

enum swapi_sum_task {
    SWAPI_SUM_TAKE,    /* extent.sum becomes that of `data` */
    SWAPI_SUM_COMPARE, /* `data` is compared with extent.sum */
    SWAPI_SUM_VERIFY, /* `data`, read from the extent's range, is compared with all that `table` knows */
};

struct swapi_sum_job {
    enum swapi_sum_task task;
    const checksum_table *table;
    const void *data; /* extent.size_bytes bytes; untouched by others until it is taken */
    checksum_extent extent;
    uint64_t elem_count; /* of a tile of optimizer state with places; else 0, and to verify */
    uint32_t streams;    /* the tile's streams code; 0: no tile */
    void *user;
    /* Of a comparison: */
    int result;                 /* 0 or ERR_CORRUPT, without a text */
    checksum_extent expected;   /* ERR_CORRUPT: what differs, */
    uint64_t found;             /* and the sum of its bytes */
    struct swapi_sum_job *next; /* the thread's own */
};
typedef struct swapi_sum_job swapi_sum_job;

typedef struct swapi_sum_thread swapi_sum_thread;

/* Starts it. `start` (may be NULL) is called there first, to bind cores for example; its error is that of
 * creation. -ENOMEM, or the system's error where no thread or descriptor is to be had. */
int swapi_sum_thread_create(int (*start)(void *user), void *user,
                            swapi_sum_thread **out) MUST_CHECK;

/* Ends it after the job at hand; those not begun never run. NULL is allowed. */
void swapi_sum_thread_destroy(swapi_sum_thread *self);

void swapi_sum_thread_push(swapi_sum_thread *self, swapi_sum_job *job);

/* The next job that is done, or NULL: then the descriptor is quiet until another one is. */
swapi_sum_job *swapi_sum_thread_take(swapi_sum_thread *self);

/* Readable when take has something. */
int swapi_sum_thread_fd(const swapi_sum_thread *self);

#endif
