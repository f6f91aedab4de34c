/* An executor over a slab for one program: the nvme lane on a transport by name ("uring", "pool",
 * "sim"), real worker lanes beside them, the fixture's arithmetic in between. */
#ifndef SLUICE_TESTS_SWAP_IO_RIG_H
#define SLUICE_TESTS_SWAP_IO_RIG_H

#include "base/mem.h"
#include "base/tile.h"
#include "swap/checksum.h"
#include "swap/executor.h"
#include "swap/lane_io.h"
#include "tests/swap/lane_pace.h"
#include "tests/swap/swap_fixture.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"
#include "tiers/io.h"
#include "tiers/io_faults.h"
#include "tiers/sim.h"
#include "tiers/slab.h"

enum {
    IO_RIG_PAGE = 4096,
    IO_RIG_DEPTH = 6,
    IO_RIG_BLOCK_BYTES = 2 * IO_RIG_PAGE, /* largest transfer */
    IO_RIG_TILES = 6,                     /* of io_rig_program */
    IO_RIG_TILE_BYTES = 2 * IO_RIG_BLOCK_BYTES,
};

struct io_rig {
    /* Set before io_rig_start: */
    const char *drive_name; /* in the test's directory; NULL: "drive" */
    enum io_backend backend;
    bool verify;
    bool is_paced; /* by lanes that take 0.2 ms for any op */
    uint64_t stuck_ns;
    bool keeps_files; /* the drive is broken: io_rig_fini leaves its files */

    const program *prog;
    fixture_arenas arenas; /* host aligned for direct I/O; nvme is a copy for comparing */
    void *host_block;
    slab *drive;
    sim_store *bytes; /* of the simulated drive */
    io *transport;
    checksum_table *sums;
    lane_pace *pace;
    lane *lanes[LANE_COUNT]; /* update shares compute's, write shares read's */
    executor *exec;
};
typedef struct io_rig io_rig;

static void io_rig_open_drive(io_rig *self)
{
    static slab_drive place;
    helper_drive(&place, self->drive_name ? self->drive_name : "drive", 64 * MIB, 1);
    slab_config config = {.drives = &place,
                          .drive_count = 1,
                          .total_bytes = self->prog->budget_bytes[TIER_NVME],
                          .uuid = {1, 2, 3},
                          .stripe_bytes = MIB};
    self->drive = mem_alloc(1, sizeof *self->drive, "test slab");
    assert_non_null(self->drive);
    assert_ok(slab_open(self->drive, &config));
    if (self->backend == IO_SIM)
        assert_int_equal(sim_store_create(self->drive, &self->bytes), 0);
}

static void io_rig_open_transport(io_rig *self, const io_faults *faults)
{
    io_region region = {self->arenas.base[TIER_HOST], self->arenas.size_bytes[TIER_HOST]};
    io_config transport = {.target = self->drive,
                           .backend = self->backend,
                           .queue_depth = 8,
                           .block_bytes = IO_RIG_BLOCK_BYTES,
                           .regions = &region,
                           .region_count = 1,
                           .request_capacity =
                               2 * IO_RIG_DEPTH - 2, /* the lane must cope with less */
                           .stuck_ns = self->stuck_ns,
                           .test = &(io_test){.faults = faults},
                           .store = self->bytes};
    assert_ok(io_create(&transport, &self->transport));
}

/* The nvme arena in memory, to or from the slab, through the host arena's first bytes. */
static void io_rig_move_slab(io_rig *self, enum io_direction direction)
{
    unsigned char *nvme = self->arenas.base[TIER_NVME];
    unsigned char saved[IO_RIG_PAGE], *page = self->arenas.base[TIER_HOST];
    memcpy(saved, page, IO_RIG_PAGE);
    for (uint64_t at = 0; at < self->arenas.size_bytes[TIER_NVME]; at += IO_RIG_PAGE) {
        if (direction == IO_WRITE)
            memcpy(page, nvme + at, IO_RIG_PAGE);
        assert_ok(io_transfer(self->transport, direction, at, page, IO_RIG_PAGE));
        if (direction == IO_READ)
            memcpy(nvme + at, page, IO_RIG_PAGE);
    }
    memcpy(page, saved, IO_RIG_PAGE);
}

static lane *io_rig_worker(io_rig *self, const char *name, uint32_t owner)
{
    lane_worker_config config = {.name = name,
                                 .run = fixture_execute,
                                 .user = &self->arenas,
                                 .owner = owner,
                                 .depth = 3,
                                 .priority_lane = LANE_COMPUTE};
    lane *worker;
    assert_int_equal(lane_worker_create(&config, &worker), 0);
    return worker;
}

