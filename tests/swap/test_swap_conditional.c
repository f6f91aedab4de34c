/* Conditional ops under the executor: which run is a matter of the program and of the flag alone,
 * under any timing; a skipped op releases nothing early, moves and records nothing. On fake lanes
 * and on real workers; once plain, once in paranoid mode. */
#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/swap/swap_rig.h"
#include "tests/unit.h"

/* The flag before the run and what the norm makes of it, so that only the right one of both gives
 * the expected skip. */
static void set_flags(fixture_arenas *arenas, bool decides, bool skip, bool mislead)
{
    bool other = mislead ? !skip : skip;
    arenas->is_skipped = decides ? other : skip;
    arenas->norm_skips = decides ? skip : other;
}

struct expected {
    uint64_t skipped, bytes;
};

static struct expected expect(const program *prog, bool skip, bool commits)
{
    struct expected sum = {0};
    for (uint32_t i = 0; i < prog->op_count; i++) {
        bool gone = !fixture_runs(prog, i, skip, commits);
        sum.skipped += gone;
        sum.bytes += gone ? 0 : op_moved_bytes(&prog->ops[i]);
    }
    return sum;
}

static void check_totals(const program *prog, bool skip, bool commits, const run_totals *totals)
{
    struct expected wanted = expect(prog, skip, commits);
    uint64_t ops = 0, skipped = 0, bytes = 0;
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        ops += totals->lanes[kind].op_count;
        skipped += totals->lanes[kind].skipped_count;
        bytes += totals->lanes[kind].bytes;
        assert_true(totals->lanes[kind].busy_ns <= totals->end_ns - totals->start_ns);
    }
    assert_int_equal(ops + skipped, prog->op_count);
    assert_int_equal(skipped, wanted.skipped);
    assert_int_equal(bytes, wanted.bytes);
}

struct coverage {
    uint64_t skipped, early_submits;
};

/* Programs with ops of a commit among them, or without any. */
static bool has_commits(uint64_t seed)
{
    return seed % 16 < 8;
}

