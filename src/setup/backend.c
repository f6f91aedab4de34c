/* Chooses the backend that computes: a GPU if the job wants one and there is one, else the CPU. The
 * GPU is opened and its libraries are loaded here, before anything is planned. So the memory that
 * they take can be measured, and the device tier can get at most the rest. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "base/tile.h"
#include "setup/setup_internal.h"

/* The least part of the GPU's free memory that the plan leaves unused, MiB. CUDA and its libraries
 * may still take memory until everything is warm: for our own kernels, which load at their first
 * launch, for stacks, and for handles per stream. The reserve is half of what they took so far, and
 * at least this. Ranks that share a GPU divide the memory that is free once all have opened it, and
 * each leaves this whole reserve, because the memory that a rank saw being taken may be other
 * ranks'. NCCL's memory is added to it. */
enum { GPU_RESERVE_MIB_MIN = 256 };

/* Called while the host waits for a GPU, on whose streams a collective may wait for a rank that is
 * gone. */
static int watch_ranks(void *user)
{
    return comm_watch(user);
}

static int open_gpu(struct setup *self, const kernel_ops *ops, uint32_t count)
{
    uint32_t device_idx = self->ranks.local_rank % count; /* several ranks may share one GPU */
    self->gpu_sharers = (uint32_t)size_div_up(self->ranks.local_world, count);
    TRY(device_open(device_idx, &self->gpu));
    TRY(device_free_bytes(self->gpu, &self->gpu_free_at_open));
    kernel_context_config config = {.device_idx = device_idx,
                                    .watch = self->ranks.world > 1 ? watch_ranks : NULL,
                                    .watch_user = self->ranks.comm};
    TRY(ops->context_create(&config, &self->context));
    self->ops = ops;
    return 0;
}

static void close_gpu(struct setup *self)
{
    device_close(self->gpu);
    self->gpu = NULL;
}

/* True if device_count's reason says that there is, or seems to be, a GPU that needs a repair. */
static bool has_unusable_gpu(const char *reason)
{
    return strncmp(reason, "no usable GPU", 13) == 0 || strncmp(reason, "the driver is", 13) == 0;
}

int setupi_choose_backend(struct setup *self)
{
    const char *asked = self->job->device.backend;
    const kernel_ops *cuda = kernels_cuda();
    self->ops = &kernels_cpu;
    if (strcmp(asked, "cpu") == 0)
        return 0;
    bool is_required = strcmp(asked, "cuda") == 0;
    char reason[DEVICE_TEXT_BYTES] = "this build has no CUDA";
    uint32_t count = cuda ? device_count(reason) : 0;
    if (count == 0 && is_required)
        return err_set(
            ERR_CONFIG,
            "device.backend is \"cuda\", but there is no GPU to use: %s; set it to \"cpu\" "
            "or \"auto\", or see kernels/cuda/README.md",
            reason);
    if (count == 0) {
        if (has_unusable_gpu(reason))
            log_warn("the GPU is not used: %s", reason);
        else
            log_debug("device.backend auto: the CPU, since %s", reason);
        return 0;
    }
    int rc = open_gpu(self, cuda, count);
    if (rc == 0)
        return 0;
    err_record first;
    err_save(&first, rc);
    close_gpu(self);
    if (is_required)
        return err_restore(&first);
    log_warn("the GPU is not used: %s", first.text);
    return 0;
}

/* Counts the ranks of this host that use the same GPU. A launcher may show each rank only a GPU of
 * its own, so equal indices do not mean equal GPUs. */
static int count_sharers(struct setup *self)
{
    enum { BUS_BYTES = 16 };
    const struct ranks *ranks = &self->ranks;
    char own[BUS_BYTES] = "", all[COMM_RANKS_MAX][BUS_BYTES];
    if (self->gpu)
        snprintf(own, sizeof own, "%s", device_get_info(self->gpu)->pci_bus_id);
    TRY(comm_exchange(ranks->comm, "the ranks' GPUs", own, sizeof own, all));
    const comm_rank *list = comm_get_ranks(ranks->comm);
    self->gpu_sharers = 0;
    for (uint32_t r = 0; r < ranks->world; r++)
        self->gpu_sharers +=
            list[r].host_idx == list[ranks->rank].host_idx && strncmp(all[r], own, sizeof own) == 0;
    return 0;
}

/* The backend of collectives that this rank could use, as far as the job allows it. */
static enum comm_backend own_collectives(const struct setup *self)
{
    const char *asked = self->job->comm.backend;
    bool asks_nccl = strcmp(asked, "nccl") == 0;
    if (self->ranks.world == 1 && !(asks_nccl && self->gpu && self->ranks.comm))
        return COMM_SELF;
    if (!self->gpu)
        return COMM_MPI;
    if (comm_is_pretended(self->ranks.comm))
        return COMM_STAGED;
    if (asks_nccl) /* comm_open refuses if NCCL cannot do it */
        return COMM_NCCL;
    if (strcmp(asked, "mpi") == 0 && self->ranks.rank == 0)
        log_info("comm.backend mpi: between GPUs, collectives are staged through host memory");
    bool may_nccl = strcmp(asked, "auto") == 0 && self->gpu_sharers == 1;
    if (!may_nccl)
        return COMM_STAGED;
    if (comm_nccl_check() == 0)
        return COMM_NCCL;
    log_info("collectives go through host memory: %s", err_text());
    return COMM_STAGED;
}

