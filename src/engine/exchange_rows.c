/* OP_DISPATCH and OP_RETURN: rows of activations travel to the ranks that own their experts, and
 * results travel back (swap/program.h). Runs on the worker of the comm lane. The tables at the
 * start of both buffers say which rows go where. All memory is the host's. */
#include "base/size.h"
#include "engine/engine_internal.h"

/* Gives each rank's rows an equal part of the buffer. */
static void divide(rank_parcel *table, uint64_t world, uint64_t size_bytes)
{
    uint64_t begin = parcel_table_bytes(world);
    uint64_t each = (size_bytes - begin) / world / PARCEL_ALIGN_BYTES * PARCEL_ALIGN_BYTES;
    for (uint64_t r = 0; r < world; r++)
        table[r] = (rank_parcel){begin + r * each, each};
}

int enginei_exchange_rows(struct engine *self, const program *prog, const op *item)
{
    comm *members = self->setup->ranks.comm;
    char label[COMM_LABEL_BYTES];
    rank_parcel *target = enginei_role_address(self, prog, item, ROLE_TARGET);
    const rank_parcel *source = enginei_role_address(self, prog, item, ROLE_SOURCE);
    if (item->kind == OP_DISPATCH)
        divide(target, self->setup->ranks.world, op_operand(item, ROLE_TARGET)->size_bytes);
    enginei_name_collective(self, item, label);
    comm_note(members, label);
    const comm_parcels call = {
        .label = label, .source = source, .target = target, .sent = source, .received = target};
    return comm_all_to_all(members, &call);
}
