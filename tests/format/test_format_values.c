/* No impossible record gets through: each rule of the manifest by a value that breaks it, under a
 * right checksum; then random damage under a right checksum, which must be found or must be a
 * record that keeps all the rules, asked here a second time and in other words. Nothing crashes,
 * leaks, or takes more memory than the bytes allow. */
#include <errno.h>
#include <math.h>
#include <xxhash.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/tile.h"
#include "tests/format/format_fixture.h"
#include "tests/unit.h"

enum { SEED = 4711, ROUNDS = 30000 };

static unsigned char bytes[FORMAT_FILE_MAX], damaged[FORMAT_FILE_MAX];

static size_t slot_bytes(const manifest *record)
{
    assert_ok(manifest_write(format_directory(), record));
    return format_load((int)(record->generation % 2), bytes);
}

static void put(unsigned char *to, size_t offset, size_t width, uint64_t value)
{
    memcpy(to + offset, &value, width);
}

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

struct broken_value {
    size_t offset, width;
    uint64_t value;
    const char *reason;
};

static void expect_broken(const struct broken_value *values, size_t value_count, size_t base,
                          size_t count)
{
    static manifest out;
    for (size_t i = 0; i < value_count; i++) {
        memcpy(damaged, bytes, count);
        put(damaged, base + values[i].offset, values[i].width, values[i].value);
        format_sign(damaged, count);
        format_expect_reason(manifest_decode(damaged, count, 0, &out), ERR_CORRUPT,
                             values[i].reason);
        assert_null(out.extents);
    }
}

static void impossible_headers_are_found(void **state)
{
    static manifest record;
    format_commit(&record, 8);
    size_t count = slot_bytes(&record);
    const struct broken_value values[] = {
        {0, 1, 'X', "begin with SLUMANIF"},
        {0, 8, 0, "zeros"},
        {8, 4, 0, "version 0"},
        {8, 4, 5, "version 5 and this program reads version 7 alone"},
        {8, 4, 8, "version 8 and this program reads version 7 alone"},
        {12, 4, 0, "state of 0"},
        {12, 4, 4, "state of 4"},
        {12, 4, UINT32_MAX, "state of 0"},
        {12, 4, MANIFEST_BEGUN, "has not committed"},
        {16, 8, count - 1, "lengths"},
        {16, 8, UINT64_MAX, "lengths"},
        {32, 8, 9, "belongs into manifest-1"},
        {32, 8, UINT64_MAX - 1, "generation"},
        {56, 8, record.fingerprint + 1, "fingerprint"},
        {64, 8, 0, "skipped"},
        {88, 8, UINT64_MAX, "skipped"},
        {96, 8, bits_of(NAN), "loss scale"},
        {96, 8, bits_of(INFINITY), "loss scale"},
        {96, 8, bits_of(0.0), "loss scale"},
        {96, 8, bits_of(-1.0), "loss scale"},
        {104, 8, 0, "elements"},
        {104, 8, record.tile_elems + 1, "is not its shard's last"},
        {104, 8, record.tile_elems - 1, "elements"},
        {104, 8, UINT64_MAX, "a tile of"},
        {112, 8, 0, "slabs of 0 bytes"},
        {112, 8, record.total_bytes + 4096, "slabs of"},
        {112, 8, UINT64_MAX / record.stripe_bytes * record.stripe_bytes, "slabs of"},
        {120, 8, 0, "slabs of"},
        {120, 8, 4096, "slabs of"},
        {128, 8, 0, "lengths"},
        {128, 8, UINT64_MAX, "lengths"},
        {136, 8, record.extent_count + 1, "lengths"},
        {136, 8, UINT64_MAX / 56 + 2, "lengths"},
        {144, 4, 0, "drives are not whole"},
        {144, 4, 1, "drives are not whole"},
        {144, 4, 3, "drives are not whole"},
        {144, 4, 17, "drives are not whole"},
        {144, 4, UINT32_MAX, "drives are not whole"},
        {148, 4, 1, "streams 00000001"},
        {148, 4, 4, "streams 00000004"},
        {148, 4, 0, "streams 00000000"},
        {148, 4, 3 | TILE_BF16 << 16, "cannot have"},
        {148, 4, record.state_streams == 3 ? 2 : 3 | TILE_INT8 << 24, "cannot have"},
        {152, 8, 0, "loss scale"},
        {152, 8, UINT64_MAX, "loss scale"},
        {160, 8, (uint64_t)-2, "loss scale"},
        {160, 8, record.point.scale_iteration, "loss scale"},
        {168, 8, 0, "hysteresis of 0"},
        {176, 8, 0, "lengths"},
        {176, 8, UINT64_MAX - 7, "lengths"},
        {184, 8, 8, "lengths"},
        {208, 4, 0, "not 0"},
        {208, 4, 2, "leftover slabs are not whole"},
        {208, 4, 17, "leftover slabs are not whole"},
        {212, 4, 1, "not 0"},
    };
    if (record.point.skipped_count == 0)
        put(bytes, 88, 8, 1); /* or a step of 0 would be possible */
    expect_broken(values, sizeof values / sizeof values[0], 0, count);
    manifest_fini(&record);
    format_remove_slots();
}

