/* Memory, slabs and lanes of a setup: reserved once, at start, then only used.
 *
 *   arenas (device, host) -> slab -> io -> lanes (read, write | cores | copies) -> executor
 *
 * The compute and update lanes share one worker: on the CPU backend both want all cores. Copies
 * between host and device have a worker of their own, as a DMA engine would. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/thread.h"
#include "base/tile.h"
#include "train/train_internal.h"

enum { OWNER_IO = 1, OWNER_CORES = 2, OWNER_COPIES = 3, TRACE_EVENTS = 1 << 16, LANE_DEPTH = 4 };

static int make_arenas(traini_engine *self)
{
    const traini_setup *setup = self->setup;
    static const char *const names[2] = {"device", "host"};
    for (int a = ARENA_DEVICE; a <= ARENA_HOST; a++) {
        arena_config config = {
            .name = names[a],
            .size_bytes = setup->plan.budget_bytes[a],
            .numa_node = arena_local_node(),
            .touch_threads = setup->thread_count,
        };
        /* Budgets are limits; what no program reaches need not be taken from the machine. */
        uint64_t peak = 0;
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
            peak = size_max(peak, setup->set.programs[k].peak_bytes[a]);
        config.size_bytes = size_max(size_min(config.size_bytes, peak), TILE_BLOCK_BYTES);
        TRY(arena_init(&self->arenas[a], &config));
    }
    return 0;
}

static uint64_t nvme_bytes(const traini_setup *setup)
{
    uint64_t bytes = 0;
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
        bytes = size_max(bytes, setup->set.programs[k].peak_bytes[ARENA_NVME]);
    return bytes;
}

static int make_disk(traini_engine *self, const struct traini_engine_options *options)
{
    const traini_setup *setup = self->setup;
    self->disk = mem_alloc(1, sizeof *self->disk, "slab");
    if (!self->disk)
        return -ENOMEM;
    slab_config config = {
        .drives = setup->drives,
        .drive_count = setup->drive_count,
        .total_bytes = options->slab_bytes ? options->slab_bytes : nvme_bytes(setup),
        .stripe_bytes = options->stripe_bytes,
        .open_existing = options->open_existing,
    };
    memcpy(config.uuid, options->uuid, sizeof config.uuid);
    TRY(slab_open(self->disk, &config));
    self->disk_is_open = true;
    return 0;
}

static int copies_start(void *user)
{
    (void)user;
    thread_ask_short_slice();
    return 0;
}

static int make_lanes(traini_engine *self)
{
    const struct job *asked = self->setup->job;
    io_region regions[1] = {
        {self->arenas[ARENA_HOST].base,
         self->arenas[ARENA_HOST].size_bytes / TILE_BLOCK_BYTES * TILE_BLOCK_BYTES}};
    io_config config = {
        .target = self->disk,
        .backend = strcmp(asked->io.backend, "pool") == 0    ? IO_POOL
                   : strcmp(asked->io.backend, "uring") == 0 ? IO_URING
                                                             : IO_AUTO,
        .queue_depth = (uint32_t)asked->io.queue_depth,
        .block_bytes = asked->io.block_bytes,
        .regions = regions,
        .region_count = 1,
        .request_capacity = 256,
    };
    TRY(io_create(&config, &self->transport));
    lane_io_config io_lanes = {.transport = self->transport,
                               .host_base = self->arenas[ARENA_HOST].base,
                               .depth = 16,
                               .request_capacity = 64};
    TRY(lane_io_create(&io_lanes, &self->read_lane, &self->write_lane));
    lane_worker_config cores = {.name = "cores",
                                .run = traini_run_op,
                                .user = self,
                                .owner = OWNER_CORES,
                                .depth = LANE_DEPTH,
                                .priority_lane = LANE_UPDATE,
                                .request_capacity = 4 * LANE_DEPTH};
    TRY(lane_worker_create(&cores, &self->core_lane));
    lane_worker_config copies = {.name = "copies",
                                 .run = traini_run_copy,
                                 .start_thread = copies_start,
                                 .user = self,
                                 .owner = OWNER_COPIES,
                                 .depth = LANE_DEPTH,
                                 .priority_lane = LANE_D2H,
                                 .request_capacity = 4 * LANE_DEPTH};
    return lane_worker_create(&copies, &self->copy_lane);
}

