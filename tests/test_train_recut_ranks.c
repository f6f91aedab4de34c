/* A commit of some ranks moved to others: from 1 to 4 ranks to 1 to 4, cut into shards or whole on each, every
 * rank of the new run gets each element of its part with its bits and zeros as padding; a slab that cannot be
 * seen is named, with its host; memory does not grow with ranks. Also verify, inspect and kept copies of such
 * commits: the hash of the weights is that of one rank. Old slabs are files. SLUICE_TEST_SEED draws the tiles. */
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/shard.h"
#include "base/tile.h"
#include "swap/checksum.h"
#include "tiers_helpers.h"
#include "train/rank_slabs.h"
#include "train/sweep.h"
#include "train/train_internal.h"

#include <xxhash.h>

enum { WORLDS = 4, MANY = 12, UNITS = 4, STREAMS = 3, DRIVES = 2 };

static uint64_t seed = 20261122;
/* One that each rank has a part of, one that leaves ranks without, and some in between. */
static const uint64_t unit_elems[UNITS] = {23 * SHARD_ELEMS_STEP, SHARD_ELEMS_STEP,
                                           9 * SHARD_ELEMS_STEP, 18 * SHARD_ELEMS_STEP};

static uint32_t element(uint32_t unit, uint32_t stream, uint64_t idx)
{
    uint64_t mixed =
        (idx + 1) * 0x9e3779b97f4a7c15u + ((uint64_t)unit << 8 | stream) * 0xda942042e4dd58b5u;
    return (uint32_t)((mixed ^ (mixed >> 31)) >> 13);
}

static void *aligned(uint64_t size_bytes, void **block)
{
    *block = mem_alloc(size_bytes + TILE_BLOCK_BYTES, 1, "test tile");
    assert_non_null(*block);
    return (unsigned char *)*block + (TILE_BLOCK_BYTES - (uintptr_t)*block % TILE_BLOCK_BYTES);
}

/* Ranks with their slabs; of an old run, and of a new one. */
struct run {
    manifest record;
    slab disks[MANY];
    uint32_t world;
    bool is_sharded;
    uint64_t tile_elems;
};

static struct run old, fresh;

static uint64_t rest_elems(const struct run *self, uint32_t unit)
{
    return self->is_sharded ? shard_elems(unit_elems[unit], self->world)
                            : shard_whole_elems(unit_elems[unit], self->world);
}

/* The extents of one rank's layout, by unit and tile; how many. `begins` counts from the rank's first. */
static uint64_t lay_out(const struct run *self, uint32_t rank, bool begins_whole,
                        manifest_extent *out)
{
    uint64_t count = 0, offset = 0;
    for (uint32_t u = 0; u < UNITS; u++) {
        uint64_t elems = rest_elems(self, u);
        uint64_t begin = self->is_sharded && begins_whole ? rank * elems : 0;
        for (uint64_t k = 0; k < tile_count(elems, self->tile_elems); k++) {
            uint64_t held = tile_elems_at(elems, self->tile_elems, k);
            offset += rng_below(seed, rank, count, 3) * TILE_BLOCK_BYTES;
            out[count++] = (manifest_extent){.unit = u,
                                             .tile = (uint32_t)k,
                                             .rank = self->is_sharded ? rank : 0,
                                             .offset_bytes = offset,
                                             .size_bytes = tile_bytes(held, STREAMS),
                                             .elem_begin = begin + k * self->tile_elems,
                                             .elem_count = held};
            offset += tile_bytes(held, STREAMS);
        }
    }
    return count;
}

/* What the tile must hold: the unit's elements, then zeros. */
static void fill_tile(const manifest_extent *tile, unsigned char *data)
{
    memset(data, 0, tile->size_bytes);
    uint64_t real = shard_real_elems(unit_elems[tile->unit], tile->elem_begin, tile->elem_count);
    for (uint32_t s = 0; s < STREAMS; s++) {
        uint32_t *stream = (uint32_t *)(data + s * tile_stream_stride(tile->elem_count));
        for (uint64_t e = 0; e < real; e++)
            stream[e] = element(tile->unit, s, tile->elem_begin + e);
    }
}

