/* Memory, slabs and lanes of a setup: reserved once, at start, then only used.
 *
 *   arenas (device, host) -> slab -> io -> lanes (read, write | cores | copies) -> executor
 *                                                 (read, write | streams of the GPU | update)
 *                                                 and the commit's worker
 *
 * The compute and update lanes share one worker where both want the same cores, as on the CPU backend
 * unless the job says otherwise. Copies between host and device have a worker of their own there, as a
 * DMA engine would. With a GPU the device arena is one allocation of its memory, the host arena is
 * pinned, and compute and copies are streams behind one lane; the update's worker is the CPU's.
 *
 * Collectives of several ranks have a worker of their own; with NCCL they are a stream of the GPU. */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/thread.h"
#include "base/tile.h"
#include "train/train_internal.h"

enum {
    OWNER_CORES = 1,
    OWNER_COPIES,
    OWNER_UPDATES,
    OWNER_GPU,
    OWNER_COMMITS,
    OWNER_COLLECTIVES,
    TRACE_EVENTS = 1 << 16,
    LANE_DEPTH = 4,
    GPU_DEPTH = 8, /* per stream: a few small ops ahead, so that the GPU never waits for the host */
};

/* The host arena: fresh memory, or that of the caller of train_run. */
static int make_host_arena(traini_engine *self, const train_memory *memory, uint64_t size_bytes)
{
    traini_setup *setup = self->setup;
    arena *host = &self->arenas[ARENA_HOST];
    if (memory) {
        char need[SIZE_TEXT_BYTES], has[SIZE_TEXT_BYTES];
        if (memory->host.size_bytes < size_bytes)
            return err_set(ERR_NO_FIT, "the memory given for runs has %s, but this run needs %s",
                           size_format(memory->host.size_bytes, has),
                           size_format(size_bytes, need));
        *host = memory->host;
        host->size_bytes = size_round_up(size_bytes, TILE_BLOCK_BYTES); /* what I/O is told of */
        self->borrows_host = true;
        if (!setup->gpu || memory->is_pinned)
            return 0;
    } else {
        arena_config config = {.name = "host",
                               .size_bytes = size_bytes,
                               .nodes = &setup->cores.host,
                               .touch_threads = setup->gpu ? (int)setup->cores.update.thread_count
                                                           : setup->thread_count};
        TRY(arena_init(host, &config));
    }
    if (!setup->gpu)
        return 0;
    TRY(device_pin(setup->gpu, host->base, size_round_up(size_bytes, TILE_BLOCK_BYTES)));
    self->is_pinned = true;
    return 0;
}

static int make_arenas(traini_engine *self, const train_memory *memory)
{
    traini_setup *setup = self->setup;
    uint64_t bytes[2];
    for (int a = ARENA_DEVICE; a <= ARENA_HOST; a++)
        bytes[a] = size_max(traini_reached_bytes(setup, (enum arena_kind)a), TILE_BLOCK_BYTES);
    topology_place_memory(&setup->machine, bytes[ARENA_HOST], setup->gpu ? 0 : bytes[ARENA_DEVICE],
                          &setup->cores);
    for (uint32_t i = 0; i < setup->cores.note_count; i++)
        log_warn("%s", setup->cores.notes[i]);
    if (setup->gpu) {
        TRY(device_reserve(setup->gpu, bytes[ARENA_DEVICE], &self->arenas[ARENA_DEVICE].base));
        self->arenas[ARENA_DEVICE].size_bytes = bytes[ARENA_DEVICE];
    } else {
        arena_config config = {.name = "device",
                               .size_bytes = bytes[ARENA_DEVICE],
                               .nodes = &setup->cores.device,
                               .touch_threads = setup->thread_count};
        TRY(arena_init(&self->arenas[ARENA_DEVICE], &config));
    }
    return make_host_arena(self, memory, bytes[ARENA_HOST]);
}

int traini_result_memory(traini_engine *self, uint64_t size_bytes, void **out)
{
    if (self->setup->gpu) /* the device keeps it, and frees it when it is closed */
        return device_alloc_pinned(self->setup->gpu, size_bytes, out);
    for (size_t i = 0; i < sizeof self->results / sizeof self->results[0]; i++) {
        if (self->results[i])
            continue;
        *out = self->results[i] = mem_alloc(size_bytes, 1, "results");
        return *out ? 0 : -ENOMEM;
    }
    *out = NULL;
    return err_set(ERR_INTERNAL, "the engine has no place for another result");
}

