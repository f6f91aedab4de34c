/* Programs of several ranks, run on numbers:
 *
 *   - every op reads the params of its step, and every element gets one update with all ranks'
 *     gradients;
 *   - ranks send what ZeRO's stages require and no more; states take the memory of its formulas;
 *   - caps on gathered params hold; computing hides the traffic that it can hide;
 *   - the budget that a refusal names is enough.
 *
 * Random jobs: cut and tied models, both orders, all updates, mixed homes, 1 to 5 ranks, stages 0
 * to 3. */
#include "tests/plan/plan_fixture.h"
#include "tests/plan/plan_ranks_run.h"
#include "tests/unit.h"

static unsigned seeds; /* 1 to this number are drawn */

/* The job of the seed with room for it; its world and stage go by the seed too. */
static void roomy_job(random_job *r, uint64_t seed)
{
    fixture_ranks(r, seed, 2 + seed % 4, (uint32_t)(seed / 4 % 4));
    run_make_roomy(r);
}

/* ---- dataflow -------------------------------------------------------------------------------- */

/* Every rank's optimizer state where it rests: of version `version`, its shard or all of it. */
static void assert_state(ranks_run *run, uint32_t version)
{
    const random_job *r = run->r;
    const program *prog = &run->set->programs[PROGRAM_STEADY];
    uint64_t tile = run->set->tile_elems, pitch = tile_pitch(tile, r->job.state_streams);
    for (uint32_t rank = 0; rank < run->world; rank++)
        for (uint32_t u = 0; u < r->job.unit_count; u++) {
            uint64_t elems = plan_rest_elems(&r->job, STATE_OPTIMIZER, u);
            bool is_shard = r->job.zero_stage > 0;
            assert_int_equal(plan_is_sharded(&r->job, STATE_OPTIMIZER, u), is_shard);
            uint64_t first = is_shard ? rank * run_own_blocks(run, u) : 0;
            for (uint64_t e = 0; e < elems; e += SHARD_ELEMS_STEP) {
                operand part = {.buffer_idx = run->set->homes.optimizer[u],
                                .offset_bytes = e / tile * pitch + e % tile * 4};
                uint64_t value = run_get(run_cells(run, prog, rank, &part), 0, 4);
                assert_true(value == run->masters[version][u][first + e / SHARD_ELEMS_STEP]);
            }
        }
}

static void every_element_is_updated_once_a_step(void **state)
{
    uint64_t params_read = 0, added = 0, closed = 0, many_parts = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        random_job r;
        roomy_job(&r, seed);
        if (seed % 8 == 0)
            r.job.lookahead_ops = 1;
        r.job.norm_part_bytes = seed % 3 ? UINT64_C(1) << seed % 11 : 0;
        plan_set set;
        run_compile(&r, seed, &set);
        ranks_run run;
        run_begin(&run, &r, &set);
        bool leaves = run_leaves_update(&r.job), late = r.job.update == UPDATE_DELAYED_ONE_STEP;
        run_program(&run, PROGRAM_INIT, 0, 0);
        run_program(&run, PROGRAM_EVAL, 0, 0);
        run_program(&run, PROGRAM_FIRST, 1, 0);
        run_program(&run, PROGRAM_STEADY, 2, late ? 0 : 1);
        run_program(&run, PROGRAM_STEADY, 3, late ? 1 : 2);
        assert_state(&run, leaves ? 2 : 3);
        run_program(&run, PROGRAM_FLUSH, 3, 3);
        run_program(&run, PROGRAM_EVAL, 3, 3);
        assert_state(&run, 3);
        if (r.job.needs_save_places) {
            run_program(&run, PROGRAM_SAVE, 3, 3);
            run_program(&run, PROGRAM_LOAD, 3, 3);
            run_program(&run, PROGRAM_EVAL, 3, 3);
        }
        run_program(&run, PROGRAM_FIRST, 4, 3);
        assert_int_equal(run.norms, 4 * run.world);
        assert_int_equal(run.norm_parts, 4 * run.world * set.norm_part_count);
        if (seed % 3 == 0)
            assert_int_equal(set.norm_part_count, 1);
        many_parts += set.norm_part_count > 2;
        params_read += run.params_read;
        added += run.added;
        closed += run.closed;
        run_end(&run);
        plan_set_fini(&set);
    }
    print_message(
        "seeds 1 to %u: %llu params of a unit read, %llu tiles added to sums, %llu blocks "
        "of gradients closed\n",
        seeds, (unsigned long long)params_read, (unsigned long long)added,
        (unsigned long long)closed);
    assert_true(params_read > 10000 && added > 1000 && closed > 50000);
    assert_true(many_parts > seeds / 4);
}

