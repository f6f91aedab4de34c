/* Ranks: which processes there are, small exchanges and failures among them, and the collectives.
 *
 *   launcher --comm_join--> JOINED --comm_open--> OPEN --comm_leave--> gone
 *                           \--------- a failure anywhere ---------> ABORTED (sticky)
 *
 * There are two planes, which are independent of each other:
 *
 *   control   a TCP connection from each rank to rank 0, the hub, served by a thread on each side:
 *             heartbeats, small exchanges, commits, failures. It works while a rank computes.
 *   bulk      all-gather, reduce-scatter and all-to-all, on the comm lane's thread or on a GPU's
 *             stream, in the order of the program, which is the same on all ranks. The backends:
 *               self       one rank: copies
 *               mpi        host memory: shared memory within a host, MPI between hosts
 *               staged     a GPU's memory, through pinned host memory and the same exchange as mpi
 *               nccl       between GPUs, on a stream
 *               pretended  in place of mpi or staged where the other ranks do not exist
 *
 * Our own loops take sums in rank order and in fp32, so the bits depend neither on timing nor on
 * which ranks share a host. The exception is nccl, whose sums are NCCL's own.
 *
 * Failures: what ends one rank ends all of them.
 *   - A rank that fails calls comm_fail. A rank that dies closes its connection. A stopped process
 *     sends no heartbeat for timeout_seconds. A rank that hangs does not reach the next exchange.
 *   - The hub tells all ranks. Every call that waits, and every later call, returns the code of the
 *     first failure with a text that names rank, host and cause.
 *   - One rank, the reporter, prints that text: rank 0, or rank 1 where rank 0 is gone or hangs.
 *     The other ranks end after it.
 *   - The control thread ends its process with _exit(1) exit_seconds after it learned of a failure,
 *     so a hung drive or GPU cannot keep a job alive.
 *
 * A rank that works is waited for, however long it takes: only if no rank at all makes progress for
 * timeout_seconds does the hub end the job (README.md).
 *
 * Threads: call join, open and leave on the thread that owns the comm. Control calls come from one
 * thread at a time. Bulk calls come from one thread at a time, which may be another one. Any thread
 * may call comm_fail, comm_check and comm_note. */
#ifndef SLUICE_COMM_COMM_H
#define SLUICE_COMM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/shard.h"

typedef struct comm comm;

enum {
    COMM_HOST_BYTES = 64,
    COMM_RANKS_MAX = 1024,
    COMM_LABEL_BYTES = 96,
    /* The most scratch that a comm_call needs, for all ranks' parts together; smaller units need
     * less. A call converts each rank's part by itself, so that pieces must not be small: 64 Ki
     * elements of each of 1024 ranks. */
    COMM_SCRATCH_BYTES = 128 << 20,
};

enum comm_backend { COMM_SELF, COMM_MPI, COMM_STAGED, COMM_NCCL };

struct comm_rank {
    char host[COMM_HOST_BYTES]; /* name of the machine */
    uint32_t host_idx;          /* hosts are numbered by their lowest rank */
    uint32_t local_rank;        /* number among the ranks of this host */
    uint32_t local_world;       /* number of ranks on this host */
    int64_t pid;
};
typedef struct comm_rank comm_rank;

/* How the processes were started. Zeroed: as the environment of the launcher says. */
struct comm_join_config {
    double timeout_seconds; /* limit of silence and of waiting; 0: 300 */
    double exit_seconds;    /* from a failure to the end of the process; 0: 30 */
    /* Prints the failure, which is its thread's error text. The control thread of the reporter
     * calls it once, if comm_leave was not called within three quarters of exit_seconds, or within
     * a second if a rank of a launcher died. NULL: the failure is then not printed. */
    void (*report)(int code);
    /* For ranks of torchrun, which brings no MPI: gives all ranks rank 0's data, for which it waits
     * timeout_seconds at most. comm_join calls it once on rank 0. Another rank calls it again while
     * it does not reach rank 0: torchrun's store also has what was given before a restart. 0, or
     * < 0 with this thread's text. NULL: such ranks are refused. */
    int (*share)(void *user, void *data, uint64_t bytes, double timeout_seconds);
    void *share_user;
    /* For tests, and for programs that fork their ranks: join without a launcher. All ranks claim
     * to be on hosts of the given names. There is no MPI between them, so ranks of different host
     * names cannot exchange in bulk. */
    bool is_given;
    uint32_t rank, world;
    const char *host;  /* NULL: the machine's name */
    uint16_t hub_port; /* a free port of 127.0.0.1; the same on all ranks */
    uint64_t token;    /* a secret; the same on all ranks */
};
typedef struct comm_join_config comm_join_config;

