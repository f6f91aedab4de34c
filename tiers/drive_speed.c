/* Measuring drives and weighing them. See drive_speed.h. */
#include "tiers/drive_speed.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "tiers/arena.h"
#include "tiers/slab_internal.h"

enum {
    SPEED_SLOTS = 8,        /* requests in flight; reads saturate at 4 of this size */
    /* a write pass and a read pass per round; the first rounds are often slow */
    SPEED_ROUNDS_MAX = 5,
    SPEED_STEP_PERCENT = 5, /* weights are powers of 1.05, so drives within 2.5% are equal */
};

#define SPEED_BLOCK_BYTES   MIB
#define SPEED_DEFAULT_BYTES (128 * MIB)
#define SPEED_MIN_BYTES     (SPEED_SLOTS * SPEED_BLOCK_BYTES)
/* Length of a pass; eleven passes make the second. A pass ends early only after each slot was used
 * once. */
#define SPEED_PASS_NS  90000000u
#define SPEED_TOTAL_NS 1000000000u
/* a drive that does not answer is named in a warning, and waited for */
#define SPEED_STUCK_NS 10000000000u

struct bench {
    slab *store;
    arena memory; /* [SPEED_SLOTS] blocks */
    io *queue;
    io_request requests[SPEED_SLOTS];
    uint64_t area_bytes; /* written so far, from address 0; later passes move these bytes */
    uint64_t moved_bytes;
};
typedef struct bench bench;

static int submit_block(bench *self, uint32_t slot, enum io_direction direction, uint64_t offset)
{
    self->requests[slot] = (io_request){.direction = direction,
                                        .offset = offset,
                                        .data = self->memory.base + slot * SPEED_BLOCK_BYTES,
                                        .size_bytes = SPEED_BLOCK_BYTES};
    return io_submit(self->queue, &self->requests[slot]);
}

/* Moves [0, limit_bytes) once, in order and with all slots busy, or as much as the time allows. */
static int run_pass(bench *self, enum io_direction direction, uint64_t limit_bytes,
                    uint64_t *pass_bytes, double *rate)
{
    uint64_t submitted = 0, finished = 0, start_ns = clock_ns();
    uint32_t busy_count = 0;
    for (; busy_count < SPEED_SLOTS && submitted < limit_bytes; busy_count++) {
        TRY(submit_block(self, busy_count, direction, submitted));
        submitted += SPEED_BLOCK_BYTES;
    }
    while (busy_count) {
        io_request *done[SPEED_SLOTS];
        int got = io_poll(self->queue, done, SPEED_SLOTS);
        TRY(got);
        bool in_time = clock_ns() - start_ns < SPEED_PASS_NS;
        for (int i = 0; i < got; i++) {
            if (done[i]->result < 0)
                return err_restore(io_error(self->queue));
            finished += SPEED_BLOCK_BYTES;
            busy_count--;
            if (submitted == limit_bytes || !in_time)
                continue;
            TRY(submit_block(self, (uint32_t)(done[i] - self->requests), direction, submitted));
            submitted += SPEED_BLOCK_BYTES;
            busy_count++;
        }
        struct pollfd waiter = {.fd = io_event_fd(self->queue), .events = POLLIN};
        if (got == 0)
            (void)poll(&waiter, 1, 1000);
    }
    *pass_bytes = finished;
    *rate = (double)finished * 1e9 / (double)size_max(clock_ns() - start_ns, 1);
    self->moved_bytes += finished;
    return 0;
}

static double median(double *values, int count)
{
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && values[k] < values[k - 1]; k--) {
            double held = values[k];
            values[k] = values[k - 1];
            values[k - 1] = held;
        }
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static int run_passes(bench *self, drive_speed *out)
{
    double reads[SPEED_ROUNDS_MAX], writes[SPEED_ROUNDS_MAX], unused;
    uint64_t start_ns = clock_ns(), pass_bytes;
    TRY(run_pass(self, IO_WRITE, self->store->total_bytes, &self->area_bytes, &unused));
    int rounds = 0;
    do {
        TRY(run_pass(self, IO_WRITE, self->area_bytes, &pass_bytes, &writes[rounds]));
        TRY(run_pass(self, IO_READ, self->area_bytes, &pass_bytes, &reads[rounds]));
        rounds++;
    } while (rounds < SPEED_ROUNDS_MAX && clock_ns() - start_ns < SPEED_TOTAL_NS);
    out->read = median(reads, rounds);
    out->write = median(writes, rounds);
    out->mixed = 2.0 / (1.0 / out->read + 1.0 / out->write);
    return 0;
}

