/* Training on one GPU, against the limits of the same machine measured in the same run.
 *
 *   bench_gpu --host SIZE --data DIR [--steps N] [--seconds N] [--quick] [JOB ...]
 *
 * First it measures the limits: copies each way alone and both at once, the device's own memory,
 * large bf16 products, and the drive that holds DIR. Then it trains each job file for a few steps
 * on random tokens and prints a line of the table. Everything runs in one process, whose host
 * memory of SIZE is touched and pinned once. A job is skipped, with the reason, if it does not fit
 * this machine or if --seconds leaves no time for it. If the time ends within a job, the job has
 * fewer steps. If a job's rules put more blocks' optimizer state on NVMe than the drive moves in
 * DRIVE_STEP_SECONDS per step, fewer blocks go there.
 *
 * The figures are medians over the steps without the first two. "of GEMM" is model FLOP/s (6 times
 * parameters times tokens plus attention, without recomputation) divided by the rate of the large
 * product. A lane's GB/s counts only the time in which it was busy. HBM is the GPU memory in use at
 * the end, including libraries. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rng.h"
#include "base/size.h"
#include "engine/engine.h"
#include "kernels/ops.h"
#include "setup/summary.h"
#include "tiers/arena.h"
#include "tiers/device.h"
#include "tiers/io.h"
#include "train/train.h"

enum {
    RUNS = 7,
    STEPS_MAX = 64,
    WARM_STEPS = 2,
    SLOTS = 16,
    JOB_SECONDS_LEAST = 60, /* a job starts only if this time is left */
    DRIVE_STEP_SECONDS = 12,
};

#define SLOT_BYTES    (4 * MIB)
#define SCRATCH_BYTES (64 * MIB) /* for the large product; cuBLASLt gets 32 MiB on Hopper */

struct ceilings {
    double h2d, d2h, h2d_both, d2h_both, hbm; /* GB/s */
    double read, write;                       /* GB/s of the drive */
    double tflops;
};

struct options {
    uint64_t host_bytes;
    const char *data_dir;
    uint64_t steps;
    uint64_t seconds; /* limit of the whole run; 0: none */
    bool quick;       /* small sizes, to try the program itself */
};

static struct options asked = {.steps = 6};
static struct ceilings most;
static uint64_t end_ns = UINT64_MAX;         /* from asked.seconds */
static volatile sig_atomic_t is_out_of_time; /* stops the current job */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint64_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return values[count / 2];
}

/* --- limits --- */

/* The GPU by itself, before any job. */
struct lab {
    device *gpu;
    device_stream *streams[2];
    device_event *start, *end[2];
    unsigned char *memory;
    void *host;
    uint64_t bytes; /* of a copy; `host` has two such blocks, `memory` three and SCRATCH_BYTES */
};

static int lab_open(struct lab *lab, void *host, uint64_t bytes)
{
    lab->bytes = bytes;
    lab->host = host;
    TRY(device_open(0, &lab->gpu));
    for (int i = 0; i < 2; i++) {
        TRY(device_stream_create(lab->gpu, false, &lab->streams[i]));
        TRY(device_event_create(lab->gpu, true, &lab->end[i]));
    }
    TRY(device_event_create(lab->gpu, true, &lab->start));
    return device_reserve(lab->gpu, 3 * bytes + SCRATCH_BYTES, &lab->memory);
}

/* Times copies on one stream or, if `which` is 3, on both at once. rates: GB/s of each. */
static int time_copies(struct lab *lab, int which, double rates[2])
{
    enum { TO_DEVICE = 1, TO_HOST = 2 };
    unsigned char *host = lab->host;
    TRY(device_record(lab->gpu, lab->start, lab->streams[0]));
    TRY(device_wait(lab->gpu, lab->streams[1], lab->start));
    if (which & TO_DEVICE)
        TRY(device_copy(lab->gpu, lab->streams[0], lab->memory, host, lab->bytes,
                        DEVICE_FROM_HOST));
    if (which & TO_HOST)
        TRY(device_copy(lab->gpu, lab->streams[1], host + lab->bytes, lab->memory + lab->bytes,
                        lab->bytes, DEVICE_TO_HOST));
    for (int i = 0; i < 2; i++)
        TRY(device_record(lab->gpu, lab->end[i], lab->streams[i]));
    TRY(device_synchronize(lab->gpu, NULL));
    for (int i = 0; i < 2; i++) {
        int64_t ns;
        TRY(device_elapsed_ns(lab->gpu, lab->start, lab->end[i], &ns));
        rates[i] = ns > 0 ? (double)lab->bytes / (double)ns : 0;
    }
    return 0;
}

