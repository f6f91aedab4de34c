/* Decides, once before a program runs, what the lanes of a GPU enqueue around each op.
 *
 *   REPORTS   the host waits for the op, so a host function follows it: an op of a host's lane
 *             depends on it, or a conditional op that may be skipped (which completes only after
 *             all that it would have waited for), or it is a norm, or the last of its lane
 *   ENDS      another stream waits for the op, so an event follows it. A stream does not wait for
 *             an op that must be complete because of what the stream waits for anyway
 *   segment   ops in a row on the compute lane that one graph may replay. Only the first may wait
 *             for another lane, and only the last reports or ends, so a graph delays nobody
 *
 * Lanes that this does not serve are the host's. Pure: numbers in, marks out; lane_stream.c acts on
 * them. */
#ifndef SLUICE_SWAP_STREAM_PLAN_H
#define SLUICE_SWAP_STREAM_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "swap/program.h"

enum { STREAM_REPORTS = 1, STREAM_ENDS = 2 };

struct stream_segment {
    uint32_t first_op; /* index in the program */
    uint32_t op_count; /* ops of the compute lane from there on */
};
typedef struct stream_segment stream_segment;

struct stream_plan {
    const program *prog;  /* borrowed */
    uint8_t *marks;       /* [op_count] STREAM_REPORTS | STREAM_ENDS; of served lanes' ops */
    uint8_t *waits;       /* [op_count] bit k: the op waits for its latest dependency on lane k */
    uint32_t *segment_of; /* [op_count] or PROGRAM_NONE */
    stream_segment *segments;
    uint32_t segment_count;
};
typedef struct stream_plan stream_plan;

struct stream_plan_config {
    const bool *serves; /* [LANE_COUNT] the lanes that are streams */
    /* Whether the op's work is the same at each run of the program; NULL: no op's. Conditional ops
     * are never in a segment. */
    bool (*may_replay)(void *user, const program *prog, const op *item);
    void *user;
    bool only_single; /* segments of one op, so that each op can have times */
};
typedef struct stream_plan_config stream_plan_config;

/* -ENOMEM; then there is nothing to free. */
int stream_plan_init(stream_plan *self, const program *prog,
                     const stream_plan_config *config) MUST_CHECK;
void stream_plan_fini(stream_plan *self);

/* Calls of the driver for one run, besides those that an op's own work takes. */
struct stream_calls {
    uint64_t graph_launches;
    uint64_t records; /* of events */
    /* of streams for events, at most: none is made for an op that is known to be complete */
    uint64_t waits;
    uint64_t host_functions;
};
typedef struct stream_calls stream_calls;

/* True if a stream must report its latest op: it reports anyway, or half of `depth` ops in a row
 * would be unreported, and a full lane needs a completion to go on. */
bool stream_must_report(uint8_t marks, uint32_t unreported_count, uint32_t depth);

/* Counts the calls of one run in which no op is skipped. `is_timed`: each op has two timed
 * events. */
void stream_plan_count(const stream_plan *self, const bool *serves, uint32_t depth, bool is_timed,
                       stream_calls *calls);

#endif
