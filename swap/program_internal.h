/* Shared by the files of the program check, and in part by the executor: the structure of a
 * program, the happens-before relation, the uses of each buffer, and the two proofs built on them.
 * Scratch lives in `struct swapi_check` and is freed with it; one thread.
 *
 *   program_check (program_check.c)
 *     ├─► structure: each buffer and op by itself (program_structure.c)
 *     ├─► lifetimes, conditions, commits (program_check.c)
 *     ├─► what passes from program to program (program_carried.c)
 *     └─► order: which op comes before which (program_check.c)
 *           ├─► the bytes within a buffer (program_access.c)
 *           └─► the buffers within an arena (program_space.c) */
#ifndef SLUICE_SWAP_PROGRAM_INTERNAL_H
#define SLUICE_SWAP_PROGRAM_INTERNAL_H

#include <assert.h>
#include <stddef.h>

#include "swap/program.h"

enum {
    SWAPI_CHAIN_LANES = LANE_COUNT - LANE_H2D, /* lanes whose ops complete one at a time */
    SWAPI_OP_TEXT_BYTES = 96,
};

static_assert(LANE_READ == 0 && LANE_WRITE == 1 && LANE_H2D == 2,
              "the out-of-order lanes come first, so that the chains are LANE_H2D and up");

/* True if ops of the lane complete in issue order, one at a time. */
static inline bool swapi_lane_is_chain(uint8_t kind)
{
    return kind >= LANE_H2D;
}

/* True if the operand is a gradient accumulator that the op begins, so that it reads nothing of
 * it. */
static inline bool swapi_is_zeroed_first(const op *item, const operand *part)
{
    return item->kind == OP_BACKWARD && ((part->role == ROLE_GRADS0 && (item->fresh_grads & 1)) ||
                                         (part->role == ROLE_GRADS1 && (item->fresh_grads & 2)));
}

/* Writes "update of unit 3, tile 0 (op 12)". Returns `text`. */
char *swapi_op_text(const program *prog, uint32_t op_idx, char text[SWAPI_OP_TEXT_BYTES]);

/* Sets the error "program: <text of the op><formatted>". Returns ERR_INTERNAL. */
__attribute__((format(printf, 3, 4))) int swapi_op_error(const program *prog, uint32_t op_idx,
                                                         const char *format, ...);

/* The byte by which the op is skipped if it is 0; NULL: none. */
static inline const operand *swapi_condition(const op *item)
{
    bool is_fetch = item->kind == OP_READ || item->kind == OP_H2D || item->kind == OP_ALL_GATHER;
    return is_fetch ? op_operand(item, ROLE_HITS) : NULL;
}

/* Finds for each op that reads hits the op that wrote them last: writers[op_count]. PROGRAM_NONE
 * for all other ops, and if nothing wrote them before. 0 or -ENOMEM. */
int swapi_find_hits(const program *prog, uint32_t *writers) MUST_CHECK;

/* program_structure.c: checks each buffer and each op by itself. 0 or ERR_INTERNAL. */
int swapi_check_structure(const program *prog) MUST_CHECK;

/* Happens-before: the closure of dependencies and of the order of chain lanes. */
struct swapi_order {
    const program *prog;
    /* [op_count][SWAPI_CHAIN_LANES]: 1 + the latest op of the chain that is, or comes before, this
     * op; 0: none */
    uint32_t *latest;
    /* [op_count][SWAPI_CHAIN_LANES]: the earliest op of the chain that is, or comes after, this op;
     * PROGRAM_NONE: none */
    uint32_t *earliest;
    uint32_t *seen;  /* [op_count] stamp of the last search that reached the op */
    uint32_t *stack; /* [op_count] stack of that search */
    uint32_t stamp;
};
typedef struct swapi_order swapi_order;

/* True iff op `first` is complete before op `second` starts under any timing. first < second. */
bool swapi_order_before(swapi_order *self, uint32_t first, uint32_t second);

/* One operand that uses a buffer. */
struct swapi_use {
    uint32_t op_idx;
    uint32_t operand_idx;
};
typedef struct swapi_use swapi_use;

struct swapi_check {
    const program *prog;
    swapi_order order;
    uint64_t *use_begin; /* [buffer_count + 1]: uses of buffer b: use_begin[b] .. use_begin[b+1] */
    swapi_use *uses;     /* by buffer, then in issue order */
};
typedef struct swapi_check swapi_check;

/* Sorts the values and drops duplicates. Returns how many are left. */
uint64_t swapi_sort_distinct(uint64_t *values, uint64_t count);

/* The index of the last of the sorted values that is at most `most`; values[0] must be. */
uint64_t swapi_last_upto(const uint64_t *values, uint64_t count, uint64_t most);

/* program_carried.c: proves what program_check says of carried buffers, but for their space. 0 or
 * ERR_INTERNAL. */
int swapi_check_carried(const swapi_check *check) MUST_CHECK;

/* program_access.c: proves for each buffer that reads of transients follow writes of the same
 * bytes, and that two ops that touch the same bytes are ordered if one of them writes. 0, -ENOMEM
 * or ERR_INTERNAL. */
int swapi_check_accesses(swapi_check *check) MUST_CHECK;

/* program_space.c: proves for each arena that homes overlap nothing, and that of two transients
 * that share bytes all uses of one are ordered before all uses of the other. 0, -ENOMEM or
 * ERR_INTERNAL. */
int swapi_check_space(swapi_check *check) MUST_CHECK;

#endif
