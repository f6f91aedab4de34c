/* How much each drive may hold, and who gets how many stripes. Reads the file systems, changes nothing.
 * One thread; nothing from the heap. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/size.h"
#include "tiers/slab_internal.h"

static_assert(SLAB_HEADER_BYTES % 4096 == 0, "data begins on a block");

/* ext4 needs a block of 4 KiB for each 340 extents of at most 128 MiB; others are of the same order. */
#define FS_TABLES_MIN_BYTES (256 * KIB)
#define FS_TABLES_PART      1024

struct drive_space {
    dev_t device;        /* of the file system */
    uint64_t free_bytes; /* that slabs may take from it */
};
typedef struct drive_space drive_space;

int tieri_slab_check_config(const slab_config *config, uint64_t *stripe_bytes,
                            uint64_t *stripe_count)
{
    *stripe_bytes = config->stripe_bytes ? config->stripe_bytes : (uint64_t)SLAB_STRIPE_BYTES;
    *stripe_count = 0;
    if (config->drive_count == 0 || config->drive_count > SLAB_DRIVES_MAX)
        return err_set(-EINVAL, "nvme tier: %u drives; 1 to %d are possible", config->drive_count,
                       SLAB_DRIVES_MAX);
    if (config->total_bytes == 0 || config->total_bytes > (UINT64_MAX >> 2))
        return err_set(-EINVAL, "nvme tier: a size of %llu bytes is not possible",
                       (unsigned long long)config->total_bytes);
    if (*stripe_bytes % MIB || *stripe_bytes > (UINT64_MAX >> 8))
        return err_set(-EINVAL, "nvme tier: a stripe of %llu bytes is not a multiple of 1 MiB",
                       (unsigned long long)*stripe_bytes);
    for (uint32_t i = 0; i < config->drive_count; i++) {
        double weight = config->drives[i].weight;
        if (!(weight >= 0.0 && weight < 1e15))
            return err_set(-EINVAL, "nvme tier: weight %g of drive %s", weight,
                           config->drives[i].path);
    }
    *stripe_count = size_div_up(config->total_bytes, *stripe_bytes);
    return 0;
}

