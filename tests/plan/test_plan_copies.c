/* Optimizer state on nvme of which the host keeps copies (plan_set.copy_bytes). Programs run on
 * numbers (plan_ranks_run.h):
 *
 *   - every update finds the result of the update before it, in a new process too;
 *   - a steady step reads the state without copies, once, and writes all; the first step also reads
 *     the state that has copies;
 *   - copies make the step shorter than it was and lie within the host's budget;
 *   - there are no copies where nothing begins with an update. */
#include "plan/search/search_internal.h"
#include "tests/plan/plan_fixture.h"
#include "tests/plan/plan_large.h"
#include "tests/plan/plan_ranks_run.h"
#include "tests/unit.h"

enum { SEEDS = 80 };

/* Most optimizer state on a slow drive, so that a step's beginning shows. */
static void copied_job(random_job *r, uint64_t seed)
{
    run_draw_seam(r, seed);
    for (uint32_t u = 0; u < r->job.unit_count; u++)
        if (draw(r, 4))
            r->homes[STATE_OPTIMIZER][u] = TIER_NVME;
    run_make_roomy(r);
}

static void every_update_finds_the_one_before(void **state)
{
    int with_copies = 0, in_part = 0;
    uint64_t reloaded = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_job r;
        copied_job(&r, seed);
        plan_set set;
        run_compile(&r, seed, &set);
        uint64_t all = set.home_bytes[STATE_OPTIMIZER][TIER_NVME];
        with_copies += set.copy_bytes > 0;
        in_part += set.copy_bytes > 0 && set.copy_bytes < all;
        ranks_run run;
        reloaded += run_life(&run, &r, &set);
        run_program(&run, PROGRAM_FLUSH, 4, 4);
        run_program(&run, PROGRAM_EVAL, 4, 4);
        run_program(&run, PROGRAM_FIRST, 5, 4);
        run_program(&run, PROGRAM_STEADY, 6, 5);
        run_end(&run);
        plan_set_fini(&set);
    }
    print_message("%d of %d jobs have copies, %d of a part; %llu loaded again\n", with_copies,
                  SEEDS, in_part, (unsigned long long)reloaded);
    assert_true(with_copies > SEEDS / 3 && in_part > 0 && reloaded > SEEDS / 4);
}

/* Bytes of optimizer state that the program reads from its homes on nvme, or writes to them. */
static uint64_t moved_bytes(const plan_job *job, const plan_set *set, enum program_kind kind,
                            enum op_kind what)
{
    const program *prog = &set->programs[kind];
    uint64_t sum = 0;
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (item->kind != what || item->state_kind != STATE_OPTIMIZER)
            continue;
        const operand *at = op_operand(item, what == OP_READ ? ROLE_SOURCE : ROLE_TARGET);
        bool is_home = job->homes[STATE_OPTIMIZER][item->unit] == TIER_NVME &&
                       at->buffer_idx == set->homes.optimizer[item->unit];
        sum += is_home ? at->size_bytes : 0;
    }
    return sum;
}

static uint64_t carried_state_bytes(const plan_job *job, const plan_set *set)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < set->carried_count; i++) {
        const plan_carried *piece = &set->carried[i];
        uint64_t elems = plan_rest_elems(job, STATE_OPTIMIZER, piece->unit);
        uint64_t count = tile_elems_at(elems, set->tile_elems, piece->tile);
        sum += piece->kind == STATE_OPTIMIZER ? tile_bytes(count, job->state_streams) : 0;
    }
    return sum;
}

/* A step reads carried tiles for the next one, so a flush finds them. */
static void a_step_reads_what_has_no_copy(void **state)
{
    int seen = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_job r;
        copied_job(&r, seed);
        r.job.needs_save_places = r.job.commits = false;
        plan_set set;
        run_compile(&r, seed, &set);
        uint64_t carried = carried_state_bytes(&r.job, &set);
        uint64_t first = moved_bytes(&r.job, &set, PROGRAM_FIRST, OP_READ) - carried;
        uint64_t read = moved_bytes(&r.job, &set, PROGRAM_STEADY, OP_READ);
        uint64_t written = moved_bytes(&r.job, &set, PROGRAM_STEADY, OP_WRITE);
        assert_int_equal(read + first, written);
        assert_int_equal(moved_bytes(&r.job, &set, PROGRAM_FLUSH, OP_READ), read - carried);
        assert_int_equal(moved_bytes(&r.job, &set, PROGRAM_FLUSH, OP_WRITE), written);
        assert_int_equal(moved_bytes(&r.job, &set, PROGRAM_FIRST, OP_WRITE), 0);
        assert_int_equal(first > 0, set.copy_bytes > 0);
        assert_true(first <= set.copy_bytes);
        assert_true(set.programs[PROGRAM_STEADY].peak_bytes[TIER_HOST] <=
                    r.job.budget_bytes[TIER_HOST]);
        seen += first > 0;
        plan_set_fini(&set);
    }
    assert_true(seen > SEEDS / 3);
}

