/* Checks that each drive can be used, and measures all drives at once. See probe_internal.h. */
#include <errno.h>
#include <limits.h>
#include <linux/magic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/size.h"
#include "probe/probe_internal.h"

const char *const probei_kind_names[PROBEI_IO_KINDS] = {"read", "write", "mixed"};

const probei_drive_extent probei_drive_extents[PROBEI_EXTENT_COUNT] = {
    {16 * MIB, 8 * MIB, 0.005, {256 * KIB, 1 * MIB}, {1, 4}},
    {512 * MIB, 128 * MIB, 0.04, {256 * KIB, 1 * MIB, 4 * MIB}, {1, 4, 8, 16}},
    {2048 * MIB, 128 * MIB, 0.08, {64 * KIB, 256 * KIB, 1 * MIB, 4 * MIB}, {1, 2, 4, 8, 16, 32}},
};

/* --- can the drive be used? --- */

static void name_drive(dev_t number, char name[MACHINE_NAME_BYTES])
{
    char link[PATH_MAX], place[PATH_MAX], model[MACHINE_NAME_BYTES / 2] = "";
    snprintf(name, MACHINE_NAME_BYTES, "drive");
    snprintf(link, sizeof link, "/sys/dev/block/%u:%u", major(number), minor(number));
    if (!realpath(link, place))
        return;
    size_t used = strlen(place);
    snprintf(place + used, sizeof place - used, "/partition");
    bool is_part = access(place, F_OK) == 0;
    place[used] = 0;
    if (is_part)
        *strrchr(place, '/') = 0;
    const char *base = strrchr(place, '/') + 1;
    snprintf(name, MACHINE_NAME_BYTES, "%.40s", base);
    used = strlen(place);
    snprintf(place + used, sizeof place - used, "/device/model");
    FILE *file = fopen(place, "re");
    if (!file)
        return;
    if (fgets(model, sizeof model, file))
        model[strcspn(model, "\n")] = 0;
    fclose(file);
    size_t end = strlen(model);
    while (end > 0 && model[end - 1] == ' ')
        model[--end] = 0;
    if (model[0])
        snprintf(name, MACHINE_NAME_BYTES, "%s", model);
}

int probei_drive_try(probei *self, uint32_t drive_idx)
{
    const char *path = self->options->drives[drive_idx];
    machine_drive *drive = &self->out->drives[drive_idx];
    bool is_memory = false;
    slab *store = mem_alloc(1, sizeof *store, "probe slab");
    if (!store)
        return -ENOMEM;
    int rc = slab_open_unnamed(store, path, 8 * MIB);
    struct stat status;
    struct statvfs volume;
    struct statfs system;
    if (rc == 0) {
        int fd = store->files[0].fd;
        rc = fstat(fd, &status) == 0 && fstatvfs(fd, &volume) == 0 && fstatfs(fd, &system) == 0
                 ? 0
                 : err_errno(errno, "looking at the drive of %s", path);
        is_memory = rc == 0 && system.f_type == TMPFS_MAGIC;
        slab_close(store);
    }
    mem_free(store);
    if (rc == -ENOSPC) {
        char needed[SIZE_TEXT_BYTES];
        size_format(16 * MIB, needed);
        return err_set(ERR_NO_FIT, "%.200s is full: the probe needs %s there at least", path,
                       needed);
    }
    if (rc < 0 && rc != ERR_INPUT) {
        char text[ERR_TEXT_BYTES];
        snprintf(text, sizeof text, "%s", err_text());
        return err_set(ERR_INPUT, "the drive directory %.200s cannot be used: %.700s", path, text);
    }
    TRY(rc);
    drive->capacity_bytes = (uint64_t)volume.f_bavail * volume.f_frsize;
    drive->count = 1;
    if (!realpath(path, drive->path))
        snprintf(drive->path, sizeof drive->path, "%s", path);
    if (is_memory)
        snprintf(drive->name, sizeof drive->name, "tmpfs: memory, no drive");
    else
        name_drive(status.st_dev, drive->name);
    self->out->drive_count = drive_idx + 1;
    if (drive->capacity_bytes >= 32 * MIB)
        return 0;
    char left[SIZE_TEXT_BYTES];
    return err_set(ERR_NO_FIT,
                   "%.200s has %s free: the probe takes half of it at most, and needs 16 MiB", path,
                   size_format(drive->capacity_bytes, left));
}

/* --- a drive's file --- */

static int check_first_write(void *user)
{
    return probei_check(user, "first write");
}

