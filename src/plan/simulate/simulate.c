/* Time: an event-driven simulation of the machine, and the program that comes out of it.
 *
 * Where buffers are is settled first (reserve.c), which makes memory a matter of dependencies;
 * then how urgent ops are (urgency.c). Then:
 *
 *   at each event   complete ops
 *                   start, on each free lane, the most urgent op whose dependencies are complete
 *                   share the machine among the running ops (resources.c)
 *                   advance to the next completion
 *
 * The compute lane keeps the serial order (plani_brief). Reads and writes share the drives, and
 * copies in both directions share the one thread that copies for a CPU. Where an op of one
 * direction is more urgent, the other direction is held until it is done, so that a write which
 * nothing waits for does not slow what computing waits for. Gathers are held back while the
 * limits of gathered params do not allow them. The program's order is the order of simulated
 * starts. Heap scratch, freed on return. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "plan/simulate/simulate_internal.h"

/* Share of the drives, or of the copying thread, that an op must use by itself for others to be
 * kept off. */
static const double shared_filled = 0.9;

enum op_state { OP_WAITING, OP_RUNNING, OP_COMPLETE };

struct sim_op {
    double start, end; /* seconds */
    uint32_t missing;  /* dependencies that are not complete */
    uint32_t behind;   /* with `whole`: the op it was held for on the drives, or PROGRAM_NONE */
    uint8_t state;
    bool was_held; /* it was ready before, but another op had the shared drives or copies */
};

/* Ops that run together, one a lane, and how fast they run. A program has few such sets, which come
 * again for each tile and layer. */
struct rates {
    uint32_t shares[LANE_COUNT]; /* 1 + index in graph.shares; 0: the lane is idle */
    double rate[LANE_COUNT];     /* share of the op done per second */
};
enum { RATES = 256 }; /* sets that are remembered: a power of 2 */

struct sim {
    plani_builder *b;
    const struct plani_graph *graph;
    bool whole; /* the program says what was held: by op.behind, and for copies by a dependency */
    struct sim_op *ops;
    struct plani_ready ready;
    int rivals[LANE_COUNT]; /* plani_rival_lane */
    uint32_t running[LANE_COUNT];
    uint32_t last_done[LANE_COUNT];
    double done[LANE_COUNT];     /* share of the running op that is done, 0..1 */
    uint32_t shares[LANE_COUNT]; /* as in struct rates */
    struct rates *rates;         /* [RATES] by hash */
    struct plani_caps caps;
    uint32_t *capped; /* [lane_count[LANE_COMM]] gathers that are ready and that a cap keeps back */
    uint64_t capped_count;
    uint64_t next_gather; /* with caps: no gather before it is left */
    uint64_t oldest;      /* with caps: first op not complete, serial; commits do not count */
    uint64_t complete_count;
    double now;
    double enough; /* a longer program is of no interest; INFINITY */
    /* Work of the ops that have not begun, in seconds: on resources, and alone on each lane. */
    double left[RESOURCE_COUNT], lane_left[LANE_COUNT];
    bool is_too_long; /* it surely takes `enough` or longer */
};

/* ---- ready ops ------------------------------------------------------------------------------ */

static void push_ready(struct sim *s, int lane, uint32_t idx)
{
    plani_ready_push(&s->ready, lane, s->graph->rank[idx]);
}

/* The most urgent ready op of the lane; there is one. */
static uint32_t first_ready(const struct sim *s, int lane)
{
    uint32_t rank = plani_ready_first(&s->ready, lane);
    return s->graph->by_rank[s->graph->line_begin[lane] + rank];
}

/* ---- caps on gathered params (caps.c) -------------------------------------------------------- */

static bool is_gather(const op *item)
{
    return item->kind == OP_ALL_GATHER && item->state_kind == STATE_PARAMS;
}

/* True if a cap keeps the op back now. Gathers start in serial order then, so that the oldest op,
 * which nothing keeps back, finds no later one there. */
static bool is_capped(struct sim *s, uint32_t idx)
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

