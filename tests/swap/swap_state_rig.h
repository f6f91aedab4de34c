/* An executor over a slab of two drives for optimizer state with two places: a transport by name,
 * extents, programs that write or read one of them, and a look at the slab past the lanes. Include
 * it once. */
#ifndef SLUICE_TESTS_SWAP_STATE_RIG_H
#define SLUICE_TESTS_SWAP_STATE_RIG_H

#include "base/mem.h"
#include "base/rng.h"
#include "base/tile.h"
#include "swap/executor.h"
#include "swap/lane_io.h"
#include "tests/swap/swap_fixture.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"
#include "tiers/io_faults.h"

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

static const char *transport_name = "pool"; /* from the test's argument */

/* Programs of one op each, on homes: write[i] from source(i), read[i] to target(i). all_writes has
 * every write[i]. Content of an extent is drawn from a number. */
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
    lane *io_lane;
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
    builder_home(&build, TIER_NVME, 0, EXTENTS * EXTENT_BYTES);
    builder_home(&build, TIER_HOST, 0, HOST_BYTES);
    for (uint32_t i = first; i < first + count; i++)
        add_transfer(&build, kind, i);
    builder_finish(&build, out);
    assert_ok(program_check(out));
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
    assert_ok(slab_open(self->disk, &config));
    if (self->backend == IO_SIM)
        assert_int_equal(sim_store_create(self->disk, &self->bytes), 0);
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
                        .test = &(io_test){.faults = faults},
                        .store = self->bytes};
    io *out;
    assert_ok(io_create(&config, &out));
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
                                   .streams = STREAMS,
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
    bool no_places, no_sums, trusts_reads;
};

static void lanes_close(state_rig *self)
{
    executor_destroy(self->exec);
    if (self->io_lane)
        self->io_lane->ops->destroy(self->io_lane);
    io_destroy(self->transport);
    self->exec = NULL;
    self->io_lane = NULL;
    self->transport = NULL;
}

/* Replaces the present ones. */
static void lanes_open(state_rig *self, struct lanes_config wanted)
{
    lanes_close(self);
    self->transport = open_io(self, wanted.faults);
    lane_io_config config = {.transport = self->transport,
                             .host_base = self->host,
                             .depth = 4,
                             .sum_thread_count = 3,
                             .verify = wanted.no_sums ? NULL : self->sums,
                             .places = wanted.no_places ? NULL : self->places,
                             .trusts_reads = wanted.trusts_reads};
    assert_int_equal(lane_io_create(&config, &self->io_lane), 0);
    executor_config exec = {.lanes = {self->io_lane, self->io_lane},
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
    assert_ok(io_transfer(self->raw, direction, offset, data, EXTENT_BYTES));
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
    assert_ok(write_extent(self, i, number));
}

static void must_read(state_rig *self, uint32_t i, uint64_t number)
{
    assert_ok(read_extent(self, i));
    if (!has_content(target(self, i), number))
        fail_msg("tile %u: the read did not bring content %llu", i, (unsigned long long)number);
}

static place_entry *entry_of(state_rig *self, uint32_t i)
{
    return place_table_find(self->places, (uint64_t)i * EXTENT_BYTES, EXTENT_BYTES);
}

#endif
