/* One pass of one stage in one phase, for a range of micro-batches: brings params to the device,
 * emits the ops, and brings and takes away what they use and make.
 *
 *   forward    [update or fetch params]  F mb0, F mb1, ...   outputs home, kept `saved` home
 *   recompute  [fetch params]            R mb0, R mb1, ...   of a cut stage without its `saved`
 *   backward   [fetch params]            B mb0, B mb1, ...   [close the gradient, or park its sums]
 *
 * An accumulator opens with the first op that adds to it in a step and closes after the last pass
 * that adds to it. In between it stays on the device or, where it has a home, rests there. With
 * several ranks what rests is the own shard's sum over ranks: each pass then opens an accumulator
 * of its own, which is reduced and added to that sum. */
#include <assert.h>

#include "plan/emit/emit_internal.h"

static uint64_t slot_of(const plani_builder *b, uint32_t stage, uint32_t mb)
{
    return (uint64_t)stage * b->job->micro_batch_count + mb;
}

static bool is_held(const plani_builder *b, uint32_t stage)
{
    return stage + b->held_stages + 1 >= b->job->stage_count;
}

static bool is_head(const plani_builder *b, uint32_t stage)
{
    return stage + 1 == b->job->stage_count;
}

/* Moves a whole buffer of activations of one micro-batch. */
static void move_whole(plani_builder *b, uint32_t source, uint32_t target, enum state_kind kind,
                       uint32_t unit, uint32_t mb)
{
    plani_transfer(b, plani_whole(b, source), plani_whole(b, target), kind, unit, PROGRAM_NONE, mb);
}

/* True if the pass's params stay for the backward of its stage, which is in parts. */
static bool turns(const plani_builder *b, const struct plani_pass_run *run)
{
    uint32_t count = plani_turning_passes(b->job, run->s);
    return run->phase == plani_turning_phase(b->job, run->s) && run->pass_idx < count &&
           run->pass_idx + b->set->held_passes >= count;
}

/* True if a later pass of the phase uses `saved`. */
static bool saved_goes_on(const struct plani_pass_run *run)
{
    for (uint32_t p = run->pass_idx + 1; p < run->stage->pass_count[run->phase]; p++)
        if (run->stage->passes[run->phase][p].saved != 0)
            return true;
    return false;
}

static uint8_t saved_access(const plani_builder *b, const struct plani_pass_run *run)
{
    if (run->stage->is_cut)
        return run->pass->saved;
    if (!run->trains || !plani_keeps_saved(b->job, run->s))
        return 0; /* scratch of the one op */
    return run->phase == PHASE_FORWARD ? ACCESS_WRITE : ACCESS_UPDATE;
}

/* Params of a unit on the device: held since the forward, fresh from the pending update, or
 * fetched. */
static uint32_t unit_params(plani_builder *b, struct plani_step *st,
                            const struct plani_pass_run *run, uint32_t unit)
{
    if (st->params[unit] != PROGRAM_NONE)
        return st->params[unit];
    if (!st->updates_first || st->updated[unit]) {
        b->hit = run->hit;
        b->hit_share = run->hit.size_bytes > 0 ? plani_hit_share(b->job, run->stage, run->pass) : 1;
        uint32_t fetched = plani_fetch_params(b, unit);
        b->hit.size_bytes = 0;
        return fetched;
    }
    st->updated[unit] = 1;
    st->updated_count++;
    uint32_t device = plani_device_params(b, unit);
    plani_unit_work(b, unit, PLANI_WORK_UPDATE, device, PROGRAM_NONE);
    if (st->commits_behind) {
        b->if_commits = true;
        plani_save_unit(b, unit);
        b->if_commits = false;
    }
    return device;
}

/* True if what rests of the unit's gradient are sums over ranks. */
static bool rests_reduced(const plani_builder *b, uint32_t unit)
{
    return plani_world(b->job) > 1 && b->set->homes.accumulators[unit] != PROGRAM_NONE;
}

/* Where the sums of a unit's gradient are made, if that is no scratch: where sums rest, or, for one
 * rank whose gradients are fp32, where the closed gradient rests, which is then closed in place. */
static uint32_t sums_at_home(const plani_builder *b, const struct plani_step *st, uint32_t unit)
{
    uint32_t home = b->set->homes.accumulators[unit];
    bool is_closed_there = plani_world(b->job) == 1 && b->job->grad_bytes == sizeof(float) &&
                           !st->updates_late && home == PROGRAM_NONE;
    if (is_closed_there)
        home = b->set->homes.grads[unit];
    return plani_is_on_device(b, home) ? home : PROGRAM_NONE;
}

