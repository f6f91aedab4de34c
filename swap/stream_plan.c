/* See stream_plan.h. Allocates at init only. */
#include "swap/stream_plan.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "swap/executor_internal.h"
#include "swap/program_internal.h"

static_assert(LANE_COUNT <= 8, "a byte has a bit for each lane");

static const char tag[] = "gpu lanes";

/* By which op each op's conditions become known; PROGRAM_NONE: by none. */
struct deciders {
    uint32_t *norms, *routers; /* [op_count] each */
};

/* True if `item` may be skipped at a run in which `before` is not. */
static bool is_decided_apart(const program *prog, const struct deciders *by, uint32_t before,
                             uint32_t item)
{
    const op *a = &prog->ops[before], *b = &prog->ops[item];
    const operand *own = swapi_condition(a), *hit = swapi_condition(b);
    if (hit)
        return !own || own->offset_bytes != hit->offset_bytes ||
               by->routers[before] != by->routers[item];
    if (!b->if_applied && !b->if_commits)
        return false;
    return a->if_applied != b->if_applied || a->if_commits != b->if_commits ||
           by->norms[before] != by->norms[item];
}

/* Marks op `before` if the host waits for it because of op `item`. */
static void mark_reports(stream_plan *self, const bool *serves, const struct deciders *by,
                         uint32_t before, uint32_t item)
{
    const op *ops = self->prog->ops;
    if (serves[ops[before].lane] &&
        (!serves[ops[item].lane] || is_decided_apart(self->prog, by, before, item)))
        self->marks[before] |= STREAM_REPORTS;
}

static void find_reports(stream_plan *self, const bool *serves, const struct deciders *by)
{
    const program *prog = self->prog;
    uint32_t last[LANE_COUNT];
    for (int kind = 0; kind < LANE_COUNT; kind++)
        last[kind] = PROGRAM_NONE;
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        for (uint32_t k = 0; k < item->dep_count; k++)
            mark_reports(self, serves, by, prog->deps[item->dep_begin + k], i);
        if (last[item->lane] != PROGRAM_NONE)
            mark_reports(self, serves, by, last[item->lane], i);
        last[item->lane] = i;
        if (serves[item->lane] && (item->kind == OP_NORM || item->kind == OP_UNITE_HITS))
            self->marks[i] |= STREAM_REPORTS;
        if (swapi_condition(item) && serves[prog->ops[by->routers[i]].lane])
            self->marks[by->routers[i]] |= STREAM_REPORTS;
    }
    for (int kind = 0; kind < LANE_COUNT; kind++)
        if (serves[kind] && last[kind] != PROGRAM_NONE)
            self->marks[last[kind]] |= STREAM_REPORTS;
}

/* For each lane: 1 + the latest op up to which all of the lane's ops are complete when an op
 * starts or, with its own place raised, is complete; 0: none. */
struct known {
    uint32_t until[LANE_COUNT];
};
typedef struct known known;

static void learn(known *self, const known *more)
{
    for (int kind = 0; kind < LANE_COUNT; kind++)
        self->until[kind] = (uint32_t)size_max(self->until[kind], more->until[kind]);
}

/* Decides which streams the op waits for: for the latest dependency on each, from the latest down,
 * unless it is known by then to be complete. A skipped op, too, is complete only after all
 * that it would have waited for, and nothing after it is submitted before. */
static void find_waits_of(stream_plan *self, const bool *serves, uint32_t item, known *all)
{
    const program *prog = self->prog;
    const op *at = &prog->ops[item];
    known *own = &all[item];
    uint32_t latest[LANE_COUNT] = {0};
    for (uint32_t k = 0; k < at->dep_count; k++) {
        uint32_t dep = prog->deps[at->dep_begin + k];
        uint8_t kind = prog->ops[dep].lane;
        if (serves[at->lane] && serves[kind])
            latest[kind] = (uint32_t)size_max(latest[kind], (uint64_t)dep + 1);
        else
            learn(own, &all[dep]); /* submitted when it is complete */
    }
    for (;;) {
        int next = LANE_COUNT;
        for (int kind = 0; kind < LANE_COUNT; kind++)
            if (latest[kind] > own->until[kind] && kind != at->lane &&
                (next == LANE_COUNT || latest[kind] > latest[next]))
                next = kind;
        if (next == LANE_COUNT)
            break;
        self->waits[item] |= (uint8_t)(1u << next);
        self->marks[latest[next] - 1] |= STREAM_ENDS;
        learn(own, &all[latest[next] - 1]);
    }
}

