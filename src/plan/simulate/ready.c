/* Sets of ready ops by rank: bits in words of 64, and levels of such words over them. Pushing,
 * taking and finding the highest rank cost one word per level. 4096 ops have two levels. */
#include <errno.h>

#include "base/mem.h"
#include "plan/simulate/simulate_internal.h"

/* Words of a level where the level before, or the lane's line, has so many bits. */
static uint64_t words_of(uint64_t bits)
{
    return size_max(size_div_up(bits, 64), 1);
}

int plani_ready_init(struct plani_ready *ready, const struct plani_graph *graph)
{
    uint64_t count = 0, most = 1;
    *ready = (struct plani_ready){0};
    for (int lane = 0; lane < LANE_COUNT; lane++)
        most = size_max(most, graph->line_count[lane]);
    do {
        most = words_of(most);
        count += most;
        ready->levels++;
    } while (most > 1);
    uint64_t *words = mem_alloc(LANE_COUNT * count, sizeof *words, "plan simulation"); /* zeros */
    if (!words)
        return -ENOMEM;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        most = graph->line_count[lane];
        for (int level = 0; level < ready->levels; level++) {
            ready->words[lane][level] = words;
            most = words_of(most);
            words += most;
        }
    }
    return 0;
}

void plani_ready_fini(struct plani_ready *ready)
{
    mem_free(ready->words[0][0]); /* the words of all lanes */
    *ready = (struct plani_ready){0};
}

void plani_ready_push(struct plani_ready *ready, int lane, uint32_t rank)
{
    ready->count[lane]++;
    for (int level = 0; level < ready->levels; level++, rank /= 64) {
        uint64_t *word = &ready->words[lane][level][rank / 64], before = *word;
        *word = before | UINT64_C(1) << rank % 64;
        if (before)
            return;
    }
}

uint32_t plani_ready_first(const struct plani_ready *ready, int lane)
{
    uint64_t rank = 0;
    for (int level = ready->levels; level-- > 0;)
        rank = 64 * rank + 63 - (uint64_t)__builtin_clzll(ready->words[lane][level][rank]);
    return (uint32_t)rank;
}

void plani_ready_take(struct plani_ready *ready, int lane, uint32_t rank)
{
    ready->count[lane]--;
    for (int level = 0; level < ready->levels; level++, rank /= 64) {
        uint64_t *word = &ready->words[lane][level][rank / 64];
        *word &= ~(UINT64_C(1) << rank % 64);
        if (*word)
            return;
    }
}
