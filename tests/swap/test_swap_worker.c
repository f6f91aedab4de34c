/* The worker lane: order and priority, dependencies between its own lanes, pauses, idle time,
 * errors, start and end; alone and under the executor. */
#include <errno.h>
#include <poll.h>
#include <semaphore.h>

#include "base/mem.h"
#include "swap/executor.h"
#include "tests/swap/fake_lane.h"
#include "tests/swap/swap_fixture.h"
#include "tests/unit.h"

enum { OPS_MAX = 16 };

/* The callback's actions and observations. The worker writes it while it runs an op; the test reads
 * it after that op was polled. */
struct script {
    sem_t gate; /* op 0 waits here, so that others queue up behind it */
    bool gated;
    uint32_t fail_op_idx; /* PROGRAM_NONE: none */
    uint32_t ran[OPS_MAX];
    uint32_t ran_count;
    uint32_t thread_starts;
    int start_code;
    lane *pauses; /* the worker, if each op pauses after its work; else NULL */
    sem_t begun;  /* with `pauses`: op 0 has begun */
};
typedef struct script script;

static int run_script(void *user, const program *prog, const op *item)
{
    script *self = user;
    uint32_t op_idx = (uint32_t)(item - prog->ops);
    if (self->pauses && op_idx == 0)
        sem_post(&self->begun);
    if (self->gated && op_idx == 0)
        sem_wait(&self->gate);
    self->ran[self->ran_count++] = op_idx;
    if (self->pauses)
        lane_worker_pause(self->pauses);
    if (op_idx == self->fail_op_idx)
        return err_set(-EDOM, "op %u met a negative root", op_idx);
    return 0;
}

static int start_script(void *user)
{
    script *self = user;
    self->thread_starts++;
    return self->start_code < 0 ? err_set(self->start_code, "no such core") : 0;
}

static lane *create_worker(script *self)
{
    lane_worker_config config = {.name = "cores",
                                 .run = run_script,
                                 .start_thread = start_script,
                                 .user = self,
                                 .owner = 3,
                                 .depth = 2,
                                 .priority_lane = LANE_COMPUTE};
    lane *worker;
    assert_int_equal(lane_worker_create(&config, &worker), 0);
    assert_int_equal(worker->owner, 3);
    assert_int_equal(worker->in_order, 1);
    assert_int_equal(self->thread_starts, 1);
    return worker;
}

static void submit_from(uint32_t first, lane *worker, const program *prog, lane_request *requests)
{
    for (uint32_t i = first; i < prog->op_count; i++) {
        requests[i] = (lane_request){.prog = prog, .item = &prog->ops[i], .op_idx = i};
        assert_int_equal(worker->ops->submit(worker, &requests[i]), 0);
    }
}

static void submit_all(lane *worker, const program *prog, lane_request *requests)
{
    submit_from(0, worker, prog, requests);
}

/* Sleeps on the descriptor until `count` requests are back. */
static void await(lane *worker, uint32_t count, lane_request **done)
{
    for (uint32_t got = 0; got < count;) {
        struct pollfd fd = {.fd = worker->ops->event_fd(worker), .events = POLLIN};
        assert_int_equal(poll(&fd, 1, 20000), 1); /* a hang fails here */
        int rc = worker->ops->poll(worker, done + got, 2);
        assert_true(rc >= 0 && rc <= 2);
        got += (uint32_t)rc;
    }
    struct pollfd fd = {.fd = worker->ops->event_fd(worker), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 0), 0); /* nothing left, nothing readable */
}

/* Update 0, update 1, forward 2 (after update 1), forward 3, update 4 (after forward 3), forward
 * 5. */
static void build_mixed(program *out)
{
    builder b;
    builder_init(&b, PROGRAM_STEADY, 4096, 4096, 4096);
    uint32_t home = builder_home(&b, TIER_DEVICE, 0, 4096);
    static const enum op_kind kinds[] = {OP_UPDATE,  OP_UPDATE, OP_FORWARD,
                                         OP_FORWARD, OP_UPDATE, OP_FORWARD};
    for (uint32_t i = 0; i < 6; i++) {
        builder_op(&b, kinds[i]);
        builder_use(&b, ROLE_TARGET, ACCESS_WRITE, home, 0, 256);
        if (i == 2)
            builder_dep(&b, 1);
        if (i == 4)
            builder_dep(&b, 3);
    }
    builder_finish(&b, out);
}