/* The model's tables, and where the norm's sum arrives. */
static int make_results(traini_engine *self)
{
    traini_setup *setup = self->setup;
    void *total;
    TRY(traini_result_memory(self, sizeof *self->norm_total, &total));
    self->norm_total = total;
    if (setup->set.homes.constants == PROGRAM_NONE)
        return 0;
    TRY(model_fill_constants(setup->net, NULL, traini_home(self, setup->set.homes.constants)));
    return setup->gpu ? device_synchronize(setup->gpu, NULL) : 0;
}

static enum io_backend io_backend_of(const struct job *asked)
{
    if (strcmp(asked->io.backend, "pool") == 0)
        return IO_POOL;
    return strcmp(asked->io.backend, "uring") == 0 ? IO_URING : IO_AUTO;
}

static int make_disk(traini_engine *self, const struct traini_engine_options *options)
{
    traini_setup *setup = self->setup;
    self->disk = mem_alloc(1, sizeof *self->disk, "slab");
    if (!self->disk)
        return -ENOMEM;
    if (!options->open_existing) /* an existing slab has its shares in its headers */
        TRY(slab_weigh_drives_by(setup->drives, setup->drive_count, io_backend_of(setup->job)));
    slab_config config = {
        .drives = setup->drives,
        .drive_count = setup->drive_count,
        .total_bytes = options->slab_bytes
                           ? options->slab_bytes
                           : size_max(traini_reached_bytes(setup, ARENA_NVME), TILE_BLOCK_BYTES),
        .stripe_bytes = options->stripe_bytes,
        .open_existing = options->open_existing,
        .only_reads = setup->plan.only_eval,
        .rank = setup->ranks.rank,
    };
    memcpy(config.uuid, options->uuid, sizeof config.uuid);
    TRY(slab_open(self->disk, &config));
    self->disk_is_open = true;
    return 0;
}

/* `group` is a core_group: the worker and its OpenMP team. */
static int team_start(void *group)
{
    const core_group *own = group;
    return thread_bind_team(&own->cores, own->thread_count);
}

static void list_programs(const traini_engine *self, const program *programs[PROGRAM_KIND_COUNT])
{
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
        programs[k] = &self->setup->set.programs[k];
}

/* Threads that mostly wait: copies, sums of what moves. */
static int io_thread_start(void *group)
{
    const core_group *own = group;
    thread_ask_short_slice();
    return thread_bind(&own->cores);
}

/* Memory of simulated drives that outlives the engine, where the caller wants that. */
static int make_store(traini_engine *self, const struct traini_engine_options *options,
                      sim_store **store)
{
    *store = NULL;
    if (!options->simulates_drives)
        return 0;
    if (options->store && *options->store) {
        *store = *options->store;
        return 0;
    }
    TRY(sim_store_create(self->disk, true, store));
    if (options->store)
        *options->store = *store;
    else
        self->store = *store;
    return 0;
}

/* Where the state of the programs lies; what `found` says is there. */
static int make_places(traini_engine *self, const struct traini_engine_options *options)
{
    int rc = traini_places_create(self->setup, options->found, &self->places);
    if (rc == 0)
        return err_set(ERR_INTERNAL, "the extents of the run are not where its layout has them");
    return rc < 0 ? rc : 0;
}

static int make_io(traini_engine *self, const struct traini_engine_options *options)
{
    const struct job *asked = self->setup->job;
    io_region regions[1] = {
        {self->arenas[ARENA_HOST].base,
         self->arenas[ARENA_HOST].size_bytes / TILE_BLOCK_BYTES * TILE_BLOCK_BYTES}};
    sim_store *store;
    TRY(make_store(self, options, &store));
    io_config config = {
        .target = self->disk,
        .store = store,
        .backend = options->simulates_drives ? IO_SIM : io_backend_of(asked),
        .queue_depth = (uint32_t)size_min(asked->io.queue_depth, IO_QUEUE_DEPTH_MAX),
        .block_bytes = asked->io.block_bytes,
        .pool_threads = self->setup->cores.io.thread_count,
        .regions = regions,
        .region_count = 1,
        .request_capacity = 256,
        .stuck_ns = (uint64_t)(asked->io.stuck_seconds * 1e9),
        .stop_ns = (uint64_t)(asked->io.stop_seconds * 1e9),
        .faults = options->faults,
    };
    self->io_kind = config.backend;
    int rc = io_create(&config, &self->transport);
    if (rc < 0)
        return config.backend == IO_URING ? err_prefix(rc, "io.backend is \"uring\"") : rc;
    const program *programs[PROGRAM_KIND_COUNT];
    list_programs(self, programs);
    TRY(checksum_create(programs, PROGRAM_KIND_COUNT, &self->sums));
    lane_io_config io_lanes = {.transport = self->transport,
                               .host_base = self->arenas[ARENA_HOST].base,
                               .depth = 16,
                               .request_capacity = 64,
                               .verify = self->sums,
                               .places = self->places,
                               .compares_not = !asked->io.verify_reads,
                               .start_thread = io_thread_start,
                               .user = &self->setup->cores.io};
    return lane_io_create(&io_lanes, &self->read_lane, &self->write_lane);
}