static void open_rank(struct run *self, uint32_t rank, uint64_t total_bytes)
{
    slab_drive *drives;
    slab_config config;
    assert_int_equal(traini_slab_config(&self->record.slabs, rank, &config, &drives), 0);
    config.total_bytes = total_bytes;
    config.stripe_bytes = MIB;
    if (slab_open(&self->disks[rank], &config) < 0)
        fail_msg("%s", err_text());
    mem_free(drives);
}

static io *open_io(slab *disk)
{
    const io_config config = {.target = disk, .backend = IO_POOL, .pool_threads = 1};
    io *transport;
    if (io_create(&config, &transport) < 0)
        fail_msg("%s", err_text());
    return transport;
}

/* The tiles of a rank with their sums to its slab. */
static void write_rank(struct run *self, uint32_t rank, manifest_extent *extents, uint64_t count)
{
    void *block;
    unsigned char *data = aligned(tile_bytes(self->tile_elems, STREAMS), &block);
    io *transport = open_io(&self->disks[rank]);
    for (uint64_t i = 0; i < count; i++) {
        manifest_extent *tile = &extents[i];
        fill_tile(tile, data);
        tile->checksum = checksum_sum(data, tile->size_bytes, tile->elem_count);
        if (io_transfer(transport, IO_WRITE, tile->offset_bytes, data, tile->size_bytes) < 0)
            fail_msg("%s", err_text());
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

static void name_slabs(struct run *self, const char *name)
{
    manifest_slabs *slabs = &self->record.slabs;
    memset(slabs->uuid, name[0], sizeof slabs->uuid);
    slabs->drive_count = DRIVES;
    slabs->rank_count = self->world;
    snprintf(slabs->drives[0], sizeof slabs->drives[0], "%s/%s-shared", helper_directory, name);
    snprintf(slabs->drives[1], sizeof slabs->drives[1], "%s/%s-{rank}-{host}", helper_directory,
             name);
    for (uint32_t r = 0; r < self->world; r++) {
        snprintf(slabs->ranks[r].host, sizeof slabs->ranks[r].host, "host-%u", r / 2);
        slabs->ranks[r].local_rank = r % 2;
    }
}

/* A committed run of so many ranks, with all its slabs. */
static void make_old(uint32_t world, bool is_sharded, uint64_t tile_elems)
{
    enum { EXTENTS_MAX = 4096 };
    old = (struct run){.world = world, .is_sharded = is_sharded, .tile_elems = tile_elems};
    manifest *record = &old.record;
    record->state = MANIFEST_COMMITTED;
    record->step = 77;
    record->world_size = world;
    record->is_replicated = world > 1 && !is_sharded;
    record->state_streams = STREAMS;
    record->tile_elems = tile_elems;
    record->extents = mem_alloc(EXTENTS_MAX, sizeof *record->extents, "test extents");
    assert_non_null(record->extents);
    name_slabs(&old, "old");
    record->total_bytes = 16 * MIB;
    record->stripe_bytes = MIB;
    for (uint32_t r = 0; r < world; r++) {
        manifest_extent *own = record->extents + record->extent_count;
        uint64_t count = lay_out(&old, is_sharded ? r : 0, true, own);
        open_rank(&old, r, record->total_bytes);
        write_rank(&old, r, own, count);
        slab_close(&old.disks[r]);
        if (is_sharded || r + 1 == world)
            record->extent_count += count;
    }
    assert_true(record->extent_count < EXTENTS_MAX);
    qsort(record->extents, record->extent_count, sizeof *record->extents, compare_extents);
}

static void remove_old(void)
{
    for (uint32_t r = 0; r < old.world; r++) {
        slab_drive *drives;
        slab_config config;
        assert_int_equal(traini_slab_config(&old.record.slabs, r, &config, &drives), 0);
        assert_int_equal(slab_remove_files(&config), 0);
        mem_free(drives);
    }
    mem_free(old.record.extents);
}

static place_table *make_places(uint32_t rank)
{
    static manifest_extent extents[1024];
    static place_entry entries[1024];
    uint64_t count = lay_out(&fresh, rank, false, extents);
    assert_true(count <= 1024);
    for (uint64_t i = 0; i < count; i++)
        entries[i] = (place_entry){.unit = extents[i].unit,
                                   .tile = extents[i].tile,
                                   .elem_begin = extents[i].elem_begin,
                                   .elem_count = extents[i].elem_count,
                                   .logical_offset = extents[i].offset_bytes,
                                   .size_bytes = extents[i].size_bytes,
                                   .offset = {extents[i].offset_bytes, extents[i].offset_bytes},
                                   .newest = PLACE_NONE,
                                   .committed = PLACE_NONE};
    place_table *places;
    if (place_table_create(entries, count, &places) < 0)
        fail_msg("%s", err_text());
    return places;
}

static void check_places(uint32_t rank, place_table *places)
{
    void *block, *expected_block;
    unsigned char *data = aligned(tile_bytes(fresh.tile_elems, STREAMS), &block);
    unsigned char *expected = aligned(tile_bytes(fresh.tile_elems, STREAMS), &expected_block);
    io *transport = open_io(&fresh.disks[rank]);
    for (uint64_t i = 0; i < place_table_count(places); i++) {
        const place_entry *entry = place_table_at(places, i);
        uint64_t begin = fresh.is_sharded ? rank * rest_elems(&fresh, entry->unit) : 0;
        manifest_extent tile = {.unit = entry->unit,
                                .size_bytes = entry->size_bytes,
                                .elem_begin = begin + entry->elem_begin,
                                .elem_count = entry->elem_count};
        fill_tile(&tile, expected);
        assert_int_equal(entry->newest, 0);
        assert_int_equal(io_transfer(transport, IO_READ, entry->offset[0], data, entry->size_bytes),
                         0);
        assert_true(checksum_sum(data, entry->size_bytes, entry->elem_count) == entry->sum[0]);
        if (memcmp(data, expected, entry->size_bytes) != 0)
            fail_msg("rank %u of %u, unit %u, tile %u differs", rank, fresh.world, entry->unit,
                     entry->tile);
    }
    io_destroy(transport);
    mem_free(block);
    mem_free(expected_block);
}

static struct traini_recut work_of(uint32_t rank, place_table *places)
{
    return (struct traini_recut){.found = &old.record,
                                 .to = &fresh.disks[rank],
                                 .places = places,
                                 .unit_elems = unit_elems,
                                 .unit_count = UNITS,
                                 .rank = rank,
                                 .world = fresh.world,
                                 .is_sharded = fresh.is_sharded,
                                 .state_streams = STREAMS,
                                 .backend = IO_POOL};
}

static void move_rank(uint32_t rank)
{
    place_table *places = make_places(rank);
    open_rank(&fresh, rank, 16 * MIB);
    struct traini_recut work = work_of(rank, places);
    mem_stats before, after;
    mem_get_stats(&before);
    if (traini_recut_check(&work) < 0 || traini_recut_copy(&work) < 0)
        fail_msg("%s", err_text());
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
    check_places(rank, places);
    place_table_destroy(places);
    assert_int_equal(slab_remove(&fresh.disks[rank]), 0);
}

static void any_world_to_any(void **state)
{
    (void)state;
    for (uint32_t from = 1; from <= WORLDS; from++)
        for (int cut = from == 1; cut < 2; cut++) {
            make_old(from, cut, (1 + from % 3) * TILE_ELEMS_STEP);
            for (uint32_t to = 1; to <= WORLDS; to++)
                for (int new_cut = to == 1; new_cut < 2; new_cut++) {
                    fresh = (struct run){.world = to,
                                         .is_sharded = new_cut,
                                         .tile_elems = (1 + to % 2) * TILE_ELEMS_STEP};
                    name_slabs(&fresh, "new");
                    for (uint32_t r = 0; r < to; r++)
                        move_rank(r);
                }
            remove_old();
        }
}

/* More ranks than slabs are open at a time. */
static void of_many_ranks(void **state)
{
    (void)state;
    assert_true((int)MANY > (int)RANK_SLABS_OPEN_MAX);
    make_old(MANY, true, TILE_ELEMS_STEP);
    fresh = (struct run){.world = 1, .is_sharded = true, .tile_elems = 3 * TILE_ELEMS_STEP};
    name_slabs(&fresh, "new");
    move_rank(0);
    remove_old();
}

/* One old rank's directory is away: who needs it is refused, with its host; who does not is not. */
static void a_slab_on_another_host_is_named(void **state)
{
    (void)state;
    make_old(4, true, TILE_ELEMS_STEP);
    slab_drive *drives;
    slab_config config;
    assert_int_equal(traini_slab_config(&old.record.slabs, 3, &config, &drives), 0);
    assert_int_equal(slab_remove_files(&config), 0);
    mem_free(drives);
    fresh = (struct run){.world = 4, .is_sharded = true, .tile_elems = TILE_ELEMS_STEP};
    name_slabs(&fresh, "new");
    for (uint32_t r = 0; r < 3; r++)
        move_rank(r);
    struct traini_recut work = work_of(3, NULL);
    assert_int_equal(traini_recut_check(&work), ERR_INPUT);
    assert_non_null(
        strstr(err_text(), "rank 3, which ran on host host-1, is not visible from here"));
    assert_non_null(strstr(err_text(), "start as many ranks on the same hosts"));
    place_table *places = make_places(3);
    open_rank(&fresh, 3, 16 * MIB);
    work = work_of(3, places);
    assert_int_equal(traini_recut_copy(&work), ERR_INPUT);
    place_table_destroy(places);
    assert_int_equal(slab_remove(&fresh.disks[3]), 0);
    remove_old();
}

/* Where all had the whole, any that can be seen will do. */
static void any_copy_will_do(void **state)
{
    (void)state;
    make_old(3, false, TILE_ELEMS_STEP);
    for (uint32_t r = 0; r < 2; r++) {
        slab_drive *drives;
        slab_config config;
        assert_int_equal(traini_slab_config(&old.record.slabs, r, &config, &drives), 0);
        assert_int_equal(slab_remove_files(&config), 0);
        mem_free(drives);
        fresh = (struct run){.world = 2, .is_sharded = true, .tile_elems = TILE_ELEMS_STEP};
        name_slabs(&fresh, "new");
        move_rank(0);
        move_rank(1);
    }
    remove_old();
}

/* ---- views of a commit of several ranks ---- */

static uint64_t expected_hash(void)
{
    XXH3_state_t *hash = XXH3_createState();
    XXH3_64bits_reset(hash);
    for (uint32_t u = 0; u < UNITS; u++)
        for (uint64_t e = 0; e < unit_elems[u]; e++) {
            uint32_t word = element(u, 0, e);
            XXH3_64bits_update(hash, &word, sizeof word);
        }
    uint64_t sum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return sum;
}

static uint64_t wrong_count;

static void take_extent(void *user, const struct traini_swept *swept)
{
    (void)user;
    wrong_count += swept->error || swept->sum != old.record.extents[swept->extent_idx].checksum;
}

static void the_hash_is_that_of_one_rank(void **state)
{
    (void)state;
    uint64_t expected = expected_hash();
    static const uint32_t worlds[] = {1, 2, 3, 4, MANY};
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++)
        for (int cut = 0; cut < 2; cut++) {
            make_old(worlds[i], cut, (1 + i % 2) * TILE_ELEMS_STEP);
            const struct traini_sweep_options asked = {.record = &old.record,
                                                       .backend = IO_POOL,
                                                       .pool_threads = 1,
                                                       .copy_rank = worlds[i] - 1,
                                                       .unit_elems = unit_elems,
                                                       .on_extent = take_extent};
            uint64_t hash;
            wrong_count = 0;
            if (traini_sweep(&asked, &hash) < 0)
                fail_msg("%s", err_text());
            assert_int_equal(wrong_count, 0);
            assert_true(hash == expected);
            remove_old();
        }
}

static const char *run_dir(void)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/run", helper_directory);
    return path;
}