static void random_conditions(uint64_t seed, uint32_t op_count, bool decides, program *out)
{
    if (has_commits(seed))
        random_committing_program(seed, op_count, decides, out);
    else
        random_conditional_program(seed, op_count, decides, out);
    if (program_check(out) != 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
}

/* One random program with every flag: run twice, so that one run's flag is there in the next. */
static void run_random(uint64_t seed, bool threaded, struct coverage *seen)
{
    bool decides = seed % 2 == 0, skip = seed % 4 < 2, commits = !has_commits(seed) || seed % 5 < 2;
    program prog;
    random_conditions(seed, 60 + (uint32_t)(seed % 3) * 60, decides, &prog);
    rig_config config = {.seed = seed,
                         .threaded = threaded,
                         .shared_worker = seed % 8 < 4,
                         .busy_one_in = seed % 3 == 0 ? 4 : 0,
                         .fail_op_idx = PROGRAM_NONE,
                         .skip = skip,
                         .no_commit = !commits};
    rig r;
    rig_init(&r, &prog, &config);
    fixture_arenas serial;
    fixture_arenas_init(&serial, &prog, seed);
    for (uint64_t step = 1; step <= 2; step++) {
        run_totals totals;
        rig_forget_run(&r);
        set_flags(&r.arenas, decides, skip, seed % 5 != 0);
        fixture_execute_where(&serial, &prog, skip, commits);
        if (executor_run(r.exec, &prog, step, &totals) != 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
        if (!rig_matches(&r, &serial))
            fail_msg("seed %llu: memory differs from serial execution", (unsigned long long)seed);
        rig_check_discipline(&r, seed);
        check_totals(&prog, skip, commits, &totals);
        assert_int_equal(r.ring.written,
                         step * (prog.op_count - expect(&prog, skip, commits).skipped));
        seen->skipped += expect(&prog, skip, commits).skipped;
    }
    seen->early_submits += r.watch.early_submits;
    fixture_arenas_fini(&serial);
    rig_fini(&r);
    program_fini(&prog);
}

static void random_flags_give_serial_values(void **state)
{
    enum { PROGRAMS = 100 };
    struct coverage seen = {0};
    for (uint64_t seed = 11000; seed < 11000 + PROGRAMS; seed++)
        run_random(seed, false, &seen);
    printf("seeds 11000 to %d: %llu ops skipped, %llu submits ahead\n", 11000 + PROGRAMS - 1,
           (unsigned long long)seen.skipped, (unsigned long long)seen.early_submits);
    assert_true(seen.skipped > PROGRAMS);
    assert_int_equal(seen.early_submits > 0, !rig_is_paranoid);
}

static void random_threads_give_serial_values(void **state)
{
    enum { PROGRAMS = 16 };
    struct coverage seen = {0};
    for (uint64_t seed = 12000; seed < 12000 + PROGRAMS; seed++)
        run_random(seed, true, &seen);
    printf("seeds 12000 to %d\n", 12000 + PROGRAMS - 1);
    assert_true(seen.skipped > 0);
}

/* Compute and update on one real worker, which sets the flag on its thread. */
static void real_worker(void **state)
{
    enum { PROGRAMS = 16 };
    for (uint64_t seed = 13000; seed < 13000 + PROGRAMS; seed++) {
        bool decides = seed % 4 != 0, skip = seed % 3 != 0, commits = true;
        program prog;
        random_conditions(seed, 150, decides, &prog);
        fixture_arenas arenas, serial;
        fixture_arenas_init(&arenas, &prog, seed);
        fixture_arenas_init(&serial, &prog, seed);
        const program *programs = &prog;
        executor_config config = {.programs = &programs,
                                  .program_count = 1,
                                  .is_skipped = &arenas.is_skipped,
                                  .is_committing = seed % 2 ? &arenas.is_committing : NULL,
                                  .paranoid = rig_is_paranoid};
        memcpy(config.arena_base, arenas.base, sizeof config.arena_base);
        for (int kind = 0; kind < LANE_COUNT; kind++) {
            if (kind == LANE_COMPUTE || kind == LANE_UPDATE)
                continue;
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
        }
        lane_worker_config cores = {.name = "cores",
                                    .run = fixture_execute,
                                    .user = &arenas,
                                    .owner = 1,
                                    .depth = 1 + (uint32_t)(seed % 4),
                                    .priority_lane = seed % 2 ? LANE_COMPUTE : LANE_UPDATE};
        paranoid *checked = NULL;
        if (rig_is_paranoid) {
            paranoid_config all = {.programs = &programs,
                                   .program_count = 1,
                                   .serves = {[LANE_COMPUTE] = true, [LANE_UPDATE] = true},
                                   .run = fixture_execute,
                                   .user = &arenas};
            memcpy(all.arena_base, arenas.base, sizeof all.arena_base);
            assert_int_equal(paranoid_create(&all, &checked), 0);
            cores.run = paranoid_run;
            cores.user = checked;
        }
        assert_int_equal(lane_worker_create(&cores, &config.lanes[LANE_COMPUTE]), 0);
        config.lanes[LANE_UPDATE] = config.lanes[LANE_COMPUTE];
        executor *exec;
        run_totals totals;
        assert_int_equal(executor_create(&config, &exec), 0);
        for (uint64_t step = 1; step <= 2; step++) {
            /* The flag is read when a run begins; without one every run commits. */
            arenas.is_committing = step == 1;
            commits = step == 1 || seed % 2 == 0;
            set_flags(&arenas, decides, skip, true);
            fixture_execute_where(&serial, &prog, skip, commits);
            if (executor_run(exec, &prog, step, &totals) != 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
            if (rig_is_paranoid ? !fixture_homes_equal(&prog, &arenas, &serial)
                                : !fixture_arenas_equal(&arenas, &serial))
                fail_msg("seed %llu: memory differs", (unsigned long long)seed);
            check_totals(&prog, skip, commits, &totals);
        }
        executor_destroy(exec);
        for (int kind = 0; kind < LANE_COUNT; kind++)
            if (kind != LANE_UPDATE)
                config.lanes[kind]->ops->destroy(config.lanes[kind]);
        paranoid_destroy(checked);
        fixture_arenas_fini(&arenas);
        fixture_arenas_fini(&serial);
        program_fini(&prog);
    }
    printf("seeds 13000 to %d\n", 13000 + PROGRAMS - 1);
}

/* The canary: memory must differ where the flag is the wrong one, or nothing above proves a
 * thing. */
static void a_wrong_flag_shows(void **state)
{
    for (uint64_t seed = 14000; seed < 14002; seed++) {
        bool decides = seed % 2 == 0;
        program prog;
        random_conditional_program(seed, 120, decides, &prog);
        rig r;
        rig_init(&r, &prog, &(rig_config){.seed = seed, .fail_op_idx = PROGRAM_NONE});
        fixture_arenas serial;
        fixture_arenas_init(&serial, &prog, seed);
        set_flags(&r.arenas, decides, false, true);
        fixture_execute_unless(&serial, &prog, true);
        assert_int_equal(executor_run(r.exec, &prog, 1, NULL), 0);
        assert_false(rig_matches(&r, &serial));
        fixture_arenas_fini(&serial);
        rig_fini(&r);
        program_fini(&prog);
    }
}

/* The same of the other flag. */
static void a_wrong_commit_shows(void **state)
{
    for (uint64_t seed = 14100; seed < 14102; seed++) {
        program prog;
        random_committing_program(seed, 120, seed % 2 == 0, &prog);
        rig r;
        rig_init(&r, &prog, &(rig_config){.seed = seed, .fail_op_idx = PROGRAM_NONE});
        fixture_arenas serial;
        fixture_arenas_init(&serial, &prog, seed);
        fixture_execute_where(&serial, &prog, false, false);
        assert_int_equal(executor_run(r.exec, &prog, 1, NULL), 0);
        assert_false(rig_matches(&r, &serial));
        fixture_arenas_fini(&serial);
        rig_fini(&r);
        program_fini(&prog);
    }
}

/* save ─► commit ─► write, of the three only the write runs in any case: it waits for a commit that
 * runs, and for nothing where it is skipped; the commit waits for the save either way, for it
 * completes in order. */
static void a_commit_is_met_in_order(void **state)
{
    enum { SAVE, BUSY, COMMIT, UPDATE, WRITE };
    builder b;
    program prog;
    builder_init(&b, PROGRAM_STEADY, 4096, 65536 + 4096, 8192);
    uint32_t nvme = builder_home(&b, TIER_NVME, 0, 8192);
    uint32_t host = builder_home(&b, TIER_HOST, 0, 4096);
    uint32_t grads = builder_home(&b, TIER_HOST, 49152, 4096);
    builder_op(&b, OP_WRITE);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, host, 0, 4096);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, nvme, 0, 4096);
    builder_op(&b, OP_COMMIT);
    builder_dep(&b, SAVE);
    builder_op(&b, OP_COMMIT);
    builder_dep(&b, SAVE);
    builder_op(&b, OP_UPDATE);
    builder_use(&b, ROLE_STATE, ACCESS_UPDATE, host, 0, 4096);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, grads, 0, 4096);
    builder_dep(&b, SAVE);
    builder_op(&b, OP_WRITE);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, host, 0, 4096);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, nvme, 4096, 4096);
    builder_dep(&b, BUSY);
    builder_dep(&b, COMMIT);
    builder_dep(&b, UPDATE);
    builder_finish(&b, &prog);
    prog.ops[SAVE].state_kind = prog.ops[WRITE].state_kind = STATE_OPTIMIZER;
    prog.ops[SAVE].if_commits = prog.ops[BUSY].if_commits = prog.ops[COMMIT].if_commits = 1;
    assert_ok(program_check(&prog));
    for (uint64_t seed = 0; seed < 8; seed++) {
        bool commits = seed % 2 == 0;
        rig r;
        rig_init(&r, &prog,
                 &(rig_config){.seed = seed, .fail_op_idx = PROGRAM_NONE, .no_commit = !commits});
        run_totals totals;
        assert_int_equal(executor_run(r.exec, &prog, 1, &totals), 0);
        rig_check_discipline(&r, seed);
        assert_int_equal(totals.lanes[LANE_COMMIT].op_count, commits ? 2 : 0);
        assert_int_equal(totals.lanes[LANE_COMMIT].skipped_count, commits ? 0 : 2);
        assert_int_equal(totals.lanes[LANE_COMMIT].bytes, 0);
        assert_int_equal(totals.lanes[LANE_WRITE].op_count, commits ? 2 : 1);
        assert_int_equal(totals.lanes[LANE_WRITE].bytes, commits ? 8192 : 4096);
        assert_int_equal(r.ring.written, commits ? 5 : 2);
        rig_fini(&r);
    }
    const program *programs = &prog;
    executor_config config = {.programs = &programs, .program_count = 1};
    rig r;
    rig_init(&r, &prog, &(rig_config){.seed = 1, .fail_op_idx = PROGRAM_NONE});
    memcpy(config.lanes, r.lanes, sizeof config.lanes);
    config.lanes[LANE_COMMIT] = NULL;
    executor *exec;
    assert_error(executor_create(&config, &exec), ERR_INTERNAL,
                 "needs lane commit, which was not given");
    rig_fini(&r);
    program_fini(&prog);
}