static int measure_copies(struct lab *lab)
{
    for (int which = 1; which <= 3; which++) {
        double first[RUNS], second[RUNS], rates[2];
        for (int r = -1; r < RUNS; r++) {
            TRY(time_copies(lab, which, rates));
            if (r >= 0)
                first[r] = rates[0], second[r] = rates[1];
        }
        if (which == 1)
            most.h2d = median(first, RUNS);
        else if (which == 2)
            most.d2h = median(second, RUNS);
        else
            most.h2d_both = median(first, RUNS), most.d2h_both = median(second, RUNS);
    }
    return 0;
}

static int measure_memory(struct lab *lab)
{
    double rates[RUNS];
    for (int r = -1; r < RUNS; r++) {
        int64_t ns;
        TRY(device_record(lab->gpu, lab->start, lab->streams[0]));
        TRY(device_copy(lab->gpu, lab->streams[0], lab->memory, lab->memory + lab->bytes,
                        lab->bytes, DEVICE_WITHIN));
        TRY(device_record(lab->gpu, lab->end[0], lab->streams[0]));
        TRY(device_synchronize(lab->gpu, lab->streams[0]));
        TRY(device_elapsed_ns(lab->gpu, lab->start, lab->end[0], &ns));
        if (r >= 0)
            rates[r] = ns > 0 ? 2.0 * (double)lab->bytes / (double)ns : 0;
    }
    most.hbm = median(rates, RUNS);
    return 0;
}

/* Times n x n x n products in bf16 on random data, since zeros are faster than any real data. */
static int time_products(struct lab *lab, const kernel_ops *ops, kernel_matmul *product, uint64_t n,
                         double *tflops)
{
    enum { PRODUCTS = 16 }; /* about 25 ms, so that clocks and power settle as in training */
    uint64_t bytes = n * n * 2;
    unsigned char *a = lab->memory, *b = a + bytes, *c = b + bytes, *scratch = c + bytes;
    double rates[RUNS];
    uint16_t *fill = lab->host;
    for (uint64_t i = 0; i < 2 * n * n; i++)
        fill[i] = bf16_from_fp32((float)rng_uniform(1, 2, i) - 0.5f);
    TRY(device_copy(lab->gpu, lab->streams[0], a, fill, 2 * bytes, DEVICE_FROM_HOST));
    for (int r = -2; r < RUNS; r++) {
        int64_t ns;
        TRY(device_record(lab->gpu, lab->start, lab->streams[0]));
        for (int i = 0; i < PRODUCTS; i++)
            TRY(ops->matmul(product, lab->streams[0], a, b, NULL, c, scratch));
        TRY(device_record(lab->gpu, lab->end[0], lab->streams[0]));
        TRY(device_synchronize(lab->gpu, lab->streams[0]));
        TRY(device_elapsed_ns(lab->gpu, lab->start, lab->end[0], &ns));
        if (r >= 0)
            rates[r] =
                ns > 0 ? PRODUCTS * 2e-3 * (double)n * (double)n * (double)n / (double)ns : 0;
    }
    *tflops = median(rates, RUNS);
    return 0;
}

