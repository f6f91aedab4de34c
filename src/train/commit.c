/* What a commit is, and what it does on its worker.
 *
 *   extents and sums are written (the program's saves and updates, on which OP_COMMIT depends)
 *     -> fdatasync of the slabs, and of metrics.jsonl
 *     -> manifest slot, fsync of file and directory          from here on the commit is the state
 *     -> the places that it names are not written any more    (swap/places.h)
 *     -> a copy of it, where it is one to keep
 *
 * Several ranks: each makes its own slabs durable and sends its places and sums to rank 0, which writes the
 * one manifest when it has those of all (that is the decision), and then tells them; none writes a place of
 * the commit before until it knows. Whoever fails in between leaves the commit before, for all.
 *
 * Nothing is copied: the manifest names the places where the step's updates went. A failure at any point
 * poisons the engine and leaves the commit before. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "train/train_internal.h"

/* The slab buffer that holds a unit's optimizer state, or that it is saved to; of a frozen unit its params. */
static const buffer *state_place(const traini_setup *setup, uint32_t unit)
{
    const plan_homes *homes = &setup->set.homes;
    if (!plan_learns(&setup->plan, unit)) {
        uint32_t place = plan_frozen_place(&setup->plan, homes, unit);
        return place == PROGRAM_NONE ? NULL : &setup->set.programs[PROGRAM_LOAD].buffers[place];
    }
    uint32_t idx = homes->saves[unit] != PROGRAM_NONE ? homes->saves[unit] : homes->optimizer[unit];
    return idx == PROGRAM_NONE ? NULL : &setup->set.programs[PROGRAM_LOAD].buffers[idx];
}

/* That of the high halves, where the unit's master is split; or NULL. */
static const buffer *high_place(const traini_setup *setup, uint32_t unit)
{
    uint32_t idx = plan_high_place(&setup->set.homes, unit);
    return idx == PROGRAM_NONE ? NULL : &setup->set.programs[PROGRAM_LOAD].buffers[idx];
}

static bool is_on_slab(const buffer *place)
{
    return place && place->arena == TIER_NVME;
}

static uint64_t tiles_of(const traini_setup *setup, uint32_t unit)
{
    return tile_count(plan_rest_elems(&setup->plan, STATE_OPTIMIZER, unit), setup->set.tile_elems);
}

static uint64_t count_extents(const traini_setup *setup)
{
    uint64_t count = 0;
    for (uint32_t u = 0; u < setup->net->unit_count; u++) {
        count += is_on_slab(state_place(setup, u)) ? tiles_of(setup, u) : 0;
        count += is_on_slab(high_place(setup, u)) ? tiles_of(setup, u) : 0;
    }
    return count;
}

static bool is_partitioned(const traini_setup *setup)
{
    return plan_is_sharded(&setup->plan, STATE_OPTIMIZER, 0);
}

/* Place in the manifest, which has extents by unit, rank, tile, params before state, of the rank's extent `idx`
 * in the order of the layout, which has all the state of a unit before its params. */
static uint64_t idx_in_manifest(const traini_setup *setup, uint32_t rank, uint64_t idx,
                                const place_entry *entry)
{
    uint64_t tiles = tiles_of(setup, entry->unit);
    bool has_high = is_on_slab(high_place(setup, entry->unit)), is_params = entry->streams == 0;
    bool is_second = has_high && is_on_slab(state_place(setup, entry->unit));
    uint64_t each = is_second ? 2 : 1;
    uint64_t first = idx - entry->tile - (is_second && is_params ? tiles : 0); /* of the unit */
    if (is_partitioned(setup))
        first = setup->ranks.world * first + rank * tiles * each;
    return first + each * entry->tile + (is_second && !is_params);
}

/* Bytes of each param of an extent of params; 0: it is of state. */
static uint32_t param_width(const traini_setup *setup, const place_entry *entry)
{
    return entry->streams ? 0 : setup->plan.param_bytes;
}

