/* Striping: shares by weight and limit, and a mapping that covers every byte of every file once.
 * Pure arithmetic; the file headers' share of the contract is in test_tiers_slab. */
#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "tests/unit.h"
#include "tiers/tiers_internal.h"

static slab *make(uint32_t drive_count, const uint64_t *stripes, uint64_t stripe_bytes)
{
    slab *self = mem_alloc(1, sizeof *self, "test slab");
    assert_non_null(self);
    self->drive_count = drive_count;
    self->stripe_bytes = stripe_bytes;
    for (uint32_t i = 0; i < drive_count; i++) {
        self->drive_stripes[i] = stripes[i];
        self->total_bytes += stripes[i] * stripe_bytes;
    }
    assert_int_equal(tieri_slab_layout(self), 0);
    return self;
}

/* Every stripe of every drive is met exactly once. */
static void check_covers_once(uint32_t drive_count, const uint64_t *stripes)
{
    slab *self = make(drive_count, stripes, MIB);
    uint64_t first[DRIVES_MAX], count = 0;
    for (uint32_t i = 0; i < drive_count; i++) {
        first[i] = count;
        count += stripes[i];
    }
    unsigned char *seen = mem_alloc(count, 1, "test marks");
    assert_non_null(seen);
    for (uint64_t stripe = 0; stripe < count; stripe++) {
        slab_piece piece;
        slab_map(self, stripe * MIB, MIB, &piece);
        assert_int_equal(piece.size_bytes, MIB);
        assert_true(piece.drive_idx < drive_count);
        assert_int_equal((piece.file_offset - SLAB_HEADER_BYTES) % MIB, 0);
        uint64_t at = (piece.file_offset - SLAB_HEADER_BYTES) / MIB;
        assert_true(at < stripes[piece.drive_idx]);
        assert_int_equal(seen[first[piece.drive_idx] + at]++, 0);
    }
    mem_free(seen);
    mem_free(self);
}

