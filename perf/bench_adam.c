/* Adam, Lion and Adagrad on the CPU against the memory limit: every variant and 1..N threads, beside
 * a kernel with the same streams and trivial arithmetic, measured in turn with them in one run.
 *
 *   bench_adam [MILLIONS_OF_ELEMENTS] [RUNS] [THREADS]     defaults 8 (1..64), 9 (>= 7), all cores
 *
 * and the common options of bench.h.
 *
 * The working set is laid out as in training: tiles of 1 Mi elements (base/tile.h; Lion and Adagrad
 * have two of Adam's three streams), gradient and working copy at their residues, on huge pages where
 * the system gives them. Before anything is timed, one update of each optimizer by each variant is
 * compared with the reference. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "base/tile.h"
#include "kernels/cpu/cpu_internal.h"
#include "perf/bench.h"

enum { TILE_ELEMS = 1 << 20, RUNS_MAX = 101, ROWS_MAX = 64 };

static const char *const variant_names[] = {"avx512", "avx2", "reference"};
enum { VARIANT_COUNT = 3 };

enum optimizer { ADAM, LION, ADAGRAD, OPTIMIZER_COUNT };
static const char *const optimizer_names[OPTIMIZER_COUNT] = {"Adam", "Lion", "Adagrad"};

/* Elements [0, tile_count * TILE_ELEMS) as tiles of state with their gradient and working copy. */
struct working_set {
    char *base;
    uint64_t bytes, tile_count, state_pitch, flat_pitch;
};

/* One tile's streams; second is m or v, third is Adam's v and NULL for the others. */
struct tile {
    float *master, *second, *third;
    void *grads, *params;
    enum dtype grad_type, param_type;
};

static struct tile tile_at(const struct working_set *set, uint64_t tile, enum optimizer optimizer,
                           enum dtype grad_type, enum dtype param_type)
{
    char *state = set->base + tile * (set->state_pitch + 2 * set->flat_pitch);
    char *flat = state + set->state_pitch;
    uint64_t stride = tile_stream_stride(TILE_ELEMS);
    struct tile out = {
        .master = (float *)state,
        .second = (float *)(state + stride),
        .third = optimizer == ADAM ? (float *)(state + 2 * stride) : NULL,
        .grads = flat + TILE_RESIDUE_GRADS,
        .grad_type = grad_type,
        .params = flat + set->flat_pitch + TILE_RESIDUE_PARAMS,
        .param_type = param_type,
    };
    return out;
}

static int update_tile(kernel_context *context, enum optimizer optimizer, const struct tile *tile)
{
    static const adam_scalars adam = {.learning_rate = 1e-4f,
                                      .beta1 = 0.9f,
                                      .beta2 = 0.95f,
                                      .epsilon = 1e-8f,
                                      .weight_decay = 0.1f,
                                      .decoupled = true,
                                      .bias_correction1 = 0.5f,
                                      .bias_correction2_sqrt = 0.5f,
                                      .grad_scale = 0.9f};
    static const lion_scalars lion = {.learning_rate = 1e-5f,
                                      .beta1 = 0.9f,
                                      .beta2 = 0.99f,
                                      .weight_decay = 0.1f,
                                      .grad_scale = 0.9f};
    static const adagrad_scalars adagrad = {
        .learning_rate = 1e-4f, .epsilon = 1e-10f, .weight_decay = 0.1f, .grad_scale = 0.9f};
    if (optimizer == LION) {
        lion_args args = {TILE_ELEMS,      tile->master, tile->second,     tile->grads,
                          tile->grad_type, tile->params, tile->param_type, &lion};
        return cpui_lion(context, NULL, &args);
    }
    if (optimizer == ADAGRAD) {
        adagrad_args args = {TILE_ELEMS,      tile->master, tile->second,     tile->grads,
                             tile->grad_type, tile->params, tile->param_type, &adagrad};
        return cpui_adagrad(context, NULL, &args);
    }
    adam_args args = {TILE_ELEMS,      tile->master, tile->second,     tile->third, tile->grads,
                      tile->grad_type, tile->params, tile->param_type, &adam};
    return cpui_adam(context, NULL, &args);
}

