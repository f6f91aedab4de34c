/* The bytes of a manifest slot: what is written is read, at the offsets of tiers/FORMAT.md; slots
 * of other versions are refused; no truncation and no flipped bit gets through. */
#include <errno.h>
#include <xxhash.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/tile.h"
#include "tests/format/format_fixture.h"
#include "tests/unit.h"

enum { SEED = 4711 };

static void written_is_read(void **state)
{
    static manifest in, out;
    assert_int_equal(manifest_read(format_directory(), &out), 0);
    static const struct format_shape shapes[] = {
        {MANIFEST_BEGUN, 1, 0, 3, 1, 0},
        {MANIFEST_RUNNING, 0, 0, 0, 1, 0},
        {MANIFEST_COMMITTED, 16, 16, 9, 1, 0},
        {MANIFEST_COMMITTED, 2, 1, 1, 1, 0},
        {MANIFEST_RUNNING, 7, 0, 20, 1, 0},
        {MANIFEST_COMMITTED, 1, 0, 200, 1, 0},
        {MANIFEST_COMMITTED, 3, 2, 2, 1, 0},
        {MANIFEST_RUNNING, 1, 3, 5, 1, 0},
        {MANIFEST_COMMITTED, 2, 1, 9, 4, 3},
        {MANIFEST_COMMITTED, 1, 1, 5, 2, 0},
        {MANIFEST_RUNNING, 16, 16, 3, MANIFEST_RANKS_MAX, 1},
        {MANIFEST_BEGUN, 1, 0, 0, 3, 2},
    };
    for (uint64_t g = 1; g <= sizeof shapes / sizeof shapes[0]; g++) {
        format_draw(&in, SEED, g, &shapes[g - 1]);
        mem_seal(); /* a commit happens in sealed memory */
        assert_ok(manifest_write(format_directory(), &in));
        mem_stats stats;
        mem_get_stats(&stats);
        assert_int_equal(stats.call_count_after_seal, 0);
        mem_unseal();
        assert_int_equal(manifest_read(format_directory(), &out), 1);
        format_assert_same(&in, &out);
        manifest_fini(&in);
        manifest_fini(&out);
    }
    format_remove_slots();
}

/* Texts of each length about the padding, and the longest. */
static void texts_of_any_length_are_read(void **state)
{
    static manifest in, out;
    for (size_t length = 1; length <= 20; length++) {
        size_t text_length = length == 20 ? MANIFEST_TEXT_BYTES - 1 : length;
        format_commit(&in, 8);
        memset(in.identity, 0, sizeof in.identity);
        memset(in.identity, 'i', text_length);
        in.fingerprint = XXH3_64bits(in.identity, text_length);
        memset(in.slabs.drives[0], 0, sizeof in.slabs.drives[0]);
        memset(in.slabs.drives[0], 'd', text_length);
        assert_ok(manifest_write(format_directory(), &in));
        assert_int_equal(manifest_read(format_directory(), &out), 1);
        format_assert_same(&in, &out);
        manifest_fini(&in);
        manifest_fini(&out);
    }
    format_remove_slots();
}

static void expect_u64(const unsigned char *bytes, size_t offset, uint64_t value)
{
    uint64_t stored = 0;
    for (int i = 0; i < 8; i++)
        stored |= (uint64_t)bytes[offset + (size_t)i] << 8 * i;
    assert_int_equal(stored, value);
}

