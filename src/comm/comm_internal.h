/* Shared by the files of src/comm. See comm.h for the whole.
 *
 * Calls go downward only in this drawing:
 *
 *   comm.c                              join, leave, open; bulk calls by the backend's table
 *     |
 *   exchange.c  nccl.c  pretended.c     the backends of the bulk plane
 *     |           \
 *     |            nccl_library.c       NCCL's entry points, loaded at run time
 *   exchange_round.c                    one collective of mpi and staged, in rounds
 *     |          \
 *   staged.c      exchange_wait.c       copies of a GPU; waiting for other ranks
 *     |
 *   control.c                           the control plane's calls, failures and labels
 *     |          \
 *   control_thread.c   control_join.c   heartbeats and deaths; connecting the ranks
 *     |                  |
 *   control_judge.c    control_meet.c   who hangs; the address at which the ranks meet
 *     |                  |
 *   member.c   mpi.c                    this rank, by the launcher's environment; MPI
 *   segment.c  sum.c                    memory that ranks of a host share; loops of sums
 *   guard.c                             a thread that acts when a call does not return */
#ifndef SLUICE_COMM_INTERNAL_H
#define SLUICE_COMM_INTERNAL_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include "base/log.h"
#include "base/size.h"
#include "comm/comm.h"

/* Memory through which a rank exchanges, unless the job says otherwise; a round has half of it. */
#define COMMI_STAGING_BYTES (8 * MIB)

/* A backend of the bulk plane. Its state hangs on comm.bulk_state. */
struct commi_bulk_ops {
    /* As comm_all_gather, comm_reduce_scatter and comm_all_to_all, after comm_check and with
     * checked arguments. After a failure of the job (commi_is_aborted) they return
     * commi_abort_error. They call comm_fail for a failure of their own. */
    int (*all_gather)(comm *self, const comm_call *call);
    int (*reduce_scatter)(comm *self, const comm_call *call);
    int (*all_to_all)(comm *self, const comm_parcels *call);
    /* Frees everything. Waits for nobody after a failure. NULL: there is nothing to free. */
    void (*close)(comm *self);
    /* As comm_watch. NULL: comm_check. */
    int (*watch)(comm *self);
};
typedef struct commi_bulk_ops commi_bulk_ops;

struct commi_control; /* control_internal.h */
struct commi_mpi;     /* mpi.c */

struct comm {
    uint32_t rank, world;
    comm_rank *ranks;              /* [world] */
    struct commi_control *control; /* NULL: one rank, or pretended ranks */
    struct commi_mpi *mpi;         /* NULL: no MPI between the ranks */
    const commi_bulk_ops *bulk;    /* NULL before comm_open */
    void *bulk_state;              /* the backend's */
    _Atomic int64_t timeout_ns;    /* limit of silence and of waiting for a rank */
    _Atomic int64_t exit_ns;       /* from a failure to the end of the process */
    _Atomic uint64_t sent_bytes;   /* the backend adds what it copies or sends */
    _Atomic uint64_t held_bytes;   /* set by the backend */
    int64_t join_end_ns;           /* by when all ranks must have joined */
    struct commi_guard *guard;     /* while joining by MPI: watches MPI's calls; otherwise NULL */
    bool is_one_host;              /* the launcher says that all ranks are on this host */
    bool is_pretended;             /* made by comm_pretend */
    atomic_bool is_aborted;        /* set once, after `failure` */
    atomic_bool is_leaving;        /* comm_leave was called */
    atomic_bool waits;             /* a bulk call has waited for another rank for a while */
    void (*report)(int code);      /* comm_join_config.report */
    pthread_mutex_t mutex;         /* guards `failure`, and the shared part of commi_control */
    err_record failure;            /* of the job; code 0: none */
};

/* ---- member.c: this rank. Any thread, but for creation ---- */

/* Makes a comm with default timeouts and no ranks. -ENOMEM. */
int commi_member_create(comm **out) MUST_CHECK;
void commi_member_destroy(comm *self);
/* Says which of how many ranks this is, and allocates `ranks`, zeroed. -ENOMEM. */
int commi_member_set_ranks(comm *self, uint32_t rank, uint32_t world) MUST_CHECK;
/* 0 or less: the default. */
void commi_member_set_timeouts(comm *self, double timeout_seconds, double exit_seconds);

static inline int64_t commi_now_ns(void)
{
    return (int64_t)clock_ns();
}

static inline void commi_sleep_ns(int64_t ns)
{
    struct timespec left = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    (void)nanosleep(&left, NULL);
}

static inline int64_t commi_timeout_ns(const comm *self)
{
    return atomic_load_explicit(&((comm *)self)->timeout_ns, memory_order_relaxed);
}

/* One load. */
static inline bool commi_is_aborted(const comm *self)
{
    return atomic_load_explicit(&((comm *)self)->is_aborted, memory_order_acquire);
}

/* Makes the failure of the job this thread's error and returns its code (< 0). Only after
 * commi_is_aborted. */
int commi_abort_error(comm *self);

/* ---- control.c, for backends that wait ---- */

#define COMMI_RANK_ANY UINT32_MAX