/* Becomes one of the ranks that mpirun, srun or torchrun started, or the only rank without a
 * launcher. Blocks until all ranks have joined. Initializes MPI (MPI_THREAD_SERIALIZED) only if
 * mpirun or srun started more than one process. Errors:
 *   ERR_CONFIG   with advice: this build has no MPI; MPI sees one process where the launcher's
 *                environment says several (srun without --mpi=pmix); torchrun, and no
 *                config->share; more than COMM_RANKS_MAX ranks
 *   ERR_BACKEND  MPI failed
 *   -ETIMEDOUT   a rank did not come; the text names it */
int comm_join(const comm_join_config *config, comm **out) MUST_CHECK;
/* Makes rank `rank` of `world` ranks; the other ranks do not exist. It serves to measure the work
 * of a single rank. Each rank counts as a host of its own. Exchanges behave as if all ranks sent
 * the same bytes as this one; collectives copy this rank's data into the place of the others' data
 * and take the time that comm_open_config states. Results have no meaning. -ENOMEM; ERR_CONFIG if
 * `rank` is not below `world`. */
int comm_pretend(uint32_t rank, uint32_t world, comm **out) MUST_CHECK;
bool comm_is_pretended(const comm *self); /* NULL: false */
/* Changes the limits of comm_join_config, for example once the job is read. */
void comm_set_timeouts(comm *self, double timeout_seconds, double exit_seconds);

/* Ends membership and frees the comm; NULL is allowed. With code 0 it waits until all ranks have
 * called it, then ends MPI. With code < 0 it calls comm_fail with this thread's text unless the job
 * has failed already; then it waits for nobody and leaves MPI as it is, so exit without
 * finalizing. */
void comm_leave(comm *self, int code);

uint32_t comm_get_rank(const comm *self);          /* NULL: 0 */
uint32_t comm_get_world(const comm *self);         /* NULL: 1 */
const comm_rank *comm_get_ranks(const comm *self); /* [world] */

/* ---- control: small and blocking. All ranks make the same calls in the same order; `what` names
 * the call in messages. ---- */

/* Rank 0 receives `bytes` from each rank into all[world][bytes]; the others pass NULL for `all`.
 * At most 256 MiB in all. */
int comm_gather(comm *self, const char *what, const void *mine, uint64_t bytes,
                void *all) MUST_CHECK;
/* All ranks receive rank 0's data. */
int comm_broadcast(comm *self, const char *what, void *data, uint64_t bytes) MUST_CHECK;
/* All ranks receive all[world][bytes]. */
int comm_exchange(comm *self, const char *what, const void *mine, uint64_t bytes,
                  void *all) MUST_CHECK;
int comm_barrier(comm *self, const char *what) MUST_CHECK;
/* A barrier at the begin of what a program asks for between its steps, since a program may forget
 * it on some ranks. `what`: "a commit". -ECONNRESET, with the rank that came alone:
 *   - another rank has come to another call, or
 *   - all ranks wait, others in a collective that this one will not come to. */
int comm_meet(comm *self, const char *what) MUST_CHECK;
/* The same for the end of the run. */
int comm_end(comm *self) MUST_CHECK;
/* Says in a few words why the program of this rank ends ("ValueError: bad batch"). Until comm_end
 * has returned, the job fails if this rank waits for others for longer than exit_seconds, or, in a
 * collective of NCCL, for half of timeout_seconds if that is longer. From any thread. NULL is
 * allowed for `self`. */
void comm_note_failure(comm *self, const char *failure);
/* Agrees on a refusal, before there is anything to lose; the comm stays usable. `code` is 0, or a
 * failure of this rank whose text is this thread's. Returns 0 if all ranks passed 0. Otherwise all
 * ranks return the code and text of the lowest rank that failed; the other ranks prefix the text
 * with "rank <r> on <host>: ". */
int comm_agree(comm *self, const char *what, int code) MUST_CHECK;

/* ---- failures and progress ---- */

/* Declares that this rank failed and tells the others. Only a job's first failure counts. Returns
 * `code`. */
int comm_fail(comm *self, int code, const char *text);
/* 0, or the failure of the job, with its text as this thread's. */
int comm_check(comm *self) MUST_CHECK;
/* True if this rank is the one that prints the failure. NULL: true. */
bool comm_is_reporter(const comm *self);
/* Notes what this rank does now, for messages and heartbeats: "step 17, all-gather of block.3". The
 * label is copied. */
void comm_note(comm *self, const char *label);

/* ---- bulk ---- */

