/* How a drive is measured: passes over a file on it that keep a number of requests in flight.
 *
 *   drive_bench_open --> drive_bench_fill --> drive_bench_run, repeated --> drive_bench_close
 *
 * The transfers are those of training: direct I/O through tiers/io.h (io_uring, or the pool of
 * threads if io_uring is not available). The file lies in the drive's own file system and has no
 * name (or loses it at once, where the file system knows only named files). It is gone with its
 * descriptor, so nothing stays on the drive however the process ends.
 *
 * Two callers share this: the start of a run, which weighs drives with a few short passes
 * (drive_speed.h), and `sluice probe`, which sweeps block size and depth.
 *
 * Memory is the caller's. Reads use its lower half and writes its upper half, and each slot moves
 * on through its half from request to request, as in a run. One thread calls everything of one
 * bench. */
#ifndef SLUICE_TIERS_DRIVE_BENCH_H
#define SLUICE_TIERS_DRIVE_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/size.h"
#include "tiers/io.h"
#include "tiers/slab.h"

enum { DRIVE_BENCH_DEPTH_MAX = 32 }; /* requests in flight each way */

#define DRIVE_BENCH_BLOCK_BYTES_MAX (4 * MIB)

struct drive_bench_config {
    const char *path;    /* the drive that holds it, or would hold it, is measured */
    uint64_t file_bytes; /* rounded up to 1 MiB */
    unsigned char *memory;
    uint64_t memory_bytes;
    enum io_backend backend;
    uint32_t pool_threads; /* as io_config */
};
typedef struct drive_bench_config drive_bench_config;

struct drive_bench {
    slab store;
    io *queue;
    enum io_backend backend; /* that is used */
    unsigned char *memory;   /* [memory_bytes], borrowed */
    uint64_t memory_bytes;
    uint64_t area_bytes;  /* from address 0 of the store: what passes move */
    uint64_t moved_bytes; /* by all passes so far */
    /* Private: */
    uint64_t next[2]; /* address of the next read and write */
    uint64_t left[2]; /* bytes that the present pass may still begin to read and to write */
    uint32_t depth;   /* of the present pass */
    uint64_t turns[2 * DRIVE_BENCH_DEPTH_MAX];
    io_request requests[2 * DRIVE_BENCH_DEPTH_MAX];
};
typedef struct drive_bench drive_bench;

struct drive_pass {
    bool reads, writes; /* both: as many requests are in flight each way */
    uint64_t block_bytes;
    uint32_t depth; /* requests in flight each way */
    double seconds; /* no request is begun later; the last ones are waited for */
    bool once;      /* starts at the area's begin, and ends as well when all of it was moved */
};
typedef struct drive_pass drive_pass;

/* Opens the file and its queue. On failure nothing is left to close. ERR_INPUT for a path that
 * cannot be used, -ENOSPC, -ENOMEM, others from the drive with the path. */
int drive_bench_open(const drive_bench_config *config, drive_bench *out) MUST_CHECK;
void drive_bench_close(drive_bench *self);

/* Writes the area once, in whole blocks, since the first write of reserved space is slower than all
 * later ones. After `seconds` (INFINITY: no limit) it stops, and the area ends after what was
 * written, which is `depth` blocks at least. `check` (NULL: none) is called about ten times a
 * second; an error that it returns ends this. */
int drive_bench_fill(drive_bench *self, uint64_t block_bytes, uint32_t depth, double seconds,
                     int (*check)(void *user), void *user) MUST_CHECK;

/* One pass on every bench at once; *rate: bytes per second of all of them together, both ways
 * counted. */
int drive_bench_run(drive_bench *const *benches, uint32_t bench_count, const drive_pass *pass,
                    double *rate) MUST_CHECK;

/* Most requests in flight each way that memory and area hold. */
uint32_t drive_bench_depth_max(const drive_bench *self, uint64_t block_bytes);

#endif
