/* See ranks_fixture.h. */
#include <inttypes.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/shard.h"
#include "base/tile.h"
#include "state/run_dir.h"
#include "swap/checksum.h"
#include "tests/state/ranks_fixture.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"

uint64_t ranks_seed = 20261122;
/* One that each rank has a part of, one that leaves ranks without, and some in between. */
const uint64_t ranks_unit_elems[RANKS_UNITS] = {23 * SHARD_ELEMS_STEP, SHARD_ELEMS_STEP,
                                                9 * SHARD_ELEMS_STEP, 18 * SHARD_ELEMS_STEP};

int ranks_setup(void **state)
{
    return directory_make(state);
}

int ranks_teardown(void **state)
{
    return directory_remove(state);
}

const char *ranks_directory(void)
{
    assert_true(directory[0] != '\0'); /* else drives would lie in the root directory */
    return directory;
}

uint32_t ranks_element(uint32_t unit, uint32_t stream, uint64_t idx)
{
    uint64_t mixed =
        (idx + 1) * 0x9e3779b97f4a7c15u + ((uint64_t)unit << 8 | stream) * 0xda942042e4dd58b5u;
    return (uint32_t)((mixed ^ (mixed >> 31)) >> 13);
}

void *ranks_aligned(uint64_t size_bytes, void **block)
{
    *block = mem_alloc(size_bytes + TILE_BLOCK_BYTES, 1, "test tile");
    assert_non_null(*block);
    return (unsigned char *)*block + (TILE_BLOCK_BYTES - (uintptr_t)*block % TILE_BLOCK_BYTES);
}

struct ranks_run ranks_old;

uint64_t ranks_rest_elems(const struct ranks_run *self, uint32_t unit)
{
    return self->is_sharded ? shard_elems(ranks_unit_elems[unit], self->world)
                            : shard_whole_elems(ranks_unit_elems[unit], self->world);
}

/* The extents of one rank's layout, by unit and tile; how many. `begins` counts from the rank's
 * first. */
uint64_t ranks_lay_out(const struct ranks_run *self, uint32_t rank, bool begins_whole,
                       manifest_extent *out)
{
    uint64_t count = 0, offset = 0;
    for (uint32_t u = 0; u < RANKS_UNITS; u++) {
        uint64_t elems = ranks_rest_elems(self, u);
        uint64_t begin = self->is_sharded && begins_whole ? rank * elems : 0;
        for (uint64_t k = 0; k < tile_count(elems, self->tile_elems); k++) {
            uint64_t held = tile_elems_at(elems, self->tile_elems, k);
            offset += rng_below(ranks_seed, rank, count, 3) * TILE_BLOCK_BYTES;
            out[count++] = (manifest_extent){.unit = u,
                                             .tile = (uint32_t)k,
                                             .rank = self->is_sharded ? rank : 0,
                                             .offset_bytes = offset,
                                             .size_bytes = tile_bytes(held, RANKS_STREAMS),
                                             .elem_begin = begin + k * self->tile_elems,
                                             .elem_count = held};
            offset += tile_bytes(held, RANKS_STREAMS);
        }
    }
    return count;
}

/* Fills `data` with the expected contents of the tile: the unit's elements, then zeros. */
void ranks_fill_tile(const manifest_extent *tile, unsigned char *data)
{
    memset(data, 0, tile->size_bytes);
    uint64_t real =
        shard_real_elems(ranks_unit_elems[tile->unit], tile->elem_begin, tile->elem_count);
    for (uint32_t s = 0; s < RANKS_STREAMS; s++) {
        uint32_t *stream = (uint32_t *)(data + s * tile_stream_stride(tile->elem_count));
        for (uint64_t e = 0; e < real; e++)
            stream[e] = ranks_element(tile->unit, s, tile->elem_begin + e);
    }
}

void ranks_open_rank(struct ranks_run *self, uint32_t rank, uint64_t total_bytes)
{
    static slab_drive drives[DRIVES_MAX];
    slab_config config;
    assert_ok(state_slab_config(&self->record.slabs, rank, drives, &config));
    config.total_bytes = total_bytes;
    config.stripe_bytes = MIB;
    assert_ok(slab_open(&self->disks[rank], &config));
}