/* Lets the gathers that a cap kept back be looked at again. */
static void uncap(struct sim *s)
{
    while (s->capped_count > 0)
        push_ready(s, LANE_COMM, s->capped[--s->capped_count]);
}

static void start_caps(struct sim *s, uint32_t idx)
{
    const op *item = &s->b->ops[idx];
    if (!s->caps.is_ahead)
        return;
    if (is_gather(item))
        plani_caps_take(&s->caps, op_operand(item, ROLE_TARGET)->buffer_idx);
    plani_caps_start(&s->caps, idx);
    uncap(s);
}

static void complete_caps(struct sim *s, uint32_t idx)
{
    if (!s->caps.is_ahead)
        return;
    plani_caps_complete(&s->caps, idx);
    uncap(s);
}

/* ---- begin and end -------------------------------------------------------------------------- */

static int sim_init(struct sim *s, plani_builder *b, bool whole)
{
    const struct plani_graph *graph = b->graph;
    memset(s, 0, sizeof *s);
    s->b = b;
    s->graph = graph;
    s->whole = whole;
    TRY(plani_caps_init(&s->caps, b));
    s->ops = mem_alloc(b->op_count + 1, sizeof *s->ops, "plan simulation");
    s->rates = mem_alloc(RATES, sizeof *s->rates, "plan simulation");
    if (!s->ops || !s->rates)
        return -ENOMEM;
    if (s->caps.is_ahead) {
        s->capped = mem_alloc(graph->lane_count[LANE_COMM] + 1, sizeof *s->capped, "plan caps");
        if (!s->capped)
            return -ENOMEM;
    }
    TRY(plani_ready_init(&s->ready, graph));
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        s->running[lane] = s->last_done[lane] = PROGRAM_NONE;
        s->rivals[lane] = plani_rival_lane(&b->job->machine, lane);
    }
    memcpy(s->left, graph->work, sizeof s->left);
    memcpy(s->lane_left, graph->lane_work, sizeof s->lane_left);
    for (uint64_t i = 0; i < b->op_count; i++) {
        s->ops[i].missing = (uint32_t)(graph->to_begin[i + 1] - graph->to_begin[i]);
        s->ops[i].missing += graph->chain_before[i] != PROGRAM_NONE;
        if (s->ops[i].missing == 0)
            push_ready(s, graph->lanes[i], (uint32_t)i);
    }
    return 0;
}

static void sim_fini(struct sim *s)
{
    mem_free(s->ops);
    mem_free(s->rates);
    mem_free(s->capped);
    plani_ready_fini(&s->ready);
    plani_caps_fini(&s->caps);
}

/* ---- lanes ---------------------------------------------------------------------------------- */

static void wait_less(struct sim *s, uint32_t idx)
{
    assert(s->ops[idx].state == OP_WAITING && s->ops[idx].missing > 0);
    if (--s->ops[idx].missing == 0)
        push_ready(s, s->graph->lanes[idx], idx);
}

static void complete(struct sim *s, uint32_t idx)
{
    const struct plani_graph *g = s->graph;
    uint8_t lane = g->lanes[idx];
    assert(s->ops[idx].state == OP_RUNNING && s->running[lane] == idx);
    s->ops[idx].state = OP_COMPLETE;
    s->ops[idx].end = s->now;
    s->complete_count++;
    s->running[lane] = PROGRAM_NONE;
    s->shares[lane] = 0;
    s->last_done[lane] = idx;
    for (uint64_t e = g->from_begin[idx]; e < g->from_begin[idx + 1]; e++)
        wait_less(s, g->successors[e]);
    if (g->chain[idx] != PROGRAM_NONE)
        wait_less(s, g->chain[idx]);
    while (s->caps.is_ahead && s->oldest < s->b->op_count &&
           (s->ops[s->oldest].state == OP_COMPLETE || s->b->ops[s->oldest].kind == OP_COMMIT))
        s->oldest++;
    complete_caps(s, idx);
}

/* True if the op leaves the drives, or the one thread that copies both ways, to an op of the lane
 * that shares them: one that is more urgent, and nearly fills them. */
