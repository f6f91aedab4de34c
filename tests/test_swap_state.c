/* Optimizer state with two places over a slab of two drives: what a commit names is never touched, by writes
 * that succeed, are torn or fail; a read is of the newest place and finds wrong bytes there; with and without
 * places, sums and comparisons. The argument names the transport; what lies on the slab is looked at past
 * the lanes. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/tile.h"
#include "swap/executor.h"
#include "swap/lane_io.h"
#include "swap_fixture.h"
#include "tiers_helpers.h"

enum {
    SEED = 20261123,
    PAGE = 4096,
    UNIT = 3,
    TILES = 5,
    PARAMS = TILES, /* index of an extent that is no optimizer state */
    EXTENTS = TILES + 1,
    ELEMS = 1024,
    STREAMS = 3,
    STRIDE = TILE_PERIOD_BYTES + TILE_SKEW_BYTES,
    EXTENT_BYTES = 2 * STRIDE + PAGE,
    PADDING_AT = STRIDE - PAGE, /* of the first stream */
    PARAMS_AT = TILES * EXTENT_BYTES,
    PLACES_AT = EXTENTS * EXTENT_BYTES, /* on the slab; before it lie the logical addresses */
    SLAB_BYTES = PLACES_AT + 2 * TILES * EXTENT_BYTES,
    TRANSFERS = 3, /* of one extent, at least */
};

static const char *transport_name = "pool";

/* Programs of one op each, on homes: write[i] from source(i), read[i] to target(i). all_writes has every
 * write[i]. Content of an extent is drawn from a number. */
struct state_rig {
    enum io_backend backend;
    slab *disk;
    sim_store *bytes;
    io *raw; /* past the lanes, never with faults */
    program write[EXTENTS], read[EXTENTS], all_writes;
    const program *programs[2 * EXTENTS + 1];
    void *host_block;
    unsigned char *host; /* sources, targets, one extent for raw */
    place_table *places;
    checksum_table *sums;

    io *transport;
    lane *read_lane, *write_lane;
    executor *exec;
};
typedef struct state_rig state_rig;

enum { HOST_EXTENTS = 2 * EXTENTS + 1, HOST_BYTES = HOST_EXTENTS * EXTENT_BYTES };

static unsigned char *source(state_rig *self, uint32_t i)
{
    return self->host + (uint64_t)i * EXTENT_BYTES;
}

static unsigned char *target(state_rig *self, uint32_t i)
{
    return source(self, EXTENTS + i);
}

static void add_transfer(builder *build, enum op_kind kind, uint32_t i)
{
    uint32_t nvme = 0, host = 1;
    bool is_read = kind == OP_READ;
    uint32_t idx = builder_op(build, kind);
    op *item = &build->prog.ops[idx];
    item->unit = UNIT;
    item->tile = i;
    item->state_kind = i == PARAMS ? STATE_PARAMS : STATE_OPTIMIZER;
    item->elem_begin = (uint64_t)i * ELEMS;
    item->elem_count = ELEMS;
    uint64_t at = (uint64_t)i * EXTENT_BYTES, in_host = at + (is_read ? PLACES_AT : 0);
    builder_use(build, ROLE_SOURCE, ACCESS_READ, is_read ? nvme : host, is_read ? at : in_host,
                EXTENT_BYTES);
    builder_use(build, ROLE_TARGET, ACCESS_WRITE, is_read ? host : nvme, is_read ? in_host : at,
                EXTENT_BYTES);
}

static void make_program(program *out, enum op_kind kind, uint32_t first, uint32_t count)
{
    builder build;
    builder_init(&build, PROGRAM_STEADY, 0, HOST_BYTES, EXTENTS * EXTENT_BYTES);
    builder_home(&build, ARENA_NVME, 0, EXTENTS * EXTENT_BYTES);
    builder_home(&build, ARENA_HOST, 0, HOST_BYTES);
    for (uint32_t i = first; i < first + count; i++)
        add_transfer(&build, kind, i);
    builder_finish(&build, out);
    if (program_check(out) != 0)
        fail_msg("%s", err_text());
}

