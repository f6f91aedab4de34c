/* Which op of a lane goes first: the one whose start can wait the least.
 *
 * Backward list scheduling: the program is run from its end to its beginning. An op is ready when
 * all that depends on it is done. Each lane runs one op at a time, and so do lanes together that
 * get in each other's way.
 *
 *   end <------------------------------------------------- beginning
 *   | B0 | B1 | B2 | ...                  compute, in its order
 *        | P0 h2d | P1 h2d | ...          what B0 needs may come that late, and so on
 *                 | P0 read | O9 write | P1 read
 *
 * An op's urgency is when it begins, counted from the end: it cannot begin later unless the end
 * moves. Among several ready ops the one with the longest way to the beginning goes nearest to the
 * end, because it can be done only late anyway. So what takes long to make is taken away late,
 * what is needed soon is fetched first, and a write that nothing waits for comes last. A
 * dependency's `from` is more urgent than its `to`. Deterministic; all figures come from the
 * builder. Linear but for the heaps. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "plan/simulate/simulate_internal.h"

/* ---- heap ----------------------------------------------------------------------------------- */

/* Ops, taken largest key first; of equal keys the last of the serial order. */
struct heap_item {
    double key;
    uint32_t idx;
};
struct heap {
    struct heap_item *items;
    uint64_t count;
};

static bool goes_first(struct heap_item a, struct heap_item c)
{
    return a.key != c.key ? a.key > c.key : a.idx > c.idx;
}

