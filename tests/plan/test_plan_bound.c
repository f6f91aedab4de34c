/* A bound is never above a schedule: small random programs on random machines, each run in many
 * orders by a simulation of the test's own, against both bounds of its time. Canaries: a bound that
 * lets nothing overlap must be caught, and the bounds must be reached often, so that one of 0 would
 * fail too.
 *
 * The critical path: its parts add up to the program, and where the chain is known by construction
 * it is found, with the reason why each op had to wait. */
#include <math.h>

#include "base/rng.h"
#include "plan/simulate/simulate_internal.h"
#include "plan/waits.h"
#include "tests/unit.h"

enum { PROGRAMS = 400, ORDERS = 200, OPS_MOST = 24 };

struct dice {
    uint64_t seed, counter;
};

static uint64_t draw(struct dice *d, uint64_t bound)
{
    return rng_below(d->seed, 17, d->counter++, bound);
}

static void draw_machine(struct dice *d, plan_machine *m)
{
    uint32_t cores = draw(d, 2) ? 4 : 1;
    if (draw(d, 2))
        plan_machine_default_cpu(m, cores, true);
    else
        plan_machine_default_gpu(m, cores, 8, 0);
    m->drive_read_bytes_per_second = m->drive_write_bytes_per_second = 1e9;
    m->drive_both_ways = draw(d, 2) ? 1.5 : 1;
    m->drive_kept = draw(d, 2) ? 0.7 : 1;
    m->h2d_bytes_per_second = m->d2h_bytes_per_second = 2e9;
    m->op_seconds = draw(d, 2) ? 1e-4 : 1e-6;
    m->sync_seconds = 0;
}

static void draw_op(struct dice *d, plani_builder *b)
{
    static const enum op_kind kinds[] = {
        [LANE_READ] = OP_READ,    [LANE_WRITE] = OP_WRITE,     [LANE_H2D] = OP_H2D,
        [LANE_D2H] = OP_D2H,      [LANE_COMM] = OP_ALL_GATHER, [LANE_COMPUTE] = OP_FORWARD,
        [LANE_UPDATE] = OP_UPDATE};
    enum lane_kind lane = (enum lane_kind)draw(d, LANE_UPDATE + 1);
    bool is_norm = lane == LANE_COMPUTE && draw(d, 4) == 0;
    uint32_t idx = plani_op(b, is_norm ? OP_NORM : kinds[lane], lane);
    op_demand *demand = &b->ops[idx].demand;
    uint64_t bytes = 1000000 * (1 + draw(d, 10));
    demand->drive_read_bytes = lane == LANE_READ ? bytes : 0;
    demand->drive_write_bytes = lane == LANE_WRITE ? bytes : 0;
    demand->h2d_bytes = lane == LANE_H2D ? bytes : 0;
    demand->d2h_bytes = lane == LANE_D2H ? bytes : 0;
    demand->comm_bytes = lane == LANE_COMM ? bytes : 0;
    demand->dram_bytes = draw(d, 2) * bytes;
    if (lane == LANE_COMPUTE)
        demand->device_seconds = 1e-3 * (double)(1 + draw(d, 5));
    if (lane == LANE_UPDATE)
        demand->core_seconds = 4e-3 * (double)(1 + draw(d, 5));
    if (lane == LANE_READ || lane == LANE_WRITE) /* some need more than one core */
        demand->core_seconds = 0.6e-9 * (double)(draw(d, 3) * bytes);
    for (uint64_t i = 0; i < 2 && idx > 0; i++)
        if (draw(d, 3))
            plani_depend(b, idx, (uint32_t)draw(d, idx));
}

struct run {
    struct plani_share share;
    double done;
    double key;
    bool runs, is_complete;
};

/* Whether all before it is done: its dependencies, and the op before it on the compute lane's
 * chain. */
static bool is_ready(const plani_builder *b, const struct run *r, uint64_t idx)
{
    for (uint64_t e = 0; e < b->edge_count; e++)
        if (b->edges[e].to == idx && !r[b->edges[e].from].is_complete)
            return false;
    for (uint64_t i = 0; i < idx && b->briefs[idx].is_chained; i++)
        if (b->briefs[i].is_chained && !r[i].is_complete)
            return false;
    return true;
}

