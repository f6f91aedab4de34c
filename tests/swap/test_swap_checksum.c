/* The table of sums: what is summed and what is padding, which extents a table knows, what a write
 * makes it forget, and random writes and reads against a list of all that is known. */
#include <errno.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/tile.h"
#include "swap/checksum.h"
#include "tests/swap/swap_fixture.h"
#include "tests/unit.h"

enum { PAGE = 4096, SEED = 20261121, NVME_PAGES = 64 };

/* A program of one write per range (in pages), from one host home. */
static void writes_of(program *out, const uint32_t (*ranges)[2], uint32_t count)
{
    builder build;
    builder_init(&build, PROGRAM_STEADY, 0, NVME_PAGES * PAGE, NVME_PAGES * PAGE);
    uint32_t nvme = builder_home(&build, TIER_NVME, 0, NVME_PAGES * PAGE);
    uint32_t host = builder_home(&build, TIER_HOST, 0, NVME_PAGES * PAGE);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes = (uint64_t)ranges[i][1] * PAGE;
        builder_op(&build, OP_WRITE);
        builder_use(&build, ROLE_SOURCE, ACCESS_READ, host, 0, bytes);
        builder_use(&build, ROLE_TARGET, ACCESS_WRITE, nvme, (uint64_t)ranges[i][0] * PAGE, bytes);
    }
    builder_finish(&build, out);
}

static checksum_extent extent_of(uint32_t page, uint32_t pages, const unsigned char *data)
{
    return (checksum_extent){.offset = (uint64_t)page * PAGE,
                             .size_bytes = (uint64_t)pages * PAGE,
                             .sum = checksum_sum(data, (uint64_t)pages * PAGE, 0, 0)};
}

/* Whether byte `at` of a tile is of a stream, and not padding. */
static bool is_in_stream(uint32_t streams, uint64_t elems, uint64_t at)
{
    for (uint32_t i = 0; i < tile_stream_count(streams); i++) {
        uint64_t begin = tile_stream_offset(streams, elems, i);
        if (at >= begin && at < begin + tile_stream_bytes(streams, elems, i))
            return true;
    }
    return false;
}

static const uint32_t codes[] = {
    1,
    2,
    3,
    3 | TILE_BF16 << 16 | TILE_BF16 << 24,
    3 | TILE_INT8 << 16 | TILE_INT8 << 24,
    3 | TILE_LOW16 << 8,
    3 | TILE_LOW16 << 8 | TILE_INT8 << 16 | TILE_BF16 << 24,
};
enum { CODES = sizeof codes / sizeof codes[0] };

static void padding_does_not_count(void **state)
{
    const uint64_t elems = 3 * 4096 + 5 * 1024;
    for (uint32_t c = 0; c < CODES; c++) {
        uint32_t streams = codes[c];
        uint64_t size_bytes = tile_bytes(elems, streams), used = 0;
        unsigned char *tile = mem_alloc(size_bytes, 1, "test tile");
        assert_non_null(tile);
        for (uint64_t i = 0; i < size_bytes; i++)
            tile[i] = (unsigned char)rng_u64(SEED, c, i);
        uint64_t sum = checksum_sum(tile, size_bytes, elems, streams);
        uint64_t whole = checksum_sum(tile, size_bytes, elems, 0);
        assert_true(whole == XXH3_64bits(tile, size_bytes));
        assert_true(whole == checksum_sum(tile, size_bytes, 0, streams));
        unsigned char *joined = mem_alloc(tile_state_bytes(streams, elems), 1, "test tile");
        assert_non_null(joined);
        for (uint32_t k = 0; k < tile_stream_count(streams); k++) {
            uint64_t bytes = tile_stream_bytes(streams, elems, k);
            memcpy(joined + used, tile + tile_stream_offset(streams, elems, k), bytes);
            used += bytes;
        }
        assert_true(sum == XXH3_64bits(joined, used)); /* the manifest's */
        mem_free(joined);
        for (uint64_t trial = 0; trial < 400; trial++) {
            uint64_t at = rng_below(SEED, 10 + c, trial, size_bytes);
            bool in_stream = is_in_stream(streams, elems, at);
            tile[at] ^= 4;
            assert_true((checksum_sum(tile, size_bytes, elems, streams) == sum) == !in_stream);
            assert_true(checksum_sum(tile, size_bytes, 0, 0) != whole);
            tile[at] ^= 4;
        }
        /* Bytes that are no tile of so many elements are summed whole. */
        assert_true(checksum_sum(tile, size_bytes, elems + 65536, streams) == whole);
        mem_free(tile);
    }
}