static int set_create(struct working_set *set, uint64_t tile_count)
{
    set->tile_count = tile_count;
    set->state_pitch = tile_pitch(TILE_ELEMS, TILE_STREAMS_MAX);
    set->flat_pitch =
        size_round_up(4 * (uint64_t)TILE_ELEMS, TILE_PERIOD_BYTES) + TILE_PERIOD_BYTES;
    set->bytes = tile_count * (set->state_pitch + 2 * set->flat_pitch) + 2 * MIB;
    void *mapping =
        mmap(NULL, set->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return -1;
    madvise(mapping, set->bytes, MADV_HUGEPAGE);
    set->base = (char *)size_round_up((uint64_t)(uintptr_t)mapping, 2 * MIB);
    for (uint64_t t = 0; t < tile_count; t++) {
        struct tile tile = tile_at(set, t, ADAM, DTYPE_FP32, DTYPE_FP32);
#pragma omp parallel for schedule(static)
        for (uint64_t i = 0; i < TILE_ELEMS; i++) {
            uint64_t bits = rng_u64(1, t, i);
            tile.master[i] = (float)(bits & 0xffff) * 1e-6f;
            tile.second[i] = (float)(bits >> 16 & 0xffff) * 1e-8f;
            tile.third[i] = (float)(bits >> 32 & 0xffff) * 1e-10f;
            /* About 1e-3 as fp32 and, in halves, as bf16; no subnormals arise from it. */
            uint32_t halves = (uint32_t)(bits >> 48 & 0x7f) * 0x00010001u | 0x3a803a80u;
            memcpy((char *)tile.grads + 4 * i, &halves, 4);
            ((float *)tile.params)[i] = 0;
        }
    }
    return 0;
}

/* The same streams with as little arithmetic as keeps the compiler from dropping one. */
void limit_range(const struct tile *tile, uint64_t begin, uint64_t end);

__attribute__((target_clones("avx512f", "avx2", "default"))) void
limit_range(const struct tile *tile, uint64_t begin, uint64_t end)
{
    float *restrict master = tile->master, *restrict second = tile->second;
    float *restrict third = tile->third;
    const uint32_t *restrict grads = tile->grads;
    uint32_t *restrict params = tile->params;
    const uint16_t *restrict grad_halves = tile->grads;
    uint16_t *restrict param_halves = tile->params;
    bool is_wide = tile->grad_type == DTYPE_FP32;
    /* One loop for each set of streams, so that each is vectorized. */
    if (third && is_wide)
        for (uint64_t i = begin; i < end; i++) {
            master[i] += 0.0f;
            second[i] += 0.0f;
            third[i] += 0.0f;
            params[i] = grads[i];
        }
    else if (third)
        for (uint64_t i = begin; i < end; i++) {
            master[i] += 0.0f;
            second[i] += 0.0f;
            third[i] += 0.0f;
            param_halves[i] = grad_halves[i];
        }
    else if (is_wide)
        for (uint64_t i = begin; i < end; i++) {
            master[i] += 0.0f;
            second[i] += 0.0f;
            params[i] = grads[i];
        }
    else
        for (uint64_t i = begin; i < end; i++) {
            master[i] += 0.0f;
            second[i] += 0.0f;
            param_halves[i] = grad_halves[i];
        }
}

static void limit_tile(const struct tile *tile, int thread_count)
{
#pragma omp parallel for schedule(static) num_threads(thread_count)
    for (int share = 0; share < thread_count; share++)
        limit_range(tile, TILE_ELEMS * (uint64_t)share / (uint64_t)thread_count,
                    TILE_ELEMS * (uint64_t)(share + 1) / (uint64_t)thread_count);
}

/* One line of the table: variant NULL is the limit kernel. */
struct row {
    const char *variant;
    int thread_count;
    kernel_context context;
    double seconds[RUNS_MAX];
};

static double time_pass(const struct working_set *set, struct row *row, enum optimizer optimizer,
                        enum dtype grad_type, enum dtype param_type)
{
    uint64_t start = clock_ns();
    for (uint64_t t = 0; t < set->tile_count; t++) {
        struct tile tile = tile_at(set, t, optimizer, grad_type, param_type);
        if (!row->variant)
            limit_tile(&tile, row->thread_count);
        else if (update_tile(&row->context, optimizer, &tile) < 0)
            exit(1);
    }
    return (double)(clock_ns() - start) * 1e-9;
}

static int make_rows(struct row *rows, int thread_max)
{
    int count = 0;
    for (int threads = 1; threads <= thread_max; threads++) {
        for (int v = -1; v < VARIANT_COUNT; v++) {
            struct row *row = &rows[count];
            memset(row, 0, sizeof *row);
            row->variant = v < 0 ? NULL : variant_names[v];
            row->thread_count = row->context.thread_count = threads;
            if (row->variant && cpui_adam_select(&row->context, row->variant) < 0)
                continue;
            count++;
            if (count == ROWS_MAX)
                return count;
        }
    }
    return count;
}

static void bench_pair(const struct working_set *set, struct row *rows, int row_count, int runs,
                       enum optimizer optimizer, enum dtype grad_type, enum dtype param_type)
{
    for (int run = -1; run < runs; run++) /* run -1 warms up */
        for (int r = 0; r < row_count; r++) {
            bool is_slow = rows[r].variant && strcmp(rows[r].variant, "reference") == 0;
            if (is_slow && run > 6)
                rows[r].seconds[run] = rows[r].seconds[run % 7];
            else
                rows[r].seconds[run < 0 ? 0 : run] =
                    time_pass(set, &rows[r], optimizer, grad_type, param_type);
        }
    double elems = (double)set->tile_count * TILE_ELEMS, limit = 0;
    double bytes = (optimizer == ADAM ? 24 : 16) + (double)dtype_bytes(grad_type) +
                   (double)dtype_bytes(param_type);
    printf("%s, gradient %s, working copy %s: %.0f bytes per parameter\n",
           optimizer_names[optimizer], dtype_name(grad_type), dtype_name(param_type), bytes);
    for (int r = 0; r < row_count; r++) {
        struct bench_summary time = bench_summarize(rows[r].seconds, runs);
        double median = time.median;
        if (!rows[r].variant)
            limit = median;
        printf("  %d thread%s  %-10s %7.3f ns/param  %6.1f GB/s  +-%4.1f%%", rows[r].thread_count,
               rows[r].thread_count == 1 ? " " : "s", rows[r].variant ? rows[r].variant : "limit",
               median / elems * 1e9, bytes * elems / median * 1e-9, 100 * time.spread);
        if (rows[r].variant) {
            char name[96];
            printf("  %5.1f%% of the limit", 100 * limit / median);
            snprintf(name, sizeof name, "%s gradient %s working copy %s %s %d thread%s",
                     optimizer_names[optimizer], dtype_name(grad_type), dtype_name(param_type),
                     rows[r].variant, rows[r].thread_count, rows[r].thread_count == 1 ? "" : "s");
            bench_keep(name, bytes * elems / median * 1e-9, "GB/s", bytes * elems / limit * 1e-9,
                       time.spread);
        }
        printf("\n");
    }
}

/* One tile by each variant and by the reference, from equal inputs. */
static int check_variants(const struct row *rows, int row_count, enum optimizer optimizer)
{
    kernel_context reference = {.thread_count = 1};
    struct working_set expected, tested;
    if (cpui_adam_select(&reference, "reference") < 0 || set_create(&expected, 1) < 0)
        return -1;
    struct tile tile = tile_at(&expected, 0, optimizer, DTYPE_BF16, DTYPE_BF16);
    int rc = update_tile(&reference, optimizer, &tile);
    for (int r = 0; r < row_count && rc == 0; r++) {
        if (!rows[r].variant || set_create(&tested, 1) < 0)
            continue;
        kernel_context context = rows[r].context;
        tile = tile_at(&tested, 0, optimizer, DTYPE_BF16, DTYPE_BF16);
        rc = update_tile(&context, optimizer, &tile);
        if (memcmp(tested.base, expected.base, expected.bytes - 2 * MIB) != 0) {
            fprintf(stderr, "bench_adam: %s of %s differs from the reference\n", rows[r].variant,
                    optimizer_names[optimizer]);
            rc = -1;
        }
        munmap(tested.base, tested.bytes - 2 * MIB);
    }
    munmap(expected.base, expected.bytes - 2 * MIB);
    return rc;
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    long millions = argc > 1 ? atol(argv[1]) : bench_is_quick() ? 4 : 8;
    long runs = argc > 2 ? atol(argv[2]) : bench_is_quick() ? 7 : 9;
    long threads = argc > 3 ? atol(argv[3]) : omp_get_num_procs();
    if (millions < 1 || millions > 64 || runs < 7 || runs > RUNS_MAX || threads < 1) {
        fprintf(stderr, "usage: bench_adam [MILLIONS_OF_ELEMENTS 1..64] [RUNS 7..%d] [THREADS]\n",
                RUNS_MAX);
        return 2;
    }
    struct row *rows = mem_alloc(ROWS_MAX, sizeof *rows, "benchmark rows");
    struct working_set set;
    if (!rows || set_create(&set, (uint64_t)millions) < 0) {
        fprintf(stderr, "bench_adam: no memory\n");
        return 1;
    }
    int row_count = make_rows(rows, (int)threads);
    for (int optimizer = 0; optimizer < OPTIMIZER_COUNT; optimizer++)
        if (check_variants(rows, row_count, (enum optimizer)optimizer) < 0)
            return 1;
    printf("%ld Mi elements in tiles of 1 Mi, median of %ld interleaved runs\n", millions, runs);
    for (int optimizer = 0; optimizer < OPTIMIZER_COUNT; optimizer++) {
        bench_pair(&set, rows, row_count, (int)runs, (enum optimizer)optimizer, DTYPE_BF16,
                   DTYPE_BF16);
        bench_pair(&set, rows, row_count, (int)runs, (enum optimizer)optimizer, DTYPE_FP32,
                   DTYPE_FP32);
    }
    mem_free(rows);
    return 0;
}
