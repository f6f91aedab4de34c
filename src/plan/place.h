/* Automatic placement: where each state rests and when the update runs, so that the simulated step is shortest;
 * and why, in sentences. The order of micro-batches is the job's: who may choose asks once for each.
 *
 *   whole kinds, and tiers filled in several orders   the first trials; each is a simulated steady step
 *   moves of the units at the boundaries of tiers,    from the best of them, in steps that get smaller,
 *   of update and held stages                         until none gains
 *   the best few                                      compiled whole; the shortest mean step wins
 *
 * A unit rests nearer than it needs to where that costs nothing: memory that is there is used, the drives are
 * spared. Inner activations are kept where that gains (0.05% of the step). What is bound to lose is not
 * simulated. Homes of a kind are in the order of need: those of params, gradients and optimizer that rest near are
 * the first units (a step begins with them; a tied embedding is among them), of activations the last (nearest
 * the turn).
 *
 * Deterministic: work is counted in ops, never in time. Pure, as plan.h. */
#ifndef SLUICE_PLAN_PLACE_H
#define SLUICE_PLAN_PLACE_H

#include "base/words.h"
#include "plan/plan.h"

struct plan_place_asked {
    const plan_job
        *job; /* its homes do not count; its update where that is not chosen, and where no choice
                            gains; its order always */
    const uint8_t *wanted[STATE_KIND_COUNT]; /* [unit_count] homes as in plan_job, or TIER_AUTO */
    bool chooses_update;                     /* among those that give the same bits */
    bool allows_in_backward;                 /* it is one of them */
    bool has_drives;                         /* what is to be chosen may be nvme */
    bool
        only_homes; /* with only_fits: whether there is room for all that rests; what passes is not counted */
    bool only_fits; /* any placement that fits will do: nothing is simulated or compiled */
};

struct plan_place_found {
    uint8_t *homes[STATE_KIND_COUNT]; /* [unit_count] the caller's, filled */
    enum update update;
    uint32_t parked_near; /* as in plan_job */
    bool parked_on_host;
    plan_set set;                    /* compiled; the caller's to free. Of only_fits: empty */
    uint64_t need_bytes[TIER_COUNT]; /* of only_fits: that the serial order of all programs takes */
    uint32_t trial_count;            /* simulated steps, or steps whose bound was enough */
    uint32_t compile_count;          /* whole compilations */
    uint64_t work_ops;               /* ops built and simulated in all */
    uint32_t reason_count;
    char reasons[PLAN_REASONS_MAX][PLAN_REASON_BYTES];
};

/* ERR_NO_FIT, with plan_compile's advice for the placement that comes nearest to the budgets; its other errors.
 * On failure found->set is empty. */
int plan_place(const struct plan_place_asked *asked, struct plan_place_found *found) MUST_CHECK;

/* Predicted, of steady steps with and without a commit as they come in a run. */
double plan_mean_step_ns(const plan_job *job, const plan_set *set);

#endif
