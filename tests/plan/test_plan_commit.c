/* Commits in compiled programs: two places for every state on the slab, saves and OP_COMMIT where
 * the update wants them and nowhere else, ordered against each write of state, and not a trace of
 * them where a job does not commit. Random jobs: cut and tied models, both orders, all updates,
 * mixed homes. */
#include "plan/simulate/simulate_internal.h"
#include "tests/plan/plan_fixture.h"
#include "tests/unit.h"

static int seeds; /* 1 to this number are drawn */

static bool is_in_memory(const random_job *r, uint32_t unit)
{
    return r->homes[STATE_OPTIMIZER][unit] != TIER_NVME;
}

/* Tiles of all units, or of those whose state is homed in memory. */
static uint64_t tiles_of(const random_job *r, uint64_t tile_elems, bool in_memory_only)
{
    uint64_t count = 0;
    for (uint32_t u = 0; u < r->job.unit_count; u++)
        if (!in_memory_only || is_in_memory(r, u))
            count += tile_count(r->elems[u], tile_elems);
    return count;
}

static uint32_t first_place(const plan_set *set, uint32_t unit)
{
    uint32_t save = set->homes.saves[unit];
    return save != PROGRAM_NONE ? save : set->homes.optimizer[unit];
}

/* [state u0][state u1] ... [twin u0][twin u1] ..., and only then anything else. */
static void assert_twins(const random_job *r, const plan_set *set)
{
    const program *prog = &set->programs[PROGRAM_STEADY];
    uint64_t end = 0, bytes = 0;
    for (int twins = 0; twins < 2; twins++)
        for (uint32_t u = 0; u < r->job.unit_count; u++) {
            const buffer *first = &prog->buffers[first_place(set, u)];
            const buffer *item = twins ? &prog->buffers[set->homes.twins[u]] : first;
            assert_int_equal(item->arena, TIER_NVME);
            assert_int_equal(item->state_kind, STATE_OPTIMIZER);
            assert_int_equal(item->unit, u);
            assert_int_equal(item->is_home, 1);
            assert_int_equal(item->size_bytes, first->size_bytes);
            assert_int_equal(item->offset_bytes, end);
            end += item->size_bytes;
            bytes += twins ? item->size_bytes : 0;
        }
    assert_int_equal(set->second_bytes, bytes);
    for (uint64_t b = 0; b < prog->home_count; b++)
        if (prog->buffers[b].arena == TIER_NVME && prog->buffers[b].state_kind != STATE_OPTIMIZER)
            assert_true(prog->buffers[b].offset_bytes >= end);
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++) /* no op names a second place */
        for (uint64_t i = 0; i < set->programs[k].op_count; i++)
            for (uint32_t j = 0; j < set->programs[k].ops[i].operand_count; j++)
                for (uint32_t u = 0; u < r->job.unit_count; u++)
                    assert_int_not_equal(set->programs[k].ops[i].operands[j].buffer_idx,
                                         set->homes.twins[u]);
}

static bool writes_state(const program *prog, const op *item)
{
    return item->kind == OP_WRITE &&
           prog->buffers[op_operand(item, ROLE_TARGET)->buffer_idx].state_kind == STATE_OPTIMIZER;
}

static uint64_t count_commits(const program *prog, uint64_t *where)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < prog->op_count; i++)
        if (prog->ops[i].kind == OP_COMMIT) {
            assert_int_equal(prog->ops[i].lane, LANE_COMMIT);
            assert_int_equal(prog->ops[i].operand_count, 0);
            *where = i;
            count++;
        }
    return count;
}

/* The op writes to the slab, or brings towards it, state that is homed in memory. */
static bool is_of_a_save(const random_job *r, const program *prog, const plan_set *set,
                         const op *item)
{
    if (item->unit == PROGRAM_NONE || !is_in_memory(r, item->unit) ||
        item->state_kind != STATE_OPTIMIZER)
        return false;
    uint32_t target = op_operand(item, ROLE_TARGET)->buffer_idx;
    uint32_t source = op_operand(item, ROLE_SOURCE)->buffer_idx;
    if (item->kind == OP_WRITE)
        return target == set->homes.saves[item->unit];
    return item->kind == OP_D2H && source == set->homes.optimizer[item->unit] &&
           !prog->buffers[target].is_home;
}

