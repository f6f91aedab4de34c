/* Every transfer of a short program fails in turn with each fault: the run gives exactly the right
 * bytes, or an error that names op, file and offset; never wrong bytes. The argument names the
 * transport. The program is that of swap_io_rig.h; the first sums of its tiles are put in from
 * outside. */
#include <errno.h>
#include <unistd.h>

#include "tests/swap/swap_io_rig.h"
#include "tests/unit.h"

enum { SEED = 77, SWEEP_STUCK_US = 2000 };

static const char *transport_name = "pool";

static void start(io_rig *r, const program *prog, const io_faults *faults, bool verify)
{
    io_rig_init(r, transport_name, prog, SEED);
    r->verify = verify;
    io_rig_start(r, faults);
    if (verify)
        io_rig_preload_sums(r);
}

/* The bytes in memory and on the drive are those of serial execution. The drive is read past the
 * faults: on a transport without any. */
static bool bytes_are_right(io_rig *r, const fixture_arenas *serial)
{
    io *faulty = r->transport;
    io_rig_open_transport(r, NULL);
    io_rig_move_slab(r, IO_READ);
    io_destroy(r->transport);
    r->transport = faulty;
    return fixture_arenas_equal(&r->arenas, serial);
}

/* How many transfers a healthy run makes. */
static uint64_t count_transfers(const program *prog, const fixture_arenas *serial)
{
    io_rig r;
    start(&r, prog, NULL, true);
    assert_ok(executor_run(r.exec, prog, 1, NULL));
    assert_true(bytes_are_right(&r, serial));
    assert_int_equal(checksum_count(r.sums), IO_RIG_TILES);
    io_stats stats;
    io_get_stats(r.transport, &stats);
    io_rig_fini(&r);
    return stats.transfers[IO_READ] + stats.transfers[IO_WRITE];
}

