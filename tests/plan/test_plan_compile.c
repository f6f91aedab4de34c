/* The compiler on random jobs: each ends in programs that pass program_check, or in a refusal
 * whose figures are right (the job compiles with exactly the bytes named, and not with one block
 * less). */
#include <math.h>

#include "base/mem.h"
#include "tests/plan/plan_fixture.h"
#include "tests/unit.h"

static bool is_cut(const random_job *r)
{
    for (uint32_t s = 0; s < r->job.stage_count; s++)
        if (r->stages[s].is_cut)
            return true;
    return false;
}

/* Checks that each op with a `behind` starts, by the prediction, after that op ends. Returns the
 * number of such ops. */
static uint64_t count_behind(const program *prog)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (item->behind == PROGRAM_NONE)
            continue;
        assert_true(prog->ops[item->behind].predicted_end_ns <= item->predicted_start_ns);
        count++;
    }
    return count;
}

/* With `frozen` some units of each job do not learn. With `split` masters are split. */
static void try_random_jobs(int first, int last, bool frozen, bool split, int least)
{
    int fitted = 0, refused = 0, cut = 0, committing = 0, orders[2] = {0}, updates[4] = {0};
    uint64_t behind = 0;
    for (uint64_t seed = (uint64_t)first; seed <= (uint64_t)last; seed++) {
        random_job r;
        fixture_random_job(&r, seed);
        if (frozen)
            fixture_freeze(&r);
        if (split)
            fixture_split(&r);
        r.job.commits = seed % 2; /* where it has places to commit to */
        r.job.commit_every = seed % 4 == 1 ? 1 : 50;
        plan_set set;
        int rc = plan_compile(&r.job, &set);
        if (rc == 0) {
            fitted++;
            committing += set.commit != PLAN_COMMIT_APART;
            cut += is_cut(&r);
            for (int o = 0; o < 2; o++)
                orders[o] += (int)r.job.order == o;
            for (int u = 0; u < 4; u++)
                updates[u] += (int)r.job.update == u;
            for (int k = 0; k < PROGRAM_KIND_COUNT; k++) {
                assert_int_equal(program_check(&set.programs[k]), 0);
                behind += count_behind(&set.programs[k]);
            }
            assert_true(set.programs[PROGRAM_STEADY].predicted_ns + 1000 >= set.bound_ns);
            plan_set_fini(&set);
            continue;
        }
        if (rc != ERR_NO_FIT)
            print_error("seed %llu: %s\n", (unsigned long long)seed, err_text());
        assert_int_equal(rc, ERR_NO_FIT);
        refused++;
        char text[ERR_TEXT_BYTES];
        snprintf(text, sizeof text, "%s", err_text());
        uint64_t need[TIER_COUNT];
        static const char *const keys[TIER_COUNT] = {
            "tiers.device.budget=", "tiers.host.budget=", "tiers.nvme[].budget="};
        for (int a = 0; a < TIER_COUNT; a++) {
            const char *at = strstr(text, keys[a]);
            need[a] = at ? strtoull(at + strlen(keys[a]), NULL, 10) : 0;
            if (at)
                r.job.budget_bytes[a] = need[a];
        }
        rc = plan_compile(&r.job, &set);
        if (rc != 0)
            print_error("seed %llu: %s; with the needed bytes: %s\n", (unsigned long long)seed,
                        text, err_text());
        assert_int_equal(rc, 0);
        plan_set_fini(&set);
        for (int a = 0; a < TIER_COUNT; a++) {
            if (!need[a])
                continue;
            r.job.budget_bytes[a] = need[a] - TILE_BLOCK_BYTES;
            rc = plan_compile(&r.job, &set);
            if (rc == 0)
                print_error("seed %llu: fits with less than \"%s\"\n", (unsigned long long)seed,
                            text);
            assert_int_equal(rc, ERR_NO_FIT);
            r.job.budget_bytes[a] = need[a];
        }
    }
    print_message("seeds %d to %d: %d compiled (%d cut, %d that commit), %d refused; %llu ops "
                  "behind others\n",
                  first, last, fitted, cut, committing, refused, (unsigned long long)behind);
    assert_true(behind > (uint64_t)least);
    assert_true(fitted > 5 * least && refused > least && cut > least && committing > least);
    for (int o = 0; o < 2; o++)
        assert_true(orders[o] > least);
    for (int u = 0; u < 4; u++)
        assert_true(updates[u] > least);
}