static size_t padded(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* The layout of tiers/FORMAT.md, by offset. */
static void layout_is_as_documented(void **state)
{
    static manifest in;
    static unsigned char bytes[FORMAT_FILE_MAX];
    format_draw(&in, SEED, 8, &(struct format_shape){MANIFEST_COMMITTED, 2, 1, 3, 3, 2});
    assert_ok(manifest_write(format_directory(), &in));
    size_t count = format_load(0, bytes);
    size_t drives = padded(strlen(in.slabs.drives[0]) + 1 + strlen(in.slabs.drives[1]) + 1);
    size_t leftovers = padded(strlen(in.leftover.drives[0]) + 1),
           identity = padded(strlen(in.identity));
    size_t ranks = padded(68 * 3), texts = 232 + drives + leftovers + 2 * ranks;
    assert_int_equal(count, texts + identity + in.extent_count * 56);
    assert_memory_equal(bytes, "SLUMANIF\x07\0\0\0\x01\0\0\0", 16);
    expect_u64(bytes, 16, count);
    expect_u64(bytes, 32, 8);
    assert_memory_equal(bytes + 40, in.slabs.uuid, 16);
    expect_u64(bytes, 56, in.fingerprint);
    expect_u64(bytes, 64, in.point.step);
    expect_u64(bytes, 72, in.point.window_count);
    expect_u64(bytes, 80, in.point.seed);
    expect_u64(bytes, 88, in.point.skipped_count);
    assert_memory_equal(bytes + 96, &in.point.loss_scale, 8);
    expect_u64(bytes, 104, in.tile_elems);
    expect_u64(bytes, 112, in.total_bytes);
    expect_u64(bytes, 120, in.stripe_bytes);
    expect_u64(bytes, 128, drives);
    expect_u64(bytes, 136, in.extent_count);
    expect_u64(bytes, 144, 2 | (uint64_t)in.state_streams << 32);
    expect_u64(bytes, 152, in.point.scale_iteration);
    expect_u64(bytes, 160, (uint64_t)in.point.scale_last_overflow);
    expect_u64(bytes, 168, in.point.scale_hysteresis_left);
    expect_u64(bytes, 176, leftovers);
    expect_u64(bytes, 184, identity);
    assert_memory_equal(bytes + 192, in.leftover.uuid, 16);
    expect_u64(bytes, 208, 1);
    expect_u64(bytes, 216, 3 | (uint64_t)2 << 32);
    expect_u64(bytes, 224, 0 | (uint64_t)3 << 32);
    assert_string_equal((char *)bytes + 232, in.slabs.drives[0]);
    assert_string_equal((char *)bytes + 232 + drives, in.leftover.drives[0]);
    const unsigned char *rank = bytes + 232 + drives + leftovers;
    assert_string_equal((const char *)rank, "node-0");
    assert_memory_equal(rank + 64, "\0\0\0\0", 4);
    assert_memory_equal(rank + 2 * 68 + 64, "\x02\0\0\0", 4);
    assert_memory_equal(rank + ranks, in.leftover.ranks, 3 * 68);
    assert_memory_equal(bytes + texts, in.identity, strlen(in.identity));
    const unsigned char *extent = bytes + texts + identity;
    assert_memory_equal(extent, in.extents, in.extent_count * 56);
    expect_u64(extent + (in.extent_count - 1) * 56, 48, 2); /* the rank */
    uint64_t checksum;
    memcpy(&checksum, bytes + 24, 8);
    memset(bytes + 24, 0, 8);
    assert_int_equal(XXH3_64bits(bytes, count), checksum);
    manifest_fini(&in);
    format_remove_slots();
}

static void expect_corrupt(const unsigned char *bytes, size_t count, const char *reason)
{
    static manifest out;
    format_expect_reason(manifest_decode(bytes, count, 0, &out), ERR_CORRUPT, reason);
    assert_null(out.extents);
    assert_int_equal(out.extent_count, 0);
}

/* A slot of another version is not read, and is not taken for a damaged one, whatever follows its
 * first 32 bytes. The refusal names both versions and the next step. */
static void other_versions_are_refused(void **state)
{
    static manifest in, out;
    static unsigned char bytes[FORMAT_FILE_MAX];
    enum { VERSION = 7, SHORT_BYTES = 192 }; /* Version 1 had a shorter header. */
    static const unsigned char versions[] = {1, 2, 3, 4, 5, 6, VERSION + 1, 255};
    format_write_two(7);
    size_t whole = format_load(0, bytes);
    for (size_t i = 0; i < 2 * sizeof versions; i++) {
        size_t count = i % 2 ? SHORT_BYTES : whole;
        uint32_t version = versions[i / 2];
        bytes[8] = (unsigned char)version;
        memcpy(bytes + 16, &(uint64_t){count}, sizeof(uint64_t));
        format_sign(bytes, count);
        char expected[64];
        snprintf(expected, sizeof expected, "has version %u and this program reads version %d",
                 version, VERSION);
        expect_corrupt(bytes, count, expected);
        format_store(0, bytes, count);
        assert_error(manifest_read(format_directory(), &out), ERR_INPUT, expected);
        assert_non_null(strstr(err_text(), version < VERSION ? "by an older sluice" : "a newer"));
        assert_non_null(strstr(err_text(), "go on with the sluice that wrote it, or begin in"));
        /* verify and inspect refuse it in the same way: it is not damaged */
        manifest_slot slots[2];
        assert_error(manifest_examine(format_directory(), slots, NULL), ERR_INPUT, expected);
        bytes[count - 1] ^= 1; /* of another version, or not: damaged */
        expect_corrupt(bytes, count, "checksum");
        format_store(0, bytes, count);
        format_expect(7);
        bytes[count - 1] ^= 1;
    }
    format_draw(&in, SEED, 8, &(struct format_shape){MANIFEST_COMMITTED, 2, 0, 3, 1, 0});
    assert_ok(manifest_write(format_directory(), &in));
    whole = format_load(0, bytes);
    bytes[8] = 0;
    format_sign(bytes, whole);
    expect_corrupt(bytes, whole, "version 0, which there never was");
    manifest_fini(&in);
    format_remove_slots();
}

/* State that is not all fp32 is read, and its streams code is checked. */
static void state_formats_are_read(void **state)
{
    static manifest in, out;
    static unsigned char bytes[FORMAT_FILE_MAX];
    static const enum tile_format formats[][3] = {{TILE_FP32, TILE_BF16, TILE_BF16},
                                                  {TILE_FP32, TILE_INT8, TILE_INT8}};
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        format_draw(&in, SEED, 8, &(struct format_shape){MANIFEST_COMMITTED, 2, 0, 3, 1, 0});
        in.state_streams = tile_streams_code(3, formats[f][0], formats[f][1], formats[f][2]);
        for (uint64_t i = 0; i < in.extent_count; i++) { /* apart, as larger ones were laid out */
            in.extents[i].size_bytes = tile_bytes(in.extents[i].elem_count, in.state_streams);
            in.extents[i].offset_bytes =
                i ? in.extents[i - 1].offset_bytes + in.extents[i - 1].size_bytes : 0;
        }
        assert_ok(manifest_write(format_directory(), &in));
        size_t count = format_load(0, bytes);
        assert_int_equal(manifest_read(format_directory(), &out), 1);
        format_assert_same(&in, &out);
        manifest_fini(&out);
        bytes[148 + 3] = TILE_FORMAT_COUNT;
        format_sign(bytes, count);
        expect_corrupt(bytes, count, "is not possible");
        bytes[148 + 3] = (unsigned char)(in.state_streams >> 24);
        bytes[148 + 2] ^= TILE_BF16; /* of other sizes */
        format_sign(bytes, count);
        expect_corrupt(bytes, count, "cannot have");
        manifest_fini(&in);
    }
    format_remove_slots();
}

