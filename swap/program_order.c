/* Happens-before between ops: exact, and in constant time in all cases but one.
 *
 * The ops of a chain lane are totally ordered. So the ops of that lane that come before a given op
 * are a prefix, and those that come after it are a suffix: one number per lane and op each (a
 * vector clock, forward and backward). A path from a to b through any op w of chain L exists iff
 * earliest[a][L] <= w <= latest[b][L] for some w, that is iff earliest[a][L] <= latest[b][L]. All
 * other paths run over ops of the read and write lanes only. They are short (a write, then the read
 * that takes its space), and a backward search over those dependencies finds them. Memory is 56
 * bytes per op. */
#include "swap/program_internal.h"

#include <errno.h>
#include <string.h>

#include "base/mem.h"

static void merge_latest(uint32_t *into, const uint32_t *from)
{
    for (int lane = 0; lane < SWAPI_CHAIN_LANES; lane++)
        if (from[lane] > into[lane])
            into[lane] = from[lane];
}

static void merge_earliest(uint32_t *into, const uint32_t *from)
{
    for (int lane = 0; lane < SWAPI_CHAIN_LANES; lane++)
        if (from[lane] < into[lane])
            into[lane] = from[lane];
}

/* In issue order: merges what precedes the dependencies and the lane's previous op. */
static void fill_latest(swapi_order *self)
{
    const program *prog = self->prog;
    uint32_t before[LANE_COUNT];
    memset(before, 0xff, sizeof before);
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        uint32_t *row = &self->latest[(uint64_t)i * SWAPI_CHAIN_LANES];
        for (uint32_t k = 0; k < item->dep_count; k++) {
            uint64_t dep = prog->deps[item->dep_begin + k];
            merge_latest(row, &self->latest[dep * SWAPI_CHAIN_LANES]);
        }
        if (!swapi_lane_is_chain(item->lane))
            continue;
        if (before[item->lane] != PROGRAM_NONE)
            merge_latest(row, &self->latest[(uint64_t)before[item->lane] * SWAPI_CHAIN_LANES]);
        before[item->lane] = i;
        row[item->lane - LANE_H2D] = i + 1;
    }
}

/* Against the issue order: an op's followers go to its dependencies and to the lane's previous op.
 * An op's row is final when the walk reaches it. */
static void fill_earliest(swapi_order *self)
{
    const program *prog = self->prog;
    uint32_t after[LANE_COUNT];
    memset(after, 0xff, sizeof after);
    memset(self->earliest, 0xff, prog->op_count * SWAPI_CHAIN_LANES * sizeof *self->earliest);
    for (uint64_t i = prog->op_count; i-- > 0;) {
        const op *item = &prog->ops[i];
        uint32_t *row = &self->earliest[i * SWAPI_CHAIN_LANES];
        if (swapi_lane_is_chain(item->lane)) {
            if (after[item->lane] != PROGRAM_NONE)
                merge_earliest(row,
                               &self->earliest[(uint64_t)after[item->lane] * SWAPI_CHAIN_LANES]);
            after[item->lane] = (uint32_t)i;
            row[item->lane - LANE_H2D] = (uint32_t)i;
        }
        for (uint32_t k = 0; k < item->dep_count; k++) {
            uint64_t dep = prog->deps[item->dep_begin + k];
            merge_earliest(&self->earliest[dep * SWAPI_CHAIN_LANES], row);
        }
    }
}

int swapi_order_init(swapi_order *self, const program *prog)
{
    uint64_t row_bytes = SWAPI_CHAIN_LANES * sizeof *self->latest;
    memset(self, 0, sizeof *self);
    self->prog = prog;
    self->latest = mem_alloc(prog->op_count, row_bytes, "program order");
    self->earliest = mem_alloc(prog->op_count, row_bytes, "program order");
    self->seen = mem_alloc(prog->op_count, sizeof *self->seen, "program order");
    self->stack = mem_alloc(prog->op_count, sizeof *self->stack, "program order");
    if (!self->latest || !self->earliest || !self->seen || !self->stack) {
        swapi_order_fini(self);
        return err_prefix(-ENOMEM, "checking a program of %llu ops",
                          (unsigned long long)prog->op_count);
    }
    fill_latest(self);
    fill_earliest(self);
    return 0;
}

void swapi_order_fini(swapi_order *self)
{
    mem_free(self->latest);
    mem_free(self->earliest);
    mem_free(self->seen);
    mem_free(self->stack);
    memset(self, 0, sizeof *self);
}

/* True if there is a path over read and write ops only. Searches backward from `second`, never
 * below `first`. */
static bool path_off_chains(swapi_order *self, uint32_t first, uint32_t second)
{
    const program *prog = self->prog;
    if (++self->stamp == 0) {
        memset(self->seen, 0, prog->op_count * sizeof *self->seen);
        self->stamp = 1;
    }
    uint64_t depth = 0;
    self->stack[depth++] = second;
    while (depth > 0) {
        const op *item = &prog->ops[self->stack[--depth]];
        for (uint32_t k = 0; k < item->dep_count; k++) {
            uint32_t dep = prog->deps[item->dep_begin + k];
            if (dep == first)
                return true;
            if (dep < first || swapi_lane_is_chain(prog->ops[dep].lane) ||
                self->seen[dep] == self->stamp)
                continue;
            self->seen[dep] = self->stamp;
            self->stack[depth++] = dep;
        }
    }
    return false;
}

bool swapi_order_before(swapi_order *self, uint32_t first, uint32_t second)
{
    assert(first < second);
    const uint32_t *after = &self->earliest[(uint64_t)first * SWAPI_CHAIN_LANES];
    const uint32_t *before = &self->latest[(uint64_t)second * SWAPI_CHAIN_LANES];
    for (int lane = 0; lane < SWAPI_CHAIN_LANES; lane++)
        if (before[lane] != 0 && after[lane] < before[lane])
            return true;
    if (swapi_lane_is_chain(self->prog->ops[first].lane) ||
        swapi_lane_is_chain(self->prog->ops[second].lane))
        return false;
    return path_off_chains(self, first, second);
}
