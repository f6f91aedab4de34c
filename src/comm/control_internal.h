/* The control plane's own header: what its files and comm.c share.
 *
 *   rank 0, the hub                               rank r
 *   thread ──── links[r].fd ─── frames ────────── thread      heartbeats, failures, leaving: small, any time
 *   caller ──── links[r].data_fd ─ calls ──────── caller      gather, broadcast: by the calling threads alone
 *
 * Two connections, so that a large payload never stands before a heartbeat, and the thread never blocks. A call goes
 * up (each rank: what it is, and its payload) and, but for gather, down (rank 0's payload), so that rank 0 knows who
 * has come and that all do the same. Nothing allocates after commi_control_open.
 *
 *   control_meet.c    where to connect to
 *   control_join.c    connecting, who is who
 *   control_thread.c  the thread: frames, deaths, silence, the end of the process
 *   control.c         the calls, failures, labels */
#ifndef SLUICE_COMM_CONTROL_INTERNAL_H
#define SLUICE_COMM_CONTROL_INTERNAL_H

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "comm/comm_internal.h"

enum commi_frame_type {
    COMMI_FRAME_BEAT, /* text: the sender's label; number: its progress; code: 1 where it waits for others */
    COMMI_FRAME_FAIL,    /* to the hub. code, text: the sender's failure, which names it */
    COMMI_FRAME_ABORT,   /* code, text: the job's failure; rank: who tells */
    COMMI_FRAME_MISSING, /* to the hub. rank, text, number: who has not come to what */
    COMMI_FRAME_BYE,     /* the sender leaves in order */
    COMMI_FRAME_TYPES
};

#define COMMI_FRAME_MAGIC 0x66636c73u
#define COMMI_NUMBER_BULK UINT64_MAX /* COMMI_FRAME_MISSING of a bulk call */
#define COMMI_DATA_MAGIC  0x64636c73u

/* Between machines of one kind: in their byte order; the magic tells where it is not. */
struct commi_frame {
    uint32_t magic, type, text_bytes, rank;
    int64_t code;
    uint64_t number;
    char text[ERR_TEXT_BYTES]; /* [text_bytes] are sent; the last is 0 */
};
typedef struct commi_frame commi_frame;

enum commi_call_kind { COMMI_GATHER, COMMI_BROADCAST, COMMI_EXCHANGE, COMMI_BARRIER, COMMI_AGREE };

/* Before each payload of a call. */
struct commi_call_head {
    uint32_t magic, kind;
    uint64_t number, bytes;
    char what[COMM_LABEL_BYTES];
};
typedef struct commi_call_head commi_call_head;

/* The connections to one rank. */
struct commi_link {
    int fd, data_fd; /* -1: closed, or none */
    /* the thread's */
    bool has_bye;        /* the other side leaves in order: its end is no death */
    bool is_shut;        /* we have sent our last frame */
    unsigned sent;       /* bit per frame type that is sent once */
    int64_t seen_ns;     /* when something came last */
    int64_t beat_ns;     /* when we sent a heartbeat last */
    uint64_t progress;   /* as the last heartbeat said */
    int64_t progress_ns; /* when that came first */
    bool is_waiting;     /* as the last heartbeat said */
    commi_frame in, out;
    size_t in_bytes, out_bytes, out_done;
    /* under the mutex */
    char label[COMM_LABEL_BYTES];
    /* the caller's */
    _Atomic int64_t lost_ns; /* when a call found the connection dead; 0: not */
    commi_call_head head;
    uint64_t done_bytes; /* of head and payload */
    atomic_bool has_come;
};
typedef struct commi_link commi_link;

struct commi_control {
    comm *owner;
    commi_link *links; /* hub: [world], by rank, [0] unused; else [1]: to rank 0 */
    uint32_t link_count, first_link;
    struct pollfd *thread_fds, *call_fds; /* [world + 1] */
    err_record *verdicts;                 /* hub: [world], of comm_agree */
    uint64_t number;                      /* calls so far; the caller's */
    int wake_fd;                          /* eventfd: the thread looks again */
    int abort_fd;                         /* eventfd: readable from the failure on */
    uint64_t progress;                    /* hub: as a link's, of this process; the thread's */
    int64_t progress_ns;
    bool has_told; /* ... comm_join_config.tell */
    pthread_t thread;
    pthread_mutex_t mutex; /* what follows */
    char label[COMM_LABEL_BYTES];
    err_record failure; /* code 0: none */
    bool is_own;        /* ... this rank's; the hub has not confirmed it */
    char refusal
        [ERR_TEXT_BYTES]; /* the last that all agreed on, of another rank: "rank 2 on b: ..."; "": none */
    uint32_t teller;
    int64_t failed_ns;
    commi_call_head call; /* where this rank's caller is */
    int64_t call_since_ns;
    int64_t call_said_ns; /* when the hub was last told that it takes long */
    bool is_calling;
    bool has_missing; /* to be said to the hub: at most one at a time */
    uint32_t missing_rank;
    uint64_t missing_number;
    char missing_what[COMM_LABEL_BYTES];
    bool is_closing;
    int64_t closing_ns;
};
typedef struct commi_control commi_control;

/* The rank at the other end of a link. */
static inline uint32_t commi_link_rank(const commi_control *self, const commi_link *link)
{
    return self->first_link ? (uint32_t)(link - self->links) : 0;
}

/* ---- control_meet.c ---- */

enum { COMMI_ADDRESS_COUNT_MAX = 16 };

struct commi_address {
    uint32_t family; /* AF_INET, AF_INET6 */
    unsigned char bytes[16];
};

/* What rank 0 tells all by MPI. */
struct commi_meeting {
    uint64_t token[2];
    uint32_t port, address_count;
    struct commi_address addresses[COMMI_ADDRESS_COUNT_MAX];
    char machine[COMMI_MACHINE_BYTES];
};

struct commi_address commi_loopback(void);
socklen_t commi_make_sockaddr(const struct commi_address *address, uint32_t port,
                              struct sockaddr_storage *out);
/* Rank 0's: a listening socket, and what the others must know. */
int commi_open_meeting(const comm_join_config *config, struct commi_meeting *meeting) MUST_CHECK;

/* ---- control_join.c ---- */

/* Connects all ranks: fills owner->ranks and the links' descriptors. Blocks. -ETIMEDOUT names who did not come. */
int commi_control_connect(commi_control *self, const comm_join_config *config) MUST_CHECK;
/* Whether the failed join of this process is one that rank 0 prints. */
bool commi_join_is_told(int code);

/* ---- control_thread.c ---- */

void *commi_control_run(void *control);
/* With the mutex held: the first failure counts, but an unconfirmed one of our own gives way to the job's. */
void commi_control_record(commi_control *self, int code, const char *text, bool is_own);
void commi_control_wake(commi_control *self);

/* ---- control.c ---- */

int commi_control_open(comm *self, const comm_join_config *config) MUST_CHECK;
/* Ends the thread. code 0: all have come to leave; else waits for nobody for longer than a second. */
void commi_control_close(comm *self, int code);
void commi_control_fail(comm *self, int code, const char *text);
int commi_control_error(comm *self);
bool commi_control_is_teller(const comm *self);

#endif
