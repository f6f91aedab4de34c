/* The lanes of a GPU (swap/lane_stream.h) under the real executor, beside worker lanes for the
 * host's ops. Random programs, also with conditional ops, give the values of serial execution,
 * whatever the timing of the streams. A run allocates nothing and no call in it blocks. Times are
 * in order (test_gpu_lanes_clock.c: and those of our clock). A failure ends the run with its text
 * and never hangs. The simulated GPU's streams delay each piece of work at random. Instances:
 * order, refusals, faults. */
#include <errno.h>
#include <poll.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "swap/stream_plan.h"
#include "tests/gpu/gpu_lanes_rig.h"
#include "tests/unit.h"

#ifdef SLUICE_SIMULATED_GPU
#include "tests/simulated_gpu/simulated_gpu.h"
#endif

/* --- order ------------------------------------------------------------------------------------ */

/* Each op's times: in order on its lane, and not after the run. */
static void check_times(const gpu_rig *self, uint64_t first_event, uint64_t step)
{
    uint64_t last_end_ns[LANE_COUNT] = {0}, now_ns = clock_ns();
    for (uint64_t i = first_event; i < self->ring.written; i++) {
        const trace_event *event = &self->ring.events[i % GPU_RIG_EVENTS];
        assert_int_equal(event->step, step);
        assert_true(event->start_ns <= event->end_ns && event->end_ns <= now_ns);
        if (!is_gpu_lane(event->lane))
            continue;
        assert_true(event->start_ns >= last_end_ns[event->lane]);
        last_end_ns[event->lane] = event->end_ns;
    }
}

static void check_finishes(const gpu_rig *self, const program *prog, bool skip, uint8_t times)
{
    for (uint32_t i = 0; i < prog->op_count; i++) {
        bool runs = is_gpu_lane(prog->ops[i].lane) && !(skip && fixture_skips(prog, i));
        assert_int_equal(self->finished[i], runs ? times : 0);
    }
}

