/* Ranks: who there are, small exchanges and failures among them, and the bulk collectives of the comm lane.
 *
 *   launcher (mpirun, srun) --comm_join--> JOINED --comm_open--> OPEN --comm_leave--> gone
 *                                             \--------- a failure anywhere ---------> ABORTED (sticky)
 *
 * Two planes, which know nothing of each other:
 *
 *   control   a TCP connection from each rank to rank 0, the hub, served by a thread on each side: heartbeats
 *             with how far a rank is, small exchanges, commits, failures. Works while a rank computes
 *   bulk      all-gather and reduce-scatter on the comm lane's thread (or a GPU's stream), in the order of the
 *             program, which is the same on all ranks:
 *               self    one rank: copies
 *               mpi     host memory: shared memory between ranks of one host, MPI between hosts
 *               staged  a GPU's memory, through pinned host memory and the same exchange
 *               nccl    between GPUs, on a stream
 *               pretended  for mpi and staged where the other ranks are not there (comm_pretend)
 *
 * Sums are taken in rank order by our own loops, in fp32, whatever the backend (NCCL's own sums are NCCL's),
 * so that they depend on neither timing nor on which ranks share a host.
 *
 * Failures. Whatever ends one rank ends all: a rank that fails says so to the hub (comm_fail), one that dies
 * closes its connection, a process that is stopped sends no heartbeat for timeout_seconds, and one that hangs
 * does not come where others wait for it. The hub then tells all; every call of every rank that waits returns
 * that first failure's code, with a text that names rank, host and cause, and later calls do too.
 * One rank, the teller, prints it: rank 0, or rank 1 where rank 0 is gone or has not come. The others end after
 * it. A rank that is still there exit_seconds after it has learned of a failure is ended by its control thread
 * (_exit(1)), so that a hung drive or GPU cannot keep a job alive; a teller that hangs itself has told by then
 * (comm_join_config.tell).
 *
 * Who hangs, and who only works for long. Heartbeats say how much a rank has got done (base/progress.h) and
 * whether it waits for others. A rank that has waited for timeout_seconds says so, and the hub ends the job when
 * by then no rank at all has got on for timeout_seconds: a rank that works for an hour where others wait for it
 * (a slow start, a commit copied to be kept) is waited for, and one that hangs brings all others to a stand soon,
 * as each step needs all. Named is the rank that waits for nobody.
 *
 * Threads: join, open, leave on the thread that owns the comm. Control calls by one thread at a time; bulk
 * calls by one thread at a time, another one maybe. comm_fail, comm_check, comm_note from any. */
#ifndef SLUICE_COMM_COMM_H
#define SLUICE_COMM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"

typedef struct comm comm;

enum {
    COMM_HOST_BYTES = 64,
    COMM_RANKS_MAX = 1024,
    COMM_LABEL_BYTES = 96,
};

enum comm_backend { COMM_SELF, COMM_MPI, COMM_STAGED, COMM_NCCL };

struct comm_rank {
    char host[COMM_HOST_BYTES]; /* name of the machine */
    uint32_t host_idx;          /* hosts are numbered by their lowest rank */
    uint32_t local_rank;        /* among the ranks of the host, by rank */
    uint32_t local_world;       /* ranks of that host */
    int64_t pid;
};
typedef struct comm_rank comm_rank;

/* How the processes came to be. Zeroed: as the environment says. */
struct comm_join_config {
    double timeout_seconds; /* of silence, and of standing still; 0: 300 */
    double exit_seconds;    /* from a failure to the end of the process; 0: 30 */
    /* Prints the failure, which is its thread's text: called on the control thread of the teller, once, where
     * comm_leave was not called within three quarters of exit_seconds, or within a second where a rank of
     * a launcher has died. NULL: nobody tells then. */
    void (*tell)(int code);
    /* Tests, and programs that fork their ranks: without a launcher. All ranks on hosts of the given names,
     * no MPI between them: ranks of different names cannot exchange in bulk. */
    bool is_given;
    uint32_t rank, world;
    const char *host;  /* NULL: the machine's name */
    uint16_t hub_port; /* on 127.0.0.1, free; the same on all ranks */
    uint64_t token;    /* the same on all ranks; strangers do not know it */
};
typedef struct comm_join_config comm_join_config;

/* Becomes one of the ranks that mpirun or srun started, or the only one where none did. Blocks until all are
 * there. MPI is initialized (MPI_THREAD_SERIALIZED) only under a launcher of more than one process.
 * ERR_CONFIG, with what to do: a launcher that this build cannot join (no MPI in it), MPI that sees one process
 * where the launcher's environment says several (srun without --mpi=pmix), more than COMM_RANKS_MAX ranks.
 * ERR_BACKEND: MPI failed. -ETIMEDOUT: a rank did not come; it is named. */
int comm_join(const comm_join_config *config, comm **out) MUST_CHECK;
/* Rank `rank` of `world` ranks of which none but it is there: for measuring what one rank does. What it would learn
 * from others is what it says itself (they are all like it), each on a host of its own; collectives move its own
 * data where that of others would be, and take the time that comm_open_config states. What is computed so means
 * nothing. -ENOMEM, ERR_CONFIG for a rank that is none of them. */
int comm_pretend(uint32_t rank, uint32_t world, comm **out) MUST_CHECK;
bool comm_is_pretended(const comm *self); /* of NULL: false */
/* May be told later, by the job: from here on. */
void comm_set_timeouts(comm *self, double timeout_seconds, double exit_seconds);

