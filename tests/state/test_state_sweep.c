/* The sweep of src/state/sweep.h on slabs made here. Every extent's sum and the hash of the weights
 * are those of the bytes in memory, in the record's order, whatever the tiles, drives, backends and
 * the order of completions. A stop, a failed read and a broken queue end the sweep with the right
 * error. SLUICE_TEST_SEED draws the tiles. */
#include <xxhash.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/tile.h"
#include "state/sweep.h"
#include "swap/checksum.h"
#include "tests/directory.h"
#include "tiers/io_faults.h"

enum { DRIVES = 3, EXTENTS_MAX = 400 };

static uint64_t seed = 42;

/* A slab with tiles in it, and their descriptions. */
struct rig {
    slab disk;
    slab_drive drives[DRIVES];
    manifest record;
    manifest_extent extents[EXTENTS_MAX];
    uint64_t weights_hash;
};

static void fill_words(uint32_t *words, uint64_t count, uint64_t key)
{
    uint64_t state = rng_u64(seed, 1, key) | 1;
    for (uint64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        words[i] = (uint32_t)(state >> 32);
    }
}

/* Tiles of about `elems` elements each, with gaps between some of them. */
static uint64_t place_tiles(struct rig *self, uint64_t count, uint64_t elems, uint32_t streams)
{
    uint64_t end = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t steps = size_max(1, elems / SHARD_ELEMS_STEP);
        uint64_t held = SHARD_ELEMS_STEP * (1 + rng_below(seed, 2, i, 2 * steps));
        uint64_t gap = TILE_BLOCK_BYTES * rng_below(seed, 3, i, 3);
        self->extents[i] = (manifest_extent){.tile = (uint32_t)i,
                                             .offset_bytes = end + gap,
                                             .elem_count = held,
                                             .size_bytes = tile_bytes(held, streams)};
        end += gap + self->extents[i].size_bytes;
    }
    self->record.extents = self->extents;
    self->record.extent_count = count;
    return end;
}

static void write_tiles(struct rig *self, uint32_t streams)
{
    io *transport;
    const io_config config = {.target = &self->disk, .backend = IO_POOL};
    assert_ok(io_create(&config, &transport));
    XXH3_state_t *weights = XXH3_createState();
    XXH3_64bits_reset(weights);
    for (uint64_t i = 0; i < self->record.extent_count; i++) {
        manifest_extent *extent = &self->extents[i];
        unsigned char *data = aligned_alloc(TILE_BLOCK_BYTES, extent->size_bytes);
        assert_non_null(data);
        fill_words((uint32_t *)(void *)data, extent->size_bytes / 4, i);
        extent->checksum = checksum_sum(data, extent->size_bytes, extent->elem_count, streams);
        assert_int_equal(tile_bytes(extent->elem_count, streams), extent->size_bytes);
        XXH3_64bits_update(weights, data, 4 * extent->elem_count);
        assert_ok(io_transfer(transport, IO_WRITE, extent->offset_bytes, data, extent->size_bytes));
        free(data);
    }
    self->weights_hash = XXH3_64bits_digest(weights);
    XXH3_freeState(weights);
    io_destroy(transport);
}

static struct rig *make_rig(uint32_t drives, uint64_t count, uint64_t elems, uint32_t streams)
{
    struct rig *self = mem_alloc(1, sizeof *self, "rig");
    assert_non_null(self);
    assert_true(count <= EXTENTS_MAX);
    uint64_t bytes = place_tiles(self, count, elems, streams);
    for (uint32_t d = 0; d < drives; d++)
        snprintf(self->drives[d].path, sizeof self->drives[d].path, "%s/%u", directory, d);
    slab_config config = {.drives = self->drives,
                          .drive_count = drives,
                          .total_bytes = bytes,
                          .stripe_bytes = 1 << 20};
    memset(config.uuid, 7, sizeof config.uuid);
    assert_ok(slab_open(&self->disk, &config));
    memcpy(self->record.slabs.uuid, config.uuid, sizeof config.uuid);
    self->record.slabs.drive_count = drives;
    for (uint32_t d = 0; d < drives; d++)
        strcpy(self->record.slabs.drives[d], self->drives[d].path);
    self->record.state_streams = streams;
    self->record.total_bytes = self->disk.total_bytes;
    self->record.stripe_bytes = self->disk.stripe_bytes;
    write_tiles(self, streams);
    return self;
}

static void destroy_rig(struct rig *self)
{
    assert_ok(slab_remove(&self->disk));
    mem_free(self);
}

/* Results that a sweep reported. */
struct seen {
    const struct rig *rig;
    uint64_t extent_count, error_count, wrong_count, done_bytes;
    volatile sig_atomic_t stop;
    uint64_t stop_after; /* extents; 0: never */
};

static void take_extent(void *user, const struct state_swept *swept)
{
    struct seen *seen = user;
    assert_int_equal(swept->extent_idx, seen->extent_count);
    seen->extent_count++;
    if (swept->error)
        seen->error_count++;
    else if (swept->sum != seen->rig->extents[swept->extent_idx].checksum)
        seen->wrong_count++;
    if (seen->extent_count == seen->stop_after)
        seen->stop = 1;
}