static int measure_products(struct lab *lab)
{
    const kernel_ops *ops = kernels_cuda();
    uint64_t n = asked.quick ? 128 : 8192;
    kernel_context *context;
    kernel_matmul *product = NULL;
    kernel_context_config config = {.thread_count = 1};
    TRY(ops->context_create(&config, &context));
    printf("%s\n", ops->describe(context));
    matmul_desc desc = {.m = n,
                        .n = n,
                        .k = n,
                        .b_transposed = true,
                        .a_stride = n,
                        .b_stride = n,
                        .c_stride = n,
                        .ab_type = DTYPE_BF16,
                        .c_type = DTYPE_BF16};
    int rc = ops->matmul_create(context, &desc, &product);
    if (rc == 0 &&
        3 * n * n * 2 + ops->matmul_scratch_bytes(product) > 3 * lab->bytes + SCRATCH_BYTES)
        rc = err_set(-ENOMEM, "the product's operands do not fit the benchmark's memory");
    if (rc == 0)
        rc = time_products(lab, ops, product, n, &most.tflops);
    err_record first;
    err_save(&first, rc);
    if (product)
        ops->matmul_destroy(product);
    ops->context_destroy(context);
    return rc < 0 ? err_restore(&first) : 0;
}

/* Moves a whole slab once, with many requests in flight. */
static int pass_drive(io *queue, const slab *store, unsigned char *memory,
                      enum io_direction direction, double *rate)
{
    io_request requests[SLOTS];
    uint64_t count = store->total_bytes / SLOT_BYTES, submitted = 0, finished = 0;
    uint64_t start_ns = clock_ns();
    while (finished < count) {
        io_request *done[SLOTS];
        int got = submitted < SLOTS && submitted < count ? 0 : io_poll(queue, done, SLOTS);
        TRY(got);
        for (int i = 0; i < got; i++)
            if (done[i]->result < 0)
                return err_restore(io_error(queue));
        finished += (uint64_t)got;
        bool fills = submitted < SLOTS && submitted < count;
        for (int i = 0; (i < got || fills) && submitted < count; i++) {
            uint64_t slot = fills ? submitted : (uint64_t)(done[i] - requests);
            requests[slot] = (io_request){.direction = direction,
                                          .offset = submitted * SLOT_BYTES,
                                          .data = memory + slot * SLOT_BYTES,
                                          .size_bytes = SLOT_BYTES};
            TRY(io_submit(queue, &requests[slot]));
            submitted++;
            if (fills)
                break;
        }
        struct pollfd waiter = {.fd = io_event_fd(queue), .events = POLLIN};
        if (got == 0 && !fills)
            (void)poll(&waiter, 1, 1000);
    }
    *rate = (double)(count * SLOT_BYTES) / (double)(clock_ns() - start_ns);
    return 0;
}

static int time_drive(slab *store, void *host)
{
    io_region region = {host, SLOTS * SLOT_BYTES};
    io_config config = {.target = store, .regions = &region, .region_count = 1, .pool_threads = 8};
    io *queue;
    double once;
    TRY(io_create(&config, &queue));
    /* slower, since the space is only reserved */
    int rc = pass_drive(queue, store, host, IO_WRITE, &once);
    if (rc == 0)
        rc = pass_drive(queue, store, host, IO_WRITE, &most.write);
    if (rc == 0)
        rc = pass_drive(queue, store, host, IO_READ, &most.read);
    err_record first;
    err_save(&first, rc);
    io_destroy(queue);
    return rc < 0 ? err_restore(&first) : 0;
}

static int measure_drive(void *host)
{
    slab store;
    slab_drive drive = {.budget_bytes = 0};
    slab_config config = {
        .drives = &drive, .drive_count = 1, .total_bytes = asked.quick ? 64 * MIB : 4 * GIB};
    snprintf(drive.path, sizeof drive.path, "%s", asked.data_dir);
    for (int i = 0; i < SLAB_UUID_BYTES; i++)
        config.uuid[i] = (uint8_t)rng_u64((uint64_t)getpid(), clock_ns(), (uint64_t)i);
    TRY(slab_open(&store, &config));
    int rc = time_drive(&store, host);
    err_record first;
    err_save(&first, rc);
    TRY_KEEP(rc, slab_remove(&store));
    return first.code < 0 ? err_restore(&first) : rc;
}

