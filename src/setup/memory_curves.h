/* The curves and the timeline of plan.json: the memory that a program is predicted to hold in each
 * tier over time, and what its lanes do. Each is reduced to a few hundred entries. Called before
 * the run's memory is sealed, since it allocates for the time of the call. */
#ifndef SLUICE_SETUP_MEMORY_CURVES_H
#define SLUICE_SETUP_MEMORY_CURVES_H

#include "base/error.h"
#include "swap/program.h"

enum {
    PLAN_MEMORY_POINTS_MAX = 400,
    PLAN_SPANS_MAX = 1500, /* of a lane */
    PLAN_MEMORY_KINDS =
        STATE_KIND_COUNT + 1 /* enum state_kind; the last: scratch, tokens and the like */
};

/* Bytes in use from at_ns on, at the fullest moment until the next point. */
struct memory_point {
    uint64_t at_ns;
    uint64_t total_bytes;
    uint64_t bytes[PLAN_MEMORY_KINDS];
};
typedef struct memory_point memory_point;

struct memory_curve {
    uint32_t count;
    memory_point points[PLAN_MEMORY_POINTS_MAX];
    uint64_t interval_count; /* of constant use; more than `count`: points stand for several */
    uint64_t peak_at_ns;
    memory_point peak; /* the fullest moment of all, exact */
};
typedef struct memory_curve memory_curve;

/* The curve of a tier: homes all the time, transients from the start of their first writer to the
 * end of their last reader, as predicted. -ENOMEM. */
int memory_curve_make(const program *prog, enum tier arena, memory_curve *out) MUST_CHECK;

/* Ops of a lane that stand next to each other, or one op. */
struct memory_span {
    uint64_t start_ns, end_ns;
    uint32_t op_count;
    uint32_t unit; /* of the first op, or PROGRAM_NONE */
    uint8_t kind;  /* of the first op */
};
typedef struct memory_span memory_span;

/* The lane's ops by predicted start into spans[PLAN_SPANS_MAX]; returns their number. If there
 * are more ops, those within *width_ns of each other are joined into one span with the kind of the
 * first op; otherwise *width_ns is 0. -ENOMEM. */
int memory_lane_spans(const program *prog, enum lane_kind which, memory_span *spans,
                      uint64_t *width_ns) MUST_CHECK;

#endif