static bool is_held(const struct sim *s, int lane, uint32_t idx)
{
    int other = s->rivals[lane];
    if (other == LANE_COUNT)
        return false;
    uint32_t rival = s->running[other];
    if (rival == PROGRAM_NONE && s->ready.count[other] > 0)
        rival = first_ready(s, other);
    if (rival == PROGRAM_NONE || s->graph->rank[rival] < s->graph->rank[idx])
        return false;
    const struct plani_share *share = plani_share_of(s->graph, rival);
    enum plan_resource shared =
        other == LANE_READ || other == LANE_WRITE ? RESOURCE_DRIVE : RESOURCE_H2D;
    return share->demand[shared] > shared_filled * share->alone_seconds;
}

/* The op that the lane starts now, or PROGRAM_NONE. */
static uint32_t take_next(struct sim *s, int lane)
{
    while (s->ready.count[lane] > 0) {
        uint32_t idx = first_ready(s, lane);
        if (is_held(s, lane, idx)) {
            s->ops[idx].was_held = true;
            return PROGRAM_NONE;
        }
        plani_ready_take(&s->ready, lane, s->graph->rank[idx]);
        if (!is_capped(s, idx))
            return idx;
        s->capped[s->capped_count++] = idx;
    }
    return PROGRAM_NONE;
}

/* Counts the work of the op as begun. It ends too late if what follows it takes too long, or what
 * its lane or a resource has left to do from here on. */
static void count_start(struct sim *s, uint32_t idx)
{
    const struct plani_share *share = plani_share_of(s->graph, idx);
    uint8_t lane = s->graph->lanes[idx];
    double left = plani_larger(s->graph->tail[idx], s->lane_left[lane]);
    for (int r = 0; r < RESOURCE_COUNT; r++) {
        left = plani_larger(left, s->left[r]);
        s->left[r] -= share->demand[r];
    }
    s->lane_left[lane] -= share->alone_seconds;
    s->is_too_long |= s->now + left >= s->enough;
}

/* Starts the ops that can start. The executor knows no urgency, so the program says which op
 * another was held for: for a copy by a dependency; for a read or a write by op.behind, so that
 * the drives go on to it without a pause. */
static int start_ready(struct sim *s)
{
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        uint32_t idx = s->running[lane] == PROGRAM_NONE ? take_next(s, lane) : PROGRAM_NONE;
        if (idx == PROGRAM_NONE)
            continue;
        struct sim_op *o = &s->ops[idx];
        int other = s->rivals[lane];
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
        s->shares[lane] = s->graph->share_of[idx] + 1;
        s->done[lane] = 0;
        count_start(s, idx);
        start_caps(s, idx);
    }
    return 0;
}

/* Fills in the rates of the running ops. */
static void share_rates(const struct sim *s, struct rates *found)
{
    struct plani_share *shares[LANE_COUNT];
    uint32_t count = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (s->shares[lane])
            shares[count++] = &s->graph->shares[s->shares[lane] - 1];
    plani_share_rates(shares, count);
    memcpy(found->shares, s->shares, sizeof found->shares);
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (s->shares[lane]) {
            found->rate[lane] = s->graph->shares[s->shares[lane] - 1].rate;
            assert(found->rate[lane] > 0);
        }
}

/* The rates of the running ops, which may be known. */
static const struct rates *find_rates(struct sim *s)
{
    uint64_t words[LANE_COUNT / 2];
    memcpy(words, s->shares, sizeof words);
    struct rates *found = &s->rates[plani_hash_words(words, LANE_COUNT / 2) & (RATES - 1)];
    if (memcmp(found->shares, s->shares, sizeof found->shares) != 0)
        share_rates(s, found);
    return found;
}

/* Advances to the next completion. */
static void advance(struct sim *s)
{
    const struct rates *rates = find_rates(s);
    int lanes[LANE_COUNT];
    uint32_t count = 0;
    double step = INFINITY;
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (s->shares[lane]) {
            lanes[count++] = lane;
            step = plani_smaller(step, (1.0 - s->done[lane]) / rates->rate[lane]);
        }
    assert(count > 0);
    s->now += step;
    for (uint32_t i = 0; i < count; i++) {
        s->done[lanes[i]] += step * rates->rate[lanes[i]];
        if (s->done[lanes[i]] >= 1.0 - 1e-9)
            complete(s, s->running[lanes[i]]);
    }
}

