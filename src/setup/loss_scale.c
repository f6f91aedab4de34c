/* The loss scale: see loss_scale.h. Allocates nothing, reads no clock and no file. */
#include "setup/loss_scale.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include "base/size.h"

/* DeepSpeed's scale_factor, which no key changes. It is a power of two, so products with the scale
 * are exact except for overflow and underflow. */
#define SCALE_FACTOR 2.0

/* A double cannot hold 2^power for a larger power. */
enum { SCALE_POWER_MAX = 1023 };

void loss_scaler_init(loss_scaler *self, const struct job *asked)
{
    *self = (loss_scaler){
        .scale = 1.0,
        .last_overflow = -1,
        .hysteresis_left = 1,
        .window = 1,
        .hysteresis = 1,
        .scale_min = 1.0,
    };
    if (asked->type != DTYPE_FP16)
        return;
    if (asked->fp16.loss_scale > 0.0) {
        self->scale = asked->fp16.loss_scale;
        return;
    }
    self->is_dynamic = true;
    self->scale = ldexp(1.0, (int)size_min(asked->fp16.initial_scale_power, SCALE_POWER_MAX));
    self->window = size_max(asked->fp16.loss_scale_window, 1);
    self->hysteresis = size_max(asked->fp16.hysteresis, 1);
    self->hysteresis_left = self->hysteresis;
    self->consecutive_hysteresis = asked->fp16.consecutive_hysteresis;
    self->scale_min = asked->fp16.min_loss_scale;
}

/* Lowers the scale, or hysteresis_left, after an overflow. */
static int lower(loss_scaler *self)
{
    if (self->hysteresis_left > 1) {
        self->hysteresis_left--;
        return 0;
    }
    if (self->scale == self->scale_min)
        return err_set(ERR_DIVERGED,
                       "the gradients overflow at the smallest loss scale, %g "
                       "(fp16.min_loss_scale), so the scale cannot be halved and training has "
                       "diverged; begin anew with a lower learning rate, or with bf16.enabled in "
                       "place of fp16.enabled",
                       self->scale);
    self->scale = fmax(self->scale / SCALE_FACTOR, self->scale_min);
    return 0;
}

int loss_scaler_update(loss_scaler *self, bool overflow)
{
    assert(self->window >= 1);
    assert(self->hysteresis_left >= 1);
    if (self->is_dynamic && overflow) {
        TRY(lower(self));
        self->last_overflow = (int64_t)self->iteration;
    } else if (self->is_dynamic) {
        uint64_t since = (uint64_t)((int64_t)self->iteration - self->last_overflow);
        bool grows = since % self->window == 0;
        if (grows || self->consecutive_hysteresis)
            self->hysteresis_left = self->hysteresis;
        if (grows && isfinite(self->scale * SCALE_FACTOR))
            self->scale *= SCALE_FACTOR;
    }
    self->iteration++;
    return 0;
}

void loss_scaler_save(const loss_scaler *self, manifest *record)
{
    record->point.loss_scale = self->scale;
    record->point.scale_iteration = self->iteration;
    record->point.scale_last_overflow = self->last_overflow;
    record->point.scale_hysteresis_left = self->hysteresis_left;
}

int loss_scaler_load(loss_scaler *self, const manifest *found)
{
    bool possible = isfinite(found->point.loss_scale) && found->point.loss_scale > 0.0 &&
                    found->point.scale_iteration <= INT64_MAX &&
                    found->point.scale_last_overflow >= -1 &&
                    found->point.scale_last_overflow < (int64_t)found->point.scale_iteration &&
                    found->point.scale_hysteresis_left >= 1;
    if (!self->is_dynamic) {
        self->iteration = found->point.scale_iteration;
        return 0;
    }
    if (!possible)
        return err_set(ERR_CORRUPT,
                       "the manifest of step %" PRIu64 " has a loss scale of %g after %" PRIu64
                       " steps, the last overflow at %" PRId64 " and a hysteresis of %" PRIu64
                       ": no run leaves such numbers",
                       found->point.step, found->point.loss_scale, found->point.scale_iteration,
                       found->point.scale_last_overflow, found->point.scale_hysteresis_left);
    self->scale = found->point.loss_scale;
    self->iteration = found->point.scale_iteration;
    self->last_overflow = found->point.scale_last_overflow;
    self->hysteresis_left = size_min(found->point.scale_hysteresis_left, self->hysteresis);
    return 0;
}
