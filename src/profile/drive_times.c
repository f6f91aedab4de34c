/* Copies how long the transfers of each drive took from the engine's io to the profile. On the
 * loop's thread, between steps. */
#include <assert.h>
#include <stdio.h>

#include "profile/profile_internal.h"

static_assert(IO_READ == 0 && IO_WRITE == 1, "directions index the times");

static double seconds_of(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static struct profile_times times_of(const io_latency *latency)
{
    return (struct profile_times){.count = latency->count,
                                  .p50 = seconds_of(io_latency_quantile_ns(latency, 0.50)),
                                  .p95 = seconds_of(io_latency_quantile_ns(latency, 0.95)),
                                  .p99 = seconds_of(io_latency_quantile_ns(latency, 0.99)),
                                  .max = seconds_of(latency->max_ns)};
}

void profilei_note_drives(profile *self, const struct engine *engine, bool counts)
{
    if (!engine->transport)
        return;
    struct profile_summary *out = self->out;
    out->drive_count = counts ? engine->disk->drive_count : out->drive_count;
    for (uint32_t d = 0; counts && d < out->drive_count; d++) {
        snprintf(out->drives[d].path, sizeof out->drives[d].path, "%s",
                 engine->setup->drives[d].path);
        for (int way = 0; way < 2; way++)
            io_latency_merge(&self->latencies[d][way],
                             io_get_latency(engine->transport, d, (enum io_direction)way));
    }
    io_clear_latencies(engine->transport);
}

void profilei_sum_drives(profile *self)
{
    struct profile_summary *out = self->out;
    for (uint32_t d = 0; d < out->drive_count; d++)
        for (int way = 0; way < 2; way++)
            out->drives[d].times[way] = times_of(&self->latencies[d][way]);
}
