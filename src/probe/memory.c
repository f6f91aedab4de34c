/* Measures the memory bandwidth and the CPU's Adam, on the optimizer's cores and on one core. See
 * probe_internal.h.
 *
 * Adam works as in a run: tiles of fp32 master and moments in place, a bf16 gradient as input, a
 * bf16 working copy as output. So it reads and writes 28 bytes per element. */
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/log.h"
#include "base/size.h"
#include "base/tile.h"
#include "probe/probe_internal.h"

enum {
    ADAM_ELEMS = 1 << 20, /* of a tile in memory */
    /* of a tile in the second-level cache: 256 KiB with all its streams */
    ADAM_CACHED_ELEMS = 1 << 14,
    ADAM_BYTES = 28, /* bytes read and written per element */
    ADAM_CACHED_REPEATS = 64,
};

/* The variants that take turns. */
enum variant {
    READ_ALL,
    COPY_ALL,
    ADAM_ALL,
    READ_ONE,
    COPY_ONE,
    ADAM_ONE,
    ADAM_CACHED,
    VARIANT_COUNT
};

static const char *const variant_names[VARIANT_COUNT] = {
    "reading, all cores", "copying, all cores", "Adam, all cores",  "reading, one core",
    "copying, one core",  "Adam, one core",     "Adam in the cache"};

struct bench {
    probei *owner;
    probei_adam all, one, cached;
    uint64_t sum; /* keeps the compiler from removing the reads */
};

/* Returns the sum of [count] words, many at a time. */
static inline __attribute__((always_inline)) uint64_t sum_words_body(const uint64_t *words,
                                                                     uint64_t count)
{
    uint64_t sums[32] = {0}, sum = 0;
    for (uint64_t i = 0; i + 32 <= count; i += 32)
        for (int k = 0; k < 32; k++)
            sums[k] += words[i + (uint64_t)k];
    for (int k = 0; k < 32; k++)
        sum += sums[k];
    return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static uint64_t sum_words_avx512(const uint64_t *words,
                                                                    uint64_t count)
{
    return sum_words_body(words, count);
}

__attribute__((target("avx2"))) static uint64_t sum_words_avx2(const uint64_t *words,
                                                               uint64_t count)
{
    return sum_words_body(words, count);
}
#endif

static uint64_t sum_words(const uint64_t *words, uint64_t count)
{
#if defined(__x86_64__)
    if (cpu_isa() >= CPU_AVX512)
        return sum_words_avx512(words, count);
    if (cpu_isa() >= CPU_AVX2)
        return sum_words_avx2(words, count);
#endif
    return sum_words_body(words, count);
}

static uint64_t read_all(const probei *self, int threads)
{
    const uint64_t *words = (const uint64_t *)(const void *)self->memory.base;
    uint64_t count = self->memory.size_bytes / 8, sum = 0;
    uint64_t share = count / (uint64_t)threads / 512 * 512;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : sum)
    for (int t = 0; t < threads; t++)
        sum += sum_words(words + (uint64_t)t * share, share);
    return sum;
}

static void copy_all(const probei *self, int threads)
{
    unsigned char *base = self->memory.base;
    uint64_t half = self->memory.size_bytes / 2, share = half / (uint64_t)threads / 4096 * 4096;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int t = 0; t < threads; t++)
        memcpy(base + half + (uint64_t)t * share, base + (uint64_t)t * share, share);
}

/* Returns the bytes of a tile with its gradient and its working copy, each at its residue. */
static uint64_t adam_pitch(uint64_t elems)
{
    return tile_pitch(elems, TILE_STREAMS_MAX) + size_round_up(2 * elems, TILE_PERIOD_BYTES) +
           size_round_up(2 * elems, TILE_PERIOD_BYTES) + 2 * TILE_PERIOD_BYTES;
}

void probei_adam_place(const probei *self, kernel_context *context, uint64_t begin, uint64_t end,
                       probei_adam *out)
{
    uint64_t elems = self->extent == PROBEI_TINY ? ADAM_CACHED_ELEMS : ADAM_ELEMS;
    uint64_t base =
        size_round_up((uint64_t)(uintptr_t)self->memory.base + begin, TILE_PERIOD_BYTES);
    uint64_t bytes = (uint64_t)(uintptr_t)self->memory.base + end - base;
    *out = (probei_adam){.context = context,
                         .base = (unsigned char *)(uintptr_t)base,
                         .tile_elems = elems,
                         .tile_count = size_max(bytes / adam_pitch(elems), 1)};
}

int probei_adam_once(void *user, uint64_t *elems)
{
    static const update_scalars scalars = {.learning_rate = 1e-6f,
                                           .beta1 = 0.9f,
                                           .beta2 = 0.95f,
                                           .epsilon = 1e-8f,
                                           .weight_decay = 0.1f,
                                           .decoupled = true,
                                           .bias_correction1 = 0.5f,
                                           .bias_correction2_sqrt = 0.5f,
                                           .grad_scale = 1.0f};
    probei_adam *self = user;
    uint64_t count = self->tile_elems;
    unsigned char *state = self->base + self->next * adam_pitch(count);
    unsigned char *grads = state + tile_pitch(count, TILE_STREAMS_MAX) + TILE_RESIDUE_GRADS;
    unsigned char *params = state + tile_pitch(count, TILE_STREAMS_MAX) +
                            size_round_up(2 * count, TILE_PERIOD_BYTES) + TILE_PERIOD_BYTES +
                            TILE_RESIDUE_PARAMS;
    update_args args = {.count = count,
                        .master = state,
                        .m = state + tile_stream_stride(count),
                        .v = state + 2 * tile_stream_stride(count),
                        .grads = grads,
                        .grad_type = DTYPE_BF16,
                        .params = params,
                        .param_type = DTYPE_BF16,
                        .scalars = &scalars};
    self->next = (self->next + 1) % self->tile_count;
    *elems += count;
    return kernels_cpu.update(self->context, NULL, &args);
}

