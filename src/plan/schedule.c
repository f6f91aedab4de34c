/* From serial order to a program: where buffers are is settled first (reserve.c), which makes memory a
 * matter of dependencies, then how urgent ops are (order.c); then an event-driven simulation:
 *
 *   at each event   complete ops
 *                   start, on each lane that is free, the most urgent op whose dependencies are complete
 *                   share the machine among what runs (share.c); advance to the next completion
 *
 * The compute lane keeps the serial order (plani_is_chained). Reads and writes share the drives, and both
 * directions the one thread that copies for a CPU: where one of them is more urgent, the other is held until
 * it is done, so that a write which nothing waits for does not slow what computing waits for. Gathers are
 * held where a cap says so (caps.c). The program's order is the order of simulated starts. Heap scratch,
 * freed on return. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "plan/simulation.h"

/* Share of the drives, or of the copying thread, that an op must use by itself for others to be kept off. */
static const double shared_filled = 0.9;

static int sim_init(struct plani_sim *s, plani_builder *b, bool whole)
{
    const struct plani_graph *graph = b->graph;
    memset(s, 0, sizeof *s);
    s->b = b;
    s->graph = graph;
    s->whole = whole;
    TRY(plani_caps_init(&s->caps, b));
    s->ops = mem_alloc(b->op_count + 1, sizeof *s->ops, "plan simulation");
    if (!s->ops)
        return -ENOMEM;
    if (s->caps.is_ahead) {
        s->capped = mem_alloc(graph->lane_count[LANE_COMM] + 1, sizeof *s->capped, "plan caps");
        s->uses_left = mem_alloc(b->buffer_count + 1, sizeof *s->uses_left, "plan caps");
        if (!s->capped || !s->uses_left)
            return -ENOMEM;
        for (uint64_t i = b->home_count; i < b->buffer_count; i++)
            s->uses_left[i] = b->buffers[i].user_count;
    }
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        s->running[lane] = s->last_done[lane] = PROGRAM_NONE;
        TRY(plani_heap_init(&s->ready[lane], graph->lane_count[lane], graph->urgency, false));
    }
    for (uint64_t i = 0; i < b->op_count; i++) {
        s->ops[i].missing = (uint32_t)(graph->to_begin[i + 1] - graph->to_begin[i]);
        s->ops[i].missing += graph->chain_before[i] != PROGRAM_NONE;
        if (s->ops[i].missing == 0)
            plani_heap_push(&s->ready[b->ops[i].lane], (uint32_t)i);
    }
    return 0;
}

static void sim_fini(struct plani_sim *s)
{
    mem_free(s->ops);
    mem_free(s->capped);
    mem_free(s->uses_left);
    plani_caps_fini(&s->caps);
    for (int lane = 0; lane < LANE_COUNT; lane++)
        plani_heap_fini(&s->ready[lane]);
}

/* ---- caps ------------------------------------------------------------------------------------- */

static bool is_gather(const op *item)
{
    return item->kind == OP_ALL_GATHER && item->state_kind == STATE_PARAMS;
}

/* Whether a cap keeps the op back now. Gathers start in serial order then, so that the oldest op, which
 * nothing keeps back, finds no later one there. */
static bool is_capped(struct plani_sim *s, uint32_t idx)
{
    const op *ops = s->b->ops;
    if (!s->caps.is_ahead || !is_gather(&ops[idx]))
        return false;
    while (!is_gather(&ops[s->next_gather]) || s->ops[s->next_gather].state != OP_WAITING)
        s->next_gather++;
    if (idx != s->next_gather)
        return true;
    return idx != s->oldest &&
           !plani_caps_allow(&s->caps, op_operand(&ops[idx], ROLE_TARGET)->buffer_idx);
}

/* What caps kept back is looked at again. */
static void uncap(struct plani_sim *s)
{
    while (s->capped_count > 0)
        plani_heap_push(&s->ready[LANE_COMM], s->capped[--s->capped_count]);
}

