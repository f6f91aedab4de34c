/* The loss scale of fp16 training, with DeepSpeed's arithmetic.
 *
 * Gradients of fp16 activations are kept above its smallest numbers by multiplying the loss by a
 * scale, and the sum of gradients is divided by it before clipping and update. A step whose
 * gradients are not all finite is skipped. Where the scale is dynamic (fp16.loss_scale 0):
 *
 *   overflow     hysteresis_left > 1 ──► one less, the scale stays
 *                hysteresis_left = 1 ──► scale / 2, but not below fp16.min_loss_scale;
 *                                        at that minimum already: ERR_DIVERGED
 *   no overflow  a multiple of fp16.loss_scale_window steps since the last overflow ──► scale * 2,
 *                hysteresis_left = fp16.hysteresis (with fp16.consecutive_hysteresis at any step
 *                without overflow)
 *
 * With fp16.hysteresis 1 that is also what torch.amp.GradScaler does with growth_factor 2,
 * backoff_factor 0.5 and growth_interval = fp16.loss_scale_window, as long as the minimum is not
 * met. hysteresis_left stays at 1 after a halving until the scale grows, as in DeepSpeed: further
 * overflows halve at once.
 *
 * A static scale (fp16.loss_scale > 0) and that of other precisions (1) never change. Pure: numbers
 * in, numbers out; any thread, one at a time. This is the scaler of DeepSpeed's ZeRO optimizers and
 * holds at every zero_optimization.stage; its optimizer for stage 0 halves at each overflow,
 * whatever hysteresis says, and rests at the minimum. Source:
 * deepspeed/runtime/fp16/loss_scaler.py, LossScaler and DynamicLossScaler, up to 0.16. By 0.18
 * DeepSpeed doubles one step later, after loss_scale_window + 1 steps without overflow; PyTorch
 * does not, and its steps are the ones that are kept here. */
#ifndef SLUICE_SETUP_LOSS_SCALE_H
#define SLUICE_SETUP_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "config/job.h"
#include "format/manifest.h"

struct loss_scaler {
    /* The state: all that a resumed run needs, kept in the manifest. */
    double scale;             /* the loss of the next step is multiplied by it */
    uint64_t iteration;       /* steps counted by loss_scaler_update, skipped ones included */
    int64_t last_overflow;    /* the iteration (from 0) of the last overflow; -1: none yet */
    uint64_t hysteresis_left; /* overflows until the scale is halved, >= 1 */
    /* The job's settings. */
    bool is_dynamic;
    uint64_t window, hysteresis; /* both >= 1 */
    bool consecutive_hysteresis;
    double scale_min;
};
typedef struct loss_scaler loss_scaler;

/* The scaler of step 1: 2^fp16.initial_scale_power, or the static scale, or 1 where the job is not
 * fp16. */
void loss_scaler_init(loss_scaler *self, const struct job *asked);

/* Counts a step, right after it is known whether its gradients overflowed, and sets the scale of
 * the next step. Called once per step, in order. ERR_DIVERGED, with nothing changed, when the scale
 * would have to fall below its minimum: training cannot go on. The caller knows the step and names
 * it. */
int loss_scaler_update(loss_scaler *self, bool overflow) MUST_CHECK;

/* Stores the state in the manifest's loss scale fields. */
void loss_scaler_save(const loss_scaler *self, manifest *record);

/* Takes the state from a manifest, after loss_scaler_init with the resuming job. The job's own
 * settings hold: a static scale stays what the job says, and no more hysteresis is left than the
 * job has. ERR_CORRUPT, with nothing changed, where no run can have left such numbers. */
int loss_scaler_load(loss_scaler *self, const manifest *found) MUST_CHECK;

#endif
