/* GFLOP/s of the products of a transformer block and of the head, bf16 and fp32, against a large
 * square product in the same run. Usage: bench_matmul [THREADS]; bench.h has the common options.
 * Before the timing it checks some elements of each result. */
#include <math.h>
#include <string.h>

#include "perf/products/bench_products.h"

struct shape {
    const char *name;
    uint64_t m, n, k;
    bool a_transposed, b_transposed, accumulate;
};

/* GPT-2 1.5B (C = 1600) with 512 rows: the three products of a Linear, and a small one. */
static const struct shape shapes[] = {
    {"qkv forward", 512, 4800, 1600, false, true, false},
    {"mlp up forward", 512, 6400, 1600, false, true, false},
    {"mlp down forward", 512, 1600, 6400, false, true, false},
    {"mlp up input gradient", 512, 1600, 6400, false, false, false},
    {"mlp up weight gradient", 6400, 1600, 512, true, false, true},
    {"small 128x256x256", 128, 256, 256, false, true, false},
    /* GPT-2 124M with 1024 rows, and its head in chunks of 768 rows. */
    {"124m qkv forward", 1024, 2304, 768, false, true, false},
    {"124m qkv weight grad", 2304, 768, 1024, true, false, true},
    {"124m mlp up forward", 1024, 3072, 768, false, true, false},
    {"124m mlp up input grad", 1024, 768, 3072, false, false, false},
    {"124m mlp down forward", 1024, 768, 3072, false, true, false},
    {"124m mlp down input grad", 1024, 3072, 768, false, false, false},
    {"124m mlp up weight grad", 3072, 768, 1024, true, false, true},
    {"124m mlp down weight grad", 768, 3072, 1024, true, false, true},
    {"124m logits", 768, 50257, 768, false, true, false},
    {"124m logits input grad", 768, 768, 50257, false, false, false},
    {"124m logits weight grad", 50257, 768, 768, true, false, true},
};

/* Checks sixteen elements against a loop in double. */
static void check(struct bench_product *bench)
{
    const matmul_desc *desc = &bench->desc;
    memset(bench->c, 0, desc->m * desc->n * sizeof(float));
    bench_require(bench_product_run(bench));
    for (uint64_t sample = 0; sample < 16; sample++) {
        uint64_t i = rng_below(1, 7, sample, desc->m), j = rng_below(1, 8, sample, desc->n);
        double sum = 0;
        for (uint64_t l = 0; l < desc->k; l++) {
            uint64_t a = desc->a_transposed ? l * desc->m + i : i * desc->k + l;
            uint64_t b = desc->b_transposed ? j * desc->k + l : l * desc->n + j;
            sum += (double)bench_value(bench->a, desc->ab_type, a) *
                   (double)bench_value(bench->b, desc->ab_type, b);
        }
        double got = (double)((float *)bench->c)[i * desc->n + j];
        if (!(fabs(got - sum) <= 1e-6 * (double)desc->k))
            bench_require(
                err_set(ERR_INTERNAL, "element (%d,%d) is %g, not %g", (int)i, (int)j, got, sum));
    }
}

static void bench_shape(kernel_context *context, const struct shape *shape, enum dtype type,
                        double limit)
{
    matmul_desc desc = {.m = shape->m,
                        .n = shape->n,
                        .k = shape->k,
                        .ab_type = type,
                        .c_type = DTYPE_FP32,
                        .a_transposed = shape->a_transposed,
                        .b_transposed = shape->b_transposed,
                        .accumulate = shape->accumulate};
    desc.a_stride = desc.a_transposed ? desc.m : desc.k;
    desc.b_stride = desc.b_transposed ? desc.k : desc.n;
    desc.c_stride = desc.n;
    struct bench_product bench;
    bench_product_init(&bench, context, &desc);
    check(&bench);
    struct bench_time time = bench_measure(bench_product_run, &bench);
    double flops = bench_product_flops(&desc);
    printf("%s %-24s %9.3f ms (%.3f to %.3f)  %6.1f GFLOP/s  %3.0f%% of %.0f\n", dtype_name(type),
           shape->name, time.median * 1e3, time.fastest * 1e3, time.slowest * 1e3,
           flops / time.median * 1e-9, 100 * flops / time.median / limit, limit * 1e-9);
    char name[80];
    snprintf(name, sizeof name, "matmul %s %s", dtype_name(type), shape->name);
    bench_keep(name, flops / time.median * 1e-9, "GFLOP/s", limit * 1e-9, time.spread);
    bench_product_fini(&bench);
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    kernel_context_config config = {.thread_count = bench_threads(argc, argv, 1)};
    kernel_context *context;
    bench_require(kernels_cpu.context_create(&config, &context));
    printf("%s\n", kernels_cpu.describe(context));
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_FP32};
    for (size_t type = 0; type < sizeof types / sizeof *types; type++) {
        double limit = bench_limit(context, types[type], NULL);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            bench_shape(context, &shapes[i], types[type], limit);
    }
    kernels_cpu.context_destroy(context);
    return 0;
}
