/* The steps of a commit on its worker.
 *
 *   extents and sums are written (the program's saves and updates, on which OP_COMMIT depends)
 *     -> fdatasync of the slabs and of metrics.jsonl
 *     -> manifest slot, fsync of file and directory          from here on the commit is the state
 *     -> the places that it names are not written any more    (swap/place_table.h)
 *     -> a copy of it, if the job keeps this commit
 *
 * Several ranks: each rank makes its own slabs durable and sends its places and sums to rank 0.
 * When rank 0 has those of all ranks, it writes the one manifest, and then tells the others.
 * Writing the manifest is the decision: no rank writes to a place of the previous commit before it
 * knows of it. If a rank fails before that, the previous commit stays valid for all.
 *
 * Nothing is copied: the manifest names the places where the step's updates went. A failure at any
 * point poisons the engine and leaves the previous commit. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/shard.h"
#include "state/state_internal.h"

/* The place and the sum of an extent, as ranks send them to rank 0. */
struct state_placed {
    uint64_t offset_bytes, checksum;
};

/* Allocates the memory in which commits gather places and sums, so that none is allocated later. */
static int make_placed(state_commit *commit)
{
    const struct ranks *ranks = &commit->engine->setup->ranks;
    uint64_t count = place_table_count(commit->engine->places);
    if (commit->own)
        return 0;
    commit->own = mem_alloc(count, sizeof *commit->own, "commit extents");
    bool gathers = ranks->world > 1 && ranks->rank == 0;
    if (gathers)
        commit->all = mem_alloc(ranks->world * count, sizeof *commit->all, "commit extents");
    return commit->own && (!gathers || commit->all) ? 0 : -ENOMEM;
}

/* Fills the record's extents of one rank, except their newest places and their sums. */
static void list_extents(const struct engine *self, uint32_t rank, manifest *record)
{
    const struct setup *setup = self->setup;
    for (uint64_t i = 0; i < place_table_count(self->places); i++) {
        const place_entry *from = place_table_at(self->places, i);
        uint64_t begin = engine_is_partitioned(setup)
                             ? shard_begin(setup->unit_elems[from->unit], setup->ranks.world, rank)
                             : 0;
        record->extents[engine_extent_in_manifest(setup, rank, i, from)] = (manifest_extent){
            .unit = from->unit,
            .tile = from->tile,
            .rank = rank,
            .offset_bytes = from->offset[0],
            .size_bytes = from->size_bytes,
            .elem_begin = begin + from->elem_begin,
            .elem_count = from->elem_count,
            .param_bytes = engine_param_width(setup, from),
        };
    }
}

