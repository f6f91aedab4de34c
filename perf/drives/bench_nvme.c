/* The speed at which tiers/io moves bytes between huge-page memory and the slab, against the best
 * of fio on the same files: reads, writes and both at once, over block size, queue depth and
 * registration.
 *
 *   bench_nvme [OPTIONS] [DIRECTORY[,DIRECTORY...] [SLAB_BYTES [auto|uring|pool]]]
 *                        defaults: . 512MiB auto
 *
 *     --modes LIST      from read,write,mixed (default: all)
 *     --settings LIST   such as 4MiBx4,1MiBx16: block and depth each way. By default all
 *                       settings of a grid are tried briefly, and the best two of each side go on.
 *     --rounds N        rounds of each setting (7)
 *     --seconds S       time of each run (0.25)
 *     --rows FILE       writes all rows as CSV
 *     --no-fio          measures only Sluice
 *     --turns           answers questions instead, for bench_train.py: see answer_turns
 *
 * and the common options of bench.h. --csv FILE keeps the best of each mode beside the best of
 * fio's. --quick means 7 rounds of 0.1 s with blocks of 1 MiB, 16 in flight.
 *
 * It writes the slab once before the timing, since the first write into reserved space is slower,
 * and checks that the data comes back. Then all runs are interleaved in rounds, each of which
 * starts at another entry. So a drive that becomes slower affects both sides. fio (fio.h) uses one
 * thread, io_uring, O_DIRECT, and buffers on huge pages, which is checked while it runs. Both sides
 * run with and without registered buffers and files, and with as many blocks of memory as are in
 * flight. This number matters: if a host copies into the guest's memory, blocks in its caches are
 * up to 1.5 times as fast, as long as the guest's own cores do not touch them.
 *
 * Two further sides take no part in the ratio:
 *   lanes    Sluice as in a step: requests of 4 MiB, cut into transfers, that use 256 MiB of memory
 *   filled   fio that writes into each block before it submits it, as a program does with data
 *            that it produces
 *
 * It prints the median, the extremes, CPU time and percentiles of transfers. For each mode it
 * prints the ratio of Sluice's best to fio's best, with the extremes of the ratios of single
 * rounds.
 *
 * Several directories are several drives. Their speed is measured first, as at the beginning of a
 * run, and the slab's stripes are distributed accordingly. */
#include <errno.h>
#include <getopt.h>
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
#include "perf/drives/bench_nvme.h"
#include "tiers/arena.h"
#include "tiers/drive_speed.h"
#include "tiers/io.h"
#include "tiers/io_faults.h"

enum { SLOTS_MAX = 64, SWEEP_ROUNDS = 2 };

#define REQUEST_BYTES (4 * MIB)
#define ARENA_BYTES   (256 * MIB)
#define SWEEP_SECONDS 0.06
#define FIO_SECONDS   0.15 /* longer, since fio's start and end take time */

static const uint64_t blocks[] = {64 * KIB, 256 * KIB, MIB, 4 * MIB};
static const uint32_t depths[] = {1, 4, 8, 16};
enum { BLOCKS = sizeof blocks / sizeof blocks[0], DEPTHS = sizeof depths / sizeof depths[0] };

static struct {
    bool modes[MODES], skips_fio, takes_turns;
    setting settings[SETTINGS_MAX];
    uint32_t setting_count, rounds;
    double seconds;
    const char *rows;
    enum io_backend backend;
} options = {.modes = {true, true, true}, .rounds = 7, .seconds = 0.25};

static slab_drive drives[DRIVES_MAX];
static slab store;
static arena memory;
static io_request requests[2][SLOTS_MAX];
/* Offset of a direction's next request. If there are both directions, reads are in the first half
 * of the slab and writes in the second. */
static uint64_t position[2];
static char fio_files[4096];
static uint64_t fio_file_bytes;
static entry entries[ENTRIES_MAX];
static uint64_t fio_huge_bytes;
static FILE *rows_file;

