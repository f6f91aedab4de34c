/* Fills the plan's figures of the machine: one rank's figures, made from those of a host
 * (config/machine.h).
 *
 *   of the host     DRAM, drives, link_all_ranks   divided by the ranks that share it
 *   of a rank       link, device of a GPU, comm    unchanged, but the link at most its part of
 *                                                  link_all_ranks
 *   of cores        a CPU's products               scaled to the threads that compute
 *
 * A figure that is not known keeps the plan's default. Nothing is measured here; only the file
 * systems of the drives' directories are looked up. A run that is watched (watch.h) may state some
 * figures itself. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/size.h"
#include "config/machine.h"
#include "setup/setup_internal.h"
#include "tiers/io.h"

struct figures {
    const struct setup *setup;
    const machine *from;
    plan_machine *to;
    double ranks;     /* ranks that share this host */
    bool is_complete; /* all figures that the job uses are known */
};

/* Takes a figure. If it is not known, the default stays. */
static void take(struct figures *self, double known, double *target)
{
    if (known > 0)
        *target = known;
    else
        self->is_complete = false;
}

/* ---- drives ---- */

/* Finds the file system of a directory, or of the nearest directory above it that exists. */
static bool find_file_system(const char *path, dev_t *out)
{
    char name[FILE_PATH_BYTES];
    struct stat info;
    snprintf(name, sizeof name, "%s", path);
    while (stat(name, &info) != 0) {
        char *slash = strrchr(name, '/');
        if (!slash || name[1] == '\0')
            return false;
        slash[slash == name ? 1 : 0] = '\0';
    }
    *out = info.st_dev;
    return true;
}

/* Counts the ranks of this host whose directory for the drive is on this rank's file system. It is
 * all ranks if the path has no placeholder of ranks. */
static double count_sharers(const struct setup *self, uint32_t d)
{
    char path[FILE_PATH_BYTES];
    dev_t own, other;
    const struct ranks *ranks = &self->ranks;
    if (setup_drive_sharers(ranks, self->drive_names[d]) > 1)
        return ranks->local_world;
    uint32_t count = 0;
    for (uint32_t r = 0; r < ranks->local_world; r++) {
        uint32_t rank = ranks->rank - ranks->local_rank + r; /* as launchers number ranks */
        bool is_same =
            r == ranks->local_rank ||
            (manifest_expand_path(self->drive_names[d], rank, r, ranks->host, path, sizeof path) &&
             find_file_system(self->drives[d].path, &own) && find_file_system(path, &other) &&
             own == other);
        count += is_same;
    }
    return count;
}

/* The machine's drive on which a directory lies; NULL if it is not in the machine file. */
static const machine_drive *find_drive(const machine *from, const char *path)
{
    dev_t own, other;
    for (uint32_t d = 0; d < from->drive_count; d++)
        if (from->drives[d].path[0] != '\0' && strcmp(from->drives[d].path, path) == 0)
            return &from->drives[d];
    bool is_known = find_file_system(path, &own);
    for (uint32_t d = 0; d < from->drive_count && is_known; d++)
        if (from->drives[d].path[0] != '\0' && find_file_system(from->drives[d].path, &other) &&
            own == other)
            return &from->drives[d];
    return NULL;
}

/* Several drives share one queue. It takes the smallest block that is enough for one of them, and
 * the largest depth. */
void setup_drive_settings(const struct setup *self, uint64_t *block_bytes, uint32_t *queue_depth)
{
    const struct job *asked = self->job;
    uint64_t block = 0, depth = 0;
    for (uint32_t d = 0; self->stated && d < self->drive_count; d++) {
        const machine_drive *known = find_drive(self->stated, self->drives[d].path);
        bool is_block = known && known->block_bytes > 0 && known->block_bytes % (4 * KIB) == 0 &&
                        known->block_bytes <= GIB;
        if (is_block)
            block = block ? size_min(block, known->block_bytes) : known->block_bytes;
        if (known)
            depth = size_max(depth, known->queue_depth);
    }
    *block_bytes = block && !asked->io.block_is_given ? block : asked->io.block_bytes;
    depth = depth && !asked->io.depth_is_given ? depth : asked->io.queue_depth;
    *queue_depth = (uint32_t)size_min(depth, IO_QUEUE_DEPTH_MAX);
}