static void priority_within_dependencies(void **state)
{
    program prog;
    build_mixed(&prog);
    script plan = {.gated = true, .fail_op_idx = PROGRAM_NONE};
    sem_init(&plan.gate, 0, 0);
    lane *worker = create_worker(&plan);
    lane_request requests[OPS_MAX], *done[OPS_MAX];
    mem_stats before, after;
    mem_get_stats(&before);
    submit_all(worker, &prog, requests); /* op 0 runs first and waits at the gate */
    sem_post(&plan.gate);
    await(worker, 6, done);
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    /* Forward 2 has priority but waits for update 1; then forwards until there are none left. */
    static const uint32_t expected[] = {0, 1, 2, 3, 5, 4};
    assert_memory_equal(plan.ran, expected, sizeof expected);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(done[i]->op_idx, plan.ran[i]); /* completes in the order of running */
        assert_int_equal(done[i]->result, 0);
        assert_true(done[i]->end_ns >= done[i]->start_ns);
        if (i > 0) {
            assert_true(done[i]->start_ns >= done[i - 1]->end_ns); /* one at a time */
            assert_int_equal(done[i]->wait_ns, done[i]->start_ns - done[i - 1]->end_ns);
        }
    }
    worker->ops->destroy(worker);
    sem_destroy(&plan.gate);
    program_fini(&prog);
}

static sem_t rested;

static void note_rest(void)
{
    sem_post(&rested);
}

/* Once at the start and once after each batch of requests, however long it sleeps. */
static void a_worker_rests_before_it_sleeps(void **state)
{
    program prog;
    build_mixed(&prog);
    script plan = {.fail_op_idx = PROGRAM_NONE};
    lane_worker_config config = {.name = "cores",
                                 .run = run_script,
                                 .rest = note_rest,
                                 .user = &plan,
                                 .depth = 2,
                                 .priority_lane = LANE_COMPUTE};
    lane *worker;
    lane_request request = {.prog = &prog, .item = &prog.ops[0]}, *done[1];
    int left;
    sem_init(&rested, 0, 0);
    assert_ok(lane_worker_create(&config, &worker));
    for (int i = 0; i < 3; i++) {
        sem_wait(&rested); /* a hang fails by the test's time limit */
        assert_ok(worker->ops->submit(worker, &request));
        await(worker, 1, done);
        plan.ran_count = 0;
    }
    sem_wait(&rested);
    worker->ops->destroy(worker);
    assert_true(sem_getvalue(&rested, &left) == 0 && left == 0);
    sem_destroy(&rested);
    program_fini(&prog);
}

static void failure_stops_the_worker(void **state)
{
    program prog;
    build_mixed(&prog);
    script plan = {.gated = true, .fail_op_idx = 1};
    sem_init(&plan.gate, 0, 0);
    lane *worker = create_worker(&plan);
    lane_request requests[OPS_MAX], *done[OPS_MAX];
    submit_all(worker, &prog, requests);
    sem_post(&plan.gate);
    await(worker, 6, done);
    assert_int_equal(plan.ran_count, 2);
    assert_int_equal(requests[0].result, 0);
    assert_int_equal(requests[1].result, -EDOM);
    for (uint32_t i = 2; i < 6; i++)
        assert_int_equal(requests[i].result, ERR_POISONED);
    assert_int_equal(worker->ops->error(worker)->code, -EDOM);
    assert_string_equal(worker->ops->error(worker)->text, "op 1 met a negative root");
    worker->ops->destroy(worker);
    sem_destroy(&plan.gate);
    program_fini(&prog);
}

