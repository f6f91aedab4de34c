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

/* ---- held stages ------------------------------------------------------------------------------ */

/* Whether a pass before this one, of the stage's phase, uses the unit as well. */
static bool is_seen(const plan_stage *stage, enum phase phase, uint32_t pass_idx, uint32_t unit)
{
    for (uint32_t p = 0; p < pass_idx; p++)
        for (uint32_t i = 0; i < stage->passes[phase][p].unit_count; i++)
            if (stage->passes[phase][p].units[i] == unit)
                return true;
    return false;
}

/* Elements of the units of a stage's backward; or of those alone whose params are gathered. */
static uint64_t stage_elems(const plan_job *job, uint32_t s, bool gathered_only)
{
    const plan_stage *stage = &job->stages[s];
    uint64_t elems = 0;
    for (uint32_t p = 0; p < stage->pass_count[PHASE_BACKWARD]; p++) {
        const plan_pass *pass = &stage->passes[PHASE_BACKWARD][p];
        for (uint32_t i = 0; i < pass->unit_count; i++)
            if ((!gathered_only || plan_is_sharded(job, STATE_PARAMS, pass->units[i])) &&
                !is_seen(stage, PHASE_BACKWARD, p, pass->units[i]))
                elems += plani_whole_elems(job, pass->units[i]);
    }
    return elems;
}

uint32_t plani_held_most(const plan_job *job)
{
    if (job->only_eval || plani_has_cut_stage(job))
        return 0; /* units that were cut as the device is too small for them are not held on it */
    uint32_t most = 0; /* those before the head that are used again */
    for (uint32_t s = 0; s + 1 < job->stage_count; s++)
        most += plani_goes_back(job, s);
    if (plani_world(job) < 2 || job->zero_stage < 3)
        return most;
    uint64_t reuse_most = job->limits_reuse ? job->reuse_elems_max : UINT64_MAX;
    uint64_t live_most = job->live_elems_max ? job->live_elems_max : UINT64_MAX;
    uint32_t head = job->stage_count - 1;
    uint64_t distance = stage_elems(job, head, false), live = stage_elems(job, head, true);
    for (uint32_t held = 0; held < most; held++) {
        uint32_t s = head - 1 - held;
        live += stage_elems(job, s, true);
        if (distance > reuse_most || live > live_most)
            return held;
        distance += 2 * stage_elems(job, s, false);
    }
    return most;
}
