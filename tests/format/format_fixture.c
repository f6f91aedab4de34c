/* See format_fixture.h. */
#include <errno.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/shard.h"
#include "base/tile.h"
#include "tests/format/format_fixture.h"
#include "tests/unit.h"

struct format_syncs format_syncs = {.fail_at = -1};

int fsync(int fd)
{
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) < 0)
        return -1;
    const char *name = strrchr(path, '/');
    if (format_syncs.count < 16)
        snprintf(format_syncs.names[format_syncs.count], sizeof format_syncs.names[0], "%.60s",
                 name ? name + 1 : path);
    if (format_syncs.count++ != format_syncs.fail_at)
        return 0;
    errno = format_syncs.fail_errno;
    return -1;
}

void format_reset_syncs(int fail_at, int fail_errno)
{
    format_syncs.count = 0;
    format_syncs.fail_at = fail_at;
    format_syncs.fail_errno = fail_errno;
}

static char directory[] = "test_format_XXXXXX";

void format_begin(void)
{
    assert_non_null(mkdtemp(directory));
}

void format_end(void)
{
    format_remove_slots();
    rmdir(directory);
}

const char *format_directory(void)
{
    return directory;
}

const char *format_slot(int slot)
{
    static char paths[2][64];
    snprintf(paths[slot], sizeof paths[slot], "%s/manifest-%d", directory, slot);
    return paths[slot];
}

