/* Plans with split masters: the working copy is half of the state. Run on numbers
 * (plan_ranks_run.h), every update finds the half that the one before it made, and a later process
 * has both halves back from the slab alone; both have two places there, are saved where they rest
 * in memory, and each commit is ordered against each write of them. Random jobs: cut and tied
 * models, both orders, all updates, mixed homes, moments of any format, frozen units, 1 to 5 ranks,
 * stages 0 to 3. */
#include "tests/plan/plan_fixture.h"
#include "tests/plan/plan_ranks_run.h"
#include "tests/unit.h"

enum { SEEDS = 160 };

static void split_job(random_job *r, uint64_t seed)
{
    fixture_ranks(r, seed, 1 + seed % 5, (uint32_t)(seed / 5 % 4));
    fixture_split(r);
    if (seed % 3 == 0)
        fixture_freeze(r);
    run_make_roomy(r);
}

/* ---- dataflow -------------------------------------------------------------------------------- */

static void every_update_finds_both_halves(void **state)
{
    uint64_t read = 0, reloaded = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_job r;
        split_job(&r, seed);
        if (seed % 8 == 0)
            r.job.lookahead_ops = 1;
        plan_set set;
        run_compile(&r, seed, &set);
        ranks_run run;
        reloaded += run_life(&run, &r, &set);
        if (run_leaves_update(&r.job))
            run_program(&run, PROGRAM_FLUSH, 4, 4);
        run_program(&run, PROGRAM_EVAL, 4, 4);
        read += run.params_read;
        run_end(&run);
        plan_set_fini(&set);
    }
    print_message("seeds 1 to %d: %llu params of a unit read, %llu jobs loaded again\n", SEEDS,
                  (unsigned long long)read, (unsigned long long)reloaded);
    assert_true(read > 5000 && reloaded > SEEDS / 4);
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Tiles of the unit's high halves that the program writes to the slab. */
static uint64_t count_writes(const program *prog, uint32_t place)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (item->kind != OP_WRITE || op_operand(item, ROLE_TARGET)->buffer_idx != place)
            continue;
        assert_int_equal(item->state_kind, STATE_PARAMS);
        assert_true(item->elem_count > 0);
        count++;
    }
    return count;
}

static void assert_places(const random_job *r, const plan_set *set, uint32_t u, int counts[3])
{
    const plan_homes *homes = &set->homes;
    const program *prog = &set->programs[PROGRAM_STEADY];
    uint64_t elems = plan_rest_elems(&r->job, STATE_OPTIMIZER, u);
    uint64_t tiles = tile_count(elems, set->tile_elems);
    bool is_home = homes->high_saves[u] == PROGRAM_NONE,
         follows = plani_params_are_high(&r->job, u);
    const buffer *place = &prog->buffers[plan_high_place(homes, u)];
    const buffer *high = &prog->buffers[homes->highs[u]];
    assert_int_equal(place->arena, TIER_NVME);
    assert_int_equal(place->is_committed, 1);
    assert_int_equal(place->size_bytes, r->job.param_bytes * elems);
    assert_int_equal(high->size_bytes, r->job.param_bytes * elems);
    assert_int_equal(high->arena, r->homes[follows ? STATE_PARAMS : STATE_OPTIMIZER][u]);
    assert_int_equal(homes->highs[u] == homes->params[u], follows);
    assert_int_equal(is_home, high->arena == TIER_NVME);
    assert_int_equal(homes->high_twins[u] != PROGRAM_NONE, r->job.commits);
    if (r->job.commits) {
        const buffer *twin = &prog->buffers[homes->high_twins[u]];
        assert_int_equal(twin->size_bytes, place->size_bytes);
        assert_int_equal(twin->arena, TIER_NVME);
    }
    uint32_t at = plan_high_place(homes, u);
    assert_int_equal(count_writes(&set->programs[PROGRAM_SAVE], at), is_home ? 0 : tiles);
    assert_int_equal(count_writes(&set->programs[PROGRAM_INIT], at), is_home ? tiles : 0);
    assert_int_equal(count_writes(&set->programs[PROGRAM_LOAD], at), 0);
    uint64_t steady = is_home || set->commit != PLAN_COMMIT_APART ? tiles : 0;
    assert_int_equal(count_writes(prog, at), steady);
    counts[0] += is_home;
    counts[1] += !follows;
    counts[2] += !is_home && steady > 0;
}