/* The op that takes the tile's state from its home is before (or behind) the tile's update. */
static void assert_save_order(const program *prog, const plan_set *set, const op *reader,
                              bool behind)
{
    if (op_operand(reader, ROLE_SOURCE)->buffer_idx != set->homes.optimizer[reader->unit])
        return;
    uint64_t found = 0;
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (item->kind != OP_UPDATE || item->unit != reader->unit || item->tile != reader->tile)
            continue;
        assert_int_equal(item < reader, behind);
        found++;
    }
    assert_int_equal(found, 1);
}

/* The saves and the commit of a program that has them: each tile of state homed in memory once, the
 * commit behind them all, every other write of state behind it (or, with BEHIND, before). */
static void assert_commits(const random_job *r, const plan_set *set, enum program_kind kind)
{
    const program *prog = &set->programs[kind];
    bool is_steady = kind == PROGRAM_STEADY, behind = set->commit == PLAN_COMMIT_BEHIND;
    uint64_t commit = 0, saved = 0, written = 0;
    assert_int_equal(count_commits(prog, &commit), 1);
    assert_int_equal(prog->ops[commit].if_commits, is_steady);
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        bool is_save = is_of_a_save(r, prog, set, item);
        if (is_save && is_steady)
            assert_save_order(prog, set, item, behind);
        if (is_save || item->kind == OP_COMMIT)
            assert_int_equal(item->if_commits, is_steady);
        else
            assert_int_equal(item->if_commits, 0);
        if (!writes_state(prog, item))
            continue;
        saved += is_save;
        written++;
        assert_true(is_save || behind ? op_depends_on(prog, commit, i)
                                      : op_depends_on(prog, i, commit));
    }
    assert_int_equal(saved, tiles_of(r, set->tile_elems, true));
    assert_int_equal(written, tiles_of(r, set->tile_elems, !is_steady));
}

static void assert_no_commits(const program *prog)
{
    uint64_t where;
    assert_int_equal(count_commits(prog, &where), 0);
    for (uint64_t i = 0; i < prog->op_count; i++)
        assert_int_equal(prog->ops[i].if_commits, 0);
}

static bool can_commit_so(const random_job *r, enum plan_commit commit)
{
    switch (r->job.update) {
    case UPDATE_AFTER_BACKWARD:
    case UPDATE_IN_BACKWARD:
        return commit == PLAN_COMMIT_FIRST;
    case UPDATE_IN_NEXT_FORWARD:
        return commit == PLAN_COMMIT_BEHIND ||
               (commit == PLAN_COMMIT_FIRST && tiles_of(r, TILE_ELEMS_STEP, true) > 0);
    case UPDATE_DELAYED_ONE_STEP:
        return commit == PLAN_COMMIT_APART;
    case UPDATE_AUTO:
        break;
    }
    return false;
}

static void commits_are_where_the_update_wants_them(void **state)
{
    int fitted = 0, counts[3] = {0}, staged = 0;
    for (uint64_t seed = 1; seed <= (uint64_t)seeds; seed++) {
        random_job r;
        fixture_committing_job(&r, seed);
        plan_set set;
        int rc = plan_compile(&r.job, &set);
        if (rc == ERR_NO_FIT)
            continue;
        if (rc != 0)
            print_error("seed %llu: %s\n", (unsigned long long)seed, err_text());
        assert_int_equal(rc, 0);
        fitted++;
        counts[set.commit]++;
        assert_true(can_commit_so(&r, set.commit));
        assert_twins(&r, &set);
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++) {
            assert_int_equal(program_check(&set.programs[k]), 0);
            if (k == PROGRAM_SAVE || (k == PROGRAM_STEADY && set.commit != PLAN_COMMIT_APART))
                assert_commits(&r, &set, (enum program_kind)k);
            else
                assert_no_commits(&set.programs[k]);
        }
        const program *steady = &set.programs[PROGRAM_STEADY];
        for (uint64_t i = 0; i < steady->op_count; i++)
            staged += steady->ops[i].kind == OP_D2H && steady->ops[i].if_commits;
        assert_true(steady->predicted_ns + 1000 >= set.bound_ns);
        plan_set_fini(&set);
    }
    print_message(
        "seeds 1 to %d: %d compiled, %d apart, %d first, %d behind, %d tiles saved from the "
        "device\n",
        seeds, fitted, counts[PLAN_COMMIT_APART], counts[PLAN_COMMIT_FIRST],
        counts[PLAN_COMMIT_BEHIND], staged);
    assert_true(fitted > seeds * 4 / 5 && staged > seeds * 2 / 5);
    for (int c = 0; c < 3; c++)
        assert_true(counts[c] > seeds / 10);
}

/* ---- jobs that do not commit ----------------------------------------------------------------- */