/* Tells the hub that this rank has waited for `rank` for timeout_ns, in a bulk call named `what`,
 * and goes on waiting. COMMI_RANK_ANY: this rank does not know whom it waits for. The hub decides
 * whether that is a failure (comm.h). Repeat the call while the wait lasts. Never blocks; does
 * nothing without a control plane. */
void commi_say_waiting(comm *self, uint32_t rank, const char *what);

/* ---- the backends: they set comm.bulk and comm.bulk_state, or fail and leave both ---- */

int commi_open_exchange(comm *self, const comm_open_config *config) MUST_CHECK;
int commi_open_nccl(comm *self, const comm_open_config *config) MUST_CHECK;
int commi_open_pretended(comm *self, const comm_open_config *config) MUST_CHECK;

/* ---- comm.c: for backends with an all-to-all ---- */

/* Fails if rank `to`, which makes the call, has no room for so many bytes from rank `from`. */
int commi_check_parcel(const comm_parcels *call, uint32_t from, uint32_t to,
                       uint64_t bytes) MUST_CHECK;

/* ---- member.c: who this rank is, by the launcher's environment ---- */

enum { COMMI_MACHINE_BYTES = COMM_HOST_BYTES + 48 };

struct commi_launch {
    uint32_t rank, world; /* world 0: the launcher does not say, MPI knows */
    bool is_launched;     /* by something that starts several processes */
    bool is_one_host;     /* the launcher says that it has started all of them on this host */
    bool is_torchrun;     /* there is no MPI between them */
    const char *launcher; /* "mpirun", for messages */
};
typedef struct commi_launch commi_launch;

/* Reads the environment. ERR_CONFIG: more than COMM_RANKS_MAX ranks, or values that make no
 * sense. */
int commi_launch_read(commi_launch *out) MUST_CHECK;
/* The machine's name, cut to fit. */
void commi_host_name(char host[COMM_HOST_BYTES]);
/* The name with the boot id, which two machines of one name do not share. */
void commi_machine_name(char machine[COMMI_MACHINE_BYTES]);

/* ---- guard.c: acts when a call of a library does not return ---- */

struct commi_guard {
    comm *owner;
    pthread_t thread;
    int fd; /* eventfd: readable when the guard is to end */
    int64_t end_ns;
    _Atomic(const char *) call; /* the call that is under way; NULL: none */
    void (*expire)(comm *owner, const char *call);
};
typedef struct commi_guard commi_guard;

/* Starts a thread. If a call is under way at `end_ns` (commi_now_ns) or later, the thread calls
 * `expire`, which says so and ends the process. */
int commi_guard_start(commi_guard *self, comm *owner, int64_t end_ns,
                      void (*expire)(comm *owner, const char *call)) MUST_CHECK;
/* Notes the call that begins, a constant text such as "MPI_Init"; NULL: it has returned. */
void commi_guard_enter(commi_guard *self, const char *call);
/* Ends the thread. */
void commi_guard_stop(commi_guard *self);

/* ---- mpi.c, the only file that calls MPI, or mpi_absent.c. One thread at a time
 * (MPI_THREAD_SERIALIZED) ---- */

/* True if ranks of different hosts can exchange. Ranks that the config gives cannot. */
static inline bool commi_has_mpi(const comm *self)
{
    return self->mpi != NULL;
}

/* Initializes MPI if this process has not, duplicates its world, sets rank and world. If all ranks
 * are on one host it asks Open MPI to use shared memory alone, so that its ranks open no port.
 * ERR_CONFIG: there are several ranks, and MPI has ended in this process. */
int commi_mpi_open(comm *self, const commi_launch *launch) MUST_CHECK;
/* Sends rank 0's bytes to all ranks. Blocks; only while joining. */
int commi_mpi_broadcast(comm *self, void *data, uint64_t bytes) MUST_CHECK;
/* Code 0: all ranks call it together. Then MPI ends, in the Python package at the normal end of the
 * process. Otherwise MPI is not ended, unless a later run in the Python package succeeds. */
void commi_mpi_close(comm *self, int code);
/* The library's name and version, for messages; "" without MPI. Static storage. */
const char *commi_mpi_version(void);

/* A nonblocking transfer in the caller's storage, zeroed at first. It may be used again once it is
 * done or cancelled. */
struct commi_request {
    alignas(16) unsigned char handle[16]; /* the library's request */
    bool is_active;
};
typedef struct commi_request commi_request;

/* bytes <= INT_MAX. `data` must not change until the request is done. A message goes to the receive
 * of the same rank and order. A receive gets exactly the bytes that it asks for. ERR_BACKEND. */
int commi_mpi_send(comm *self, commi_request *request, const void *data, uint64_t bytes,
                   uint32_t rank) MUST_CHECK;
int commi_mpi_receive(comm *self, commi_request *request, void *data, uint64_t bytes,
                      uint32_t rank) MUST_CHECK;
/* Lets MPI make progress, and says whether the request is done. An inactive request is done. Never
 * blocks. */
int commi_mpi_test(commi_request *request, bool *is_done) MUST_CHECK;
/* Gives the request up after a failure, without waiting. MPI may still write to the memory of a
 * receive that has begun: keep that memory until the process ends if you cannot rule that out. */
void commi_mpi_cancel(commi_request *request);

#endif
