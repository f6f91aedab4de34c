/* A program's ops in its own order, timed again without those of commits. See
 * simulate_internal.h.
 *
 * Each lane takes its ops in program order, and each op waits for its dependencies and for the op
 * that it was put behind on the drives. Ops that run together share the machine as in the
 * simulation. With all ops the times are the program's own. Heap scratch, freed on return. */
#include <assert.h>
#include <errno.h>
#include <math.h>

#include "base/mem.h"
#include "plan/simulate/simulate_internal.h"

struct replay {
    const program *prog;
    const plan_machine *machine;
    const bool *is_left_out; /* [op_count] */
    uint32_t *next;          /* [op_count] the op after it on its lane */
    bool *is_done;           /* [op_count] */
    uint32_t head[LANE_COUNT], running[LANE_COUNT];
    struct plani_share shares[LANE_COUNT];
    double done[LANE_COUNT]; /* share of the running op that is done */
    double now;              /* seconds */
};

static void link_lanes(struct replay *r)
{
    for (int lane = 0; lane < LANE_COUNT; lane++)
        r->head[lane] = r->running[lane] = PROGRAM_NONE;
    for (uint64_t i = r->prog->op_count; i-- > 0;) {
        uint8_t lane = r->prog->ops[i].lane;
        if (r->is_left_out[i]) {
            r->is_done[i] = true;
            continue;
        }
        r->next[i] = r->head[lane];
        r->head[lane] = (uint32_t)i;
    }
}

static bool is_ready(const struct replay *r, uint32_t idx)
{
    const op *item = &r->prog->ops[idx];
    if (item->behind != PROGRAM_NONE && !r->is_done[item->behind])
        return false;
    for (uint32_t d = 0; d < item->dep_count; d++)
        if (!r->is_done[r->prog->deps[item->dep_begin + d]])
            return false;
    return true;
}

/* Starts what can start; the time until the next op ends, INFINITY: nothing runs. */
static double start_and_share(struct replay *r, uint64_t *start_ns)
{
    struct plani_share *shares[LANE_COUNT];
    uint32_t count = 0;
    double step = INFINITY;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        uint32_t idx = r->head[lane];
        if (r->running[lane] == PROGRAM_NONE && idx != PROGRAM_NONE && is_ready(r, idx)) {
            plani_demand(r->machine, &r->prog->ops[idx].demand, &r->shares[lane]);
            r->running[lane] = idx;
            r->done[lane] = 0;
            r->head[lane] = r->next[idx];
            start_ns[idx] = (uint64_t)llround(r->now * 1e9);
        }
        if (r->running[lane] != PROGRAM_NONE)
            shares[count++] = &r->shares[lane];
    }
    plani_share_rates(shares, count);
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (r->running[lane] != PROGRAM_NONE)
            step = fmin(step, (1 - r->done[lane]) / r->shares[lane].rate);
    return step;
}

static void advance(struct replay *r, double step, uint64_t *end_ns)
{
    r->now += step;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        uint32_t idx = r->running[lane];
        if (idx == PROGRAM_NONE)
            continue;
        r->done[lane] += step * r->shares[lane].rate;
        if (r->done[lane] < 1 - 1e-9)
            continue;
        r->running[lane] = PROGRAM_NONE;
        r->is_done[idx] = true;
        end_ns[idx] = (uint64_t)llround(r->now * 1e9);
    }
}

int plani_replay(const plan_machine *machine, const program *prog, const bool *is_left_out,
                 uint64_t *start_ns, uint64_t *end_ns, uint64_t *length_ns)
{
    struct replay r = {.prog = prog, .machine = machine, .is_left_out = is_left_out};
    r.next = mem_alloc(prog->op_count, sizeof *r.next, "plan replay");
    r.is_done = mem_alloc(prog->op_count, sizeof *r.is_done, "plan replay"); /* zeros */
    int rc = r.next && r.is_done ? 0 : -ENOMEM;
    if (rc == 0) {
        link_lanes(&r);
        for (double step; isfinite(step = start_and_share(&r, start_ns));)
            advance(&r, step, end_ns);
        *length_ns = (uint64_t)llround(r.now * 1e9);
    }
    for (int lane = 0; rc == 0 && lane < LANE_COUNT; lane++)
        assert(r.head[lane] == PROGRAM_NONE);
    mem_free(r.next);
    mem_free(r.is_done);
    return rc;
}
