/* A lane: a FIFO of work with one owner. The executor hands ops to lanes; the engine makes the
 * lanes.
 *
 *   IDLE --submit--> IN FLIGHT --poll--> DONE (back to the executor, with result and times)
 *
 * Requests belong to the executor, which makes one per op before the run; so nothing is allocated
 * per op. submit never blocks for long and never calls back. Completions appear only in poll. Each
 * lane has a file descriptor that becomes readable when poll may have something, so the executor
 * sleeps in poll(2) on all lanes at once. One thread, the executor's, calls submit and poll; a lane
 * may have threads of its own.
 *
 * Two kinds of lanes may share one worker: then the SAME lane object stands in both slots of
 * executor_config.lanes (compute and update on the CPU backend). Its depth applies to each of the
 * two kinds. Its maker destroys it once. */
#ifndef SLUICE_SWAP_LANE_H
#define SLUICE_SWAP_LANE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "swap/program.h"

struct lane_request {
    const program *prog;
    const op *item;
    uint32_t op_idx;
    const struct lane_request *behind; /* the request of op.behind if it is in flight, or NULL */
    /* Set by the lane before poll returns the request: */
    int result;        /* 0 or a negative code */
    uint64_t start_ns; /* when work on it began */
    uint64_t end_ns;
    uint64_t wait_ns; /* worker lanes: how long the worker was idle right before start_ns */
    /* worker lanes: how long it ran other ops between start_ns and end_ns (lane_worker_pause) */
    uint64_t paused_ns;
    /* Private to the lane: */
    struct lane_request *next;
    void *lane_private;
};
typedef struct lane_request lane_request;

typedef struct lane lane;

struct lane_ops {
    const char *name;
    /* Takes the request. On failure the request was not taken and never appears in poll. -EAGAIN
     * means "full for now" and is allowed only while requests are in flight, here or on a lane that
     * shares something with this one: the executor tries again after a completion. */
    int (*submit)(lane *self, lane_request *request) MUST_CHECK;
    /* Stores up to `max` finished requests. Returns how many, or a negative code if the lane itself
     * failed. A failed op is no failure of poll: its request carries the result, and `error` has
     * the text. Never blocks. */
    int (*poll)(lane *self, lane_request **done, size_t max) MUST_CHECK;
    /* Readable when poll may return something. */
    int (*event_fd)(const lane *self);
    /* The first failed request's error. */
    const err_record *(*error)(const lane *self);
    void (*destroy)(lane *self); /* no request may be in flight */
};

struct lane {
    const struct lane_ops *ops;
    uint32_t depth; /* requests that the executor may keep in flight here */
    /* 1: the ops of each kind of lane complete in submit order. A request may be submitted while
     * its dependencies are in flight on in-order lanes of the same `owner`: the worker runs it
     * after them. */
    uint8_t in_order;
    /* 1: a request may be submitted while the one in lane_request.behind is in flight: the lane
     * lets that one go to the drives first. */
    uint8_t keeps_behind;
    /* In-order lanes with equal owner share one worker. Independent workers need different owners;
     * 0 is an owner like any other. */
    uint32_t owner;
};

/* Address of an operand whose arena starts at `base`. The addition is done with integers,
 * because in paranoid mode offsets leave the arena and may wrap below its start. Pointers must
 * not do that. */
static inline void *lane_operand_address(const unsigned char *base, const program *prog,
                                         const operand *part)
{
    return (void *)((uintptr_t)base + prog->buffers[part->buffer_idx].offset_bytes +
                    part->offset_bytes);
}

/* A worker: a thread that executes ops by a callback, for one or more lanes that share cores.
 * Requests of `priority_lane` go first; each lane keeps its order; no op runs before one on another
 * lane of this worker that it depends on. The thread sleeps while it has no work. After a
 * failed op it runs nothing more: later requests complete with ERR_POISONED, and `error` keeps the
 * first failure. */
struct lane_worker_config {
    const char *name;
    /* Called on the thread; returns 0, or a negative code with the error set. */
    int (*run)(void *user, const program *prog, const op *item);
    /* Called there once before, for example to bind cores. May be NULL. */
    int (*start_thread)(void *start_user);
    /* Called there before the thread sleeps, because nothing is queued. May be NULL. */
    void (*rest)(void);
    void *user, *start_user; /* start_user NULL: the same as user */
    uint32_t owner;
    uint32_t depth;
    enum lane_kind priority_lane;
};
typedef struct lane_worker_config lane_worker_config;

/* Starts the thread and waits until start_thread has returned; allocates nothing afterwards. Copies
 * the config and borrows `name` and `user`. -EINVAL for a bad config, -ENOMEM, the system's error
 * if no thread can be started, or the error of start_thread. destroy joins the thread. */
int lane_worker_create(const lane_worker_config *config, lane **out) MUST_CHECK;

/* The callback of a long op may call this wherever it holds nothing that other ops use: the worker
 * then runs the requests of `priority_lane` that wait and do not depend on that op, and returns.
 * Without it they wait for the end of the op. If one fails, the op itself still goes on. Only on
 * the worker's thread, from `run`; does nothing in an op of `priority_lane` itself. */
void lane_worker_pause(lane *worker);

/* Whether lane_worker_pause would run something. From any thread, while an op of another lane than
 * `priority_lane` runs. */
bool lane_worker_is_pause_wanted(lane *worker) MUST_CHECK;

#endif
