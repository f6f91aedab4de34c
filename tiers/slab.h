/* The nvme tier: one preallocated file per drive, seen as one address space of bytes.
 *
 *   nvme address space   0 ........................................................ total_bytes
 *   drives               stripes dealt out in proportion to `weight`
 *   files                <path>/sluice-<run uuid>/rank-<r>-drive-<d>.slab, O_DIRECT
 *
 * Files. Each file begins with a 4 KiB header (FORMAT.md), so a slab of another run is refused.
 * With one drive the address is the file offset less the header. Creation reserves the space with
 * fallocate, so a later write cannot run out of it; a warning says if the file system has no
 * fallocate. A sparse slab (slab_config) reserves nothing.
 *
 * Shares. Each drive gets stripes in proportion to its weight, but never more than its budget and
 * its free space hold; the other drives take what a full drive cannot. The headers store the
 * counts, and the place of every stripe follows from them by arithmetic. So a reopened slab maps as
 * before, whatever the weights and budgets are then.
 *
 * One thread creates and destroys a slab; reading and writing go through tiers/io.h. */
#ifndef SLUICE_TIERS_SLAB_H
#define SLUICE_TIERS_SLAB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "base/words.h"

enum {
    SLAB_UUID_BYTES = 16,
    SLAB_HEADER_BYTES = 4096,    /* before each file's data; see FORMAT.md */
    SLAB_STRIPE_BYTES = 8 << 20, /* default of slab_config */
    SLAB_PATTERN_MAX = 256,      /* stripes in one turn of a zone's pattern */
    SLAB_ZONES_MAX = 16,
};

struct slab_drive {
    char path[FILE_PATH_BYTES]; /* the directory as the user named it */
    uint64_t budget_bytes;      /* at most this many bytes on this drive; 0: free space less 10% */
    double weight;              /* measured GB/s (tiers/drive_speed.h); 0 acts as 1 */
};
typedef struct slab_drive slab_drive;

struct slab_config {
    const slab_drive *drives;
    uint32_t drive_count;
    uint64_t total_bytes; /* of the address space; rounded up to stripes */
    uint8_t uuid[SLAB_UUID_BYTES];
    uint32_t rank;
    int mode;              /* permissions of files and directories that are made (base/file.h) */
    uint64_t stripe_bytes; /* multiple of 1 MiB; 0: 8 MiB */
    bool only_reads;       /* with open_existing: open for reading only */
    bool open_existing;    /* reopen the slabs of this uuid; otherwise create, refusing leftovers */
    /* When creating: reserve no space and ignore budgets and free space. Bytes that are never
     * written take no space and are zeros. For a slab that is written once, and only in part. */
    bool is_sparse;
};
typedef struct slab_config slab_config;

struct slab_file {
    int fd;
    bool direct;          /* O_DIRECT works; otherwise buffered, with one warning */
    uint32_t align_bytes; /* that direct I/O needs (statx, otherwise 4096) */
    uint64_t file_bytes;
    char path[FILE_PATH_BYTES];
};
typedef struct slab_file slab_file;

/* A run of stripes dealt out by one repeated pattern. Most slabs have one zone. Further zones hold
 * the rest that whole turns of the first pattern leave, so that each drive gets its exact count. */
struct slab_zone {
    uint64_t first_stripe;                   /* of the address space */
    uint64_t stripe_count;                   /* whole turns of the pattern */
    uint32_t pattern_count;                  /* stripes in one turn */
    uint8_t pattern_drive[SLAB_PATTERN_MAX]; /* [pattern_count] drive of the turn's i-th stripe */
    /* [pattern_count] the number of earlier stripes of the turn on the same drive */
    uint8_t pattern_rank[SLAB_PATTERN_MAX];
    uint64_t drive_first[DRIVES_MAX]; /* the drive's stripes used by earlier zones */
    uint32_t drive_count_in_turn[DRIVES_MAX];
};
typedef struct slab_zone slab_zone;

/* About 100 KiB: keep it in static or heap memory. */
struct slab {
    slab_file files[DRIVES_MAX];
    uint32_t drive_count;
    uint32_t rank;
    uint64_t total_bytes; /* a multiple of stripe_bytes */
    uint64_t stripe_bytes;
    uint64_t drive_stripes[DRIVES_MAX]; /* stripes on each drive; stored in every header */
    slab_zone zones[SLAB_ZONES_MAX];    /* follows from drive_stripes alone */
    uint32_t zone_count;
    uint8_t uuid[SLAB_UUID_BYTES];
};
typedef struct slab slab;