int probei_bench_open(probei *self, const char *path, uint64_t file_bytes, unsigned char *memory,
                      uint64_t memory_bytes, drive_bench *out)
{
    enum { FILL_DEPTH = 4 };
    drive_bench_config config = {.path = path,
                                 .file_bytes = file_bytes,
                                 .memory = memory,
                                 .memory_bytes = memory_bytes,
                                 .pool_threads = self->cores.io.thread_count};
    TRY(drive_bench_open(&config, out));
    uint64_t block_bytes = size_min(DRIVE_BENCH_BLOCK_BYTES_MAX, out->area_bytes / FILL_DEPTH);
    block_bytes = size_min(block_bytes, memory_bytes / 2 / FILL_DEPTH);
    int rc = drive_bench_fill(out, block_bytes, FILL_DEPTH, INFINITY, check_first_write, self);
    if (rc < 0) {
        err_record first;
        err_save(&first, rc);
        drive_bench_close(out);
        return err_restore(&first);
    }
    return 0;
}

drive_pass probei_pass(enum machine_io_kind kind, uint64_t block_bytes, uint32_t depth,
                       double seconds)
{
    return (drive_pass){.reads = kind != MACHINE_IO_WRITE,
                        .writes = kind != MACHINE_IO_READ,
                        .block_bytes = block_bytes,
                        .depth = depth,
                        .seconds = seconds};
}

/* --- all drives together --- */

struct together {
    probei *owner;
    drive_bench *benches[DRIVES_MAX];
    uint32_t count, depth;
    uint64_t block_bytes;
    double pass_seconds;
};

static int run_together(void *user, uint32_t variant, double *value)
{
    struct together *self = user;
    drive_pass pass = probei_pass((enum machine_io_kind)variant, self->block_bytes, self->depth,
                                  self->pass_seconds);
    return drive_bench_run(self->benches, self->count, &pass, value);
}

static int open_together(struct together *self)
{
    probei *owner = self->owner;
    const machine *out = owner->out;
    const probei_drive_extent *size = &probei_drive_extents[owner->extent];
    uint64_t memory_bytes = size->memory_bytes / out->drive_count / (2 * MIB) * (2 * MIB);
    self->block_bytes = out->drives[0].block_bytes;
    self->depth = 1;
    for (uint32_t d = 0; d < out->drive_count; d++) {
        self->block_bytes = size_min(self->block_bytes, out->drives[d].block_bytes);
        self->depth = (uint32_t)size_max(self->depth, out->drives[d].queue_depth);
        drive_bench *bench = mem_alloc(1, sizeof *bench, "probe bench");
        if (!bench)
            return -ENOMEM;
        self->benches[d] = bench;
        uint64_t file_bytes = size_min(size->file_bytes / 4, out->drives[d].capacity_bytes / 4);
        TRY(probei_bench_open(owner, out->drives[d].path, size_max(file_bytes, 4 * MIB),
                              owner->memory.base + d * memory_bytes, memory_bytes, bench));
        self->count++;
    }
    for (uint32_t d = 0; d < self->count; d++)
        self->depth = (uint32_t)size_min(
            self->depth, drive_bench_depth_max(self->benches[d], self->block_bytes));
    return self->depth > 0 ? 0 : err_set(ERR_INTERNAL, "no memory for %u drives", self->count);
}

int probei_all_drives(probei *self)
{
    machine *out = self->out;
    probei_figure figures[PROBEI_IO_KINDS] = {{.count = 0}};
    struct together together = {
        .owner = self, .pass_seconds = 2 * probei_drive_extents[self->extent].pass_seconds};
    int rc = open_together(&together);
    probei_work work = {.count = PROBEI_IO_KINDS,
                        .seconds = probei_step_left(self),
                        .run = run_together,
                        .names = probei_kind_names,
                        .user = &together};
    if (rc == 0)
        rc = probei_rounds(self, &work, figures);
    err_record first;
    err_save(&first, rc);
    for (uint32_t d = 0; d < DRIVES_MAX && together.benches[d]; d++) {
        if (d < together.count)
            drive_bench_close(together.benches[d]);
        mem_free(together.benches[d]);
    }
    if (rc < 0)
        return err_restore(&first);
    double sums[PROBEI_IO_KINDS] = {0};
    for (uint32_t d = 0; d < out->drive_count; d++) {
        sums[MACHINE_IO_READ] += out->drives[d].read;
        sums[MACHINE_IO_WRITE] += out->drives[d].write;
        sums[MACHINE_IO_MIXED] += out->drives[d].mixed;
    }
    out->drives_read = figures[MACHINE_IO_READ].median;
    out->drives_write = figures[MACHINE_IO_WRITE].median;
    probei_say(self, "all %u drives at once", out->drive_count);
    for (int kind = 0; kind < PROBEI_IO_KINDS; kind++)
        probei_found(self, probei_kind_names[kind], figures[kind].median * 1e-9, "GB/s",
                     &figures[kind], "%.0f%% of their sum",
                     100 * figures[kind].median / sums[kind]);
    return 0;
}