static void random_jobs(void **state)
{
    int share = unit_draws(4, 1);
    try_random_jobs(1, 400 / share, false, false, 20 / share);
}

static void random_jobs_with_frozen_units(void **state)
{
    try_random_jobs(401, unit_draws(450, 600), true, false, unit_draws(2, 8));
}

static void random_jobs_with_split_masters(void **state)
{
    try_random_jobs(601, unit_draws(650, 800), false, true, unit_draws(2, 8));
    try_random_jobs(801, unit_draws(850, 900), true, true, unit_draws(1, 2));
}

static void nothing_leaks(void **state)
{
    mem_stats before, after;
    mem_get_stats(&before);
    random_job r;
    for (uint64_t seed = 500; seed < 520; seed++) {
        fixture_random_job(&r, seed);
        plan_set set;
        if (plan_compile(&r.job, &set) == 0)
            plan_set_fini(&set);
    }
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
}

static void equal_jobs_give_equal_programs(void **state)
{
    random_job r;
    fixture_random_job(&r, 3);
    for (int a = 0; a < TIER_COUNT; a++)
        r.job.budget_bytes[a] = 512 * MIB;
    plan_set one, two;
    assert_int_equal(plan_compile(&r.job, &one), 0);
    assert_int_equal(plan_compile(&r.job, &two), 0);
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
        assert_int_equal(program_hash(&one.programs[k]), program_hash(&two.programs[k]));
    plan_set_fini(&one);
    plan_set_fini(&two);
}

/* The seconds of one core that a plan gives an element of the update, the same for all its tiles;
 * 0: no plan. */
static double update_seconds(uint64_t seed, uint32_t streams)
{
    random_job r;
    plan_set set;
    double seconds = 0;
    fixture_random_job(&r, seed);
    r.job.machine.device_is_cpu = true;
    r.job.machine.update_core_seconds = 2e-9;
    r.job.state_streams = streams;
    if (plan_compile(&r.job, &set) != 0)
        return 0;
    for (int p = 0; p < PROGRAM_KIND_COUNT; p++)
        for (uint32_t i = 0; i < set.programs[p].op_count; i++) {
            const op *item = &set.programs[p].ops[i];
            if (item->kind != OP_UPDATE)
                continue;
            double own = item->demand.core_seconds / (double)item->elem_count;
            assert_true(seconds == 0 || fabs(own / seconds - 1) < 1e-12);
            seconds = own;
        }
    plan_set_fini(&set);
    return seconds;
}

/* An update has the share of the cores that its arithmetic needs. One that takes turns with passes
 * has all of them, since nothing is computed while it waits for memory. */
static void updates_keep_cores_from_passes(void **state)
{
    uint32_t compared[2] = {0};
    for (uint64_t seed = 1; seed <= 40; seed++) {
        random_job r;
        plan_set set;
        fixture_random_job(&r, seed);
        plan_machine *machine = &r.job.machine;
        machine->updates_beside = seed % 2;
        machine->update_core_seconds = 1e-15;
        bool by_turns = machine->device_is_cpu && !machine->updates_beside;
        if (plan_compile(&r.job, &set) != 0)
            continue;
        const program *steady = &set.programs[PROGRAM_STEADY];
        for (uint32_t i = 0; i < steady->op_count; i++) {
            const op_demand *asked = &steady->ops[i].demand;
            if (steady->ops[i].kind != OP_UPDATE || asked->dram_bytes == 0) /* on a GPU */
                continue;
            double share = asked->core_seconds * machine->dram_bytes_per_second /
                           (machine->core_count * (double)asked->dram_bytes);
            assert_true(by_turns ? fabs(share - 1) < 1e-9 : share < 0.01);
            compared[by_turns]++;
        }
        plan_set_fini(&set);
    }
    assert_true(compared[0] > 0 && compared[1] > 0);
}

