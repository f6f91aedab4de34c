/* The times of ops on the lanes of a GPU are moments of our clock, also when the clocks are
 * compared anew while an op runs. */
#include <poll.h>
#include <stdatomic.h>
#include <time.h>

#include "base/log.h"
#include "tests/gpu/gpu_lanes_rig.h"
#include "tests/unit.h"

/* On an idle machine 25 us when the clocks are compared, and some drift. A busy one may keep the
 * simulated GPU's threads from running for long; the test looks for wrong moments, not for wrong
 * microseconds. */
enum { CLOCK_ERROR_NS = 100000000, PAUSE_MS = 250 };

static void sleep_ms(uint32_t milliseconds)
{
    nanosleep(
        &(struct timespec){.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000},
        NULL);
}

/* Waits until poll may have something; returns a moment when the GPU was done. */
static uint64_t await_news(const lane *of)
{
    struct pollfd fd = {.fd = of->ops->event_fd(of), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 20000), 1);
    return clock_ns();
}

/* The times of an op are those at which it ran: not before it was submitted, not after it was known
 * to be complete, though it is polled much later. Again after a second, when the clocks are
 * compared anew. */
static void times_are_on_our_clock(void **state)
{
    enum { COUNT = 3 };
    program prog;
    gpu_rig_copies_program(COUNT, &prog);
    gpu_rig r;
    gpu_rig_init(&r, 2);
    gpu_rig_load(&r, &prog, 1);
    lane *gpu = r.lanes[LANE_H2D];
    uint64_t last_end_ns = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        lane_request request = {.prog = &prog, .item = &prog.ops[i], .op_idx = i}, *done[1];
        sleep_ms(i == 2 ? 1100 : PAUSE_MS);
        uint64_t before_ns = clock_ns(), after_ns;
        assert_int_equal(gpu->ops->submit(gpu, &request), 0);
        int found = 0;
        while (found == 0) { /* the timer wakes the poll too */
            after_ns = await_news(gpu);
            sleep_ms(PAUSE_MS);
            found = gpu->ops->poll(gpu, done, 1);
        }
        assert_int_equal(found, 1);
        assert_true(request.start_ns >= before_ns - CLOCK_ERROR_NS);
        assert_true(request.end_ns <= after_ns + CLOCK_ERROR_NS);
        assert_true(request.start_ns <= request.end_ns);
        if (i > 0)
            assert_int_equal(request.wait_ns, request.start_ns - last_end_ns);
        last_end_ns = request.end_ns;
    }
    gpu_rig_unload(&r);
    gpu_rig_fini(&r);
    program_fini(&prog);
}

static int enqueue_hold(void *user, const program *prog, const op *item, void *stream)
{
    assert_int_equal(gpu_rig_hold(stream, user), 0);
    return 0;
}

/* An op that runs while the clocks are compared anew began before that moment and ends after it. */
static void an_op_outlives_a_comparison(void **state)
{
    builder b;
    program prog;
    builder_init(&b, PROGRAM_STEADY, 65536, 65536, 4096);
    uint32_t device_home = builder_home(&b, TIER_DEVICE, 0, 65536);
    uint32_t host_home = builder_home(&b, TIER_HOST, 0, 65536);
    builder_op(&b, OP_FORWARD);
    builder_use(&b, ROLE_INPUT, ACCESS_READ, device_home, 0, 4096);
    builder_op(&b, OP_H2D);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, host_home, 0, 4096);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, device_home, 4096, 4096);
    builder_finish(&b, &prog);
    gpu_rig r;
    gpu_rig_init(&r, 2);
    atomic_int *flags = (atomic_int *)(r.pinned + 32768); /* no op of the program is there */
    atomic_store(&flags[0], 0);
    atomic_store(&flags[1], 0);
    lane_stream_config config = gpu_rig_config(&r);
    config.enqueue = enqueue_hold;
    config.finish = NULL;
    config.user = flags;
    lane *gpu;
    assert_ok(lane_stream_create(&config, &gpu));
    lane_request requests[2], *done[2];
    for (uint32_t i = 0; i < 2; i++)
        requests[i] = (lane_request){.prog = &prog, .item = &prog.ops[i], .op_idx = i};

    uint64_t submitted_ns = clock_ns();
    assert_int_equal(gpu->ops->submit(gpu, &requests[0]), 0);
    while (atomic_load(&flags[0]) == 0)
        sleep_ms(1);
    uint64_t begun_ns = clock_ns();
    sleep_ms(1100);
    assert_int_equal(gpu->ops->submit(gpu, &requests[1]), 0); /* compares */
    int found = 0;
    while (found == 0) {
        (void)await_news(gpu);
        found = gpu->ops->poll(gpu, done, 2);
    }
    assert_int_equal(found, 1);
    assert_ptr_equal(done[0], &requests[1]); /* another stream: it overtakes */
    uint64_t released_ns = clock_ns();
    atomic_store(&flags[1], 1);
    for (found = 0; found == 0; found = gpu->ops->poll(gpu, done, 2))
        (void)await_news(gpu);
    assert_int_equal(found, 1);
    assert_ptr_equal(done[0], &requests[0]);
    assert_true(requests[0].start_ns >= submitted_ns - CLOCK_ERROR_NS);
    assert_true(requests[0].start_ns <= begun_ns + CLOCK_ERROR_NS);
    assert_true(requests[0].end_ns >= released_ns - CLOCK_ERROR_NS);
    gpu->ops->destroy(gpu);
    gpu_rig_fini(&r);
    program_fini(&prog);
}

int main(void)
{
    char text[DEVICE_TEXT_BYTES];
    if (device_count(text) == 0) {
        printf("skipped: %s\n", text);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_on_our_clock),
        cmocka_unit_test(an_op_outlives_a_comparison),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
