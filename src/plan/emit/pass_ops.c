/* The ops of a pass for one micro-batch: which buffers they use, and what they ask of the machine.
 *
 *   any pass            one op on the compute lane
 *   of owned experts    send, dispatch, experts, return, combine: rows go to the ranks that own
 *                       their experts, and results come back */
#include <assert.h>
#include <math.h>

#include "plan/emit/emit_internal.h"

static void use_if(plani_builder *b, uint32_t idx, uint32_t buffer_idx, enum operand_role role,
                   uint8_t access)
{
    if (buffer_idx != PROGRAM_NONE && access != 0)
        plani_use(b, idx, plani_whole(b, buffer_idx), role, (enum operand_access)access);
}

static double memory_rate(const plan_machine *machine)
{
    return machine->device_is_cpu ? machine->dram_bytes_per_second
                                  : machine->device_bytes_per_second;
}

/* Adds the time of filling memory: of zeroing a fresh gradient, or of expanding. Known times are of
 * other kernels alone, so it comes on top of them. `rate`: bytes per second. */
static void add_filling(op *item, double bytes, double rate)
{
    if (item->demand.device_seconds > 0)
        item->demand.device_seconds += bytes / rate;
}

/* The pass begins a gradient: it fills a part of it with zeros, and does not read the rest, which
 * known times are with. */
static void begin_grads(const plani_builder *b, op *item, const struct pass *pass, uint32_t i)
{
    double rate = memory_rate(&b->job->machine);
    double saved = (double)pass->written_bytes[i] / rate;
    item->demand.device_seconds -= fmin(saved, item->demand.device_seconds / 2);
    add_filling(item, (double)pass->zeroed_bytes[i], rate);
}

/* Gives the op the workspace but for the pass's expanded params, which lie at its end. Returns
 * their place. */
static plani_range use_scratch(plani_builder *b, const struct plani_pass_run *run, uint32_t idx)
{
    plani_range expanded = {0};
    uint32_t workspace = b->set->homes.workspace;
    if (workspace == PROGRAM_NONE)
        return expanded;
    plani_range scratch = plani_whole(b, workspace);
    expanded = scratch;
    expanded.size_bytes = run->pass->expanded_bytes;
    scratch.size_bytes -= expanded.size_bytes;
    expanded.offset_bytes = scratch.size_bytes;
    if (scratch.size_bytes > 0)
        plani_use(b, idx, scratch, ROLE_WORKSPACE, ACCESS_WRITE);
    return expanded;
}

/* The workspace has scratch of the op, and after it the expanded params of the pass's packed units.
 * The first micro-batch of a run expands them. Nothing but scratch of the pass uses the workspace
 * before the last one is done. */
static void use_workspace(plani_builder *b, const struct plani_pass_run *run, uint32_t idx,
                          uint32_t mb)
{
    plani_range expanded = use_scratch(b, run, idx);
    if (expanded.size_bytes == 0)
        return;
    bool expands = mb == run->mb_begin;
    if (expands) {
        double share = run->hit.size_bytes > 0 ? plani_hit_share(b->job, run->stage, run->pass) : 1;
        double bytes = share * (double)run->pass->expand_dram_bytes;
        plani_add_device_bytes(b->job, &b->ops[idx].demand, (uint64_t)bytes);
        double rate = b->job->machine.expand_bytes_per_second;
        add_filling(&b->ops[idx], bytes, rate > 0 ? rate : memory_rate(&b->job->machine));
    }
    plani_use(b, idx, expanded, ROLE_EXPANDED, expands ? ACCESS_WRITE : ACCESS_READ);
}

/* Adds the tables that computing ops read. */
static void use_tables(plani_builder *b, const struct plani_pass_run *run, uint32_t idx)
{
    use_if(b, idx, b->set->homes.constants, ROLE_CONSTANTS, ACCESS_READ);
    use_if(b, idx, b->set->homes.tokens_device, ROLE_TOKENS, ACCESS_READ);
    if (run->phase == PHASE_FORWARD)
        use_if(b, idx, b->set->homes.cache, ROLE_CACHE, ACCESS_UPDATE);
}

static const enum op_kind kinds[PHASE_COUNT] = {
    [PHASE_FORWARD] = OP_FORWARD,
    [PHASE_RECOMPUTE] = OP_RECOMPUTE,
    [PHASE_BACKWARD] = OP_BACKWARD,
};

