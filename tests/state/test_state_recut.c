/* A commit moved to another layout: whatever the tile sizes, streams and drives of both, each
 * element of each stream arrives with its bits, sums match, padding is zero; what is damaged or
 * impossible is named, and the memory is that of a few tiles. Argument: the backend of the
 * drives. */
#include <errno.h>
#include <inttypes.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/tile.h"
#include "state/state_internal.h"
#include "swap/checksum.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"
#include "tiers/io_faults.h"

enum { SEED = 20261121, UNITS_MAX = 4, DRIVES_TESTED = 3, CASES = 10, STREAM_DRAWS = 7 };

static enum io_backend backend;
static uint64_t draw_idx;

static uint64_t draw(uint64_t bound)
{
    return rng_below(SEED, STREAM_DRAWS, draw_idx++, bound);
}

/* The bits of one element: any pattern, also such as are no numbers. */
static uint32_t element(uint32_t unit, uint32_t stream, uint64_t idx)
{
    uint64_t mixed =
        (idx + 1) * 0x9e3779b97f4a7c15u + ((uint64_t)unit << 8 | stream) * 0xda942042e4dd58b5u;
    mixed = (mixed ^ (mixed >> 31)) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(mixed >> 29);
}

/* One side of a move: drives, slab, and the tiles on it. */
struct side {
    slab disk;
    sim_store *store;
    slab_drive drives[DRIVES_TESTED];
    uint64_t tile_elems, total_bytes, extent_count, largest_bytes;
    manifest_extent *extents; /* [extent_count]; a place_entry's offset[0] of the new side */
};

struct rig {
    uint32_t streams, unit_count;
    uint64_t unit_elems[UNITS_MAX];
    struct side old, fresh;
    manifest found;
    place_table *places;
    volatile sig_atomic_t stop;
    io_faults faults;
    int copied_count; /* how often recut.copied was met */
    int copied_result;
};

static struct rig rig;

/* As with Muon every second unit lacks the last of three streams. */
static uint32_t streams_of(uint32_t unit)
{
    return rig.streams == 3 && unit % 2 ? TILE_MATRIX_STREAMS : rig.streams;
}

static void *aligned_tile(uint64_t size_bytes, void **block)
{
    *block = mem_alloc(size_bytes + TILE_BLOCK_BYTES, 1, "test tile");
    assert_non_null(*block);
    return (unsigned char *)*block + (TILE_BLOCK_BYTES - (uintptr_t)*block % TILE_BLOCK_BYTES);
}

static io *open_io(struct side *side)
{
    io_config config = {.target = &side->disk, .backend = backend, .store = side->store};
    io *transport;
    assert_ok(io_create(&config, &transport));
    return transport;
}

/* Tiles in the order of units, or of units backwards, with gaps as they come. */
static void lay_out(struct side *side, bool backwards, uint64_t pitch_factor)
{
    uint64_t count = 0, offset = 0;
    for (uint32_t u = 0; u < rig.unit_count; u++)
        count += tile_count(rig.unit_elems[u], side->tile_elems);
    side->extents = mem_alloc(count, sizeof *side->extents, "test extents");
    assert_non_null(side->extents);
    side->extent_count = 0;
    side->largest_bytes = 0;
    for (uint32_t i = 0; i < rig.unit_count; i++) {
        uint32_t u = backwards ? rig.unit_count - 1 - i : i;
        for (uint64_t k = 0; k < tile_count(rig.unit_elems[u], side->tile_elems); k++) {
            uint64_t held = tile_elems_at(rig.unit_elems[u], side->tile_elems, k);
            uint64_t bytes = tile_bytes(held, streams_of(u));
            offset += draw(3) * TILE_BLOCK_BYTES;
            side->extents[side->extent_count++] =
                (manifest_extent){.unit = u,
                                  .tile = (uint32_t)k,
                                  .offset_bytes = offset,
                                  .size_bytes = bytes,
                                  .elem_begin = k * side->tile_elems,
                                  .elem_count = held};
            offset += bytes * pitch_factor;
            side->largest_bytes = size_max(side->largest_bytes, bytes);
        }
    }
    side->total_bytes = size_round_up(offset, MIB);
}