static void open_disk(state_rig *self)
{
    static slab_drive drives[2];
    helper_drive(&drives[0], "first", 64 * MIB, 1);
    helper_drive(&drives[1], "second", 64 * MIB, 1);
    slab_config config = {.drives = drives,
                          .drive_count = 2,
                          .total_bytes = SLAB_BYTES,
                          .uuid = {4, 5, 6},
                          .stripe_bytes = MIB};
    self->disk = mem_alloc(1, sizeof *self->disk, "test slab");
    assert_non_null(self->disk);
    bool sim = self->backend == IO_SIM;
    if ((sim ? sim_slab_init(self->disk, &config) : slab_open(self->disk, &config)) != 0)
        fail_msg("%s", err_text());
    if (sim)
        assert_int_equal(sim_store_create(self->disk, true, &self->bytes), 0);
}

static io *open_io(state_rig *self, const io_faults *faults)
{
    io_region region = {self->host, HOST_BYTES};
    io_config config = {.target = self->disk,
                        .backend = self->backend,
                        .queue_depth = 8,
                        .block_bytes = 65536,
                        .regions = &region,
                        .region_count = 1,
                        .request_capacity = 8,
                        .faults = faults,
                        .store = self->bytes};
    io *out;
    if (io_create(&config, &out) != 0)
        fail_msg("%s", err_text());
    return out;
}

/* The entries' places lie apart from their logical addresses, and in another order. */
static place_table *make_places(uint32_t count)
{
    place_entry entries[TILES];
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = PLACES_AT + (uint64_t)2 * (TILES - 1 - i) * EXTENT_BYTES;
        entries[i] = (place_entry){.unit = UNIT,
                                   .tile = i,
                                   .elem_begin = (uint64_t)i * ELEMS,
                                   .elem_count = ELEMS,
                                   .logical_offset = (uint64_t)i * EXTENT_BYTES,
                                   .size_bytes = EXTENT_BYTES,
                                   .offset = {at + EXTENT_BYTES, at},
                                   .newest = PLACE_NONE,
                                   .committed = PLACE_NONE};
    }
    place_table *out;
    assert_int_equal(place_table_create(entries, count, &out), 0);
    return out;
}

static void rig_open(state_rig *self)
{
    memset(self, 0, sizeof *self);
    assert_int_equal(tile_bytes(ELEMS, STREAMS), EXTENT_BYTES);
    self->backend = helper_backend(transport_name);
    self->host_block = mem_alloc(HOST_BYTES + PAGE, 1, "test arena");
    assert_non_null(self->host_block);
    self->host = (unsigned char *)self->host_block + (PAGE - (uintptr_t)self->host_block % PAGE);
    for (uint32_t i = 0; i < EXTENTS; i++) {
        make_program(&self->write[i], OP_WRITE, i, 1);
        make_program(&self->read[i], OP_READ, i, 1);
        self->programs[2 * i] = &self->write[i];
        self->programs[2 * i + 1] = &self->read[i];
    }
    make_program(&self->all_writes, OP_WRITE, 0, EXTENTS);
    self->programs[2 * EXTENTS] = &self->all_writes;
    open_disk(self);
    self->raw = open_io(self, NULL);
    self->places = make_places(TILES);
    assert_int_equal(checksum_create(self->programs, 2 * EXTENTS + 1, &self->sums), 0);
}

struct lanes_config {
    const io_faults *faults;
    bool no_places, no_sums, compares_not;
};

static void lanes_close(state_rig *self)
{
    executor_destroy(self->exec);
    if (self->read_lane)
        self->read_lane->ops->destroy(self->read_lane);
    if (self->write_lane)
        self->write_lane->ops->destroy(self->write_lane);
    io_destroy(self->transport);
    self->exec = NULL;
    self->read_lane = self->write_lane = NULL;
    self->transport = NULL;
}

