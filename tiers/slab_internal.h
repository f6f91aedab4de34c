/* Shared by the files of the slab. */
#ifndef SLUICE_TIERS_SLAB_INTERNAL_H
#define SLUICE_TIERS_SLAB_INTERNAL_H

#include <sys/types.h>

#include "tiers/slab.h"

/* slab_space.c: fills *stripe_bytes and *stripe_count, with defaults. -EINVAL for a bad config. */
int tieri_slab_check_config(const slab_config *config, uint64_t *stripe_bytes,
                            uint64_t *stripe_count) MUST_CHECK;

/* Decides how many stripes each drive gets, without creating anything: directories exist or can be
 * made and are writable, budget and free space suffice. ERR_NO_FIT with needed and allowed bytes
 * per drive; ERR_INPUT for a path that cannot be used. */
int tieri_slab_plan(const slab_config *config, uint64_t stripe_bytes, uint64_t stripe_count,
                    uint64_t drive_stripes[DRIVES_MAX]) MUST_CHECK;

/* slab_space.c: shares stripe_count stripes in proportion to weights, none above its limit. The
 * limits together hold them all. */
void tieri_slab_share(uint32_t drive_count, const double *weights, const uint64_t *limits,
                      uint64_t stripe_count, uint64_t *shares);

/* slab_layout.c: computes the zones from drive_count and drive_stripes. ERR_CORRUPT if they need
 * too many zones, which only a forged header can cause. */
int tieri_slab_layout(slab *self) MUST_CHECK;

/* slab_space.c: finds the nearest existing directory at or above `path` (finally "." for a relative
 * path) and checks that new files can be made there. ERR_INPUT names path and reason. */
struct stat;
int tieri_slab_existing(const char *path, char existing[FILE_PATH_BYTES],
                        struct stat *status) MUST_CHECK;

/* drive_speed.c: the whole disk that a partition belongs to, by the links of sysfs
 * ("/sys/dev/block"). Returns the device itself if that is unknown (network and memory file
 * systems, logical volumes). */
dev_t tieri_whole_device(const char *sysfs_block, dev_t device);

/* slab_space.c: "<path>/sluice-<uuid hex>", and the file in it. -ENAMETOOLONG. */
int tieri_slab_directory(const slab_config *config, uint32_t drive_idx,
                         char directory[FILE_PATH_BYTES]) MUST_CHECK;
int tieri_slab_file_path(const slab_config *config, uint32_t drive_idx,
                         char path[FILE_PATH_BYTES]) MUST_CHECK;

/* Makes the directory of a slab by the rules of file_make_directories. It also makes the entry
 * of an existing directory durable, because the process that made it may have been killed before
 * that. */
int tieri_slab_make_directories(const char *directory, uint32_t *made_count) MUST_CHECK;

#endif
