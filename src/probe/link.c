/* Measures copies between host memory and the device, as a run makes them. See probe_internal.h.
 *
 *   GPU   its two copy streams, from and to pinned memory, and from and to pageable memory
 *   CPU   one thread copies both ways within host memory, so the two directions share its rate.
 *         Nothing is pinned there, so both kinds of memory have the same figures.
 *
 * And the other work of one thread on memory: checksums of what passes to and from the drives. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <xxhash.h>

#include "base/log.h"
#include "base/size.h"
#include "probe/probe_internal.h"

enum variant { TO_DEVICE, TO_HOST, BOTH, PAGEABLE_TO_DEVICE, PAGEABLE_TO_HOST, VARIANT_COUNT };
static const char *const variant_names[VARIANT_COUNT] = {"host to device", "device to host",
                                                         "both ways", "host to device, pageable",
                                                         "device to host, pageable"};

enum { COPY_MIB = 8, COPIES_MIB = 64 };

struct bench {
    probei *owner;
    probei_copies copies[VARIANT_COUNT];
};

void probei_copies_place(probei *self, uint64_t begin, probei_copies *out)
{
    uint64_t bytes = self->extent == PROBEI_TINY ? MIB : COPY_MIB * MIB;
    uint64_t room = self->memory.size_bytes - begin;
    *out = (probei_copies){.owner = self,
                           .to_device = true,
                           .host = self->memory.base + begin,
                           .bytes = bytes,
                           .place_count = room / bytes / 2};
    if (self->gpu)
        out->place_count = size_min(out->place_count, self->operand_bytes / bytes / 2);
}

/* On the CPU the second half of the same arena stands for the device's memory. */
static int copy_one_way(probei_copies *self, bool to_device)
{
    probei *owner = self->owner;
    uint64_t at = self->next * self->bytes;
    if (!owner->gpu) {
        unsigned char *far = self->host + self->place_count * self->bytes + at;
        memcpy(to_device ? far : self->host + at, to_device ? self->host + at : far, self->bytes);
        return 0;
    }
    /* Each direction has its own areas. */
    uint64_t half = to_device ? 0 : self->place_count * self->bytes;
    unsigned char *near = self->host + half + at, *far = owner->operands + half + at;
    return device_copy(owner->gpu, owner->streams[to_device ? 0 : 1], to_device ? far : near,
                       to_device ? near : far, self->bytes,
                       to_device ? DEVICE_FROM_HOST : DEVICE_TO_HOST);
}

int probei_copy_once(void *user, uint64_t *bytes)
{
    probei_copies *self = user;
    for (uint64_t done = 0; done < COPIES_MIB * MIB; done += self->bytes) {
        if (self->to_device)
            TRY(copy_one_way(self, true));
        if (self->to_host)
            TRY(copy_one_way(self, false));
        self->next = (self->next + 1) % self->place_count;
        *bytes += self->bytes; /* of each direction */
    }
    device *gpu = self->owner->gpu;
    for (int i = 0; gpu && i < 2; i++)
        TRY(device_synchronize(gpu, self->owner->streams[i]));
    return 0;
}

static int run_variant(void *user, uint32_t variant, double *value)
{
    struct bench *bench = user;
    probei_copies *copies = &bench->copies[variant];
    uint64_t bytes = 0, begin_ns = clock_ns();
    TRY(probei_copy_once(copies, &bytes));
    *value = (double)bytes * 1e9 / (double)size_max(clock_ns() - begin_ns, 1);
    return 0;
}

static void report(probei *self, const probei_figure *f)
{
    machine *out = self->out;
    bool is_gpu = self->gpu != NULL;
    out->h2d.pinned = f[TO_DEVICE].median;
    out->d2h.pinned = f[TO_HOST].median;
    out->h2d.pinned_both = out->d2h.pinned_both = f[BOTH].median;
    out->h2d.pageable = f[is_gpu ? PAGEABLE_TO_DEVICE : TO_DEVICE].median;
    out->d2h.pageable = f[is_gpu ? PAGEABLE_TO_HOST : TO_HOST].median;
    probei_say(self,
               is_gpu ? "link to %s" : "link: copies by one thread, since the device is the CPU",
               self->gpu ? device_get_info(self->gpu)->name : "");
    for (uint32_t i = 0; i < (is_gpu ? VARIANT_COUNT : PAGEABLE_TO_DEVICE); i++)
        probei_found(self, variant_names[i], f[i].median * 1e-9, "GB/s", &f[i],
                     i == BOTH  ? "each way, %.0f%% of one alone"
                     : i > BOTH ? "%.0f%% of pinned"
                                : "%.0f%% of a copy by all cores",
                     i == BOTH  ? 100 * f[i].median / f[TO_DEVICE].median
                     : i > BOTH ? 100 * f[i].median / f[i - PAGEABLE_TO_DEVICE].median
                                : 200 * f[i].median / out->host.dram_copy);
}