/* ---- volume ---------------------------------------------------------------------------------- */

/* Padded elements of all units. */
static uint64_t padded_elems(const random_job *r)
{
    uint64_t total = 0;
    for (uint32_t u = 0; u < r->job.unit_count; u++)
        total += shard_whole_elems(r->elems[u], r->job.world);
    return total;
}

/* Elements that ranks reduce: of each unit once, or once for each run of a pass that adds to its
 * gradient, where sums rest in between. */
static uint64_t reduced_elems(const random_job *r, const plan_set *set)
{
    const plan_job *job = &r->job;
    uint64_t total = 0, runs[FIXTURE_UNITS_MAX] = {0};
    uint64_t rounds = job->order == ORDER_BATCH_MAJOR ? job->micro_batch_count : 1;
    for (uint32_t s = 0; s < job->stage_count; s++)
        for (uint32_t p = 0; p < job->stages[s].pass_count[PHASE_BACKWARD]; p++) {
            const struct pass *pass = &job->stages[s].passes[PHASE_BACKWARD][p];
            bool waits = s == 0 && set->homes.deferred[0] != PROGRAM_NONE;
            for (uint32_t i = 0; i < pass->unit_count; i++)
                runs[pass->units[i]] += pass->adds_grads[i] ? (waits ? 1 : rounds) : 0;
        }
    for (uint32_t u = 0; u < job->unit_count; u++) {
        bool rests = set->homes.accumulators[u] != PROGRAM_NONE;
        total += (rests ? runs[u] : 1) * shard_whole_elems(r->elems[u], job->world);
    }
    return total;
}

static bool gathers_for(const random_job *r, uint32_t unit)
{
    return !(r->job.stays_gathered && r->stays_gathered[unit]);
}

/* Elements that stage 3 gathers where nothing is held: the params of every pass that reads them. */
static uint64_t fetched_elems(const random_job *r)
{
    const plan_job *job = &r->job;
    uint64_t total = 0, rounds = job->order == ORDER_BATCH_MAJOR ? job->micro_batch_count : 1;
    for (uint32_t s = 0; s < job->stage_count; s++)
        for (int phase = 0; phase < PHASE_COUNT; phase++) {
            bool is_head = s + 1 == job->stage_count;
            uint32_t own = r->stages[s].passes[PHASE_FORWARD][0].units[0];
            bool keeps = r->stages[s].saved_bytes > 0 &&
                         r->homes[STATE_INNER_ACTIVATIONS][own] != TIER_RECOMPUTE;
            if ((phase == PHASE_FORWARD && is_head) || (phase == PHASE_RECOMPUTE && keeps))
                continue;
            for (uint32_t p = 0; p < job->stages[s].pass_count[phase]; p++)
                for (uint32_t i = 0; i < job->stages[s].passes[phase][p].unit_count; i++) {
                    const struct pass *pass = &job->stages[s].passes[phase][p];
                    if (pass->reads_params[i] && gathers_for(r, pass->units[i]))
                        total += rounds * shard_whole_elems(r->elems[pass->units[i]], job->world);
                }
        }
    return total;
}

