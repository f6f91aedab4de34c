/* Measuring drives and weighing them. See drive_speed.h. */
#include "tiers/drive_speed.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
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
#include "tiers/drive_bench.h"
#include "tiers/tiers_internal.h"

enum {
    SPEED_SLOTS = 8, /* requests in flight; reads saturate at 4 of this size */
    /* a write pass and a read pass per round; the first rounds are often slow */
    SPEED_ROUNDS_MAX = 5,
    SPEED_STEP_PERCENT = 5, /* weights are powers of 1.05, so drives within 2.5% are equal */
};

#define PAGE_BYTES          (4 * KIB)
#define SPEED_BLOCK_BYTES   MIB
#define SPEED_DEFAULT_BYTES (128 * MIB)
#define SPEED_MIN_BYTES     (SPEED_SLOTS * SPEED_BLOCK_BYTES)
/* The time of a pass; eleven passes make the second. A pass ends early only after each slot was
 * used once. */
#define SPEED_PASS_SECONDS 0.09
#define SPEED_TOTAL_NS     1000000000u

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

static int run_pass(drive_bench *bench, enum io_direction direction, double *rate)
{
    drive_pass pass = {.reads = direction == IO_READ,
                       .writes = direction == IO_WRITE,
                       .block_bytes = SPEED_BLOCK_BYTES,
                       .depth = SPEED_SLOTS,
                       .seconds = SPEED_PASS_SECONDS,
                       .once = true};
    return drive_bench_run(&bench, 1, &pass, rate);
}

static int run_passes(drive_bench *bench, drive_speed *out)
{
    double reads[SPEED_ROUNDS_MAX], writes[SPEED_ROUNDS_MAX];
    uint64_t start_ns = clock_ns();
    TRY(drive_bench_fill(bench, SPEED_BLOCK_BYTES, SPEED_SLOTS, SPEED_PASS_SECONDS, NULL, NULL));
    int rounds = 0;
    do {
        TRY(run_pass(bench, IO_WRITE, &writes[rounds]));
        TRY(run_pass(bench, IO_READ, &reads[rounds]));
        rounds++;
    } while (rounds < SPEED_ROUNDS_MAX && clock_ns() - start_ns < SPEED_TOTAL_NS);
    out->read = median(reads, rounds);
    out->write = median(writes, rounds);
    out->mixed = 2.0 / (1.0 / out->read + 1.0 / out->write);
    return 0;
}

/* Opens the file and its queue over `memory`, measures, closes both. */
static int measure_file(const drive_bench_config *config, drive_speed *out)
{
    drive_bench *bench = mem_alloc(1, sizeof *bench, "drive speed");
    if (!bench)
        return -ENOMEM;
    int rc = drive_bench_open(config, bench);
    if (rc == 0) {
        out->file_bytes = bench->store.files[0].file_bytes;
        out->direct = bench->store.files[0].direct;
        out->backend = bench->backend;
        rc = run_passes(bench, out);
        out->moved_bytes = bench->moved_bytes;
        err_record first;
        err_save(&first, rc);
        drive_bench_close(bench);
        if (rc < 0)
            rc = err_restore(&first);
    }
    mem_free(bench);
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
    arena memory;
    arena_config memory_config = {
        .name = "speed", .size_bytes = 2 * SPEED_SLOTS * SPEED_BLOCK_BYTES, .touch_threads = 1};
    TRY(arena_init(&memory, &memory_config));
    uint64_t *words = (uint64_t *)(void *)memory.base;
    for (uint64_t i = 0; i < memory.size_bytes / sizeof *words; i++)
        words[i] = rng_u64(1, 0, i); /* zeros would flatter a drive that compresses */
    drive_bench_config config = {.path = directory,
                                 .file_bytes = bytes,
                                 .memory = memory.base,
                                 .memory_bytes = memory.size_bytes,
                                 .backend = backend,
                                 .pool_threads = SPEED_SLOTS};
    int rc = measure_file(&config, out);
    arena_fini(&memory);
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

/* A limit of the drive's queue; UINT64_MAX if it is not known. */
static uint64_t queue_limit(const char *sysfs_block, dev_t drive, const char *name)
{
    char path[FILE_PATH_BYTES];
    unsigned long long value;
    snprintf(path, sizeof path, "%s/%u:%u/queue/%s", sysfs_block, major(drive), minor(drive), name);
    FILE *file = fopen(path, "re");
    if (!file)
        return UINT64_MAX;
    bool is_known = fscanf(file, "%llu", &value) == 1 && value > 0; /* 0: there is no limit */
    fclose(file);
    return is_known ? value : UINT64_MAX;
}

uint64_t tieri_largest_request(const char *sysfs_block, dev_t device)
{
    dev_t drive = tieri_whole_device(sysfs_block, device);
    uint64_t kib = queue_limit(sysfs_block, drive, "max_sectors_kb");
    if (queue_limit(sysfs_block, drive, "chunk_sectors") < UINT64_MAX)
        return 0;
    uint64_t pages = queue_limit(sysfs_block, drive, "max_segments");
    uint64_t bytes = size_min(kib, UINT64_MAX / KIB) * KIB;
    bytes = size_min(bytes, size_min(pages, UINT64_MAX / PAGE_BYTES) * PAGE_BYTES);
    return kib == UINT64_MAX && pages == UINT64_MAX
               ? UINT64_MAX
               : size_max(bytes / PAGE_BYTES, 1) * PAGE_BYTES;
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
