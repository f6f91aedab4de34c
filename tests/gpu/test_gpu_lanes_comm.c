/* The comm lane beside a GPU's lanes (swap/lane_stream.h): as a worker of the host that copies on a
 * stream of its own, as the staged collectives do, programs give the values of serial execution
 * whatever the timing; as a stream, an op that never ends (a collective whose peers are gone) is
 * ended by config.watch. The simulated GPU's streams delay each piece of work at random. */
#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#include "tests/gpu/gpu_lanes_rig.h"
#include "tests/unit.h"

/* --- on the host ------------------------------------------------------------------------------ */

/* Runs the program of the seed; 1 where memory differs from serial execution. */
static int run_staged(gpu_rig *self, const program *prog, uint64_t seed)
{
    gpu_rig_load(self, prog, seed);
    fixture_arenas serial;
    fixture_arenas_init(&serial, prog, seed);
    gpu_rig_execute_serially(&serial, prog, false);
    executor *exec = gpu_rig_executor(self, &prog, 1);
    if (executor_run(exec, prog, seed, NULL) != 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
    int differs = !gpu_rig_matches(self, &serial);
    executor_destroy(exec);
    fixture_arenas_fini(&serial);
    gpu_rig_unload(self);
    return differs;
}

/* How many dependencies lead from the comm lane to a lane of the GPU, and back. */
static void count_crossings(const program *prog, uint32_t counts[2])
{
    for (uint32_t i = 0; i < prog->op_count; i++)
        for (uint32_t k = 0; k < prog->ops[i].dep_count; k++) {
            uint8_t from = prog->ops[prog->deps[prog->ops[i].dep_begin + k]].lane;
            uint8_t to = prog->ops[i].lane;
            counts[0] += from == LANE_COMM && to == LANE_COMPUTE;
            counts[1] += from == LANE_COMPUTE && to == LANE_COMM;
        }
}

static void a_host_comm_lane_gives_serial_values(void **state)
{
    static const uint32_t depths[] = {1, 2, 5, 16};
    enum { PROGRAMS = 16 };
    uint32_t crossings[2] = {0, 0};
    for (uint32_t d = 0; d < 4; d++) {
        gpu_rig r;
        gpu_rig_init_staged(&r, depths[d]);
        for (uint64_t seed = 6000 + 100 * d; seed < 6000 + 100 * d + PROGRAMS; seed++) {
            program prog;
            random_program(seed, 60 + (uint32_t)(seed % 3) * 60, &prog);
            count_crossings(&prog, crossings);
            if (run_staged(&r, &prog, seed))
                fail_msg("depth %u, seed %llu: memory differs from serial execution", depths[d],
                         (unsigned long long)seed);
            program_fini(&prog);
        }
        gpu_rig_fini(&r);
    }
    printf(
        "seeds 6000 to 6003 times 100, and the %d after each; %u dependencies of compute on comm, "
        "%u of comm on compute\n",
        PROGRAMS - 1, crossings[0], crossings[1]);
    assert_true(crossings[0] > PROGRAMS && crossings[1] > PROGRAMS);
}

#ifdef SLUICE_SIMULATED_GPU
/* The canary: without the dependencies between the worker and the GPU's lanes some run must
 * differ. */
static void a_lost_crossing_shows(void **state)
{
    int differing = 0;
    gpu_rig r;
    gpu_rig_init_staged(&r, 8);
    for (uint64_t seed = 7000; seed < 7030 && differing == 0; seed++) {
        program prog;
        random_program(7000, 120, &prog);
        for (uint32_t i = 0; i < prog.op_count; i++)
            for (uint32_t k = prog.ops[i].dep_count; k-- > 0;) {
                uint8_t from = prog.ops[prog.deps[prog.ops[i].dep_begin + k]].lane;
                uint8_t to = prog.ops[i].lane;
                if ((from == LANE_COMM) != (to == LANE_COMM) && is_gpu_lane(from) &&
                    is_gpu_lane(to))
                    program_drop_dep(&prog, i, k);
            }
        differing += run_staged(&r, &prog, seed);
        program_fini(&prog);
    }
    gpu_rig_fini(&r);
    assert_true(differing > 0);
}
#endif

/* --- watched ---------------------------------------------------------------------------------- */

/* An op that waits for what never comes, until it is released. */
struct stuck {
    device *gpu;
    atomic_bool is_running, is_released;
    uint32_t watch_count; /* calls of watch while the op ran */
    uint32_t patience;    /* > 0: with that call it releases the op */
    bool fails;           /* and fails */
};

static void wait_in_vain(void *user)
{
    struct stuck *self = user;
    atomic_store(&self->is_running, true);
    while (!atomic_load(&self->is_released))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static int enqueue_stuck(void *user, const program *prog, const op *item, void *stream)
{
    struct stuck *self = user;
    return device_call(self->gpu, stream, wait_in_vain, self);
}

static int watch_stuck(void *user)
{
    struct stuck *self = user;
    if (!atomic_load(&self->is_running))
        return 0;
    self->watch_count++;
    if (self->watch_count < self->patience)
        return 0;
    atomic_store(&self->is_released, true);
    return self->fails ? err_set(-EPIPE, "rank 2 on beta is gone") : 0;
}

/* One op on the comm lane, one on the compute lane that depends on it. */
static void stuck_program(program *out)
{
    builder b;
    builder_init(&b, PROGRAM_STEADY, 65536, 65536, 4096);
    uint32_t home = builder_home(&b, TIER_DEVICE, 0, 65536);
    builder_op(&b, OP_ALL_GATHER);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, home, 0, 4096);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, home, 4096, 4096);
    builder_op(&b, OP_FORWARD);
    builder_use(&b, ROLE_INPUT, ACCESS_READ, home, 4096, 4096);
    builder_finish(&b, out);
}

