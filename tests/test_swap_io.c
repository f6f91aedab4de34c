/* The read and write lanes over real files, with real worker lanes beside them: random programs give
 * the values of serial execution, on io_uring, on the thread pool, and on a simulated drive that is
 * slow, short and out of order; its errors stop the run. The argument names the transport. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "swap/executor.h"
#include "swap/lane_io.h"
#include "swap_fixture.h"
#include "tiers/io.h"
#include "tiers/slab.h"
#include "tiers_helpers.h"

enum { PAGE = 4096, DEPTH = 6 };

static const char *transport_name = "pool";

struct rig {
    const program *prog;
    fixture_arenas arenas; /* host aligned for direct I/O; nvme is a copy for comparing */
    void *host_block;
    slab *drive;
    io *transport;
    lane *lanes[LANE_COUNT]; /* each worker in its own slot, update shares compute's */
    executor *exec;
};
typedef struct rig rig;

static void open_drive(rig *self)
{
    static slab_drive place;
    helper_drive(&place, "drive", 64 * MIB, 1);
    slab_config config = {.drives = &place,
                          .drive_count = 1,
                          .total_bytes = self->prog->budget_bytes[ARENA_NVME],
                          .uuid = {1, 2, 3},
                          .stripe_bytes = MIB};
    self->drive = mem_alloc(1, sizeof *self->drive, "test slab");
    assert_non_null(self->drive);
    if (slab_open(self->drive, &config) != 0)
        fail_msg("%s", err_text());
}

static void open_transport(rig *self, const io_faults *faults)
{
    io_region region = {self->arenas.base[ARENA_HOST], self->arenas.size_bytes[ARENA_HOST]};
    bool pool = strcmp(transport_name, "pool") == 0;
    io_config transport = {.target = self->drive,
                           .backend = pool ? IO_POOL : IO_URING,
                           .queue_depth = 8,
                           .block_bytes = 2 * PAGE,
                           .regions = &region,
                           .region_count = 1,
                           .request_capacity = 2 * DEPTH - 2, /* the lanes must cope with less */
                           .faults = faults};
    int rc = io_create(&transport, &self->transport);
    if (rc < 0 && !pool) {
        printf("io_uring is not to be had here: %s\n", err_text());
        slab_close(self->drive);
        (void)helper_teardown(NULL); /* a skip leaves nothing behind either */
        exit(77);
    }
    assert_int_equal(rc, 0);
}

/* The nvme arena in memory, to or from the slab, through the host arena's first bytes. */
static void move_slab(rig *self, enum io_direction direction)
{
    unsigned char *nvme = self->arenas.base[ARENA_NVME];
    unsigned char saved[PAGE], *page = self->arenas.base[ARENA_HOST];
    memcpy(saved, page, PAGE);
    for (uint64_t at = 0; at < self->arenas.size_bytes[ARENA_NVME]; at += PAGE) {
        if (direction == IO_WRITE)
            memcpy(page, nvme + at, PAGE);
        int rc = io_transfer(self->transport, direction, at, page, PAGE);
        if (rc != 0)
            fail_msg("%s", err_text());
        if (direction == IO_READ)
            memcpy(nvme + at, page, PAGE);
    }
    memcpy(page, saved, PAGE);
}

static lane *make_worker(rig *self, const char *name, uint32_t owner)
{
    lane_worker_config config = {.name = name,
                                 .run = fixture_execute,
                                 .user = &self->arenas,
                                 .owner = owner,
                                 .depth = 3,
                                 .priority_lane = LANE_COMPUTE,
                                 .request_capacity = 8};
    lane *worker;
    assert_int_equal(lane_worker_create(&config, &worker), 0);
    return worker;
}

static void rig_init(rig *self, const program *prog, uint64_t seed)
{
    memset(self, 0, sizeof *self);
    self->prog = prog;
    fixture_arenas_init(&self->arenas, prog, seed);
    unsigned char *plain = self->arenas.base[ARENA_HOST];
    uint64_t host_bytes = self->arenas.size_bytes[ARENA_HOST];
    self->host_block = mem_alloc(host_bytes + PAGE, 1, "test arena");
    assert_non_null(self->host_block);
    uintptr_t address = (uintptr_t)self->host_block;
    self->arenas.base[ARENA_HOST] = (unsigned char *)self->host_block + (PAGE - address % PAGE);
    memcpy(self->arenas.base[ARENA_HOST], plain, host_bytes);
    mem_free(plain);
}