const char *format_path(const char *name)
{
    static char path[96];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

void format_remove_slots(void)
{
    static const char *const names[] = {"manifest-0", "manifest-1", "manifest-0.new",
                                        "manifest-1.new"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unlink(format_path(names[i]));
}

bool format_exists(const char *name)
{
    return access(format_path(name), F_OK) == 0;
}

/* Draws `count` drives. `role` chooses the uuid: 0 for the run's own slabs, in every record of the
 * run; 1 for its old slabs (manifest.leftover). */
static void draw_slabs(manifest_slabs *self, uint64_t seed, uint64_t stream, uint64_t role,
                       uint32_t count)
{
    self->drive_count = count;
    for (uint64_t i = 0; count && i < MANIFEST_UUID_BYTES; i++)
        self->uuid[i] = (uint8_t)rng_u64(0, role, i);
    for (uint32_t d = 0; d < count; d++)
        snprintf(self->drives[d], MANIFEST_TEXT_BYTES, "/mnt/nvme%u/%.*s", d,
                 (int)rng_below(seed, stream, 100 + d, 50),
                 "a-rather-long-directory-name-of-a-slab-on-a-drive");
}

/* Hosts of up to 4 ranks each. */
static void draw_ranks(manifest_slabs *self, uint32_t count)
{
    enum { HOST_RANKS = 4 };
    self->rank_count = count;
    for (uint32_t r = 0; r < count; r++) {
        snprintf(self->ranks[r].host, MANIFEST_HOST_BYTES, count > 1 ? "node-%u" : "",
                 r / HOST_RANKS);
        self->ranks[r].local_rank = r % HOST_RANKS;
    }
}

/* The tiles of a shard from element elem_begin on. */
static void add_shard(manifest *self, uint64_t seed, uint64_t stream, manifest_extent first,
                      uint64_t shard_elems)
{
    for (uint64_t k = 0; k < tile_count(shard_elems, self->tile_elems); k++) {
        uint64_t held = tile_elems_at(shard_elems, self->tile_elems, k);
        manifest_extent *extent = &self->extents[self->extent_count++];
        *extent = first;
        extent->tile = (uint32_t)k;
        extent->size_bytes = tile_bytes(held, self->state_streams);
        extent->elem_begin = first.elem_begin + k * self->tile_elems;
        extent->elem_count = held;
        extent->checksum = rng_u64(seed, stream, 999 + self->extent_count);
    }
}

/* Tiles of random units at random distances. On each rank's slab they lie in the opposite order, so
 * that offsets are not sorted like extents. */
static void draw_extents(manifest *self, uint64_t seed, uint64_t stream, uint32_t units)
{
    enum { TILES_MAX = 4 };
    uint32_t shards = self->is_replicated ? 1 : self->world_size;
    self->extents = mem_alloc((size_t)units * shards * TILES_MAX, sizeof *self->extents, "extents");
    assert_non_null(self->extents);
    for (uint32_t u = 0; u < units; u++) {
        uint64_t elems = 1 + rng_below(seed, stream, u, TILES_MAX * self->tile_elems);
        if (shards > 1)
            elems = size_round_up(elems, SHARD_ELEMS_STEP);
        for (uint32_t r = 0; r < shards; r++)
            add_shard(self, seed, stream,
                      (manifest_extent){.unit = u, .rank = r, .elem_begin = r * elems}, elems);
    }
    uint64_t at[MANIFEST_RANKS_MAX] = {0}, end = 1;
    for (uint64_t i = self->extent_count; i-- > 0;) {
        manifest_extent *extent = &self->extents[i];
        at[extent->rank] += TILE_BLOCK_BYTES * rng_below(seed, stream, 2000 + i, 3);
        extent->offset_bytes = at[extent->rank];
        at[extent->rank] += extent->size_bytes;
        end = size_max(end, at[extent->rank]);
    }
    self->total_bytes = size_round_up(end, self->stripe_bytes);
}

void format_draw(manifest *out, uint64_t seed, uint64_t generation,
                 const struct format_shape *shape)
{
    uint64_t stream = generation * 16;
    memset(out, 0, sizeof *out);
    out->state = shape->state;
    out->generation = generation;
    out->point.step = shape->state == MANIFEST_BEGUN ? 0 : generation;
    out->point.skipped_count = rng_below(seed, stream, 1, out->point.step + 1);
    out->point.window_count = rng_u64(seed, stream, 2);
    out->point.seed = rng_u64(seed, stream, 3);
    out->point.loss_scale = 65536.5;
    out->point.scale_iteration = 1 + rng_below(seed, stream, 4, 1000);
    out->point.scale_last_overflow =
        (int64_t)rng_below(seed, stream, 5, out->point.scale_iteration + 1) - 1;
    out->point.scale_hysteresis_left = 1 + rng_below(seed, stream, 6, 3);
    out->state_streams = 2 + (uint32_t)rng_below(seed, stream, 7, 2);
    out->tile_elems = TILE_ELEMS_STEP * (1 + rng_below(seed, stream, 8, 3));
    out->stripe_bytes = MIB * (1 + rng_below(seed, stream, 9, 8));
    draw_slabs(&out->slabs, seed, stream + 1, 0, shape->drives);
    draw_slabs(&out->leftover, seed, stream + 2, 1, shape->leftovers);
    out->world_size = shape->ranks ? shape->ranks : 1;
    out->zero_stage = shape->stage;
    out->is_replicated = out->world_size > 1 && shape->stage == 0;
    draw_ranks(&out->slabs, out->world_size);
    uint32_t leftover_ranks = out->world_size > 1 ? 1 + (out->world_size + 1) / 2 : 1;
    draw_ranks(&out->leftover, shape->leftovers ? leftover_ranks : 0);
    snprintf(out->identity, sizeof out->identity, "model=gpt2\nlayers=%d\nkernels=%.*s\n",
             (int)(generation % 100), (int)rng_below(seed, stream, 10, 9), "avx512-vnni");
    out->fingerprint = XXH3_64bits(out->identity, strlen(out->identity));
    draw_extents(out, seed, stream + 3, shape->units);
}

void format_commit(manifest *out, uint64_t generation)
{
    enum { SEED = 4711 };
    format_draw(out, SEED, generation, &(struct format_shape){MANIFEST_COMMITTED, 2, 1, 3, 1, 0});
}

static void assert_same_slabs(const manifest_slabs *a, const manifest_slabs *b)
{
    assert_memory_equal(a->uuid, b->uuid, sizeof a->uuid);
    assert_int_equal(a->drive_count, b->drive_count);
    for (uint32_t d = 0; d < a->drive_count; d++)
        assert_string_equal(a->drives[d], b->drives[d]);
    assert_int_equal(a->rank_count, b->rank_count);
    assert_memory_equal(a->ranks, b->ranks, sizeof a->ranks);
}

void format_assert_same(const manifest *a, const manifest *b)
{
    assert_int_equal(a->state, b->state);
    assert_int_equal(a->generation, b->generation);
    assert_same_slabs(&a->slabs, &b->slabs);
    assert_same_slabs(&a->leftover, &b->leftover);
    assert_int_equal(a->fingerprint, b->fingerprint);
    assert_int_equal(a->point.step, b->point.step);
    assert_int_equal(a->point.window_count, b->point.window_count);
    assert_int_equal(a->point.seed, b->point.seed);
    assert_int_equal(a->point.skipped_count, b->point.skipped_count);
    assert_true(a->point.loss_scale == b->point.loss_scale);
    assert_int_equal(a->point.scale_iteration, b->point.scale_iteration);
    assert_true(a->point.scale_last_overflow == b->point.scale_last_overflow);
    assert_int_equal(a->point.scale_hysteresis_left, b->point.scale_hysteresis_left);
    assert_int_equal(a->tile_elems, b->tile_elems);
    assert_int_equal(a->total_bytes, b->total_bytes);
    assert_int_equal(a->stripe_bytes, b->stripe_bytes);
    assert_int_equal(a->state_streams, b->state_streams);
    assert_int_equal(a->world_size, b->world_size);
    assert_int_equal(a->zero_stage, b->zero_stage);
    assert_int_equal(a->is_replicated, b->is_replicated);
    assert_string_equal(a->identity, b->identity);
    assert_int_equal(a->extent_count, b->extent_count);
    if (a->extent_count)
        assert_memory_equal(a->extents, b->extents, a->extent_count * sizeof *a->extents);
}

void format_write_two(uint64_t first_generation)
{
    static manifest record;
    for (uint64_t g = first_generation; g < first_generation + 2; g++) {
        format_commit(&record, g);
        assert_ok(manifest_write(directory, &record));
        manifest_fini(&record);
    }
}

void format_expect(uint64_t generation)
{
    static manifest out;
    assert_int_equal(manifest_read(directory, &out), 1);
    assert_int_equal(out.generation, generation);
    manifest_fini(&out);
}

size_t format_load(int slot, unsigned char *bytes)
{
    FILE *file = fopen(format_slot(slot), "rb");
    assert_non_null(file);
    size_t count = fread(bytes, 1, FORMAT_FILE_MAX, file);
    fclose(file);
    return count;
}

void format_store(int slot, const unsigned char *bytes, size_t count)
{
    FILE *file = fopen(format_slot(slot), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

void format_sign(unsigned char *bytes, size_t count)
{
    memset(bytes + 24, 0, 8);
    uint64_t checksum = XXH3_64bits(bytes, count);
    memcpy(bytes + 24, &checksum, 8);
}

void format_expect_reason(int rc, int code, const char *reason)
{
    assert_int_equal(rc, code);
    if (!strstr(err_text(), reason))
        print_error("expected \"%s\" in \"%s\"\n", reason, err_text());
    assert_non_null(strstr(err_text(), reason));
}