/* All tiles of a unit's state (streams not 0) or params, in the layout's places. */
static uint64_t list_tiles(const traini_setup *setup, uint32_t unit, const buffer *home,
                           uint32_t twin_idx, uint32_t streams, place_entry *entries)
{
    if (!is_on_slab(home))
        return 0;
    uint64_t second = twin_idx == PROGRAM_NONE
                          ? home->offset_bytes
                          : setup->set.programs[PROGRAM_LOAD].buffers[twin_idx].offset_bytes;
    uint64_t elems = plan_rest_elems(&setup->plan, STATE_OPTIMIZER, unit);
    uint64_t tile_elems = setup->set.tile_elems;
    uint64_t count = tile_count(elems, tile_elems), width = setup->plan.param_bytes;
    uint64_t pitch = streams ? tile_pitch(tile_elems, streams) : tile_elems * width;
    for (uint64_t k = 0; k < count; k++) {
        uint64_t held = tile_elems_at(elems, tile_elems, k), within = k * pitch;
        entries[k] = (place_entry){
            .unit = unit,
            .tile = (uint32_t)k,
            .elem_begin = k * tile_elems,
            .elem_count = held,
            .logical_offset = home->offset_bytes + within,
            .size_bytes = streams ? tile_bytes(held, streams) : held * width,
            .streams = streams,
            .offset = {home->offset_bytes + within, second + within},
            .newest = PLACE_NONE,
            .committed = PLACE_NONE,
        };
    }
    return count;
}

static uint64_t list_unit(const traini_setup *setup, uint32_t unit, place_entry *entries)
{
    const plan_homes *homes = &setup->set.homes;
    uint32_t streams = plan_learns(&setup->plan, unit) ? setup->plan.state_streams : 0;
    uint64_t count =
        list_tiles(setup, unit, state_place(setup, unit), homes->twins[unit], streams, entries);
    return count + list_tiles(setup, unit, high_place(setup, unit), homes->high_twins[unit], 0,
                              entries + count);
}

/* What `found` says of the extent becomes its newest and committed place. For those who only read it the
 * place may be anywhere; false where it is none of the two. */
static bool take_extent(const traini_setup *setup, place_entry *entry, const manifest_extent *from)
{
    uint32_t rank = is_partitioned(setup) ? setup->ranks.rank : 0;
    if (from->rank != rank || entry->unit != from->unit || entry->tile != from->tile ||
        traini_state_begin(setup, entry->unit) + entry->elem_begin != from->elem_begin ||
        entry->elem_count != from->elem_count || entry->size_bytes != from->size_bytes ||
        from->param_bytes != param_width(setup, entry))
        return false;
    if (setup->plan.only_eval)
        entry->offset[0] = entry->offset[1] = from->offset_bytes;
    uint8_t which = from->offset_bytes == entry->offset[0] ? 0 : 1;
    if (from->offset_bytes != entry->offset[which])
        return false;
    entry->newest = entry->committed = which;
    entry->is_unread = 1;
    entry->sum[which] = from->checksum;
    entry->has_sum[which] = from->checksum != 0; /* 0: a run of before there were sums */
    return true;
}

/* Whether the manifest's extents are those of as many ranks, partitioned or not as here, of `count` each. */
static bool has_layout_of(const traini_setup *setup, const manifest *found, uint64_t count)
{
    uint32_t world = setup->ranks.world;
    bool is_replicated = world > 1 && !is_partitioned(setup);
    return size_max(found->world_size, 1) == world && found->is_replicated == is_replicated &&
           found->extent_count == (is_replicated ? count : world * count);
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
    bool same = !found || has_layout_of(setup, found, count);
    for (uint64_t i = 0; found && same && i < count; i++)
        same =
            take_extent(setup, &entries[i],
                        &found->extents[idx_in_manifest(setup, setup->ranks.rank, i, &entries[i])]);
    int rc = same ? place_table_create(entries, count, out) : 0;
    mem_free(entries);
    return rc < 0 ? rc : same;
}

/* What a commit needs of each extent of another rank. */
struct traini_placed {
    uint64_t offset_bytes, checksum;
};

/* Memory for the gathering of a commit, so that none is taken later. */
static int make_placed(traini_engine *self)
{
    traini_commit *commit = &self->commit;
    const struct traini_ranks *ranks = &self->setup->ranks;
    uint64_t count = place_table_count(self->places);
    if (commit->own)
        return 0;
    commit->own = mem_alloc(count, sizeof *commit->own, "commit extents");
    bool gathers = ranks->world > 1 && ranks->rank == 0;
    if (gathers)
        commit->all = mem_alloc(ranks->world * count, sizeof *commit->all, "commit extents");
    return commit->own && (!gathers || commit->all) ? 0 : -ENOMEM;
}

