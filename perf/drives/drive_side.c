/* Our side of perf/drives/bench_nvme.py, which other programs use too: it moves bytes between
 * huge-page memory and a slab by tiers/io, and makes one run for each line that it reads.
 *
 *   drive_side DIRECTORY[,DIRECTORY...] SLAB_BYTES auto|uring|pool
 *
 * A line is "SIDE MODE BLOCKxDEPTH SECONDS [unregistered]", such as "sluice mixed 1MiBx8 0.25".
 * DEPTH requests are in flight each way. The sides:
 *
 *   sluice  as many blocks of memory as are in flight, which are used again and again
 *   lanes   as in a step: requests of 4 MiB, cut into transfers, that use 256 MiB of memory
 *
 * The answer is "seconds bytes_per_second cpu_seconds_per_byte", then for reads and for writes the
 * seconds of a transfer: median, 95%, 99%, longest. "unregistered" denies registered buffers.
 *
 * The slab is written once before the first run, since the first write into reserved space is
 * slower, and it is checked that the data comes back. Then the first output is "ready OFFSET BYTES
 * FILES", which gives the slab's files in fio's syntax and the range of each that may be used. A
 * description of the slab follows after a tab. Several directories are several drives. Their speed
 * is measured first, as at the beginning of a run, and the slab's stripes are distributed
 * accordingly. It ends at the end of its input, and removes the slab. */
#include <errno.h>
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
#include "tiers/io_faults.h"

enum { SLOTS_MAX = 64 };

#define REQUEST_BYTES (4 * MIB)
#define ARENA_BYTES   (256 * MIB)

static enum io_backend wanted_backend;
static slab_drive drives[DRIVES_MAX];
static slab store;
static arena memory;
static io_request requests[2][SLOTS_MAX];
/* Offset of a direction's next request. If there are both directions, reads are in the first half
 * of the slab and writes in the second. */
static uint64_t position[2];