void state_name_slabs(const struct setup *setup, const uint8_t uuid[SLAB_UUID_BYTES],
                      manifest_slabs *slabs)
{
    const struct ranks *ranks = &setup->ranks;
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

void state_name_run(const struct setup *setup, manifest *record)
{
    memcpy(record->identity, setup->identity, sizeof record->identity);
    record->fingerprint = setup->fingerprint;
    record->point.seed = setup->job->run.seed;
    record->tile_elems = setup->set.tile_elems;
    record->state_streams = setup->plan.state_streams;
    record->world_size = setup->ranks.world;
    record->zero_stage = setup->job->zero_stage;
    record->is_replicated = setup->ranks.world > 1 && !engine_is_partitioned(setup);
}

int state_record_init(state_commit *commit)
{
    const struct engine *self = commit->engine;
    const struct setup *setup = self->setup;
    manifest *record = &commit->record;
    uint32_t shares = engine_is_partitioned(setup) ? setup->ranks.world : 1;
    TRY(make_placed(commit));
    state_name_slabs(setup, self->disk->uuid, &record->slabs);
    state_name_run(setup, record);
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

/* Lists this rank's newest places and their sums. */
static int list_placed(const state_commit *commit, struct state_placed *own)
{
    const struct engine *self = commit->engine;
    for (uint64_t i = 0; i < place_table_count(self->places); i++) {
        const place_entry *from = place_table_at(self->places, i);
        if (from->newest == PLACE_NONE || !from->has_sum[from->newest])
            return err_set(ERR_INTERNAL,
                           "a commit of step %llu, but tile %u of unit %u was never written",
                           (unsigned long long)commit->record.point.step, from->tile, from->unit);
        own[i] = (struct state_placed){from->offset[from->newest], from->sum[from->newest]};
    }
    return 0;
}

static void put_placed(const struct engine *self, uint32_t rank, const struct state_placed *placed,
                       manifest *record)
{
    for (uint64_t i = 0; i < place_table_count(self->places); i++) {
        uint64_t idx =
            engine_extent_in_manifest(self->setup, rank, i, place_table_at(self->places, i));
        record->extents[idx].offset_bytes = placed[i].offset_bytes;
        record->extents[idx].checksum = placed[i].checksum;
    }
}

/* With ZeRO stage 0 all ranks must have computed the same bits. Else one of them is faulty. */
static int compare_copies(const state_commit *commit, uint64_t count)
{
    const struct engine *self = commit->engine;
    const struct state_placed *all = commit->all;
    for (uint32_t r = 1; r < self->setup->ranks.world; r++)
        for (uint64_t i = 0; i < count; i++) {
            const place_entry *tile = place_table_at(self->places, i);
            if (memcmp(&all[r * count + i], &all[i], sizeof *all) != 0)
                return err_set(
                    ERR_CORRUPT,
                    "with ZeRO stage 0 all ranks have the same state, but tile %u of unit %s on "
                    "rank %u differs from rank 0's (checksum %016llx, not %016llx): %s",
                    tile->tile, self->setup->net->units[tile->unit].name, r,
                    (unsigned long long)all[r * count + i].checksum,
                    (unsigned long long)all[i].checksum,
                    self->first_elems
                        ? "the program gave the ranks different weights to begin with (draw them "
                          "from one seed), or memory or a processor is faulty"
                        : "the memory or the processor of one of the two hosts is faulty");
        }
    return 0;
}

int state_fill_extents(state_commit *commit)
{
    const struct engine *self = commit->engine;
    manifest *record = &commit->record;
    const struct ranks *ranks = &self->setup->ranks;
    uint64_t count = place_table_count(self->places);
    TRY(list_placed(commit, commit->own));
    if (ranks->world == 1) {
        put_placed(self, 0, commit->own, record);
        return 0;
    }
    TRY(comm_gather(ranks->comm, "extents of the commit", commit->own, count * sizeof *commit->own,
                    ranks->rank == 0 ? commit->all : NULL));
    if (ranks->rank != 0) {
        put_placed(self, engine_is_partitioned(self->setup) ? ranks->rank : 0, commit->own, record);
        return 0;
    }
    if (!engine_is_partitioned(self->setup))
        TRY(compare_copies(commit, count));
    for (uint32_t r = 0; r < (engine_is_partitioned(self->setup) ? ranks->world : 1); r++)
        put_placed(self, r, commit->all + r * count, record);
    return 0;
}

static void note_commit(state_commit *self)
{
    self->committed_step = self->record.point.step;
    self->has_commit = true;
}

int state_write_slot(state_commit *self, enum manifest_state state)
{
    manifest *record = &self->record;
    const struct ranks *ranks = &self->engine->setup->ranks;
    record->state = state;
    record->generation++;
    if (ranks->rank == 0) {
        TRY(manifest_write(self->state_dir, record));
        if (state == MANIFEST_COMMITTED)
            note_commit(self); /* also if a rank that should learn of it has failed */
    }
    /* Rank 0's manifest is the decision. The others continue once they know that it is written. */
    return ranks_barrier(ranks, "manifest");
}

/* Checks that the slabs' files still exist and are as long as they were made. Writes to a slab
 * succeed even if it was removed or its file system was unmounted from its path, but such a commit
 * would be lost when the run ends; so would one in a slab that someone has cut off. A slab that was
 * cut off and then written at its end has its length again: its holes are not seen here. */
static int check_slabs(const slab *disk)
{
    for (uint32_t d = 0; d < disk->drive_count; d++) {
        struct stat status;
        bool is_seen = stat(disk->files[d].path, &status) == 0;
        if (!is_seen && (errno == ENOENT || errno == ENOTDIR))
            return err_errno(errno,
                             "the slab %s was removed, or its drive unmounted, while it was in use",
                             disk->files[d].path);
        if (is_seen && (uint64_t)status.st_size < disk->files[d].file_bytes)
            return err_set(ERR_CORRUPT,
                           "the slab %s was cut off to %lld of its %" PRIu64
                           " bytes by others while it was in use",
                           disk->files[d].path, (long long)status.st_size,
                           disk->files[d].file_bytes);
    }
    return 0;
}

static int commit_record(state_commit *commit)
{
    const struct engine *self = commit->engine;
    if (self->setup->ranks.world > 1)
        comm_note(self->setup->ranks.comm, "commit");
    TRY(failpoint("commit.begin"));
    TRY(check_slabs(self->disk));
    TRY(io_sync(self->transport));
    if (commit->metrics_fd >= 0 &&
        fdatasync(commit->metrics_fd) != 0) /* no state is lost by this */
        log_warn("metrics.jsonl cannot be made durable: %s", strerror(errno));
    TRY(failpoint("commit.synced"));
    TRY(state_fill_extents(commit));
    TRY(state_write_slot(commit, MANIFEST_COMMITTED));
    place_table_commit(self->places);
    note_commit(commit);
    return failpoint("commit.durable");
}

int state_keep_commit(state_commit *commit, const manifest *record)
{
    const struct engine *self = commit->engine;
    return commit->keeper ? state_keep(commit->keeper, &self->setup->ranks, self->disk, record) : 0;
}

int state_run_commit(void *user, const program *prog, const op *item)
{
    (void)prog;
    (void)item;
    state_commit *self = user;
    int rc = commit_record(self);
    if (rc < 0)
        return err_prefix(rc, "the commit of step %llu",
                          (unsigned long long)self->record.point.step);
    return state_keep_commit(self, &self->record);
}

void state_commit_fini(state_commit *self)
{
    state_keeper_destroy(self->keeper);
    mem_free(self->own);
    mem_free(self->all);
    manifest_fini(&self->record);
    *self = (state_commit){.metrics_fd = -1};
}