/* Forward 0, update 1, update 2 (after forward 0), update 3, forward 4. */
static void build_paused(program *out)
{
    builder b;
    builder_init(&b, PROGRAM_STEADY, 4096, 4096, 4096);
    uint32_t home = builder_home(&b, TIER_DEVICE, 0, 4096);
    static const enum op_kind kinds[] = {OP_FORWARD, OP_UPDATE, OP_UPDATE, OP_UPDATE, OP_FORWARD};
    for (uint32_t i = 0; i < 5; i++) {
        builder_op(&b, kinds[i]);
        builder_use(&b, ROLE_TARGET, ACCESS_WRITE, home, 0, 256);
        if (i == 2)
            builder_dep(&b, 0);
    }
    builder_finish(&b, out);
}

/* Runs that program with updates first, while each op pauses. Forward 0 is the first to run. */
static void run_paused(script *plan, lane_request *requests, lane_request **done, program *prog)
{
    lane_worker_config config = {
        .name = "cores", .run = run_script, .user = plan, .depth = 2, .priority_lane = LANE_UPDATE};
    build_paused(prog);
    sem_init(&plan->gate, 0, 0);
    sem_init(&plan->begun, 0, 0);
    plan->gated = true;
    assert_ok(lane_worker_create(&config, &plan->pauses));
    requests[0] = (lane_request){.prog = prog, .item = &prog->ops[0]};
    assert_ok(plan->pauses->ops->submit(plan->pauses, &requests[0]));
    sem_wait(&plan->begun);
    submit_from(1, plan->pauses, prog, requests);
    sem_post(&plan->gate);
    await(plan->pauses, 5, done);
}

/* Within forward 0 an update runs that may, and no other; an update does not pause. */
static void updates_run_in_the_pauses_of_a_pass(void **state)
{
    program prog;
    script plan = {.fail_op_idx = PROGRAM_NONE};
    lane_request requests[OPS_MAX], *done[OPS_MAX];
    run_paused(&plan, requests, done, &prog);
    static const uint32_t ended[] = {1, 0, 2, 3, 4};
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(plan.ran[i], i);
        assert_int_equal(done[i]->op_idx, ended[i]);
        assert_int_equal(done[i]->result, 0);
    }
    assert_true(requests[0].start_ns <= requests[1].start_ns);
    assert_true(requests[1].end_ns <= requests[0].end_ns);
    assert_true(requests[0].paused_ns >= requests[1].end_ns - requests[1].start_ns);
    assert_true(requests[0].paused_ns <= requests[0].end_ns - requests[0].start_ns);
    assert_int_equal(requests[2].wait_ns, requests[2].start_ns - requests[0].end_ns);
    assert_int_equal(requests[1].paused_ns + requests[2].paused_ns + requests[3].paused_ns, 0);
    plan.pauses->ops->destroy(plan.pauses);
    sem_destroy(&plan.begun);
    sem_destroy(&plan.gate);
    program_fini(&prog);
}

/* The pass goes on to its end, and its result counts; nothing else runs. */
static void an_update_fails_in_a_pause(void **state)
{
    program prog;
    script plan = {.fail_op_idx = 1};
    lane_request requests[OPS_MAX], *done[OPS_MAX];
    run_paused(&plan, requests, done, &prog);
    assert_int_equal(plan.ran_count, 2);
    assert_int_equal(requests[0].result, 0);
    assert_int_equal(requests[1].result, -EDOM);
    for (uint32_t i = 2; i < 5; i++)
        assert_int_equal(requests[i].result, ERR_POISONED);
    assert_string_equal(plan.pauses->ops->error(plan.pauses)->text, "op 1 met a negative root");
    plan.pauses->ops->destroy(plan.pauses);
    sem_destroy(&plan.begun);
    sem_destroy(&plan.gate);
    program_fini(&prog);
}

static void configuration(void **state)
{
    lane *worker;
    script plan = {.fail_op_idx = PROGRAM_NONE};
    lane_worker_config config = {.name = "cores",
                                 .run = run_script,
                                 .start_thread = start_script,
                                 .user = &plan,
                                 .depth = 0};
    assert_int_equal(lane_worker_create(&config, &worker), -EINVAL);
    assert_null(worker);
    config.depth = 2;
    plan.start_code = -ENODEV;
    assert_int_equal(lane_worker_create(&config, &worker), -ENODEV);
    assert_null(worker);
    assert_string_equal(err_text(), "lane cores: no such core");
    plan.start_code = 0;
    config.start_thread = NULL;
    assert_int_equal(lane_worker_create(&config, &worker), 0);
    worker->ops->destroy(worker); /* idle: returns at once */
}