/* In place of those there are. */
static void lanes_open(state_rig *self, struct lanes_config wanted)
{
    lanes_close(self);
    self->transport = open_io(self, wanted.faults);
    lane_io_config config = {.transport = self->transport,
                             .host_base = self->host,
                             .depth = 4,
                             .request_capacity = 4,
                             .verify = wanted.no_sums ? NULL : self->sums,
                             .places = wanted.no_places ? NULL : self->places,
                             .compares_not = wanted.compares_not};
    assert_int_equal(lane_io_create(&config, &self->read_lane, &self->write_lane), 0);
    executor_config exec = {.lanes = {self->read_lane, self->write_lane},
                            .programs = self->programs,
                            .program_count = 2 * EXTENTS + 1};
    assert_int_equal(executor_create(&exec, &self->exec), 0);
}

static void rig_close(state_rig *self)
{
    lanes_close(self);
    io_destroy(self->raw);
    place_table_destroy(self->places);
    checksum_destroy(self->sums);
    sim_store_destroy(self->bytes);
    if (self->backend != IO_SIM)
        assert_int_equal(slab_remove(self->disk), 0);
    for (uint32_t i = 0; i <= 2 * EXTENTS; i++)
        program_fini((program *)self->programs[i]);
    mem_free(self->disk);
    mem_free(self->host_block);
}

/* ---- content ---- */

static void draw_content(unsigned char *to, uint64_t number)
{
    for (uint64_t i = 0; i < EXTENT_BYTES; i += 8) {
        uint64_t word = rng_u64(SEED, number, i);
        memcpy(to + i, &word, 8);
    }
}

/* Is it the content of that number, padding included? */
static bool has_content(const unsigned char *data, uint64_t number)
{
    for (uint64_t i = 0; i < EXTENT_BYTES; i += 8) {
        uint64_t word = rng_u64(SEED, number, i);
        if (memcmp(data + i, &word, 8) != 0)
            return false;
    }
    return true;
}

static unsigned char *raw_move(state_rig *self, enum io_direction direction, uint64_t offset)
{
    unsigned char *data = source(self, 2 * EXTENTS);
    if (io_transfer(self->raw, direction, offset, data, EXTENT_BYTES) != 0)
        fail_msg("%s", err_text());
    return data;
}

static bool slab_has(state_rig *self, uint64_t offset, uint64_t number)
{
    return has_content(raw_move(self, IO_READ, offset), number);
}

/* A bit of the extent on the slab, changed behind everybody's back; once more restores it. */
static void flip(state_rig *self, uint64_t offset, uint64_t byte)
{
    raw_move(self, IO_READ, offset)[byte] ^= 0x10;
    raw_move(self, IO_WRITE, offset);
}

static int write_extent(state_rig *self, uint32_t i, uint64_t number)
{
    draw_content(source(self, i), number);
    return executor_run(self->exec, &self->write[i], 1, NULL);
}

static int read_extent(state_rig *self, uint32_t i)
{
    memset(target(self, i), 0, EXTENT_BYTES);
    return executor_run(self->exec, &self->read[i], 1, NULL);
}

static void must_write(state_rig *self, uint32_t i, uint64_t number)
{
    if (write_extent(self, i, number) != 0)
        fail_msg("%s", err_text());
}

static void must_read(state_rig *self, uint32_t i, uint64_t number)
{
    if (read_extent(self, i) != 0)
        fail_msg("%s", err_text());
    if (!has_content(target(self, i), number))
        fail_msg("tile %u: the read did not bring content %llu", i, (unsigned long long)number);
}

static place_entry *entry_of(state_rig *self, uint32_t i)
{
    return place_table_find(self->places, (uint64_t)i * EXTENT_BYTES, EXTENT_BYTES);
}

/* ---- tests ---- */

/* Writes, all or one, reads and commits at random. After each the slab holds, at the place that the last
 * commit names, what that commit found, and at the newest place what was written last. */
