/* How optimizer state is stored, as the job says it and as tiles have it (base/tile.h). See train_internal.h.
 * Pure. */
#include "base/tile.h"
#include "train/train_internal.h"

uint32_t traini_state_streams(const struct job *asked)
{
    static const enum tile_format moments[] = {
        [JOB_MOMENTS_FP32] = TILE_FP32,
        [JOB_MOMENTS_BF16] = TILE_BF16,
        [JOB_MOMENTS_8BIT] = TILE_INT8,
    };
    if (asked->optimizer.type != JOB_ADAM)
        return 2; /* of fp32 */
    enum tile_format both = moments[asked->state.moments];
    return tile_streams_code(3, asked->state.master == JOB_MASTER_SPLIT ? TILE_LOW16 : TILE_FP32,
                             both, both);
}
