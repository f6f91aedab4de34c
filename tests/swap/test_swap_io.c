/* The lane of reads and writes over real files, with real worker lanes beside them: random programs
 * give the values of serial execution, on io_uring, on the thread pool and on the simulated drive,
 * also where transfers are slow, short and out of order; errors stop the run. Some runs are paced.
 * The argument names the transport. */
#include <errno.h>
#include <poll.h>

#include "base/mem.h"
#include "tests/swap/swap_io_rig.h"
#include "tests/unit.h"

static const char *transport_name = "pool";

static void run_random(uint64_t seed, const io_faults *faults)
{
    program prog;
    random_program(seed, 160, &prog);
    fixture_arenas serial;
    fixture_arenas_init(&serial, &prog, seed);
    fixture_execute_all(&serial, &prog);
    io_rig r;
    io_rig_init(&r, transport_name, &prog, seed);
    r.verify = true;
    r.is_paced = seed % 4 == 3;
    io_rig_start(&r, faults);
    run_totals totals;
    mem_stats before, after;
    mem_get_stats(&before);
    if (executor_run(r.exec, &prog, 1, &totals) != 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    io_rig_move_slab(&r, IO_READ);
    if (!fixture_arenas_equal(&r.arenas, &serial))
        fail_msg("seed %llu: memory or slab differs from serial execution",
                 (unsigned long long)seed);
    io_stats stats;
    io_get_stats(r.transport, &stats);
    assert_true(stats.bytes[IO_WRITE] >= totals.lanes[LANE_WRITE].bytes);
    assert_true(totals.lanes[LANE_READ].op_count > 0 && totals.lanes[LANE_WRITE].op_count > 0);
    assert_true(totals.lanes[LANE_READ].busy_ns > 0);
    io_rig_fini(&r);
    fixture_arenas_fini(&serial);
    program_fini(&prog);
}

static void values_over_a_real_drive(void **state)
{
    enum { PROGRAMS = 12 };
    for (uint64_t seed = 100; seed < 100 + PROGRAMS; seed++)
        run_random(seed, NULL);
    printf("%s: seeds 100 to %d\n", transport_name, 100 + PROGRAMS - 1);
}

static void values_over_a_bad_drive(void **state)
{
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
    uint64_t failed = 0;
    for (uint64_t seed = 300; seed < 308; seed++) {
        program prog;
        random_program(seed, 160, &prog);
        io_rig r;
        io_rig_init(&r, transport_name, &prog, seed);
        bool full = seed % 2 == 0;
        io_faults faults = {.seed = seed,
                            .eio_rate = full ? 0 : 150,
                            .enospc_rate = full ? 300 : 0,
                            .latency_us_max = 100};
        r.verify = seed % 2 == 1;
        r.is_paced = seed % 3 == 0;
        io_rig_start(&r, &faults);
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
        io_rig_fini(&r); /* asserts in the lanes that all requests are back */
        program_fini(&prog);
    }
    assert_true(failed >= 6);
}

/* The queue itself breaks with reads and writes in flight: the run ends with an error, and all
 * can be taken down, in the order that the engine uses. */
static void a_broken_queue_ends_the_run(void **state)
{
    for (uint64_t seed = 500; seed < 506; seed++) {
        program prog;
        random_program(seed, 160, &prog);
        io_rig r;
        io_rig_init(&r, transport_name, &prog, seed);
        io_faults faults = {
            .seed = seed, .break_after = 1 + 4 * (seed - 500), .latency_us_max = 300};
        r.verify = seed % 2 == 1;
        r.is_paced = seed % 3 == 0;
        io_rig_start(&r, &faults);
        int fds = helper_count_fds();
        assert_int_equal(executor_run(r.exec, &prog, 1, NULL), -EIO);
        if (!strstr(err_text(), "queue of reads and writes"))
            fail_msg("seed %llu: \"%s\"", (unsigned long long)seed, err_text());
        assert_int_equal(executor_run(r.exec, &prog, 2, NULL), ERR_POISONED);
        assert_int_equal(helper_count_fds(), fds);
        io_rig_fini(&r);
        program_fini(&prog);
    }
}

/* The descriptor is readable while poll has more than it was asked for, and quiet afterwards. With
 * and without the thread that sums between the transport and the lane. */
static void wake_for_the_rest(enum op_kind kind, bool verify)
{
    program prog;
    random_program(400, 160, &prog);
    io_rig r;
    io_rig_init(&r, transport_name, &prog, 400);
    r.verify = verify;
    io_rig_start(&r, NULL);
    lane *one = r.lanes[LANE_READ];
    lane_request requests[4], *done[4];
    uint32_t count = 0;
    for (uint32_t i = 0; count < 4; i++)
        if (prog.ops[i].kind == kind) {
            requests[count] = (lane_request){.prog = &prog, .item = &prog.ops[i], .op_idx = i};
            assert_int_equal(one->ops->submit(one, &requests[count]), 0);
            count++;
        }
    struct pollfd fd = {.fd = one->ops->event_fd(one), .events = POLLIN};
    for (uint32_t taken = 0; taken < count;) {
        assert_int_equal(poll(&fd, 1, 20000), 1);
        int more = one->ops->poll(one, done, 1);
        assert_in_range(more, 0, 1);
        if (more == 1)
            assert_int_equal(done[0]->result, 0);
        taken += (uint32_t)more;
    }
    assert_int_equal(one->ops->poll(one, done, 4), 0);
    assert_int_equal(poll(&fd, 1, 0), 0);
    uint32_t other = 0;
    while (prog.ops[other].lane <= LANE_WRITE)
        other++;
    lane_request wrong = {.prog = &prog, .item = &prog.ops[other]};
    assert_int_equal(one->ops->submit(one, &wrong), ERR_INTERNAL);
    io_rig_fini(&r);
    program_fini(&prog);
}

static void what_is_left_wakes_again(void **state)
{
    for (int i = 0; i < 4; i++)
        wake_for_the_rest(i % 2 ? OP_WRITE : OP_READ, i >= 2);
}

/* The first op of the lane that takes two transfers or more. */
static uint32_t find_long(const program *prog, int kind)
{
    for (uint32_t i = 0; i < prog->op_count; i++)
        if (prog->ops[i].lane == kind && prog->ops[i].operands[0].size_bytes > IO_RIG_BLOCK_BYTES)
            return i;
    fail_msg("no op of lane %d is long", kind);
    return 0;
}

/* Submits one op on each lane, the second behind the first, with a failure at the n-th transfer
 * from here: which of the two it hits tells the order of transfers. */
static void fail_nth(int first_kind, bool verify, uint64_t n, int result[2])
{
    program prog;
    random_program(400, 160, &prog);
    uint64_t before = 0;
    for (int trial = 0; trial < 2; trial++) { /* the first counts the transfers of creation */
        io_rig r;
        io_rig_init(&r, transport_name, &prog, 400);
        r.verify = verify;
        io_faults faults = {.seed = 1, .at_transfer = before + n, .at_kind = IO_FAULT_EIO};
        io_rig_start(&r, trial == 0 ? NULL : &faults);
        io_stats stats;
        io_get_stats(r.transport, &stats);
        before = stats.transfers[IO_READ] + stats.transfers[IO_WRITE];
        uint32_t ops[2] = {find_long(&prog, first_kind), find_long(&prog, LANE_WRITE - first_kind)};
        lane_request requests[2], *done[2];
        for (int i = 0; i < 2; i++) {
            requests[i] = (lane_request){.prog = &prog,
                                         .item = &prog.ops[ops[i]],
                                         .op_idx = ops[i],
                                         .behind = i == 1 ? &requests[0] : NULL};
            lane *to = r.lanes[prog.ops[ops[i]].lane];
            assert_true(to->keeps_behind);
            assert_int_equal(to->ops->submit(to, &requests[i]), 0);
        }
        for (int count = 0, kind = 0; count < 2; kind = !kind) {
            struct pollfd fd = {.fd = r.lanes[kind]->ops->event_fd(r.lanes[kind]),
                                .events = POLLIN};
            (void)poll(&fd, 1, 1);
            int more = r.lanes[kind]->ops->poll(r.lanes[kind], done, 2);
            assert_true(more >= 0);
            count += more;
        }
        for (int i = 0; i < 2; i++)
            result[i] = requests[i].result;
        io_rig_fini(&r);
    }
    program_fini(&prog);
}

/* An op with op.behind gives way to all transfers of the other op, also while that one is still
 * being summed; a failure of the other op lets it go. */
static void lanes_keep_behind(void **state)
{
    for (int i = 0; i < 4; i++) {
        int result[2];
        fail_nth(i % 2 ? LANE_WRITE : LANE_READ, i >= 2, i % 2 ? 1 : 2, result);
        assert_int_equal(result[0], -EIO);
        assert_int_equal(result[1], 0);
    }
}

static int refuse(void *user)
{
    ++*(int *)user;
    return err_set(-EPERM, "cores cannot be bound");
}

/* The thread that sums runs its caller's start first; what that says is the result of creation. */
static void a_thread_that_cannot_start(void **state)
{
    program prog;
    random_program(600, 160, &prog);
    io_rig r;
    io_rig_init(&r, transport_name, &prog, 600);
    r.verify = true;
    io_rig_start(&r, NULL);
    int calls = 0, fds = helper_count_fds();
    mem_stats before, after;
    mem_get_stats(&before);
    lane_io_config config = {.transport = r.transport,
                             .host_base = r.arenas.base[TIER_HOST],
                             .depth = 1,
                             .verify = r.sums,
                             .start_thread = refuse,
                             .user = &calls};
    lane *made;
    assert_int_equal(lane_io_create(&config, &made), -EPERM);
    assert_null(made);
    assert_string_equal(err_text(), "cores cannot be bound");
    assert_int_equal(calls, 1);
    assert_int_equal(helper_count_fds(), fds);
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
    io_rig_fini(&r);
    program_fini(&prog);
}

static void threads_follow_the_drives(void **state)
{
    const double second = 1 / 20e9;
    assert_int_equal(lane_io_sum_threads(6e9, second, 2), 1);
    assert_int_equal(lane_io_sum_threads(6e9, second, 64), 1);
    assert_int_equal(lane_io_sum_threads(50e9, second, 64), 4); /* eight drives */
    assert_int_equal(lane_io_sum_threads(50e9, second, 8), 2);  /* the rest computes */
    assert_int_equal(lane_io_sum_threads(1e15, second, 4096), LANE_IO_SUM_THREADS_MAX);
    assert_int_equal(lane_io_sum_threads(0, second, 8), 1); /* an unknown rate */
    assert_int_equal(lane_io_sum_threads(6e9, 0, 8), 1);
    assert_int_equal(lane_io_sum_threads(0, 0, 0), 1);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        transport_name = argv[1];
    int skip = helper_skip(helper_backend(transport_name));
    if (skip)
        return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_over_a_real_drive),   cmocka_unit_test(values_over_a_bad_drive),
        cmocka_unit_test(drive_errors_stop_the_run),  cmocka_unit_test(a_broken_queue_ends_the_run),
        cmocka_unit_test(what_is_left_wakes_again),   cmocka_unit_test(lanes_keep_behind),
        cmocka_unit_test(a_thread_that_cannot_start), cmocka_unit_test(threads_follow_the_drives),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
