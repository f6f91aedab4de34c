/* The seven programs in serial order.
 *
 * Training, layer-major: all micro-batches of the step pass a stage before the next stage's params are
 * fetched, in both directions. Head (the last stage) is the turn: its one op per micro-batch does
 * forward, loss and backward. The `held_stages` before it keep params and inputs from forward to
 * backward; the others release them and fetch again. */
#include <assert.h>
#include <errno.h>

#include "base/mem.h"
#include "plan/plan_internal.h"

/* Device buffers that outlive the emission of one stage. */
struct step_state {
    uint32_t *params;      /* [stage_count] kept for the backward, or PROGRAM_NONE */
    uint32_t *inputs;      /* [stage_count * micro_batches] on the device now, or PROGRAM_NONE */
    uint32_t *input_grads; /* [stage_count * micro_batches] */
    uint32_t *grads;       /* [unit_count] open fp32 accumulators, or PROGRAM_NONE */
};

static uint64_t slot(const plani_builder *b, uint32_t stage, uint32_t mb)
{
    return (uint64_t)stage * b->job->micro_batch_count + mb;
}

static bool is_held(const plani_builder *b, uint32_t stage)
{
    return stage + b->held_stages + 1 >= b->job->stage_count;
}

static void use_if(plani_builder *b, uint32_t idx, uint32_t buffer_idx, enum operand_role role,
                   enum operand_access access)
{
    if (buffer_idx != PROGRAM_NONE)
        plani_use(b, idx, plani_whole(b, buffer_idx), role, access);
}

static uint32_t device_scratch(plani_builder *b, uint64_t bytes, enum state_kind kind,
                               uint32_t unit)
{
    return plani_transient(b, ARENA_DEVICE, bytes, PLANI_ANY, kind, unit);
}

/* A compute op of a stage with the operands that every stage has. */
static uint32_t stage_op(plani_builder *b, enum op_kind kind, uint32_t stage, uint32_t mb)
{
    uint32_t idx = plani_op(b, kind, LANE_COMPUTE);
    if (b->error < 0)
        return idx;
    const plan_stage *s = &b->job->stages[stage];
    op *item = &b->ops[idx];
    item->unit = s->units[0];
    item->stage = stage;
    item->micro_batch = mb;
    bool forward = kind == OP_FORWARD;
    item->demand.device_flops = forward ? s->forward_flops : s->backward_flops;
    item->demand.dram_bytes = forward ? s->forward_dram_bytes : s->backward_dram_bytes;
    use_if(b, idx, b->set->homes.workspace, ROLE_WORKSPACE, ACCESS_WRITE);
    use_if(b, idx, b->set->homes.constants, ROLE_CONSTANTS, ACCESS_READ);
    use_if(b, idx, b->set->homes.tokens_device, ROLE_TOKENS, ACCESS_READ);
    return idx;
}

static void bring_tokens(plani_builder *b)
{
    plani_transfer(b, plani_whole(b, b->set->homes.tokens_host),
                   plani_whole(b, b->set->homes.tokens_device), STATE_KIND_COUNT, PROGRAM_NONE,
                   PROGRAM_NONE, PROGRAM_NONE);
}

static void bring_losses_back(plani_builder *b)
{
    plani_transfer(b, plani_whole(b, b->set->homes.losses_device),
                   plani_whole(b, b->set->homes.losses_host), STATE_KIND_COUNT, PROGRAM_NONE,
                   PROGRAM_NONE, PROGRAM_NONE);
}

/* Params of a unit on the device; first updated by the step before where one is pending. */
static uint32_t unit_params(plani_builder *b, uint32_t unit, bool update)
{
    if (!update)
        return plani_fetch_params(b, unit);
    uint32_t device = plani_device_params(b, unit);
    plani_unit_work(b, unit, PLANI_WORK_UPDATE, device, PROGRAM_NONE);
    return device;
}

/* Forward of a stage before the head, all micro-batches. */
static void stage_forward(plani_builder *b, struct step_state *st, uint32_t s, bool update,
                          bool keep)
{
    const plan_job *job = b->job;
    uint32_t unit = job->stages[s].units[0];
    uint32_t head = job->stage_count - 1;
    uint32_t params = unit_params(b, unit, update);
    st->params[s] = params;
    for (uint32_t mb = 0; mb < job->micro_batch_count && b->error >= 0; mb++) {
        uint32_t home = b->set->homes.activations[slot(b, s + 1, mb)];
        bool rests = keep && home != PROGRAM_NONE;
        bool on_device = rests && b->buffers[home].base.arena == ARENA_DEVICE;
        uint32_t output = on_device ? home
                                    : device_scratch(b, job->boundary_bytes, STATE_ACTIVATIONS,
                                                     job->stages[s + 1].units[0]);
        uint32_t idx = stage_op(b, OP_FORWARD, s, mb);
        use_if(b, idx, params, ROLE_PARAMS0, ACCESS_READ);
        if (job->stages[s].has_input)
            use_if(b, idx, st->inputs[slot(b, s, mb)], ROLE_INPUT, ACCESS_READ);
        use_if(b, idx, output, ROLE_OUTPUT, ACCESS_WRITE);
        st->inputs[slot(b, s + 1, mb)] = output;
        if (rests && !on_device && s + 1 != head && !is_held(b, s + 1))
            plani_transfer(b, plani_whole(b, output), plani_whole(b, home), STATE_ACTIVATIONS,
                           job->stages[s + 1].units[0], PROGRAM_NONE, mb);
    }
}

