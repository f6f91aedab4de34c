/* How fast tiers/io moves bytes between huge-page memory and the slab: reads, writes and both at once,
 * over block size and queue depth. Prints the median of RUNS runs, their spread, CPU time per GB and the
 * share of the best rate of this run. Writes the slab once before timing, since the first write into
 * reserved space is slower, and checks that what was written comes back.
 *
 *   bench_nvme [DIRECTORY[,DIRECTORY...] [SLAB_BYTES [auto|uring|pool]]]     default: . 512MiB auto
 *
 * and --csv FILE of bench.h, which keeps the best of each mode; the limit beside it is perf/run.sh's.
 *
 * Several directories are several drives: their speed is measured first, as when a run begins, and the
 * slab's stripes are shared by it. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rng.h"
#include "base/size.h"
#include "perf/bench.h"
#include "tiers/arena.h"
#include "tiers/drive_speed.h"
#include "tiers/io.h"

enum { RUNS = 7, SLOTS = 16 };

#define SLOT_BYTES  (4 * MIB)
#define RUN_BYTES   (64 * MIB) /* moved per timed run */
#define ARENA_BYTES (SLOTS * SLOT_BYTES)

enum mode { MODE_READ, MODE_WRITE, MODE_MIXED, MODE_COUNT };
static const char *const mode_names[MODE_COUNT] = {"read", "write", "mixed"};
static const uint64_t blocks[] = {64 * KIB, 256 * KIB, MIB, 4 * MIB};
static const uint32_t depths[] = {1, 4, 8, 16};
enum { BLOCKS = sizeof blocks / sizeof blocks[0], DEPTHS = sizeof depths / sizeof depths[0] };

struct sample {
    double gbps, gbps_min, gbps_max; /* median, extremes */
    double cpu_seconds_per_gb;
    double spread; /* as in bench.h */
};
typedef struct sample sample;

static slab_drive drives[SLAB_DRIVES_MAX];
static slab store;
static arena memory;
static io_request requests[SLOTS];
static uint64_t position; /* where the next request goes */

static double cpu_seconds(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

static int submit_next(io *queue, uint32_t slot, enum mode mode, uint64_t number)
{
    bool write_it = mode == MODE_WRITE || (mode == MODE_MIXED && number % 2);
    requests[slot] = (io_request){.direction = write_it ? IO_WRITE : IO_READ,
                                  .offset = position,
                                  .data = memory.base + slot * SLOT_BYTES,
                                  .size_bytes = SLOT_BYTES};
    position += SLOT_BYTES;
    if (position + SLOT_BYTES > store.total_bytes)
        position = 0;
    return io_submit(queue, &requests[slot]);
}

/* Moves RUN_BYTES with all slots busy; sleeps like the executor does. */
static int run_once(io *queue, enum mode mode, double *seconds)
{
    uint64_t count = RUN_BYTES / SLOT_BYTES, submitted = 0, finished = 0;
    uint64_t start_ns = clock_ns();
    while (submitted < count && submitted < SLOTS) {
        TRY(submit_next(queue, (uint32_t)submitted, mode, submitted));
        submitted++;
    }
    while (finished < count) {
        io_request *done[SLOTS];
        int got = io_poll(queue, done, SLOTS);
        TRY(got);
        for (int i = 0; i < got; i++) {
            if (done[i]->result < 0)
                return err_restore(io_error(queue));
            finished++;
            if (submitted < count)
                TRY(submit_next(queue, (uint32_t)(done[i] - requests), mode, submitted++));
        }
        struct pollfd waiter = {.fd = io_event_fd(queue), .events = POLLIN};
        if (got == 0)
            (void)poll(&waiter, 1, 1000);
    }
    *seconds = (double)(clock_ns() - start_ns) * 1e-9;
    return 0;
}

static int measure(const io_config *config, enum mode mode, sample *out)
{
    io *queue;
    TRY(io_create(config, &queue));
    double rates[RUNS], seconds = 0, cpu_start = 0;
    int rc = 0;
    for (int run = -1; run < RUNS && rc == 0; run++) {
        if (run == 0)
            cpu_start = cpu_seconds();
        rc = run_once(queue, mode, &seconds);
        if (run >= 0)
            rates[run] = (double)RUN_BYTES / seconds * 1e-9;
    }
    out->cpu_seconds_per_gb = (cpu_seconds() - cpu_start) / ((double)RUN_BYTES * RUNS * 1e-9);
    io_destroy(queue);
    if (rc < 0)
        return rc;
    struct bench_summary all = bench_summarize(rates, RUNS);
    out->gbps = all.median;
    out->gbps_min = all.lowest;
    out->gbps_max = all.highest;
    out->spread = all.spread;
    return 0;
}

/* Writes the whole slab once and reads it back: the numbers below are of bytes that arrive. */
static int prove(const io_config *config)
{
    io *queue;
    TRY(io_create(config, &queue));
    io_stats stats;
    io_get_stats(queue, &stats);
    char huge[SIZE_TEXT_BYTES], total[SIZE_TEXT_BYTES];
    printf(
        "backend %s, buffers %sregistered, direct I/O %s (alignment %u), %s of the arena on huge "
        "pages, slab %s\n",
        stats.backend == IO_URING ? "io_uring" : "pool", stats.buffers_registered ? "" : "not ",
        store.files[0].direct ? "yes" : "no", store.files[0].align_bytes,
        size_format(memory.huge_bytes, huge), size_format(store.total_bytes, total));
    int rc = 0;
    uint64_t *words = (uint64_t *)(void *)memory.base;
    uint64_t start_ns = clock_ns();
    for (uint64_t at = 0; at < store.total_bytes && rc == 0; at += SLOT_BYTES) {
        for (uint64_t i = 0; i < SLOT_BYTES / 8; i++)
            words[i] = at + i * 0x9e3779b97f4a7c15u;
        rc = io_transfer(queue, IO_WRITE, at, memory.base, SLOT_BYTES);
    }
    printf("first write of the slab, one request at a time: %.2f GB/s\n",
           (double)store.total_bytes / (double)(clock_ns() - start_ns));
    for (uint64_t at = 0; at < store.total_bytes && rc == 0; at += SLOT_BYTES) {
        rc = io_transfer(queue, IO_READ, at, memory.base, SLOT_BYTES);
        for (uint64_t i = 0; i < SLOT_BYTES / 8 && rc == 0; i++)
            if (words[i] != at + i * 0x9e3779b97f4a7c15u)
                rc = err_set(ERR_CORRUPT, "byte %" PRIu64 " came back wrong", at + 8 * i);
    }
    io_destroy(queue);
    return rc;
}

static int measure_all(io_config *config)
{
    static sample samples[MODE_COUNT][BLOCKS][DEPTHS];
    double best[MODE_COUNT] = {0}, best_spread[MODE_COUNT] = {0};
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        for (int b = 0; b < BLOCKS; b++) {
            for (int d = 0; d < DEPTHS; d++) {
                config->block_bytes = blocks[b];
                config->queue_depth = depths[d];
                TRY(measure(config, (enum mode)mode, &samples[mode][b][d]));
                if (samples[mode][b][d].gbps > best[mode]) {
                    best[mode] = samples[mode][b][d].gbps;
                    best_spread[mode] = samples[mode][b][d].spread;
                }
            }
        }
    }
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        char name[32];
        snprintf(name, sizeof name, "nvme %s", mode_names[mode]);
        bench_keep(name, best[mode], "GB/s", 0, best_spread[mode]);
    }
    printf("%-6s %8s %6s %8s %15s %10s %7s\n", "mode", "block", "depth", "GB/s", "min - max",
           "CPU s/GB", "share");
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        for (int b = 0; b < BLOCKS; b++) {
            for (int d = 0; d < DEPTHS; d++) {
                const sample *s = &samples[mode][b][d];
                /* The limit of a mix is that of a drive that reads and writes in turn. */
                double limit = mode == MODE_MIXED
                                   ? 2.0 / (1.0 / best[MODE_READ] + 1.0 / best[MODE_WRITE])
                                   : best[mode];
                printf("%-6s %5" PRIu64 "KiB %6u %8.2f %6.2f - %6.2f %10.3f %6.0f%%\n",
                       mode_names[mode], blocks[b] / KIB, depths[d], s->gbps, s->gbps_min,
                       s->gbps_max, s->cpu_seconds_per_gb, 100.0 * s->gbps / limit);
            }
        }
    }
    return 0;
}