/* The old run's directory, with no job.json that can be read. */
static void write_run(void)
{
    char path[600];
    struct traini_run_dir dir;
    assert_int_equal(traini_run_dir_open(&dir, run_dir()), 0);
    old.record.generation = 4;
    old.record.loss_scale = 1;
    old.record.scale_last_overflow = -1;
    old.record.scale_hysteresis_left = 1;
    if (manifest_write(dir.state, &old.record) < 0)
        fail_msg("%s", err_text());
    traini_run_dir_close(&dir);
    snprintf(path, sizeof path, "%s/job.json", run_dir());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
}

static void remove_run(void)
{
    char path[600];
    snprintf(path, sizeof path, "%s/state", run_dir());
    assert_int_equal(manifest_remove(path), 0);
    remove_old();
}

static struct verify_damage last;

static void note_damage(void *user, const struct verify_damage *damage)
{
    (void)user;
    last = *damage;
}

static int verify(const char *path, struct verify_summary *sum)
{
    const struct verify_options asked = {.run_dir = path, .on_damage = note_damage};
    memset(&last, 0, sizeof last);
    return verify_run(&asked, sum);
}

/* Byte 0 of the extent on the rank's slab. */
static void flip_byte(uint32_t rank, const manifest_extent *extent)
{
    void *block;
    unsigned char *data = aligned(TILE_BLOCK_BYTES, &block);
    static slab disk;
    slab_drive *drives;
    slab_config config;
    assert_int_equal(traini_slab_config(&old.record.slabs, rank, &config, &drives), 0);
    config.total_bytes = old.record.total_bytes;
    config.stripe_bytes = MIB;
    config.open_existing = true;
    assert_int_equal(slab_open(&disk, &config), 0);
    mem_free(drives);
    io *transport = open_io(&disk);
    assert_int_equal(io_transfer(transport, IO_READ, extent->offset_bytes, data, TILE_BLOCK_BYTES),
                     0);
    data[0] ^= 1;
    assert_int_equal(io_transfer(transport, IO_WRITE, extent->offset_bytes, data, TILE_BLOCK_BYTES),
                     0);
    io_destroy(transport);
    slab_close(&disk);
    mem_free(block);
}

