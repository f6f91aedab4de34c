/* Requests that go behind one of the other direction: none of their transfers is handed over before
 * all of that one's are, whenever it is submitted, and none waits for ever. The argument names the
 * backend. */
#include <errno.h>

#include "base/rng.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"
#include "tiers/arena.h"
#include "tiers/io.h"
#include "tiers/io_faults.h"

enum { PIECE_BYTES = 256 * KIB, BLOCK_BYTES = 16 * KIB, REQUESTS = 24, SEED = 20261123 };

static enum io_backend backend = IO_POOL;
static slab_drive drive;
static slab store;
static arena memory;

static int setup(void **state)
{
    arena_config config = {
        .name = "host", .size_bytes = (uint64_t)REQUESTS * PIECE_BYTES, .touch_threads = 1};
    if (directory_make(state) != 0 || arena_init(&memory, &config) < 0)
        return -1;
    helper_drive(&drive, "x", 64 * MIB, 1);
    slab_config settings = {.drives = &drive,
                            .drive_count = 1,
                            .total_bytes = (uint64_t)REQUESTS * PIECE_BYTES,
                            .stripe_bytes = MIB};
    return slab_open(&store, &settings);
}

static int teardown(void **state)
{
    arena_fini(&memory);
    return slab_remove(&store) == 0 ? directory_remove(state) : -1;
}

static io *create(uint32_t queue_depth, const io_faults *faults)
{
    const io_region region = {memory.base, memory.size_bytes};
    io_config config = {.target = &store,
                        .backend = backend,
                        .queue_depth = queue_depth,
                        .block_bytes = BLOCK_BYTES,
                        .pool_threads = 2,
                        .regions = &region,
                        .region_count = 1,
                        .request_capacity = REQUESTS,
                        .test = &(io_test){.faults = faults}};
    io *self = NULL;
    if (io_create(&config, &self) < 0)
        fail_msg("io_create: %s", err_text());
    return self;
}

/* A request of the piece at `at` of memory and slab. */
static io_request piece(enum io_direction direction, uint32_t at, const io_request *behind)
{
    return (io_request){.direction = direction,
                        .offset = (uint64_t)at * PIECE_BYTES,
                        .data = memory.base + (uint64_t)at * PIECE_BYTES,
                        .size_bytes = PIECE_BYTES,
                        .behind = behind};
}

static uint64_t transfers(const io *self, enum io_direction direction)
{
    io_stats stats;
    io_get_stats(self, &stats);
    return stats.transfers[direction];
}

/* Polls once; where nothing comes, sleeps before. How many requests came back. */
static uint32_t poll_some(io *self, io_request **done, size_t max)
{
    int count = io_poll(self, done, max);
    if (count == 0) {
        helper_sleep(self);
        count = io_poll(self, done, max);
    }
    assert_true(count >= 0);
    return (uint32_t)count;
}

static void wait_for(io *self, uint32_t count)
{
    io_request *done[REQUESTS];
    while (count > 0)
        count -= poll_some(self, done, count);
}

/* Either direction goes behind the other. */
static void the_first_goes_first(void **state)
{
    io *self = create(2, NULL);
    for (int i = 0; i < 2; i++) {
        enum io_direction direction = i % 2 ? IO_WRITE : IO_READ,
                          other = i % 2 ? IO_READ : IO_WRITE;
        io_request first = piece(other, 0, NULL), second = piece(direction, 1, &first), *done[2];
        uint64_t before = transfers(self, direction);
        assert_int_equal(io_submit(self, &first), 0);
        assert_int_equal(io_submit(self, &second), 0);
        assert_ptr_equal(second.behind, &first);
        bool waited = false;
        for (uint32_t count = 0; count < 2;) {
            count += poll_some(self, done, 2);
            if (transfers(self, direction) > before)
                assert_int_equal(first.issued_bytes, first.size_bytes);
            else
                waited = true;
        }
        assert_true(waited); /* the queue is far shorter than the first request */
        assert_true(second.start_ns >= first.start_ns);
        assert_int_equal(first.result, 0);
        assert_int_equal(second.result, 0);
    }
    io_destroy(self);
}

/* A held request keeps its place: what was submitted after it in its direction waits too, and so
 * does what goes behind it. The other direction goes on. */
