/* The clean stop: all optimizer state on the slab, then the manifest that says so.
 *
 *   RUNNING --(flush, save, fdatasync, manifest CLEAN)--> CLEAN --(next start: manifest RUNNING)--> RUNNING
 *
 * One place per extent: while a run changes the slab in place its manifest says RUNNING, and a run that
 * was killed cannot be resumed. A clean manifest has the sum of every extent, which the next process
 * compares with what it reads. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/mem.h"
#include "base/tile.h"
#include "train/train_internal.h"

/* The slab buffer that holds a unit's optimizer state at a clean stop. */
static const buffer *state_place(const traini_setup *setup, uint32_t unit)
{
    const plan_homes *homes = &setup->set.homes;
    uint32_t idx = homes->saves[unit] != PROGRAM_NONE ? homes->saves[unit] : homes->optimizer[unit];
    return &setup->set.programs[PROGRAM_SAVE].buffers[idx];
}

int traini_extents_fill(const traini_setup *setup, manifest *record)
{
    uint64_t tile_elems = setup->set.tile_elems, count = 0;
    for (uint32_t u = 0; u < setup->net->unit_count; u++)
        count += tile_count(setup->unit_elems[u], tile_elems);
    record->extents = mem_alloc(count, sizeof *record->extents, "manifest extents");
    if (!record->extents)
        return -ENOMEM;
    for (uint32_t u = 0; u < setup->net->unit_count; u++) {
        uint64_t elems = setup->unit_elems[u], offset = state_place(setup, u)->offset_bytes;
        for (uint64_t k = 0; k < tile_count(elems, tile_elems); k++) {
            uint64_t held = tile_elems_at(elems, tile_elems, k);
            record->extents[record->extent_count++] = (manifest_extent){
                .unit = u,
                .tile = (uint32_t)k,
                .offset_bytes = offset + k * tile_pitch(tile_elems, setup->plan.state_streams),
                .size_bytes = tile_bytes(held, setup->plan.state_streams),
                .elem_begin = k * tile_elems,
                .elem_count = held,
            };
        }
    }
    return 0;
}

int traini_extents_match(const traini_setup *setup, const manifest *found)
{
    manifest ours = {0};
    TRY(traini_extents_fill(setup, &ours));
    bool same = ours.extent_count == found->extent_count;
    for (uint64_t i = 0; same && i < ours.extent_count; i++)
        same = ours.extents[i].offset_bytes == found->extents[i].offset_bytes &&
               ours.extents[i].size_bytes == found->extents[i].size_bytes;
    mem_free(ours.extents);
    if (same)
        return 0;
    return err_set(
        ERR_INPUT,
        "the run was stopped under another placement: its optimizer state lies elsewhere "
        "on the slab (%llu extents there); resume with the placement of job.json in the "
        "run directory",
        (unsigned long long)found->extent_count);
}

static int compare_offsets(const void *left, const void *right)
{
    const checksum_extent *a = left, *b = right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* The sums of what lies on the slab now into the manifest's extents; 0 where one is not known. */
static int store_sums(const traini_engine *self, manifest *record)
{
    uint64_t count = checksum_count(self->sums);
    checksum_extent *known = mem_alloc(count, sizeof *known, "checksums");
    if (!known)
        return -ENOMEM;
    count = checksum_export(self->sums, known, count);
    for (uint64_t i = 0; i < record->extent_count; i++) {
        checksum_extent key = {.offset = record->extents[i].offset_bytes};
        const checksum_extent *found =
            count ? bsearch(&key, known, count, sizeof *known, compare_offsets) : NULL;
        record->extents[i].checksum = found ? found->sum : 0;
    }
    mem_free(known);
    return 0;
}

int traini_expect_sums(traini_engine *self, const manifest *found)
{
    for (uint64_t i = 0; i < found->extent_count; i++) {
        const manifest_extent *from = &found->extents[i];
        checksum_extent extent = {.offset = from->offset_bytes,
                                  .size_bytes = from->size_bytes,
                                  .elem_count = from->elem_count,
                                  .sum = from->checksum};
        if (from->checksum != 0) /* not taken: a run of before there were sums */
            TRY(checksum_put(self->sums, &extent));
    }
    return 0;
}

int traini_commit(traini_engine *self, const char *state_dir, manifest *record,
                  enum manifest_state state)
{
    if (state == MANIFEST_COMMITTED) {
        TRY(traini_engine_run(self, PROGRAM_SAVE, record->step, NULL));
        TRY(slab_sync(self->disk));
        TRY(store_sums(self, record));
    }
    record->state = state;
    record->generation++;
    return manifest_write(state_dir, record);
}

/* Adds one tile's master weights to the hash. */
static int hash_tile(traini_engine *self, XXH3_state_t *state, uint64_t offset, uint64_t elems,
                     unsigned char *scratch, uint64_t scratch_bytes)
{
    uint64_t left = elems * sizeof(float);
    while (left > 0) {
        uint64_t part = size_min(left, scratch_bytes);
        uint64_t padded = size_round_up(part, TILE_BLOCK_BYTES);
        TRY(io_transfer(self->transport, IO_READ, offset, scratch, padded));
        XXH3_64bits_update(state, scratch, part);
        offset += part;
        left -= part;
    }
    return 0;
}

int traini_weights_hash(traini_engine *self, uint64_t *hash)
{
    *hash = 0;
    const traini_setup *setup = self->setup;
    enum { SCRATCH_BYTES = 1 << 20 };
    unsigned char *block = mem_alloc(SCRATCH_BYTES + TILE_BLOCK_BYTES, 1, "hash scratch");
    XXH3_state_t *state = XXH3_createState();
    if (!block || !state) {
        mem_free(block);
        XXH3_freeState(state);
        return err_set(-ENOMEM, "no memory to hash the weights");
    }
    unsigned char *scratch = block + (TILE_BLOCK_BYTES - (uintptr_t)block % TILE_BLOCK_BYTES);
    XXH3_64bits_reset(state);
    int rc = 0;
    uint64_t tile_elems = setup->set.tile_elems;
    for (uint32_t u = 0; u < setup->net->unit_count && rc == 0; u++) {
        uint64_t elems = setup->unit_elems[u];
        for (uint64_t k = 0; k < tile_count(elems, tile_elems) && rc == 0; k++)
            rc = hash_tile(self, state,
                           state_place(setup, u)->offset_bytes +
                               k * tile_pitch(tile_elems, setup->plan.state_streams),
                           tile_elems_at(elems, tile_elems, k), scratch, SCRATCH_BYTES);
    }
    if (rc == 0)
        *hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    mem_free(block);
    return rc;
}