static void heap_push(struct heap *heap, struct heap_item fresh)
{
    uint64_t at = heap->count++;
    while (at > 0 && goes_first(fresh, heap->items[(at - 1) / 2])) {
        heap->items[at] = heap->items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->items[at] = fresh;
}

static uint32_t heap_pop(struct heap *heap)
{
    assert(heap->count > 0);
    const uint32_t first = heap->items[0].idx;
    const struct heap_item moved = heap->items[--heap->count];
    uint64_t at = 0;
    for (;;) {
        uint64_t child = 2 * at + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && goes_first(heap->items[child + 1], heap->items[child]))
            child++;
        if (!goes_first(heap->items[child], moved))
            break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    heap->items[at] = moved;
    return first;
}

/* ---- graph ---------------------------------------------------------------------------------- */

static int graph_alloc(struct plani_graph *g, const plani_builder *b)
{
    uint64_t n = b->op_count;
    g->in_begin = mem_alloc(n + 1, sizeof *g->in_begin, "plan graph");
    g->chain = mem_alloc(2 * n + 1, sizeof *g->chain, "plan graph");
    g->share_of = mem_alloc(n + 1, sizeof *g->share_of, "plan graph");
    g->lanes = mem_alloc(n + 1, sizeof *g->lanes, "plan graph");
    g->rank = mem_alloc(2 * n + 1, sizeof *g->rank, "plan graph");
    g->from_begin = mem_alloc(n + 2, sizeof *g->from_begin, "plan graph");
    g->to_begin = mem_alloc(n + 2, sizeof *g->to_begin, "plan graph");
    g->tail = mem_alloc(n + 1, sizeof *g->tail, "plan graph");
    if (!g->in_begin || !g->chain || !g->share_of || !g->lanes || !g->rank || !g->from_begin ||
        !g->to_begin || !g->tail)
        return -ENOMEM;
    g->chain_before = g->chain + n;
    g->by_rank = g->rank + n;
    return 0;
}

enum {
    SHARE_SLOTS = 1024, /* a power of 2 */
    /* Ops are large, so that their demands lie far apart. They are asked of memory so many ops
     * ahead. */
    DEMANDS_AHEAD = 8,
    DEMAND_WORDS = sizeof(op_demand) / sizeof(uint64_t),
};
static_assert(sizeof(op_demand) % sizeof(uint64_t) == 0, "demands are hashed by words");

/* Adds what the op asks for, computed. */
static int add_share(struct plani_graph *g, const plani_builder *b, uint64_t op_idx)
{
    if (g->share_count == g->share_capacity) {
        uint64_t wanted = size_max(2 * g->share_capacity, 64);
        void *bigger = mem_resize(g->shares, wanted, sizeof *g->shares, "plan graph");
        if (!bigger)
            return -ENOMEM;
        g->shares = bigger;
        g->share_capacity = wanted;
    }
    plani_demand(&b->job->machine, &b->ops[op_idx].demand, &g->shares[g->share_count]);
    g->share_of[op_idx] = (uint32_t)g->share_count++;
    return 0;
}

/* Finds for each op what it asks for, and computes what no op before it has asked for. */
static int fill_shares(struct plani_graph *g, const plani_builder *b)
{
    uint32_t first_of[SHARE_SLOTS] = {0}; /* 1 + an op that asks for it */
    for (uint64_t i = 0; i < b->op_count; i++) {
        const op_demand *demand = &b->ops[i].demand;
        const op_demand *ahead = &b->ops[size_min(i + DEMANDS_AHEAD, b->op_count - 1)].demand;
        __builtin_prefetch(ahead); /* two lines of the cache */
        __builtin_prefetch(ahead + 1);
        uint64_t words[DEMAND_WORDS];
        memcpy(words, demand, sizeof words);
        uint32_t *first = &first_of[plani_hash_words(words, DEMAND_WORDS) & (SHARE_SLOTS - 1)];
        if (*first > 0 && memcmp(&b->ops[*first - 1].demand, demand, sizeof *demand) == 0) {
            g->share_of[i] = g->share_of[*first - 1];
            continue;
        }
        TRY(add_share(g, b, i));
        *first = (uint32_t)i + 1;
    }
    return 0;
}

static void fill_graph(struct plani_graph *g, const plani_builder *b)
{
    uint64_t edge = 0, before = PROGRAM_NONE;
    for (uint64_t i = 0; i < b->op_count; i++) {
        g->in_begin[i] = edge;
        while (edge < b->edge_count && b->edges[edge].to == i)
            edge++;
        const struct plani_share *share = plani_share_of(g, i);
        g->lanes[i] = b->briefs[i].lane;
        g->lane_count[g->lanes[i]]++;
        g->lane_work[g->lanes[i]] += share->alone_seconds;
        for (int r = 0; r < RESOURCE_COUNT; r++)
            g->work[r] += share->demand[r];
        g->chain[i] = g->chain_before[i] = PROGRAM_NONE;
        if (!b->briefs[i].is_chained)
            continue;
        if (before != PROGRAM_NONE)
            g->chain[before] = (uint32_t)i;
        g->chain_before[i] = (uint32_t)before;
        before = i;
    }
    g->in_begin[b->op_count] = edge;
}

/* Lists the neighbours of each op from all present edges; `begin` has op_count + 2 elements. */
static void link_ops(const plani_builder *b, uint64_t *begin, uint32_t *others, bool by_from)
{
    memset(begin, 0, (b->op_count + 2) * sizeof *begin);
    for (uint64_t e = 0; e < b->edge_count; e++)
        begin[(by_from ? b->edges[e].from : b->edges[e].to) + 2]++;
    for (uint64_t i = 0; i <= b->op_count; i++)
        begin[i + 1] += begin[i];
    for (uint64_t e = 0; e < b->edge_count; e++) {
        const struct plani_edge *edge = &b->edges[e];
        others[begin[(by_from ? edge->from : edge->to) + 1]++] = by_from ? edge->to : edge->from;
    }
}

/* Longest paths from the beginning, as if each lane ran any number of ops at once. Returns the
 * longest path to the end. */
static double fill_heads(const struct plani_graph *g, const plani_builder *b, double *heads)
{
    double longest = 0;
    for (uint64_t i = 0; i < b->op_count; i++) {
        double end = heads[i] + plani_share_of(g, i)->alone_seconds;
        longest = plani_larger(longest, end);
        for (uint64_t e = g->from_begin[i]; e < g->from_begin[i + 1]; e++)
            heads[g->successors[e]] = plani_larger(heads[g->successors[e]], end);
        if (g->chain[i] != PROGRAM_NONE)
            heads[g->chain[i]] = plani_larger(heads[g->chain[i]], end);
    }
    return longest;
}

/* ---- from the end to the beginning ---------------------------------------------------------- */

int plani_rival_lane(const plan_machine *machine, int lane)
{
    switch (lane) {
    case LANE_READ:
        return LANE_WRITE;
    case LANE_WRITE:
        return LANE_READ;
    case LANE_H2D:
        return machine->device_is_cpu ? LANE_D2H : LANE_COUNT;
    case LANE_D2H:
        return machine->device_is_cpu ? LANE_H2D : LANE_COUNT;
    default:
        return LANE_COUNT;
    }
}

/* A line of lanes has the lowest of their numbers. */
static int line_of(const plani_builder *b, int lane)
{
    int rival = plani_rival_lane(&b->job->machine, lane);
    return rival < lane ? rival : lane;
}

static void find_lines(struct plani_graph *g, const plani_builder *b)
{
    uint64_t begin = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        int line = line_of(b, lane), rival = plani_rival_lane(&b->job->machine, lane);
        if (line < lane) {
            g->line_begin[lane] = g->line_begin[line];
            g->line_count[lane] = g->line_count[line];
            continue;
        }
        g->line_begin[lane] = begin;
        g->line_count[lane] = g->lane_count[lane];
        g->line_count[lane] += rival < LANE_COUNT ? g->lane_count[rival] : 0;
        begin += g->line_count[lane];
    }
}

struct backward {
    const struct plani_graph *g;
    int line_of[LANE_COUNT];
    uint32_t *waits;         /* [op_count] what depends on it and is not done */
    double *heads;           /* [op_count] */
    struct heap_item *items; /* [op_count] of all heaps */
    struct heap ready[LANE_COUNT];
    uint32_t running[LANE_COUNT];
    double end[LANE_COUNT];
};