/* Runs the stuck program on watched lanes and returns the executor's result. The op on the compute
 * lane waits for the first op, which has been released by then. */
static int run_stuck(gpu_rig *rig, struct stuck *stuck, err_record *lane_error)
{
    program prog;
    stuck_program(&prog);
    gpu_rig_load(rig, &prog, 1);
    lane_stream_config config = gpu_rig_config(rig);
    config.enqueue = enqueue_stuck;
    config.finish = NULL;
    config.watch = watch_stuck;
    config.user = stuck;
    lane *own[LANE_COUNT], *watched;
    assert_ok(lane_stream_create(&config, &watched));
    memcpy(own, rig->lanes, sizeof own);
    for (int kind = 0; kind < LANE_COUNT; kind++)
        if (is_gpu_lane((uint8_t)kind))
            rig->lanes[kind] = watched;
    const program *programs = &prog;
    executor *exec = gpu_rig_executor(rig, &programs, 1);
    int rc = executor_run(exec, &prog, 1, NULL);
    *lane_error = *watched->ops->error(watched);
    executor_destroy(exec);
    watched->ops->destroy(watched); /* waits for what was in flight */
    memcpy(rig->lanes, own, sizeof own);
    gpu_rig_unload(rig);
    program_fini(&prog);
    return rc;
}

static void watch_ends_what_never_ends(void **state)
{
    gpu_rig r;
    gpu_rig_init(&r, 2);
    struct stuck stuck = {.gpu = r.gpu, .patience = 2, .fails = true};
    err_record lane_error;
    assert_int_equal(run_stuck(&r, &stuck, &lane_error), -EPIPE);
    assert_int_equal(lane_error.code, -EPIPE);
    assert_non_null(strstr(lane_error.text, "rank 2 on beta is gone"));
    assert_int_equal(stuck.watch_count, 2);
    gpu_rig_fini(&r);
}

/* If watch reports no failure, the run continues. */
static void a_content_watch_changes_nothing(void **state)
{
    gpu_rig r;
    gpu_rig_init(&r, 2);
    struct stuck stuck = {.gpu = r.gpu, .patience = 1};
    err_record lane_error;
    assert_int_equal(run_stuck(&r, &stuck, &lane_error), 0);
    assert_int_equal(lane_error.code, 0);
    assert_true(stuck.watch_count >= 1);
    gpu_rig_fini(&r);
}

int main(void)
{
    char text[DEVICE_TEXT_BYTES];
    if (device_count(text) == 0) {
        printf("skipped: %s\n", text);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_comm_lane_gives_serial_values),
#ifdef SLUICE_SIMULATED_GPU
        cmocka_unit_test(a_lost_crossing_shows),
#endif
        cmocka_unit_test(watch_ends_what_never_ends),
        cmocka_unit_test(a_content_watch_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