static void damage_names_its_rank(void **state)
{
    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        struct verify_summary sum;
        make_old(4, cut, TILE_ELEMS_STEP);
        write_run();
        if (verify(run_dir(), &sum) < 0)
            fail_msg("%s: %s", err_text(), last.reason);
        assert_int_equal(sum.world_size, 4);
        assert_int_equal(sum.extent_count, old.record.extent_count);
        assert_true(sum.bytes > 0 && sum.slab_bytes == 4 * old.record.total_bytes);
        uint64_t idx = 0;
        while (cut && old.record.extents[idx].rank != 2)
            idx++;
        flip_byte(2, &old.record.extents[idx]);
        assert_int_equal(verify(run_dir(), &sum), ERR_CORRUPT);
        assert_int_equal(sum.damage_count, 1);
        assert_int_equal(last.rank, 2);
        assert_int_equal(last.tile, old.record.extents[idx].tile);
        assert_non_null(strstr(last.path, "/rank-2-drive-"));
        assert_true(last.file_offset >= SLAB_HEADER_BYTES);
        flip_byte(2, &old.record.extents[idx]);
        remove_run();
    }
}

static void what_is_not_seen_is_counted(void **state)
{
    (void)state;
    struct verify_summary sum;
    make_old(4, true, TILE_ELEMS_STEP);
    write_run();
    slab_drive *drives;
    slab_config config;
    assert_int_equal(traini_slab_config(&old.record.slabs, 3, &config, &drives), 0);
    assert_int_equal(slab_remove_files(&config), 0);
    mem_free(drives);
    assert_int_equal(verify(run_dir(), &sum), ERR_INPUT);
    assert_int_equal(sum.unseen_count, 1);
    assert_int_equal(sum.damage_count, 0);
    assert_int_equal(sum.weights_hash, 0);
    assert_true(sum.bytes > 0);
    assert_non_null(strstr(err_text(), "1 of 4 ranks, of which rank 3 ran on host host-1"));
    remove_run();
}