static void open_side(struct side *side, const char *name, uint32_t drive_count)
{
    for (uint32_t d = 0; d < drive_count; d++) {
        char drive[32];
        snprintf(drive, sizeof drive, "%s-%u", name, d);
        helper_drive(&side->drives[d], drive, 0, 1 + d);
        side->drives[d].budget_bytes = side->total_bytes + 2 * MIB;
    }
    slab_config config = {.drives = side->drives,
                          .drive_count = drive_count,
                          .total_bytes = side->total_bytes,
                          .uuid = {(uint8_t)name[0], 2, 3},
                          .stripe_bytes = MIB};
    assert_ok(slab_open(&side->disk, &config));
    if (backend == IO_SIM)
        assert_ok(sim_store_create(&side->disk, &side->store));
}

/* 4-byte words of stream `s` of so many elements, scales included. */
static uint64_t stream_words(uint64_t elems, uint32_t s)
{
    return tile_stream_bytes(rig.streams, elems, s) / 4;
}

/* The committed state, its padding full of what nobody may rely on. */
static void write_old(void)
{
    void *block;
    unsigned char *data = aligned_tile(rig.old.largest_bytes, &block);
    io *transport = open_io(&rig.old);
    for (uint64_t i = 0; i < rig.old.extent_count; i++) {
        manifest_extent *tile = &rig.old.extents[i];
        uint32_t streams = streams_of(tile->unit);
        memset(data, 0xa5, tile->size_bytes);
        for (uint32_t s = 0; s < tile_stream_count(streams); s++) {
            uint32_t *stream =
                (uint32_t *)(data + tile_stream_offset(streams, tile->elem_count, s));
            for (uint64_t w = 0; w < stream_words(tile->elem_count, s); w++)
                stream[w] = element(tile->unit, s, stream_words(tile->elem_begin, s) + w);
        }
        tile->checksum = checksum_sum(data, tile->size_bytes, tile->elem_count, streams);
        assert_ok(io_transfer(transport, IO_WRITE, tile->offset_bytes, data, tile->size_bytes));
    }
    io_destroy(transport);
    mem_free(block);
}

static void make_places(void)
{
    place_entry *entries = mem_alloc(rig.fresh.extent_count, sizeof *entries, "test places");
    assert_non_null(entries);
    for (uint64_t i = 0; i < rig.fresh.extent_count; i++) {
        const manifest_extent *from = &rig.fresh.extents[i];
        entries[i] =
            (place_entry){.unit = from->unit,
                          .tile = from->tile,
                          .elem_begin = from->elem_begin,
                          .elem_count = from->elem_count,
                          .logical_offset = from->offset_bytes,
                          .size_bytes = from->size_bytes,
                          .streams = streams_of(from->unit),
                          .offset = {from->offset_bytes, from->offset_bytes + from->size_bytes},
                          .newest = PLACE_NONE,
                          .committed = PLACE_NONE};
    }
    assert_ok(place_table_create(entries, rig.fresh.extent_count, &rig.places));
    mem_free(entries);
}

/* Units, tile sizes and streams are set; the rest follows. */
static void start(uint32_t old_drives, uint32_t new_drives)
{
    lay_out(&rig.old, false, 1);
    lay_out(&rig.fresh, true, 2);
    open_side(&rig.old, "old", old_drives);
    open_side(&rig.fresh, "new", new_drives);
    write_old();
    make_places();
    memset(&rig.found, 0, sizeof rig.found);
    rig.found.state = MANIFEST_COMMITTED;
    rig.found.point.step = 77;
    rig.found.state_streams = rig.streams;
    rig.found.total_bytes = rig.old.disk.total_bytes;
    rig.found.extents = rig.old.extents;
    rig.found.extent_count = rig.old.extent_count;
}

