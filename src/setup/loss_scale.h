/* The loss scale of fp16 training, with DeepSpeed's arithmetic.
 *
 * To keep gradients of fp16 activations above the smallest fp16 numbers, the loss is multiplied by
 * a scale, and the sum of gradients is divided by it before clipping and update. A step whose
 * gradients are not all finite is skipped. A dynamic scale (fp16.loss_scale 0) changes as follows:
 *
 *   overflow     hysteresis_left > 1 ──► one less, the scale stays
 *                hysteresis_left = 1 ──► scale / 2, but not below fp16.min_loss_scale;
 *                                        at that minimum already: ERR_DIVERGED
 *   no overflow  a multiple of fp16.loss_scale_window steps since the last overflow ──► scale * 2,
 *                hysteresis_left = fp16.hysteresis (with fp16.consecutive_hysteresis at any step
 *                without overflow)
 *
 * After a halving, hysteresis_left stays at 1 until the scale grows, as in DeepSpeed, so further
 * overflows halve at once. With fp16.hysteresis 1, torch.amp.GradScaler does the same with
 * growth_factor 2, backoff_factor 0.5 and growth_interval = fp16.loss_scale_window, until the scale
 * reaches the minimum.
 *
 * A static scale (fp16.loss_scale > 0) never changes, nor does the scale of other precisions, which
 * is 1.
 *
 * Source: deepspeed/runtime/fp16/loss_scaler.py, LossScaler and DynamicLossScaler, up to 0.16. This
 * is the scaler of DeepSpeed's ZeRO optimizers, and here it holds at every zero_optimization.stage.
 * DeepSpeed's own optimizer for stage 0 differs: it halves at each overflow, whatever hysteresis
 * says, and stays at the minimum. Since 0.18 DeepSpeed doubles one step later, after
 * loss_scale_window + 1 steps without overflow. PyTorch does not, and its steps are kept here.
 *
 * Pure: numbers in, numbers out. Any thread, but one call at a time. */
#ifndef SLUICE_SETUP_LOSS_SCALE_H
#define SLUICE_SETUP_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "config/job.h"
#include "format/manifest.h"

struct loss_scaler {
    /* The state. The manifest keeps it, because a resumed run needs it. */
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

/* Sets the scaler of step 1: 2^fp16.initial_scale_power, or the static scale, or 1 if the job is
 * not fp16. */
void loss_scaler_init(loss_scaler *self, const struct job *asked);

/* Counts a step and sets the scale of the next one. Call it once per step, in order, right after it
 * is known whether the gradients overflowed. ERR_DIVERGED, with nothing changed, if the scale would
 * have to fall below its minimum: training cannot continue. The caller adds the step to the
 * message. */
int loss_scaler_update(loss_scaler *self, bool overflow) MUST_CHECK;

/* Stores the state in the manifest's loss scale fields. */
void loss_scaler_save(const loss_scaler *self, manifest *record);

/* Takes the state from a manifest. Call it after loss_scaler_init with the resuming job, whose own
 * settings hold: a static scale stays what the job says, and hysteresis_left is at most the job's
 * fp16.hysteresis. ERR_CORRUPT, with nothing changed, if no run can have left such numbers. */
int loss_scaler_load(loss_scaler *self, const manifest *found) MUST_CHECK;

#endif
