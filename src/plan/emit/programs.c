/* The seven programs in serial order.
 *
 * Training. The head (the last stage) is the turn: its backward does forward, loss and backward.
 *   layer-major   all micro-batches of the step pass a stage before the next stage's params are
 *                 fetched, in both directions
 *   batch-major   each micro-batch goes forward and back alone; fp32 sums rest in between
 * One rank adds to every gradient in the same order in both, so that they give the same bits. With
 * several ranks, batch-major reduces each micro-batch's gradient by itself. Where the
 * embedding is tied, the head's sums over all micro-batches come first; so a batch-major step
 * leaves the embedding's backward for the end.
 *
 * Commits. A steady step that may commit holds the saves of state homed in memory and OP_COMMIT
 * (if_commits): all of them first, or each after its unit's pending update (enum plan_commit).
 *
 * The `held_stages` before the turn keep params and inputs from forward to backward; the others
 * release them and fetch again. Backward uses stages in the opposite order, so the stage nearest
 * to the turn is needed first: among stages of one size, to release the farthest is the best
 * choice. Every param changes from step to step. The next forward finds on the device what rests
 * there (its home) and, with a pending update, what that update makes on the way; no transient
 * outlives a program but what is carried for that update (carry.c). */
#include <assert.h>
#include <errno.h>

#include "base/mem.h"
#include "plan/emit/emit_internal.h"

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

/* Micro-batches that pass a stage together. */
static uint32_t round_size(const plan_job *job)
{
    return job->order == ORDER_BATCH_MAJOR ? 1 : job->micro_batch_count;
}

static bool defers_first(const plani_builder *b)
{
    return b->set->homes.deferred[0] != PROGRAM_NONE;
}

/* One round: micro-batches [mb_begin, mb_end) forward and back. */
static void emit_round(plani_builder *b, struct plani_step *st, uint32_t mb_begin, uint32_t mb_end)
{
    uint32_t head = b->job->stage_count - 1;
    for (uint32_t s = 0; s < head; s++)
        plani_stage_forward(b, st, s, mb_begin, mb_end, true);
    plani_stage_backward(b, st, head, mb_begin, mb_end);
    if (mb_end == b->job->micro_batch_count)
        bring_losses_back(b);
    for (uint32_t s = head; s-- > 0;)
        if (s > 0 || !defers_first(b))
            plani_stage_backward(b, st, s, mb_begin, mb_end);
    for (uint32_t u = 0; u < b->job->unit_count; u++)
        st->params[u] = PROGRAM_NONE;
}

static void emit_commit(plani_builder *b)
{
    for (uint32_t u = 0; u < b->job->unit_count; u++)
        plani_save_unit(b, u);
    plani_commit(b);
}

/* `pending`: the gradients of the step before wait to be applied. */
static void emit_training(plani_builder *b, struct plani_step *st, bool pending)
{
    const plan_job *job = b->job;
    uint32_t together = round_size(job);
    st->updates_first = pending && job->update == UPDATE_IN_NEXT_FORWARD;
    st->updates_late = pending && job->update == UPDATE_DELAYED_ONE_STEP;
    st->commits_behind = pending && b->set->commit == PLAN_COMMIT_BEHIND;
    for (uint32_t u = 0; u < job->unit_count; u++)
        if (!plan_learns(job, u)) { /* nothing of it is pending, ever */
            st->updated[u] = 1;
            st->updated_count++;
        }
    uint32_t rounds = job->micro_batch_count / together;
    plani_count_grad_uses(job, rounds, defers_first(b) ? 1 : rounds, st->uses_left);
    if (pending && b->set->commit == PLAN_COMMIT_FIRST) {
        b->if_commits = true;
        emit_commit(b);
        b->if_commits = false;
    }
    bring_tokens(b);
    if (!pending)
        plani_fill_copies(b);
    for (uint32_t mb = 0; mb < job->micro_batch_count && b->error >= 0; mb += together)
        emit_round(b, st, mb, mb + together);
    if (defers_first(b))
        plani_stage_backward(b, st, 0, 0, job->micro_batch_count);
    assert(b->error < 0 || !st->commits_behind || b->commit_op != PROGRAM_NONE);
    plani_carry_state(b);
    uint32_t norm = plani_norm(b);
    b->if_applied = true;
    if (job->update == UPDATE_AFTER_BACKWARD)
        for (uint32_t u = 0; u < job->unit_count; u++)
            if (plan_learns(job, u))
                plani_unit_work(b, u, PLANI_WORK_UPDATE, PROGRAM_NONE, norm);
    b->if_applied = false;
}