static void end_side(struct side *side)
{
    assert_ok(slab_remove(&side->disk));
    sim_store_destroy(side->store);
    mem_free(side->extents);
}

static void end(void)
{
    end_side(&rig.old);
    end_side(&rig.fresh);
    place_table_destroy(rig.places);
    memset(&rig, 0, sizeof rig);
}

static int on_point(void *user, const char *name)
{
    if (strcmp(name, "recut.copied") != 0)
        return 0;
    rig.copied_count++;
    return rig.copied_result < 0 ? err_set(rig.copied_result, "recut.copied fails") : 0;
}

static int move(void)
{
    struct state_recut work = {.found = &rig.found,
                               .from = (slab *[]){&rig.old.disk},
                               .unit_elems = rig.unit_elems,
                               .unit_count = rig.unit_count,
                               .to = &rig.fresh.disk,
                               .places = rig.places,
                               .state_streams = rig.streams,
                               .backend = backend,
                               .from_store = (sim_store *[]){rig.old.store},
                               .to_store = rig.fresh.store,
                               .stop = &rig.stop,
                               .faults = &rig.faults};
    rig.copied_count = 0;
    failpoint_hook(on_point, NULL);
    int rc = state_recut_copy(&work);
    failpoint_hook(NULL, NULL);
    return rc;
}

static void check_tile(const place_entry *entry, const unsigned char *data)
{
    uint64_t elems = entry->elem_count, wrong = 0, dirty = 0;
    uint32_t streams = streams_of(entry->unit), count = tile_stream_count(streams);
    for (uint32_t s = 0; s < count; s++) {
        uint64_t begin = tile_stream_offset(streams, elems, s);
        const uint32_t *stream = (const uint32_t *)(data + begin);
        for (uint64_t w = 0; w < stream_words(elems, s); w++)
            wrong += stream[w] != element(entry->unit, s, stream_words(entry->elem_begin, s) + w);
        uint64_t end =
            s + 1 < count ? tile_stream_offset(streams, elems, s + 1) : entry->size_bytes;
        for (uint64_t b = begin + tile_stream_bytes(streams, elems, s); b < end; b++)
            dirty += data[b] != 0;
    }
    if (wrong || dirty)
        fail_msg("unit %u, tile %u: %" PRIu64 " elements differ, %" PRIu64
                 " bytes of padding are not 0",
                 entry->unit, entry->tile, wrong, dirty);
}

static void check_new(void)
{
    void *block;
    unsigned char *data = aligned_tile(rig.fresh.largest_bytes, &block);
    io *transport = open_io(&rig.fresh);
    for (uint64_t i = 0; i < place_table_count(rig.places); i++) {
        const place_entry *entry = place_table_at(rig.places, i);
        assert_int_equal(entry->newest, 0);
        assert_int_equal(entry->committed, PLACE_NONE);
        assert_true(entry->has_sum[0] && !entry->has_sum[1]);
        assert_ok(io_transfer(transport, IO_READ, entry->offset[0], data, entry->size_bytes));
        assert_true(checksum_sum(data, entry->size_bytes, entry->elem_count,
                                 streams_of(entry->unit)) == entry->sum[0]);
        check_tile(entry, data);
    }
    io_destroy(transport);
    mem_free(block);
}