/* Measures the GPU memory that NCCL holds. That is known only once NCCL is open, but the budget is
 * made before. So all ranks together open it here once, and close it again. */
static int measure_nccl(struct setup *self)
{
    comm *members = self->ranks.comm;
    comm_open_config config = {
        .backend = COMM_NCCL, .gpu = self->gpu, .has_parcels = self->net->spec.owns_experts};
    if (self->collectives != COMM_NCCL || !members)
        return 0;
    device_stream *stream;
    TRY(device_stream_create(self->gpu, true, &stream));
    config.stream = stream;
    TRY(comm_open(members, &config));
    self->nccl_bytes = comm_held_bytes(members);
    comm_close(members);
    return 0;
}

int setupi_choose_collectives(struct setup *self)
{
    const struct ranks *ranks = &self->ranks;
    bool is_several = ranks->world > 1 && ranks->comm;
    const char *asked = self->job->comm.backend;
    if (is_several && !self->gpu && (strcmp(asked, "nccl") == 0 || strcmp(asked, "staged") == 0))
        return err_set(ERR_CONFIG,
                       "comm.backend is \"%s\", which is between GPUs, but rank %u on %s computes "
                       "on the CPU: set it to \"auto\" or \"mpi\", or find out why there is no GPU "
                       "with device.backend=cuda",
                       asked, ranks->rank, ranks->host);
    if (is_several)
        TRY(count_sharers(self));
    self->collectives = own_collectives(self);
    if (!is_several)
        return measure_nccl(self);
    uint8_t own = (uint8_t)self->collectives, all[COMM_RANKS_MAX];
    TRY(comm_exchange(ranks->comm, "backend of the collectives", &own, sizeof own, all));
    for (uint32_t r = 0; r < ranks->world; r++) {
        if ((all[r] == COMM_MPI) != (all[0] == COMM_MPI))
            return err_set(ERR_CONFIG,
                           "rank %u computes on %s and rank 0 on %s: all ranks must compute on the "
                           "same kind of device; set device.backend to \"cpu\", or start ranks "
                           "only where there are GPUs",
                           r, all[r] == COMM_MPI ? "the CPU" : "a GPU",
                           all[0] == COMM_MPI ? "the CPU" : "a GPU");
        if (all[r] == COMM_STAGED) /* one rank that cannot use NCCL decides for all */
            self->collectives = COMM_STAGED;
    }
    return measure_nccl(self);
}

int setupi_make_cpu_context(struct setup *self)
{
    if (self->gpu)
        return 0;
    kernel_context_config config = {.thread_count = self->thread_count};
    return self->ops->context_create(&config, &self->context);
}

int setupi_gpu_budget(const struct setup *self, uint64_t asked_bytes, uint64_t *budget_bytes)
{
    uint64_t free_bytes;
    TRY(device_free_bytes(self->gpu, &free_bytes));
    uint64_t taken = self->gpu_free_at_open - size_min(free_bytes, self->gpu_free_at_open);
    free_bytes /= self->gpu_sharers;
    uint64_t reserve = size_max(taken / 2, GPU_RESERVE_MIB_MIN * MIB) + self->nccl_bytes;
    uint64_t most = free_bytes > reserve ? free_bytes - reserve : 0;
    most = most / TILE_BLOCK_BYTES * TILE_BLOCK_BYTES;
    char left[SIZE_TEXT_BYTES], kept[SIZE_TEXT_BYTES], sharers[64] = "";
    if (self->gpu_sharers > 1)
        snprintf(sharers, sizeof sharers, " for each of the %u ranks that share it",
                 self->gpu_sharers);
    if (most == 0)
        return err_set(
            ERR_NO_FIT,
            "%s has %s free%s, and CUDA's libraries may still take %s: end what else uses "
            "this GPU, or set device.backend to \"cpu\"",
            device_get_info(self->gpu)->name, size_format(free_bytes, left), sharers,
            size_format(reserve, kept));
    if (asked_bytes > most) {
        char asked[SIZE_TEXT_BYTES], held[SIZE_TEXT_BYTES], usable[SIZE_TEXT_BYTES];
        return err_set(ERR_NO_FIT,
                       "tiers.device.budget is %s, but %s has %s free%s: CUDA's libraries hold %s "
                       "already and %s "
                       "stay for what they may still take; set it to %s or less, or leave it out",
                       size_format(asked_bytes, asked), device_get_info(self->gpu)->name,
                       size_format(free_bytes, left), sharers, size_format(taken, held),
                       size_format(reserve, kept), size_format(most, usable));
    }
    *budget_bytes = asked_bytes ? asked_bytes : most;
    return 0;
}

int setup_gpu_used(const struct setup *self, uint64_t *used_bytes)
{
    uint64_t free_bytes;
    TRY(device_free_bytes(self->gpu, &free_bytes));
    *used_bytes = device_get_info(self->gpu)->total_bytes - free_bytes;
    return 0;
}
