/* What the files of the slab share: the plan of shares (slab_space.c), the mapping (slab_layout.c), the
 * directories (slab_directory.c), the copies (slab_copy.c) and the files themselves (slab.c). */
#ifndef SLUICE_TIERS_SLAB_INTERNAL_H
#define SLUICE_TIERS_SLAB_INTERNAL_H

#include <sys/types.h>

#include "tiers/slab.h"

/* Fills config defaults into *stripe_bytes and *stripe_count; -EINVAL for what a caller must not ask. */
int tieri_slab_check_config(const slab_config *config, uint64_t *stripe_bytes,
                            uint64_t *stripe_count) MUST_CHECK;

/* Decides how many stripes each drive gets, without creating anything: directories exist or can be
 * made and are writable, budget and free space suffice. ERR_NO_FIT with needed and allowed bytes per
 * drive; ERR_INPUT for a path that cannot be used. */
int tieri_slab_plan(const slab_config *config, uint64_t stripe_bytes, uint64_t stripe_count,
                    uint64_t drive_stripes[SLAB_DRIVES_MAX]) MUST_CHECK;

/* stripe_count stripes in proportion to weights, none above its limit; the limits hold them all. */
void tieri_slab_share(uint32_t drive_count, const double *weights, const uint64_t *limits,
                      uint64_t stripe_count, uint64_t *shares);

/* Computes zones from drive_count and drive_stripes. ERR_CORRUPT if they need too many zones (which
 * only a forged header can cause). */
int tieri_slab_layout(slab *self) MUST_CHECK;

/* The nearest directory at or above `path` that exists ("." above a relative one), where new files can
 * be made. ERR_INPUT names path and reason. */
struct stat;
int tieri_slab_existing(const char *path, char existing[SLAB_PATH_BYTES],
                        struct stat *status) MUST_CHECK;

/* The whole disk that a partition belongs to, by the links of sysfs ("/sys/dev/block"); the device itself
 * where that cannot be told (network and memory file systems, logical volumes). */
dev_t tieri_whole_device(const char *sysfs_block, dev_t device);

/* "<path>/sluice-<uuid hex>" and the file in it; -ENAMETOOLONG. */
int tieri_slab_directory(const slab_config *config, uint32_t drive_idx,
                         char directory[SLAB_PATH_BYTES]) MUST_CHECK;
int tieri_slab_file_path(const slab_config *config, uint32_t drive_idx,
                         char path[SLAB_PATH_BYTES]) MUST_CHECK;

/* mkdir -p, durable: the entry of each new directory and of the last one is synced. *made_count: how
 * many of the last components are new, so that a later failure can undo them; its own failure undoes
 * them itself. */
int tieri_slab_make_directories(const char *directory, uint32_t *made_count) MUST_CHECK;

/* Removes the directory and those above it that tieri_slab_make_directories made, as far as they are
 * empty. */
void tieri_slab_unmake_directories(const char *directory, uint32_t made_count);

/* Makes the entries of a directory durable. */
int tieri_slab_sync_directory(const char *directory) MUST_CHECK;

#endif