struct drive_rates {
    double read, write, sync;
    double both_ways; /* of the drive that has the least, 1 if one is not known; 0: no drive yet */
    double kept;      /* of the drive that keeps least beside memory traffic; 0: not known */
};

static void add_known(const machine_drive *drive, double count, double sharers,
                      struct drive_rates *sum)
{
    bool has_both = drive->read > 0 && drive->write > 0;
    double by_turns = has_both ? 2 / (1 / drive->read + 1 / drive->write) : 0;
    double both_ways = has_both ? fmax(drive->mixed / by_turns, 1) : 1;
    /* Adam uses all of the memory's rate. Reads and writes are assumed to lose the same part. */
    if (has_both && drive->write_with_update > 0) {
        double kept = fmin(drive->write_with_update / (both_ways * by_turns), 1);
        sum->kept = sum->kept > 0 ? fmin(sum->kept, kept) : kept;
    }
    sum->both_ways = sum->both_ways > 0 ? fmin(sum->both_ways, both_ways) : both_ways;
    sum->read += count * drive->read / sharers;
    sum->write += count * drive->write / sharers;
    sum->sync = fmax(sum->sync, drive->sync_seconds);
}

/* Adds the job's drives, each once. A drive that is not known has the default's rates. */
static void add_job_drives(struct figures *self, struct drive_rates *sum)
{
    const struct setup *setup = self->setup;
    bool is_taken[DRIVES_MAX] = {false};
    for (uint32_t d = 0; d < setup->drive_count; d++) {
        const char *path = setup->drives[d].path;
        const machine_drive *known = find_drive(self->from, path);
        if (known && known->read > 0 && known->write > 0) {
            size_t idx = (size_t)(known - self->from->drives);
            if (!is_taken[idx])
                add_known(known, 1, count_sharers(setup, d), sum);
            is_taken[idx] = true;
            continue;
        }
        double sharers = count_sharers(setup, d);
        sum->both_ways = 1;
        sum->read += self->to->drive_read_bytes_per_second / sharers;
        sum->write += self->to->drive_write_bytes_per_second / sharers;
        if (setup->job->tiers.nvme_count == 0)
            continue; /* the run directory: only commits write to it */
        self->is_complete = false;
        if (setup->ranks.rank == 0)
            log_info("%s is on no drive that the machine file has: the plan takes %.1f GB/s for "
                     "it, each way",
                     path, self->to->drive_read_bytes_per_second * 1e-9);
    }
}

static void take_drives(struct figures *self)
{
    const machine *from = self->from;
    plan_machine *to = self->to;
    struct drive_rates sum = {0};
    if (self->setup->is_described)
        for (uint32_t d = 0; d < from->drive_count; d++)
            add_known(&from->drives[d], fmax(from->drives[d].count, 1), self->ranks, &sum);
    else
        add_job_drives(self, &sum);
    if (from->drives_read > 0)
        sum.read = fmin(sum.read, from->drives_read / self->ranks);
    if (from->drives_write > 0)
        sum.write = fmin(sum.write, from->drives_write / self->ranks);
    take(self, sum.read, &to->drive_read_bytes_per_second);
    take(self, sum.write, &to->drive_write_bytes_per_second);
    to->drive_both_ways = sum.both_ways;
    to->drive_kept = sum.kept;
    if (sum.sync > 0) /* one sync of the slabs, then one of the manifest */
        to->sync_seconds = 2 * sum.sync;
    if (from->host.io_core_seconds > 0)
        to->io_core_seconds = from->host.io_core_seconds;
    /* Writes are summed for the manifest even if no read is compared. */
    to->write_sum_core_seconds = from->host.sum_core_seconds;
    to->read_sum_core_seconds = self->setup->job->io.verify_reads ? from->host.sum_core_seconds : 0;
}