/* Makes a queue and memory for the open slab, measures, and closes both. */
static int measure_slab(bench *self, enum io_backend backend, drive_speed *out)
{
    arena_config memory = {.name = "speed",
                           .size_bytes = SPEED_SLOTS * SPEED_BLOCK_BYTES,
                           .numa_node = -1,
                           .touch_threads = 1};
    TRY(arena_init(&self->memory, &memory));
    uint64_t *words = (uint64_t *)(void *)self->memory.base;
    for (uint64_t i = 0; i < self->memory.size_bytes / sizeof *words; i++)
        words[i] = rng_u64(1, 0, i); /* a drive that compresses would be too fast with zeros */
    io_region region = {self->memory.base, self->memory.size_bytes};
    io_config config = {.target = self->store,
                        .backend = backend,
                        .queue_depth = SPEED_SLOTS,
                        .block_bytes = SPEED_BLOCK_BYTES,
                        .pool_threads = SPEED_SLOTS,
                        .stuck_ns = SPEED_STUCK_NS,
                        .regions = &region,
                        .region_count = 1,
                        .request_capacity = SPEED_SLOTS};
    int rc = io_create(&config, &self->queue);
    if (rc == 0) {
        io_stats stats;
        io_get_stats(self->queue, &stats);
        out->backend = stats.backend;
        rc = run_passes(self, out);
        err_record first;
        err_save(&first, rc);
        io_destroy(self->queue);
        if (rc < 0)
            rc = err_restore(&first);
    }
    arena_fini(&self->memory);
    return rc;
}

/* Decides how large the file on the file system of `directory` may be, in whole blocks. */
static int choose_bytes(const char *directory, uint64_t bytes_max, uint64_t *bytes)
{
    struct statvfs volume;
    if (statvfs(directory, &volume) != 0)
        return err_errno(errno, "statvfs of %s", directory);
    uint64_t free_bytes = (uint64_t)volume.f_bavail * volume.f_frsize;
    *bytes = size_min(bytes_max ? bytes_max : SPEED_DEFAULT_BYTES, free_bytes / 2);
    *bytes = *bytes / SPEED_BLOCK_BYTES * SPEED_BLOCK_BYTES;
    if (*bytes >= SPEED_MIN_BYTES)
        return 0;
    char size[SIZE_TEXT_BYTES], needed[SIZE_TEXT_BYTES];
    return err_set(-ENOSPC, "%.200s: %s may be used to measure by, %s are needed", directory,
                   size_format(*bytes, size), size_format(SPEED_MIN_BYTES, needed));
}

int drive_speed_measure(const char *path, uint64_t bytes_max, enum io_backend backend,
                        drive_speed *out)
{
    memset(out, 0, sizeof *out);
    char directory[FILE_PATH_BYTES];
    struct stat status;
    uint64_t bytes = 0;
    TRY(tieri_slab_existing(path, directory, &status));
    TRY(choose_bytes(directory, bytes_max, &bytes));
    bench *self = mem_alloc(1, sizeof *self, "drive speed");
    slab *store = mem_alloc(1, sizeof *store, "drive speed slab");
    int rc = self && store ? 0 : -ENOMEM;
    if (rc == 0)
        rc = tieri_slab_open_unnamed(store, directory, bytes / MIB);
    if (rc == 0) {
        self->store = store;
        out->file_bytes = store->files[0].file_bytes;
        out->direct = store->files[0].direct;
        rc = measure_slab(self, backend, out);
        out->moved_bytes = self->moved_bytes;
        slab_close(store);
    }
    mem_free(store);
    mem_free(self);
    if (rc < 0)
        memset(out, 0, sizeof *out);
    return rc;
}

void drive_speed_weights(const double *rates, const uint32_t *devices, uint32_t count,
                         double *weights)
{
    double fastest = 0, slowest = 0;
    for (uint32_t i = 0; i < count; i++) {
        fastest = rates[i] > fastest ? rates[i] : fastest;
        slowest = rates[i] > 0 && (slowest == 0 || rates[i] < slowest) ? rates[i] : slowest;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t sharers = 0;
        for (uint32_t k = 0; k < count; k++)
            sharers += devices[k] == devices[i];
        double rate = rates[i] > 0 ? rates[i] : slowest;
        double step = log1p(SPEED_STEP_PERCENT / 100.0);
        double steps = fastest > 0 ? nearbyint(log(fastest / rate) / step) : 0;
        double whole = fastest > 0 ? fastest * 1e-9 * exp(-steps * step) : 1.0;
        weights[i] = whole / sharers;
    }
}

