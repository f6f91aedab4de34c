/* The manifest of several ranks: their shards are equal, in order and apart, each on its slab; and
 * the paths of their slabs. */
#include <errno.h>

#include "base/log.h"
#include "base/tile.h"
#include "tests/format/format_fixture.h"
#include "tests/unit.h"

enum { SEED = 4711 };

static void expect_refused(const manifest *record, const char *reason)
{
    format_expect_reason(manifest_write(format_directory(), record), -EINVAL, reason);
}

/* One tile a shard: the extents of two units and three ranks are extents[3 * unit + rank]. */
static void shards_are_equal(void **state)
{
    static manifest record;
    format_draw(&record, SEED, 8, &(struct format_shape){MANIFEST_COMMITTED, 1, 0, 2, 3, 1});
    manifest_extent *extents = record.extents;
    record.tile_elems = 2 * TILE_ELEMS_STEP;
    record.extent_count = 6;
    for (uint32_t i = 0; i < 6; i++) {
        uint64_t elems = SHARD_ELEMS_STEP * (1 + i / 3);
        extents[i] = (manifest_extent){.unit = i / 3,
                                       .rank = i % 3,
                                       .elem_begin = i % 3 * elems,
                                       .elem_count = elems,
                                       .size_bytes = tile_bytes(elems, record.state_streams),
                                       .offset_bytes = i / 3 * MIB};
    }
    record.total_bytes = 2 * record.stripe_bytes;
    assert_ok(manifest_write(format_directory(), &record));
    static manifest out;
    assert_int_equal(manifest_read(format_directory(), &out), 1); /* ranks do not overlap */
    format_assert_same(&record, &out);
    manifest_fini(&out);
    record.extent_count = 5;
    expect_refused(&record, "ends with rank 1 of 3");
    record.extent_count = 6;
    manifest_extent saved = extents[5];
    extents[5].elem_count += SHARD_ELEMS_STEP;
    extents[5].size_bytes = tile_bytes(extents[5].elem_count, record.state_streams);
    expect_refused(&record, "unit 1 rank 2 has 12288 elements and rank 0 8192");
    extents[5] = saved;
    extents[5].rank = 1;
    expect_refused(&record, "where unit 1 rank 1 tile 1");
    extents[5] = saved;
    for (uint32_t i = 3; i < 6; i++) {
        extents[i].elem_count = SHARD_ELEMS_STEP + 1;
        extents[i].elem_begin = (i - 3) * extents[i].elem_count;
        extents[i].size_bytes = tile_bytes(extents[i].elem_count, record.state_streams);
    }
    expect_refused(&record, "in shards of 4097 elements");
    for (uint32_t i = 3; i < 6; i++) {
        extents[i] = extents[i - 3];
        extents[i].unit = 1;
        extents[i].offset_bytes = MIB;
    }
    record.slabs.rank_count = 2;
    expect_refused(&record, "a world of 3 ranks cannot have the slabs of 2");
    record.world_size = record.slabs.rank_count = MANIFEST_RANKS_MAX + 1;
    expect_refused(&record, "1025 ranks");
    record.world_size = record.slabs.rank_count = 3;
    extents[4].offset_bytes = extents[1].offset_bytes; /* found by who reads */
    assert_ok(manifest_write(format_directory(), &record));
    format_expect_reason(manifest_read(format_directory(), &out), ERR_CORRUPT,
                         "overlap on the slab of rank 1");
    manifest_fini(&record);
    format_remove_slots();
}

static void paths_are_expanded(void **state)
{
    static const struct {
        const char *path, *expected;
    } cases[] = {
        {"/mnt/a", "/mnt/a"},
        {"", ""},
        {"/mnt/{rank}/{local_rank}/{host}", "/mnt/1023/7/node-3"},
        {"{host}{host}", "node-3node-3"},
        {"/r{rank}{", "/r1023{"},
        {"{Rank}{rank", "{Rank}{rank"},
        {"{{rank}}", "{1023}"},
    };
    char text[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t length = strlen(cases[i].expected);
        assert_true(manifest_expand_path(cases[i].path, 1023, 7, "node-3", text, sizeof text));
        assert_string_equal(text, cases[i].expected);
        assert_true(manifest_expand_path(cases[i].path, 1023, 7, "node-3", text, length + 1));
        memset(text, 'x', sizeof text);
        assert_false(manifest_expand_path(cases[i].path, 1023, 7, "node-3", text, length));
        assert_int_equal(text[length], 'x'); /* not a byte too far */
    }
    /* The text that replaces a placeholder is not expanded again. */
    assert_true(manifest_expand_path("{host}", 1, 0, "{rank}", text, sizeof text));
    assert_string_equal(text, "{rank}");
}

int main(void)
{
    printf("seed %d\n", SEED);
    log_set_level(LOG_QUIET);
    format_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_are_equal),
        cmocka_unit_test(paths_are_expanded),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    format_end();
    return rc;
}
