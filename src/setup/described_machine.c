/* A machine that is only described: the file gives what setup.c otherwise finds out on this
 * machine. Nothing of this machine is looked at: no device, no cores, no memory, no drives, no
 * paths.
 *
 *   device  a GPU's memory, less what CUDA and its libraries take and the reserve of backend.c;
 *           without a GPU a quarter of the host's memory, as in setup.c
 *   host    its memory less 10%, divided by the ranks that share it (without a GPU, half of that)
 *   nvme    the capacity of all drives less 10%, divided by the same ranks; at most the
 *           budgets that the job states
 *
 * The model is prepared with kernels/reference, which takes any shape and needs no library. The
 * bytes of scratch are therefore an estimate: a GPU's kernels may need others. */
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "base/tile.h"
#include "config/machine.h"
#include "setup/setup_internal.h"

enum {
    /* GPU memory, MiB. The driver and CUDA's libraries take 0.5 to 0.7 GiB, more with newer
     * drivers. Half of this value is added for what they may still take, as in backend.c. NCCL: its
     * channels by default. */
    DESCRIBED_CUDA_MIB = 1024,
    DESCRIBED_NCCL_MIB = 512,
    /* Scratch of cuBLASLt's products: what its manual recommends for Hopper. The reference needs
     * none. */
    DESCRIBED_PRODUCT_MIB = 32,
    DESCRIBED_PERCENT_KEPT = 10, /* of host memory and drives, left to the system */
};

int setupi_described_ranks(struct setup *self)
{
    const machine *on = self->stated;
    struct ranks *ranks = &self->ranks;
    uint32_t hosts = (uint32_t)size_max(on->host_count, 1);
    uint32_t most = (uint32_t)size_max(on->ranks_per_host, 1);
    if (ranks->local_world > most || ranks->local_world == 0)
        ranks->local_world = (uint32_t)size_min(ranks->world, most);
    uint64_t used = size_div_up(ranks->world, ranks->local_world);
    if (ranks->world % ranks->local_world != 0)
        return err_set(
            ERR_CONFIG,
            "%u ranks do not divide into hosts of %u, as machine \"%s\" has them: take a "
            "multiple of %u, or another --ranks-per-host",
            ranks->world, ranks->local_world, on->name, ranks->local_world);
    if (used > hosts)
        return err_set(ERR_CONFIG,
                       "%u ranks, %u on each host, take %llu hosts, and machine \"%s\" has %u "
                       "of %u ranks: plan for %llu ranks or fewer",
                       ranks->world, ranks->local_world, (unsigned long long)used, on->name, hosts,
                       most, (unsigned long long)hosts * most);
    return 0;
}

/* True if the GPUs are known to be older than any that the kernels run on. */
static bool has_old_gpus(const struct setup *self)
{
    double has = self->described_gpu ? self->stated->device.compute_capability : 0;
    return has > 0 && has < DEVICE_COMPUTE_MAJOR_MIN;
}

void setupi_why_not_run(const struct setup *self, char text[SETUP_CANNOT_RUN_BYTES])
{
    text[0] = '\0';
    if (has_old_gpus(self))
        snprintf(text, SETUP_CANNOT_RUN_BYTES,
                 "its GPUs have compute capability %.1f, and Sluice needs %d.0: only a plan",
                 self->stated->device.compute_capability, DEVICE_COMPUTE_MAJOR_MIN);
}

/* bf16 products came with compute capability 8.0, as the kernels did. */
static int check_dtype(const struct setup *self)
{
    if (self->job->type != DTYPE_BF16 || !has_old_gpus(self))
        return 0;
    return err_set(ERR_CONFIG,
                   "bf16.enabled is true, but a GPU of machine \"%s\" has compute capability %.1f, "
                   "and bf16 products need %d.0: set fp16.enabled instead",
                   self->stated->name, self->stated->device.compute_capability,
                   DEVICE_COMPUTE_MAJOR_MIN);
}

int setupi_described_device(struct setup *self)
{
    const machine *on = self->stated;
    uint64_t cores = size_max(size_max(on->host.core_count, 1) / self->ranks.local_world, 1);
    const char *asked = self->job->device.backend;
    if (strcmp(asked, "cuda") == 0 && !on->device.is_gpu)
        return err_set(ERR_CONFIG,
                       "device.backend is \"cuda\", but machine \"%s\" has no GPU: set it to "
                       "\"auto\" or \"cpu\"",
                       on->name);
    self->described_gpu = on->device.is_gpu && strcmp(asked, "cpu") != 0;
    TRY(check_dtype(self));
    uint64_t threads = self->job->device.threads ? self->job->device.threads : cores;
    uint64_t updating = self->job->update.threads ? self->job->update.threads : cores;
    self->thread_count = (int)size_min(self->described_gpu ? updating : threads, cores);
    self->cores.compute.thread_count = self->cores.update.thread_count =
        (uint32_t)self->thread_count;
    self->collectives = self->ranks.world == 1 ? COMM_SELF
                        : self->described_gpu  ? COMM_NCCL
                                               : COMM_MPI;
    self->ops = &kernels_reference;
    kernel_context_config config = {.thread_count = 1};
    return self->ops->context_create(&config, &self->context);
}

