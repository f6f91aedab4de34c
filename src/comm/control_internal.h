/* The control plane: what its files and comm.c share.
 *
 *   rank 0, the hub                               rank r
 *   thread ---- links[r].fd --- frames ---------- thread   heartbeats, failures, leaving; any time
 *   caller ---- links[r].data_fd - calls -------- caller   gather, broadcast; by the callers alone
 *
 * Each rank has two connections to the hub, so a large payload never stands before a heartbeat and
 * the thread never blocks. A call goes up: each rank sends what it calls, and its payload. Every
 * call but gather then goes down: rank 0's payload. So rank 0 knows who has come and that all ranks
 * make the same call. Nothing allocates after commi_control_open.
 *
 * How the hub tells a hanging rank from a slow one: heartbeats carry a count of the work done
 * (base/progress.h) and whether the rank waits for others. A rank that has waited for
 * timeout_seconds reports that to the hub. The hub ends the job only if no rank has made progress
 * for so long, and it blames a rank that waits for nobody. If one rank waits in comm_meet or
 * comm_end while others wait in a collective, none can get on: a few heartbeats without progress
 * are enough. */
#ifndef SLUICE_COMM_CONTROL_INTERNAL_H
#define SLUICE_COMM_CONTROL_INTERNAL_H

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "comm/comm_internal.h"

enum commi_frame_type {
    COMMI_FRAME_BEAT,    /* text: the sender's label; number: its progress; code: commi_waits */
    COMMI_FRAME_FAIL,    /* to the hub. code, text: the failure of the sender */
    COMMI_FRAME_ABORT,   /* code, text: the job's failure; rank: the reporter */
    COMMI_FRAME_MISSING, /* to the hub. rank: who has not come; text, number: to which call */
    COMMI_FRAME_BYE,     /* the sender leaves in order */
    COMMI_FRAME_TYPES
};

#define COMMI_FRAME_MAGIC 0x66636c73u
#define COMMI_NUMBER_BULK UINT64_MAX /* COMMI_FRAME_MISSING of a bulk call */
#define COMMI_DATA_MAGIC  0x64636c73u

/* Travels in the byte order of the machine; the magic shows a machine of the other order. */
struct commi_frame {
    uint32_t magic, type, text_bytes, rank;
    int64_t code;
    uint64_t number;
    char text[ERR_TEXT_BYTES]; /* only text_bytes of it are sent; the last one is 0 */
};
typedef struct commi_frame commi_frame;

/* The ways in which a rank waits for others; a set of them is a sum, and 0 is none. */
enum commi_waits {
    COMMI_WAITS_CALL = 1,
    COMMI_WAITS_BULK = 2,
    COMMI_WAITS_MEETING = 4, /* comm_meet or comm_end, which are calls too */
};

enum commi_call_kind {
    COMMI_GATHER,
    COMMI_BROADCAST,
    COMMI_EXCHANGE,
    COMMI_BARRIER,
    COMMI_AGREE,
    COMMI_MEET,
    COMMI_END, /* `what` is each rank's own */
};

static inline bool commi_is_meeting(enum commi_call_kind kind)
{
    return kind == COMMI_MEET || kind == COMMI_END;
}

/* Sent before each payload of a call. */
struct commi_call_head {
    uint32_t magic, kind;
    uint64_t number, bytes;
    char what[COMM_LABEL_BYTES];
};
typedef struct commi_call_head commi_call_head;

/* The connections to one rank. */
struct commi_link {
    int fd, data_fd; /* -1: closed, or none */
    /* Used by the thread: */
    bool has_bye;        /* the other side leaves in order: its end is no death */
    unsigned sent;       /* one bit for each frame type that is sent only once */
    int64_t seen_ns;     /* when something last came */
    int64_t beat_ns;     /* when we last sent a heartbeat */
    uint64_t progress;   /* the count in the last heartbeat */
    int64_t progress_ns; /* when that count first came */
    unsigned waits;      /* as the last heartbeat said; commi_waits */
    commi_frame in, out;
    size_t in_bytes, out_bytes, out_done;
    /* Under comm.mutex: */
    char label[COMM_LABEL_BYTES];
    /* Used by the caller: */
    _Atomic int64_t lost_ns; /* when a call found the connection dead; 0: it has not */
    commi_call_head head;
    uint64_t done_bytes; /* of head and payload together */
    atomic_bool has_come;
};
typedef struct commi_link commi_link;