static void impossible_extents_are_found(void **state)
{
    static manifest record;
    /* Two units of more than one tile, so that the last extent follows another one of its unit. */
    for (uint64_t g = 8;; g += 2) {
        format_draw(&record, SEED, g, &(struct format_shape){MANIFEST_COMMITTED, 1, 0, 2, 1, 0});
        const manifest_extent *last = &record.extents[record.extent_count - 1];
        if (last->tile > 0 && record.extent_count < 8)
            break;
        manifest_fini(&record);
    }
    size_t count = slot_bytes(&record);
    const manifest_extent *last = &record.extents[record.extent_count - 1];
    const struct broken_value values[] = {
        {0, 4, 0, "is due"},
        {0, 4, 2, "is due"},
        {0, 4, UINT32_MAX, "is due"},
        {4, 4, last->tile + 1, "is due"},
        {4, 4, last->tile - 1, "is due"},
        {8, 8, last->offset_bytes + 1, "cannot lie at"},
        {8, 8, last->offset_bytes + 2048, "cannot lie at"},
        {8, 8, record.total_bytes, "cannot lie at"},
        {8, 8, UINT64_MAX - 4095, "cannot lie at"},
        {8, 8, last[-1].offset_bytes, "overlap"},
        {8, 8, last[-1].offset_bytes + last[-1].size_bytes - 4096, "overlap"},
        {16, 8, 0, "cannot have"},
        {16, 8, last->size_bytes + 4096, "cannot have"},
        {16, 8, UINT64_MAX, "cannot have"},
        {24, 8, last->elem_begin + 1, "is due"},
        {24, 8, 0, "is due"},
        {24, 8, UINT64_MAX, "is due"},
        {32, 8, 0, "0 elements"},
        {32, 8, record.tile_elems + 1, "elements"},
        {32, 8, UINT64_MAX, "elements"},
        {48, 4, 1, "is due"},
        {48, 4, UINT32_MAX, "is due"},
        {52, 4, 1, "cannot have params of 1 bytes"},
    };
    expect_broken(values, sizeof values / sizeof values[0], count - sizeof *last, count);
    const struct broken_value first[] = {
        {0, 4, 1, "is due"},
        {4, 4, 1, "is due"},
        {24, 8, 1, "is due"},
    };
    expect_broken(first, 3, count - record.extent_count * sizeof *last, count);
    manifest_fini(&record);
    format_remove_slots();
}