/* An op of the pass without operands. */
static uint32_t pass_op(plani_builder *b, const struct plani_pass_run *run, uint32_t mb)
{
    uint32_t idx = plani_op(b, kinds[run->phase], LANE_COMPUTE);
    if (b->error < 0)
        return idx;
    op *item = &b->ops[idx];
    item->unit = run->pass->units[0];
    item->stage = run->s;
    item->pass = run->pass_idx;
    item->micro_batch = mb;
    return idx;
}

/* The host reads numbers back: a GPU is idle from then on until its next work comes, which takes as
 * long as handing over an op. */
static void add_read_back(const plani_builder *b, op *item)
{
    if (!b->job->machine.device_is_cpu)
        item->demand.wait_seconds += b->job->machine.op_seconds;
}

static uint32_t begin_op(plani_builder *b, const struct plani_pass_run *run, uint32_t mb)
{
    uint32_t idx = pass_op(b, run, mb);
    if (b->error < 0)
        return idx;
    op *item = &b->ops[idx];
    if (run->pass->reads_back || run->pass->sent_bytes > 0)
        add_read_back(b, item);
    item->demand.device_flops = run->pass->flops;
    item->demand.device_seconds = run->pass->seconds;
    if (run->lent.size_bytes > 0)
        item->demand.device_seconds -= fmin(run->pass->copy_seconds, run->pass->seconds);
    uint64_t memory_bytes = run->pass->dram_bytes;
    if (run->phase == PHASE_BACKWARD && !run->stage->is_cut && plani_keeps_saved(b->job, run->s)) {
        const struct stage *of = run->stage;
        bool is_selective = plani_kept(b->job, run->s) == KEPT_SELECTIVE;
        item->demand.device_flops -= of->recompute_flops;
        item->demand.device_seconds = fmax(item->demand.device_seconds - of->recompute_seconds, 0) +
                                      (is_selective ? of->selective_seconds : 0);
        memory_bytes -= of->recompute_dram_bytes - (is_selective ? of->selective_dram_bytes : 0);
    }
    plani_add_device_bytes(b->job, &item->demand, memory_bytes);
    for (uint32_t i = 0; i < run->pass->unit_count && mb == run->mb_begin; i++)
        if (run->fresh[i] && run->pass->adds_grads[i])
            begin_grads(b, item, run->pass, i);
    if (mb == run->mb_begin)
        item->fresh_grads = (uint8_t)((run->fresh[0] ? 1 : 0) | (run->fresh[1] ? 2 : 0));
    use_workspace(b, run, idx, mb);
    use_tables(b, run, idx);
    return idx;
}

/* The losses of the micro-batch for the head, its totals for a block. */
static plani_range losses_range(const plani_builder *b, const struct plani_pass_run *run,
                                uint32_t mb)
{
    const plan_job *job = b->job;
    uint64_t part = job->losses_bytes / job->micro_batch_count;
    plani_range range = {b->set->homes.losses_device, mb * part, part};
    if (run->s + 1 < job->stage_count) {
        range.offset_bytes = plan_totals_begin(job, mb);
        range.size_bytes = job->totals_bytes;
    }
    return range;
}

plani_range plani_told_hits(const plani_builder *b, const struct plani_pass_run *run)
{
    bool tells = b->set->fetches_hit && run->phase == PHASE_FORWARD;
    return (plani_range){b->set->homes.hits, run->pass->told_begin,
                         tells ? run->pass->told_count : 0};
}

/* The params, gradients and hit of the pass's units. */
static void use_units(plani_builder *b, const struct plani_pass_run *run, uint32_t idx, uint32_t mb)
{
    const struct pass *pass = run->pass;
    for (uint32_t i = 0; i < pass->unit_count; i++) {
        if (pass->reads_params[i])
            use_if(b, idx, run->params[i], i == 0 ? ROLE_PARAMS0 : ROLE_PARAMS1, ACCESS_READ);
        bool zeroes = mb == run->mb_begin && run->fresh[i];
        if (pass->adds_grads[i])
            use_if(b, idx, run->grads[i], i == 0 ? ROLE_GRADS0 : ROLE_GRADS1,
                   zeroes ? ACCESS_WRITE : ACCESS_UPDATE);
    }
    if (run->lent.size_bytes > 0)
        plani_use(b, idx, run->lent, ROLE_LENT, ACCESS_WRITE);
    if (run->hit.size_bytes > 0)
        plani_use(b, idx, run->hit, ROLE_HITS, ACCESS_READ);
}

