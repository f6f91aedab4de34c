/* Faults aimed at one transfer, and transfers that do not come back: the n-th transfer gets exactly
 * its fault, held completions are slept for and not spun on, and a drive that holds transfers back
 * is reported once for all of them and again at each doubling of the time, while everything else
 * goes on, until a limit that breaks the queue. The argument names the backend. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include "base/log.h"
#include "base/mem.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"
#include "tiers/arena.h"
#include "tiers/io.h"
#include "tiers/io_faults.h"

enum { BLOCK = 4096, TRANSFERS = 8 };

#define TRANSFER_BYTES (64 * KIB)

static enum io_backend backend = IO_POOL;
static slab_drive drives[1];
static slab store;
static sim_store *bytes; /* of the simulated drive */
static arena memory;

static int setup(void **state)
{
    arena_config config = {.name = "host", .size_bytes = 4 * MIB, .touch_threads = 1};
    if (directory_make(state) != 0 || arena_init(&memory, &config) < 0)
        return -1;
    helper_drive(&drives[0], "x", 64 * MIB, 1);
    slab_config slab_settings = {
        .drives = drives, .drive_count = 1, .total_bytes = 4 * MIB, .stripe_bytes = MIB};
    if (slab_open(&store, &slab_settings) < 0)
        return -1;
    return backend == IO_SIM ? sim_store_create(&store, &bytes) : 0;
}

static int teardown(void **state)
{
    arena_fini(&memory);
    sim_store_destroy(bytes);
    bytes = NULL;
    if (slab_remove(&store) < 0)
        return -1;
    return directory_remove(state);
}

static io *create_with_stop(const io_faults *faults, uint64_t stuck_ns, uint64_t stop_ns)
{
    const io_region region = {memory.base, memory.size_bytes};
    io_config config = {.target = &store,
                        .backend = backend,
                        .queue_depth = 4,
                        .block_bytes = TRANSFER_BYTES,
                        .regions = &region,
                        .region_count = 1,
                        .stuck_ns = stuck_ns,
                        .stop_ns = stop_ns,
                        .test = &(io_test){.faults = faults},
                        .store = bytes};
    io *self = NULL;
    if (io_create(&config, &self) < 0)
        fail_msg("io_create: %s", err_text());
    return self;
}

static io *create(const io_faults *faults, uint64_t stuck_ns)
{
    return create_with_stop(faults, stuck_ns, 0);
}

static void fill(unsigned char *data, uint64_t size_bytes, unsigned salt)
{
    for (uint64_t i = 0; i < size_bytes; i++)
        data[i] = (unsigned char)(i * 7 + i / 251 + salt);
}

static int first_difference(const unsigned char *a, const unsigned char *b, uint64_t size_bytes)
{
    for (uint64_t i = 0; i < size_bytes; i++)
        if (a[i] != b[i])
            return (int)i;
    return -1;
}

/* Two requests of TRANSFERS transfers, a write and the read that brings it back, with each fault at
 * each of the transfers in turn. */
