/* The lanes of an engine, and the executor that feeds them.
 *
 *   lane                CPU backend                 with a GPU
 *   read, write         drives                      drives
 *   h2d, d2h            worker "copies"             streams
 *   compute             worker "cores"              stream
 *   update              worker "cores", or its own  worker "update"
 *   comm (many ranks)   worker "comm"               NCCL's stream, else worker "comm"
 *   commit              worker "commit"             worker "commit"
 *
 * Each worker has a thread of its own on the cores of its group. engine.c calls this file, at start
 * and end. */
#include "base/thread.h"
#include "engine/engine_internal.h"

enum {
    OWNER_CORES = 1,
    OWNER_COPIES,
    OWNER_UPDATES,
    OWNER_GPU,
    OWNER_COMMITS,
    OWNER_COLLECTIVES,
    TRACE_EVENTS = 1 << 16,
    LANE_DEPTH = 4,
};

/* `group` is a core_group. Binds the worker and its OpenMP team. */
static int team_start(void *group)
{
    const core_group *own = group;
    return thread_bind_team(&own->cores, own->thread_count);
}

/* For threads that mostly wait: those of copies and collectives, and those that checksum
 * transfers. */
int enginei_start_io_thread(void *group)
{
    const core_group *own = group;
    thread_ask_short_slice();
    return thread_bind(&own->cores);
}

void enginei_list_programs(const struct engine *self, const program *programs[PROGRAM_KIND_COUNT])
{
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
        programs[k] = &self->setup->set.programs[k];
}

/* The start of the device arena, if the host can read it; NULL if it is GPU memory. */
static unsigned char *readable_device(const struct engine *self)
{
    return self->setup->gpu ? NULL : self->arenas[TIER_DEVICE].base;
}

/* A worker of the engine. run.paranoid puts its checks before the callback `run`. `start` gets
 * `group`. */
struct worker_plan {
    const char *name;
    int (*run)(void *user, const program *prog, const op *item);
    int (*start)(void *group);
    core_group *group;
    uint32_t owner;
    enum lane_kind priority, other; /* the lanes served; twice the same if it serves one */
    paranoid **checked;
};

