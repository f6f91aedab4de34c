/* Tiles that a step carries to the next one (src/plan/emit/carry.c). Programs run on numbers
 * (plan_ranks_run.h), in which only homes and what is carried survive from program to program:
 *
 *   - with any number of carried tiles every update finds the state and the gradient of its step,
 *     also after a save, a flush, an evaluation and a skipped step;
 *   - what is carried is read once a step, and its gradient never goes to the drives;
 *   - a transient that outlives the first fill keeps off the region, and others use it;
 *   - where a program has no room for the region, fewer tiles are carried, and no less than fit;
 *   - the step gets shorter, and nothing is carried with other updates. */
#include "plan/search/search_internal.h"
#include "tests/plan/plan_fixture.h"
#include "tests/plan/plan_ranks_run.h"
#include "tests/unit.h"

enum { SEEDS = 120 };

static void carried_job(random_job *r, uint64_t seed)
{
    run_draw_seam(r, seed);
    r->job.machine.drive_write_bytes_per_second = 400e6;
    for (uint32_t u = 0; u < r->job.unit_count; u++) {
        if (draw(r, 4))
            r->homes[STATE_OPTIMIZER][u] = TIER_NVME;
        if (draw(r, 4))
            r->homes[STATE_GRADS][u] = TIER_NVME;
    }
    run_make_roomy(r);
}

/* The job with so many parts of the host for copies and for carried tiles, and that commit. */
static int compile_commit(const random_job *r, uint32_t copy_parts, uint32_t carried_parts,
                          enum plan_commit commit, plan_set *set)
{
    struct plani_point point = plani_plain_point(&r->job, TILE_ELEMS_STEP);
    plani_work work = {0};
    point.copy_parts = copy_parts;
    point.carried_parts = carried_parts;
    point.commit = commit;
    int rc = plani_compile_point(&r->job, &point, set, &work);
    plani_work_fini(&work);
    return rc;
}

static int compile_parts(const random_job *r, uint32_t copy_parts, uint32_t carried_parts,
                         plan_set *set)
{
    return compile_commit(r, copy_parts, carried_parts, plani_usual_commit(&r->job), set);
}

static void every_update_finds_what_was_carried(void **state)
{
    uint64_t with_state = 0, with_grads = 0, jobs = 0, saves = 0, used = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_job r;
        carried_job(&r, seed);
        plan_set set;
        uint32_t parts = 1 + (uint32_t)(seed % 3) * 3;
        if (seed % 2)
            r.job.budget_bytes[TIER_HOST] = (6 + seed % 16) * MIB;
        bool is_older = seed / 4 % 2 == 0; /* commits are one step older */
        if (is_older)
            r.job.needs_save_places = r.job.commits = true;
        enum plan_commit commit = is_older ? PLAN_COMMIT_FIRST : plani_usual_commit(&r.job);
        int rc = compile_commit(&r, seed / 2 % 2 * 2, parts, commit, &set);
        if (rc == ERR_NO_FIT && seed % 2)
            continue;
        if (rc < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
        ranks_run run;
        run_life(&run, &r, &set); /* first, steady, steady, flush; then first */
        if (is_older)
            run_program(&run, PROGRAM_SAVE, 4, 4); /* of the state before the update */
        run_program(&run, PROGRAM_STEADY, 5, 4);
        if (is_older)
            run_program(&run, PROGRAM_SAVE, 5, 4);
        run_program(&run, PROGRAM_FLUSH, 5, 5);
        run_program(&run, PROGRAM_SAVE, 5, 5);
        run_program(&run, PROGRAM_FIRST, 6, 5); /* skipped: its update is dropped */
        run_program(&run, PROGRAM_FIRST, 6, 5);
        run_program(&run, PROGRAM_FLUSH, 6, 6);
        run_program(&run, PROGRAM_EVAL, 6, 6);
        for (uint32_t i = 0; i < set.carried_count; i++) {
            with_state += set.carried[i].kind == STATE_OPTIMIZER;
            with_grads += set.carried[i].kind == STATE_GRADS;
        }
        jobs += set.carried_count > 0;
        saves += set.carried_count > 0 && is_older;
        const program *steady = &set.programs[PROGRAM_STEADY];
        for (uint64_t i = steady->home_count; i < steady->buffer_count; i++)
            used += steady->buffers[i].arena == TIER_HOST && !steady->buffers[i].carried &&
                    steady->buffers[i].offset_bytes < set.carried_end;
        run_end(&run);
        plan_set_fini(&set);
    }
    print_message("%llu of %d jobs carry %llu tiles of state and %llu of gradients; %llu other "
                  "buffers lie in the region\n",
                  (unsigned long long)jobs, SEEDS, (unsigned long long)with_state,
                  (unsigned long long)with_grads, (unsigned long long)used);
    assert_true(jobs > SEEDS / 2 && saves > SEEDS / 8);
    assert_true(with_state > SEEDS && with_grads > SEEDS && used > 0);
}

