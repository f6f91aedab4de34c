/* Percentiles of how long transfers took: the histogram against a sorted list, and what a queue
 * over several drives (the argument: uring, pool, sim) counts of each drive and direction, slow
 * ones and failed ones too. */
#include <errno.h>

#include "base/rng.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"
#include "tiers/arena.h"
#include "tiers/io.h"
#include "tiers/io_faults.h"

enum { SEED = 20261122, BLOCK_BYTES = 256 * 1024, SLAB_BLOCKS = 48, VALUES = 5000 };

static enum io_backend backend = IO_POOL;
static slab_drive drives[2];
static slab store;
static arena memory;

static int by_value(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

static void percentiles_are_of_the_list(void **state)
{
    static const double shares[] = {0.001, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0};
    static uint64_t values[VALUES];
    io_latency all = {.count = 0}, half[2] = {{.count = 0}, {.count = 0}};
    assert_int_equal(io_latency_quantile_ns(&all, 0.5), 0);
    print_message("seed %d\n", SEED);
    for (uint64_t i = 0; i < VALUES; i++) {
        /* Evenly over the octaves from 100 ns to 13 s. */
        values[i] = ((uint64_t)100 << rng_below(SEED, 1, i, 27)) + rng_below(SEED, 2, i, 100);
        io_latency_add(&all, values[i]);
        io_latency_add(&half[i % 2], values[i]);
    }
    io_latency_merge(&half[0], &half[1]);
    assert_memory_equal(&half[0], &all, sizeof all);
    qsort(values, VALUES, sizeof values[0], by_value);
    assert_int_equal(all.count, VALUES);
    assert_int_equal(all.max_ns, values[VALUES - 1]);
    for (size_t s = 0; s < sizeof shares / sizeof shares[0]; s++) {
        uint64_t exact = values[(size_t)(shares[s] * VALUES + 0.5) - 1];
        uint64_t found = io_latency_quantile_ns(&all, shares[s]);
        if (found < exact || found - exact > exact / IO_LATENCY_PARTS)
            fail_msg("share %g: %llu ns, exactly %llu", shares[s], (unsigned long long)found,
                     (unsigned long long)exact);
    }
}

static void extremes_have_a_bucket(void **state)
{
    io_latency self = {.count = 0};
    io_latency_add(&self, 0);
    assert_int_equal(io_latency_quantile_ns(&self, 1.0), 0);
    io_latency_add(&self, UINT64_MAX);
    assert_int_equal(io_latency_quantile_ns(&self, 1.0), UINT64_MAX);
    assert_true(io_latency_quantile_ns(&self, 0.5) < 128);
    assert_int_equal(self.count, 2);
}

static io *create(const io_faults *faults)
{
    io_region region = {memory.base, memory.size_bytes};
    io_config config = {.target = &store,
                        .backend = backend,
                        .queue_depth = 4,
                        .block_bytes = BLOCK_BYTES,
                        .regions = &region,
                        .region_count = 1,
                        .test = &(io_test){.faults = faults}};
    io *self;
    if (io_create(&config, &self) < 0)
        fail_msg("io_create: %s", err_text());
    return self;
}

/* How many transfers of the whole slab each drive gets. */
static void count_pieces(uint64_t counts[2])
{
    counts[0] = counts[1] = 0;
    for (uint64_t i = 0; i < SLAB_BLOCKS; i++) {
        slab_piece piece;
        slab_map(&store, i * BLOCK_BYTES, BLOCK_BYTES, &piece);
        assert_int_equal(piece.size_bytes, BLOCK_BYTES);
        counts[piece.drive_idx]++;
    }
}

static void assert_counts(const io *self, enum io_direction direction, const uint64_t counts[2],
                          uint64_t times)
{
    for (uint32_t d = 0; d < 2; d++) {
        const io_latency *latency = io_get_latency(self, d, direction);
        assert_int_equal(latency->count, counts[d] * times);
        uint64_t half = io_latency_quantile_ns(latency, 0.5);
        assert_true(half <= io_latency_quantile_ns(latency, 0.99));
        assert_true(io_latency_quantile_ns(latency, 0.99) <= latency->max_ns);
        assert_true((half > 0) == (times > 0));
    }
}

static void transfers_count_by_drive_and_direction(void **state)
{
    uint64_t counts[2];
    const uint64_t all_bytes = (uint64_t)SLAB_BLOCKS * BLOCK_BYTES;
    io *self = create(NULL);
    count_pieces(counts);
    assert_true(counts[0] > counts[1] && counts[1] > 0);
    assert_counts(self, IO_READ, counts, 0); /* the first reads of io_create are none of ours */
    assert_int_equal(io_transfer(self, IO_WRITE, 0, memory.base, all_bytes), 0);
    assert_counts(self, IO_WRITE, counts, 1);
    assert_counts(self, IO_READ, counts, 0);
    assert_int_equal(io_transfer(self, IO_READ, 0, memory.base, all_bytes), 0);
    assert_int_equal(io_transfer(self, IO_READ, 0, memory.base, all_bytes), 0);
    assert_counts(self, IO_READ, counts, 2);
    io_clear_latencies(self);
    assert_counts(self, IO_WRITE, counts, 0);
    assert_counts(self, IO_READ, counts, 0);
    assert_null(io_get_latency(self, 2, IO_READ));
    io_destroy(self);
}

/* A transfer that is held back shows with all the time that it took. */
static void a_slow_transfer_shows(void **state)
{
    const io_faults faults = {.at_transfer = 7, .at_kind = IO_FAULT_STUCK, .stuck_us = 30000};
    uint64_t counts[2], longest = 0;
    io *self = create(&faults);
    count_pieces(counts);
    assert_int_equal(
        io_transfer(self, IO_WRITE, 0, memory.base, (uint64_t)SLAB_BLOCKS * BLOCK_BYTES), 0);
    assert_counts(self, IO_WRITE, counts, 1);
    for (uint32_t d = 0; d < 2; d++)
        longest = size_max(longest, io_get_latency(self, d, IO_WRITE)->max_ns);
    assert_true(longest >= 30000000);
    io_destroy(self);
}

/* Continued and retried: one transfer each all the same. Failed: none. */
static void parts_count_once_and_failures_never(void **state)
{
    uint64_t counts[2];
    const io_faults cut = {.seed = SEED, .short_rate = 500, .retry_rate = 200};
    const io_faults broken = {.at_transfer = 1, .at_kind = IO_FAULT_EIO};
    io *self = create(&cut);
    count_pieces(counts);
    assert_int_equal(
        io_transfer(self, IO_WRITE, 0, memory.base, (uint64_t)SLAB_BLOCKS * BLOCK_BYTES), 0);
    io_stats stats;
    io_get_stats(self, &stats);
    assert_true(stats.short_count > 0 && stats.retry_count > 0);
    assert_counts(self, IO_WRITE, counts, 1);
    io_destroy(self);
    self = create(&broken);
    assert_int_equal(io_transfer(self, IO_READ, 0, memory.base, BLOCK_BYTES), -EIO);
    assert_counts(self, IO_READ, counts, 0);
    io_destroy(self);
}

static int setup(void **state)
{
    arena_config memory_config = {
        .name = "host", .size_bytes = (uint64_t)SLAB_BLOCKS * BLOCK_BYTES, .touch_threads = 1};
    if (directory_make(state) != 0 || arena_init(&memory, &memory_config) < 0)
        return -1;
    helper_drive(&drives[0], "x", 64 * MIB, 2.0);
    helper_drive(&drives[1], "y", 64 * MIB, 1.0);
    slab_config config = {.drives = drives,
                          .drive_count = 2,
                          .total_bytes = (uint64_t)SLAB_BLOCKS * BLOCK_BYTES,
                          .stripe_bytes = MIB};
    return slab_open(&store, &config);
}

static int teardown(void **state)
{
    arena_fini(&memory);
    return slab_remove(&store) < 0 ? -1 : directory_remove(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles_are_of_the_list),
        cmocka_unit_test(extremes_have_a_bucket),
        cmocka_unit_test_setup_teardown(transfers_count_by_drive_and_direction, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slow_transfer_shows, setup, teardown),
        cmocka_unit_test_setup_teardown(parts_count_once_and_failures_never, setup, teardown),
    };
    if (argc != 2) {
        fprintf(stderr, "use: test_tiers_latency uring|pool|sim\n");
        return 1;
    }
    backend = helper_backend(argv[1]);
    int skip = helper_skip(backend);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
