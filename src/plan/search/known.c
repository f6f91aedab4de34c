/* The steps that a search has tried, by hash, so that none is tried twice. See plani_work.
 *
 * A table with linear probing. A full one only costs the repetition. */
#include <errno.h>
#include <string.h>

#include <xxhash.h>

#include "base/mem.h"
#include "plan/search/search_internal.h"

enum {
    KNOWN = 16384, /* a power of 2 */
    KNOWN_MOST = KNOWN * 3 / 4,
};

uint64_t plani_trial_key(const plan_job *job, const struct plani_point *point)
{
    uint64_t hash = 0;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        hash = XXH3_64bits_withSeed(job->homes[kind], job->unit_count, hash);
    const uint64_t figures[] = {job->order,
                                job->update,
                                job->parked_near,
                                job->parked_on_host,
                                job->call_tokens,
                                job->budget_bytes[TIER_DEVICE],
                                job->budget_bytes[TIER_HOST],
                                job->budget_bytes[TIER_NVME],
                                point->held,
                                point->tile_elems,
                                point->copy_parts,
                                point->carried_parts,
                                point->ahead[TIER_DEVICE],
                                point->ahead[TIER_HOST],
                                point->commit,
                                point->fetches_hit};
    hash = XXH3_64bits_withSeed(figures, sizeof figures, hash);
    return hash ? hash : 1;
}

/* The slot with the key, or the empty one where it belongs. */
static struct plani_known *slot_of(const plani_work *work, uint64_t key)
{
    uint64_t at = key & (KNOWN - 1);
    while (work->known[at].key != 0 && work->known[at].key != key)
        at = (at + 1) & (KNOWN - 1);
    return &work->known[at];
}

const struct plani_known *plani_recall(const plani_work *work, uint64_t key)
{
    const struct plani_known *slot = work->known ? slot_of(work, key) : NULL;
    return slot && slot->key == key ? slot : NULL;
}

int plani_remember(plani_work *work, const struct plani_known *trial)
{
    if (!work->known)
        work->known = mem_alloc(KNOWN, sizeof *work->known, "plan trials");
    if (!work->known)
        return -ENOMEM;
    struct plani_known *slot = slot_of(work, trial->key);
    if (slot->key == 0 && work->known_count == KNOWN_MOST)
        return 0;
    work->known_count += slot->key == 0;
    *slot = *trial;
    return 0;
}

int plani_work_copy(plani_work *work, const plani_work *from)
{
    struct plani_known *known = NULL;
    if (from->known) {
        known = mem_alloc(KNOWN, sizeof *known, "plan trials");
        if (!known)
            return -ENOMEM;
        memcpy(known, from->known, KNOWN * sizeof *known);
    }
    mem_free(work->known);
    work->known = known;
    work->known_count = from->known_count;
    work->ops = from->ops;
    work->step_ops = from->step_ops;
    work->try_count = from->try_count;
    work->repeat_count = from->repeat_count;
    return 0;
}

void plani_work_fini(plani_work *work)
{
    mem_free(work->known);
    plani_builder_fini(&work->builder);
    *work = (plani_work){0};
}
