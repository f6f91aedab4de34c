/* The drive by itself, as tiers/io moves bytes: a slab of its own that is written or read whole, with 16 requests of
 * 4 MiB under way, from huge-page memory. bench_commit and bench_side hold what they measure beside it. */
#ifndef SLUICE_PERF_BENCH_DRIVE_H
#define SLUICE_PERF_BENCH_DRIVE_H

#include <poll.h>
#include <unistd.h>

#include "base/rng.h"
#include "base/size.h"
#include "perf/bench.h"
#include "tiers/arena.h"
#include "tiers/io.h"

#define BENCH_PIECE_BYTES (4 * MIB)

enum { BENCH_PIECES = 16 };

struct bench_drive {
    slab_drive place;
    slab store;
    arena memory; /* [BENCH_PIECES] pieces */
    io *queue;
    uint64_t bytes; /* of the slab, a multiple of the piece */
    io_request requests[BENCH_PIECES];
};

/* A slab of at least so many bytes in `directory`; not written yet. */
static inline void bench_drive_open(struct bench_drive *self, const char *directory, uint64_t bytes)
{
    self->bytes = size_round_up(bytes, BENCH_PIECE_BYTES);
    self->place = (slab_drive){.budget_bytes = self->bytes + 64 * MIB};
    snprintf(self->place.path, sizeof self->place.path, "%s", directory);
    slab_config slab_settings = {
        .drives = &self->place, .drive_count = 1, .total_bytes = self->bytes};
    for (int i = 0; i < SLAB_UUID_BYTES; i++)
        slab_settings.uuid[i] = (uint8_t)rng_u64((uint64_t)getpid(), clock_ns(), (uint64_t)i);
    arena_config arena_settings = {.name = "host",
                                   .size_bytes = BENCH_PIECES * BENCH_PIECE_BYTES,
                                   .numa_node = -1,
                                   .touch_threads = 2};
    bench_require(arena_init(&self->memory, &arena_settings));
    bench_require(slab_open(&self->store, &slab_settings));
    io_region region = {self->memory.base, self->memory.size_bytes};
    io_config config = {.target = &self->store, .regions = &region, .region_count = 1};
    bench_require(io_create(&config, &self->queue));
}

static inline void bench_drive_close(struct bench_drive *self)
{
    io_destroy(self->queue);
    bench_require(slab_remove(&self->store));
    arena_fini(&self->memory);
}

static inline void bench_drive_submit(struct bench_drive *self, io_request *request,
                                      enum io_direction direction, uint64_t offset)
{
    ptrdiff_t slot = request - self->requests;
    *request = (io_request){.direction = direction,
                            .offset = offset,
                            .data = self->memory.base + slot * (ptrdiff_t)BENCH_PIECE_BYTES,
                            .size_bytes = BENCH_PIECE_BYTES};
    bench_require(io_submit(self->queue, request));
}

/* Seconds of moving all of it, and of syncing it where asked. */
static inline double bench_drive_move(struct bench_drive *self, enum io_direction direction,
                                      bool syncs)
{
    uint64_t count = self->bytes / BENCH_PIECE_BYTES, submitted = 0, finished = 0;
    uint64_t start = clock_ns();
    for (; submitted < count && submitted < BENCH_PIECES; submitted++)
        bench_drive_submit(self, &self->requests[submitted], direction,
                           submitted * BENCH_PIECE_BYTES);
    while (finished < count) {
        io_request *done[BENCH_PIECES];
        int got = io_poll(self->queue, done, BENCH_PIECES);
        bench_require(got);
        for (int i = 0; i < got; i++) {
            bench_require(done[i]->result);
            finished++;
            if (submitted < count)
                bench_drive_submit(self, done[i], direction, submitted++ * BENCH_PIECE_BYTES);
        }
        struct pollfd waiter = {.fd = io_event_fd(self->queue), .events = POLLIN};
        if (got == 0)
            (void)poll(&waiter, 1, 1000);
    }
    if (syncs)
        bench_require(io_sync(self->queue));
    return (double)(clock_ns() - start) * 1e-9;
}

#endif