static void a_held_request_keeps_its_place(void **state)
{
    io *self = create(2, NULL);
    for (int i = 0; i < 2; i++) {
        enum io_direction direction = i % 2 ? IO_WRITE : IO_READ,
                          other = i % 2 ? IO_READ : IO_WRITE;
        uint64_t before = transfers(self, direction);
        io_request held = piece(direction, 0, NULL), free = piece(other, 1, NULL),
                   behind_held = piece(other, 2, &held), last = piece(direction, 3, &behind_held);
        held.is_held = true;
        io_request *const all[] = {&held, &free, &behind_held, &last};
        for (uint32_t k = 0; k < 4; k++)
            assert_int_equal(io_submit(self, all[k]), 0);
        wait_for(self, 1);
        io_request *done[4];
        for (int k = 0; k < 3; k++)
            assert_int_equal(io_poll(self, done, 4), 0);
        assert_true(free.end_ns > 0);
        assert_int_equal(held.issued_bytes + behind_held.issued_bytes + last.issued_bytes, 0);
        assert_int_equal(transfers(self, direction), before);
        io_release(self, &held);
        wait_for(self, 3);
        for (uint32_t k = 0; k < 4; k++)
            assert_int_equal(all[k]->result, 0);
        assert_true(behind_held.start_ns >= held.start_ns);
        assert_true(last.start_ns >= behind_held.start_ns);
    }
    /* nothing waits for one that is never released */
    io_request held = piece(IO_WRITE, 0, NULL), behind_held = piece(IO_READ, 1, &held);
    held.is_held = true;
    assert_int_equal(io_submit(self, &held), 0);
    assert_int_equal(io_submit(self, &behind_held), 0);
    io_destroy(self);
}

/* A request does not wait for one that has finished, since its memory may serve another request. */
static void nothing_waits_for_what_is_gone(void **state)
{
    io *self = create(2, NULL);
    io_request first = piece(IO_READ, 0, NULL);
    assert_int_equal(io_submit(self, &first), 0);
    wait_for(self, 1);
    io_request second = piece(IO_WRITE, 1, &first);
    assert_int_equal(io_submit(self, &second), 0);
    assert_null(second.behind); /* its read was complete before */
    first = piece(IO_READ, 2, NULL);
    wait_for(self, 1);

    io_request queued = piece(IO_WRITE, 3, NULL), last = piece(IO_WRITE, 4, &first);
    assert_int_equal(io_submit(self, &first), 0);
    assert_int_equal(io_submit(self, &queued), 0);
    assert_int_equal(io_submit(self, &last), 0);
    io_request *done[1];
    while (first.end_ns == 0)
        assert_true(io_poll(self, done, 0) == 0);
    assert_null(last.behind); /* which may still stand in the queue, behind `queued` */
    wait_for(self, 3);
    assert_int_equal(last.result, 0);
    io_destroy(self);
}

/* The first request fails in its middle: the request behind it goes on. The fault is one that needs
 * no drive, so it is there before the rest can be issued. */
static void a_failure_lets_the_others_go(void **state)
{
    io_faults faults = {.seed = SEED};
    io *self = create(1, NULL);
    io_stats stats;
    io_get_stats(self, &stats);
    faults.at_transfer = stats.transfers[IO_READ] + stats.transfers[IO_WRITE] + 3;
    faults.at_kind = IO_FAULT_ENOSPC;
    io_destroy(self);
    self = create(1, &faults);
    io_request first = piece(IO_WRITE, 0, NULL), second = piece(IO_READ, 1, &first);
    assert_int_equal(io_submit(self, &first), 0);
    assert_int_equal(io_submit(self, &second), 0);
    wait_for(self, 2);
    assert_int_equal(first.result, -ENOSPC);
    assert_true(first.issued_bytes < first.size_bytes);
    assert_int_equal(second.result, 0);
    io_destroy(self);
}

/* Many in both directions, each behind an earlier one that may be gone already, in memory that
 * serves again. */
static void random_chains_end(void **state)
{
    enum { TOTAL = 600 };
    static io_request requests[REQUESTS];
    io_faults slow = {.seed = SEED, .latency_us_max = 300, .short_rate = 50};
    io *self = create(3, &slow);
    bool busy[REQUESTS] = {false};
    uint32_t submitted = 0, ended = 0, behind_count = 0;
    while (ended < TOTAL) {
        for (uint32_t i = 0; i < REQUESTS && submitted < TOTAL; i++) {
            if (busy[i])
                continue;
            enum io_direction direction = rng_below(SEED, 1, submitted, 2) ? IO_WRITE : IO_READ;
            uint32_t other = (uint32_t)rng_below(SEED, 2, submitted, REQUESTS);
            bool is_behind = busy[other] && requests[other].direction != direction;
            requests[i] = piece(direction, i, is_behind ? &requests[other] : NULL);
            assert_int_equal(io_submit(self, &requests[i]), 0);
            behind_count += requests[i].behind != NULL;
            busy[i] = true;
            submitted++;
        }
        io_request *done[4];
        for (uint32_t count = poll_some(self, done, 4); count-- > 0; ended++) {
            assert_int_equal(done[count]->result, 0);
            busy[done[count] - requests] = false;
        }
    }
    printf("seed %d: %u of %u went behind another\n", SEED, behind_count, TOTAL);
    assert_true(behind_count > TOTAL / 20);
    io_destroy(self);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        backend = helper_backend(argv[1]);
    int skip = helper_skip(backend);
    if (skip)
        return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_first_goes_first, setup, teardown),
        cmocka_unit_test_setup_teardown(a_held_request_keeps_its_place, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_waits_for_what_is_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failure_lets_the_others_go, setup, teardown),
        cmocka_unit_test_setup_teardown(random_chains_end, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