static int simulate(struct sim *s)
{
    while (s->complete_count < s->b->op_count) {
        uint64_t before = s->complete_count;
        TRY(start_ready(s));
        if (s->is_too_long || s->now >= s->enough)
            return 1;
        advance(s);
        if (before / PLANI_OPS_OF_A_NOTE < s->complete_count / PLANI_OPS_OF_A_NOTE)
            plani_note_work(s->b->job, NULL, PLANI_OPS_OF_A_NOTE);
    }
    return 0;
}

/* ---- the program ---------------------------------------------------------------------------- */

static int compare_by_start(const void *left, const void *right, void *context)
{
    const struct sim_op *ops = context;
    uint32_t a = *(const uint32_t *)left, c = *(const uint32_t *)right;
    if (ops[a].start != ops[c].start)
        return ops[a].start < ops[c].start ? -1 : 1;
    return a < c ? -1 : a > c;
}

static int compare_indices(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, c = *(const uint32_t *)right;
    return a < c ? -1 : a > c;
}

/* Dependencies by op, ascending, each once; `place` says where an op of the serial order went. */
static int fill_deps(const plani_builder *b, const uint32_t *place, program *out)
{
    uint64_t *end = mem_alloc(b->op_count + 1, sizeof *end, "program dependencies");
    if (!end)
        return -ENOMEM;
    for (uint64_t e = 0; e < b->edge_count; e++)
        end[place[b->edges[e].to] + 1]++;
    for (uint64_t i = 0; i < b->op_count; i++)
        end[i + 1] += end[i];
    for (uint64_t e = 0; e < b->edge_count;
         e++) /* end[i] runs from the first to the last of op i */
        out->deps[end[place[b->edges[e].to]]++] = place[b->edges[e].from];
    uint64_t first = 0;
    for (uint64_t i = 0; i < b->op_count; i++) {
        op *item = &out->ops[i];
        qsort(out->deps + first, end[i] - first, sizeof *out->deps, compare_indices);
        item->dep_begin = (uint32_t)out->dep_count;
        for (; first < end[i]; first++)
            if (item->dep_count == 0 || out->deps[out->dep_count - 1] != out->deps[first]) {
                assert(out->deps[first] < i);
                out->deps[out->dep_count++] = out->deps[first];
                item->dep_count++;
            }
    }
    mem_free(end);
    return 0;
}

static void fill_buffers(const struct sim *s, program *out)
{
    for (uint64_t i = 0; i < out->buffer_count; i++)
        out->buffers[i] = s->b->buffers[i].base;
    for (uint64_t i = 0; i < out->op_count; i++) {
        const op *item = &out->ops[i];
        for (uint32_t j = 0; j < item->operand_count; j++) {
            buffer *used = &out->buffers[item->operands[j].buffer_idx];
            if (used->is_home)
                continue;
            if (used->producer == PROGRAM_NONE && (item->operands[j].access & ACCESS_WRITE))
                used->producer = (uint32_t)i;
            used->last_reader = (uint32_t)i;
        }
    }
}

