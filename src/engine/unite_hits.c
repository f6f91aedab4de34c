/* OP_UNITE_HITS: a unit of experts is hit on all ranks if a token of any rank chose it, so that all
 * ranks gather it or none does.
 *
 *   hits (host) -> workspace, own part -> all-gather -> workspace, all parts -> host: hits |= each
 *
 * On the CPU the workspace is host memory, and the op is complete when its call returns. The same
 * holds for a GPU whose collectives run on a worker. With NCCL all steps but the last are enqueued,
 * and the last one follows on the executor's thread (enginei_take_hits). Hits of several stages may
 * then be on their way at once, so each stage has a place of its own in pinned memory. */
#include <string.h>

#include "engine/engine_internal.h"

/* The memory with which an op works. */
struct united {
    const operand *hits;
    uint64_t part_bytes; /* of a rank */
    uint8_t *own, *all;  /* in the workspace: [part_bytes], [world][part_bytes] */
    uint8_t *taken;      /* all parts, where the host reads them */
};

static struct united united_of(const struct engine *self, const program *prog, const op *item)
{
    struct united found = {.hits = op_operand(item, ROLE_HITS)};
    found.part_bytes = program_united_bytes(found.hits->size_bytes, 0);
    found.own = enginei_role_address(self, prog, item, ROLE_WORKSPACE);
    found.all = found.taken = found.own + found.part_bytes;
    /* Parts are at most 7 bytes longer than their units' hits. */
    if (self->setup->gpu)
        found.taken = self->united_hits +
                      self->setup->ranks.world * (found.hits->offset_bytes + 8 * item->stage);
    return found;
}

int enginei_make_united(struct engine *self)
{
    const struct setup *setup = self->setup;
    void *memory;
    if (!setup->gpu || setup->ranks.world == 1 || setup->set.homes.hits == PROGRAM_NONE)
        return 0;
    uint64_t units = setup->net->unit_count + 8 * (uint64_t)setup->net->stage_count;
    TRY(device_alloc_pinned(setup->gpu, setup->ranks.world * units, &memory));
    self->united_hits = memory;
    if (setup->collectives == COMM_NCCL)
        return 0;
    return device_stream_create(setup->gpu, true, &self->hits_stream);
}

static int copy(const struct engine *self, device_stream *stream, void *target, const void *source,
                uint64_t bytes, enum device_direction direction)
{
    if (self->setup->gpu)
        return device_copy(self->setup->gpu, stream, target, source, bytes, direction);
    if (target != source)
        memcpy(target, source, bytes);
    return 0;
}

int enginei_unite_hits(struct engine *self, const program *prog, const op *item, void *stream)
{
    const struct setup *setup = self->setup;
    struct united at = united_of(self, prog, item);
    device_stream *own = stream ? stream : self->hits_stream;
    char label[COMM_LABEL_BYTES];
    enginei_name_collective(self, item, label);
    comm_note(setup->ranks.comm, label);
    comm_call call = {.label = label, .source = at.own, .target = at.all, .count = at.part_bytes};
    bool waits = setup->gpu && !stream;
    if (waits)
        TRY(device_attach(setup->gpu));
    TRY(copy(self, own, at.own, enginei_role_address(self, prog, item, ROLE_HITS),
             at.hits->size_bytes, DEVICE_FROM_HOST));
    if (waits)
        TRY(device_synchronize(setup->gpu, own));
    TRY(comm_all_gather(setup->ranks.comm, &call));
    TRY(copy(self, own, at.taken, at.all, setup->ranks.world * at.part_bytes, DEVICE_TO_HOST));
    if (waits)
        TRY(device_synchronize(setup->gpu, own));
    if (!stream)
        enginei_take_hits(self, prog, item);
    return 0;
}

void enginei_take_hits(struct engine *self, const program *prog, const op *item)
{
    struct united at = united_of(self, prog, item);
    uint8_t *hits = enginei_role_address(self, prog, item, ROLE_HITS);
    for (uint32_t r = 0; r < self->setup->ranks.world; r++)
        for (uint64_t u = 0; u < at.hits->size_bytes; u++)
            hits[u] |= at.taken[r * at.part_bytes + u];
}