static int measure_ceilings(void)
{
    struct lab lab = {0};
    uint64_t bytes = asked.quick ? 4 * MIB : 512 * MIB;
    arena_config config = {
        .name = "host", .size_bytes = size_max(2 * bytes, SLOTS * SLOT_BYTES), .touch_threads = 4};
    arena host;
    TRY(arena_init(&host, &config));
    int rc = lab_open(&lab, host.base, bytes);
    if (rc == 0)
        rc = device_pin(lab.gpu, host.base, size_round_up(config.size_bytes, 4096));
    if (rc == 0)
        rc = measure_copies(&lab);
    if (rc == 0)
        rc = measure_memory(&lab);
    if (rc == 0)
        rc = measure_products(&lab);
    if (rc == 0 && measure_drive(host.base) < 0) { /* the other limits do not need a drive */
        printf("the drive of %s is not measured: %s\n", asked.data_dir, err_text());
        most.read = most.write = 0;
    }
    err_record first;
    err_save(&first, rc);
    device_close(lab.gpu); /* unpins */
    arena_fini(&host);
    if (rc < 0)
        return err_restore(&first);
    printf("ceilings   h2d %.1f GB/s, d2h %.1f, both at once %.1f + %.1f; device memory %.0f GB/s\n"
           "           bf16 product of %s: %.1f TFLOP/s; drive: read %.2f GB/s, write %.2f\n\n",
           most.h2d, most.d2h, most.h2d_both, most.d2h_both, most.hbm,
           asked.quick ? "128^3" : "8192^3", most.tflops, most.read, most.write);
    fflush(stdout);
    return 0;
}

/* --- jobs --- */

struct row {
    double tokens_per_second[STEPS_MAX], tflops[STEPS_MAX], stall[STEPS_MAX];
    double rates[LANE_COUNT][STEPS_MAX];
    uint64_t count;
    struct setup_summary plan;
};

static void note_plan(void *user, const struct setup_summary *plan)
{
    ((struct row *)user)->plan = *plan;
}

static void note_step(void *user, const struct train_progress *progress)
{
    struct row *row = user;
    if (progress->step <= WARM_STEPS || row->count >= STEPS_MAX || progress->seconds <= 0)
        return;
    uint64_t i = row->count++;
    double stall = 0;
    for (int which = 0; which < LANE_COUNT; which++) {
        const metrics_lane *did = &progress->lanes[which];
        stall += did->stall_seconds;
        row->rates[which][i] =
            did->busy_seconds > 0 ? (double)did->bytes / did->busy_seconds * 1e-9 : 0;
    }
    is_out_of_time = clock_ns() > end_ns;
    row->tokens_per_second[i] = progress->tokens_per_second;
    row->tflops[i] = progress->model_tflops;
    row->stall[i] = stall / progress->seconds;
}

static void print_head(void)
{
    printf("%-26s %9s %8s %8s %7s %15s %15s %13s %13s %8s\n", "job", "tokens/s", "TFLOP/s",
           "of GEMM", "stalls", "h2d GB/s", "d2h GB/s", "read GB/s", "write GB/s", "HBM GiB");
}

static void print_lane(double *rates, uint64_t count, double limit, int width)
{
    double rate = median(rates, count);
    char text[32] = "-";
    if (rate > 0 && limit > 0)
        snprintf(text, sizeof text, "%.1f (%.0f%%)", rate, 100 * rate / limit);
    else if (rate > 0)
        snprintf(text, sizeof text, "%.1f", rate);
    printf(" %*s", width, text);
}

static void print_row(const char *name, struct row *row, const struct train_summary *summary)
{
    uint64_t n = row->count;
    double tflops = median(row->tflops, n);
    printf("%-26s %9.0f %8.1f %7.1f%% %6.1f%%", name, median(row->tokens_per_second, n), tflops,
           100 * tflops / most.tflops, 100 * median(row->stall, n));
    print_lane(row->rates[LANE_H2D], n, most.h2d, 15);
    print_lane(row->rates[LANE_D2H], n, most.d2h, 15);
    print_lane(row->rates[LANE_READ], n, most.read, 13);
    print_lane(row->rates[LANE_WRITE], n, most.write, 13);
    printf(" %8.1f\n", (double)summary->gpu_used_bytes / (double)GIB);
    fflush(stdout);
}