/* A contiguous piece of one file. */
struct slab_piece {
    uint32_t drive_idx;
    uint64_t file_offset;
    uint64_t size_bytes;
};
typedef struct slab_piece slab_piece;

/* The bytes that these drives offer: the sum of their budgets less headers, each limited by free
 * space. Drives of one file system share its free space, and a little stays for its own tables.
 * A slab of at most this size less one stripe per drive fits with any budgets and weights. */
int slab_capacity(const slab_drive *drives, uint32_t drive_count, uint64_t *bytes) MUST_CHECK;

/* Creates or opens the files. When it returns, everything that it created is durable: the files,
 * their space, and the entries of all new directories. On failure it removes what it created.
 * -ENOSPC, -EACCES, -EROFS, ... with the path. ERR_INPUT: a slab to be reopened is missing.
 * ERR_CORRUPT: a header does not match (another uuid, another size), or a file has been cut off. */
int slab_open(slab *out, const slab_config *config) MUST_CHECK;
/* Makes a slab of `bytes` (rounded up to 1 MiB) to measure a drive: one file without a name, in the
 * nearest existing directory at or above `path`. It is gone with slab_close, with the process, or
 * on failure. ERR_INPUT for a path that cannot be used, -ENOSPC and others, with the path. */
int slab_open_unnamed(slab *out, const char *path, uint64_t bytes) MUST_CHECK;
void slab_close(slab *self);            /* keeps the files */
int slab_remove(slab *self) MUST_CHECK; /* closes and deletes files and their directory */
/* Deletes the names of the files, and their directory if it is empty. The files stay open and
 * usable until slab_close or the end of the process. slab_remove and slab_remove_files may
 * follow. */
int slab_unname(slab *self) MUST_CHECK;

/* Deletes the files of a run that is not open here, whether they are whole, cut short while
 * slab_open made them, or absent. To leave nothing behind after a kill: note uuid and drives
 * durably before slab_open, and call this before the note is deleted.
 *
 * It reads only drives[].path (in the order of creation, which is part of the names), drive_count
 * (0 is allowed), uuid and rank. It deletes "<path>/sluice-<uuid>/rank-<r>-drive-<d>.slab", then
 * "<path>/sluice-<uuid>" if it is empty; nothing else. An absent file or directory is no error. It
 * blocks on the file system and allocates nothing. No process may have the slab open.
 *
 * -EINVAL or -ENAMETOOLONG for drives that no slab can be on: nothing was deleted. Otherwise 0,
 * or the first error (-EACCES, -EROFS, ...) with the path, after trying all the others; a further
 * call continues. */
int slab_remove_files(const slab_config *config) MUST_CHECK;

/* The first piece of the range [offset, offset + size) of the address space. For the rest call
 * again from offset + piece.size_bytes. */
void slab_map(const slab *self, uint64_t offset, uint64_t size, slab_piece *piece);

struct slab_range {
    uint64_t offset, size_bytes; /* multiples of 4 KiB within the slab */
};
typedef struct slab_range slab_range;

/* Copies an open slab to "<copy->drives[d].path>/sluice-<uuid>/", under the same file names,
 * durable when it returns. It clones the files (FICLONE) if the file system supports this;
 * otherwise it makes sparse files of the header and the given ranges. *copied_bytes: the bytes
 * written; 0 for clones. The copy opens as a slab of the same uuid with the copy's drives. Only the
 * drives' paths and the mode of `copy` are used, but its drive_count, uuid and rank must be the
 * slab's (-EINVAL).
 *
 * Nobody may write the ranges meanwhile; other bytes may change. If a file already exists it does
 * nothing (-EEXIST): call slab_remove_files first. After any failure (-ENOSPC, -EROFS, ... with the
 * path) it removes what it made. It blocks while it copies and uses 100 KiB of stack and no heap;
 * one thread at a time, while others read and write the slab.
 *
 * A clone shares its blocks with the slab: later writes to them take new space of the file system,
 * and can run out of it (-ENOSPC) as long as the copy is kept. */
int slab_copy(const slab *self, const slab_config *copy, const slab_range *ranges,
              uint64_t range_count, uint64_t *copied_bytes) MUST_CHECK;

/* fdatasync of all files. An error poisons the run: see durability in tiers/FORMAT.md. */
int slab_sync(slab *self) MUST_CHECK;

#endif