static void fresh_tiles_have_the_sum_of_their_zeros(void **state)
{
    static const uint64_t sizes[] = {1, 13, 4096, 5 * 4096, 100000};
    for (uint32_t c = 0; c < 5; c++) /* of an fp32 master */
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            uint32_t streams = codes[c];
            uint64_t elems = sizes[i], size_bytes = tile_bytes(elems, streams);
            float *tile = mem_alloc(size_bytes, 1, "test tile");
            assert_non_null(tile);
            for (uint64_t e = 0; e < elems; e++)
                tile[e] = (float)rng_below(SEED, 20, e, 1000);
            assert_true(checksum_sum_fresh(tile, elems, streams) ==
                        checksum_sum(tile, size_bytes, elems, streams));
            mem_free(tile);
        }
}

static void the_table_knows_the_programs_writes(void **state)
{
    static const uint32_t first[][2] = {{0, 2}, {2, 2}, {8, 4}, {0, 2}};
    static const uint32_t second[][2] = {{2, 2}, {0, 4}, {20, 1}};
    static unsigned char data[NVME_PAGES * PAGE];
    program programs[3];
    writes_of(&programs[0], first, 4);
    writes_of(&programs[1], second, 3);
    writes_of(&programs[2], NULL, 0);
    const program *list[] = {&programs[0], &programs[1], &programs[2]};
    checksum_table *table;
    assert_int_equal(checksum_create(list, 3, &table), 0);
    mem_stats before, after;
    mem_get_stats(&before);
    assert_int_equal(checksum_count(table), 0);
    for (uint32_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 31 + i / 4096);
    checksum_extent a = extent_of(0, 2, data), b = extent_of(2, 2, data + 2 * PAGE);
    checksum_extent wide = extent_of(0, 4, data), expected;
    uint64_t found;
    assert_int_equal(checksum_put(table, &b), 0);
    assert_int_equal(checksum_put(table, &a), 0);
    assert_int_equal(checksum_count(table), 2);
    /* One read over both verifies both; one that cuts an extent leaves it alone. */
    assert_int_equal(checksum_verify(table, 0, 4 * PAGE, data, &expected, &found), 0);
    data[3 * PAGE + 17] ^= 1;
    assert_int_equal(checksum_verify(table, 0, 4 * PAGE, data, &expected, &found), ERR_CORRUPT);
    assert_memory_equal(&expected, &b, sizeof b);
    assert_true(found == checksum_sum(data + 2 * PAGE, 2 * PAGE, 0, 0) && found != b.sum);
    assert_int_equal(checksum_verify(table, 0, 3 * PAGE, data, &expected, &found), 0);
    data[3 * PAGE + 17] ^= 1;
    /* A write over both takes their place; one that none writes leaves nothing. */
    assert_int_equal(checksum_put(table, &wide), 0);
    assert_int_equal(checksum_count(table), 1);
    checksum_extent unknown = extent_of(3, 2, data);
    assert_int_equal(checksum_put(table, &unknown), -ENOENT);
    assert_int_equal(checksum_count(table), 0);
    checksum_forget(table, 0, NVME_PAGES * PAGE);
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    checksum_destroy(table);
    checksum_destroy(NULL);
    for (int i = 0; i < 3; i++)
        program_fini(&programs[i]);
}

