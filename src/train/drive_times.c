/* How long transfers of each drive took, from the engine's io into what profiles and traces show. On the
 * loop's thread between steps. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "prof/chrome_trace.h"
#include "train/profile_internal.h"

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

void profilei_note_drives(profile *self, const struct traini_engine *engine, bool counts)
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

void traini_trace_drives(const struct traini_engine *engine, chrome_trace_names *names)
{
    if (!engine->transport)
        return;
    names->drive_count = engine->disk->drive_count;
    for (uint32_t d = 0; d < names->drive_count; d++) {
        names->drives[d].path = engine->setup->drives[d].path;
        for (int way = 0; way < 2; way++) {
            const io_latency *latency =
                io_get_latency(engine->transport, d, (enum io_direction)way);
            names->drives[d].ways[way] =
                (chrome_trace_times){.count = latency->count,
                                     .p50_ns = io_latency_quantile_ns(latency, 0.50),
                                     .p95_ns = io_latency_quantile_ns(latency, 0.95),
                                     .p99_ns = io_latency_quantile_ns(latency, 0.99),
                                     .max_ns = latency->max_ns};
        }
    }
}
