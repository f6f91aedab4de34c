/* How fast the drives of the nvme tier are, and which share of the stripes each one gets.
 *
 *   directories --device of each--> a measurement per device --rates--> weights (slab_drive)
 *
 * The measurement uses the transfers of training: direct I/O of 1 MiB with several requests in
 * flight, through tiers/io.h. It uses a file without a name in the drive's own file system (or a
 * file whose name is deleted at once), so nothing stays behind however the process ends. The file
 * is written once before timing starts, since the first write to reserved space is slower.
 *
 * A drive's weight is its rate while an update of optimizer state reads and writes equally many
 * bytes. One byte each way takes 1/R + 1/W, so the rate is the harmonic mean 2 / (1/R + 1/W). Rates
 * are rounded to steps of 5% below the fastest drive, so that noise between equal drives does not
 * make unequal shares.
 *
 * Weights decide where bytes lie and change no bit of training. A reopened slab takes its shares
 * from its headers, so weights are needed only when a slab is created on two or more drives. One
 * thread, at start: it blocks for about a second per device and uses 16 MiB of memory meanwhile. */
#ifndef SLUICE_TIERS_DRIVE_SPEED_H
#define SLUICE_TIERS_DRIVE_SPEED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "tiers/io.h"
#include "tiers/slab.h"

struct drive_speed {
    double read, write;      /* bytes per second, the median of all rounds */
    double mixed;            /* bytes per second, the harmonic mean of the two */
    uint64_t file_bytes;     /* size of the file used */
    uint64_t moved_bytes;    /* in all, including the first write */
    bool direct;             /* with O_DIRECT; otherwise these are figures of the page cache */
    enum io_backend backend; /* the backend used */
};
typedef struct drive_speed drive_speed;

/* Measures the drive that holds `path`. If the directory does not exist, the nearest existing one
 * above it is used and none is made. bytes_max: the most space to take, at least 8 MiB; 0: 128 MiB;
 * never more than half of the free space. backend: as in io_config. Takes about a second, more only
 * for drives below 50 MB/s. ERR_INPUT for a path that cannot be used, -ENOSPC for too little space,
 * -EIO and others from the drive itself, each with the path. */
int drive_speed_measure(const char *path, uint64_t bytes_max, enum io_backend backend,
                        drive_speed *out) MUST_CHECK;

/* Makes weights[i], in GB/s, from rates, for `count` drives. devices[i] is the index of the first
 * drive on the same device as drive i. rates[i] is that device's mixed rate in bytes per second; 0:
 * unknown. The drives of one device share its weight evenly. A device of unknown rate counts as the
 * slowest known one; all are equal if none is known. Pure. */
void drive_speed_weights(const double *rates, const uint32_t *devices, uint32_t count,
                         double *weights);

/* Measures the drives one after the other, sets their weights, and logs a line per drive. On each
 * drive it uses at most the drive's budget. For one drive, and for drives that are all on one
 * device, it measures nothing and makes all weights equal. Two directories are on one device if
 * their file systems are, or are partitions of it; a logical volume counts as a device. A drive
 * that cannot be measured counts as the slowest, with a warning; slab_open decides whether it can
 * be used. ERR_INPUT for a path that cannot be used, -EINVAL, -ENOMEM: then no weight has
 * changed. */
int slab_weigh_drives_by(slab_drive *drives, uint32_t drive_count,
                         enum io_backend backend) MUST_CHECK;

#endif
