/* What the files of src/comm share. See comm.h for the whole.
 *
 *   comm.c       create, leave, what there is to know; the bulk calls by a table; the backend self
 *   launch.c     the environment of the launcher -> which rank this is
 *   mpi.c        the only file that calls MPI (mpi_absent.c: a build without it)
 *   control*.c   the control plane
 *   exchange*.c  the backends mpi and staged
 *   nccl*.c      the backend nccl
 *   pretended.c  ranks of which one is there */
#ifndef SLUICE_COMM_COMM_INTERNAL_H
#define SLUICE_COMM_COMM_INTERNAL_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>

#include "comm/comm.h"

/* A backend of the bulk plane. Its state hangs on comm.bulk_state. */
struct commi_bulk_ops {
    const char *name; /* as comm_backend_name gives it */
    /* As comm_all_gather and comm_reduce_scatter, after comm_check. Arguments are checked. On a failure the
     * job's (commi_is_aborted) they return commi_abort_error; one of their own they comm_fail themselves. */
    int (*all_gather)(comm *self, const comm_call *call);
    int (*reduce_scatter)(comm *self, const comm_call *call);
    /* Frees all; after a failure too: then it waits for nobody. */
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
    struct commi_control *control; /* NULL: one rank */
    struct commi_mpi *mpi;         /* NULL: no MPI between the ranks */
    const commi_bulk_ops *bulk;    /* NULL before comm_open */
    void *bulk_state;              /* the backend's */
    _Atomic int64_t timeout_ns;    /* of silence and of waiting for a rank */
    _Atomic int64_t exit_ns;       /* from a failure to the end of the process */
    _Atomic uint64_t sent_bytes;   /* the backend adds where it copies or sends */
    _Atomic uint64_t held_bytes;   /* the backend says */
    bool is_pretended;             /* comm_pretend */
    atomic_bool is_aborted;        /* set once, when the failure's text is there */
    atomic_bool is_leaving;        /* comm_leave was called */
    atomic_bool waits;      /* a bulk call has waited for another rank for a while, and does */
    void (*tell)(int code); /* comm_join_config's */
    err_record alone;       /* one rank: the failure that comm_fail was told */
};

/* Sets comm.bulk and comm.bulk_state, or fails and leaves both. The caller runs no collective; they do. */
int commi_open_exchange(comm *self, const comm_open_config *config) MUST_CHECK;
int commi_open_nccl(comm *self, const comm_open_config *config) MUST_CHECK;
int commi_open_pretended(comm *self, const comm_open_config *config) MUST_CHECK;

/* ---- failures, for those who wait ---- */

/* One load. Any thread. */
static inline bool commi_is_aborted(const comm *self)
{
    return atomic_load_explicit(&((comm *)self)->is_aborted, memory_order_acquire);
}

/* The failure of the job as this thread's text; its code (< 0). Only after commi_is_aborted. */
int commi_abort_error(comm *self);

#define COMMI_RANK_ANY UINT32_MAX

/* This rank has waited for `rank` (COMMI_RANK_ANY: it cannot say for whom) for timeout_ns in a bulk call named
 * `what`, and goes on to wait: the hub decides whether that is a failure (comm.h), and names it to all. To be
 * said again while it lasts. Never blocks. With one rank: nothing. */
void commi_say_waiting(comm *self, uint32_t rank, const char *what);

static inline int64_t commi_timeout_ns(const comm *self)
{
    return atomic_load_explicit(&((comm *)self)->timeout_ns, memory_order_relaxed);
}

int64_t commi_now_ns(void); /* CLOCK_MONOTONIC */

/* ---- who this rank is, by the launcher's environment ---- */

enum { COMMI_MACHINE_BYTES = COMM_HOST_BYTES + 48 };

struct commi_launch {
    uint32_t rank, world; /* world 0: the launcher says nothing of it, MPI knows */
    bool is_launched;     /* by something that starts several processes */
    const char *launcher; /* "mpirun (OMPI_COMM_WORLD_SIZE)", for messages */
};
typedef struct commi_launch commi_launch;

/* Reads the environment. ERR_CONFIG: more than COMM_RANKS_MAX ranks, or nonsense. */
int commi_launch_read(commi_launch *out) MUST_CHECK;
/* The machine's name, cut to fit; and name with boot id, which two machines of one name do not share. */
void commi_host_name(char host[COMM_HOST_BYTES]);
void commi_machine_name(char machine[COMMI_MACHINE_BYTES]);

/* ---- the edge to MPI. One thread at a time (MPI_THREAD_SERIALIZED) ---- */

/* Whether ranks of different hosts can exchange. Ranks given by config cannot. */
static inline bool commi_has_mpi(const comm *self)
{
    return self->mpi != NULL;
}

/* Initializes MPI, duplicates its world, sets *rank and *world. */
int commi_mpi_open(comm *self, const commi_launch *launch) MUST_CHECK;
/* Rank 0's bytes to all, blocking: only while joining. */
int commi_mpi_broadcast(comm *self, void *data, uint64_t bytes) MUST_CHECK;
/* code 0: all ranks together, ends MPI. Else leaves MPI as it is. */
void commi_mpi_close(comm *self, int code);
/* What the library says of itself, for messages; "" without it. Static storage. */
const char *commi_mpi_version(void);

/* A nonblocking transfer. The caller's, zeroed at first; free for the next use once done or cancelled. */
struct commi_request {
    alignas(16) unsigned char handle[16]; /* the library's request */
    bool is_active;
};
typedef struct commi_request commi_request;

/* bytes <= INT_MAX, tag < 32768. `data` must stay as it is until the request is done. A message goes to the
 * receive of the same rank, tag and order; a receive gets exactly the bytes that it asks for. ERR_BACKEND. */
int commi_mpi_send(comm *self, commi_request *request, const void *data, uint64_t bytes,
                   uint32_t rank, int tag) MUST_CHECK;
int commi_mpi_receive(comm *self, commi_request *request, void *data, uint64_t bytes, uint32_t rank,
                      int tag) MUST_CHECK;
/* Moves MPI on and says whether the request is done (one that is not active is). Never blocks. */
int commi_mpi_test(commi_request *request, bool *is_done) MUST_CHECK;
/* After a failure: gives the request up without waiting. The memory behind it may still be written to by MPI
 * for a receive that has begun: keep it until the process ends where you cannot rule that out. */
void commi_mpi_cancel(commi_request *request);

#endif