static uint64_t stays_elems(const random_job *r)
{
    uint64_t total = 0;
    for (uint32_t u = 0; u < r->job.unit_count; u++)
        total += gathers_for(r, u) ? 0 : shard_whole_elems(r->elems[u], r->job.world);
    return total;
}

/* Elements that ranks exchange in a program, by op and state kind; all of them world - 1 times a
 * shard. */
static void count_elems(const random_job *r, const program *prog, uint64_t *reduced,
                        uint64_t gathered[2])
{
    uint64_t world = r->job.world;
    *reduced = gathered[0] = gathered[1] = 0;
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (item->lane != LANE_COMM || item->unit == PROGRAM_NONE) {
            assert_int_equal(item->demand.comm_bytes > 0, item->lane == LANE_COMM);
            continue;
        }
        uint64_t wire = item->kind == OP_REDUCE_SCATTER    ? r->job.wire_bytes
                        : item->state_kind == STATE_PARAMS ? r->job.param_bytes
                                                           : r->job.grad_bytes;
        uint64_t shard = shard_elems(r->elems[item->unit], r->job.world);
        assert_int_equal(item->demand.comm_bytes, (world - 1) * shard * wire);
        if (item->kind == OP_REDUCE_SCATTER) {
            const operand *scratch = op_operand(item, ROLE_WORKSPACE);
            uint64_t piece = r->job.reduce_piece_elems ? r->job.reduce_piece_elems : shard;
            uint64_t bytes = world * size_min(shard, piece) * r->job.reduce_scratch_bytes;
            assert_int_equal(scratch ? scratch->size_bytes : 0, bytes);
            *reduced += world * shard;
        } else {
            gathered[item->state_kind == STATE_PARAMS] += world * shard;
        }
    }
}

static void ranks_send_what_their_stage_says(void **state)
{
    unsigned plain = 0, more = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        random_job r;
        roomy_job(&r, seed);
        r.job.limits_reuse = true;
        r.job.reuse_elems_max = 0;
        r.job.reduce_piece_elems = seed % 2 ? 0 : SHARD_ELEMS_STEP * (1 + seed % 20);
        plan_set set;
        run_compile(&r, seed, &set);
        uint64_t reduced, gathered[2], all = padded_elems(&r);
        count_elems(&r, &set.programs[PROGRAM_STEADY], &reduced, gathered);
        uint32_t stage = r.job.zero_stage;
        assert_int_equal(reduced, reduced_elems(&r, &set));
        more += reduced > all;
        assert_int_equal(gathered[0], stage == 0 ? all : 0);
        uint64_t params = stage == 0 ? 0 : stage < 3 ? all : fetched_elems(&r) + stays_elems(&r);
        assert_int_equal(gathered[1], params);
        if (stage == 3)
            assert_int_equal(set.held_stages + set.held_passes, 0);
        plain += stage == 3 && r.job.order == ORDER_LAYER_MAJOR && !r.job.stays_gathered;
        plan_set_fini(&set);
    }
    assert_true(plain > seeds / 20 && more > seeds / 20);
}

/* True if a backward pass of the stage, after pass `after` of the phase, reads the unit's params. */
static bool is_read_again(const struct stage *stage, int phase, uint32_t after, uint32_t unit)
{
    uint32_t begin = phase == PHASE_BACKWARD ? after + 1 : 0;
    for (uint32_t p = begin; p < stage->pass_count[PHASE_BACKWARD]; p++)
        for (uint32_t i = 0; i < stage->passes[PHASE_BACKWARD][p].unit_count; i++) {
            const struct pass *pass = &stage->passes[PHASE_BACKWARD][p];
            if (pass->units[i] == unit && pass->reads_params[i])
                return true;
        }
    return false;
}

/* Elements that are not gathered again, since the last `held` passes before the turn of each stage
 * keep their params. */