/* Start of an arena for those who look into it; NULL where that is memory of a GPU. */
static unsigned char *host_readable(const traini_engine *self, enum arena_kind which)
{
    return which == ARENA_DEVICE && self->setup->gpu ? NULL : self->arenas[which].base;
}

/* A worker of the engine, with what run.paranoid puts before its callback. `start` gets the group. */
struct worker_plan {
    const char *name;
    int (*run)(void *user, const program *prog, const op *item);
    int (*start)(void *group);
    core_group *group;
    uint32_t owner;
    enum lane_kind priority, other; /* lanes served; the same twice where it is one */
    paranoid **checked;
};

static int make_worker(traini_engine *self, const struct worker_plan *plan, lane **out)
{
    lane_worker_config config = {.name = plan->name,
                                 .run = plan->run,
                                 .start_thread = plan->start,
                                 .user = self,
                                 .start_user = plan->group,
                                 .owner = plan->owner,
                                 .depth = LANE_DEPTH,
                                 .priority_lane = plan->priority,
                                 .request_capacity = 4 * LANE_DEPTH};
    if (self->setup->job->run.paranoid) {
        const program *programs[PROGRAM_KIND_COUNT];
        list_programs(self, programs);
        paranoid_config checked = {
            .programs = programs,
            .program_count = PROGRAM_KIND_COUNT,
            .arena_base = {host_readable(self, ARENA_DEVICE), self->arenas[ARENA_HOST].base},
            .run = plan->run,
            .user = self,
        };
        checked.serves[plan->priority] = checked.serves[plan->other] = true;
        TRY(paranoid_create(&checked, plan->checked));
        config.run = paranoid_run;
        config.user = *plan->checked;
    }
    return lane_worker_create(&config, out);
}

/* Whether the other ranks are still there: a stream may wait for one that is gone. */
static int watch_ranks(void *user)
{
    return comm_watch(((traini_engine *)user)->setup->ranks.comm);
}

static int make_gpu_lane(traini_engine *self)
{
    lane_stream_config config = {
        .gpu = self->setup->gpu,
        .serves = {[LANE_H2D] = true,
                   [LANE_D2H] = true,
                   [LANE_COMPUTE] = true,
                   [LANE_COMM] = traini_comm_backend(self->setup) == COMM_NCCL},
        .arena_base = {self->arenas[ARENA_DEVICE].base, self->arenas[ARENA_HOST].base},
        .enqueue = traini_enqueue_op,
        .finish = traini_finish_op,
        .watch = self->setup->ranks.world > 1 ? watch_ranks : NULL,
        .user = self,
        .owner = OWNER_GPU,
        .depth = GPU_DEPTH,
    };
    return lane_stream_create(&config, &self->gpu_lane);
}

/* The GPU's kernels for NCCL's 16-bit sums; `user` is the engine. */
static int convert_on_device(void *user, void *stream, const void *source, enum dtype source_type,
                             void *target, enum dtype target_type, uint64_t count)
{
    const traini_setup *setup = ((traini_engine *)user)->setup;
    return setup->ops->convert(setup->context, stream, source, source_type, target, target_type,
                               count);
}

/* All ranks together. */
static int open_collectives(traini_engine *self)
{
    const traini_setup *setup = self->setup;
    enum comm_backend backend = traini_comm_backend(setup);
    if (!setup->ranks.comm || backend == COMM_SELF)
        return 0;
    comm_open_config config = {
        .backend = backend,
        .gpu = setup->gpu,
        .stream = backend == COMM_NCCL ? lane_stream_of(self->gpu_lane, LANE_COMM) : NULL,
        .staging_bytes = setup->job->comm.staging_bytes,
        .convert = convert_on_device,
        .convert_user = self,
    };
    return comm_open(setup->ranks.comm, &config);
}