static void emit_eval(plani_builder *b, struct plani_step *st)
{
    const plan_job *job = b->job;
    uint32_t together = round_size(job), count = job->in_order ? 1 : job->micro_batch_count;
    bring_tokens(b);
    for (uint32_t mb = 0; mb < count && b->error >= 0; mb += together)
        for (uint32_t s = 0; s < job->stage_count; s++)
            plani_stage_forward(b, st, s, mb, mb + together, false);
    bring_losses_back(b);
}

/* True if the unit's optimizer state can be read from the slab at all. */
static bool is_on_slab(const plani_builder *b, uint32_t unit)
{
    return b->set->homes.saves[unit] != PROGRAM_NONE ||
           (b->set->homes.optimizer[unit] != PROGRAM_NONE &&
            b->job->homes[STATE_OPTIMIZER][unit] == TIER_NVME);
}

/* True if a step leaves its update to a later program. */
static bool leaves_update(const plan_job *job)
{
    return job->update == UPDATE_IN_NEXT_FORWARD || job->update == UPDATE_DELAYED_ONE_STEP;
}

static void emit_all_units(plani_builder *b, enum plani_tile_work work)
{
    for (uint32_t u = 0; u < b->job->unit_count; u++) {
        if (!plan_learns(b->job, u))
            plani_frozen_work(b, u, work);
        else if (work == PLANI_WORK_LOAD && plani_is_split(b->job, u))
            plani_load_split(b, u);
        else if (work != PLANI_WORK_LOAD || is_on_slab(b, u))
            plani_unit_work(b, u, work, PROGRAM_NONE, PROGRAM_NONE);
    }
}

static void emit(plani_builder *b, struct plani_step *st, enum program_kind kind)
{
    switch (kind) {
    case PROGRAM_FIRST:
        emit_training(b, st, false);
        break;
    case PROGRAM_STEADY:
        emit_training(b, st, true);
        break;
    case PROGRAM_EVAL:
        emit_eval(b, st);
        break;
    case PROGRAM_INIT:
        emit_all_units(b, PLANI_WORK_INIT);
        break;
    case PROGRAM_LOAD:
        emit_all_units(b, PLANI_WORK_LOAD);
        break;
    case PROGRAM_FLUSH:
        if (leaves_update(b->job))
            emit_all_units(b, PLANI_WORK_UPDATE);
        break;
    case PROGRAM_SAVE:
        if (b->job->needs_save_places)
            emit_commit(b);
        break;
    case PROGRAM_KIND_COUNT:
        break;
    }
}

void plani_emit_program(plani_builder *b, enum program_kind kind)
{
    const plan_job *job = b->job;
    if (job->only_eval && kind != PROGRAM_EVAL && kind != PROGRAM_LOAD)
        return;
    uint64_t slots = (uint64_t)job->stage_count * job->micro_batch_count, units = job->unit_count;
    uint64_t absent = 2 * units + 3 * slots, total = absent + 3 * units;
    uint32_t *table = mem_alloc(total, sizeof *table, "plan step state"); /* of zeros */
    if (!table) {
        b->error = -ENOMEM;
        return;
    }
    for (uint64_t i = 0; i < absent; i++)
        table[i] = PROGRAM_NONE;
    struct plani_step st = {.params = table,
                            .grads = table + units,
                            .inputs = table + 2 * units,
                            .input_grads = table + 2 * units + slots,
                            .saved = table + 2 * units + 2 * slots,
                            .uses_left = table + absent,
                            .updated = table + absent + units,
                            .begun = table + absent + 2 * units};
    plani_carry_begin(b, kind);
    emit(b, &st, kind);
    mem_free(table);
}