/* The ops of a program in serial order. */
static void emit(plani_builder *b, const plan_job *job, plan_set *set, plani_layout *layout,
                 enum plan_commit commit, enum program_kind kind)
{
    memset(set, 0, sizeof *set);
    set->tile_elems = 2 * TILE_ELEMS_STEP;
    set->commit = commit;
    assert_int_equal(plani_layout_make(job, set, layout), 0);
    *b = (plani_builder){0};
    assert_int_equal(plani_builder_begin(b, job, set, layout, 1), 0);
    plani_emit_program(b, kind);
    assert_int_equal(b->error, 0);
}

static void free_emitted(plani_builder *b, plan_set *set, plani_layout *layout)
{
    plani_builder_fini(b);
    plani_layout_fini(layout);
    plan_set_fini(set);
}

static bool is_same_op(const op *one, const op *two)
{
    bool is_same = one->kind == two->kind && one->lane == two->lane &&
                   one->if_applied == two->if_applied && one->unit == two->unit &&
                   one->stage == two->stage && one->pass == two->pass &&
                   one->micro_batch == two->micro_batch && one->tile == two->tile &&
                   one->elem_begin == two->elem_begin && one->elem_count == two->elem_count &&
                   one->operand_count == two->operand_count;
    for (uint32_t k = 0; is_same && k < one->operand_count; k++) {
        const operand *a = &one->operands[k], *b = &two->operands[k];
        is_same = a->role == b->role && a->access == b->access && a->size_bytes == b->size_bytes &&
                  a->offset_bytes == b->offset_bytes;
    }
    return is_same;
}

/* The ops that a step without a commit skips are exactly those that commits add to the program. */
static void other_ops_are_the_same(void **state)
{
    uint64_t skipped = 0;
    for (uint64_t seed = 1; seed <= 60; seed++)
        for (int kind = 0; kind < PROGRAM_KIND_COUNT; kind++)
            for (int commit = 0; commit < 3; commit++) {
                random_job r;
                fixture_committing_job(&r, seed);
                bool behind = commit == PLAN_COMMIT_BEHIND;
                if (behind && r.job.update != UPDATE_IN_NEXT_FORWARD)
                    continue;
                plani_builder with, without;
                plan_set with_set, without_set;
                plani_layout with_layout, without_layout;
                plan_job plain = r.job;
                plain.commits = false;
                emit(&with, &r.job, &with_set, &with_layout, (enum plan_commit)commit,
                     (enum program_kind)kind);
                emit(&without, &plain, &without_set, &without_layout, PLAN_COMMIT_APART,
                     (enum program_kind)kind);
                uint64_t met = 0;
                for (uint64_t i = 0; i < with.op_count; i++) {
                    if (with.ops[i].if_commits)
                        continue;
                    assert_true(met < without.op_count);
                    assert_true(is_same_op(&with.ops[i], &without.ops[met++]));
                }
                assert_int_equal(met, without.op_count);
                assert_int_equal(with.op_count > met,
                                 kind == PROGRAM_STEADY && commit != PLAN_COMMIT_APART);
                skipped += with.op_count - met;
                free_emitted(&with, &with_set, &with_layout);
                free_emitted(&without, &without_set, &without_layout);
            }
    assert_true(skipped > 1000);
}

static void without_commits_there_is_one_place(void **state)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        random_job r;
        fixture_committing_job(&r, seed);
        r.job.commits = seed % 2;
        r.job.only_eval = seed % 2;
        fixture_set_budgets(&r, 512 * MIB);
        plan_set set;
        assert_ok(plan_compile(&r.job, &set));
        assert_int_equal(set.commit, PLAN_COMMIT_APART);
        assert_int_equal(set.second_bytes, 0);
        for (uint32_t u = 0; u < r.job.unit_count; u++) {
            assert_int_equal(set.homes.twins[u], PROGRAM_NONE);
            assert_int_not_equal(first_place(&set, u), PROGRAM_NONE);
        }
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
            if (k != PROGRAM_SAVE || r.job.only_eval)
                assert_no_commits(&set.programs[k]);
            else
                assert_commits(&r, &set, PROGRAM_SAVE);
        plan_set_fini(&set);
    }
}

/* ---- choices and refusals -------------------------------------------------------------------- */

/* The mean step decides: steps that do not commit where most of them do not, whatever is homed
 * where. */