/* It mostly waits for other ranks, else copies and sums. */
static int make_comm_lane(traini_engine *self)
{
    if (self->setup->ranks.world == 1 || traini_comm_backend(self->setup) == COMM_NCCL)
        return 0;
    struct worker_plan plan = {.name = "comm",
                               .run = traini_run_collective,
                               .start = io_thread_start,
                               .group = &self->setup->cores.io,
                               .owner = OWNER_COLLECTIVES,
                               .priority = LANE_COMM,
                               .other = LANE_COMM,
                               .checked = &self->checked_comm};
    return make_worker(self, &plan, &self->comm_lane);
}

/* It waits for drives. Its memory is the manifest's alone, so run.paranoid has nothing to check there. */
static int make_commit_lane(traini_engine *self)
{
    lane_worker_config config = {.name = "commit",
                                 .run = traini_run_commit,
                                 .start_thread = io_thread_start,
                                 .user = self,
                                 .start_user = &self->setup->cores.io,
                                 .owner = OWNER_COMMITS,
                                 .depth = 1,
                                 .priority_lane = LANE_COMMIT,
                                 .request_capacity = LANE_DEPTH};
    return lane_worker_create(&config, &self->commit_lane);
}

static int make_workers(traini_engine *self)
{
    core_plan *cores = &self->setup->cores;
    bool shares = cores->update_is_compute;
    struct worker_plan compute = {.name = "cores",
                                  .run = traini_run_op,
                                  .start = team_start,
                                  .group = &cores->compute,
                                  .owner = OWNER_CORES,
                                  .priority = shares ? LANE_UPDATE : LANE_COMPUTE,
                                  .other = LANE_COMPUTE,
                                  .checked = &self->checked_cores};
    struct worker_plan update = {.name = "update",
                                 .run = traini_run_op,
                                 .start = team_start,
                                 .group = &cores->update,
                                 .owner = OWNER_UPDATES,
                                 .priority = LANE_UPDATE,
                                 .other = LANE_UPDATE,
                                 .checked = &self->checked_updates};
    struct worker_plan copies = {.name = "copies",
                                 .run = traini_run_copy,
                                 .start = io_thread_start,
                                 .group = &cores->io,
                                 .owner = OWNER_COPIES,
                                 .priority = LANE_D2H,
                                 .other = LANE_H2D,
                                 .checked = &self->checked_copies};
    if (!shares) {
        kernel_context_config context = {.thread_count = (int)cores->update.thread_count,
                                         .adam_variant = "auto"};
        TRY(kernels_cpu.context_create(&context, &self->update_context));
        TRY(make_worker(self, &update, &self->update_lane));
    }
    TRY(make_commit_lane(self));
    TRY(make_comm_lane(self));
    if (self->setup->gpu)
        return make_gpu_lane(self);
    TRY(make_worker(self, &compute, &self->core_lane));
    return make_worker(self, &copies, &self->copy_lane);
}

static void destroy_lane(lane *item)
{
    if (item)
        item->ops->destroy(item);
}

/* train_options.pace: the lanes take as long as on the stated machine; what computes takes time alone. */
static int pace_lanes(traini_engine *self)
{
    const plan_machine *machine = &self->setup->plan.machine;
    const program *programs[PROGRAM_KIND_COUNT];
    list_programs(self, programs);
    lane_pace_config config = {
        .rates = {.drive_read_bytes = machine->drive_read_bytes_per_second,
                  .drive_write_bytes = machine->drive_write_bytes_per_second,
                  .h2d_bytes = machine->h2d_bytes_per_second,
                  .d2h_bytes = machine->d2h_bytes_per_second,
                  .comm_bytes = machine->comm_bytes_per_second,
                  .dram_bytes = machine->dram_bytes_per_second,
                  .device_flops = machine->device_flops_per_second,
                  .device_bytes = machine->device_bytes_per_second,
                  .cores = machine->core_count,
                  .device_is_cpu = machine->device_is_cpu,
                  .op_seconds = machine->op_seconds},
        .programs = programs,
        .program_count = PROGRAM_KIND_COUNT,
    };
    TRY(lane_pace_create(&config, &self->pace));
    TRY(lane_pace_wrap(self->pace, self->read_lane, &self->read_lane));
    TRY(lane_pace_wrap(self->pace, self->write_lane, &self->write_lane));
    TRY(lane_pace_wrap(self->pace, self->copy_lane, &self->copy_lane));
    if (self->comm_lane)
        TRY(lane_pace_wrap(self->pace, self->comm_lane, &self->comm_lane));
    destroy_lane(self->core_lane);
    self->core_lane = NULL;
    return lane_pace_wrap(self->pace, NULL, &self->core_lane);
}

