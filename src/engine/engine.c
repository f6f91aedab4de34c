/* Memory, slabs and lanes of a setup: reserved once, at the start, then only used.
 *
 *   arenas (device, host) ─► slab ─► io ─► lanes (lanes.c) ─► executor
 *
 * On the CPU backend the compute and update lanes share one worker if both use the same cores,
 * which is the default. Copies between host and device have a worker of their own, as a DMA engine
 * would.
 *
 * With a GPU the device arena is one allocation of its memory, and the host arena is pinned.
 * Compute and copies are streams behind one lane; the update's worker is on the CPU.
 *
 * With several ranks, collectives have a worker of their own; with NCCL they are a stream of the
 * GPU. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/thread.h"
#include "base/tile.h"
#include "engine/engine_internal.h"
#include "model/pack.h"
#include "report/chrome_trace.h"
#include "tiers/drive_speed.h"
#include "tiers/io_faults.h"

enum { IO_LANE_DEPTH_MIN = 16, IO_LANE_DEPTH_MAX = 64 };

static int make_arenas(struct engine *self)
{
    struct setup *setup = self->setup;
    uint64_t bytes[2];
    for (int a = TIER_DEVICE; a <= TIER_HOST; a++)
        bytes[a] = size_max(setup_reached_bytes(setup, (enum tier)a), TILE_BLOCK_BYTES);
    topology_place_memory(&setup->machine, bytes[TIER_HOST], setup->gpu ? 0 : bytes[TIER_DEVICE],
                          &setup->cores);
    for (uint32_t i = 0; i < setup->cores.note_count; i++)
        log_warn("%s", setup->cores.notes[i]);
    arena_config config = {.name = "device",
                           .size_bytes = bytes[TIER_DEVICE],
                           .nodes = &setup->cores.device,
                           .touch_threads = setup->thread_count};
    if (setup->gpu) {
        TRY(device_reserve(setup->gpu, bytes[TIER_DEVICE], &self->arenas[TIER_DEVICE].base));
        self->arenas[TIER_DEVICE].size_bytes = bytes[TIER_DEVICE];
        config.touch_threads = (int)setup->cores.update.thread_count;
    } else {
        TRY(arena_init(&self->arenas[TIER_DEVICE], &config));
    }
    config.name = "host";
    config.size_bytes = bytes[TIER_HOST];
    config.nodes = &setup->cores.host;
    TRY(arena_init(&self->arenas[TIER_HOST], &config));
    if (!setup->gpu)
        return 0;
    TRY(device_pin(setup->gpu, self->arenas[TIER_HOST].base,
                   size_round_up(bytes[TIER_HOST], TILE_BLOCK_BYTES)));
    self->is_pinned = true;
    return 0;
}

int engine_result_memory(struct engine *self, uint64_t size_bytes, void **out)
{
    if (self->setup->gpu) /* the device owns it and frees it when it is closed */
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

/* Makes the memory for the norm's sums, other ranks' hits and tables of rows, and fills the model's
 * tables of constants. */
static int make_results(struct engine *self)
{
    struct setup *setup = self->setup;
    TRY(enginei_make_norm(self));
    TRY(enginei_make_united(self));
    TRY(enginei_make_parcels(self));
    if (setup->set.homes.constants == PROGRAM_NONE)
        return 0;
    TRY(model_fill_constants(setup->net, NULL, engine_home(self, setup->set.homes.constants)));
    return setup->gpu ? device_synchronize(setup->gpu, NULL) : 0;
}

enum io_backend engine_io_backend(const struct job *asked)
{
    if (strcmp(asked->io.backend, "pool") == 0)
        return IO_POOL;
    return strcmp(asked->io.backend, "uring") == 0 ? IO_URING : IO_AUTO;
}

static bool simulates_drives(const struct engine_options *options)
{
    return options->test && options->test->simulates_drives;
}

static bool keeps_no_bytes(const struct engine_options *options)
{
    return simulates_drives(options) && options->test->keeps_no_bytes;
}

static int make_disk(struct engine *self, const struct engine_options *options)
{
    struct setup *setup = self->setup;
    if (setup->drive_count == 0) /* everything is in memory */
        return 0;
    self->disk = mem_alloc(1, sizeof *self->disk, "slab");
    if (!self->disk)
        return -ENOMEM;
    if (!options->open_existing) /* the headers of an existing slab have the drives' shares */
        TRY(slab_weigh_drives_by(setup->drives, setup->drive_count, engine_io_backend(setup->job)));
    slab_config config = {
        .drives = setup->drives,
        .drive_count = setup->drive_count,
        .total_bytes = options->slab_bytes
                           ? options->slab_bytes
                           : size_max(setup_reached_bytes(setup, TIER_NVME), TILE_BLOCK_BYTES),
        .stripe_bytes = options->stripe_bytes,
        .open_existing = options->open_existing,
        .only_reads = setup->plan.only_eval && options->open_existing,
        .rank = setup->ranks.rank,
        .mode = setup->job->run.mode,
        .is_sparse = keeps_no_bytes(options),
    };
    memcpy(config.uuid, options->uuid, sizeof config.uuid);
    TRY(slab_open(self->disk, &config));
    self->disk_is_open = true;
    return 0;
}