/* Three ranks: changes that make their extents, hosts or world impossible are found. */
static void impossible_ranks_are_found(void **state)
{
    static manifest record;
    format_draw(&record, SEED, 8, &(struct format_shape){MANIFEST_COMMITTED, 1, 1, 2, 3, 1});
    snprintf(record.slabs.drives[0], MANIFEST_TEXT_BYTES, "/drive0");
    snprintf(record.leftover.drives[0], MANIFEST_TEXT_BYTES, "/stray0");
    size_t count = slot_bytes(&record);
    enum { RANKS = 232 + 8 + 8, RANKS_BYTES = 208 };
    assert_string_equal((char *)bytes + RANKS, "node-0");
    const struct broken_value ranks[] = {
        {3, 1, 0, "host of rank 0 of its slabs"},
        {63, 1, 'x', "host of rank 0 of its slabs"},
        {68 + 10, 1, 'x', "host of rank 1 of its slabs"},
        {68 + 64, 4, 3, "cannot be local rank 3 of 3"},
        {68 + 64, 4, UINT32_MAX, "cannot be local rank"},
        {3 * 68, 1, 1, "ranks"},
        {RANKS_BYTES + 7, 1, 'x', "host of rank 0 of its leftover slabs"},
        {RANKS_BYTES + 3 * 68 + 3, 1, 1, "ranks"},
    };
    expect_broken(ranks, sizeof ranks / sizeof ranks[0], RANKS, count);
    const struct broken_value values[] = {
        {216, 4, 0, "lengths"},
        {216, 4, 2, "lengths"},
        {216, 4, UINT32_MAX, "lengths"},
        {220, 4, 4, "no ZeRO stage 4"},
        {220, 8, (uint64_t)1 << 32, "is due"}, /* as if replicated */
        {224, 4, 1, "not every rank has the whole"},
        {224, 4, 2, "not 0"},
        {228, 4, 0, "lengths"},
        {228, 4, UINT32_MAX, "lengths"},
    };
    expect_broken(values, sizeof values / sizeof values[0], 0, count);
    manifest_fini(&record);
    format_remove_slots();
}

static void broken_texts_are_found(void **state)
{
    static manifest record;
    format_commit(&record, 8);
    memset(record.identity, 0, sizeof record.identity);
    memcpy(record.identity, "model=gpt2", 10); /* 6 bytes of padding */
    record.fingerprint = XXH3_64bits(record.identity, 10);
    memset(record.slabs.drives[1], 0, MANIFEST_TEXT_BYTES);
    record.slabs.drives[1][0] = '/';
    size_t count = slot_bytes(&record);
    size_t length = strlen(record.slabs.drives[0]);
    size_t drives = (length + 3 + 7) / 8 * 8;
    size_t identity = count - record.extent_count * 56 - 16;
    assert_memory_equal(bytes + identity, record.identity, 16);
    const struct broken_value values[] = {
        {232, 1, 0, "drives are not whole"},
        {232 + length, 1, 'x', "drives are not whole"},
        {232 + drives, 1, 0, "leftover slabs are not whole"},
        {identity, 1, 0, "identity text is not whole"},
        {identity, 1, 'M', "fingerprint"},
        {identity + 10, 1, 'x', "fingerprint"},
        {identity + 15, 1, 'x', "identity text is not whole"},
        {identity + 3, 8, 0, "identity text is not whole"},
    };
    expect_broken(values, sizeof values / sizeof values[0], 0, count);
    manifest_fini(&record);
    format_remove_slots();
}

/* A path that fills its part has no terminating zero. No byte after the last one is read. */
static void a_path_without_end_is_found(void **state)
{
    static manifest record, out;
    format_draw(&record, SEED, 8, &(struct format_shape){MANIFEST_RUNNING, 1, 0, 0, 1, 0});
    snprintf(record.slabs.drives[0], MANIFEST_TEXT_BYTES, "/drive0");
    snprintf(record.identity, sizeof record.identity, "x=1\n");
    record.fingerprint = XXH3_64bits(record.identity, strlen(record.identity));
    size_t count = slot_bytes(&record);
    assert_int_equal(count, 232 + 8 + 72 + 8);
    unsigned char *exact = malloc(count); /* for ASan */
    assert_non_null(exact);
    memcpy(exact, bytes, count);
    exact[232 + 7] = 'x';
    format_sign(exact, count);
    format_expect_reason(manifest_decode(exact, count, 0, &out), ERR_CORRUPT,
                         "drives are not whole");
    free(exact);
    manifest_fini(&record);
    format_remove_slots();
}