static void check_one(enum io_fault_kind kind, uint64_t at)
{
    const uint64_t size_bytes = TRANSFERS * TRANSFER_BYTES;
    const io_faults faults = {.seed = at, .at_transfer = at, .at_kind = kind, .stuck_us = 500};
    unsigned char *source = memory.base, *target = memory.base + size_bytes;
    io *self = create(&faults, 0);
    fill(source, size_bytes, (unsigned)at);
    memset(target, 0, size_bytes);
    int wrote = io_transfer(self, IO_WRITE, MIB, source, size_bytes);
    char text[ERR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", wrote < 0 ? err_text() : "");
    int got = wrote < 0 ? 0 : io_transfer(self, IO_READ, MIB, target, size_bytes);
    if (got < 0)
        snprintf(text, sizeof text, "%s", err_text());
    bool in_write = at <= TRANSFERS;
    int expected = kind == IO_FAULT_EIO || (kind == IO_FAULT_TORN && in_write) ? -EIO
                   : kind == IO_FAULT_ENOSPC && in_write                       ? -ENOSPC
                                                                               : 0;
    if ((in_write ? wrote : got) != expected || (in_write ? got : wrote) != 0)
        fail_msg("%s at %d: wrote %d, read %d: %s", io_fault_kind_name(kind), (int)at, wrote, got,
                 text);
    if (expected < 0 && (!strstr(text, store.files[0].path) || !strstr(text, "at offset ") ||
                         strncmp(text, in_write ? "write of " : "read of ", in_write ? 9 : 8) != 0))
        fail_msg("%s at %d: '%s'", io_fault_kind_name(kind), (int)at, text);
    bool flipped = kind == IO_FAULT_FLIP && !in_write;
    if (expected == 0 && (first_difference(source, target, size_bytes) >= 0) != flipped)
        fail_msg("%s at %d: the bytes are %s", io_fault_kind_name(kind), (int)at,
                 flipped ? "right" : "wrong");
    io_stats stats;
    io_get_stats(self, &stats);
    assert_int_equal(stats.short_count, kind == IO_FAULT_SHORT);
    assert_int_equal(stats.retry_count, kind == IO_FAULT_RETRY);
    io_destroy(self);
}

static void each_transfer_gets_its_fault(void **state)
{
    for (int kind = IO_FAULT_NONE; kind < IO_FAULT_KIND_COUNT; kind++)
        for (uint64_t at = 1; at <= 2 * TRANSFERS; at++)
            check_one((enum io_fault_kind)kind, at);
    assert_string_equal(io_fault_kind_name(IO_FAULT_STUCK), "stuck");
    assert_string_equal(io_fault_kind_name((enum io_fault_kind)99), "unknown");
}

/* Completions held back for 100 ms are slept for. */
static void waiting_does_not_spin(void **state)
{
    const io_faults faults = {.seed = 3, .latency_us_max = 100000};
    io *self = create(&faults, 0);
    io_request request = {
        .direction = IO_WRITE, .data = memory.base, .size_bytes = TRANSFERS * TRANSFER_BYTES};
    fill(memory.base, request.size_bytes, 1);
    assert_int_equal(io_submit(self, &request), 0);
    int idle = helper_wait_for(self, 1);
    assert_int_equal(request.result, 0);
    assert_in_range(idle, 1, 100);
    /* Nothing is out and nothing is held: the descriptor is quiet, fired timers included. */
    io_request *done[1];
    assert_int_equal(io_poll(self, done, 1), 0);
    struct pollfd fd = {.fd = io_event_fd(self), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 0), 0);
    io_destroy(self);
}

static void describe(const io_request *request, char *text, size_t capacity)
{
    snprintf(text, capacity, "read of unit %d", *(const int *)request->user);
}

/* Collects the log while `log_fd` replaces standard error. */
static char *read_log(int log_fd, char *text, size_t capacity)
{
    ssize_t got = pread(log_fd, text, capacity - 1, 0);
    assert_true(got >= 0);
    text[got] = 0;
    return text;
}

static int count_lines(const char *text)
{
    int count = 0;
    for (; *text; text++)
        count += *text == '\n';
    return count;
}

/* One of several transfers does not come back until it has been named twice; nothing else waits for
 * it. */
