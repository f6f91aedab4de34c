/* Plans of models of which some units do not learn: run on numbers (plan_ranks_run.h), every op
 * finds the params that it must, frozen ones as they were made and as a later process brings them
 * back from the slab; nothing of a step is done for them; they rest in their params alone;
 * automatic placement finds what fits and gives them nothing more. Random jobs: cut and tied
 * models, both orders, all updates, mixed homes, 1 to 5 ranks, stages 0 to 3. */
#include "plan/plan.h"
#include "plan/plan_internal.h"
#include "tests/plan/plan_fixture.h"
#include "tests/plan/plan_ranks_run.h"
#include "tests/unit.h"

enum { SEEDS = 80 };

static void frozen_job(random_job *r, uint64_t seed)
{
    fixture_ranks(r, seed, 1 + seed % 5, (uint32_t)(seed / 5 % 4));
    fixture_freeze(r);
    run_make_roomy(r);
}

/* ---- dataflow -------------------------------------------------------------------------------- */

static void every_op_finds_its_params(void **state)
{
    uint64_t read = 0, reloaded = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_job r;
        frozen_job(&r, seed);
        if (seed % 8 == 0)
            r.job.lookahead_ops = 1;
        r.job.norm_part_bytes = seed % 3 ? UINT64_C(1) << seed % 11 : 0;
        plan_set set;
        run_compile(&r, seed, &set);
        ranks_run run;
        reloaded += run_life(&run, &r, &set);
        assert_int_equal(run.norms, 4 * run.world);
        assert_int_equal(run.norm_parts, 4 * run.world * set.norm_part_count);
        read += run.params_read;
        run_end(&run);
        plan_set_fini(&set);
    }
    print_message("seeds 1 to %d: %llu params of a unit read, %llu jobs loaded again\n", SEEDS,
                  (unsigned long long)read, (unsigned long long)reloaded);
    assert_true(read > 2500 && reloaded > SEEDS / 4);
}

/* ---- what is not done ------------------------------------------------------------------------ */

/* Nothing of the step's programs is for a frozen unit but bringing and reading its params, and only
 * INIT writes its place on the slab. */
static void assert_left_alone(const random_job *r, const plan_set *set, int kind)
{
    const program *prog = &set->programs[kind];
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        bool computes =
            item->kind == OP_FORWARD || item->kind == OP_RECOMPUTE || item->kind == OP_BACKWARD;
        if (item->kind == OP_RECOMPUTE || item->kind == OP_BACKWARD)
            assert_true(r->stages[item->stage].pass_count[PHASE_BACKWARD] > 0);
        for (uint32_t j = 0; j < item->operand_count; j++) {
            const buffer *used = &prog->buffers[item->operands[j].buffer_idx];
            if (used->unit == PROGRAM_NONE || plan_learns(&r->job, used->unit))
                continue;
            assert_true(used->state_kind != STATE_GRADS && used->state_kind != STATE_OPTIMIZER);
            bool writes = item->operands[j].access != ACCESS_READ;
            uint32_t place = plan_frozen_place(&r->job, &set->homes, used->unit);
            if (item->operands[j].buffer_idx == place && writes)
                assert_int_equal(kind, PROGRAM_INIT);
            if (used->is_home && used->state_kind == STATE_PARAMS && writes)
                assert_true(kind == PROGRAM_INIT || kind == PROGRAM_LOAD);
            assert_true(computes || item->kind <= OP_ALL_GATHER || item->kind == OP_INIT);
        }
    }
}