/* A record that a resume would refuse is not written. */
static void impossible_records_are_not_written(void **state)
{
    static manifest record;
    format_commit(&record, 8);
    record.extents[0].size_bytes += 4096;
    format_expect_reason(manifest_write(format_directory(), &record), -EINVAL, "cannot have");
    record.extents[0].size_bytes -= 4096;
    record.fingerprint ^= 1;
    format_expect_reason(manifest_write(format_directory(), &record), -EINVAL, "fingerprint");
    record.fingerprint ^= 1;
    memset(record.identity, 'x', sizeof record.identity);
    format_expect_reason(manifest_write(format_directory(), &record), -EINVAL, "does not end");
    record.identity[0] = '\0';
    format_expect_reason(manifest_write(format_directory(), &record), -EINVAL,
                         "identity text is empty");
    record.identity[0] = 'x';
    record.identity[1] = '\0';
    record.fingerprint = XXH3_64bits(record.identity, 1);
    record.leftover = record.slabs;
    format_expect_reason(manifest_write(format_directory(), &record), -EINVAL, "its own slab");
    record.leftover.uuid[3] ^= 1;
    assert_ok(manifest_write(format_directory(), &record));
    manifest_fini(&record);
    format_remove_slots();
}

/* ---- random damage ---- */

static bool text_is_whole(const char *text, size_t length_min)
{
    size_t length = strnlen(text, MANIFEST_TEXT_BYTES);
    return length >= length_min && length < MANIFEST_TEXT_BYTES;
}

static void assert_slabs_possible(const manifest_slabs *slabs)
{
    assert_true(slabs->drive_count <= DRIVES_MAX);
    for (uint32_t d = 0; d < slabs->drive_count; d++)
        assert_true(text_is_whole(slabs->drives[d], 1));
}

static bool overlap(const manifest_extent *a, const manifest_extent *b)
{
    return a->rank == b->rank && a->offset_bytes < b->offset_bytes + b->size_bytes &&
           b->offset_bytes < a->offset_bytes + a->size_bytes;
}

static void assert_world_possible(const manifest *record)
{
    assert_true(record->world_size >= 1 && record->world_size <= MANIFEST_RANKS_MAX);
    assert_int_equal(record->slabs.rank_count, record->world_size);
    assert_true(record->zero_stage <= 3);
    assert_true(!record->is_replicated || record->zero_stage == 0);
    assert_int_equal(record->leftover.rank_count > 0, record->leftover.drive_count > 0);
    const manifest_slabs *both[] = {&record->slabs, &record->leftover};
    for (int i = 0; i < 2; i++)
        for (uint32_t r = 0; r < both[i]->rank_count; r++) {
            assert_true(both[i]->ranks[r].local_rank < both[i]->rank_count);
            assert_non_null(memchr(both[i]->ranks[r].host, 0, MANIFEST_HOST_BYTES));
        }
}