static void commits_stay_as_they_were(void **state)
{
    (void)state;
    enum { STEPS = 60 };
    uint64_t newest[EXTENTS] = {0}, durable[TILES] = {0}, commit_count = 0, moved = 0;
    print_message("%s: seed %d\n", transport_name, SEED);
    const io_faults rough = {
        .seed = SEED, .short_rate = 150, .retry_rate = 100, .latency_us_max = 200};
    state_rig r;
    rig_open(&r);
    lanes_open(&r, (struct lanes_config){.faults = &rough});
    mem_stats before, after;
    mem_get_stats(&before);
    for (uint64_t step = 1; step <= STEPS; step++) {
        uint32_t i = (uint32_t)rng_below(SEED, 1, step, EXTENTS);
        switch (rng_below(SEED, 2, step, 6)) {
        case 0:
            place_table_commit(r.places);
            memcpy(durable, newest, sizeof durable);
            commit_count++;
            break;
        case 1:
            for (uint32_t k = 0; k < EXTENTS; k++)
                draw_content(source(&r, k), newest[k] = 1000 * step + k);
            assert_int_equal(executor_run(r.exec, &r.all_writes, step, NULL), 0);
            break;
        default:
            must_write(&r, i, newest[i] = 1000 * step + i);
            break;
        }
        if (newest[i] > 0)
            must_read(&r, i, newest[i]);
        for (uint32_t k = 0; k < TILES; k++) {
            const place_entry *item = entry_of(&r, k);
            if (newest[k] > 0 && !slab_has(&r, item->offset[item->newest], newest[k]))
                fail_msg("step %d: the newest place of tile %u is wrong", (int)step, k);
            if (durable[k] > 0 && !slab_has(&r, item->offset[item->committed], durable[k]))
                fail_msg("step %d: the committed place of tile %u is wrong", (int)step, k);
            moved += durable[k] > 0 && item->committed != item->newest;
            if (newest[k] == 0)
                continue;
            draw_content(source(&r, k), newest[k]);
            assert_true(item->has_sum[item->newest] &&
                        item->sum[item->newest] ==
                            checksum_sum(source(&r, k), EXTENT_BYTES, ELEMS));
        }
    }
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    assert_true(commit_count > 4 && moved > STEPS / 2);
    rig_close(&r);
}

static void expect_corrupt(state_rig *r, uint32_t i, uint64_t offset, uint64_t expected_sum)
{
    char text[ERR_TEXT_BYTES], wanted[ERR_TEXT_BYTES];
    slab_piece piece;
    assert_int_equal(read_extent(r, i), ERR_CORRUPT);
    snprintf(text, sizeof text, "%s", err_text());
    slab_map(r->disk, offset, EXTENT_BYTES, &piece);
    bool is_cut = piece.size_bytes < EXTENT_BYTES;
    snprintf(wanted, sizeof wanted,
             "read of unit 3, tile %u (op 0): %s: %d bytes at offset %llu of %s%s have checksum "
             "%016llx, but %016llx was written: ",
             i, i == PARAMS ? "params" : "optimizer", (int)EXTENT_BYTES,
             (unsigned long long)piece.file_offset, r->disk->files[piece.drive_idx].path,
             is_cut ? " and in the stripes that follow" : "",
             (unsigned long long)checksum_sum(target(r, i), EXTENT_BYTES, i == PARAMS ? 0 : ELEMS),
             (unsigned long long)expected_sum);
    if (strncmp(text, wanted, strlen(wanted)) != 0 || !strstr(text, "`sluice verify`"))
        fail_msg("\"%s\" does not begin with \"%s\"", text, wanted);
    assert_int_equal(read_extent(r, i), ERR_POISONED);
}