dev_t tieri_whole_device(const char *sysfs_block, dev_t device)
{
    char link[FILE_PATH_BYTES], place[PATH_MAX];
    snprintf(link, sizeof link, "%s/%u:%u", sysfs_block, major(device), minor(device));
    if (!realpath(link, place))
        return device;
    size_t used = strlen(place);
    snprintf(place + used, sizeof place - used, "/partition");
    if (access(place, F_OK) != 0)
        return device;
    place[used] = 0;
    *strrchr(place, '/') = 0; /* sysfs has a partition within its disk */
    used = strlen(place);
    snprintf(place + used, sizeof place - used, "/dev");
    FILE *file = fopen(place, "re");
    if (!file)
        return device;
    unsigned whole_major, whole_minor;
    if (fscanf(file, "%u:%u", &whole_major, &whole_minor) == 2)
        device = makedev(whole_major, whole_minor);
    fclose(file);
    return device;
}

/* Sets devices[i] to the first drive on the same device. Returns the number of devices. */
static int find_devices(const slab_drive *drives, uint32_t drive_count, uint32_t *devices)
{
    dev_t device[DRIVES_MAX];
    int device_count = 0;
    for (uint32_t i = 0; i < drive_count; i++) {
        char directory[FILE_PATH_BYTES];
        struct stat status;
        TRY(tieri_slab_existing(drives[i].path, directory, &status));
        device[i] = tieri_whole_device("/sys/dev/block", status.st_dev);
        devices[i] = 0;
        while (device[devices[i]] != device[i])
            devices[i]++;
        device_count += devices[i] == i;
    }
    return device_count;
}

/* The size of the largest file that the budgets of this device's drives allow. */
static uint64_t budget_of_device(const slab_drive *drives, uint32_t drive_count,
                                 const uint32_t *devices, uint32_t device)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < drive_count; i++) {
        if (devices[i] != device)
            continue;
        if (drives[i].budget_bytes == 0)
            return SPEED_DEFAULT_BYTES;
        bytes = size_max(bytes, drives[i].budget_bytes);
    }
    return size_min(bytes, SPEED_DEFAULT_BYTES);
}

static void log_drives(const slab_drive *drives, uint32_t drive_count, const drive_speed *speeds,
                       const uint32_t *devices, const double *weights)
{
    double sum = 0;
    for (uint32_t i = 0; i < drive_count; i++)
        sum += weights[i];
    for (uint32_t i = 0; i < drive_count; i++) {
        const drive_speed *speed = &speeds[devices[i]];
        double percent = 100.0 * weights[i] / sum;
        if (devices[i] != i)
            log_info("drive %s: on the device of %s, which is measured once and shared evenly: "
                     "%.1f%% of the stripes by speed",
                     drives[i].path, drives[devices[i]].path, percent);
        else if (speed->mixed > 0)
            log_info(
                "drive %s: reads %.2f, writes %.2f, both mixed %.2f GB/s (%s%s): %.1f%% of the "
                "stripes by speed",
                drives[i].path, speed->read * 1e-9, speed->write * 1e-9, speed->mixed * 1e-9,
                speed->backend == IO_URING ? "io_uring" : "pread/pwrite threads",
                speed->direct ? "" : ", through the page cache", percent);
        else
            log_info("drive %s: not measured, taken as slow as the slowest: %.1f%% of the stripes "
                     "by speed",
                     drives[i].path, percent);
    }
}

int slab_weigh_drives_by(slab_drive *drives, uint32_t drive_count, enum io_backend backend)
{
    uint32_t devices[DRIVES_MAX] = {0};
    double rates[DRIVES_MAX] = {0}, weights[DRIVES_MAX] = {0};
    drive_speed speeds[DRIVES_MAX] = {{0}};
    if (drive_count == 0 || drive_count > DRIVES_MAX)
        return err_set(-EINVAL, "nvme tier: %u drives; 1 to %d are possible", drive_count,
                       DRIVES_MAX);
    int device_count = find_devices(drives, drive_count, devices);
    TRY(device_count);
    if (device_count == 1 && drive_count > 1)
        log_info("the %u drive directories are on one device: they get equal shares, and there is "
                 "no speed to measure",
                 drive_count);
    for (uint32_t i = 0; i < drive_count && device_count > 1; i++) {
        if (devices[i] == i) {
            uint64_t bytes_max = budget_of_device(drives, drive_count, devices, i);
            int rc = drive_speed_measure(drives[i].path, bytes_max, backend, &speeds[i]);
            if (rc == -ENOMEM || rc == ERR_INPUT)
                return rc;
            if (rc < 0)
                log_warn("the speed of drive %s could not be measured: %s", drives[i].path,
                         err_text());
        }
        rates[i] = speeds[devices[i]].mixed;
    }
    drive_speed_weights(rates, devices, drive_count, weights);
    if (device_count > 1)
        log_drives(drives, drive_count, speeds, devices, weights);
    for (uint32_t i = 0; i < drive_count; i++)
        drives[i].weight = weights[i];
    return 0;
}