/* True if the pass lends its gradients: those of its first unit, to which no other pass adds. */
static bool lends(const plani_builder *b, const struct plani_step *st,
                  const struct plani_pass_run *run)
{
    const struct pass *pass = run->pass;
    uint32_t unit = pass->units[0];
    bool is_alone = pass->adds_grads[0] && (pass->unit_count == 1 || !pass->adds_grads[1]);
    return b->error >= 0 && b->set->homes.lent != PROGRAM_NONE && is_alone && !st->begun[unit] &&
           st->uses_left[unit] == 1 && !plan_has_matrices(b->job, unit);
}

static void open_grads(plani_builder *b, struct plani_step *st, struct plani_pass_run *run,
                       uint32_t i)
{
    uint32_t unit = run->pass->units[i];
    if (lends(b, st, run)) {
        uint64_t bytes = plani_lent_bytes(b->job);
        run->lent = (plani_range){b->set->homes.lent, st->lent_count++ % 2 * bytes, bytes};
        return;
    }
    bool is_reduced = rests_reduced(b, unit);
    run->fresh[i] = is_reduced || !st->begun[unit];
    if (st->grads[unit] == PROGRAM_NONE && !is_reduced)
        st->grads[unit] = sums_at_home(b, st, unit);
    if (st->grads[unit] == PROGRAM_NONE) {
        st->grads[unit] =
            plani_device_scratch(b, plani_whole_elems(b->job, unit) * 4, STATE_GRADS, unit);
        if (!run->fresh[i])
            plani_resume_grads(b, unit, st->grads[unit]);
    }
    run->grads[i] = st->grads[unit];
}

static void leave_grads(plani_builder *b, struct plani_step *st, const struct plani_pass_run *run,
                        uint32_t unit)
{
    uint32_t home = b->set->homes.accumulators[unit];
    bool has_sum = rests_reduced(b, unit) && st->begun[unit];
    assert(st->uses_left[unit] > 0);
    st->begun[unit] = 1;
    if (run->lent.size_bytes > 0) {
        plani_update_lent(b, unit, run->lent);
    } else if (--st->uses_left[unit] == 0) {
        if (st->updates_late) /* with the gradient that rests there still, of the step before */
            plani_unit_work(b, unit, PLANI_WORK_UPDATE, PROGRAM_NONE, PROGRAM_NONE);
        plani_close_grads(b, unit, st->grads[unit], has_sum);
        st->grads[unit] = PROGRAM_NONE;
    } else if (home != PROGRAM_NONE && st->grads[unit] != home) {
        plani_rest_grads(b, unit, st->grads[unit], has_sum);
        st->grads[unit] = PROGRAM_NONE;
    }
}

/* The stage's input on the device. */
static uint32_t bring_input(plani_builder *b, const struct plani_step *st,
                            const struct plani_pass_run *run, uint32_t mb)
{
    uint32_t input = st->inputs[slot_of(b, run->s, mb)];
    uint32_t home = b->set->homes.activations[slot_of(b, run->s, mb)];
    bool is_there =
        run->phase == PHASE_FORWARD || is_head(b, run->s) || is_held(b, run->s) || input == home;
    if (run->pass->input == 0 || is_there)
        return input;
    input = plani_device_scratch(b, b->job->boundary_bytes, STATE_ACTIVATIONS, run->unit);
    move_whole(b, home, input, STATE_ACTIVATIONS, run->unit, mb);
    return input;
}

static uint32_t bring_saved(plani_builder *b, struct plani_step *st,
                            const struct plani_pass_run *run, uint32_t mb, uint8_t access)
{
    uint32_t *saved = &st->saved[slot_of(b, run->s, mb)];
    uint32_t home = b->set->homes.saved[slot_of(b, run->s, mb)];
    if (access == 0 || *saved != PROGRAM_NONE)
        return *saved;
    if (plani_is_on_device(b, home)) {
        *saved = home;
        return home;
    }
    uint64_t bytes =
        home == PROGRAM_NONE ? run->stage->saved_bytes : b->buffers[home].base.size_bytes;
    *saved = plani_device_scratch(b, bytes, STATE_INNER_ACTIVATIONS, run->unit);
    if (access != ACCESS_WRITE)
        move_whole(b, home, *saved, STATE_INNER_ACTIVATIONS, run->unit, mb);
    return *saved;
}

/* After the op: `saved` goes home where it has one, and is forgotten where nothing more needs
 * it. */
