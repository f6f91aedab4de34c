/* The drive by itself, as tiers/drive_bench.h measures it: a file that is written or read
 * completely, with 16 requests of 4 MiB in flight, from huge-page memory. bench_commit and
 * bench_side compare with it. */
#ifndef SLUICE_PERF_BENCH_DRIVE_H
#define SLUICE_PERF_BENCH_DRIVE_H

#include "base/size.h"
#include "perf/bench.h"
#include "tiers/arena.h"
#include "tiers/drive_bench.h"

#define BENCH_PIECE_BYTES (4 * MIB)

enum { BENCH_PIECES = 16 };

struct bench_drive {
    drive_bench bench;
    arena memory;   /* [2][BENCH_PIECES] pieces: for reads, for writes */
    uint64_t bytes; /* of the file; a multiple of the piece */
};

/* Makes a file of at least `bytes` bytes on the drive of `directory` and writes it once. */
static inline void bench_drive_open(struct bench_drive *self, const char *directory, uint64_t bytes)
{
    self->bytes = size_round_up(bytes, BENCH_PIECE_BYTES);
    arena_config settings = {
        .name = "host", .size_bytes = 2 * BENCH_PIECES * BENCH_PIECE_BYTES, .touch_threads = 2};
    bench_require(arena_init(&self->memory, &settings));
    drive_bench_config config = {.path = directory,
                                 .file_bytes = self->bytes,
                                 .memory = self->memory.base,
                                 .memory_bytes = self->memory.size_bytes};
    bench_require(drive_bench_open(&config, &self->bench));
    bench_require(
        drive_bench_fill(&self->bench, BENCH_PIECE_BYTES, BENCH_PIECES, INFINITY, NULL, NULL));
}

static inline void bench_drive_close(struct bench_drive *self)
{
    drive_bench_close(&self->bench);
    arena_fini(&self->memory);
}

/* Returns the seconds to move the whole file, and to sync it if `syncs`. */
static inline double bench_drive_move(struct bench_drive *self, enum io_direction direction,
                                      bool syncs)
{
    drive_bench *const benches[] = {&self->bench};
    drive_pass pass = {.reads = direction == IO_READ,
                       .writes = direction == IO_WRITE,
                       .block_bytes = BENCH_PIECE_BYTES,
                       .depth = BENCH_PIECES,
                       .seconds = INFINITY,
                       .once = true};
    double unused;
    uint64_t start = clock_ns();
    bench_require(drive_bench_run(benches, 1, &pass, &unused));
    if (syncs)
        bench_require(io_sync(self->bench.queue));
    return (double)(clock_ns() - start) * 1e-9;
}

#endif
