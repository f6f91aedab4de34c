/* Params that the first micro-batch of a pass leaves packed for the others (plan_pass.packed_bytes): which ops use
 * them and how, what seconds that spares, and how many bytes a plan holds. Random jobs (plan_fixture.h): cut and whole
 * stages, kept `saved` or not, both orders, evaluation alone, mixed homes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/plan_internal.h"
#include "plan_fixture.h"
#include "plan_ranks_run.h"

enum { SEEDS = 120 };

enum packing { NOTHING, UNTIMED, TIMED };

static const double pass_seconds = 0.05;

/* Passes that multiply: all but those of the first stage. The head's multiply several times. */
static void pack_passes(random_job *r, enum packing way)
{
    for (uint32_t s = 1; s < r->job.stage_count; s++) {
        r->stages[s].recompute_seconds = way == UNTIMED ? 0 : pass_seconds / 4;
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            for (uint32_t p = 0; p < r->stages[s].pass_count[phase]; p++) {
                plan_pass *pass = (plan_pass *)&r->stages[s].passes[phase][p];
                pass->seconds = way == UNTIMED ? 0 : pass_seconds;
                if (way == NOTHING)
                    continue;
                pass->packed_bytes = 8192 * (s + p + 2 * (uint32_t)phase);
                pass->kept_packed_bytes = pass->packed_bytes / 2;
                pass->packs_alone = s + 1 == r->job.stage_count;
                pass->packing_seconds = way == UNTIMED ? 0 : pass_seconds / 5;
                pass->packing_once_seconds = pass->packing_seconds / (pass->packs_alone ? 4 : 1);
                pass->kept_packing_seconds = pass->packing_seconds / 2;
                pass->kept_packing_once_seconds = pass->packing_once_seconds / 2;
            }
    }
}

/* A job that waits for computing alone: all else takes next to no time. */
static void packed_job(random_job *r, uint64_t seed, enum packing way)
{
    fixture_random_job(r, seed);
    run_make_roomy(r);
    plan_machine *m = &r->job.machine;
    m->drive_read_bytes_per_second = m->drive_write_bytes_per_second = 1e13;
    m->h2d_bytes_per_second = m->d2h_bytes_per_second = m->dram_bytes_per_second = 1e13;
    m->device_bytes_per_second = 1e13;
    m->sync_seconds = m->op_seconds = 1e-9;
    m->io_core_seconds = m->copy_core_seconds = 1e-15;
    m->update_core_seconds = 1e-13;
    pack_passes(r, way);
}

static bool is_kept(const random_job *r, const op *item)
{
    const plan_stage *stage = &r->stages[item->stage];
    uint32_t unit = stage->passes[PHASE_FORWARD]->units[0];
    return item->kind == OP_BACKWARD && !stage->is_cut && stage->saved_bytes > 0 &&
           r->homes[STATE_INNER_ACTIVATIONS][unit] < TIER_COUNT;
}

static const plan_pass *pass_of(const random_job *r, const op *item)
{
    enum phase phase = item->kind == OP_FORWARD     ? PHASE_FORWARD
                            : item->kind == OP_RECOMPUTE ? PHASE_RECOMPUTE
                                                         : PHASE_BACKWARD;
    return &r->stages[item->stage].passes[phase][item->pass];
}

struct seen {
    uint32_t fills[3], finds[3]; /* by forward, recompute, backward */
    uint32_t kept, alone, none;
};

static bool computes(const op *item)
{
    return item->kind == OP_FORWARD || item->kind == OP_RECOMPUTE || item->kind == OP_BACKWARD;
}

/* The program's ops hold what the set's cap allows: written by a run's first micro-batch, found by the others. */
static void check_program(const random_job *r, const plan_set *set, enum program_kind kind,
                          struct seen *seen)
{
    const program *prog = &set->programs[kind];
    bool together = r->job.order == ORDER_LAYER_MAJOR && r->job.micro_batch_count > 1;
    uint32_t filler = PROGRAM_NONE;
    assert_int_equal(program_check(prog), 0);
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        const operand *packed = op_operand(item, ROLE_PACKED);
        if (!computes(item)) {
            assert_null(packed);
            continue;
        }
        const plan_pass *pass = pass_of(r, item);
        bool kept = is_kept(r, item);
        uint64_t bytes = kept ? pass->kept_packed_bytes : pass->packed_bytes;
        bool held = bytes > 0 && bytes <= set->packed_bytes_max && (together || pass->packs_alone);
        assert_int_equal(packed != NULL, held);
        seen->none += !held;
        if (!held)
            continue;
        bool fills = item->micro_batch == 0 || !together;
        const buffer *at = &prog->buffers[packed->buffer_idx];
        assert_int_equal(packed->access, fills ? ACCESS_WRITE : ACCESS_READ);
        assert_int_equal(at->arena, TIER_DEVICE);
        assert_false(at->is_home);
        assert_int_equal(at->unit, pass->units[0]);
        assert_int_equal(at->size_bytes, size_round_up(bytes, TILE_BLOCK_BYTES));
        if (fills)
            filler = i;
        assert_int_equal(at->producer, filler);
        assert_true(prog->ops[filler].kind == item->kind &&
                    prog->ops[filler].stage == item->stage && prog->ops[filler].pass == item->pass);
        uint32_t way = item->kind == OP_FORWARD ? 0 : item->kind == OP_RECOMPUTE ? 1 : 2;
        seen->fills[way] += fills;
        seen->finds[way] += !fills;
        seen->kept += kept;
        seen->alone += !together;
    }
}