static void start_caps(struct plani_sim *s, uint32_t idx)
{
    const op *item = &s->b->ops[idx];
    if (!s->caps.is_ahead)
        return;
    if (is_gather(item))
        plani_caps_take(&s->caps, op_operand(item, ROLE_TARGET)->buffer_idx);
    plani_caps_start(&s->caps, idx);
    uncap(s);
}

static void complete_caps(struct plani_sim *s, uint32_t idx)
{
    const op *item = &s->b->ops[idx];
    for (uint32_t i = 0; s->caps.is_ahead && i < item->operand_count; i++) {
        uint32_t used = item->operands[i].buffer_idx;
        bool repeated = used < s->b->home_count;
        for (uint32_t j = 0; j < i; j++)
            repeated = repeated || item->operands[j].buffer_idx == used;
        if (!repeated && --s->uses_left[used] == 0)
            plani_caps_give(&s->caps, used);
    }
    uncap(s);
}

/* ---- lanes ------------------------------------------------------------------------------------ */

static void wait_less(struct plani_sim *s, uint32_t idx)
{
    if (--s->ops[idx].missing == 0)
        plani_heap_push(&s->ready[s->b->ops[idx].lane], idx);
}

static void complete(struct plani_sim *s, uint32_t idx)
{
    const struct plani_graph *g = s->graph;
    uint8_t lane = s->b->ops[idx].lane;
    s->ops[idx].state = OP_COMPLETE;
    s->ops[idx].end = s->now;
    s->complete_count++;
    s->running[lane] = PROGRAM_NONE;
    s->last_done[lane] = idx;
    for (uint64_t e = g->from_begin[idx]; e < g->from_begin[idx + 1]; e++)
        wait_less(s, g->successors[e]);
    if (g->chain[idx] != PROGRAM_NONE)
        wait_less(s, g->chain[idx]);
    while (s->oldest < s->b->op_count &&
           (s->ops[s->oldest].state == OP_COMPLETE || s->b->ops[s->oldest].kind == OP_COMMIT))
        s->oldest++;
    complete_caps(s, idx);
}

/* Whether the op leaves the drives, or the one thread that copies both ways, to an op of the lane that
 * shares them: one that is more urgent, and nearly fills them. */
static bool is_held(const struct plani_sim *s, int lane, uint32_t idx)
{
    int other = plani_rival_lane(&s->b->job->machine, lane);
    if (other == LANE_COUNT)
        return false;
    uint32_t rival = s->running[other];
    if (rival == PROGRAM_NONE && s->ready[other].count > 0)
        rival = s->ready[other].items[0];
    if (rival == PROGRAM_NONE || s->graph->urgency[rival] <= s->graph->urgency[idx])
        return false;
    const struct plani_share *share = &s->graph->shares[rival];
    enum plan_resource shared =
        other == LANE_READ || other == LANE_WRITE ? RESOURCE_DRIVE : RESOURCE_H2D;
    return share->demand[shared] > shared_filled * share->alone_seconds;
}

/* The op that the lane starts now, or PROGRAM_NONE. */
static uint32_t take_next(struct plani_sim *s, int lane)
{
    while (s->ready[lane].count > 0) {
        uint32_t idx = s->ready[lane].items[0];
        if (is_held(s, lane, idx)) {
            s->ops[idx].was_held = true;
            return PROGRAM_NONE;
        }
        plani_heap_pop(&s->ready[lane]);
        if (!is_capped(s, idx))
            return idx;
        s->capped[s->capped_count++] = idx;
    }
    return PROGRAM_NONE;
}

/* Starts what can start. What was held for another is told to be behind that, the executor knows no urgency:
 * a copy by a dependency, a read or a write by op.behind, so that the drives go on to it without a pause. */
