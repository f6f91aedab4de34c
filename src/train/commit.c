/* What a commit is, and what it does on its worker.
 *
 *   extents and sums are written (the program's saves and updates, on which OP_COMMIT depends)
 *     -> fdatasync of the slabs, and of metrics.jsonl
 *     -> manifest slot, fsync of file and directory          from here on the commit is the state
 *     -> the places that it names are not written any more    (swap/places.h)
 *     -> a copy of it, where it is one to keep
 *
 * Nothing is copied: the manifest names the places where the step's updates went. A failure at any point
 * poisons the engine and leaves the commit before. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/tile.h"
#include "train/train_internal.h"

/* The slab buffer that holds a unit's optimizer state, or that it is saved to. */
static const buffer *state_place(const traini_setup *setup, uint32_t unit)
{
    const plan_homes *homes = &setup->set.homes;
    uint32_t idx = homes->saves[unit] != PROGRAM_NONE ? homes->saves[unit] : homes->optimizer[unit];
    return idx == PROGRAM_NONE ? NULL : &setup->set.programs[PROGRAM_LOAD].buffers[idx];
}

static uint64_t count_extents(const traini_setup *setup)
{
    uint64_t count = 0;
    for (uint32_t u = 0; u < setup->net->unit_count; u++) {
        const buffer *home = state_place(setup, u);
        if (home && home->arena == ARENA_NVME)
            count += tile_count(setup->unit_elems[u], setup->set.tile_elems);
    }
    return count;
}

/* All tiles of a unit, in the layout's places. */
static uint64_t list_unit(const traini_setup *setup, uint32_t unit, place_entry *entries)
{
    const buffer *home = state_place(setup, unit);
    if (!home || home->arena != ARENA_NVME)
        return 0;
    uint32_t twin_idx = setup->set.homes.twins[unit];
    uint64_t second = twin_idx == PROGRAM_NONE
                          ? home->offset_bytes
                          : setup->set.programs[PROGRAM_LOAD].buffers[twin_idx].offset_bytes;
    uint64_t elems = setup->unit_elems[unit], tile_elems = setup->set.tile_elems;
    uint64_t count = tile_count(elems, tile_elems);
    for (uint64_t k = 0; k < count; k++) {
        uint64_t held = tile_elems_at(elems, tile_elems, k);
        uint64_t within = k * tile_pitch(tile_elems, setup->plan.state_streams);
        entries[k] = (place_entry){
            .unit = unit,
            .tile = (uint32_t)k,
            .elem_begin = k * tile_elems,
            .elem_count = held,
            .logical_offset = home->offset_bytes + within,
            .size_bytes = tile_bytes(held, setup->plan.state_streams),
            .offset = {home->offset_bytes + within, second + within},
            .newest = PLACE_NONE,
            .committed = PLACE_NONE,
        };
    }
    return count;
}

/* What `found` says of the extent becomes its newest and committed place. For those who only read it the
 * place may be anywhere; false where it is none of the two. */
static bool take_extent(const traini_setup *setup, place_entry *entry, const manifest_extent *from)
{
    if (entry->unit != from->unit || entry->tile != from->tile ||
        entry->elem_begin != from->elem_begin || entry->elem_count != from->elem_count ||
        entry->size_bytes != from->size_bytes)
        return false;
    if (setup->plan.only_eval)
        entry->offset[0] = entry->offset[1] = from->offset_bytes;
    uint8_t which = from->offset_bytes == entry->offset[0] ? 0 : 1;
    if (from->offset_bytes != entry->offset[which])
        return false;
    entry->newest = entry->committed = which;
    entry->sum[which] = from->checksum;
    entry->has_sum[which] = from->checksum != 0; /* 0: a run of before there were sums */
    return true;
}

int traini_places_create(const traini_setup *setup, const manifest *found, place_table **out)
{
    *out = NULL;
    uint64_t count = count_extents(setup), used = 0;
    place_entry *entries = mem_alloc(count, sizeof *entries, "places");
    if (!entries)
        return -ENOMEM;
    for (uint32_t u = 0; u < setup->net->unit_count; u++)
        used += list_unit(setup, u, entries + used);
    bool same = !found || found->extent_count == count;
    for (uint64_t i = 0; found && same && i < count; i++)
        same = take_extent(setup, &entries[i], &found->extents[i]);
    int rc = same ? place_table_create(entries, count, out) : 0;
    mem_free(entries);
    return rc < 0 ? rc : same;
}

