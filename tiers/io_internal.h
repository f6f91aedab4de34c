/* Shared by the files of io: the queue, its backends and the faults.
 *
 *   io.c       requests -> transfers, order, retries, results                        (owner thread)
 *   io_watch.c drives that do not answer: warnings, and the end of the queue         (owner thread)
 *   io_open.c  creation and end                                                      (owner thread)
 *   backends   transfers -> kernel -> results: io_uring.c, io_pool.c (own threads), sim.c
 *   io_faults  between io.c and the backend: changes sizes before it, results after it
 *
 * A transfer is one read or write of the kernel. io_create allocates all of them. Each transfer has
 * one owner at a time: io.c, or the backend between submit and reap. */
#ifndef SLUICE_TIERS_IO_INTERNAL_H
#define SLUICE_TIERS_IO_INTERNAL_H

#include "tiers/io.h"
#include "tiers/io_faults.h"

struct tieri_transfer {
    io_request *request;
    struct tieri_transfer *next; /* in the list that holds it */
    unsigned char *data;         /* the bytes left to move */
    uint64_t file_offset;
    uint64_t left_bytes;
    uint64_t ask_bytes;  /* handed to the kernel this time, <= left_bytes */
    int64_t result;      /* bytes moved or -errno */
    uint64_t release_ns; /* faults: held back until then */
    uint64_t number;     /* faults: number of this try, from 1 */
    uint64_t begin_ns;   /* when it was first handed over */
    uint64_t issued_ns;  /* watch: last time that it moved on; 0: nobody watches */
    uint64_t late_ns;    /* watch: when it was first found to exceed stop_ns; 0: not yet */
    uint64_t due;        /* simulated drive: its virtual time of completion */
    uint32_t drive_idx;
    uint32_t retry_count; /* tries in a row that moved nothing */
    enum io_fault_kind fault;
    bool parked; /* faults: it is held back and has not reached the backend */
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

/* Takes out the transfer after `before`; NULL: the first one. NULL if there is none. */
static inline tieri_transfer *tieri_list_take(tieri_list *list, tieri_transfer *before)
{
    tieri_transfer **link = before ? &before->next : &list->first, *item = *link;
    if (!item)
        return NULL;
    *link = item->next;
    if (list->last == item)
        list->last = before;
    return item;
}

static inline tieri_transfer *tieri_list_pop(tieri_list *list)
{
    return tieri_list_take(list, NULL);
}

/* The configuration of a backend. All pointers are borrowed until close. */
struct tieri_backend_config {
    const slab *target;
    const io_region *regions;
    uint32_t region_count;
    uint32_t transfer_count; /* the most in flight */
    uint32_t thread_count;
    int event_fd;            /* the backend makes it readable with each completion */
    bool register_memory;    /* try registered buffers, files and ring */
    struct sim_store *store; /* simulated drive: the bytes; NULL: a store of its own */
    uint64_t seed;           /* simulated drive: of the order */
    bool polls;              /* io_uring: completions are polled for (IORING_SETUP_IOPOLL) */
    int refusal;             /* for tests: the errno with which io_uring_setup fails; 0: none */
    bool is_plain_ring;      /* for tests: polls, with a ring that the kernel does not poll */
    bool changes_thread;     /* as in io_config */
    uint32_t skipped_modes;  /* for tests: act as a kernel that lacks the best ways to set up */
};
typedef struct tieri_backend_config tieri_backend_config;

struct tieri_backend {
    /* The bytes from `data` on, up to size_bytes, that one transfer can move. */
    uint64_t (*span)(void *state, const void *data, uint64_t size_bytes);
    /* Takes the transfer. There is always room for transfer_count of them. */
    void (*submit)(void *state, tieri_transfer *item);
    /* Hands the taken transfers to the kernel. 0; 1: the kernel takes no more now, call again;
     * -errno: the backend is broken. */
    int (*flush)(void *state);
    /* Returns the next finished transfer with its result, or NULL. */
    tieri_transfer *(*reap)(void *state);
    /* While it listens, a completion makes event_fd readable; otherwise it need not. True if it
     * begins to listen and something has arrived already. NULL: it always listens. */
    bool (*listen)(void *state, bool listens);
    /* Ends the backend: waits for the transfers that were handed to the kernel; the others never
     * run. Afterwards no transfer and none of its memory is touched. Results are lost. `hung`:
     * the drive does not answer. Transfers that are not back after TIERI_CLOSE_WAIT_MS are left
     * behind with a log line, and the call returns false: the kernel may still move bytes of
     * their memory, but it touches nothing of the io. */
    bool (*close)(void *state, bool hung);
};
typedef struct tieri_backend tieri_backend;

extern const tieri_backend tieri_uring_backend, tieri_pool_backend, tieri_sim_backend;

/* Open a backend; *state is what its calls take. */
int tieri_uring_open(const tieri_backend_config *config, io_stats *stats, void **state) MUST_CHECK;
int tieri_pool_open(const tieri_backend_config *config, io_stats *stats, void **state) MUST_CHECK;
int tieri_sim_open(const tieri_backend_config *config, io_stats *stats, void **state) MUST_CHECK;

/* io_uring.c: writes the advice for a ring that the kernel refused with `code`, a negative errno:
 * the cause, the limits of this process and machine, and the change that helps. */
void tieri_uring_advise(int code, uint32_t transfer_count, char *text, size_t capacity);

/* The simulated faults (io_faults.c). */
struct tieri_faults {
    io_faults config;
    bool active;
    uint64_t number; /* transfers seen */
    tieri_list held; /* parked transfers, and finished ones that are held back */
};
typedef struct tieri_faults tieri_faults;

/* Before the backend takes the transfer: may lower ask_bytes. Returns false if the transfer must
 * not reach the backend; then its result is set. */
bool tieri_faults_before(tieri_faults *self, tieri_transfer *item);

/* After the backend: may change result and data. Returns true if it put the transfer into
 * `held`. */
bool tieri_faults_after(tieri_faults *self, tieri_transfer *item);

/* True if the simulated queue has broken. */
bool tieri_faults_broken(const tieri_faults *self);

/* Returns the next held transfer whose time has come, or NULL. A `parked` transfer then goes to the
 * backend; any other is finished. */
tieri_transfer *tieri_faults_release(tieri_faults *self);

/* When the time of the next held transfer comes, in clock_ns; UINT64_MAX: none is held. */
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

/* The warnings about a drive that does not answer. */
struct tieri_silence {
    uint64_t since_ns;     /* since when; 0: the drive answers, or nothing was said yet */
    uint32_t report_count; /* warnings */
};
typedef struct tieri_silence tieri_silence;

struct io {
    slab *target;
    const tieri_backend *backend;
    void *state;    /* the backend's */
    int event_fd;   /* eventfd: written by backends and by io_submit */
    int timer_fd;   /* of the watch over time */
    int epoll_fd;   /* of these two: what the caller waits for */
    bool signalled; /* event_fd has been written to since it was last drained */
    int broken;     /* the backend's error; 0 while it works */
    uint64_t block_bytes;
    tieri_transfer *transfers; /* [transfer_count] */
    uint32_t transfer_count;
    tieri_list unused;
    uint32_t busy_count[TIERI_DIRECTIONS]; /* transfers that are not unused, by direction */
    uint32_t share_count;                  /* of the transfers, for a direction beside the other */
    tieri_list again;                      /* to continue or retry */
    tieri_request_list queue[TIERI_DIRECTIONS]; /* not completely issued yet */
    tieri_request_list done;
    uint32_t taken_count, request_capacity;
    uint32_t out_count; /* transfers with the backend or held by the faults */
    io_region *regions; /* [region_count] the caller's, then the probe page */
    uint32_t region_count;
    unsigned char *page_block, *probe_page; /* 4 KiB aligned page within its block */
    tieri_transfer probe;                   /* the first reads */
    tieri_faults faults;
    uint64_t stuck_ns;    /* io_config.stuck_ns */
    uint64_t stop_ns;     /* io_config.stop_ns */
    uint64_t look_ns;     /* when to look for stuck transfers next; 0: none is out */
    uint64_t timer_at_ns; /* when timer_fd becomes or became readable; 0: not set */
    tieri_silence silences[DRIVES_MAX];
    uint32_t silent_count; /* drives with since_ns above 0 */
    io_stats stats;
    io_latency *latencies; /* [drives][TIERI_DIRECTIONS] */
    err_record first_error;
};

/* io.c: makes event_fd unreadable. */
void tieri_event_drain(io *self);

/* True if transfers are watched for their time. */
static inline bool tieri_watches(const io *self)
{
    return self->stuck_ns || self->stop_ns;
}

/* io_watch.c: reports drives that do not answer, and sets the timer for its next look. -ETIMEDOUT
 * if a transfer takes longer than stop_ns. */
int tieri_watch(io *self) MUST_CHECK;

/* The same for the first read of a drive, which began at begin_ns and is not back. */
void tieri_watch_first_read(io *self, uint32_t drive_idx, uint64_t begin_ns);

/* Tells that the drive answers again, if it was reported before. */
void tieri_watch_end(io *self, uint32_t drive_idx);

/* sim.c: the store whose bytes the simulated queue of this state moves. */
struct sim_store *tieri_sim_store(void *state);

#endif