/* The header's promise to those who read a record. */
static void assert_possible(const manifest *record)
{
    assert_true(record->state >= MANIFEST_COMMITTED && record->state <= MANIFEST_BEGUN);
    assert_slabs_possible(&record->slabs);
    assert_slabs_possible(&record->leftover);
    assert_true(text_is_whole(record->identity, 0));
    if (record->identity[0])
        assert_int_equal(record->fingerprint,
                         XXH3_64bits(record->identity, strlen(record->identity)));
    assert_true(record->point.skipped_count <= record->point.step);
    assert_true(record->point.loss_scale > 0.0 && record->point.loss_scale < INFINITY);
    if (record->state == MANIFEST_COMMITTED)
        assert_true(record->total_bytes > 0 && record->extent_count > 0 &&
                    record->slabs.drive_count > 0);
    if (record->total_bytes)
        assert_int_equal(record->total_bytes % record->stripe_bytes, 0);
    assert_world_possible(record);
    uint32_t shards = record->is_replicated ? 1 : record->world_size;
    uint64_t unit = 0, rank = 0, tile = 0, elem = 0, first_end = 0;
    for (uint64_t i = 0; i < record->extent_count; i++) {
        const manifest_extent *extent = &record->extents[i];
        if (i > 0 && extent->unit != unit) { /* the unit before has the same of each rank */
            assert_int_equal(rank, shards - 1);
            assert_int_equal(elem, shards * first_end);
            unit++;
            rank = tile = elem = 0;
        } else if (extent->rank != rank) {
            if (rank++ == 0)
                first_end = elem;
            assert_int_equal(elem, rank * first_end);
            assert_int_equal(elem % SHARD_ELEMS_STEP, 0);
            tile = 0;
        }
        if (rank == 0)
            first_end = elem + extent->elem_count;
        assert_int_equal(extent->unit, unit);
        assert_int_equal(extent->rank, rank);
        assert_int_equal(extent->tile, tile++);
        assert_int_equal(extent->elem_begin, elem);
        elem += extent->elem_count;
        assert_int_equal(extent->offset_bytes % 4096, 0);
        assert_int_equal(extent->size_bytes % 4096, 0);
        if (extent->param_bytes)
            assert_true(extent->size_bytes == extent->param_bytes * extent->elem_count);
        else
            assert_true(extent->size_bytes >= 8 * extent->elem_count);
        if (record->total_bytes)
            assert_true(extent->offset_bytes + extent->size_bytes <= record->total_bytes);
        for (uint64_t k = 0; k < i; k++)
            assert_false(overlap(extent, &record->extents[k]));
    }
    if (record->extent_count > 0)
        assert_int_equal(elem, shards * first_end);
}

static uint64_t draw(uint64_t round, uint64_t *next, uint64_t bound)
{
    return rng_below(SEED, round, (*next)++, bound);
}

/* One change of the slot of *count bytes; the new length stays within the buffer. */
static void damage_once(uint64_t round, uint64_t *next, size_t *count)
{
    static const uint64_t values[] = {0,         1,          2,
                                      3,         8,          16,
                                      48,        4096,       1u << 20,
                                      INT32_MAX, UINT32_MAX, UINT64_MAX / 48 + 1,
                                      INT64_MAX, UINT64_MAX, (uint64_t)1 << 63};
    size_t at = draw(round, next, *count);
    switch (draw(round, next, 6)) {
    case 0:
        damaged[at] ^= (unsigned char)(1u << draw(round, next, 8));
        break;
    case 1:
        damaged[at] = (unsigned char)draw(round, next, 256);
        break;
    case 2: { /* an interesting value in an aligned word */
        size_t width = draw(round, next, 2) ? 8 : 4;
        at -= at % width;
        if (at + width <= *count)
            put(damaged, at, width, values[draw(round, next, sizeof values / sizeof values[0])]);
        break;
    }
    case 3: { /* an aligned word made a little larger or smaller */
        at -= at % 8;
        uint64_t value;
        if (at + 8 > *count)
            break;
        memcpy(&value, damaged + at, 8);
        put(damaged, at, 8, value + draw(round, next, 17) * 8 - 64);
        break;
    }
    case 4: { /* words of one place at another */
        size_t from = draw(round, next, *count) / 8 * 8, length = 8 * (1 + draw(round, next, 12));
        at -= at % 8;
        if (at + length <= *count && from + length <= *count)
            memmove(damaged + at, damaged + from, length);
        break;
    }
    default: { /* another length, said in the header too */
        size_t change = draw(round, next, 2) ? 8 * (1 + draw(round, next, 8)) : 48;
        bool grows = draw(round, next, 2);
        if (!grows && change >= *count)
            break;
        memset(damaged + *count, (int)draw(round, next, 2), grows ? change : 0);
        *count = grows ? *count + change : *count - change;
        if (*count >= 24)
            put(damaged, 16, 8, *count);
        if (*count >= 144 && draw(round, next, 2)) {
            uint64_t extents;
            memcpy(&extents, damaged + 136, 8);
            put(damaged, 136, 8, grows ? extents + 1 : extents - 1);
        }
    }
    }
}

