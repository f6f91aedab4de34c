/* The backend staged: what the exchange needs of a GPU. Copies run on a stream of their own,
 * between the calls' memory and either the segments (all mapped segments are pinned) or this rank's
 * bounce buffer:
 *
 *   bounce   [ outgoing: world - 1 chunks ][ own: 1 for each of two rounds ][ total: 1 ]   fp32
 *
 * The host computes the sums, so they are bit-equal to those of the backend mpi. */
#include <sys/mman.h>

#include <errno.h>
#include <inttypes.h>

#include "base/mem.h"
#include "base/size.h"
#include "comm/exchange_internal.h"

struct staged {
    device *gpu;
    device_stream *stream;
    const exchange *owner;
    unsigned char *bounce;
    uint64_t bounce_bytes, chunk_bytes;
    uint32_t slot_count; /* number of outgoing chunks */
    uint32_t pin_count;  /* the segments of ranks below this are pinned */
    bool is_bounce_pinned;
};

/* Pins the bounce buffer and every mapped segment. */
static int pin_all(struct staged *self)
{
    TRY(device_pin(self->gpu, self->bounce, self->bounce_bytes));
    self->is_bounce_pinned = true;
    for (; self->pin_count < self->owner->group->world; self->pin_count++) {
        const segment *shared = &self->owner->peers[self->pin_count].shared;
        if (shared->page != NULL)
            TRY(device_pin(self->gpu, shared->page, SEGMENT_PAGE_BYTES + shared->data_bytes));
    }
    return 0;
}

int stagedi_open(exchange *owner, struct device *gpu, uint64_t chunk_bytes, struct staged **out)
{
    *out = NULL;
    struct staged *self = mem_alloc(1, sizeof *self, "staged");
    if (self == NULL)
        return -ENOMEM;
    uint32_t world = owner->group->world;
    self->owner = owner;
    self->gpu = gpu;
    self->slot_count = world - 1;
    self->chunk_bytes = chunk_bytes;
    self->bounce_bytes = size_round_up((world + 2) * self->chunk_bytes, SEGMENT_PAGE_BYTES);
    void *bounce = mmap(NULL, self->bounce_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (bounce == MAP_FAILED) {
        mem_free(self);
        return err_errno(ENOMEM, "cannot map %" PRIu64 " bytes to stage collectives",
                         self->bounce_bytes);
    }
    self->bounce = bounce;
    int rc = pin_all(self);
    if (rc == 0)
        rc = device_stream_create(gpu, true, &self->stream);
    if (rc < 0) {
        stagedi_close(self);
        return rc;
    }
    *out = self;
    return 0;
}

void stagedi_close(struct staged *self)
{
    if (self == NULL)
        return;
    int rc = 0; /* unpinning fails only after an error of the GPU, which was reported */
    while (self->pin_count-- > 0) {
        const segment *shared = &self->owner->peers[self->pin_count].shared;
        if (shared->page != NULL)
            TRY_KEEP(rc, device_unpin(self->gpu, shared->page));
    }
    if (self->is_bounce_pinned)
        TRY_KEEP(rc, device_unpin(self->gpu, self->bounce));
    (void)munmap(self->bounce, self->bounce_bytes);
    mem_free(self);
}

int stagedi_attach(struct staged *self)
{
    return device_attach(self->gpu);
}

int stagedi_copy(struct staged *self, void *target, const void *source, uint64_t bytes,
                 enum device_direction way)
{
    if (bytes == 0 || target == source)
        return 0;
    return device_copy(self->gpu, self->stream, target, source, bytes, way);
}

int stagedi_finish(struct staged *self)
{
    return device_synchronize(self->gpu, self->stream);
}

float *stagedi_outgoing(struct staged *self, uint32_t slot)
{
    return (float *)(void *)(self->bounce + slot * self->chunk_bytes);
}

float *stagedi_own(struct staged *self, uint32_t round)
{
    return stagedi_outgoing(self, self->slot_count + (round & 1));
}

float *stagedi_total(struct staged *self)
{
    return stagedi_outgoing(self, self->slot_count + 2);
}

uint64_t stagedi_held_bytes(const struct staged *self)
{
    return self->bounce_bytes;
}