/* On each free lane the ready op of the largest key. */
static uint32_t start_ops(const plani_builder *b, struct run *r, struct plani_share **shares)
{
    uint32_t count = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        int64_t best = -1;
        for (uint64_t i = 0; i < b->op_count; i++) {
            if (b->ops[i].lane != lane || r[i].is_complete)
                continue;
            if (r[i].runs || (is_ready(b, r, i) && (best < 0 || r[i].key > r[best].key)))
                best = (int64_t)i;
        }
        for (uint64_t i = 0; i < b->op_count; i++)
            if (b->ops[i].lane == lane && r[i].runs)
                best = (int64_t)i;
        if (best < 0)
            continue;
        r[best].runs = true;
        shares[count++] = &r[best].share;
    }
    return count;
}

/* Seconds of one order, drawn. */
static double run_in_some_order(struct dice *d, const plani_builder *b)
{
    struct run r[OPS_MOST] = {0};
    double now = 0;
    for (uint64_t i = 0; i < b->op_count; i++) {
        plani_demand(&b->job->machine, &b->ops[i].demand, &r[i].share);
        r[i].key = (double)draw(d, 1000);
    }
    for (;;) {
        struct plani_share *shares[LANE_COUNT];
        uint32_t count = start_ops(b, r, shares);
        if (count == 0)
            return now;
        plani_share_rates(shares, count);
        double step = INFINITY;
        for (uint64_t i = 0; i < b->op_count; i++)
            if (r[i].runs)
                step = fmin(step, (1 - r[i].done) / r[i].share.rate);
        now += step;
        for (uint64_t i = 0; i < b->op_count; i++) {
            if (!r[i].runs)
                continue;
            r[i].done += step * r[i].share.rate;
            if (r[i].done >= 1 - 1e-9) {
                r[i].runs = false;
                r[i].is_complete = true;
            }
        }
    }
}

/* ---- the critical path ---------------------------------------------------------------------- */

/* True if the program's order, timed again with all ops, gives the program's own times, and without
 * its last op no longer ones. With one core it takes up to 6e-6 longer in these programs: what that
 * op slowed then slows others. */
static bool is_replayed(const plan_job *job, const program *prog)
{
    bool left_out[OPS_MOST] = {false};
    uint64_t start[OPS_MOST], end[OPS_MOST], length;
    assert_in_range(prog->op_count, 1, OPS_MOST);
    assert_int_equal(plani_replay(&job->machine, prog, left_out, start, end, &length), 0);
    bool is_same = length == prog->predicted_ns;
    for (uint64_t i = 0; i < prog->op_count; i++)
        is_same = is_same && start[i] == prog->ops[i].predicted_start_ns &&
                  end[i] == prog->ops[i].predicted_end_ns;
    left_out[prog->op_count - 1] = true;
    assert_int_equal(plani_replay(&job->machine, prog, left_out, start, end, &length), 0);
    uint64_t slack = job->machine.core_count > 1 ? 0 : prog->predicted_ns / 10000;
    return is_same && length <= prog->predicted_ns + slack;
}

/* Compiles the builder's ops in that much memory and returns the parts of the chain, which follow
 * each other and add up in both ways. */
static uint32_t find_waits(plani_builder *b, uint64_t host_bytes,
                           struct plan_wait waits[PLAN_WAITS_MAX])
{
    const uint64_t budgets[TIER_COUNT] = {UINT64_MAX / 2, host_bytes, UINT64_MAX / 2};
    const uint64_t ahead[TIER_COUNT] = {0}; /* as far as memory allows */
    program prog;
    uint64_t until = 0;
    uint32_t count;
    assert_int_equal(plani_schedule(b, PROGRAM_STEADY, budgets, ahead, 0, true, &prog), 0);
    assert_int_equal(plan_find_waits(b->job, &prog, true, waits, &count), 0);
    assert_in_range(count, 1, PLAN_WAITS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t works = 0, causes = 0, whole = waits[i].end_ns - waits[i].begin_ns;
        for (int lane = 0; lane < LANE_COUNT; lane++)
            for (int kind = 0; kind <= STATE_KIND_COUNT; kind++)
                works += waits[i].work_ns[lane][kind];
        for (int cause = 0; cause < CAUSE_COUNT; cause++)
            causes += waits[i].cause_ns[cause];
        assert_int_equal(waits[i].begin_ns, until);
        assert_int_equal(works, whole);
        assert_int_equal(causes, whole);
        assert_true(waits[i].shared_ns <= whole);
        for (int r = 0; r < RESOURCE_COUNT; r++)
            assert_true(waits[i].busy[r] >= 0 && waits[i].busy[r] <= 1);
        until = waits[i].end_ns;
    }
    assert_int_equal(until, prog.predicted_ns);
    assert_true(is_replayed(b->job, &prog));
    program_fini(&prog);
    return count;
}