static void draw_units(void)
{
    static const enum tile_format moments[] = {TILE_BF16, TILE_INT8};
    bool has_formats = draw(2);
    rig.streams = 2 + (uint32_t)draw(2);
    if (has_formats)
        rig.streams = tile_streams_code(3, TILE_FP32, moments[draw(2)], moments[draw(2)]);
    rig.unit_count = 1 + (uint32_t)draw(UNITS_MAX);
    for (uint32_t u = 0; u < rig.unit_count; u++) {
        rig.unit_elems[u] = draw(4) ? 1 + draw(150000) : 1 + draw(50);
        if (has_formats) /* as those of a model are */
            rig.unit_elems[u] = size_round_up(rig.unit_elems[u], SHARD_ELEMS_STEP);
    }
    rig.old.tile_elems = (1 + draw(3)) * TILE_ELEMS_STEP;
    rig.fresh.tile_elems = (1 + draw(3)) * TILE_ELEMS_STEP;
}

/* First of all: the greatest number of bytes that were ever alive is the process's. */
static void memory_is_that_of_a_few_tiles(void **state)
{
    if (backend == IO_SIM) /* whose drives are memory */
        skip();
    rig.streams = 3;
    rig.unit_count = 2;
    rig.unit_elems[0] = 10000001;
    rig.unit_elems[1] = 2000000;
    rig.old.tile_elems = 16 * TILE_ELEMS_STEP;
    rig.fresh.tile_elems = 10 * TILE_ELEMS_STEP;
    start(1, 1);
    mem_stats before, after;
    mem_get_stats(&before);
    assert_ok(move());
    mem_get_stats(&after);
    uint64_t most = before.live_bytes + 2 * 32 * MIB + 2 * MIB;
    assert_true(rig.old.total_bytes > 120 * MIB);
    assert_true(after.live_bytes_max <= most);
    assert_int_equal(after.live_bytes, before.live_bytes);
    check_new();
    end();
}

static void every_bit_arrives(void **state)
{
    for (int i = 0; i < CASES; i++) {
        draw_units();
        uint32_t old_drives = 1 + (uint32_t)draw(DRIVES_TESTED);
        uint32_t new_drives = 1 + (uint32_t)draw(DRIVES_TESTED);
        print_message("%u units, streams %08x, tiles %" PRIu64 " -> %" PRIu64 ", drives %u -> %u\n",
                      rig.unit_count, rig.streams, rig.old.tile_elems, rig.fresh.tile_elems,
                      old_drives, new_drives);
        start(old_drives, new_drives);
        manifest_extent swapped = rig.old.extents[0]; /* in no order */
        rig.old.extents[0] = rig.old.extents[rig.old.extent_count - 1];
        rig.old.extents[rig.old.extent_count - 1] = swapped;
        assert_ok(move());
        assert_int_equal(rig.copied_count, 1);
        check_new();
        end();
    }
}

/* More tiles than there is memory for: it is used again and again, in whatever order drives
 * finish. */
static void many_tiles(void **state)
{
    for (int i = 0; i < 2; i++) {
        rig.streams = 2;
        rig.unit_count = 2;
        rig.unit_elems[0] = 75 * TILE_ELEMS_STEP + 5;
        rig.unit_elems[1] = 10 * TILE_ELEMS_STEP - 1;
        rig.old.tile_elems = (i ? 3 : 1) * TILE_ELEMS_STEP;
        rig.fresh.tile_elems = (i ? 1 : 2) * TILE_ELEMS_STEP;
        rig.faults =
            (io_faults){.seed = SEED, .retry_rate = 30, .short_rate = 30, .latency_us_max = 1000};
        start(2, 3);
        assert_ok(move());
        check_new();
        end();
    }
}

/* Changes one bit of a stream of an old tile on its drive. */
static void flip_bit(const manifest_extent *tile, uint32_t stream)
{
    uint64_t byte = tile_stream_offset(streams_of(tile->unit), tile->elem_count, stream) +
                    draw(tile_stream_bytes(streams_of(tile->unit), tile->elem_count, stream));
    uint64_t page = byte / TILE_BLOCK_BYTES * TILE_BLOCK_BYTES;
    void *block;
    unsigned char *data = aligned_tile(TILE_BLOCK_BYTES, &block);
    io *transport = open_io(&rig.old);
    uint64_t offset = tile->offset_bytes + page;
    assert_ok(io_transfer(transport, IO_READ, offset, data, TILE_BLOCK_BYTES));
    data[byte - page] ^= (unsigned char)(1u << draw(8));
    assert_ok(io_transfer(transport, IO_WRITE, offset, data, TILE_BLOCK_BYTES));
    io_destroy(transport);
    mem_free(block);
}