/* Takes or makes the memory of simulated drives; it outlives the engine if the caller wants
 * that. */
static int make_store(struct engine *self, const struct engine_options *options, sim_store **store)
{
    *store = NULL;
    if (!simulates_drives(options))
        return 0;
    if (options->test->store && *options->test->store) {
        *store = *options->test->store;
        return 0;
    }
    TRY(keeps_no_bytes(options) ? sim_store_create_empty(self->disk, store)
                                : sim_store_create(self->disk, store));
    if (options->test->store)
        *options->test->store = *store;
    else
        self->store = *store;
    return 0;
}

/* Makes the table of places for the optimizer state, with the places that `found` states. */
static int make_places(struct engine *self, const struct engine_options *options)
{
    int rc = engine_places_create(self->setup, options->found, &self->places);
    if (rc == 0)
        return err_set(ERR_INTERNAL, "the extents of the run are not where its layout has them");
    return rc < 0 ? rc : 0;
}

/* The time after which a request that does not return ends the run. With several ranks it is
 * shorter than comm.timeout_seconds, after which the other ranks would count this one as gone. So
 * the message names the drive. */
static uint64_t stop_ns(const struct setup *setup)
{
    const struct job *asked = setup->job;
    double seconds = asked->io.stop_seconds, least = 0.8 * asked->comm.timeout_seconds;
    if (setup->ranks.world > 1 && (seconds == 0 || seconds > least))
        seconds = least;
    return (uint64_t)(seconds * 1e9);
}

/* Ops in flight in each direction: as many as keep all drives' queues full even if each op is
 * smaller than a block. */
static uint32_t io_lane_depth(uint32_t queue_depth, uint32_t drive_count)
{
    uint64_t wanted = (uint64_t)queue_depth * drive_count;
    return (uint32_t)size_min(size_max(wanted, IO_LANE_DEPTH_MIN), IO_LANE_DEPTH_MAX);
}

/* By the figures of the machine file. */
static uint32_t count_sum_threads(const struct setup *setup)
{
    const plan_machine *machine = &setup->plan.machine;
    double drives =
        fmax(machine->drive_read_bytes_per_second, machine->drive_write_bytes_per_second) *
        plan_drive_both_ways(machine);
    uint32_t count =
        lane_io_sum_threads(drives, machine->write_sum_core_seconds, (uint32_t)setup->thread_count);
    if (count > 1)
        log_info("drives: %u threads compute checksums of %.1f GB/s", count, drives * 1e-9);
    return count;
}

static int make_io(struct engine *self, const struct engine_options *options)
{
    const struct job *asked = self->setup->job;
    io_region regions[1] = {
        {self->arenas[TIER_HOST].base,
         self->arenas[TIER_HOST].size_bytes / TILE_BLOCK_BYTES * TILE_BLOCK_BYTES}};
    sim_store *store;
    uint64_t block_bytes;
    uint32_t queue_depth;
    TRY(make_store(self, options, &store));
    setup_drive_settings(self->setup, &block_bytes, &queue_depth);
    io_config config = {
        .target = self->disk,
        .store = store,
        .backend = simulates_drives(options) ? IO_SIM : engine_io_backend(asked),
        .queue_depth = queue_depth,
        .block_bytes = block_bytes,
        .polls = asked->io.polled_completions,
        .pool_threads = self->setup->cores.io.thread_count,
        .regions = regions,
        .region_count = 1,
        .request_capacity = 256,
        .stuck_ns = (uint64_t)(asked->io.stuck_seconds * 1e9),
        .stop_ns = stop_ns(self->setup),
        .test = &(const io_test){.faults = options->test ? options->test->faults : NULL},
    };
    self->io_kind = config.backend;
    int rc = io_create(&config, &self->transport);
    if (rc < 0)
        return config.backend == IO_URING ? err_prefix(rc, "io.backend is \"uring\"") : rc;
    io_stats stats;
    io_get_stats(self->transport, &stats);
    log_info("drives: transfers of up to %llu KiB, %u each way in flight on each%s",
             (unsigned long long)(stats.block_bytes / KIB), queue_depth,
             stats.polls ? ", completions are polled for" : "");
    const program *programs[PROGRAM_KIND_COUNT];
    enginei_list_programs(self, programs);
    TRY(checksum_create(programs, PROGRAM_KIND_COUNT, &self->sums));
    lane_io_config io_lane = {.transport = self->transport,
                              .host_base = self->arenas[TIER_HOST].base,
                              .depth = io_lane_depth(queue_depth, self->disk->drive_count),
                              .verify = self->sums,
                              .places = self->places,
                              .trusts_reads = !asked->io.verify_reads,
                              .sums_nothing = keeps_no_bytes(options),
                              .sum_thread_count = count_sum_threads(self->setup),
                              .start_thread = enginei_start_io_thread,
                              .user = &self->setup->cores.io};
    return lane_io_create(&io_lane, &self->io_lane);
}