static void wrong_bytes_are_found_where_they_count(void **state)
{
    (void)state;
    state_rig r;
    rig_open(&r);
    lanes_open(&r, (struct lanes_config){0});
    for (uint32_t i = 0; i < TILES; i++)
        must_write(&r, i, 10 + i);
    place_table_commit(r.places);
    for (uint32_t i = 0; i < TILES; i++)
        must_write(&r, i, 20 + i);
    for (uint32_t i = 0; i < TILES; i++) {
        place_entry *item = entry_of(&r, i);
        assert_int_not_equal(item->newest, item->committed);
        uint64_t newest_at = item->offset[item->newest], old_at = item->offset[item->committed];
        uint64_t byte = rng_below(SEED, 3, i, 4 * ELEMS) + i % STREAMS * STRIDE;
        flip(&r, newest_at, byte);
        expect_corrupt(&r, i, newest_at, item->sum[item->newest]);
        /* Not compared, or nothing to compare with: it goes through. */
        lanes_open(&r, (struct lanes_config){.compares_not = true});
        assert_int_equal(read_extent(&r, i), 0);
        assert_false(has_content(target(&r, i), 20 + i));
        lanes_open(&r, (struct lanes_config){0});
        item->has_sum[item->newest] = 0;
        assert_int_equal(read_extent(&r, i), 0);
        item->has_sum[item->newest] = 1;
        flip(&r, newest_at, byte);
        must_read(&r, i, 20 + i);
        /* What is no part of the state, or not its newest place, is nobody's concern here. */
        flip(&r, newest_at, PADDING_AT + i);
        flip(&r, old_at, byte);
        assert_int_equal(read_extent(&r, i), 0);
        flip(&r, newest_at, PADDING_AT + i);
        flip(&r, old_at, byte);
        must_read(&r, i, 20 + i);
    }
    rig_close(&r);
}

/* One transfer of a write fails, in each way: into the other place first, then into the same again. */
static void a_failed_write_leaves_the_commit(void **state)
{
    (void)state;
    static const enum io_fault_kind kinds[] = {IO_FAULT_TORN, IO_FAULT_EIO, IO_FAULT_ENOSPC};
    state_rig r;
    rig_open(&r);
    lanes_open(&r, (struct lanes_config){0});
    uint64_t number = 1, torn = 0;
    for (uint32_t i = 0; i < TILES; i++)
        for (uint64_t at = 1; at <= TRANSFERS; at++) {
            io_faults faults = {.seed = at, .at_transfer = at, .at_kind = kinds[(i + at) % 3]};
            int expected = faults.at_kind == IO_FAULT_ENOSPC ? -ENOSPC : -EIO;
            uint64_t durable = number++;
            must_write(&r, i, durable);
            place_table_commit(r.places);
            place_entry *item = entry_of(&r, i);
            uint8_t committed = item->committed, other = 1 - committed;

            lanes_open(&r, (struct lanes_config){.faults = &faults});
            assert_int_equal(write_extent(&r, i, number++), expected);
            assert_int_equal(strncmp(err_text(), "write of unit 3, tile ", 22), 0);
            assert_int_equal(item->newest, committed);
            assert_int_equal(item->committed, committed);
            assert_true(item->has_sum[committed] && !item->has_sum[other]);
            torn += !slab_has(&r, item->offset[other], number - 1);
            assert_true(slab_has(&r, item->offset[committed], durable));
            lanes_open(&r, (struct lanes_config){0});
            must_read(&r, i, durable);

            uint64_t second = number++;
            must_write(&r, i, second);
            assert_int_equal(item->newest, other);
            must_read(&r, i, second);
            lanes_open(&r, (struct lanes_config){.faults = &faults});
            assert_int_equal(write_extent(&r, i, number++), expected);
            assert_int_equal(item->newest, other); /* in place: nothing is known of it any more */
            assert_false(item->has_sum[other]);
            assert_true(slab_has(&r, item->offset[committed], durable));
            lanes_open(&r, (struct lanes_config){0});
            must_write(&r, i, number);
            must_read(&r, i, number++);
            assert_int_equal(item->newest, other);
            assert_true(slab_has(&r, item->offset[committed], durable));
        }
    assert_true(torn >= TILES);
    rig_close(&r);
}

static uint64_t count_sums(state_rig *r)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < place_table_count(r->places); i++)
        count +=
            place_table_at(r->places, i)->has_sum[0] + place_table_at(r->places, i)->has_sum[1];
    return count;
}

