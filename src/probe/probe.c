/* Plans the steps of the probe and their time, and runs each on its thread. See probe.h. */
#include "probe/probe.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/thread.h"
#include "probe/probe_internal.h"

/* Limit of the whole probe in seconds: the promised time, less the time by which the slowest single
 * pass may exceed it. */
static const double limits[PROBEI_EXTENT_COUNT] = {0.0, 27.0, 168.0};
/* A kernel is repeated for at least this time. In shorter passes the clock and interrupts
 * dominate. */
static const double pass_seconds[PROBEI_EXTENT_COUNT] = {0.0002, 0.004, 0.008};

/* The arena must be larger than large caches, since it is used to measure memory. */
enum { MEMORY_MIB_MIN = 1024, MEMORY_MIB_MAX = 4096, MEMORY_MIB_TINY = 48 };

int probei_bind(probei *self, enum probei_where where)
{
    if (where == PROBEI_HERE)
        return 0;
    if (self->gpu)
        TRY(device_attach(self->gpu));
    if (where == PROBEI_IO) {
        thread_ask_short_slice();
        return thread_bind(&self->cores.io.cores);
    }
    const core_group *group = where == PROBEI_UPDATE ? &self->cores.update : &self->cores.compute;
    return thread_bind_team(&group->cores, group->thread_count);
}

double probei_step_left(const probei *self)
{
    double spent = (double)(clock_ns() - self->step_start_ns) * 1e-9;
    return fmax(self->step_seconds - spent, 0);
}

int probei_check(probei *self, const char *what)
{
    const struct probe_options *options = self->options;
    if (options->stop && *options->stop)
        return err_set(ERR_STOPPED, "the probe was stopped; nothing was written");
    if (!options->on_progress)
        return 0;
    const struct probei_step *step = &self->steps[self->step_idx];
    char text[2 * PROBEI_TEXT_BYTES + 32];
    double spent = (double)(clock_ns() - self->start_ns) * 1e-9;
    double left = probei_step_left(self) + self->later_seconds;
    snprintf(text, sizeof text, "%u/%u %s%s%s", self->step_idx + 1, self->step_count, step->name,
             what[0] ? ": " : "", what);
    options->on_progress(options->user, text, spent / fmax(spent + left, 1e-9), left);
    return 0;
}