/* One rank's part of `bytes`, without what is left to the system. */
static uint64_t part(const struct setup *self, uint64_t bytes)
{
    return bytes / 100 * (100 - DESCRIBED_PERCENT_KEPT) / self->ranks.local_world;
}

static int describe_gpu_memory(struct setup *self, uint64_t asked_bytes, uint64_t *budget_bytes)
{
    const machine *on = self->stated;
    char asked[SIZE_TEXT_BYTES], has[SIZE_TEXT_BYTES], kept[SIZE_TEXT_BYTES],
        usable[SIZE_TEXT_BYTES];
    uint64_t reserve = DESCRIBED_CUDA_MIB * MIB * 3 / 2;
    if (self->collectives == COMM_NCCL)
        reserve += DESCRIBED_NCCL_MIB * MIB;
    uint64_t most = on->device.memory_bytes > reserve ? on->device.memory_bytes - reserve : 0;
    most = most / TILE_BLOCK_BYTES * TILE_BLOCK_BYTES;
    if (most == 0)
        return err_set(
            ERR_CONFIG, "device.memory_bytes of machine \"%s\" is %s, and CUDA's libraries take %s",
            on->name, size_format(on->device.memory_bytes, has), size_format(reserve, kept));
    if (asked_bytes > most)
        return err_set(ERR_NO_FIT,
                       "tiers.device.budget is %s, but a GPU of machine \"%s\" has %s, of which "
                       "CUDA's libraries take %s: set it to %s or less, or leave it out",
                       size_format(asked_bytes, asked), on->name,
                       size_format(on->device.memory_bytes, has), size_format(reserve, kept),
                       size_format(most, usable));
    *budget_bytes = asked_bytes ? asked_bytes : most;
    return 0;
}

static int describe_memory(struct setup *self)
{
    const struct job *asked = self->job;
    const machine *on = self->stated;
    uint64_t *budget = self->plan.budget_bytes;
    char stated[SIZE_TEXT_BYTES], has[SIZE_TEXT_BYTES];
    uint64_t memory = on->host.memory_bytes / self->ranks.local_world;
    if (asked->tiers.host_budget > memory && memory > 0)
        return err_set(ERR_NO_FIT,
                       "tiers.host.budget is %s for each rank, but a host of machine \"%s\" has %s "
                       "for each of %u ranks: set it to that or less, or leave it out",
                       size_format(asked->tiers.host_budget, stated), on->name,
                       size_format(memory, has), self->ranks.local_world);
    uint64_t usable = part(self, on->host.memory_bytes);
    budget[TIER_HOST] = self->described_gpu ? usable : usable / 2;
    budget[TIER_DEVICE] = usable / 4;
    if (asked->tiers.host_budget)
        budget[TIER_HOST] = asked->tiers.host_budget;
    if (self->described_gpu)
        TRY(describe_gpu_memory(self, asked->tiers.device_budget, &budget[TIER_DEVICE]));
    else if (asked->tiers.device_budget)
        budget[TIER_DEVICE] = asked->tiers.device_budget;
    for (int a = TIER_DEVICE; a <= TIER_HOST; a++)
        budget[a] = budget[a] / TILE_BLOCK_BYTES * TILE_BLOCK_BYTES;
    return 0;
}

uint64_t setupi_drives_capacity(const machine *on)
{
    uint64_t sum = 0;
    for (uint32_t d = 0; d < on->drive_count; d++) {
        uint64_t bytes, count = size_max(on->drives[d].count, 1);
        if (size_mul(count, on->drives[d].capacity_bytes, &bytes) < 0 || bytes > INT64_MAX - sum)
            return INT64_MAX;
        sum += bytes;
    }
    return sum;
}

/* Uses the sum of the machine's drives, whatever paths the job gives. */
static int describe_drives(struct setup *self)
{
    const struct job *asked = self->job;
    const machine *on = self->stated;
    uint64_t stated = 0;
    bool is_stated = asked->tiers.nvme_count > 0;
    TRY(setup_job_drives(asked, self->drives, &self->drive_count));
    for (uint32_t d = 0; d < self->drive_count; d++)
        memcpy(self->drive_names[d], self->drives[d].path, sizeof self->drive_names[d]);
    for (uint32_t d = 0; d < asked->tiers.nvme_count; d++) {
        stated += asked->tiers.nvme[d].budget_bytes /
                  setup_drive_sharers(&self->ranks, self->drive_names[d]);
        is_stated = is_stated && asked->tiers.nvme[d].budget_bytes > 0;
    }
    uint64_t bytes = part(self, setupi_drives_capacity(on));
    self->plan.budget_bytes[TIER_NVME] = is_stated ? size_min(bytes, stated) : bytes;
    self->plan.nvme_sharers = self->ranks.local_world;
    if (!is_stated || bytes < stated)
        self->plan.nvme_advice = "the machine's drives hold no more: more hosts divide it";
    setupi_fill_overhead(self);
    return 0;
}

int setupi_described_budgets(struct setup *self)
{
    if (self->described_gpu)
        self->plan.workspace_bytes += DESCRIBED_PRODUCT_MIB * MIB;
    TRY(describe_drives(self));
    return describe_memory(self);
}
