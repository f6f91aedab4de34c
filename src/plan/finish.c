/* From a finished simulation to a program: ops in the order of their simulated starts, each with its
 * dependencies, its predictions, and the producer and last reader of each buffer. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "plan/simulation.h"

static int compare_by_start(const void *left, const void *right, void *context)
{
    const struct plani_sim_op *ops = context;
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

static void fill_buffers(const struct plani_sim *s, program *out)
{
    for (uint64_t i = 0; i < out->buffer_count; i++)
        out->buffers[i] = s->b->buffers[i].base;
    for (uint64_t i = 0; i < out->op_count; i++) {
        const op *item = &out->ops[i];
        for (uint32_t j = 0; j < item->operand_count; j++) {
            buffer *used = &out->buffers[item->operands[j].buffer_idx];
            if (used->is_home)
                continue;
            if (used->producer == PROGRAM_NONE)
                used->producer = (uint32_t)i;
            used->last_reader = (uint32_t)i;
        }
    }
}

int plani_fill_program(const struct plani_sim *s, program *out)
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
        item->predicted_start_ns = (uint64_t)llround(s->ops[order[i]].start * 1e9);
        item->predicted_end_ns = (uint64_t)llround(s->ops[order[i]].end * 1e9);
        out->lane_bytes[item->lane] += op_moved_bytes(item);
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