static void random_programs_give_serial_values(void **state)
{
    static const uint32_t depths[] = {1, 2, 5, 16};
    enum { PROGRAMS = 24 };
    for (uint32_t d = 0; d < 4; d++) {
        gpu_rig r;
        gpu_rig_init(&r, depths[d]);
        for (uint64_t seed = 100 * d; seed < 100 * d + PROGRAMS; seed++) {
            program prog;
            const program *programs = &prog;
            random_program(seed, 60 + (uint32_t)(seed % 3) * 60, &prog);
            gpu_rig_load(&r, &prog, seed);
            fixture_arenas serial;
            fixture_arenas_init(&serial, &prog, seed);
            gpu_rig_execute_serially(&serial, &prog, false);
            executor *exec = gpu_rig_executor(&r, &programs, 1);
            uint64_t first_event = r.ring.written;
            if (executor_run(exec, &prog, seed, NULL) != 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
            if (!gpu_rig_matches(&r, &serial))
                fail_msg("depth %u, seed %llu: memory differs from serial execution", depths[d],
                         (unsigned long long)seed);
            check_times(&r, first_event, seed);
            check_finishes(&r, &prog, false, 1);
            executor_destroy(exec);
            fixture_arenas_fini(&serial);
            gpu_rig_unload(&r);
            program_fini(&prog);
        }
        gpu_rig_fini(&r);
    }
    printf("seeds 0 to 3 times 100, and the %d after each\n", PROGRAMS - 1);
}

static void conditional_programs_give_serial_values(void **state)
{
    enum { PROGRAMS = 32 };
    uint64_t skipped = 0;
    gpu_rig r;
    gpu_rig_init(&r, 4);
    for (uint64_t seed = 1000; seed < 1000 + PROGRAMS; seed++) {
        bool decides = seed % 4 != 0, skip = seed % 3 != 0;
        program prog;
        const program *programs = &prog;
        random_conditional_program(seed, 120, decides, &prog);
        gpu_rig_load(&r, &prog, seed);
        fixture_arenas serial;
        fixture_arenas_init(&serial, &prog, seed);
        executor *exec = gpu_rig_executor(&r, &programs, 1);
        for (uint8_t step = 1; step <= 2; step++) {
            /* The flag before the run and what the norm makes of it: only one of both is right. */
            r.arenas.is_skipped = decides ? !skip : skip;
            r.arenas.norm_skips = decides ? skip : !skip;
            gpu_rig_execute_serially(&serial, &prog, skip);
            run_totals totals;
            if (executor_run(exec, &prog, step, &totals) != 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
            if (!gpu_rig_matches(&r, &serial))
                fail_msg("seed %llu, run %u: memory differs", (unsigned long long)seed, step);
            check_finishes(&r, &prog, skip, step);
            skipped +=
                totals.lanes[LANE_H2D].skipped_count + totals.lanes[LANE_COMPUTE].skipped_count;
        }
        executor_destroy(exec);
        fixture_arenas_fini(&serial);
        gpu_rig_unload(&r);
        program_fini(&prog);
    }
    gpu_rig_fini(&r);
    printf("seeds 1000 to %d: %llu ops skipped on the GPU\n", 1000 + PROGRAMS - 1,
           (unsigned long long)skipped);
    assert_true(skipped > PROGRAMS);
}

/* A run after the first: no memory, no stream, no event is made, and the host waits for no
 * stream. */
static void later_runs_only_enqueue(void **state)
{
    program prog, other;
    random_program(2000, 150, &prog);
    random_program(2001, 90, &other); /* other indices in the same rings */
    const program *programs[] = {&prog, &other};
    gpu_rig r;
    gpu_rig_init(&r, 3);
    gpu_rig_load(&r, &prog, 2000);
    executor *exec = gpu_rig_executor(&r, programs, 2);
    assert_ok(executor_run(exec, &prog, 1, NULL));
    mem_stats before, after;
    mem_get_stats(&before);
#ifdef SLUICE_SIMULATED_GPU
    simulated_gpu_counters first, last;
    simulated_gpu_get_counters(&first);
#endif
    mem_seal();
    for (uint64_t step = 2; step <= 5; step++)
        assert_ok(executor_run(exec, programs[step % 2], step, NULL));
    mem_unseal();
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    assert_int_equal(after.call_count_after_seal, before.call_count_after_seal);
#ifdef SLUICE_SIMULATED_GPU
    simulated_gpu_get_counters(&last);
    assert_true(last.copies > first.copies && last.host_functions > first.host_functions);
    assert_int_equal(last.allocations, first.allocations);
    assert_int_equal(last.streams, first.streams);
    assert_int_equal(last.events, first.events);
    assert_int_equal(last.synchronizations, first.synchronizations);
    assert_int_equal(last.pageable_copies, first.pageable_copies);
#endif
    executor_destroy(exec);
    gpu_rig_unload(&r);
    gpu_rig_fini(&r);
    program_fini(&prog);
    program_fini(&other);
}

#ifdef SLUICE_SIMULATED_GPU
/* The canary: without its dependencies a program must give other values under some timing, or the
 * tests above would prove nothing. */
static void a_lost_dependency_shows(void **state)
{
    uint64_t differing = 0;
    gpu_rig r;
    gpu_rig_init(&r, 8);
    for (uint64_t seed = 3000; seed < 3020 && differing == 0; seed++) {
        program prog;
        const program *programs = &prog;
        random_program(3000, 120, &prog);
        for (uint32_t i = 0; i < prog.op_count; i++)
            if (is_gpu_lane(prog.ops[i].lane))
                for (uint32_t k = prog.ops[i].dep_count; k-- > 0;)
                    if (is_gpu_lane(prog.ops[prog.deps[prog.ops[i].dep_begin + k]].lane))
                        program_drop_dep(&prog, i, k);
        gpu_rig_load(&r, &prog, seed);
        fixture_arenas serial;
        fixture_arenas_init(&serial, &prog, seed);
        gpu_rig_execute_serially(&serial, &prog, false);
        executor *exec = gpu_rig_executor(&r, &programs, 1);
        assert_ok(executor_run(exec, &prog, 1, NULL));
        differing += !gpu_rig_matches(&r, &serial);
        executor_destroy(exec);
        fixture_arenas_fini(&serial);
        gpu_rig_unload(&r);
        program_fini(&prog);
    }
    gpu_rig_fini(&r);
    assert_true(differing > 0);
}
#endif

/* --- programs made ready ---------------------------------------------------------------------- */

#ifdef SLUICE_SIMULATED_GPU
/* The driver's calls of one run are those that the plan of the program counts, and no others. */
static void check_calls(const gpu_rig *self, const program *prog, bool has_graphs,
                        const simulated_gpu_counters *before)
{
    simulated_gpu_counters after;
    lane_stream_config lanes = gpu_rig_config((gpu_rig *)(uintptr_t)self);
    stream_plan_config config = {.serves = lanes.serves,
                                 .may_replay = has_graphs ? gpu_rig_may_replay : NULL,
                                 .only_single = lanes.is_timed};
    stream_plan plan;
    stream_calls most;
    assert_ok(stream_plan_init(&plan, prog, &config));
    stream_plan_count(&plan, lanes.serves, self->depth, lanes.is_timed, &most);
    stream_plan_fini(&plan);
    simulated_gpu_get_counters(&after);
    /* A machine on which nothing ends for seconds has each stream report once more. */
    uint64_t late = (after.host_functions - before->host_functions) - most.host_functions;
    assert_true(late <= 4);
    assert_true(after.waits - before->waits <= most.waits + late);
    assert_true(after.graph_launches - before->graph_launches <= most.graph_launches);
    assert_true(most.graph_launches == 0 || after.graph_launches > before->graph_launches);
    if (lanes.is_timed) { /* the clocks are compared now and then */
        assert_true(after.records - before->records >= most.records);
        assert_int_equal(after.timed_records - before->timed_records,
                         after.records - before->records);
        return;
    }
    assert_in_range(after.records - before->records, most.records, most.records + late);
    assert_int_equal(after.timed_records, before->timed_records);
}
#endif

static void run_prepared(uint64_t seed, bool is_conditional, bool is_timed, uint64_t graph_bytes)
{
    bool decides = seed % 4 != 0, skip = is_conditional && seed % 3 != 0;
    program prog;
    const program *programs = &prog;
    if (is_conditional)
        random_conditional_program(seed, 120, decides, &prog);
    else
        random_program(seed, 150, &prog);
    gpu_rig r;
    gpu_rig_init_prepared(&r, 1 + seed % 9, is_timed, &programs, 1, graph_bytes);
    gpu_rig_load(&r, &prog, seed);
    fixture_arenas serial;
    fixture_arenas_init(&serial, &prog, seed);
    executor *exec = gpu_rig_executor(&r, &programs, 1);
    for (uint8_t step = 1; step <= 2; step++) {
        r.arenas.is_skipped = decides ? !skip : skip;
        r.arenas.norm_skips = decides ? skip : !skip;
        gpu_rig_execute_serially(&serial, &prog, skip);
        uint64_t first_event = r.ring.written;
#ifdef SLUICE_SIMULATED_GPU
        simulated_gpu_counters before;
        simulated_gpu_get_counters(&before);
#endif
        if (executor_run(exec, &prog, step, NULL) != 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
#ifdef SLUICE_SIMULATED_GPU
        if (!is_conditional)
            check_calls(&r, &prog, graph_bytes > 0, &before);
#endif
        check_times(&r, first_event, step);
        if (!gpu_rig_matches(&r, &serial))
            fail_msg("seed %llu, run %u: memory differs", (unsigned long long)seed, step);
        check_finishes(&r, &prog, skip, step);
    }
    executor_destroy(exec);
    fixture_arenas_fini(&serial);
    gpu_rig_unload(&r);
    gpu_rig_fini(&r);
    program_fini(&prog);
}

/* With and without graphs and times: the bytes of serial execution, by the calls of the driver that
 * were counted. A host function that is missing would show as one that comes a second late. */
static void prepared_programs_give_serial_values(void **state)
{
    for (uint64_t seed = 6000; seed < 6024; seed++)
        for (int way = 0; way < 2; way++)
            run_prepared(seed, way, seed % 3 == 0, seed % 4 == 0 ? 0 : GIB);
    printf("seeds 6000 to 6023\n");
}

#ifdef SLUICE_SIMULATED_GPU
/* Where CUDA refuses to capture, or the memory for graphs is used up, ops are enqueued one by one:
 * the same bytes. */
static void without_graphs_it_goes_on(void **state)
{
    simulated_gpu_counters before, after;
    simulated_gpu_get_counters(&before);
    run_prepared(6001, false, false, 16384);
    simulated_gpu_get_counters(&after);
    uint64_t some = after.graph_launches - before.graph_launches;
    simulated_gpu_fail_captures_after(2);
    run_prepared(6002, true, false, GIB);
    simulated_gpu_fail_captures_after(0);
    run_prepared(6003, true, false, GIB);
    simulated_gpu_fail_captures_after(UINT64_MAX);
    assert_true(some > 0);
}
#endif

/* --- refusals --------------------------------------------------------------------------------- */

static void creation_refuses(void **state)
{
    gpu_rig r;
    gpu_rig_init(&r, 2);
    lane *made;
    lane_stream_config good = gpu_rig_config(&r), bad;
    bad = good, bad.depth = 0;
    assert_int_equal(lane_stream_create(&bad, &made), -EINVAL);
    assert_null(made);
    bad = good, bad.gpu = NULL;
    assert_int_equal(lane_stream_create(&bad, &made), -EINVAL);
    bad = good, bad.enqueue = NULL;
    assert_int_equal(lane_stream_create(&bad, &made), -EINVAL);
    bad = good, bad.arena_base[TIER_HOST] = NULL;
    assert_int_equal(lane_stream_create(&bad, &made), -EINVAL);
    bad = good, memset(bad.serves, 0, sizeof bad.serves);
    assert_int_equal(lane_stream_create(&bad, &made), -EINVAL);
    bad = good, bad.serves[LANE_READ] = true;
    assert_error(lane_stream_create(&bad, &made), -EINVAL, "lane read");
    /* Copies alone need no callback. */
    bad = good, bad.enqueue = NULL;
    bad.serves[LANE_COMM] = bad.serves[LANE_COMPUTE] = false;
    assert_ok(lane_stream_create(&bad, &made));
    assert_non_null(lane_stream_of(made, LANE_D2H));
    assert_null(lane_stream_of(made, LANE_COMPUTE));
    made->ops->destroy(made);
    gpu_rig_fini(&r);
}

static bool is_readable(const lane *of)
{
    struct pollfd fd = {.fd = of->ops->event_fd(of), .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

/* Waits on the descriptor until `count` requests are back, in order. */
static void await_requests(lane *from, lane_request *requests, uint32_t count)
{
    lane_request *done[4];
    for (uint32_t at = 0; at < count;) {
        int found = from->ops->poll(from, done, 4);
        assert_true(found >= 0);
        for (int i = 0; i < found; i++, at++) {
            assert_ptr_equal(done[i], &requests[at]);
            assert_int_equal(done[i]->result, 0);
        }
        struct pollfd fd = {.fd = from->ops->event_fd(from), .events = POLLIN};
        if (at < count)
            assert_int_equal(poll(&fd, 1, 20000), 1);
    }
}

static void a_full_lane_says_so(void **state)
{
    enum { DEPTH = 2, COUNT = 6 };
    program prog;
    gpu_rig_copies_program(COUNT, &prog);
    gpu_rig r;
    gpu_rig_init(&r, DEPTH);
    gpu_rig_load(&r, &prog, 1);
    lane *gpu = r.lanes[LANE_H2D];
    lane_request requests[COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        requests[i] = (lane_request){.prog = &prog, .item = &prog.ops[i], .op_idx = i};
    for (uint32_t i = 0; i < COUNT; i += DEPTH) {
        assert_int_equal(gpu->ops->submit(gpu, &requests[i]), 0);
        assert_int_equal(gpu->ops->submit(gpu, &requests[i + 1]), 0);
        if (i + DEPTH < COUNT) /* complete or not: a place is free when its request was polled */
            assert_int_equal(gpu->ops->submit(gpu, &requests[i + DEPTH]), -EAGAIN);
        await_requests(gpu, &requests[i], DEPTH);
    }
    assert_int_equal(gpu->ops->error(gpu)->code, 0);

    lane_request *done[4];
    bool has_news = true; /* nothing is left; the timer may bring news now and then */
    for (int tries = 0; tries < 3 && has_news; tries++) {
        assert_int_equal(gpu->ops->poll(gpu, done, 4), 0); /* takes the count of the eventfd */
        assert_int_equal(gpu->ops->poll(gpu, done, 4), 0); /* and the timer's */
        has_news = is_readable(gpu);
    }
    assert_false(has_news);

    op stray = prog.ops[0];
    stray.lane = LANE_UPDATE;
    lane_request wrong = {.prog = &prog, .item = &stray};
    assert_error(gpu->ops->submit(gpu, &wrong), ERR_INTERNAL, "no stream for lane update");
    assert_int_equal(gpu->ops->submit(gpu, &requests[0]), 0); /* which is no failure of the lane */
    await_requests(gpu, requests, 1);
    gpu_rig_unload(&r);
    gpu_rig_fini(&r);
    program_fini(&prog);
}

/* --- faults ----------------------------------------------------------------------------------- */

/* Runs the program, which must fail with `code`, the text and the name of the op (or ""); then
 * nothing runs any more. */
static void run_failing(gpu_rig *self, const program *prog, int code, const char *text,
                        const char *named)
{
    executor *exec = gpu_rig_executor(self, &prog, 1);
    int rc = executor_run(exec, prog, 1, NULL);
    if (rc != code || !strstr(err_text(), text))
        fail_msg("%d instead of %d, \"%s\" without \"%s\"", rc, code, err_text(), text);
    assert_error(executor_run(exec, prog, 2, NULL), ERR_POISONED, text);
    assert_non_null(strstr(err_text(), named));
    executor_destroy(exec);
    /* The lane refuses later requests too. */
    lane *gpu = self->lanes[LANE_H2D];
    lane_request request = {.prog = prog};
    for (uint32_t i = 0; i < prog->op_count && !request.item; i++)
        if (is_gpu_lane(prog->ops[i].lane))
            request = (lane_request){.prog = prog, .item = &prog->ops[i], .op_idx = i};
    assert_error(gpu->ops->submit(gpu, &request), ERR_POISONED, text);
}

static void any_failing_op_ends_the_run(void **state)
{
    program prog;
    const program *programs = &prog;
    random_program(4000, 90, &prog);
    for (uint32_t failing = 0; failing < prog.op_count; failing += 3) {
        uint8_t kind = prog.ops[failing].lane;
        char named[64];
        snprintf(named, sizeof named, "%s of unit %u", op_kind_name(prog.ops[failing].kind),
                 prog.ops[failing].unit);
        for (int in_finish = 0; in_finish < 2; in_finish++) {
            if (in_finish ? !is_gpu_lane(kind) : kind != LANE_COMPUTE && kind != LANE_COMM)
                continue;
            gpu_rig r;
            if (failing % 4 == 1) /* with ops in flight that nobody would report any more */
                gpu_rig_init_prepared(&r, 8, false, &programs, 1, 0);
            else
                gpu_rig_init(&r, 1 + failing % 5);
            gpu_rig_load(&r, &prog, failing);
            *(in_finish ? &r.fail_finish_idx : &r.fail_enqueue_idx) = failing;
            run_failing(&r, &prog, -EIO, in_finish ? "the result is bad" : "the kernel was refused",
                        named);
            assert_int_equal(r.late_finishes, 0);
            gpu_rig_unload(&r);
            gpu_rig_fini(&r);
        }
    }
    program_fini(&prog);
}

/* After a GPU has broken somewhere in the program, it calls no host function any more. A real GPU
 * stays broken for the process, so that there this is one case, and the last. */
static void a_broken_gpu_ends_the_run(void **state)
{
    static const uint32_t places[] = {40, 0, 80, 100};
    uint32_t count = 1;
#ifdef SLUICE_SIMULATED_GPU
    count = sizeof places / sizeof *places;
#endif
    program prog;
    random_program(5000, 120, &prog);
    for (uint32_t i = 0; i < count; i++) {
        gpu_rig r;
        gpu_rig_init(&r, 1 + 2 * i);
        gpu_rig_load(&r, &prog, i);
        r.break_idx = places[i];
        while (prog.ops[r.break_idx].lane != LANE_COMPUTE)
            r.break_idx++;
        run_failing(&r, &prog, ERR_BACKEND, "cudaErrorIllegalAddress", "");
        printf("broken by op %u: \"%s\"\n", r.break_idx, err_text());
        gpu_rig_unload(&r);
        gpu_rig_fini(&r);
#ifdef SLUICE_SIMULATED_GPU
        simulated_gpu_clear_fault();
#endif
    }
    program_fini(&prog);
}

int main(int argc, char **argv)
{
    char text[DEVICE_TEXT_BYTES];
    if (device_count(text) == 0) {
        printf("skipped: %s\n", text);
        return 77;
    }
    const struct CMUnitTest order[] = {
        cmocka_unit_test(random_programs_give_serial_values),
        cmocka_unit_test(conditional_programs_give_serial_values),
        cmocka_unit_test(later_runs_only_enqueue),
        cmocka_unit_test(prepared_programs_give_serial_values),
#ifdef SLUICE_SIMULATED_GPU
        cmocka_unit_test(a_lost_dependency_shows),
        cmocka_unit_test(without_graphs_it_goes_on),
#endif
    };
    const struct CMUnitTest refusals[] = {
        cmocka_unit_test(creation_refuses),
        cmocka_unit_test(a_full_lane_says_so),
    };
    const struct CMUnitTest faults[] = {
        cmocka_unit_test(any_failing_op_ends_the_run),
        cmocka_unit_test(a_broken_gpu_ends_the_run), /* the last */
    };
    const char *instance = argc > 1 ? argv[1] : "order";
    if (strcmp(instance, "refusals") == 0)
        return cmocka_run_group_tests(refusals, NULL, NULL);
    if (strcmp(instance, "faults") == 0)
        return cmocka_run_group_tests(faults, NULL, NULL);
    return cmocka_run_group_tests(order, NULL, NULL);
}