static uint64_t shared_elems(const random_job *r, uint32_t held)
{
    const plan_job *job = &r->job;
    uint64_t total = 0, rounds = job->order == ORDER_BATCH_MAJOR ? job->micro_batch_count : 1;
    for (uint32_t s = 1; s < job->stage_count; s++) {
        const struct stage *stage = &r->stages[s];
        bool is_head = s + 1 == job->stage_count;
        int phase = is_head ? PHASE_BACKWARD : PHASE_RECOMPUTE;
        uint32_t count = stage->pass_count[phase] / (is_head ? 2 : 1);
        uint32_t own = stage->passes[PHASE_FORWARD][0].units[0];
        bool keeps = !is_head && r->homes[STATE_INNER_ACTIVATIONS][own] != TIER_RECOMPUTE;
        for (uint32_t p = count - size_min(held, count); stage->is_cut && !keeps && p < count; p++)
            for (uint32_t i = 0; i < stage->passes[phase][p].unit_count; i++) {
                const struct pass *pass = &stage->passes[phase][p];
                if (pass->reads_params[i] && gathers_for(r, pass->units[i]) &&
                    is_read_again(stage, phase, p, pass->units[i]))
                    total += rounds * shard_whole_elems(r->elems[pass->units[i]], job->world);
            }
    }
    return total;
}

/* Units in parts: recomputation and backward share the gathers of as many passes as the plan says,
 * and with room for them of all. */
static void parts_share_their_gathers(void **state)
{
    unsigned cut = 0, all = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        random_job r;
        roomy_job(&r, seed);
        r.job.zero_stage = 3;
        r.job.limits_reuse = false;
        r.job.live_elems_max = 0;
        if (!plani_has_cut_stage(&r.job))
            continue;
        plan_set set;
        run_compile(&r, seed, &set);
        uint64_t reduced, gathered[2];
        count_elems(&r, &set.programs[PROGRAM_STEADY], &reduced, gathered);
        assert_int_equal(gathered[1],
                         fetched_elems(&r) - shared_elems(&r, set.held_passes) + stays_elems(&r));
        assert_int_equal(set.held_stages, 0);
        cut += shared_elems(&r, UINT32_MAX) > 0;
        all += shared_elems(&r, UINT32_MAX) > 0 &&
               shared_elems(&r, UINT32_MAX) == shared_elems(&r, set.held_passes);
        plan_set_fini(&set);
    }
    print_message("%u jobs with parts that can share gathers, %u of them share all\n", cut, all);
    assert_true(cut > seeds / 10 && all >= cut * 9 / 10);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void states_rest_by_the_formulas(void **state)
{
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        random_job r;
        roomy_job(&r, seed);
        r.job.tile_elems = 4 * TILE_ELEMS_STEP;
        plan_set set;
        run_compile(&r, seed, &set);
        uint64_t want[3][TIER_COUNT] = {0};
        bool grads_rest = r.job.update != UPDATE_IN_BACKWARD;
        for (uint32_t u = 0; u < r.job.unit_count; u++) {
            uint64_t world = r.job.world, stage = r.job.zero_stage;
            uint64_t own = (r.elems[u] + world * 4096 - 1) / (world * 4096) * 4096;
            uint64_t params = stage == 3 && gathers_for(&r, u) ? own : world * own;
            uint64_t grads = stage >= 2 ? own : world * own;
            uint64_t tiles = stage >= 1 ? own : world * own;
            want[STATE_PARAMS][r.homes[STATE_PARAMS][u]] += params * r.job.param_bytes;
            if (grads_rest)
                want[STATE_GRADS][r.homes[STATE_GRADS][u]] += grads * r.job.grad_bytes;
            if (set.homes.accumulators[u] != PROGRAM_NONE)
                want[STATE_GRADS][r.homes[STATE_GRADS][u]] += own * 4;
            want[STATE_OPTIMIZER][r.homes[STATE_OPTIMIZER][u]] +=
                tile_unit_bytes(tiles, set.tile_elems, r.job.state_streams);
        }
        for (int k = STATE_PARAMS; k <= STATE_OPTIMIZER; k++)
            for (int a = 0; a < TIER_COUNT; a++)
                assert_int_equal(set.home_bytes[k][a], want[k][a]);
        plan_set_fini(&set);
    }
}

