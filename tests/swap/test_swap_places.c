/* The table of places: random writes and commits against a model of the slab that remembers what
 * the last durable commit holds; look-ups; and the tables that are refused. */
#include <errno.h>

#include "base/mem.h"
#include "base/rng.h"
#include "swap/place_table.h"
#include "tests/unit.h"

enum { PAGE = 4096, SEED = 20261122, EXTENTS = 40, STEPS = 20000 };

static uint64_t draw(uint64_t stream, uint64_t step, uint64_t bound)
{
    return rng_below(SEED, stream, step, bound);
}

/* Extents of one to four pages with gaps in the arena, places dealt out in another order on the
 * slab. */
static void make_entries(place_entry *entries, bool has_two)
{
    uint64_t logical = 0, slab = 0;
    for (uint32_t i = 0; i < EXTENTS; i++) {
        uint64_t pages = 1 + draw(1, i, 4);
        logical += PAGE * draw(2, i, 3);
        entries[i] = (place_entry){.unit = i / 4,
                                   .tile = i % 4,
                                   .elem_begin = 1000 * i,
                                   .elem_count = pages * 1024,
                                   .logical_offset = logical,
                                   .size_bytes = pages * PAGE,
                                   .newest = PLACE_NONE,
                                   .committed = PLACE_NONE};
        logical += pages * PAGE;
    }
    for (uint32_t i = EXTENTS; i-- > 0;)
        for (int which = 0; which < 2; which++) {
            bool is_own = which == 0 || has_two;
            entries[i].offset[which] = is_own ? slab : entries[i].offset[0];
            slab += is_own ? entries[i].size_bytes : 0;
        }
    for (uint32_t i = EXTENTS; i-- > 1;) { /* the table sorts them */
        uint32_t k = (uint32_t)draw(3, i, i + 1);
        place_entry kept = entries[i];
        entries[i] = entries[k];
        entries[k] = kept;
    }
}

static place_table *create(const place_entry *entries, uint64_t count)
{
    place_table *table;
    assert_ok(place_table_create(entries, count, &table));
    return table;
}

static void finds_what_is_there(void **state)
{
    place_entry entries[EXTENTS];
    make_entries(entries, true);
    place_table *table = create(entries, EXTENTS);
    mem_stats before, after;
    mem_get_stats(&before);
    assert_int_equal(place_table_count(table), EXTENTS);
    for (uint32_t i = 0; i < EXTENTS; i++) {
        const place_entry *item = &entries[i];
        place_entry *found = place_table_find(table, item->logical_offset, item->size_bytes);
        assert_non_null(found);
        assert_memory_equal(found, item, sizeof *item);
        assert_null(place_table_find(table, item->logical_offset, item->size_bytes + PAGE));
        assert_null(place_table_find(table, item->logical_offset + 1, item->size_bytes));
        assert_null(place_table_find(table, item->logical_offset + 1, item->size_bytes - 1));
        if (i > 0)
            assert_true(place_table_at(table, i - 1)->logical_offset <
                        place_table_at(table, i)->logical_offset);
    }
    assert_null(place_table_find(table, UINT64_MAX, PAGE));
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    place_table_destroy(table);
    place_table_destroy(NULL);

    table = create(NULL, 0);
    assert_int_equal(place_table_count(table), 0);
    assert_null(place_table_find(table, 0, PAGE));
    place_table_commit(table);
    place_table_destroy(table);
}

/* The content of each place of the slab: the number of the write that wrote it; 0: nothing. */
struct slab_model {
    uint64_t content[EXTENTS][2];
    uint64_t newest[EXTENTS], durable[EXTENTS]; /* what a reader, or a resumed run, has to find */
    uint8_t durable_at[EXTENTS];
};

/* Every step either begins and ends a write, begins one that fails, or commits. A write that began
 * has destroyed its place, so the durable content must lie elsewhere at any time. */
