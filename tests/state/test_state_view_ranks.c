/* Verify, inspect and kept copies of commits of several ranks: damage names its rank, what is not
 * seen is counted, and the hash of the weights is that of one rank. SLUICE_TEST_SEED draws the
 * tiles. */
#include <errno.h>
#include <xxhash.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/tile.h"
#include "state/run_dir.h"
#include "state/state_internal.h"
#include "state/sweep.h"
#include "state/verify.h"
#include "tests/state/ranks_fixture.h"
#include "tests/unit.h"

/* ---- views of a commit of several ranks ---- */

static uint64_t expected_hash(void)
{
    XXH3_state_t *hash = XXH3_createState();
    XXH3_64bits_reset(hash);
    for (uint32_t u = 0; u < RANKS_UNITS; u++)
        for (uint64_t e = 0; e < ranks_unit_elems[u]; e++) {
            uint32_t word = ranks_element(u, 0, e);
            XXH3_64bits_update(hash, &word, sizeof word);
        }
    uint64_t sum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return sum;
}

static uint64_t wrong_count;

static void take_extent(void *user, const struct state_swept *swept)
{
    wrong_count +=
        swept->error || swept->sum != ranks_old.record.extents[swept->extent_idx].checksum;
}

static void the_hash_is_that_of_one_rank(void **state)
{
    uint64_t expected = expected_hash();
    static const uint32_t worlds[] = {1, 2, 3, 4, RANKS_MANY};
    model_unit units[RANKS_UNITS] = {0};
    const model net = {.units = units, .unit_count = RANKS_UNITS};
    for (uint32_t u = 0; u < RANKS_UNITS; u++)
        units[u].elems = units[u].rest_elems = ranks_unit_elems[u];
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++)
        for (int cut = 0; cut < 2; cut++) {
            ranks_make_old(worlds[i], cut, (1 + i % 2) * TILE_ELEMS_STEP);
            const struct state_sweep_options asked = {.record = &ranks_old.record,
                                                      .backend = IO_POOL,
                                                      .pool_threads = 1,
                                                      .copy_rank = worlds[i] - 1,
                                                      .net = &net,
                                                      .on_extent = take_extent};
            uint64_t hash;
            wrong_count = 0;
            assert_ok(state_sweep(&asked, &hash));
            assert_int_equal(wrong_count, 0);
            assert_true(hash == expected);
            ranks_remove_old();
        }
}

static const char *run_dir(void)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/run", ranks_directory());
    return path;
}

/* The old run's directory, with no job.json that can be read. */
static void write_run(void)
{
    char path[600];
    struct state_run_dir dir;
    assert_ok(state_run_dir_open(&dir, run_dir(), FILE_PRIVATE));
    ranks_old.record.generation = 4;
    ranks_old.record.point.loss_scale = 1;
    ranks_old.record.point.scale_last_overflow = -1;
    ranks_old.record.point.scale_hysteresis_left = 1;
    snprintf(ranks_old.record.identity, sizeof ranks_old.record.identity, "test=1\n");
    ranks_old.record.fingerprint =
        XXH3_64bits(ranks_old.record.identity, strlen(ranks_old.record.identity));
    assert_ok(manifest_write(dir.state, &ranks_old.record));
    state_run_dir_close(&dir);
    snprintf(path, sizeof path, "%s/job.json", run_dir());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
}

static void remove_run(void)
{
    char path[600];
    snprintf(path, sizeof path, "%s/state", run_dir());
    assert_ok(manifest_remove(path));
    ranks_remove_old();
}

static struct state_damage last;

static void note_damage(void *user, const struct state_damage *damage)
{
    last = *damage;
}

static int verify(const char *path, struct state_verify_summary *sum)
{
    const struct state_verify_options asked = {.run_dir = path, .on_damage = note_damage};
    memset(&last, 0, sizeof last);
    return state_verify(&asked, sum);
}

/* Byte 0 of the extent on the rank's slab. */
static void flip_byte(uint32_t rank, const manifest_extent *extent)
{
    void *block;
    unsigned char *data = ranks_aligned(TILE_BLOCK_BYTES, &block);
    static slab disk;
    static slab_drive drives[DRIVES_MAX];
    slab_config config;
    assert_ok(state_slab_config(&ranks_old.record.slabs, rank, drives, &config));
    config.total_bytes = ranks_old.record.total_bytes;
    config.stripe_bytes = MIB;
    config.open_existing = true;
    assert_ok(slab_open(&disk, &config));
    io *transport = ranks_open_io(&disk);
    assert_ok(io_transfer(transport, IO_READ, extent->offset_bytes, data, TILE_BLOCK_BYTES));
    data[0] ^= 1;
    assert_ok(io_transfer(transport, IO_WRITE, extent->offset_bytes, data, TILE_BLOCK_BYTES));
    io_destroy(transport);
    slab_close(&disk);
    mem_free(block);
}