static int make_executor(traini_engine *self)
{
    const program *programs[PROGRAM_KIND_COUNT];
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
        programs[k] = &self->setup->set.programs[k];
    executor_config config = {
        .lanes = {[LANE_READ] = self->read_lane,
                  [LANE_WRITE] = self->write_lane,
                  [LANE_H2D] = self->copy_lane,
                  [LANE_D2H] = self->copy_lane,
                  [LANE_COMPUTE] = self->core_lane,
                  [LANE_UPDATE] = self->core_lane},
        .programs = programs,
        .program_count = PROGRAM_KIND_COUNT,
        .ring = &self->ring,
    };
    TRY(trace_init(&self->ring, TRACE_EVENTS));
    return executor_create(&config, &self->runner);
}

int traini_engine_create(traini_setup *setup, const struct traini_engine_options *options,
                         traini_engine **out)
{
    *out = NULL;
    traini_engine *self = mem_alloc(1, sizeof *self, "engine");
    if (!self)
        return -ENOMEM;
    self->setup = setup;
    self->logits_row = -1;
    self->step.loss_scale = 1.0;
    int rc = make_disk(self, options); /* refuses sooner than memory can be touched */
    if (rc == 0)
        rc = make_arenas(self);
    if (rc == 0)
        rc = make_lanes(self);
    if (rc == 0)
        rc = make_executor(self);
    thread_ask_short_slice(); /* this thread runs the executor; the workers exist */
    if (rc == 0 && setup->set.homes.constants != PROGRAM_NONE)
        rc = model_fill_constants(setup->net, NULL, traini_home(self, setup->set.homes.constants));
    if (rc < 0) {
        err_record first;
        err_save(&first, rc);
        if (self->disk_is_open && !options->open_existing) {
            int removed = slab_remove(self->disk);
            self->disk_is_open = removed < 0;
        }
        traini_engine_destroy(self);
        return err_restore(&first);
    }
    *out = self;
    return 0;
}

static void destroy_lane(lane *item)
{
    if (item)
        item->ops->destroy(item);
}

void traini_engine_destroy(traini_engine *self)
{
    if (!self)
        return;
    executor_destroy(self->runner);
    destroy_lane(self->read_lane);
    destroy_lane(self->write_lane);
    destroy_lane(self->core_lane);
    destroy_lane(self->copy_lane);
    if (self->transport)
        io_destroy(self->transport);
    if (self->disk_is_open)
        slab_close(self->disk);
    mem_free(self->disk);
    for (int a = ARENA_DEVICE; a <= ARENA_HOST; a++)
        if (self->arenas[a].base)
            arena_fini(&self->arenas[a]);
    trace_fini(&self->ring);
    mem_free(self->logits);
    mem_free(self);
}

unsigned char *traini_home(const traini_engine *self, uint32_t buffer_idx)
{
    const buffer *home = &self->setup->set.programs[PROGRAM_EVAL].buffers[buffer_idx];
    return self->arenas[home->arena].base + home->offset_bytes;
}

int traini_engine_run(traini_engine *self, enum program_kind kind, uint64_t step, run_totals *run)
{
    run_totals totals;
    int rc = executor_run(self->runner, &self->setup->set.programs[kind], step, &totals);
    for (int i = 0; i < LANE_COUNT; i++) {
        self->totals[i].bytes += totals.lanes[i].bytes;
        self->totals[i].busy_seconds += (double)totals.lanes[i].busy_ns * 1e-9;
        self->totals[i].stall_seconds += (double)totals.lanes[i].stall_ns * 1e-9;
    }
    if (run)
        *run = totals;
    return rc;
}
