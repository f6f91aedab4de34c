/* How fast the drives of the nvme tier are, and how stripes are therefore shared among them.
 *
 *   directories --device of each--> one measurement a device --rates--> weights (slab_drive.weight)
 *
 * The measurement is drive_bench.h's: direct I/O of 1 MiB, several requests in flight, in a file
 * without a name that is gone with the process. The file is written once before timing.
 *
 * A drive's weight is its rate under a mixed load of as many bytes read as written, which is what
 * an update of optimizer state is: where a drive serves one or the other, 1 byte each way takes 1/R
 * + 1/W, so the rate is 2 / (1/R + 1/W), the harmonic mean. Rates are rounded to steps of 5% below
 * the fastest, so that noise between equal drives does not make unequal shares.
 *
 * Weights say where bytes lie, never what they are: they change no bit of training, and a slab that
 * is reopened has its shares from its headers. Needed therefore only when a slab is created on two
 * or more drives. One thread, at start: blocks about a second a device, takes 16 MiB of memory
 * meanwhile. */
#ifndef SLUICE_TIERS_DRIVE_SPEED_H
#define SLUICE_TIERS_DRIVE_SPEED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "tiers/io.h"
#include "tiers/slab.h"

struct drive_speed {
    double read, write;      /* bytes per second, the median of the rounds that the time allowed */
    double mixed;            /* bytes per second, the harmonic mean of the two */
    uint64_t file_bytes;     /* how large a file was used */
    uint64_t moved_bytes;    /* in all, the first write included */
    bool direct;             /* O_DIRECT took; else these are figures of the page cache */
    enum io_backend backend; /* that was used */
};
typedef struct drive_speed drive_speed;

/* Measures the drive that holds `path`, or would hold it: where the directory does not exist, the
 * nearest one above it is used and none is made. bytes_max: the most space to take; at least 8 MiB,
 * and half of what is free at most; 0: 128 MiB. backend: as io_config. Takes about a second (more
 * only for drives below 50 MB/s). ERR_INPUT for a path that cannot be used, -ENOSPC for too little
 * space, -EIO and others from the drive itself, each with the path. */
int drive_speed_measure(const char *path, uint64_t bytes_max, enum io_backend backend,
                        drive_speed *out) MUST_CHECK;

/* Weights from rates: weights[i], in GB/s, for drives [count] of which devices[i] is the index of
 * the first that is on the same device, and rates[i] (bytes/s) is that device's mixed rate, 0 where
 * it is not known. Drives of one device share its weight evenly; a device without a rate counts as
 * the slowest known one; all are equal where none is known. Pure. */
void drive_speed_weights(const double *rates, const uint32_t *devices, uint32_t count,
                         double *weights);

/* Measures the drives one after the other and sets their weights; one log line a drive with the
 * figures and its share. Nothing is measured, and all weights become equal, for one drive and for
 * drives that are all on one device (the latter is logged). Directories are on one device if their
 * file systems are, or are partitions of it; a logical volume counts as a device. A drive that
 * cannot be measured is warned about and counts as the slowest: whether it can be used is
 * slab_open's to say. At most its budget is used on each. Errors: ERR_INPUT for a path that cannot
 * be used, -EINVAL, -ENOMEM; then no weight was changed. */
int slab_weigh_drives_by(slab_drive *drives, uint32_t drive_count,
                         enum io_backend backend) MUST_CHECK;

#endif