/* A step of a pass of owned experts, before or after these. */
static void outer_step(plani_builder *b, const struct plani_pass_run *run, uint32_t mb,
                       const struct plani_pass_buffers *with, enum op_step step, uint32_t sent)
{
    const struct pass *pass = run->pass;
    bool is_last = step == STEP_COMBINE;
    uint32_t idx = pass_op(b, run, mb);
    if (b->error < 0)
        return;
    b->ops[idx].step = (uint8_t)step;
    plani_add_device_bytes(b->job, &b->ops[idx].demand, pass->moved_bytes);
    if (!is_last && pass->reads_back)
        add_read_back(b, &b->ops[idx]);
    use_scratch(b, run, idx);
    use_tables(b, run, idx);
    use_if(b, idx, sent, ROLE_SENT, is_last ? ACCESS_READ : ACCESS_WRITE);
    use_if(b, idx, with->saved, ROLE_SAVED, with->saved_access);
    use_if(b, idx, with->output_grad, ROLE_OUTPUT_GRAD, pass->output_grad);
    if (!is_last)
        return;
    use_if(b, idx, with->input, ROLE_INPUT, pass->input);
    use_if(b, idx, with->output, ROLE_OUTPUT, pass->output);
    use_if(b, idx, with->input_grad, ROLE_INPUT_GRAD, pass->input_grad);
}

/* A pass of owned experts: rows go to the ranks that own their experts, and results come back. */
static void run_owned(plani_builder *b, const struct plani_pass_run *run, uint32_t mb,
                      const struct plani_pass_buffers *with)
{
    const struct pass *pass = run->pass;
    uint32_t unit = pass->units[0];
    uint32_t sent = plani_device_scratch(b, pass->sent_bytes, STATE_ACTIVATIONS, unit);
    outer_step(b, run, mb, with, STEP_SEND, sent);
    uint32_t received = plani_device_scratch(b, pass->received_bytes, STATE_ACTIVATIONS, unit);
    plani_exchange(b, run->s, run->pass_idx, unit, mb, OP_DISPATCH, sent, received,
                   pass->dispatched_bytes);
    uint32_t idx = begin_op(b, run, mb);
    if (b->error < 0)
        return;
    b->ops[idx].step = STEP_EXPERTS;
    use_units(b, run, idx, mb);
    use_if(b, idx, received, ROLE_RECEIVED, ACCESS_UPDATE);
    plani_exchange(b, run->s, run->pass_idx, unit, mb, OP_RETURN, received, sent,
                   pass->returned_bytes);
    outer_step(b, run, mb, with, STEP_COMBINE, sent);
}

/* The one op of any other pass. */
static void run_at_once(plani_builder *b, const struct plani_pass_run *run, uint32_t mb,
                        const struct plani_pass_buffers *with)
{
    const struct pass *pass = run->pass;
    uint32_t idx = begin_op(b, run, mb);
    if (b->error < 0)
        return;
    use_units(b, run, idx, mb);
    plani_range told = plani_told_hits(b, run); /* the first micro-batch begins them, others add */
    if (told.size_bytes > 0) {
        add_read_back(b, &b->ops[idx]);
        plani_use(b, idx, told, ROLE_HITS, mb == run->mb_begin ? ACCESS_WRITE : ACCESS_UPDATE);
    }
    use_if(b, idx, with->input, ROLE_INPUT, pass->input);
    use_if(b, idx, with->saved, ROLE_SAVED, with->saved_access);
    use_if(b, idx, with->output, ROLE_OUTPUT, pass->output);
    use_if(b, idx, with->output_grad, ROLE_OUTPUT_GRAD, pass->output_grad);
    use_if(b, idx, with->input_grad, ROLE_INPUT_GRAD, pass->input_grad);
    if (pass->losses != 0)
        plani_use(b, idx, losses_range(b, run, mb), ROLE_LOSSES, (enum operand_access)pass->losses);
}

void plani_pass_ops(plani_builder *b, const struct plani_pass_run *run, uint32_t mb,
                    const struct plani_pass_buffers *with)
{
    if (run->pass->sent_bytes > 0)
        run_owned(b, run, mb, with);
    else
        run_at_once(b, run, mb, with);
}
