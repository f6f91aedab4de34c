/* Copies how long the transfers of each drive took from the engine's io to the names of a trace. On
 * the loop's thread, between steps. */
#include "engine/engine_internal.h"
#include "report/chrome_trace.h"


void engine_trace_drives(const struct engine *engine, chrome_trace_names *names)
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
