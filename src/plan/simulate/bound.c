/* How short a program can be at best: three lower bounds of its simulated time.
 *
 *   phases     The program is cut at its global barriers (the norm is one) into phases. The bound
 *              is the sum over the phases of the busiest resource's work, of the ops that must run
 *              in that phase; or the busiest resource's work as a whole, where that is more. An op
 *              that no dependency puts into one phase, such as the read of a tile for an update
 *              after the norm, may run in any: splitting it in the best way gives the larger sum.
 *   trial      As phases, and counts what an op costs beside its bytes, and that a lane runs one
 *              op at a time.
 *   schedule   As trial, with many more cuts.
 *
 * Cuts. Computing is done in serial order, so the compute lane's ops form a chain. An op that has
 * cut i among its ancestors and cut j among its descendants runs between the two:
 *
 *   c1 ------- c2 ------- c3 ------- c4           lo(x): the last cut that x must follow (here 1)
 *         \___ x ________/                        hi(x): the first cut that must follow x (here 3)
 *
 * For all i < j, and S the ops with lo >= i and hi <= j, cut j starts no earlier than the sum of
 *
 *   the least start of S
 *   the work of S on a resource, or on a lane
 *   the least path from the end of one op of S to cut j
 *
 * because a resource does one second's work a second, and a lane one op at a time. Along each
 * dependency an op starts after the end of the op before it. Neither memory nor the order on other
 * lanes counts: no order of these ops on this machine is faster. Time is linear in ops and
 * dependencies and quadratic in cuts. Heap scratch, freed on return. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "plan/simulate/simulate_internal.h"

enum {
    CUTS_MOST = 192,
    WORKS = RESOURCE_COUNT + LANE_COUNT, /* seconds of resources, then of lanes */
};

/* Ops between two cuts. */
struct between {
    double work[WORKS];
    double start[WORKS]; /* least, of those that have such work */
    double tail[WORKS];  /* least path from the end of one to the later cut */
};

struct bounding {
    const plani_builder *b;
    bool commits; /* ops of runs that commit count */
    bool phases;  /* barriers are the only cuts */
    int works;    /* how many of WORKS count */
    uint32_t cut_count;
    uint32_t *cut_of;             /* [op_count] 1 + index of the cut, 0: none */
    uint32_t *lo, *hi;            /* [op_count] cut_count + 1: no later cut */
    double *alone, *start, *tail; /* [op_count] seconds */
    uint32_t *by_hi, *hi_begin;   /* ops by hi; [cut_count + 3] */
    struct between *sums;         /* [cut_count + 1] by i: of the j that is looked at */
    double *cut_end;              /* [cut_count + 1] 0: the start of the program */
};

static bool counts(const struct bounding *w, uint64_t idx)
{
    return w->commits || !w->b->briefs[idx].if_commits;
}

/* Chooses the cuts: barriers, and other ops of the chain, evenly spaced. */
static void choose_cuts(struct bounding *w)
{
    const plani_builder *b = w->b;
    uint64_t chained = 0, seen = 0;
    for (uint64_t i = 0; i < b->op_count; i++)
        chained += b->briefs[i].is_chained;
    uint64_t every = size_max(size_div_up(chained, CUTS_MOST - 2), 1);
    for (uint64_t i = 0; i < b->op_count; i++) {
        if (!b->briefs[i].is_chained)
            continue;
        bool is_spaced = !w->phases && seen++ % every == 0;
        if (b->briefs[i].kind == OP_NORM || is_spaced)
            w->cut_of[i] = ++w->cut_count;
    }
}

/* Follows one dependency, seen from the op that waits. */
static void follow(struct bounding *w, uint64_t to, uint64_t from)
{
    if (!counts(w, from))
        return;
    w->lo[to] = (uint32_t)size_max(w->lo[to], w->cut_of[from] ? w->cut_of[from] : w->lo[from]);
    w->start[to] = plani_larger(w->start[to], w->start[from] + w->alone[from]);
}

/* Follows the same dependency, seen from the op that is waited for. */
static void lead(struct bounding *w, uint64_t from, uint64_t to)
{
    if (!counts(w, from) || !counts(w, to))
        return;
    uint32_t hi = w->cut_of[to] ? w->cut_of[to] : w->hi[to];
    double tail = w->cut_of[to] ? 0 : w->alone[to] + w->tail[to];
    if (hi < w->hi[from])
        w->tail[from] = tail;
    else if (hi == w->hi[from])
        w->tail[from] = plani_larger(w->tail[from], tail);
    w->hi[from] = (uint32_t)size_min(w->hi[from], hi);
}