/* The slot of `count` bytes, damaged: 1 where it still is possible. */
static int try_damaged(uint64_t round, size_t count)
{
    static manifest out;
    uint64_t next = 0;
    size_t size = count;
    memcpy(damaged, bytes, count);
    for (uint64_t n = 1 + draw(round, &next, 4); n > 0; n--)
        damage_once(round, &next, &size);
    if (size >= 32)
        format_sign(damaged, size);
    unsigned char *exact = malloc(size); /* so that ASan sees a byte too far */
    assert_non_null(exact);
    memcpy(exact, damaged, size);
    mem_stats stats;
    mem_get_stats(&stats);
    uint64_t live_bytes = stats.live_bytes;
    int rc = manifest_decode(exact, size, 0, &out);
    free(exact);
    if (rc == 0) {
        assert_possible(&out);
        /* A record that was read can be written, and reads the same again. */
        assert_ok(manifest_write(format_directory(), &out));
        static manifest again;
        assert_int_equal(manifest_read(format_directory(), &again), 1);
        format_assert_same(&out, &again);
        manifest_fini(&again);
        manifest_fini(&out);
    } else if (rc != ERR_CORRUPT) {
        fail_msg("round %llu: %s", (unsigned long long)round, err_text());
    }
    mem_get_stats(&stats);
    assert_int_equal(stats.live_bytes, live_bytes);
    return rc == 0;
}

static void random_damage_is_found_or_possible(void **state)
{
    static manifest record;
    uint64_t possible_count = 0;
    static const struct format_shape shapes[] = {
        {MANIFEST_COMMITTED, 2, 1, 3, 1, 0}, {MANIFEST_RUNNING, 1, 0, 1, 1, 3},
        {MANIFEST_COMMITTED, 1, 0, 2, 3, 2}, {MANIFEST_BEGUN, 2, 2, 2, 1, 0},
        {MANIFEST_COMMITTED, 1, 1, 2, 2, 0}, {MANIFEST_RUNNING, 1, 1, 3, 2, 3}};
    enum { SHAPES = sizeof shapes / sizeof shapes[0] };
    for (uint64_t round = 0; round < ROUNDS; round++) {
        static size_t count;
        if (round % 500 == 0) { /* all shapes in turn */
            uint64_t kind = round / 500;
            format_draw(&record, SEED, 2 * kind, &shapes[kind % SHAPES]);
            count = slot_bytes(&record);
            manifest_fini(&record);
        }
        possible_count += try_damaged(round, count);
    }
    mem_stats stats;
    mem_get_stats(&stats);
    assert_true(stats.live_bytes_max < 4 * sizeof(manifest)); /* no length was believed */
    printf("%llu of %d damaged slots were possible\n", (unsigned long long)possible_count, ROUNDS);
    assert_in_range(possible_count, ROUNDS / 100, ROUNDS / 2); /* the test tests both */
    format_remove_slots();
}

int main(void)
{
    printf("seed %d\n", SEED);
    log_set_level(LOG_QUIET);
    format_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_headers_are_found),
        cmocka_unit_test(impossible_extents_are_found),
        cmocka_unit_test(impossible_ranks_are_found),
        cmocka_unit_test(broken_texts_are_found),
        cmocka_unit_test(a_path_without_end_is_found),
        cmocka_unit_test(impossible_records_are_not_written),
        cmocka_unit_test(random_damage_is_found_or_possible),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    format_end();
    return rc;
}