int traini_record_init(const traini_engine *self, manifest *record)
{
    const traini_setup *setup = self->setup;
    memcpy(record->slabs.uuid, self->disk->uuid, sizeof record->slabs.uuid);
    record->slabs.drive_count = setup->drive_count;
    for (uint32_t d = 0; d < setup->drive_count; d++)
        snprintf(record->slabs.drives[d], sizeof record->slabs.drives[d], "%s",
                 setup->drives[d].path);
    memcpy(record->identity, setup->identity, sizeof record->identity);
    record->fingerprint = setup->fingerprint;
    record->seed = setup->job->run.seed;
    record->tile_elems = setup->set.tile_elems;
    record->state_streams = setup->plan.state_streams;
    record->total_bytes = self->disk->total_bytes;
    record->stripe_bytes = self->disk->stripe_bytes;
    record->extent_count = place_table_count(self->places);
    mem_free(record->extents);
    record->extents = mem_alloc(record->extent_count, sizeof *record->extents, "manifest extents");
    if (!record->extents)
        return -ENOMEM;
    for (uint64_t i = 0; i < record->extent_count; i++) {
        const place_entry *from = place_table_at(self->places, i);
        assert(i == 0 || record->extents[i - 1].unit <= from->unit); /* the layout's order */
        record->extents[i] = (manifest_extent){
            .unit = from->unit,
            .tile = from->tile,
            .offset_bytes = from->offset[0],
            .size_bytes = from->size_bytes,
            .elem_begin = from->elem_begin,
            .elem_count = from->elem_count,
        };
    }
    return 0;
}

void traini_point_take(traini_point *self, const manifest *from)
{
    *self = (traini_point){
        .seed = from->seed,
        .step = from->step,
        .window_count = from->window_count,
        .skipped_count = from->skipped_count,
        .loss_scale = from->loss_scale,
        .scale_iteration = from->scale_iteration,
        .scale_hysteresis_left = from->scale_hysteresis_left,
        .scale_last_overflow = from->scale_last_overflow,
    };
}

void traini_point_put(const traini_point *self, manifest *record)
{
    record->seed = self->seed;
    record->step = self->step;
    record->window_count = self->window_count;
    record->skipped_count = self->skipped_count;
    record->loss_scale = self->loss_scale;
    record->scale_iteration = self->scale_iteration;
    record->scale_hysteresis_left = self->scale_hysteresis_left;
    record->scale_last_overflow = self->scale_last_overflow;
}

int traini_fill_extents(traini_engine *self, manifest *record)
{
    for (uint64_t i = 0; i < record->extent_count; i++) {
        const place_entry *from = place_table_at(self->places, i);
        if (from->newest == PLACE_NONE || !from->has_sum[from->newest])
            return err_set(ERR_INTERNAL,
                           "a commit of step %llu, but tile %u of unit %u was never written",
                           (unsigned long long)record->step, from->tile, from->unit);
        record->extents[i].offset_bytes = from->offset[from->newest];
        record->extents[i].checksum = from->sum[from->newest];
    }
    return 0;
}

int traini_write_slot(traini_engine *self, enum manifest_state state)
{
    manifest *record = &self->commit.record;
    record->state = state;
    record->generation++;
    return manifest_write(self->commit.state_dir, record);
}

/* A slab that was removed, or whose file system is gone from its path, takes writes all the same: what is
 * committed to it would be lost when the run ends. */
static int check_slabs(const slab *disk)
{
    for (uint32_t d = 0; d < disk->drive_count; d++) {
        struct stat status;
        if (stat(disk->files[d].path, &status) != 0 && (errno == ENOENT || errno == ENOTDIR))
            return err_errno(errno,
                             "the slab %s was removed, or its drive unmounted, while it was in use",
                             disk->files[d].path);
    }
    return 0;
}

static int commit_record(traini_engine *self)
{
    traini_commit *commit = &self->commit;
    TRY(failpoint("commit.begin"));
    TRY(check_slabs(self->disk));
    TRY(io_sync(self->transport));
    if (commit->metrics_fd >= 0 &&
        fdatasync(commit->metrics_fd) != 0) /* no state is lost by that */
        log_warn("metrics.jsonl cannot be made durable: %s", strerror(errno));
    TRY(failpoint("commit.synced"));
    TRY(traini_fill_extents(self, &commit->record));
    TRY(traini_write_slot(self, MANIFEST_COMMITTED));
    place_table_commit(self->places);
    commit->committed_step = commit->record.step;
    commit->has_commit = true;
    return failpoint("commit.durable");
}

int traini_run_commit(void *user, const program *prog, const op *item)
{
    (void)prog;
    (void)item;
    traini_engine *self = user;
    traini_commit *commit = &self->commit;
    int rc = commit_record(self);
    if (rc < 0)
        return err_prefix(rc, "the commit of step %llu", (unsigned long long)commit->record.step);
    if (commit->keeper && traini_is_kept(commit->job, commit->record.step))
        return traini_keep(commit->keeper, self->disk, &commit->record);
    return 0;
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
    for (uint64_t i = 0; i < place_table_count(self->places) && rc == 0; i++) {
        const place_entry *tile = place_table_at(self->places, i);
        rc = hash_tile(self, state, tile->offset[tile->newest], tile->elem_count, scratch,
                       SCRATCH_BYTES);
    }
    if (rc == 0)
        *hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    mem_free(block);
    return rc;
}