static void nothing_is_done_for_what_is_frozen(void **state)
{
    int shorter = 0, for_good = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_job r;
        frozen_job(&r, seed);
        plan_set set;
        run_compile(&r, seed, &set);
        uint64_t params[TIER_COUNT] = {0};
        for (uint32_t u = 0; u < r.job.unit_count; u++) {
            params[r.homes[STATE_PARAMS][u]] +=
                plan_rest_elems(&r.job, STATE_PARAMS, u) * r.job.param_bytes;
            if (!r.is_frozen[u])
                continue;
            assert_int_equal(set.homes.grads[u], PROGRAM_NONE);
            assert_int_equal(set.homes.optimizer[u], PROGRAM_NONE);
            assert_int_equal(set.homes.accumulators[u], PROGRAM_NONE);
            assert_int_equal(set.homes.twins[u], PROGRAM_NONE);
            assert_true(set.norm_block_begin[u] == set.norm_block_begin[u + 1]);
            for_good += plan_frozen_place(&r.job, &set.homes, u) == set.homes.params[u];
        }
        for (int a = 0; a < TIER_COUNT; a++)
            assert_true(set.home_bytes[STATE_PARAMS][a] == params[a]);
        for (uint32_t s = 0; s < r.job.stage_count; s++)
            for (uint32_t mb = 0; !plani_goes_back(&r.job, s) && mb < r.job.micro_batch_count; mb++)
                assert_int_equal(set.homes.activations[s * r.job.micro_batch_count + mb],
                                 PROGRAM_NONE);
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
            assert_left_alone(&r, &set, k);
        shorter += !plani_goes_back(&r.job, 0);
        plan_set_fini(&set);
    }
    print_message(
        "%d jobs without a backward of their first stage, %d units that rest on the slab\n",
        shorter, for_good);
    assert_true(shorter > SEEDS / 4 && for_good > SEEDS / 4);
}

/* ---- packed units ---------------------------------------------------------------------------- */

enum { EXPAND_DRAM_BYTES = 48 << 10 };

/* Packs the frozen units of every pass that needs their params. */
static void pack_frozen(random_job *r)
{
    uint64_t most = 0;
    for (uint32_t s = 0; s < r->job.stage_count; s++)
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            for (uint32_t p = 0; p < r->stages[s].pass_count[phase]; p++) {
                struct pass *pass = &r->stages[s].passes[phase][p];
                for (uint32_t i = 0; i < pass->unit_count; i++)
                    if (pass->reads_params[i] && r->is_frozen[pass->units[i]])
                        pass->expanded_bytes += 256 * (1 + s);
                pass->expand_dram_bytes = pass->expanded_bytes > 0 ? EXPAND_DRAM_BYTES : 0;
                most = size_max(most, pass->expanded_bytes);
            }
    r->job.workspace_bytes += most;
    for (int a = 0; a < TIER_COUNT; a++) /* run_make_roomy made room for what was there */
        r->job.budget_bytes[a] += 16 * most;
}

static const struct pass *pass_of(const random_job *r, const op *item)
{
    enum phase phase = item->kind == OP_FORWARD     ? PHASE_FORWARD
                       : item->kind == OP_RECOMPUTE ? PHASE_RECOMPUTE
                                                    : PHASE_BACKWARD;
    return &r->stages[item->stage].passes[phase][item->pass];
}

static uint64_t memory_bytes(const op *item)
{
    return item->demand.dram_bytes + item->demand.device_bytes;
}

/* In layer-major a pass is expanded once, and its other micro-batches read that; in batch-major each
 * micro-batch expands. Returns the number of ops that expand. */
static uint64_t check_expansions(const random_job *r, const program *prog)
{
    const op *expanded_by = NULL;
    uint64_t count = 0;
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (item->kind != OP_FORWARD && item->kind != OP_RECOMPUTE && item->kind != OP_BACKWARD)
            continue;
        const operand *expanded = op_operand(item, ROLE_EXPANDED);
        const operand *scratch = op_operand(item, ROLE_WORKSPACE);
        uint64_t expanded_bytes = pass_of(r, item)->expanded_bytes;
        assert_int_equal(expanded != NULL, expanded_bytes > 0);
        if (!expanded) {
            expanded_by = NULL; /* its scratch is the whole workspace */
            continue;
        }
        assert_int_equal(expanded->size_bytes, expanded_bytes);
        assert_int_equal(expanded->offset_bytes, scratch ? scratch->size_bytes : 0);
        assert_int_equal(expanded->offset_bytes + expanded->size_bytes,
                         prog->buffers[expanded->buffer_idx].size_bytes);
        bool is_first = item->micro_batch == 0 || r->job.order == ORDER_BATCH_MAJOR;
        assert_int_equal(expanded->access, is_first ? ACCESS_WRITE : ACCESS_READ);
        if (is_first) {
            expanded_by = item;
            count++;
            continue;
        }
        assert_non_null(expanded_by);
        assert_int_equal(item->stage, expanded_by->stage);
        assert_int_equal(item->kind, expanded_by->kind);
        assert_int_equal(item->pass, expanded_by->pass);
        assert_true(memory_bytes(expanded_by) == memory_bytes(item) + EXPAND_DRAM_BYTES);
    }
    return count;
}