/* Ends membership. `code` 0: waits for all to come here, then ends MPI; < 0: comm_fail with this thread's text
 * unless there was a failure already, waits for nobody and leaves MPI as it is (exit without finalizing).
 * Frees. NULL is allowed. */
void comm_leave(comm *self, int code);

uint32_t comm_get_rank(const comm *self);          /* of NULL: 0 */
uint32_t comm_get_world(const comm *self);         /* of NULL: 1 */
const comm_rank *comm_get_ranks(const comm *self); /* [world] */

/* ---- control: small, blocking; all ranks call the same in the same order; `what` names it for messages ---- */

/* Rank 0 gets all [world][bytes], by rank (NULL elsewhere). Up to 256 MiB in all. */
int comm_gather(comm *self, const char *what, const void *mine, uint64_t bytes,
                void *all) MUST_CHECK;
/* Rank 0's data to all. */
int comm_broadcast(comm *self, const char *what, void *data, uint64_t bytes) MUST_CHECK;
/* All ranks get all: [world][bytes]. */
int comm_exchange(comm *self, const char *what, const void *mine, uint64_t bytes,
                  void *all) MUST_CHECK;
int comm_barrier(comm *self, const char *what) MUST_CHECK;
/* `code`: 0, or a failure of this rank whose text is this thread's. 0 where all have 0; else, on all ranks,
 * the code of the lowest rank that failed and its text, on other ranks than that one behind "rank <r> on <host>: ". The
 * comm stays in order: for refusals, before there is anything to lose. */
int comm_agree(comm *self, const char *what, int code) MUST_CHECK;

/* ---- failures and progress ---- */

/* This rank fails: the others learn it. Only the first failure of a job counts. Returns `code`. */
int comm_fail(comm *self, int code, const char *text);
/* 0, or the failure of the job with its text as this thread's. */
int comm_check(comm *self) MUST_CHECK;
/* Whether this rank is the one that prints. True for NULL. */
bool comm_is_teller(const comm *self);
/* What this rank does now, for messages about it and heartbeats: "step 17, all-gather of block.3". Copied. */
void comm_note(comm *self, const char *label);

/* ---- bulk ---- */

struct comm_open_config {
    enum comm_backend backend;
    struct device *gpu; /* tiers/device.h: staged, nccl; it and the stream live until comm_close */
    void *stream;       /* nccl: the comm lane's stream */
    uint64_t
        staging_bytes; /* of this rank, shared with the ranks of its host; 0: 8 MiB. Constant */
    /* nccl with a 16-bit wire: kernel_ops.convert of the GPU, bound to its context. */
    int (*convert)(void *user, void *stream, const void *source, enum dtype source_type,
                   void *target, enum dtype target_type, uint64_t count);
    void *convert_user;
    /* Pretended ranks: what a collective takes, at least: this, and the bytes sent at that rate (0: no time). */
    double call_seconds, bytes_per_second;
    bool moves_own_alone; /* likewise: what is of others' data in a target stays as it was */
};
typedef struct comm_open_config comm_open_config;

/* Makes the bulk plane: segments, requests, NCCL's communicator; each collective is run once, small. All ranks
 * together. What it holds afterwards is constant. */
int comm_open(comm *self, const comm_open_config *config) MUST_CHECK;
/* Ends the bulk plane, which may be opened again; waits for nobody. Not open, or NULL: nothing. */
void comm_close(comm *self);

struct comm_call {
    const char *label;  /* for messages: "all-gather of block.3"; borrowed until the call returns */
    const void *source; /* device memory of the backend */
    void *target;
    uint64_t count; /* all-gather: bytes of a shard; reduce-scatter: elements of a shard */
    enum dtype
        wire; /* reduce-scatter: fp32, or bf16 or fp16: each rank's contribution is rounded to it
                           (nearest even) on its way, and summed in fp32 */
    void *scratch; /* nccl with a 16-bit wire: [world * count] of it; else NULL */
};
typedef struct comm_call comm_call;

/* source [count] bytes of each rank to target [world * count] of all, by rank. Does not overlap. Blocks until
 * target is whole and source may be changed (nccl: enqueues). */
int comm_all_gather(comm *self, const comm_call *call) MUST_CHECK;
/* source [world][count] fp32 of each rank; target [count] fp32: sum over ranks, in rank order, of their
 * source[own rank]; nccl's sum is its own, in the wire's dtype. One rank with a 16-bit
 * wire: not rounded, copied. Does not overlap. Blocks likewise. */
int comm_reduce_scatter(comm *self, const comm_call *call) MUST_CHECK;

/* Asks after collectives that are enqueued, on the thread of the bulk calls, now and then while they have not
 * ended (lane_stream_config.watch): NCCL's own errors, a rank that does not come, a failure of the job. 0, or
 * the failure; then none of them is left on the stream. Other backends: comm_check. NULL: 0. */
int comm_watch(comm *self) MUST_CHECK;
/* 0, or why this process cannot use NCCL, with what to do: -ENOTSUP (not built in), ERR_BACKEND (no library,
 * or one too old). Loads it. Whether the ranks have a GPU each is comm_open's to say. */
int comm_nccl_check(void) MUST_CHECK;

/* Bytes that this rank has sent to other ranks by bulk calls since comm_open, as counted where they are copied
 * or sent; a chunk that p other ranks read counts p times. */
uint64_t comm_sent_bytes(const comm *self);
/* Memory that the bulk plane holds (staging of all ranks of this host that is mapped here counts once, ours). */
uint64_t comm_held_bytes(const comm *self);
const char *comm_backend_name(const comm *self); /* "self", "mpi", "staged", "nccl",
                                                     "pretended" */

#endif
