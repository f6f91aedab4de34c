/* What io.c shares with its two backends and the fault simulator.
 *
 *   io.c       requests -> transfers, order, retries, results       (owner thread)
 *   backend    transfers -> kernel -> results                       (pool: its own threads)
 *   io_faults  between the two: changes sizes before, results after
 *
 * A transfer is one read or write of the kernel. All of them are allocated by io_create; each has one
 * owner at a time: io.c, or between submit and reap the backend. */
#ifndef SLUICE_TIERS_IO_INTERNAL_H
#define SLUICE_TIERS_IO_INTERNAL_H

#include "tiers/io.h"

struct tieri_transfer {
    io_request *request;
    struct tieri_transfer *next; /* of whatever list holds it */
    unsigned char *data;         /* what is left to move */
    uint64_t file_offset;
    uint64_t left_bytes;
    uint64_t ask_bytes;  /* given to the kernel this time, <= left_bytes */
    int64_t result;      /* bytes moved or -errno */
    uint64_t release_ns; /* faults: held back until then */
    uint64_t number;     /* faults: of this try */
    uint32_t drive_idx;
    uint32_t retry_count; /* tries in a row that moved nothing */
    int fault;            /* faults: enum of io_faults.c */
    enum io_direction direction;
};
typedef struct tieri_transfer tieri_transfer;

/* A FIFO of transfers. */
struct tieri_list {
    tieri_transfer *first, *last;
};
typedef struct tieri_list tieri_list;

static inline void tieri_list_push(tieri_list *list, tieri_transfer *item)
{
    item->next = NULL;
    if (list->last)
        list->last->next = item;
    else
        list->first = item;
    list->last = item;
}

static inline tieri_transfer *tieri_list_pop(tieri_list *list)
{
    tieri_transfer *item = list->first;
    if (item) {
        list->first = item->next;
        if (!list->first)
            list->last = NULL;
    }
    return item;
}

/* What a backend is opened with; all borrowed until close. */
struct tieri_backend_config {
    const slab *target;
    const io_region *regions;
    uint32_t region_count;
    uint32_t transfer_count; /* most in flight */
    uint32_t thread_count;
    int event_fd;         /* made readable with each completion that may wait for reap */
    bool register_memory; /* try registered buffers */
};
typedef struct tieri_backend_config tieri_backend_config;

struct tieri_backend {
    /* The longest start of [data, data + size) that one transfer can move. */
    uint64_t (*span)(void *state, const void *data, uint64_t size_bytes);
    /* Takes the transfer; there is always room for transfer_count. */
    void (*submit)(void *state, tieri_transfer *item);
    /* Hands what was taken to the kernel. 0; 1: the kernel takes no more now, call again; -errno: the
     * backend is broken. */
    int (*flush)(void *state);
    /* The next finished transfer with its result, or NULL. */
    tieri_transfer *(*reap)(void *state);
    /* Ends everything: what the kernel has is waited for and what it has not never runs. Afterwards no
     * transfer and none of its memory is touched. Results are lost. */
    void (*close)(void *state);
};
typedef struct tieri_backend tieri_backend;

extern const tieri_backend tieri_uring_backend, tieri_pool_backend;

/* Open; *state is what the calls take. */
int tieri_uring_open(const tieri_backend_config *config, io_stats *stats, void **state) MUST_CHECK;
int tieri_pool_open(const tieri_backend_config *config, io_stats *stats, void **state) MUST_CHECK;

/* The simulated drive. */
struct tieri_faults {
    io_faults config;
    bool active;
    uint64_t number; /* transfers seen */
    tieri_list held; /* finished, held back */
};
typedef struct tieri_faults tieri_faults;

/* Before the backend takes it: may lower ask_bytes. Returns false if the transfer shall not reach the
 * backend; its result is then set. */
bool tieri_faults_before(tieri_faults *self, tieri_transfer *item);

/* After the backend: may change result and data; true: the transfer was put into `held`. */
bool tieri_faults_after(tieri_faults *self, tieri_transfer *item);

/* Has the simulated queue broken? */
bool tieri_faults_broken(const tieri_faults *self);

/* The next held transfer whose time has come, or NULL. */
tieri_transfer *tieri_faults_release(tieri_faults *self);

#endif