static int make_groups(struct engine *self)
{
    const module_spec *module = self->setup->net->module;
    self->group_count = module ? module->group_count : 1;
    self->groups = mem_alloc(self->group_count, sizeof *self->groups, "groups");
    self->step.group_scalars =
        mem_alloc(self->group_count, sizeof *self->step.group_scalars, "groups");
    if (!self->groups || !self->step.group_scalars)
        return -ENOMEM;
    for (uint32_t g = 0; g < self->group_count; g++)
        self->groups[g] =
            (engine_group){(double)NAN, (double)NAN, (double)NAN, (double)NAN, (double)NAN};
    return 0;
}

int engine_create(struct setup *setup, const struct engine_options *options, struct engine **out)
{
    *out = NULL;
    struct engine *self = mem_alloc(1, sizeof *self, "engine");
    if (!self)
        return -ENOMEM;
    self->setup = setup;
    self->watch = options->watch;
    self->logits_row = -1;
    self->step.loss_scale = 1.0;
    self->step.seed = setup->job->run.seed;
    self->first_elems = options->first_elems;
    self->first_codes = options->first_codes;
    self->first_user = options->first_user;
    self->run_commit = options->run_commit;
    self->commit_user = options->commit_user;
    self->io_kind = engine_io_backend(setup->job);
    int rc = make_groups(self);
    if (rc == 0)
        rc = make_disk(self, options); /* first, because it can refuse before memory is touched */
    if (rc == 0)
        rc = make_arenas(self);
    if (rc == 0)
        rc = make_results(self);
    self->is_bound =
        rc == 0 && sched_getaffinity(0, sizeof self->caller_cores, &self->caller_cores) == 0;
    if (rc == 0) /* this thread runs the executor; the threads of the I/O pool inherit its cores */
        rc = thread_bind(&setup->cores.io.cores);
    /* The team that tokenized a text or touched memory is no longer needed: workers compute from
     * now on. */
    thread_end_team();
    if (rc == 0 && self->disk)
        rc = make_places(self, options);
    if (rc == 0 && self->disk)
        rc = make_io(self, options);
    if (rc == 0)
        rc = enginei_make_workers(self);
    if (rc == 0)
        rc = enginei_open_collectives(self);
    if (rc == 0 && options->test && options->test->lanes)
        rc = enginei_wrap_lanes(self, options->test->lanes);
    if (rc == 0)
        rc = enginei_make_executor(self);
    if (rc == 0)
        rc = limits_check_memory(); /* oneDNN generates code when it first computes */
    thread_ask_short_slice();       /* the workers already exist and keep longer slices */
    if (rc < 0) {
        err_record first;
        err_save(&first, rc);
        if (self->disk_is_open && !options->open_existing) {
            int removed = slab_remove(self->disk);
            self->disk_is_open = removed < 0;
        }
        engine_destroy(self);
        return err_restore(&first);
    }
    *out = self;
    return 0;
}

/* Warns, unless the GPU itself has failed: then each call fails with an error that the run has
 * reported. */
static void warn_unless(bool has_failed)
{
    if (!has_failed)
        log_warn("%s", err_text());
}

void engine_keep_memory(struct engine *self, bool keeps_params, arena kept[2])
{
    self->kept = kept;
    self->keeps_params = keeps_params;
}

/* Moves the arena to `kept`, and empties it but for params. */
static void keep_arena(struct engine *self, int a)
{
    const program *any = &self->setup->set.programs[PROGRAM_EVAL]; /* all have the same homes */
    uint64_t home_count = self->keeps_params ? any->home_count : 0;
    arena *kept = &self->kept[a];
    *kept = self->arenas[a];
    for (uint64_t at = 0, end; at < kept->size_bytes; at = end) {
        uint64_t begin = end = kept->size_bytes; /* of the params that come next */
        for (const buffer *home = any->buffers; home < any->buffers + home_count; home++) {
            if (home->state_kind != STATE_PARAMS || home->arena != a || home->size_bytes == 0 ||
                home->offset_bytes < at || home->offset_bytes >= begin)
                continue;
            begin = home->offset_bytes;
            end = begin + home->size_bytes;
        }
        arena_empty(kept, at, begin);
    }
    arena_copy_on_fork(kept);
}

