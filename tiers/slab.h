/* The nvme tier: one preallocated file per drive, seen as one address space of bytes.
 *
 *   nvme address space   0 ........................................................ total_bytes
 *   drives               stripes dealt out in proportion to `weight`
 *   files                <path>/sluice-<run uuid>/rank-<r>-drive-<d>.slab, O_DIRECT
 *
 * With one drive the address is the file offset plus the header block. The file begins with one 4 KiB
 * header (magic, version, uuid, rank, drive index, drive count, stripe bytes, sizes, XXH3 of the rest;
 * little-endian): a slab of another run is refused. Space is allocated with fallocate at creation, so
 * a later write cannot run out of it; where the file system has no fallocate that is said once. A sparse slab
 * (slab_config) is the exception.
 *
 * Shares. Each drive gets stripes in proportion to its weight, but never more than its budget and free
 * space hold; what a full drive cannot take goes to the others. The counts are stored in the headers,
 * and the place of every stripe follows from them by arithmetic, so that a reopened slab maps as
 * before whatever the weights and budgets are then.
 * One thread creates and destroys; reading and writing go through tiers/io.h. */
#ifndef SLUICE_TIERS_SLAB_H
#define SLUICE_TIERS_SLAB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum {
    SLAB_DRIVES_MAX = 16,
    SLAB_PATH_BYTES = 4096,
    SLAB_UUID_BYTES = 16,
    SLAB_HEADER_BYTES = 4096,    /* in front of each file's data; see FORMAT.md */
    SLAB_STRIPE_BYTES = 8 << 20, /* where a slab_config names no other */
    SLAB_PATTERN_MAX = 256,      /* stripes in one turn of a zone's pattern */
    SLAB_ZONES_MAX = 16,
};

struct slab_drive {
    char path[SLAB_PATH_BYTES]; /* the directory as the user named it */
    uint64_t budget_bytes;      /* at most this many bytes on this drive; 0: free space less 10% */
    double weight; /* share of the stripes: GB/s as measured (tiers/drive_speed.h); 0 acts as 1 */
};
typedef struct slab_drive slab_drive;

struct slab_config {
    const slab_drive *drives;
    uint32_t drive_count;
    uint64_t total_bytes; /* of the address space; rounded up to stripes */
    uint8_t uuid[SLAB_UUID_BYTES];
    uint32_t rank;
    uint64_t stripe_bytes; /* multiple of 1 MiB; 0: 8 MiB */
    bool only_reads;       /* with open_existing: also where nothing may be written */
    bool open_existing;    /* reopen the slabs of this uuid; else create, refusing leftovers */
    bool
        is_sparse; /* to create: no space is reserved, and budgets and free space are not asked for: what is
                       never written takes none and is zeros. For who writes once, and little of it */
};
typedef struct slab_config slab_config;

struct slab_file {
    int fd;
    bool direct;          /* O_DIRECT took; else buffered, warned once */
    uint32_t align_bytes; /* of offsets, lengths and memory for direct I/O (statx, else 4096) */
    uint64_t file_bytes;
    char path[SLAB_PATH_BYTES];
};
typedef struct slab_file slab_file;

/* A run of stripes dealt out by one repeated pattern. Most slabs have one zone; further ones hold the
 * rest that whole turns of the first pattern leave, so that each drive gets its exact count. */
struct slab_zone {
    uint64_t first_stripe;                   /* of the address space */
    uint64_t stripe_count;                   /* whole turns of the pattern */
    uint32_t pattern_count;                  /* stripes in one turn */
    uint8_t pattern_drive[SLAB_PATTERN_MAX]; /* [pattern_count] drive of the turn's i-th stripe */
    uint8_t pattern_rank[SLAB_PATTERN_MAX];  /* [pattern_count] how many before it in the turn are
                                                on the same drive */
    uint64_t drive_first[SLAB_DRIVES_MAX];   /* the drive's stripes used by earlier zones */
    uint32_t drive_count_in_turn[SLAB_DRIVES_MAX];
};
typedef struct slab_zone slab_zone;