/* ---- all else ---- */

/* The rate of one direction between host memory and a GPU while the other direction and (with
 * drives) I/O run too. */
static double link_rate(const struct figures *self, const machine_link *link)
{
    double rate = link->pinned_both > 0 ? link->pinned_both : link->pinned;
    if (self->setup->job->tiers.nvme_count > 0 && link->pinned_with_nvme > 0)
        rate = rate > 0 ? fmin(rate, link->pinned_with_nvme) : link->pinned_with_nvme;
    double most = self->from->link_all_ranks / self->ranks;
    return most > 0 && rate > most ? most : rate;
}

double setupi_measured_threads(const machine *from)
{
    return from->device.thread_count > 0 ? from->device.thread_count
                                         : from->host.core_count / fmax(from->ranks_per_host, 1);
}

/* The factor from the threads with which a CPU was measured to this rank's threads. */
static double share_of_cores(const struct figures *self)
{
    double measured = setupi_measured_threads(self->from), cores = self->from->host.core_count;
    double own = self->setup->thread_count;
    return measured > 0 && own > 0 ? (cores > 0 ? fmin(own, cores) : own) / measured : 1;
}

static void take_device(struct figures *self)
{
    const machine *from = self->from;
    plan_machine *to = self->to;
    enum dtype type = self->setup->net->type;
    /* The CPU kernels do not multiply fp16; they widen its operands. */
    bool is_16bit = to->device_is_cpu ? type == DTYPE_BF16 : type != DTYPE_FP32;
    double flops = is_16bit ? from->device.flops_16bit : from->device.flops_fp32;
    if (flops <= 0 && is_16bit && from->device.is_gpu)
        flops = from->device.peak_flops * 2 / 3; /* as in plan_machine_default_gpu */
    take(self, to->device_is_cpu ? flops * share_of_cores(self) : flops,
         &to->device_flops_per_second);
    to->expand_bytes_per_second =
        from->device.expand_rate * (to->device_is_cpu ? fmin(share_of_cores(self), 1) : 1);
    if (from->device.op_seconds > 0)
        to->op_seconds = from->device.op_seconds;
    if (to->device_is_cpu) { /* one thread copies in both directions, in turn */
        to->copy_core_seconds = from->host.copy_core_seconds;
        if (from->h2d.pinned > 0)
            to->h2d_bytes_per_second = from->h2d.pinned;
        if (from->d2h.pinned > 0)
            to->d2h_bytes_per_second = from->d2h.pinned;
        return;
    }
    take(self, from->device.memory_rate, &to->device_bytes_per_second);
    take(self, link_rate(self, &from->h2d), &to->h2d_bytes_per_second);
    take(self, link_rate(self, &from->d2h), &to->d2h_bytes_per_second);
}

/* Every rank sends to the next one. If they are on several hosts, the slower way limits. */
static void take_comm(struct figures *self)
{
    const struct ranks *ranks = &self->setup->ranks;
    const machine *from = self->from;
    plan_machine *to = self->to;
    if (ranks->world == 1)
        return;
    bool is_alone = ranks->local_world == 1, is_one_host = ranks->local_world == ranks->world;
    double rate = is_one_host ? from->comm.inside : from->comm.between;
    if (!is_one_host && !is_alone && from->comm.inside > 0)
        rate = rate > 0 ? fmin(rate, from->comm.inside) : 0;
    take(self, rate, &to->comm_bytes_per_second);
    if (from->comm.seconds > 0)
        to->comm_seconds = from->comm.seconds;
    if (rate > 0)
        to->comm_is_copies = is_one_host && from->comm.is_copies;
}

static void make_defaults(const struct setup *self, plan_machine *to)
{
    if (self->described_gpu) {
        plan_machine_default_gpu(to, (uint32_t)self->thread_count, 8, 0);
        return;
    }
    if (!self->gpu) {
        plan_machine_default_cpu(to, (uint32_t)self->thread_count, self->net->type == DTYPE_BF16);
        to->updates_beside = !self->is_described && !self->cores.update_is_compute;
        return;
    }
    const device_info *info = device_get_info(self->gpu);
    plan_machine_default_gpu(to, self->cores.update.thread_count, info->compute_major,
                             info->memory_bytes_per_second);
}