static void release_memory(struct engine *self)
{
    device *gpu = self->setup->gpu;
    bool has_failed = gpu && device_synchronize(gpu, NULL) < 0;
    if (self->is_pinned && device_unpin(gpu, self->arenas[TIER_HOST].base) < 0)
        warn_unless(has_failed);
    if (gpu && self->arenas[TIER_DEVICE].base && device_release(gpu) < 0)
        warn_unless(has_failed);
    for (int a = TIER_DEVICE; a <= TIER_HOST; a++)
        if (self->arenas[a].base && !(a == TIER_DEVICE && gpu)) {
            if (self->kept)
                keep_arena(self, a);
            else
                arena_fini(&self->arenas[a]);
        }
    for (size_t i = 0; i < sizeof self->results / sizeof self->results[0]; i++)
        mem_free(self->results[i]);
}

void engine_destroy(struct engine *self)
{
    if (!self)
        return;
    executor_destroy(self->runner);
    enginei_destroy_lanes(self);
    if (self->test)
        self->test->end(self->test->user);
    comm_close(self->setup->ranks.comm);
    if (self->update_context)
        kernels_cpu.context_destroy(self->update_context);
    model_packer_destroy(self->packer);
    paranoid_destroy(self->checked_cores);
    paranoid_destroy(self->checked_updates);
    paranoid_destroy(self->checked_copies);
    paranoid_destroy(self->checked_comm);
    if (self->transport)
        io_destroy(self->transport);
    sim_store_destroy(self->store);
    checksum_destroy(self->sums);
    place_table_destroy(self->places);
    if (self->disk_is_open)
        slab_close(self->disk);
    mem_free(self->disk);
    release_memory(self);
    trace_fini(&self->ring);
    mem_free(self->groups);
    mem_free(self->parcels);
    mem_free(self->offsets);
    mem_free(self->step.group_scalars);
    if (self->is_bound && sched_setaffinity(0, sizeof self->caller_cores, &self->caller_cores) != 0)
        log_warn("the calling thread stays on the cores of I/O: %s", strerror(errno));
    mem_free(self);
}

unsigned char *engine_home(const struct engine *self, uint32_t buffer_idx)
{
    const buffer *home = &self->setup->set.programs[PROGRAM_EVAL].buffers[buffer_idx];
    assert(home->arena <= TIER_HOST);
    return self->arenas[home->arena].base + home->offset_bytes;
}

int engine_run(struct engine *self, enum program_kind kind, uint64_t step, run_totals *run)
{
    run_totals totals;
    int rc = executor_run(self->runner, &self->setup->set.programs[kind], step, &totals);
    for (int i = 0; i < LANE_COUNT; i++) {
        self->totals[i].bytes += totals.lanes[i].bytes;
        self->totals[i].spared_bytes += totals.lanes[i].spared_bytes;
        self->totals[i].busy_seconds += (double)totals.lanes[i].busy_ns * 1e-9;
        self->totals[i].stall_seconds += (double)totals.lanes[i].stall_ns * 1e-9;
    }
    if (run)
        *run = totals;
    /* NCCL notes a wait for other ranks only when it is watched, and this notes its end. */
    if (rc == 0 && self->setup->ranks.world > 1)
        rc = comm_watch(self->setup->ranks.comm);
    if (kind == PROGRAM_INIT) {
        model_packer_destroy(self->packer);
        self->packer = NULL;
    }
    return rc;
}

void engine_trace_drives(const struct engine *engine, chrome_trace_names *names)
{
    if (!engine->transport)
        return;
    names->drive_count = engine->disk->drive_count;
    for (uint32_t d = 0; d < names->drive_count; d++) {
        names->drives[d].path = engine->setup->drives[d].path;
        for (int way = 0; way < 2; way++) {
            const io_latency *latency =
                io_get_latency(engine->transport, d, (enum io_direction)way);
            names->drives[d].ways[way] =
                (chrome_trace_times){.count = latency->count,
                                     .p50_ns = io_latency_quantile_ns(latency, 0.50),
                                     .p95_ns = io_latency_quantile_ns(latency, 0.95),
                                     .p99_ns = io_latency_quantile_ns(latency, 0.99),
                                     .max_ns = latency->max_ns};
        }
    }
}