static int make_worker(struct engine *self, const struct worker_plan *plan, lane **out)
{
    lane_worker_config config = {.name = plan->name,
                                 .run = plan->run,
                                 .start_thread = plan->start,
                                 .rest = self->setup->net->module ? thread_end_team : NULL,
                                 .user = self,
                                 .start_user = plan->group,
                                 .owner = plan->owner,
                                 .depth = LANE_DEPTH,
                                 .priority_lane = plan->priority};
    if (self->setup->job->run.paranoid) {
        const program *programs[PROGRAM_KIND_COUNT];
        enginei_list_programs(self, programs);
        paranoid_config checked = {
            .programs = programs,
            .program_count = PROGRAM_KIND_COUNT,
            .arena_base = {readable_device(self), self->arenas[TIER_HOST].base},
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

/* Fails if another rank is gone: a stream may wait for a rank that is gone. */
static int watch_ranks(void *user)
{
    return comm_watch(((struct engine *)user)->setup->ranks.comm);
}

static int make_gpu_lane(struct engine *self)
{
    lane_stream_config config = {
        .gpu = self->setup->gpu,
        .serves = {[LANE_H2D] = true,
                   [LANE_D2H] = true,
                   [LANE_COMPUTE] = true,
                   [LANE_COMM] = self->setup->collectives == COMM_NCCL},
        .arena_base = {self->arenas[TIER_DEVICE].base, self->arenas[TIER_HOST].base},
        .enqueue = enginei_enqueue_op,
        .finish = enginei_finish_op,
        .watch = self->setup->ranks.world > 1 ? watch_ranks : NULL,
        .user = self,
        .is_timed = self->setup->job->run.trace || self->watch,
        .owner = OWNER_GPU,
        .depth = ENGINE_GPU_DEPTH,
    };
    TRY(lane_stream_create(&config, &self->gpu_lane));
    if (self->setup->job->run.paranoid) /* its executor has one op in flight on each lane */
        return 0;
    const program *programs[PROGRAM_KIND_COUNT];
    enginei_list_programs(self, programs);
    lane_stream_graphs graphs = {.may_replay = enginei_may_replay,
                                 .bytes_max = self->setup->job->device.graph_bytes};
    return lane_stream_prepare(self->gpu_lane, programs, PROGRAM_KIND_COUNT, &graphs);
}

/* Calls the GPU's kernels that convert for NCCL's 16-bit sums; `user` is the engine. */
static int convert_on_device(void *user, void *stream, const void *source, enum dtype source_type,
                             void *target, enum dtype target_type, uint64_t count)
{
    const struct setup *setup = ((struct engine *)user)->setup;
    return setup->ops->convert(setup->context, stream, source, source_type, target, target_type,
                               count);
}

/* Collective: all ranks together. */
int enginei_open_collectives(struct engine *self)
{
    const struct setup *setup = self->setup;
    enum comm_backend backend = setup->collectives;
    if (!setup->ranks.comm || backend == COMM_SELF)
        return 0;
    comm_open_config config = {
        .backend = backend,
        .gpu = setup->gpu,
        .stream = backend == COMM_NCCL ? lane_stream_of(self->gpu_lane, LANE_COMM) : NULL,
        .staging_bytes = setup->job->comm.staging_bytes,
        .convert = convert_on_device,
        .convert_user = self,
        .call_seconds = setup->plan.machine.comm_seconds,
        .bytes_per_second = setup->plan.machine.comm_bytes_per_second,
        .has_parcels = setup->is_owned != NULL,
        .moves_own_alone = self->watch && self->watch->only_transfers,
    };
    return comm_open(setup->ranks.comm, &config);
}

/* This worker mostly waits for other ranks; else it copies and sums. */
static int make_comm_lane(struct engine *self)
{
    if (self->setup->ranks.world == 1 || self->setup->collectives == COMM_NCCL)
        return 0;
    struct worker_plan plan = {.name = "comm",
                               .run = enginei_run_collective,
                               .start = enginei_start_io_thread,
                               .group = &self->setup->cores.io,
                               .owner = OWNER_COLLECTIVES,
                               .priority = LANE_COMM,
                               .other = LANE_COMM,
                               .checked = &self->checked_comm};
    return make_worker(self, &plan, &self->comm_lane);
}

/* For engines whose programs do not commit. */
static int refuse_commit(void *user, const program *prog, const op *item)
{
    (void)user;
    (void)prog;
    (void)item;
    return err_set(ERR_INTERNAL, "a program commits, but its engine has no commit");
}

/* This worker waits for drives. It only touches the manifest's memory, so run.paranoid has nothing
 * to check there. */
static int make_commit_lane(struct engine *self)
{
    lane_worker_config config = {.name = "commit",
                                 .run = self->run_commit ? self->run_commit : refuse_commit,
                                 .start_thread = enginei_start_io_thread,
                                 .user = self->commit_user,
                                 .start_user = &self->setup->cores.io,
                                 .owner = OWNER_COMMITS,
                                 .depth = 1,
                                 .priority_lane = LANE_COMMIT};
    return lane_worker_create(&config, &self->commit_lane);
}

int enginei_make_workers(struct engine *self)
{
    core_plan *cores = &self->setup->cores;
    /* A compute worker that only waits takes no core from the update. */
    bool shares = cores->update_is_compute && !(self->watch && self->watch->only_transfers);
    struct worker_plan compute = {.name = "cores",
                                  .run = enginei_run_op,
                                  .start = team_start,
                                  .group = &cores->compute,
                                  .owner = OWNER_CORES,
                                  .priority = shares ? LANE_UPDATE : LANE_COMPUTE,
                                  .other = LANE_COMPUTE,
                                  .checked = &self->checked_cores};
    struct worker_plan update = {.name = "update",
                                 .run = enginei_run_op,
                                 .start = team_start,
                                 .group = &cores->update,
                                 .owner = OWNER_UPDATES,
                                 .priority = LANE_UPDATE,
                                 .other = LANE_UPDATE,
                                 .checked = &self->checked_updates};
    struct worker_plan copies = {.name = "copies",
                                 .run = enginei_run_copy,
                                 .start = enginei_start_io_thread,
                                 .group = &cores->io,
                                 .owner = OWNER_COPIES,
                                 .priority = LANE_D2H,
                                 .other = LANE_H2D,
                                 .checked = &self->checked_copies};
    if (!shares) {
        kernel_context_config context = {.thread_count = (int)cores->update.thread_count};
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

static void destroy(lane *item)
{
    if (item)
        item->ops->destroy(item);
}

/* setup_test.lanes: replaces the engine's own lanes by the test's. */
int enginei_wrap_lanes(struct engine *self, const struct setup_lanes *test)
{
    const program *programs[PROGRAM_KIND_COUNT];
    enginei_list_programs(self, programs);
    TRY(test->begin(test->user, programs, PROGRAM_KIND_COUNT));
    self->test = test;
    TRY(test->wrap(test->user, LANE_READ, &self->io_lane));
    TRY(test->wrap(test->user, LANE_H2D, &self->copy_lane));
    if (self->comm_lane)
        TRY(test->wrap(test->user, LANE_COMM, &self->comm_lane));
    return test->wrap(test->user, LANE_COMPUTE, &self->core_lane);
}

int enginei_make_executor(struct engine *self)
{
    const program *programs[PROGRAM_KIND_COUNT];
    enginei_list_programs(self, programs);
    lane *gpu = self->gpu_lane, *copies = gpu ? gpu : self->copy_lane;
    executor_config config = {
        .lanes = {[LANE_READ] = self->io_lane,
                  [LANE_WRITE] = self->io_lane,
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
        .is_committing = &self->is_committing,
        .stuck_ns = (uint64_t)(self->setup->job->io.stuck_seconds * 1e9),
        .paranoid = self->setup->job->run.paranoid,
        .arena_base = {readable_device(self), self->arenas[TIER_HOST].base},
    };
    uint64_t events = TRACE_EVENTS; /* a watch gets all ops of a step */
    while (self->watch && events < self->setup->set.programs[PROGRAM_STEADY].op_count)
        events *= 2;
    TRY(trace_init(&self->ring, events));
    return executor_create(&config, &self->runner);
}

void enginei_destroy_lanes(struct engine *self)
{
    destroy(self->io_lane);
    destroy(self->core_lane);
    destroy(self->update_lane);
    destroy(self->copy_lane);
    destroy(self->gpu_lane);
    destroy(self->commit_lane);
    destroy(self->comm_lane);
}