/* "a,b": two drives, each large enough for the whole slab. Returns how many there are. */
static int make_drives(const char *list, uint64_t total_bytes, enum io_backend backend)
{
    uint32_t count = 0;
    for (const char *at = list; count < SLAB_DRIVES_MAX; at++) {
        size_t length = strcspn(at, ",");
        snprintf(drives[count].path, sizeof drives[count].path, "%.*s", (int)length, at);
        drives[count++].budget_bytes = total_bytes + 64 * MIB;
        at += length;
        if (*at == 0)
            break;
    }
    if (count > 1)
        TRY(slab_weigh_drives_by(drives, count, backend));
    return (int)count;
}

static void print_shares(void)
{
    uint64_t stripe_count = store.total_bytes / store.stripe_bytes;
    for (uint32_t i = 0; i < store.drive_count && store.drive_count > 1; i++)
        printf("drive %s: weight %.2f, %" PRIu64 " of %" PRIu64 " stripes\n", drives[i].path,
               drives[i].weight, store.drive_stripes[i], stripe_count);
}

static int run(int argc, char **argv)
{
    uint64_t total_bytes = 512 * MIB;
    const char *backend_name = argc > 3 ? argv[3] : "auto";
    enum io_backend backend = strcmp(backend_name, "uring") == 0  ? IO_URING
                              : strcmp(backend_name, "pool") == 0 ? IO_POOL
                                                                  : IO_AUTO;
    if (argc > 2)
        TRY(size_parse(argv[2], &total_bytes));
    int drive_count = make_drives(argc > 1 ? argv[1] : ".", total_bytes, backend);
    TRY(drive_count);
    slab_config slab_settings = {
        .drives = drives, .drive_count = (uint32_t)drive_count, .total_bytes = total_bytes};
    for (int i = 0; i < SLAB_UUID_BYTES; i++)
        slab_settings.uuid[i] = (uint8_t)rng_u64((uint64_t)getpid(), clock_ns(), (uint64_t)i);
    arena_config arena_settings = {
        .name = "host", .size_bytes = ARENA_BYTES, .numa_node = -1, .touch_threads = 2};
    TRY(arena_init(&memory, &arena_settings));
    TRY(slab_open(&store, &slab_settings));
    print_shares();
    io_region region = {memory.base, memory.size_bytes};
    io_config config = {.target = &store,
                        .backend = backend,
                        .regions = &region,
                        .region_count = 1,
                        .pool_threads = 8};
    int rc = prove(&config);
    if (rc == 0)
        rc = measure_all(&config);
    err_record first;
    err_save(&first, rc);
    TRY_KEEP(rc, slab_remove(&store));
    arena_fini(&memory);
    return first.code < 0 ? err_restore(&first) : rc;
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    if (run(argc, argv) < 0) {
        fprintf(stderr, "bench_nvme: %s\n", err_text());
        return 1;
    }
    return 0;
}