/* True if the op moves the tile between its home on the drives and memory. */
static bool moves(const plan_set *set, const op *item, const plan_carried *piece, enum op_kind kind)
{
    const uint32_t *homes = piece->kind == STATE_GRADS ? set->homes.grads : set->homes.optimizer;
    return item->kind == kind && item->unit == piece->unit && item->tile == piece->tile &&
           op_operand(item, kind == OP_READ ? ROLE_SOURCE : ROLE_TARGET)->buffer_idx ==
               homes[piece->unit];
}

static uint64_t count_moves(const plan_set *set, enum program_kind which, const plan_carried *piece,
                            enum op_kind kind)
{
    const program *prog = &set->programs[which];
    uint64_t count = 0;
    for (uint64_t i = 0; i < prog->op_count; i++)
        count += moves(set, &prog->ops[i], piece, kind);
    return count;
}

static void what_is_carried_is_read_ahead(void **state)
{
    for (uint64_t seed = 1; seed <= SEEDS / 2; seed++) {
        random_job r;
        carried_job(&r, seed);
        r.job.needs_save_places = r.job.commits = false;
        plan_set set;
        assert_int_equal(compile_parts(&r, 0, 4, &set), 0);
        for (uint32_t i = 0; i < set.carried_count; i++) {
            const plan_carried *piece = &set.carried[i];
            bool is_state = piece->kind == STATE_OPTIMIZER;
            assert_int_equal(count_moves(&set, PROGRAM_FIRST, piece, OP_READ), is_state);
            assert_int_equal(count_moves(&set, PROGRAM_STEADY, piece, OP_READ), is_state);
            assert_int_equal(count_moves(&set, PROGRAM_FLUSH, piece, OP_READ), 0);
            assert_int_equal(count_moves(&set, PROGRAM_STEADY, piece, OP_WRITE), is_state);
            assert_int_equal(count_moves(&set, PROGRAM_FIRST, piece, OP_WRITE), 0);
        }
        plan_set_fini(&set);
    }
}

/* The programs of a set in the places of another one do not fit together. */
static void a_wrong_seam_is_found(void **state)
{
    random_job r;
    carried_job(&r, 1);
    plan_set set, other;
    r.job.budget_bytes[TIER_HOST] = 24 * MIB;
    assert_int_equal(compile_parts(&r, 0, 1, &set), 0);
    assert_int_equal(compile_parts(&r, 0, 4, &other), 0);
    assert_true(set.carried_count > 0 && other.carried_count > set.carried_count);
    const program *first = &set.programs[PROGRAM_FIRST];
    assert_int_equal(program_check_seam(first, &set.programs[PROGRAM_STEADY]), 0);
    assert_int_equal(program_check_seam(first, &other.programs[PROGRAM_STEADY]), ERR_INTERNAL);
    assert_int_equal(program_check_seam(&set.programs[PROGRAM_EVAL], &set.programs[PROGRAM_STEADY]),
                     ERR_INTERNAL);
    assert_int_equal(
        program_check_seam(&other.programs[PROGRAM_FIRST], &set.programs[PROGRAM_STEADY]),
        ERR_INTERNAL); /* gradients of the last tiles would be lost */
    assert_int_equal(program_check_seam(first, &set.programs[PROGRAM_EVAL]), ERR_INTERNAL);
    assert_int_equal(program_check_seam(&set.programs[PROGRAM_FLUSH], &set.programs[PROGRAM_EVAL]),
                     0);
    plan_set_fini(&set);
    plan_set_fini(&other);
}

