/* The manifest's slots: what is written is read; damage of any byte or length never gets through
 * and falls back to the older slot. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "format/manifest.h"

enum { SEED = 4711, FILE_MAX = 1 << 20 };

static char directory[] = "test_format_XXXXXX";

static const char *slot_name(int slot)
{
    static char paths[2][64];
    snprintf(paths[slot], sizeof paths[slot], "%s/manifest-%d", directory, slot);
    return paths[slot];
}

static void remove_slots(void)
{
    unlink(slot_name(0));
    unlink(slot_name(1));
}

/* A manifest of random values; the struct is large, so it lives with the caller. */
static void fill(manifest *self, uint64_t generation, uint32_t drives, uint64_t extents)
{
    memset(self, 0, sizeof *self);
    self->state = generation % 3 ? MANIFEST_COMMITTED : MANIFEST_RUNNING;
    self->generation = generation;
    for (int i = 0; i < MANIFEST_UUID_BYTES; i++)
        self->slabs.uuid[i] = (uint8_t)rng_u64(SEED, generation, (uint64_t)i);
    uint64_t *numbers[] = {&self->fingerprint,     &self->step,
                           &self->window_count,    &self->seed,
                           &self->skipped_count,   &self->tile_elems,
                           &self->total_bytes,     &self->stripe_bytes,
                           &self->scale_iteration, &self->scale_hysteresis_left};
    for (uint64_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        *numbers[i] = rng_u64(SEED, generation, 100 + i);
    self->loss_scale = 65536.5;
    self->scale_last_overflow = generation % 2 ? -1 : (int64_t)generation * 1000;
    self->slabs.drive_count = drives;
    for (uint32_t d = 0; d < drives; d++)
        snprintf(self->slabs.drives[d], MANIFEST_TEXT_BYTES, "/mnt/nvme%u/%.*s", d, (int)d * 3,
                 "a-rather-long-directory-name-of-a-slab-on-a-drive");
    self->extent_count = extents;
    self->extents = mem_alloc(extents, sizeof *self->extents, "extents");
    assert_non_null(self->extents);
    for (uint64_t i = 0; i < extents * sizeof *self->extents; i++)
        ((unsigned char *)self->extents)[i] = (unsigned char)rng_u64(SEED, 7, i + generation);
}

static void assert_same(const manifest *a, const manifest *b)
{
    assert_int_equal(a->state, b->state);
    assert_int_equal(a->generation, b->generation);
    assert_memory_equal(a->slabs.uuid, b->slabs.uuid, sizeof a->slabs.uuid);
    assert_int_equal(a->fingerprint, b->fingerprint);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->window_count, b->window_count);
    assert_int_equal(a->seed, b->seed);
    assert_int_equal(a->skipped_count, b->skipped_count);
    assert_true(a->loss_scale == b->loss_scale);
    assert_int_equal(a->scale_iteration, b->scale_iteration);
    assert_true(a->scale_last_overflow == b->scale_last_overflow);
    assert_int_equal(a->scale_hysteresis_left, b->scale_hysteresis_left);
    assert_int_equal(a->tile_elems, b->tile_elems);
    assert_int_equal(a->total_bytes, b->total_bytes);
    assert_int_equal(a->stripe_bytes, b->stripe_bytes);
    assert_int_equal(a->slabs.drive_count, b->slabs.drive_count);
    for (uint32_t d = 0; d < a->slabs.drive_count; d++)
        assert_string_equal(a->slabs.drives[d], b->slabs.drives[d]);
    assert_int_equal(a->extent_count, b->extent_count);
    assert_memory_equal(a->extents, b->extents, a->extent_count * sizeof *a->extents);
}

static void expect_generation(uint64_t generation)
{
    static manifest out;
    int found;
    assert_int_equal(manifest_read(directory, &out, &found), 1);
    assert_int_equal(found, 1);
    assert_int_equal(out.generation, generation);
    manifest_fini(&out);
}

static size_t load(int slot, unsigned char *bytes)
{
    FILE *file = fopen(slot_name(slot), "rb");
    assert_non_null(file);
    size_t count = fread(bytes, 1, FILE_MAX, file);
    fclose(file);
    return count;
}

