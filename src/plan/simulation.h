/* A program's way from serial order to its own: reserve.c gives buffers their places, order.c says what
 * is urgent, schedule.c walks the lanes in time, finish.c makes the program. */
#ifndef SLUICE_PLAN_SIMULATION_H
#define SLUICE_PLAN_SIMULATION_H

#include "plan/plan_internal.h"

/* Ops, taken largest key first; of equal keys the first, or the last, of the serial order. */
struct plani_heap {
    uint32_t *items;
    uint64_t count;
    const double *keys; /* borrowed, by op */
    bool last_first;
};
int plani_heap_init(struct plani_heap *heap, uint64_t capacity, const double *keys,
                    bool last_first) MUST_CHECK;
void plani_heap_fini(struct plani_heap *heap);
void plani_heap_push(struct plani_heap *heap, uint32_t idx);
uint32_t plani_heap_pop(struct plani_heap *heap);

/* order.c: what simulations of a builder's ops share; and, linked anew for each, all its edges. */
struct plani_graph {
    uint64_t *in_begin;             /* [op_count + 1] in builder.edges: data dependencies by `to` */
    uint32_t *chain, *chain_before; /* [op_count] next and last op of the compute lane's chain */
    struct plani_share *shares;     /* [op_count] */
    uint64_t lane_count[LANE_COUNT];
    /* Linked: dependencies of data and of memory, but for the chain. */
    uint64_t *from_begin, *to_begin; /* [op_count + 2] in successors, predecessors */
    uint32_t *successors, *predecessors;
    uint64_t capacity;
    double *urgency; /* [op_count] seconds from the op's latest start to the end of the program */
};
/* The lane that shares the drives with this one, or the one thread that copies for a CPU; LANE_COUNT: none
 * does. */
int plani_rival_lane(const plan_machine *machine, int lane);
int plani_graph_create(const plani_builder *b, struct plani_graph **out) MUST_CHECK;
int plani_graph_link(struct plani_graph *g, const plani_builder *b) MUST_CHECK;

struct plani_peaks {
    uint64_t bytes[TIER_COUNT];  /* the end of the highest buffer */
    uint32_t buffer[TIER_COUNT]; /* which that is */
};
/* reserve.c: fills in the transients' offsets and adds what their places cost as edges. ERR_NO_FIT. */
int plani_reserve(plani_builder *b, const struct plani_graph *graph,
                  const uint64_t budget_bytes[TIER_COUNT], uint64_t lookahead_ops,
                  struct plani_peaks *peaks) MUST_CHECK;

enum op_state { OP_WAITING, OP_RUNNING, OP_COMPLETE };

struct plani_sim_op {
    double start, end; /* seconds */
    uint32_t missing;  /* dependencies not complete */
    uint32_t behind; /* with `whole`: what it was held for on the drives, serial; or PROGRAM_NONE */
    uint8_t state;
    bool
        was_held; /* could have started before, but for another that had the shared drives or copies */
};

struct plani_sim {
    plani_builder *b;
    const struct plani_graph *graph;
    bool whole; /* what was held is told in the program: op.behind, and for copies a dependency */
    struct plani_sim_op *ops;
    struct plani_heap ready[LANE_COUNT];
    uint32_t running[LANE_COUNT];
    uint32_t last_done[LANE_COUNT];
    double done[LANE_COUNT]; /* of what runs, 0..1 */
    struct plani_caps caps;
    uint32_t *capped; /* [lane_count[LANE_COMM]] gathers that are ready and that a cap keeps back */
    uint64_t capped_count;
    uint32_t *uses_left;  /* [buffer_count] with caps: users not complete */
    uint64_t next_gather; /* with caps: no gather before it is left */
    uint64_t oldest;      /* first op not complete, serial; commits do not count */
    uint64_t complete_count;
    double now;
};

/* finish.c */
int plani_fill_program(const struct plani_sim *s, program *out) MUST_CHECK;

#endif