static void io_rig_pace(io_rig *self)
{
    lane_pace_config config = {
        .rates = {.op_seconds = 2e-4}, .programs = &self->prog, .program_count = 1};
    assert_int_equal(lane_pace_create(&config, &self->pace), 0);
    for (int kind = LANE_READ; kind <= LANE_COMPUTE; kind++)
        if (kind != LANE_WRITE)
            assert_int_equal(lane_pace_wrap(self->pace, self->lanes[kind], &self->lanes[kind]), 0);
}

__attribute__((unused)) static void io_rig_init(io_rig *self, const char *transport_name,
                                                const program *prog, uint64_t seed)
{
    memset(self, 0, sizeof *self);
    self->backend = helper_backend(transport_name);
    self->prog = prog;
    fixture_arenas_init(&self->arenas, prog, seed);
    unsigned char *plain = self->arenas.base[TIER_HOST];
    uint64_t host_bytes = self->arenas.size_bytes[TIER_HOST];
    self->host_block = mem_alloc(host_bytes + IO_RIG_PAGE, 1, "test arena");
    assert_non_null(self->host_block);
    uintptr_t address = (uintptr_t)self->host_block;
    self->arenas.base[TIER_HOST] =
        (unsigned char *)self->host_block + (IO_RIG_PAGE - address % IO_RIG_PAGE);
    memcpy(self->arenas.base[TIER_HOST], plain, host_bytes);
    mem_free(plain);
}

/* The slab's first contents are written on a healthy drive, then the faulty one takes over. */
__attribute__((unused)) static void io_rig_start(io_rig *self, const io_faults *faults)
{
    io_rig_open_drive(self);
    io_rig_open_transport(self, NULL);
    io_rig_move_slab(self, IO_WRITE);
    io_destroy(self->transport);
    io_rig_open_transport(self, faults);
    if (self->verify)
        assert_int_equal(checksum_create(&self->prog, 1, &self->sums), 0);
    lane_io_config config = {.transport = self->transport,
                             .host_base = self->arenas.base[TIER_HOST],
                             .depth = IO_RIG_DEPTH,
                             .sum_thread_count = 3,
                             .verify = self->sums};
    assert_int_equal(lane_io_create(&config, &self->lanes[LANE_READ]), 0);
    self->lanes[LANE_H2D] = io_rig_worker(self, "h2d", 11);
    self->lanes[LANE_D2H] = io_rig_worker(self, "d2h", 12);
    self->lanes[LANE_COMM] = io_rig_worker(self, "comm", 13);
    self->lanes[LANE_COMPUTE] = io_rig_worker(self, "cores", 14);
    if (self->is_paced)
        io_rig_pace(self);
    self->lanes[LANE_WRITE] = self->lanes[LANE_READ];
    self->lanes[LANE_UPDATE] = self->lanes[LANE_COMPUTE];
    executor_config exec = {.programs = &self->prog, .program_count = 1};
    memcpy(exec.lanes, self->lanes, sizeof exec.lanes);
    assert_int_equal(executor_create(&exec, &self->exec), 0);
}

/* As of a run before: the sums of what io_rig_start wrote, for all that the program writes
 * later. */
__attribute__((unused)) static void io_rig_preload_sums(io_rig *self)
{
    const program *prog = self->prog;
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (item->kind != OP_WRITE)
            continue;
        const operand *target = op_operand(item, ROLE_TARGET);
        checksum_extent extent = {.offset = prog->buffers[target->buffer_idx].offset_bytes +
                                            target->offset_bytes,
                                  .size_bytes = target->size_bytes};
        extent.sum =
            checksum_sum(self->arenas.base[TIER_NVME] + extent.offset, extent.size_bytes, 0, 0);
        assert_int_equal(checksum_put(self->sums, &extent), 0);
    }
}

__attribute__((unused)) static void io_rig_fini(io_rig *self)
{
    executor_destroy(self->exec);
    for (int kind = LANE_READ; kind <= LANE_COMPUTE; kind++)
        if (kind != LANE_WRITE)
            self->lanes[kind]->ops->destroy(self->lanes[kind]);
    lane_pace_destroy(self->pace);
    io_destroy(self->transport);
    checksum_destroy(self->sums);
    sim_store_destroy(self->bytes);
    if (self->keeps_files)
        slab_close(self->drive);
    else
        assert_int_equal(slab_remove(self->drive), 0);
    mem_free(self->drive);
    mem_free(self->host_block);
    self->arenas.base[TIER_HOST] = NULL;
    fixture_arenas_fini(&self->arenas);
}