/* The slab's first contents are written on a healthy drive, then the faulty one takes over. */
static void rig_start(rig *self, const io_faults *faults)
{
    open_drive(self);
    open_transport(self, NULL);
    move_slab(self, IO_WRITE);
    io_destroy(self->transport);
    open_transport(self, faults);
    lane_io_config config = {.transport = self->transport,
                             .host_base = self->arenas.base[ARENA_HOST],
                             .depth = DEPTH,
                             .request_capacity = DEPTH};
    assert_int_equal(lane_io_create(&config, &self->lanes[LANE_READ], &self->lanes[LANE_WRITE]), 0);
    self->lanes[LANE_H2D] = make_worker(self, "h2d", 11);
    self->lanes[LANE_D2H] = make_worker(self, "d2h", 12);
    self->lanes[LANE_COMM] = make_worker(self, "comm", 13);
    self->lanes[LANE_COMPUTE] = make_worker(self, "cores", 14);
    self->lanes[LANE_UPDATE] = self->lanes[LANE_COMPUTE];
    executor_config exec = {.programs = &self->prog, .program_count = 1};
    memcpy(exec.lanes, self->lanes, sizeof exec.lanes);
    assert_int_equal(executor_create(&exec, &self->exec), 0);
}

static void rig_fini(rig *self)
{
    executor_destroy(self->exec);
    for (int kind = LANE_COMPUTE; kind >= 0; kind--) /* write before read, as the header allows */
        self->lanes[kind]->ops->destroy(self->lanes[kind]);
    io_destroy(self->transport);
    assert_int_equal(slab_remove(self->drive), 0);
    mem_free(self->drive);
    mem_free(self->host_block);
    self->arenas.base[ARENA_HOST] = NULL;
    fixture_arenas_fini(&self->arenas);
}