/* About 100 KiB: keep it in static or heap memory. */
struct slab {
    slab_file files[SLAB_DRIVES_MAX];
    uint32_t drive_count;
    uint32_t rank;
    uint64_t total_bytes; /* a multiple of stripe_bytes */
    uint64_t stripe_bytes;
    uint64_t drive_stripes[SLAB_DRIVES_MAX]; /* stripes on each drive; stored in every header */
    slab_zone zones[SLAB_ZONES_MAX];         /* follows from drive_stripes alone */
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

/* The nvme capacity in bytes that these drives offer: sum of budgets less headers, each capped by free
 * space (drives of one file system share it; a little of it is left to the file system's own tables).
 * A slab of total_bytes up to this less one stripe per drive fits, whatever budgets and weights are. */
int slab_capacity(const slab_drive *drives, uint32_t drive_count, uint64_t *bytes) MUST_CHECK;

/* Creates or opens. What is created is durable when this returns: files, their space, and the entries
 * of all directories that were made. On failure what was created is removed. Errors: -ENOSPC, -EACCES,
 * -EROFS, ... with the path; ERR_INPUT for a slab to be reopened that is not there; ERR_CORRUPT for a header
 * that does not match (foreign uuid, other size) or a file that has been cut off. */
int slab_open(slab *out, const slab_config *config) MUST_CHECK;
/* A slab of `bytes` (rounded up to 1 MiB) on the drive that holds `path`, or would hold it: one file without a
 * name, in the nearest directory that exists, gone with slab_close, with the process, with a failure. To
 * measure a drive by. ERR_INPUT for a path that cannot be used, -ENOSPC, and others, with the path. */
int slab_open_unnamed(slab *out, const char *path, uint64_t bytes) MUST_CHECK;
void slab_close(slab *self);            /* keeps the files */
int slab_remove(slab *self) MUST_CHECK; /* closes and deletes files and their directory */
/* Deletes the names of the files, which stay open and usable and are gone with slab_close or with the process,
 * however that ends; and their directory where it is empty. slab_remove and slab_remove_files may follow. */
int slab_unname(slab *self) MUST_CHECK;

/* Deletes the files of a run that is not open here, whatever state they are in: whole, cut short while
 * slab_open was making them, or absent. For a run that is to begin afresh: who notes uuid and drives
 * durably before slab_open creates anything, and calls this with them before forgetting the note,
 * leaves nothing behind whenever it was killed.
 * Of the config only `drives` (their `path` alone, in the order of creation; the order is part of the
 * names), `drive_count` (0 is allowed), `uuid` and `rank` are read. Only the names that slab_open gives
 * are deleted: "<path>/sluice-<uuid>/rank-<r>-drive-<d>.slab", then "<path>/sluice-<uuid>" where it is
 * empty (other ranks' files keep it). The drives' own directories and anything else stay. What is
 * absent, the drive's directory included, is no error. Does not look at the contents and allocates
 * nothing; blocks on the file system; no process may have the slab in use.
 * -EINVAL or -ENAMETOOLONG for drives that no slab can be on: then nothing was deleted. Else 0, or the
 * first error (-EACCES, -EROFS, ...) with the path, after trying all the others; calling again goes on. */
int slab_remove_files(const slab_config *config) MUST_CHECK;

/* The first piece of the range [offset, offset+size) of the address space; call again from
 * offset + piece.size_bytes for the rest. */
void slab_map(const slab *self, uint64_t offset, uint64_t size, slab_piece *piece);

/* Copies an open slab's files to "<copy->drives[d].path>/sluice-<uuid>/" under their own names, durable when
 * this returns: by reflink (FICLONE) where the file system has it, else the header and the `range_count`
 * ranges of the address space alone, as sparse files. Directories are made. Nobody may be writing the
 * ranges (multiples of 4 KiB within the slab; -EINVAL otherwise); other bytes may be changing.
 * *copied_bytes: by how much files were filled; 0 by reflink. A copy opens as a slab of the same uuid with
 * the copy's drives. Of the copy's config, drive_count, uuid and rank must be the slab's (-EINVAL), and only
 * the drives' paths are read besides.
 * Where a file is there already nothing is done (-EEXIST): slab_remove_files first. On any failure (-ENOSPC,
 * -EROFS, ...; the path is named) what was made is removed. Blocks, for as long as the copying takes; takes
 * 100 KiB of stack and nothing from the heap; one thread at a time, while others read and write the slab.
 * After a reflink the slab shares its blocks with the copy: what is written to them next takes new space of
 * the file system, so a later write can run out of it (-ENOSPC) for as long as the copy is kept. */
struct slab_range {
    uint64_t offset, size_bytes;
};
typedef struct slab_range slab_range;
int slab_copy(const slab *self, const slab_config *copy, const slab_range *ranges,
              uint64_t range_count, uint64_t *copied_bytes) MUST_CHECK;

/* fdatasync of all files. An error poisons the run: see DESIGN of durability in tiers/FORMAT.md. */
int slab_sync(slab *self) MUST_CHECK;

#endif
