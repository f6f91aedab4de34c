/* What the machine is: its name, cores and memory; and the GPU, opened and closed. See probe_internal.h. */
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "probe/probe_internal.h"

enum { OPERANDS_MIB_MAX = 2048 };

/* The text after "key : " of the first such line of a file of /proc. */
static void read_key(const char *path, const char *key, char *text, size_t capacity)
{
    char line[512];
    text[0] = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    while (text[0] == 0 && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        const char *colon = strchr(line, ':');
        if (colon)
            snprintf(text, capacity, "%s", colon + 1 + strspn(colon + 1, " \t"));
        text[strcspn(text, "\n")] = 0;
    }
    fclose(file);
}

void probei_describe_host(probei *self)
{
    machine *out = self->out;
    time_t now = time(NULL);
    struct tm broken;
    gmtime_r(&now, &broken);
    strftime(out->measured_at, sizeof out->measured_at, "%Y-%m-%dT%H:%M:%SZ", &broken);
    snprintf(out->measured_by, sizeof out->measured_by, "sluice %s", SLUICE_VERSION);
    if (gethostname(out->name, sizeof out->name - 1) != 0)
        snprintf(out->name, sizeof out->name, "this machine");
    out->host_count = out->ranks_per_host = 1;
    read_key("/proc/cpuinfo", "model name", out->host.cpu, sizeof out->host.cpu);
    if (out->host.cpu[0] == 0)
        snprintf(out->host.cpu, sizeof out->host.cpu, "CPU");
    const topology *place = &self->place;
    for (int c = core_set_next(&place->allowed, 0); c >= 0;
         c = core_set_next(&place->allowed, c + 1))
        out->host.core_count += place->physical[c] == c;
    if (place->quota_cores > 0)
        out->host.core_count = (uint32_t)size_min(out->host.core_count, place->quota_cores);
    out->host.core_count = (uint32_t)size_max(out->host.core_count, 1);
    out->host.node_count = place->node_count;
    out->host.memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    out->device.is_gpu = self->gpu != NULL;
    if (self->gpu) {
        const device_info *info = device_get_info(self->gpu);
        snprintf(out->device.name, sizeof out->device.name, "%s", info->name);
        out->device.memory_bytes = info->total_bytes;
    } else {
        snprintf(out->device.name, sizeof out->device.name, "%s", out->host.cpu);
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

int probei_open_device(probei *self)
{
    const char *asked = self->options->backend ? self->options->backend : "auto";
    char reason[DEVICE_TEXT_BYTES] = "this build has no CUDA";
    self->ops = &kernels_cpu;
    if (strcmp(asked, "cpu") == 0)
        return 0;
    if (strcmp(asked, "auto") != 0 && strcmp(asked, "cuda") != 0)
        return err_set(ERR_USAGE, "the backend is \"%.40s\", and must be auto, cpu or cuda", asked);
    uint32_t count = kernels_cuda() ? device_count(reason) : 0;
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
