/* The plan of a run that is measured. See watch.h. */
#include "setup/watch.h"

#include "config/machine.h"
#include "setup/setup_internal.h"

/* Removes from all passes their memory traffic and measured seconds. Without has_flops also their
 * flops, so that they take no time at all. */
static void thin_passes(struct setup *self, bool has_flops)
{
    for (uint32_t s = 0; s < self->plan.stage_count; s++) {
        struct stage *stage = &self->stages[s];
        stage->recompute_seconds = 0;
        stage->recompute_dram_bytes = 0;
        stage->recompute_flops = has_flops ? stage->recompute_flops : 0;
    }
    for (uint64_t p = 0; p < self->net->pass_count; p++) {
        struct pass *pass = &self->net->passes[p];
        pass->seconds = 0;
        pass->dram_bytes = 0;
        pass->flops = has_flops ? pass->flops : 0;
    }
}

/* The flops per second that the named machine states, whatever computes here; 0: no machine is
 * named, or it does not state them. */
static double stated_flops(const struct setup *self)
{
    const machine *from = self->stated;
    if (!from)
        return 0;
    double flops =
        self->net->type == DTYPE_FP32 ? from->device.flops_fp32 : from->device.flops_16bit;
    if (flops <= 0 && self->net->type != DTYPE_FP32)
        flops = from->device.peak_flops * 2 / 3; /* as in the plan's defaults */
    return flops;
}

void setupi_watch_inputs(struct setup *self, const struct setup_options *options)
{
    const struct setup_watch *watch = options->watch;
    if (!watch)
        return;
    if (watch->comm_bytes_per_second > 0)
        self->plan.machine.comm_bytes_per_second = watch->comm_bytes_per_second;
    if (!watch->only_transfers)
        return;
    double flops = stated_flops(self);
    self->plan.machine.comm_is_copies = false; /* pretended.c moves only this rank's own part */
    self->plan.machine.comm_takes_no_memory = true;
    self->plan.machine.device_flops_per_second = flops > 0 ? flops : WATCH_NO_TIME;
    thin_passes(self, flops > 0);
}

double setup_watched_seconds(const struct setup *setup, const op *item)
{
    return item->demand.device_flops / setup->plan.machine.device_flops_per_second;
}
