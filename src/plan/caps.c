/* Caps on gathered params: how many elements of them may be in device memory, and how many that nothing
 * uses yet; and how many stages may hold theirs from forward to backward.
 *
 *   reserved ---- all-gather ---- first use ---- ... ---- last use
 *   |<-------- ahead ----------->|
 *   |<----------------------- live ------------------------------>|
 *
 * The schedule asks before it reserves memory for such params. What the oldest unfinished op needs is never
 * kept back: all that comes before it in serial order is complete, so that it waits for nothing. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "plan/plan_internal.h"

/* ---- while a program is scheduled ------------------------------------------------------------- */

/* Elements of a buffer of params that an all-gather fills; 0 of all others. */
static uint64_t gathered_elems(const plani_builder *b, uint32_t buffer_idx)
{
    const struct plani_buffer *item = &b->buffers[buffer_idx];
    if (buffer_idx < b->home_count || item->base.state_kind != STATE_PARAMS)
        return 0;
    const op *maker = &b->ops[item->users[0]];
    const operand *target = op_operand(maker, ROLE_TARGET);
    bool is_gathered = maker->kind == OP_ALL_GATHER && target && target->buffer_idx == buffer_idx;
    return is_gathered ? target->size_bytes / b->job->param_bytes : 0;
}

int plani_caps_init(struct plani_caps *caps, const plani_builder *b)
{
    memset(caps, 0, sizeof *caps);
    caps->b = b;
    caps->live_most = b->job->live_elems_max ? b->job->live_elems_max : UINT64_MAX;
    caps->ahead_most = b->job->ahead_elems_max ? b->job->ahead_elems_max : UINT64_MAX;
    bool caps_any = b->job->live_elems_max || b->job->ahead_elems_max;
    if (!caps_any || plani_world(b->job) < 2)
        return 0;
    caps->is_ahead = mem_alloc(b->buffer_count, sizeof *caps->is_ahead, "plan caps");
    return caps->is_ahead ? 0 : -ENOMEM;
}

void plani_caps_fini(struct plani_caps *caps)
{
    mem_free(caps->is_ahead);
    memset(caps, 0, sizeof *caps);
}

bool plani_caps_allow(const struct plani_caps *caps, uint32_t buffer_idx)
{
    uint64_t elems = caps->is_ahead ? gathered_elems(caps->b, buffer_idx) : 0;
    if (elems == 0)
        return true;
    return caps->live_elems + elems <= caps->live_most &&
           caps->ahead_elems + elems <= caps->ahead_most;
}

void plani_caps_take(struct plani_caps *caps, uint32_t buffer_idx)
{
    uint64_t elems = caps->is_ahead ? gathered_elems(caps->b, buffer_idx) : 0;
    if (elems == 0)
        return;
    caps->is_ahead[buffer_idx] = 1;
    caps->live_elems += elems;
    caps->ahead_elems += elems;
}

void plani_caps_start(struct plani_caps *caps, uint32_t op_idx)
{
    const op *item = &caps->b->ops[op_idx];
    for (uint32_t i = 0; caps->is_ahead && i < item->operand_count; i++) {
        uint32_t used = item->operands[i].buffer_idx;
        if (!caps->is_ahead[used] || caps->b->buffers[used].users[0] == op_idx)
            continue;
        caps->is_ahead[used] = 0;
        caps->ahead_elems -= gathered_elems(caps->b, used);
    }
}

void plani_caps_give(struct plani_caps *caps, uint32_t buffer_idx)
{
    uint64_t elems = caps->is_ahead ? gathered_elems(caps->b, buffer_idx) : 0;
    assert(caps->live_elems >= elems);
    caps->live_elems -= elems;
}
