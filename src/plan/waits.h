/* The critical path of a step: the ops that its predicted time consists of, in at most five parts.
 *
 * Each op of a program starts when another op ends: one that makes what it needs, the one before
 * it on its lane, one whose memory it takes over, or one that has the drives. Walking back from the
 * last op, from each op to the one whose end it waited for, gives a chain of ops that follow each
 * other without a pause. Together they take exactly the time of the program. Only a change to this
 * chain can make the program shorter.
 *
 *   read      O0 O1 .. .. O4 ..            chain: O0, U0, H0, then F0, F1, B1, B0, then G0
 *   update       U0 U1                     parts: [O0 U0 H0], the forward; [F0 F1], the forward;
 *   h2d             H0 H1                         [B1 B0 G0], the backward
 *   compute            F0 F1 B1 B0
 *   d2h                            G0
 *
 * Neighbours on the chain are joined while they are alike in what the chain does there and in why.
 * The parts are in time order, each within one phase of the step, and add up to the step. Time is
 * linear in ops and dependencies. Pure and deterministic; heap scratch, freed on return. */
#ifndef SLUICE_PLAN_WAITS_H
#define SLUICE_PLAN_WAITS_H

#include "plan/plan.h"

enum { PLAN_WAITS_MAX = 5 };

/* Why the next op of the chain could not start before this one ended. The first of several
 * reasons counts. */
enum plan_cause {
    CAUSE_RESULT,        /* it needs what this op made */
    CAUSE_NORM,          /* it needs the gradient norm, which this op makes */
    CAUSE_COMMIT,        /* this op makes a step durable, which must come first */
    CAUSE_LANE,          /* it comes after this op on the same lane */
    CAUSE_DEVICE_MEMORY, /* it takes over device memory that this op used */
    CAUSE_HOST_MEMORY,   /* the same in host memory */
    CAUSE_TURN,          /* this op was more urgent for the drives, the copies or the collectives */
    CAUSE_COUNT
};

enum plan_span {
    SPAN_FORWARD,  /* with the updates that come before it */
    SPAN_BACKWARD, /* from the head's first backward to the end of the norm */
    SPAN_PASSES,   /* batch-major, several micro-batches: forward and backward by turns */
    SPAN_AFTER,    /* after the norm */
    SPAN_COUNT
};

struct plan_wait {
    uint64_t begin_ns, end_ns;
    enum plan_span span;
    uint32_t first_unit, last_unit; /* lowest and highest of the chain's ops; PROGRAM_NONE: none */
    uint64_t op_count;              /* ops of the chain */
    /* Time of the chain's ops; STATE_KIND_COUNT: those that move no state. */
    uint64_t work_ns[LANE_COUNT][STATE_KIND_COUNT + 1];
    uint64_t cause_ns[CAUSE_COUNT]; /* the same time, by why the next op waited */
    /* How much of that time the chain's ops would be spared if each ran alone on the machine. */
    uint64_t shared_ns;
    double busy[RESOURCE_COUNT]; /* share of the time that each resource is used, by all ops */
    /* The key of the job whose larger value may make this part shorter; NULL: none is known. */
    const char *setting;
};

/* Finds the parts of the program's critical path. A program without ops has none. Without `commits`
 * the ops that only a commit needs are left out, and the others are timed again in the same order.
 * The chosen plan may have another order, so plan_set.uncommitted_ns is close to the sum of the
 * parts and not equal to it. -ENOMEM. */
int plan_find_waits(const plan_job *job, const program *prog, bool commits,
                    struct plan_wait waits[PLAN_WAITS_MAX], uint32_t *count) MUST_CHECK;

const char *plan_cause_name(enum plan_cause cause); /* "lane", "host_memory", ... */
const char *plan_span_name(enum plan_span span);    /* "forward", "after_norm", ... */

#endif