/* Writes the file's name without folder and extension. */
static void name_of(const char *path, char name[64])
{
    const char *slash = strrchr(path, '/');
    snprintf(name, 64, "%s", slash ? slash + 1 : path);
    char *dot = strrchr(name, '.');
    if (dot)
        *dot = '\0';
}

/* Writes random token ids for a whole number of windows. Throughput does not depend on their
 * values. */
static int write_tokens(char *path, size_t path_bytes, uint64_t vocab, uint64_t count)
{
    snprintf(path, path_bytes, "%s/tokens.u32", asked.data_dir);
    FILE *file = fopen(path, "wb");
    if (!file)
        return err_errno(errno, "cannot write %s", path);
    bool good = true;
    for (uint64_t i = 0; i < count && good; i++) {
        uint32_t token = (uint32_t)rng_below(3, 4, i, vocab);
        good = fwrite(&token, sizeof token, 1, file) == 1;
    }
    good = fclose(file) == 0 && good;
    return good ? 0 : err_errno(errno, "cannot write %s", path);
}

static int read_job(const char *path, const char *tokens, job **out)
{
    char train[1200], dir[1200], drive[1200], steps[64], host[64];
    snprintf(train, sizeof train, "data.train=[\"%s\"]", tokens);
    snprintf(dir, sizeof dir, "run.dir=%s/run", asked.data_dir);
    snprintf(drive, sizeof drive, "tiers.nvme=[{\"path\":\"%s/slabs\"}]", asked.data_dir);
    snprintf(steps, sizeof steps, "run.steps=%" PRIu64, asked.steps);
    snprintf(host, sizeof host, "tiers.host.budget=%" PRIu64, asked.host_bytes);
    const char *sets[] = {train, "data.format=u32", dir, drive, steps, host};
    return job_read(path, NULL, sets, sizeof sets / sizeof sets[0], 1, out);
}

/* Each step reads and writes all optimizer state on NVMe. Each rule keeps only as many blocks as
 * the drive moves in DRIVE_STEP_SECONDS. */
static void limit_drive_state(job *read, const char *name)
{
    if (most.read <= 0 || most.write <= 0)
        return;
    const struct job_model *m = &read->model;
    uint64_t h = m->hidden_size, heads = m->num_heads ? m->num_heads : 1;
    uint64_t kv = m->num_kv_heads ? m->num_kv_heads * (h / heads) : h;
    uint64_t matrices = strcmp(m->family, "llama") == 0 ? 3 : 2;
    double bytes = 12.0 * (double)(h * (2 * h + 2 * kv) + matrices * h * m->ffn_size);
    double seconds = bytes * 1e-9 * (1 / most.read + 1 / most.write);
    for (uint32_t r = 0; r < read->tiers.rule_count; r++) {
        struct job_rule *rule = &read->tiers.rules[r];
        if (rule->kind != STATE_OPTIMIZER || rule->tier != TIER_NVME)
            continue;
        uint32_t count = rule->unit_last - rule->unit_first + 1;
        uint32_t kept = (uint32_t)fmin(count, fmax(1, floor(DRIVE_STEP_SECONDS / seconds)));
        if (kept == count)
            continue;
        rule->unit_last = rule->unit_first + kept - 1;
        printf("%s: %.1f GB of optimizer state on NVMe, %u blocks of the %u that the job has "
               "there: what the drive moves in %d s a step\n",
               name, kept * bytes * 1e-9, kept, count, DRIVE_STEP_SECONDS);
    }
}

static int run_job(const char *path, engine_memory *memory)
{
    static struct row row;
    char tokens[1024], name[64];
    struct train_summary summary;
    job *read = NULL;
    name_of(path, name);
    TRY(read_job(path, "none", &read));
    uint64_t window = read->model.seq_length + 1;
    int rc = write_tokens(tokens, sizeof tokens, read->model.vocab_size,
                          window * read->micro_batch * read->accumulation * 2);
    job_destroy(read);
    TRY(rc);
    TRY(read_job(path, tokens, &read));
    limit_drive_state(read, name);
    memset(&row, 0, sizeof row);
    is_out_of_time = 0;
    struct train_options options = {.job = read,
                                    .memory = memory,
                                    .fresh = true,
                                    .is_trial = true,
                                    .stop = &is_out_of_time,
                                    .on_plan = note_plan,
                                    .on_step = note_step,
                                    .user = &row};
    rc = train_run(&options, &summary);
    job_destroy(read);
    unlink(tokens);
    if (rc == ERR_NO_FIT) {
        printf("%-26s left out: %s\n", name, err_text());
        return 0;
    }
    if (rc < 0 && !(rc == ERR_STOPPED && is_out_of_time))
        return rc;
    if (row.count == 0)
        return err_set(-EINVAL, "%s: --steps %" PRIu64 " leaves no step to measure", name,
                       asked.steps);
    print_row(name, &row, &summary);
    return 0;
}