/* Params of the head's units: its own, and the tied embedding's, kept since stage 0 when all stages
 * are held, else fetched again. */
static void head_params(plani_builder *b, struct step_state *st, bool update, uint32_t params[2])
{
    const plan_stage *head = &b->job->stages[b->job->stage_count - 1];
    params[0] = unit_params(b, head->units[0], update);
    params[1] = PROGRAM_NONE;
    if (head->unit_count < 2)
        return;
    assert(b->job->stages[0].units[0] == head->units[1]);
    params[1] = is_held(b, 0) ? st->params[0] : plani_fetch_params(b, head->units[1]);
}

static void head_forward(plani_builder *b, struct step_state *st)
{
    uint32_t s = b->job->stage_count - 1, params[2];
    head_params(b, st, false, params);
    for (uint32_t mb = 0; mb < b->job->micro_batch_count; mb++) {
        uint32_t idx = stage_op(b, OP_FORWARD, s, mb);
        use_if(b, idx, params[0], ROLE_PARAMS0, ACCESS_READ);
        use_if(b, idx, params[1], ROLE_PARAMS1, ACCESS_READ);
        use_if(b, idx, st->inputs[slot(b, s, mb)], ROLE_INPUT, ACCESS_READ);
        uint64_t part = b->job->losses_bytes / b->job->micro_batch_count;
        plani_use(b, idx, (plani_range){b->set->homes.losses_device, mb * part, part}, ROLE_LOSSES,
                  ACCESS_WRITE);
    }
    bring_losses_back(b);
}

/* The accumulator of a unit; *fresh tells that its first writer must zero it. */
static uint32_t open_grads(plani_builder *b, struct step_state *st, uint32_t unit, bool *fresh)
{
    *fresh = st->grads[unit] == PROGRAM_NONE;
    if (*fresh)
        st->grads[unit] = device_scratch(b, b->job->unit_elems[unit] * 4, STATE_GRADS, unit);
    return st->grads[unit];
}

/* Backward of any stage, all micro-batches; closes the gradient of its own unit. */
static void stage_backward(plani_builder *b, struct step_state *st, uint32_t s,
                           const uint32_t params[2])
{
    const plan_job *job = b->job;
    const plan_stage *stage = &job->stages[s];
    bool is_head = s + 1 == job->stage_count, fresh[2] = {false, false};
    uint32_t grads[2] = {PROGRAM_NONE, PROGRAM_NONE};
    for (uint32_t i = 0; i < stage->unit_count; i++)
        grads[i] = open_grads(b, st, stage->units[i], &fresh[i]);
    for (uint32_t mb = 0; mb < job->micro_batch_count && b->error >= 0; mb++) {
        uint32_t home = b->set->homes.activations[slot(b, s, mb)];
        uint32_t input = stage->has_input ? st->inputs[slot(b, s, mb)] : PROGRAM_NONE;
        if (stage->has_input && !is_head && !is_held(b, s) && input != home) {
            input = device_scratch(b, job->boundary_bytes, STATE_ACTIVATIONS, stage->units[0]);
            plani_transfer(b, plani_whole(b, home), plani_whole(b, input), STATE_ACTIVATIONS,
                           stage->units[0], PROGRAM_NONE, mb);
        }
        uint32_t idx = stage_op(b, OP_BACKWARD, s, mb);
        if (b->error < 0)
            return;
        if (mb == 0)
            b->ops[idx].first_micro_batch = (uint8_t)((fresh[0] ? 1 : 0) | (fresh[1] ? 2 : 0));
        use_if(b, idx, params[0], ROLE_PARAMS0, ACCESS_READ);
        use_if(b, idx, params[1], ROLE_PARAMS1, ACCESS_READ);
        for (uint32_t i = 0; i < stage->unit_count; i++)
            use_if(b, idx, grads[i], i == 0 ? ROLE_GRADS0 : ROLE_GRADS1,
                   mb == 0 && fresh[i] ? ACCESS_WRITE : ACCESS_UPDATE);
        use_if(b, idx, input, ROLE_INPUT, ACCESS_READ);
        if (stage->has_output)
            use_if(b, idx, st->input_grads[slot(b, s + 1, mb)], ROLE_OUTPUT_GRAD, ACCESS_READ);
        if (stage->has_input) {
            uint32_t fresh_grad =
                device_scratch(b, job->boundary_bytes, STATE_ACTIVATIONS, stage->units[0]);
            use_if(b, idx, fresh_grad, ROLE_INPUT_GRAD, ACCESS_WRITE);
            st->input_grads[slot(b, s, mb)] = fresh_grad;
        }
        if (is_head) {
            uint64_t part = job->losses_bytes / job->micro_batch_count;
            plani_use(b, idx, (plani_range){b->set->homes.losses_device, mb * part, part},
                      ROLE_LOSSES, ACCESS_WRITE);
        }
    }
    plani_close_grads(b, stage->units[0], grads[0]);
}