static int measure(probei *self, struct bench *bench, uint32_t count)
{
    probei_figure figures[VARIANT_COUNT] = {{.count = 0}};
    probei_work work = {.count = count,
                        .seconds = probei_step_left(self),
                        .warms_up = true,
                        .is_checked = true,
                        .run = run_variant,
                        .names = variant_names,
                        .user = bench};
    TRY(probei_rounds(self, &work, figures));
    report(self, figures);
    return 0;
}

/* ---- work of one thread beside a CPU's products: copies, checksums ---- */

enum beside { BESIDE_PRODUCTS, PRODUCTS, BESIDE_COUNT };

struct beside_bench {
    probei *owner;
    const char *names[BESIDE_COUNT];
    /* does one piece of the work and adds its bytes */
    int (*once)(void *user, uint64_t *bytes);
    void *user;
    probei_product product; /* if there is none, the work is done alone */
    probei_figure product_rate;
    probei_figure cpu; /* seconds of the working thread per byte */
    double seconds;    /* of a pass */
};

static double thread_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int run_beside(void *user, uint32_t variant, double *value)
{
    struct beside_bench *b = user;
    if (variant == PRODUCTS)
        return probei_product_alone(&b->product, b->seconds, value);
    probei_load load = {.owner = b->owner,
                        .where = PROBEI_COMPUTE,
                        .once = probei_product_once,
                        .user = &b->product};
    double rate, spent = 0;
    uint64_t bytes = 0;
    if (b->product.product)
        TRY(probei_load_begin(&load));
    double cpu_begin = thread_seconds();
    uint64_t begin_ns = clock_ns();
    int rc = 0;
    while (rc == 0 && spent < b->seconds) {
        rc = b->once(b->user, &bytes); /* this is memory alone, which cannot fail */
        spent = (double)(clock_ns() - begin_ns) * 1e-9;
    }
    probei_figure_add(&b->cpu, (thread_seconds() - cpu_begin) / fmax((double)bytes, 1));
    if (b->product.product) {
        TRY(probei_load_end(&load, &rate));
        probei_figure_add(&b->product_rate, rate);
    }
    *value = (double)bytes / spent;
    return rc;
}

/* Measures the work in memory [quarter, end); *lost: core-seconds that products lose per byte. */
static int measure_beside(struct beside_bench *bench, double seconds,
                          probei_figure figures[BESIDE_COUNT], double *lost)
{
    static const double pass_seconds[PROBEI_EXTENT_COUNT] = {0.002, 0.05, 0.15};
    probei *self = bench->owner;
    bench->seconds = pass_seconds[self->extent];
    *lost = 0;
    TRY(probei_product_open(self, 0, self->memory.size_bytes / 4, &bench->product));
    probei_work work = {.count = bench->product.product ? BESIDE_COUNT : PRODUCTS,
                        .seconds = seconds,
                        .warms_up = true,
                        .is_checked = true,
                        .run = run_beside,
                        .names = bench->names,
                        .user = bench};
    int rc = probei_rounds(self, &work, figures);
    probei_figure_close(&bench->product_rate);
    probei_figure_close(&bench->cpu);
    if (rc == 0 && bench->product.product)
        *lost = probei_lost_cores(self, &figures[PRODUCTS], &bench->product_rate,
                                  figures[BESIDE_PRODUCTS].median);
    probei_product_close(&bench->product);
    return rc;
}

static int measure_copies_beside(probei *self, double seconds)
{
    probei_copies copies;
    probei_figure figures[BESIDE_COUNT] = {{.count = 0}};
    struct beside_bench bench = {.owner = self,
                                 .names = {"copies beside products", "products alone"},
                                 .once = probei_copy_once,
                                 .user = &copies};
    double lost;
    probei_copies_place(self, self->memory.size_bytes / 4, &copies);
    TRY(measure_beside(&bench, seconds, figures, &lost));
    if (bench.product_rate.count == 0)
        return 0;
    self->out->host.copy_core_seconds = lost;
    probei_found(self, "copies beside products", figures[BESIDE_PRODUCTS].median * 1e-9, "GB/s",
                 &figures[BESIDE_PRODUCTS], "%.0f%% of alone; products keep %.0f%%",
                 100 * figures[BESIDE_PRODUCTS].median / self->out->h2d.pinned,
                 100 * bench.product_rate.median / figures[PRODUCTS].median);
    return 0;
}