void probei_say(probei *self, const char *format, ...)
{
    char text[4 * PROBEI_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (self->options->on_line)
        self->options->on_line(self->options->user, text);
}

void probei_found(probei *self, const char *label, double value, const char *unit,
                  const probei_figure *figure, const char *format, ...)
{
    char note[PROBEI_TEXT_BYTES], spread[32] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(note, sizeof note, format, args);
    va_end(args);
    if (figure && figure->count > 1 && figure->median > 0)
        snprintf(spread, sizeof spread, "+-%.1f%%", 100 * probei_figure_spread(figure));
    if (note[0])
        probei_say(self, "  %-44s %9.2f %-10s %-8s %s", label, value, unit, spread, note);
    else
        probei_say(self, "  %-44s %9.2f %-10s %s", label, value, unit, spread);
}

void probei_fill(const probei *self, unsigned char *target, uint64_t size_bytes)
{
    const uint64_t piece_bytes = MIB;
#pragma omp parallel for schedule(static) num_threads((int)self->cores.compute.thread_count)
    for (uint64_t at = 0; at < size_bytes; at += piece_bytes) {
        uint64_t state = at + 0x9e3779b97f4a7c15u,
                 words = size_min(piece_bytes, size_bytes - at) / 8;
        for (uint64_t i = 0; i < words; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            /* Four bf16 numbers from 0x3e80 to 0x3f7f; read as fp32 they are two numbers. */
            uint64_t word = (state & 0x00ff00ff00ff00ffu) + 0x3e803e803e803e80u;
            memcpy(target + at + 8 * i, &word, 8);
        }
    }
}

int probei_time(probei *self, int (*once)(void *user), void *user, double *seconds)
{
    for (uint64_t count = 1;;) {
        uint64_t begin_ns = clock_ns();
        for (uint64_t i = 0; i < count; i++)
            TRY(once(user));
        if (self->gpu)
            TRY(device_synchronize(self->gpu, self->streams[0]));
        double spent = (double)(clock_ns() - begin_ns) * 1e-9, wanted = pass_seconds[self->extent];
        *seconds = fmax(spent, 1e-9) / (double)count;
        if (spent >= wanted)
            return 0;
        count = (uint64_t)fmin(ceil(1.2 * wanted / *seconds), 64.0 * (double)count);
    }
}

/* Chooses cores and threads as a run does if its job does not set them. */
static int place_cores(probei *self)
{
    TRY(topology_read(&self->place));
    for (uint32_t d = 0; d < self->options->drive_count; d++)
        TRY(topology_add_drive(&self->place, self->options->drives[d]));
    if (self->gpu)
        self->place.device_node = topology_pci_node(device_get_info(self->gpu)->pci_bus_id);
    core_request request = {.compute = {"device", NULL, 0},
                            .update = {"update", NULL, 0},
                            .io = {"io", NULL, 0},
                            .device_is_cpu = !self->gpu,
                            .local_world = 1};
    return topology_place(&self->place, &request, &self->cores);
}

/* Chooses the arena's size: larger than the last cache, and at most a quarter of the free
 * memory. */
static int choose_memory(const probei *self, uint64_t *size_bytes)
{
    uint64_t available;
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    TRY(arena_available_memory(&available));
    uint64_t wanted = size_max(MEMORY_MIB_MIN * MIB, cache > 0 ? 2 * (uint64_t)cache : 0);
    wanted = size_min(wanted, MEMORY_MIB_MAX * MIB);
    if (self->extent == PROBEI_TINY)
        wanted = MEMORY_MIB_TINY * MIB;
    *size_bytes = size_min(wanted, available / 4) / (2 * MIB) * (2 * MIB);
    /* Half for the requests in flight to a drive, half for the work beside it. */
    uint64_t least =
        size_max(MEMORY_MIB_TINY * MIB, 2 * probei_drive_extents[self->extent].memory_bytes);
    if (*size_bytes >= least)
        return 0;
    char free_text[SIZE_TEXT_BYTES], least_text[SIZE_TEXT_BYTES];
    return err_set(-ENOMEM, "%s of memory are free; the probe takes a quarter and needs %s",
                   size_format(available, free_text), size_format(least, least_text));
}

static int take_memory(probei *self)
{
    uint64_t size_bytes;
    TRY(probei_check(self, ""));
    TRY(probei_open_device(self));
    TRY(place_cores(self));
    TRY(choose_memory(self, &size_bytes));
    topology_place_memory(&self->place, size_bytes, 0, &self->cores);
    arena_config config = {.name = "probe",
                           .size_bytes = size_bytes,
                           .touch_threads = (int)self->cores.update.thread_count,
                           .nodes = &self->cores.host};
    TRY(arena_init(&self->memory, &config));
    if (self->gpu) {
        TRY(device_pin(self->gpu, self->memory.base, self->memory.size_bytes));
    } else {
        self->operands = self->memory.base;
        self->operand_bytes = self->memory.size_bytes;
    }
    kernel_context_config threads = {.thread_count = (int)self->cores.update.thread_count};
    TRY(kernels_cpu.context_create(&threads, &self->update));
    threads.thread_count = 1;
    TRY(kernels_cpu.context_create(&threads, &self->single));
    if (self->gpu)
        return 0;
    threads.thread_count = (int)self->cores.compute.thread_count;
    return kernels_cpu.context_create(&threads, &self->context);
}

static void add_step(probei *self, const char *name, enum probei_where where, int (*run)(probei *),
                     double quick, double full)
{
    assert(self->step_count < PROBEI_STEPS_MAX);
    struct probei_step *step = &self->steps[self->step_count++];
    *step = (struct probei_step){.where = where, .run = run};
    step->seconds = self->extent == PROBEI_FULL ? full : self->extent == PROBEI_QUICK ? quick : 0;
    snprintf(step->name, sizeof step->name, "%s", name);
}

/* The seconds that proved enough for figures within a few percent on a shared machine of two
 * cores. */
static void plan_steps(probei *self)
{
    const struct probe_options *options = self->options;
    double drives = options->drive_count;
    add_step(self, "ranks", PROBEI_HERE, probei_ranks, 1.5, 6);
    add_step(self, "taking memory", PROBEI_HERE, take_memory, 1, 3);
    add_step(self, "memory and Adam", PROBEI_UPDATE, probei_memory, 3, 14);
    add_step(self, "products", PROBEI_COMPUTE, probei_products, 5.5, 38);
    add_step(self, "kernels", PROBEI_COMPUTE, probei_kernels, 1.5, 8);
    add_step(self, "link", PROBEI_IO, probei_link, 2, 7);
    for (uint32_t d = 0; d < options->drive_count; d++) {
        char name[PROBEI_TEXT_BYTES];
        snprintf(name, sizeof name, "nvme %.100s", options->drives[d]);
        add_step(self, name, PROBEI_IO, probei_drive, 11 / drives, 84 / drives);
        self->steps[self->step_count - 1].drive_idx = d;
    }
    if (options->drive_count > 1)
        add_step(self, "all drives", PROBEI_IO, probei_all_drives, 1.5, 5);
}

struct step_thread {
    probei *owner;
    int result;
    err_record error;
};

static void *run_on_thread(void *user)
{
    struct step_thread *thread = user;
    probei *self = thread->owner;
    const struct probei_step *step = &self->steps[self->step_idx];
    int rc = probei_bind(self, step->where);
    if (rc == 0)
        rc = step->run(self);
    thread->result = rc;
    err_save(&thread->error, rc);
    return NULL;
}

/* Runs the step on its own thread, so that its cores, its OpenMP team and its scheduler slice do
 * not carry over to the next step or to the caller. */
static int run_step(probei *self)
{
    const struct probei_step *step = &self->steps[self->step_idx];
    if (step->where == PROBEI_HERE)
        return step->run(self);
    struct step_thread thread = {.owner = self};
    pthread_t id;
    int rc = pthread_create(&id, NULL, run_on_thread, &thread);
    if (rc != 0)
        return err_errno(rc, "starting a thread of the probe");
    pthread_join(id, NULL);
    return thread.result < 0 ? err_restore(&thread.error) : 0;
}

static int run_steps(probei *self)
{
    double planned = 0;
    for (uint32_t i = 0; i < self->step_count; i++)
        planned += self->steps[i].seconds;
    for (uint32_t i = 0; i < self->step_count; i++) {
        double spent = (double)(clock_ns() - self->start_ns) * 1e-9;
        double left = fmax(limits[self->extent] - spent, 0);
        double scale = planned > 0 ? fmin(left / planned, 1) : 0;
        planned -= self->steps[i].seconds;
        self->step_idx = i;
        self->step_seconds = scale * self->steps[i].seconds;
        self->later_seconds = scale * fmax(planned, 0);
        self->step_start_ns = clock_ns();
        TRY(run_step(self));
    }
    return 0;
}

static int run_all(probei *self)
{
    const struct probe_options *options = self->options;
    if (options->drive_count > DRIVES_MAX)
        return err_set(ERR_USAGE, "%u drives; at most %d can be measured", options->drive_count,
                       DRIVES_MAX);
    for (uint32_t d = 0; d < options->drive_count; d++)
        TRY(probei_drive_try(self, d));
    TRY(probei_try_backend(self));
    plan_steps(self);
    probei_begin_watch(self);
    TRY(run_steps(self));
    probei_end_watch(self);
    probei_describe_host(self);
    return 0;
}

int probe_run(const struct probe_options *options, machine *out)
{
    memset(out, 0, sizeof *out);
    probei *self = mem_alloc(1, sizeof *self, "probe");
    if (!self)
        return -ENOMEM;
    self->options = options;
    self->out = out;
    self->extent = options->is_tiny ? PROBEI_TINY : options->is_quick ? PROBEI_QUICK : PROBEI_FULL;
    self->start_ns = clock_ns();
    int rc = run_all(self);
    err_record first;
    err_save(&first, rc);
    if (self->update)
        kernels_cpu.context_destroy(self->update);
    if (self->single)
        kernels_cpu.context_destroy(self->single);
    probei_close_device(self);
    arena_fini(&self->memory);
    mem_free(self);
    if (rc < 0)
        memset(out, 0, sizeof *out);
    return rc < 0 ? err_restore(&first) : 0;
}
