/* What steps.c asks of passes.c: one stage's forward or backward for a range of micro-batches. */
#ifndef SLUICE_PLAN_PASSES_H
#define SLUICE_PLAN_PASSES_H

#include "plan/plan_internal.h"

/* Device buffers that outlive the emission of one stage, and what has happened to each unit. Indices
 * of buffers, PROGRAM_NONE where there is none now. */
struct plani_step {
    uint32_t *params;      /* [unit_count] kept on the device for the backward */
    uint32_t *grads;       /* [unit_count] open fp32 accumulators on the device */
    uint32_t *inputs;      /* [stage_count * micro_batches] boundary before the stage */
    uint32_t *input_grads; /* [stage_count * micro_batches] */
    uint32_t *saved;       /* [stage_count * micro_batches] inner activations */
    uint32_t *uses_left;   /* [unit_count] backward passes that still add to the gradient */
    uint32_t *updated;     /* [unit_count] 1: the pending update is applied */
    uint32_t *begun;       /* [unit_count] 1: the accumulator holds sums of this step */
    bool updates_first;    /* a unit's pending update comes before its first use */
    bool updates_late;     /* a unit's pending update comes after its last use */
    bool commits_behind; /* each pending update is followed by a save, the last one by OP_COMMIT */
    uint32_t updated_count;
};

void plani_stage_forward(plani_builder *b, struct plani_step *st, uint32_t stage, uint32_t mb_begin,
                         uint32_t mb_end, bool trains);
/* Recomputes first where a cut stage's inner activations were not kept. Closes the gradients that are
 * complete. */
void plani_stage_backward(plani_builder *b, struct plani_step *st, uint32_t stage,
                          uint32_t mb_begin, uint32_t mb_end);

#endif