/* A commit that fails stops the run, and what waits for it is never issued. */
static void a_failed_commit_stops_the_run(void **state)
{
    program prog;
    random_committing_program(15100, 90, true, &prog);
    for (uint32_t i = 0; i < prog.op_count; i++) {
        if (prog.ops[i].kind != OP_COMMIT)
            continue;
        rig r;
        rig_init(&r, &prog, &(rig_config){.seed = i, .fail_op_idx = i});
        assert_int_equal(executor_run(r.exec, &prog, 1, NULL), -EIO);
        assert_int_equal(strncmp(err_text(), "commit", 6), 0);
        assert_int_equal(rig_in_flight(&r), 0);
        for (uint32_t k = i + 1; k < prog.op_count; k++)
            if (op_depends_on(&prog, k, i))
                assert_int_equal(r.watch.states[k], 0);
        assert_int_equal(executor_run(r.exec, &prog, 1, NULL), ERR_POISONED);
        rig_fini(&r);
    }
    program_fini(&prog);
}

/* A drive's sync that takes its time, and (is_broken) a write that fails meanwhile. */
static int take_long(void *is_broken, const program *prog, const op *item)
{
    (void)prog;
    const struct timespec time = {.tv_nsec = 200000000};
    if (item->kind == OP_COMMIT)
        (void)nanosleep(&time, NULL);
    return item->kind == OP_WRITE && is_broken ? err_set(-EIO, "the drive is gone") : 0;
}