static void micro_batches_share_what_is_expanded(void **state)
{
    uint64_t count = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_job r;
        frozen_job(&r, seed);
        pack_frozen(&r);
        plan_set set;
        run_compile(&r, seed, &set);
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
            count += check_expansions(&r, &set.programs[k]);
        plan_set_fini(&set);
    }
    print_message("%llu expansions\n", (unsigned long long)count);
    assert_true(count > SEEDS);
}

static void a_model_that_learns_nothing_is_refused(void **state)
{
    random_job r;
    plan_set set;
    fixture_random_job(&r, 3);
    memset(r.is_frozen, 1, sizeof r.is_frozen);
    r.job.is_frozen = r.is_frozen;
    r.job.only_eval = false;
    fixture_cut_passes(r.stages, r.job.stage_count, r.is_frozen);
    assert_error(plan_compile(&r.job, &set), ERR_CONFIG, "nothing of the model learns");
    r.job.only_eval = true;
    for (int a = 0; a < TIER_COUNT; a++)
        r.job.budget_bytes[a] = 512 * MIB;
    assert_int_equal(plan_compile(&r.job, &set), 0);
    plan_set_fini(&set);
}

/* ---- placement ------------------------------------------------------------------------------- */

struct asked {
    random_job r;
    uint8_t open[FIXTURE_UNITS_MAX], homes[STATE_KIND_COUNT][FIXTURE_UNITS_MAX];
};

/* A job of the seed with budgets that the far placement just fits, but of the drives. */
static void tight_job(struct asked *a, uint64_t seed)
{
    static const char *const keys[] = {"tiers.device.budget=", "tiers.host.budget="};
    plan_job *job = &a->r.job;
    plan_set set;
    frozen_job(&a->r, seed);
    job->needs_save_places = job->commits = seed % 4 != 0;
    job->update = UPDATE_IN_NEXT_FORWARD;
    job->parked_near = 0;
    for (int k = 0; k < STATE_KIND_COUNT; k++)
        memset(a->r.homes[k], k == STATE_INNER_ACTIVATIONS ? TIER_COUNT : TIER_NVME,
               FIXTURE_UNITS_MAX);
    job->budget_bytes[TIER_DEVICE] = job->budget_bytes[TIER_HOST] = 0;
    assert_int_equal(plan_compile(job, &set), ERR_NO_FIT);
    for (int t = TIER_DEVICE; t <= TIER_HOST; t++) {
        const char *at = strstr(err_text(), keys[t]);
        assert_non_null(at);
        job->budget_bytes[t] = strtoull(at + strlen(keys[t]), NULL, 10);
    }
    memset(a->open, TIER_AUTO, sizeof a->open);
}

static void placement_finds_what_fits(void **state)
{
    static struct asked a;
    static struct plan_place_found found;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        tight_job(&a, seed);
        struct plan_place_asked asked = {
            .job = &a.r.job, .chooses_update = true, .has_drives = true};
        for (int k = 0; k < STATE_KIND_COUNT; k++) {
            asked.wanted[k] = a.open;
            found.homes[k] = a.homes[k];
        }
        int rc = plan_place(&asked, &found);
        if (rc != 0)
            print_error("seed %llu: %s\n", (unsigned long long)seed, err_text());
        assert_int_equal(rc, 0);
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
            for (int t = 0; t < TIER_COUNT; t++)
                assert_true(found.set.programs[k].peak_bytes[t] <= a.r.job.budget_bytes[t]);
        assert_true(found.set.programs[PROGRAM_STEADY].predicted_ns + 1000 >= found.set.bound_ns);
        plan_set_fini(&found.set);
        asked.only_fits = true; /* which looks at two tile sizes alone */
        a.r.job.budget_bytes[TIER_DEVICE] *= 2;
        a.r.job.budget_bytes[TIER_HOST] += 64 * MIB;
        rc = plan_place(&asked, &found);
        if (rc != 0)
            print_error("seed %llu: fits: %s\n", (unsigned long long)seed, err_text());
        assert_int_equal(rc, 0);
        for (int t = 0; t < TIER_COUNT; t++)
            assert_true(found.need_bytes[t] <= a.r.job.budget_bytes[t]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_finds_its_params),
        cmocka_unit_test(nothing_is_done_for_what_is_frozen),
        cmocka_unit_test(micro_batches_share_what_is_expanded),
        cmocka_unit_test(a_model_that_learns_nothing_is_refused),
        cmocka_unit_test(placement_finds_what_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