static void assert_text(const char *words)
{
    if (!strstr(err_text(), words))
        fail_msg("expected \"%s\" in: %s", words, err_text());
}

/* No new tile that holds elements of the old one is said to be written. */
static void assert_not_moved(const manifest_extent *tile)
{
    for (uint64_t i = 0; i < place_table_count(rig.places); i++) {
        const place_entry *entry = place_table_at(rig.places, i);
        bool overlaps = entry->unit == tile->unit &&
                        entry->elem_begin < tile->elem_begin + tile->elem_count &&
                        tile->elem_begin < entry->elem_begin + entry->elem_count;
        assert_false(overlaps && entry->newest != PLACE_NONE);
    }
}

static void a_flipped_bit_is_named(void **state)
{
    for (int i = 0; i < CASES; i++) {
        draw_units();
        start(1 + (uint32_t)draw(DRIVES_TESTED), 1);
        const manifest_extent *tile = &rig.old.extents[draw(rig.old.extent_count)];
        flip_bit(tile, (uint32_t)draw(tile_stream_count(streams_of(tile->unit))));
        assert_int_equal(move(), ERR_CORRUPT);
        assert_int_equal(rig.copied_count, 0);
        slab_piece piece;
        slab_map(&rig.old.disk, tile->offset_bytes, tile->size_bytes, &piece);
        char words[FILE_PATH_BYTES + 200];
        snprintf(words, sizeof words,
                 "unit %u, tile %u: %" PRIu64 " bytes at offset %" PRIu64 " of %s have checksum ",
                 tile->unit, tile->tile, tile->size_bytes, piece.file_offset,
                 rig.old.disk.files[piece.drive_idx].path);
        assert_text(words);
        snprintf(words, sizeof words,
                 "but %016" PRIx64 " was written: the commit of step 77 cannot be moved",
                 tile->checksum);
        assert_text(words);
        assert_not_moved(tile);
        end();
    }
}

static void expect(int code, const char *words)
{
    int rc = move();
    if (rc != code)
        fail_msg("expected %s, got %s: %s", err_name(code), err_name(rc), rc < 0 ? err_text() : "");
    assert_text(words);
    assert_int_equal(rig.copied_count, 0);
    for (uint64_t i = 0; i < place_table_count(rig.places); i++)
        assert_int_equal(place_table_at(rig.places, i)->newest, PLACE_NONE);
}

static void start_small(void)
{
    rig.streams = 3;
    rig.unit_count = 2;
    rig.unit_elems[0] = 70000;
    rig.unit_elems[1] = 40000;
    rig.old.tile_elems = TILE_ELEMS_STEP;
    rig.fresh.tile_elems = 2 * TILE_ELEMS_STEP;
    start(1, 2);
}

static place_entry *find_place(uint32_t unit, uint32_t tile)
{
    uint64_t i = 0;
    while (place_table_at(rig.places, i)->unit != unit ||
           place_table_at(rig.places, i)->tile != tile)
        i++;
    return place_table_at(rig.places, i);
}