/* Runs a commit beside a write on workers of their own; what was logged goes to `text`. */
static int run_slow_commit(bool is_broken, uint64_t stuck_ns, char *text, size_t capacity)
{
    builder b;
    program prog;
    builder_init(&b, PROGRAM_SAVE, 0, 4096, 4096);
    uint32_t nvme = builder_home(&b, TIER_NVME, 0, 4096);
    uint32_t host = builder_home(&b, TIER_HOST, 0, 4096);
    builder_op(&b, OP_COMMIT);
    builder_op(&b, OP_WRITE);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, host, 0, 4096);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, nvme, 0, 4096);
    builder_finish(&b, &prog);
    const program *programs = &prog;
    executor_config config = {.programs = &programs, .program_count = 1, .stuck_ns = stuck_ns};
    for (int kind = LANE_WRITE; kind <= LANE_COMMIT; kind += LANE_COMMIT - LANE_WRITE) {
        lane_worker_config worker = {.name = "slow",
                                     .run = take_long,
                                     .user = is_broken ? &prog : NULL,
                                     .owner = (uint32_t)kind,
                                     .depth = 1,
                                     .priority_lane = (enum lane_kind)kind};
        assert_int_equal(lane_worker_create(&worker, &config.lanes[kind]), 0);
    }
    executor *exec;
    assert_int_equal(executor_create(&config, &exec), 0);
    FILE *log_file = tmpfile();
    int kept = dup(STDERR_FILENO);
    assert_true(log_file && kept >= 0 && dup2(fileno(log_file), STDERR_FILENO) >= 0);
    enum log_level level = log_get_level();
    log_set_level(LOG_WARN);
    int rc = executor_run(exec, &prog, 7, NULL);
    log_set_level(level);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    rewind(log_file);
    text[fread(text, 1, capacity - 1, log_file)] = 0;
    fclose(log_file);
    executor_destroy(exec);
    config.lanes[LANE_WRITE]->ops->destroy(config.lanes[LANE_WRITE]);
    config.lanes[LANE_COMMIT]->ops->destroy(config.lanes[LANE_COMMIT]);
    program_fini(&prog);
    return rc;
}

/* It is named while it is waited for; where the run has failed already, with what ends it, which
 * would else not be told before a drive that hangs answers. */
static void a_slow_commit_is_named(void **state)
{
    char text[4096];
    assert_int_equal(run_slow_commit(false, 20000000, text, sizeof text), 0);
    if (!strstr(text, "step 7: the commit behind it has been in flight for ") ||
        !strstr(text, "; the run waits for it\n"))
        fail_msg("the log says '%s'", text);
    assert_int_equal(run_slow_commit(true, 20000000, text, sizeof text), -EIO);
    if (!strstr(text, "; the run waits for it, and ends then: ") ||
        !strstr(text, "the drive is gone"))
        fail_msg("the log says '%s'", text);
    assert_int_equal(run_slow_commit(false, 0, text, sizeof text), 0);
    assert_string_equal(text, "");
}