/* Muon's matrices have two streams of the three, all extents of a unit or none. */
static void matrices_have_fewer_streams(void **state)
{
    static manifest in, out;
    format_draw(&in, SEED, 9, &(struct format_shape){MANIFEST_COMMITTED, 2, 0, 3, 1, 0});
    in.state_streams = 3;
    uint64_t at = 0;
    for (uint64_t i = 0; i < in.extent_count; at += in.extents[i++].size_bytes) {
        in.extents[i].size_bytes =
            tile_bytes(in.extents[i].elem_count, in.extents[i].unit % 2 ? TILE_MATRIX_STREAMS : 3);
        in.extents[i].offset_bytes = at;
    }
    in.total_bytes = size_round_up(at, in.stripe_bytes);
    assert_ok(manifest_write(format_directory(), &in));
    assert_int_equal(manifest_read(format_directory(), &out), 1);
    format_assert_same(&in, &out);
    uint64_t mixed = 0;
    for (uint64_t i = 0; i < out.extent_count; i++) {
        uint32_t streams = out.extents[i].unit % 2 ? TILE_MATRIX_STREAMS : 3;
        assert_int_equal(manifest_streams_of(&out, &out.extents[i]), streams);
        if (i == 0 || in.extents[i].unit != in.extents[i - 1].unit || streams == 2)
            continue;
        in.generation++; /* one tile of a unit is unlike the one before */
        in.extents[i].size_bytes = tile_bytes(in.extents[i].elem_count, TILE_MATRIX_STREAMS);
        assert_int_equal(manifest_write(format_directory(), &in), -EINVAL);
        in.extents[i].size_bytes = out.extents[i].size_bytes;
        mixed++;
    }
    assert_true(mixed > 0);
    manifest_fini(&in);
    manifest_fini(&out);
    format_remove_slots();
}