/* *rate: elements per second over all tiles. */
static int time_adam(probei_adam *self, double *rate)
{
    uint64_t elems = 0, begin_ns = clock_ns();
    for (uint64_t i = 0; i < self->tile_count; i++)
        TRY(probei_adam_once(self, &elems));
    *rate = (double)elems * 1e9 / (double)size_max(clock_ns() - begin_ns, 1);
    return 0;
}

/* *seconds: seconds per element on one core. */
static int time_cached(probei_adam *self, double *seconds)
{
    uint64_t elems = 0;
    TRY(probei_adam_once(self, &elems));
    uint64_t begin_ns = clock_ns();
    elems = 0;
    for (int i = 0; i < ADAM_CACHED_REPEATS; i++)
        TRY(probei_adam_once(self, &elems));
    *seconds = (double)(clock_ns() - begin_ns) * 1e-9 / (double)elems;
    return 0;
}

static int run_variant(void *user, uint32_t variant, double *value)
{
    struct bench *bench = user;
    probei *self = bench->owner;
    int threads = variant < READ_ONE ? (int)self->cores.update.thread_count : 1;
    double bytes = (double)self->memory.size_bytes;
    uint64_t begin_ns = clock_ns();
    switch ((enum variant)variant) {
    case READ_ALL:
    case READ_ONE:
        bench->sum += read_all(self, threads);
        break;
    case COPY_ALL:
    case COPY_ONE:
        copy_all(self, threads);
        break;
    case ADAM_ALL:
        return time_adam(&bench->all, value);
    case ADAM_ONE:
        return time_adam(&bench->one, value);
    case ADAM_CACHED:
    case VARIANT_COUNT:
        return time_cached(&bench->cached, value);
    }
    *value = bytes * 1e9 / (double)size_max(clock_ns() - begin_ns, 1);
    return 0;
}

static void report(probei *self, const probei_figure *f)
{
    machine *out = self->out;
    char label[PROBEI_TEXT_BYTES];
    uint32_t cores = self->cores.update.thread_count;
    out->host.dram_read = f[READ_ALL].median;
    out->host.dram_copy = f[COPY_ALL].median;
    out->host.update_elems = f[ADAM_ALL].median;
    out->host.dram_update = ADAM_BYTES * f[ADAM_ALL].median;
    out->host.update_core_seconds = f[ADAM_CACHED].median;
    probei_say(self, "memory and Adam (%u cores)", cores);
    snprintf(label, sizeof label, "memory read");
    probei_found(self, label, f[READ_ALL].median * 1e-9, "GB/s", &f[READ_ALL], "one core %.1f",
                 f[READ_ONE].median * 1e-9);
    probei_found(self, "memory copied, read and written", f[COPY_ALL].median * 1e-9, "GB/s",
                 &f[COPY_ALL], "one core %.1f", f[COPY_ONE].median * 1e-9);
    probei_found(self, "Adam over memory, read and written", out->host.dram_update * 1e-9, "GB/s",
                 &f[ADAM_ALL], "%.0f%% of a copy; one core %.1f",
                 100 * out->host.dram_update / out->host.dram_copy,
                 ADAM_BYTES * f[ADAM_ONE].median * 1e-9);
    probei_found(self, "Adam over memory", f[ADAM_ALL].median * 1e-9, "Gelem/s", &f[ADAM_ALL],
                 "%.3f s per 10^9 parameters", 1e9 / f[ADAM_ALL].median);
    probei_found(self, "Adam in the cache, one core", f[ADAM_CACHED].median * 1e9, "ns/elem",
                 &f[ADAM_CACHED], "%.0f%% of all cores' time over memory is arithmetic",
                 100 * f[ADAM_CACHED].median * f[ADAM_ALL].median / cores);
}

int probei_memory(probei *self)
{
    probei_figure figures[VARIANT_COUNT] = {{.count = 0}};
    struct bench bench = {.owner = self};
    TRY(probei_check(self, "filling memory"));
    probei_fill(self, self->memory.base, self->memory.size_bytes);
    uint64_t end = self->memory.size_bytes;
    probei_adam_place(self, self->update, 0, end, &bench.all);
    probei_adam_place(self, self->single, 0, end, &bench.one);
    probei_adam_place(self, self->single, 0, end, &bench.cached);
    bench.cached.tile_elems = ADAM_CACHED_ELEMS;
    bench.cached.tile_count = 1;
    probei_work work = {.count = VARIANT_COUNT,
                        .seconds = probei_step_left(self),
                        .warms_up = self->extent != PROBEI_TINY,
                        .is_checked = true,
                        /* only shown to the user */
                        .loose = 1U << READ_ONE | 1U << COPY_ONE | 1U << ADAM_ONE,
                        .run = run_variant,
                        .names = variant_names,
                        .user = &bench};
    TRY(probei_rounds(self, &work, figures));
    report(self, figures);
    return 0;
}