static void run_sequence(bool has_two)
{
    static struct slab_model model;
    memset(&model, 0, sizeof model);
    place_entry entries[EXTENTS];
    make_entries(entries, has_two);
    place_table *table = create(entries, EXTENTS);
    uint64_t commit_count = 0, switch_count = 0;
    for (uint64_t step = 1; step <= STEPS; step++) {
        if (draw(4, step, 60) == 0) {
            place_table_commit(table);
            for (uint32_t i = 0; i < EXTENTS; i++) {
                model.durable[i] = model.newest[i];
                model.durable_at[i] = place_table_at(table, i)->newest;
                assert_int_equal(place_table_at(table, i)->committed, model.durable_at[i]);
            }
            commit_count++;
            continue;
        }
        uint32_t i = (uint32_t)draw(5, step, EXTENTS);
        place_entry *item = place_table_at(table, i);
        uint8_t which = place_to_write(item), before = item->newest;
        assert_true(which < PLACE_NONE);
        if (has_two && model.durable[i] > 0)
            assert_true(which != model.durable_at[i]);
        place_begin_write(item, which);
        assert_int_equal(item->has_sum[which], 0);
        assert_int_equal(item->newest, before);
        bool fails = which != before && draw(6, step, 10) == 0; /* else nothing is left to read */
        model.content[i][which] = 0;                            /* torn, until it is written */
        if (!fails) {
            model.content[i][which] = model.newest[i] = step;
            place_written(item, which, step * 7);
            switch_count += before != which;
            assert_int_equal(item->newest, which);
            assert_int_equal(place_to_write(item), which); /* again in place, until a commit */
        }
        if (item->newest != PLACE_NONE)
            assert_true(model.content[i][item->newest] == model.newest[i]);
        else
            assert_true(model.newest[i] == 0);
        for (uint32_t k = 0; k < EXTENTS; k++) {
            const place_entry *other = place_table_at(table, k);
            if (other->newest != PLACE_NONE) {
                assert_true(other->has_sum[other->newest]);
                assert_true(other->sum[other->newest] == model.newest[k] * 7);
            }
            if (has_two && model.durable[k] > 0)
                assert_true(model.content[k][other->committed] == model.durable[k] &&
                            other->sum[other->committed] == model.durable[k] * 7 &&
                            other->has_sum[other->committed]);
        }
    }
    assert_true(commit_count > 200);
    assert_true(switch_count > 2000 || !has_two);
    place_table_destroy(table);
}

static void a_committed_place_is_never_written(void **state)
{
    print_message("seed %d\n", SEED);
    run_sequence(true);
    run_sequence(false);
}

static void expect_refused(const place_entry *entries, uint64_t count, const char *text)
{
    place_table *table;
    assert_int_equal(place_table_create(entries, count, &table), -EINVAL);
    assert_null(table);
    if (!strstr(err_text(), text))
        fail_msg("\"%s\" does not say \"%s\"", err_text(), text);
}

static void refuses_what_overlaps(void **state)
{
    const place_entry good[3] = {
        {.unit = 3,
         .tile = 0,
         .logical_offset = 8 * PAGE,
         .size_bytes = 2 * PAGE,
         .offset = {0, 2 * PAGE},
         .newest = PLACE_NONE,
         .committed = PLACE_NONE},
        {.unit = 4,
         .tile = 1,
         .logical_offset = 0,
         .size_bytes = 2 * PAGE,
         .offset = {4 * PAGE, 4 * PAGE},
         .newest = 0,
         .committed = 0},
        {.unit = 5,
         .tile = 2,
         .logical_offset = 2 * PAGE,
         .size_bytes = PAGE,
         .offset = {7 * PAGE, 6 * PAGE},
         .newest = 1,
         .committed = PLACE_NONE},
    };
    mem_stats before, after;
    mem_get_stats(&before);
    place_table_destroy(create(good, 3));
    place_entry bad[3];
#define WITH(idx, field, value, text)                                                              \
    do {                                                                                           \
        memcpy(bad, good, sizeof bad);                                                             \
        bad[idx].field = (value);                                                                  \
        expect_refused(bad, 3, text);                                                              \
    } while (0)
    WITH(0, logical_offset, 2 * PAGE, "overlap in the nvme arena");
    WITH(2, logical_offset, PAGE, "unit 4, tile 1 (8192 bytes at 0) and unit 5, tile 2 (at 4096)");
    WITH(0, offset[1], PAGE, "a place of unit 3, tile 0");
    WITH(0, offset[1], 3 * PAGE, "unit 4, tile 1 (from 16384) overlap");
    WITH(2, offset[1], 5 * PAGE, "unit 5, tile 2 (from 20480) overlap");
    WITH(2, offset[0], 4 * PAGE, "overlap");
    WITH(1, size_bytes, 0, "unit 4, tile 1");
    WITH(1, size_bytes, UINT64_MAX, "is no range");
    WITH(2, logical_offset, UINT64_MAX - 5, "is no range");
    WITH(2, offset[1], UINT64_MAX - PAGE + 1, "is no range");
    WITH(1, newest, 3, "place 3");
    WITH(1, committed, 3, "3 committed");
    WITH(1, newest, PLACE_NONE, "0 committed"); /* a commit of what was never written */
#undef WITH
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_what_is_there),
        cmocka_unit_test(a_committed_place_is_never_written),
        cmocka_unit_test(refuses_what_overlaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