static int fill_program(const struct sim *s, program *out)
{
    const plani_builder *b = s->b;
    out->op_count = b->op_count;
    out->buffer_count = b->buffer_count;
    out->home_count = b->home_count;
    out->ops = mem_alloc(b->op_count, sizeof *out->ops, "program ops");
    out->buffers = mem_alloc(b->buffer_count, sizeof *out->buffers, "program buffers");
    out->deps = mem_alloc(b->edge_count, sizeof *out->deps, "program dependencies");
    uint32_t *order = mem_alloc(b->op_count, sizeof *order, "program order");
    uint32_t *place = mem_alloc(b->op_count, sizeof *place, "program order");
    int rc = out->ops && out->buffers && out->deps && order && place ? 0 : -ENOMEM;
    for (uint64_t i = 0; rc == 0 && i < b->op_count; i++)
        order[i] = (uint32_t)i;
    if (rc == 0) {
        qsort_r(order, b->op_count, sizeof *order, compare_by_start, s->ops);
        for (uint64_t i = 0; i < b->op_count; i++)
            place[order[i]] = (uint32_t)i;
    }
    for (uint64_t i = 0; rc == 0 && i < b->op_count; i++) {
        op *item = &out->ops[i];
        *item = b->ops[order[i]];
        memset(item->operands + item->operand_count, 0,
               (OP_OPERANDS_MAX - item->operand_count) * sizeof *item->operands);
        item->predicted_start_ns = (uint64_t)llround(s->ops[order[i]].start * 1e9);
        item->predicted_end_ns = (uint64_t)llround(s->ops[order[i]].end * 1e9);
        out->lane_bytes[item->lane] +=
            (uint64_t)llround((double)op_moved_bytes(item) * plan_share(&item->demand));
    }
    if (rc == 0)
        rc = fill_deps(b, place, out);
    for (uint64_t i = 0; rc == 0 && i < b->op_count; i++) {
        uint32_t behind = s->ops[order[i]].behind;
        if (behind != PROGRAM_NONE && !op_depends_on(out, (uint32_t)i, place[behind]))
            out->ops[i].behind = place[behind];
    }
    if (rc == 0)
        fill_buffers(s, out);
    mem_free(order);
    mem_free(place);
    return rc;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* Places the buffers; adds edges, except with `only_fits`. */
static int settle(plani_builder *b, enum program_kind kind, const uint64_t budget_bytes[TIER_COUNT],
                  const uint64_t lookahead_ops[TIER_COUNT], bool only_fits, program *out)
{
    struct plani_peaks peaks;
    memset(out, 0, sizeof *out);
    if (!b->graph && !only_fits)
        TRY(plani_graph_create(b, &b->graph));
    TRY(plani_reserve(b, b->graph, budget_bytes, lookahead_ops, only_fits, &peaks));
    out->kind = kind;
    out->world = plani_world(b->job);
    for (int a = 0; a < TIER_COUNT; a++) {
        out->budget_bytes[a] = budget_bytes[a];
        out->peak_bytes[a] = peaks.bytes[a];
        out->peak_buffer[a] = peaks.buffer[a];
    }
    return 0;
}

int plani_schedule_serial(plani_builder *b, enum program_kind kind,
                          const uint64_t budget_bytes[TIER_COUNT], program *out)
{
    static const uint64_t serial[TIER_COUNT] = {1, 1, 1};
    return settle(b, kind, budget_bytes, serial, true, out);
}

static void fill_times(const struct sim *s, program *out)
{
    out->predicted_ns = (uint64_t)llround(s->now * 1e9);
    for (uint64_t i = 0; i < s->b->op_count; i++)
        out->lane_busy_ns[s->graph->lanes[i]] +=
            (uint64_t)(llround(s->ops[i].end * 1e9) - llround(s->ops[i].start * 1e9));
}

int plani_schedule(plani_builder *b, enum program_kind kind,
                   const uint64_t budget_bytes[TIER_COUNT],
                   const uint64_t lookahead_ops[TIER_COUNT], uint64_t enough_ns, bool whole,
                   program *out)
{
    uint64_t data_edge_count = b->edge_count;
    double enough = enough_ns ? (double)enough_ns * 1e-9 : INFINITY;
    struct sim s = {0};
    int rc = settle(b, kind, budget_bytes, lookahead_ops, false, out);
    if (rc == 0)
        rc = plani_graph_link(b->graph, b, enough);
    if (rc == 0)
        rc = sim_init(&s, b, whole);
    s.enough = enough;
    if (rc == 0)
        rc = simulate(&s);
    if (rc == 0)
        fill_times(&s, out);
    if (rc == 0 && whole)
        rc = fill_program(&s, out);
    if (rc != 0)
        program_fini(out);
    b->edge_count = data_edge_count; /* a next try starts from the data dependencies */
    sim_fini(&s);
    return rc;
}
