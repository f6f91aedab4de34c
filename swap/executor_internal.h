/* Shared by the files of the executor: the executor and its per-program tables. executor.c calls
 * executor_prepare.c, which makes the tables at creation, executor_times.c, which counts, and
 * paranoid.c, which overwrites memory in paranoid mode. */
#ifndef SLUICE_SWAP_EXECUTOR_INTERNAL_H
#define SLUICE_SWAP_EXECUTOR_INTERNAL_H

#include <stdbool.h>

#include "swap/executor.h"

/* The bytes of an arena that a home, or what is carried into the program, occupies. */
struct swapi_kept {
    uint32_t arena; /* TIER_DEVICE or TIER_HOST */
    uint64_t begin, end;
};
typedef struct swapi_kept swapi_kept;

/* A program as the executor walks it; read-only once made. */
struct swapi_prepared {
    const program *prog;
    uint64_t *next_begin; /* [op_count + 1]: dependents of op i: next[next_begin[i] .. [i+1]) */
    uint32_t *next;       /* op indices, one per dependency and one per op.behind */
    uint32_t *lane_ops;   /* [op_count] op indices by lane, in issue order */
    uint64_t lane_begin[LANE_COUNT + 1];
    /* [op_count] the OP_NORM that the op comes after, or PROGRAM_NONE. NULL: the program has no
     * conditional ops. */
    uint32_t *norms;
    /* [op_count] of ops that are skipped if their unit is not hit: the op that finds that out;
     * PROGRAM_NONE for others. NULL: the program has no such ops. */
    uint32_t *routers;
    bool decides;     /* a conditional op comes after a norm */
    swapi_kept *kept; /* [kept_count] sorted by arena and place; paranoid mode only */
    uint32_t kept_count;
};
typedef struct swapi_prepared swapi_prepared;

enum swapi_op_state { SWAPI_WAITING, SWAPI_IN_FLIGHT, SWAPI_DONE, SWAPI_SKIPPED };

struct executor {
    lane *lanes[LANE_COUNT];
    lane *objects[LANE_COUNT]; /* the distinct lane objects among them */
    uint32_t object_in_flight[LANE_COUNT];
    uint8_t object_of[LANE_COUNT];   /* lane kind -> index of its object */
    uint8_t object_dead[LANE_COUNT]; /* its poll failed: the ops in flight there are lost */
    uint32_t object_count;
    trace *ring;
    swapi_prepared *prepared; /* [prepared_count] */
    uint32_t prepared_count;
    const bool *is_skipped;    /* or NULL */
    const bool *is_committing; /* or NULL */
    bool paranoid;
    unsigned char *arena_base[TIER_COUNT];
    uint64_t peak_bytes[TIER_COUNT]; /* the highest of all programs */

    /* Members of the present run; arrays are sized for the largest program. */
    const swapi_prepared *now;
    uint64_t step;
    uint64_t run_start_ns;
    uint64_t stuck_ns;           /* executor_config.stuck_ns */
    uint64_t commit_begin_ns;    /* when the commit lane's op in flight was submitted */
    uint64_t commit_report_ns;   /* report it once it is in flight for so long */
    lane_request *requests;      /* [op_count] */
    uint32_t *closed_deps;       /* [op_count] dependencies that still hold the op back */
    uint8_t *states;             /* [op_count] enum swapi_op_state */
    uint32_t *order;             /* [op_count] scratch of swapi_finish_totals */
    uint64_t cursor[LANE_COUNT]; /* next op to issue, index into lane_ops */
    uint32_t in_flight[LANE_COUNT];
    uint32_t in_flight_total;
    uint64_t done_count;
    bool skips_pending;    /* *is_skipped at the start of the run */
    bool skips_decided;    /* *is_skipped after the latest norm */
    bool skips_commit;     /* the run does not commit, so ops with if_commits are skipped */
    uint32_t *users_left;  /* [buffer_count] operands of later ops; paranoid mode only */
    uint64_t cores_end_ns; /* latest end of a compute or update op */
    uint32_t last_op_idx;  /* the op that ended last, or PROGRAM_NONE */
    lane_totals totals[LANE_COUNT];
    err_record failure; /* the first error; code 0: none. Once set: POISONED */
};

/* executor_prepare.c: fills *out with the tables of `prog`. On failure there is nothing to free. */
int swapi_prepare(const executor *self, const program *prog, swapi_prepared *out) MUST_CHECK;
void swapi_prepared_fini(swapi_prepared *self);

/* Finds for each op the norm that it comes after, by dependencies and by the order of the chain
 * lanes: norms[op_count], PROGRAM_NONE if there is none. */
void swapi_find_norms(const program *prog, uint32_t *norms);

/* True if one worker serves both lanes and keeps the order of their ops by itself. */
static inline bool swapi_same_worker(const executor *self, uint8_t one, uint8_t other)
{
    const lane *a = self->lanes[one], *b = self->lanes[other];
    return a->in_order && b->in_order && (a == b || a->owner == b->owner);
}

/* executor_times.c: counts an op that is complete, and records it in the trace. */
void swapi_record_done(executor *self, const lane_request *request);
/* executor_times.c: the totals of the run that ends now. */
void swapi_finish_totals(executor *self, run_totals *totals);

/* paranoid.c. All but _create do nothing unless the executor is paranoid. */
int swapi_paranoid_create(executor *self, const executor_config *config) MUST_CHECK; /* -ENOMEM */
void swapi_paranoid_begin(executor *self);
void swapi_paranoid_issue(executor *self, const op *item); /* before it is submitted */
void swapi_paranoid_done(executor *self, const op *item);  /* complete or skipped */

#endif
