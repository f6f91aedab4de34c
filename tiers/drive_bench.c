/* A drive's file and queue, and passes over it. See drive_bench.h. */
#include "tiers/drive_bench.h"

#include <assert.h>
#include <math.h>
#include <poll.h>
#include <string.h>

#include "base/log.h"

#define BENCH_STUCK_NS     10000000000u /* a drive that does not answer is named, and waited for */
#define BENCH_FILL_SECONDS 0.1          /* between two calls of the caller's check */

/* Begins the next request of a slot, unless the pass has begun all that it may: then 0. */
static int submit(drive_bench *self, enum io_direction direction, uint32_t slot,
                  uint64_t block_bytes)
{
    uint32_t idx = direction * DRIVE_BENCH_DEPTH_MAX + slot;
    io_request *request = &self->requests[idx];
    if (self->left[direction] < block_bytes)
        return 0;
    /* Each slot uses every depth-th block of its half of the memory. */
    uint64_t places = self->memory_bytes / 2 / block_bytes / self->depth;
    uint64_t place = self->turns[idx]++ % places;
    unsigned char *data = self->memory + direction * (self->memory_bytes / 2) +
                          (place * self->depth + slot) * block_bytes;
    if (self->next[direction] + block_bytes > self->area_bytes)
        self->next[direction] = 0;
    *request = (io_request){.direction = direction,
                            .offset = self->next[direction],
                            .data = data,
                            .size_bytes = block_bytes};
    TRY(io_submit(self->queue, request));
    self->next[direction] += block_bytes;
    self->left[direction] -= block_bytes;
    return 1;
}

uint32_t drive_bench_depth_max(const drive_bench *self, uint64_t block_bytes)
{
    uint64_t slots = self->memory_bytes / 2 / block_bytes;
    slots = size_min(slots, self->area_bytes / block_bytes / 2);
    return (uint32_t)size_min(slots, DRIVE_BENCH_DEPTH_MAX);
}

/* Fills the queue for a pass that moves up to limit_bytes each way. Returns how many requests were
 * begun. */
static int begin(drive_bench *self, const drive_pass *pass, uint64_t limit_bytes)
{
    int busy = 0;
    const bool moves[2] = {[IO_READ] = pass->reads, [IO_WRITE] = pass->writes};
    assert(pass->depth > 0 && pass->depth <= DRIVE_BENCH_DEPTH_MAX);
    assert(pass->depth * pass->block_bytes <= self->memory_bytes / 2);
    self->depth = pass->depth;
    for (int way = 0; way < 2; way++) {
        self->left[way] = limit_bytes;
        for (uint32_t slot = 0; moves[way] && slot < pass->depth; slot++) {
            int begun = submit(self, (enum io_direction)way, slot, pass->block_bytes);
            TRY(begun);
            busy += begun;
        }
    }
    return busy;
}

/* Takes what is done and begins the next in its place while there is time. Returns how many came.
 * */
static int turn(drive_bench *self, uint64_t block_bytes, bool goes_on, uint32_t *busy)
{
    io_request *done[2 * DRIVE_BENCH_DEPTH_MAX];
    int got = io_poll(self->queue, done, 2 * DRIVE_BENCH_DEPTH_MAX);
    TRY(got);
    for (int i = 0; i < got; i++) {
        if (done[i]->result < 0)
            return err_restore(io_error(self->queue));
        self->moved_bytes += block_bytes;
        uint32_t slot = (uint32_t)(done[i] - self->requests) % DRIVE_BENCH_DEPTH_MAX;
        (*busy)--;
        if (!goes_on)
            continue;
        int begun = submit(self, done[i]->direction, slot, block_bytes);
        TRY(begun);
        *busy += (uint32_t)begun;
    }
    return got;
}

static void wait_for_any(drive_bench *const *benches, uint32_t bench_count)
{
    struct pollfd waiters[DRIVES_MAX];
    for (uint32_t b = 0; b < bench_count; b++)
        waiters[b] = (struct pollfd){.fd = io_event_fd(benches[b]->queue), .events = POLLIN};
    (void)poll(waiters, bench_count, 1000);
}