/* ---- caps ------------------------------------------------------------------------------------ */

/* Elements of params that the op gathers into a transient, or 0. */
static uint64_t gathers(const random_job *r, const program *prog, const op *item)
{
    if (item->kind != OP_ALL_GATHER || item->state_kind != STATE_PARAMS)
        return 0;
    const operand *target = op_operand(item, ROLE_TARGET);
    return prog->buffers[target->buffer_idx].is_home ? 0 : target->size_bytes / r->job.param_bytes;
}

/* Elements that the pass with the most params reads. Gathered params above a cap all belong to one
 * pass, the oldest one. */
static uint64_t pass_elems_most(const random_job *r)
{
    uint64_t most = 0;
    for (uint32_t p = 0; p < r->pass_count; p++) {
        uint64_t elems = 0;
        for (uint32_t i = 0; i < r->passes[p].unit_count; i++)
            elems += shard_whole_elems(r->elems[r->passes[p].units[i]], r->job.world);
        most = size_max(most, elems);
    }
    return most;
}

static uint32_t first_use(const program *prog, uint32_t producer, uint32_t buffer_idx)
{
    for (uint64_t i = producer + 1; i < prog->op_count; i++)
        for (uint32_t k = 0; k < prog->ops[i].operand_count; k++)
            if (prog->ops[i].operands[k].buffer_idx == buffer_idx)
                return (uint32_t)i;
    return producer;
}

/* Elements gathered and live, or not in use yet, when op `at` is issued; by the program's order or
 * its predicted times. */
static uint64_t elems_at(const random_job *r, const program *prog, uint64_t at, bool by_time,
                         bool ahead)
{
    uint64_t total = 0;
    for (uint64_t g = 0; g <= at; g++) {
        uint64_t elems = gathers(r, prog, &prog->ops[g]);
        if (elems == 0)
            continue;
        uint32_t target = op_operand(&prog->ops[g], ROLE_TARGET)->buffer_idx;
        uint64_t last = prog->buffers[target].last_reader;
        if (ahead)
            last = first_use(prog, (uint32_t)g, target);
        uint64_t now = prog->ops[at].predicted_start_ns;
        uint64_t until =
            ahead ? prog->ops[last].predicted_start_ns : prog->ops[last].predicted_end_ns;
        if (by_time ? now < until : last >= at + ahead)
            total += elems;
    }
    return total;
}

static void caps_hold(void **state)
{
    unsigned reached = 0, capped = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        random_job r;
        roomy_job(&r, seed);
        r.job.zero_stage = 3;
        r.job.stays_gathered = NULL;
        plan_set set;
        run_compile(&r, seed, &set);
        const program *prog = &set.programs[PROGRAM_STEADY];
        uint64_t live = r.job.live_elems_max ? r.job.live_elems_max : UINT64_MAX;
        uint64_t ahead = r.job.ahead_elems_max ? r.job.ahead_elems_max : UINT64_MAX;
        uint64_t pass = pass_elems_most(&r);
        capped += live < UINT64_MAX || ahead < UINT64_MAX;
        for (uint64_t i = 0; i < prog->op_count && (live & ahead) != UINT64_MAX; i++)
            for (int by_time = 0; gathers(&r, prog, &prog->ops[i]) > 0 && by_time < 2; by_time++) {
                uint64_t seen = elems_at(&r, prog, i, by_time, false);
                reached += seen > live;
                assert_true(seen <= size_max(live, pass));
                assert_true(elems_at(&r, prog, i, by_time, true) <= size_max(ahead, pass));
            }
        plan_set_fini(&set);
    }
    print_message("%u jobs with caps, %u times an op needs more than its cap\n", capped, reached);
    assert_true(capped > seeds / 2 && reached > seeds / 4);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Where each pass computes longer than its unit's collectives take, only the ends of a step wait
 * for them: neither the next gather nor the next pass waits for a reduction. */