/* Each extent becomes two: params of 2 bytes, and after them state with the low halves. */
static void split_masters(manifest *self)
{
    uint64_t count = self->extent_count, at = 0;
    manifest_extent *extents = calloc(2 * count, sizeof *extents);
    for (uint64_t i = 0; i < 2 * count; i++) {
        extents[i] = self->extents[i / 2];
        extents[i].param_bytes = i % 2 ? 0 : 2;
        extents[i].size_bytes = i % 2 ? tile_bytes(extents[i].elem_count, self->state_streams)
                                      : 2 * extents[i].elem_count;
        extents[i].offset_bytes = at;
        at += extents[i].size_bytes;
    }
    mem_free(self->extents);
    self->extents = mem_alloc(2 * count, sizeof *extents, "test");
    memcpy(self->extents, extents, 2 * count * sizeof *extents);
    self->extent_count = 2 * count;
    self->total_bytes = size_round_up(at, self->stripe_bytes);
    free(extents);
}

/* With a split master each tile has a params extent and a state extent. A unit has both for all its
 * tiles, or params alone for all. */
static void halves_stand_together(void **state)
{
    static manifest in, out;
    format_draw(&in, SEED, 9, &(struct format_shape){MANIFEST_COMMITTED, 2, 0, 3, 2, 3});
    in.state_streams = tile_streams_code(3, TILE_LOW16, TILE_FP32, TILE_FP32);
    split_masters(&in);
    assert_ok(manifest_write(format_directory(), &in));
    assert_int_equal(manifest_read(format_directory(), &out), 1);
    format_assert_same(&in, &out);
    for (uint64_t i = 0; i < out.extent_count; i++) {
        assert_int_equal(manifest_is_low(&out, i), i % 2 == 1);
        assert_int_equal(manifest_is_high(&out, i), i % 2 == 0);
    }
    manifest_fini(&out);
    in.generation++;
    for (uint64_t i = 0; i < in.extent_count; i++) { /* a half taken away, or of another kind */
        manifest_extent kept = in.extents[i];
        in.extents[i].param_bytes = i % 2 ? 2 : 0;
        assert_int_equal(manifest_write(format_directory(), &in), -EINVAL);
        in.extents[i] = kept;
        if (i % 2 == 0)
            continue;
        in.extents[i].elem_count -= 1;
        assert_int_equal(manifest_write(format_directory(), &in), -EINVAL);
        in.extents[i] = kept;
        in.extents[i].tile++;
        assert_int_equal(manifest_write(format_directory(), &in), -EINVAL);
        in.extents[i] = kept;
    }
    uint64_t count = in.extent_count, last = count - 1;
    uint32_t unit = in.extents[last].unit;
    in.extent_count = last; /* a unit that ends without the state of its last tile */
    bool has_others = last >= 2 && in.extents[last - 2].unit == unit;
    assert_int_equal(manifest_write(format_directory(), &in), has_others ? -EINVAL : 0);
    in.extent_count = count;
    assert_ok(manifest_write(format_directory(), &in));
    manifest_fini(&in);
    format_remove_slots();
}