/* The same tiles and held stages without copies. */
static uint64_t ns_without(const random_job *r, const plan_set *with)
{
    plan_set set;
    plani_layout layout;
    program steady;
    struct plani_request asked = {.kind = PROGRAM_STEADY};
    struct plani_point point = plani_plain_point(&r->job, with->tile_elems);
    point.held = with->held_stages + with->held_passes;
    point.commit = with->commit;
    assert_int_equal(plani_set_begin(&r->job, &point, &set, &layout), 0);
    assert_int_equal(
        plani_compile_one(&r->job, &set, &layout, &asked, r->job.budget_bytes, &steady), 0);
    uint64_t ns = steady.predicted_ns;
    program_fini(&steady);
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return ns;
}

static void copies_make_the_step_shorter(void **state)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_job r;
        copied_job(&r, seed);
        r.job.commits = false;
        plan_set set;
        run_compile(&r, seed, &set);
        if (set.copy_bytes > 0)
            assert_true(set.programs[PROGRAM_STEADY].predicted_ns < ns_without(&r, &set));
        plan_set_fini(&set);
    }
}

/* 151M params with all states on a drive that binds, in so many bytes of memory; tiles of
 * `tile_elems`, or chosen. */
static uint64_t compile_large(uint64_t host_bytes, uint64_t tile_elems, plan_set *set)
{
    static uint64_t elems[LARGE_UNITS_MAX];
    static struct stage stages[LARGE_UNITS_MAX];
    static struct pass passes[LARGE_UNITS_MAX][2];
    static uint8_t homes[LARGE_UNITS_MAX];
    memset(homes, TIER_NVME, sizeof homes);
    plan_job job = {.update = UPDATE_IN_NEXT_FORWARD, .tile_elems = tile_elems};
    large_job_make(&job, elems, stages, passes, 12, 1024);
    plan_machine_default_cpu(&job.machine, 8, true);
    job.machine.drive_read_bytes_per_second = job.machine.drive_write_bytes_per_second = 1e9;
    job.needs_save_places = false;
    for (int k = 0; k < STATE_KIND_COUNT; k++)
        job.homes[k] = homes;
    job.budget_bytes[TIER_DEVICE] = 2 * GIB;
    job.budget_bytes[TIER_HOST] = host_bytes;
    job.budget_bytes[TIER_NVME] = 64 * GIB;
    if (plan_compile(&job, set) < 0)
        fail_msg("host of %llu bytes: %s", (unsigned long long)host_bytes, err_text());
    return set->programs[PROGRAM_STEADY].predicted_ns;
}

/* Where copies fill the host, tiles get smaller, so that some are under way in what is left; a size
 * that the job names stays, and the step is as short as with it. */
static void copies_leave_room_for_tiles(void **state)
{
    enum { ELEM_BYTES = 12 + 2 + 2, UNDER_WAY = 2 };
    bool was_smaller = false;
    for (uint64_t host = 512 * MIB; host <= 2 * GIB; host *= 2) {
        plan_set chosen, coarse;
        uint64_t ns = compile_large(host, 0, &chosen);
        uint64_t coarse_ns = compile_large(host, 4 * MIB, &coarse);
        uint64_t room = host - chosen.copy_bytes;
        print_message(
            "host %llu MiB: copies %llu MiB, carried %llu MiB, tiles of %llu Ki, step %.3f s; of "
            "4096 Ki: %.3f s\n",
            (unsigned long long)(host / MIB), (unsigned long long)(chosen.copy_bytes / MIB),
            (unsigned long long)((chosen.carried_end - chosen.carried_begin) / MIB),
            (unsigned long long)(chosen.tile_elems / KIB), (double)ns * 1e-9,
            (double)coarse_ns * 1e-9);
        assert_true(chosen.copy_bytes > 0);
        assert_int_equal(coarse.tile_elems, 4 * MIB);
        assert_true(chosen.tile_elems <= MIB ||
                    room / (chosen.tile_elems * ELEM_BYTES) >= UNDER_WAY);
        assert_true((double)ns <= 1.02 * (double)coarse_ns);
        was_smaller = was_smaller || chosen.tile_elems < coarse.tile_elems;
        plan_set_fini(&chosen);
        plan_set_fini(&coarse);
    }
    assert_true(was_smaller);
}

static void none_where_nothing_begins_with_an_update(void **state)
{
    static const enum update others[] = {UPDATE_AFTER_BACKWARD, UPDATE_IN_BACKWARD,
                                         UPDATE_DELAYED_ONE_STEP};
    for (uint64_t seed = 1; seed <= SEEDS / 4; seed++) {
        random_job r;
        copied_job(&r, seed);
        r.job.update = others[seed % 3];
        plan_set set;
        run_compile(&r, seed, &set);
        assert_int_equal(set.copy_bytes, 0);
        plan_set_fini(&set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_update_finds_the_one_before),
        cmocka_unit_test(a_step_reads_what_has_no_copy),
        cmocka_unit_test(copies_make_the_step_shorter),
        cmocka_unit_test(copies_leave_room_for_tiles),
        cmocka_unit_test(none_where_nothing_begins_with_an_update),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
