/* Shared by bench_matmul and bench_attention: random operands, the median of timed runs, and the
 * limit of both, the best large square product of the same run. */
#ifndef SLUICE_PERF_BENCH_PRODUCTS_H
#define SLUICE_PERF_BENCH_PRODUCTS_H

#include <errno.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/ops.h"
#include "perf/bench.h"

enum { BENCH_WARMUP = 2, BENCH_RUNS = 9 };

static inline void *bench_block(size_t bytes)
{
    void *block = mem_alloc(bytes, 1, "benchmark operand");
    if (!block)
        bench_require(-ENOMEM);
    return block;
}

static inline void *bench_random(enum dtype type, uint64_t count, uint64_t stream)
{
    char *data = bench_block(count * dtype_bytes(type));
    for (uint64_t i = 0; i < count; i++) {
        float value = (float)rng_uniform(1, stream, i) - 0.5f;
        dtype_convert(&value, DTYPE_FP32, data + i * dtype_bytes(type), type, 1);
    }
    return data;
}

static inline float bench_value(const void *data, enum dtype type, uint64_t i)
{
    float value;
    dtype_convert((const char *)data + i * dtype_bytes(type), type, &value, DTYPE_FP32, 1);
    return value;
}

struct bench_time {
    double median, fastest, slowest; /* seconds */
    double spread;                   /* as in bench.h */
};

/* Times run(user) BENCH_RUNS times, after BENCH_WARMUP calls that do not count. */
static inline struct bench_time bench_measure(int (*run)(void *user), void *user)
{
    double seconds[BENCH_RUNS];
    for (int i = -BENCH_WARMUP; i < BENCH_RUNS; i++) {
        bench_require(bench_stopped());
        uint64_t start = clock_ns();
        bench_require(run(user));
        if (i >= 0)
            seconds[i] = (double)(clock_ns() - start) * 1e-9;
    }
    struct bench_summary all = bench_summarize(seconds, BENCH_RUNS);
    return (struct bench_time){all.median, all.lowest, all.highest, all.spread};
}

/* One product with its dense operands. */
struct bench_product {
    matmul_desc desc;
    kernel_matmul *product;
    void *a, *b, *c, *scratch;
};

static inline void bench_product_init(struct bench_product *bench, kernel_context *context,
                                      const matmul_desc *desc)
{
    bench->desc = *desc;
    bench_require(kernels_cpu.matmul_create(context, desc, &bench->product));
    bench->a = bench_random(desc->ab_type, desc->m * desc->k, 1);
    bench->b = bench_random(desc->ab_type, desc->n * desc->k, 2);
    bench->c = bench_block(desc->m * desc->n * dtype_bytes(desc->c_type));
    bench->scratch = bench_block(kernels_cpu.matmul_scratch_bytes(bench->product));
}

static inline void bench_product_fini(struct bench_product *bench)
{
    kernels_cpu.matmul_destroy(bench->product);
    mem_free(bench->a);
    mem_free(bench->b);
    mem_free(bench->c);
    mem_free(bench->scratch);
}

static inline int bench_product_run(void *user)
{
    struct bench_product *bench = user;
    return kernels_cpu.matmul(bench->product, NULL, bench->a, bench->b, NULL, bench->c,
                              bench->scratch);
}

static inline double bench_product_flops(const matmul_desc *desc)
{
    return 2.0 * (double)desc->m * (double)desc->n * (double)desc->k;
}

/* The product whose speed is the limit: a 2048-cube. */
static inline matmul_desc bench_large_product(enum dtype type)
{
    return (matmul_desc){.m = 2048,
                         .n = 2048,
                         .k = 2048,
                         .b_transposed = true,
                         .a_stride = 2048,
                         .b_stride = 2048,
                         .c_stride = 2048,
                         .ab_type = type,
                         .c_type = DTYPE_FP32};
}

/* Returns the FLOP/s of the large product, the best of its runs. This is the limit for this
 * machine, dtype and moment. `spread` receives the spread of the runs, as in bench.h; it may be
 * NULL. */
static inline double bench_limit(kernel_context *context, enum dtype type, double *spread)
{
    matmul_desc desc = bench_large_product(type);
    struct bench_product bench;
    bench_product_init(&bench, context, &desc);
    struct bench_time time = bench_measure(bench_product_run, &bench);
    bench_product_fini(&bench);
    if (spread)
        *spread = time.spread;
    return bench_product_flops(&desc) / time.fastest;
}

#endif
