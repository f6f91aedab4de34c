/* Caps on gathered params: how many are on the device (stage3_max_live_parameters), and how many of
 * them nothing uses yet (stage3_prefetch_bucket_size).
 *
 * A gather asks before it starts. The gather for the oldest unfinished op is never kept back: all
 * that comes before it in serial order is complete, so it waits for nothing (simulate.c). */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "plan/simulate/simulate_internal.h"

/* Elements of a buffer of params that an all-gather fills; 0 for all other buffers. */
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
    caps->uses_left = mem_alloc(b->buffer_count + 1, sizeof *caps->uses_left, "plan caps");
    if (!caps->is_ahead || !caps->uses_left)
        return -ENOMEM;
    for (uint64_t i = b->home_count; i < b->buffer_count; i++)
        caps->uses_left[i] = b->buffers[i].user_count;
    return 0;
}

void plani_caps_fini(struct plani_caps *caps)
{
    mem_free(caps->is_ahead);
    mem_free(caps->uses_left);
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

void plani_caps_complete(struct plani_caps *caps, uint32_t op_idx)
{
    const plani_builder *b = caps->b;
    const op *item = &b->ops[op_idx];
    for (uint32_t i = 0; caps->is_ahead && i < item->operand_count; i++) {
        uint32_t used = item->operands[i].buffer_idx;
        bool repeated = used < b->home_count;
        for (uint32_t j = 0; j < i; j++)
            repeated = repeated || item->operands[j].buffer_idx == used;
        if (repeated || --caps->uses_left[used] > 0)
            continue;
        uint64_t elems = gathered_elems(b, used);
        assert(caps->live_elems >= elems);
        caps->live_elems -= elems;
    }
}