/* Moments that are rounded stochastically take more arithmetic than the fp32 update that was
 * measured. */
static void packed_updates_cost_more(void **state)
{
    int compared = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        double plain = update_seconds(seed, 3);
        double bf16 = update_seconds(seed, tile_streams_code(3, TILE_FP32, TILE_BF16, TILE_BF16));
        double int8 = update_seconds(seed, tile_streams_code(3, TILE_FP32, TILE_INT8, TILE_INT8));
        if (plain == 0 || bf16 == 0 || int8 == 0)
            continue;
        assert_float_equal(plain * 1e9, 2, 1e-9);
        assert_float_equal(bf16 / plain, 1.26, 1e-9);
        assert_float_equal(int8 / plain, 2.04, 1e-9);
        compared++;
    }
    assert_true(compared >= 3);
}

static const operand *find_role(const op *item, enum operand_role role)
{
    for (uint32_t i = 0; i < item->operand_count; i++)
        if (item->operands[i].role == role)
            return &item->operands[i];
    fail_msg("op %s has no operand of role %d", op_kind_name((enum op_kind)item->kind), (int)role);
    return NULL;
}

/* One rank makes fp32 gradients that rest on the device where they rest, and closes them there. */
static void fp32_gradients_are_closed_in_place(void **state)
{
    uint64_t in_place = 0, elsewhere = 0;
    for (uint64_t seed = 1; seed <= 80; seed++) {
        random_job r;
        plan_set set;
        fixture_random_job(&r, seed);
        for (uint32_t u = 0; u < r.job.unit_count; u++)
            r.homes[STATE_GRADS][u] = seed % 4 ? TIER_DEVICE : TIER_HOST;
        for (int a = 0; a < TIER_COUNT; a++)
            r.job.budget_bytes[a] = 8192 * MIB;
        if (plan_compile(&r.job, &set) < 0)
            continue;
        bool rests_there = seed % 4 && r.job.grad_bytes == sizeof(float) && r.job.world <= 1 &&
                           r.job.update != UPDATE_IN_BACKWARD &&
                           r.job.update != UPDATE_DELAYED_ONE_STEP;
        const program *steady = &set.programs[PROGRAM_STEADY];
        for (uint64_t i = 0; i < steady->op_count; i++) {
            const op *item = &steady->ops[i];
            if (item->kind != OP_GRAD_CLOSE)
                continue;
            const operand *sums = find_role(item, ROLE_GRADS0),
                          *made = find_role(item, ROLE_TARGET);
            bool may = rests_there && set.homes.accumulators[item->unit] == PROGRAM_NONE;
            assert_int_equal(sums->buffer_idx == made->buffer_idx, may);
            if (may) {
                assert_int_equal(made->buffer_idx, set.homes.grads[item->unit]);
                assert_int_equal(sums->offset_bytes, made->offset_bytes);
            }
            in_place += may;
            elsewhere += !may;
        }
        plan_set_fini(&set);
    }
    assert_true(in_place > 20 && elsewhere > 20);
}

/* counts[step] grows by the steps that read numbers back from a GPU. Returns the number of those
 * that tell hits. */
static uint64_t check_waits(const random_job *r, const plan_set *set, const program *prog,
                            uint64_t counts[])
{
    uint64_t told = 0;
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (item->kind != OP_FORWARD && item->kind != OP_RECOMPUTE && item->kind != OP_BACKWARD)
            continue;
        enum phase phase = item->kind == OP_FORWARD     ? PHASE_FORWARD
                           : item->kind == OP_RECOMPUTE ? PHASE_RECOMPUTE
                                                        : PHASE_BACKWARD;
        const struct pass *pass = &r->stages[item->stage].passes[phase][item->pass];
        bool waits = item->step == STEP_EXPERTS || (pass->reads_back && item->step != STEP_COMBINE);
        bool tells = set->fetches_hit && phase == PHASE_FORWARD && pass->told_count > 0;
        double once = r->job.machine.device_is_cpu ? 0 : r->job.machine.op_seconds;
        assert_float_equal(item->demand.wait_seconds * 1e6, (waits + tells) * once * 1e6, 1e-9);
        counts[item->step] += waits && once > 0;
        told += tells && once > 0;
    }
    return told;
}