/* The memory of a random program's ops, and their worker if they pause. */
struct pausing {
    fixture_arenas *arenas;
    lane *worker;
};

static int execute_with_pauses(void *user, const program *prog, const op *item)
{
    const struct pausing *self = user;
    if (self->worker)
        lane_worker_pause(self->worker);
    int rc = fixture_execute(self->arenas, prog, item);
    if (self->worker)
        lane_worker_pause(self->worker);
    return rc;
}

/* Random programs with compute and update on one real worker, the other lanes random threads. With
 * every other pair of seeds ops pause. */
static void values_under_the_executor(void **state)
{
    enum { PROGRAMS = 30 };
    for (uint64_t seed = 9000; seed < 9000 + PROGRAMS; seed++) {
        program prog;
        random_program(seed, 150, &prog);
        fixture_arenas arenas, serial;
        fixture_arenas_init(&arenas, &prog, seed);
        fixture_arenas_init(&serial, &prog, seed);
        fixture_execute_all(&serial, &prog);
        struct pausing pausing = {.arenas = &arenas};
        lane_worker_config cores = {.name = "cores",
                                    .run = execute_with_pauses,
                                    .user = &pausing,
                                    .owner = 1,
                                    .depth = 1 + (uint32_t)(seed % 4),
                                    .priority_lane = seed % 2 ? LANE_COMPUTE : LANE_UPDATE};
        const program *programs = &prog;
        executor_config config = {.programs = &programs, .program_count = 1};
        for (int kind = 0; kind < LANE_COMPUTE; kind++)
            config.lanes[kind] = fake_lane_create(&(fake_lane_config){
                .seed = seed * 10 + (uint64_t)kind,
                .depth = 3,
                .in_order = kind >= LANE_H2D,
                .owner = 2 + (uint32_t)kind,
                .threaded = true,
                .fail_op_idx = PROGRAM_NONE,
                .run = fixture_execute,
                .user = &arenas,
            });
        assert_int_equal(lane_worker_create(&cores, &config.lanes[LANE_COMPUTE]), 0);
        config.lanes[LANE_UPDATE] = config.lanes[LANE_COMPUTE];
        pausing.worker = seed & 2 ? config.lanes[LANE_COMPUTE] : NULL;
        executor *exec;
        run_totals totals;
        assert_int_equal(executor_create(&config, &exec), 0);
        for (uint64_t step = 1; step <= 2; step++) {
            if (step == 2)
                fixture_execute_all(&serial, &prog);
            if (executor_run(exec, &prog, step, &totals) != 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
            if (!fixture_arenas_equal(&arenas, &serial))
                fail_msg("seed %llu: memory differs", (unsigned long long)seed);
        }
        uint64_t stall_ns = 0;
        for (int kind = 0; kind < LANE_COUNT; kind++)
            stall_ns += totals.lanes[kind].stall_ns;
        uint64_t run_ns = totals.end_ns - totals.start_ns;
        assert_true(stall_ns <= run_ns);
        assert_true(totals.lanes[LANE_COMPUTE].busy_ns + totals.lanes[LANE_UPDATE].busy_ns <=
                    run_ns);
        executor_destroy(exec);
        for (int kind = 0; kind <= LANE_COMPUTE; kind++)
            config.lanes[kind]->ops->destroy(config.lanes[kind]);
        fixture_arenas_fini(&arenas);
        fixture_arenas_fini(&serial);
        program_fini(&prog);
    }
    printf("seeds 9000 to %d\n", 9000 + PROGRAMS - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(priority_within_dependencies),
        cmocka_unit_test(a_worker_rests_before_it_sleeps),
        cmocka_unit_test(failure_stops_the_worker),
        cmocka_unit_test(updates_run_in_the_pauses_of_a_pass),
        cmocka_unit_test(an_update_fails_in_a_pause),
        cmocka_unit_test(configuration),
        cmocka_unit_test(values_under_the_executor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
