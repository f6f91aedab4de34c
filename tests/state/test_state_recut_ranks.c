/* A commit of some ranks moved to others: from 1 to 4 ranks to 1 to 4, cut into shards or whole on
 * each, every rank of the new run gets each element of its part with its bits and zeros as padding;
 * a slab that cannot be seen is named, with its host; memory does not grow with ranks.
 * SLUICE_TEST_SEED draws the tiles. */
#include "base/log.h"
#include "base/mem.h"
#include "base/tile.h"
#include "state/run_dir.h"
#include "state/state_internal.h"
#include "swap/checksum.h"
#include "tests/state/ranks_fixture.h"
#include "tests/unit.h"

static struct ranks_run fresh;

static place_table *make_places(uint32_t rank)
{
    static manifest_extent extents[1024];
    static place_entry entries[1024];
    uint64_t count = ranks_lay_out(&fresh, rank, false, extents);
    assert_true(count <= 1024);
    for (uint64_t i = 0; i < count; i++)
        entries[i] = (place_entry){.unit = extents[i].unit,
                                   .tile = extents[i].tile,
                                   .elem_begin = extents[i].elem_begin,
                                   .elem_count = extents[i].elem_count,
                                   .logical_offset = extents[i].offset_bytes,
                                   .size_bytes = extents[i].size_bytes,
                                   .streams = RANKS_STREAMS,
                                   .offset = {extents[i].offset_bytes, extents[i].offset_bytes},
                                   .newest = PLACE_NONE,
                                   .committed = PLACE_NONE};
    place_table *places;
    assert_ok(place_table_create(entries, count, &places));
    return places;
}

static void check_places(uint32_t rank, place_table *places)
{
    void *block, *expected_block;
    unsigned char *data = ranks_aligned(tile_bytes(fresh.tile_elems, RANKS_STREAMS), &block);
    unsigned char *expected =
        ranks_aligned(tile_bytes(fresh.tile_elems, RANKS_STREAMS), &expected_block);
    io *transport = ranks_open_io(&fresh.disks[rank]);
    for (uint64_t i = 0; i < place_table_count(places); i++) {
        const place_entry *entry = place_table_at(places, i);
        uint64_t begin = fresh.is_sharded ? rank * ranks_rest_elems(&fresh, entry->unit) : 0;
        manifest_extent tile = {.unit = entry->unit,
                                .size_bytes = entry->size_bytes,
                                .elem_begin = begin + entry->elem_begin,
                                .elem_count = entry->elem_count};
        ranks_fill_tile(&tile, expected);
        assert_int_equal(entry->newest, 0);
        assert_ok(io_transfer(transport, IO_READ, entry->offset[0], data, entry->size_bytes));
        assert_true(checksum_sum(data, entry->size_bytes, entry->elem_count, RANKS_STREAMS) ==
                    entry->sum[0]);
        if (memcmp(data, expected, entry->size_bytes) != 0)
            fail_msg("rank %u of %u, unit %u, tile %u differs", rank, fresh.world, entry->unit,
                     entry->tile);
    }
    io_destroy(transport);
    mem_free(block);
    mem_free(expected_block);
}

static struct state_recut work_of(uint32_t rank, place_table *places)
{
    return (struct state_recut){.found = &ranks_old.record,
                                .to = &fresh.disks[rank],
                                .places = places,
                                .unit_elems = ranks_unit_elems,
                                .unit_count = RANKS_UNITS,
                                .rank = rank,
                                .world = fresh.world,
                                .is_sharded = fresh.is_sharded,
                                .state_streams = RANKS_STREAMS,
                                .backend = IO_POOL};
}

static void move_rank(uint32_t rank)
{
    place_table *places = make_places(rank);
    ranks_open_rank(&fresh, rank, 16 * MIB);
    struct state_recut work = work_of(rank, places);
    mem_stats before, after;
    mem_get_stats(&before);
    if (state_recut_check(&work) < 0 || state_recut_copy(&work) < 0)
        fail_msg("%s", err_text());
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
    assert_true(after.live_bytes_max <=
                before.live_bytes + 2 * 32 * MIB + RANK_SLABS_OPEN_MAX * MIB);
    check_places(rank, places);
    place_table_destroy(places);
    assert_ok(slab_remove(&fresh.disks[rank]));
}