/* From the last op to the first: hi and tail; then ops by hi. */
static void walk_back(struct bounding *w)
{
    const plani_builder *b = w->b;
    uint64_t edge = b->edge_count;
    uint64_t after = PROGRAM_NONE;
    for (uint64_t i = 0; i < b->op_count; i++)
        w->hi[i] = w->cut_count + 1;
    for (uint64_t i = b->op_count; i-- > 0;) {
        if (b->briefs[i].is_chained) { /* the next of the chain is known already */
            if (after != PROGRAM_NONE)
                lead(w, i, after);
            after = i;
        }
        while (edge > 0 && b->edges[edge - 1].to == i)
            lead(w, b->edges[--edge].from, i);
    }
    for (uint64_t i = 0; i < b->op_count; i++)
        w->hi_begin[w->hi[i] + 1]++;
    for (uint32_t j = 0; j <= w->cut_count + 1; j++)
        w->hi_begin[j + 1] += w->hi_begin[j];
    for (uint64_t i = b->op_count; i-- > 0;) /* begins move to the ends and come back */
        w->by_hi[--w->hi_begin[w->hi[i] + 1]] = (uint32_t)i;
    memmove(w->hi_begin, w->hi_begin + 1, (w->cut_count + 2) * sizeof *w->hi_begin);
    w->hi_begin[w->cut_count + 2] = (uint32_t)b->op_count;
}

static void add_work(const struct bounding *w, struct between *sum, uint32_t idx)
{
    const int lane = w->b->graph->lanes[idx];
    const struct plani_share *share = plani_share_of(w->b->graph, idx);
    for (int r = 0; r < w->works; r++) {
        double seconds = r < RESOURCE_COUNT           ? share->demand[r]
                         : r - RESOURCE_COUNT == lane ? share->alone_seconds
                                                      : 0;
        if (seconds <= 0)
            continue;
        sum->work[r] += seconds;
        sum->start[r] = plani_smaller(sum->start[r], w->start[idx]);
        sum->tail[r] = plani_smaller(sum->tail[r], w->tail[idx]);
    }
}

static void clear(const struct bounding *w, struct between *sum)
{
    for (int r = 0; r < w->works; r++) {
        sum->work[r] = 0;
        sum->start[r] = sum->tail[r] = INFINITY;
    }
}

static void join(const struct bounding *w, struct between *sum, const struct between *more)
{
    for (int r = 0; r < w->works; r++) {
        sum->work[r] += more->work[r];
        sum->start[r] = plani_smaller(sum->start[r], more->start[r]);
        sum->tail[r] = plani_smaller(sum->tail[r], more->tail[r]);
    }
}

/* The least start of cut j (of the end of the program, for cut_count + 1), whose ancestors' starts
 * are known. `last_alone` is the time of the cut before j, which the ancestors of that lead
 * through. */
static double cut_start(struct bounding *w, uint32_t j, double last_alone, struct between *column)
{
    double least = 0;
    for (uint32_t i = 0; i < j; i++)
        clear(w, &column[i]);
    for (uint32_t k = w->hi_begin[j]; k < w->hi_begin[j + 1]; k++)
        if (counts(w, w->by_hi[k]))
            add_work(w, &column[w->lo[w->by_hi[k]]], w->by_hi[k]);
    if (j > 0)
        clear(w, &w->sums[j - 1]);
    for (uint32_t i = j; i-- > 0;) {
        if (i + 1 < j)
            join(w, &column[i], &column[i + 1]);
        struct between *sum = &w->sums[i];
        for (int r = 0; r < w->works; r++)
            if (sum->work[r] > 0)
                sum->tail[r] = last_alone;
        join(w, sum, &column[i]);
        for (int r = 0; r < w->works; r++)
            if (sum->work[r] > 0)
                least = plani_larger(least, sum->start[r] + sum->work[r] + sum->tail[r]);
        least = plani_larger(least, w->cut_end[i]);
    }
    return least;
}

/* The least start of an op whose ancestors' starts are known: the work of all of them comes
 * before. The commit has nearly all transfers of state among them and is in no chain. `marks` is
 * scratch of zeros. */