/* Errors among conditional ops: a skipped op never fails, and all others fail as usual. */
static void errors_meet_skips(void **state)
{
    program prog;
    random_conditional_program(15000, 90, true, &prog);
    uint32_t stride = rig_is_paranoid ? 3 : 1; /* its rigs are large */
    for (uint32_t failing = 0; failing < prog.op_count; failing += stride) {
        rig r;
        rig_init(&r, &prog,
                 &(rig_config){.seed = 15000 + failing,
                               .shared_worker = failing % 2 == 0,
                               .fail_op_idx = failing,
                               .skip = true});
        set_flags(&r.arenas, true, true, true);
        bool gone = fixture_skips(&prog, failing);
        assert_int_equal(executor_run(r.exec, &prog, 1, NULL), gone ? 0 : -EIO);
        assert_int_equal(rig_in_flight(&r), 0);
        assert_int_equal(executor_run(r.exec, &prog, 1, NULL) == ERR_POISONED, !gone);
        rig_fini(&r);
    }
    program_fini(&prog);
}

/* A pending update whose every op is skipped: the run ends though no lane ever had work. */
static void a_program_of_skips_ends(void **state)
{
    builder b;
    program prog;
    builder_init(&b, PROGRAM_FLUSH, 4096, 4096, 4096);
    uint32_t device = builder_home(&b, TIER_DEVICE, 0, 4096);
    uint32_t host = builder_home(&b, TIER_HOST, 0, 4096);
    builder_op(&b, OP_UPDATE);
    builder_use(&b, ROLE_STATE, ACCESS_UPDATE, host, 0, 512);
    builder_op(&b, OP_H2D);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, host, 0, 512);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, device, 0, 512);
    builder_dep(&b, 0);
    builder_finish(&b, &prog);
    prog.ops[0].if_applied = prog.ops[1].if_applied = 1;
    rig r;
    rig_init(&r, &prog, &(rig_config){.seed = 1, .fail_op_idx = PROGRAM_NONE, .skip = true});
    r.arenas.is_skipped = true;
    run_totals totals;
    assert_int_equal(executor_run(r.exec, &prog, 1, &totals), 0);
    assert_int_equal(totals.lanes[LANE_UPDATE].skipped_count, 1);
    assert_int_equal(totals.lanes[LANE_H2D].skipped_count, 1);
    assert_int_equal(totals.lanes[LANE_H2D].bytes, 0);
    assert_int_equal(r.ring.written, 0);
    rig_fini(&r);
    program_fini(&prog);
}

/* Where a norm decides, nothing conditional may write a home before it. */
static void creation_refuses_a_home_ahead(void **state)
{
    program prog;
    random_conditional_program(16000, 90, true, &prog);
    rig r;
    rig_init(&r, &prog, &(rig_config){.seed = 16, .fail_op_idx = PROGRAM_NONE});
    uint32_t victim = 0;
    bool found = false;
    for (; !found && victim < 30; victim += !found) {
        const op *item = &prog.ops[victim];
        for (uint32_t k = 0; k < item->operand_count; k++)
            found |= (item->operands[k].access & ACCESS_WRITE) &&
                     prog.buffers[item->operands[k].buffer_idx].is_home;
    }
    assert_true(found);
    prog.ops[victim].if_applied = 1;
    const program *programs = &prog;
    executor_config config = {.programs = &programs, .program_count = 1};
    memcpy(config.lanes, r.lanes, sizeof config.lanes);
    executor *exec;
    assert_error(executor_create(&config, &exec), ERR_INTERNAL, "nothing orders it after the norm");
    rig_fini(&r);
    program_fini(&prog);
}

int main(int argc, char **argv)
{
    rig_mode_from(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_flags_give_serial_values),
        cmocka_unit_test(random_threads_give_serial_values),
        cmocka_unit_test(real_worker),
        cmocka_unit_test(a_wrong_flag_shows),
        cmocka_unit_test(a_wrong_commit_shows),
        cmocka_unit_test(a_commit_is_met_in_order),
        cmocka_unit_test(a_failed_commit_stops_the_run),
        cmocka_unit_test(a_slow_commit_is_named),
        cmocka_unit_test(errors_meet_skips),
        cmocka_unit_test(a_program_of_skips_ends),
        cmocka_unit_test(creation_refuses_a_home_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