int tieri_slab_directory(const slab_config *config, uint32_t drive_idx,
                         char directory[SLAB_PATH_BYTES])
{
    char hex[2 * SLAB_UUID_BYTES + 1];
    for (int i = 0; i < SLAB_UUID_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", config->uuid[i]);
    const char *path = config->drives[drive_idx].path;
    int used = snprintf(directory, SLAB_PATH_BYTES, "%s/sluice-%s", path, hex);
    if (used < 0 || used >= SLAB_PATH_BYTES)
        return err_set(-ENAMETOOLONG, "the path of drive %u is too long: %.200s...", drive_idx,
                       path);
    return 0;
}

int tieri_slab_file_path(const slab_config *config, uint32_t drive_idx, char path[SLAB_PATH_BYTES])
{
    TRY(tieri_slab_directory(config, drive_idx, path));
    size_t used = strlen(path);
    int more = snprintf(path + used, SLAB_PATH_BYTES - used, "/rank-%u-drive-%u.slab", config->rank,
                        drive_idx);
    if (more < 0 || (size_t)more >= SLAB_PATH_BYTES - used)
        return err_set(-ENAMETOOLONG, "the path of drive %u is too long: %.200s...", drive_idx,
                       config->drives[drive_idx].path);
    return 0;
}

int tieri_slab_existing(const char *path, char existing[SLAB_PATH_BYTES], struct stat *status)
{
    snprintf(existing, SLAB_PATH_BYTES, "%s", path);
    if (path[0] == 0)
        return err_set(ERR_INPUT, "a drive of the nvme tier has an empty path");
    while (stat(existing, status) != 0) {
        if (errno != ENOENT)
            return err_set(ERR_INPUT,
                           "the drive directory %s cannot be used (%s: %s); name a "
                           "directory that this user can write",
                           path, existing, strerror(errno));
        char *slash = strrchr(existing, '/');
        if (!slash)
            snprintf(existing, SLAB_PATH_BYTES, ".");
        else if (slash == existing)
            existing[1] = 0;
        else
            *slash = 0;
    }
    if (!S_ISDIR(status->st_mode))
        return err_set(ERR_INPUT, "the drive directory %s cannot be used: %s is not a directory",
                       path, existing);
    if (access(existing, W_OK | X_OK) != 0)
        return err_set(ERR_INPUT,
                       "the drive directory %s cannot be used: %s: %s; name a directory "
                       "that this user can write",
                       path, existing, strerror(errno));
    return 0;
}

/* What this user may take from a file system: its free space less what its own tables may need to name
 * that space (block maps, directories), so that a slab that fits by this can be reserved. */
static uint64_t usable_bytes(uint64_t free_bytes)
{
    uint64_t tables_bytes = size_max(FS_TABLES_MIN_BYTES, free_bytes / FS_TABLES_PART);
    return free_bytes > tables_bytes ? free_bytes - tables_bytes : 0;
}

/* The drive's directory, or the nearest one above it that exists, must take new files. */
static int probe_drive(const slab_drive *drive, drive_space *space)
{
    char path[SLAB_PATH_BYTES];
    struct stat status;
    struct statvfs volume;
    TRY(tieri_slab_existing(drive->path, path, &status));
    if (statvfs(path, &volume) != 0)
        return err_set(ERR_INPUT, "the drive directory %s cannot be used: statvfs of %s: %s",
                       drive->path, path, strerror(errno));
    if (volume.f_flag & ST_RDONLY)
        return err_set(ERR_INPUT, "the drive directory %s cannot be used: mounted read-only",
                       drive->path);
    space->device = status.st_dev;
    space->free_bytes = usable_bytes((uint64_t)volume.f_bavail * volume.f_frsize);
    return 0;
}

/* allowed[i] = what drive i may hold: its budget, capped by free space; drives of one file system
 * share its free space, stated budgets first, the rest (less 10%) in equal parts. */
static int allowed_bytes(const slab_drive *drives, uint32_t drive_count, uint64_t *allowed)
{
    drive_space spaces[SLAB_DRIVES_MAX];
    for (uint32_t i = 0; i < drive_count; i++)
        TRY(probe_drive(&drives[i], &spaces[i]));
    for (uint32_t i = 0; i < drive_count; i++) {
        allowed[i] = 0;
        uint64_t left = spaces[i].free_bytes;
        for (uint32_t k = 0; k < i; k++)
            left -= spaces[k].device == spaces[i].device ? size_min(allowed[k], left) : 0;
        allowed[i] = size_min(drives[i].budget_bytes, left);
    }
    for (uint32_t i = 0; i < drive_count; i++) {
        if (drives[i].budget_bytes)
            continue;
        uint64_t left = spaces[i].free_bytes, auto_count = 0;
        for (uint32_t k = 0; k < drive_count; k++) {
            if (spaces[k].device != spaces[i].device)
                continue;
            if (drives[k].budget_bytes)
                left -= size_min(allowed[k], left);
            else
                auto_count++;
        }
        allowed[i] = left / 10 * 9 / auto_count;
    }
    return 0;
}

int slab_capacity(const slab_drive *drives, uint32_t drive_count, uint64_t *bytes)
{
    *bytes = 0;
    if (drive_count == 0 || drive_count > SLAB_DRIVES_MAX)
        return err_set(-EINVAL, "nvme tier: %u drives; 1 to %d are possible", drive_count,
                       SLAB_DRIVES_MAX);
    uint64_t allowed[SLAB_DRIVES_MAX];
    TRY(allowed_bytes(drives, drive_count, allowed));
    for (uint32_t i = 0; i < drive_count; i++)
        *bytes += allowed[i] > SLAB_HEADER_BYTES ? allowed[i] - SLAB_HEADER_BYTES : 0;
    return 0;
}

/* Marks the drives that are full when all stripes go out in proportion: each that fills leaves more to
 * the others, which may fill them too. Returns the stripes left for those not full, *weight_sum theirs. */
static uint64_t find_full_drives(uint32_t drive_count, const double *weights,
                                 const uint64_t *limits, uint64_t stripe_count, bool *is_full,
                                 double *weight_sum)
{
    uint64_t left = stripe_count;
    for (bool changed = true; changed;) {
        changed = false;
        *weight_sum = 0;
        for (uint32_t i = 0; i < drive_count; i++)
            *weight_sum += is_full[i] ? 0 : weights[i];
        uint64_t round_left = left;
        for (uint32_t i = 0; i < drive_count; i++) {
            if (is_full[i] || (double)round_left * (weights[i] / *weight_sum) < (double)limits[i])
                continue;
            is_full[i] = changed = true;
            left -= size_min(limits[i], left); /* equal limits may differ by a rounding */
        }
    }
    return left;
}

void tieri_slab_share(uint32_t drive_count, const double *weights, const uint64_t *limits,
                      uint64_t stripe_count, uint64_t *shares)
{
    bool is_full[SLAB_DRIVES_MAX] = {false};
    double weight_sum;
    uint64_t open_left =
        find_full_drives(drive_count, weights, limits, stripe_count, is_full, &weight_sum);
    uint64_t left = stripe_count;
    for (uint32_t i = 0; i < drive_count; i++) {
        uint64_t part =
            is_full[i] ? limits[i] : (uint64_t)((double)open_left * (weights[i] / weight_sum));
        shares[i] = size_min(part, size_min(limits[i], left));
        left -= shares[i];
    }
    /* What rounding left, one by one, always where it ends first: the time that a drive takes for all
     * of its stripes is shares / weight. */
    while (left) {
        uint32_t best = drive_count;
        for (uint32_t i = 0; i < drive_count; i++) {
            if (shares[i] >= limits[i])
                continue;
            if (best == drive_count ||
                (double)(shares[i] + 1) / weights[i] < (double)(shares[best] + 1) / weights[best])
                best = i;
        }
        assert(best < drive_count);
        shares[best]++;
        left--;
    }
}

/* "PATH: 1.00 GiB, ..." for the message of a slab that does not fit: every drive is there, so the more
 * there are the shorter are their paths, whose ends say most. */
static void list_drives(const slab_config *config, const uint64_t *allowed, char *text,
                        size_t capacity)
{
    size_t used = 0;
    int room = (int)(capacity / config->drive_count) - SIZE_TEXT_BYTES / 2 - 4;
    for (uint32_t i = 0; i < config->drive_count && used < capacity - 1; i++) {
        char size[SIZE_TEXT_BYTES];
        const char *path = config->drives[i].path;
        int length = (int)strlen(path), cut = length > room ? length - room + 2 : 0;
        int more = snprintf(text + used, capacity - used, "%s%s%s: %s", i ? ", " : "",
                            cut ? ".." : "", path + cut, size_format(allowed[i], size));
        used = size_min(used + (size_t)(more > 0 ? more : 0), capacity - 1);
    }
}

int tieri_slab_plan(const slab_config *config, uint64_t stripe_bytes, uint64_t stripe_count,
                    uint64_t drive_stripes[SLAB_DRIVES_MAX])
{
    uint64_t allowed[SLAB_DRIVES_MAX] = {0}, limits[SLAB_DRIVES_MAX], limit_sum = 0;
    double weights[SLAB_DRIVES_MAX];
    memset(drive_stripes, 0, SLAB_DRIVES_MAX * sizeof *drive_stripes);
    TRY(allowed_bytes(config->drives, config->drive_count, allowed));
    for (uint32_t i = 0; i < config->drive_count; i++) {
        weights[i] = config->drives[i].weight > 0 ? config->drives[i].weight : 1.0;
        limits[i] =
            allowed[i] > SLAB_HEADER_BYTES ? (allowed[i] - SLAB_HEADER_BYTES) / stripe_bytes : 0;
        if (config->is_sparse)
            limits[i] = stripe_count;
        limit_sum += limits[i];
    }
    if (limit_sum < stripe_count) {
        char list[600], needed[SIZE_TEXT_BYTES], sum[SIZE_TEXT_BYTES], stripe[SIZE_TEXT_BYTES];
        list_drives(config, allowed, list, sizeof list);
        return err_set(ERR_NO_FIT,
                       "does not fit: the nvme tier needs %s in stripes of %s; its %u drive%s may "
                       "hold %s (budget or free space: %s)",
                       size_format(stripe_count * stripe_bytes, needed),
                       size_format(stripe_bytes, stripe), config->drive_count,
                       config->drive_count == 1 ? "" : "s",
                       size_format(limit_sum * stripe_bytes, sum), list);
    }
    tieri_slab_share(config->drive_count, weights, limits, stripe_count, drive_stripes);
    return 0;
}