static void damage_names_its_rank(void **state)
{
    for (int cut = 0; cut < 2; cut++) {
        struct state_verify_summary sum;
        ranks_make_old(4, cut, TILE_ELEMS_STEP);
        write_run();
        if (verify(run_dir(), &sum) < 0)
            fail_msg("%s: %s", err_text(), last.reason);
        assert_int_equal(sum.world_size, 4);
        assert_int_equal(sum.extent_count, ranks_old.record.extent_count);
        assert_true(sum.bytes > 0 && sum.slab_bytes == 4 * ranks_old.record.total_bytes);
        uint64_t idx = 0;
        while (cut && ranks_old.record.extents[idx].rank != 2)
            idx++;
        flip_byte(2, &ranks_old.record.extents[idx]);
        assert_int_equal(verify(run_dir(), &sum), ERR_CORRUPT);
        assert_int_equal(sum.damage_count, 1);
        assert_int_equal(last.rank, 2);
        assert_int_equal(last.tile, ranks_old.record.extents[idx].tile);
        assert_non_null(strstr(last.path, "/rank-2-drive-"));
        assert_true(last.file_offset >= SLAB_HEADER_BYTES);
        flip_byte(2, &ranks_old.record.extents[idx]);
        remove_run();
    }
}

static void what_is_not_seen_is_counted(void **state)
{
    struct state_verify_summary sum;
    ranks_make_old(4, true, TILE_ELEMS_STEP);
    write_run();
    static slab_drive drives[DRIVES_MAX];
    slab_config config;
    assert_ok(state_slab_config(&ranks_old.record.slabs, 3, drives, &config));
    assert_ok(slab_remove_files(&config));
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
    static struct state_inspect_summary sum;
    ranks_make_old(3, true, TILE_ELEMS_STEP);
    write_run();
    assert_ok(state_inspect(run_dir(), &sum));
    assert_int_equal(sum.record.world_size, 3);
    assert_false(sum.record.is_replicated);
    assert_int_equal(sum.file_count, 3 * RANKS_DRIVES);
    assert_string_equal(sum.record.slabs.ranks[2].host, "host-1");
    for (uint32_t i = 0; i < sum.file_count; i++) {
        assert_int_equal(sum.files[i].rank, i / RANKS_DRIVES);
        assert_true(sum.files[i].size_bytes > 0);
    }
    state_inspect_fini(&sum);
    remove_run();
}

static void a_kept_commit_is_that_of_all_ranks(void **state)
{
    for (int fails = 0; fails < 2; fails++) {
        static struct job asked = {.run = {.keep_every = 77}};
        state_keeper *keepers[3];
        struct state_verify_summary sum;
        char path[1200];
        ranks_make_old(3, true, TILE_ELEMS_STEP);
        write_run();
        for (uint32_t r = 0; r < 3; r++) {
            assert_ok(state_keeper_create(r ? NULL : run_dir(), &asked,
                                          ranks_old.record.extent_count, &keepers[r]));
            assert_ok(rank_slabs_open(&ranks_old.record, r, &ranks_old.disks[r]));
        }
        assert_int_equal(state_keep_begin(keepers[0], &ranks_old.record), 1);
        for (uint32_t r = 0; r < 3; r++)
            assert_ok(state_keep_drop(keepers[r], &ranks_old.disks[r], &ranks_old.record));
        for (uint32_t r = 0; r < 3; r++)
            assert_ok(state_keep_slabs(keepers[r], &ranks_old.disks[r], &ranks_old.record));
        if (fails)
            assert_ok(state_keep_drop(keepers[2], &ranks_old.disks[2], &ranks_old.record));
        assert_ok(state_keep_record(keepers[0], &ranks_old.record,
                                    fails ? err_set(-EIO, "rank 2 cannot") : 0));
        snprintf(path, sizeof path, "%s/keep/step-000000077", run_dir());
        if (fails) {
            assert_int_equal(access(path, F_OK), -1);
        } else {
            assert_int_equal(state_keep_begin(keepers[0], &ranks_old.record), 0);
            if (verify(path, &sum) < 0)
                fail_msg("%s: %s", err_text(), last.reason);
            assert_int_equal(sum.world_size, 3);
            assert_int_equal(sum.extent_count, ranks_old.record.extent_count);
        }
        for (uint32_t r = 0; r < 3; r++) {
            state_keeper_destroy(keepers[r]);
            slab_close(&ranks_old.disks[r]);
        }
        if (!fails) { /* the copy goes the way of one that was cut short */
            snprintf(path, sizeof path, "rm -rf '%s/keep' '%s'/old-*/*.keep", run_dir(),
                     ranks_directory());
            assert_int_equal(system(path), 0);
        }
        remove_run();
    }
}

int main(void)
{
    ranks_seed = unit_seed(ranks_seed);
    log_set_level(LOG_QUIET);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hash_is_that_of_one_rank),
        cmocka_unit_test(damage_names_its_rank),
        cmocka_unit_test(what_is_not_seen_is_counted),
        cmocka_unit_test(inspection_lists_ranks),
        cmocka_unit_test(a_kept_commit_is_that_of_all_ranks),
    };
    return cmocka_run_group_tests(tests, ranks_setup, ranks_teardown);
}