/* A pass whose work depends on numbers that a GPU computes leaves it idle once; one that exchanges
 * rows, in a further step. */
static void reading_back_takes_time(void **state)
{
    static const enum phase phases[] = {PHASE_FORWARD, PHASE_BACKWARD};
    uint64_t counts[STEP_COMBINE + 1] = {0};
    for (uint64_t seed = 1; seed <= 80; seed++) {
        random_job r;
        plan_set set;
        fixture_random_job(&r, seed);
        if (seed % 2)
            fixture_ranks(&r, seed, 2, 1 + (uint32_t)seed % 3);
        r.job.machine.op_seconds = 7e-6;
        for (int a = 0; a < TIER_COUNT; a++)
            r.job.budget_bytes[a] = 8192 * MIB;
        for (uint32_t s = 1; s + 1 < r.job.stage_count; s += 2)
            for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++)
                for (uint32_t p = 0; p < r.stages[s].pass_count[phases[i]]; p++) {
                    struct pass *pass = &r.stages[s].passes[phases[i]][p];
                    pass->reads_back = p == 0;
                    if (r.job.world > 1)
                        pass->sent_bytes = pass->received_bytes = 4096;
                }
        if (plan_compile(&r.job, &set) < 0)
            continue;
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
            assert_int_equal(check_waits(&r, &set, &set.programs[k], counts), 0);
        plan_set_fini(&set);
    }
    assert_true(counts[STEP_WHOLE] > 100 && counts[STEP_SEND] > 10 && counts[STEP_EXPERTS] > 10);
}

/* The first pass of a block tells which units of the later ones are hit. The GPU is idle once more
 * for that. */
static void telling_hits_takes_time(void **state)
{
    static const enum phase phases[] = {PHASE_FORWARD, PHASE_BACKWARD};
    uint64_t counts[STEP_COMBINE + 1] = {0}, told = 0;
    for (uint64_t seed = 3; seed <= 150; seed += 3) { /* these have a GPU */
        random_job r;
        plan_set set;
        fixture_random_job(&r, seed);
        r.job.machine.op_seconds = 7e-6;
        r.job.experts = FETCH_HIT;
        r.job.call_tokens = 1;
        for (int a = 0; a < TIER_COUNT; a++)
            r.job.budget_bytes[a] = 8192 * MIB;
        for (uint32_t s = 1; s + 1 < r.job.stage_count; s++) {
            struct stage *stage = &r.stages[s];
            uint32_t count = stage->pass_count[PHASE_FORWARD];
            struct pass *first = stage->passes[PHASE_FORWARD];
            if (count < 2)
                continue;
            first->told_begin = first->units[0] + 1;
            first->told_count = count - 1;
            first->reads_back = seed % 2;
            for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++)
                for (uint32_t p = 0; p < stage->pass_count[phases[i]]; p++) {
                    struct pass *pass = &stage->passes[phases[i]][p];
                    pass->miss = pass->units[0] == first->units[0] ? 0 : 0.5;
                }
        }
        if (plan_compile(&r.job, &set) < 0)
            continue;
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
            told += check_waits(&r, &set, &set.programs[k], counts);
        plan_set_fini(&set);
    }
    assert_true(told > 50 && counts[STEP_WHOLE] > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_jobs),
        cmocka_unit_test(random_jobs_with_frozen_units),
        cmocka_unit_test(random_jobs_with_split_masters),
        cmocka_unit_test(nothing_leaks),
        cmocka_unit_test(equal_jobs_give_equal_programs),
        cmocka_unit_test(packed_updates_cost_more),
        cmocka_unit_test(updates_keep_cores_from_passes),
        cmocka_unit_test(fp32_gradients_are_closed_in_place),
        cmocka_unit_test(reading_back_takes_time),
        cmocka_unit_test(telling_hits_takes_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