static void ranges_that_no_program_writes(void **state)
{
    static const uint32_t written[][2] = {{2, 2}, {8, 4}};
    static unsigned char data[NVME_PAGES * PAGE];
    program prog;
    writes_of(&prog, written, 2);
    const program *list[] = {&prog};
    checksum_table *table;
    assert_int_equal(checksum_create(list, 1, &table), 0);
    const checksum_extent more[] = {extent_of(5, 2, data), extent_of(2, 2, data),
                                    extent_of(0, 1, data)};
    assert_int_equal(checksum_put(table, &more[0]), -ENOENT);
    assert_int_equal(checksum_add(table, more, 3), 0);
    assert_int_equal(checksum_count(table), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(checksum_put(table, &more[i]), 0);
    assert_int_equal(checksum_add(table, more, 1), -EINVAL);
    checksum_extent expected;
    uint64_t found;
    assert_int_equal(checksum_verify(table, 0, 8 * PAGE, data, &expected, &found), 0);
    data[6 * PAGE] ^= 1;
    assert_int_equal(checksum_verify(table, 0, 8 * PAGE, data, &expected, &found), ERR_CORRUPT);
    assert_memory_equal(&expected, &more[0], sizeof expected);
    checksum_destroy(table);
    program_fini(&prog);
}

/* Random overlapping ranges, put and forgotten at random, against a plain list. */
static void random_ranges_against_a_list(void **state)
{
    enum { RANGES = 40, STEPS = 3000 };
    print_message("seed %d\n", SEED);
    static uint32_t ranges[RANGES][2];
    static unsigned char data[NVME_PAGES * PAGE];
    bool known[RANGES] = {0};
    for (uint32_t i = 0; i < RANGES; i++) {
        ranges[i][1] = 1 + (uint32_t)rng_below(SEED, 20, i, i % 8 == 0 ? 40 : 4);
        ranges[i][0] = (uint32_t)rng_below(SEED, 21, i, NVME_PAGES + 1 - ranges[i][1]);
        for (uint32_t k = 0; k < i; k++) /* each once */
            if (memcmp(ranges[k], ranges[i], sizeof ranges[i]) == 0)
                ranges[i][1] = ranges[i][1] > 1 ? ranges[i][1] - 1 : 1;
    }
    program prog;
    writes_of(&prog, ranges, RANGES);
    const program *list[] = {&prog};
    checksum_table *table;
    assert_int_equal(checksum_create(list, 1, &table), 0);
    for (uint64_t step = 0; step < STEPS; step++) {
        uint32_t i = (uint32_t)rng_below(SEED, 22, step, RANGES);
        uint32_t begin = ranges[i][0], end = begin + ranges[i][1];
        bool put = rng_below(SEED, 23, step, 4) > 0;
        for (uint32_t k = 0; k < RANGES; k++)
            if (ranges[k][0] < end && begin < ranges[k][0] + ranges[k][1])
                known[k] = false;
        if (put) {
            data[begin * PAGE + step % PAGE]++;
            checksum_extent extent = extent_of(begin, ranges[i][1], data + begin * PAGE);
            assert_int_equal(checksum_put(table, &extent), 0);
            for (uint32_t k = 0; k < RANGES; k++)
                known[k] = known[k] || memcmp(ranges[k], ranges[i], sizeof ranges[i]) == 0;
        } else {
            checksum_forget(table, (uint64_t)begin * PAGE, (uint64_t)(end - begin) * PAGE);
        }
        /* A wrong byte is seen exactly where an extent that is known and within the read holds
         * it. */
        uint32_t page = (uint32_t)rng_below(SEED, 24, step, NVME_PAGES);
        uint32_t from = (uint32_t)rng_below(SEED, 25, step, page + 1);
        uint32_t to = page + 1 + (uint32_t)rng_below(SEED, 26, step, NVME_PAGES - page);
        bool seen = false;
        for (uint32_t k = 0; k < RANGES; k++)
            seen = seen || (known[k] && ranges[k][0] >= from && ranges[k][0] + ranges[k][1] <= to &&
                            ranges[k][0] <= page && page < ranges[k][0] + ranges[k][1]);
        checksum_extent expected;
        uint64_t found, offset = (uint64_t)from * PAGE, bytes = (uint64_t)(to - from) * PAGE;
        assert_int_equal(checksum_verify(table, offset, bytes, data + offset, &expected, &found),
                         0);
        data[page * PAGE] ^= 0x80;
        assert_int_equal(checksum_verify(table, offset, bytes, data + offset, &expected, &found),
                         seen ? ERR_CORRUPT : 0);
        data[page * PAGE] ^= 0x80;
    }
    checksum_destroy(table);
    program_fini(&prog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padding_does_not_count),
        cmocka_unit_test(fresh_tiles_have_the_sum_of_their_zeros),
        cmocka_unit_test(the_table_knows_the_programs_writes),
        cmocka_unit_test(ranges_that_no_program_writes),
        cmocka_unit_test(random_ranges_against_a_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