static void a_stuck_transfer_is_named(void **state)
{
    char log_path[512], text[4096];
    snprintf(log_path, sizeof log_path, "%s/log", directory);
    int log_fd = open(log_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int kept = dup(STDERR_FILENO), unit = 7;
    assert_true(log_fd >= 0 && kept >= 0);
    const io_faults faults = {.at_transfer = 3, .at_kind = IO_FAULT_STUCK, .stuck_us = 600000};
    io *self = create(&faults, 40 * 1000 * 1000);
    io_request requests[4];
    for (int i = 0; i < 4; i++) {
        requests[i] = (io_request){.direction = IO_READ,
                                   .offset = (uint64_t)i * MIB,
                                   .data = memory.base + (uint64_t)i * MIB,
                                   .size_bytes = TRANSFER_BYTES,
                                   .user = &unit,
                                   .describe = i == 2 ? describe : NULL};
        assert_int_equal(io_submit(self, &requests[i]), 0);
    }
    assert_true(dup2(log_fd, STDERR_FILENO) >= 0);
    helper_wait_for(self, 4);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    assert_int_equal(requests[2].result, 0); /* it was late, not lost */
    io_stats stats;
    io_get_stats(self, &stats);
    assert_true(stats.stuck_count >= 1); /* at 40, 80, 160, ... ms; more where the drive is slow */
    read_log(log_fd, text, sizeof text);
    assert_int_equal(count_lines(text), stats.stuck_count + 1); /* and that it answers again */
    char place[FILE_PATH_BYTES + 200];
    snprintf(place, sizeof place,
             "warning: the drive or file system of %s does not answer: 1 reads and 0 writes wait",
             store.files[0].path);
    if (!strstr(text, place) || !strstr(text, " (read of unit 7); the run waits for it\n") ||
        !strstr(text, "the oldest is a read of 65536 bytes at offset 2101248") ||
        !strstr(text, " answers again, after "))
        fail_msg("the log says '%s'", text);
    io_destroy(self);
    close(kept);
    close(log_fd);
}

/* All transfers of a drive stop: each warning is about all of them. */
static void a_frozen_drive_is_one_warning(void **state)
{
    char log_path[512], text[4096];
    snprintf(log_path, sizeof log_path, "%s/log", directory);
    int log_fd = open(log_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int kept = dup(STDERR_FILENO);
    assert_true(log_fd >= 0 && kept >= 0);
    const io_faults faults = {.stuck_rate = 1000};
    io *self = create(&faults, 5 * 1000 * 1000);
    io_request requests[2] = {
        {.direction = IO_READ, .data = memory.base, .size_bytes = 3 * TRANSFER_BYTES},
        {.direction = IO_WRITE, .data = memory.base + MIB, .size_bytes = 2 * TRANSFER_BYTES}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(io_submit(self, &requests[i]), 0);
    assert_true(dup2(log_fd, STDERR_FILENO) >= 0);
    bool counts = false;
    for (int looks = 0; looks < 16 && !counts; looks++) { /* the first may see only the oldest */
        io_request *done[1];
        int got = io_poll(self, done, 1);
        struct pollfd waiter = {.fd = io_event_fd(self), .events = POLLIN};
        counts = got != 0 || poll(&waiter, 1, 20000) != 1 ||
                 strstr(read_log(log_fd, text, sizeof text), "3 reads and 2 writes wait for up to");
    }
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    io_stats stats;
    io_get_stats(self, &stats);
    if (!strstr(text, "3 reads and 2 writes wait for up to ") ||
        count_lines(text) != (int)stats.stuck_count)
        fail_msg("%d warnings, and the log says '%s'", (int)stats.stuck_count, text);
    io_destroy(self);
    close(kept);
    close(log_fd);
}

/* A transfer that never returns: warnings double their distance, and io_destroy returns all the
 * same. */
static void a_transfer_may_never_return(void **state)
{
    int fds = helper_count_fds();
    mem_stats before, after;
    mem_get_stats(&before);
    const io_faults faults = {.at_transfer = 1, .at_kind = IO_FAULT_STUCK};
    io *self = create(&faults, 5 * 1000 * 1000);
    io_request request = {.direction = IO_WRITE, .data = memory.base, .size_bytes = TRANSFER_BYTES};
    log_set_level(LOG_QUIET);
    assert_int_equal(io_submit(self, &request), 0);
    uint64_t start_ns = clock_ns();
    io_stats stats;
    do { /* only the descriptor wakes us: a warning needs no other cause */
        io_request *done[1];
        assert_int_equal(io_poll(self, done, 1), 0);
        helper_sleep(self);
        io_get_stats(self, &stats);
    } while (stats.stuck_count < 3);
    log_set_level(LOG_INFO);
    assert_true(clock_ns() - start_ns >= 20 * 1000 * 1000); /* 5, 10, 20 ms: never earlier */
    io_destroy(self);
    assert_int_equal(helper_count_fds(), fds);
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
}

/* The error of io_poll if only its descriptor wakes us. */
static int poll_to_the_end(io *self)
{
    for (;;) {
        io_request *done[4];
        int got = io_poll(self, done, 4);
        if (got < 0)
            return got;
        helper_sleep(self);
    }
}

/* A transfer that never returns ends the queue at its limit, with or without warnings before. */
static void a_stuck_transfer_ends_the_queue(void **state)
{
    enum { STUCK_MS = 10, STOP_MS = 1000 }; /* a busy drive answers sooner */
    int fds = helper_count_fds(), unit = 9;
    io *well = create(NULL, 0); /* what the first use allocates is not counted below */
    assert_int_equal(io_transfer(well, IO_WRITE, 0, memory.base, 4 * TRANSFER_BYTES), 0);
    io_destroy(well);
    mem_stats before, after;
    mem_get_stats(&before);
    log_set_level(LOG_QUIET);
    for (int warns = 0; warns < 2; warns++) {
        const io_faults faults = {.at_transfer = 3, .at_kind = IO_FAULT_STUCK};
        io *self = create_with_stop(&faults, warns * STUCK_MS * 1000000u, STOP_MS * 1000000u);
        io_request requests[4];
        uint64_t begin_ns = clock_ns();
        for (int i = 0; i < 4; i++) {
            requests[i] = (io_request){.direction = IO_WRITE,
                                       .offset = (uint64_t)i * TRANSFER_BYTES,
                                       .data = memory.base + (uint64_t)i * TRANSFER_BYTES,
                                       .size_bytes = TRANSFER_BYTES,
                                       .user = &unit,
                                       .describe = describe};
            assert_int_equal(io_submit(self, &requests[i]), 0);
        }
        assert_int_equal(poll_to_the_end(self), -ETIMEDOUT);
        assert_true(clock_ns() - begin_ns >= STOP_MS * 1000000u); /* never earlier */
        char place[FILE_PATH_BYTES + 200];
        snprintf(place, sizeof place,
                 "the write of 65536 bytes at offset %llu of %s (read of unit 9) has been in "
                 "flight for ",
                 (unsigned long long)(2 * TRANSFER_BYTES + SLAB_HEADER_BYTES), store.files[0].path);
        if (strncmp(err_text(), place, strlen(place)) != 0 ||
            !strstr(err_text(), " s, longer than the 1 s of debug.io.stop_seconds: ") ||
            !strstr(err_text(), "the last commit is intact") ||
            !strstr(err_text(), "run the same command again"))
            fail_msg("'%s'", err_text());
        assert_int_equal(io_error(self)->code, -ETIMEDOUT);
        io_stats stats;
        io_get_stats(self, &stats);
        assert_int_equal(stats.stuck_count > 0, warns);
        io_request *done[1];
        assert_error(io_poll(self, done, 1), ERR_POISONED, "has been in flight for");
        assert_int_equal(io_transfer(self, IO_READ, 0, memory.base, BLOCK), ERR_POISONED);
        io_destroy(self);
    }
    /* io_transfer ends as well, where its own transfer is the stuck one. */
    const io_faults first = {.at_transfer = 1, .at_kind = IO_FAULT_STUCK};
    io *self = create_with_stop(&first, 0, STOP_MS * 1000000u);
    assert_error(io_transfer(self, IO_READ, 0, memory.base, BLOCK), -ETIMEDOUT,
                 "the read of 4096 bytes at offset 4096 of ");
    assert_null(strstr(err_text(), "("));
    io_destroy(self);
    log_set_level(LOG_INFO);
    assert_int_equal(helper_count_fds(), fds);
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
}

/* A transfer that comes back within the limit is late, but it is not a failure, however many
 * warnings were written. */
static void late_is_not_lost(void **state)
{
    const io_faults faults = {.seed = 8, .stuck_rate = 300, .stuck_us = 30000};
    io *self = create_with_stop(&faults, 5 * 1000 * 1000, (uint64_t)60 * 1000000000);
    const uint64_t size_bytes = TRANSFERS * TRANSFER_BYTES;
    unsigned char *source = memory.base, *target = memory.base + size_bytes;
    fill(source, size_bytes, 5);
    memset(target, 0, size_bytes);
    log_set_level(LOG_QUIET);
    assert_int_equal(io_transfer(self, IO_WRITE, 0, source, size_bytes), 0);
    assert_int_equal(io_transfer(self, IO_READ, 0, target, size_bytes), 0);
    log_set_level(LOG_INFO);
    assert_int_equal(first_difference(source, target, size_bytes), -1);
    io_stats stats;
    io_get_stats(self, &stats);
    assert_true(stats.stuck_count > 0);
    io_destroy(self);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "pool";
    backend = helper_backend(name);
    int skip = helper_skip(backend);
    if (skip)
        return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_transfer_gets_its_fault, setup, teardown),
        cmocka_unit_test_setup_teardown(waiting_does_not_spin, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stuck_transfer_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(a_frozen_drive_is_one_warning, setup, teardown),
        cmocka_unit_test_setup_teardown(a_transfer_may_never_return, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stuck_transfer_ends_the_queue, setup, teardown),
        cmocka_unit_test_setup_teardown(late_is_not_lost, setup, teardown),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