/* Memory whose checksums are taken piece by piece, as a run takes those of its tiles. */
struct sums {
    const unsigned char *base;
    uint64_t bytes, count, next;
    uint64_t sum; /* so that no sum is left out */
};

static int sum_once(void *user, uint64_t *bytes)
{
    struct sums *self = user;
    self->sum ^= XXH3_64bits(self->base + self->next * self->bytes, self->bytes);
    self->next = (self->next + 1) % self->count;
    *bytes += self->bytes;
    return 0;
}

static int measure_sums(probei *self, double seconds)
{
    uint64_t begin = self->memory.size_bytes / 4;
    struct sums sums = {.base = self->memory.base + begin,
                        .bytes = self->extent == PROBEI_TINY ? MIB : COPY_MIB * MIB};
    sums.count = (self->memory.size_bytes - begin) / sums.bytes;
    probei_figure figures[BESIDE_COUNT] = {{.count = 0}};
    struct beside_bench bench = {.owner = self,
                                 .names = {"checksums beside products", "products alone"},
                                 .once = sum_once,
                                 .user = &sums};
    double lost;
    TRY(measure_beside(&bench, seconds, figures, &lost));
    self->out->host.sum_core_seconds = fmax(lost, bench.cpu.median);
    bool has_products = bench.product_rate.count > 0;
    probei_found(self, has_products ? "checksums beside products" : "checksums by one thread",
                 figures[BESIDE_PRODUCTS].median * 1e-9, "GB/s", &figures[BESIDE_PRODUCTS],
                 has_products ? "CPU time %.0f ms/GB; products keep %.0f%%" : "CPU time %.0f ms/GB",
                 bench.cpu.median * 1e12,
                 has_products ? 100 * bench.product_rate.median / figures[PRODUCTS].median : 0.0);
    return 0;
}

static int copy_within(void *user)
{
    probei *self = user;
    uint64_t half = self->operand_bytes / 2;
    return device_copy(self->gpu, self->streams[0], self->operands + half, self->operands, half,
                       DEVICE_WITHIN);
}

/* Measures the GPU's own memory with a copy inside it. Bytes read and bytes written both count. */
static int measure_device(probei *self)
{
    enum { ROUNDS = 7 };
    probei_figure figure = {.count = 0};
    for (int i = 0; i < ROUNDS; i++) {
        double seconds;
        TRY(probei_check(self, "the device's memory"));
        TRY(probei_time(self, copy_within, self, &seconds));
        probei_figure_add(&figure, (double)(self->operand_bytes / 2 * 2) / seconds);
    }
    probei_figure_close(&figure);
    self->out->device.memory_rate = figure.median;
    double stated = device_get_info(self->gpu)->memory_bytes_per_second;
    probei_found(self, "the device's memory, read and written", figure.median * 1e-9, "GB/s",
                 &figure, "%.0f%% of what its clock allows",
                 stated > 0 ? 100 * figure.median / stated : 0.0);
    return 0;
}

int probei_link(probei *self)
{
    struct bench bench = {.owner = self};
    for (uint32_t v = 0; v < VARIANT_COUNT; v++) {
        probei_copies_place(self, 0, &bench.copies[v]);
        bench.copies[v].to_device = v != TO_HOST && v != PAGEABLE_TO_HOST;
        bench.copies[v].to_host = v == TO_HOST || v == BOTH || v == PAGEABLE_TO_HOST;
    }
    if (!self->gpu) {
        double whole = self->step_seconds;
        self->step_seconds = 0.4 * whole;
        TRY(measure(self, &bench, PAGEABLE_TO_DEVICE));
        self->step_seconds = 0.7 * whole;
        TRY(measure_copies_beside(self, probei_step_left(self)));
        self->step_seconds = whole;
        return measure_sums(self, probei_step_left(self));
    }
    uint64_t bytes = 2 * COPIES_MIB * MIB;
    void *pageable = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (pageable == MAP_FAILED)
        return err_errno(errno, "taking %llu MiB", (unsigned long long)(bytes / MIB));
    for (uint32_t v = PAGEABLE_TO_DEVICE; v < VARIANT_COUNT; v++) {
        bench.copies[v].host = pageable;
        bench.copies[v].place_count = bytes / bench.copies[v].bytes / 2;
    }
    int rc = measure(self, &bench, VARIANT_COUNT);
    if (rc == 0)
        rc = measure_device(self);
    if (rc == 0)
        rc = measure_sums(self, 0.1 * self->step_seconds);
    munmap(pageable, bytes);
    return rc;
}