static void make_ready(struct backward *w, uint32_t idx)
{
    heap_push(&w->ready[w->line_of[w->g->lanes[idx]]], (struct heap_item){w->heads[idx], idx});
}

/* The op of tail `after` is done, which depends on this one. */
static void done_one(struct backward *w, uint32_t idx, double after)
{
    w->g->tail[idx] = plani_larger(w->g->tail[idx], after);
    if (--w->waits[idx] == 0)
        make_ready(w, idx);
}

static void run_backward(struct backward *w, uint64_t op_count)
{
    const struct plani_graph *g = w->g;
    uint32_t begun[LANE_COUNT] = {0};
    double now = 0;
    for (int line = 0; line < LANE_COUNT; line++)
        w->running[line] = PROGRAM_NONE;
    for (uint64_t done = 0; done < op_count; done++) {
        int next = -1;
        for (int line = 0; line < LANE_COUNT; line++) {
            if (w->running[line] == PROGRAM_NONE && w->ready[line].count > 0) {
                uint32_t idx = heap_pop(&w->ready[line]);
                w->running[line] = idx;
                w->end[line] = now + plani_share_of(g, idx)->alone_seconds;
                g->by_rank[g->line_begin[line] + begun[line]] = idx;
                g->rank[idx] = begun[line]++;
            }
            if (w->running[line] != PROGRAM_NONE && (next < 0 || w->end[line] < w->end[next]))
                next = line;
        }
        uint32_t idx = w->running[next];
        now = w->end[next];
        w->running[next] = PROGRAM_NONE;
        double tail = g->tail[idx] += plani_share_of(g, idx)->alone_seconds;
        for (uint64_t e = g->to_begin[idx]; e < g->to_begin[idx + 1]; e++)
            done_one(w, g->predecessors[e], tail);
        if (g->chain_before[idx] != PROGRAM_NONE)
            done_one(w, g->chain_before[idx], tail);
    }
}

static int rank_ops(struct plani_graph *g, const plani_builder *b, double enough)
{
    struct backward w = {.g = g};
    w.waits = mem_alloc(b->op_count + 1, sizeof *w.waits, "plan order");
    w.heads = mem_alloc(b->op_count + 1, sizeof *w.heads, "plan order");
    w.items = mem_alloc(b->op_count + 1, sizeof *w.items, "plan order");
    int rc = w.waits && w.heads && w.items ? 0 : -ENOMEM;
    if (rc == 0 && fill_heads(g, b, w.heads) >= enough)
        rc = 1;
    if (rc == 0) {
        memset(g->tail, 0, b->op_count * sizeof *g->tail);
        for (int lane = 0; lane < LANE_COUNT; lane++) {
            w.line_of[lane] = line_of(b, lane);
            w.ready[lane].items = w.items + g->line_begin[lane];
        }
        for (uint64_t i = 0; i < b->op_count; i++) {
            w.waits[i] = (uint32_t)(g->from_begin[i + 1] - g->from_begin[i]);
            w.waits[i] += g->chain[i] != PROGRAM_NONE;
            if (w.waits[i] == 0)
                make_ready(&w, (uint32_t)i);
        }
        run_backward(&w, b->op_count);
    }
    mem_free(w.waits);
    mem_free(w.heads);
    mem_free(w.items);
    return rc;
}

int plani_graph_create(const plani_builder *b, struct plani_graph **out)
{
    struct plani_graph *g = *out = mem_alloc(1, sizeof *g, "plan graph");
    int rc = g ? graph_alloc(g, b) : -ENOMEM;
    if (rc == 0)
        rc = fill_shares(g, b);
    if (rc == 0) {
        fill_graph(g, b);
        find_lines(g, b);
    } else {
        plani_graph_destroy(g);
        *out = NULL;
    }
    return rc;
}

int plani_graph_link(struct plani_graph *g, const plani_builder *b, double enough)
{
    if (b->edge_count + 1 > g->capacity) {
        uint64_t wanted = b->edge_count + b->edge_count / 4 + 1;
        mem_free(g->successors);
        g->capacity = 0;
        g->successors = mem_alloc(2 * wanted, sizeof *g->successors, "plan graph");
        if (!g->successors)
            return -ENOMEM;
        g->capacity = wanted;
    }
    g->predecessors = g->successors + g->capacity;
    link_ops(b, g->from_begin, g->successors, true);
    link_ops(b, g->to_begin, g->predecessors, false);
    return rank_ops(g, b, enough);
}

void plani_graph_destroy(struct plani_graph *g)
{
    if (!g)
        return;
    mem_free(g->in_begin);
    mem_free(g->chain);
    mem_free(g->shares);
    mem_free(g->share_of);
    mem_free(g->lanes);
    mem_free(g->rank);
    mem_free(g->from_begin);
    mem_free(g->to_begin);
    mem_free(g->tail);
    mem_free(g->successors);
    mem_free(g);
}