static void leave_saved(plani_builder *b, struct plani_step *st, const struct plani_pass_run *run,
                        uint32_t mb, uint8_t access)
{
    uint32_t *saved = &st->saved[slot_of(b, run->s, mb)];
    uint32_t home = b->set->homes.saved[slot_of(b, run->s, mb)];
    bool stays = saved_goes_on(run) || run->phase == PHASE_RECOMPUTE;
    bool is_kept = run->phase == PHASE_FORWARD && run->trains && plani_keeps_saved(b->job, run->s);
    bool has_other_home = home != PROGRAM_NONE && home != *saved;
    if (access == 0)
        return;
    if (has_other_home && access != ACCESS_READ && (stays || is_kept))
        move_whole(b, *saved, home, STATE_INNER_ACTIVATIONS, run->unit, mb);
    if (has_other_home || !stays)
        *saved = PROGRAM_NONE;
}

static uint32_t output_buffer(plani_builder *b, struct plani_step *st,
                              const struct plani_pass_run *run, uint32_t mb)
{
    if (run->pass->output == 0 || is_head(b, run->s))
        return PROGRAM_NONE;
    uint32_t *output = &st->inputs[slot_of(b, run->s + 1, mb)];
    if (run->pass->output != ACCESS_WRITE)
        return *output;
    uint32_t home = b->set->homes.activations[slot_of(b, run->s + 1, mb)];
    *output = run->trains && plani_is_on_device(b, home)
                  ? home
                  : plani_device_scratch(b, b->job->boundary_bytes, STATE_ACTIVATIONS,
                                         plani_stage_unit(b->job, run->s + 1));
    return *output;
}

static void leave_output(plani_builder *b, const struct plani_step *st,
                         const struct plani_pass_run *run, uint32_t mb)
{
    bool is_last = run->pass_idx + 1 == run->stage->pass_count[run->phase];
    if (run->phase != PHASE_FORWARD || !run->trains || !is_last || is_head(b, run->s))
        return;
    uint32_t output = st->inputs[slot_of(b, run->s + 1, mb)];
    uint32_t home = b->set->homes.activations[slot_of(b, run->s + 1, mb)];
    if (home == PROGRAM_NONE || home == output || is_held(b, run->s + 1))
        return;
    move_whole(b, output, home, STATE_ACTIVATIONS, plani_stage_unit(b->job, run->s + 1), mb);
}

static uint32_t output_grad_buffer(plani_builder *b, const struct plani_step *st,
                                   const struct plani_pass_run *run, uint32_t mb)
{
    if (run->pass->output_grad == 0)
        return PROGRAM_NONE;
    uint32_t waits = run->s == 0 ? b->set->homes.deferred[mb] : PROGRAM_NONE;
    if (waits == PROGRAM_NONE || plani_is_on_device(b, waits))
        return waits != PROGRAM_NONE ? waits : st->input_grads[slot_of(b, run->s + 1, mb)];
    uint32_t unit = plani_stage_unit(b->job, 1);
    uint32_t found = plani_device_scratch(b, b->job->boundary_bytes, STATE_ACTIVATIONS, unit);
    move_whole(b, waits, found, STATE_ACTIVATIONS, unit, mb);
    return found;
}

static uint32_t input_grad_buffer(plani_builder *b, struct plani_step *st,
                                  const struct plani_pass_run *run, uint32_t mb)
{
    if (run->pass->input_grad == 0)
        return PROGRAM_NONE;
    uint32_t *made = &st->input_grads[slot_of(b, run->s, mb)];
    if (run->pass->input_grad != ACCESS_WRITE)
        return *made;
    uint32_t waits = run->s == 1 ? b->set->homes.deferred[mb] : PROGRAM_NONE;
    *made = plani_is_on_device(b, waits)
                ? waits
                : plani_device_scratch(b, b->job->boundary_bytes, STATE_ACTIVATIONS, run->unit);
    return *made;
}

static void leave_input_grad(plani_builder *b, const struct plani_step *st,
                             const struct plani_pass_run *run, uint32_t mb)
{
    bool is_last = run->pass_idx + 1 == run->stage->pass_count[run->phase];
    uint32_t waits = run->s == 1 ? b->set->homes.deferred[mb] : PROGRAM_NONE;
    if (run->phase != PHASE_BACKWARD || !is_last || waits == PROGRAM_NONE ||
        plani_is_on_device(b, waits))
        return;
    move_whole(b, st->input_grads[slot_of(b, 1, mb)], waits, STATE_ACTIVATIONS, run->unit, mb);
}