/* With and without places, a table of sums, comparisons: where bytes go, what is summed and compared. */
static void places_and_sums_go_together(void **state)
{
    (void)state;
    for (unsigned which = 0; which < 8; which++) {
        struct lanes_config config = {
            .no_places = which & 1, .no_sums = which & 2, .compares_not = which & 4};
        bool verifies = !config.no_sums && !config.compares_not;
        state_rig r;
        rig_open(&r);
        lanes_open(&r, config);
        for (uint32_t i = 0; i < EXTENTS; i++)
            draw_content(source(&r, i), 100 + i);
        assert_int_equal(executor_run(r.exec, &r.all_writes, 1, NULL), 0);
        assert_int_equal(checksum_count(r.sums), !verifies ? 0 : config.no_places ? EXTENTS : 1);
        assert_int_equal(count_sums(&r), config.no_places ? 0 : TILES);
        for (uint32_t i = 0; i < EXTENTS; i++) {
            bool has_place = i < TILES && !config.no_places;
            uint64_t logical = (uint64_t)i * EXTENT_BYTES;
            uint64_t at = has_place ? entry_of(&r, i)->offset[0] : logical;
            assert_true(slab_has(&r, at, 100 + i));
            assert_true(!has_place || !slab_has(&r, logical, 100 + i));
            must_read(&r, i, 100 + i);
            flip(&r, at, 17);
            bool seen = has_place ? !config.compares_not : verifies;
            int rc = read_extent(&r, i);
            if (rc != (seen ? ERR_CORRUPT : 0))
                fail_msg("case %u, extent %u: code %d", which, i, rc);
            flip(&r, at, 17);
            lanes_open(&r, config);
            must_read(&r, i, 100 + i);
        }
        /* A sum of the table does not outlive a write that is not summed. */
        lanes_open(&r, (struct lanes_config){.compares_not = true});
        must_write(&r, PARAMS, 200);
        lanes_open(&r, (struct lanes_config){0});
        must_read(&r, PARAMS, 200);
        rig_close(&r);
    }
}

static void expect_refused(state_rig *r, const program *prog, const char *op_text, const char *why)
{
    assert_int_equal(executor_run(r->exec, prog, 1, NULL), ERR_INTERNAL);
    if (strncmp(err_text(), op_text, strlen(op_text)) != 0 || !strstr(err_text(), why))
        fail_msg("\"%s\"", err_text());
    lanes_open(r, (struct lanes_config){0});
}

/* Extents that the table lacks, and reads of what was never written, are named. */
static void what_has_no_place_is_refused(void **state)
{
    (void)state;
    state_rig r;
    rig_open(&r);
    place_table_destroy(r.places);
    r.places = make_places(TILES - 1);
    lanes_open(&r, (struct lanes_config){0});
    expect_refused(&r, &r.write[TILES - 1], "write of unit 3, tile 4 (op 0): ",
                   "has no extent of 1024 elements in 167936 bytes at 671744 of the nvme arena");
    expect_refused(&r, &r.read[TILES - 1], "read of unit 3, tile 4 (op 0): ", "has no extent");
    expect_refused(&r, &r.read[1], "read of unit 3, tile 1 (op 0): ",
                   "nothing was written yet to the extent of unit 3, tile 1");
    r.write[1].ops[0].elem_count++;
    expect_refused(&r, &r.write[1], "write of unit 3, tile 1 (op 0): ", "has no extent of 1025");
    r.write[1].ops[0].elem_count--;
    assert_int_equal(count_sums(&r) + checksum_count(r.sums), 0);
    must_write(&r, 1, 5);
    must_read(&r, 1, 5);
    must_write(&r, PARAMS, 6); /* and what needs none goes on as ever */
    flip(&r, PARAMS_AT, PADDING_AT);
    place_entry *item = entry_of(&r, 1);
    expect_corrupt(&r, PARAMS, PARAMS_AT, checksum_sum(source(&r, PARAMS), EXTENT_BYTES, 0));
    assert_int_equal(item->newest, 0);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        transport_name = argv[1];
    int skip = helper_skip(helper_backend(transport_name));
    if (skip)
        return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commits_stay_as_they_were),
        cmocka_unit_test(wrong_bytes_are_found_where_they_count),
        cmocka_unit_test(a_failed_write_leaves_the_commit),
        cmocka_unit_test(places_and_sums_go_together),
        cmocka_unit_test(what_has_no_place_is_refused),
    };
    return cmocka_run_group_tests(tests, helper_setup, helper_teardown);
}