/* Runs every job, also after a failed one. After a failure of the GPU it stops, since nothing else
 * runs there. */
static int run_jobs(int count, char **jobs, engine_memory *memory)
{
    err_record first = {0};
    for (int i = 0; i < count && first.code != ERR_BACKEND; i++) {
        char name[64];
        name_of(jobs[i], name);
        if (asked.seconds && clock_ns() + JOB_SECONDS_LEAST * UINT64_C(1000000000) > end_ns) {
            printf("%-26s left out: no time is left\n", name);
            continue;
        }
        int rc = run_job(jobs[i], memory);
        if (rc == 0)
            continue;
        printf("%-26s FAILED: %s\n", name, err_text());
        fflush(stdout);
        if (first.code == 0 || rc == ERR_BACKEND)
            err_save(&first, rc);
    }
    return first.code < 0 ? err_restore(&first) : 0;
}

static int run_all(int count, char **jobs)
{
    engine_memory *memory;
    if (asked.seconds)
        end_ns = clock_ns() + asked.seconds * UINT64_C(1000000000);
    TRY(measure_ceilings());
    uint64_t begin_ns = clock_ns();
    char text[SIZE_TEXT_BYTES];
    TRY(engine_memory_create(asked.host_bytes, &memory));
    printf("%s of host memory touched and pinned in %.1f s\n\n",
           size_format(asked.host_bytes, text), (double)(clock_ns() - begin_ns) * 1e-9);
    print_head();
    int rc = run_jobs(count, jobs, memory);
    err_record first;
    err_save(&first, rc);
    engine_memory_destroy(memory);
    return rc < 0 ? err_restore(&first) : 0;
}

static int read_options(int argc, char **argv)
{
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--quick") == 0)
            asked.quick = true;
        else if (strcmp(argv[i], "--host") == 0 && has_value)
            TRY(size_parse(argv[++i], &asked.host_bytes));
        else if (strcmp(argv[i], "--data") == 0 && has_value)
            asked.data_dir = argv[++i];
        else if (strcmp(argv[i], "--steps") == 0 && has_value)
            asked.steps = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0 && has_value)
            asked.seconds = strtoull(argv[++i], NULL, 10);
        else
            return err_set(ERR_USAGE, "bench_gpu: %s is no option, or lacks its value", argv[i]);
    }
    if (!asked.data_dir || asked.host_bytes == 0)
        return err_set(ERR_USAGE,
                       "use: bench_gpu --host SIZE --data DIR [--steps N] [--seconds N] [--quick] "
                       "JOB ...");
    if (asked.steps <= WARM_STEPS || asked.steps > STEPS_MAX)
        return err_set(ERR_USAGE, "bench_gpu: --steps is %" PRIu64 ", but must be %d to %d",
                       asked.steps, WARM_STEPS + 1, STEPS_MAX);
    return i;
}

int main(int argc, char **argv)
{
    char reason[DEVICE_TEXT_BYTES];
    int first = read_options(argc, argv);
    if (first < 0) {
        fprintf(stderr, "%s\n", err_text());
        return 2;
    }
    if (!kernels_cuda() || device_count(reason) == 0) {
        printf("skipped: %s\n", kernels_cuda() ? reason : "this build has no CUDA");
        return 77;
    }
    if (run_all(argc - first, argv + first) < 0) {
        fprintf(stderr, "bench_gpu: %s\n", err_text());
        return 1;
    }
    return 0;
}