static void collectives_hide_behind_computing(void **state)
{
    unsigned tried = 0;
    uint64_t waited = 0, talked = 0;
    for (uint64_t seed = 3; seed <= seeds; seed += 3) { /* of a GPU */
        random_job r;
        roomy_job(&r, seed);
        plan_job *job = &r.job;
        job->zero_stage = 3;
        job->order = ORDER_LAYER_MAJOR;
        job->update = UPDATE_AFTER_BACKWARD;
        job->commits = job->needs_save_places = job->limits_reuse = false;
        job->live_elems_max = job->ahead_elems_max = job->lookahead_ops = 0;
        job->reduce_scratch_bytes = 0;
        for (int k = 0; k < STATE_KIND_COUNT; k++)
            memset(r.homes[k], k == STATE_INNER_ACTIVATIONS ? TIER_COUNT : TIER_DEVICE,
                   sizeof r.homes[k]);
        for (uint32_t p = 0; p < r.pass_count; p++)
            r.passes[p].flops = 3e-3 * job->machine.device_flops_per_second;
        job->machine.comm_bytes_per_second = 8e9;
        job->machine.comm_is_copies = false;
        if (job->stage_count < 6)
            continue;
        plan_set set;
        run_compile(&r, seed, &set);
        const program *prog = &set.programs[PROGRAM_STEADY];
        uint64_t waits = prog->predicted_ns - prog->lane_busy_ns[LANE_COMPUTE];
        waited += waits;
        talked += prog->lane_busy_ns[LANE_COMM];
        tried++;
        plan_set_fini(&set);
    }
    print_message("%u jobs wait %llu us of %llu us of collectives\n", tried,
                  (unsigned long long)waited / 1000, (unsigned long long)talked / 1000);
    assert_true(tried > 5 && 3 * waited < talked);
}

/* ---- refusals, one rank ---------------------------------------------------------------------- */

static void what_a_refusal_names_is_enough(void **state)
{
    static const char *const keys[TIER_COUNT] = {
        "tiers.device.budget=", "tiers.host.budget=", "tiers.nvme[].budget="};
    unsigned fitted = 0, refused = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        random_job r;
        fixture_ranks(&r, seed, 2 + seed % 4, (uint32_t)(seed / 4 % 4));
        plan_set set;
        int rc = plan_compile(&r.job, &set);
        if (rc == 0) {
            assert_true(set.programs[PROGRAM_STEADY].predicted_ns + 1000 >= set.bound_ns);
            assert_int_equal(set.programs[PROGRAM_STEADY].world, r.job.world);
            fitted++;
            plan_set_fini(&set);
            continue;
        }
        assert_int_equal(rc, ERR_NO_FIT);
        refused++;
        uint64_t need[TIER_COUNT] = {0};
        for (int a = 0; a < TIER_COUNT; a++) {
            const char *at = strstr(err_text(), keys[a]);
            need[a] = at ? strtoull(at + strlen(keys[a]), NULL, 10) : 0;
        }
        for (int a = 0; a < TIER_COUNT; a++)
            r.job.budget_bytes[a] = need[a] ? need[a] : r.job.budget_bytes[a];
        run_compile(&r, seed, &set);
        plan_set_fini(&set);
        for (int a = 0; a < TIER_COUNT; a++) {
            if (!need[a])
                continue;
            r.job.budget_bytes[a] = need[a] - TILE_BLOCK_BYTES;
            assert_int_equal(plan_compile(&r.job, &set), ERR_NO_FIT);
            r.job.budget_bytes[a] = need[a];
        }
    }
    print_message("seeds 1 to %u: %u compiled, %u refused\n", seeds, fitted, refused);
    assert_true(fitted > seeds / 2 && refused > seeds / 10);
}