static void run_micro_batch(plani_builder *b, struct plani_step *st,
                            const struct plani_pass_run *run, uint32_t mb)
{
    struct plani_pass_buffers with = {.saved_access = saved_access(b, run)};
    with.input = bring_input(b, st, run, mb);
    with.saved = bring_saved(b, st, run, mb, with.saved_access);
    with.output = output_buffer(b, st, run, mb);
    with.output_grad = output_grad_buffer(b, st, run, mb);
    with.input_grad = input_grad_buffer(b, st, run, mb);
    plani_pass_ops(b, run, mb, &with);
    if (b->error < 0)
        return;
    leave_saved(b, st, run, mb, with.saved_access);
    leave_output(b, st, run, mb);
    leave_input_grad(b, st, run, mb);
}

static void run_pass(plani_builder *b, struct plani_step *st, struct plani_pass_run *run)
{
    const struct pass *pass = run->pass;
    for (uint32_t i = 0; i < 2; i++) {
        run->params[i] = run->grads[i] = PROGRAM_NONE;
        run->fresh[i] = false;
    }
    run->lent.size_bytes = 0;
    run->hit = (plani_range){.buffer_idx = b->set->homes.hits, .offset_bytes = pass->units[0]};
    run->hit.size_bytes = b->set->fetches_hit && pass->miss > 0;
    for (uint32_t i = 0; i < pass->unit_count; i++)
        if (pass->reads_params[i])
            run->params[i] = unit_params(b, st, run, pass->units[i]);
    for (uint32_t i = 0; i < pass->unit_count && run->phase == PHASE_BACKWARD; i++)
        if (pass->adds_grads[i])
            open_grads(b, st, run, i);
    for (uint32_t mb = run->mb_begin; mb < run->mb_end && b->error >= 0; mb++)
        run_micro_batch(b, st, run, mb);
    if (b->error >= 0 && plani_told_hits(b, run).size_bytes > 0 &&
        plani_unites_hits(b->job, run->stage))
        plani_unite_hits(b, plani_told_hits(b, run), run->s);
    bool is_kept = run->phase == PHASE_FORWARD && run->trains && is_held(b, run->s);
    for (uint32_t i = 0; i < pass->unit_count; i++)
        if (is_kept || (pass->reads_params[i] && turns(b, run)))
            st->params[pass->units[i]] = run->params[i];
    for (uint32_t i = 0; i < pass->unit_count && run->phase == PHASE_BACKWARD; i++)
        if (pass->adds_grads[i] && b->error >= 0)
            leave_grads(b, st, run, pass->units[i]);
    if (st->commits_behind && st->updated_count == b->job->unit_count &&
        b->commit_op == PROGRAM_NONE) {
        b->if_commits = true;
        plani_commit(b);
        b->if_commits = false;
    }
}

static void run_phase(plani_builder *b, struct plani_step *st, struct plani_pass_run *run,
                      enum phase phase)
{
    run->phase = phase;
    for (uint32_t p = 0; p < run->stage->pass_count[phase] && b->error >= 0; p++) {
        run->pass_idx = p;
        run->pass = &run->stage->passes[phase][p];
        run_pass(b, st, run);
    }
}

static struct plani_pass_run run_of(const plani_builder *b, uint32_t stage, uint32_t mb_begin,
                                    uint32_t mb_end, bool trains)
{
    return (struct plani_pass_run){
        .s = stage,
        .mb_begin = mb_begin,
        .mb_end = mb_end,
        .stage = &b->job->stages[stage],
        .unit = plani_stage_unit(b->job, stage),
        .trains = trains,
    };
}

void plani_stage_forward(plani_builder *b, struct plani_step *st, uint32_t stage, uint32_t mb_begin,
                         uint32_t mb_end, bool trains)
{
    struct plani_pass_run run = run_of(b, stage, mb_begin, mb_end, trains);
    run_phase(b, st, &run, PHASE_FORWARD);
}

void plani_stage_backward(plani_builder *b, struct plani_step *st, uint32_t stage,
                          uint32_t mb_begin, uint32_t mb_end)
{
    struct plani_pass_run run = run_of(b, stage, mb_begin, mb_end, true);
    if (!plani_goes_back(b->job, stage))
        return;
    if (!plani_keeps_saved(b->job, stage))
        run_phase(b, st, &run, PHASE_RECOMPUTE);
    run_phase(b, st, &run, PHASE_BACKWARD);
}