static void check_set(const random_job *r, const plan_set *set, struct seen *seen)
{
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
        if (set->programs[k].op_count > 0)
            check_program(r, set, (enum program_kind)k, seen);
}

static void the_first_fills_what_the_others_find(void **state)
{
    (void)state;
    struct seen seen = {0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_job r;
        packed_job(&r, seed, TIMED);
        plan_set set;
        run_compile(&r, seed, &set);
        check_set(&r, &set, &seen);
        plan_set_fini(&set);
    }
    for (int way = 0; way < 3; way++)
        assert_true(seen.fills[way] > 20 && seen.finds[way] > 20);
    assert_true(seen.kept > 20 && seen.alone > 20 && seen.none > 20);
}

/* The same steady op without packed params. */
static const op *same_op(const program *prog, const op *item)
{
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *other = &prog->ops[i];
        if (other->kind == item->kind && other->stage == item->stage && other->pass == item->pass &&
            other->micro_batch == item->micro_batch)
            return other;
    }
    fail();
    return NULL;
}

static void ops_are_spared_their_packing(void **state)
{
    (void)state;
    uint32_t compared = 0;
    for (uint64_t seed = 1; seed <= SEEDS / 2; seed++) {
        random_job r, plain;
        packed_job(&r, seed, TIMED);
        packed_job(&plain, seed, NOTHING);
        plan_set set, without;
        run_compile(&r, seed, &set);
        run_compile(&plain, seed, &without);
        const program *prog = &set.programs[r.job.only_eval ? PROGRAM_EVAL : PROGRAM_STEADY];
        for (uint32_t i = 0; i < prog->op_count; i++) {
            const op *item = &prog->ops[i];
            const operand *packed = op_operand(item, ROLE_PACKED);
            if (!computes(item))
                continue;
            const plan_pass *pass = pass_of(&r, item);
            double spared = 0;
            if (packed && is_kept(&r, item))
                spared = pass->kept_packing_seconds -
                         (packed->access == ACCESS_WRITE ? pass->kept_packing_once_seconds : 0);
            else if (packed)
                spared = pass->packing_seconds -
                         (packed->access == ACCESS_WRITE ? pass->packing_once_seconds : 0);
            const op *other = same_op(&without.programs[prog->kind], item);
            double found = other->demand.device_seconds - item->demand.device_seconds;
            if (!(found - spared < 1e-8 && spared - found < 1e-8))
                fail_msg("seed %llu: spared %.12f, not %.12f", (unsigned long long)seed, found,
                         spared);
            compared += packed != NULL;
        }
        if (set.packed_bytes_max > 0)
            assert_true(prog->predicted_ns < without.programs[prog->kind].predicted_ns);
        plan_set_fini(&set);
        plan_set_fini(&without);
    }
    assert_true(compared > 100);
}

/* More seconds of packing than the pass has: a known time stays one, and is not below 0. */
static void a_known_time_stays_known(void **state)
{
    (void)state;
    random_job r;
    for (uint64_t seed = 1;; seed++) {
        packed_job(&r, seed, TIMED);
        if (r.job.order == ORDER_LAYER_MAJOR && r.job.micro_batch_count > 1 && !r.job.only_eval)
            break;
    }
    for (uint32_t i = 0; i < r.pass_count; i++)
        r.passes[i].packing_seconds = r.passes[i].kept_packing_seconds = 2 * pass_seconds;
    plan_set set;
    run_compile(&r, 0, &set);
    assert_true(set.packed_bytes_max > 0);
    const program *prog = &set.programs[PROGRAM_STEADY];
    for (uint32_t i = 0; i < prog->op_count; i++)
        if (op_operand(&prog->ops[i], ROLE_PACKED))
            assert_true(prog->ops[i].demand.device_seconds > 0 &&
                        prog->ops[i].demand.device_seconds < pass_seconds);
    plan_set_fini(&set);
}

