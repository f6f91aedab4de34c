/* The tile sizes that the search looks at. */
#include <string.h>

#include "plan/search/search_internal.h"

enum {
    TILE_ELEMS_LARGEST = 4 << 20, /* 48 MiB of state: far above the 1 MiB at which reads saturate */
    TILES_OF_UNIT_LEAST = 64,     /* units of more than as many largest tiles get larger ones */
    TILES_MOST = 1 << 14,         /* of the whole model, where the tile size is chosen here */
    /* Accumulators that come and go with each micro-batch (batch-major) are moved in tiles. A step
     * has at most MOVES_SEARCHED of them where larger tiles fit, and never more than MOVES_MOST.
     * Each is about 4 ops. */
    MOVES_SEARCHED = 1 << 16,
    MOVES_MOST = 1 << 19,
    /* Smaller tiles, or more of them, only where larger ones do not fit; and smaller ones where the
     * host's budget has room for few tiles under way. */
    TILE_ELEMS_SEARCHED = 256 << 10,
    TILES_SEARCHED = 1 << 14,
    TILES_IN_HOST = 32,
    /* The coarser size cuts the model into so many tiles, but a tile takes at most one part in so
     * many of the host's budget. */
    COARSE_TILES = 1024,
    TILES_OF_HOST = 64,
};

/* Elements of all units, padded. */
static uint64_t total_elems(const plan_job *job)
{
    uint64_t total = 0;
    for (uint32_t u = 0; u < job->unit_count; u++)
        total += plani_whole_elems(job, u);
    return total;
}

/* Elements that a step brings to the device and takes away again because accumulators rest
 * elsewhere between micro-batches. */
static uint64_t moved_elems(const plan_job *job)
{
    uint64_t moved = 0;
    if (job->order != ORDER_BATCH_MAJOR || job->micro_batch_count < 2 || job->only_eval)
        return 0;
    for (uint32_t u = 0; u < job->unit_count; u++)
        if (plan_learns(job, u) && job->homes[STATE_GRADS][u] != TIER_DEVICE)
            moved += plani_shard_elems(job, u);
    return moved * job->micro_batch_count;
}

static uint64_t half_tile(uint64_t tile_elems)
{
    return size_round_up(tile_elems / 2, TILE_ELEMS_STEP);
}

uint32_t plani_list_candidates(const plan_job *job,
                               struct plani_candidate list[PLANI_CANDIDATES_MAX])
{
    memset(list, 0, PLANI_CANDIDATES_MAX * sizeof *list);
    list[0].tile_elems = job->tile_elems;
    if (job->tile_elems)
        return 1;
    uint64_t largest_unit = 0, largest_shard = 0, moved = moved_elems(job);
    for (uint32_t u = 0; u < job->unit_count; u++) {
        largest_unit = size_max(largest_unit, plan_rest_elems(job, STATE_OPTIMIZER, u));
        largest_shard = size_max(largest_shard, plani_shard_elems(job, u));
    }
    uint64_t least =
        size_max(size_div_up(total_elems(job), TILES_MOST), size_div_up(moved, MOVES_MOST));
    uint64_t floor = size_round_up(least, TILE_ELEMS_STEP);
    uint64_t moves =
        size_round_up(size_min(size_div_up(moved, MOVES_SEARCHED), largest_shard), TILE_ELEMS_STEP);
    uint64_t tile = size_round_up(size_div_up(largest_unit, TILES_OF_UNIT_LEAST), TILE_ELEMS_STEP);
    tile = size_max(size_max(tile, TILE_ELEMS_LARGEST), size_max(floor, moves));
    if (job->tile_elems_max) {
        uint64_t cap = size_round_up(job->tile_elems_max, TILE_ELEMS_STEP);
        tile = size_min(tile, cap);
        floor = size_min(floor, cap);
    }
    uint64_t enough = size_max(size_round_up(largest_unit, TILE_ELEMS_STEP), floor);
    enough = size_max(enough, moves);
    while (half_tile(tile) >= enough && half_tile(tile) < tile)
        tile = half_tile(tile);
    uint32_t count = 0;
    list[count++].tile_elems = tile;
    while (tile > floor && count < PLANI_CANDIDATES_MAX) {
        tile = size_max(half_tile(tile), floor);
        list[count++].tile_elems = tile;
    }
    return count;
}

uint64_t plani_searched_tile(const plan_job *job)
{
    uint64_t tile_bytes = 16; /* of an element: params, gradients and state */
    uint64_t few = job->budget_bytes[TIER_HOST] / TILES_IN_HOST / tile_bytes;
    uint64_t enough = size_min(size_max(few, TILE_ELEMS_STEP), TILE_ELEMS_SEARCHED);
    enough = size_max(enough, total_elems(job) / TILES_SEARCHED);
    return size_max(enough, moved_elems(job) / MOVES_SEARCHED);
}

uint32_t plani_list_tiles(const plan_job *job, uint64_t tiles[PLANI_TILES_MAX])
{
    struct plani_candidate list[PLANI_CANDIDATES_MAX];
    uint32_t listed = plani_list_candidates(job, list), count = 0;
    uint64_t share = job->budget_bytes[TIER_HOST] / TILES_OF_HOST;
    uint64_t coarse =
        size_round_up(size_min(total_elems(job) / COARSE_TILES, share / (4 * 3)), TILE_ELEMS_STEP);
    if (!job->tile_elems && !job->tile_elems_max && coarse > list[0].tile_elems)
        tiles[count++] = coarse;
    for (uint32_t i = 0; i < listed; i++)
        tiles[count++] = list[i].tile_elems;
    return count;
}