static void store(int slot, const unsigned char *bytes, size_t count)
{
    FILE *file = fopen(slot_name(slot), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void written_is_read(void **state)
{
    (void)state;
    static manifest in, out;
    int found = 5;
    assert_int_equal(manifest_read(directory, &out, &found), 0);
    assert_int_equal(found, 0);
    static const struct {
        uint32_t drives;
        uint64_t extents;
    } shapes[] = {{1, 3}, {0, 0}, {16, 1000}, {2, 1}, {7, 20}, {16, 0}};
    for (uint64_t generation = 1; generation <= 6; generation++) {
        fill(&in, generation, shapes[generation - 1].drives, shapes[generation - 1].extents);
        mem_seal(); /* a commit happens in sealed memory */
        assert_int_equal(manifest_write(directory, &in), 0);
        mem_stats stats;
        mem_get_stats(&stats);
        assert_int_equal(stats.call_count_after_seal, 0);
        mem_unseal();
        assert_int_equal(manifest_read(directory, &out, &found), 1);
        assert_same(&in, &out);
        manifest_fini(&in);
        manifest_fini(&out);
    }
    remove_slots();
}

/* The layout of tiers/FORMAT.md, by offset. */
static void layout_is_as_documented(void **state)
{
    (void)state;
    static manifest in;
    static unsigned char bytes[FILE_MAX];
    fill(&in, 8, 2, 3);
    assert_int_equal(manifest_write(directory, &in), 0);
    size_t count = load(0, bytes);
    uint64_t drives_bytes =
        (strlen(in.slabs.drives[0]) + 1 + strlen(in.slabs.drives[1]) + 1 + 7) / 8 * 8;
    assert_int_equal(count, 192 + drives_bytes + 3 * 48);
    assert_memory_equal(bytes, "SLUMANIF\x02\0\0\0\x01\0\0\0", 16);
    uint64_t checksum, value;
    memcpy(&checksum, bytes + 24, 8);
    memset(bytes + 24, 0, 8);
    assert_int_equal(XXH3_64bits(bytes, count), checksum);
    memcpy(&value, bytes + 32, 8);
    assert_int_equal(value, 8);
    memcpy(&value, bytes + 64, 8);
    assert_int_equal(value, in.step);
    memcpy(&value, bytes + 136, 8);
    assert_int_equal(value, 3);
    memcpy(&value, bytes + 152, 8);
    assert_int_equal(value, in.scale_iteration);
    memcpy(&value, bytes + 160, 8);
    assert_int_equal(value, in.scale_last_overflow);
    memcpy(&value, bytes + 168, 8);
    assert_int_equal(value, in.scale_hysteresis_left);
    assert_string_equal((char *)bytes + 192, in.slabs.drives[0]);
    assert_memory_equal(bytes + 192 + drives_bytes, in.extents, 3 * 48);
    manifest_fini(&in);
    remove_slots();
}

static void sign(unsigned char *bytes, size_t count)
{
    memset(bytes + 24, 0, 8);
    uint64_t checksum = XXH3_64bits(bytes, count);
    memcpy(bytes + 24, &checksum, 8);
}

/* Version 1 had no state of the loss scaler: it is read as that of a run that never scaled. */
static void version_1_is_read(void **state)
{
    (void)state;
    static manifest in, out;
    static unsigned char bytes[FILE_MAX];
    int found;
    fill(&in, 8, 2, 3);
    in.scale_iteration = in.scale_hysteresis_left = 0;
    in.scale_last_overflow = 0;
    assert_int_equal(manifest_write(directory, &in), 0);
    size_t count = load(0, bytes);
    bytes[8] = 1;
    sign(bytes, count);
    store(0, bytes, count);
    assert_int_equal(manifest_read(directory, &out, &found), 1);
    in.scale_last_overflow = -1;
    in.scale_hysteresis_left = 1;
    assert_same(&in, &out);
    manifest_fini(&out);
    bytes[160] = 7; /* reserved then */
    sign(bytes, count);
    store(0, bytes, count);
    assert_int_equal(manifest_read(directory, &out, &found), ERR_CORRUPT);
    bytes[160] = 0;
    for (int version = 0; version < 5; version += 3) { /* 0 and 3 */
        bytes[8] = (unsigned char)version;
        sign(bytes, count);
        store(0, bytes, count);
        assert_int_equal(manifest_read(directory, &out, &found), ERR_CORRUPT);
        assert_non_null(strstr(err_text(), "reads versions 1 to 2"));
    }
    manifest_fini(&in);
    remove_slots();
}

static void write_two(uint64_t first_generation)
{
    static manifest in;
    for (uint64_t g = first_generation; g < first_generation + 2; g++) {
        fill(&in, g, 2, 4);
        assert_int_equal(manifest_write(directory, &in), 0);
        manifest_fini(&in);
    }
}

static void newest_wins(void **state)
{
    (void)state;
    write_two(9);
    expect_generation(10);
    write_two(10);
    expect_generation(11);
    unlink(slot_name(1));
    expect_generation(10);
    remove_slots();
}

static void any_flipped_byte_falls_back(void **state)
{
    (void)state;
    static unsigned char bytes[FILE_MAX];
    write_two(10); /* the newer is 11, in slot 1 */
    size_t count = load(1, bytes);
    for (size_t i = 0; i < count; i++) {
        unsigned char old = bytes[i];
        bytes[i] ^= (unsigned char)(1u << i % 8);
        store(1, bytes, count);
        expect_generation(10);
        bytes[i] = (unsigned char)~old;
        store(1, bytes, count);
        expect_generation(10);
        bytes[i] = old;
    }
    store(1, bytes, count);
    expect_generation(11);
    remove_slots();
}

static void any_length_falls_back(void **state)
{
    (void)state;
    static unsigned char bytes[FILE_MAX];
    write_two(10);
    size_t count = load(1, bytes);
    for (size_t length = 0; length < count + 100; length++) {
        if (length == count)
            continue;
        store(1, bytes, length);
        expect_generation(10);
    }
    /* A torn write: the new beginning on the old end. */
    static unsigned char torn[FILE_MAX];
    for (size_t length = 0; length < count; length += 8) {
        memset(torn, 0xee, count);
        memcpy(torn, bytes, length);
        store(1, torn, count);
        expect_generation(10);
    }
    remove_slots();
}

static void damage_of_both_is_named(void **state)
{
    (void)state;
    static unsigned char bytes[FILE_MAX];
    static manifest out;
    int found;
    write_two(10);
    size_t count = load(0, bytes);
    bytes[count - 1] ^= 1;
    store(0, bytes, count);
    count = load(1, bytes);
    store(1, bytes, 100);
    assert_int_equal(manifest_read(directory, &out, &found), ERR_CORRUPT);
    assert_int_equal(found, 0);
    assert_non_null(strstr(err_text(), "manifest-0: its checksum"));
    assert_non_null(strstr(err_text(), "manifest-1: it has 100 bytes"));
    unlink(slot_name(0));
    assert_int_equal(manifest_read(directory, &out, &found), ERR_CORRUPT);
    assert_non_null(strstr(err_text(), "missing"));
    store(1, (const unsigned char *)"NOTAMANIFEST", 12);
    assert_int_equal(manifest_read(directory, &out, &found), ERR_CORRUPT);
    remove_slots();
    assert_int_equal(mkdir(slot_name(1), 0700), 0);
    assert_int_equal(manifest_read(directory, &out, &found), ERR_CORRUPT);
    assert_non_null(strstr(err_text(), "regular"));
    rmdir(slot_name(1));
}

/* Hostile lengths under a right checksum: none may be believed. */
static void lengths_are_not_trusted(void **state)
{
    (void)state;
    static unsigned char bytes[FILE_MAX];
    static manifest out;
    static const struct {
        size_t offset, width;
    } fields[] = {{8, 4},   {12, 4},  {16, 8},  {128, 8}, {136, 8},
                  {144, 4}, {148, 4}, {176, 8}, {184, 8}};
    static const uint64_t values[] = {0,         3,          5,
                                      15,        17,         48,
                                      1u << 20,  UINT32_MAX, UINT64_MAX / 48 + 2,
                                      INT64_MAX, UINT64_MAX, UINT64_MAX - 191};
    write_two(10);
    unlink(slot_name(1));
    size_t count = load(0, bytes);
    int found;
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++)
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            unsigned char old[8];
            memcpy(old, bytes + fields[f].offset, fields[f].width);
            memcpy(bytes + fields[f].offset, &values[v], fields[f].width);
            bool is_same = memcmp(old, bytes + fields[f].offset, fields[f].width) == 0;
            sign(bytes, count);
            store(0, bytes, count);
            if (!is_same)
                assert_int_equal(manifest_read(directory, &out, &found), ERR_CORRUPT);
            memcpy(bytes + fields[f].offset, old, fields[f].width);
        }
    /* A generation in the wrong slot, and a path that runs into the extents. */
    bytes[32] ^= 1;
    sign(bytes, count);
    store(0, bytes, count);
    assert_int_equal(manifest_read(directory, &out, &found), ERR_CORRUPT);
    bytes[32] ^= 1;
    memset(bytes + 192, 'x', count - 192);
    sign(bytes, count);
    store(0, bytes, count);
    assert_int_equal(manifest_read(directory, &out, &found), ERR_CORRUPT);
    remove_slots();
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    static manifest in;
    fill(&in, 1, 1, 1);
    assert_int_equal(manifest_write("no-such-directory", &in), -ENOENT);
    assert_non_null(strstr(err_text(), "no-such-directory/manifest-1"));
    in.slabs.drive_count = 17;
    assert_int_equal(manifest_write(directory, &in), -EINVAL);
    in.slabs.drive_count = 1;
    memset(in.slabs.drives[0], 'x', MANIFEST_TEXT_BYTES);
    assert_int_equal(manifest_write(directory, &in), -EINVAL);
    snprintf(in.slabs.drives[0], MANIFEST_TEXT_BYTES, "/a");
    in.state = (enum manifest_state)0;
    assert_int_equal(manifest_write(directory, &in), -EINVAL);
    int found;
    static manifest out;
    assert_int_equal(manifest_read(directory, &out, &found), 0); /* nothing was written */
    manifest_fini(&in);
}

int main(void)
{
    printf("seed %d\n", SEED);
    log_set_level(LOG_QUIET); /* each fallback warns */
    if (!mkdtemp(directory))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_is_read),
        cmocka_unit_test(layout_is_as_documented),
        cmocka_unit_test(version_1_is_read),
        cmocka_unit_test(newest_wins),
        cmocka_unit_test(any_flipped_byte_falls_back),
        cmocka_unit_test(any_length_falls_back),
        cmocka_unit_test(damage_of_both_is_named),
        cmocka_unit_test(lengths_are_not_trusted),
        cmocka_unit_test(bad_calls_are_refused),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    remove_slots();
    rmdir(directory);
    return rc;
}