static void both_halves_have_two_places(void **state)
{
    int counts[3] = {0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_job r;
        split_job(&r, seed);
        r.job.needs_save_places = true;
        plan_set set;
        run_compile(&r, seed, &set);
        for (uint32_t u = 0; u < r.job.unit_count; u++) {
            if (plan_learns(&r.job, u)) {
                assert_places(&r, &set, u, counts);
                continue;
            }
            assert_int_equal(set.homes.highs[u], PROGRAM_NONE);
            assert_int_equal(set.homes.high_twins[u], PROGRAM_NONE);
        }
        uint64_t homes[TIER_COUNT];
        plani_count_homes(&r.job,
                          homes); /* without padding, activations of parked stages included */
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
            assert_int_equal(program_check(&set.programs[k]), 0);
        assert_true(homes[TIER_NVME] <= set.programs[PROGRAM_STEADY].peak_bytes[TIER_NVME]);
        plan_set_fini(&set);
    }
    print_message("%d units at home on nvme, %d with halves of their own, %d saved in a step\n",
                  counts[0], counts[1], counts[2]);
    assert_true(counts[0] > 200 && counts[1] > 100 && counts[2] > 100);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static uint64_t drive_bytes(const program *prog, bool reads)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < prog->op_count; i++)
        bytes +=
            reads ? prog->ops[i].demand.drive_read_bytes : prog->ops[i].demand.drive_write_bytes;
    return bytes;
}

/* One rank, all on drives: an update reads as many bytes and writes 2 less per parameter; with the
 * params in memory it reads and writes 2 less, and a commit saves the params. With fp32 params it
 * is 4. */
static void bytes_are_as_few_as_said(void **state)
{
    for (int i = 0; i < 4; i++) {
        bool near = i % 2, are_params = i / 2;
        uint64_t less = are_params ? 4 : 2;
        random_job r;
        plan_set whole, split;
        fixture_ranks(&r, 7, 1, 0);
        uint64_t elems = 0;
        for (uint32_t u = 0; u < r.job.unit_count; u++)
            elems += r.elems[u] = TILE_ELEMS_STEP * (1 + u % 3);
        for (int k = 0; k < STATE_KIND_COUNT; k++)
            memset(r.homes[k], k == STATE_INNER_ACTIVATIONS ? TIER_COUNT : TIER_NVME,
                   FIXTURE_UNITS_MAX);
        if (near)
            memset(r.homes[STATE_PARAMS], TIER_HOST, FIXTURE_UNITS_MAX);
        r.job.needs_save_places = r.job.commits = true;
        r.job.commit_every = 1;
        r.job.update = UPDATE_AFTER_BACKWARD;
        r.job.param_bytes = are_params ? 4 : 2;
        r.job.state_streams = 3;
        for (int a = 0; a < TIER_COUNT; a++)
            r.job.budget_bytes[a] = 4096 * MIB;
        run_compile(&r, 7, &whole);
        r.job.state_streams =
            tile_streams_code(3, are_params ? TILE_PARAMS : TILE_LOW16, TILE_FP32, TILE_FP32);
        run_compile(&r, 7, &split);
        const program *a = &whole.programs[PROGRAM_STEADY], *b = &split.programs[PROGRAM_STEADY];
        assert_true(drive_bytes(a, true) - drive_bytes(b, true) == (near ? less * elems : 0));
        assert_true(drive_bytes(a, false) - drive_bytes(b, false) == (near ? 0 : less * elems));
        uint64_t a_states = whole.home_bytes[STATE_OPTIMIZER][TIER_NVME] + whole.second_bytes;
        uint64_t b_states = split.home_bytes[STATE_OPTIMIZER][TIER_NVME] + split.second_bytes;
        assert_true(a_states - b_states == less * elems);
        plan_set_fini(&whole);
        plan_set_fini(&split);
    }
}

static void params_of_other_widths_are_refused(void **state)
{
    random_job r;
    plan_set set;
    split_job(&r, 1);
    r.job.param_bytes = 6 - r.job.param_bytes;
    assert_error(plan_compile(&r.job, &set), ERR_CONFIG,
                 r.job.param_bytes == 4 ? "2 bytes" : "4 bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_update_finds_both_halves),
        cmocka_unit_test(both_halves_have_two_places),
        cmocka_unit_test(bytes_are_as_few_as_said),
        cmocka_unit_test(params_of_other_widths_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