static void sweep_one(const program *prog, const fixture_arenas *serial, enum io_fault_kind kind,
                      uint64_t at, uint64_t *failed)
{
    const io_faults faults = {
        .seed = at, .at_transfer = at, .at_kind = kind, .stuck_us = SWEEP_STUCK_US};
    io_rig r;
    start(&r, prog, &faults, true);
    int rc = executor_run(r.exec, prog, 1, NULL);
    const char *kind_name = io_fault_kind_name(kind);
    char text[ERR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", rc < 0 ? err_text() : "");
    int expected = kind == IO_FAULT_EIO || kind == IO_FAULT_TORN ? -EIO
                   : kind == IO_FAULT_ENOSPC                     ? -ENOSPC
                   : kind == IO_FAULT_FLIP                       ? ERR_CORRUPT
                                                                 : 0;
    if (rc != 0 && rc != expected)
        fail_msg("%s at %d: code %d: %s", kind_name, (int)at, rc, text);
    if (rc == 0 && !bytes_are_right(&r, serial))
        fail_msg("%s at %d: wrong bytes and no error", kind_name, (int)at);
    if (rc != 0) {
        ++*failed;
        if (!io_rig_names_everything(&r, text))
            fail_msg("%s at %d: '%s'", kind_name, (int)at, text);
        if (rc == ERR_CORRUPT && !strstr(text, ": params: "))
            fail_msg("%s at %d: '%s'", kind_name, (int)at, text);
        assert_int_equal(executor_run(r.exec, prog, 2, NULL), ERR_POISONED);
    }
    io_rig_fini(&r); /* asserts in the lanes that all requests are back; io_destroy returns */
}

static void every_transfer_fails_in_turn(void **state)
{
    program prog;
    io_rig_program(&prog);
    fixture_arenas serial;
    fixture_arenas_init(&serial, &prog, SEED);
    fixture_execute_all(&serial, &prog);
    uint64_t count = count_transfers(&prog, &serial);
    assert_in_range(count, 20, 60);
    /* A fault that cannot happen to a transfer of its direction leaves the run right. */
    uint64_t reads = 2 * IO_RIG_TILES + 2 * (IO_RIG_TILES / 2) + 2 * IO_RIG_TILES,
             writes = 2 * IO_RIG_TILES;
    assert_int_equal(count, reads + writes);
    /* Which transfer is the n-th depends on the worker's timing, so kinds of one direction are
     * counted in bounds. */
    const uint64_t least[IO_FAULT_KIND_COUNT] = {[IO_FAULT_EIO] = count,
                                                 [IO_FAULT_TORN] = writes / 2,
                                                 [IO_FAULT_ENOSPC] = writes / 2,
                                                 [IO_FAULT_FLIP] = reads / 2};
    const uint64_t most[IO_FAULT_KIND_COUNT] = {[IO_FAULT_EIO] = count,
                                                [IO_FAULT_TORN] = 2 * writes,
                                                [IO_FAULT_ENOSPC] = 2 * writes,
                                                [IO_FAULT_FLIP] = count};
    /* The real drives go through a part of it: files are made and deleted for each run. */
    uint64_t step = strcmp(transport_name, "sim") == 0 ? 1 : 7;
    for (int kind = IO_FAULT_SHORT; kind < IO_FAULT_KIND_COUNT; kind++) {
        uint64_t failed = 0;
        for (uint64_t at = 1; at <= count; at += step)
            sweep_one(&prog, &serial, (enum io_fault_kind)kind, at, &failed);
        print_message("%s: %d of %d runs ended with an error\n",
                      io_fault_kind_name((enum io_fault_kind)kind), (int)failed,
                      (int)((count + step - 1) / step));
        if (step == 1)
            assert_in_range(failed, least[kind], most[kind]);
    }
    fixture_arenas_fini(&serial);
    program_fini(&prog);
}

/* The canary: without sums a flipped bit goes through, so it is they that catch it above. */
static void without_sums_a_flip_goes_through(void **state)
{
    program prog;
    io_rig_program(&prog);
    fixture_arenas serial;
    fixture_arenas_init(&serial, &prog, SEED);
    fixture_execute_all(&serial, &prog);
    const io_faults faults = {.at_transfer = 1, .at_kind = IO_FAULT_FLIP};
    io_rig r;
    start(&r, &prog, &faults, false);
    assert_int_equal(executor_run(r.exec, &prog, 1, NULL), 0);
    assert_false(bytes_are_right(&r, &serial));
    io_rig_fini(&r);
    fixture_arenas_fini(&serial);
    program_fini(&prog);
}

/* A transfer that does not come back is named with its op while the executor sleeps, and waited
 * for. */
static void a_stuck_transfer_is_named_by_its_op(void **state)
{
    program prog;
    io_rig_program(&prog);
    char log_path[512], text[8192];
    snprintf(log_path, sizeof log_path, "%s/log", directory);
    FILE *log_file = fopen(log_path, "w+e");
    assert_non_null(log_file);
    int kept = dup(STDERR_FILENO);
    const io_faults faults = {.at_transfer = 2, .at_kind = IO_FAULT_STUCK, .stuck_us = 400000};
    io_rig r;
    io_rig_init(&r, transport_name, &prog, SEED);
    r.stuck_ns = 30 * 1000 * 1000;
    io_rig_start(&r, &faults);
    assert_true(dup2(fileno(log_file), STDERR_FILENO) >= 0);
    int rc = executor_run(r.exec, &prog, 1, NULL);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    assert_int_equal(rc, 0);
    rewind(log_file);
    size_t got = fread(text, 1, sizeof text - 1, log_file);
    text[got] = 0;
    if (!strstr(text, "the oldest is a read of 8192 bytes at offset ") ||
        !strstr(text, r.drive->files[0].path) ||
        !strstr(text, " (read of unit 3, tile 0 (op 0)); the run waits for it"))
        fail_msg("the log says '%s'", text);
    fclose(log_file);
    close(kept);
    io_rig_fini(&r);
    program_fini(&prog);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        transport_name = argv[1];
    int skip = helper_skip(helper_backend(transport_name));
    if (skip)
        return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_transfer_fails_in_turn),
        cmocka_unit_test(without_sums_a_flip_goes_through),
        cmocka_unit_test(a_stuck_transfer_is_named_by_its_op),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
