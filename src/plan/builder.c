/* The builder: ops in serial order, with the data dependencies that follow from the bytes they touch.
 * Single-threaded; heap memory, freed by plani_builder_fini. Failures stick in b->error, so that
 * emitting code reads straight. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/plan_internal.h"

/* Grows an array to hold one more element; 0 or -ENOMEM. */
static int grow(void **array, uint64_t count, uint64_t *capacity, size_t elem_bytes,
                const char *tag)
{
    if (count < *capacity)
        return 0;
    uint64_t wanted = *capacity ? *capacity * 2 : 64;
    void *fresh = mem_resize(*array, wanted, elem_bytes, tag);
    if (!fresh)
        return -ENOMEM;
    *array = fresh;
    *capacity = wanted;
    return 0;
}

static int grow32(void **array, uint32_t count, uint32_t *capacity, size_t elem_bytes,
                  const char *tag)
{
    uint64_t wide = *capacity;
    if (count == 0 && *capacity == 0)
        wide = 0;
    TRY(grow(array, count, &wide, elem_bytes, tag));
    *capacity = (uint32_t)wide;
    return 0;
}

int plani_builder_init(plani_builder *b, const plan_job *job, const plan_set *set,
                       const plani_layout *layout, uint32_t held_stages)
{
    memset(b, 0, sizeof *b);
    b->job = job;
    b->set = set;
    b->held_stages = held_stages;
    b->buffer_capacity = layout->count + 64;
    b->buffers = mem_alloc(b->buffer_capacity, sizeof *b->buffers, "plan buffers");
    if (!b->buffers)
        return -ENOMEM;
    for (uint64_t i = 0; i < layout->count; i++) {
        b->buffers[i].base = layout->buffers[i];
        b->buffers[i].residue = layout->residues[i];
    }
    b->buffer_count = b->home_count = layout->count;
    return 0;
}

void plani_builder_fini(plani_builder *b)
{
    for (uint64_t i = 0; i < b->buffer_count; i++) {
        mem_free(b->buffers[i].recent);
        mem_free(b->buffers[i].users);
    }
    mem_free(b->buffers);
    mem_free(b->ops);
    mem_free(b->edges);
    memset(b, 0, sizeof *b);
}

uint32_t plani_transient(plani_builder *b, enum arena_kind arena, uint64_t size_bytes,
                         uint64_t residue, enum state_kind kind, uint32_t unit)
{
    if (b->error < 0)
        return 0;
    b->error = grow((void **)&b->buffers, b->buffer_count, &b->buffer_capacity, sizeof *b->buffers,
                    "plan buffers");
    if (b->error < 0)
        return 0;
    struct plani_buffer *fresh = &b->buffers[b->buffer_count];
    memset(fresh, 0, sizeof *fresh);
    fresh->base.arena = (uint8_t)arena;
    fresh->base.state_kind = (uint8_t)kind;
    fresh->base.unit = unit;
    fresh->base.size_bytes = size_round_up(size_bytes, TILE_BLOCK_BYTES);
    fresh->base.producer = PROGRAM_NONE;
    fresh->base.last_reader = PROGRAM_NONE;
    fresh->residue = residue;
    return (uint32_t)b->buffer_count++;
}

uint32_t plani_op(plani_builder *b, enum op_kind kind, enum lane_kind lane)
{
    if (b->error < 0)
        return 0;
    b->error = grow((void **)&b->ops, b->op_count, &b->op_capacity, sizeof *b->ops, "plan ops");
    if (b->error < 0)
        return 0;
    op *fresh = &b->ops[b->op_count];
    memset(fresh, 0, sizeof *fresh);
    fresh->kind = (uint8_t)kind;
    fresh->lane = (uint8_t)lane;
    fresh->unit = fresh->stage = fresh->micro_batch = fresh->tile = PROGRAM_NONE;
    fresh->state_kind = PROGRAM_NONE;
    return (uint32_t)b->op_count++;
}

