/* How much each drive may hold, and how many stripes it gets. Reads the file systems and changes
 * nothing. One thread; nothing from the heap. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"
#include "base/text.h"
#include "tiers/tiers_internal.h"

static_assert(SLAB_HEADER_BYTES % 4096 == 0, "data begins on a block");

/* ext4 needs a block of 4 KiB for each 340 extents of at most 128 MiB. Other file systems need a
 * similar amount. */
#define FS_TABLES_MIN_BYTES (256 * KIB)
#define FS_TABLES_PART      1024

struct drive_space {
    dev_t device;        /* of the file system */
    uint64_t free_bytes; /* bytes that slabs may take */
};
typedef struct drive_space drive_space;

int tieri_slab_check_config(const slab_config *config, uint64_t *stripe_bytes,
                            uint64_t *stripe_count)
{
    *stripe_bytes = config->stripe_bytes ? config->stripe_bytes : (uint64_t)SLAB_STRIPE_BYTES;
    *stripe_count = 0;
    if (config->drive_count == 0 || config->drive_count > DRIVES_MAX)
        return err_set(-EINVAL, "nvme tier: %u drives; 1 to %d are possible", config->drive_count,
                       DRIVES_MAX);
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
                         char directory[FILE_PATH_BYTES])
{
    char hex[2 * SLAB_UUID_BYTES + 1];
    for (int i = 0; i < SLAB_UUID_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", config->uuid[i]);
    const char *path = config->drives[drive_idx].path;
    int used = snprintf(directory, FILE_PATH_BYTES, "%s/sluice-%s", path, hex);
    if (used < 0 || used >= FILE_PATH_BYTES)
        return err_set(-ENAMETOOLONG, "the path of drive %u is too long: %.200s...", drive_idx,
                       path);
    return 0;
}

int tieri_slab_make_directories(const char *directory, int mode, uint32_t *made_count)
{
    int rc = file_make_directories(directory, mode, made_count);
    if (rc == 0 && *made_count == 0)
        rc = file_sync_parent(directory);
    return rc < 0 ? err_prefix(rc, "the nvme tier") : 0;
}

int tieri_slab_file_path(const slab_config *config, uint32_t drive_idx, char path[FILE_PATH_BYTES])
{
    TRY(tieri_slab_directory(config, drive_idx, path));
    size_t used = strlen(path);
    int more = snprintf(path + used, FILE_PATH_BYTES - used, "/rank-%u-drive-%u.slab", config->rank,
                        drive_idx);
    if (more < 0 || (size_t)more >= FILE_PATH_BYTES - used)
        return err_set(-ENAMETOOLONG, "the path of drive %u is too long: %.200s...", drive_idx,
                       config->drives[drive_idx].path);
    return 0;
}

int tieri_nearest(const char *path, char existing[FILE_PATH_BYTES], struct stat *status)
{
    snprintf(existing, FILE_PATH_BYTES, "%s", path);
    while (stat(existing, status) != 0) {
        char *slash = strrchr(existing, '/');
        if (errno != ENOENT || strcmp(existing, ".") == 0)
            return -errno;
        if (!slash)
            strcpy(existing, ".");
        else
            slash[slash == existing] = 0; /* "/a" becomes "/" */
    }
    return 0;
}

int tieri_slab_existing(const char *path, char existing[FILE_PATH_BYTES], struct stat *status)
{
    if (path[0] == 0)
        return err_set(ERR_INPUT, "a drive of the nvme tier has an empty path");
    int rc = tieri_nearest(path, existing, status);
    if (rc < 0)
        return err_set(ERR_INPUT,
                       "the drive directory %s cannot be used (%s: %s); name a directory that this "
                       "user can write",
                       path, existing, strerror(-rc));
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

/* The bytes that this user may take from a file system: its free space less the tables (block maps,
 * directories) that it may need for that space. So a slab of that size can be reserved. */
static uint64_t usable_bytes(uint64_t free_bytes)
{
    uint64_t tables_bytes = size_max(FS_TABLES_MIN_BYTES, free_bytes / FS_TABLES_PART);
    return free_bytes > tables_bytes ? free_bytes - tables_bytes : 0;
}

/* Checks that the drive's directory, or the nearest existing one above it, takes new files. */
static int probe_drive(const slab_drive *drive, drive_space *space)
{
    char path[FILE_PATH_BYTES];
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

/* Sets allowed[i] to the bytes that drive i may hold: its budget, limited by free space. Drives of
 * one file system share its free space: first those with a stated budget; the others get equal
 * parts of the rest, less 10%. */
static int allowed_bytes(const slab_drive *drives, uint32_t drive_count, uint64_t *allowed)
{
    drive_space spaces[DRIVES_MAX];
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
    if (drive_count == 0 || drive_count > DRIVES_MAX)
        return err_set(-EINVAL, "nvme tier: %u drives; 1 to %d are possible", drive_count,
                       DRIVES_MAX);
    uint64_t allowed[DRIVES_MAX];
    TRY(allowed_bytes(drives, drive_count, allowed));
    for (uint32_t i = 0; i < drive_count; i++)
        *bytes += allowed[i] > SLAB_HEADER_BYTES ? allowed[i] - SLAB_HEADER_BYTES : 0;
    return 0;
}

/* Marks the drives that are full when all stripes are dealt in proportion. Each full drive leaves
 * more to the others, which may fill them too. Returns the stripes left for the other drives, and
 * their weights in *weight_sum. */
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
            /* rounding may make the sum larger than what is left */
            left -= size_min(limits[i], left);
        }
    }
    return left;
}

void tieri_slab_share(uint32_t drive_count, const double *weights, const uint64_t *limits,
                      uint64_t stripe_count, uint64_t *shares)
{
    bool is_full[DRIVES_MAX] = {false};
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
    /* Deals what rounding left, one stripe at a time, to the drive that then ends first: a drive
     * needs shares / weight for all of its stripes. */
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

/* Writes "PATH: 1.00 GiB, ..." for the message about a slab that does not fit. Every drive is
 * listed, so the more drives there are, the shorter are the paths; a path keeps its end, which says
 * most. */
static void list_drives(const slab_config *config, const uint64_t *allowed, char *text,
                        size_t capacity)
{
    int room = (int)(capacity / config->drive_count) - SIZE_TEXT_BYTES / 2 - 4;
    text[0] = '\0';
    for (uint32_t i = 0; i < config->drive_count; i++) {
        char size[SIZE_TEXT_BYTES];
        const char *path = config->drives[i].path;
        int length = (int)strlen(path), cut = length > room ? length - room + 2 : 0;
        text_add(text, capacity, "%s%s%s: %s", i ? ", " : "", cut ? ".." : "", path + cut,
                 size_format(allowed[i], size));
    }
}

int tieri_slab_plan(const slab_config *config, uint64_t stripe_bytes, uint64_t stripe_count,
                    uint64_t drive_stripes[DRIVES_MAX])
{
    uint64_t allowed[DRIVES_MAX] = {0}, limits[DRIVES_MAX], limit_sum = 0;
    double weights[DRIVES_MAX];
    memset(drive_stripes, 0, DRIVES_MAX * sizeof *drive_stripes);
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
