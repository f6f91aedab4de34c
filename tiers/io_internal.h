/* What the files of io share: the queue, its backends, the faults and the watch over time.
 *
 *   io.c       requests -> transfers, order, retries, results       (owner thread)
 *   io_open.c  creation and end
 *   io_watch.c the timer: held completions, stuck transfers
 *   backend    transfers -> kernel -> results                       (pool: its own threads)
 *   io_faults  between the two: changes sizes before, results after
 *
 * A transfer is one read or write of the kernel. All of them are allocated by io_create; each has one
 * owner at a time: io.c, or between submit and reap the backend. */
#ifndef SLUICE_TIERS_IO_INTERNAL_H
#define SLUICE_TIERS_IO_INTERNAL_H

#include "tiers/io.h"
#include "tiers/io_faults.h"

struct tieri_transfer {
    io_request *request;
    struct tieri_transfer *next; /* of whatever list holds it */
    unsigned char *data;         /* what is left to move */
    uint64_t file_offset;
    uint64_t left_bytes;
    uint64_t ask_bytes;  /* given to the kernel this time, <= left_bytes */
    int64_t result;      /* bytes moved or -errno */
    uint64_t release_ns; /* faults: held back until then */
    uint64_t number;     /* faults: of this try, from 1 */
    uint64_t begin_ns;   /* when it was first handed over */
    uint64_t issued_ns;  /* watch: last time that it moved on; 0 where nobody watches */
    uint64_t late_ns;    /* watch: when it was first seen over stop_ns; 0: not yet */
    uint64_t due;        /* simulated drive: its virtual time of completion */
    uint32_t drive_idx;
    uint32_t retry_count;  /* tries in a row that moved nothing */
    uint32_t report_count; /* watch: warnings given since issued_ns */
    enum io_fault_kind fault;
    bool parked; /* faults: held back before it reached the backend */
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
    int event_fd;            /* made readable with each completion that may wait for reap */
    bool register_memory;    /* try registered buffers */
    struct sim_store *store; /* the simulated drive's; NULL: its own */
    uint64_t seed;           /* the simulated drive's */
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
     * transfer and none of its memory is touched. Results are lost.
     * `hung`: the drive does not answer; what is not back after TIERI_CLOSE_WAIT_MS is left behind, which
     * is logged. Then false: the kernel may still move bytes of the transfers' memory, but nothing of the
     * io's is touched. */
    bool (*close)(void *state, bool hung);
};
typedef struct tieri_backend tieri_backend;

extern const tieri_backend tieri_uring_backend, tieri_pool_backend, tieri_sim_backend;

/* Open; *state is what the calls take. */
int tieri_uring_open(const tieri_backend_config *config, io_stats *stats, void **state) MUST_CHECK;
int tieri_pool_open(const tieri_backend_config *config, io_stats *stats, void **state) MUST_CHECK;
int tieri_sim_open(const tieri_backend_config *config, io_stats *stats, void **state) MUST_CHECK;

/* The faults of a drive. */
struct tieri_faults {
    io_faults config;
    bool active;
    uint64_t number; /* transfers seen */
    tieri_list held; /* parked, or finished and held back */
};
typedef struct tieri_faults tieri_faults;

/* Before the backend takes it: may lower ask_bytes. Returns false if the transfer shall not reach the
 * backend; its result is then set. */
bool tieri_faults_before(tieri_faults *self, tieri_transfer *item);

/* After the backend: may change result and data; true: the transfer was put into `held`. */
bool tieri_faults_after(tieri_faults *self, tieri_transfer *item);

/* Has the simulated queue broken? */
bool tieri_faults_broken(const tieri_faults *self);

/* The next held transfer whose time has come, or NULL. One that is `parked` now goes to the backend, any
 * other is finished. */
tieri_transfer *tieri_faults_release(tieri_faults *self);

/* When the next held transfer's time comes, in clock_ns; UINT64_MAX where there is none. */
uint64_t tieri_faults_next_ns(const tieri_faults *self);

enum {
    TIERI_ALIGN_BYTES = 4096,
    TIERI_DIRECTIONS = 2,
    TIERI_CLOSE_WAIT_MS = 5000,
};

/* A FIFO of requests. */
struct tieri_request_list {
    io_request *first, *last;
};
typedef struct tieri_request_list tieri_request_list;

struct io {
    slab *target;
    const tieri_backend *backend;
    void *state;    /* of the backend */
    int event_fd;   /* eventfd: written by backends and by io_submit */
    int timer_fd;   /* the watch's */
    int epoll_fd;   /* of the two: what the caller waits for */
    bool signalled; /* event_fd has been written to since it was last drained */
    int broken;     /* the backend's error; 0 while it works */
    uint64_t block_bytes;
    tieri_transfer *transfers; /* [transfer_count] all there are */
    uint32_t transfer_count;
    tieri_list unused[TIERI_DIRECTIONS];
    tieri_list again;                           /* to be continued or retried */
    tieri_request_list queue[TIERI_DIRECTIONS]; /* not yet wholly issued */
    tieri_request_list done;
    uint32_t taken_count, request_capacity;
    uint32_t out_count; /* transfers with the backend or held by the faults */
    io_region *regions; /* [region_count] the caller's, then the probe page */
    uint32_t region_count;
    unsigned char *page_block, *probe_page; /* 4 KiB aligned page within its block */
    tieri_transfer probe;                   /* the first reads */
    tieri_faults faults;
    uint64_t stuck_ns;    /* warnings; 0: none */
    uint64_t stop_ns;     /* the end; 0: none */
    uint64_t look_ns;     /* when to look for stuck transfers next; 0: when one is out again */
    uint64_t timer_at_ns; /* when timer_fd becomes, or became, readable; 0: not set */
    io_stats stats;
    io_latency *latencies; /* [drives][TIERI_DIRECTIONS] */
    err_record first_error;
    const io_request *awaited; /* by io_transfer */
    err_record awaited_error;
};

/* io.c: makes event_fd quiet. */
void tieri_event_drain(io *self);

/* sim.c: the store whose bytes the simulated queue of this state moves. */
struct sim_store *tieri_sim_store(void *state);

#endif