static double cpu_seconds(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

/* A run that somebody asks for. */
struct asked {
    bool reads, writes, is_registered;
    bool moves_on; /* each request uses the next memory; otherwise a slot keeps its memory */
    uint64_t block_bytes;
    uint32_t depth; /* each way */
    double seconds;
};

/* The way in which a run keeps its queue full. */
struct flow {
    uint64_t request_bytes, slots; /* slots: per direction */
    bool is_mixed, moves_on;
    uint64_t turns[2];
};

static int submit_next(io *queue, struct flow *flow, enum io_direction way, uint32_t slot)
{
    uint64_t half = store.total_bytes / 2, request_bytes = flow->request_bytes;
    uint64_t begin = flow->is_mixed && way == IO_WRITE ? half : 0;
    uint64_t end = flow->is_mixed && way == IO_READ ? half : store.total_bytes;
    uint64_t places = flow->moves_on ? ARENA_BYTES / 2 / request_bytes : flow->slots;
    uint64_t place = flow->moves_on ? flow->turns[way]++ % places : slot;
    if (position[way] < begin || position[way] + request_bytes > end)
        position[way] = begin;
    requests[way][slot] =
        (io_request){.direction = way,
                     .offset = position[way],
                     .data = memory.base + way * (ARENA_BYTES / 2) + place * request_bytes,
                     .size_bytes = request_bytes};
    position[way] += request_bytes;
    return io_submit(queue, &requests[way][slot]);
}

/* Moves bytes for asked->seconds and waits for the last request. It sleeps like the executor. */
static int run_queue(io *queue, const struct asked *asked, double *rate)
{
    const bool moves[2] = {[IO_READ] = asked->reads, [IO_WRITE] = asked->writes};
    struct flow flow = {.request_bytes = asked->block_bytes,
                        .slots = asked->depth,
                        .is_mixed = asked->reads && asked->writes,
                        .moves_on = asked->moves_on};
    if (flow.moves_on) {
        flow.request_bytes = size_max(asked->block_bytes, REQUEST_BYTES);
        flow.slots = asked->depth * asked->block_bytes / flow.request_bytes + 2;
    }
    flow.slots = size_min(size_min(flow.slots, SLOTS_MAX), ARENA_BYTES / 2 / flow.request_bytes);
    uint64_t moved = 0, busy = 0, start_ns = clock_ns();
    for (int way = 0; way < 2; way++)
        for (uint32_t slot = 0; moves[way] && slot < flow.slots; slot++, busy++)
            TRY(submit_next(queue, &flow, (enum io_direction)way, slot));
    while (busy > 0) {
        io_request *done[2 * SLOTS_MAX];
        int got = io_poll(queue, done, 2 * SLOTS_MAX);
        TRY(got);
        bool goes_on = (double)(clock_ns() - start_ns) * 1e-9 < asked->seconds;
        for (int i = 0; i < got; i++) {
            if (done[i]->result < 0)
                return err_restore(io_error(queue));
            enum io_direction way = done[i]->direction;
            moved += flow.request_bytes;
            busy--;
            if (!goes_on)
                continue;
            TRY(submit_next(queue, &flow, way, (uint32_t)(done[i] - requests[way])));
            busy++;
        }
        struct pollfd waiter = {.fd = io_event_fd(queue), .events = POLLIN};
        if (got == 0)
            (void)poll(&waiter, 1, 1000);
    }
    *rate = (double)moved * 1e9 / (double)(clock_ns() - start_ns);
    return 0;
}

static int open_queue(const struct asked *asked, io **queue)
{
    static const io_test unregistered = {.deny_registration = true};
    io_region region = {memory.base, memory.size_bytes};
    io_config config = {.target = &store,
                        .backend = wanted_backend,
                        .queue_depth = asked->depth,
                        .block_bytes = asked->block_bytes,
                        .pool_threads = 8,
                        .test = asked->is_registered ? NULL : &unregistered,
                        .regions = &region,
                        .region_count = 1};
    return io_create(&config, queue);
}

/* Makes a run and prints the answer. */
static int run(const struct asked *asked)
{
    io *queue;
    double rate = 0;
    uint64_t start_ns = clock_ns();
    TRY(open_queue(asked, &queue));
    double cpu = cpu_seconds();
    int rc = run_queue(queue, asked, &rate);
    cpu = cpu_seconds() - cpu;
    if (rc == 0) {
        io_stats stats;
        io_get_stats(queue, &stats);
        printf("%.9f %.9g %.4g", (double)(clock_ns() - start_ns) * 1e-9, rate,
               cpu / (double)(stats.bytes[0] + stats.bytes[1]));
        for (int way = 0; way < 2; way++) {
            io_latency all = {.count = 0};
            for (uint32_t d = 0; d < store.drive_count; d++)
                io_latency_merge(&all, io_get_latency(queue, d, (enum io_direction)way));
            printf(" %.4g %.4g %.4g %.4g", (double)io_latency_quantile_ns(&all, 0.50) * 1e-9,
                   (double)io_latency_quantile_ns(&all, 0.95) * 1e-9,
                   (double)io_latency_quantile_ns(&all, 0.99) * 1e-9, (double)all.max_ns * 1e-9);
        }
        putchar('\n');
        fflush(stdout);
    }
    io_destroy(queue);
    return rc;
}

static int parse(const char *line, struct asked *out)
{
    char side[16], mode[16], block[32], rest[16] = "";
    *out = (struct asked){.is_registered = true};
    bool is_good = sscanf(line, "%15s %15s %31[^x]x%" SCNu32 " %lf %15s", side, mode, block,
                          &out->depth, &out->seconds, rest) >= 5 &&
                   size_parse(block, &out->block_bytes) == 0;
    out->moves_on = strcmp(side, "lanes") == 0;
    out->reads = strcmp(mode, "write") != 0;
    out->writes = strcmp(mode, "read") != 0;
    out->is_registered = strcmp(rest, "unregistered") != 0;
    is_good = is_good && (out->moves_on || strcmp(side, "sluice") == 0) &&
              (!out->reads || !out->writes || strcmp(mode, "mixed") == 0) && out->depth > 0 &&
              out->depth <= IO_QUEUE_DEPTH_MAX && out->block_bytes % (4 * KIB) == 0 &&
              out->block_bytes > 0 && out->block_bytes <= ARENA_BYTES / 4;
    return is_good ? 0 : err_set(ERR_USAGE, "no run that can be made: %s", line);
}

/* Writes the whole slab once and reads it back, so that the figures are for bytes that really
 * arrive. Then prints "ready" and describes the slab. */
static int prove(const char *files, uint64_t file_bytes)
{
    io *queue;
    TRY(open_queue(&(struct asked){.is_registered = true, .block_bytes = MIB, .depth = 8}, &queue));
    io_stats stats;
    io_get_stats(queue, &stats);
    char huge[SIZE_TEXT_BYTES], total[SIZE_TEXT_BYTES];
    int rc = 0;
    uint64_t *words = (uint64_t *)(void *)memory.base;
    uint64_t start_ns = clock_ns();
    for (uint64_t at = 0; at < store.total_bytes && rc == 0; at += REQUEST_BYTES) {
        for (uint64_t i = 0; i < REQUEST_BYTES / 8; i++)
            words[i] = at + i * 0x9e3779b97f4a7c15u;
        rc = io_transfer(queue, IO_WRITE, at, memory.base, REQUEST_BYTES);
    }
    double seconds = (double)(clock_ns() - start_ns) * 1e-9;
    for (uint64_t at = 0; at < store.total_bytes && rc == 0; at += REQUEST_BYTES) {
        rc = io_transfer(queue, IO_READ, at, memory.base, REQUEST_BYTES);
        for (uint64_t i = 0; i < REQUEST_BYTES / 8 && rc == 0; i++)
            if (words[i] != at + i * 0x9e3779b97f4a7c15u)
                rc = err_set(ERR_CORRUPT, "byte %" PRIu64 " came back wrong", at + 8 * i);
    }
    io_destroy(queue);
    TRY(rc);
    printf("ready %d %" PRIu64 " %s\tbackend %s, buffers %sregistered, files %sregistered, direct "
           "I/O %s (alignment %u), %s of our memory on huge pages, slab %s, first written at %.2f "
           "GB/s, one request at a time",
           SLAB_HEADER_BYTES, file_bytes, files, stats.backend == IO_URING ? "io_uring" : "pool",
           stats.buffers_registered ? "" : "not ", stats.files_registered ? "" : "not ",
           store.files[0].direct ? "yes" : "no", store.files[0].align_bytes,
           size_format(memory.huge_bytes, huge), size_format(store.total_bytes, total),
           (double)store.total_bytes * 1e-9 / seconds);
    for (uint32_t d = 0; d < store.drive_count && store.drive_count > 1; d++)
        printf("; drive %s: weight %.2f, %" PRIu64 " stripes", drives[d].path, drives[d].weight,
               store.drive_stripes[d]);
    putchar('\n');
    fflush(stdout);
    return 0;
}

/* Reads a list such as "a,b" for two drives, each large enough for the whole slab. Returns the
 * number of drives. */
static int make_drives(const char *list, uint64_t total_bytes)
{
    uint32_t count = 0;
    for (const char *at = list; count < DRIVES_MAX; at++) {
        size_t length = strcspn(at, ",");
        snprintf(drives[count].path, sizeof drives[count].path, "%.*s", (int)length, at);
        drives[count++].budget_bytes = total_bytes + 64 * MIB;
        at += length;
        if (*at == 0)
            break;
    }
    if (count > 1)
        TRY(slab_weigh_drives_by(drives, count, wanted_backend));
    return (int)count;
}

/* Names the slab's files in fio's syntax, and sets the bytes that fio may use of each. */
static int name_files(char *files, size_t capacity, uint64_t *file_bytes)
{
    size_t used = 0;
    *file_bytes = UINT64_MAX;
    for (uint32_t d = 0; d < store.drive_count; d++) {
        *file_bytes = size_min(*file_bytes, store.drive_stripes[d] * store.stripe_bytes);
        for (const char *at = store.files[d].path; *at && used + 4 < capacity; at++) {
            if (*at == ':')
                files[used++] = '\\';
            files[used++] = *at;
        }
        if (used + 4 >= capacity)
            return err_set(-ENAMETOOLONG, "the drives' paths are too long");
        files[used++] = d + 1 < store.drive_count ? ':' : '\0';
    }
    return 0;
}

static int answer_all(void)
{
    char line[128], files[4096];
    struct asked asked;
    uint64_t file_bytes;
    TRY(name_files(files, sizeof files, &file_bytes));
    TRY(prove(files, file_bytes));
    while (fgets(line, sizeof line, stdin)) {
        TRY(parse(line, &asked));
        TRY(run(&asked));
    }
    return 0;
}

static int serve(int argc, char **argv)
{
    uint64_t total_bytes;
    if (argc != 4)
        return err_set(ERR_USAGE, "use: drive_side DIRECTORY[,...] SLAB_BYTES auto|uring|pool");
    wanted_backend = strcmp(argv[3], "uring") == 0  ? IO_URING
                     : strcmp(argv[3], "pool") == 0 ? IO_POOL
                                                    : IO_AUTO;
    if (wanted_backend == IO_AUTO && strcmp(argv[3], "auto") != 0)
        return err_set(ERR_USAGE, "\"%s\" is none of auto, uring and pool", argv[3]);
    if (size_parse(argv[2], &total_bytes) < 0)
        return err_set(ERR_USAGE, "SLAB_BYTES: \"%s\" is no size such as 512MiB", argv[2]);
    int drive_count = make_drives(argv[1], total_bytes);
    TRY(drive_count);
    slab_config slab_settings = {
        .drives = drives, .drive_count = (uint32_t)drive_count, .total_bytes = total_bytes};
    for (int i = 0; i < SLAB_UUID_BYTES; i++)
        slab_settings.uuid[i] = (uint8_t)rng_u64((uint64_t)getpid(), clock_ns(), (uint64_t)i);
    arena_config arena_settings = {.name = "host", .size_bytes = ARENA_BYTES, .touch_threads = 2};
    TRY(arena_init(&memory, &arena_settings));
    TRY(slab_open(&store, &slab_settings));
    int rc = answer_all();
    err_record first;
    err_save(&first, rc);
    TRY_KEEP(rc, slab_remove(&store));
    arena_fini(&memory);
    return first.code < 0 ? err_restore(&first) : rc;
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    bench_require(serve(argc, argv));
    return 0;
}