static uint32_t add_op(plani_builder *b, enum op_kind kind, enum lane_kind lane, uint32_t after,
                       uint64_t ms)
{
    uint32_t idx = plani_op(b, kind, lane);
    op_demand *demand = &b->ops[idx].demand;
    demand->drive_read_bytes = lane == LANE_READ ? ms * 1000000 : 0;
    demand->drive_write_bytes = lane == LANE_WRITE ? ms * 1000000 : 0;
    demand->h2d_bytes = lane == LANE_H2D ? ms * 2000000 : 0;
    demand->d2h_bytes = lane == LANE_D2H ? ms * 2000000 : 0;
    if (lane == LANE_COMPUTE)
        demand->device_seconds = 1e-3 * (double)ms;
    if (lane == LANE_UPDATE)
        demand->core_seconds = 1e-3 * (double)ms * b->job->machine.core_count;
    if (after != PROGRAM_NONE)
        plani_depend(b, idx, after);
    return idx;
}

/* Milliseconds of the whole chain on a lane, and for a cause. */
static double lane_ms(const struct plan_wait *waits, uint32_t count, enum lane_kind lane)
{
    double ns = 0;
    for (uint32_t i = 0; i < count; i++)
        for (int kind = 0; kind <= STATE_KIND_COUNT; kind++)
            ns += (double)waits[i].work_ns[lane][kind];
    return round(ns * 1e-6);
}

static double cause_ms(const struct plan_wait *waits, uint32_t count, enum plan_cause cause)
{
    double ns = 0;
    for (uint32_t i = 0; i < count; i++)
        ns += (double)waits[i].cause_ns[cause];
    return round(ns * 1e-6);
}

struct built {
    plan_job job;
    plan_set set;
    plani_layout layout;
    plani_builder b;
};

static void build(struct built *self)
{
    *self = (struct built){.job = {.world = 1}};
    plan_machine *m = &self->job.machine;
    plan_machine_default_gpu(m, 4, 8, 0);
    m->drive_read_bytes_per_second = m->drive_write_bytes_per_second = 1e9;
    m->h2d_bytes_per_second = m->d2h_bytes_per_second = 2e9;
    m->op_seconds = 0;
    assert_int_equal(plani_builder_begin(&self->b, &self->job, &self->set, &self->layout, 0), 0);
}

/* Forward waits for a read and a copy, the write waits for the norm, and the copy back is hidden
 * behind the backward. */
static void a_known_chain_is_found(void **state)
{
    struct built it;
    struct plan_wait waits[PLAN_WAITS_MAX];
    build(&it);
    uint32_t read = add_op(&it.b, OP_READ, LANE_READ, PROGRAM_NONE, 30);
    uint32_t copy = add_op(&it.b, OP_H2D, LANE_H2D, read, 5);
    uint32_t forward = add_op(&it.b, OP_FORWARD, LANE_COMPUTE, copy, 20);
    add_op(&it.b, OP_BACKWARD, LANE_COMPUTE, PROGRAM_NONE, 10);
    add_op(&it.b, OP_D2H, LANE_D2H, forward, 5);
    uint32_t norm = add_op(&it.b, OP_NORM, LANE_COMPUTE, PROGRAM_NONE, 1);
    add_op(&it.b, OP_WRITE, LANE_WRITE, norm, 10);
    uint32_t count = find_waits(&it.b, UINT64_MAX / 2, waits);
    const struct {
        enum lane_kind lane;
        double ms;
    } lanes[] = {{LANE_READ, 30},    {LANE_H2D, 5},    {LANE_D2H, 0},
                 {LANE_COMPUTE, 31}, {LANE_WRITE, 10}, {LANE_UPDATE, 0}};
    for (size_t i = 0; i < sizeof lanes / sizeof lanes[0]; i++)
        assert_true(lane_ms(waits, count, lanes[i].lane) == lanes[i].ms);
    assert_true(cause_ms(waits, count, CAUSE_NORM) == 1);
    assert_true(cause_ms(waits, count, CAUSE_LANE) == 30); /* both passes */
    assert_true(cause_ms(waits, count, CAUSE_RESULT) == 45);
    assert_int_equal(waits[0].span, SPAN_FORWARD);
    assert_true(lane_ms(waits, 1, LANE_READ) == 30); /* what binds comes first */
    assert_true(waits[0].busy[RESOURCE_DRIVE] > 0.8);
    assert_string_equal(waits[0].setting, "tiers.host.budget");
    assert_int_equal(waits[count - 1].span, SPAN_AFTER);
    assert_true(lane_ms(&waits[count - 1], 1, LANE_WRITE) == 10);
    plani_builder_fini(&it.b);
}

