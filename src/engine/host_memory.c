/* Host memory that outlives a run: it is touched, and pinned for the GPU, once for all runs of a
 * process that follow each other. See engine.h. */
#include <errno.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "engine/engine_internal.h"

static int fill(engine_memory *self, uint64_t host_bytes)
{
    topology machine;
    core_plan cores;
    char reason[DEVICE_TEXT_BYTES];
    if (kernels_cuda() && device_count(reason) > 0)
        TRY(device_open(0, &self->gpu));
    TRY(topology_read(&machine));
    if (self->gpu)
        machine.device_node = topology_pci_node(device_get_info(self->gpu)->pci_bus_id);
    core_request request = {
        .compute = {"device", NULL, 0},
        .update = {"update", NULL, 0},
        .io = {"io", NULL, 0},
        .device_is_cpu = !self->gpu,
    };
    TRY(topology_place(&machine, &request, &cores));
    topology_place_memory(&machine, host_bytes, 0, &cores);
    arena_config config = {.name = "host",
                           .size_bytes = host_bytes,
                           .nodes = &cores.host,
                           .touch_threads = (int)cores.update.thread_count};
    TRY(arena_init(&self->host, &config));
    if (self->gpu) {
        TRY(device_pin(self->gpu, self->host.base, size_round_up(host_bytes, TILE_BLOCK_BYTES)));
        self->is_pinned = true;
    }
    return 0;
}

int engine_memory_create(uint64_t host_bytes, engine_memory **out)
{
    *out = NULL;
    if (host_bytes == 0)
        return err_set(-EINVAL, "memory for runs: 0 bytes");
    engine_memory *self = mem_alloc(1, sizeof *self, "memory for runs");
    if (!self)
        return -ENOMEM;
    int rc = fill(self, host_bytes);
    if (rc < 0) {
        err_record first;
        err_save(&first, rc);
        engine_memory_destroy(self);
        return err_restore(&first);
    }
    *out = self;
    return 0;
}

void engine_memory_destroy(engine_memory *self)
{
    if (!self)
        return;
    if (self->is_pinned && device_unpin(self->gpu, self->host.base) < 0)
        log_warn("%s", err_text());
    if (self->host.base)
        arena_fini(&self->host);
    device_close(self->gpu);
    mem_free(self);
}
