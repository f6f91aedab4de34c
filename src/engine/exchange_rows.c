/* OP_DISPATCH and OP_RETURN: rows of activations travel to the ranks that own their experts, and
 * results travel back (swap/program.h). Tables in host memory say which rows go where:
 *
 *   op            fills                        reads
 *   STEP_SEND     sent, results
 *   OP_DISPATCH   received                     sent
 *   STEP_EXPERTS  received, now the results    received
 *   OP_RETURN                                  received, results
 *   STEP_COMBINE                               results
 *
 * A micro-batch has one set of tables: it is enough, since a pass sends rows only after the pass
 * before it has combined its results. Beside the tables each micro-batch has the offsets of its
 * experts' slots (model_parcels.offsets), whether or not ranks own the experts.
 *
 * Runs on the worker of the comm lane. With NCCL it runs on the executor's thread, where an
 * OP_DISPATCH waits until the GPU has the rows of all ranks' routers; the rest is enqueued. */
#include <errno.h>

#include "base/mem.h"
#include "base/size.h"
#include "engine/engine_internal.h"

static int make_offsets(struct engine *self)
{
    const struct setup *setup = self->setup;
    uint64_t count = setup->job->accumulation;
    if (setup->net->spec.expert_count == 0)
        return 0;
    self->offsets = mem_alloc(count * MODEL_OFFSETS_MAX, sizeof *self->offsets, "engine offsets");
    return self->offsets ? 0 : -ENOMEM;
}

int enginei_make_parcels(struct engine *self)
{
    const struct setup *setup = self->setup;
    uint64_t count = setup->job->accumulation;
    TRY(make_offsets(self));
    if (!setup->is_owned)
        return 0;
    self->parcels =
        mem_alloc(3 * count * setup->ranks.world, sizeof *self->parcels, "engine parcels");
    return self->parcels ? 0 : -ENOMEM;
}

model_parcels enginei_parcels_of(const struct engine *self, uint32_t micro_batch)
{
    uint64_t world = self->setup->ranks.world;
    model_parcels at = {.sent = NULL};
    if (self->offsets)
        at.offsets = self->offsets + (uint64_t)micro_batch * MODEL_OFFSETS_MAX;
    if (!self->parcels)
        return at;
    at.sent = self->parcels + 3 * world * micro_batch;
    at.received = at.sent + world;
    at.results = at.received + world;
    return at;
}

/* Gives each rank an equal part of a buffer. */
static void divide(rank_parcel *table, uint64_t world, uint64_t size_bytes)
{
    uint64_t each = size_bytes / world / PARCEL_ALIGN_BYTES * PARCEL_ALIGN_BYTES;
    for (uint64_t r = 0; r < world; r++)
        table[r] = (rank_parcel){r * each, each};
}

/* Bytes for each of the other ranks, and for this one, in a part of so many bytes. */
static void size_usual(rank_parcel *table, uint64_t world, uint64_t planned_bytes)
{
    for (uint64_t r = 0; r < world; r++)
        table[r].size_bytes = size_min(table[r].size_bytes, planned_bytes / (world - 1));
}

void enginei_send_usual(struct engine *self, const op *item)
{
    enum phase phase = item->kind == OP_BACKWARD ? PHASE_BACKWARD : PHASE_FORWARD;
    const struct pass *pass = &self->setup->net->stages[item->stage].passes[phase][item->pass];
    model_parcels at = enginei_parcels_of(self, item->micro_batch);
    uint64_t world = self->setup->ranks.world;
    if (item->step == STEP_EXPERTS)
        size_usual(at.received, world, pass->returned_bytes);
    if (item->step != STEP_SEND)
        return;
    uint64_t size_bytes = op_operand(item, ROLE_SENT)->size_bytes;
    divide(at.sent, world, size_bytes);
    divide(at.results, world, size_bytes);
    size_usual(at.sent, world, pass->dispatched_bytes);
    size_usual(at.results, world, pass->returned_bytes);
}

int enginei_exchange_rows(struct engine *self, const program *prog, const op *item)
{
    comm *members = self->setup->ranks.comm;
    bool is_dispatch = item->kind == OP_DISPATCH;
    model_parcels at = enginei_parcels_of(self, item->micro_batch);
    char label[COMM_LABEL_BYTES];
    if (is_dispatch)
        divide(at.received, self->setup->ranks.world, op_operand(item, ROLE_TARGET)->size_bytes);
    enginei_name_collective(self, item, label);
    comm_note(members, label);
    const comm_parcels call = {.label = label,
                               .source = enginei_role_address(self, prog, item, ROLE_SOURCE),
                               .target = enginei_role_address(self, prog, item, ROLE_TARGET),
                               .sent = is_dispatch ? at.sent : at.received,
                               .received = is_dispatch ? at.received : at.results,
                               .sizes_are_known = !is_dispatch};
    return comm_all_to_all(members, &call);
}