static double start_behind_ancestors(const struct bounding *w, uint64_t idx, uint8_t *marks)
{
    const plani_builder *b = w->b;
    struct between all;
    uint64_t edge = b->edge_count;
    uint64_t after = PROGRAM_NONE;
    double least = 0;
    clear(w, &all);
    marks[idx] = 1;
    while (edge > 0 && b->edges[edge - 1].to > idx)
        edge--;
    for (uint64_t i = idx + 1; i-- > 0;) {
        if (b->briefs[i].is_chained) {
            marks[i] |= after != PROGRAM_NONE && marks[after];
            after = i;
        }
        for (; edge > 0 && b->edges[edge - 1].to == i; edge--)
            marks[b->edges[edge - 1].from] |= marks[i];
        if (marks[i] && i != idx && counts(w, i))
            add_work(w, &all, (uint32_t)i);
    }
    for (int r = 0; r < w->works; r++)
        if (all.work[r] > 0)
            least = plani_larger(least, all.start[r] + all.work[r]);
    return least;
}

/* From the first op to the last: lo and start; returns the end of the program. */
static double walk_on(struct bounding *w, struct between *column, uint8_t *marks)
{
    const plani_builder *b = w->b;
    uint64_t edge = 0, before = PROGRAM_NONE;
    double last_alone = 0, end = 0;
    for (uint64_t i = 0; i < b->op_count; i++) {
        for (; edge < b->edge_count && b->edges[edge].to == i; edge++)
            follow(w, i, b->edges[edge].from);
        if (b->briefs[i].is_chained) {
            if (before != PROGRAM_NONE)
                follow(w, i, before);
            before = i;
        }
        uint32_t cut = w->cut_of[i];
        if (cut) {
            w->start[i] = plani_larger(w->start[i], cut_start(w, cut, last_alone, column));
            last_alone = w->alone[i];
            w->cut_end[cut] = w->start[i] + w->alone[i];
        }
        w->start[i] = plani_larger(w->start[i], w->cut_end[w->lo[i]]);
        if (!w->phases && b->briefs[i].kind == OP_COMMIT && counts(w, i))
            w->start[i] = plani_larger(w->start[i], start_behind_ancestors(w, i, marks));
        if (counts(w, i))
            end = plani_larger(end, w->start[i] + w->alone[i]);
    }
    return plani_larger(end, cut_start(w, w->cut_count + 1, last_alone, column));
}

static int bound_alloc(struct bounding *w, struct between **column)
{
    uint64_t n = w->b->op_count;
    w->cut_of = mem_alloc(3 * n + 1, sizeof *w->cut_of, "plan bound"); /* zeros */
    w->alone = mem_alloc(3 * n + 1, sizeof *w->alone, "plan bound");
    if (!w->cut_of || !w->alone)
        return -ENOMEM;
    w->lo = w->cut_of + n;
    w->hi = w->lo + n;
    w->start = w->alone + n;
    w->tail = w->start + n;
    choose_cuts(w);
    uint64_t cuts = w->cut_count;
    w->by_hi = mem_alloc(n + cuts + 4, sizeof *w->by_hi, "plan bound");
    w->sums = mem_alloc(2 * (cuts + 2), sizeof *w->sums, "plan bound");
    w->cut_end = mem_alloc(cuts + 2, sizeof *w->cut_end, "plan bound");
    if (!w->by_hi || !w->sums || !w->cut_end)
        return -ENOMEM;
    w->hi_begin = w->by_hi + n;
    *column = w->sums + cuts + 2;
    return 0;
}

static int bound_of(const plani_builder *b, bool commits, bool phases, bool fixed,
                    uint64_t *bound_ns)
{
    struct bounding w = {
        .b = b, .commits = commits, .phases = phases, .works = fixed ? WORKS : RESOURCE_COUNT};
    struct between *column = NULL;
    assert(b->graph);
    int rc = bound_alloc(&w, &column);
    if (rc == 0) {
        for (uint64_t i = 0; i < b->op_count && fixed; i++)
            w.alone[i] = plani_share_of(b->graph, i)->alone_seconds;
        uint8_t *marks = mem_alloc(b->op_count + 1, sizeof *marks, "plan bound");
        rc = marks ? 0 : -ENOMEM;
        if (marks) {
            walk_back(&w);
            *bound_ns = (uint64_t)llround(walk_on(&w, column, marks) * 1e9);
        }
        mem_free(marks);
    }
    mem_free(w.cut_of);
    mem_free(w.alone);
    mem_free(w.by_hi);
    mem_free(w.sums);
    mem_free(w.cut_end);
    return rc;
}

int plani_phases_bound(const plani_builder *b, bool commits, uint64_t *ns)
{
    return bound_of(b, commits, true, false, ns);
}

int plani_schedule_bound(const plani_builder *b, bool commits, uint64_t *ns)
{
    return bound_of(b, commits, false, true, ns);
}

int plani_trial_bound(const plani_builder *b, bool commits, uint64_t *ns)
{
    return bound_of(b, commits, true, true, ns);
}