static void what_does_not_agree_is_refused(void **state)
{
    start_small();
    rig.found.extent_count--;
    expect(ERR_CORRUPT, "elements of unit 1");
    rig.found.extent_count = 3; /* all of unit 0 */
    expect(ERR_CORRUPT, "fewer units");
    rig.found.extent_count = rig.old.extent_count;
    rig.found.state_streams = 2;
    expect(ERR_CORRUPT, "2 values per parameter and the run's optimizer 3");
    rig.found.state_streams = 3;
    place_entry *first = find_place(0, 0);
    first->streams = TILE_MATRIX_STREAMS;
    first->size_bytes = tile_bytes(first->elem_count, first->streams);
    expect(ERR_CORRUPT, "3 values per parameter of unit 0 and the run's optimizer 2");
    first->streams = 3;
    first->size_bytes = tile_bytes(first->elem_count, first->streams);
    place_entry *entry = place_table_at(rig.places, 0);
    entry->elem_begin += 4;
    expect(ERR_INTERNAL, "the new layout");
    entry->elem_begin -= 4;
    assert_int_equal(move(), 0);
    check_new();
    end();
}

static void a_stop_and_a_failure_are_passed_on(void **state)
{
    start_small();
    rig.stop = 1;
    expect(ERR_STOPPED, "it is as it was");
    rig.stop = 0;
    rig.copied_result = -EIO;
    assert_int_equal(move(), -EIO);
    rig.copied_result = 0;
    assert_int_equal(move(), 0); /* again, over what was written */
    check_new();
    end();
}

static void every_failure_of_a_drive_is_an_error(void **state)
{
    static const struct {
        enum io_fault_kind kind;
        int code;
    } faults[] = {{IO_FAULT_EIO, -EIO}, {IO_FAULT_TORN, -EIO}, {IO_FAULT_ENOSPC, -ENOSPC}};
    start_small();
    for (int kind = 0; kind < 3; kind++)
        for (uint64_t at = 1; at < 100; at++) {
            rig.faults = (io_faults){.seed = SEED, .at_transfer = at, .at_kind = faults[kind].kind};
            int rc = move();
            if (rc == 0) { /* so many transfers there are not */
                assert_true(at > 3);
                break;
            }
            assert_int_equal(rc, faults[kind].code);
            assert_text("moving the commit of step 77 to another layout: unit ");
            assert_int_equal(rig.copied_count, 0);
        }
    rig.faults = (io_faults){.at_transfer = 2, .at_kind = IO_FAULT_FLIP};
    assert_int_equal(move(), ERR_CORRUPT);
    memset(&rig.faults, 0, sizeof rig.faults);
    assert_int_equal(move(), 0);
    check_new();
    end();
}

static void a_failing_drive_keeps_its_code(void **state)
{
    if (backend != IO_SIM)
        skip();
    start_small();
    sim_store_cut(rig.fresh.store, 0, SLAB_HEADER_BYTES + 4096);
    sim_store_cut(rig.fresh.store, 1, SLAB_HEADER_BYTES + 4096);
    assert_int_equal(move(), -ENOSPC);
    assert_text("moving the commit of step 77 to another layout: unit ");
    assert_int_equal(rig.copied_count, 0);
    end();
    start_small();
    sim_store_cut(rig.old.store, 0, SLAB_HEADER_BYTES + rig.old.extents[2].offset_bytes + 4096);
    int rc = move();
    assert_true(rc < 0);
    assert_text(" of the committed layout: read of ");
    assert_int_equal(rig.copied_count, 0);
    end();
}

int main(int argument_count, char **arguments)
{
    const char *name = argument_count > 1 ? arguments[1] : "pool";
    backend = helper_backend(name);
    int skipped = helper_skip(backend);
    if (skipped)
        return skipped;
    log_set_level(LOG_QUIET);
    print_message("seed %d, backend %s\n", SEED, name);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_that_of_a_few_tiles),
        cmocka_unit_test(every_bit_arrives),
        cmocka_unit_test(many_tiles),
        cmocka_unit_test(a_flipped_bit_is_named),
        cmocka_unit_test(what_does_not_agree_is_refused),
        cmocka_unit_test(a_stop_and_a_failure_are_passed_on),
        cmocka_unit_test(every_failure_of_a_drive_is_an_error),
        cmocka_unit_test(a_failing_drive_keeps_its_code),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