static void inspection_lists_ranks(void **state)
{
    (void)state;
    static struct inspect_summary sum;
    make_old(3, true, TILE_ELEMS_STEP);
    write_run();
    if (inspect_run(run_dir(), &sum) < 0)
        fail_msg("%s", err_text());
    assert_int_equal(sum.world_size, 3);
    assert_false(sum.is_replicated);
    assert_int_equal(sum.file_count, 3 * DRIVES);
    assert_string_equal(sum.ranks[2].host, "host-1");
    for (uint32_t i = 0; i < sum.file_count; i++) {
        assert_int_equal(sum.files[i].rank, i / DRIVES);
        assert_true(sum.files[i].size_bytes > 0);
    }
    inspect_fini(&sum);
    remove_run();
}

static void a_kept_commit_is_that_of_all_ranks(void **state)
{
    (void)state;
    for (int fails = 0; fails < 2; fails++) {
        static struct job asked = {.run = {.keep_every = 77}};
        traini_keeper *keepers[3];
        struct verify_summary sum;
        char path[1200];
        make_old(3, true, TILE_ELEMS_STEP);
        write_run();
        for (uint32_t r = 0; r < 3; r++) {
            assert_int_equal(traini_keeper_create(r ? NULL : run_dir(), &asked,
                                                  old.record.extent_count, &keepers[r]),
                             0);
            assert_int_equal(rank_slabs_open(&old.record, r, &old.disks[r]), 0);
        }
        assert_int_equal(traini_keep_begin(keepers[0], &old.record), 1);
        for (uint32_t r = 0; r < 3; r++)
            assert_int_equal(traini_keep_slabs(keepers[r], &old.disks[r], &old.record), 0);
        if (fails)
            assert_int_equal(traini_keep_drop(keepers[2], &old.disks[2], &old.record), 0);
        assert_int_equal(
            traini_keep_record(keepers[0], &old.record, fails ? err_set(-EIO, "rank 2 cannot") : 0),
            0);
        snprintf(path, sizeof path, "%s/keep/step-000000077", run_dir());
        if (fails) {
            assert_int_equal(access(path, F_OK), -1);
        } else {
            assert_int_equal(traini_keep_begin(keepers[0], &old.record), 0);
            if (verify(path, &sum) < 0)
                fail_msg("%s: %s", err_text(), last.reason);
            assert_int_equal(sum.world_size, 3);
            assert_int_equal(sum.extent_count, old.record.extent_count);
        }
        for (uint32_t r = 0; r < 3; r++) {
            traini_keeper_destroy(keepers[r]);
            slab_close(&old.disks[r]);
        }
        if (!fails) { /* the copy goes the way of one that was cut short */
            snprintf(path, sizeof path, "rm -rf '%s/keep' '%s'/old-*/*.keep", run_dir(),
                     helper_directory);
            assert_int_equal(system(path), 0);
        }
        remove_run();
    }
}

int main(void)
{
    const char *asked = getenv("SLUICE_TEST_SEED");
    if (asked)
        seed = strtoull(asked, NULL, 10);
    log_set_level(LOG_QUIET);
    printf("seed %" PRIu64 "\n", seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_world_to_any),
        cmocka_unit_test(of_many_ranks),
        cmocka_unit_test(a_slab_on_another_host_is_named),
        cmocka_unit_test(any_copy_will_do),
        cmocka_unit_test(the_hash_is_that_of_one_rank),
        cmocka_unit_test(damage_names_its_rank),
        cmocka_unit_test(what_is_not_seen_is_counted),
        cmocka_unit_test(inspection_lists_ranks),
        cmocka_unit_test(a_kept_commit_is_that_of_all_ranks),
    };
    return cmocka_run_group_tests(tests, helper_setup, helper_teardown);
}
