/* Reads the machine's name, cores and memory, and opens and closes the GPU. See
 * probe_internal.h. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "probe/probe_internal.h"

enum { OPERANDS_MIB_MAX = 2048 };
/* If other processes use more than this, the probe warns. The kernel's own threads use some. */
static const double busy_cores = 0.1;

/* Reads the machine's CPU time since it started, in seconds: the time of all its processes (*used)
 * and the time that a hypervisor gave to other machines (*stolen). */
static void read_cpu_time(double *used, double *stolen)
{
    double fields[8] = {0};
    FILE *file = fopen("/proc/stat", "re");
    int count = 0;
    if (file) {
        count = fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &fields[0], &fields[1],
                       &fields[2], &fields[3], &fields[4], &fields[5], &fields[6], &fields[7]);
        fclose(file);
    }
    double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    *used = count == 8 ? (fields[0] + fields[1] + fields[2]) * tick : 0; /* user, nice, system */
    *stolen = count == 8 ? fields[7] * tick : 0;
}

double probei_cpu_seconds(int who)
{
    struct rusage usage;
    getrusage(who, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static double own_cpu_time(void)
{
    return probei_cpu_seconds(RUSAGE_SELF) + probei_cpu_seconds(RUSAGE_CHILDREN);
}

void probei_begin_watch(probei *self)
{
    read_cpu_time(&self->used_at_start, &self->stolen_at_start);
    self->own_at_start = own_cpu_time();
}

/* Writes the disturbance into machine.json, so that plans can mention it. */
static void note_disturbed(probei *self, double others, double stolen)
{
    char *text = self->out->disturbed_by;
    size_t capacity = sizeof self->out->disturbed_by;
    if (self->disturbed_count > 0) {
        snprintf(text, capacity, "%.50s +-%.0f%%", self->disturbed_name,
                 100 * self->disturbed_spread);
        probei_say(self,
                   "disturbed: %s, the worst of %u figures beyond +-%d%%: run it again on an idle "
                   "machine",
                   text, self->disturbed_count, PROBEI_SPREAD_PERCENT);
    } else if (others > busy_cores) {
        snprintf(text, capacity, "other processes used %.2f of a core", others);
    } else if (stolen > busy_cores) {
        snprintf(text, capacity, "the hypervisor gave %.2f of a core to others", stolen);
    }
    self->out->disturbed = text[0] != '\0';
}

/* If others disturbed the machine, all figures contain their work too, so the user is told. */
void probei_end_watch(probei *self)
{
    double used, stolen, seconds = (double)(clock_ns() - self->start_ns) * 1e-9;
    read_cpu_time(&used, &stolen);
    double others = used - self->used_at_start - (own_cpu_time() - self->own_at_start);
    others = fmax(others, 0) / seconds;
    stolen = fmax(stolen - self->stolen_at_start, 0) / seconds;
    probei_say(self, "other processes used %.2f of a core meanwhile%s", others,
               others > busy_cores ? ": measure again when the machine is idle" : "");
    if (stolen > busy_cores)
        probei_say(self, "the hypervisor gave %.2f of a core to others meanwhile", stolen);
    note_disturbed(self, others, stolen);
}

/* Returns the rate of dense 16-bit products that NVIDIA's data sheet states, or 0 if the GPU is not
 * in the list. The first entry that is part of the name counts. */
static double stated_flops(const char *name)
{
    static const struct {
        const char *part;
        double flops;
    } gpus[] = {{"H100 PCIe", 756e12}, {"H100 NVL", 835e12}, {"H100", 989e12}, {"H200", 989e12},
                {"A100", 312e12},      {"A800", 312e12},     {"L40S", 362e12}, {"V100", 125e12}};
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++)
        if (strstr(name, gpus[i].part))
            return gpus[i].flops;
    return 0;
}

uint32_t probei_count_cores(const topology *place)
{
    core_set seen = {0};
    uint64_t count = 0;
    for (int c = core_set_next(&place->allowed, 0); c >= 0;
         c = core_set_next(&place->allowed, c + 1)) {
        count += !core_set_has(&seen, place->physical[c]);
        core_set_add(&seen, place->physical[c]);
    }
    if (place->quota_cores > 0)
        count = size_min(count, place->quota_cores);
    return (uint32_t)size_max(count, 1);
}

int probe_name_host(machine *target)
{
    topology *place = mem_alloc(1, sizeof *place, "topology");
    if (!place)
        return -ENOMEM;
    int rc = topology_read(place);
    machine_name_host(target);
    target->host.core_count = rc < 0 ? 1 : probei_count_cores(place);
    mem_free(place);
    return rc;
}

void probei_describe_host(probei *self)
{
    machine *out = self->out;
    time_t now = time(NULL);
    struct tm broken;
    gmtime_r(&now, &broken);
    strftime(out->measured_at, sizeof out->measured_at, "%Y-%m-%dT%H:%M:%SZ", &broken);
    snprintf(out->measured_by, sizeof out->measured_by, "sluice %s", SLUICE_VERSION);
    machine_name_host(out);
    out->host.core_count = probei_count_cores(&self->place);
    out->host_count = out->ranks_per_host = 1;
    out->host.node_count = self->place.node_count;
    out->host.memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    out->device.is_gpu = self->gpu != NULL;
    if (self->gpu) {
        const device_info *info = device_get_info(self->gpu);
        snprintf(out->device.name, sizeof out->device.name, "%s", info->name);
        out->device.memory_bytes = info->total_bytes;
        out->device.compute_capability = info->compute_major + info->compute_minor / 10.0;
        double stated = stated_flops(info->name);
        if (stated > 0)
            out->device.peak_flops = stated;
        /* The figures were measured between CPU processes and do not hold for GPUs. */
        memset(&out->comm, 0, sizeof out->comm);
        probei_say(self, "collectives between GPUs are not measured: the plan takes its default");
    } else {
        snprintf(out->device.name, sizeof out->device.name, "%s", out->host.cpu);
        out->device.thread_count = self->cores.compute.thread_count;
    }
}

static int open_gpu(probei *self)
{
    uint64_t free_bytes;
    TRY(device_open(0, &self->gpu));
    kernel_context_config config = {.device_idx = 0};
    self->ops = kernels_cuda();
    TRY(self->ops->context_create(&config, &self->context));
    TRY(device_free_bytes(self->gpu, &free_bytes));
    self->operand_bytes = size_min(OPERANDS_MIB_MAX * MIB, free_bytes / 2) / (2 * MIB) * (2 * MIB);
    if (self->extent == PROBEI_TINY)
        self->operand_bytes = size_min(self->operand_bytes, 48 * MIB);
    TRY(device_reserve(self->gpu, self->operand_bytes, &self->operands));
    for (int i = 0; i < 2; i++)
        TRY(device_stream_create(self->gpu, false, &self->streams[i]));
    return 0;
}

int probei_try_backend(const probei *self)
{
    const char *asked = self->options->backend ? self->options->backend : "auto";
    char reason[DEVICE_TEXT_BYTES] = "this build has no CUDA";
    if (strcmp(asked, "auto") != 0 && strcmp(asked, "cuda") != 0 && strcmp(asked, "cpu") != 0)
        return err_set(ERR_USAGE, "the backend is \"%.40s\", and must be auto, cpu or cuda", asked);
    if (strcmp(asked, "cuda") == 0 && !kernels_cuda())
        return err_set(ERR_CONFIG, "there is no GPU to measure: %s", reason);
    return 0;
}

int probei_open_device(probei *self)
{
    const char *asked = self->options->backend ? self->options->backend : "auto";
    char reason[DEVICE_TEXT_BYTES];
    self->ops = &kernels_cpu;
    if (strcmp(asked, "cpu") == 0 || !kernels_cuda())
        return 0;
    uint32_t count = device_count(reason);
    if (count == 0 && strcmp(asked, "cuda") == 0)
        return err_set(ERR_CONFIG, "there is no GPU to measure: %s", reason);
    return count > 0 ? open_gpu(self) : 0;
}

int probei_fill_operands(probei *self)
{
    if (!self->gpu) {
        probei_fill(self, self->operands, self->operand_bytes);
        return 0;
    }
    probei_fill(self, self->memory.base, self->memory.size_bytes);
    for (uint64_t at = 0; at < self->operand_bytes;) {
        uint64_t bytes = size_min(self->memory.size_bytes, self->operand_bytes - at);
        TRY(device_copy(self->gpu, self->streams[0], self->operands + at, self->memory.base, bytes,
                        DEVICE_FROM_HOST));
        at += bytes;
    }
    return device_synchronize(self->gpu, self->streams[0]);
}

void probei_close_device(probei *self)
{
    if (self->context)
        self->ops->context_destroy(self->context);
    device_close(self->gpu);
}