/* Two tiles are read and updated. In memory for one, the second read waits until the first update
 * has left it; in memory for both, it is hidden. */
static void waiting_for_memory_is_named(void **state)
{
    enum { TILE_BYTES = 1 << 20 };
    for (int room = 1; room <= 2; room++) {
        struct built it;
        struct plan_wait waits[PLAN_WAITS_MAX];
        build(&it);
        for (int tile = 0; tile < 2; tile++) {
            uint32_t held =
                plani_transient(&it.b, TIER_HOST, TILE_BYTES, 0, STATE_OPTIMIZER, PROGRAM_NONE);
            uint32_t read = add_op(&it.b, OP_READ, LANE_READ, PROGRAM_NONE, 10);
            plani_use(&it.b, read, plani_whole(&it.b, held), ROLE_TARGET, ACCESS_WRITE);
            uint32_t update = add_op(&it.b, OP_UPDATE, LANE_UPDATE, PROGRAM_NONE, 20);
            plani_use(&it.b, update, plani_whole(&it.b, held), ROLE_STATE, ACCESS_UPDATE);
        }
        uint32_t count = find_waits(&it.b, (uint64_t)room * TILE_BYTES, waits);
        assert_true(lane_ms(waits, count, LANE_UPDATE) == 40);
        assert_true(lane_ms(waits, count, LANE_READ) == (room == 1 ? 20 : 10));
        assert_true(cause_ms(waits, count, CAUSE_HOST_MEMORY) == (room == 1 ? 20 : 0));
        assert_true(cause_ms(waits, count, CAUSE_LANE) == (room == 1 ? 0 : 20));
        plani_builder_fini(&it.b);
    }
}

/* ---- bounds --------------------------------------------------------------------------------- */

static void no_order_is_below_a_bound(void **state)
{
    uint64_t reached = 0, caught = 0;
    for (uint64_t seed = 1; seed <= PROGRAMS; seed++) {
        struct dice d = {.seed = seed};
        plan_job job = {.world = 1};
        plan_set set = {0};
        plani_layout layout = {0};
        plani_builder b = {0};
        uint64_t phases_ns, bound_ns;
        double best = INFINITY, serial = 0;
        draw_machine(&d, &job.machine);
        assert_int_equal(plani_builder_begin(&b, &job, &set, &layout, 0), 0);
        for (uint64_t i = 3 + draw(&d, OPS_MOST - 3); i > 0; i--)
            draw_op(&d, &b);
        assert_int_equal(b.error, 0);
        assert_int_equal(plani_graph_create(&b, &b.graph), 0);
        assert_int_equal(plani_phases_bound(&b, true, &phases_ns), 0);
        assert_int_equal(plani_schedule_bound(&b, true, &bound_ns), 0);
        for (int i = 0; i < ORDERS; i++)
            best = fmin(best, 1e9 * run_in_some_order(&d, &b));
        for (uint64_t i = 0; i < b.op_count; i++) {
            struct plani_share share;
            plani_demand(&job.machine, &b.ops[i].demand, &share);
            serial += 1e9 * share.alone_seconds;
        }
        if ((double)bound_ns > best + 2 || phases_ns > bound_ns + 2)
            fail_msg("seed %llu: an order takes %.0f ns, bounds are %llu and %llu ns",
                     (unsigned long long)seed, best, (unsigned long long)phases_ns,
                     (unsigned long long)bound_ns);
        struct plan_wait waits[PLAN_WAITS_MAX];
        find_waits(&b, UINT64_MAX / 2, waits);
        reached += best <= 1.001 * (double)bound_ns;
        caught += serial > best + 2;
        plani_builder_fini(&b);
    }
    print_message("%d programs: %llu reach their bound, %llu are below one without overlap\n",
                  PROGRAMS, (unsigned long long)reached, (unsigned long long)caught);
    assert_true(reached * 4 >= PROGRAMS);
    assert_true(caught * 2 >= PROGRAMS);
}

/* Shares the machine among ops with these demands. */
static void share(const plan_machine *machine, const op_demand *demands, uint32_t count,
                  struct plani_share *shares)
{
    struct plani_share *running[LANE_COUNT];
    for (uint32_t i = 0; i < count; i++) {
        plani_demand(machine, &demands[i], &shares[i]);
        running[i] = &shares[i];
    }
    plani_share_rates(running, count);
}