static int make_executor(traini_engine *self)
{
    const program *programs[PROGRAM_KIND_COUNT];
    list_programs(self, programs);
    lane *gpu = self->gpu_lane, *copies = gpu ? gpu : self->copy_lane;
    executor_config config = {
        .lanes = {[LANE_READ] = self->read_lane,
                  [LANE_WRITE] = self->write_lane,
                  [LANE_H2D] = copies,
                  [LANE_D2H] = copies,
                  [LANE_COMM] = self->comm_lane ? self->comm_lane : gpu,
                  [LANE_COMPUTE] = gpu ? gpu : self->core_lane,
                  [LANE_UPDATE] = self->update_lane ? self->update_lane : self->core_lane,
                  [LANE_COMMIT] = self->commit_lane},
        .programs = programs,
        .program_count = PROGRAM_KIND_COUNT,
        .ring = &self->ring,
        .is_skipped = &self->step.skip,
        .is_committing = &self->commit.is_due,
        .stuck_ns = (uint64_t)(self->setup->job->io.stuck_seconds * 1e9),
        .paranoid = self->setup->job->run.paranoid,
        .arena_base = {host_readable(self, ARENA_DEVICE), self->arenas[ARENA_HOST].base},
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
    self->commit.metrics_fd = -1;
    int rc = make_disk(self, options); /* refuses sooner than memory can be touched */
    if (rc == 0)
        rc = make_arenas(self, options->memory);
    if (rc == 0)
        rc = make_results(self);
    self->is_bound =
        rc == 0 && sched_getaffinity(0, sizeof self->caller_cores, &self->caller_cores) == 0;
    if (rc == 0) /* this thread runs the executor, and the threads of the pool are like it */
        rc = thread_bind(&setup->cores.io.cores);
    if (rc == 0)
        rc = make_places(self, options);
    if (rc == 0)
        rc = make_io(self, options);
    if (rc == 0)
        rc = make_workers(self);
    if (rc == 0)
        rc = open_collectives(self);
    if (rc == 0 && options->is_paced)
        rc = pace_lanes(self);
    if (rc == 0)
        rc = make_executor(self);
    thread_ask_short_slice(); /* the workers exist and keep longer ones */
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

/* After a failure of the GPU itself each call fails with what the run has already said. */
static void warn_unless(bool has_failed)
{
    if (!has_failed)
        log_warn("%s", err_text());
}

static void release_memory(traini_engine *self)
{
    device *gpu = self->setup->gpu;
    bool has_failed = gpu && device_synchronize(gpu, NULL) < 0;
    if (self->is_pinned && device_unpin(gpu, self->arenas[ARENA_HOST].base) < 0)
        warn_unless(has_failed);
    if (gpu && self->arenas[ARENA_DEVICE].base && device_release(gpu) < 0)
        warn_unless(has_failed);
    for (int a = ARENA_DEVICE; a <= ARENA_HOST; a++)
        if (self->arenas[a].base && !(a == ARENA_DEVICE ? gpu != NULL : self->borrows_host))
            arena_fini(&self->arenas[a]);
    for (size_t i = 0; i < sizeof self->results / sizeof self->results[0]; i++)
        mem_free(self->results[i]);
}

void traini_engine_destroy(traini_engine *self)
{
    if (!self)
        return;
    executor_destroy(self->runner);
    destroy_lane(self->read_lane);
    destroy_lane(self->write_lane);
    destroy_lane(self->core_lane);
    destroy_lane(self->update_lane);
    destroy_lane(self->copy_lane);
    destroy_lane(self->gpu_lane);
    destroy_lane(self->commit_lane);
    destroy_lane(self->comm_lane);
    lane_pace_destroy(self->pace);
    comm_close(self->setup->ranks.comm);
    if (self->update_context)
        kernels_cpu.context_destroy(self->update_context);
    paranoid_destroy(self->checked_cores);
    paranoid_destroy(self->checked_updates);
    paranoid_destroy(self->checked_copies);
    paranoid_destroy(self->checked_comm);
    if (self->transport)
        io_destroy(self->transport);
    sim_store_destroy(self->store);
    checksum_destroy(self->sums);
    place_table_destroy(self->places);
    traini_keeper_destroy(self->commit.keeper);
    mem_free(self->commit.own);
    mem_free(self->commit.all);
    manifest_fini(&self->commit.record);
    if (self->disk_is_open)
        slab_close(self->disk);
    mem_free(self->disk);
    release_memory(self);
    trace_fini(&self->ring);
    if (self->is_bound && sched_setaffinity(0, sizeof self->caller_cores, &self->caller_cores) != 0)
        log_warn("the calling thread stays on the cores of I/O: %s", strerror(errno));
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
