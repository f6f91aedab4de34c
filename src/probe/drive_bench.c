/* A drive's file and queue, and transfers that keep a number of requests in flight. See probe_internal.h. */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "probe/probe_internal.h"

#define BENCH_BLOCK_BYTES_MAX (4 * MIB)
#define BENCH_STUCK_NS        10000000000u /* a drive that does not answer is named, and waited for */

static int submit(probei_bench *self, enum io_direction direction, uint32_t slot,
                  uint64_t block_bytes)
{
    uint32_t idx = direction * PROBEI_DEPTH_MAX + slot;
    io_request *request = &self->requests[idx];
    /* Reads use the lower half of the memory, writes the upper; each slot every depth-th block of it. */
    uint64_t places = self->memory_bytes / 2 / block_bytes / self->depth;
    uint64_t place = self->stays ? 0 : self->turns[idx]++ % places;
    unsigned char *data = self->memory + direction * (self->memory_bytes / 2) +
                          (place * self->depth + slot) * block_bytes;
    if (self->next[direction] + block_bytes > self->area_bytes)
        self->next[direction] = 0;
    *request = (io_request){.direction = direction,
                            .offset = self->next[direction],
                            .data = data,
                            .size_bytes = block_bytes};
    self->next[direction] += block_bytes;
    return io_submit(self->queue, request);
}

uint32_t probei_bench_depth_max(const probei_bench *self, uint64_t block_bytes)
{
    uint64_t slots = self->memory_bytes / 2 / block_bytes;
    slots = size_min(slots, self->area_bytes / block_bytes / 2);
    return (uint32_t)size_min(slots, PROBEI_DEPTH_MAX);
}

/* Takes what is done and puts the next in its place while there is time. Returns how many came. */
static int turn(probei_bench *self, uint64_t block_bytes, bool goes_on, uint32_t *busy)
{
    io_request *done[2 * PROBEI_DEPTH_MAX];
    int got = io_poll(self->queue, done, 2 * PROBEI_DEPTH_MAX);
    TRY(got);
    for (int i = 0; i < got; i++) {
        if (done[i]->result < 0)
            return err_restore(io_error(self->queue));
        self->moved_bytes += block_bytes;
        uint32_t slot = (uint32_t)(done[i] - self->requests) % PROBEI_DEPTH_MAX;
        (*busy)--;
        if (!goes_on)
            continue;
        TRY(submit(self, done[i]->direction, slot, block_bytes));
        (*busy)++;
    }
    return got;
}

static void wait_for_any(probei_bench *const *benches, uint32_t bench_count)
{
    struct pollfd waiters[DRIVES_MAX];
    for (uint32_t b = 0; b < bench_count; b++)
        waiters[b] = (struct pollfd){.fd = io_event_fd(benches[b]->queue), .events = POLLIN};
    (void)poll(waiters, bench_count, 1000);
}

int probei_bench_run(probei_bench *const *benches, uint32_t bench_count, enum machine_io_kind kind,
                     uint64_t block_bytes, uint32_t depth, double seconds, double *rate)
{
    uint64_t before = 0, after = 0, begin_ns = clock_ns();
    uint32_t busy = 0;
    for (uint32_t b = 0; b < bench_count; b++) {
        before += benches[b]->moved_bytes;
        benches[b]->depth = depth;
        for (uint32_t slot = 0; slot < depth; slot++) {
            if (kind != MACHINE_IO_WRITE)
                TRY(submit(benches[b], IO_READ, slot, block_bytes));
            if (kind != MACHINE_IO_READ)
                TRY(submit(benches[b], IO_WRITE, slot, block_bytes));
            busy += kind == MACHINE_IO_MIXED ? 2 : 1;
        }
    }
    while (busy > 0) {
        bool goes_on = (double)(clock_ns() - begin_ns) * 1e-9 < seconds;
        int came = 0;
        for (uint32_t b = 0; b < bench_count; b++) {
            int got = turn(benches[b], block_bytes, goes_on, &busy);
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

/* The first write of reserved space is slower than all later ones. */
static int write_once(probei *self, probei_bench *bench)
{
    enum { FILL_DEPTH = 4 };
    probei_bench *const benches[] = {bench};
    uint64_t block_bytes = size_min(BENCH_BLOCK_BYTES_MAX, bench->area_bytes / FILL_DEPTH);
    block_bytes = size_min(block_bytes, bench->memory_bytes / 2 / FILL_DEPTH);
    while (bench->moved_bytes < bench->area_bytes) {
        double unused;
        TRY(probei_check(self, "first write"));
        TRY(probei_bench_run(benches, 1, MACHINE_IO_WRITE, block_bytes, FILL_DEPTH, 0.1, &unused));
    }
    bench->next[IO_WRITE] = bench->area_bytes / 2;
    return io_sync(bench->queue);
}

int probei_bench_open(probei *self, const char *path, uint64_t file_bytes, unsigned char *memory,
                      uint64_t memory_bytes, probei_bench *out)
{
    memset(out, 0, sizeof *out);
    TRY(slab_open_unnamed(&out->store, path, file_bytes));
    out->memory = memory;
    out->memory_bytes = memory_bytes;
    out->area_bytes = out->store.total_bytes;
    io_region region = {memory, memory_bytes};
    io_config config = {.target = &out->store,
                        .queue_depth = PROBEI_DEPTH_MAX,
                        .block_bytes = BENCH_BLOCK_BYTES_MAX,
                        .pool_threads = self->cores.io.thread_count,
                        .stuck_ns = BENCH_STUCK_NS,
                        .regions = &region,
                        .region_count = 1,
                        .request_capacity = 2 * PROBEI_DEPTH_MAX};
    int rc = io_create(&config, &out->queue);
    if (rc == 0) {
        io_stats stats;
        io_get_stats(out->queue, &stats);
        out->backend = stats.backend;
        rc = write_once(self, out);
    }
    if (rc < 0) {
        err_record first;
        err_save(&first, rc);
        probei_bench_close(out);
        return err_restore(&first);
    }
    return 0;
}

void probei_bench_close(probei_bench *self)
{
    io_destroy(self->queue);
    self->queue = NULL;
    slab_close(&self->store);
}