static void steps_that_do_not_commit_decide(void **state)
{
    int held = 0, otherwise = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        random_job r;
        fixture_committing_job(&r, seed);
        r.job.machine.drive_write_bytes_per_second = 100e6;
        fixture_set_budgets(&r, 1024 * MIB);
        for (uint32_t u = 0; u < r.job.unit_count; u++) {
            r.homes[STATE_OPTIMIZER][u] = seed % 2 ? TIER_HOST : r.homes[STATE_OPTIMIZER][u];
            r.homes[STATE_PARAMS][u] = TIER_HOST;
        }
        r.homes[STATE_OPTIMIZER][0] = TIER_DEVICE;
        plan_set plain, often, seldom;
        r.job.commits = false;
        assert_int_equal(plan_compile(&r.job, &plain), 0);
        assert_int_equal(plain.uncommitted_ns, plain.programs[PROGRAM_STEADY].predicted_ns);
        r.job.commits = true;
        r.job.commit_every = 0;
        assert_int_equal(plan_compile(&r.job, &often), 0);
        r.job.commit_every = 50;
        assert_int_equal(plan_compile(&r.job, &seldom), 0);
        /* Each is the better one for its own share of steps that commit, but for prices. */
        double seldom_ns = plan_mean_step_ns(&r.job, &seldom);
        assert_true(seldom_ns <= 1.01 * plan_mean_step_ns(&r.job, &often));
        r.job.commit_every = 1;
        assert_true(plan_mean_step_ns(&r.job, &often) <= 1.01 * plan_mean_step_ns(&r.job, &seldom));
        otherwise +=
            often.tile_elems != seldom.tile_elems || often.held_stages != seldom.held_stages ||
            often.held_passes != seldom.held_passes || often.copy_bytes != seldom.copy_bytes;
        held += plain.held_stages > 0;
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
            assert_int_equal(program_check(&seldom.programs[k]), 0);
        assert_true(can_commit_so(&r, seldom.commit));
        plan_set_fini(&plain);
        plan_set_fini(&often);
        plan_set_fini(&seldom);
    }
    print_message("%d hold stages, %d would be compiled otherwise if every step committed\n", held,
                  otherwise);
    assert_true(held > 5 && otherwise > 5);
}

static uint64_t figure_at(const char *key)
{
    const char *at = strstr(err_text(), key);
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

/* The refusal of a drive that is too small tells what one place per extent would need, and it is
 * true. */
static void a_refusal_names_the_second_places(void **state)
{
    for (uint64_t seed = 1; seed <= 30; seed++) {
        random_job r;
        fixture_committing_job(&r, seed);
        r.job.tile_elems = TILE_ELEMS_STEP << seed % 3;
        for (int a = 0; a < TIER_COUNT; a++)
            r.job.budget_bytes[a] = a == TIER_NVME ? 4096 : 1024 * MIB;
        r.job.nvme_overhead_bytes = 4096 * (seed % 3);
        plan_set set;
        assert_int_equal(plan_compile(&r.job, &set), ERR_NO_FIT);
        if (seed == 1)
            print_message("%s\n", err_text());
        uint64_t less = figure_at("; run.commit_every=0 needs ");
        uint64_t need = figure_at("tiers.nvme[].budget=");
        assert_true(less > 0 && need > 2 * less - 1);
        r.job.nvme_advice = "buy a drive";
        assert_error(plan_compile(&r.job, &set), ERR_NO_FIT,
                     "; buy a drive; run.commit_every=0 needs ");

        r.job.nvme_advice = NULL;
        r.job.commits = false;
        r.job.budget_bytes[TIER_NVME] = need - less - TILE_BLOCK_BYTES;
        assert_int_equal(plan_compile(&r.job, &set), ERR_NO_FIT);
        assert_null(strstr(err_text(), "commit_every"));
        r.job.budget_bytes[TIER_NVME] = need - less;
        assert_int_equal(plan_compile(&r.job, &set), 0);
        plan_set_fini(&set);

        r.job.commits = true;
        r.job.budget_bytes[TIER_NVME] = need;
        assert_int_equal(plan_compile(&r.job, &set), 0);
        assert_int_equal(set.second_bytes, less);
        plan_set_fini(&set);
        r.job.budget_bytes[TIER_DEVICE] =
            4096; /* the drive is large enough: nothing is said of it */
        assert_int_equal(plan_compile(&r.job, &set), ERR_NO_FIT);
        assert_null(strstr(err_text(), "commit_every"));
    }
}

int main(void)
{
    seeds = unit_draws(100, 250);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commits_are_where_the_update_wants_them),
        cmocka_unit_test(other_ops_are_the_same),
        cmocka_unit_test(without_commits_there_is_one_place),
        cmocka_unit_test(steps_that_do_not_commit_decide),
        cmocka_unit_test(a_refusal_names_the_second_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