static void each_byte_once(void **state)
{
    static const uint64_t cases[][4] = {
        {1, 1},
        {1, 1000},
        {2, 1, 1},
        {2, 500, 500},
        {2, 777, 1000},
        {2, 1, 5000},
        {3, 1, 2, 3},
        {3, 1000, 1000, 1000},
        {3, 3100, 1600, 801},
        {3, 5000, 1, 17},
        {3, 257, 0, 300},
        {2, 255, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_covers_once((uint32_t)cases[i][0], cases[i] + 1);
    uint64_t seed = 20261121;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t trial = 0; trial < 60; trial++) {
        uint64_t stripes[DRIVES_MAX];
        uint32_t drive_count = 1 + (uint32_t)rng_below(seed, 1, trial, DRIVES_MAX);
        for (uint32_t i = 0; i < drive_count; i++)
            stripes[i] = 1 + rng_below(seed, 2, trial * 16 + i, 1u << rng_below(seed, 3, i, 13));
        check_covers_once(drive_count, stripes);
    }
}

/* The pieces of a range are contiguous in the address space and agree with single bytes' places. */
static void ranges_are_cut_at_stripes(void **state)
{
    const uint64_t stripes[] = {30, 20, 11};
    slab *self = make(3, stripes, 2 * MIB);
    uint64_t seed = 7;
    for (uint64_t trial = 0; trial < 500; trial++) {
        uint64_t offset = rng_below(seed, 0, trial, self->total_bytes);
        uint64_t size = 1 + rng_below(seed, 1, trial, self->total_bytes - offset);
        uint64_t end = offset + size;
        while (offset < end) {
            slab_piece piece, byte;
            slab_map(self, offset, end - offset, &piece);
            assert_in_range(piece.size_bytes, 1, 2 * MIB);
            slab_map(self, offset + piece.size_bytes - 1, 1, &byte);
            assert_int_equal(byte.drive_idx, piece.drive_idx);
            assert_int_equal(byte.file_offset, piece.file_offset + piece.size_bytes - 1);
            offset += piece.size_bytes;
        }
        assert_int_equal(offset, end);
    }
    mem_free(self);
}

static void one_drive_is_one_piece(void **state)
{
    const uint64_t stripes[] = {1000};
    slab *self = make(1, stripes, MIB);
    slab_piece piece;
    slab_map(self, 12345, 900 * MIB, &piece);
    assert_int_equal(piece.size_bytes, 900 * MIB);
    assert_int_equal(piece.file_offset, 12345 + SLAB_HEADER_BYTES);
    mem_free(self);
}

/* Near any place, drives take part in proportion: otherwise some would idle. */
static void neighbours_are_on_different_drives(void **state)
{
    const uint64_t stripes[] = {40000, 20000, 20000};
    slab *self = make(3, stripes, MIB);
    assert_int_equal(self->zone_count, 1);
    assert_int_equal(self->zones[0].pattern_count, 4);
    for (uint64_t stripe = 0; stripe < 80000; stripe += 4) {
        int counts[3] = {0};
        for (uint64_t i = 0; i < 4; i++) {
            slab_piece piece;
            slab_map(self, (stripe + i) * MIB, MIB, &piece);
            counts[piece.drive_idx]++;
        }
        assert_true(counts[0] == 2 && counts[1] == 1 && counts[2] == 1);
    }
    mem_free(self);
}

static void huge_slabs_need_few_zones(void **state)
{
    uint64_t stripes[DRIVES_MAX];
    for (uint64_t trial = 0; trial < 200; trial++) {
        for (uint32_t i = 0; i < DRIVES_MAX; i++)
            stripes[i] = rng_u64(99, trial, i) >> (24 + rng_below(98, trial, i, 30));
        mem_free(make(DRIVES_MAX, stripes, MIB)); /* asserts that the layout is possible */
    }
}

/* No drive that could have another drive's stripe would be done with it before that drive is done
 * with its own: the slowest part of the slab cannot be made faster by moving a stripe. */
static void check_no_better(uint32_t count, const double *weights, const uint64_t *limits,
                            const uint64_t *shares)
{
    for (uint32_t from = 0; from < count; from++)
        for (uint32_t to = 0; to < count; to++)
            if (to != from && shares[from] > 0 && shares[to] < limits[to])
                assert_true((double)(shares[to] + 1) / weights[to] >=
                            (double)shares[from] / weights[from] * (1 - 1e-9));
}

static void shares_keep_weights_and_limits(void **state)
{
    uint64_t shares[DRIVES_MAX];
    const double weights[] = {3.0, 1.0, 2.0};
    const uint64_t wide[] = {10000, 10000, 10000};
    tieri_slab_share(3, weights, wide, 6000, shares);
    assert_true(shares[0] == 3000 && shares[1] == 1000 && shares[2] == 2000);
    const uint64_t narrow[] = {1000, 10000, 10000};
    tieri_slab_share(3, weights, narrow, 4000, shares);
    assert_true(shares[0] == 1000 && shares[1] == 1000 && shares[2] == 2000);
    const uint64_t tight[] = {5, 7, 9};
    tieri_slab_share(3, weights, tight, 21, shares);
    assert_true(shares[0] == 5 && shares[1] == 7 && shares[2] == 9);
    const uint64_t few[] = {1000, 1000, 1000};
    const double one_fast[] = {168.0, 664.0, 168.0}; /* exact parts: 0.84, 3.32, 0.84 */
    tieri_slab_share(3, one_fast, few, 5, shares);
    assert_true(shares[0] == 1 && shares[1] == 3 && shares[2] == 1);
    for (uint64_t trial = 0; trial < 2000; trial++) {
        double random_weights[DRIVES_MAX];
        uint64_t limits[DRIVES_MAX], sum = 0, dealt = 0;
        uint32_t count = 1 + (uint32_t)rng_below(5, 1, trial, DRIVES_MAX);
        for (uint32_t i = 0; i < count; i++) {
            random_weights[i] = 1e-3 + rng_uniform(5, 2, trial * 16 + i);
            limits[i] = rng_below(5, 3, trial * 16 + i, 3000);
            sum += limits[i];
        }
        uint64_t wanted = rng_below(5, 4, trial, sum + 1);
        tieri_slab_share(count, random_weights, limits, wanted, shares);
        for (uint32_t i = 0; i < count; i++) {
            assert_true(shares[i] <= limits[i]);
            dealt += shares[i];
        }
        assert_int_equal(dealt, wanted);
        check_no_better(count, random_weights, limits, shares);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_byte_once),
        cmocka_unit_test(ranges_are_cut_at_stripes),
        cmocka_unit_test(one_drive_is_one_piece),
        cmocka_unit_test(neighbours_are_on_different_drives),
        cmocka_unit_test(huge_slabs_need_few_zones),
        cmocka_unit_test(shares_keep_weights_and_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