/* A write whose checksums need less than a core beside computing that fills all cores: the write
 * keeps its speed, and computing gets the rest. With a second op on the drives it sums at half of
 * the speed. Checksums that need more than a core share the cores with computing. */
static void full_cores_do_not_slow_checksums(void **state)
{
    plan_machine machine;
    plan_machine_default_cpu(&machine, 2, false);
    machine.drive_read_bytes_per_second = machine.drive_write_bytes_per_second = 1e9;
    machine.op_seconds = 0;
    op_demand demands[] = {{.drive_write_bytes = 1000000000, .core_seconds = 0.5},
                           {.device_seconds = 1},
                           {.drive_read_bytes = 1000000000}};
    struct plani_share shares[3];
    share(&machine, demands, 2, shares);
    assert_float_equal(shares[0].rate, 1, 1e-9);
    assert_float_equal(shares[1].rate, 0.75, 1e-9);
    share(&machine, demands, 3, shares);
    assert_float_equal(shares[0].rate, 0.5, 1e-9);
    assert_float_equal(shares[1].rate, 0.875, 1e-9);
    demands[0].core_seconds = 1.5;
    share(&machine, demands, 2, shares);
    assert_float_equal(shares[0].rate, shares[1].rate, 1e-9);
    assert_true(shares[0].rate < 0.6);
}

/* With a single core: a read and a write that need 0.8 of it each have half of it each. */
static void checksums_have_no_more_than_all_cores(void **state)
{
    plan_machine machine;
    plan_machine_default_cpu(&machine, 1, false);
    machine.drive_read_bytes_per_second = machine.drive_write_bytes_per_second = 1e9;
    machine.drive_both_ways = 2;
    machine.op_seconds = 0;
    op_demand demands[] = {{.drive_write_bytes = 1000000000, .core_seconds = 0.8},
                           {.drive_read_bytes = 1000000000, .core_seconds = 0.8}};
    struct plani_share shares[2];
    share(&machine, demands, 2, shares);
    for (int i = 0; i < 2; i++)
        assert_float_equal(shares[i].rate * demands[i].core_seconds, 0.5, 1e-9);
}

/* Drives keep 60% beside an op that uses all of the memory's rate, 80% beside one that uses half of
 * it, and no less than 60% beside both. Beside each other reads and writes lose nothing. Drives
 * that do more in both directions at once lose the same part. */
static void memory_traffic_slows_drives(void **state)
{
    plan_machine machine;
    plan_machine_default_cpu(&machine, 2, false);
    machine.drive_read_bytes_per_second = machine.drive_write_bytes_per_second = 1e9;
    machine.drive_kept = 0.6;
    machine.dram_bytes_per_second = 1e10;
    machine.op_seconds = 0;
    op_demand demands[] = {{.drive_read_bytes = 1000000000},
                           {.dram_bytes = 10000000000},
                           {.dram_bytes = 5000000000, .device_seconds = 1},
                           {.drive_write_bytes = 1000000000}};
    struct plani_share shares[4], *running[4];
    for (int i = 0; i < 4; i++)
        plani_demand(&machine, &demands[i], &shares[i]);
    static const struct {
        int ops[3];
        uint32_t count;
        double rate; /* of the read */
    } cases[] = {{{0, 1}, 2, 0.6}, {{0, 2}, 2, 0.8}, {{0, 1, 2}, 3, 0.6}, {{0, 3}, 2, 0.5}};
    for (int c = 0; c < 4; c++) {
        for (uint32_t i = 0; i < cases[c].count; i++)
            running[i] = &shares[cases[c].ops[i]];
        plani_share_rates(running, cases[c].count);
        assert_float_equal(shares[0].rate, cases[c].rate, 1e-9);
    }
    machine.drive_both_ways = 1.4;
    for (int i = 0; i < 4; i++)
        plani_demand(&machine, &demands[i], &shares[i]);
    running[0] = &shares[0], running[1] = &shares[1], running[2] = &shares[3];
    plani_share_rates(running, 2);
    assert_float_equal(shares[0].rate, 0.6, 1e-9);
    plani_share_rates(running, 3);
    assert_float_equal(shares[0].rate, 0.6 * 0.7, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_order_is_below_a_bound),
                                       cmocka_unit_test(a_known_chain_is_found),
                                       cmocka_unit_test(waiting_for_memory_is_named),
                                       cmocka_unit_test(full_cores_do_not_slow_checksums),
                                       cmocka_unit_test(checksums_have_no_more_than_all_cores),
                                       cmocka_unit_test(memory_traffic_slows_drives)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