io *ranks_open_io(slab *disk)
{
    const io_config config = {.target = disk, .backend = IO_POOL, .pool_threads = 1};
    io *transport;
    assert_ok(io_create(&config, &transport));
    return transport;
}

/* The tiles of a rank with their sums to its slab. */
static void write_rank(struct ranks_run *self, uint32_t rank, manifest_extent *extents,
                       uint64_t count)
{
    void *block;
    unsigned char *data = ranks_aligned(tile_bytes(self->tile_elems, RANKS_STREAMS), &block);
    io *transport = ranks_open_io(&self->disks[rank]);
    for (uint64_t i = 0; i < count; i++) {
        manifest_extent *tile = &extents[i];
        ranks_fill_tile(tile, data);
        tile->checksum = checksum_sum(data, tile->size_bytes, tile->elem_count, RANKS_STREAMS);
        assert_ok(io_transfer(transport, IO_WRITE, tile->offset_bytes, data, tile->size_bytes));
    }
    io_destroy(transport);
    mem_free(block);
}

static int compare_extents(const void *left, const void *right)
{
    const manifest_extent *a = left, *b = right;
    if (a->unit != b->unit)
        return a->unit < b->unit ? -1 : 1;
    return a->elem_begin < b->elem_begin ? -1 : 1;
}

void ranks_name_slabs(struct ranks_run *self, const char *name)
{
    manifest_slabs *slabs = &self->record.slabs;
    memset(slabs->uuid, name[0], sizeof slabs->uuid);
    slabs->drive_count = RANKS_DRIVES;
    slabs->rank_count = self->world;
    snprintf(slabs->drives[0], sizeof slabs->drives[0], "%s/%s-shared", ranks_directory(), name);
    snprintf(slabs->drives[1], sizeof slabs->drives[1], "%s/%s-{rank}-{host}", ranks_directory(),
             name);
    for (uint32_t r = 0; r < self->world; r++) {
        snprintf(slabs->ranks[r].host, sizeof slabs->ranks[r].host, "host-%u", r / 2);
        slabs->ranks[r].local_rank = r % 2;
    }
}

/* A committed run of so many ranks, with all its slabs. */
void ranks_make_old(uint32_t world, bool is_sharded, uint64_t tile_elems)
{
    enum { EXTENTS_MAX = 4096 };
    ranks_old =
        (struct ranks_run){.world = world, .is_sharded = is_sharded, .tile_elems = tile_elems};
    manifest *record = &ranks_old.record;
    record->state = MANIFEST_COMMITTED;
    record->point.step = 77;
    record->world_size = world;
    record->is_replicated = world > 1 && !is_sharded;
    record->state_streams = RANKS_STREAMS;
    record->tile_elems = tile_elems;
    record->extents = mem_alloc(EXTENTS_MAX, sizeof *record->extents, "test extents");
    assert_non_null(record->extents);
    ranks_name_slabs(&ranks_old, "old");
    record->total_bytes = 16 * MIB;
    record->stripe_bytes = MIB;
    for (uint32_t r = 0; r < world; r++) {
        manifest_extent *own = record->extents + record->extent_count;
        uint64_t count = ranks_lay_out(&ranks_old, is_sharded ? r : 0, true, own);
        ranks_open_rank(&ranks_old, r, record->total_bytes);
        write_rank(&ranks_old, r, own, count);
        slab_close(&ranks_old.disks[r]);
        if (is_sharded || r + 1 == world)
            record->extent_count += count;
    }
    assert_true(record->extent_count < EXTENTS_MAX);
    qsort(record->extents, record->extent_count, sizeof *record->extents, compare_extents);
}

void ranks_remove_old(void)
{
    for (uint32_t r = 0; r < ranks_old.world; r++) {
        static slab_drive drives[DRIVES_MAX];
        slab_config config;
        assert_ok(state_slab_config(&ranks_old.record.slabs, r, drives, &config));
        assert_ok(slab_remove_files(&config));
    }
    mem_free(ranks_old.record.extents);
}