static void take_progress(void *user, uint64_t done_bytes, double seconds)
{
    struct seen *seen = user;
    assert_true(done_bytes >= seen->done_bytes && seconds >= 0);
    seen->done_bytes = done_bytes;
}

static int run_sweep(const struct rig *rig, enum io_backend backend, const io_faults *faults,
                     struct seen *seen, uint64_t *hash)
{
    const struct state_sweep_options asked = {.record = &rig->record,
                                              .backend = backend,
                                              .faults = faults,
                                              .stop = &seen->stop,
                                              .on_extent = take_extent,
                                              .on_progress = take_progress,
                                              .user = seen};
    seen->rig = rig;
    return state_sweep(&asked, hash);
}

static void assert_whole(const struct rig *rig, enum io_backend backend, const io_faults *faults)
{
    struct seen seen = {.stop = 0};
    uint64_t hash, bytes = 0;
    assert_ok(run_sweep(rig, backend, faults, &seen, &hash));
    for (uint64_t i = 0; i < rig->record.extent_count; i++)
        bytes += rig->extents[i].size_bytes;
    assert_int_equal(seen.extent_count, rig->record.extent_count);
    assert_int_equal(seen.wrong_count, 0);
    assert_int_equal(seen.error_count, 0);
    assert_int_equal(seen.done_bytes, bytes);
    assert_true(hash == rig->weights_hash);
}

/* Many small tiles, more than the ring holds; tiles of several pieces; one tile; streams of either
 * number. */
static void sums_are_those_of_the_bytes(void **state)
{
    static const struct {
        uint32_t drives, streams;
        uint64_t count, elems;
    } cases[] = {{1, 3, 200, 8192}, {3, 2, 40, 65536}, {2, 3, 6, 400000}, {1, 2, 1, 4096}};
    const io_faults faults = {
        .seed = seed, .short_rate = 200, .retry_rate = 100, .latency_us_max = 200};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig *rig =
            make_rig(cases[i].drives, cases[i].count, cases[i].elems, cases[i].streams);
        assert_whole(rig, IO_AUTO, NULL);
        assert_whole(rig, IO_POOL, NULL);
        assert_whole(rig, IO_AUTO, &faults);
        destroy_rig(rig);
    }
}

static void nothing_to_read_is_no_error(void **state)
{
    struct rig *rig = make_rig(1, 1, 4096, 3);
    struct seen seen = {.stop = 0};
    uint64_t hash;
    rig->record.extent_count = 0;
    assert_int_equal(run_sweep(rig, IO_AUTO, NULL, &seen, &hash), 0);
    assert_true(hash == XXH3_64bits(NULL, 0));
    destroy_rig(rig);
}

static void ends_are_as_told(void **state)
{
    struct rig *rig = make_rig(2, 120, 16384, 3);
    uint64_t hash;
    for (uint64_t after = 1; after < 100; after += 23) {
        struct seen seen = {.stop_after = after};
        int rc = run_sweep(rig, IO_AUTO, NULL, &seen, &hash);
        bool is_late = seen.extent_count == rig->record.extent_count; /* all was read already */
        assert_true(is_late ? rc == 0 : rc == ERR_STOPPED && hash == 0);
        assert_true(seen.extent_count >= after);
    }
    static const uint64_t transfers[] = {1, 60, 119};
    for (size_t i = 0; i < sizeof transfers / sizeof transfers[0]; i++) {
        /* A read that fails is told of once, and the others are compared all the same. */
        struct seen seen = {.stop = 0};
        io_faults faults = {.seed = seed, .at_transfer = transfers[i], .at_kind = IO_FAULT_EIO};
        assert_int_equal(run_sweep(rig, IO_AUTO, &faults, &seen, &hash), 0);
        assert_int_equal(seen.extent_count, rig->record.extent_count);
        assert_int_equal(seen.error_count, 1);
        assert_int_equal(seen.wrong_count, 0);
        /* The queue breaks. */
        seen = (struct seen){.stop = 0};
        faults = (io_faults){.seed = seed, .break_after = transfers[i]};
        int rc = run_sweep(rig, IO_AUTO, &faults, &seen, &hash);
        assert_true(rc < 0 && rc != ERR_STOPPED);
        assert_true(seen.extent_count < rig->record.extent_count && hash == 0);
    }
    assert_whole(rig, IO_AUTO, NULL);
    destroy_rig(rig);
}

/* No test leaves a slab. */
static int remove_empty(void **state)
{
    return rmdir(directory);
}

int main(void)
{
    seed = unit_seed(seed);
    log_set_level(LOG_QUIET);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_bytes),
        cmocka_unit_test(nothing_to_read_is_no_error),
        cmocka_unit_test(ends_are_as_told),
    };
    return cmocka_run_group_tests(tests, directory_make, remove_empty);
}