/* Memory of the norm: all ranks' sums of the largest part, in order, and one or two parts as
 * gathered. A part is as large as its limit allows, or one unit. A norm in one part is planned as
 * without a limit. */
static void norm_takes_what_its_limit_says(void **state)
{
    for (uint64_t seed = 1; seed <= 16; seed++) {
        random_job r;
        roomy_job(&r, seed);
        plan_set whole, parts;
        run_compile(&r, seed, &whole);
        uint64_t all = whole.norm_block_begin[r.job.unit_count] * r.job.world * sizeof(double);
        r.job.norm_part_bytes = all;
        run_compile(&r, seed, &parts);
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
            assert_true(program_hash(&whole.programs[k]) == program_hash(&parts.programs[k]));
        plan_set_fini(&parts);
        r.job.norm_part_bytes = all / 3;
        run_compile(&r, seed, &parts);
        uint64_t largest = 0;
        assert_int_equal(parts.norm_part_begin[0], 0);
        for (uint32_t p = 0; p < parts.norm_part_count; p++) {
            uint32_t begin = parts.norm_part_begin[p], end = parts.norm_part_begin[p + 1];
            const uint64_t *block = parts.norm_block_begin;
            uint64_t scale = r.job.world * sizeof(double);
            assert_true(begin < end);
            assert_true(end == begin + 1 || (block[end] - block[begin]) * scale <= all / 3);
            if (end < r.job.unit_count)
                assert_true((block[end + 1] - block[begin]) * scale > all / 3);
            largest = size_max(largest, (block[end] - block[begin]) * scale);
        }
        assert_int_equal(parts.norm_part_begin[parts.norm_part_count], r.job.unit_count);
        const buffer *buffers = parts.programs[PROGRAM_STEADY].buffers;
        uint64_t rounded = size_round_up(largest, TILE_BLOCK_BYTES);
        assert_int_equal(buffers[parts.homes.norm_ordered].size_bytes, rounded);
        assert_int_equal(buffers[parts.homes.norm_gathered].size_bytes,
                         (parts.norm_part_count > 1 ? 2 : 1) * rounded);
        plan_set_fini(&parts);
        plan_set_fini(&whole);
    }
}

static void stages_are_without_effect_for_one_rank(void **state)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        random_job r;
        roomy_job(&r, seed);
        r.job.world = seed % 2;
        r.job.zero_stage = 3;
        plan_set sharded, plain;
        run_compile(&r, seed, &sharded);
        r.job.zero_stage = 0;
        r.job.stays_gathered = NULL;
        r.job.limits_reuse = false;
        r.job.live_elems_max = r.job.ahead_elems_max = 0;
        run_compile(&r, seed, &plain);
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++) {
            assert_true(program_hash(&sharded.programs[k]) == program_hash(&plain.programs[k]));
            for (uint64_t i = 0; i < plain.programs[k].op_count; i++)
                assert_int_not_equal(plain.programs[k].ops[i].lane, LANE_COMM);
        }
        assert_int_equal(plain.homes.norm_gathered, PROGRAM_NONE);
        plan_set_fini(&sharded);
        plan_set_fini(&plain);
    }
}

int main(void)
{
    seeds = (unsigned)unit_draws(80, 200);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_updated_once_a_step),
        cmocka_unit_test(ranks_send_what_their_stage_says),
        cmocka_unit_test(parts_share_their_gathers),
        cmocka_unit_test(states_rest_by_the_formulas),
        cmocka_unit_test(norm_takes_what_its_limit_says),
        cmocka_unit_test(caps_hold),
        cmocka_unit_test(collectives_hide_behind_computing),
        cmocka_unit_test(what_a_refusal_names_is_enough),
        cmocka_unit_test(stages_are_without_effect_for_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