static int start_ready(struct plani_sim *s)
{
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        uint32_t idx = s->running[lane] == PROGRAM_NONE ? take_next(s, lane) : PROGRAM_NONE;
        if (idx == PROGRAM_NONE)
            continue;
        struct plani_sim_op *o = &s->ops[idx];
        int other = plani_rival_lane(&s->b->job->machine, lane);
        uint32_t rival = other < LANE_COUNT ? s->last_done[other] : PROGRAM_NONE;
        o->behind = PROGRAM_NONE;
        if (s->whole && o->was_held && rival != PROGRAM_NONE) {
            if (lane == LANE_READ || lane == LANE_WRITE)
                o->behind = rival;
            else
                TRY(plani_add_edge(s->b, rival, idx));
        }
        o->state = OP_RUNNING;
        o->start = s->now;
        s->running[lane] = idx;
        s->done[lane] = 0;
        start_caps(s, idx);
    }
    return 0;
}

/* Advances to the next completion. */
static void advance(struct plani_sim *s)
{
    struct plani_share *shares[LANE_COUNT];
    int lanes[LANE_COUNT];
    uint32_t count = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (s->running[lane] != PROGRAM_NONE) {
            lanes[count] = lane;
            shares[count++] = &s->graph->shares[s->running[lane]];
        }
    assert(count > 0);
    plani_share_rates(shares, count);
    double step = INFINITY;
    for (uint32_t i = 0; i < count; i++)
        step = fmin(step, (1.0 - s->done[lanes[i]]) / shares[i]->rate);
    s->now += step;
    for (uint32_t i = 0; i < count; i++) {
        s->done[lanes[i]] += step * shares[i]->rate;
        if (s->done[lanes[i]] >= 1.0 - 1e-9)
            complete(s, s->running[lanes[i]]);
    }
}

static int simulate(struct plani_sim *s)
{
    while (s->complete_count < s->b->op_count) {
        TRY(start_ready(s));
        advance(s);
    }
    return 0;
}

/* ---- all of it -------------------------------------------------------------------------------- */

/* Places the buffers; adds edges. */
static int settle(plani_builder *b, enum program_kind kind, const uint64_t budget_bytes[TIER_COUNT],
                  uint64_t lookahead_ops, program *out)
{
    struct plani_peaks peaks;
    memset(out, 0, sizeof *out);
    if (!b->graph)
        TRY(plani_graph_create(b, &b->graph));
    TRY(plani_reserve(b, b->graph, budget_bytes, lookahead_ops, &peaks));
    out->kind = kind;
    out->world = plani_world(b->job);
    for (int a = 0; a < TIER_COUNT; a++) {
        out->budget_bytes[a] = budget_bytes[a];
        out->peak_bytes[a] = peaks.bytes[a];
        out->peak_buffer[a] = peaks.buffer[a];
    }
    return 0;
}

int plani_needs(plani_builder *b, enum program_kind kind, const uint64_t budget_bytes[TIER_COUNT],
                program *out)
{
    uint64_t data_edge_count = b->edge_count;
    int rc = settle(b, kind, budget_bytes, 1, out);
    b->edge_count = data_edge_count;
    return rc;
}

static void fill_times(const struct plani_sim *s, program *out)
{
    out->predicted_ns = (uint64_t)llround(s->now * 1e9);
    for (uint64_t i = 0; i < s->b->op_count; i++)
        out->lane_busy_ns[s->b->ops[i].lane] +=
            (uint64_t)(llround(s->ops[i].end * 1e9) - llround(s->ops[i].start * 1e9));
}

int plani_schedule(plani_builder *b, enum program_kind kind,
                   const uint64_t budget_bytes[TIER_COUNT], uint64_t lookahead_ops, bool whole,
                   program *out)
{
    uint64_t data_edge_count = b->edge_count;
    struct plani_sim s = {0};
    int rc = settle(b, kind, budget_bytes, lookahead_ops, out);
    if (rc == 0)
        rc = plani_graph_link(b->graph, b);
    if (rc == 0)
        rc = sim_init(&s, b, whole);
    if (rc == 0)
        rc = simulate(&s);
    if (rc == 0)
        fill_times(&s, out);
    if (rc == 0 && whole)
        rc = plani_fill_program(&s, out);
    if (rc < 0)
        program_fini(out);
    b->edge_count = data_edge_count; /* a next try starts from the data dependencies */
    sim_fini(&s);
    return rc;
}