static int run(drive_bench *const *benches, uint32_t bench_count, const drive_pass *pass,
               uint64_t limit_bytes, double *rate)
{
    uint64_t before = 0, after = 0, begin_ns = clock_ns();
    uint32_t busy = 0;
    assert(bench_count <= DRIVES_MAX);
    for (uint32_t b = 0; b < bench_count; b++) {
        before += benches[b]->moved_bytes;
        int begun = begin(benches[b], pass, limit_bytes);
        TRY(begun);
        busy += (uint32_t)begun;
    }
    while (busy > 0) {
        bool goes_on = (double)(clock_ns() - begin_ns) * 1e-9 < pass->seconds;
        int came = 0;
        for (uint32_t b = 0; b < bench_count; b++) {
            int got = turn(benches[b], pass->block_bytes, goes_on, &busy);
            TRY(got);
            came += got;
        }
        if (came == 0)
            wait_for_any(benches, bench_count);
    }
    for (uint32_t b = 0; b < bench_count; b++)
        after += benches[b]->moved_bytes;
    *rate = (double)(after - before) * 1e9 / (double)size_max(clock_ns() - begin_ns, 1);
    return 0;
}

int drive_bench_run(drive_bench *const *benches, uint32_t bench_count, const drive_pass *pass,
                    double *rate)
{
    uint64_t limit_bytes = UINT64_MAX;
    for (uint32_t b = 0; b < bench_count && pass->once; b++) {
        benches[b]->next[IO_READ] = benches[b]->next[IO_WRITE] = 0;
        limit_bytes = size_min(limit_bytes, benches[b]->area_bytes);
    }
    return run(benches, bench_count, pass, limit_bytes, rate);
}

int drive_bench_fill(drive_bench *self, uint64_t block_bytes, uint32_t depth, double seconds,
                     int (*check)(void *user), void *user)
{
    const uint64_t start_ns = clock_ns(), start_bytes = self->moved_bytes;
    const uint64_t wanted_bytes = self->area_bytes / block_bytes * block_bytes;
    drive_bench *const benches[] = {self};
    drive_pass pass = {.writes = true, .block_bytes = block_bytes, .depth = depth};
    uint64_t written_bytes = 0;
    double spent = 0, unused;
    self->next[IO_WRITE] = 0;
    do {
        if (check)
            TRY(check(user));
        pass.seconds = fmin(BENCH_FILL_SECONDS, seconds - spent);
        TRY(run(benches, 1, &pass, wanted_bytes - written_bytes, &unused));
        written_bytes = self->moved_bytes - start_bytes;
        spent = (double)(clock_ns() - start_ns) * 1e-9;
    } while (spent < seconds && written_bytes < wanted_bytes);
    self->area_bytes = written_bytes;
    self->next[IO_WRITE] = written_bytes / 2 / block_bytes * block_bytes;
    return io_sync(self->queue);
}

int drive_bench_open(const drive_bench_config *config, drive_bench *out)
{
    memset(out, 0, sizeof *out);
    TRY(slab_open_unnamed(&out->store, config->path, config->file_bytes));
    out->memory = config->memory;
    out->memory_bytes = config->memory_bytes;
    out->area_bytes = out->store.total_bytes;
    io_region region = {config->memory, config->memory_bytes};
    io_config settings = {.target = &out->store,
                          .backend = config->backend,
                          .queue_depth = DRIVE_BENCH_DEPTH_MAX,
                          .block_bytes = DRIVE_BENCH_BLOCK_BYTES_MAX,
                          .pool_threads = config->pool_threads,
                          .stuck_ns = BENCH_STUCK_NS,
                          .regions = &region,
                          .region_count = 1,
                          .request_capacity = 2 * DRIVE_BENCH_DEPTH_MAX};
    int rc = io_create(&settings, &out->queue);
    if (rc < 0) {
        err_record first;
        err_save(&first, rc);
        slab_close(&out->store);
        return err_restore(&first);
    }
    io_stats stats;
    io_get_stats(out->queue, &stats);
    out->backend = stats.backend;
    return 0;
}

void drive_bench_close(drive_bench *self)
{
    io_destroy(self->queue);
    self->queue = NULL;
    slab_close(&self->store);
}
