/* Sends the manifest that rank 0 has read to all ranks. */
#include <errno.h>

#include "base/mem.h"
#include "state/state_internal.h"

int state_share_manifest(const struct ranks *self, manifest *found, bool *exists)
{
    if (self->world == 1)
        return 0;
    uint8_t there = *exists;
    TRY(comm_broadcast(self->comm, "whether there is a run", &there, sizeof there));
    *exists = there;
    if (!there)
        return 0;
    manifest_extent *own = self->rank == 0 ? found->extents : NULL;
    int rc = comm_broadcast(self->comm, "manifest", found, sizeof *found);
    /* The broadcast brought rank 0's pointer, also if it was cut short. */
    found->extents = own;
    TRY(rc);
    if (!own)
        found->extents = mem_alloc(found->extent_count, sizeof *own, "manifest extents");
    TRY(ranks_agree(self, "manifest", found->extents ? 0 : -ENOMEM));
    return comm_broadcast(self->comm, "manifest extents", found->extents,
                          found->extent_count * sizeof *found->extents);
}