/* Returns the shortest steady step of all numbers of parts with which the programs have room.
 * *is_short: some numbers fit the steady step, but not another program. */
static uint64_t shortest_of_parts(const random_job *r, uint32_t held, bool *is_short)
{
    uint64_t least = UINT64_MAX;
    *is_short = false;
    for (uint32_t i = 0; i < PLANI_PARTS * PLANI_PARTS; i++) {
        struct plani_point point = plani_plain_point(&r->job, TILE_ELEMS_STEP);
        struct plani_figures step;
        plani_work work = {0};
        plan_set set;
        point.held = held;
        point.copy_parts = i / PLANI_PARTS;
        point.carried_parts = i % PLANI_PARTS;
        if (plani_try_step(&r->job, &point, 0, &step, &work) == 0) {
            int rc = plani_compile_point(&r->job, &point, &set, &work);
            least = rc == 0 ? size_min(least, step.ns) : least;
            *is_short = *is_short || rc == ERR_NO_FIT;
            if (rc == 0)
                plan_set_fini(&set);
        }
        plani_work_fini(&work);
    }
    return least;
}

/* Jobs in which some program has no room for all that the shortest step would copy and carry. */
static void fewer_tiles_are_carried_where_room_is_short(void **state)
{
    static const uint64_t seeds[] = {43, 111};
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        random_job r;
        carried_job(&r, seeds[i]);
        r.job.budget_bytes[TIER_HOST] = 4 * MIB;
        r.job.tile_elems = TILE_ELEMS_STEP;
        plan_set set;
        bool is_short;
        assert_int_equal(plan_compile(&r.job, &set), 0);
        uint64_t least = shortest_of_parts(&r, set.held_stages + set.held_passes, &is_short);
        double ratio = (double)set.programs[PROGRAM_STEADY].predicted_ns / (double)least;
        print_message("seed %llu: %u pieces are carried; %.3f of the shortest step\n",
                      (unsigned long long)seeds[i], set.carried_count, ratio);
        assert_true(is_short && set.carried_count > 0 && ratio < 1.02);
        plan_set_fini(&set);
    }
}

static void carrying_makes_the_step_shorter(void **state)
{
    uint64_t jobs = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_job r;
        carried_job(&r, seed);
        plan_set set;
        run_compile(&r, seed, &set);
        struct plani_point point = plani_plain_point(&r.job, set.tile_elems);
        struct plani_figures with, without;
        plani_work work = {0};
        point.held = set.held_stages + set.held_passes;
        point.commit = set.commit;
        if (set.carried_count > 0 && set.copy_bytes == 0) {
            assert_int_equal(plani_try_step(&r.job, &point, 0, &without, &work), 0);
            with.ns = set.programs[PROGRAM_STEADY].predicted_ns;
            assert_true(with.ns < without.ns);
            jobs++;
        }
        plani_work_fini(&work);
        plan_set_fini(&set);
    }
    print_message("%llu of %d jobs carry, without copies\n", (unsigned long long)jobs, SEEDS);
    assert_true(jobs > 0);
}

static void nothing_is_carried_with_other_updates(void **state)
{
    static const enum update others[] = {UPDATE_AFTER_BACKWARD, UPDATE_IN_BACKWARD,
                                         UPDATE_DELAYED_ONE_STEP};
    for (uint64_t seed = 1; seed <= SEEDS / 4; seed++) {
        random_job r;
        carried_job(&r, seed);
        r.job.update = others[seed % 3];
        plan_set set;
        assert_int_equal(compile_parts(&r, 0, 8, &set), 0);
        assert_int_equal(set.carried_count, 0);
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
            for (uint64_t i = 0; i < set.programs[k].buffer_count; i++)
                assert_int_equal(set.programs[k].buffers[i].carried, 0);
        plan_set_fini(&set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_update_finds_what_was_carried),
        cmocka_unit_test(what_is_carried_is_read_ahead),
        cmocka_unit_test(a_wrong_seam_is_found),
        cmocka_unit_test(fewer_tiles_are_carried_where_room_is_short),
        cmocka_unit_test(carrying_makes_the_step_shorter),
        cmocka_unit_test(nothing_is_carried_with_other_updates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
