/* The executor on fake lanes: any timing gives the values of serial execution; issue order, depth
 * and dependencies are respected; lanes overlap; errors drain and poison; nothing is allocated.
 * Runs once plain and once in paranoid mode. */
#include <errno.h>

#include "base/mem.h"
#include "tests/swap/swap_rig.h"
#include "tests/unit.h"

/* --- values ----------------------------------------------------------------------------------- */

static void check_totals(const rig *self, const program *prog, const run_totals *totals)
{
    uint64_t ops = 0, bytes = 0, expected_bytes = 0;
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        ops += totals->lanes[kind].op_count;
        bytes += totals->lanes[kind].bytes;
        assert_true(totals->lanes[kind].busy_ns <= totals->end_ns - totals->start_ns);
    }
    for (uint64_t i = 0; i < prog->op_count; i++)
        expected_bytes += op_moved_bytes(&prog->ops[i]);
    assert_int_equal(ops, prog->op_count);
    assert_int_equal(bytes, expected_bytes);
    assert_int_equal(self->ring.written, prog->op_count);
}

/* The features that the random runs together must have exercised. */
struct coverage {
    uint64_t early_submits, behind_submits, drive_depth, overlaps;
};

static void run_random(uint64_t seed, bool threaded, struct coverage *seen)
{
    program prog;
    random_program(seed, 60 + (uint32_t)(seed % 4) * 60, &prog);
    assert_int_equal(program_check(&prog), 0);
    rig_config config = {.seed = seed,
                         .threaded = threaded,
                         .shared_worker = seed % 2 == 0,
                         .busy_one_in = seed % 3 == 0 ? 4 : 0,
                         .fail_op_idx = PROGRAM_NONE};
    rig r;
    rig_init(&r, &prog, &config);
    fixture_arenas serial;
    fixture_arenas_init(&serial, &prog, seed);
    fixture_execute_all(&serial, &prog);
    run_totals totals;
    if (executor_run(r.exec, &prog, 7, &totals) != 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
    if (!rig_matches(&r, &serial))
        fail_msg("seed %llu: memory differs from serial execution", (unsigned long long)seed);
    rig_check_discipline(&r, seed);
    check_totals(&r, &prog, &totals);
    seen->early_submits += r.watch.early_submits;
    seen->behind_submits += r.watch.behind_submits;
    seen->drive_depth += r.watch.in_flight_max[LANE_READ] > 1;
    seen->overlaps += r.watch.together[LANE_COMPUTE][LANE_READ];
    fixture_arenas_fini(&serial);
    rig_fini(&r);
    program_fini(&prog);
}

static void random_timing_gives_serial_values(void **state)
{
    enum { PROGRAMS = 80 };
    struct coverage seen = {0};
    for (uint64_t seed = 1000; seed < 1000 + PROGRAMS; seed++)
        run_random(seed, false, &seen);
    printf(
        "seeds 1000 to %d: %llu submits ahead, %llu behind others in flight, %llu runs with a deep "
        "read queue, %llu overlaps\n",
        1000 + PROGRAMS - 1, (unsigned long long)seen.early_submits,
        (unsigned long long)seen.behind_submits, (unsigned long long)seen.drive_depth,
        (unsigned long long)seen.overlaps);
    assert_true(seen.drive_depth > 0 && seen.overlaps > 0);
    assert_int_equal(seen.early_submits > 0, !rig_is_paranoid); /* which feeds no worker ahead */
    assert_int_equal(seen.behind_submits > 0, !rig_is_paranoid);
}

static void random_threads_give_serial_values(void **state)
{
    enum { PROGRAMS = 24 };
    struct coverage seen = {0};
    for (uint64_t seed = 2000; seed < 2000 + PROGRAMS; seed++)
        run_random(seed, true, &seen);
    printf("seeds 2000 to %d\n", 2000 + PROGRAMS - 1);
    assert_int_equal(seen.early_submits > 0, !rig_is_paranoid);
}

/* A worker gets the next op of its other lane while the one before it runs; in paranoid mode only
 * after what that one releases was poisoned. */
static void workers_are_fed_ahead(void **state)
{
    builder b;
    program prog;
    builder_init(&b, PROGRAM_STEADY, 4096, 4096, 4096);
    uint32_t home = builder_home(&b, TIER_DEVICE, 0, 4096);
    builder_op(&b, OP_FORWARD);
    builder_use(&b, ROLE_OUTPUT, ACCESS_WRITE, home, 0, 256);
    builder_op(&b, OP_UPDATE);
    builder_use(&b, ROLE_STATE, ACCESS_UPDATE, home, 0, 256);
    builder_dep(&b, 0);
    builder_finish(&b, &prog);
    rig r;
    rig_init(&r, &prog,
             &(rig_config){.seed = 3, .shared_worker = true, .fail_op_idx = PROGRAM_NONE});
    assert_int_equal(executor_run(r.exec, &prog, 1, NULL), 0);
    assert_int_equal(r.watch.early_submits, rig_is_paranoid ? 0 : 1);
    rig_check_discipline(&r, 3);
    rig_fini(&r);
    program_fini(&prog);
}

/* The canary: with a needed dependency gone the values must differ under some timing, or the tests
 * above would prove nothing. */
static void a_lost_dependency_shows(void **state)
{
    uint64_t differing = 0;
    for (uint64_t seed = 1; seed <= 40 && differing == 0; seed++) {
        program prog;
        random_program(3000, 120, &prog);
        for (uint32_t i = 0; i < prog.op_count; i++)
            prog.ops[i].dep_count = 0;
        assert_int_equal(program_check(&prog), ERR_INTERNAL);
        rig r;
        rig_init(&r, &prog, &(rig_config){.seed = seed, .fail_op_idx = PROGRAM_NONE});
        fixture_arenas serial;
        fixture_arenas_init(&serial, &prog, seed);
        fixture_execute_all(&serial, &prog);
        assert_int_equal(executor_run(r.exec, &prog, 1, NULL), 0);
        differing += !rig_matches(&r, &serial);
        fixture_arenas_fini(&serial);
        rig_fini(&r);
        program_fini(&prog);
    }
    assert_true(differing > 0);
}

/* --- errors ----------------------------------------------------------------------------------- */

/* Fails op `failing` of the program in the given way; checks code, text, drain and poison. */
static void run_failing(const program *prog, uint32_t failing, uint64_t seed, rig_config config)
{
    config.seed = seed;
    config.fail_op_idx = failing;
    rig r;
    rig_init(&r, prog, &config);
    run_totals totals;
    char expected[64];
    snprintf(expected, sizeof expected, "%s of unit %u",
             op_kind_name((enum op_kind)prog->ops[failing].kind), prog->ops[failing].unit);
    assert_int_equal(executor_run(r.exec, prog, 1, &totals), -EIO);
    bool names_op = strncmp(err_text(), expected, strlen(expected)) == 0 &&
                    (strstr(err_text(), "was told to fail") || strstr(err_text(), "was refused"));
    if (config.fail_poll)
        names_op = strstr(err_text(), "the lane is broken") != NULL;
    if (!names_op)
        fail_msg("seed %llu, op %u: \"%s\"", (unsigned long long)seed, failing, err_text());
    assert_int_equal(r.watch.submits_after_failure, 0);
    if (!config.fail_poll)
        assert_int_equal(rig_in_flight(&r), 0);
    assert_int_equal(totals.lanes[LANE_COMPUTE].op_count, 0);
    assert_error(executor_run(r.exec, prog, 2, NULL), ERR_POISONED, "fake lane");
    rig_fini(&r);
}

static void any_error_drains_and_poisons(void **state)
{
    program prog;
    random_program(4000, 90, &prog);
    uint32_t stride = rig_is_paranoid ? 5 : 1; /* its rigs are large */
    for (uint32_t failing = 0; failing < prog.op_count; failing += stride) {
        rig_config config = {.shared_worker = failing % 2 == 0};
        run_failing(&prog, failing, 4000 + failing, config);
        config.fail_submit = true;
        run_failing(&prog, failing, 4000 + failing, config);
        config = (rig_config){.fail_poll = true};
        run_failing(&prog, failing, 4000 + failing, config);
        if (failing % 8 == 0)
            run_failing(&prog, failing, 4000 + failing, (rig_config){.threaded = true});
    }
    program_fini(&prog);
}

/* Two ops that wait for each other: such a program must not pass the check, nor hang the
 * executor. */
static void a_deadlock_is_named(void **state)
{
    program prog;
    random_program(5000, 60, &prog);
    uint32_t victim = 0;
    while (prog.ops[victim].dep_count == 0 || victim < 20)
        victim++;
    uint32_t last = (uint32_t)prog.op_count - 1;
    while (prog.ops[last].dep_count == 0)
        last--;
    assert_true(last > victim);
    prog.deps[prog.ops[victim].dep_begin] = last;
    prog.deps[prog.ops[last].dep_begin] = victim;
    assert_int_equal(program_check(&prog), ERR_INTERNAL);
    rig r;
    rig_init(&r, &prog, &(rig_config){.seed = 5, .fail_op_idx = PROGRAM_NONE});
    assert_int_equal(executor_run(r.exec, &prog, 1, NULL), ERR_INTERNAL);
    char expected[64];
    snprintf(expected, sizeof expected, "(op %u) waits for", victim);
    if (!strstr(err_text(), expected) || !strstr(err_text(), "deadlock"))
        fail_msg("\"%s\" does not say \"%s\"", err_text(), expected);
    assert_int_equal(rig_in_flight(&r), 0);
    assert_int_equal(executor_run(r.exec, &prog, 1, NULL), ERR_POISONED);
    rig_fini(&r);
    program_fini(&prog);
}

static void creation_refuses(void **state)
{
    program prog;
    random_program(6000, 60, &prog);
    const program *programs = &prog;
    executor_config config = {.programs = &programs, .program_count = 1};
    executor *exec;
    assert_int_equal(executor_create(&config, &exec), ERR_INTERNAL);
    assert_null(exec);
    assert_non_null(strstr(err_text(), "which was not given"));
    executor_destroy(NULL);

    rig r;
    rig_init(&r, &prog, &(rig_config){.seed = 6, .fail_op_idx = PROGRAM_NONE});
    program other = prog;
    assert_error(executor_run(r.exec, &other, 1, NULL), ERR_INTERNAL, "not named at creation");
    assert_int_equal(executor_run(r.exec, &prog, 1, NULL), 0); /* refusing is not a failure */
    rig_fini(&r);
    program_fini(&prog);
}

/* --- the machinery ---------------------------------------------------------------------------- */

static void runs_repeat_without_allocation(void **state)
{
    program prog, empty = {.kind = PROGRAM_FLUSH};
    random_program(7000, 150, &prog);
    rig r;
    rig_init(&r, &prog,
             &(rig_config){.seed = 7, .shared_worker = true, .fail_op_idx = PROGRAM_NONE});
    const program *programs[] = {&empty, &prog};
    rig_set_programs(&r, programs, 2);
    mem_stats before, after;
    mem_get_stats(&before);
    for (uint64_t step = 1; step <= 10; step++) {
        rig_forget_run(&r);
        run_totals totals;
        assert_int_equal(executor_run(r.exec, &prog, step, &totals), 0);
        assert_true(totals.lanes[LANE_COMPUTE].op_count > 0);
        assert_int_equal(executor_run(r.exec, &empty, step, &totals), 0);
        assert_int_equal(totals.lanes[LANE_COMPUTE].op_count, 0);
    }
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    rig_check_discipline(&r, 7);
    rig_fini(&r);
    program_fini(&prog);
}

/* Every op once in the ring, with its own times and places. */
static void trace_holds_each_op(void **state)
{
    program prog;
    random_program(8000, 100, &prog);
    rig r;
    rig_init(&r, &prog, &(rig_config){.seed = 8, .fail_op_idx = PROGRAM_NONE});
    assert_int_equal(executor_run(r.exec, &prog, 42, NULL), 0);
    assert_int_equal(r.ring.written, prog.op_count);
    uint64_t index_sum = 0;
    for (uint64_t i = 0; i < r.ring.written; i++) {
        const trace_event *event = &r.ring.events[i];
        const op *item = &prog.ops[event->op_idx];
        index_sum += event->op_idx;
        assert_int_equal(event->lane, item->lane);
        assert_int_equal(event->kind, item->kind);
        assert_int_equal(event->unit, item->unit);
        assert_int_equal(event->step, 42);
        assert_int_equal(event->program, PROGRAM_STEADY);
        assert_int_equal(event->bytes, op_moved_bytes(item));
        assert_true(event->start_ns <= event->end_ns);
    }
    assert_int_equal(index_sum, prog.op_count * (prog.op_count - 1) / 2);
    rig_fini(&r);
    program_fini(&prog);
}

/* A lane with times that the test dictates, to check the totals to the nanosecond. */
struct clock_lane {
    lane base;
    struct {
        uint64_t start_ns, end_ns, wait_ns;
    } times[8]; /* by op index, relative to the submit of op 0 */
    lane_request *finished[8];
    uint32_t finished_count;
    uint64_t origin_ns;
    int event_fd;
};
typedef struct clock_lane clock_lane;

static int clock_submit(lane *base, lane_request *request)
{
    clock_lane *self = (clock_lane *)base;
    request->start_ns = self->origin_ns + self->times[request->op_idx].start_ns;
    request->end_ns = self->origin_ns + self->times[request->op_idx].end_ns;
    request->wait_ns = self->times[request->op_idx].wait_ns;
    request->result = 0;
    self->finished[self->finished_count++] = request;
    return 0;
}

static int clock_poll(lane *base, lane_request **done, size_t max)
{
    clock_lane *self = (clock_lane *)base;
    size_t count = self->finished_count < max ? self->finished_count : max;
    memcpy(done, self->finished, count * sizeof *done);
    self->finished_count = 0;
    return (int)count;
}

static int clock_event_fd(const lane *base)
{
    return ((const clock_lane *)base)->event_fd;
}

static const struct lane_ops clock_ops = {
    .name = "clock", .submit = clock_submit, .poll = clock_poll, .event_fd = clock_event_fd};

static void stalls_go_to_the_lane_waited_for(void **state)
{
    builder b;
    program prog;
    builder_init(&b, PROGRAM_STEADY, 4096, 4096, 4096);
    uint32_t home = builder_home(&b, TIER_DEVICE, 0, 4096);
    static const struct {
        enum op_kind kind;
        int deps[2];
    } ops[] = {
        {OP_READ, {-1, -1}},   /* 0 */
        {OP_H2D, {-1, -1}},    /* 1 */
        {OP_UPDATE, {0, 1}},   /* 2: the read ended last */
        {OP_READ, {-1, -1}},   /* 3: overlaps op 0 */
        {OP_FORWARD, {2, -1}}, /* 4: waited, but for its own worker alone */
        {OP_FORWARD, {1, -1}}, /* 5: idle before, but op 1 ended long before that */
        {OP_UPDATE, {3, -1}},  /* 6: a wait too short to count */
        {OP_WRITE, {2, -1}},   /* 7: ends the run */
    };
    for (int i = 0; i < 8; i++) {
        builder_op(&b, ops[i].kind);
        builder_use(&b, ROLE_TARGET, ACCESS_WRITE, home, 0, 100);
        for (int k = 0; k < 2; k++)
            if (ops[i].deps[k] >= 0)
                builder_dep(&b, (uint32_t)ops[i].deps[k]);
    }
    builder_finish(&b, &prog);
    enum { K = 1000 };
    clock_lane fixed = {
        .base = {.ops = &clock_ops, .depth = 8, .in_order = 0, .owner = 0},
        .times = {{0, 50 * K, 0},
                  {10 * K, 40 * K, 0},
                  {51 * K, 60 * K, 45 * K},
                  {30 * K, 61 * K, 0},
                  {70 * K, 80 * K, 10 * K},
                  {90 * K, 100 * K, 10 * K},
                  {101 * K, 110 * K, 1 * K},
                  {60 * K, 140 * K, 0}},
    };
    /* In the future, so that no wait is cut at the start of the run. */
    fixed.origin_ns = UINT64_C(1) << 62;
    clock_lane cores = fixed;
    cores.base.in_order = 1;
    trace ring;
    assert_int_equal(trace_init(&ring, 16), 0);
    const program *programs = &prog;
    executor_config config = {.programs = &programs, .program_count = 1, .ring = &ring};
    for (int kind = 0; kind < LANE_COUNT; kind++)
        config.lanes[kind] = kind >= LANE_COMPUTE ? &cores.base : &fixed.base;
    executor *exec;
    run_totals totals;
    assert_int_equal(executor_create(&config, &exec), 0);
    assert_int_equal(executor_run(exec, &prog, 1, &totals), 0);
    assert_int_equal(totals.lanes[LANE_READ].busy_ns, 61 * K);
    assert_int_equal(totals.lanes[LANE_H2D].busy_ns, 30 * K);
    assert_int_equal(totals.lanes[LANE_UPDATE].busy_ns, 18 * K);
    assert_int_equal(totals.lanes[LANE_COMPUTE].busy_ns, 20 * K);
    assert_int_equal(totals.lanes[LANE_READ].stall_ns, 45 * K);
    assert_int_equal(totals.lanes[LANE_H2D].stall_ns, 0);
    assert_int_equal(totals.lanes[LANE_UPDATE].stall_ns, 0);
    assert_int_equal(totals.lanes[LANE_WRITE].stall_ns,
                     30 * K); /* from the last update to the end */
    assert_int_equal(totals.lanes[LANE_READ].bytes, 200);
    for (uint64_t i = 0; i < ring.written; i++) {
        const trace_event *event = &ring.events[i];
        assert_int_equal(event->stall_lane, event->op_idx == 2 ? LANE_READ : LANE_COUNT);
        assert_int_equal(event->stall_is_hand_over, event->stall_ns > 0 && event->op_idx != 2);
        assert_int_equal(event->stall_ns, cores.times[event->op_idx].wait_ns);
    }
    executor_destroy(exec);
    trace_fini(&ring);
    program_fini(&prog);
}

/* A GPU's streams are one lane object, whose worker is fed ahead; compute waits for copies all the
 * same, and for the updates of a worker of their own. */
static void a_gpu_waits_for_its_copies(void **state)
{
    builder b;
    program prog;
    builder_init(&b, PROGRAM_STEADY, 4096, 4096, 4096);
    uint32_t home = builder_home(&b, TIER_DEVICE, 0, 4096);
    static const struct {
        enum op_kind kind;
        int dep;
    } ops[] = {
        {OP_H2D, -1},    /* 0 */
        {OP_FORWARD, 0}, /* 1: waits for the copy */
        {OP_FORWARD, 1}, /* 2: idle before, but for its own lane alone */
        {OP_UPDATE, -1}, /* 3 */
        {OP_FORWARD, 3}, /* 4: waits for the update */
        {OP_D2H, 4},     /* 5: ends the run */
    };
    for (int i = 0; i < 6; i++) {
        builder_op(&b, ops[i].kind);
        builder_use(&b, ROLE_TARGET, ACCESS_WRITE, home, 0, 100);
        if (ops[i].dep >= 0)
            builder_dep(&b, (uint32_t)ops[i].dep);
    }
    builder_finish(&b, &prog);
    enum { K = 1000 };
    clock_lane gpu = {
        .base = {.ops = &clock_ops, .depth = 8, .in_order = 1, .owner = 1},
        .times = {{0, 50 * K, 0},
                  {51 * K, 60 * K, 51 * K},
                  {70 * K, 80 * K, 10 * K},
                  {60 * K, 95 * K, 0},
                  {96 * K, 110 * K, 16 * K},
                  {110 * K, 130 * K, 0}},
        .origin_ns = UINT64_C(1) << 62,
    };
    clock_lane cores = gpu;
    cores.base.owner = 2;
    const program *programs = &prog;
    executor_config config = {.programs = &programs, .program_count = 1};
    for (int kind = 0; kind < LANE_COUNT; kind++)
        config.lanes[kind] = kind == LANE_UPDATE ? &cores.base : &gpu.base;
    executor *exec;
    run_totals totals;
    assert_int_equal(executor_create(&config, &exec), 0);
    assert_int_equal(executor_run(exec, &prog, 1, &totals), 0);
    assert_int_equal(totals.lanes[LANE_H2D].stall_ns, 51 * K);
    assert_int_equal(totals.lanes[LANE_COMPUTE].stall_ns, 0);
    assert_int_equal(totals.lanes[LANE_UPDATE].stall_ns, 16 * K);
    assert_int_equal(totals.lanes[LANE_D2H].stall_ns, 20 * K); /* from the last op to the end */
    executor_destroy(exec);
    program_fini(&prog);
}

int main(int argc, char **argv)
{
    rig_mode_from(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_timing_gives_serial_values),
        cmocka_unit_test(random_threads_give_serial_values),
        cmocka_unit_test(workers_are_fed_ahead),
        cmocka_unit_test(a_lost_dependency_shows),
        cmocka_unit_test(any_error_drains_and_poisons),
        cmocka_unit_test(a_deadlock_is_named),
        cmocka_unit_test(creation_refuses),
        cmocka_unit_test(runs_repeat_without_allocation),
        cmocka_unit_test(trace_holds_each_op),
        cmocka_unit_test(stalls_go_to_the_lane_waited_for),
        cmocka_unit_test(a_gpu_waits_for_its_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