/* The record's extents of one rank, but for places and sums. */
static void list_extents(const traini_engine *self, uint32_t rank, manifest *record)
{
    const traini_setup *setup = self->setup;
    for (uint64_t i = 0; i < place_table_count(self->places); i++) {
        const place_entry *from = place_table_at(self->places, i);
        uint64_t begin = is_partitioned(setup)
                             ? shard_begin(setup->unit_elems[from->unit], setup->ranks.world, rank)
                             : 0;
        record->extents[idx_in_manifest(setup, rank, i, from)] = (manifest_extent){
            .unit = from->unit,
            .tile = from->tile,
            .rank = rank,
            .offset_bytes = from->offset[0],
            .size_bytes = from->size_bytes,
            .elem_begin = begin + from->elem_begin,
            .elem_count = from->elem_count,
            .param_bytes = param_width(setup, from),
        };
    }
}

void traini_name_slabs(const traini_setup *setup, const uint8_t uuid[SLAB_UUID_BYTES],
                       manifest_slabs *slabs)
{
    const struct traini_ranks *ranks = &setup->ranks;
    memcpy(slabs->uuid, uuid, sizeof slabs->uuid);
    slabs->drive_count = setup->drive_count;
    for (uint32_t d = 0; d < setup->drive_count; d++)
        snprintf(slabs->drives[d], sizeof slabs->drives[d], "%s",
                 ranks->world > 1 ? setup->drive_names[d] : setup->drives[d].path);
    slabs->rank_count = ranks->world;
    memset(slabs->ranks, 0, sizeof slabs->ranks);
    if (ranks->world == 1 || !ranks->comm)
        return;
    const comm_rank *list = comm_get_ranks(ranks->comm);
    for (uint32_t r = 0; r < ranks->world; r++) {
        snprintf(slabs->ranks[r].host, sizeof slabs->ranks[r].host, "%s", list[r].host);
        slabs->ranks[r].local_rank = list[r].local_rank;
    }
}

void traini_name_run(const traini_setup *setup, manifest *record)
{
    memcpy(record->identity, setup->identity, sizeof record->identity);
    record->fingerprint = setup->fingerprint;
    record->seed = setup->job->run.seed;
    record->tile_elems = setup->set.tile_elems;
    record->state_streams = setup->plan.state_streams;
    record->world_size = setup->ranks.world;
    record->zero_stage = setup->job->zero_stage;
    record->is_replicated = setup->ranks.world > 1 && !is_partitioned(setup);
}