static void assert_same_plan(const plan_set *one, const plan_set *two)
{
    assert_int_equal(one->packed_bytes_max, 0);
    assert_int_equal(two->packed_bytes_max, 0);
    assert_int_equal(one->tile_elems, two->tile_elems);
    assert_int_equal(one->held_stages, two->held_stages);
    assert_int_equal(one->copy_bytes, two->copy_bytes);
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++) {
        assert_true(program_hash(&one->programs[k]) == program_hash(&two->programs[k]));
        assert_int_equal(one->programs[k].predicted_ns, two->programs[k].predicted_ns);
        assert_memory_equal(one->programs[k].peak_bytes, two->programs[k].peak_bytes,
                            sizeof one->programs[k].peak_bytes);
    }
}

/* Without known seconds nothing is simulated for packed params either. */
static void none_where_seconds_are_not_known(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS / 3; seed++) {
        random_job r, plain;
        packed_job(&r, seed, UNTIMED);
        packed_job(&plain, seed, NOTHING);
        for (uint32_t i = 0; i < plain.pass_count; i++)
            plain.passes[i].seconds = 0;
        for (uint32_t s = 0; s < plain.job.stage_count; s++)
            plain.stages[s].recompute_seconds = 0;
        plan_set set, without;
        run_compile(&r, seed, &set);
        run_compile(&plain, seed, &without);
        assert_same_plan(&set, &without);
        assert_int_equal(set.work_ops, without.work_ops);
        plan_set_fini(&set);
        plan_set_fini(&without);
    }
}

static void none_where_the_drive_is_what_a_step_waits_for(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS / 3; seed++) {
        random_job r, plain;
        packed_job(&r, seed, TIMED);
        packed_job(&plain, seed, NOTHING);
        random_job *both[] = {&r, &plain};
        for (int i = 0; i < 2; i++) {
            plan_machine *m = &both[i]->job.machine;
            m->drive_read_bytes_per_second = m->drive_write_bytes_per_second = 1e3;
            memset(both[i]->homes[STATE_OPTIMIZER], TIER_NVME, r.job.unit_count);
            memset(both[i]->homes[STATE_PARAMS], TIER_NVME, r.job.unit_count);
        }
        plan_set set, without;
        run_compile(&r, seed, &set);
        run_compile(&plain, seed, &without);
        assert_same_plan(&set, &without);
        plan_set_fini(&set);
        plan_set_fini(&without);
    }
}

/* Device memory of the plan's programs, the most. */
static uint64_t device_peak(const plan_set *set)
{
    uint64_t most = 0;
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
        most = size_max(most, set->programs[k].peak_bytes[TIER_DEVICE]);
    return most;
}

/* Packed params far larger than all else: what a budget leaves beside the least says which are held. */
static void the_budget_says_how_many_are_held(void **state)
{
    (void)state;
    uint32_t tried = 0, in_part = 0;
    for (uint64_t seed = 1; tried < 8; seed++) {
        random_job r, plain;
        packed_job(&r, seed, TIMED);
        packed_job(&plain, seed, NOTHING);
        if (r.job.order != ORDER_LAYER_MAJOR || r.job.micro_batch_count < 2 ||
            r.job.stage_count < 5)
            continue;
        tried++;
        const uint64_t sizes[] = {1024 * MIB, 512 * MIB, 256 * MIB, 128 * MIB};
        for (uint32_t i = 0; i < r.pass_count; i++)
            r.passes[i].packed_bytes = r.passes[i].kept_packed_bytes =
                r.passes[i].packed_bytes ? sizes[r.passes[i].units[0] % 4] : 0;
        r.job.lookahead_ops = plain.job.lookahead_ops = 1;
        plan_set least, set;
        run_compile(&plain, seed, &least);
        uint64_t peak = device_peak(&least);
        plan_set_fini(&least);
        plain.job.budget_bytes[TIER_DEVICE] = r.job.budget_bytes[TIER_DEVICE] = peak;
        run_compile(&plain, seed, &least);
        run_compile(&r, seed, &set);
        assert_same_plan(&set, &least);
        plan_set_fini(&least);
        plan_set_fini(&set);
        for (int i = 3; i >= 0; i--) {
            r.job.budget_bytes[TIER_DEVICE] = 2 * peak + sizes[i];
            run_compile(&r, seed, &set);
            assert_true(set.packed_bytes_max <= sizes[i]);
            in_part += set.packed_bytes_max > 0;
            for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
                assert_int_equal(program_check(&set.programs[k]), 0);
            plan_set_fini(&set);
        }
        r.job.budget_bytes[TIER_DEVICE] = 64 * sizes[0];
        run_compile(&r, seed, &set);
        assert_int_equal(set.packed_bytes_max, sizes[0]);
        plan_set_fini(&set);
    }
    assert_true(in_part > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_fills_what_the_others_find),
        cmocka_unit_test(ops_are_spared_their_packing),
        cmocka_unit_test(a_known_time_stays_known),
        cmocka_unit_test(none_where_seconds_are_not_known),
        cmocka_unit_test(none_where_the_drive_is_what_a_step_waits_for),
        cmocka_unit_test(the_budget_says_how_many_are_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