static void emit_training(plani_builder *b, struct step_state *st, bool update_first)
{
    const plan_job *job = b->job;
    uint32_t head = job->stage_count - 1, params[2];
    bring_tokens(b);
    for (uint32_t s = 0; s < head; s++)
        stage_forward(b, st, s, update_first, true);
    head_params(b, st, update_first, params);
    stage_backward(b, st, head, params);
    bring_losses_back(b);
    for (uint32_t s = head; s-- > 0;) {
        params[0] = params[1] = PROGRAM_NONE;
        if (job->stages[s].backward_needs_params)
            params[0] =
                is_held(b, s) ? st->params[s] : plani_fetch_params(b, job->stages[s].units[0]);
        stage_backward(b, st, s, params);
    }
    uint32_t norm = plani_op(b, OP_NORM, LANE_COMPUTE);
    use_if(b, norm, b->set->homes.norm_sums, ROLE_NORM_SUMS, ACCESS_READ);
    if (job->update == PLAN_UPDATE_AFTER_BACKWARD)
        for (uint32_t u = 0; u < job->unit_count; u++)
            plani_unit_work(b, u, PLANI_WORK_UPDATE, PROGRAM_NONE, norm);
}

static void emit_eval(plani_builder *b, struct step_state *st)
{
    bring_tokens(b);
    for (uint32_t s = 0; s + 1 < b->job->stage_count; s++)
        stage_forward(b, st, s, false, false);
    head_forward(b, st);
}

/* Whether the unit's optimizer state can be read from the slab at all. */
static bool is_on_slab(const plani_builder *b, uint32_t unit)
{
    return b->set->homes.saves[unit] != PROGRAM_NONE ||
           b->job->homes[STATE_OPTIMIZER][unit] == ARENA_NVME;
}

void plani_emit_program(plani_builder *b, enum program_kind kind)
{
    const plan_job *job = b->job;
    uint64_t slots = (uint64_t)job->stage_count * job->micro_batch_count;
    uint64_t total = job->stage_count + 2 * slots + job->unit_count;
    uint32_t *table = mem_alloc(total, sizeof *table, "plan step state");
    if (!table) {
        b->error = -ENOMEM;
        return;
    }
    for (uint64_t i = 0; i < total; i++)
        table[i] = PROGRAM_NONE;
    struct step_state st = {.params = table,
                            .inputs = table + job->stage_count,
                            .input_grads = table + job->stage_count + slots,
                            .grads = table + job->stage_count + 2 * slots};
    bool next_forward = job->update == PLAN_UPDATE_IN_NEXT_FORWARD;
    bool evaluates_only = job->only_eval && kind != PROGRAM_EVAL && kind != PROGRAM_LOAD;
    switch (evaluates_only ? PROGRAM_KIND_COUNT : kind) {
    case PROGRAM_FIRST:
        emit_training(b, &st, false);
        break;
    case PROGRAM_STEADY:
        emit_training(b, &st, next_forward);
        break;
    case PROGRAM_EVAL:
        emit_eval(b, &st);
        break;
    case PROGRAM_INIT:
        for (uint32_t u = 0; u < job->unit_count; u++)
            plani_unit_work(b, u, PLANI_WORK_INIT, PROGRAM_NONE, PROGRAM_NONE);
        break;
    case PROGRAM_LOAD:
        for (uint32_t u = 0; u < job->unit_count; u++)
            if (is_on_slab(b, u))
                plani_unit_work(b, u, PLANI_WORK_LOAD, PROGRAM_NONE, PROGRAM_NONE);
        break;
    case PROGRAM_FLUSH:
        for (uint32_t u = 0; next_forward && u < job->unit_count; u++)
            plani_unit_work(b, u, PLANI_WORK_UPDATE, PROGRAM_NONE, PROGRAM_NONE);
        break;
    case PROGRAM_SAVE:
        for (uint32_t u = 0; u < job->unit_count; u++)
            plani_save_unit(b, u);
        break;
    case PROGRAM_KIND_COUNT:
        break;
    }
    mem_free(table);
}