static void find_waits(stream_plan *self, const bool *serves, known *all)
{
    const program *prog = self->prog;
    uint32_t last[LANE_COUNT];
    for (int kind = 0; kind < LANE_COUNT; kind++)
        last[kind] = PROGRAM_NONE;
    for (uint32_t i = 0; i < prog->op_count; i++) {
        uint8_t kind = prog->ops[i].lane;
        bool is_chain = swapi_lane_is_chain(kind);
        if (is_chain && last[kind] != PROGRAM_NONE)
            learn(&all[i], &all[last[kind]]);
        find_waits_of(self, serves, i, all);
        if (is_chain)
            all[i].until[kind] = i + 1;
        last[kind] = i;
    }
}

/* True if the op waits for another stream, or for an op of the host for which no op before it on
 * the compute lane has waited. Those waited for are noted in `seen`. */
static bool begins_segment(const stream_plan *self, const bool *serves, uint32_t item,
                           uint8_t *seen)
{
    const program *prog = self->prog;
    const op *at = &prog->ops[item];
    bool begins = self->waits[item] != 0;
    for (uint32_t k = 0; k < at->dep_count; k++) {
        uint32_t dep = prog->deps[at->dep_begin + k];
        if (serves[prog->ops[dep].lane])
            continue;
        begins |= !seen[dep];
        seen[dep] = 1;
    }
    return begins;
}

static void find_segments(stream_plan *self, const stream_plan_config *config, uint8_t *seen)
{
    const program *prog = self->prog;
    bool is_open = false;
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        self->segment_of[i] = PROGRAM_NONE;
        if (item->lane != LANE_COMPUTE)
            continue;
        bool begins = begins_segment(self, config->serves, i, seen);
        if (item->if_applied || item->if_commits || !config->may_replay ||
            !config->may_replay(config->user, prog, item)) {
            is_open = false;
            continue;
        }
        if (!is_open || begins || config->only_single)
            self->segments[self->segment_count++] = (stream_segment){.first_op = i};
        self->segment_of[i] = self->segment_count - 1;
        self->segments[self->segment_count - 1].op_count++;
        is_open = self->marks[i] == 0;
    }
}

int stream_plan_init(stream_plan *self, const program *prog, const stream_plan_config *config)
{
    *self = (stream_plan){.prog = prog};
    self->marks = mem_alloc(prog->op_count, sizeof *self->marks, tag);
    self->waits = mem_alloc(prog->op_count, sizeof *self->waits, tag);
    self->segment_of = mem_alloc(prog->op_count, sizeof *self->segment_of, tag);
    self->segments = mem_alloc(prog->op_count, sizeof *self->segments, tag);
    struct deciders by = {mem_alloc(prog->op_count, sizeof *by.norms, tag),
                          mem_alloc(prog->op_count, sizeof *by.routers, tag)};
    known *all = mem_alloc(prog->op_count, sizeof *all, tag);
    uint8_t *seen = mem_alloc(prog->op_count, sizeof *seen, tag);
    bool has_all = self->marks && self->waits && self->segment_of && self->segments && by.norms &&
                   by.routers && all && seen && swapi_find_hits(prog, by.routers) == 0;
    if (has_all) {
        swapi_find_norms(prog, by.norms);
        find_reports(self, config->serves, &by);
        find_waits(self, config->serves, all);
        find_segments(self, config, seen);
    }
    mem_free(by.norms);
    mem_free(by.routers);
    mem_free(all);
    mem_free(seen);
    if (!has_all)
        stream_plan_fini(self);
    return has_all ? 0 : -ENOMEM;
}

void stream_plan_fini(stream_plan *self)
{
    mem_free(self->marks);
    mem_free(self->waits);
    mem_free(self->segment_of);
    mem_free(self->segments);
    *self = (stream_plan){0};
}

bool stream_must_report(uint8_t marks, uint32_t unreported_count, uint32_t depth)
{
    return (marks & STREAM_REPORTS) || unreported_count + 1 >= depth / 2;
}

void stream_plan_count(const stream_plan *self, const bool *serves, uint32_t depth, bool is_timed,
                       stream_calls *calls)
{
    const program *prog = self->prog;
    uint32_t unreported[LANE_COUNT] = {0};
    memset(calls, 0, sizeof *calls);
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (!serves[item->lane])
            continue;
        uint32_t segment = self->segment_of[i];
        if (segment != PROGRAM_NONE)
            calls->graph_launches += self->segments[segment].first_op == i;
        bool reports = stream_must_report(self->marks[i], unreported[item->lane], depth);
        unreported[item->lane] = reports ? 0 : unreported[item->lane] + 1;
        calls->records += is_timed ? 2 : reports || (self->marks[i] & STREAM_ENDS);
        for (uint8_t left = self->waits[i]; left != 0; left &= (uint8_t)(left - 1))
            calls->waits++;
        calls->waits += reports;
        calls->host_functions += reports;
    }
}