static bool lane_is_in_order(uint8_t lane)
{
    return lane != LANE_READ && lane != LANE_WRITE;
}

void plani_depend(plani_builder *b, uint32_t op_idx, uint32_t on_op_idx)
{
    if (b->error < 0 || on_op_idx == PROGRAM_NONE || on_op_idx == op_idx)
        return;
    assert(on_op_idx < op_idx);
    const op *to = &b->ops[op_idx], *from = &b->ops[on_op_idx];
    if (to->lane == from->lane && lane_is_in_order(to->lane))
        return; /* the lane's own order says it */
    for (uint64_t i = b->edge_count; i > 0 && b->edges[i - 1].to == op_idx; i--)
        if (b->edges[i - 1].from == on_op_idx)
            return;
    b->error =
        grow((void **)&b->edges, b->edge_count, &b->edge_capacity, sizeof *b->edges, "plan edges");
    if (b->error < 0)
        return;
    b->edges[b->edge_count].from = on_op_idx;
    b->edges[b->edge_count++].to = op_idx;
}

plani_range plani_whole(const plani_builder *b, uint32_t buffer_idx)
{
    return (plani_range){buffer_idx, 0, b->error < 0 ? 0 : b->buffers[buffer_idx].base.size_bytes};
}

/* Records the access; a write forgets earlier accesses that it covers. */
static void note_access(plani_builder *b, uint32_t op_idx, plani_range range, bool writes)
{
    struct plani_buffer *target = &b->buffers[range.buffer_idx];
    uint64_t begin = range.offset_bytes, end = begin + range.size_bytes;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < target->recent_count; i++) {
        struct plani_access *item = &target->recent[i];
        bool overlaps = item->begin < end && begin < item->end;
        if (overlaps && item->op_idx != op_idx && (writes || item->writes))
            plani_depend(b, op_idx, item->op_idx);
        bool covered = begin <= item->begin && item->end <= end;
        /* A later read on the same in-order lane stands for an earlier one of the same bytes. */
        bool repeated = !writes && !item->writes && covered &&
                        b->ops[item->op_idx].lane == b->ops[op_idx].lane &&
                        lane_is_in_order(b->ops[op_idx].lane);
        if (!(writes && covered) && !repeated)
            target->recent[kept++] = *item;
    }
    target->recent_count = kept;
    b->error = b->error < 0
                   ? b->error
                   : grow32((void **)&target->recent, target->recent_count,
                            &target->recent_capacity, sizeof *target->recent, "plan accesses");
    if (b->error < 0)
        return;
    target->recent[target->recent_count++] =
        (struct plani_access){.op_idx = op_idx, .writes = writes, .begin = begin, .end = end};
}

void plani_use(plani_builder *b, uint32_t op_idx, plani_range range, enum operand_role role,
               enum operand_access access)
{
    if (b->error < 0)
        return;
    op *item = &b->ops[op_idx];
    assert(item->operand_count < OP_OPERANDS_MAX);
    struct plani_buffer *used = &b->buffers[range.buffer_idx];
    assert(range.offset_bytes + range.size_bytes <= used->base.size_bytes);
    item->operands[item->operand_count++] = (operand){.buffer_idx = range.buffer_idx,
                                                      .role = (uint8_t)role,
                                                      .access = (uint8_t)access,
                                                      .offset_bytes = range.offset_bytes,
                                                      .size_bytes = range.size_bytes};
    note_access(b, op_idx, range, (access & ACCESS_WRITE) != 0);
    if (b->error < 0 || range.buffer_idx < b->home_count)
        return;
    if (used->user_count > 0 && used->users[used->user_count - 1] == op_idx)
        return;
    b->error = grow32((void **)&used->users, used->user_count, &used->user_capacity,
                      sizeof *used->users, "plan users");
    if (b->error >= 0)
        used->users[used->user_count++] = op_idx;
}
