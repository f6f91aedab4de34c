/* A bound is never above a schedule: small random programs on random machines, each run in many
 * orders by a simulation of the test's own, against both bounds of its time. Canaries: a bound that
 * lets nothing overlap must be caught, and the bounds must be reached often, so that one of 0 would
 * fail too. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "plan/simulate_internal.h"

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
    if (draw(d, 2))
        plan_machine_default_cpu(m, 4, true);
    else
        plan_machine_default_gpu(m, 4, 8, 0);
    m->drive_read_bytes_per_second = m->drive_write_bytes_per_second = 1e9;
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
    for (uint64_t i = 0; i < idx && plani_is_chained(b->job, &b->ops[idx]); i++)
        if (plani_is_chained(b->job, &b->ops[i]) && !r[i].is_complete)
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

static void no_order_is_below_a_bound(void **state)
{
    (void)state;
    uint64_t reached = 0, caught = 0;
    for (uint64_t seed = 1; seed <= PROGRAMS; seed++) {
        struct dice d = {.seed = seed};
        plan_job job = {.world = 1};
        plan_set set = {0};
        plani_layout layout = {0};
        plani_builder b;
        uint64_t phases_ns, bound_ns;
        double best = INFINITY, serial = 0;
        draw_machine(&d, &job.machine);
        assert_int_equal(plani_builder_init(&b, &job, &set, &layout, 0), 0);
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
        reached += best <= 1.001 * (double)bound_ns;
        caught += serial > best + 2;
        plani_builder_fini(&b);
    }
    print_message("%d programs: %llu reach their bound, %llu are below one without overlap\n",
                  PROGRAMS, (unsigned long long)reached, (unsigned long long)caught);
    assert_true(reached * 3 >= PROGRAMS);
    assert_true(caught * 2 >= PROGRAMS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_order_is_below_a_bound)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