static void any_world_to_any(void **state)
{
    for (uint32_t from = 1; from <= RANKS_WORLDS; from++)
        for (int cut = from == 1; cut < 2; cut++) {
            ranks_make_old(from, cut, (1 + from % 3) * TILE_ELEMS_STEP);
            for (uint32_t to = 1; to <= RANKS_WORLDS; to++)
                for (int new_cut = to == 1; new_cut < 2; new_cut++) {
                    fresh = (struct ranks_run){.world = to,
                                               .is_sharded = new_cut,
                                               .tile_elems = (1 + to % 2) * TILE_ELEMS_STEP};
                    ranks_name_slabs(&fresh, "new");
                    for (uint32_t r = 0; r < to; r++)
                        move_rank(r);
                }
            ranks_remove_old();
        }
}

/* More ranks than slabs are open at a time. */
static void of_many_ranks(void **state)
{
    assert_true((int)RANKS_MANY > (int)RANK_SLABS_OPEN_MAX);
    ranks_make_old(RANKS_MANY, true, TILE_ELEMS_STEP);
    fresh = (struct ranks_run){.world = 1, .is_sharded = true, .tile_elems = 3 * TILE_ELEMS_STEP};
    ranks_name_slabs(&fresh, "new");
    move_rank(0);
    ranks_remove_old();
}

/* One old rank's directory is away: who needs it is refused, with its host; who does not is not. */
static void a_slab_on_another_host_is_named(void **state)
{
    ranks_make_old(4, true, TILE_ELEMS_STEP);
    static slab_drive drives[DRIVES_MAX];
    slab_config config;
    assert_ok(state_slab_config(&ranks_old.record.slabs, 3, drives, &config));
    assert_ok(slab_remove_files(&config));
    fresh = (struct ranks_run){.world = 4, .is_sharded = true, .tile_elems = TILE_ELEMS_STEP};
    ranks_name_slabs(&fresh, "new");
    for (uint32_t r = 0; r < 3; r++)
        move_rank(r);
    struct state_recut work = work_of(3, NULL);
    assert_int_equal(state_recut_check(&work), ERR_INPUT);
    assert_non_null(
        strstr(err_text(), "rank 3, which ran on host host-1, is not visible from here"));
    assert_non_null(strstr(err_text(), "start as many ranks on the same hosts"));
    place_table *places = make_places(3);
    ranks_open_rank(&fresh, 3, 16 * MIB);
    work = work_of(3, places);
    assert_int_equal(state_recut_copy(&work), ERR_INPUT);
    place_table_destroy(places);
    assert_ok(slab_remove(&fresh.disks[3]));
    ranks_remove_old();
}

/* If every old rank had the whole state, any copy that is visible is enough. */
static void any_copy_will_do(void **state)
{
    ranks_make_old(3, false, TILE_ELEMS_STEP);
    for (uint32_t r = 0; r < 2; r++) {
        static slab_drive drives[DRIVES_MAX];
        slab_config config;
        assert_ok(state_slab_config(&ranks_old.record.slabs, r, drives, &config));
        assert_ok(slab_remove_files(&config));
        fresh = (struct ranks_run){.world = 2, .is_sharded = true, .tile_elems = TILE_ELEMS_STEP};
        ranks_name_slabs(&fresh, "new");
        move_rank(0);
        move_rank(1);
    }
    ranks_remove_old();
}

int main(void)
{
    ranks_seed = unit_seed(ranks_seed);
    log_set_level(LOG_QUIET);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_world_to_any),
        cmocka_unit_test(of_many_ranks),
        cmocka_unit_test(a_slab_on_another_host_is_named),
        cmocka_unit_test(any_copy_will_do),
    };
    return cmocka_run_group_tests(tests, ranks_setup, ranks_teardown);
}