static void run_random(uint64_t seed, const io_faults *faults)
{
    program prog;
    random_program(seed, 160, &prog);
    fixture_arenas serial;
    fixture_arenas_init(&serial, &prog, seed);
    fixture_execute_all(&serial, &prog);
    rig r;
    rig_init(&r, &prog, seed);
    rig_start(&r, faults);
    run_totals totals;
    mem_stats before, after;
    mem_get_stats(&before);
    if (executor_run(r.exec, &prog, 1, &totals) != 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    move_slab(&r, IO_READ);
    if (!fixture_arenas_equal(&r.arenas, &serial))
        fail_msg("seed %llu: memory or slab differs from serial execution",
                 (unsigned long long)seed);
    io_stats stats;
    io_get_stats(r.transport, &stats);
    assert_true(stats.bytes[IO_WRITE] >= totals.lanes[LANE_WRITE].bytes);
    assert_true(totals.lanes[LANE_READ].op_count > 0 && totals.lanes[LANE_WRITE].op_count > 0);
    assert_true(totals.lanes[LANE_READ].busy_ns > 0);
    rig_fini(&r);
    fixture_arenas_fini(&serial);
    program_fini(&prog);
}

static void values_over_a_real_drive(void **state)
{
    (void)state;
    enum { PROGRAMS = 12 };
    for (uint64_t seed = 100; seed < 100 + PROGRAMS; seed++)
        run_random(seed, NULL);
    printf("%s: seeds 100 to %d\n", transport_name, 100 + PROGRAMS - 1);
}

static void values_over_a_bad_drive(void **state)
{
    (void)state;
    enum { PROGRAMS = 12 };
    for (uint64_t seed = 200; seed < 200 + PROGRAMS; seed++) {
        io_faults faults = {
            .seed = seed, .short_rate = 200, .retry_rate = 100, .latency_us_max = 300};
        run_random(seed, &faults);
    }
    printf("%s: seeds 200 to %d\n", transport_name, 200 + PROGRAMS - 1);
}

static void drive_errors_stop_the_run(void **state)
{
    (void)state;
    uint64_t failed = 0;
    for (uint64_t seed = 300; seed < 308; seed++) {
        program prog;
        random_program(seed, 160, &prog);
        rig r;
        rig_init(&r, &prog, seed);
        bool full = seed % 2 == 0;
        io_faults faults = {.seed = seed,
                            .eio_rate = full ? 0 : 150,
                            .enospc_rate = full ? 300 : 0,
                            .latency_us_max = 100};
        rig_start(&r, &faults);
        int rc = executor_run(r.exec, &prog, 1, NULL);
        if (rc != 0) {
            failed++;
            assert_int_equal(rc, full ? -ENOSPC : -EIO);
            bool names_op = strncmp(err_text(), "read of unit ", 13) == 0 ||
                            strncmp(err_text(), "write of unit ", 14) == 0;
            if (!names_op || !strstr(err_text(), ".slab"))
                fail_msg("seed %llu: \"%s\"", (unsigned long long)seed, err_text());
            assert_int_equal(executor_run(r.exec, &prog, 2, NULL), ERR_POISONED);
        }
        rig_fini(&r); /* asserts in the lanes that all requests are back */
        program_fini(&prog);
    }
    assert_true(failed >= 6);
}

/* The queue itself breaks with requests of both lanes in flight: the run ends with an error, and all
 * can be taken down, in the order that the engine uses. */
static void a_broken_queue_ends_the_run(void **state)
{
    (void)state;
    for (uint64_t seed = 500; seed < 506; seed++) {
        program prog;
        random_program(seed, 160, &prog);
        rig r;
        rig_init(&r, &prog, seed);
        io_faults faults = {
            .seed = seed, .break_after = 1 + 4 * (seed - 500), .latency_us_max = 300};
        rig_start(&r, &faults);
        int fds = helper_count_fds();
        assert_int_equal(executor_run(r.exec, &prog, 1, NULL), -EIO);
        if (!strstr(err_text(), "queue of reads and writes"))
            fail_msg("seed %llu: \"%s\"", (unsigned long long)seed, err_text());
        assert_int_equal(executor_run(r.exec, &prog, 2, NULL), ERR_POISONED);
        assert_int_equal(helper_count_fds(), fds);
        rig_fini(&r);
        program_fini(&prog);
    }
}

/* One lane's poll may collect the other's completions: its descriptor must then wake the executor. */
static void completions_wake_their_own_lane(void **state)
{
    (void)state;
    program prog;
    random_program(400, 160, &prog);
    rig r;
    rig_init(&r, &prog, 400);
    rig_start(&r, NULL);
    uint32_t first[2] = {PROGRAM_NONE, PROGRAM_NONE};
    for (uint32_t i = 0; i < prog.op_count; i++)
        if (prog.ops[i].lane <= LANE_WRITE && first[prog.ops[i].lane] == PROGRAM_NONE)
            first[prog.ops[i].lane] = i;
    for (int kind = LANE_READ; kind <= LANE_WRITE; kind++) {
        lane *mine = r.lanes[kind], *other = r.lanes[LANE_WRITE - kind];
        lane_request request = {
            .prog = &prog, .item = &prog.ops[first[kind]], .op_idx = first[kind]};
        lane_request *done[4];
        assert_int_equal(mine->ops->submit(mine, &request), 0);
        while (request.end_ns == 0) /* only the other lane polls, and collects what is ours */
            assert_int_equal(other->ops->poll(other, done, 4), 0);
        /* One more, which finds nothing: the transport's own descriptor is quiet from here on. */
        assert_int_equal(other->ops->poll(other, done, 4), 0);
        struct pollfd fd = {.fd = mine->ops->event_fd(mine), .events = POLLIN};
        assert_int_equal(poll(&fd, 1, 20000), 1);
        assert_int_equal(mine->ops->poll(mine, done, 4), 1);
        assert_ptr_equal(done[0], &request);
        assert_int_equal(request.result, 0);
        assert_int_equal(mine->ops->poll(mine, done, 4), 0);
        assert_int_equal(other->ops->poll(other, done, 4), 0);
        assert_int_equal(poll(&fd, 1, 0), 0); /* and it is quiet again */
    }
    lane_request wrong = {.prog = &prog, .item = &prog.ops[first[LANE_READ]]};
    assert_int_equal(r.lanes[LANE_WRITE]->ops->submit(r.lanes[LANE_WRITE], &wrong), ERR_INTERNAL);
    rig_fini(&r);
    program_fini(&prog);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        transport_name = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_over_a_real_drive),
        cmocka_unit_test(values_over_a_bad_drive),
        cmocka_unit_test(drive_errors_stop_the_run),
        cmocka_unit_test(a_broken_queue_ends_the_run),
        cmocka_unit_test(completions_wake_their_own_lane),
    };
    return cmocka_run_group_tests(tests, helper_setup, helper_teardown);
}