void setup_machine_figures(const struct setup *self, plan_machine *target)
{
    make_defaults(self, target);
    if (!self->stated)
        return;
    const machine *from = self->stated;
    struct figures work = {.setup = self,
                           .from = from,
                           .to = target,
                           .ranks = size_max(self->ranks.local_world, 1),
                           .is_complete = true};
    bool is_same_kind = from->device.is_gpu == !target->device_is_cpu;
    if (is_same_kind)
        take_device(&work);
    else if (self->ranks.rank == 0)
        log_warn("the machine file \"%s\" is of a machine whose device is a %s, and this job "
                 "computes on a %s: the plan takes its defaults for it",
                 from->name, from->device.is_gpu ? "GPU" : "CPU",
                 target->device_is_cpu ? "CPU" : "GPU");
    /* Most DRAM traffic comes from updates and copies. The update's rate covers more bytes than the
     * copy's. */
    double dram = from->host.dram_update > 0 ? from->host.dram_update
                  : from->host.dram_copy > 0 ? from->host.dram_copy
                                             : from->host.dram_read;
    take(&work, dram / work.ranks, &target->dram_bytes_per_second);
    take(&work, from->host.update_core_seconds, &target->update_core_seconds);
    take_drives(&work);
    take_comm(&work);
    target->is_measured = from->measured_at[0] != '\0' && work.is_complete && is_same_kind;
    if (from->disturbed && self->ranks.rank == 0)
        log_warn(
            "the machine file \"%s\" was measured beside other work (%s): its predictions may be "
            "wrong; run sluice probe again on a quiet machine",
            from->name, from->disturbed_by);
}

/* ---- what a watch states ---- */

/* Removes from all passes their memory traffic and measured seconds. Without has_flops also their
 * flops, so that they take no time at all. */
static void thin_passes(struct setup *self, bool has_flops)
{
    for (uint32_t s = 0; s < self->plan.stage_count; s++) {
        struct stage *stage = &self->stages[s];
        stage->recompute_seconds = stage->selective_seconds = 0;
        stage->recompute_dram_bytes = stage->selective_dram_bytes = 0;
        stage->recompute_flops = has_flops ? stage->recompute_flops : 0;
    }
    for (uint64_t p = 0; p < self->net->pass_count; p++) {
        struct pass *pass = &self->net->passes[p];
        pass->seconds = 0;
        pass->dram_bytes = 0;
        pass->flops = has_flops ? pass->flops : 0;
    }
}

/* The flops per second that the named machine states, whatever computes here; 0: no machine is
 * named, or it does not state them. */
static double stated_flops(const struct setup *self)
{
    const machine *from = self->stated;
    if (!from)
        return 0;
    double flops =
        self->net->type == DTYPE_FP32 ? from->device.flops_fp32 : from->device.flops_16bit;
    if (flops <= 0 && self->net->type != DTYPE_FP32)
        flops = from->device.peak_flops * 2 / 3; /* as in the plan's defaults */
    return flops;
}

void setupi_watch_inputs(struct setup *self, const struct setup_options *options)
{
    const struct setup_watch *watch = options->watch;
    if (!watch)
        return;
    if (watch->comm_bytes_per_second > 0)
        self->plan.machine.comm_bytes_per_second = watch->comm_bytes_per_second;
    if (!watch->only_transfers)
        return;
    double flops = stated_flops(self);
    self->plan.machine.comm_is_copies = false; /* pretended.c moves only this rank's own part */
    self->plan.machine.comm_takes_no_memory = true;
    self->plan.machine.device_flops_per_second = flops > 0 ? flops : WATCH_NO_TIME;
    thin_passes(self, flops > 0);
}

double setup_watched_seconds(const struct setup *setup, const op *item)
{
    return item->demand.device_flops / setup->plan.machine.device_flops_per_second;
}