/* Each bit and each length of a small slot, in memory. */
static void any_bit_and_length_is_found(void **state)
{
    static manifest in, out;
    static unsigned char bytes[FORMAT_FILE_MAX];
    static const struct format_shape shapes[] = {{MANIFEST_COMMITTED, 1, 1, 2, 1, 0},
                                                 {MANIFEST_COMMITTED, 1, 1, 1, 2, 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        format_draw(&in, SEED, 8, &shapes[i]);
        assert_ok(manifest_write(format_directory(), &in));
        manifest_fini(&in);
        size_t count = format_load(0, bytes);
        assert_ok(manifest_decode(bytes, count, 0, &out));
        manifest_fini(&out);
        assert_int_equal(manifest_decode(bytes, count, 1, &out), ERR_CORRUPT); /* the wrong slot */
        for (size_t bit = 0; bit < 8 * count; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
            assert_int_equal(manifest_decode(bytes, count, 0, &out), ERR_CORRUPT);
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        for (size_t length = 0; length < count + 100; length++) {
            int expected = length == count ? 0 : ERR_CORRUPT;
            assert_int_equal(manifest_decode(bytes, length, 0, &out), expected);
            manifest_fini(&out);
        }
    }
    format_remove_slots();
}

/* The unit's extents are of frozen params, of so many bytes each. */
static void freeze(manifest *self, uint32_t unit, uint32_t param_bytes)
{
    for (uint64_t i = 0; i < self->extent_count; i++)
        if (self->extents[i].unit == unit) {
            self->extents[i].param_bytes = param_bytes;
            self->extents[i].size_bytes = self->extents[i].elem_count * param_bytes;
        }
}

static void frozen_params_are_read(void **state)
{
    static manifest in, out;
    static unsigned char bytes[FORMAT_FILE_MAX];
    for (uint32_t width = 2; width <= 4; width += 2) {
        format_draw(&in, SEED, 8, &(struct format_shape){MANIFEST_COMMITTED, 2, 1, 3, 2, 3});
        freeze(&in, 0, width);
        freeze(&in, 2, width);
        assert_ok(manifest_write(format_directory(), &in));
        assert_int_equal(manifest_read(format_directory(), &out), 1);
        format_assert_same(&in, &out);
        manifest_fini(&out);
        size_t count = format_load(0, bytes);
        expect_u64(bytes, count - in.extent_count * 56 + 48, (uint64_t)width << 32);
        freeze(&in, 2, 6 - width); /* of another width than unit 0's */
        assert_int_equal(manifest_write(format_directory(), &in), -EINVAL);
        freeze(&in, 2, 3);
        assert_int_equal(manifest_write(format_directory(), &in), -EINVAL);
        freeze(&in, 2, width);
        in.extents[in.extent_count - 1].size_bytes += TILE_BLOCK_BYTES;
        assert_int_equal(manifest_write(format_directory(), &in), -EINVAL);
        freeze(&in, 2, width);
        in.extents[in.extent_count - 1].param_bytes = 0; /* of one unit all or none */
        assert_int_equal(manifest_write(format_directory(), &in), -EINVAL);
        freeze(&in, 2, width);
        assert_ok(manifest_write(format_directory(), &in));
        manifest_fini(&in);
        format_remove_slots();
    }
}

int main(void)
{
    printf("seed %d\n", SEED);
    log_set_level(LOG_QUIET); /* each fallback warns */
    format_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_is_read),         cmocka_unit_test(texts_of_any_length_are_read),
        cmocka_unit_test(layout_is_as_documented), cmocka_unit_test(other_versions_are_refused),
        cmocka_unit_test(state_formats_are_read),  cmocka_unit_test(matrices_have_fewer_streams),
        cmocka_unit_test(halves_stand_together),   cmocka_unit_test(any_bit_and_length_is_found),
        cmocka_unit_test(frozen_params_are_read),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    format_end();
    return rc;
}