struct commi_control {
    comm *owner;
    struct commi_control *next; /* in the list of control.c */
    commi_link *links;          /* hub: [world], by rank, [0] unused; other ranks: [1], to rank 0 */
    uint32_t link_count, first_link;
    struct pollfd *thread_fds, *call_fds; /* [world + 1] */
    err_record *verdicts;                 /* hub: [world], for comm_agree */
    uint64_t number;                      /* calls so far; used by the caller */
    int wake_fd;                          /* eventfd: makes the thread look again */
    int abort_fd;                         /* eventfd: readable once the job has failed */
    uint64_t progress;                    /* as in a link, for this process; the thread's */
    bool has_reported; /* the thread has called comm_join_config.report; under comm.mutex */
    pthread_t thread;
    /* Under comm.mutex, like comm.failure: */
    char label[COMM_LABEL_BYTES];
    bool is_own; /* the failure is this rank's, and the hub has not confirmed it */
    char failed_end[COMM_LABEL_BYTES]; /* from comm_note_failure to the end of comm_end; "": none */
    char refusal[ERR_TEXT_BYTES]; /* the last refusal of another rank in comm_agree; "": none */
    uint32_t reporter;
    int64_t failed_ns;
    int64_t progress_ns;  /* when `progress` last rose, or a failure was noted */
    commi_call_head call; /* the call that this rank's caller is in */
    int64_t call_since_ns;
    int64_t call_said_ns; /* when the hub was last told that it takes long */
    bool is_calling;
    bool has_missing; /* the hub is to be told who is missing; one message at a time */
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

static inline bool commi_is_hub(const commi_control *self)
{
    return self->owner->rank == 0;
}

/* ---- control_meet.c ---- */

enum { COMMI_ADDRESS_COUNT_MAX = 16 };

struct commi_address {
    uint32_t family; /* AF_INET, AF_INET6 */
    unsigned char bytes[16];
};

/* Rank 0 sends this to all ranks, by MPI or comm_join_config.share. */
struct commi_meeting {
    uint64_t token[2];
    uint32_t port, address_count;
    struct commi_address addresses[COMMI_ADDRESS_COUNT_MAX];
    char machine[COMMI_MACHINE_BYTES];
};

struct commi_address commi_loopback(void);
socklen_t commi_make_sockaddr(const struct commi_address *address, uint32_t port,
                              struct sockaddr_storage *out);
/* On rank 0: returns a listening socket, and fills what the other ranks must know. The socket is on
 * the loopback address if the config gives the ranks or all of them are on one host; otherwise it
 * is on all addresses. */
int commi_open_meeting(const comm_join_config *config, bool is_one_host,
                       struct commi_meeting *meeting) MUST_CHECK;

/* ---- control_join.c ---- */

/* Connects all ranks: fills owner->ranks and the descriptors of the links. Blocks. -ETIMEDOUT names
 * the rank that did not come. */
int commi_control_connect(commi_control *self, const comm_join_config *config) MUST_CHECK;
/* True if rank 0 prints the failure of this process' join. */
bool commi_join_is_reported(int code);

/* ---- control_judge.c: all with comm.mutex held ---- */

/* The first failure counts, but the job's failure replaces an unconfirmed one of our own. */
void commi_control_record(commi_control *self, int code, const char *text, bool is_own);
/* Records "rank 2 on host n2 (process 4711) <event>; last seen at <label>". */
void commi_record_about(commi_control *self, uint32_t rank, int code, const char *event);
/* Says what this rank waits for: a sum of commi_waits. */
unsigned commi_own_waits(const commi_control *self);
/* The hub's: `rank` has waited for long for others in `what`, the call of this number. It is a
 * failure if no rank gets on. */
void commi_judge(commi_control *self, uint32_t rank, uint64_t number, const char *what);
/* The hub's: a rank waits in comm_meet or comm_end, and others wait for it in a collective. */
void commi_check_meeting(commi_control *self, int64_t now_ns);
/* This rank goes to its end after a failure of its program. It may wait in comm_end, or in a
 * collective of an evaluation that it gives up. */
void commi_check_own_end(commi_control *self, int64_t now_ns);
/* Any thread: */
int64_t commi_beat_interval_ns(const commi_control *self);

/* ---- control_thread.c ---- */

void *commi_control_run(void *control);
void commi_control_wake(commi_control *self);

/* ---- control.c ---- */

/* Advice for the end of a message about a rank that has come alone to the meeting `what`; "": there
 * is none. */
const char *commi_meeting_advice(const char *what);

int commi_control_open(comm *self, const comm_join_config *config) MUST_CHECK;
/* Ends the thread. If the job has failed, it waits for nobody for longer than a second. */
void commi_control_close(comm *self);
bool commi_control_is_reporter(comm *self);

#endif