struct comm_open_config {
    enum comm_backend backend;
    struct device *gpu; /* staged, nccl: tiers/device.h; it outlives comm_close */
    void *stream;       /* nccl: the comm lane's stream; it outlives comm_close */
    /* The memory of this rank that the ranks of its host share; the same on all ranks; 0: 8 MiB. */
    uint64_t staging_bytes;
    /* nccl with a 16-bit wire: kernel_ops.convert of the GPU, bound to its context. */
    int (*convert)(void *user, void *stream, const void *source, enum dtype source_type,
                   void *target, enum dtype target_type, uint64_t count);
    void *convert_user;
    /* Pretended ranks: a collective takes at least call_seconds plus the sent bytes divided by this
     * rate. Rate 0: the bytes take no time. */
    double call_seconds, bytes_per_second;
    /* nccl: opens also what an all-to-all needs; the same on all ranks */
    bool has_parcels;
    bool moves_own_alone; /* pretended ranks: leave the other ranks' part of a target as it is */
};
typedef struct comm_open_config comm_open_config;

/* Opens the bulk plane and runs each collective once. All ranks call it together. The memory that
 * it holds afterwards is constant. */
int comm_open(comm *self, const comm_open_config *config) MUST_CHECK;
/* Closes the bulk plane, which may be opened again. Waits for nobody. Does nothing if it is not
 * open or `self` is NULL. */
void comm_close(comm *self);

struct comm_call {
    const char *label;  /* for messages: "all-gather of block.3"; borrowed until the call returns */
    const void *source; /* memory of the backend's device */
    void *target;
    uint64_t count; /* all-gather: bytes of a shard; reduce-scatter: elements of a shard */
    /* reduce-scatter: fp32, bf16 or fp16. Each rank's contribution is rounded to this type (nearest
     * even) before it is sent, and summed in fp32. */
    enum dtype wire;
    /* nccl with a 16-bit wire: [world * scratch_elems] of `wire`, through which a reduce-scatter
     * goes piece by piece; otherwise NULL. */
    void *scratch;
    uint64_t scratch_elems;
};
typedef struct comm_call comm_call;

/* Copies source [count] bytes of every rank to target [world * count] of every rank, in rank order.
 * They do not overlap. Blocks until the target is complete and the source may be changed; nccl only
 * enqueues. */
int comm_all_gather(comm *self, const comm_call *call) MUST_CHECK;
/* source [world][count] fp32, target [count] fp32: the sum over ranks, in rank order, of their
 * source[own rank]. They do not overlap. nccl sums in the wire's dtype and in an order of its own.
 * A single rank copies without rounding. Blocks like comm_all_gather. */
int comm_reduce_scatter(comm *self, const comm_call *call) MUST_CHECK;

struct comm_parcels {
    const char *label; /* as in comm_call */
    const void *source;
    void *target;
    const rank_parcel *sent; /* [world]: of the source, for each rank, its own included */
    /* [world]: of the target, where the parcel of each rank goes. size_bytes is the room there on
     * entry, and the number of bytes that have come on return. */
    rank_parcel *received;
    /* Each received[r].size_bytes is what rank r sends. The same on all ranks. nccl hangs if a size
     * is wrong. */
    bool sizes_are_known;
};
typedef struct comm_parcels comm_parcels;

/* All-to-all: every rank sends each rank a parcel, whose size only the sender knows beforehand.
 * Parcels may be empty. Source and target do not overlap, and neither do the places of parcels in
 * the target. Both tables are in host memory. ERR_INTERNAL: a parcel does not fit. Blocks like
 * comm_all_gather; nccl waits until the ranks know the sizes, unless sizes_are_known, and enqueues
 * the rest. comm_sent_bytes counts the parcels for other ranks. */
int comm_all_to_all(comm *self, const comm_parcels *call) MUST_CHECK;

/* Checks enqueued collectives for NCCL's errors, a missing rank or a failure of the job. Call it
 * now and then on the thread of the bulk calls (lane_stream_config.watch). Returns 0, or the
 * failure; then no collective is left on the stream. Other backends: comm_check. NULL: 0. */
int comm_watch(comm *self) MUST_CHECK;
/* Loads NCCL. 0, or why this process cannot use it, with advice: -ENOTSUP (not built in),
 * ERR_BACKEND (no library, or one that is too old). comm_open checks that each rank has a GPU. */
int comm_nccl_check(void) MUST_CHECK;

/* Bytes that this rank has sent to other ranks by bulk calls since comm_open; a chunk that p ranks
 * read counts p times. */
uint64_t comm_sent_bytes(const comm *self);
/* Memory that the bulk plane of this rank holds. Segments of other ranks do not count. */
uint64_t comm_held_bytes(const comm *self);

#endif
