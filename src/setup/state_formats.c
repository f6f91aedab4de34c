/* How optimizer state is stored: from the job's words to the formats of tiles (base/tile.h).
 * Pure. */
#include <stdio.h>

#include "base/rng.h"
#include "base/shard.h"
#include "base/tile.h"
#include "setup/setup_internal.h"

/* Upper half of the random key; the lower half is the unit. It differs from the streams of initial
 * weights. */
enum { ROUNDING_STREAM = 0x526f756e };

uint32_t setup_state_streams(const struct job *asked, bool params_alone)
{
    if (asked->optimizer.type != JOB_ADAM)
        return 2; /* two streams of fp32 */
    if (params_alone)
        return 3;
    enum tile_format moments = asked->state.moments;
    return tile_streams_code(3, asked->state.master, moments, moments);
}

int setupi_state_identity(const struct job *asked, char *text, size_t capacity)
{
    static const char *const moments[] = {[TILE_FP32] = "",
                                          [TILE_BF16] = "state.moments=bf16\n",
                                          [TILE_INT8] = "state.moments=8bit\n"};
    return snprintf(text, capacity, "%s%s",
                    asked->state.master == TILE_LOW16 ? "state.master=split\n" : "",
                    moments[asked->state.moments]);
}

const char *setup_formats_text(uint32_t streams, char text[SETUP_FORMATS_BYTES])
{
    uint32_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < tile_stream_count(streams); i++)
        used += (uint32_t)snprintf(text + used, SETUP_FORMATS_BYTES - used, "%s%s", i ? ", " : "",
                                   tile_format_name(tile_stream_format(streams, i)));
    return text;
}

uint64_t setup_rounding_key(uint64_t seed, uint64_t update, uint32_t unit)
{
    return rng_u64(seed, (uint64_t)ROUNDING_STREAM << 32 | unit, update);
}

uint64_t setup_state_begin(const struct setup *self, uint32_t unit)
{
    return plan_is_sharded(&self->plan, STATE_OPTIMIZER, unit)
               ? shard_begin(self->unit_elems[unit], self->ranks.world, self->ranks.rank)
               : 0;
}