int traini_record_init(traini_engine *self, manifest *record)
{
    const traini_setup *setup = self->setup;
    uint32_t shares = is_partitioned(setup) ? setup->ranks.world : 1;
    TRY(make_placed(self));
    traini_name_slabs(setup, self->disk->uuid, &record->slabs);
    traini_name_run(setup, record);
    record->total_bytes = self->disk->total_bytes;
    record->stripe_bytes = self->disk->stripe_bytes;
    record->extent_count = shares * place_table_count(self->places);
    mem_free(record->extents);
    record->extents = mem_alloc(record->extent_count, sizeof *record->extents, "manifest extents");
    if (!record->extents)
        return -ENOMEM;
    for (uint32_t r = 0; r < shares; r++)
        list_extents(self, r, record);
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

/* This rank's newest places and their sums. */
static int list_placed(const traini_engine *self, struct traini_placed *own)
{
    for (uint64_t i = 0; i < place_table_count(self->places); i++) {
        const place_entry *from = place_table_at(self->places, i);
        if (from->newest == PLACE_NONE || !from->has_sum[from->newest])
            return err_set(ERR_INTERNAL,
                           "a commit of step %llu, but tile %u of unit %u was never written",
                           (unsigned long long)self->commit.record.step, from->tile, from->unit);
        own[i] = (struct traini_placed){from->offset[from->newest], from->sum[from->newest]};
    }
    return 0;
}

static void put_placed(const traini_engine *self, uint32_t rank, const struct traini_placed *placed,
                       manifest *record)
{
    for (uint64_t i = 0; i < place_table_count(self->places); i++) {
        uint64_t idx = idx_in_manifest(self->setup, rank, i, place_table_at(self->places, i));
        record->extents[idx].offset_bytes = placed[i].offset_bytes;
        record->extents[idx].checksum = placed[i].checksum;
    }
}

/* With stage 0 all ranks have made the same bits, or one of them computes wrongly. */
static int compare_copies(const traini_engine *self, uint64_t count)
{
    const struct traini_placed *all = self->commit.all;
    for (uint32_t r = 1; r < self->setup->ranks.world; r++)
        for (uint64_t i = 0; i < count; i++) {
            const place_entry *tile = place_table_at(self->places, i);
            if (memcmp(&all[r * count + i], &all[i], sizeof *all) != 0)
                return err_set(
                    ERR_CORRUPT,
                    "with ZeRO stage 0 all ranks have the same state, but tile %u of unit "
                    "%s on rank %u differs from rank 0's (checksum %016llx, not %016llx): "
                    "the memory or the processor of one of the two hosts is faulty",
                    tile->tile, self->setup->net->units[tile->unit].name, r,
                    (unsigned long long)all[r * count + i].checksum,
                    (unsigned long long)all[i].checksum);
        }
    return 0;
}

int traini_fill_extents(traini_engine *self, manifest *record)
{
    traini_commit *commit = &self->commit;
    const struct traini_ranks *ranks = &self->setup->ranks;
    uint64_t count = place_table_count(self->places);
    TRY(list_placed(self, commit->own));
    if (ranks->world == 1) {
        put_placed(self, 0, commit->own, record);
        return 0;
    }
    TRY(comm_gather(ranks->comm, "extents of the commit", commit->own, count * sizeof *commit->own,
                    ranks->rank == 0 ? commit->all : NULL));
    if (ranks->rank != 0) {
        put_placed(self, is_partitioned(self->setup) ? ranks->rank : 0, commit->own, record);
        return 0;
    }
    if (!is_partitioned(self->setup))
        TRY(compare_copies(self, count));
    for (uint32_t r = 0; r < (is_partitioned(self->setup) ? ranks->world : 1); r++)
        put_placed(self, r, commit->all + r * count, record);
    return 0;
}

static void note_commit(traini_commit *self)
{
    self->committed_step = self->record.step;
    self->has_commit = true;
}

int traini_write_slot(traini_engine *self, enum manifest_state state)
{
    manifest *record = &self->commit.record;
    const struct traini_ranks *ranks = &self->setup->ranks;
    record->state = state;
    record->generation++;
    if (ranks->rank == 0) {
        TRY(manifest_write(self->commit.state_dir, record));
        if (state == MANIFEST_COMMITTED)
            note_commit(&self->commit); /* also where one that was to learn of it is gone */
    }
    /* Rank 0's record is the decision: the others go on when they know of it. */
    return traini_barrier(ranks, "manifest");
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
    if (self->setup->ranks.world > 1)
        comm_note(self->setup->ranks.comm, "commit");
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
    note_commit(commit);
    return failpoint("commit.durable");
}

/* Rank 0 decides whether there is something to do; all copy; rank 0 notes what came of it. */
static int keep_of_ranks(traini_engine *self, const manifest *record)
{
    const struct traini_ranks *ranks = &self->setup->ranks;
    traini_keeper *keeper = self->commit.keeper;
    int begins = ranks->rank == 0 ? traini_keep_begin(keeper, record) : 0;
    TRY(traini_agree(ranks, "keeping of the commit", begins < 0 ? begins : 0));
    uint8_t is_to_copy = begins > 0;
    TRY(traini_from_rank0(ranks, "keeping of the commit", &is_to_copy, sizeof is_to_copy));
    if (!is_to_copy)
        return 0;
    int rc = traini_keep_drop(keeper, self->disk, record); /* of an attempt without a note */
    rc = traini_agree(ranks, "room for the copies of the slabs", rc);
    int copied = rc < 0 ? rc : traini_keep_slabs(keeper, self->disk, record);
    int outcome = traini_agree(ranks, "copies of the slabs", copied);
    if (outcome < 0 && ranks->rank != 0 && traini_keep_drop(keeper, self->disk, record) < 0)
        log_warn("the copied slabs of a commit that is not kept could not be removed: %s",
                 err_text());
    return ranks->rank == 0 ? traini_keep_record(keeper, record, outcome) : 0;
}

int traini_keep_commit(traini_engine *self, const manifest *record)
{
    traini_commit *commit = &self->commit;
    if (!commit->keeper || !traini_is_kept(commit->job, record->step))
        return 0;
    return self->setup->ranks.world > 1 ? keep_of_ranks(self, record)
                                        : traini_keep(commit->keeper, self->disk, record);
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
    return traini_keep_commit(self, &commit->record);
}