/* Is the text "read of unit 3, tile 2 (op 7): ... at offset 4096 of PATH ..."? */
__attribute__((unused)) static bool io_rig_names_everything(const io_rig *self, const char *text)
{
    bool names_op = strncmp(text, "read of unit 3", 14) == 0 ||
                    strncmp(text, "write of unit 3, tile ", 22) == 0;
    const char *offset = strstr(text, " at offset ");
    return names_op && offset && strstr(offset, self->drive->files[0].path);
}

static void io_rig_add_read(builder *build, uint32_t tile, uint32_t nvme, uint64_t at,
                            uint32_t host, uint64_t size_bytes)
{
    uint32_t idx = builder_op(build, OP_READ);
    build->prog.ops[idx].unit = 3;
    build->prog.ops[idx].tile = tile;
    build->prog.ops[idx].state_kind = STATE_PARAMS;
    builder_use(build, ROLE_SOURCE, ACCESS_READ, nvme, at, size_bytes);
    builder_use(build, ROLE_TARGET, ACCESS_WRITE, host, 0, size_bytes);
}

/* A program over IO_RIG_TILES tiles of 2 transfers each:
 *
 *   read tile i ─► update ─► write tile i ─► read it again (every second one)
 *                                        └─► read all tiles at once */
__attribute__((unused)) static void io_rig_program(program *out)
{
    builder build;
    builder_init(&build, PROGRAM_STEADY, 0, (2 * IO_RIG_TILES + 3) * TILE_PERIOD_BYTES,
                 IO_RIG_TILES * IO_RIG_TILE_BYTES);
    uint32_t nvme = builder_home(&build, TIER_NVME, 0, IO_RIG_TILES * IO_RIG_TILE_BYTES);
    uint32_t grads = builder_home(&build, TIER_HOST, TILE_RESIDUE_GRADS, IO_RIG_PAGE);
    uint32_t all = builder_home(&build, TIER_HOST, (2 * IO_RIG_TILES + 1) * TILE_PERIOD_BYTES,
                                IO_RIG_TILES * IO_RIG_TILE_BYTES);
    uint32_t again[IO_RIG_TILES], last_writes[IO_RIG_TILES];
    for (uint32_t i = 0; i < IO_RIG_TILES; i++)
        again[i] = builder_home(&build, TIER_HOST, (IO_RIG_TILES + 1 + i) * TILE_PERIOD_BYTES,
                                IO_RIG_TILE_BYTES);
    for (uint32_t i = 0; i < IO_RIG_TILES; i++) {
        uint32_t tile =
            builder_transient(&build, TIER_HOST, (1 + i) * TILE_PERIOD_BYTES, IO_RIG_TILE_BYTES);
        uint64_t at = (uint64_t)i * IO_RIG_TILE_BYTES;
        io_rig_add_read(&build, i, nvme, at, tile, IO_RIG_TILE_BYTES);
        uint32_t read = (uint32_t)build.prog.op_count - 1;
        uint32_t update = builder_op(&build, OP_UPDATE);
        builder_use(&build, ROLE_STATE, ACCESS_UPDATE, tile, 0, IO_RIG_TILE_BYTES);
        builder_use(&build, ROLE_SOURCE, ACCESS_READ, grads, 0, IO_RIG_PAGE);
        builder_dep(&build, read);
        last_writes[i] = builder_op(&build, OP_WRITE);
        op *item = &build.prog.ops[last_writes[i]];
        item->unit = 3;
        item->tile = i;
        item->state_kind = STATE_PARAMS;
        builder_use(&build, ROLE_SOURCE, ACCESS_READ, tile, 0, IO_RIG_TILE_BYTES);
        builder_use(&build, ROLE_TARGET, ACCESS_WRITE, nvme, at, IO_RIG_TILE_BYTES);
        builder_dep(&build, update);
        if (i % 2)
            continue;
        io_rig_add_read(&build, i, nvme, at, again[i], IO_RIG_TILE_BYTES);
        builder_dep(&build, last_writes[i]);
    }
    io_rig_add_read(&build, PROGRAM_NONE, nvme, 0, all, IO_RIG_TILES * IO_RIG_TILE_BYTES);
    for (uint32_t i = 0; i < IO_RIG_TILES; i++)
        builder_dep(&build, last_writes[i]);
    builder_finish(&build, out);
    assert_ok(program_check(out));
}

#endif