static double cpu_seconds(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

/* The way in which a run keeps its queue full. */
struct flow {
    uint64_t request_bytes, slots; /* slots: per direction */
    /* moves_on: each request uses the next memory; otherwise a slot keeps its memory */
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

/* Moves bytes for `seconds` and waits for the last request. It sleeps like the executor. */
static int run_queue(io *queue, const entry *what, double seconds, double *rate)
{
    struct flow flow = {.request_bytes = what->at.block_bytes,
                        .slots = what->at.depth,
                        .is_mixed = what->mode == MACHINE_IO_MIXED,
                        .moves_on = what->side == SIDE_LANES};
    if (flow.moves_on) {
        flow.request_bytes = size_max(what->at.block_bytes, REQUEST_BYTES);
        flow.slots = what->at.depth * what->at.block_bytes / flow.request_bytes + 2;
    }
    flow.slots = size_min(size_min(flow.slots, SLOTS_MAX), ARENA_BYTES / 2 / flow.request_bytes);
    uint64_t moved = 0, busy = 0, start_ns = clock_ns();
    for (int way = 0; way < 2; way++) {
        bool takes_part = flow.is_mixed || (way == IO_WRITE) == (what->mode == MACHINE_IO_WRITE);
        for (uint32_t slot = 0; takes_part && slot < flow.slots; slot++, busy++)
            TRY(submit_next(queue, &flow, (enum io_direction)way, slot));
    }
    while (busy > 0) {
        io_request *done[2 * SLOTS_MAX];
        int got = io_poll(queue, done, 2 * SLOTS_MAX);
        TRY(got);
        bool goes_on = (double)(clock_ns() - start_ns) * 1e-9 < seconds;
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

static io_config config_of(const setting *at, bool is_registered, const io_region *region)
{
    static const io_test unregistered = {.deny_registration = true};
    return (io_config){.target = &store,
                       .backend = options.backend,
                       .queue_depth = at->depth,
                       .block_bytes = at->block_bytes,
                       .pool_threads = 8,
                       .test = is_registered ? NULL : &unregistered,
                       .regions = region,
                       .region_count = 1};
}

static int run_ours(entry *what, double seconds)
{
    io_region region = {memory.base, memory.size_bytes};
    io_config config = config_of(&what->at, what->is_registered, &region);
    io *queue;
    double rate = 0;
    TRY(io_create(&config, &queue));
    double cpu = cpu_seconds();
    int rc = run_queue(queue, what, seconds, &rate);
    cpu = cpu_seconds() - cpu;
    if (rc == 0) {
        io_stats stats;
        io_get_stats(queue, &stats);
        what->rates[what->run_count++] = rate;
        what->cpu_sum += cpu / (double)(stats.bytes[0] + stats.bytes[1]);
        for (uint32_t d = 0; d < store.drive_count; d++)
            for (int way = 0; way < 2; way++)
                io_latency_merge(&what->ours[way],
                                 io_get_latency(queue, d, (enum io_direction)way));
    }
    io_destroy(queue);
    return rc;
}

static int run_fio(entry *what, uint32_t read_percent, double seconds)
{
    /* Mixed: each direction has `depth` requests in flight, and they share fio's only queue. */
    uint32_t depth = what->at.depth * (what->mode == MACHINE_IO_MIXED ? 2 : 1) * store.drive_count;
    fio_job asked = {.file = fio_files,
                     .offset_bytes = SLAB_HEADER_BYTES,
                     .size_bytes = fio_file_bytes,
                     .kind = what->mode,
                     .block_bytes = what->at.block_bytes,
                     .depth = depth,
                     .is_registered = what->is_registered,
                     .looks_at_memory = true,
                     .read_percent = read_percent,
                     .fills = what->side == SIDE_FILLED,
                     .seconds = seconds};
    fio_result result;
    TRY(fio_run(&asked, &result));
    what->rates[what->run_count++] = result.bytes_per_second;
    what->cpu_sum += result.cpu_seconds_per_byte;
    for (int way = 0; way < 2; way++) {
        fio_times *sum = &what->fio[way];
        const fio_times *add = &result.ways[way];
        sum->p50 += add->p50;
        sum->p95 += add->p95;
        sum->p99 += add->p99;
        sum->max = add->max > sum->max ? add->max : sum->max;
    }
    fio_huge_bytes = size_max(fio_huge_bytes, result.huge_bytes);
    return 0;
}

/* Runs all entries once per round. Each round begins with another entry. */
static int run_rounds(entry *list, uint32_t count, uint32_t rounds, double ours, double fio)
{
    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t i = 0; i < count; i++) {
            entry *what = &list[(i + round * 5) % count];
            TRY(bench_stopped());
            TRY(is_fio(what->side) ? run_fio(what, 0, fio) : run_ours(what, ours));
        }
    return 0;
}

/* Tries all settings of the grid briefly. */
static int sweep(enum machine_io_kind mode, bool has_fio)
{
    uint32_t count = 0;
    for (int side = 0; side <= has_fio; side++)
        for (int b = 0; b < BLOCKS; b++)
            for (int d = 0; d < DEPTHS; d++)
                add_entry(entries, &count, (enum side)side, true, mode,
                          (setting){blocks[b], depths[d]});
    uint32_t ours = BLOCKS * DEPTHS;
    TRY(run_rounds(entries, ours, SWEEP_ROUNDS, SWEEP_SECONDS, 0));
    TRY(run_rounds(entries + ours, count - ours, 1, 0, FIO_SECONDS));
    write_rows(rows_file, entries, count, "sweep");
    options.setting_count = 0;
    for (int side = 0; side <= has_fio; side++)
        options.setting_count +=
            find_best(entries, count, (enum side)side, options.settings + options.setting_count);
    return 0;
}

static int measure_mode(enum machine_io_kind mode, bool has_fio, bool sweeps)
{
    if (sweeps)
        TRY(sweep(mode, has_fio));
    uint32_t count = 0;
    for (uint32_t s = 0; s < options.setting_count; s++) {
        bool is_of_fio = sweeps && has_fio && s >= options.setting_count / 2;
        for (int registered = 1; registered >= 0 && !is_of_fio; registered--)
            add_entry(entries, &count, SIDE_SLUICE, registered, mode, options.settings[s]);
        for (int registered = 1; registered >= 0 && has_fio; registered--)
            if (is_of_fio || !sweeps)
                add_entry(entries, &count, SIDE_FIO, registered, mode, options.settings[s]);
        if (has_fio && mode != MACHINE_IO_READ && (is_of_fio || !sweeps))
            add_entry(entries, &count, SIDE_FILLED, true, mode, options.settings[s]);
        if (!is_of_fio)
            add_entry(entries, &count, SIDE_LANES, true, mode, options.settings[s]);
    }
    TRY(run_rounds(entries, count, options.rounds, options.seconds, options.seconds));
    write_rows(rows_file, entries, count, "final");
    for (uint32_t i = 0; i < count; i++)
        print_entry(&entries[i]);
    print_ratio(entries, count);
    return 0;
}

static int measure_all(void)
{
    bool has_fio = !options.skips_fio && fio_is_installed();
    bool sweeps = options.setting_count == 0;
    if (!options.skips_fio && !has_fio)
        printf("fio is not installed: ours alone\n");
    printf("%-6s %-6s %8s %5s %4s %6s %13s %8s  %s\n", "mode", "by", "block", "depth", "reg.",
           "GB/s", "min -  max", "CPU s/GB", "transfers, ms: median, 95%, 99%, longest");
    for (int mode = 0; mode < MODES; mode++)
        if (options.modes[mode])
            TRY(measure_mode((enum machine_io_kind)mode, has_fio, sweeps));
    char text[SIZE_TEXT_BYTES];
    if (has_fio)
        printf("of fio's memory %s at most was on huge pages\n", size_format(fio_huge_bytes, text));
    return 0;
}

static int find_name(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

static int parse_settings(const char *text);

/* Makes one run for each line of standard input, so that other programs can take turns with it. A
 * line is SIDE MODE BLOCKxDEPTH READ_PERCENT, such as "fio mixed 1MiBx8 48". The share of reads
 * concerns only fio; Sluice has the same number of requests each way. The answer is "seconds
 * bytes_per_second". The first output is "ready". */
static int answer_turns(void)
{
    char line[128], side[16], mode[16], at[32];
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        uint32_t read_percent = 50;
        options.setting_count = 0;
        bool is_good = sscanf(line, "%15s %15s %31s %" SCNu32, side, mode, at, &read_percent) >= 3;
        int which = is_good ? find_name(side_names, SIDES, side) : -1;
        int kind = is_good ? find_name(mode_names, MODES, mode) : -1;
        if (which < 0 || kind < 0 || read_percent > 100)
            return err_set(ERR_USAGE, "--turns: %s", line);
        TRY(parse_settings(at));
        entry one = {.side = (enum side)which,
                     .is_registered = true,
                     .mode = (enum machine_io_kind)kind,
                     .at = options.settings[0]};
        uint64_t start_ns = clock_ns();
        TRY(is_fio(one.side) ? run_fio(&one, read_percent, options.seconds)
                             : run_ours(&one, options.seconds));
        printf("%.9f %.9g\n", (double)(clock_ns() - start_ns) * 1e-9, one.rates[0]);
        fflush(stdout);
    }
    return 0;
}

/* Writes the whole slab once and reads it back, so that the figures are for bytes that really
 * arrive. */
static int prove(void)
{
    io *queue;
    io_region region = {memory.base, memory.size_bytes};
    io_config config = config_of(&(setting){MIB, 8}, true, &region);
    TRY(io_create(&config, &queue));
    io_stats stats;
    io_get_stats(queue, &stats);
    char huge[SIZE_TEXT_BYTES], total[SIZE_TEXT_BYTES];
    printf("backend %s, buffers %sregistered, files %sregistered, direct I/O %s (alignment %u), %s "
           "of our memory on huge pages, slab %s\n",
           stats.backend == IO_URING ? "io_uring" : "pool", stats.buffers_registered ? "" : "not ",
           stats.files_registered ? "" : "not ", store.files[0].direct ? "yes" : "no",
           store.files[0].align_bytes, size_format(memory.huge_bytes, huge),
           size_format(store.total_bytes, total));
    int rc = 0;
    uint64_t *words = (uint64_t *)(void *)memory.base;
    uint64_t start_ns = clock_ns();
    for (uint64_t at = 0; at < store.total_bytes && rc == 0; at += REQUEST_BYTES) {
        for (uint64_t i = 0; i < REQUEST_BYTES / 8; i++)
            words[i] = at + i * 0x9e3779b97f4a7c15u;
        rc = io_transfer(queue, IO_WRITE, at, memory.base, REQUEST_BYTES);
    }
    printf("first write of the slab, one request at a time: %.2f GB/s\n",
           (double)store.total_bytes / (double)(clock_ns() - start_ns));
    for (uint64_t at = 0; at < store.total_bytes && rc == 0; at += REQUEST_BYTES) {
        rc = io_transfer(queue, IO_READ, at, memory.base, REQUEST_BYTES);
        for (uint64_t i = 0; i < REQUEST_BYTES / 8 && rc == 0; i++)
            if (words[i] != at + i * 0x9e3779b97f4a7c15u)
                rc = err_set(ERR_CORRUPT, "byte %" PRIu64 " came back wrong", at + 8 * i);
    }
    io_destroy(queue);
    return rc;
}

/* Reads a list such as "a,b" for two drives, each large enough for the whole slab. Returns the
 * number of drives. */
static int make_drives(const char *list, uint64_t total_bytes, enum io_backend backend)
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
        TRY(slab_weigh_drives_by(drives, count, backend));
    return (int)count;
}

/* Names the slab's files in fio's syntax, and sets the bytes that fio may use of each. */
static int name_files(void)
{
    size_t used = 0;
    fio_file_bytes = UINT64_MAX;
    for (uint32_t d = 0; d < store.drive_count; d++) {
        fio_file_bytes = size_min(fio_file_bytes, store.drive_stripes[d] * store.stripe_bytes);
        for (const char *at = store.files[d].path; *at && used + 4 < sizeof fio_files; at++) {
            if (*at == ':')
                fio_files[used++] = '\\';
            fio_files[used++] = *at;
        }
        if (used + 4 >= sizeof fio_files)
            return err_set(-ENAMETOOLONG, "the drives' paths are too long for fio: --no-fio");
        fio_files[used++] = d + 1 < store.drive_count ? ':' : '\0';
    }
    return 0;
}

static int parse_settings(const char *text)
{
    for (const char *at = text; *at;) {
        char block[32];
        size_t length = strcspn(at, "x"), rest;
        setting *into = &options.settings[options.setting_count];
        char *end = NULL;
        snprintf(block, sizeof block, "%.*s", (int)size_min(length, 31), at);
        TRY(size_parse(block, &into->block_bytes));
        into->depth = at[length] ? (uint32_t)strtoul(at + length + 1, &end, 10) : 0;
        bool is_good = into->depth > 0 && into->depth <= IO_QUEUE_DEPTH_MAX &&
                       into->block_bytes % (4 * KIB) == 0 && into->block_bytes > 0 &&
                       into->block_bytes <= ARENA_BYTES / 4;
        if (!is_good || ++options.setting_count == SETTINGS_MAX)
            return err_set(ERR_USAGE, "--settings %s: want blocks and depths as 4MiBx4,1MiBx16",
                           text);
        rest = strcspn(end, ",");
        at = end + rest + (end[rest] == ',');
    }
    return 0;
}

static int parse_options(int argc, char **argv)
{
    static const struct option names[] = {
        {"modes", required_argument, NULL, 'm'},  {"settings", required_argument, NULL, 's'},
        {"rounds", required_argument, NULL, 'r'}, {"seconds", required_argument, NULL, 't'},
        {"rows", required_argument, NULL, 'c'},   {"no-fio", no_argument, NULL, 'n'},
        {"turns", no_argument, NULL, 'a'},        {NULL, 0, NULL, 0},
    };
    for (int which; (which = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (which == 'm')
            for (int mode = 0; mode < MODES; mode++)
                options.modes[mode] = strstr(optarg, mode_names[mode]) != NULL;
        else if (which == 's')
            TRY(parse_settings(optarg));
        else if (which == 'r')
            options.rounds = (uint32_t)size_min(strtoul(optarg, NULL, 10), ROUNDS_MAX);
        else if (which == 't')
            options.seconds = strtod(optarg, NULL);
        else if (which == 'c')
            options.rows = optarg;
        else if (which == 'n')
            options.skips_fio = true;
        else if (which == 'a')
            options.takes_turns = true;
        else
            return err_set(ERR_USAGE, "see the head of perf/drives/bench_nvme.c");
    }
    if (!options.modes[0] && !options.modes[1] && !options.modes[2])
        return err_set(ERR_USAGE, "--modes wants some of read,write,mixed");
    if (options.rounds == 0 || !(options.seconds > 0))
        return err_set(ERR_USAGE, "--rounds and --seconds are above 0");
    return 0;
}

static int run(int argc, char **argv)
{
    uint64_t total_bytes = 512 * MIB;
    if (bench_is_quick()) {
        options.seconds = 0.1;
        TRY(parse_settings("1MiBx16"));
    }
    TRY(parse_options(argc, argv));
    argv += optind;
    argc -= optind;
    const char *backend = argc > 2 ? argv[2] : "auto";
    options.backend = strcmp(backend, "uring") == 0  ? IO_URING
                      : strcmp(backend, "pool") == 0 ? IO_POOL
                                                     : IO_AUTO;
    if (options.backend == IO_AUTO && strcmp(backend, "auto") != 0)
        return err_set(ERR_USAGE, "\"%s\" is none of auto, uring and pool", backend);
    if (argc > 1 && size_parse(argv[1], &total_bytes) < 0)
        return err_set(ERR_USAGE, "SLAB_BYTES: \"%s\" is no size such as 512MiB", argv[1]);
    int drive_count = make_drives(argc > 0 ? argv[0] : ".", total_bytes, options.backend);
    TRY(drive_count);
    slab_config slab_settings = {
        .drives = drives, .drive_count = (uint32_t)drive_count, .total_bytes = total_bytes};
    for (int i = 0; i < SLAB_UUID_BYTES; i++)
        slab_settings.uuid[i] = (uint8_t)rng_u64((uint64_t)getpid(), clock_ns(), (uint64_t)i);
    arena_config arena_settings = {.name = "host", .size_bytes = ARENA_BYTES, .touch_threads = 2};
    if (options.rows && !(rows_file = fopen(options.rows, "we")))
        return err_set(ERR_INPUT, "cannot write %s", options.rows);
    if (rows_file)
        fprintf(rows_file,
                "stage,by,mode,block_bytes,depth,registered,runs,median,min,max,cpu_s_per_byte,"
                "read_p50,read_p95,read_p99,read_max,write_p50,write_p95,write_p99,write_max\n");
    TRY(arena_init(&memory, &arena_settings));
    TRY(slab_open(&store, &slab_settings));
    for (int i = 0; i < drive_count && drive_count > 1; i++)
        printf("drive %s: weight %.2f, %" PRIu64 " stripes\n", drives[i].path, drives[i].weight,
               store.drive_stripes[i]);
    int rc = prove();
    if (rc == 0)
        rc = name_files();
    if (rc == 0)
        rc = options.takes_turns ? answer_turns() : measure_all();
    err_record first;
    err_save(&first, rc);
    TRY_KEEP(rc, slab_remove(&store));
    arena_fini(&memory);
    if (rows_file)
        fclose(rows_file);
    return first.code < 0 ? err_restore(&first) : rc;
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    int rc = run(argc, argv);
    if (rc < 0)
        fprintf(stderr, "bench_nvme: %s\n", err_text());
    return bench_exit_of(rc);
}
